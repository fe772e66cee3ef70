"""Read stored messages without a consumer: STREAM.MSG.GET, direct gets and batched direct gets."""

# `STREAM.MSG.GET` is answered by the leader of the stream, in JSON. A direct get (ADR-31) is answered
# by any replica, or by a mirror, which may have other messages: the reply is the message itself, with four
# additional headers. A batched direct get is one request with many replies, which `ReplyCollector` receives.
#
# A reply to a direct get counts only if it proves that the stream has answered: if its ``Nats-Stream`` is the
# stream. A 404 names no stream, so it proves nothing. Without proof the leader is asked, as without responders, and
# also for a message whose own header block has no end: the server appends its headers to another client's line.

from __future__ import annotations

import re
from collections.abc import Sequence
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
    parse_headers,
    parse_status,
)
from ..net.clock import Deadline
from ..protocol.parser import HEADER, PAYLOAD, RawMessage
from .api_requests import APIRequests

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
    """The stream."""

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
    api: APIRequests,
    stream: str,
    request: MsgGetRequest,
    deadline: Deadline | None = None,
    *,
    direct: bool | None,
) -> StoredReply:
    """Get a message from any server that has the stream if direct gets are allowed, or from its leader."""
    deadline = deadline or api.deadline()
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
    except (errors.NoRespondersError, errors.MessageNotFoundError, errors.InvalidResponseError):
        # The stream does not exist, or does not allow it any more, or a mirror or a replica that is behind
        # does not have the message; or its headers are malformed.
        return None
    except errors.TimeoutError:
        if deadline.expired():
            raise
        return None
    if reply.stream != _encode(stream):
        return None
    _check_requested(request, _decode(reply.subject), reply.seq)
    return reply


def is_from(stream: str, block: bytes) -> bool:
    """Return whether a reply to a direct get proves that the stream has answered, and not a mirror of it."""
    # The server adds its headers after those of the message.
    _, name, value = block.rpartition(_STREAM)
    return bool(name) and value.startswith(stream.encode() + b"\r\n")


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
        raise refusal(block)
    for name in also_added:
        pop_last(headers, name)
    time = pop_last(headers, TIMESTAMP)
    seq = pop_last(headers, SEQUENCE)
    subject = pop_last(headers, SUBJECT)
    stream = pop_last(headers, STREAM)
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


def pop_last(headers: Headers, name: str) -> str:
    """Take out the last value of a header, which the server added."""
    # A message that was republished has such headers of its own, which stay.
    values = headers.get_all(name)
    if not values:
        raise errors.InvalidResponseError(f"a direct get answered without the header {name}")
    del headers[name]
    for value in values[:-1]:
        headers.add(name, value)
    return values[-1]


def refusal(block: bytes) -> errors.APIError | errors.InvalidResponseError:
    """Return the error for a reply without a message."""
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
_STREAM: Final = f"\r\n{STREAM}: ".encode()
_SEQUENCE: Final = SEQUENCE.encode() + b": "
#: The headers that messages of a batch have behind those of a single direct get, in this order.
ADDED: Final = ("Nats-Num-Pending", "Nats-Last-Sequence")
_PENDING, _LAST = (f"{name}: ".encode() for name in ADDED)
_BATCH_REPLY: Final = re.compile(_REPLY + b"%b\\d+\r\n%b\\d+\r\n\r\n" % (_PENDING, _LAST))


def direct_get_many(
    api: APIRequests, stream: str, request: MsgGetRequest, deadline: Deadline
) -> list[StoredMsg]:
    """Get messages from any server that has the stream, at least one; otherwise raise `NoRespondersError`."""
    # If the reply was cut off, the list holds the messages received so far, in order and without gaps.
    route = api.routes.to("DIRECT.GET", stream)
    items, error = collect(api, route, request, deadline)
    if error is not None and not items:
        raise error
    if request.start_time is not None and not (
        is_direct_status(items[0]) or _is_of_batch(items[0][HEADER])
    ):
        raise too_old(api, "start_time")
    if is_direct_status(items[-1]) and len(items) > 1:
        items.pop()  # it ends them; one alone says why there are none
    if is_unproven(stream, items[0]):
        raise errors.NoRespondersError(route)
    messages: list[StoredMsg] = []
    for _, _, block, data in items:
        try:
            reply = read_direct(block, data, ADDED if _is_of_batch(block) else ())
        except errors.InvalidResponseError as malformed:
            if not messages:
                raise errors.NoRespondersError(route) from malformed
            break
        messages.append(reply.decoded())
    return messages


def is_unproven(stream: str, reply: RawMessage) -> bool:
    """Return whether the first reply to a direct get does not show what the stream has."""
    if is_direct_status(reply):
        status = parse_status(reply[HEADER])
        return status is not None and status.code in (
            StatusCode.NOT_FOUND,
            StatusCode.NO_RESPONDERS,
        )
    return _STREAM in reply[HEADER] and not is_from(stream, reply[HEADER])


def collect(
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


def too_old(api: APIRequests, feature: str) -> errors.ServerTooOldError:
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
