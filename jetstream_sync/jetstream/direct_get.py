"""Read stored messages without a consumer: STREAM.MSG.GET, direct gets and batched direct gets."""

# `STREAM.MSG.GET` is answered by the leader of the stream, in JSON. A direct get (ADR-31) is answered
# by any replica or by a mirror: the reply is the message itself, with four additional headers.
# A batched direct get is one request with many replies, which `ReplyCollector` receives. It returns the
# messages from a sequence or time on, or the last messages of many subjects, page by page.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from .. import errors
from ..api.echo import release
from ..api.stream import MsgGetRequest, StoredMsgReply
from ..client.replies import ReplyCollector
from ..codec import decode
from ..durations import time_from_text, time_to_ns
from ..headers import (
    SEQUENCE,
    STREAM,
    SUBJECT,
    TIMESTAMP,
    VERSION_LINE,
    Headers,
    StatusCode,
    is_no_responders,
    parse_headers,
    parse_status,
)
from ..net.clock import Deadline
from ..protocol.parser import HEADER, PAYLOAD, RawMessage
from .api_requests import APIRequests, stream_info

# The headers of the reply to a direct get: those of the stored message, and those of the server. A batch adds
# two more.
_REPLY: Final = (
    rb"(NATS/1\.0\r\n(?:[^\r\n]+\r\n)*?)%b: (\S+)\r\n%b: (\S+)\r\n%b: ([0-9]+)\r\n%b: (\S+)\r\n"
    % tuple(name.encode() for name in (STREAM, SUBJECT, SEQUENCE, TIMESTAMP))
)
_ONE_REPLY: Final = re.compile(_REPLY + rb"\r\n")
#: Seconds for the reply to a direct get before the leader is asked: old servers do not say that
#: there are no responders, and a replica may be down while the leader is available.
_DIRECT_TIMEOUT_S: Final = 1.0


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


class StoredReply(NamedTuple):
    """A stored message as a server returned it, decoded as far as its reader needs it."""

    stream: bytes
    subject: bytes
    seq: int
    data: bytes
    header: bytes | Headers | None
    """The headers, or their block; ``None``: the message has none."""
    stored_at: bytes | datetime

    @property
    def time(self) -> datetime:
        """When the message was stored."""
        if isinstance(self.stored_at, datetime):
            return self.stored_at
        try:
            return time_from_text(_decode(self.stored_at))
        except ValueError as error:
            raise errors.InvalidResponseError(f"a direct get answered with {error}") from error

    def decoded(self) -> StoredMsg:
        """Return the message."""
        headers = self.header
        if isinstance(headers, bytes):
            headers = parse_headers(headers)
        return StoredMsg(
            _decode(self.stream), _decode(self.subject), self.seq, self.data, headers, self.time
        )


def get_stored(
    api: APIRequests, stream: str, request: MsgGetRequest, *, direct: bool | None
) -> StoredReply:
    """Get a message from any server that has the stream if direct gets are allowed, or from its leader."""
    deadline = api.deadline()
    reply = _direct_reply(api, stream, request, deadline) if direct else None
    return reply or _leader_reply(api, stream, request, deadline)


def leader_get(
    api: APIRequests, stream: str, request: MsgGetRequest, deadline: Deadline
) -> StoredMsg:
    """Get a message from the stream's leader."""
    return _leader_reply(api, stream, request, deadline).decoded()


def _leader_reply(
    api: APIRequests, stream: str, request: MsgGetRequest, deadline: Deadline
) -> StoredReply:
    response = api.ask(api.routes.to("STREAM.MSG.GET", stream), request.to_json(), deadline)
    reply = decode(StoredMsgReply, response.get("message"))
    _check_requested(request, reply.subject, reply.seq)
    return StoredReply(
        _encode(stream),
        _encode(reply.subject),
        reply.seq,
        reply.data or b"",
        reply.hdrs,
        reply.time,
    )


def _direct_reply(
    api: APIRequests, stream: str, request: MsgGetRequest, deadline: Deadline
) -> StoredReply | None:
    """Send a direct get; ``None``: the leader has to be asked."""
    subject = request.last_by_subj
    route, payload = None, b""
    if subject is not None and "*" not in subject and ">" not in subject:
        # With the subject in the route, permissions can be given by subject.
        route = api.routes.direct_get_last(stream, subject)
    if route is None:
        route, payload = api.routes.to("DIRECT.GET", stream), request.encode()
    encoded = api.core.encoder.encode_subject(route)
    try:
        reply = api.call(
            encoded,
            payload,
            deadline.sooner(_DIRECT_TIMEOUT_S),
            lambda reply: read_direct(reply[HEADER], reply[PAYLOAD]),
        )
    except errors.NoRespondersError:
        return None  # the stream does not exist, or does not allow it any more
    except errors.TimeoutError:
        if deadline.expired():
            raise
        return None
    _check_requested(request, _decode(reply.subject), reply.seq)
    return reply


