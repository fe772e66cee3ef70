"""
Calls of tasks: their messages, and their states in a key-value bucket.

Rules:

1. The message of a call is made in `call_messages`.
2. With a bucket, the record of a call is the value of the key ``<id>``, and the payload. It changes by
   compare and set; the message has its first revision, so that the first run does not read it. `TRANSITIONS`
   has every change of the status; no other code decides on it.
3. A call that has ended is not run again. A call becomes ``SUCCESSFUL`` after its middleware has ended, and
   before its message is acknowledged. It becomes ``FAILED`` before its dead letter is stored: a delivery
   that finds it ``FAILED`` stores the dead letter.
4. A run whose state cannot be read or stored has neither succeeded nor failed: its message is delivered again,
   also after the last attempt.
5. A call of a flow has a `FlowPlace`. What follows from its end happens after the end is stored, and before its
   message is acknowledged; a delivery that finds the call ended repeats it. See `flows`.
"""

from __future__ import annotations

import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from .. import ConsumerConfig, KeyValueConfig, RetentionPolicy, StreamConfig, codec, errors
from ..converters import to_json
from ..exact import exact
from ..net.clock import BackoffDelay, Deadline
from .call_messages import (
    DONE,
    CallAddress,
    CallEvent,
    CallMessage,
    CallRecord,
    CallStatus,
    FlowPlace,
    call_id,
    parked_subject,
    payload_of,
    schedule_subject,
    sent_revision,
    utc_now,
)
from .checks import check_option, check_token, is_number
from .context import CallProgress, Context, RunState
from .deliveries import log_context
from .errors import (
    CallBusyError,
    CallEndedError,
    NoCallError,
    Reject,
    ReturnValueError,
    StateUnknownError,
    misfit,
    state_unknown,
)
from .logs import log, traceback_text
from .openers import Creator, Opener, bucket_opener, delete_on_subject, has_schedules
from .steps import PAYLOAD, StepBucket, StepStore, Suspended
from .tracing import publishing

if TYPE_CHECKING:
    from .. import Connection, JetStream, JetStreamMsg, KeyValue, KeyValueEntry, Stream

#: How long a bucket that is created for results keeps them.
_RESULT_TTL: Final = timedelta(days=1)
#: The key of a consumer's metadata with the program whose queue it is.
OWNER: Final = "jetstream-worker-owner"
#: The priority of calls that start before the others.
URGENT: Final = "urgent"
#: The key of the metadata of buckets with results.
RESULTS_MARK: Final = "jetstream-worker-results"
#: The end of the key of the progress of a call; no step has such a name.
PROGRESS_KEY: Final = "=progress"
#: What the record of a call needs besides its arguments and its return value, in bytes.
_RECORD_MARGIN: Final = 512
#: Time for reading whether a call has ended, in seconds, besides the timeout.
_READ_S: Final = 0.25
#: The shortest timeout of a request, in seconds.
_MIN_TIMEOUT_S: Final = 0.001
#: Delays between attempts to store the state of a run, in seconds.
_FIRST_STORE_DELAY_S: Final = 0.1
_MAX_STORE_DELAY_S: Final = 2.0

T = TypeVar("T")
#: Returns the next record of a call, or raises `CallEndedError`.
Change = Callable[[CallRecord], CallRecord]


class SentCall(NamedTuple):
    """What the message of a call must have; the types of the arguments are checked when they are bound."""

    args: Any
    kwargs: Any
    expires: float | None
    flow: FlowPlace | None = None


def _loaded(data: bytes) -> dict[str, Any]:
    """Return the object in the message of a call; raise `Reject` if there is none."""
    try:
        found = codec.loads(data) if data else {}
    except errors.InvalidResponseError as error:
        raise Reject(f"the message is no call of a task: {error}") from error
    if not isinstance(found, dict):
        raise Reject("the message is no call of a task: it is not a JSON object")
    expires = found.get("expires")
    if expires is not None and not is_number(expires):
        text = f"'expires' must be a number of seconds since 1970, not {expires!r:.60}"
        raise Reject(f"the message is no call of a task: {text}")
    return found


