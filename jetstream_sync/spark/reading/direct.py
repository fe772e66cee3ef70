"""
Read a range with batched direct gets (ADR-31).

Behaviour of nats-server 2.15 (``server/stream.go``, ``getDirectRequest``) that this relies on:

1. The server adds six headers after those of the message, in a fixed order: ``Nats-Stream``,
   ``Nats-Subject``, ``Nats-Sequence``, ``Nats-Time-Stamp``, ``Nats-Num-Pending``, ``Nats-Last-Sequence``. A
   republished or forged message has such headers of its own before them. Those belong to the user.
2. ``max_bytes`` ends a response after the message that reaches it. ``up_to_seq`` is ignored.
3. A response ends with status 204 and the number of remaining matches. If there is no match at all, the
   response is status 404 alone. If the stream does not allow direct gets, there are no responders.
4. Any replica may respond, and it may lag behind. So does each mirror in the same account, whatever its filter
   and limits are. There is no flow control.

So only messages with the name of the stream in ``Nats-Stream`` count. A reply without a message proves nothing: the
leader is asked, see `_RangeReader` and `count_from_each`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from ... import errors
from ...api.enums import RetentionPolicy
from ...api.stream import MsgGetRequest, StoredMsgReply
from ...client.replies import ReplyCollector
from ...codec import decode
from ...durations import time_from_text, time_to_ns
from ...headers import StatusCode, is_no_responders, parse_headers, parse_status
from ...jetstream.api_requests import APIRequests, read_response, stream_info
from ...jetstream.context import JetStream
from ...jetstream.direct_get import MAX_BYTES, is_direct_status, is_from
from ...net.clock import Deadline
from ...protocol.parser import HEADER, PAYLOAD, RawMessage
from ...speedups import split_direct
from ..bytes_column import NO_BYTES, BytesColumn
from ..connections import api_requests, ask_all, is_batching
from .chunks import BatchSizer, Chunk, ReadResponse, ReadTask, subject_matcher
from .ranges import DirectGetRefusedError, RangeStalledError
from .replies import asked, int64_array

_PLAIN: Final = b"NATS/1.0"
_UNEXPECTED_HEADERS: Final = (
    "a direct get response does not have the headers of ADR-31;"
    " a server before 2.11 may have sent it, while the connected one is newer: update all servers"
)
_NEWLINE: Final = b"\r\n"
_NUM_PENDING: Final = b"\r\nNats-Num-Pending: "
#: Header lines that the server adds to a message in a batch.
_BATCH_LINES: Final = 6
#: Maximum number of requests for one message each at once.
_MAX_SINGLE_GETS: Final = 256


class DirectReader:
    """
    Reads a range with direct gets, or with one request to the leader for each message; for one thread.

    It asks the leader where it is told to, and if the server is older than 2.11. `responses` raises `RangeStalledError`
    if another stream replies to a direct get.
    """

    def __init__(self, api: APIRequests, task: ReadTask, *, asks_leader: bool = False) -> None:
        self._api = api
        self._task = task
        self._asks_leader = asks_leader or not is_batching(task.server)
        self._route = api.routes.to("DIRECT.GET", task.range.stream).encode()
        filters = task.range.filters
        self._filter = filters[0] if len(filters) == 1 else None
        # The server supports one filter; several filters are applied here.
        self._matches = subject_matcher(filters) if len(filters) > 1 else None

    def responses(self, start_seq: int) -> Generator[ReadResponse, None, None]:
        """Yield responses up to the end of the messages or of the range; one is prefetched."""
        if self._asks_leader:
            yield from self._leader_responses(start_seq)
            return
        sizer = BatchSizer(self._task, start_seq, filtered=self._filter is not None)
        gathering = self._request(start_seq, sizer)
        try:
            while True:
                items = gathering.wait(self._task.silence_timeout)
                gathering.close()
                pending = _remaining_messages(items.pop(), self._route)
                if items:  # one server has sent all of them
                    self._check_stream(items[0][HEADER], start_seq)
                server_headers = _parse_server_headers(items.column(HEADER))
                sequences = server_headers.sequences
                next_seq = sequences[-1] + 1 if sequences else start_seq
                sizer.add_rows(len(sequences))
                self._task.validate_batch(start_seq, next_seq, sequences)
                # If remaining messages do not arrive, the caller decides when to ask again.
                has_more = pending > 0 and start_seq < next_seq < self._task.range.end_seq
                if has_more:
                    gathering = self._request(next_seq, sizer)
                # The next response is already requested while this one is processed.
                fields = self._task.fields
                data = items.column(PAYLOAD) if fields.data or fields.sizes else NO_BYTES
                chunk = self._chunk(data, server_headers)
                sizer.learn_size(chunk)
                del items, data, server_headers
                yield ReadResponse(chunk, next_seq)
                if not has_more:
                    return
                start_seq = next_seq
        finally:
            gathering.close()

    def _leader_responses(self, start_seq: int) -> Generator[ReadResponse, None, None]:
        """Yield responses of the leader, with one request for each message."""
        window, stream = _MAX_SINGLE_GETS, self._task.range.stream
        while start_seq < self._task.range.end_seq:
            seqs = range(start_seq, min(start_seq + window, self._task.range.end_seq))
            found: dict[int, _Message] = {}
            for message in _leader_messages(
                self._api, stream, [(seq, self._filter) for seq in seqs]
            ):
                if message is None:
                    break
                found[message.seq] = message
            if not found:
                return
            sequences, own, subjects, times_ns, data = zip(
                *(found[seq] for seq in sorted(found)), strict=True
            )
            next_seq = sequences[-1] + 1
            self._task.validate_batch(start_seq, next_seq, sequences)
            of = BytesColumn.of
            server_headers = _ServerHeaders(list(sequences), of(own), of(subjects), list(times_ns))
            yield ReadResponse(self._chunk(of(data), server_headers), next_seq)
            start_seq = next_seq
            # Where few messages match, most requests have the same reply.
            window = min(2 * len(found), _MAX_SINGLE_GETS)

    def _check_stream(self, block: bytes, start_seq: int) -> None:
        """Check that a message comes from the stream itself."""
        stream = self._task.range.stream
        if not is_from(stream, block):
            reason = "another stream, which mirrors it, replied to a direct get"
            raise RangeStalledError(stream, start_seq, reason)

    def _request(self, seq: int, sizer: BatchSizer) -> ReplyCollector:
        request = MsgGetRequest(
            seq,
            next_by_subj=self._filter,
            batch=sizer.rows(seq),
            max_bytes=min(self._task.batch_bytes, MAX_BYTES),
        )
        deadline = Deadline(self._task.silence_timeout)
        return asked(self._api.core, self._route, request.encode(), _is_status, deadline)

    def _chunk(self, data: BytesColumn, server_headers: _ServerHeaders) -> Chunk:
        """Return the columns of messages, given their payloads and their parsed server headers."""
        sequences, own, subjects, times_ns = server_headers
        matches = self._matches
        return self._task.chunk(sequences, subjects, own, data, times_ns, matches=matches)


class _Message(NamedTuple):
    """One message, in the order of the columns of a chunk."""

    seq: int
    own: bytes
    subject: bytes
    time_ns: int
    data: bytes


def _leader_messages(
    api: APIRequests, stream: str, pairs: Sequence[tuple[int, str | None]]
) -> list[_Message | None]:
    """Return the first message from each sequence on that matches a subject, as the leader has them."""
    route = api.routes.to("STREAM.MSG.GET", stream)
    requests = [
        (route, MsgGetRequest(seq, next_by_subj=subject or ">").encode()) for seq, subject in pairs
    ]
    return [_leader_message(reply, route) for reply, *_ in ask_all(api, requests)]


def _leader_message(reply: RawMessage, route: str) -> _Message | None:
    """Return the message in a reply of a stream leader, if any."""
    if is_no_responders(*reply[2:]):
        raise errors.NoRespondersError(route)
    try:
        message = decode(StoredMsgReply, read_response(route, reply).get("message"))
    except errors.MessageNotFoundError:
        return None
    subject = message.subject.encode("utf-8", "surrogateescape")
    time_ns = time_to_ns(message.time)
    return _Message(message.seq, message.hdrs or b"", subject, time_ns, message.data or b"")


class _ServerHeaders(NamedTuple):
    """The headers that the server added to messages, as columns of equal length."""

    sequences: Sequence[int]
    own: BytesColumn
    """The header blocks of the messages without them; empty: a message has no headers of its own."""
    subjects: BytesColumn
    times_ns: Sequence[int]


def _parse_server_headers(blocks: BytesColumn) -> _ServerHeaders:
    """Parse the header blocks of a response, to each of which the server has added some lines."""
    made = None if split_direct is None else split_direct(blocks.offsets, blocks.data)
    if made is not None:
        own_offsets, own, subject_offsets, subjects, sequences, times = made
        return _ServerHeaders(
            int64_array(sequences),
            BytesColumn(own_offsets, own),
            BytesColumn(subject_offsets, subjects),
            int64_array(times),
        )
    # The lines are followed by an empty one.
    tails = [block.rsplit(_NEWLINE, _BATCH_LINES + 2) for block in blocks]
    try:
        return _ServerHeaders(
            [int(_value(tail[3], b"Nats-Sequence: ")) for tail in tails],
            BytesColumn.of(b"" if tail[0] == _PLAIN else tail[0] + b"\r\n\r\n" for tail in tails),
            BytesColumn.of(_value(tail[2], b"Nats-Subject: ") for tail in tails),
            [
                time_to_ns(time_from_text(_value(tail[4], b"Nats-Time-Stamp: ").decode()))
                for tail in tails
            ],
        )
    except (IndexError, ValueError):
        raise errors.InvalidResponseError(_UNEXPECTED_HEADERS) from None


def _value(line: bytes, start: bytes) -> bytes:
    if not line.startswith(start):
        raise ValueError(line)
    return line[len(start) :]


def count_from_each(
    js: JetStream,
    stream: str,
    seqs: Sequence[int],
    subjects: Sequence[str | None],
    *,
    direct: bool = True,
) -> list[tuple[int | None, int]]:
    """
    Return the first sequence and the number of the messages from each of some sequences on.

    Direct gets return them, all of which are requested at once, in the given order. The leader is asked for what they
    do not prove: where another stream replied, or no message was found. If it has a message, a temporary consumer counts,
    as for streams without direct gets, and for servers that do not count in their replies. Any thread may call it.
    """
    api = api_requests(js)
    route = api.routes.to("DIRECT.GET", stream)
    pairs = [(max(seq, 1), subject) for seq in seqs for subject in subjects]
    counts: list[tuple[int | None, int] | None] = [None] * len(pairs)
    if direct and is_batching(api.core.info.version):
        requests = [
            (route, MsgGetRequest(seq, next_by_subj=subject or ">", batch=1).encode())
            for seq, subject in pairs
        ]
        replies = ask_all(api, requests, _is_status)
        # A stream without direct gets has no responders.
        if not any(is_no_responders(*reply[-1][2:]) for reply in replies):
            counts = [_count_in(reply, route.encode(), stream) for reply in replies]
    unproven = [pair for pair, count in zip(pairs, counts, strict=True) if count is None]
    others = iter(_count_by_leader(js, stream, unproven))
    found = [count or next(others) for count in counts]
    return [_sum(found[i : i + len(subjects)]) for i in range(0, len(found), len(subjects))]


def matching_seqs(
    js: JetStream, stream: str, seq: int, subjects: Sequence[str], count: int
) -> list[int] | None:
    """
    Return the sequences of the messages on some subjects from a sequence on, of which there are about ``count``.

    The messages are read, once, whereas a server counts them by walking through a stream in memory each time. ``None``:
    the server or the stream has no batched direct gets, a reply does not prove that it is from the stream, or the messages
    exceed the limit of a reply. Any thread may call it.
    """
    api = api_requests(js)
    if not is_batching(api.core.info.version):
        return None
    route = api.routes.to("DIRECT.GET", stream)
    first = MsgGetRequest(max(seq, 1), batch=count)
    requests = [(route, first._replace(next_by_subj=subject).encode()) for subject in subjects]
    seqs: list[int] = []
    for found in ask_all(api, requests, _is_status):
        status = found.pop()
        if not is_direct_status(status) or is_no_responders(*status[2:]):
            return None
        if not found or not is_from(stream, found[0][HEADER]):
            return None  # a mirror may have replied
        if len(found) < count and _remaining_messages(status, route.encode()):
            return None
        try:
            seqs += _parse_server_headers(BytesColumn.of([reply[2] for reply in found])).sequences
        except errors.InvalidResponseError:
            return None  # a malformed header of a publisher hides those of the server
    return sorted(seqs)


def _sum(counts: Sequence[tuple[int | None, int]]) -> tuple[int | None, int]:
    first = min((first for first, _ in counts if first is not None), default=None)
    return first, sum(count for _, count in counts)


def _count_in(
    replies: Sequence[RawMessage], route: bytes, stream: str
) -> tuple[int | None, int] | None:
    """
    Return the sequence and the count in a response.

    ``None``: it has no message of the stream, or an older server has sent it, without a count, or a malformed header of a
    publisher hides those of the server.
    """
    if not is_direct_status(replies[-1]):
        return None
    # The last reply counts the messages after the first one; before 2.12 the header of that one includes itself.
    left = _remaining_messages(replies[-1], route)
    if len(replies) == 1 or not is_from(stream, replies[0][HEADER]):
        return None
    try:
        return _parse_server_headers(BytesColumn.of([replies[0][HEADER]])).sequences[0], left + 1
    except errors.InvalidResponseError:
        return None


def _count_by_leader(
    js: JetStream, stream: str, pairs: Sequence[tuple[int, str | None]]
) -> list[tuple[int | None, int]]:
    """Count the messages from some sequences on as the leader of the stream has them."""
    api = api_requests(js)
    firsts = _leader_messages(api, stream, pairs)
    info = stream_info(api, stream) if any(firsts) else None
    if info is None:
        return [(None, 0)] * len(pairs)
    is_queue = info.config.retention == RetentionPolicy.WORK_QUEUE
    if is_queue and not info.config.allow_direct:
        raise DirectGetRefusedError(stream)  # a work queue would refuse the consumer, too
    counts: list[tuple[int | None, int]] = []
    for first, (_, subject) in zip(firsts, pairs, strict=True):
        count = 0
        if first is not None and is_queue:
            # An upper bound, so that the limits of a batch hold.
            count = max(info.state.last_seq, first.seq) - first.seq + 1
        elif first is not None:
            count = _count_by_consumer(js, stream, first.seq, subject)
        counts.append((first and first.seq, count))
    return counts


def _count_by_consumer(js: JetStream, stream: str, seq: int, subject: str | None) -> int:
    """Return the number of messages from one of them on."""
    consumer = js.create_consumer(
        stream,
        deliver_policy="by_start_sequence",
        opt_start_seq=seq,
        filter_subject=subject,
        ack_policy="none",
        mem_storage=True,
        num_replicas=1,
    )
    js.delete_consumer(stream, consumer.name)
    return max(1, consumer.cached_info.num_pending or 0)


def _is_status(delivery: RawMessage) -> bool:
    """Return whether no message follows this one."""
    # A message without the headers of a batch comes from an older server, which sends nothing else.
    return _NUM_PENDING not in delivery[2] or is_direct_status(delivery)


def _remaining_messages(status: RawMessage, route: bytes) -> int:
    """Return the number of remaining messages from the status that ends a response."""
    block = status[2]
    found = parse_status(block)
    if found is None:
        raise errors.InvalidResponseError(f"a direct get ended with {block[:60]!r}")
    if found.code == StatusCode.NOT_FOUND:
        return 0
    if found.code == StatusCode.NO_RESPONDERS:
        raise errors.NoRespondersError(route.decode())
    headers = parse_headers(block)
    pending = "" if headers is None else headers.get("Nats-Num-Pending", "")
    if found.code != StatusCode.DONE or not pending.isdecimal():
        raise errors.APIError.from_response({"code": found.code, "description": found.description})
    return int(pending)
