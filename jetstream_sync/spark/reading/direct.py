"""
Read a range with batched direct gets (ADR-31).

Behaviour of nats-server 2.15 (``server/stream.go``, ``getDirectRequest``) that this relies on:

1. The server adds six headers after those of the message, in a fixed order: ``Nats-Stream``,
   ``Nats-Subject``, ``Nats-Sequence``, ``Nats-Time-Stamp``, ``Nats-Num-Pending``, ``Nats-Last-Sequence``. A
   republished or forged message has such headers of its own before them. Those belong to the user.
2. ``max_bytes`` ends a response after the message that reaches it. ``up_to_seq`` is ignored.
3. A response ends with status 204 and the number of remaining matches. If there is no match at all, the
   response is status 404 alone. If the stream does not allow direct gets, there are no responders.
4. Any replica or mirror may respond, and it may lag behind. There is no flow control.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Generator, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

from ...api.enums import RetentionPolicy
from ...client.replies import ReplyCollector
from ...codec import dumps
from ...durations import time_from_text, time_to_ns
from ...errors import APIError, InvalidResponseError, NoRespondersError, NotFoundError
from ...headers import parse_headers, parse_status
from ...jetstream.api_requests import APIRequests
from ...jetstream.context import JetStream
from ...jetstream.direct_get import MAX_BYTES, is_direct_status
from ...protocol.parser import Delivery
from ...speedups import split_direct
from ..bytes_column import NO_BYTES, BytesColumn
from ..connections import api_requests
from .chunks import BatchSizer, Chunk, ReadResponse, ReadTask
from .ranges import DirectGetRefusedError
from .replies import HEADER, PAYLOAD, Replies, int64_array

_PLAIN: Final = b"NATS/1.0"
_UNEXPECTED_HEADERS: Final = (
    "a direct get response does not have the headers of ADR-31;"
    " batched direct gets need nats-server 2.11 or newer"
)
_NEWLINE: Final = b"\r\n"
#: Line breaks after the headers of the message itself: those of six lines and of the empty line.
_TAIL_LINES: Final = 8

_WILDCARDS: Final = {"*": rb"[^.]+", ">": rb".+"}


class DirectReader:
    """Reads a range with direct gets; for one thread."""

    def __init__(self, api: APIRequests, task: ReadTask) -> None:
        self._api = api
        self._task = task
        self._route = api.routes.to("DIRECT.GET", task.range.stream).encode()
        filters = task.range.filters
        self._filter = filters[0] if len(filters) == 1 else None
        # The server supports one filter; several filters are applied here.
        self._matches = _subject_matcher(filters) if len(filters) > 1 else None

    def responses(self, start_seq: int) -> Generator[ReadResponse, None, None]:
        """Yield responses up to the end of the messages or of the range; one is prefetched."""
        sizer = BatchSizer(self._task, start_seq, filtered=self._filter is not None)
        gathering = self._request(start_seq, sizer)
        try:
            while True:
                items = gathering.wait(self._task.silence_timeout)
                gathering.close()
                pending = _remaining_messages(items.pop(), self._route)
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
                chunk = self._chunk(items, server_headers)
                sizer.learn_size(chunk)
                del items, server_headers
                yield ReadResponse(chunk, next_seq)
                if not has_more:
                    return
                start_seq = next_seq
        finally:
            gathering.close()

    def _request(self, seq: int, sizer: BatchSizer) -> ReplyCollector:
        body: dict[str, Any] = {
            "seq": seq,
            "batch": sizer.rows(seq),
            "max_bytes": min(self._task.batch_bytes, MAX_BYTES),
        }
        if self._filter is not None:
            body["next_by_subj"] = self._filter
        gathering = ReplyCollector(self._api.core, _is_status, into=Replies())
        try:
            gathering.ask(self._route, dumps(body))
        except BaseException:
            gathering.close()
            raise
        return gathering

    def _chunk(self, items: Replies, server_headers: _ServerHeaders) -> Chunk:
        """Return the columns of messages, given their parsed server headers."""
        fields = self._task.fields
        columns: list[Any] = [*server_headers]
        columns.append(items.column(PAYLOAD) if fields.data or fields.sizes else NO_BYTES)
        inside = bisect_left(server_headers.sequences, self._task.range.end_seq)
        columns = [column[:inside] for column in columns]
        if self._matches is not None:
            fits = [self._matches(subject) is not None for subject in columns[2]]
            columns = [_compress(column, fits) for column in columns]
        sequences, own, subjects, times_ns, data = columns
        return Chunk(
            stream=self._task.range.stream,
            sequences=sequences,
            subjects=subjects if fields.subjects else NO_BYTES,
            data=data if fields.data else NO_BYTES,
            headers=own if fields.headers and own.total_bytes else NO_BYTES,
            times_ns=times_ns if fields.times else (),
            sizes=data.sizes() if fields.sizes else (),
        )


def _compress(column: Any, fits: Sequence[bool]) -> Any:
    chosen = list(compress(column, fits))
    return BytesColumn.of(chosen) if isinstance(column, BytesColumn) else chosen


class _ServerHeaders(NamedTuple):
    """The headers that the server added to messages, as columns of equal length."""

    sequences: Sequence[int]
    own: BytesColumn
    """The header blocks of the messages without them; empty: a message has no headers of its own."""
    subjects: BytesColumn
    times_ns: Sequence[int]


def _parse_server_headers(blocks: BytesColumn) -> _ServerHeaders:
    """Parse the header blocks of a response."""
    made = None if split_direct is None else split_direct(blocks.offsets, blocks.data)
    if made is not None:
        own_offsets, own, subject_offsets, subjects, sequences, times = made
        return _ServerHeaders(
            int64_array(sequences),
            BytesColumn(own_offsets, own),
            BytesColumn(subject_offsets, subjects),
            int64_array(times),
        )
    tails = [block.rsplit(_NEWLINE, _TAIL_LINES) for block in blocks]
    try:
        return _ServerHeaders(
            [int(_value(tail[3], b"Nats-Sequence: ")) for tail in tails],
            BytesColumn.of(b"" if tail[0] == _PLAIN else tail[0] + b"\r\n\r\n" for tail in tails),
            BytesColumn.of(_value(tail[2], b"Nats-Subject: ") for tail in tails),
            [_time_ns(_value(tail[4], b"Nats-Time-Stamp: ")) for tail in tails],
        )
    except (IndexError, ValueError):
        raise InvalidResponseError(_UNEXPECTED_HEADERS) from None


def _value(line: bytes, start: bytes) -> bytes:
    if not line.startswith(start):
        raise ValueError(line)
    return line[len(start) :]


def _time_ns(text: bytes) -> int:
    return time_to_ns(time_from_text(text.decode()))


def count_from(js: JetStream, stream: str, seq: int, subject: str | None) -> tuple[int | None, int]:
    """
    Count the messages of a stream from a sequence on.

    A direct get returns the count. If the stream does not allow direct gets, a temporary consumer does. Any
    thread may call it.
    """
    api = api_requests(js)
    body = {"seq": max(seq, 1), "batch": 1, "next_by_subj": subject or ">"}
    route = api.routes.to("DIRECT.GET", stream).encode()
    try:
        block = api.core.request(route, dumps(body), api.deadline())[2]
    except NoRespondersError:
        return _count_by_consumer(js, stream, max(seq, 1), subject)
    if _is_status((b"", b"", block, b"")):
        _remaining_messages((b"", b"", block, b""), route)
        return None, 0
    first = _parse_server_headers(BytesColumn.of([block])).sequences[0]
    left = block.rsplit(_NEWLINE, 4)[1].partition(b": ")[2]
    return first, int(left) + 1


def _count_by_consumer(
    js: JetStream, stream: str, seq: int, subject: str | None
) -> tuple[int | None, int]:
    """Count like `count_from()` in a stream that does not allow direct gets."""
    found = js.get_stream(stream)
    if found.cached_info.config.retention == RetentionPolicy.WORK_QUEUE:
        raise DirectGetRefusedError(stream)  # a work queue would refuse the consumer, too
    try:
        first = found.get_msg(seq, next_by_subject=subject or ">").seq
    except NotFoundError:
        return None, 0
    consumer = found.create_consumer(
        deliver_policy="by_start_sequence",
        opt_start_seq=seq,
        filter_subject=subject,
        ack_policy="none",
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=5.0,
    )
    found.delete_consumer(consumer.name)
    return first, max(1, consumer.cached_info.num_pending or 0)


def _is_status(delivery: Delivery) -> bool:
    """Return whether this message ends a response."""
    if not delivery[2]:
        return True  # not a direct get response, so waiting for more is pointless
    return is_direct_status(delivery)


def _remaining_messages(status: Delivery, route: bytes) -> int:
    """Return the number of remaining messages from the status that ends a response."""
    block = status[2]
    found = parse_status(block)
    if found is None:
        raise InvalidResponseError(f"a direct get ended with {block[:60]!r}")
    if found.code == 404:
        return 0
    if found.code == 503:
        raise NoRespondersError(route.decode())
    headers = parse_headers(block)
    pending = "" if headers is None else headers.get("Nats-Num-Pending", "")
    if found.code != 204 or not pending.isdecimal():
        raise APIError.from_response({"code": found.code, "description": found.description})
    return int(pending)


def _subject_matcher(filters: tuple[str, ...]) -> Any:
    """Return a function that matches a subject, as bytes, against any of several patterns."""
    patterns = []
    for pattern in filters:
        parts = [_WILDCARDS.get(part) or re.escape(part.encode()) for part in pattern.split(".")]
        patterns.append(rb"\.".join(parts))
    return re.compile(b"|".join(patterns), re.DOTALL).fullmatch
