"""
Taking messages from a durable consumer inside of tasks, and acknowledging what was worked on.

A message is acknowledged after it was worked on, and the server's word for that is waited for. One
that was not is delivered again, at once where the task says so and else after the consumer's
``ack_wait``. So each message is worked on at least once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

from ..api.enums import AckPolicy
from ..client.core import Core
from ..errors import ConsumerNotFoundError, InvalidOptionError
from ..headers import Headers, parse_status
from ..jetstream.consumer import PullConsumer
from ..jetstream.gathering import Gathering
from ..jetstream.message import JetStreamMsg
from ..net.clock import Deadline
from ..protocol.parser import Delivery
from .connections import api_requests, connection
from .options import ReadOptions
from .retry import retry_transient

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WORK_DDL", "WorkBatch", "acknowledge", "take_work"]

#: The columns of `WorkBatch.to_arrow`.
WORK_DDL: Final = (
    "subject string, data binary, headers map<string,array<string>>, sequence bigint, "
    "timestamp timestamp, stream string, ack string"
)

#: Messages that are acknowledged at a time.
_MAX_ACKS: Final = 512
_ACK: Final = b"+ACK"


class WorkBatch:
    """
    Messages that a task works on.

    In a ``with`` block they are acknowledged at its end, or given back when it ends with an error.
    Without one that is up to `acknowledge`, here or, by their ``ack`` column, anywhere else.

    Args:
        options: where they came from.
        messages: what came.

    """

    def __init__(self, options: ReadOptions, messages: list[JetStreamMsg]) -> None:
        self._options = options
        #: The messages, in their order.
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[JetStreamMsg]:
        return iter(self.messages)

    def acknowledge(self) -> None:
        """
        Say that all are done with, but those that were settled one by one, and wait for the server.

        Raises:
            Error: as `acknowledge`.

        """
        left = [each.ack_subject.decode() for each in self.messages if not each.is_acked]
        acknowledge(left, self._options)

    def give_back(self) -> None:
        """Have all delivered again, but those that were settled one by one."""
        for message in self.messages:
            if not message.is_acked:
                message.nak()

    def in_progress(self) -> None:
        """Have the server begin its ``ack_wait`` anew, for work that takes long."""
        for message in self.messages:
            if not message.is_acked:
                message.in_progress()

    def to_arrow(self) -> pa.RecordBatch:
        """Return the messages as a record batch with the columns of `WORK_DDL`; needs pyarrow."""
        import pyarrow as pa  # noqa: PLC0415 - the rest works without it

        from .schema import arrow_schema  # noqa: PLC0415

        columns = ("subject", "data", "headers", "sequence", "timestamp", "stream")
        schema = arrow_schema(columns).append(pa.field("ack", pa.string()))
        facts = [message.metadata for message in self.messages]
        values = [
            [message.subject for message in self.messages],
            [message.data for message in self.messages],
            [_pairs(message.headers) for message in self.messages],
            [fact.stream_seq for fact in facts],
            [fact.timestamp for fact in facts],
            [fact.stream for fact in facts],
            [message.ack_subject.decode() for message in self.messages],
        ]
        arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.acknowledge()
        else:
            self.give_back()


def _pairs(headers: Headers | None) -> list[tuple[str, list[str]]]:
    return [] if headers is None else [(name, headers.get_all(name)) for name in headers]


def take_work(
    options: Mapping[str, str] | ReadOptions,
    *,
    batch: int = 500,
    max_messages: int | None = None,
    max_seconds: float | None = 60.0,
    idle_seconds: float = 1.0,
) -> Iterator[WorkBatch]:
    """
    Yield messages of a durable consumer, until there are enough, or none for a while.

    Any number of tasks may take from one consumer: each message goes to one of them.

    Args:
        options: those of the source, of which ``stream`` and ``consumer`` are needed.
        batch: messages that are handed over at a time, at most.
        max_messages: messages that are taken in all, at most; ``None``: no limit.
        max_seconds: no batch is asked for after so many seconds; ``None``: no limit.
        idle_seconds: seconds without a message after which it ends.

    Raises:
        InvalidOptionError: there is no consumer among the options, or one without explicit
            acknowledgements.
        ConsumerNotFoundError, StreamNotFoundError: it does not exist.
        Error: the server can not be reached, or refuses.

    """
    wanted = options if isinstance(options, ReadOptions) else ReadOptions.from_options(options)
    consumer = _consumer(wanted)
    until = Deadline(max_seconds)
    left = max_messages
    while not until.expired() and left != 0:
        count = batch if left is None else min(batch, left)
        wait = min(idle_seconds, idle_seconds if max_seconds is None else until.left() or 0.0)
        messages = consumer.fetch(1, timeout=max(wait, 0.01))
        if not messages:
            return
        if count > 1:
            # What is there by now comes along, and nobody waits for more.
            messages += consumer.fetch_no_wait(count - 1)
        if left is not None:
            left -= len(messages)
        yield WorkBatch(wanted, messages)


def acknowledge(replies: Iterable[str], options: Mapping[str, str] | ReadOptions) -> int:
    """
    Say that messages are done with, and wait until the server has noted it.

    It may be another process than that which took them, and it may be said again.

    Args:
        replies: what the column ``ack`` has.
        options: those of the source.

    Returns:
        How many there were.

    Raises:
        ConsumerNotFoundError: the consumer does not exist any more.
        TimeoutError: the server did not confirm in time; saying it again is safe.
        Error: the server can not be reached, or refuses.

    """
    wanted = options if isinstance(options, ReadOptions) else ReadOptions.from_options(options)
    settings = wanted.connection
    core = api_requests(settings.jetstream(connection(settings))).core
    rest = iter(replies)
    total = 0
    while part := list(islice(rest, _MAX_ACKS)):
        retry_transient(
            partial(_acknowledge, core, part, settings.timeout), settings.timeout, "an ack"
        )
        total += len(part)
    return total


def _consumer(options: ReadOptions) -> PullConsumer:
    if options.consumer is None:
        raise InvalidOptionError("consumer", None, "name the durable consumer to take work from")
    settings = options.connection
    js = settings.jetstream(connection(settings))
    consumer = js.get_consumer(options.stream[0], options.consumer)
    policy = consumer.cached_info.config.ack_policy
    if policy != AckPolicy.EXPLICIT:
        raise InvalidOptionError(
            "consumer", options.consumer, f"its ack_policy is {policy}, and has to be explicit"
        )
    return consumer


def _acknowledge(core: Core, replies: Sequence[str], timeout: float) -> None:
    answers = Gathering(core, _never, len(replies))
    try:
        for reply in replies:
            answers.ask(reply.encode(), _ACK)
        for _, _, header, _ in answers.wait(timeout):
            if header and parse_status(header) is not None:
                raise ConsumerNotFoundError(
                    404, 10014, "nobody takes the acknowledgements: the consumer is gone"
                )
    finally:
        answers.close()


def _never(delivery: Delivery) -> bool:
    del delivery
    return False