def sent_call(data: bytes) -> SentCall:
    """Return the call in a message; raise `Reject` if it has none."""
    found = _loaded(data)
    try:
        flow = codec.decode(FlowPlace, found["flow"]) if found.get("flow") else None
    except errors.InvalidResponseError as error:
        raise Reject(f"the message is no call of a task: {error}") from error
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        text = "'args' must be an array, and 'kwargs' an object"
        raise Reject(f"the message is no call of a task: {text}")
    return SentCall(args, kwargs, found.get("expires"), flow)


def sent_record(task: str, call: str, data: bytes) -> CallRecord:
    """Return the record of a call, as far as its message has it; raise `Reject` if it is not a call."""
    # A message waits to be run, whatever another program has written into it.
    found = {"task": task, "kwargs": {}, "enqueued_at": utc_now(), **_loaded(data)}
    try:
        return codec.decode(CallRecord, {**found, "id": call, "status": CallStatus.READY.value})
    except errors.InvalidResponseError as error:
        raise Reject(f"the message is no call of a task: {error}") from error


@contextmanager
def _key_of_call(call: str) -> Iterator[None]:
    """Raise `NoCallError` if the id of a call, which is from a subject, cannot be a key."""
    try:
        yield
    except errors.InvalidNameError as error:
        raise NoCallError(f"the id {call!r:.60} cannot be that of a call") from error


def has_expired(expires: float | None) -> bool:
    """Return whether the call that this thread handles must not start any more, by the clock of the server."""
    delivery = None if expires is None else log_context.get()
    return delivery is not None and delivery.server_ns() >= cast("float", expires) * 1e9


