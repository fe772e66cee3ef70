"""
Tests of handlers without a server.

`Worker.test_client` returns a `TestClient`. It processes a message as a running worker does, with the same
code, and records what the worker would send.
"""

from __future__ import annotations

import json
import math
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, cast

from .. import ConsumerConfig, Headers, JetStreamMsg, PubAck, errors
from ..lease_times import LeaseTimes
from .call_messages import payload_of
from .call_records import CallRecord
from .calls import (
    CallStates,
    NewCall,
    TaskState,
)
from .checks import check_option
from .context import CallProgress, Context, RunState
from .dead_letters import DeadLetterWriter
from .deliveries import (
    DeliveryState,
    Lease,
    LeasedMessage,
    Origin,
    lease_clock,
)
from .errors import CallEndedError
from .flows import Flows
from .observer import Observer
from .runtime.processing import Parts, Processor
from .source import Source
from .steps import StepStore, Suspended
from .tasks import Task
from .work import Work

if TYPE_CHECKING:
    from .options import DefinedWorker

P = ParamSpec("P")
R = TypeVar("R")

_CONSUMER_CONFIG: Final = ConsumerConfig(ack_wait=30)


@dataclass(frozen=True, kw_only=True)
class PublishedMessage:
    """A message that a handler, or the worker, would have published."""

    subject: str
    """The subject."""
    data: bytes
    """The payload."""
    headers: Headers
    """The headers; empty: none."""
    msg_id: str | None
    """The message id."""


@dataclass(kw_only=True)
class Outcome:
    """What a worker would do after one delivery of a message."""

    kind: str = "lost"
    """
    ``"ack"``: the handler has succeeded. ``"parked"``: its call waits, until the time ``delay`` if it has one, for a
    signal, or for other calls. ``"retry"``: the message would be delivered again. ``"dead"``: it
    would be terminated, after its dead letter was stored. ``"lost"``: nothing would be sent, because the
    lease is lost.
    """
    delay: float | None = None
    """The delay of a retry in seconds."""
    dead_letter: PublishedMessage | None = None
    """The dead letter; ``None``: there is none, or the handler has no stream for dead letters."""
    published: list[PublishedMessage] = field(default_factory=list)
    """What the handler has published with ``ctx.publish()``, in order."""
    error: BaseException | None = None
    """The error that the handler or the middleware raised."""
    reply: PublishedMessage | None = None
    """The `Reply` that would be sent."""
    result: object = None
    """The return value of the handler, after the middleware."""


class _PublishRecorder:
    """Takes the place of a JetStream context, and records what is published."""

    def __init__(self) -> None:
        self.published: list[PublishedMessage] = []
        #: The delay of the message that was parked last, in seconds; ``None``: none was.
        self.parked: float | None = None

    def schedule(self, _subject: str, _payload: bytes = b"", /, **options: Any) -> PubAck:
        """Record that a message is parked."""
        left = options["at"] - datetime.now(timezone.utc)
        self.parked = round(left.total_seconds(), 1)
        return PubAck("TEST", 1)

    def get_stream(self, name: str, /) -> NoReturn:
        """Return no stream: there is no server."""
        raise errors.StreamNotFoundError.found_here(f"a test client has no stream {name!r}")

    def key_value(self, bucket: str, /) -> NoReturn:
        """Return no bucket: there is no server."""
        raise errors.BucketNotFoundError.found_here(f"a test client has no bucket {bucket!r}")

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        /,
        *_args: Any,
        headers: Headers | Mapping[str, Any] | None = None,
        msg_id: str | None = None,
        stream: str | None = None,
        **_options: Any,
    ) -> PubAck:
        message = PublishedMessage(
            subject=subject, data=payload, headers=Headers(headers or {}), msg_id=msg_id
        )
        self.published.append(message)
        return PubAck(stream or "TEST", len(self.published))

    def of(self, delivery: LeasedMessage) -> list[PublishedMessage]:
        """Return what was published for a message, whose place is in the message ids."""
        where = delivery.metadata
        place = f"{where.stream}/{where.consumer}/{where.stream_seq}/"
        return [item for item in self.published if place in (item.msg_id or "")]


