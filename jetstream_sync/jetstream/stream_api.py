"""Ask for the info of a stream."""

from __future__ import annotations

from typing import Any

from ..api.stream import StreamInfo
from ..codec import decode
from ..errors import InvalidResponseError
from ..subjects import check_subject
from .requests import APIRequests

__all__ = ["info_of", "stream_info"]


def stream_info(
    api: APIRequests,
    name: str,
    subjects_filter: str | None = None,
    deleted_details: bool = False,
) -> StreamInfo:
    """
    Ask for a stream's config and state; see `Stream.info()`.

    The server sends at most 100,000 subjects at a time; they are put together here.
    """
    body: dict[str, Any] = {}
    if deleted_details:
        body["deleted_details"] = True
    if subjects_filter is not None:
        body["subjects_filter"] = check_subject(subjects_filter)
    subjects: dict[str, int] = {}
    offset = 0
    while True:
        answer = api.ask(api.routes.stream_info(name), {**body, "offset": offset} if body else None)
        total = answer.get("total", 0)
        state = answer.get("state")
        page = state.get("subjects") if isinstance(state, dict) else None
        if not isinstance(state, dict) or not page:
            break
        if not isinstance(page, dict) or type(total) is not int:
            raise InvalidResponseError(f"an info with subjects={page!r:.60}, total={total!r:.60}")
        known = len(subjects)
        subjects.update(page)
        offset += len(page)
        # A total that is wrong does not make it go on for ever: a page without anything new is the end.
        if offset >= total or len(subjects) == known:
            break
    if subjects_filter is not None and isinstance(state, dict):
        state["subjects"] = subjects
    return info_of(answer)


def info_of(answer: dict[str, Any]) -> StreamInfo:
    """Make the info of an answer that has one, beside what belongs to the answer itself."""
    for key in ("type", "total", "offset", "limit", "did_create"):
        answer.pop(key, None)
    return decode(StreamInfo, answer)
