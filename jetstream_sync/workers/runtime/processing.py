"""
Processing of messages: running their handler, and what follows from its outcome for each of them.

The calling thread is a handler thread. It does not wait for settlements, only for the copy of a dead
letter: a message is terminated after its copy is stored.

Retries after long delays, and messages for another process, are parked: they wait as schedules in the stream,
not in the consumer (ADR-51).

1. The schedule is stored before the message is acknowledged. Its subject is made from the sequence of the
   message: when the acknowledgement is lost, the next delivery replaces it.
2. Headers carry the number of attempts, and id and time of the first message; see `call_messages`. A message that
   was not run has used no attempt.
3. Only work queues: in other streams, other consumers would receive the message again. There, a message is
   returned instead, and the server counts an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from ... import codec, errors
from ...locks import new_lock
from ...options import check_returned
from ..call_messages import (
    ATTEMPT_HEADER,
    ORIGIN_HEADER,
    STORED_HEADER,
    SUBJECT_HEADER,
    UNFIT_HEADER,
    CallAddress,
    first_stored_ns,
    parked_origin,
    parked_subject,
    shares_subject,
    unfit_since_ns,
)
from ..checks import unwrapped
from ..context import CallProgress, Context, ContextActions, Publishing, RunState
from ..dead_letters import DeadLetterTarget, DeadLetterWriter, copied_headers, one_line
from ..deliveries import (
    REPLY_TO,
    LeasedMessage,
    LeaseKeeper,
    Reply,
    Settlements,
    Settler,
    lease_clock,
    log_context,
    stored_ns,
)
from ..errors import (
    BatchError,
    DecodeError,
    Reject,
    Retry,
    StateUnknownError,
    may_fit_elsewhere,
    state_unknown,
)
from ..flows import planned_members
from ..limits import CircuitBreaker, Limit, SharedLimit, SharedLimits, SoftTimeouts
from ..logs import log, without_own_frames
from ..observer import Observer, WorkObserver
from ..retries import MAX_EXTRA_DELIVERIES
from ..source import (
    Handler,
    Middleware,
    Queue,
    Source,
    TickRule,
    Work,
    end_fork,
    forks,
    run_inside,
)
from ..steps import Steps, Suspended
from ..tracing import traced
from ..unique import Once
from ..verdicts import (
    ACKED,
    LOST,
    SETTLED,
    FailedAttempt,
    Verdict,
    VerdictAction,
    buried,
    not_buried,
    postponed,
    unknown_task_verdict,
    verdict_of,
)
from .ticks import Ticks

if TYPE_CHECKING:
    from ... import JetStream
    from ..openers import BucketOpener
    from .processes import HandlerProcesses

P = ParamSpec("P")

#: Timeout of the confirmation before a handler with ``ack="before"`` runs, in seconds.
_ACK_TIMEOUT_S: Final = 5.0
#: Timeout of parking a message, in seconds, and of giving back those that are not started.
_PARK_TIMEOUT_S: Final = 5.0
GIVE_BACK_S: Final = 1.0
#: Shortest interval at which the progress of a run is stored, in seconds.
_PROGRESS_S: Final = 1.0
#: Number of returned messages that are remembered, see `Returned`.
_MAX_RETURNED: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a processor of messages uses of the worker."""

    js: Publishing
    settlements: Settler
    middleware: Sequence[Middleware]
    """Wraps each run of a handler, the first one outermost."""
    observer: Observer
    is_stopping: Callable[[], bool]
    """Returns whether the worker is stopping."""
    on_fatal: Callable[[BaseException], object]
    """Called with an error that must end the worker."""
    has_committed: Callable[[Context], bool]
    """As `Worker.has_committed`."""
    dead_letters: Callable[[DeadLetterTarget], DeadLetterWriter]
    """Returns what stores dead letters."""
    has_peers: bool = True
    """Whether processes of other versions may take what does not fit this one."""
    soft_timeouts: SoftTimeouts = field(default_factory=SoftTimeouts)