#: The outcomes of what a handler sends itself, by the verbs of ADR-15.
_KINDS: Final = {b"+ACK": "ack", b"-NAK": "retry", b"+TERM": "dead"}


class _RecordedMsg(JetStreamMsg):
    """A message without a connection: the outcome has what the handler sends itself."""

    __slots__ = ("_outcome",)

    def __init__(self, received: tuple[Any, ...], outcome: Outcome) -> None:
        super().__init__(cast("Any", received), None)
        self._outcome = outcome

    def ack(self) -> None:
        self._settle(b"+ACK")

    def ack_sync(self, timeout: float | timedelta | None = None) -> None:
        del timeout
        self.ack()

    def in_progress(self) -> None:
        self._open()

    def _settle(self, payload: bytes, settled: bool | int = True) -> None:
        if self._open():
            verb, _, options = payload.partition(b" ")
            self._outcome.kind, self._outcome.delay = _KINDS[verb], None
            if verb == b"-NAK":
                self._outcome.delay = json.loads(options or b"{}").get("delay", 0) / 1e9
            self._settled = settled


class _SettlementRecorder:
    """A `Settler` that records settlements instead of sending them."""

    def __init__(self) -> None:
        self.replies: list[PublishedMessage] = []
        self.outcomes: dict[LeasedMessage, Outcome] = {}

    def claim(self, delivery: LeasedMessage) -> bool:
        before, delivery.state = delivery.state, DeliveryState.SETTLED
        return before is not DeliveryState.SETTLED

    def ack(self, delivery: LeasedMessage, *, confirm: bool) -> bool:
        del confirm
        return self._record(delivery, "ack")

    def nak(self, delivery: LeasedMessage, delay: float) -> bool:
        return self._record(delivery, "retry", delay)

    def term(self, delivery: LeasedMessage, reason: str) -> bool:
        del reason
        return self._record(delivery, "dead")

    def send_acks(self) -> None:
        """Send nothing: acknowledgements do not wait."""

    def reply(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None,
    ) -> None:
        message = PublishedMessage(
            subject=subject, data=payload, headers=Headers(headers or {}), msg_id=None
        )
        self.replies.append(message)

    def _record(self, delivery: LeasedMessage, kind: str, delay: float | None = None) -> bool:
        claimed = self.claim(delivery)
        if claimed and not delivery.msg.is_acked:
            self.outcomes[delivery].kind, self.outcomes[delivery].delay = kind, delay
        return claimed


