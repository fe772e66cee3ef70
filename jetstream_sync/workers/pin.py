"""The pin of an exclusive handler: one process at a time receives the messages of a consumer (ADR-42)."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from .. import Error

if TYPE_CHECKING:
    from .. import JetStream, JetStreamMsg, PullConsumer

#: The server's default for ``priority_timeout``, in seconds.
_DEFAULT_PIN_S: Final = 120.0
#: Timeout of a request for the consumer's info, in seconds: the main thread waits for it.
_INFO_TIMEOUT_S: Final = 2.0


def _pin_of(msg: JetStreamMsg) -> str | None:
    headers = msg.headers
    return headers.get("Nats-Pin-Id") if headers else None


class Pin:
    """
    The pin id of the messages that a process receives.

    The thread that pulls calls `differs`, `follow` and `lose`; another one calls `keep` and `release`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # That of the last message; None: there is none, or it is lost. Changed under _lock.
        self._pin: str | None = None
        self._keep_at = 0.0

    def group(self, consumer: PullConsumer) -> str | None:
        """Return the priority group of a consumer; ``None``: it has none."""
        groups = consumer.cached_info.config.priority_groups
        return groups[0] if groups else None

    def differs(self, msg: JetStreamMsg) -> bool:
        """Return whether a message has another pin id than the one before."""
        return _pin_of(msg) != self._pin

    def follow(self, msg: JetStreamMsg) -> bool:
        """Use the pin id of a message; return whether the former one is still valid."""
        with self._lock:
            known, self._pin = self._pin, _pin_of(msg)
            return known is None or known == self._pin

    def lose(self, pin: str | None = None) -> bool:
        """Forget the pin id, if it is ``pin``, or any; return whether there was one."""
        with self._lock:
            if self._pin is None or pin not in {None, self._pin}:
                return False
            self._pin = None
            return True

    def keep(self, consumer: PullConsumer) -> bool:
        """
        Keep the pin, if that is due; return whether it is not lost.

        Only a request keeps a pin, and while all threads are busy none is sent. It is due rarely; call
        this often.
        """
        group = self.group(consumer)
        if group is None or time.monotonic() < self._keep_at:
            return True
        timeout = consumer.cached_info.config.priority_timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else _DEFAULT_PIN_S
        self._keep_at = time.monotonic() + seconds / 4
        pin = self._pin
        if pin is None:
            return True
        with suppress(Error):
            if not self._is_pinned(consumer, group, pin):
                return not self.lose(pin)
            # No message fits into one byte, so that nothing is delivered.
            consumer.fetch_no_wait(1, max_bytes=1, group=group)
        return True

    def release(self, consumer: PullConsumer, js: JetStream) -> None:
        """Let another process take over at once."""
        group, pin = self.group(consumer), self._pin
        if group is None or pin is None:
            return
        with suppress(Error):
            if self._is_pinned(consumer, group, pin):
                js.get_stream(consumer.stream_name).unpin_consumer(consumer.name, group)

    def _is_pinned(self, consumer: PullConsumer, group: str, pin: str) -> bool:
        """Return whether the server delivers to the client with this pin id; raises as `info`."""
        states = consumer.info(_INFO_TIMEOUT_S).priority_groups or ()
        return any(each.pinned_client_id == pin for each in states if each.group == group)
