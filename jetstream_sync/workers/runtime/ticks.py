"""
Ticks: the calls that the schedules of tasks make; which of them run, and when.

Rules:

1. A tick that has been delivered before may have started: it is run like any other call, until it has succeeded
   or is a dead letter. One that was parked without a run has not.
2. With ``missed="last"``, a tick that is delivered for the first time is skipped if a newer one of its schedule
   was stored. The newest one is never skipped for that.
3. Without ``overlap``, a run holds the lease of its schedule. A tick that finds it taken is skipped if rule 2
   permits that, because the schedule has run since the tick before it; otherwise it waits in its thread. The lease
   is a key of a bucket, and expires if its process stops.
4. Nothing is deleted from the stream: a purge by subject, or a rollup, would make the server forget other messages
   of the consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ... import errors
from ..call_messages import SCHEDULE_HEADER, CallAddress, first_stored_ns
from ..schedules import LEASE_S
from ..source import Queue, TickRule
from ..verdicts import LOST, SKIPPED, Verdict, not_started

if TYPE_CHECKING:
    from ... import KeyValue, Lock, Stream
    from ..context import Publishing
    from ..deliveries import LeasedMessage
    from ..openers import BucketOpener

#: Time of one attempt to get a lease that another run has, in seconds: the worker may have to stop.
_WAIT_S: Final = 1.0


class Ticks:
    """
    Admits the ticks of the tasks of a queue.

    Args:
        js: the JetStream context of the worker.
        queue: the queue.
        is_stopping: returns whether the worker is stopping.
        leases: opens the bucket of the leases.

    """

    def __init__(
        self, js: Publishing, queue: Queue, is_stopping: Callable[[], bool], leases: BucketOpener
    ) -> None:
        self._js = js
        self._queue = queue
        self._is_stopping = is_stopping
        self._leases = leases
        self._stream: Stream | None = None

    def rule_of(self, delivery: LeasedMessage, task: str) -> TickRule | None:
        """Return the rule of a call of a task that a schedule has made; ``None``: there is none here."""
        if not self._queue.ticks:
            return None
        msg = delivery.msg
        found = self._queue.ticks.get((task, CallAddress(msg.subject).token))
        return found if found is not None and SCHEDULE_HEADER in (msg.headers or {}) else None

    def admit(self, delivery: LeasedMessage, rule: TickRule) -> tuple[Verdict | None, Lock | None]:
        """
        Return what follows for a tick that is not run now, ``None`` if it is run, and the lease that it holds then.

        A tick that was parked may hide a newer one: then both run. Raises `Error` if the server does not tell.
        """
        may_skip = rule.missed == "last" and delivery.attempt == 1
        if may_skip and self._has_newer(delivery):
            return SKIPPED, None
        if rule.overlap:
            return None, None
        return self._leases.use(
            lambda opened: self._acquire(opened[0], delivery, may_skip=may_skip)
        )

    def _acquire(
        self, bucket: KeyValue, delivery: LeasedMessage, *, may_skip: bool
    ) -> tuple[Verdict | None, Lock | None]:
        """Wait for the lease of a schedule; return as `admit`."""
        # The name of a worker may have letters that a key must not have.
        key = quote(delivery.msg.subject, safe="").replace("%", "=")
        lease = bucket.lock(key, ttl=LEASE_S)
        while not lease.acquire(0 if may_skip else _WAIT_S):
            if may_skip:
                return SKIPPED, None
            if self._is_stopping():
                return not_started(self._queue), None
            if delivery.is_lost():
                return LOST, None
        return None, lease

    def _has_newer(self, delivery: LeasedMessage) -> bool:
        subject, where = delivery.msg.subject, delivery.metadata
        if self._stream is None:
            self._stream = self._js.get_stream(self._queue.stream)
        try:
            last = self._stream.get_msg(last_by_subject=subject, consistent=True)
        except errors.MessageNotFoundError:
            return False
        # By time: sequences repeat in a stream that is restored. Read each time: a clock that is set back would make
        # an older tick newer than all that follow.
        stored = first_stored_ns(delivery.msg, where.stream, where.timestamp_ns)
        return first_stored_ns(last, self._queue.stream, last.time_ns) > stored