def _check_requested(request: MsgGetRequest, subject: str, seq: int) -> None:
    """Raise if a message is not the requested one."""
    if not request.selects(subject, seq):
        raise errors.InvalidResponseError(
            f"asked for {request.to_json()!r:.100}, got {seq} with {subject!r:.60}"
        )


def read_direct(block: bytes, data: bytes, also_added: Sequence[str] = ()) -> StoredReply:
    """Read the reply to a direct get."""
    usual = (_BATCH_REPLY if also_added else _ONE_REPLY).fullmatch(block)
    if usual is not None:
        own, stream, subject, seq, time = usual.groups()
        header = None if own == VERSION_LINE else own + b"\r\n"
        return StoredReply(stream, subject, int(seq), data, header, time)
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
        number = int(seq)
    except ValueError:
        raise errors.InvalidResponseError(f"a direct get answered with seq {seq!r}") from None
    return StoredReply(
        _encode(stream), _encode(subject), number, data, headers or None, _encode(time)
    )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _pop_last(headers: Headers, name: str) -> str:
    """Take out the last value of a header, which the server added."""
    # A message that was republished has such headers of its own, which stay.
    values = headers.get_all(name)
    if not values:
        raise errors.InvalidResponseError(f"a direct get answered without the header {name}")
    del headers[name]
    for value in values[:-1]:
        headers.add(name, value)
    return values[-1]


def _refusal(block: bytes) -> errors.APIError | errors.InvalidResponseError:
    status = parse_status(block)
    if status is None:
        return errors.InvalidResponseError(
            f"a direct get answered without a message: {block[:60]!r}"
        )
    if status.code == StatusCode.NOT_FOUND:
        return errors.MessageNotFoundError.found_here("no message found")
    return errors.APIError.from_response({"code": status.code, "description": status.description})


#: What one reply may have: more could fill the server's buffer for this connection.
MAX_BYTES: Final = 4_000_000

#: Seconds for each next message: one replica may be down while the leader is well.
_IDLE_TIMEOUT_S: Final = 1.0
_STATUS: Final = b"NATS/1.0 "
_SEQUENCE: Final = SEQUENCE.encode() + b": "
#: The headers that messages of a batch have behind those of a single direct get, in this order.
_ADDED: Final = ("Nats-Num-Pending", "Nats-Last-Sequence")
_PENDING, _LAST = (f"{name}: ".encode() for name in _ADDED)
_UP_TO: Final = "Nats-UpTo-Sequence"
_BATCH_REPLY: Final = re.compile(_REPLY + b"%b\\d+\r\n%b\\d+\r\n\r\n" % (_PENDING, _LAST))


def direct_get_many(
    api: APIRequests, stream: str, request: MsgGetRequest, deadline: Deadline
) -> list[StoredMsg]:
    """Get messages from any server that has the stream, at least one."""
    # If the reply was cut off, the list holds the messages received so far, in order and without gaps.
    route = api.routes.to("DIRECT.GET", stream)
    items, error = _collect(api, route, request, deadline)
    if error is not None and not items:
        raise error
    if request.start_time is not None and not (
        is_direct_status(items[0]) or _is_of_batch(items[0][HEADER])
    ):
        raise _too_old(api, "start_time")
    if is_direct_status(items[-1]):
        if len(items) > 1:
            items.pop()  # it ends them; one alone says why there are none
        elif is_no_responders(items[0][HEADER], b""):
            raise errors.NoRespondersError(route)
    return [
        read_direct(block, data, _ADDED if _is_of_batch(block) else ()).decoded()
        for _, _, block, data in items
    ]


def _collect(
    api: APIRequests, route: str, request: MsgGetRequest, deadline: Deadline
) -> tuple[list[RawMessage], errors.Error | None]:
    """Send a batched direct get; return the replies, and the error that ended them early, if any."""
    replies = ReplyCollector(api.core, _is_end)
    try:
        replies.ask(route.encode(), request.encode())
        try:
            return replies.wait(_IDLE_TIMEOUT_S, deadline), None
        except (errors.TimeoutError, errors.ConnectionLostError) as error:
            return list(replies.items), error
    finally:
        replies.close()


class _Page(NamedTuple):
    """Some of the last messages of many subjects."""

    messages: list[StoredMsg]
    left: int
    """Number of messages that follow on other pages."""
    up_to: int
    """The sequence up to which messages count, on all pages."""


#: Attempts for a page with fewer messages than the one before announced, and seconds between two: a
#: replica that is behind may have answered.
_PAGE_ATTEMPTS: Final = 5
_PAGE_RETRY_DELAY_S: Final = 0.05


def direct_get_last(api: APIRequests, stream: str, request: MsgGetRequest) -> Iterator[StoredMsg]:
    """Get the last messages of many subjects from any server that has the stream."""
    # The first page is requested by the call, the others by the iteration.
    page = _last_page(api, stream, request)
    if not page.messages and request.up_to_seq is not None:
        page = _search_again(api, stream, request, request.up_to_seq, page)
    return _iter_pages(api, stream, request, page)


