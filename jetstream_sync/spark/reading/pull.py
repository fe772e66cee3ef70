"""
Reading a range by pulling from an ephemeral consumer.

The consumer acknowledges nothing, has one replica in memory and is deleted when the reading ends; one
that is left behind goes by itself. What is lost on its way is never sent again, so on any doubt the
reading ends with an error, and goes on with another consumer.

One pull is under way at a time: the server takes turns between several, so that none would end before
all do. It is for many messages, and the next one is sent before those of the last one are looked at.
No more is asked for than the consumer has, so that no pull waits; ``no_wait`` ends one for messages
that have gone meanwhile.

What nats-server 2.15 does (``server/consumer.go``), and this relies on: the deliveries of one consumer
come in the order of their numbers, so the first, the last and the count prove that none is missing;
a pull ends with a status, but for one that sent exactly its messages or its bytes; statuses have no
reply subject, messages have.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ...api.consumer import ConsumerConfig
from ...api.enums import AckPolicy, DeliverPolicy
from ...api.pull import PullRequest
from ...api.reply import ack_tokens
from ...api.status import Kind, read_status
from ...errors import (
    Error,
    InvalidResponseError,
    NotFoundError,
    NotJSMessageError,
    PermissionsError,
    TimeoutError,
)
from ...jetstream.bound import consumer_info
from ...jetstream.consumers import CREATE, add_consumer, delete_consumer
from ...jetstream.gathering import Gathering
from ...jetstream.requests import APIRequests
from ...protocol.parser import Delivery
from .chunks import BatchSizer, Chunk, ReadResponse, ReadTask
from .ranges import RangeStalledError

__all__ = ["MIN_SKIPPED_PAYLOAD_BYTES", "PullReader"]

#: Seconds until the server deletes a consumer that nobody uses.
_INACTIVE_THRESHOLD_S: Final = 30.0
#: A pull may bring so many times the bytes that its messages should have.
_MAX_BYTES_FACTOR: Final = 2
#: Messages of this size on average are worth a header that stands for the payload.
MIN_SKIPPED_PAYLOAD_BYTES: Final = 1024
#: Seconds of silence after which a pull may have ended without a word.
_CONSUMER_CHECK_DELAY_S: Final = 0.5
_MSG_SIZE: Final = b"Nats-Msg-Size: "
_PLAIN: Final = b"NATS/1.0"


class _Pull(NamedTuple):
    gathering: Gathering
    max_bytes: int


class _ConsumerState:
    """
    What is known of the consumer that is read.

    Its replies say the number of each delivery, the message's sequence and time, and what is left.
    """

    __slots__ = ("_extra_tokens", "_next", "name", "remaining")

    def __init__(self, name: str, pending: int) -> None:
        self.name = name
        #: How many messages it still has to deliver, by what it last said.
        self.remaining = pending
        self._next = 1
        # How many tokens stand behind those that tell something, in the newer form of replies.
        self._extra_tokens = 0

    def accept(self, replies: Sequence[bytes]) -> Sequence[int]:
        """
        Check that nothing is missing, take note of what is left, and return the sequences.

        Raises:
            InvalidResponseError: a delivery is missing.
            NotJSMessageError: a reply is none of a consumer.

        """
        self._extra_tokens = max(0, replies[0].count(b".") - 10)
        _, _, _, first_seq, first_number, _, _ = map(_number, ack_tokens(replies[0]))
        _, _, _, last_seq, last_number, _, remaining = map(_number, ack_tokens(replies[-1]))
        count = len(replies)
        if first_number != self._next or last_number != first_number + count - 1:
            raise InvalidResponseError(
                f"consumer {self.name!r} delivered {count} messages as the numbers {first_number} "
                f"to {last_number}, where {self._next} was due"
            )
        self._next = last_number + 1
        self.remaining = remaining
        if last_seq - first_seq == count - 1:
            return range(first_seq, last_seq + 1)
        parts = 4 + self._extra_tokens
        return [int(reply.rsplit(b".", parts)[1]) for reply in replies]

    def times_ns(self, replies: Sequence[bytes]) -> list[int]:
        """Return the times, in nanoseconds since 1970."""
        parts = 2 + self._extra_tokens
        return [int(reply.rsplit(b".", parts)[1]) for reply in replies]


class PullReader:
    """
    Reads a range through a consumer; for one thread.

    Args:
        api: the JetStream API.
        job: what to read.

    """

    def __init__(self, api: APIRequests, task: ReadTask) -> None:
        self._api = api
        self._task = task
        self._headers_only = (
            not task.fields.data and task.message_bytes >= MIN_SKIPPED_PAYLOAD_BYTES
        )
        self._route = b""
        # Whether the next message alone is larger than a pull may be.
        self._oversized = False

    def responses(self, start_seq: int) -> Generator[ReadResponse, None, None]:
        """
        Yield answers until there are no more, or the range is through; one is fetched ahead.

        Args:
            start_seq: where to begin.

        Raises:
            RangeStalledError: the consumer went away, or delivered with a gap, or something else.
            TimeoutError, ConnectionClosedError: an answer broke off, or none came. After these,
                asking again from the last `ReadResponse.next_seq` on is right.
            APIError: the server refused to make the consumer.

        """
        api = self._api
        stream = self._task.range.stream
        name = f"spark_{os.urandom(8).hex()}"
        self._route = api.routes.next_msg(stream, name).encode()
        sizer = BatchSizer(self._task, start_seq, filtered=bool(self._task.range.filters))
        pull = None
        try:
            # Inside: the consumer may be there without an answer that says so.
            info = add_consumer(api, stream, self._config(name, start_seq), CREATE)
            consumer = _ConsumerState(name, info.num_pending or 0)
            pull = self._pull(consumer, sizer, start_seq)
            while pull is not None:
                items = self._wait_for_pull(pull, consumer, start_seq)
                pull.gathering.close()
                if not items:
                    # What was there has gone, or is too large for a pull that has a limit.
                    pull = self._pull(consumer, sizer, start_seq) if self._oversized else None
                    continue
                replies = [item[1] for item in items]
                sequences = consumer.accept(replies)
                next_seq = sequences[-1] + 1
                sizer.add_rows(len(sequences))
                self._task.validate_batch(start_seq, next_seq, sequences)
                has_more = next_seq < self._task.range.end_seq
                pull = self._pull(consumer, sizer, next_seq) if has_more else None
                # By now the next answer is on its way, while this one is worked on.
                times_ns = consumer.times_ns(replies) if self._task.fields.times else ()
                chunk = self._chunk(items, sequences, times_ns)
                sizer.learn_size(chunk)
                del items, replies, times_ns
                yield ReadResponse(chunk, next_seq)
                start_seq = next_seq
        except (InvalidResponseError, NotJSMessageError) as error:
            raise RangeStalledError(stream, start_seq, str(error)) from error
        finally:
            if pull is not None:
                pull.gathering.close()
            self._delete(name)

    def _pull(self, consumer: _ConsumerState, sizer: BatchSizer, start_seq: int) -> _Pull | None:
        """Ask for more, up to what is there and what the range may still have; ``None``: nothing is."""
        rows = min(1 if self._oversized else sizer.rows(start_seq), consumer.remaining)
        if rows <= 0:
            return None
        max_bytes = 0 if self._oversized else self._task.batch_bytes * _MAX_BYTES_FACTOR
        self._oversized = False
        request = PullRequest(batch=rows, max_bytes=max_bytes, no_wait=True)
        gathering = Gathering(self._api.core, _is_status, rows)
        try:
            gathering.ask(self._route, request.encode())
        except BaseException:
            gathering.close()
            raise
        return _Pull(gathering, max_bytes)

    def _wait_for_pull(
        self, pull: _Pull, consumer: _ConsumerState, start_seq: int
    ) -> list[Delivery]:
        """
        Wait for a pull's end, and return its messages.

        Raises:
            RangeStalledError: it ended otherwise than for want of messages or of room.

        """
        try:
            items = pull.gathering.wait(min(_CONSUMER_CHECK_DELAY_S, self._task.silence_timeout))
        except TimeoutError:
            items = pull.gathering.items
            # The server ends a pull that sent exactly its bytes without a word.
            size = sum(len(part) for item in items for part in item)
            if not pull.max_bytes or size < pull.max_bytes:
                items = self._wait_past_silence(pull, consumer, start_seq)
        if items and _is_status(items[-1]):
            status = read_status(items[-1][2], b"")
            if status is None or status.kind not in {Kind.QUIET, Kind.FULL}:
                said = "an empty status" if status is None else str(status.error)
                raise RangeStalledError(self._task.range.stream, start_seq, said)
            items.pop()
            self._oversized = status.kind is Kind.FULL and not items
        return items

    def _wait_past_silence(
        self, pull: _Pull, consumer: _ConsumerState, start_seq: int
    ) -> list[Delivery]:
        """
        Wait on for a pull's end after some silence.

        Raises:
            RangeStalledError: the consumer is gone, and took the pull along without a word.

        """
        stream = self._task.range.stream
        try:
            consumer_info(self._api, stream, consumer.name)
        except NotFoundError as error:
            raise RangeStalledError(stream, start_seq, str(error)) from error
        except PermissionsError:
            pass  # whoever may read need not be allowed to ask
        return pull.gathering.wait(self._task.silence_timeout)

    def _chunk(
        self, items: list[Delivery], sequences: Sequence[int], times_ns: Sequence[int]
    ) -> Chunk:
        """Make the columns of messages; those behind the range are left out."""
        fields = self._task.fields
        headers: Sequence[bytes] = [item[2] for item in items]
        sizes: Sequence[int] = ()
        if self._headers_only:
            headers, sizes = _without_size(headers)
        elif fields.sizes:
            sizes = [len(item[3]) for item in items]
        chunk = Chunk(
            stream=self._task.range.stream,
            sequences=sequences,
            subjects=[item[0] for item in items] if fields.subjects else (),
            data=[item[3] for item in items] if fields.data else (),
            headers=headers if fields.headers and any(headers) else (),
            times_ns=times_ns,
            sizes=sizes if fields.sizes else (),
        )
        return chunk.slice(0, bisect_left(sequences, self._task.range.end_seq))

    def _config(self, name: str, start_seq: int) -> ConsumerConfig:
        filters = self._task.range.filters
        return ConsumerConfig(
            name=name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, start_seq),
            ack_policy=AckPolicy.NONE,
            filter_subject=filters[0] if len(filters) == 1 else None,
            filter_subjects=filters if len(filters) > 1 else None,
            headers_only=True if self._headers_only else None,
            inactive_threshold=_INACTIVE_THRESHOLD_S,
            num_replicas=1,
            mem_storage=True,
        )

    def _delete(self, name: str) -> None:
        """Delete the consumer, as far as that can be done now: the server does it later, too."""
        api = APIRequests(
            self._api.core, self._api.routes, _CONSUMER_CHECK_DELAY_S, ends_with_link=True
        )
        if api.core.address is None:
            return
        with suppress(Error):
            delete_consumer(api, self._task.range.stream, name)


def _is_status(delivery: Delivery) -> bool:
    return not delivery[1]


def _number(token: bytes) -> int:
    """Read a token of a reply; the names among them are not looked at."""
    return int(token) if token.isdigit() else 0


def _without_size(headers: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Take the header out that the server put behind a message's own, in place of its payload."""
    own: list[bytes] = []
    sizes: list[int] = []
    for block in headers:
        before, _, size = block.rpartition(_MSG_SIZE)
        if not size[:-4].isdigit():
            raise InvalidResponseError(f"a message without payload has the headers {block[:60]!r}")
        sizes.append(int(size[:-4]))
        own.append(b"" if before == _PLAIN + b"\r\n" else before + b"\r\n")
    return own, sizes
