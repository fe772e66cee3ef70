"""
Reading a range by pulling from an ephemeral consumer.

The consumer acknowledges nothing, has one replica in memory and is deleted when the reading ends; one
that is left behind goes by itself. What is lost on its way is never sent again, so on any doubt the
reading ends with an error, and goes on with another consumer.

Two pulls are under way at a time, each with a subscription of its own, so that nobody has to tell
their messages apart. No more is asked for than the consumer has, so that no pull waits; ``no_wait``
ends one for messages that have gone meanwhile.

What nats-server 2.15 does (``server/consumer.go``), and this relies on: the deliveries of one consumer
come in the order of their numbers, so the first, the last and the count prove that none is missing;
a pull ends with a status, but for one that sent exactly its messages or its bytes; statuses have no
reply subject, messages have.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy, DeliverPolicy
from ..api.pull import PullRequest
from ..api.reply import ack_tokens
from ..api.status import Kind, read_status
from ..errors import Error, InvalidResponseError, TimeoutError
from ..jetstream.consumers import CREATE, add_consumer, delete_consumer
from ..jetstream.requests import APIRequests
from ..protocol.parser import Delivery
from .answers import Answer, Job, Pace
from .chunks import Chunk
from .gathering import Gathering
from .ranges import RangeStalledError

__all__ = ["PullReader"]

#: Pulls that are under way at a time.
_AHEAD: Final = 2
#: Seconds until the server deletes a consumer that nobody uses.
_INACTIVE: Final = 30.0
#: A pull may bring so many times the bytes that its messages should have.
_LEEWAY: Final = 2
#: Messages of this size on average are worth a header that stands for the payload.
_WORTH_LEAVING_OUT: Final = 1024
#: Seconds of silence after which a pull may have ended without a word.
_DOUBT: Final = 0.5
_MSG_SIZE: Final = b"Nats-Msg-Size: "
_PLAIN: Final = b"NATS/1.0"


class _Pull(NamedTuple):
    gathering: Gathering
    rows: int
    max_bytes: int


class _Consumer:
    """
    What is known of the consumer that is read.

    Its replies say the number of each delivery, the message's sequence and time, and what is left.
    """

    __slots__ = ("_behind", "_next", "left", "name")

    def __init__(self, info: ConsumerInfo) -> None:
        self.name = info.name
        #: How many messages it still has to deliver, by what it last said.
        self.left = info.num_pending or 0
        self._next = 1
        # How many tokens stand behind those that tell something, in the newer form of replies.
        self._behind = 0

    def noted(self, replies: Sequence[bytes]) -> Sequence[int]:
        """
        Check that nothing is missing, take note of what is left, and return the sequences.

        Raises:
            InvalidResponseError: a delivery is missing, or a reply is none of this consumer's.

        """
        self._behind = max(0, replies[0].count(b".") - 10)
        _, _, _, first_seq, first_number, _, _ = map(_number, ack_tokens(replies[0]))
        _, _, _, last_seq, last_number, _, left = map(_number, ack_tokens(replies[-1]))
        count = len(replies)
        if first_number != self._next or last_number != first_number + count - 1:
            raise InvalidResponseError(
                f"consumer {self.name!r} delivered {count} messages as the numbers {first_number} "
                f"to {last_number}, where {self._next} was due"
            )
        self._next = last_number + 1
        self.left = left
        if last_seq - first_seq == count - 1:
            return range(first_seq, last_seq + 1)
        parts = 4 + self._behind
        return [int(reply.rsplit(b".", parts)[1]) for reply in replies]

    def times_ns(self, replies: Sequence[bytes]) -> list[int]:
        """Return the times, in nanoseconds since 1970."""
        parts = 2 + self._behind
        return [int(reply.rsplit(b".", parts)[1]) for reply in replies]


class PullReader:
    """
    Reads a range through a consumer; for one thread.

    Args:
        api: the JetStream API.
        job: what to read.

    """

    def __init__(self, api: APIRequests, job: Job) -> None:
        self._api = api
        self._job = job
        self._headers_only = not job.wanted.data and job.message_bytes >= _WORTH_LEAVING_OUT
        self._route = b""
        # Whether the next message alone is larger than a pull may be.
        self._oversized = False

    def answers(self, start_seq: int) -> Generator[Answer, None, None]:
        """
        Yield answers until one is the last, or the range is through; two are fetched ahead.

        Args:
            start_seq: where to begin.

        Raises:
            RangeStalledError: the consumer went away, or delivered with a gap.
            TimeoutError, ConnectionClosedError: an answer broke off, or none came. After these,
                asking again from the last `Answer.next_seq` on is right.
            APIError: the server refused to make the consumer.

        """
        api = self._api
        stream = self._job.range.stream
        consumer = _Consumer(add_consumer(api, stream, self._config(start_seq), CREATE))
        self._route = api.routes.next_msg(stream, consumer.name).encode()
        pulls: deque[_Pull] = deque()
        try:
            yield from self._answers(start_seq, consumer, pulls)
        except InvalidResponseError as error:
            raise RangeStalledError(stream, start_seq, str(error)) from error
        finally:
            for pull in pulls:
                pull.gathering.close()
            self._delete(consumer.name)

    def _answers(
        self, start_seq: int, consumer: _Consumer, pulls: deque[_Pull]
    ) -> Iterator[Answer]:
        end_seq = self._job.range.end_seq
        pace = Pace(self._job, start_seq, filtered=bool(self._job.range.filters))
        while True:
            self._pull_ahead(pulls, consumer, pace, start_seq)
            if not pulls:
                empty = Chunk(stream=self._job.range.stream, sequences=())
                yield Answer(empty, start_seq, start_seq, is_last=True)
                return
            items = self._gathered(pulls[0], start_seq)
            pulls.popleft().gathering.close()
            if not items:
                if not self._oversized:
                    # What was there has gone.
                    consumer.left = 0
                continue
            answer = self._read(items, start_seq, consumer)
            pace.note(answer)
            self._job.witness(answer)
            start_seq = answer.next_seq
            if start_seq < end_seq:
                self._pull_ahead(pulls, consumer, pace, start_seq)
            yield answer
            if start_seq >= end_seq:
                return

    def _pull_ahead(
        self, pulls: deque[_Pull], consumer: _Consumer, pace: Pace, start_seq: int
    ) -> None:
        """Ask for more, up to what is there and what the range may still have."""
        asked = sum(pull.rows for pull in pulls)
        while len(pulls) < _AHEAD:
            rows = 1 if self._oversized else pace.rows(start_seq, asked)
            rows = min(rows, consumer.left - asked)
            if rows <= 0:
                return
            max_bytes = 0 if self._oversized else self._job.batch_bytes * _LEEWAY
            self._oversized = False
            request = PullRequest(batch=rows, max_bytes=max_bytes, no_wait=True)
            gathering = Gathering(self._api.core, _is_status, rows)
            pulls.append(_Pull(gathering, rows, max_bytes))
            gathering.ask(self._route, request.encode())
            asked += rows

    def _gathered(self, pull: _Pull, start_seq: int) -> list[Delivery]:
        """
        Wait for a pull's end, and return its messages.

        Raises:
            RangeStalledError: it ended otherwise than for want of messages or of room.

        """
        gathering = pull.gathering
        try:
            items = gathering.wait(min(_DOUBT, self._job.patience))
        except TimeoutError:
            # The server ends a pull that sent exactly its bytes without a word.
            items = gathering.items
            if not pull.max_bytes or sum(len(part) for item in items for part in item) < (
                pull.max_bytes
            ):
                items = gathering.wait(self._job.patience)
        if items and _is_status(items[-1]):
            status = read_status(items[-1][2], b"")
            if status is None or status.kind not in {Kind.QUIET, Kind.FULL}:
                said = "an empty status" if status is None else str(status.error)
                raise RangeStalledError(self._job.range.stream, start_seq, said)
            items.pop()
            self._oversized = status.kind is Kind.FULL and not items
        return items

    def _read(self, items: list[Delivery], start_seq: int, consumer: _Consumer) -> Answer:
        subjects, replies, blocks, data = zip(*items, strict=True)
        sequences = consumer.noted(replies)
        next_seq = sequences[-1] + 1
        end_seq = self._job.range.end_seq
        inside = len(sequences) if next_seq <= end_seq else bisect_left(sequences, end_seq)
        wanted = self._job.wanted
        headers: Sequence[bytes] = blocks
        sizes: Sequence[int] = ()
        if self._headers_only:
            headers, sizes = _without_size(blocks)
        elif wanted.sizes:
            sizes = list(map(len, data))
        chunk = Chunk(
            stream=self._job.range.stream,
            sequences=sequences,
            subjects=subjects if wanted.subjects else (),
            data=data if wanted.data else (),
            headers=headers if wanted.headers and any(headers) else (),
            times_ns=consumer.times_ns(replies) if wanted.times else (),
            sizes=sizes if wanted.sizes else (),
        )
        return Answer(chunk.part(0, inside), start_seq, next_seq, is_last=False)

    def _config(self, start_seq: int) -> ConsumerConfig:
        filters = self._job.range.filters
        return ConsumerConfig(
            name=f"spark_{os.urandom(8).hex()}",
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, start_seq),
            ack_policy=AckPolicy.NONE,
            filter_subject=filters[0] if len(filters) == 1 else None,
            filter_subjects=filters if len(filters) > 1 else None,
            headers_only=True if self._headers_only else None,
            inactive_threshold=_INACTIVE,
            num_replicas=1,
            mem_storage=True,
        )

    def _delete(self, name: str) -> None:
        """Delete the consumer, as far as that can be done now: the server does it later, too."""
        api = APIRequests(self._api.core, self._api.routes, _DOUBT, ends_with_link=True)
        if api.core.address is None:
            return
        with suppress(Error):
            delete_consumer(api, self._job.range.stream, name)


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
