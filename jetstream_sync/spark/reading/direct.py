"""
Times as direct gets have them, read fast: messages that come together share most of the text.

Reading a range by direct gets in batches (ADR-31).

What nats-server 2.15 does (``server/stream.go``, ``getDirectRequest``), and this relies on:

1. Six headers follow those that a message has, in one order: ``Nats-Stream``, ``Nats-Subject``,
   ``Nats-Sequence``, ``Nats-Time-Stamp``, ``Nats-Num-Pending``, ``Nats-Last-Sequence``. A message that was
   republished, or forged, has such headers of its own before them; those are the user's.
2. ``max_bytes`` ends an answer behind the message that reaches it. ``up_to_seq`` is not looked at.
3. An answer ends with status 204 and the number of matching messages that are left. Where there is
   none to begin with, it is status 404 alone. Where the stream answers no direct gets, nobody listens.
4. The answer comes from any replica, or from a mirror, which may be behind. There is no flow control.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

from ...api.enums import RetentionPolicy
from ...codec import dumps
from ...errors import APIError, InvalidResponseError, NoRespondersError, NotFoundError
from ...headers import parse_headers, parse_status
from ...jetstream.context import JetStream
from ...jetstream.gathering import Gathering
from ...jetstream.requests import APIRequests
from ...jetstream.stored_many import MAX_BYTES, is_direct_status
from ...nanos import time_from_text, time_to_ns
from ...protocol.parser import Delivery
from ..connections import api_requests
from .chunks import BatchSizer, Chunk, ReadResponse, ReadTask
from .ranges import DirectGetRefusedError

__all__ = ["DirectReader", "count_from", "own_headers", "parse_times_ns"]


def parse_times_ns(lines: Iterable[bytes], start: int) -> list[int]:
    """
    Read times such as ``2026-01-31T12:00:00.123456789Z``.

    Args:
        lines: each with a time at its end.
        start: where in a line it starts.

    Returns:
        The times, in nanoseconds since 1970.

    Raises:
        InvalidResponseError: one is no such time.

    """
    times: list[int] = []
    second: bytes | None = None
    second_ns = 0
    second_end = start + len("2026-01-31T12:00:00")
    try:
        for line in lines:
            if line[start:second_end] != second:
                second = line[start:second_end]
                second_ns = time_to_ns(time_from_text(second.decode() + "Z"))
            # The server leaves zeros at the end out, and the dot with the last of them.
            fraction = line[second_end + 1 : -1]
            times.append(second_ns + int(fraction.ljust(9, b"0")))
    except ValueError:
        raise InvalidResponseError("a direct get answered with something that is no time") from None
    return times


_PLAIN: Final = b"NATS/1.0"
_SEQUENCE: Final = b"Nats-Sequence: "
_UNEXPECTED_HEADERS: Final = (
    "a direct get answered with other headers than ADR-31 has;"
    " servers before 2.11 do not know direct gets of several messages"
)
_NEWLINE: Final = b"\r\n"
#: What follows a message's own headers: six lines and the empty one.
_TAIL_LINES: Final = 8

_WILDCARDS: Final = {"*": rb"[^.]+", ">": rb".+"}

_SEQUENCE_AT: Final = len(_SEQUENCE)
_SUBJECT_AT: Final = len(b"Nats-Subject: ")
_TIME_AT: Final = len(b"Nats-Time-Stamp: ")


class DirectReader:
    """
    Reads a range by direct gets; for one thread.

    Args:
        api: the JetStream API.
        job: what to read.

    """

    def __init__(self, api: APIRequests, task: ReadTask) -> None:
        self._api = api
        self._task = task
        self._route = api.routes.direct_get(task.range.stream).encode()
        filters = task.range.filters
        self._filter = filters[0] if len(filters) == 1 else None
        # The server takes one filter; several are applied here.
        self._matches = _subject_matcher(filters) if len(filters) > 1 else None

    def responses(self, start_seq: int) -> Generator[ReadResponse, None, None]:
        """
        Yield answers until there are no more, or the range is through; one is fetched ahead.

        Args:
            start_seq: where to begin.

        Raises:
            NoRespondersError: nobody answers direct gets for the stream now.
            TimeoutError, ConnectionClosedError: the answer broke off, or none came; asking again
                from the last `ReadResponse.next_seq` on is right.
            InvalidResponseError: the answer is none.
            APIError: the server refused.

        """
        sizer = BatchSizer(self._task, start_seq, filtered=self._filter is not None)
        gathering = self._request(start_seq, sizer)
        try:
            while True:
                items = gathering.wait(self._task.silence_timeout)
                gathering.close()
                pending = _remaining_messages(items.pop(), self._route)
                server_headers = _parse_server_headers([item[2] for item in items])
                sequences = server_headers.sequences
                next_seq = sequences[-1] + 1 if sequences else start_seq
                sizer.add_rows(len(sequences))
                self._task.validate_batch(start_seq, next_seq, sequences)
                # Messages that are left and do not come are not asked for at once again.
                has_more = pending > 0 and start_seq < next_seq < self._task.range.end_seq
                if has_more:
                    gathering = self._request(next_seq, sizer)
                # By now the next answer is on its way, while this one is worked on.
                chunk = self._chunk(items, server_headers)
                sizer.learn_size(chunk)
                del items, server_headers
                yield ReadResponse(chunk, next_seq)
                if not has_more:
                    return
                start_seq = next_seq
        finally:
            gathering.close()

    def _request(self, seq: int, sizer: BatchSizer) -> Gathering:
        body: dict[str, Any] = {
            "seq": seq,
            "batch": sizer.rows(seq),
            "max_bytes": min(self._task.batch_bytes, MAX_BYTES),
        }
        if self._filter is not None:
            body["next_by_subj"] = self._filter
        gathering = Gathering(self._api.core, _is_status)
        try:
            gathering.ask(self._route, dumps(body))
        except BaseException:
            gathering.close()
            raise
        return gathering

    def _chunk(self, items: list[Delivery], server_headers: _ServerHeaders) -> Chunk:
        """Make the columns of messages, given what the server added to their headers."""
        server_headers = server_headers.before(self._task.range.end_seq)
        data = [item[3] for item in items[: len(server_headers.sequences)]]
        subjects = [line[_SUBJECT_AT:] for line in server_headers.subjects]
        if self._matches is not None:
            fits = [self._matches(subject) is not None for subject in subjects]
            subjects, data = list(compress(subjects, fits)), list(compress(data, fits))
            server_headers = _ServerHeaders(
                list(compress(server_headers.sequences, fits)),
                list(compress(server_headers.own, fits)),
                list(compress(server_headers.subjects, fits)),
                list(compress(server_headers.times, fits)),
            )
        fields = self._task.fields
        return Chunk(
            stream=self._task.range.stream,
            sequences=server_headers.sequences,
            subjects=subjects if fields.subjects else (),
            data=data if fields.data else (),
            headers=[own_headers(each) for each in server_headers.own] if fields.headers else (),
            times_ns=parse_times_ns(server_headers.times, _TIME_AT) if fields.times else (),
            sizes=list(map(len, data)) if fields.sizes else (),
        )


class _ServerHeaders(NamedTuple):
    """What the server added to the headers of messages, by columns of one length."""

    sequences: Sequence[int]
    own: Sequence[bytes]
    """What comes before; none at all when no message has headers of its own."""
    subjects: Sequence[bytes]
    """The lines with the subjects."""
    times: Sequence[bytes]
    """The lines with the times."""

    def before(self, end_seq: int) -> _ServerHeaders:
        """Return the columns up to a sequence."""
        inside = bisect_left(self.sequences, end_seq)
        if inside == len(self.sequences):
            return self
        return _ServerHeaders(
            self.sequences[:inside],
            self.own[:inside],
            self.subjects[:inside],
            self.times[:inside],
        )


def _parse_server_headers(blocks: list[bytes]) -> _ServerHeaders:
    """
    Read the header blocks of an answer.

    Raises:
        InvalidResponseError: the server added something else.

    """
    lines = b"".join(blocks).split(_NEWLINE)
    own: Sequence[bytes] = ()
    # No block has less than these lines, so all have just these.
    if len(lines) == 8 * len(blocks) + 1 and lines[0::8].count(_PLAIN) == len(blocks):
        subjects, sequences, times = lines[2::8], lines[3::8], lines[4::8]
    else:
        tails = [block.rsplit(_NEWLINE, _TAIL_LINES) for block in blocks]
        if min(map(len, tails)) <= _TAIL_LINES:
            raise InvalidResponseError(_UNEXPECTED_HEADERS)
        own, subjects, sequences, times = (
            [tail[column] for tail in tails] for column in (0, 2, 3, 4)
        )
    return _ServerHeaders(_parse_sequences(sequences), own, subjects, times)


def _parse_sequences(lines: Sequence[bytes]) -> Sequence[int]:
    """
    Read the lines with the sequences, which rise.

    Raises:
        InvalidResponseError: they are no such lines.

    """
    if not lines:
        return ()
    try:
        first, last = _parse_sequence(lines[0]), _parse_sequence(lines[-1])
        if last - first == len(lines) - 1:
            return range(first, last + 1)
        return list(map(_parse_sequence, lines))
    except ValueError:
        raise InvalidResponseError(_UNEXPECTED_HEADERS) from None


def _parse_sequence(line: bytes) -> int:
    if not line.startswith(_SEQUENCE):
        raise ValueError(line)
    return int(line[_SEQUENCE_AT:])


def count_from(js: JetStream, stream: str, seq: int, subject: str | None) -> tuple[int | None, int]:
    """
    Ask what a stream holds from a sequence on.

    A direct get answers it; where the stream allows none, a consumer is made for it and goes by
    itself. Any thread may call it.

    Args:
        js: where to ask.
        stream: the stream's name.
        seq: the first sequence that counts.
        subject: which messages count, with wildcards; ``None``: all.

    Returns:
        The sequence of the first such message, and how many there are, that one included;
        ``None`` and 0 when there is none.

    Raises:
        StreamNotFoundError: there is no such stream.
        DirectGetRefusedError: it is a work queue that allows no direct gets.
        APIError, TimeoutError, ConnectionClosedError: as `JetStream.get_stream`.

    """
    api = api_requests(js)
    body = {"seq": max(seq, 1), "batch": 1, "next_by_subj": subject or ">"}
    route = api.routes.direct_get(stream).encode()
    try:
        block = api.core.request(route, dumps(body), api.deadline())[2]
    except NoRespondersError:
        return _count_by_consumer(js, stream, max(seq, 1), subject)
    if _is_status((b"", b"", block, b"")):
        _remaining_messages((b"", b"", block, b""), route)
        return None, 0
    first = _parse_server_headers([block]).sequences[0]
    left = block.rsplit(_NEWLINE, 4)[1].partition(b": ")[2]
    return first, int(left) + 1


def _count_by_consumer(
    js: JetStream, stream: str, seq: int, subject: str | None
) -> tuple[int | None, int]:
    """Do as `count_from()` where the stream allows no direct gets."""
    found = js.get_stream(stream)
    if found.cached_info.config.retention == RetentionPolicy.WORK_QUEUE:
        raise DirectGetRefusedError(stream)  # and a consumer would be refused, too
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


def own_headers(before: bytes) -> bytes:
    """Return the header block of a message, given what comes before the lines that the server added."""
    return b"" if before == _PLAIN else before + b"\r\n\r\n"


def _is_status(delivery: Delivery) -> bool:
    """Say whether this ends an answer."""
    if not delivery[2]:
        return True  # no direct get answers so, and waiting on would be no use
    return is_direct_status(delivery)


def _remaining_messages(status: Delivery, route: bytes) -> int:
    """
    Return how many messages are left by the status that ends an answer.

    Raises:
        NoRespondersError: nobody answered.
        APIError: the request was refused.
        InvalidResponseError: it is no such status.

    """
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
    """Return what says of a subject, as bytes, whether it falls under one of several patterns."""
    patterns = []
    for pattern in filters:
        parts = [_WILDCARDS.get(part) or re.escape(part.encode()) for part in pattern.split(".")]
        patterns.append(rb"\.".join(parts))
    return re.compile(b"|".join(patterns), re.DOTALL).fullmatch