class CallQueue:
    """
    Where the calls of a queue are sent: its stream and its subjects.

    Args:
        queues: the `TaskQueues` of the worker.
        name: the name of the queue.
        stream: the name of the stream.
        subject: the first token of its subjects.

    """

    def __init__(self, queues: Any, name: str, stream: str, subject: str) -> None:
        check_token("subject", subject)
        check_token("queue", name)
        self._queues = queues
        #: Returns the connection of this process for sending.
        self.connection: Callable[[], Connection] = queues.sender
        self.name = name
        self.stream = stream
        #: The program of the worker, which the metadata of the consumer has.
        self.owner: str = queues.worker.program
        #: Where its urgent calls are sent; ``None``: it has none.
        self.urgent: CallQueue | None = None
        self._subject = subject
        self.rename()

    def rename(self) -> None:
        """Use the present name of the worker from now on."""
        namespace = self._queues.worker.name
        #: What the subjects of the calls begin with.
        self.prefix: str = f"{self._subject}.{namespace}.{self.name}."
        #: The durable name of its consumer.
        self.consumer: str = f"{self._subject}-{namespace}-{self.name}"
        self._opener: Opener[JetStream] = Opener(self.connection, self._open)

    @property
    def filter_subject(self) -> str:
        """The subjects of the calls."""
        return f"{self.prefix}*.*"

    def address(self, task: str, call: str) -> CallAddress:
        """Return the subjects of a call."""
        return CallAddress(f"{self.prefix}{task}.{call}")

    def resource(self, nc: Connection) -> StreamConfig:
        """Return the config of the stream, as far as the server supports it."""
        schedules = (schedule_subject(self.stream), parked_subject(self.stream))
        return StreamConfig(
            name=self.stream,
            subjects=[f"{self._subject}.>", *schedules],
            retention=RetentionPolicy.WORK_QUEUE,
            allow_rollup_hdrs=True,
            allow_direct=True,
            allow_msg_schedules=has_schedules(nc) or None,
        )

    def _open(self, nc: Connection) -> JetStream:
        js = nc.jetstream()
        self._queues.create(nc, [self.resource(nc)])
        with suppress(errors.ConsumerNotFoundError, errors.StreamNotFoundError):
            self.check_owner(js.consumer_info(self.stream, self.consumer).config)
        return js

    def check_owner(self, config: ConsumerConfig) -> None:
        """Raise `InvalidOptionError` if the consumer of the queue belongs to another program."""
        found = (config.metadata or {}).get(OWNER)
        rule = (
            f"this queue of stream {self.stream} belongs to the program {found!r}, not to {self.owner!r}: "
            "give the Worker another name"
        )
        check_option("name", self.consumer, found in {None, self.owner}, rule)

    def prepare(self) -> None:
        """
        Create the stream if it is missing, and check the owner of the queue; once for a connection.

        Raises:
            InvalidOptionError: the queue belongs to another program.

        """
        self._opener.open()

    def store(self, message: CallMessage) -> bool:
        """Store the message of a call; return whether there was one with its id."""
        return self._opener.use(lambda js: self._store(js, message))

    def _store(self, js: JetStream, message: CallMessage) -> bool:
        subject = message.subject
        if message.at is not None:
            return js.schedule(
                subject,
                message.data,
                target=message.address.now,
                at=message.at,
                headers=message.headers,
                msg_id=message.msg_id,
            ).duplicate
        with publishing(subject, message.data, message.headers, message.msg_id) as headers:
            return js.publish(
                subject, message.data, headers=headers, msg_id=message.msg_id, stream=self.stream
            ).duplicate

    def _get_stream(self) -> Stream:
        return self.connection().jetstream().get_stream(self.stream)

    def of(self, record: CallRecord) -> CallQueue:
        """Return where a call is sent, by its priority."""
        is_urgent = self.urgent is not None and record.extra.get("priority") == URGENT
        return cast("CallQueue", self.urgent) if is_urgent else self

    def find(self, task: str, call: str) -> CallRecord | None:
        """Return what is sent of a call that has not ended, also of a later one, if any."""
        if self.urgent is not None and (found := self.urgent.find(task, call)) is not None:
            return found
        try:
            stream = self._get_stream()
        except errors.StreamNotFoundError:
            return None
        for subject in self.address(task, call).both:
            with suppress(errors.MessageNotFoundError):
                message = stream.get_msg(last_by_subject=subject, consistent=True)
                try:
                    return sent_record(task, call, message.data)
                except Reject:  # of another program; it can be withdrawn
                    return sent_record(task, call, b"")
        return None

    def has_message(self, task: str, call: str, seq: int) -> bool:
        """Return whether the stream has a message of a call with this sequence."""
        queues = [queue for queue in (self, self.urgent) if queue is not None]
        try:
            stream = self._get_stream()
            found = stream.get_msg(seq, consistent=True).subject
            return found in [queue.address(task, call).now for queue in queues]
        except (errors.StreamNotFoundError, errors.MessageNotFoundError):
            return False

    def withdraw(self, task: str, call: str, *, later: bool = False) -> bool:
        """Delete the message of a call, or only that of a ``later`` run; return whether there was one."""
        try:
            stream = self._get_stream()
        except errors.StreamNotFoundError:
            return False
        found = self.urgent is not None and self.urgent.withdraw(task, call, later=later)
        address = self.address(task, call)
        for subject in (address.later,) if later else address.both:
            found = delete_on_subject(stream, subject) or found
        return found


class NewCall(NamedTuple):
    """A call that is to be sent."""

    queue: CallQueue
    task: str
    """The name of the task in its subject."""
    states: CallBucket | None
    record: CallRecord
    at: datetime | None = None
    whole: bool = False
    """Whether its message has the whole record also without ``states``."""

    def message(self) -> CallMessage:
        """Return its message."""
        address = self.queue.of(self.record).address(self.task, self.record.id)
        whole = self.whole or self.states is not None
        return CallMessage(address, payload_of(self.record, whole=whole), address.now, self.at)


