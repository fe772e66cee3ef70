"""
Tests of handlers without a server.

`Worker.test_client` returns a `TestClient`. It processes a message as a running worker does, with the same
code, and records what the worker would send.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from .. import ConsumerConfig, Headers, JetStreamMsg, PubAck, errors
from ..lease_times import LeaseTimes
from .calls import TaskState
from .checks import check_option
from .context import Context, RunState
from .dead_letters import DeadLetterWriter
from .deliveries import DeliveryState, Lease, LeasedMessage, Origin, Reply, lease_clock
from .eager import MemoryCalls
from .observer import Observer
from .runtime.processing import Parts, Processor
from .source import Source, Work
from .steps import Suspended
from .tasks import Task

if TYPE_CHECKING:
    from .options import DefinedWorker

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

    def reply(self, subject: str, reply: Reply) -> None:
        headers = Headers(reply.headers or {})
        message = PublishedMessage(
            subject=subject, data=reply.payload, headers=headers, msg_id=None
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
            dead_letters=partial(DeadLetterWriter, dead_letters, self._worker.name),
            middleware=(observe, *self._worker.middleware),
            observer=Observer(self._worker.name, {}, lambda _function: None),
            is_stopping=lambda: stopping,
            on_fatal=lambda _error: None,
            has_peers=False,
            has_committed=self._worker.has_committed,
        )
        state = RunState()
        if work.state.results is not None:
            calls = self._calls or MemoryCalls()
            state = TaskState(calls, work.name, place=getattr(work.state, "place", None))
        processor = Processor(work, source, parts, state=state)
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


def _now() -> float:
    return datetime.now(timezone.utc).timestamp()


def _encoded(payload: object) -> bytes:
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    return (payload if isinstance(payload, str) else json.dumps(payload)).encode()
