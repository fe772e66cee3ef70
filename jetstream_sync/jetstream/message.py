"""A message from a stream, how to acknowledge it, and how workers settle many."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NoReturn

from .. import errors
from ..client.encoder import publish_command
from ..client.mailbox import MessageReceiver
from ..client.message import Msg
from ..client.threads import Waiters
from ..client.writer import DEFERRED, NOW, SOON
from ..codec import dumps, encodable
from ..durations import duration, duration_to_ns
from ..exact import exact
from ..net.clock import Deadline
from ..protocol.parser import RawMessage
from ..subjects import Metadata, ack_tokens, metadata_of

if TYPE_CHECKING:
    from ..client.core import ConnectionCore

_ACK: Final = b"+ACK"
#: The whole command of an acknowledgement, but for its subject.
_ACK_COMMAND: Final = publish_command(b"%b", b"", _ACK)
#: The beginning of a command without headers, before its subject.
_VERB: Final = b"PUB "
_NAK: Final = b"-NAK"
_IN_PROGRESS: Final = b"+WPI"
_TERM: Final = b"+TERM"
# Acknowledgement state after a nak(); `True` stands for all other acknowledgements.
_NAKED: Final = 2
#: Of a message that another client has published to the deliver subject of a push consumer. Its reply subject is any,
#: so that nothing is sent to it.
FOREIGN: Final = 0
#: Returns the subject and the header of a delivery.
_subject_and_header: Final = itemgetter(0, 2)


def send_in_progress(core: ConnectionCore, ack_subject: bytes) -> None:
    """Make the server restart the ``ack_wait`` of a message; raises as `Writer.append`."""
    command, size = core.encoder.encode_command(ack_subject, _IN_PROGRESS)
    core.writer.append(command, size, SOON)


class JetStreamMsg(Msg):
    """
    A message that a consumer delivered.

    It is acknowledged once, with `ack()`, `ack_sync()`, `nak()` or `term()`; a second time is a
    `MsgAlreadyAckdError`. `in_progress()` may come any number of times before. What is sent follows
    ADR-15. Where the consumer's ack policy is ``none`` all of them do nothing.

    ADR-15 wants a second acknowledgement to be ignored in silence. This client sends nothing either,
    but raises, as nats-py and nats.go do: a ``nak()`` that comes after an ``ack()`` has no effect, and a
    program that relies on the redelivery has to learn that. `is_acked` says whether there was one. The
    rule is the same for every message, however it was received.

    Acknowledging is buffered like a publish, and any thread may do it.
    """

    __slots__ = ()

    data: bytes
    """The payload."""

    # False: not acknowledged; True, or _NAKED: it is; None: the consumer wants no acknowledgements; or FOREIGN.
    _settled: bool | int | None

    @property
    def metadata(self) -> Metadata:
        """
        The metadata of this delivery, parsed from the reply subject on each access.

        Raises:
            NotJSMessageError: the message did not come from a stream.

        """
        return metadata_of(self._reply)

    @property
    def ack_subject(self) -> bytes:
        """The reply subject as bytes: the target of acknowledgements and the source of `metadata`."""
        return self._reply

    @property
    def is_acked(self) -> bool:
        """Whether the message was acknowledged here, with any kind of acknowledgement."""
        return bool(self._settled)

    @property
    def is_done(self) -> bool:
        """Whether the message was acknowledged here other than with `nak()`: no redelivery is due."""
        return self._settled is True

    def ack(self) -> None:
        """
        Acknowledge the message.

        This does not wait for the server; `ack_sync()` does.

        Raises:
            MsgAlreadyAckdError: it was acknowledged before.
            NotJSMessageError: it did not come from a stream.
            TimeoutError: the server has accepted no data for 10 seconds; the acknowledgement is buffered
                and may be sent later.
            ConnectionClosedError: the connection is closed.

        """
        if self._settled is False and self._reply:
            # Repeats _settle() to save calls and formatting: this runs once per message.
            self._core.writer.append(_ACK_COMMAND % self._reply, 4, DEFERRED)
            self._settled = True
        else:
            self._settle(_ACK)

    def ack_sync(self, timeout: float | timedelta | None = 1.0) -> None:
        """
        Acknowledge the message and wait for the confirmation of the server (double ack).

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: the server did not confirm in time; the message may be acknowledged.
            MsgAlreadyAckdError: it was acknowledged before.
            NoRespondersError: the consumer does not exist any more, or has no leader.
            NotJSMessageError: it did not come from a stream.
            ConnectionClosedError: the connection is closed.

        """
        if self._open():
            try:
                reply = self._reply or self._no_reply()
                self._core.requests.request(reply, _ACK, Deadline(timeout))
            except errors.NoRespondersError:
                raise errors.NoRespondersError(self.reply) from None
            self._settled = True

    def nak(self, delay: float | timedelta | None = None) -> None:
        """
        Negatively acknowledge the message, so that it is redelivered.

        Args:
            delay: the delay of the redelivery, in seconds.

        Raises:
            InvalidOptionError: the delay is below 0.
            MsgAlreadyAckdError, NotJSMessageError, ConnectionClosedError: as `ack()`.

        """
        if delay is None:
            self._settle(_NAK, _NAKED)
            return
        delay_ns = duration_to_ns(duration(delay, "delay"))
        if delay_ns < 0:
            raise errors.InvalidOptionError("delay", delay, "must be 0 or above")
        self._settle(_NAK + b" " + dumps({"delay": delay_ns}), _NAKED)

    def in_progress(self) -> None:
        """
        Report that the message is being handled: the server restarts its ``ack_wait``.

        Raises:
            MsgAlreadyAckdError, NotJSMessageError, ConnectionClosedError: as `ack()`.

        """
        if self._open():
            send_in_progress(self._core, self._reply or self._no_reply())

    def term(self, reason: str | None = None) -> None:
        """
        Terminate the message: it cannot be handled and must not be redelivered.

        Args:
            reason: put into the server's advisory (server 2.10.4).

        Raises:
            InvalidOptionError: the reason is not a str, or has a line break.
            MsgAlreadyAckdError, NotJSMessageError, ConnectionClosedError: as `ack()`.

        """
        if not reason:
            self._settle(_TERM)
            return
        text = exact(reason)
        if type(text) is not str or "\r" in text or "\n" in text:
            rule = "must be a str without line breaks"
            raise errors.InvalidOptionError("reason", reason, rule)
        self._settle(_TERM + b" " + encodable(text).encode())

    def _settle(self, payload: bytes, settled: bool | int = True) -> None:
        if self._settled is False or self._open():
            reply = self._reply or self._no_reply()
            command, size = self._core.encoder.encode_command(reply, payload)
            self._core.writer.append(command, size, DEFERRED)
            # Set after the acknowledgement was buffered: one that could not be sent may be retried.
            self._settled = settled

    def _no_reply(self) -> NoReturn:
        raise errors.NotJSMessageError(
            "the message did not come from a stream: it has no reply subject"
        )

    def _open(self) -> bool:
        """Return whether an acknowledgement is expected; raise if there was one already."""
        if self._settled:
            raise errors.MsgAlreadyAckdError("the message was acknowledged before")
        if self._settled is FOREIGN:
            ack_tokens(self._reply)  # raises
        return self._settled is False


class Confirmations(MessageReceiver):
    """
    Sends settlements, and counts their confirmations.

    Any thread may call `send`, and one at a time `counts`. The caller has to notice a confirmation that does
    not arrive. The reader wakes ``waiters`` when some have arrived.
    """

    is_reply_inbox = True

    __slots__ = ("_arrived", "_core", "_encode", "_reply", "waiters")

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core.internal  # the reader holds this object
        inbox = core.table.new_inbox()
        self._encode = core.encoder.encode_command
        self._reply = f"{inbox}.".encode()
        self._arrived: deque[Counter[tuple[bytes, bytes]]] = deque()
        self.waiters: Waiters = Waiters()
        core.table.add(f"{inbox}.*", "", self)

    def send(self, subjects: Sequence[bytes], payload: bytes, token: int) -> None:
        """
        Settle the messages with these reply subjects; `counts` names the token for each confirmation.

        Raises:
            OutboundBufferLimitError: disconnected, and the buffer is full.
            ConnectionClosedError: the connection is closed.

        """
        reply = b"%b%d" % (self._reply, token)
        command, size = self._encode(b"", payload, reply)
        # The commands differ in their subjects only.
        end = command[len(_VERB) :]
        commands = _VERB + (end + _VERB).join(subjects) + end
        count = len(subjects)
        self._core.writer.append(commands, size * count, NOW, count)

    def counts(self) -> list[tuple[int, int, bool]]:
        """Return what has arrived: tokens, numbers, and whether there were no responders instead."""
        found: Counter[tuple[bytes, bytes]] = Counter()
        with suppress(IndexError):
            while True:
                found.update(self._arrived.popleft())
        start = len(self._reply)
        return [
            (int(subject[start:]), number, bool(header))
            for (subject, header), number in found.items()
            if subject[start:].isdigit()
        ]

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Count confirmations; called by the reader."""
        self._arrived.append(Counter(map(_subject_and_header, deliveries)))
        if self.waiters.gates:
            self.waiters.wake_all()