class TestClient:
    """
    Delivers messages to the handlers of a worker without a server; `Worker.test_client` returns it.

    The middleware and the handler run in the calling thread.

    Args:
        worker: the worker.
        calls: the states of the calls of tasks; ``None``: each delivery has new ones.

    """

    #: Not a class of tests, for pytest.
    __test__: bool = False

    def __init__(self, worker: DefinedWorker, calls: MemoryCalls | None = None) -> None:
        self._calls = calls
        self._worker = worker
        self._delivered = 0
        # No other client uses the ids of these messages: an inbox may keep them.
        self._generation = uuid.uuid4().hex

    def deliver(
        self,
        handler: str | Work | Task[..., Any],
        payload: object = b"",
        *,
        subject: str | None = None,
        headers: Headers | Mapping[str, Any] | None = None,
        attempt: int = 1,
        lease_lost: bool = False,
        stopping: bool = False,
    ) -> Outcome:
        """
        Process one message as a running worker does; the bucket of ``once`` is not used.

        Args:
            handler: a handler or a task of the worker, or its name. The payload of a task is an object with
                ``args`` and ``kwargs``.
            payload: ``bytes`` as they are, ``str`` as UTF-8, everything else as JSON.
            subject: the subject of the message; ``None``: the first filter of the handler, with ``x`` in
                place of wildcards, or the name of the stream.
            headers: the headers of the message.
            attempt: the number of the delivery, from 1.
            lease_lost: whether the lease is lost while the handler runs.
            stopping: whether the worker is stopping.

        Returns:
            What the worker would do. An error of the handler is in the outcome and not raised, except
            `KeyboardInterrupt` and the like.

        Raises:
            InvalidOptionError: the worker has no such handler, or the attempt is below 1.

        """
        found = self._find(handler, batches=False)
        work = found[1]
        if isinstance(payload, dict) and work.state.results is not None:
            subject = subject or f"tasks.test.test.{work.name}.{uuid.uuid4().hex}"
        return self._process(
            found, [payload], attempt, stopping, subject, headers, lease_lost=lease_lost
        )[0]

    def deliver_batch(
        self,
        handler: str | Work,
        payloads: Sequence[object],
        *,
        attempt: int = 1,
        stopping: bool = False,
    ) -> list[Outcome]:
        """
        Process messages as one batch of a handler of `Worker.batch`.

        Args:
            handler: a handler of the worker, or its name.
            payloads: the payloads of the messages, as for `deliver`.
            attempt: the number of the delivery of each message, from 1.
            stopping: whether the worker is stopping.

        Returns:
            What the worker would do with each message, in their order. The error and the return value
            are those of the run, and the same in each.

        Raises:
            InvalidOptionError: as `deliver`.

        """
        found = self._find(handler, batches=True)
        return self._process(found, payloads, attempt, stopping)

    def _process(
        self,
        found: tuple[Source, Work],
        payloads: Sequence[object],
        attempt: int,
        stopping: bool,
        subject: str | None = None,
        headers: Headers | Mapping[str, Any] | None = None,
        *,
        lease_lost: bool = False,
    ) -> list[Outcome]:
        source, work = found
        check_option("attempt", attempt, attempt >= 1, "must be at least 1")
        settlements = _SettlementRecorder()
        publisher, dead_letters = _PublishRecorder(), _PublishRecorder()
        outcomes = settlements.outcomes
        origin = Origin(work.name, self._generation)
        for payload in payloads:
            outcome = Outcome()
            message = self._message(source, payload, subject, headers, attempt, outcome)
            lease = Lease(LeaseTimes(_CONSUMER_CONFIG), attempt, lease_clock())
            delivery = LeasedMessage(message, lease, origin)
            outcomes[delivery] = outcome
        ran = Outcome()

        def observe(call: Callable[[], object], context: Context) -> object:
            if lease_lost:
                for outcome in outcomes:
                    outcome.lease.lost_at = -math.inf
            try:
                result = ran.result = call()
                if context.value is not None:
                    ran.result = json.loads(context.value)
            except Suspended as wait:
                ran.kind = "parked"
                ran.delay = None if wait.at is None else round(wait.at - _now(), 1)
                raise
            except BaseException as error:
                ran.error = error
                raise
            return result

        parts = Parts(
            js=publisher,
            settlements=settlements,
            middleware=(observe, *self._worker.middleware),
            observer=Observer(self._worker.name, {}, lambda _function: None),
            is_stopping=lambda: stopping,
            on_fatal=lambda _error: None,
            has_peers=False,
            has_committed=self._worker.has_committed,
        )
        writer = None
        if source.dead_letters is not None:
            writer = DeadLetterWriter(dead_letters, source.dead_letters, self._worker.name)
        state = RunState()
        if work.state.results is not None:
            calls = self._calls or MemoryCalls()
            state = TaskState(calls, work.name, place=getattr(work.state, "place", None))
        processor = Processor(work, source, parts, writer, state=state)
        if source.max_messages is not None:
            processor.process_batch(list(outcomes))
        else:
            for delivery, outcome in outcomes.items():
                processor.process(delivery, lease_clock())
                if delivery.retry_in is not None:
                    outcome.kind, outcome.delay = "retry", delivery.retry_in
        for delivery, outcome in outcomes.items():
            outcome.result, outcome.error = ran.result, ran.error
            if ran.kind == "parked":
                outcome.kind, outcome.delay = ran.kind, ran.delay
            if publisher.parked is not None:
                outcome.kind, outcome.delay = "retry", publisher.parked
            outcome.reply = next(iter(settlements.replies), None)
            outcome.published = publisher.of(delivery)
            outcome.dead_letter = next(iter(dead_letters.of(delivery)), None)
        if ran.error is not None and not isinstance(ran.error, (Exception, SystemExit)):
            raise ran.error
        return list(outcomes.values())

    def _find(self, handler: str | Work | Task[..., Any], *, batches: bool) -> tuple[Source, Work]:
        known = [(source, work) for source in self._worker.handlers for work in source.works]
        wanted = handler.work if isinstance(handler, Task) else handler
        for source, work in known:
            if wanted is work or wanted == work.name:
                rule = "handles batches: use deliver_batch()"
                rule = "handles single messages" if batches else rule
                check_option("handler", handler, batches is (source.max_messages is not None), rule)
                return source, work
        names = ", ".join(work.name for _, work in known) or "none"
        raise errors.InvalidOptionError(
            "handler", handler, f"is not a handler of this worker, which has: {names}"
        )

    def _message(
        self,
        source: Source,
        payload: object,
        subject: str | None,
        headers: Headers | Mapping[str, Any] | None,
        attempt: int,
        outcome: Outcome,
    ) -> JetStreamMsg:
        self._delivered += 1
        if subject is None:
            subject = (source.filter_subjects or (source.stream,))[0]
            subject = subject.replace("*", "x").replace(">", "x")
        number = self._delivered
        stored_ns = int(datetime.now(timezone.utc).timestamp() * 1e9)
        reply = (
            f"$JS.ACK.{source.stream}.{source.consumer}.{attempt}.{number}.{number}.{stored_ns}.0"
        )
        block = Headers(headers) if headers else None
        received = (subject.encode(), reply.encode(), block, _encoded(payload))
        return _RecordedMsg(received, outcome)


