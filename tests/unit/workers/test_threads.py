"""The threads of a handler: when they request messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_sync.workers.deliveries import DeliveryState
from jetstream_sync.workers.runtime.pulling import HeldMessages, Window
from jetstream_sync.workers.runtime.threads import Runner


class Message:
    """A settled message without a key."""

    key = retry_in = None
    size = 0
    is_suspicious = False
    state = DeliveryState.SETTLED


class Requests:
    """One requested message, which arrives just after a thread has looked whether it is awaited."""

    def __init__(self, held: Any, coming: Message) -> None:
        self.window = Window(2, 0, 1, adapts=False)
        self.made = 0
        self._held = held
        self._coming: list[Message] = [coming]

    @property
    def awaited(self) -> int:
        if not self._coming:
            return 0
        with self._held.lock:
            self._held.add([self._coming.pop()])
        return 1

    def next(self) -> None:
        self.made += 1

    def send(self, request: None) -> None:
        """Send nothing."""


class SecondRunsError(Exception):
    """The second message runs."""


def test_a_thread_that_takes_the_message_of_another_one_requests_the_next():
    """The other thread waits, and looks for requests only when it has a message."""
    held: Any = HeldMessages(isolates=False, plain=True)
    first, second = Message(), Message()
    requests = Requests(held, second)

    def process(message: Message, now: float) -> float:
        if message is second:
            raise SecondRunsError
        return now

    def wait() -> Message:
        held.running.add(first)
        return first

    settlements = SimpleNamespace(due=0.0, send_acks=lambda *_: None)
    runner: Any = SimpleNamespace(
        held=held,
        requests=requests,
        _shared=SimpleNamespace(settlements=settlements),
        _wait=wait,
        _process=process,
    )
    with pytest.raises(SecondRunsError):
        Runner._run_single(runner)
    assert requests.made == 1