def _search_again(
    api: APIRequests, stream: str, request: MsgGetRequest, up_to_seq: int, page: _Page
) -> _Page:
    """Return the first page for a sequence up to which no message was found."""
    # With file storage, servers find none up to a sequence that they do not have yet. That is a
    # sequence beyond the end of the stream, or the server that replied is behind.
    info = stream_info(api, stream)
    last = min(up_to_seq, info.state.last_seq)
    attempts = _PAGE_ATTEMPTS if (info.config.num_replicas or 1) > 1 else 1
    while last and attempts and not page.messages:
        page = _last_page(api, stream, request._replace(up_to_seq=last))
        attempts -= 1
        if attempts and not page.messages:
            api.core.wait_closed(_PAGE_RETRY_DELAY_S)
    return page


def _iter_pages(
    api: APIRequests, stream: str, request: MsgGetRequest, page: _Page
) -> Iterator[StoredMsg]:
    yield from page.messages
    # From the second page on the sequence says up to where.
    request = request._replace(up_to_time=None)
    while page.left:
        expected = page.left
        request = request._replace(seq=page.messages[-1].seq + 1, up_to_seq=page.up_to)
        for _ in range(_PAGE_ATTEMPTS):
            page = _last_page(api, stream, request)
            found = len(page.messages) + page.left
            if found == expected:
                break
            api.core.wait_closed(_PAGE_RETRY_DELAY_S)
        else:
            raise errors.MessagesChangedError(
                f"{expected - found} messages of the stream {stream!r} were replaced or deleted while"
                " the last messages of its subjects were read in pages: read them again"
            )
        yield from page.messages


def _last_page(api: APIRequests, stream: str, request: MsgGetRequest) -> _Page:
    """Request a page until it arrives completely."""
    route = api.routes.to("DIRECT.GET", stream)
    deadline = api.deadline()
    while True:
        items, error = _collect(api, route, request, deadline)
        if error is None and not _is_broken_off(items):
            return _page_of(api, route, items)
        if deadline.expired():
            raise error or api.core.state.timed_out(
                f"{route!r} was not answered completely in time"
            )
        api.core.wait_closed(_PAGE_RETRY_DELAY_S)


def _is_broken_off(items: list[RawMessage]) -> bool:
    """Return whether the server could not load one of the messages, which was deleted meanwhile."""
    status = parse_status(items[-1][HEADER])
    return len(items) > 1 and status is not None and status.code == StatusCode.NOT_FOUND


def _page_of(api: APIRequests, route: str, items: list[RawMessage]) -> _Page:
    """Return the page that the replies contain."""
    end = items.pop()
    if not is_direct_status(end):
        if _SEQUENCE in end[HEADER]:
            raise _too_old(api, "multi_last")
        raise _refusal(end[HEADER])
    status = parse_status(end[HEADER])
    if status is not None and status.code == StatusCode.NOT_FOUND:
        return _Page([], 0, 0)
    if status is not None and status.code == StatusCode.NO_RESPONDERS:
        raise errors.NoRespondersError(route)
    if (
        status is not None
        and status.code == StatusCode.TIMEOUT
        and status.description == "Empty Request"
    ):
        raise _too_old(api, "multi_last")
    try:
        # Not from the end: servers before 2.12 report 0 there even if more pages follow.
        left = _last_number(items[-1][HEADER], _ADDED[0])
        up_to = _last_number(end[HEADER], _UP_TO)
    except (IndexError, ValueError, errors.InvalidResponseError):
        if status is not None and status.code == StatusCode.DONE:
            raise errors.InvalidResponseError(
                f"{route} replied without messages: {end[HEADER]!r}"
            ) from None
        raise _refusal(end[HEADER]) from None
    messages = [read_direct(block, data, _ADDED).decoded() for _, _, block, data in items]
    return _Page(messages, left, up_to)


def _last_number(block: bytes, name: str) -> int:
    """Return the number in a header that the server added."""
    return int(_pop_last(parse_headers(block) or Headers(), name))


def _too_old(api: APIRequests, feature: str) -> errors.ServerTooOldError:
    """Return the error for a reply of an old server, which may be older than the connected one."""
    version = api.core.info.version
    is_newer = (release(version) or (2, 11)) >= (2, 11)
    return errors.ServerTooOldError(feature, "2.11", "older than 2.11" if is_newer else version)


def _is_end(delivery: RawMessage) -> bool:
    return is_direct_status(delivery) or not _is_of_batch(delivery[HEADER])


def is_direct_status(delivery: RawMessage) -> bool:
    """Return whether this is a status: unlike every message it does not say which sequence it has."""
    block = delivery[HEADER]
    return block.startswith(_STATUS) and not delivery[PAYLOAD] and _SEQUENCE not in block


def _is_of_batch(block: bytes) -> bool:
    """Return whether the last headers are those of a batch; before them a message may have any."""
    lines = block.rsplit(b"\r\n", 4)
    return len(lines) == 5 and lines[1].startswith(_PENDING) and lines[2].startswith(_LAST)
