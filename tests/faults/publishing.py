"""The publishers: each message has an id and is published until it is acknowledged."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import wait

from fixtures.internals import transport_of

from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    PubAckFuture,
)

from .recorder import SLACK, Recorder, payload_of

__all__ = ["Crowd", "Single", "await_settled"]

#: Timeout of each attempt, in seconds.
_PATIENCE = 2.0
#: Timeout of attempts whose link may break long before, in seconds: that settles their futures.
_LONG = 15.0
#: Seconds between two attempts, or two messages.
_REST = 0.01
#: The reciprocal of the probability of a pause after a message or a batch.
_PAUSES = 40
#: Seconds between two checks for a lost link.
_LOOK = 0.1


def _may_go_on(error: Error) -> bool:
    """Return whether an error leaves the connection alive."""
    return not isinstance(error, ConnectionClosedError) or isinstance(error, ConnectionLostError)


def await_settled(
    future: PubAckFuture, nc: Connection, link: object, recorder: Recorder, name: str
) -> None:
    """
    Wait until a future is settled, and report one that settles long after its link was lost.

    Args:
        future: of ``publish_async``.
        nc: its connection.
        link: the link before and after the call; ``None``: it is not known.
        recorder: where to report.
        name: of the message.

    """
    lost_at = None
    other = future.future()
    while not wait([other], _LOOK).done:
        now = time.monotonic()
        if link is not None and lost_at is None and transport_of(nc) is not link:
            lost_at = now
        if lost_at is not None and now > lost_at + SLACK:
            recorder.complain(
                f"the future of {name} is not settled {SLACK:g} s after its link broke"
            )
            return


class Single:
    """Publishes one message after the other, waiting for each."""

    def __init__(self, name: str, nc: Connection, recorder: Recorder, rng: random.Random) -> None:
        self._name = name
        self._js = nc.jetstream()
        self._recorder = recorder
        self._rng = rng

    def run(self, stop: threading.Event, give_up: threading.Event) -> None:
        number = 0
        while not stop.wait(_REST):
            if self._recorder.too_far_ahead():
                continue
            message = f"{self._name}-{number}"
            number += 1
            self._recorder.published += 1
            self._publish(message, give_up)
            if self._rng.randrange(_PAUSES * 10) == 0:
                stop.wait(self._rng.uniform(0.5, 3))

    def _publish(self, message: str, give_up: threading.Event) -> None:
        payload = payload_of(message, self._rng.choice((0, 100, 1000, 10_000)))
        while True:
            try:
                with self._recorder.within(f"publish {message}", _PATIENCE, "publishing"):
                    ack = self._js.publish(
                        f"F.{self._name}", payload, timeout=_PATIENCE, msg_id=message
                    )
            except Error as error:
                if not _may_go_on(error):
                    raise
            else:
                self._recorder.stored(message, ack.seq, duplicate=ack.duplicate)
                return
            if give_up.wait(_REST):
                self._recorder.complain(f"{message} was never acknowledged")
                return


class Crowd:
    """Publishes many messages at a time, with `publish_async`."""

    def __init__(self, name: str, nc: Connection, recorder: Recorder, rng: random.Random) -> None:
        self._name = name
        self._nc = nc
        self._js = nc.jetstream()
        self._recorder = recorder
        self._rng = rng

    def run(self, stop: threading.Event, give_up: threading.Event) -> None:
        number = 0
        while not stop.wait(_REST):
            if self._rng.randrange(_PAUSES) == 0:
                stop.wait(self._rng.uniform(0.5, 3))
            if self._recorder.too_far_ahead():
                continue
            count = self._rng.choice((1, 5, 10, 200))
            left = [f"{self._name}-{number + item}" for item in range(count)]
            number += count
            self._recorder.published += count
            payloads = {item: payload_of(item, self._rng.choice((0, 50, 3000))) for item in left}
            while left and not give_up.is_set():
                left = self._attempt(left, payloads)
                if left:
                    give_up.wait(_REST)
            for item in left:
                self._recorder.complain(f"{item} was never acknowledged")

    def _attempt(self, messages: list[str], payloads: dict[str, bytes]) -> list[str]:
        """Publish these, and return those that were not acknowledged."""
        futures: dict[str, PubAckFuture] = {}
        links: dict[str, object] = {}
        timeout = self._rng.choice((_PATIENCE, _LONG))
        for message in messages:
            link = transport_of(self._nc)
            try:
                with self._recorder.within(f"publish_async {message}", timeout, "publishing"):
                    futures[message] = self._js.publish_async(
                        f"F.{self._name}", payloads[message], timeout=timeout, msg_id=message
                    )
            except Error as error:
                if not _may_go_on(error):
                    raise
            # It was sent, or will be sent, over this link, if the link is still the same.
            links[message] = link if transport_of(self._nc) is link else None
        for item, future in futures.items():
            try:
                # Settled within its timeout; timeouts are checked twice a second.
                with self._recorder.within(f"result {item}", timeout + 0.5, "publishing"):
                    await_settled(future, self._nc, links[item], self._recorder, item)
                    ack = future.result(timeout + 10)
            except Error as error:
                if not future.done():
                    self._recorder.complain(f"the future of {item} is not settled: {error}")
                if not _may_go_on(error):
                    raise
            else:
                self._recorder.stored(item, ack.seq, duplicate=ack.duplicate)
        return [message for message in messages if message not in self._recorder.acknowledged]
