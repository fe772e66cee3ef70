"""
Flows: chains of calls, and groups with a callback.

A flow is sent as one message, the first call of a chain or the callback of a group, which carries the others. So
a flow is sent as a whole, also with an outbox.

Rules:

1. A call that has succeeded sends the next one of its chain, whose id is made from that of the flow: its record
   is created once. If it ended otherwise, the calls after it have failed.
2. A callback waits for its members as for a `Context.gather` before its function. A member that has ended, however
   it did, stores its outcome as a step of the call that waits for it, and then reads whether all have. The last
   one that reads sees all of them, and sends that call again.
3. All of this may be repeated: each record and step is written once, and a message without need is dropped.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from .. import errors
from ..converters import to_json
from .call_messages import CallEvent, CallRecord, CallStatus, FlowParent, FlowPlace
from .calls import CallStates
from .checks import check_option
from .errors import CallBusyError, NoCallError, TaskError
from .steps import BLOCK, PAYLOAD, RunOrder, Suspended, member_key, order_of_run, wait_key

if TYPE_CHECKING:
    from .context import Context

T = TypeVar("T")
#: A call or a flow that is not sent yet.
Planned: TypeAlias = "Call[Any] | Flow[Any]"

#: The step of a callback that waits for the members of its group.
MEMBERS: Final = "members="
#: The largest number of members that are counted.
_MAX_MEMBERS: Final = BLOCK * BLOCK
#: The step of a `Context.gather`, with its number from the second one on.
_GATHERED: Final = re.compile("gather=(?:-([0-9]{1,9}))?")
#: Number of deliveries after which a message that waits for an earlier one is replaced, so that it has all attempts.
_MAX_WAITS: Final = 5


class Call(Generic[T]):
    """
    A call that is not sent, whose result is a `TaskResult`; `Task.call` returns it, for `chain`, `group` and `Context.gather`.

    Args:
        new_record: returns its record, given whether the value of another call becomes its first argument.
        start: sends a record, or runs it at once.
        result: returns the call with an id.

    """

    def __init__(
        self,
        new_record: Callable[[bool], CallRecord],
        start: Callable[[CallRecord], object],
        result: Callable[[str], T],
    ) -> None:
        self._new_record = new_record
        self.start = start
        self.result = result

    def plan(self, call: str, *, gets_value: bool = False) -> CallRecord:
        """
        Return its record with an id.

        :meta private:
        """
        return replace(self._new_record(gets_value), id=call)


class Flow(Generic[T]):
    """A chain or a group; `chain` and `group` return it."""

    def __init__(
        self, calls: Sequence[Planned], last: Planned, on_error: str | None = None
    ) -> None:
        self._calls = calls
        self._last = last
        self._on_error = on_error

    def delay(self, *, task_id: str | None = None) -> T:
        """
        Send the flow; return its last call, whose value is that of the flow.

        It is sent as one message, as `Task.delay` sends a call.

        Args:
            task_id: the id of the last call, as for `Task.apply_async`; the ids of the others begin with it.

        Raises:
            TaskArgumentsError: the arguments of a call do not fit; nothing was sent.
            MaxPayloadError: the calls are too large for one message; nothing was sent.
            Error: otherwise as `Task.delay`.

        """
        call = uuid.uuid4().hex if task_id is None else task_id
        result = self.result(call)
        self.start(self.plan(call))
        return result

    def plan(self, call: str, *, gets_value: bool = False) -> CallRecord:
        """
        Return the record of its first message.

        :meta private:
        """
        check_option(
            "calls", self, not gets_value, "a flow must be the first of a chain, or a member"
        )
        if self._on_error is None:
            parts = [
                item.plan(f"{call}-c{number}", gets_value=number > 1)
                for number, item in enumerate(self._calls, 1)
            ]
            first, *rest = [*parts, self._last.plan(call, gets_value=bool(parts))]
            return _placed(first, then=[*place_of(first).then, *rest])
        members = planned_members(self._calls, f"{call}-m")
        last = self._last.plan(call, gets_value=True)
        return _placed(last, members=members, on_error=self._on_error, steps=True)

    def start(self, record: CallRecord) -> object:
        """
        Send its first message.

        :meta private:
        """
        first = self._last if self._on_error is not None or not self._calls else self._calls[0]
        return first.start(record)

    def result(self, call: str) -> T:
        """
        Return its last call.

        :meta private:
        """
        found: T = self._last.result(call)
        return found


def chain(*calls: Call[Any] | Flow[Any]) -> Flow[Any]:
    """
    Return a flow of calls that follow each other: the value of each is the first argument of the next.

    If a call does not succeed, the calls after it have failed, with its id and its error.

    Args:
        *calls: the calls; the first one may be a group.

    Raises:
        InvalidOptionError: there are none, or one is no call.

    """
    _check_calls(calls)
    check_option("calls", calls, bool(calls), "must have at least one call")
    return Flow(calls[:-1], calls[-1])


def group(
    calls: Sequence[Call[Any] | Flow[Any]], *, then: Call[T], on_error: str = "stop"
) -> Flow[T]:
    """
    Return a flow of calls that run in any order, and of a call that follows when all have ended.

    The first argument of ``then`` is the list of their values, in their order.

    Args:
        calls: the calls, or chains; at most 10,000, and 1 MB of JSON by the limit of a message.
        then: the call that follows, once.
        on_error: what follows if some have failed, were cancelled or have expired: ``"stop"``: ``then`` has
            failed, with their ids; ``"call"``: it gets a list of dictionaries with ``id``, ``status``, ``value``
            and ``error`` in place of the values.

    Raises:
        InvalidOptionError: there are no calls, or too many, or one is no call.

    """
    _check_calls([*calls, then])
    check_option("on_error", on_error, on_error in {"stop", "call"}, "must be 'stop' or 'call'")
    check_option(
        "calls", len(calls), 0 < len(calls) <= _MAX_MEMBERS, f"must be 1 to {_MAX_MEMBERS}"
    )
    return Flow(list(calls), then, on_error)


def planned_members(calls: Sequence[Planned], prefix: str) -> list[CallRecord]:
    """Return the records of members, whose ids begin with a prefix."""
    _check_calls(calls)
    check_option("calls", len(calls), len(calls) <= _MAX_MEMBERS, f"must be at most {_MAX_MEMBERS}")
    return [item.plan(f"{prefix}{index}") for index, item in enumerate(calls)]


def _check_calls(calls: Sequence[object]) -> None:
    for item in calls:
        check_option("calls", item, isinstance(item, Call | Flow), "must be calls: task.call(...)")


def place_of(record: CallRecord) -> FlowPlace:
    """Return the place of a call of a flow; raise `NoCallError` if it has none."""
    if record.flow is None:
        raise NoCallError(f"call {record.id!r:.60} is one of a flow, and has no place there")
    return record.flow


def _placed(record: CallRecord, **changes: Any) -> CallRecord:
    """Return a record with changes of its place."""
    return replace(record, flow=replace(place_of(record), **changes))


class Flows:
    """What follows from the end of a call, and from its waits; `QueueFlows` sends calls to their queues."""

    def states(self, results: str) -> CallStates:
        """Return the states of the calls of a bucket."""
        raise NotImplementedError

    def send(self, record: CallRecord) -> CallRecord | None:
        """Send a new call; return its record if it was sent before."""
        raise NotImplementedError

    def wake(self, record: CallRecord, key: str, at: float | None = None) -> None:
        """Send a message that begins a call again, now or at a time."""
        raise NotImplementedError

    def has_message(self, record: CallRecord, seq: int) -> bool:
        """Return whether a message of a call is stored."""
        del record, seq
        return False

    # --- runs -----------------------------------------------------------------------------------

    def begun(self, record: CallRecord, context: Context) -> Any:
        """Return the place of a call whose run begins; raise `CallBusyError` if it does not."""
        place, where = place_of(record), context.message.metadata
        # Before the function runs: another program may have sent them.
        for item in (*place.then, *place.members):
            place_of(item)
        if len(place.began) not in {0, 2}:
            raise NoCallError(f"call {record.id} has no valid begin of its last run")
        mine = (where.timestamp_ns, where.stream_seq)
        order = order_of_run(
            place.began,
            mine,
            running=record.status == CallStatus.RUNNING,
            exists=lambda: self.has_message(record, place.began[1]),
        )
        if order is RunOrder.WAIT and context.attempt >= _MAX_WAITS:
            self.wake(record, f"again={mine[1]}")
            order = RunOrder.DROP
        if order is not RunOrder.RUN:
            raise CallBusyError(is_obsolete=order is RunOrder.DROP)
        origin = place.origin or context.id
        return replace(place, began=mine, origin=origin, waiting=None)

    def park(self, record: CallRecord, wait: Suspended) -> None:
        """Store what begins a call again that waits."""
        place = place_of(record)
        steps = self.states(place.results).steps
        if wait.at is not None:
            self.wake(record, wait.key, wait.at)
        if not wait.members:
            return
        ended = set(steps.names(record.id, f"{wait.key}.m.>"))
        for index, member in enumerate(wait.members):
            if member_key(wait.key, index) not in ended:
                parent = FlowParent(
                    queue=place.queue,
                    handler=place.handler,
                    results=place.results,
                    id=record.id,
                    key=wait.key,
                    index=index,
                    size=len(wait.members),
                )
                self._send(_placed(member, parent=parent))

    def _send(self, record: CallRecord) -> None:
        """Send a call; if it has ended before, as one that was cancelled, do what follows."""
        found = self.send(record)
        if found is not None and found.has_ended:
            self.ended(found)

    # --- ends -----------------------------------------------------------------------------------

    def ended(self, record: CallRecord) -> None:
        """Do what follows from the end of a call; it may be repeated."""
        place = record.flow
        if place is None:
            return
        is_last = not place.then or record.status != CallStatus.SUCCESSFUL
        if not is_last:
            following = self._following(record, place.then[0])
            self._send(replace(following, args=[record.return_value, *following.args]))
        for following in place.then if is_last else ():
            self.states(place_of(following).results).add(_not_reached(following, record))
        if is_last and place.parent is not None:
            self._member_ended(place.parent, record)
        if place.steps:
            # A wait that a signal has ended has a message for its timeout, which would begin a call again whose
            # record has expired by then.
            self.withdraw(record, later=True)
            self.states(place.results).steps.remove(record.id)

    def _member_ended(self, parent: FlowParent, record: CallRecord) -> None:
        """Store the outcome of a member; send the call that waits again if it was the last one."""
        steps = self.states(parent.results).steps
        failure = record.errors[-1] if record.errors else None
        outcome = {
            "id": record.id,
            "status": str(record.status),
            "value": record.return_value,
            "error": None if failure is None else f"{failure.exception_class_path}: {failure.text}",
        }
        steps.record(parent.id, member_key(parent.key, parent.index), to_json(outcome))
        block, blocks = parent.index // BLOCK, -(-parent.size // BLOCK)
        size = min(BLOCK, parent.size - block * BLOCK)
        is_last = False
        if len(steps.names(parent.id, f"{parent.key}.m.{block}.*")) == size:
            steps.record(parent.id, f"{parent.key}.b.{block}", b"1")
            is_last = len(steps.names(parent.id, f"{parent.key}.b.*")) == blocks
        payload = steps.get(parent.id, PAYLOAD)
        if payload is None:  # that call has ended
            steps.remove(parent.id)
        elif is_last:
            self.wake(CallRecord.from_json(parent.id, payload), parent.key)

    # --- signals --------------------------------------------------------------------------------

    def signal(self, states: CallStates, call: str, name: str, data: object) -> bool:
        """Store a signal, and send the call that waits for it again; return whether it has this signal."""
        key = wait_key(name)
        value = to_json({"signal": data})
        record = _current(states, call)
        if record is not None and record.has_ended:
            return False
        stored = states.steps.record(call, key, value)
        waits = b'"deadline"' in stored[:12]
        if waits:
            stored = states.steps.record(call, key, value, stored)
        record = _current(states, call)  # it may have begun, or ended
        if record is not None and record.has_ended:
            states.steps.remove(call)
            return False
        if stored != value:
            return False
        place = None if record is None else record.flow
        if record is not None and place is not None and (waits or place.waiting == key):
            self.wake(record, key)
        return True

    # --- cancelling, and showing ------------------------------------------------------------------

    def cancel(self, states: CallStates, call: str) -> bool:
        """
        Cancel what has not started of a flow, given its last call, which was cancelled or has not begun.

        Return whether the flow cannot succeed any more.
        """
        tree = self.tree(states, call)
        return sum([self._cancel_part(part) for part in (*tree.before, tree)]) > 0

    def _cancel_part(self, part: CallTree) -> bool:
        """Cancel a call that has not ended, the members for which it waits, and the calls after it."""
        record = part.record
        place = None if record is None else record.flow
        if record is None or place is None:
            return False
        if not record.has_ended:
            states, before = self.states(place.results), record
            record = states.try_change(
                before.id, before, lambda found: found.after(CallEvent.CANCEL)
            )
            if record is None:  # it runs: the call after it is cancelled before it is sent
                for planned in place.then[:1]:
                    following = self._following(before, planned).after(CallEvent.CANCEL)
                    self.states(place_of(following).results).add(following)
                return bool(place.then)
        if record.status != CallStatus.CANCELLED:
            return False
        self.ended(record)
        self.withdraw(record)
        for member in part.parts:
            for item in (*member.before, member):
                self._cancel_part(item)
        return True

    def _following(self, record: CallRecord, following: CallRecord) -> CallRecord:
        """Return the call after one in a chain, with its place."""
        place = place_of(record)
        return _placed(following, then=place.then[1:], parent=place.parent, before=place.before + 1)

    def withdraw(self, record: CallRecord, *, later: bool = False) -> None:
        """Delete the message of a call that is cancelled, or that of a ``later`` run of one that has ended."""

    def tree(self, states: CallStates, call: str) -> CallTree:
        """Return what is stored of a flow, given its last call."""
        try:
            record = states.read(call)
        except errors.KeyNotFoundError:
            record = None
        place = None if record is None else record.flow
        before: list[CallTree] = []
        count = None if place is None else place.before
        while count is None or len(before) < count:
            part = self._part(states, f"{call}-c{len(before) + 1}")
            if part.record is None:
                break
            before.append(part)
            count = len(before) + len(place_of(part.record).then) - 1 if count is None else count
        if record is None and before and before[-1].record is not None:
            planned = place_of(before[-1].record).then
            before += [CallTree(id=item.id, task=item.task) for item in planned[:-1]]
            if planned:
                return CallTree(id=call, task=planned[-1].task, before=before)
        found = self._part(states, call, record)
        return replace(found, before=before)

    def _part(self, states: CallStates, call: str, record: CallRecord | None = None) -> CallTree:
        """Return a call with its members."""
        if record is None:
            try:
                record = states.read(call)
            except errors.KeyNotFoundError:
                return CallTree(id=call)
        place = record.flow
        ids: list[tuple[CallStates, str]] = []
        if place is not None:
            # A chain among the members has the id of its last call.
            for number, item in enumerate(place.members):
                ids.append((self.states(place_of(item).results), f"{call}-m{number}"))
            for key, size in (place.gathered or {}).items():
                if found := _GATHERED.fullmatch(key):
                    start, count = f"{call}-g{found[1] or 1}-", min(size, _MAX_MEMBERS)
                    ids += [(states, f"{start}{index}") for index in range(count)]
        parts = [self.tree(where, item) for where, item in ids]
        return CallTree(id=call, task=record.task, record=record, parts=parts)


@dataclass(frozen=True, kw_only=True)
class CallTree:
    """A call of a flow, with those that it waits for."""

    id: str
    task: str = ""
    """The name of its task; empty: it is not known."""
    record: CallRecord | None = None
    """What is stored of it; ``None``: it has not begun, or its record has expired."""
    before: Sequence[CallTree] = ()
    """The calls before it in its chain."""
    parts: Sequence[CallTree] = ()
    """The members of its group, and the calls that its function has gathered."""

    @property
    def status(self) -> str:
        """Its status; empty: it is not known, or it has not begun."""
        return "" if self.record is None else str(self.record.status)


def _current(states: CallStates, call: str) -> CallRecord | None:
    """Return the record of a call, also if it has expired while the call waits; ``None``: it has not begun."""
    try:
        return states.read(call)
    except errors.KeyNotFoundError:
        payload = states.steps.get(call, PAYLOAD)
        return None if payload is None else CallRecord.from_json(call, payload)


def _not_reached(following: CallRecord, record: CallRecord) -> CallRecord:
    """Return the record of a call after one that has not succeeded."""
    text = f"call {record.id} of task {record.task} is {str(record.status).lower()}"
    if record.errors:
        last = record.errors[-1]
        text += f": {last.exception_class_path}: {last.text}"
    return following.after_failure(CallEvent.FAIL, TaskError, text, "")
