"""
A message read from a stream without a consumer, and the two ways to get one.

`STREAM.MSG.GET` is answered by the stream's leader, in JSON. A direct get (ADR-31) is answered by
any replica, or by a mirror, with the message as it is and four headers behind its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from ..api.stream import StoredMsg as StoredMsgReply
from ..codec import decode, dumps
from ..durations import time_from_text, time_to_ns
from ..errors import APIError, InvalidResponseError, MessageNotFoundError
from ..headers import (
    SEQUENCE,
    STREAM,
    SUBJECT,
    TIMESTAMP,
    Headers,
    parse_headers,
    parse_status,
)
from ..net.clock import Deadline
from .requests import APIRequests

__all__ = ["StoredMsg", "direct_get", "leader_get", "read_direct"]

# The server's own words for a message that is not there, which a direct get answers with a status.
_NOT_FOUND: Final = MessageNotFoundError(404, 10037, "no message found")


class StoredMsg(NamedTuple):
    """A message as a stream holds it."""

    stream: str
    """The stream; for a direct get the one that answered, which may be a mirror."""

    subject: str
    """The subject that it is stored under."""

    seq: int
    """Its sequence in the stream."""

    data: bytes
    """Its payload."""

    headers: Headers | None
    """Its headers, ``None`` when it has none."""

    time: datetime
    """When it was stored, in UTC; a `datetime` shows microseconds, `time_ns` is exact."""

    @property
    def time_ns(self) -> int:
        """When it was stored, in nanoseconds since 1970 (UTC)."""
        return time_to_ns(self.time)


def leader_get(
    api: APIRequests, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> StoredMsg:
    """
    Get a message from the stream's leader.

    Raises:
        MessageNotFoundError: the stream has no such message.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    answer = api.ask(api.routes.msg_get(stream), request, deadline)
    reply = decode(StoredMsgReply, answer.get("message"))
    headers = parse_headers(reply.hdrs) if reply.hdrs else None
    return StoredMsg(stream, reply.subject, reply.seq, reply.data or b"", headers, reply.time)


def direct_get(
    api: APIRequests, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> StoredMsg:
    """
    Get a message from whoever has the stream.

    Raises:
        MessageNotFoundError: the stream has no such message, or not yet where it was asked for.
        NoRespondersError: nobody answers direct gets for the stream.
        APIError: the server refused.
        InvalidResponseError: the answer is not what the API gives.
        TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    subject = request.get("last_by_subj")
    if subject is None or "*" in subject or ">" in subject:
        route, payload = api.routes.direct_get(stream), dumps(request)
    else:
        # With the subject in the route, permissions can be given by subject.
        route, payload = api.routes.direct_get_last(stream, subject), b""
    core = api.core
    _, _, block, data = core.request(core.composer.encoded(route), payload, deadline)
    return read_direct(block, data)


def read_direct(block: bytes, data: bytes, also_added: Sequence[str] = ()) -> StoredMsg:
    """
    Read the answer to a direct get.

    Args:
        block: its headers.
        data: the payload.
        also_added: names of headers that the server added, beside the usual four.

    Raises:
        MessageNotFoundError: it says that there is no such message.
        APIError: it says that the server refused.
        InvalidResponseError: it is no such answer.

    """
    headers = parse_headers(block) if block else None
    if headers is None or SEQUENCE not in headers:
        raise _refusal(block)
    for name in also_added:
        _pop_last(headers, name)
    time = _pop_last(headers, TIMESTAMP)
    seq = _pop_last(headers, SEQUENCE)
    subject = _pop_last(headers, SUBJECT)
    stream = _pop_last(headers, STREAM)
    try:
        return StoredMsg(stream, subject, int(seq), data, headers or None, time_from_text(time))
    except ValueError as error:
        raise InvalidResponseError(f"a direct get answered with seq {seq!r} of {time!r}") from error


def _pop_last(headers: Headers, name: str) -> str:
    """
    Take out the last value of a header, which the server added.

    A message that was republished has such headers of its own, which stay.
    """
    values = headers.get_all(name)
    if not values:
        raise InvalidResponseError(f"a direct get answered without the header {name}")
    del headers[name]
    for value in values[:-1]:
        headers.add(name, value)
    return values[-1]


def _refusal(block: bytes) -> APIError | InvalidResponseError:
    status = parse_status(block)
    if status is None:
        return InvalidResponseError(f"a direct get answered without a message: {block[:60]!r}")
    if status.code == 404:
        return MessageNotFoundError(*_NOT_FOUND.args)
    return APIError.from_response({"code": status.code, "description": status.description})
