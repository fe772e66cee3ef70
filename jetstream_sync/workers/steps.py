"""
Steps of a call: what a run of its function records, and what it waits for.

Rules:

1. The key of a step is ``<call>.<step>``, in a bucket without a TTL. It is written once: the first writer wins,
   and all others get its value. Only a wait for a signal has two values, and the second one is final.
2. Each run begins at the top of the function, and reads the recorded steps when it asks for the first one.
3. A wait ends the run with `Suspended`. First the state becomes ``READY``, then what begins the next run is
   stored: a schedule, or the members; the waiter of a signal is stored before. Then the message is acknowledged.
4. What ends a wait is stored as a key first; then a message for the call follows.
5. A message is dropped only if a later one has begun a run: that run has read the key (`order_of_run`).
6. Times are those of the server's clock, which sends the messages that end a wait. It is not before the time of the
   message, also if the local clock was set back since both were compared.
7. What another version has recorded, and this one does not read, is given back to other processes.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from .. import KeyValueConfig, codec, errors
from ..converters import MISFITS
from ..exact import exact
from .arguments import converted, encoded_value
from .call_messages import call_id
from .checks import check_option, unwrapped
from .errors import MembersFailedError, StepsChangedError, misfit
from .openers import Creator, bucket_opener

if TYPE_CHECKING:
    from .. import Connection, KeyValue, Stream

T = TypeVar("T")

#: The step with the payload of the messages that begin a call again.
PAYLOAD: Final = "=call"
#: Number of members whose ends are counted together, and maximum number of such blocks.
BLOCK: Final = 100
#: A wait that is shorter does not end the run, in seconds.
_SHORT_WAIT_S: Final = 1.0
_NAME: Final = re.compile("[-_A-Za-z0-9]{1,100}")
#: What a key of a bucket may have after the id of the call.
_STEP: Final = re.compile("[-/_=.A-Za-z0-9]+")
#: The end of the year 9999, in seconds since 1970.
_END_OF_TIME_S: Final = 253_402_300_800


class RunOrder(Enum):
    """What becomes of a message of a call that has not ended."""

    RUN = "run"
    """It begins a run."""
    DROP = "drop"
    """It is acknowledged: a run that began later has seen all that it could tell."""
    WAIT = "wait"
    """It is delivered again: the run of an earlier message has not ended."""


def order_of_run(
    began: Sequence[int], mine: Sequence[int], *, running: bool, exists: Callable[[], bool]
) -> RunOrder:
    """
    Return what becomes of a message.

    ``began`` and ``mine`` are times and sequences: of the message that began the last run, empty if there was
    none, and of this one. ``running``: the last run has not reported its end; ``exists`` returns whether its
    message is stored, so that it is delivered again if its worker has died.
    """
    if not began or began[0] == mine[0]:
        return RunOrder.RUN
    is_older = began[0] > mine[0]
    if not running:
        return RunOrder.DROP if is_older else RunOrder.RUN
    if not exists():
        return RunOrder.RUN
    return RunOrder.DROP if is_older else RunOrder.WAIT


class Suspended(BaseException):
    """A run ends here, and waits: until a time, for a signal, or for members. Not an error of the function."""

    def __init__(
        self, key: str, at: float | None = None, members: Sequence[Any] | None = None
    ) -> None:
        super().__init__(f"the call waits: {key}")
        self.key = key
        #: When the next run begins, in seconds since 1970; ``None``: when something happens.
        self.at = at
        #: The records of the calls for which it waits; ``None``: it does not wait for calls.
        self.members = members

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.at, self.members)


class StepStore(Protocol):
    """The recorded steps of calls."""

    def names(self, call: str, pattern: str = ">") -> list[str]:
        """Return the steps of a call that match a pattern."""

    def load(self, call: str) -> dict[str, bytes]:
        """Return the values of all steps of a call."""

    def get(self, call: str, name: str) -> bytes | None:
        """Return the value of a step, if any."""

    def record(self, call: str, name: str, value: bytes, replaces: bytes | None = None) -> bytes:
        """Store the value of a step that has none, or that has ``replaces``; return the value that it has then."""

    def remove(self, call: str) -> None:
        """Delete the steps of a call that has ended."""


class StepBucket:
    """
    The steps of calls, in a bucket; a `StepStore`.

    Args:
        connection: returns the connection of this process for sending.
        bucket: the name of the bucket.
        create: creates what is missing of some resources.

    """

    def __init__(self, connection: Callable[[], Connection], bucket: str, create: Creator) -> None:
        self.bucket = bucket
        self._opener = bucket_opener(connection, bucket, lambda nc: create(nc, [self.resource()]))

    def resource(self) -> KeyValueConfig:
        """Return the config of the bucket."""
        return KeyValueConfig(bucket=self.bucket)

    def _use(self, action: Callable[[KeyValue, Stream], T]) -> T:
        """Return what an action on the bucket and its stream returns; as `Opener.use`."""
        return self._opener.use(lambda opened: action(*opened))

    def names(self, call: str, pattern: str = ">") -> list[str]:
        """As `StepStore.names`, by the leader of the stream."""
        prefix = f"$KV.{self.bucket}.{call}."
        found = self._use(lambda _, stream: stream.info(subjects_filter=prefix + pattern))
        names = [subject.removeprefix(prefix) for subject in found.state.subjects or ()]
        return [name for name in names if _STEP.fullmatch(name)]  # others are of other programs

    def load(self, call: str) -> dict[str, bytes]:
        """As `StepStore.load`."""
        names = self.names(call)
        found: dict[str, bytes] = {}
        if len(names) > 1:
            keys = [f"{call}.{name}" for name in names]
            entries = self._use(lambda bucket, _: bucket.get_many(keys))
            found = {key.removeprefix(f"{call}."): item.value for key, item in entries.items()}
        for name in names:
            # A replica may lag, and only waits change.
            if name not in found or name.startswith("wait="):
                value = self.get(call, name)
                if value is not None:
                    found[name] = value
        return found

    def get(self, call: str, name: str) -> bytes | None:
        """As `StepStore.get`."""
        with suppress(errors.KeyNotFoundError):
            return self._use(lambda bucket, _: bucket.get(f"{call}.{name}", consistent=True)).value
        return None

    def record(self, call: str, name: str, value: bytes, replaces: bytes | None = None) -> bytes:
        """As `StepStore.record`."""
        key = f"{call}.{name}"

        def store(bucket: KeyValue, _stream: Stream) -> bytes:
            is_missing = replaces is None
            while True:  # until no other thread changes the key between two requests
                if is_missing:
                    with suppress(errors.KeyExistsError):
                        bucket.create(key, value)
                        return value
                try:
                    found = bucket.get(key, consistent=True)
                    if found.value != replaces:
                        return found.value
                    bucket.update(key, value, last=found.revision)
                    return value
                except errors.KeyNotFoundError:
                    is_missing = True  # the call has ended meanwhile
                except errors.WrongLastSequenceError:
                    is_missing = False

        return self._use(store)

    def remove(self, call: str) -> None:
        """As `StepStore.remove`."""

        def delete(bucket: KeyValue, stream: Stream) -> None:
            try:
                stream.purge(f"$KV.{self.bucket}.{call}.>")
            except (errors.PendingAcksError, errors.IncompleteListingError):
                # Consumers of another program might lose messages by a purge, and the stream of a bucket permits no
                # other removal: markers stay.
                for name in self.names(call):
                    bucket.delete(f"{call}.{name}")

        self._use(delete)


class Steps:
    """
    The steps that one run asks for, in the order of its code; `Context` has its methods.

    Args:
        context: the `Context` of the run.
        ask: calls a method of `StepStore` by its name.
        plan: returns the records of calls, given what their ids begin with.

    """

    def __init__(
        self,
        context: Any,
        *,
        ask: Callable[..., Any],
        plan: Callable[[Sequence[Any], str], Sequence[Any]],
    ) -> None:
        self._context = context
        self._call = call_id(context.message)
        self._ask = ask
        self._plan = plan
        self._now = context.server_time
        self._recorded: dict[str, bytes] = ask("load", self._call)
        # The steps that were recorded before, and that this run has not asked for.
        self._left = {name.partition(".")[0] for name in self._recorded} - {PAYLOAD}
        self._counts: Counter[str] = Counter()
        #: Runs a step, given its id; for middleware. It may return the value of an earlier run.
        self.runner: Callable[[Callable[[], bytes], str], bytes] = lambda run, _: run()
        #: The id of the step that runs; ``None``: none does.
        self.id: str | None = None
        #: The wait for which the run ends; ``None``: it has not come to one.
        self.suspended: Suspended | None = None

    def _numbered(self, name: str) -> str:
        self._counts[name] += 1
        count = self._counts[name]
        return name if count == 1 else f"{name}-{count}"

    def _known(self, name: str) -> bytes | None:
        """Return the value of a step, ``None`` if it is not recorded; refuse a function that has changed."""
        self._left.discard(name)
        found = self._recorded.get(name)
        if found is None:
            # A signal may come before the call waits for it.
            left = sorted(item for item in self._left if not item.startswith("wait="))
            if left:
                raise _changed(
                    f"step {name!r} is not recorded, and step {left[0]!r} is, which this run has not asked for: "
                    f"the function has changed since the call began; keep the name of the step, as in "
                    f"ctx.step(..., name={left[0]!r})"
                )
            self._context.check()
        return found

    def _record(self, name: str, value: bytes, replaces: bytes | None = None) -> bytes:
        found: bytes = self._ask("record", self._call, name, value, replaces)
        self._recorded[name] = found
        return found

    def _suspend(self, wait: Suspended) -> NoReturn:
        self.suspended = wait
        raise wait

    def step(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        name: str | None,
    ) -> Any:
        """Run a function once; return its value, as it is recorded."""
        given = getattr(unwrapped(function), "__name__", "") if name is None else exact(name)
        ok = isinstance(given, str) and _NAME.fullmatch(given) is not None
        check_option("name", given, ok, "must have 1 to 100 letters, digits, '-' and '_'")
        name = self._numbered(given)
        stored = self._known(name)
        if stored is None:
            self.id, limit = f"{self._context.id}/{name}", self._context.value_limit
            try:
                data = self.runner(lambda: encoded_value(function(*args, **kwargs), limit), self.id)
            finally:
                self.id = None
            stored = self._record(name, data)
        return converted(function, _read(name, codec.loads, stored))

    def sleep(self, seconds: float) -> None:
        """End the run, unless the time is over."""
        name = self._numbered("sleep=")
        stored = self._known(name) or self._record(name, b"%f" % (self._now() + seconds))
        until = _read(name, _time, stored)
        left = until - self._now()
        if left > _SHORT_WAIT_S:
            self._suspend(Suspended(name, at=until))
        time.sleep(max(0.0, left))

    def wait(self, signal: str, timeout: float | None) -> Any:
        """Return the data of a signal; end the run if it has not come."""
        name = wait_key(signal)
        stored = self._known(name)
        if stored is None:
            deadline = None if timeout is None else self._now() + timeout
            stored = self._record(name, codec.dumps({"deadline": deadline}))
        kind, value = _read(name, _wait, stored)
        if kind == "deadline":
            if value is None or self._now() < value:
                self._suspend(Suspended(name, at=value))
            kind, value = _read(name, _wait, self._record(name, b'{"timeout":true}', stored))
        if kind == "timeout":
            raise errors.TimeoutError(f"no signal {signal!r} in time")
        return value

    def gather(self, calls: Sequence[Any], on_error: str) -> list[Any]:
        """Return the outcomes of calls; end the run if some have not ended."""
        check_option("on_error", on_error, on_error in {"stop", "call"}, "must be 'stop' or 'call'")
        name = self._numbered("gather=")
        members = self._plan(calls, f"{self._call}-g{self._counts['gather=']}-")
        return self.outcomes(name, members, on_error)

    def outcomes(self, name: str, members: Sequence[Any], on_error: str) -> list[Any]:
        """Return the values of members, or their outcomes; end the run if some have not ended."""
        if on_error not in {"stop", "call"}:  # in a message of a newer version
            raise _changed(f"{name!r} has on_error={on_error!r}, which this version does not know")
        count = b"%d" % len(members)
        stored = self._known(name) or self._record(name, count)
        if stored != count:
            recorded = stored[:20].decode(errors="backslashreplace")
            raise _changed(
                f"{recorded} calls are recorded for {name!r}, and this run has {count.decode()}"
            )
        keys = [member_key(name, index) for index in range(len(members))]
        if any(key not in self._recorded for key in keys):
            self._suspend(Suspended(name, members=members))
        found = [_read(key, _outcome, self._recorded[key]) for key in keys]
        if on_error == "call":
            return found
        if any(item["status"] != "SUCCESSFUL" for item in found):
            raise MembersFailedError(found)
        return [item["value"] for item in found]


def _changed(text: str) -> StepsChangedError:
    """Return the error of recorded steps that do not fit this run; a process of another version may take them."""
    return misfit(StepsChangedError(text))


def _read(name: str, read: Callable[[bytes], T], stored: bytes) -> T:
    """Return what a function reads in the value of a step."""
    try:
        return read(stored)
    except (errors.InvalidResponseError, *MISFITS) as error:
        text = f"step {name!r} has a value that this version does not read: {stored[:60]!r}"
        raise _changed(text) from error


def _time(value: Any) -> float:
    """Return a time in seconds since 1970."""
    time = float(value)
    if not 0 <= time < _END_OF_TIME_S:
        raise ValueError(value)
    return time


def _wait(stored: bytes) -> tuple[str, Any]:
    """Return what a wait for a signal has recorded: its deadline, which may be ``None``, its timeout, or the signal."""
    found = codec.loads(stored)
    for kind in ("deadline", "timeout", "signal"):
        if kind in found:
            value = found[kind]
            return kind, _time(value) if kind == "deadline" and value is not None else value
    raise ValueError(found)


def _outcome(stored: bytes) -> dict[str, Any]:
    """Return the outcome of a member."""
    found: dict[str, Any] = codec.loads(stored)
    if not isinstance(found["id"], str) or not isinstance(found["status"], str):
        raise TypeError(found)
    return {"value": None, "error": None, **found}


def wait_key(signal: str) -> str:
    """Return the step that waits for a signal."""
    signal = exact(signal)
    ok = isinstance(signal, str) and _NAME.fullmatch(signal) is not None
    check_option("name", signal, ok, "must have 1 to 100 letters, digits, '-' and '_'")
    return f"wait={signal}"


def member_key(name: str, index: int) -> str:
    """Return the step with the outcome of a member."""
    block, place = divmod(index, BLOCK)
    return f"{name}.m.{block}.{place}"