class _MemorySteps:
    """A `StepStore` of this process."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = {}

    def names(self, call: str, pattern: str = ">") -> list[str]:
        head = pattern.rstrip("*>")
        return [name for name in self._values.get(call, ()) if name.startswith(head)]

    def load(self, call: str) -> dict[str, bytes]:
        return dict(self._values.get(call, {}))

    def get(self, call: str, name: str) -> bytes | None:
        return self._values.get(call, {}).get(name)

    def record(self, call: str, name: str, value: bytes, replaces: bytes | None = None) -> bytes:
        steps = self._values.setdefault(call, {})
        if steps.get(name) == replaces:
            steps[name] = value
        return steps[name]

    def remove(self, call: str) -> None:
        self._values.pop(call, None)


class MemoryCalls(CallStates):
    """The states of calls in this process."""

    has_messages = False

    def __init__(self) -> None:
        self._records: dict[str, CallRecord] = {}
        self._progress: dict[str, CallProgress] = {}
        self.steps: StepStore = _MemorySteps()
        self.flows: Any = MemoryFlows(self)

    @property
    def max_value(self) -> int:
        """The largest record, by the default of a server."""
        return 1024 * 1024

    def add(self, record: CallRecord, data: bytes | None = None) -> int:
        """Store the record of a new call; return 1, or 0 if the id is in use."""
        return int(self._records.setdefault(record.id, record) is record)

    def read(self, call: str) -> CallRecord:
        """Return the current record."""
        try:
            return self._records[call]
        except KeyError:
            raise errors.KeyNotFoundError("calls of this process", call) from None

    def store_progress(self, call: str, progress: CallProgress) -> None:
        """Store how far a run is."""
        self._progress[call] = progress

    def progress(self, call: str) -> CallProgress | None:
        """Return how far the last run is."""
        return self._progress.get(call)

    def wait(self, call: str, timeout: float | None) -> CallRecord:
        """Return the record; a call that has not ended never ends."""
        del timeout
        record = self.read(call)
        if not record.has_ended:
            raise errors.TimeoutError(
                f"call {call} has not ended: calls with a time run when it is read"
            )
        return record

    def change(
        self,
        call: str,
        sent: CallRecord | None,
        change: Callable[[CallRecord], CallRecord],
        revision: int = 0,
    ) -> tuple[CallRecord, int, int]:
        """Change the record of a call, and return it, as if it had revision 0."""
        record = self._records.get(call, sent)
        if record is None:
            raise CallEndedError(None)
        self._records[call] = record = change(record)
        return record, 0, len(record.to_json())

    def store(self, record: CallRecord, revision: int) -> bool:
        """Replace a record."""
        del revision
        self._records[record.id] = record
        return True


class MemoryFlows(Flows):
    """
    What follows from the end of calls in this process.

    Args:
        calls: the states of all calls.
        run: runs a call, which may begin again; ``None``: nothing does.

    """

    def __init__(
        self, calls: CallStates, run: Callable[[CallRecord], object] | None = None
    ) -> None:
        self._calls = calls
        self._run = run or (lambda _: None)

    def states(self, results: str) -> CallStates:
        """Return the states of all calls."""
        del results
        return self._calls

    def send(self, record: CallRecord) -> CallRecord | None:
        """Run a call, unless it was run before."""
        if not self._calls.add(record):
            return self._calls.read(record.id)
        self._run(record)
        return None

    def wake(self, record: CallRecord, key: str, at: float | None = None) -> None:
        """Run a call again; the time has passed for one that sleeps, and does not pass for one that waits."""
        if at is not None:
            steps, until = self._calls.steps, self._calls.steps.get(record.id, key)
            if key.startswith("wait="):
                return
            steps.record(record.id, key, b"0", until)
        self._run(record)


class EagerCalls:
    """
    Runs calls at once, in the calling thread, with the middleware and the attempts of a worker.

    Args:
        new_client: returns a test client of the worker with states of calls.
        tasks: the tasks by name.

    """

    def __init__(
        self,
        new_client: Callable[[MemoryCalls], TestClient],
        tasks: Mapping[str, Task[..., Any]],
    ) -> None:
        self._new_client = new_client
        self._tasks = tasks
        #: Whether the error of a call that fails is raised by `Task.delay`; of a member, that of its callback is.
        self.raises: bool = True
        #: The states of the calls.
        self.calls: MemoryCalls = MemoryCalls()
        self.calls.flows = MemoryFlows(self.calls, self._run_later)
        # The calls that follow from those that run; ``None``: none runs.
        self._following: deque[CallRecord] | None = None

    def put(self, call: NewCall) -> CallRecord | None:
        """Run a call, and those that follow, until they have ended or wait, without delays; once for an id."""
        if not self.calls.add(call.record):
            return self.calls.read(call.record.id)
        self._run_all(call.record)
        return None

    def _run_later(self, record: CallRecord) -> None:
        if self._following is None:
            self._run_all(record)
        else:
            self._following.append(record)

    def _run_all(self, record: CallRecord) -> None:
        """Run a call and those that follow; raise the first error."""
        before, self._following = self._following, deque([record])
        failure: BaseException | None = None
        try:
            while self._following:
                following = self._following.popleft()
                error = self._run(following)
                place = following.flow
                if place is None or place.parent is None:
                    failure = failure or error
        finally:
            self._following = before
        if failure is not None and self.raises:
            raise failure

    def _run(self, record: CallRecord) -> BaseException | None:
        """Run a call until it has ended or waits; return its last error."""
        place = record.flow
        name = record.task if place is None else place.handler
        task = self._tasks.get(name)  # calls of django.tasks have none
        payload = payload_of(record, whole=task is None or task.states is not None)
        queue = "default" if task is None else task.queue.name
        subject = f"tasks.eager.{queue}.{name}.{record.id}"
        client, attempt, kind = self._new_client(self.calls), 0, "retry"
        while kind == "retry":
            attempt += 1
            outcome = client.deliver(task or name, payload, subject=subject, attempt=attempt)
            kind = outcome.kind
        return outcome.error


def _now() -> float:
    return datetime.now(timezone.utc).timestamp()


def _encoded(payload: object) -> bytes:
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    return (payload if isinstance(payload, str) else json.dumps(payload)).encode()