@dataclass(frozen=True, kw_only=True)
class Shared(Parts):
    """What all handlers of a running worker have in common."""

    js: JetStream
    settlements: Settlements
    keeper: LeaseKeeper
    on_change: Callable[[], object]
    """Called when the worker may have become idle."""
    on_thread_end: Callable[[], object]
    """Called at the end of each thread that runs handlers, in that thread."""
    limits: Mapping[str, Limit]
    shared_limits: SharedLimits
    leases: BucketOpener
    """Opens the bucket of the leases of schedules."""
    process_setup: str
    """As `Worker.process_setup`."""


class Returned:
    """Remembers the messages that this process has returned, with a number for each; the oldest are forgotten."""

    def __init__(self) -> None:
        self._lock = new_lock()
        # The number of the delivery and the given number, by creation time of the stream and sequence.
        self._known: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, delivery: LeasedMessage, number: int = 0) -> None:
        """Remember a message that is returned."""
        key = delivery.origin.generation, delivery.metadata.stream_seq
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = delivery.lease.delivered, number
            if len(self._known) > _MAX_RETURNED:
                del self._known[next(iter(self._known))]

    def find(self, delivery: LeasedMessage) -> int | None:
        """Return the number of a message if this process has returned its last delivery; ``None``: it has not."""
        key = delivery.origin.generation, delivery.metadata.stream_seq
        delivered, number = self._known.get(key, (-1, 0))
        return number if delivered == delivery.lease.delivered - 1 else None

    @property
    def is_full(self) -> bool:
        """Whether messages have been forgotten."""
        return len(self._known) == _MAX_RETURNED


