"""The publisher that fills the source across server crashes, and knows the expected output."""

from __future__ import annotations

import math
import random
import threading

from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import Error, PubAckFuture

__all__ = ["Publisher", "token_of"]

_OPTIONS = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1, "connect_timeout": 2.0}
#: Messages published at a time.
_CROWD = 50


def token_of(payload: bytes) -> str:
    """Return the last token of the subject of a message; few messages are a hit."""
    return payload.split(b" ")[1].decode()


class Publisher:
    """
    Publishes numbered messages with ids, and repeats each until it is acknowledged.

    Args:
        url: the URL of the server.
        rate: the approximate number of messages per second.
        seed: the seed for the lengths of the messages.

    """

    def __init__(self, url: str, rate: float, seed: int) -> None:
        self._url = url
        self._rest = _CROWD / rate
        self._rng = random.Random(f"payloads {seed}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        #: The number of messages after which it waits; see `limit_backlog`.
        self._limit: float = math.inf
        #: Whether there are no more hits.
        self.is_quiet: bool = False
        self.failure: BaseException | None = None
        #: The payloads in the source if none is removed.
        self.acknowledged: list[bytes] = []

    def start(self) -> None:
        self._thread.start()

    def limit_backlog(self, count: float = math.inf) -> None:
        """Publish at most this many messages from now on, until the next call."""
        self._limit = len(self.acknowledged) + count

    def pause_hits(self) -> None:
        """Publish no more hits until `is_quiet` is false, and wait until the last ones are acknowledged."""
        self.is_quiet = True
        count = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= count + _CROWD, 120)

    def stop(self) -> None:
        """Stop publishing, after all published messages are acknowledged."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the publisher does not come to an end"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with jetstream_sync.connect(self._url, **_OPTIONS) as nc:
                js = nc.jetstream(timeout=5)
                number = 0
                while not self._stop.wait(self._rest):
                    if number >= self._limit:
                        continue
                    crowd = {number + item: self._payload(number + item) for item in range(_CROWD)}
                    number += _CROWD
                    self._publish(js, crowd)
        except BaseException as error:
            self.failure = error

    def _payload(self, number: int) -> bytes:
        is_hit = number % 100 == 0 and not self.is_quiet
        token = "hit" if is_hit else str(number % 7)
        return f"{number} {token} ".encode() + self._rng.randbytes(
            self._rng.choice((0, 10, 100, 1000))
        )

    def _publish(self, js: jetstream_sync.JetStream, crowd: dict[int, bytes]) -> None:
        left = dict(crowd)
        while left:
            futures: dict[int, PubAckFuture] = {}
            for number, payload in left.items():
                try:
                    futures[number] = js.publish_async(
                        f"IN.{token_of(payload)}", payload, timeout=2, msg_id=str(number)
                    )
                except Error:
                    break
            for number, future in futures.items():
                try:
                    future.result(10)
                except Error:
                    continue
                del left[number]
        self.acknowledged.extend(crowd.values())
