"""Calls of tasks in this process, without a server: their states, what follows from their ends, and their runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from .. import errors
from .call_messages import CallRecord, payload_of
from .calls import CallStates, Change, NewCall
from .context import CallProgress
from .errors import CallEndedError
from .flows import Flows
from .steps import StepStore
from .tasks import Task


class MemorySteps:
    """A `StepStore` of this process."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = {}

    def names(self, call: str, pattern: str = ">") -> list[str]:
        """As `StepStore.names`."""
        head = pattern.rstrip("*>")
        return [name for name in self._values.get(call, ()) if name.startswith(head)]

    def load(self, call: str) -> dict[str, bytes]:
        """As `StepStore.load`."""
        return dict(self._values.get(call, {}))

    def get(self, call: str, name: str) -> bytes | None:
        """As `StepStore.get`."""
        return self._values.get(call, {}).get(name)

    def record(self, call: str, name: str, value: bytes, replaces: bytes | None = None) -> bytes:
        """As `StepStore.record`."""
        steps = self._values.setdefault(call, {})
        if steps.get(name) == replaces:
            steps[name] = value
        return steps[name]

    def remove(self, call: str) -> None:
        """As `StepStore.remove`."""
        self._values.pop(call, None)


class MemoryCalls(CallStates):
    """The states of calls in this process."""

    has_messages = False

    def __init__(self) -> None:
        self._records: dict[str, CallRecord] = {}
        self._progress: dict[str, CallProgress] = {}
        self.steps: StepStore = MemorySteps()
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
        self, call: str, sent: CallRecord | None, change: Change, revision: int = 0
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
        new_client: returns a `TestClient` of the worker with states of calls.
        tasks: the tasks by name.

    """

    def __init__(
        self,
        new_client: Callable[[MemoryCalls], Any],
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
        error: BaseException | None = outcome.error
        return error