class CallStates(ABC):
    """The states and return values of calls."""

    #: Whether the calls are messages of a stream.
    has_messages: bool = True
    #: What follows from the end of a call, `flows.Flows`; set by the queues that send calls.
    flows: Any
    #: The steps of the calls.
    steps: StepStore

    @property
    @abstractmethod
    def max_value(self) -> int:
        """The largest record, in bytes."""

    @abstractmethod
    def add(self, record: CallRecord, data: bytes | None = None) -> int:
        """Store the record of a new call, encoded if that is given; return its revision, 0 if the id is in use."""

    @abstractmethod
    def read(self, call: str) -> CallRecord:
        """Return the current record; raises `NoCallError`, and as `KeyValue.get`."""

    @abstractmethod
    def wait(self, call: str, timeout: float | None) -> CallRecord:
        """Return the record of a call, as soon as it has ended."""

    @abstractmethod
    def change(
        self, call: str, sent: CallRecord | None, change: Change, revision: int = 0
    ) -> tuple[CallRecord, int, int]:
        """
        Change the record of a call, and return it with its revision and its size in bytes.

        If the revision of ``sent`` is known, the record is read only if it was changed since then.
        Raises `CallEndedError` and `NoCallError`.
        """

    @abstractmethod
    def store(self, record: CallRecord, revision: int) -> bool:
        """Replace the record of a run; return false if a later run has begun, or the call has ended."""

    @abstractmethod
    def store_progress(self, call: str, progress: CallProgress) -> None:
        """Store how far the run of a call is."""

    @abstractmethod
    def progress(self, call: str) -> CallProgress | None:
        """Return how far the last run of a call is, as far as it is stored; ``None``: it is not."""

    def cancel(self, call: str, sent: CallRecord | None = None) -> bool:
        """Cancel a call that is not running; return whether it was. ``sent`` counts if there is no record."""
        return self.try_change(call, sent, lambda found: found.after(CallEvent.CANCEL)) is not None

    def try_change(self, call: str, sent: CallRecord | None, change: Change) -> CallRecord | None:
        """Change the record of a call, and return it; ``None``: it has ended, is unknown, or refuses the change."""
        try:
            return self.change(call, sent, change)[0]
        except CallEndedError:
            return None

    def give_up(self, call: str, sent: CallRecord | None, reason: str) -> CallRecord | None:
        """Record that a call has failed whose message is given up; ``None``: it has ended, or is unknown."""
        trace = f"the message was given up: {reason}"
        with suppress(NoCallError):
            return self.try_change(
                call, sent, lambda found: found.after_failure(CallEvent.FAIL, Reject, reason, trace)
            )
        return None

    def given_up(self, call: str, record: CallRecord | None) -> None:
        """Do what follows from the end of a call whose message is given up; ``None``: it had ended before."""
        with suppress(errors.KeyNotFoundError, NoCallError):
            record = record or self.read(call)
            if record.has_ended:
                self.flows.ended(record)


