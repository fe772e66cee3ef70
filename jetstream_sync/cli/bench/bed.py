"""What a measurement of ``jsm bench`` happens on: a stream of its own, filled, and removed again."""

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
from .work import Kind

if TYPE_CHECKING:
    from ... import JetStream

__all__ = ["Bed", "bench_bed"]

_CONSUMER = "bench"
#: Seconds that the server gets to note the last acknowledgements.
_NOTED = 10.0
#: Seconds between two looks at whether it has.
_LOOK = 0.05
_LONG = 120.0


@dataclass(frozen=True, kw_only=True)
class Bed:
    """Subjects nobody else uses, and for some kinds of work a stream for them."""

    js: JetStream
    subject: str
    stream: str = ""
    consumer: str = ""

    def prepare(self, kind: Kind, messages: int, size: int, filled: Callable[[int], Any]) -> None:
        """
        Make the stream as a kind of work wants to find it.

        Args:
            kind: of the work.
            messages: how many the stream is to have where it is read.
            size: of each, in bytes.
            filled: called with the number of messages now and then.

        """
        if not self.stream:
            return
        stream = self.js.get_stream(self.stream)
        # A cell leaves what the next one may use: filling takes longer than reading.
        if not kind.reads:
            stream.purge()
        elif stream.info().state.messages != messages:
            stream.purge()
            _fill(self.js, self.subject, messages, size, filled)
        if kind.pulls:
            with contextlib.suppress(Error):
                stream.delete_consumer(_CONSUMER)
            # What a client has asked for and not read yet is not lost: it has as long as it takes.
            stream.create_consumer(
                durable_name=_CONSUMER, ack_policy="explicit", max_ack_pending=-1, ack_wait=_LONG
            )

    def verify(self, kind: Kind, messages: int) -> None:
        """
        Check on the server that the work was done.

        Raises:
            CommandError: it was not.

        """
        if not kind.streams:
            return
        stream = self.js.get_stream(self.stream)
        found = stream.cached_info.state.messages
        if not kind.reads and found != messages:
            raise CommandError(
                f"the stream has {found:,} of {messages:,} messages", ExitStatus.FAILED
            )
        if not kind.pulls:
            return
        consumer = stream.get_consumer(_CONSUMER)
        deadline = Deadline(_NOTED)
        while consumer.info().num_ack_pending and not deadline.expired():
            pause(_LOOK)
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
    js.publish_async_completed(_LONG)


@contextlib.contextmanager
def bench_bed(
    js: JetStream,
    *,
    streams: bool,
    storage: str,
    replicas: int,
    subject: str | None,
    warn: Callable[[str], Any],
) -> Iterator[Bed]:
    """
    Lend a bed, and remove its stream at the end, whatever the end is.

    Args:
        js: where to make it.
        streams: whether a stream is needed at all.
        storage: ``memory`` or ``file``.
        replicas: of the stream.
        subject: where core messages go; ``None``: a subject that nobody else uses.
        warn: called with a line when the stream can not be removed.

    """
    own = uuid.uuid4().hex[:12]
    if not streams:
        yield Bed(js=js, subject=subject or f"jsm.bench.{own}")
        return
    name = f"JSM_BENCH_{own}"
    try:
        js.create_stream(
            name=name,
            subjects=[f"jsm.bench.{own}"],
            storage=storage,
            num_replicas=replicas,
            description="made by jsm bench, which removes it",
        )
        yield Bed(js=js, subject=f"jsm.bench.{own}", stream=name, consumer=_CONSUMER)
    finally:
        # Also after a Ctrl-C in the middle of making it: nobody else has a stream of that name.
        try:
            js.delete_stream(name)
        except StreamNotFoundError:
            pass
        except Error as error:
            warn(f"stream {name} could not be removed: {error}")
