"""
Take messages from a durable consumer inside your own tasks, and acknowledge them when they are processed.

Each message is processed at least once: it is acknowledged after processing, and the acknowledgement is
confirmed by the server. A message without an acknowledgement is delivered again, at once if the task returns
it with `WorkBatch.give_back`, else after the ``ack_wait`` of the consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from .. import errors
from ..api.enums import AckPolicy
from ..client.core import ConnectionCore
from ..client.replies import ReplyCollector
from ..headers import parse_status
from ..jetstream.message import JetStreamMsg
from ..jetstream.pull_consumer import PullConsumer
from ..net.clock import Deadline
from ..options import check_int
from ..subjects import ack_tokens, check_publish_subject
from .connections import api_requests, connected
from .options import ReadOptions
from .retry import retry_transient
from .schema import arrow_schema, header_texts, utf8_text

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of `WorkBatch.to_arrow`.
WORK_DDL: Final = (
    "subject string, data binary, headers map<string,array<string>>, sequence bigint, "
    "timestamp timestamp_ltz, stream string, ack string"
)

#: Maximum number of messages acknowledged at once.
_MAX_ACKS: Final = 512
_ACK: Final = b"+ACK"


class WorkBatch:
    """
    Messages that a task processes.

    At the end of a ``with`` block they are acknowledged, or returned to the consumer if the block raised an
    error. Without a block, call `acknowledge` here, or pass their ``ack`` column to the function of that name
    in any other process.

    Args:
        options: the options that the messages were taken with.
        messages: the messages.

    """

    def __init__(self, options: ReadOptions, messages: list[JetStreamMsg]) -> None:
        self._options = options
        #: The messages, in delivery order.
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[JetStreamMsg]:
        return iter(self.messages)

    def acknowledge(self) -> None:
        """
        Acknowledge all messages that are not settled yet, and wait for the confirmation of the server.

        Raises:
            Error: any error of the function `acknowledge`.

        """
        left = [message.ack_subject.decode() for message in self.messages if not message.is_acked]
        acknowledge(left, self._options)

    def give_back(self) -> None:
        """Return all messages that are not settled yet to the consumer, for immediate redelivery."""
        for message in self.messages:
            if not message.is_acked:
                message.nak()

    def in_progress(self) -> None:
        """Restart the ``ack_wait`` of all messages that are not settled yet, for long processing."""
        for message in self.messages:
            if not message.is_acked:
                message.in_progress()

    def to_arrow(self) -> pa.RecordBatch:
        """Return the messages as a record batch with the columns of `WORK_DDL`; needs PyArrow."""
        import pyarrow as pa  # noqa: PLC0415 - everything else works without it

        columns = ("subject", "data", "headers", "sequence", "timestamp", "stream")
        schema = arrow_schema(columns).append(pa.field("ack", pa.string()))
        metadata = [message.metadata for message in self.messages]
        values = [
            [utf8_text(message.subject) for message in self.messages],
            [message.data for message in self.messages],
            [[*header_texts(message.headers).items()] for message in self.messages],
            [item.stream_seq for item in metadata],
            [item.timestamp for item in metadata],
            [item.stream for item in metadata],
            [message.ack_subject.decode() for message in self.messages],
        ]
        arrays = [pa.array(item, field.type) for item, field in zip(values, schema, strict=True)]
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
            return
        # Without a connection, the messages are delivered again after ``ack_wait``, and the block's error counts.
        with suppress(errors.Error):
            self.give_back()


def take_work(
    options: Mapping[str, Any] | ReadOptions,
    *,
    batch: int = 500,
    max_messages: int | None = None,
    max_seconds: float | None = 60.0,
    idle_seconds: float = 1.0,
) -> Iterator[WorkBatch]:
    """
    Yield batches of messages from a durable consumer, until a limit or an idle time is reached.

    Any number of tasks may take messages from one consumer: each message goes to one of them.

    Args:
        options: the options of the source; ``stream`` and ``consumer`` are required.
        batch: maximum number of messages of a batch.
        max_messages: maximum number of messages in total; ``None``: no limit.
        max_seconds: seconds after which no further batch is requested; ``None``: no limit.
        idle_seconds: seconds without a message after which the iteration ends.

    Raises:
        InvalidOptionError: the option ``consumer`` is missing, or names a consumer without explicit
            acknowledgements; or ``batch`` or ``max_messages`` is out of range.
        ConsumerNotFoundError, StreamNotFoundError: the consumer or stream does not exist.
        Error: the server cannot be reached, or refuses.

    """
    check_int("batch", batch, 1)
    if max_messages is not None:
        check_int("max_messages", max_messages, 0)
    parsed = ReadOptions.from_options(options)
    consumer = _consumer(parsed)
    until = Deadline(max_seconds)
    left = max_messages
    while not until.expired() and left != 0:
        count = batch if left is None else min(batch, left)
        wait = min(idle_seconds, idle_seconds if max_seconds is None else until.left() or 0.0)
        messages = consumer.fetch(1, timeout=max(wait, 0.01))
        if not messages:
            return
        if count > 1:
            # Fetch what is available now, without waiting for a full batch. An error that lasts is one of the next batch.
            with suppress(errors.Error):
                messages += consumer.fetch_no_wait(count - 1)
        if left is not None:
            left -= len(messages)
        yield WorkBatch(parsed, messages)


def acknowledge(replies: Iterable[str], options: Mapping[str, Any] | ReadOptions) -> int:
    """
    Acknowledge messages, and wait until the server has confirmed each.

    Any process may acknowledge a message, and repeating an acknowledgement is harmless.

    Args:
        replies: the values of the column ``ack``.
        options: the options of the source.

    Returns:
        The number of messages.

    Raises:
        InvalidArgumentError: ``replies`` is one text.
        BadSubjectError, NotJSMessageError: one of them is not a value of that column; it is not sent.
        ConsumerNotFoundError: the consumer does not exist any more.
        TimeoutError: the server did not confirm in time; repeating the call is safe.
        Error: the server cannot be reached, or refuses.

    """
    parsed = ReadOptions.from_options(options)
    settings = parsed.connection
    if isinstance(replies, str):
        raise errors.InvalidArgumentError("the replies are one text: pass a list")
    deadline = Deadline(settings.timeout)
    core = api_requests(connected(settings, deadline)).core
    rest = iter(replies)
    total = 0
    while part := [_ack_subject(reply) for reply in islice(rest, _MAX_ACKS)]:
        ask = partial(_acknowledge, core, part, deadline)
        retry_transient(ask, deadline, "acknowledging messages")
        total += len(part)
        deadline = Deadline(settings.timeout)
    return total


def _consumer(options: ReadOptions) -> PullConsumer:
    if options.consumer is None:
        raise errors.InvalidOptionError(
            "consumer", None, "is required: set it to a durable consumer"
        )
    deadline = Deadline(options.connection.timeout)
    js = connected(options.connection, deadline)
    look_up = partial(js.get_consumer, options.stream[0], options.consumer)
    consumer = retry_transient(look_up, deadline, "looking up the consumer")
    policy = consumer.cached_info.config.ack_policy
    if policy != AckPolicy.EXPLICIT:
        raise errors.InvalidOptionError(
            "consumer", options.consumer, f"its ack_policy is {policy}, but must be explicit"
        )
    return consumer


def _ack_subject(reply: str) -> bytes:
    """Return the subject of an acknowledgement: a value of a row must not reach another subject."""
    subject = check_publish_subject(reply).encode()
    ack_tokens(subject)
    return subject


def _acknowledge(core: ConnectionCore, replies: Sequence[bytes], deadline: Deadline) -> None:
    confirmations = ReplyCollector(core, lambda _: False, len(replies))
    try:
        for reply in replies:
            confirmations.ask(reply, _ACK, deadline=deadline)
        for _, _, header, _ in confirmations.wait(deadline.left() or 0.0):
            if header and parse_status(header) is not None:
                raise errors.ConsumerNotFoundError.found_here(
                    "no responders for the acknowledgements: the consumer was deleted"
                )
    finally:
        confirmations.close()