class CallBucket(CallStates):
    """
    The states and return values of calls, in a bucket.

    Args:
        connection: returns the connection of this process for sending.
        bucket: the name of the bucket.
        create: creates what is missing of some resources; the bucket may be deleted at any time.

    """

    def __init__(self, connection: Callable[[], Connection], bucket: str, create: Creator) -> None:
        bucket = exact(bucket)
        self._connection = connection
        self.bucket = bucket
        self.steps: StepBucket = StepBucket(connection, f"{bucket}-flows", create)
        self._opener = bucket_opener(connection, bucket, lambda nc: create(nc, [self.resource()]))
        # The bucket of a connection, for a process that only waits for calls.
        self._for_reading: tuple[Connection, KeyValue] | None = None

    def resource(self) -> KeyValueConfig:
        """Return the config of the bucket."""
        return KeyValueConfig(
            bucket=self.bucket, ttl=_RESULT_TTL, metadata={RESULTS_MARK: "calls of tasks"}
        )

    def _open_within(self, deadline: Deadline) -> KeyValue:
        """Return the bucket for reading; a server that does not answer is waited for until the deadline."""
        nc, left = self._connection(), deadline.left()
        if left is not None and not self._opener.is_open:
            if self._for_reading is not None and self._for_reading[0] is nc:
                return self._for_reading[1]
            with suppress(errors.BucketNotFoundError):
                # Its timeout is that of its context; reading passes its own ones.
                bucket = nc.jetstream(timeout=max(left, _MIN_TIMEOUT_S)).key_value(self.bucket)
                self._for_reading = nc, bucket
                return bucket
        return self._opener.open()[0]

    def _use(self, action: Callable[[KeyValue], T]) -> T:
        """Return what an action on the bucket returns; as `Opener.use`."""
        return self._opener.use(lambda opened: action(opened[0]))

    @property
    def max_value(self) -> int:
        """As `CallStates.max_value`."""
        size = self._opener.open()[1].cached_info.config.max_msg_size or 0
        largest = self._connection().max_payload
        return min(largest, size) if size > 0 else largest

    def add(self, record: CallRecord, data: bytes | None = None) -> int:
        """As `CallStates.add`."""
        encoded = record.to_json() if data is None else data
        try:
            return self._use(lambda bucket: bucket.create(record.id, encoded))
        except errors.KeyExistsError:
            return 0

    def remove(self, call: str) -> None:
        """Delete the record of a call that was not sent."""
        with suppress(errors.Error):
            self._use(lambda bucket: bucket.purge(call))

    def read(self, call: str) -> CallRecord:
        """As `CallStates.read`."""
        with _key_of_call(call):
            found = self._use(lambda bucket: bucket.get(call, consistent=True))
        return CallRecord.from_json(call, found.value)

    def store_progress(self, call: str, progress: CallProgress) -> None:
        """Store how far the run of a call is, beside its record, whose revision tells runs apart."""
        self._use(lambda bucket: bucket.put(f"{call}.{PROGRESS_KEY}", to_json(progress)))

    def progress(self, call: str) -> CallProgress | None:
        """As `CallStates.progress`."""
        try:
            key = f"{call}.{PROGRESS_KEY}"
            stored = self._use(lambda bucket: bucket.get(key, consistent=True))
            found = CallProgress(*codec.loads(stored.value))
            str(found)  # raises unless it has numbers
            return found
        except (errors.KeyNotFoundError, errors.InvalidResponseError, TypeError, ValueError):
            return None

    def wait(self, call: str, timeout: float | None) -> CallRecord:
        """As `CallStates.wait`."""
        deadline = Deadline(timeout)
        # Reading whether it has ended takes requests: a timeout of 0 still waits for these.
        reading = Deadline(None if timeout is None else max(timeout, 0.0) + _READ_S)
        bucket = self._open_within(reading)
        # Most calls have ended when their results are read, and a watch costs five times as much as this read. An
        # error of the read is one of the watch as well, which raises it.
        try:
            entry = bucket.get(call, consistent=True, timeout=reading.left())
            found = CallRecord.from_json(call, entry.value)
            if found.has_ended:
                return found
        except errors.TimeoutError:
            raise  # the watch would wait as long again
        except errors.Error:
            pass
        with bucket.watch(call, ignore_deletes=True, timeout=reading.left()) as watch:
            entries = watch.initial(reading.left())
            while True:
                first = next(entries, None)
                try:
                    entry = first or watch.next(deadline.left())
                    found = CallRecord.from_json(call, entry.value)
                except errors.TimeoutError as error:
                    raise errors.TimeoutError(f"task {call} has not ended in time") from error
                if found.has_ended:
                    return found

    def change(
        self, call: str, sent: CallRecord | None, change: Change, revision: int = 0
    ) -> tuple[CallRecord, int, int]:
        """As `CallStates.change`."""
        found, size = sent, 0

        def changed(entry: KeyValueEntry | None) -> bytes:
            nonlocal found, size
            found = sent if entry is None else CallRecord.from_json(call, entry.value)
            if found is None:
                raise CallEndedError(None)
            found = change(found)
            data = found.to_json()
            size = len(data)
            return data

        with _key_of_call(call):
            stored = 0
            if revision:
                data = changed(None)
                with suppress(errors.WrongLastSequenceError):
                    stored = self._use(lambda bucket: bucket.update(call, data, revision))
            stored = stored or self._use(lambda bucket: bucket.modify(call, changed))
        assert found is not None
        return found, stored, size

    def store(self, record: CallRecord, revision: int) -> bool:
        """As `CallStates.store`."""
        key, data = record.id, record.to_json()

        def replace(bucket: KeyValue) -> None:
            try:
                bucket.update(key, data, last=revision)
                return
            except errors.WrongLastSequenceError:
                pass
            try:
                bucket.create(key, data)  # it has expired, or its bucket was deleted
            except errors.KeyExistsError:
                # An earlier try was stored, and its reply was lost.
                if bucket.get(key, consistent=True).value != data:
                    raise

        try:
            self._use(replace)
        except errors.KeyExistsError:
            log.warning("call %s: its state is kept, another run has begun", key)
            return False
        return True


