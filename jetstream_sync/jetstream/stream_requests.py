"""Read the infos and names of streams through the JetStream API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import errors
from ..api.stream import StreamInfo
from ..codec import decode
from ..net.clock import Deadline
from ..subjects import check_subject
from .api_requests import APIRequests
from .listing import Listing, listed, name_of


def names_by_subject(api: APIRequests, subject: str) -> list[str]:
    """Return the names of the streams with a subject, at least one, in the server's order."""
    route = api.routes.to("STREAM.NAMES")
    found = listed(api.ask(route, {"subject": subject}), "streams", route)
    if not found:
        raise errors.StreamNotFoundError(404, 10059, f"no stream has the subject {subject!r}")
    return [name_of(name, "streams", route) for name in found]


def stream_info(
    api: APIRequests,
    name: str,
    subjects_filter: str | None = None,
    deleted_details: bool = False,
    deadline: Deadline | None = None,
) -> StreamInfo:
    """Ask for a stream's config and state; see `Stream.info()`."""
    deadline = deadline or api.deadline()
    # The server sends at most 100,000 subjects at a time; they are put together here.
    body: dict[str, Any] = {}
    if deleted_details:
        body["deleted_details"] = True
    if subjects_filter is not None:
        body["subjects_filter"] = check_subject(subjects_filter)
    subjects: dict[str, int] = {}
    offset = 0
    while True:
        page_body = {**body, "offset": offset} if body else None
        response = api.ask(api.routes.to("STREAM.INFO", name), page_body, deadline)
        total = response.get("total", 0)
        state = response.get("state")
        page = state.get("subjects") if isinstance(state, dict) else None
        if not isinstance(state, dict) or not page:
            break
        if not isinstance(page, dict) or type(total) is not int:
            raise errors.InvalidResponseError(
                f"an info with subjects={page!r:.60}, total={total!r:.60}"
            )
        known = len(subjects)
        subjects.update(page)
        offset += len(page)
        # A wrong total must not cause an endless loop: a page without new items is the end.
        if offset >= total or len(subjects) == known:
            break
    if subjects_filter is not None and isinstance(state, dict):
        state["subjects"] = subjects
    info = info_of(response)
    if info.config.name != name:
        raise errors.InvalidResponseError(
            f"asked for stream {name!r}, got {info.config.name!r:.60}"
        )
    return info


def stream_infos(
    api: APIRequests, body: Mapping[str, Any] | None = None, *, allow_incomplete: bool = False
) -> Listing[StreamInfo]:
    """Return the infos of all streams, or of those that the body selects."""
    return api.infos(StreamInfo, "STREAM", "streams", (), body, allow_incomplete=allow_incomplete)


def info_of(response: dict[str, Any]) -> StreamInfo:
    """Make the info of a reply that has one, beside what belongs to the reply itself."""
    for key in ("type", "total", "offset", "limit", "did_create"):
        response.pop(key, None)
    return decode(StreamInfo, response)
