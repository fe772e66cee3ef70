"""The publisher that fills the source across server crashes, and knows the expected output."""

from __future__ import annotations

import math
import random
import threading
from concurrent.futures import Future

import jetstream_sync
from jetstream_sync import Error, PubAck

__all__ = ["Publisher", "token_of"]

_OPTIONS = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1, "connect_timeout": 2.0}
#: Messages published at a time.
_CROWD = 50
#: Of so many messages only the first ones have hits among them, so that there is none for longer than a source keeps
#: messages that expire.
_PERIOD = 15_000
_WITH_HITS = 3_000


def token_of(number: int) -> str:
    """Return the last token of the subject of a message; few messages are a hit."""
    is_hit = number % 100 == 0 and number % _PERIOD < _WITH_HITS
    return "hit" if is_hit else str(number % 7)


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
        self.failure: BaseException | None = None
        #: The payloads in the source if none is removed.
        self.acknowledged: list[bytes] = []

    def start(self) -> None:
        self._thread.start()

    def limit_backlog(self, count: float = math.inf) -> None:
        """Publish at most this many messages from now on, until the next call."""
        self._limit = len(self.acknowledged) + count

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
        return b"%d " % number + self._rng.randbytes(self._rng.choice((0, 10, 100, 1000)))

    def _publish(self, js: jetstream_sync.JetStream, crowd: dict[int, bytes]) -> None:
        left = dict(crowd)
        while left:
            futures: dict[int, Future[PubAck]] = {}
            for number, payload in left.items():
                try:
                    futures[number] = js.publish_async(
                        f"IN.{token_of(number)}", payload, timeout=2, msg_id=str(number)
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
