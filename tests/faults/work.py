"""A work queue in which messages are purged by subject, and a counter: nothing is lost, or counted twice."""

from __future__ import annotations

import base64
import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fixtures.rawnats import RawClient
from fixtures.threads import SCALE

from jetstream_sync import Connection, Error, NotFoundError, PendingAcksError

from .reading import check_alive
from .recorder import Recorder

__all__ = ["Count", "WorkQueue"]

_WORK: Final = "WORK"
_COUNTERS: Final = "COUNTERS"
_TIMEOUT_S: Final = 2.0
#: Every how many rounds the droppable jobs are purged, and the counter is set to 0.
_PURGE_EVERY: Final = 5
_RESET_EVERY: Final = 50


def _repeat(call: Callable[[], object], give_up: threading.Event) -> bool:
    """Call until there is no error; return whether that was reached."""
    while not give_up.is_set():
        try:
            call()
        except Error as error:
            check_alive(error)
            time.sleep(0.05)
        else:
            return True
    return False


class WorkQueue:
    """Jobs of two subjects: those of one are handled, and those of the other may be purged before."""

    def __init__(
        self, storing: Connection, handling: Connection, recorder: Recorder, rng: random.Random
    ) -> None:
        js = storing.jetstream(timeout=20 * SCALE)
        js.create_stream(name=_WORK, subjects=["W.*"], retention="workqueue")
        js.create_consumer(_WORK, durable_name="work", ack_wait=2)
        self._js = storing.jetstream(timeout=_TIMEOUT_S)
        other = handling.jetstream(timeout=_TIMEOUT_S)
        self._stream = other.get_stream(_WORK)
        self._consumer = self._stream.get_consumer("work")
        self._recorder = recorder
        self._rng = rng
        self.stored: set[str] = set()
        self.handled: set[str] = set()
        self.purged = self.refused = self.freed = 0

    def store(self, stop: threading.Event) -> None:
        """Store jobs until ``stop`` is set."""
        number = 0
        while not stop.wait(0.02):
            number += 1
            job, kind = f"job-{number}", "drop" if number % 3 else "keep"

            def publish(kind: str = kind, job: str = job) -> None:
                self._js.publish(f"W.{kind}", job.encode(), msg_id=job)

            if _repeat(publish, stop) and kind == "keep":
                self.stored.add(job)

    def handle(self, stop: threading.Event) -> None:
        """Handle jobs, some of them later, and purge the others when no message waits for its end."""
        # This thread alone fetches, so nothing is delivered between the check of a purge and the purge. After a crash
        # the server may forget pending messages all the same; they are found, and freed as workers do it.
        rounds = 0
        while not stop.is_set():
            rounds += 1
            try:
                with self._recorder.within("fetch W", 0.5, "fetching"):
                    messages = self._consumer.fetch(20, timeout=0.5)
                for msg in messages:
                    # Not always, so that there are times at which nothing waits.
                    if rounds % 10 < 5 and self._rng.random() < 0.2:
                        msg.nak(delay=0.3)
                    else:
                        self.handled.add(msg.data.decode())  # an ack may arrive although it fails
                        msg.ack_sync(timeout=_TIMEOUT_S)
                if not messages and self._consumer.stranded() is not None:
                    self._stream.delete_consumer("work")
                    self._stream.create_consumer(durable_name="work", ack_wait=2)
                    self.freed += 1
                if rounds % _PURGE_EVERY == 0:
                    self.purged += self._stream.purge(subject="W.drop")
            except PendingAcksError:
                self.refused += 1
            except NotFoundError:  # it was deleted, and creating it failed
                with suppress(Error):
                    self._stream.create_consumer(durable_name="work", ack_wait=2)
            except Error as error:
                check_alive(error)
                time.sleep(0.05)

    def is_done(self) -> bool:
        """Return whether each job that must be handled is."""
        return self.stored <= self.handled

    def judge(self, raw: RawClient) -> None:
        """Complain of jobs that are stored and not handled."""
        left = raw.api(f"STREAM.INFO.{_WORK}", subjects_filter="W.keep")["state"]
        missing = sorted(self.stored - self.handled)
        if missing:
            self._recorder.complain(f"{len(missing)} jobs were not handled: {missing[:5]}, {left}")


class Count:
    """A counter with one writer, which repeats what fails with the same id."""

    def __init__(self, nc: Connection, recorder: Recorder, rng: random.Random) -> None:
        js = nc.jetstream(timeout=20 * SCALE)
        #: Servers before 2.12 have no counters.
        self.is_known: bool = [*map(int, nc.server_info.version.split(".")[:2])] >= [2, 12]
        if self.is_known:
            js.create_stream(
                name=_COUNTERS, subjects=["N.*"], allow_msg_counter=True, allow_direct=True
            )
            self._counters = nc.jetstream(timeout=_TIMEOUT_S).counters(_COUNTERS)
        self._recorder = recorder
        self._rng = rng
        self.total = 0

    def run(self, stop: threading.Event, give_up: threading.Event) -> None:
        """Add, subtract, and set to 0, until ``stop`` is set."""
        number = 0
        while self.is_known and not stop.wait(0.02):
            number += 1
            value = self._rng.randint(-5, 20)
            if number % _RESET_EVERY == 0:
                done, value = _repeat(lambda: self._counters.reset("N.a"), give_up), -self.total
            else:
                done = _repeat(
                    lambda number=number, value=value: self._counters.add(
                        "N.a", value, msg_id=f"add-{number}"
                    ),
                    give_up,
                )
            if done:
                self.total += value

    def judge(self, raw: RawClient) -> None:
        """Compare the total in the stream with what was added."""
        if not self.is_known:
            return
        last = raw.api(f"STREAM.MSG.GET.{_COUNTERS}", last_by_subj="N.a")["message"]
        total = int(json.loads(base64.b64decode(last["data"]))["val"])
        if total != self.total:
            self._recorder.complain(f"the counter is {total} instead of {self.total}")
