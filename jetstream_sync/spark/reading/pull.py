"""
Read a range with an ephemeral pull consumer.

The consumer needs no acknowledgements, keeps one replica in memory and is deleted after the read. The server
removes a forgotten one after a time of inactivity. A lost message is not delivered again. If in
doubt, the read fails, and continues with another consumer.

One pull request is outstanding at a time: the server alternates between several, so none would complete
before all do. A request is large, and the next one is sent before the messages of the last one are processed.
A request never asks for more messages than the consumer has, so it does not wait. ``no_wait`` completes it if
messages were removed in the meantime.

Behaviour of nats-server 2.15 (``server/consumer.go``) that this relies on:

1. A consumer numbers its deliveries without gaps. So the first number, the last number and the count prove
   that no message is missing.
2. A pull request ends with a status, except when exactly its messages or bytes were sent.
3. Status messages have no reply subject, and other messages have one.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ... import errors
from ...api.consumer import ConsumerConfig, ConsumerInfo
from ...api.enums import AckPolicy, DeliverPolicy
from ...api.pull import PullRequest, PullStatusKind, parse_pull_status
from ...client.replies import ReplyCollector
from ...jetstream.api_requests import APIRequests
from ...jetstream.consumer_requests import CREATE, add_consumer, consumer_info, delete_consumer
from ...net.clock import Deadline
from ...protocol.parser import HEADER, PAYLOAD, REPLY, SUBJECT, RawMessage
from ...subjects import ack_tokens, filter_fields
from ..bytes_column import NO_BYTES, BytesColumn
from .chunks import BatchSizer, Chunk, ReadResponse, ReadTask, subject_matcher
from .ranges import RangeStalledError
from .replies import Replies, asked

#: Seconds of inactivity after which the server deletes a consumer.
_INACTIVE_THRESHOLD_S: Final = 30.0
#: ``max_bytes`` of a request, as a multiple of the expected size.
_MAX_BYTES_FACTOR: Final = 2
#: From this average message size on, headers-only delivery is cheaper than sending the payloads.
MIN_SKIPPED_PAYLOAD_BYTES: Final = 1024
#: Seconds without a message after which the consumer is checked: a request may end without a status.
_CONSUMER_CHECK_DELAY_S: Final = 0.5
_MSG_SIZE: Final = b"Nats-Msg-Size: "
_PLAIN: Final = b"NATS/1.0"


class _Pull(NamedTuple):
    gathering: ReplyCollector
    max_bytes: int


class _ConsumerState:
    """
    What is known about the consumer.

    The reply subject of a delivery contains its number, the sequence and time of the message, and the number
    of remaining messages.
    """

    __slots__ = ("_extra_tokens", "_next", "name", "remaining")

    def __init__(self, name: str, pending: int) -> None:
        self.name = name
        #: The number of messages not delivered yet, as of the last delivery.
        self.remaining = pending
        self._next = 1
        # Additional tokens at the end of reply subjects in the newer format.
        self._extra_tokens = 0

    def accept(self, replies: Replies) -> Sequence[int]:
        """Check that no delivery is missing, update `remaining`, and return the sequences."""
        first, last = replies[0][REPLY], replies[-1][REPLY]
        self._extra_tokens = max(0, first.count(b".") - 10)
        _, _, _, first_seq, first_number, _, _ = map(_number, ack_tokens(first))
        _, _, _, last_seq, last_number, _, remaining = map(_number, ack_tokens(last))
        count = len(replies)
        if first_number != self._next or last_number != first_number + count - 1:
            raise errors.InvalidResponseError(
                f"consumer {self.name!r} sent {count} deliveries with the numbers {first_number} "
                f"to {last_number}, but number {self._next} was expected"
            )
        self._next = last_number + 1
        self.remaining = remaining
        if last_seq - first_seq == count - 1:
            return range(first_seq, last_seq + 1)
        return replies.reply_numbers(4 + self._extra_tokens)

    def times_ns(self, replies: Replies) -> Sequence[int]:
        """Return the message times, in nanoseconds since 1970."""
        return replies.reply_numbers(2 + self._extra_tokens)


class PullReader:
    """Reads a range with a pull consumer; for one thread."""

    def __init__(self, api: APIRequests, task: ReadTask) -> None:
        self._api = api
        self._task = task
        self._headers_only = (
            not task.fields.data and task.message_bytes >= MIN_SKIPPED_PAYLOAD_BYTES
        )
        self._filters = task.range.filters
        # Applies the filters here instead of on the server.
        self._matches: Any = None
        self._route = b""
        # Whether the next message alone exceeds the byte limit of a request.
        self._oversized = False

    def responses(self, start_seq: int) -> Generator[ReadResponse, None, None]:
        """
        Yield responses up to the end of the messages or of the range; one is prefetched.

        Raises `RangeStalledError` if the consumer is lost or skips a delivery, and as `ReplyCollector.wait`.
        """
        api = self._api
        stream = self._task.range.stream
        name = f"spark_{os.urandom(8).hex()}"
        self._route = api.routes.to("CONSUMER.MSG.NEXT", stream, name).encode()
        sizer = BatchSizer(self._task, start_seq, filtered=bool(self._filters))
        pull = None
        try:
            # Inside the try block: the consumer may exist even if the reply was lost.
            info = self._add_consumer(api, stream, self._config(name, start_seq))
            if not info.num_pending and len(self._filters) > 1:
                # Servers before 2.12 find nothing for some combinations of filters.
                self._filters, self._matches = (), subject_matcher(self._filters)
                yield from self.responses(start_seq)
                return
            consumer = _ConsumerState(name, info.num_pending or 0)
            pull = self._pull(consumer, sizer, start_seq)
            while pull is not None:
                items = self._wait_for_pull(pull, consumer, start_seq)
                pull.gathering.close()
                if not items:
                    # The messages were removed, or the next one exceeds the byte limit.
                    pull = self._pull(consumer, sizer, start_seq) if self._oversized else None
                    continue
                sequences = consumer.accept(items)
                next_seq = sequences[-1] + 1
                sizer.add_rows(len(sequences))
                self._task.validate_batch(start_seq, next_seq, sequences)
                has_more = next_seq < self._task.range.end_seq
                pull = self._pull(consumer, sizer, next_seq) if has_more else None
                # The next response is already requested while this one is processed.
                times_ns = consumer.times_ns(items) if self._task.fields.times else ()
                chunk = self._chunk(items, sequences, times_ns)
                sizer.learn_size(chunk)
                del items, times_ns
                yield ReadResponse(chunk, next_seq)
                start_seq = next_seq
        except (errors.InvalidResponseError, errors.NotJSMessageError) as error:
            raise RangeStalledError(stream, start_seq, str(error)) from error
        finally:
            if pull is not None:
                pull.gathering.close()
            self._delete(name)

    def _pull(self, consumer: _ConsumerState, sizer: BatchSizer, start_seq: int) -> _Pull | None:
        """Request the next messages of the range, ``None`` if the consumer has none."""
        rows = min(1 if self._oversized else sizer.rows(start_seq), consumer.remaining)
        if rows <= 0:
            return None
        max_bytes = 0 if self._oversized else self._task.batch_bytes * _MAX_BYTES_FACTOR
        self._oversized = False
        request = PullRequest(batch=rows, max_bytes=max_bytes, no_wait=True)
        deadline, payload = Deadline(self._task.silence_timeout), request.encode()
        gathering = asked(self._api.core, self._route, payload, _is_status, deadline, rows)
        return _Pull(gathering, max_bytes)

    def _wait_for_pull(self, pull: _Pull, consumer: _ConsumerState, start_seq: int) -> Replies:
        """Wait for the end of a pull request, and return its messages."""
        try:
            items: Replies = pull.gathering.wait(
                min(_CONSUMER_CHECK_DELAY_S, self._task.silence_timeout)
            )
        except errors.TimeoutError:
            items = pull.gathering.items
            # The server sends no status after exactly `max_bytes` bytes.
            size = sum(len(part) for item in items for part in item)
            if not pull.max_bytes or size < pull.max_bytes:
                items = self._wait_past_silence(pull, consumer, start_seq)
        if items and _is_status(items[-1]):
            status = parse_pull_status(b"", items[-1][2], b"")
            if status is None or status.kind not in {PullStatusKind.QUIET, PullStatusKind.FULL}:
                reason = "an empty status" if status is None else str(status.error)
                raise RangeStalledError(self._task.range.stream, start_seq, reason)
            items.pop()
            self._oversized = status.kind is PullStatusKind.FULL and not items
        return items

    def _wait_past_silence(self, pull: _Pull, consumer: _ConsumerState, start_seq: int) -> Replies:
        """Check the consumer, and continue waiting for the end of a pull request."""
        stream = self._task.range.stream
        try:
            consumer_info(self._api, stream, consumer.name)
        except errors.NotFoundError as error:
            raise RangeStalledError(stream, start_seq, str(error)) from error
        except errors.PermissionsError:
            pass  # permission to read does not imply permission for consumer info
        items: Replies = pull.gathering.wait(self._task.silence_timeout)
        return items

    def _chunk(self, items: Replies, sequences: Sequence[int], times_ns: Sequence[int]) -> Chunk:
        """Return the columns of messages, without those after the end of the range."""
        fields = self._task.fields
        sizes = None
        headers = data = subjects = NO_BYTES
        if fields.keeps_headers or self._headers_only:
            headers = items.column(HEADER)
        if self._headers_only:
            headers, sizes = _without_size(headers)
        if fields.data or fields.sizes:
            data = items.column(PAYLOAD)
        if fields.subjects or self._matches is not None:
            subjects = items.column(SUBJECT)
        return self._task.chunk(
            sequences, subjects, headers, data, times_ns, sizes=sizes, matches=self._matches
        )

    def _add_consumer(self, api: APIRequests, stream: str, config: ConsumerConfig) -> ConsumerInfo:
        try:
            return add_consumer(api, stream, config, CREATE)
        except errors.BadRequestError as error:
            if error.err_code != errors.ErrorCode.INACTIVE_THRESHOLD_EXCESS:
                raise
            # Without a threshold, the limit of the stream applies.
            return add_consumer(api, stream, replace(config, inactive_threshold=None), CREATE)

    def _config(self, name: str, start_seq: int) -> ConsumerConfig:
        return ConsumerConfig(
            name=name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, start_seq),
            ack_policy=AckPolicy.NONE,
            **filter_fields(self._filters),
            headers_only=True if self._headers_only else None,
            inactive_threshold=_INACTIVE_THRESHOLD_S,
            num_replicas=1,
            mem_storage=True,
        )

    def _delete(self, name: str) -> None:
        """Try to delete the consumer; otherwise the server deletes it after its inactive threshold."""
        api = APIRequests(
            self._api.core, self._api.routes, _CONSUMER_CHECK_DELAY_S, fail_on_disconnect=True
        )
        if api.core.address is None:
            return
        with suppress(errors.Error):
            delete_consumer(api, self._task.range.stream, name)


def _is_status(delivery: RawMessage) -> bool:
    return not delivery[1]


def _number(token: bytes) -> int:
    """Parse a token of a reply subject; 0 for the names among them."""
    return int(token) if token.isdigit() else 0


def _without_size(headers: BytesColumn) -> tuple[BytesColumn, list[int]]:
    """Remove the header that replaces the payload, which the server adds after those of the message."""
    own: list[bytes] = []
    sizes: list[int] = []
    for block in headers:
        before, _, size = block.rpartition(_MSG_SIZE)
        if not size[:-4].isdigit():
            raise errors.InvalidResponseError(
                f"a headers-only message has no Nats-Msg-Size: {block[:60]!r}"
            )
        sizes.append(int(size[:-4]))
        own.append(b"" if before == _PLAIN + b"\r\n" else before + b"\r\n")
    return BytesColumn.of(own), sizes
