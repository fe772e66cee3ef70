"""
Reading from a consumer: take a message, show it, settle it; and give back what is not shown.

Every message is shown before it is acknowledged, so one that is lost on the way to the output comes
again. What was received and not shown, at Ctrl-C or when the output goes away, is given back with a
nak, so that nobody has to wait for its time to run out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from ... import AckPolicy, JetStreamMsg, MessageIterator, PullConsumer, PushSubscription
from ...errors import BadSubscriptionError, Error, IteratorClosedError, TimeoutError
from ...net.clock import Deadline
from ..interruptible import wait_interruptibly
from ..output import say
from ..settings import Settings
from ..status import CommandError, ExitStatus
from .message import MessageView

__all__ = ["NowSource", "PullSource", "PushSource", "Reading", "Settle"]

#: Seconds for what is on its way when reading ends.
_GOODBYE = 1.0


class Source(Protocol):
    """Where messages come from."""

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message; ``None``: there are no more. Raises `TimeoutError`."""

    def end(self) -> None:
        """Ask for no more; what has come can still be taken, with a ``timeout`` of 0."""


class PullSource:
    """What is pulled from a consumer, ahead of its use; see `Source`."""

    def __init__(self, messages: MessageIterator) -> None:
        self._messages = messages

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        try:
            return self._messages.next(timeout)
        except IteratorClosedError:
            return None

    def end(self) -> None:
        """Ask for no more."""
        if not self._messages.closed:
            self._messages.drain(_GOODBYE)


class NowSource:
    """What a consumer has now, and not what comes; see `Source`."""

    def __init__(self, consumer: PullConsumer, count: int, group: str | None) -> None:
        self._consumer = consumer
        self._left = count
        self._group = group
        self._got: list[JetStreamMsg] = []

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        del timeout
        if not self._got and self._left > 0:
            most = self._consumer.cached_info.config.max_batch or self._left
            batch = min(self._left, most)
            if self._group is None:
                self._got = self._consumer.fetch_no_wait(batch)
            else:
                self._got = self._consumer.fetch_no_wait(batch, group=self._group)
            self._left -= len(self._got) or self._left
        return self._got.pop(0) if self._got else None

    def end(self) -> None:
        """Ask for no more."""
        self._left = 0


class PushSource:
    """What a consumer delivers; see `Source`."""

    def __init__(self, subscription: PushSubscription) -> None:
        self._subscription = subscription

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        try:
            return self._subscription.next_msg(timeout)
        except BadSubscriptionError:
            return None

    def end(self) -> None:
        """Ask for no more."""
        if self._subscription.is_valid:
            self._subscription.drain(_GOODBYE)


@dataclass(frozen=True, kw_only=True)
class Settle:
    """What becomes of a message that was shown."""

    word: str = "ack"
    """``ack``, ``nak``, ``term`` or nothing at all."""
    delay: timedelta | None = None
    """How long a nak has the server wait; ``None``: not at all."""
    confirmed: bool = False
    """Whether to wait until the server has noted an ack."""
    wanted: bool = True
    """Whether the consumer wants acknowledgements."""
    timeout: float = 5.0
    """Seconds to wait for that."""

    @property
    def acks(self) -> bool:
        """Whether messages are acknowledged."""
        return self.wanted and self.word == "ack"

    def __call__(self, msg: JetStreamMsg) -> str:
        """Settle a message, and return the line that says so."""
        if not self.word:
            return ""
        if not self.wanted:
            return "No acknowledgement needed"
        if self.word == "nak":
            msg.nak(self.delay)
            return "Not acknowledged (nak)"
        if self.word == "term":
            msg.term()
            return "Terminated message"
        if self.confirmed:
            msg.ack_sync(self.timeout)
            return "Acknowledged message, which the server has confirmed"
        msg.ack()
        return "Acknowledged message"

    @classmethod
    def of(
        cls,
        policy: AckPolicy | str,
        timeout: float,
        *,
        no_ack: bool,
        nak: timedelta | None,
        term: bool,
        confirmed: bool,
    ) -> Settle:
        """
        Return what the options mean for a consumer of that policy.

        Raises:
            CommandError: they exclude each other.

        """
        said = {"--no-ack": no_ack, "--nak": nak is not None, "--term": term}
        chosen = [name for name, value in said.items() if value]
        if len(chosen) > 1 or (chosen and confirmed):
            names = " and ".join([*chosen, "--double-ack"][:2])
            raise CommandError(f"{names} exclude each other", ExitStatus.USAGE)
        word = {"--no-ack": "", "--nak": "nak", "--term": "term"}[chosen[0]] if chosen else "ack"
        return cls(
            word=word,
            delay=nak or None,
            confirmed=confirmed,
            wanted=policy not in (AckPolicy.NONE, AckPolicy.FLOW_CONTROL),
            timeout=timeout,
        )


@dataclass(kw_only=True)
class Reading:
    """One run of a command that reads from a consumer."""

    settings: Settings
    source: Source
    view: MessageView
    settle: Settle
    flush: Callable[[], None]
    """Waits until the server has what was sent to it."""
    shown: int = 0
    #: Taken from the source, and not settled.
    _in_hand: JetStreamMsg | None = field(default=None, init=False)

    def run(self, count: int | None, wait: float | None, *, each: bool) -> None:
        """
        Read until there is no more, or it took too long.

        Args:
            count: messages at most; ``None``: no limit.
            wait: seconds to wait; ``None``: for ever.
            each: whether that is for each message, and not for all together.

        """
        try:
            self._read(count, wait, each=each)
        except BaseException:
            # Ctrl-C, an output that went away, a connection that did: the last of which makes the
            # server give the messages to somebody else by itself.
            with suppress(Error):
                self._give_back()
            raise
        self._give_back()
        self.flush()

    def _read(self, count: int | None, wait: float | None, *, each: bool) -> None:
        deadline = Deadline(wait)
        while self.shown != count:
            if each:
                deadline = Deadline(wait)
            try:
                msg = wait_interruptibly(self.source.next, deadline)
            except TimeoutError:
                break
            if msg is None:
                return
            self._handle(msg)
        else:
            return
        # Time is up; what is on its way is shown, too.
        self.source.end()
        while self.shown != count and (late := self._rest()) is not None:
            self._handle(late)

    def _handle(self, msg: JetStreamMsg) -> None:
        self._in_hand = msg
        self.view.show(msg, acked=self.settle.acks)
        self._in_hand = None
        self.shown += 1
        line = self.settle(msg)
        if line and self.view.for_people:
            say(self.settings, f"\n{line}")

    def _rest(self) -> JetStreamMsg | None:
        try:
            return self.source.next(0)
        except TimeoutError:
            return None

    def _give_back(self) -> None:
        """Let the server give to others what was received and not shown."""
        in_hand = self._in_hand
        if in_hand is not None and self.settle.wanted:
            in_hand.nak()
        self.source.end()
        returned = False
        while (msg := self._rest()) is not None:
            if self.settle.wanted:
                msg.nak()
                returned = True
        if in_hand is not None or returned:
            self.flush()
