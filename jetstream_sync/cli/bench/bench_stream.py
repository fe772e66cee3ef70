"""The temporary stream that ``jsm bench`` measures with: created, filled and deleted again."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import Error, StreamNotFoundError
from ...net.clock import Deadline
from ..interruptible import pause
from ..status import CommandError, ExitStatus
from .work import BenchKind

if TYPE_CHECKING:
    from ... import JetStream

__all__ = ["BenchStream", "bench_stream"]

_CONSUMER = "bench"
#: Maximum time for the server to process the last acknowledgements.
_ACKS_TIMEOUT_S = 10.0
_ACKS_POLL_INTERVAL_S = 0.05
_FILL_TIMEOUT_S = 120.0
#: Longer than any run: a message that a client has pulled and not read yet is not redelivered.
_ACK_WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class BenchStream:
    """A subject to publish to, and for some kinds of work a stream that stores it."""

    js: JetStream
    subject: str
    stream: str = ""
    consumer: str = ""

    def prepare(
        self, kind: BenchKind, messages: int, size: int, filled: Callable[[int], Any]
    ) -> None:
        """
        Bring the stream into the state that a kind of work needs; do nothing without a stream.

        Args:
            kind: the kind of work.
            messages: number of messages that the stream must hold if the work reads it.
            size: size of each message in bytes.
            filled: called regularly with the number of messages published so far.

        """
        if not self.stream:
            return
        stream = self.js.get_stream(self.stream)
        # Filling takes longer than reading, so the next kind of work reuses the messages.
        if not kind.reads:
            stream.purge()
        elif stream.info().state.messages != messages:
            stream.purge()
            _fill(self.js, self.subject, messages, size, filled)
        if kind.shares_consumer:
            with contextlib.suppress(Error):
                stream.delete_consumer(_CONSUMER)
            stream.create_consumer(
                durable_name=_CONSUMER,
                ack_policy="explicit",
                max_ack_pending=-1,
                ack_wait=_ACK_WAIT_S,
            )

    def verify(self, kind: BenchKind, messages: int) -> None:
        """
        Check on the server that the stream or its consumer processed every message.

        Raises:
            CommandError: messages are missing, not delivered or not acknowledged.

        """
        if not kind.needs_stream:
            return
        stream = self.js.get_stream(self.stream)
        found = stream.cached_info.state.messages
        if not kind.reads and found != messages:
            raise CommandError(
                f"the stream has {found:,} of {messages:,} messages", ExitStatus.FAILED
            )
        if not kind.shares_consumer:
            return
        consumer = stream.get_consumer(_CONSUMER)
        deadline = Deadline(_ACKS_TIMEOUT_S)
        while consumer.info().num_ack_pending and not deadline.expired():
            pause(_ACKS_POLL_INTERVAL_S)
        info = consumer.cached_info
        if info.num_ack_pending or info.num_pending:
            raise CommandError(
                f"{info.num_pending:,} messages were not delivered, "
                f"{info.num_ack_pending:,} not acknowledged",
                ExitStatus.FAILED,
            )


def _fill(
    js: JetStream, subject: str, messages: int, size: int, filled: Callable[[int], Any]
) -> None:
    payload = b"x" * size
    for number in range(messages):
        js.publish_async(subject, payload)
        if number % 1000 == 0:
            filled(number)
    js.publish_async_completed(_FILL_TIMEOUT_S)


@contextlib.contextmanager
def bench_stream(
    js: JetStream,
    *,
    needs_stream: bool,
    storage: str,
    replicas: int,
    subject: str | None,
    warn: Callable[[str], Any],
) -> Iterator[BenchStream]:
    """
    Create a stream with a generated name, and delete it however the block ends.

    Args:
        js: the context to create the stream with.
        needs_stream: create no stream if false.
        storage: ``memory`` or ``file``.
        replicas: number of replicas of the stream.
        subject: the subject if there is no stream; ``None`` generates one.
        warn: called with a line if the stream cannot be deleted.

    """
    own = uuid.uuid4().hex[:12]
    if not needs_stream:
        yield BenchStream(js=js, subject=subject or f"jsm.bench.{own}")
        return
    name = f"JSM_BENCH_{own}"
    try:
        js.create_stream(
            name=name,
            subjects=[f"jsm.bench.{own}"],
            storage=storage,
            num_replicas=replicas,
            description="temporary stream of jsm bench",
        )
        yield BenchStream(js=js, subject=f"jsm.bench.{own}", stream=name, consumer=_CONSUMER)
    finally:
        # A Ctrl-C may interrupt create_stream() after the server has created the stream.
        # The name is generated, so the stream cannot belong to another program.
        try:
            js.delete_stream(name)
        except StreamNotFoundError:
            pass
        except Error as error:
            warn(f"stream {name} could not be deleted: {error}")