class Outcomes:
    """Performs the verdicts on the messages for one work, and counts them; several threads call it at a time."""

    def __init__(
        self, work: Work, source: Source, shared: Parts, state: RunState | None = None
    ) -> None:
        self._work = work
        self._source = source
        self._shared = shared
        target = source.dead_letters
        self._dead_letters = None if target is None else shared.dead_letters(target)
        self.observer: WorkObserver = shared.observer.of(work)
        #: Pauses the source while all messages fail; a queue and its tasks share it.
        self.breaker: CircuitBreaker = CircuitBreaker(work.name, source.concurrency)
        self._state = state or (
            work.state if work.once is None else Once(shared.js.key_value(work.once))
        )
        # The messages that failed here.
        self._failed = Returned()
        #: The messages that do not fit, with the time since when, in nanoseconds; a queue and its tasks share them.
        self.unfit: Returned = Returned()

    def happened_here(self, delivery: LeasedMessage) -> bool:
        """Return whether this process returned the message after its last attempt, which it survived."""
        return self._failed.find(delivery) is not None

    def message_id(self, delivery: LeasedMessage) -> str:
        """Return the id of a message, the same in each attempt; see `Context.id`."""
        where = delivery.metadata
        domain = f"{where.domain}/" if where.domain else ""
        start = f"{domain}{where.stream}/{where.consumer}/"
        parked = parked_origin(delivery.msg, start)
        return parked or f"{start}{where.stream_seq}/{delivery.origin.generation}"

    def decide(self, delivery: LeasedMessage, error: BaseException) -> Verdict:
        """Return what follows for a message whose attempt has failed."""
        failed = FailedAttempt(
            error,
            delivery.attempt,
            delivery.slept,
            has_key=delivery.failure is None,
            is_settled=delivery.is_settled,
            is_lost=delivery.is_lost(),
            unfit_s=self._unfit_s(delivery) if self._shared.has_peers else math.inf,
        )
        return verdict_of(failed, self._work, self._source)

    def failed(
        self,
        delivery: LeasedMessage,
        error: BaseException,
        verdict: Verdict | None = None,
        *,
        traceback: bool = True,
    ) -> float | None:
        """
        Retry a failed message, or give it up; return the delay of a retry in place.

        ``verdict`` is what was decided before the failure was recorded; ``None``: it is not recorded.
        """
        # Recording takes time: meanwhile the lease may be lost, or a stop may have returned the message.
        if verdict is None or delivery.is_settled or delivery.is_lost():
            verdict = self.decide(delivery, error)
        if isinstance(error, MemoryError):
            self._shared.on_fatal(error)
        if verdict.is_fault:
            self.breaker.failed()
        self._log(delivery, error, verdict, traceback=traceback)
        return self.perform(delivery, verdict, error)

    def _log(
        self, delivery: LeasedMessage, error: BaseException, verdict: Verdict, *, traceback: bool
    ) -> None:
        what = f"{self._work.name}: attempt {delivery.attempt} of {self._work.retry.attempts}"
        # The text of these says it all, unless nothing follows from them.
        plain = isinstance(error, (Reject, Retry, DecodeError)) and verdict not in {SETTLED, LOST}
        logged = without_own_frames(error) if traceback and not plain else None
        if verdict is SETTLED:
            log.error("%s: %r was settled, then failed", what, delivery, exc_info=logged)
        elif verdict is LOST:
            log.warning("%s: %r failed after its lease was lost", what, delivery, exc_info=logged)
        elif verdict.action is VerdictAction.BURY:
            log.error("%s: %r is given up: %s", what, delivery, verdict.reason, exc_info=logged)
        elif verdict.outcome == "given_back":
            text = "%s: %r does not fit this process, and is given back for %g s: %s"
            log.warning(text, what, delivery, verdict.delay, one_line(error))
        elif isinstance(error, Retry):
            text = "%s: %r is retried in %g s: %s"
            log.info(text, what, delivery, verdict.delay, one_line(error))
        else:
            text = "%s: %r failed and is retried in %g s"
            log.warning(text, what, delivery, verdict.delay, exc_info=logged)

    def end(self, delivery: LeasedMessage, verdict: Verdict) -> None:
        """Perform a verdict on a message that is not run, unless an earlier run has ended it."""
        try:
            has_ended = self._state.has_ended(self.message_id(delivery), delivery.msg)
        except errors.Error as error:
            delivery.failure = state_unknown("the state cannot be read", error)
            self.failed(delivery, delivery.failure)
            return
        self.perform(delivery, ACKED if has_ended else verdict)

    def perform(
        self, delivery: LeasedMessage, verdict: Verdict, error: BaseException | None = None
    ) -> float | None:
        """Do what was decided about a message, and count it; return the delay of a retry in place."""
        action, settlements = verdict.action, self._shared.settlements
        if action is VerdictAction.PARK and not (
            delivery.origin.parks and self._park(delivery, verdict)
        ):
            action = VerdictAction.RETURN
        elif action is VerdictAction.BURY:
            failure = self._bury(delivery, verdict.reason, error)
            if failure is not None:
                verdict = failure
                action = verdict.action
        is_new = True
        if action is VerdictAction.REPEAT:
            delivery.slept += verdict.delay
        elif action is VerdictAction.RETURN:
            if verdict.outcome == "retry" or error is not None:
                self._failed.add(delivery)
            unfit = self._unfit_until_now(delivery, verdict)
            if unfit:
                self.unfit.add(delivery, unfit)
            is_new = settlements.nak(delivery, verdict.delay)
        elif action is VerdictAction.BURY:
            is_new = settlements.term(delivery, verdict.reason)
        elif action is not VerdictAction.NOTHING:
            confirm = action is VerdictAction.PARK or self._source.confirm
            is_new = settlements.ack(delivery, confirm=confirm)
        if is_new:
            self.observer.settled(delivery, verdict, error)
        return verdict.delay if action is VerdictAction.REPEAT else None

    def _unfit_ns(self, delivery: LeasedMessage) -> int:
        """Return when a message was first given back because it does not fit, in nanoseconds; 0: it was not."""
        if delivery.lease.delivered == 1:
            return unfit_since_ns(delivery.msg)
        # Unless this process has returned it last, another one may have run it.
        return self.unfit.find(delivery) or 0

    def _unfit_s(self, delivery: LeasedMessage) -> float:
        """Return the seconds since a message was first given back because it does not fit; 0: it was not."""
        since, is_first = self._unfit_ns(delivery), delivery.lease.delivered == 1
        is_forgotten = not since and not is_first and self.unfit.is_full
        if is_forgotten or not delivery.origin.parks:
            since = stored_ns([delivery.msg])[0]  # nothing tells when it was given back
        if since:
            return max(0.0, (delivery.server_ns() - since) / 1e9)
        # Other processes may return a message again and again without a run.
        most = self._work.retry.attempts + MAX_EXTRA_DELIVERIES
        return 0.0 if is_first or delivery.attempt <= most else math.inf

    def _unfit_until_now(self, delivery: LeasedMessage, verdict: Verdict) -> int:
        """Return since when a message that is given back has not fit, in nanoseconds; 0: it fits."""
        if verdict.outcome != "given_back" or not delivery.origin.parks:
            return 0
        return self._unfit_ns(delivery) or (delivery.server_ns() if verdict.reason else 0)

    def _park(self, delivery: LeasedMessage, verdict: Verdict) -> bool:
        """Have the server publish the message again after a long delay; return whether it will."""
        where, msg = delivery.metadata, delivery.msg
        message_id = self.message_id(delivery)
        headers = copied_headers(msg)
        headers[ATTEMPT_HEADER] = str(delivery.attempt - (verdict.outcome == "given_back"))
        headers[ORIGIN_HEADER] = message_id
        now = delivery.server_ns()
        headers[STORED_HEADER] = str(first_stored_ns(msg, where.stream, where.timestamp_ns))
        headers[SUBJECT_HEADER] = msg.subject
        unfit = self._unfit_until_now(delivery, verdict)
        if unfit:
            headers[UNFIT_HEADER] = str(unfit)
        schedule = parked_subject(where.stream, f"{where.consumer}.{where.stream_seq}")
        if self._work.is_call and not shares_subject(msg):
            # As a later call, which can be found and cancelled.
            schedule = CallAddress(msg.subject).later
        at = datetime.fromtimestamp(now / 1e9, timezone.utc) + timedelta(seconds=verdict.delay)
        try:
            self._shared.js.schedule(
                schedule,
                msg.data,
                target=msg.subject,
                at=at,
                headers=headers,
                msg_id=f"parked:{message_id}:{where.stream_seq}:{delivery.attempt}",
                timeout=_PARK_TIMEOUT_S if verdict.delay else GIVE_BACK_S,
            )
        except errors.Error as error:
            text = "%s: %r is not parked, it waits in the consumer: %s"
            log.warning(text, self._work.name, delivery, error)
            return False
        return True

    def _bury(
        self, delivery: LeasedMessage, reason: str, error: BaseException | None
    ) -> Verdict | None:
        """Store a dead letter; return what follows if that fails."""
        name = self._work.name
        try:
            if self._dead_letters is None:
                log.error("%s: %r is dropped: %s", name, delivery, reason)
            else:
                kind = "" if error is None else type(error).__name__
                self._dead_letters.write(delivery, self.message_id(delivery), reason, kind)
            self._state.give_up(delivery.msg, reason)
        except Exception as failure:  # noqa: BLE001 - also one of the function for the subject
            unfit_s, grace = self._unfit_s(delivery), self._source.grace
            if may_fit_elsewhere(failure) and unfit_s >= grace:
                log.error("%s: %r is given up: %s", name, delivery, one_line(failure))  # noqa: TRY400
                return None
            verdict = not_buried(failure, delivery.attempt, self._work.retry, unfit_s, grace)
            self.observer.count("dead_letter_failures")
            log.error(  # noqa: TRY400 - the text of the error says it all
                "%s: %r could not be given up, trying again in %g s: %s",
                name,
                delivery,
                verdict.delay,
                f"{type(failure).__name__}: {one_line(failure)}",
            )
            return verdict
        return None