class TaskState(RunState):
    """
    Records the runs of the calls of a task.

    Args:
        calls: the states.
        task: the name of the task.
        acks_failures: whether a call that has failed is acknowledged, and has no dead letter.
        on_change: called with the record when a run begins, and when the call has ended.
        place: the place of calls that are sent by themselves, if they have steps; ``None``: they have none.

    """

    def __init__(
        self,
        calls: CallStates,
        task: str,
        *,
        acks_failures: bool = False,
        on_change: Callable[[CallRecord], object] = lambda _record: None,
        place: FlowPlace | None = None,
    ) -> None:
        self.results: CallStates | None = calls
        self._calls = calls
        self.place = place
        self.has_steps: bool = place is not None
        self._task = task
        self.acks_failures: bool = acks_failures
        self._on_change = on_change

    def _sent(self, message: JetStreamMsg) -> CallRecord:
        return sent_record(self._task, call_id(message), message.data)

    def has_ended(self, message_id: str, message: JetStreamMsg) -> bool:
        """Return whether a call that is delivered too often has ended; not if it needs a dead letter."""
        del message_id
        try:
            found = self._calls.read(call_id(message))
        except (errors.KeyNotFoundError, NoCallError):
            return False
        if found.status in DONE or (found.status == CallStatus.FAILED and self.acks_failures):
            self._calls.flows.ended(found)
            return True
        return False

    def begin(self, context: Context) -> bool:
        """Record the begin of a run; return false if the call has ended."""
        sent = self._sent(context.message)
        try:
            found, revision, size = self._calls.change(
                sent.id,
                sent,
                lambda found: self._begun(found, context),
                sent_revision(context.message),
            )
            context.value_limit = self._calls.max_value - size - _RECORD_MARGIN
        except CallEndedError as error:
            ended: CallRecord = error.args[0]
            if ended.status != CallStatus.FAILED or self.acks_failures:
                self._continue(ended)
                return False
            raise Reject(ended.errors[-1].text if ended.errors else "the call has failed") from None
        except CallBusyError as error:
            if error.is_obsolete:
                return False
            raise StateUnknownError("an earlier message of the call is being handled") from None
        except NoCallError as error:
            raise misfit(Reject(f"the message is no call of a task: {error}")) from error
        except errors.Error as error:
            raise state_unknown("the state of the call cannot be read", error) from error
        if found.has_ended:
            log.info("call %s of task %s has expired", found.id, self._task)
            self._continue(found)
            return False
        context.origin = None if found.flow is None else found.flow.origin
        context.maybe_done = bool(found.interrupted)
        context.call = found, revision
        self._on_change(found)
        return True

    def cancel(self, message: JetStreamMsg) -> bool:
        """Record that a call that runs is cancelled; return false if it has ended."""
        found = self._calls.try_change(
            call_id(message), None, lambda found: found.after(CallEvent.TERMINATE)
        )
        if found is not None:
            self._on_change(found)
        return found is not None

    def done(self, context: Context) -> None:
        """Record that a call has succeeded, with its return value; wait until that is stored."""
        found, revision = context.call
        value = None if context.value is None else codec.loads(context.value)
        found = found.after(CallEvent.SUCCEED, return_value=value)
        if self._store(context, found, revision):
            self._on_change(found)
            self._continue(found)
        elif found.flow is not None:
            self.has_ended("", context.message)  # then its steps are deleted

    def failed(self, context: Context, error: BaseException, *, is_last: bool) -> bool:
        """Record that a run has failed; return whether the message is acknowledged all the same."""
        found, revision = context.call
        event = CallEvent.FAIL if is_last else CallEvent.RETRY
        found = found.after_failure(event, type(error), codec.text_of(error), traceback_text(error))
        if not self._store(context, found, revision):
            with suppress(errors.Error):
                return self.has_ended("", context.message)
            return False
        if is_last:
            self._on_change(found)
        is_acked = is_last and self.acks_failures and not isinstance(error, Reject)
        if is_acked:
            self._continue(found)
        return is_acked

    def progress(self, message: JetStreamMsg, progress: CallProgress) -> None:
        """Store how far a run is."""
        self._calls.store_progress(call_id(message), progress)

    def give_up(self, message: JetStreamMsg, reason: str) -> None:
        """Record that a call has failed whose message is given up, unless it has ended."""
        try:
            sent = self._sent(message)
        except Reject:
            sent = sent_record(self._task, call_id(message), b"")
        found = self._calls.give_up(sent.id, sent, reason)
        if found is not None:
            self._on_change(found)
        self._calls.given_up(sent.id, found)

    def suspend(self, context: Context, wait: Suspended) -> None:
        """Record that a run has ended to wait, and store what begins the next one."""
        found, revision = context.call
        found = found.after(CallEvent.SUSPEND, flow=found.flow.parked(wait))
        try:
            # Before another run can begin, and delete it.
            self._calls.steps.record(found.id, PAYLOAD, found.to_json())
            # Otherwise a later run has begun, whose message is stored, or the call has ended.
            if self._store(context, found, revision):
                self._calls.flows.park(found, wait)
            else:
                self.has_ended("", context.message)
        except errors.ServerTooOldError as error:
            raise Reject(f"the call cannot wait for a time: {error}") from error
        except errors.Error as error:
            raise state_unknown("the call cannot wait", error) from error

    def ask(self, question: str, *arguments: Any) -> Any:
        """Read or record a step."""
        try:
            return getattr(self._calls.steps, question)(*arguments)
        except errors.Error as error:
            raise state_unknown("the steps of the call cannot be read", error) from error

    def _continue(self, record: CallRecord) -> None:
        """Do what follows from the end of a call."""
        try:
            self._calls.flows.ended(record)
        except errors.Error as error:
            raise state_unknown(f"what follows call {record.id} is not stored", error) from error

    def _begun(self, found: CallRecord, context: Context) -> CallRecord:
        """Return the record of a run that begins, or of a call that has expired."""
        if found.has_ended:
            raise CallEndedError(found)
        place = found.flow or self.place
        if place is not None:
            place = self._calls.flows.begun(replace(found, flow=place), context)
        if has_expired(found.expires) and not (found.flow and found.flow.began):
            return found.after(CallEvent.EXPIRE)
        now = utc_now()
        return found.after(
            CallEvent.BEGIN,
            flow=place,
            interrupted=found.status == CallStatus.RUNNING,
            started_at=found.started_at or now,
            last_attempted_at=now,
            worker_ids=[*found.worker_ids, f"{platform.node()}-{os.getpid()}"][-50:],
        )

    def _store(self, context: Context, record: CallRecord, revision: int) -> bool:
        """Store a record while the run keeps its message, as `CallStates.store`; the function has had its effects."""
        delays, is_logged = BackoffDelay(_FIRST_STORE_DELAY_S, _MAX_STORE_DELAY_S), False
        while True:
            try:
                return self._calls.store(record, revision)
            except (errors.ValueTooLargeError, errors.MaxPayloadError) as error:
                if not any(item.traceback for item in record.errors):
                    raise ReturnValueError(f"the return value cannot be stored: {error}") from error
                record = replace(record, errors=[replace(record.errors[-1], traceback="")])
                continue
            except errors.Error as error:
                if context.stopping or context.lease_lost:
                    text = f"the state of call {record.id} could not be stored: {error}"
                    raise StateUnknownError(text) from error
                if not is_logged:
                    text = "call %s: its state cannot be stored, trying again: %s"
                    log.warning(text, record.id, error)
                is_logged = True
            time.sleep(delays.next())
