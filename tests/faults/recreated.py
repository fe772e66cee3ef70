"""A stream and a bucket that are deleted and created again and again: readers skip nothing of any of them."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Final

from fixtures.threads import SCALE

from jetstream_sync import Connection, Error, JetStream, Replica
from jetstream_sync.errors import NotFoundError, TimeoutError

from .reading import LOOK_S, check_alive
from .recorder import Recorder

__all__ = ["RECREATED", "CopyOfBucket", "DroppedReaders", "GenerationReader", "Recreator"]

#: The name of the stream and of the bucket.
RECREATED: Final = "RECREATED"

_TIMEOUT_S: Final = 2.0
#: Seconds for which a stream lives.
_LIFE_S: Final = 1.5
#: Maximum number of messages of a stream, so that it may become shorter or longer than the one before.
_MESSAGES: Final = (20, 60, 10, 100)


class Recreator:
    """Creates the stream and the bucket, fills them, and deletes them."""

    def __init__(self, nc: Connection) -> None:
        self._js = nc.jetstream(timeout=_TIMEOUT_S)
        self.generation = 0

    def run(self, stop: threading.Event) -> None:
        while True:
            self.generation += 1
            self._repeat(self._create)
            for number in range(_MESSAGES[self.generation % len(_MESSAGES)]):
                self._repeat(lambda number=number: self._store(number))
            if stop.wait(_LIFE_S):
                return
            self._repeat(self._delete)

    def _repeat(self, call: object) -> None:
        while True:
            try:
                call()  # type: ignore[operator]
            except Error as error:
                check_alive(error)
                time.sleep(0.02)
            else:
                return

    def _create(self) -> None:
        self._js.create_or_update_stream(name=RECREATED, subjects=["R.*"])
        self._js.create_or_update_key_value(bucket=RECREATED)

    def _store(self, number: int) -> None:
        self._js.publish("R.a", b"%d" % self.generation)
        self._js.key_value(RECREATED).put(f"k{self.generation % 7}.{number}", b"%d" % number)

    def _delete(self) -> None:
        for delete in (self._js.delete_stream, self._js.delete_key_value):
            try:
                delete(RECREATED)
            except NotFoundError:
                continue


class GenerationReader:
    """An ordered reader that starts again: of each stream, it returns the messages from the first one on."""

    def __init__(self, nc: Connection, recorder: Recorder) -> None:
        self._js = nc.jetstream(timeout=_TIMEOUT_S)
        self._recorder = recorder
        #: The last stream, and the last sequence of it.
        self.last: tuple[int, int] = (0, 0)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.last = (self.last[0], 0)
            try:
                self._read(stop)
            except Error as error:
                check_alive(error)
                time.sleep(0.05)

    def _read(self, stop: threading.Event) -> None:
        consumer = self._js.ordered_consumer(
            RECREATED, restart_if_recreated=True, inactive_threshold=5
        )
        with consumer.messages(expires=3, heartbeat=0.5) as messages:
            while not stop.is_set():
                try:
                    msg = messages.next(LOOK_S)
                except TimeoutError:
                    continue
                generation, seq = int(msg.data), msg.metadata.stream_seq
                known, last = self.last
                if seq not in (last + 1, 1) or generation < known or (seq > 1 < known < generation):
                    self._recorder.complain(f"got {(generation, seq)} after {self.last}")
                self.last = generation, seq


class CopyOfBucket:
    """A replica, which is made again if it was without a bucket for too long."""

    def __init__(self, nc: Connection) -> None:
        self._js = nc.jetstream(timeout=_TIMEOUT_S)
        self.copy: Replica | None = None

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self._js.key_value(RECREATED).replica() as self.copy:
                    while not stop.wait(0.05):
                        len(self.copy)
            except Error as error:
                check_alive(error)
                time.sleep(0.05)

    def is_right(self, js: JetStream) -> bool:
        """Return whether it equals the bucket."""
        try:
            stored = js.key_value(RECREATED).get_many(">")
            copy = {} if self.copy is None else dict(self.copy)
        except Error:
            return False
        return copy == {key: entry.value for key, entry in stored.items()}


class DroppedReaders:
    """Reads a little, and leaves the iterator; nothing of it stays on the server."""

    def __init__(self, nc: Connection) -> None:
        self._js = nc.jetstream(timeout=_TIMEOUT_S)
        self.left = 0

    def run(self, stop: threading.Event) -> None:
        warnings.simplefilter("ignore", ResourceWarning)
        while not stop.wait(0.1 * SCALE):
            try:
                for _ in self._js.ordered_consumer(RECREATED, inactive_threshold=5).messages(
                    expires=3, heartbeat=0.5
                ):
                    break
                self._js.ordered_consumer(RECREATED, inactive_threshold=5).fetch(1, timeout=1)
            except Error as error:
                check_alive(error)
            self.left += 1