class Processor(Outcomes):
    """Processes the messages for one work; several threads call it at a time."""

    #: Has a thread process a delivery again that has waited for a limit; set by the router of a queue.
    run_again: Callable[[LeasedMessage], object]

    def __init__(
        self,
        work: Work,
        source: Source,
        shared: Parts,
        processes: HandlerProcesses | None = None,
        state: RunState | None = None,
    ) -> None:
        super().__init__(work, source, shared, state)
        self._processes = processes
        self._settlements = shared.settlements
        self._timeout = work.timeout
        self._confirm = source.confirm
        self._hooks = shared.observer.hooks
        self._max_deliveries = work.retry.attempts + MAX_EXTRA_DELIVERIES
        # The last delivery of which only the lease is checked before it runs. Attempts before parking are not
        # checked here: a message that was parked runs once more before it is given up.
        self._unchecked = MAX_EXTRA_DELIVERIES
        if source.key is not None or source.ack != "after":
            self._unchecked = 0
        self._forks = len(forks)
        # Runs the work in this process, inside the middleware: with a context; or without, if nothing needs one.
        self._run = self._soft_timed(
            lambda context: run_inside(shared.middleware, work.run, context, context=context)
        )
        is_plain = type(self._state) is RunState and not work.soft_timeout
        needs_context = not is_plain or processes is not None or shared.middleware
        self._of_payload = None if needs_context else work.of_payload
        self._actions = ContextActions(
            work,
            self.message_id,
            traced(shared.js.publish),
            shared.is_stopping,
            self._ack_early,
            self._progress,
            partial(Steps, ask=self._state.ask, plan=planned_members),
        )

    def _progress(self, delivery: LeasedMessage, progress: CallProgress) -> None:
        """Note how far a run is, and store that from time to time."""
        delivery.progress, now = progress, lease_clock()
        if now >= delivery.stored_at + _PROGRESS_S:
            delivery.stored_at = now
            with suppress(errors.Error):
                self._state.progress(delivery.msg, progress)

    def process(self, delivery: LeasedMessage, now: float) -> float:
        """
        Run the handler for a message, and settle it; return the time of the lease clock.

        `LeasedMessage.retry_in` is set if the thread has to run it again.
        """
        log_context.set(delivery)
        lease = delivery.lease
        if (now >= lease.lost_at or lease.delivered > self._unchecked) and not self._may_run(
            delivery, now
        ):
            return lease_clock()
        delivery.thread = get_ident()
        delivery.give_up_at = now + self._timeout
        delivery.started_at = now
        if self._hooks:
            self.observer.started(delivery)
        context = None
        try:
            if self._of_payload is not None:
                returned = self._of_payload(delivery.msg.data)
            else:
                context = Context(delivery, self._actions)
                returned = self._call(delivery, context)
            if returned is not None:
                if isinstance(returned, Reply):
                    self._reply(delivery, returned)
                else:
                    check_returned(returned, done=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the attempt has failed
            end_fork(self._forks, 1)
            delivery.give_up_at = math.inf
            self.observer.ended([delivery])
            verdict = None if context is None else context.verdict
            delivery.retry_in = self.failed(delivery, error, verdict)
            return lease_clock()
        if len(forks) != self._forks:
            end_fork(self._forks)
        if self.breaker.has_failures:
            self.breaker.succeeded()
        if self._settlements.ack(delivery, confirm=self._confirm) or (
            context is not None and context.acked
        ):
            return self.observer.handled(delivery)
        self.observer.ended([delivery])
        return lease_clock()

    def process_batch(self, deliveries: Sequence[LeasedMessage]) -> None:
        """Run the handler for the messages that can be handled, and settle all."""
        work = self._work
        assert isinstance(work, Handler), "tasks have no batches"
        batch: list[Context] = []
        payloads: list[object] = []
        held: list[LeasedMessage] = []
        now = lease_clock()
        for delivery in deliveries:
            log_context.set(delivery)
            if not self._may_run(delivery, now):
                continue
            try:
                payloads.append(work.decoded(delivery.msg.data))
            except DecodeError as error:
                self.failed(delivery, error)
                continue
            batch.append(Context(delivery, self._actions))
            held.append(delivery)
        if not batch:
            return
        now = lease_clock()
        give_up_at = now + self._timeout
        for delivery in held:
            delivery.thread = get_ident()
            delivery.give_up_at = give_up_at
            delivery.started_at = now
            self.observer.started(delivery)
        log_context.set(held[0])
        failed: Mapping[int, BaseException] = {}
        alone = True
        try:
            batch[0].batch = [delivery.msg for delivery in held]
            run = partial(run_inside, self._shared.middleware, work.run_decoded)
            self._soft_timed(run)(payloads, batch, context=batch[0])
        except BatchError as error:
            wrong = sorted(set(error.errors) - set(range(len(batch))))
            failed = error.errors
            if wrong:
                text = f"{wrong[0]} in a BatchError is no index of a batch of {len(batch)} messages"
                failed = dict.fromkeys(range(len(batch)), IndexError(text))
        except BaseException as error:
            alone = False
            log.warning("%s: a batch of %d failed", self._work.name, len(batch), exc_info=error)
            failed = dict.fromkeys(range(len(batch)), error)
        for delivery in held:
            delivery.give_up_at = math.inf
        self.observer.ended(held)
        for index, (delivery, context) in enumerate(zip(held, batch, strict=True)):
            log_context.set(delivery)
            cause = failed.get(index)
            if cause is not None:
                self.failed(delivery, cause, traceback=alone)
            else:
                if self.breaker.has_failures:
                    self.breaker.succeeded()
                if self._ack(delivery) or context.acked:
                    self.observer.settled(delivery, ACKED)

    def _may_run(self, delivery: LeasedMessage, now: float) -> bool:
        """Return whether a message is run; else it is settled or lost."""
        if now >= delivery.lease.lost_at:
            self.perform(delivery, LOST)
            return False  # it is delivered again
        if delivery.attempt > self._max_deliveries:
            # Its attempts ended without a reply: the processes were killed, or the leases were lost.
            reason = f"delivered {delivery.attempt} times, not started here"
            self.end(delivery, buried(reason))
            return False
        if delivery.failure is not None:
            self.failed(delivery, delivery.failure)  # never retried in place
            return False
        return self._source.ack != "before" or self._ack_before(delivery)

    def _soft_timed(self, function: Callable[P, object]) -> Callable[P, object]:
        """Return a function with the ``soft_timeout``, if there is one."""
        seconds, limits = self._work.soft_timeout, self._shared.soft_timeouts
        if seconds is None:
            return function

        def limited(*args: P.args, **kwargs: P.kwargs) -> object:
            return limits.run(seconds, partial(function, *args, **kwargs))

        return limited

    def _call(self, delivery: LeasedMessage, context: Context) -> object:
        """
        Run the handler, in its process if it has one, unless its state shows that it must not run.

        This is the order of a run: its begin is recorded, the middleware opens, the function runs, its return
        value is encoded and measured, the middleware closes (and commits), and the state is stored. The message
        is acknowledged after that.
        """
        state = self._state
        if not state.begin(context):
            return None
        try:
            returned = self._run_anew(delivery, context)
            if not isinstance(returned, Reply):
                check_returned(returned, done=True)
        except Suspended as wait:
            state.suspend(context, wait)
            return None
        except BaseException as error:
            verdict = self.decide(delivery, error)
            if state.failed(context, error, is_last=verdict.is_last):
                log.exception("%s: %r has failed", self._work.name, delivery)
                return None
            # Not before the state is stored: if that fails, it is decided again, for that error.
            context.verdict = verdict
            raise
        state.done(context)
        return returned

    def _run_anew(self, delivery: LeasedMessage, context: Context) -> object:
        """Run the handler; an error after its commit, as in an on_commit hook, is logged, and the run counts."""
        try:
            if self._processes is None:
                return self._run(context)
            ack = partial(self._ack_early, delivery, context)
            return self._processes.run(self._work, delivery, context, ack)
        except BaseException as error:
            if not self._shared.has_committed(context):
                raise
            if isinstance(error, MemoryError):
                self._shared.on_fatal(error)
            log.exception("%s: %r has committed, and failed after that", self._work.name, delivery)
            return None

    def _ack(self, delivery: LeasedMessage) -> bool:
        """Acknowledge a message; return whether it was not settled before."""
        return self._shared.settlements.ack(delivery, confirm=self._confirm)

    def _ack_early(self, delivery: LeasedMessage, context: Context | None = None) -> bool:
        """Acknowledge a message whose handler goes on, and note that in a context; as `_ack`."""
        acked = self._ack(delivery)
        self._shared.settlements.send_acks()
        if context is not None and acked:
            context.acked = True
        return acked

    def _ack_before(self, delivery: LeasedMessage) -> bool:
        """Acknowledge a message before its handler runs; return whether it may run."""
        if not self._confirm:
            return self._ack_early(delivery)
        if not self._shared.settlements.claim(delivery):
            return False
        try:
            delivery.msg.ack_sync(_ACK_TIMEOUT_S)
        except errors.Error as error:
            text = "%s: %r is not run: its acknowledgement was not confirmed: %s"
            log.error(text, self._work.name, delivery, error)  # noqa: TRY400
            self.perform(delivery, LOST, error)
            return False
        if delivery.is_lost():
            # The server may have delivered it again before the acknowledgement came.
            log.error("%s: %r is not run: its lease is lost", self._work.name, delivery)
            self.perform(delivery, LOST)
            return False
        return True

    def _reply(self, delivery: LeasedMessage, reply: Reply) -> None:
        """Send a reply to the subject that the publisher of the message named."""
        headers = delivery.msg.headers
        subject = None if headers is None else headers.get(REPLY_TO)
        if subject is None:
            return
        # The publisher must not use the permissions of the worker for requests to the server.
        problem = "subjects of the server are refused" if subject.startswith("$") else ""
        if not problem:
            try:
                self._shared.settlements.reply(subject, reply)
            except Exception as error:  # noqa: BLE001 - another run would repeat what has succeeded
                problem = f"{type(error).__name__}: {one_line(error)}"
        if problem:
            log.error("%s: no reply was sent for %r: %s", self._work.name, delivery, problem)


class LimitedProcessor(Processor):
    """Processes the calls of a task with a limit of all processes."""

    _shared: Shared

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unchecked = 0

    def process(self, delivery: LeasedMessage, now: float) -> float:
        """Process a call; as `Processor.process`."""
        try:
            return super().process(delivery, now)
        finally:
            limit, delivery.limit = delivery.limit, None
            if limit is not None:
                limit.end(lease_clock() - now)
                self._shared.shared_limits.leave(limit)

    def _may_run(self, delivery: LeasedMessage, now: float) -> bool:
        """Return whether a call is run; one that has to wait for the limit is sent again later."""
        if not super()._may_run(delivery, now):
            return False
        use = self._work.shared_limit
        assert use is not None
        try:
            key = use.key_of(delivery.msg.data)
        except Exception as error:  # noqa: BLE001 - a function of the user: the attempt has failed
            self.failed(delivery, error)
            return False
        limits = self._shared.shared_limits
        limit = limits.enter(use.rule, key)
        if limit.begin():
            delivery.limit = limit
            return True
        delivery.waits = True
        delay = limit.wait(partial(self._resume, delivery, limit))
        if delay is not None:
            delivery.waits = False
            limits.leave(limit)
            self.perform(delivery, postponed(delay))
        return False

    def _resume(self, delivery: LeasedMessage, limit: SharedLimit) -> None:
        """Have a thread process a call again that has waited."""
        self._shared.shared_limits.leave(limit)
        self.run_again(delivery)


class Router(Outcomes):
    """
    Processes the calls of a queue: each one by the processor of its task.

    A call of an unknown task is given back for ``unknown_task_grace``, because a rolling deploy may bring a
    process that knows the task, and is a dead letter afterwards.
    """

    def __init__(
        self,
        queue: Queue,
        shared: Shared,
        processes: HandlerProcesses | None,
        run_again: Callable[[LeasedMessage], object],
    ) -> None:
        super().__init__(queue.unknown, queue, shared)
        self.observer: WorkObserver = shared.observer.of(queue)
        self._queue = queue
        #: Number of deliveries of calls of unknown tasks, by task.
        self.unknown_tasks: dict[str, int] = {}
        self._tasks = {
            name: (LimitedProcessor if work.shared_limit else Processor)(
                work, queue, shared, processes
            )
            for name, work in queue.tasks.items()
        }
        for processor in self._tasks.values():
            processor.unfit, processor.breaker = self.unfit, self.breaker
            processor.run_again = run_again
        # The modules of the tasks, as in their names, and those that were reported as unknown.
        self._modules = {
            unwrapped(work.function).__module__.replace(".", "-") for work in queue.works
        }
        self._ticks = Ticks(shared.js, queue, shared.is_stopping, shared.leases)

    def happened_here(self, delivery: LeasedMessage) -> bool:
        """As `Outcomes.happened_here`."""
        found = self._tasks.get(CallAddress(delivery.msg.subject).task)
        return super().happened_here(delivery) if found is None else found.happened_here(delivery)

    def process(self, delivery: LeasedMessage, now: float) -> float:
        """Process a call; as `Processor.process`."""
        task = CallAddress(delivery.msg.subject).task
        processor = self._tasks.get(task)
        if processor is None:
            self._process_unknown(delivery, task)
            return lease_clock()
        delivery.handler = delivery.task = task
        delivery.observer = processor.observer
        rule = self._ticks.rule_of(delivery, task)
        if rule is None:
            return processor.process(delivery, now)
        self._process_tick(delivery, rule, processor)
        return lease_clock()

    def _process_tick(self, delivery: LeasedMessage, rule: TickRule, processor: Processor) -> None:
        """Process a call that a schedule has made, if it may run now."""
        try:
            verdict, lease = self._ticks.admit(delivery, rule)
        except errors.Error as error:
            delivery.failure = StateUnknownError(
                f"the server does not tell whether it may run: {error}"
            )
            processor.failed(delivery, delivery.failure)
            return
        if verdict is not None:
            processor.perform(delivery, verdict)
            return
        try:
            processor.process(delivery, lease_clock())
        finally:
            if lease is not None:
                with suppress(errors.Error):  # it expires
                    lease.release()

    def _process_unknown(self, delivery: LeasedMessage, task: str) -> None:
        queue, grace = self._queue, self._queue.grace
        name = codec.encodable(task)  # it is reported as JSON
        module = task.rpartition("-")[0]
        if module and module not in self._modules:
            self._modules.add(module)
            text = (
                "queue %s: calls of the module %r arrive at %s, and no task here is of that module: does another "
                "program have the same name?"
            )
            where = queue.filter_subjects[0]
            log.error(text, queue.name, codec.encodable(module), where)
        if name not in self.unknown_tasks:
            text = "queue %s: a call of the unknown task %r is given back for %g s"
            log.error(text, queue.name, task, grace)
        self.unknown_tasks[name] = self.unknown_tasks.get(name, 0) + 1
        self.observer.count("unknown_tasks")
        verdict = unknown_task_verdict(task, self._unfit_s(delivery), grace)
        if verdict.is_last:
            self.end(delivery, verdict)
        else:
            self.perform(delivery, verdict)
