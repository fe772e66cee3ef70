"""
Unique tasks: one call with some arguments waits, or waits and runs, at a time.

Rules:

1. A key, the last message of a subject, has the id of the call. The sender creates it before it sends the message. A worker deletes it
   before the function reads its data (``"queued"``), or when the call has ended (``"until_done"``).
2. A key counts while the message of its call is stored. A sender that finds a key without a message waits for
   the other sender, and replaces the key when that must have given up: no wish is lost with a killed sender.
3. Only the message that was read is replaced or deleted.
4. Data of another program in a key is no call. Its key is replaced as one without a message.
5. An argument that equals its default counts as not passed. So versions of a program with other defaults, or with
   further ones, compute the same key from a message.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from .. import StreamConfig, errors
from ..net.clock import BackoffDelay, Deadline
from .arguments import Arguments, ordered_json
from .call_messages import call_id, is_call_id
from .calls import CallStates, sent_call
from .checks import check_option, short_digest
from .context import CallProgress, Context, RunState
from .errors import NoCallError, Reject, StateUnknownError
from .logs import log
from .resources import Creator, Opener, Resource

if TYPE_CHECKING:
    from .. import JetStreamMsg, Stream
    from .call_messages import CallRecord
    from .tasks import Task

#: The stream of the keys, and the first token of its subjects. Not a bucket, whose messages cannot be deleted: a
#: marker would stay for each call.
UNIQUE_STREAM: Final = "TASK_UNIQUE"
_SUBJECT: Final = "task-unique"
#: The values of the option.
UNIQUE_MODES: Final = ("queued", "until_done")
#: Time in which a sender stores its message after the key, in seconds, and the delays of looking for it.
_SENDING_S: Final = 10.0
_FIRST_DELAY_S: Final = 0.05
_MAX_DELAY_S: Final = 0.5


def unique_resource() -> Resource:
    """Return the config of the stream of the keys."""
    return StreamConfig(name=UNIQUE_STREAM, subjects=[f"{_SUBJECT}.>"], max_msgs_per_subject=1)


class UniqueCalls:
    """
    The keys of the calls of one task.

    Args:
        task: the task.
        mode: ``"queued"`` or ``"until_done"``.
        names: the parameters that tell calls apart; empty: all.
        create: creates the stream of the keys, which may be deleted at any time.

    """

    def __init__(
        self, task: Task[..., Any], mode: str, names: Sequence[str], create: Creator
    ) -> None:
        check_option("unique", mode, mode in UNIQUE_MODES, f"must be one of {UNIQUE_MODES}")
        self._arguments = Arguments(task.function)
        known = self._arguments.names
        ok = not isinstance(names, str) and set(names) <= set(known)
        check_option("unique_by", names, ok, f"must be a list of parameters: {', '.join(known)}")
        self._task = task
        #: Whether the key is deleted before the function runs.
        self.is_queued: bool = mode == "queued"
        self._names = sorted(names)
        self._opener: Opener[Stream] = Opener(
            task.queue.connection,
            lambda nc: nc.jetstream().get_stream(UNIQUE_STREAM),
            lambda nc: create(nc, [unique_resource()]),
        )

    def claim(self, record: CallRecord) -> str:
        """Return the id of the call that is stored for the arguments: that of this one if there was none."""
        return self._opener.use(lambda stream: self._claim(stream, record))

    def _claim(self, stream: Stream, record: CallRecord) -> str:
        js = self._task.queue.connection().jetstream()
        subject, own = self._subject(record.args, record.kwargs), record.id.encode()
        delays, last, known = BackoffDelay(_FIRST_DELAY_S, _MAX_DELAY_S), 0, 0
        sending = Deadline(_SENDING_S)
        while True:
            with suppress(errors.WrongLastSequenceError):
                js.publish(subject, own, stream=UNIQUE_STREAM, expected_last_subject_sequence=last)
                return record.id
            last = 0
            with suppress(errors.MessageNotFoundError):
                found = stream.get_msg(last_by_subject=subject, consistent=True)
                call = found.data.decode(errors="replace")
                if is_call_id(call) and (call == record.id or self._is_stored(call)):
                    return call
                if found.seq != known:
                    known, sending = found.seq, Deadline(_SENDING_S)
                now = stream.info().ts
                assert now is not None
                # The clock of the server may have been set back since.
                if sending.expired() or (now - found.time).total_seconds() >= _SENDING_S:
                    last = found.seq
                else:
                    time.sleep(delays.next())

    def _is_stored(self, call: str) -> bool:
        """Return whether a call waits or runs."""
        states = self._task.states
        if states is not None:
            with suppress(errors.KeyNotFoundError, NoCallError):
                if states.read(call).has_ended:
                    return False
        return self._task.queue.find(self._task.name, call) is not None

    def release(self, call: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Delete the key of a call, unless another one has it."""
        try:
            subject = self._subject(args, kwargs)
        except TypeError:
            return  # they do not fit the function
        with suppress(errors.NotFoundError):
            stream = self._opener.open()
            found = stream.get_msg(last_by_subject=subject, consistent=True)
            if found.data == call.encode():
                stream.delete_msg(found.seq)

    def _subject(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        given = self._arguments.given(args, kwargs)
        values = sorted(item for item in given.items() if item[0] in self._names or not self._names)
        key = ordered_json([self._task.queue.prefix, self._task.name, values])
        return f"{_SUBJECT}.{short_digest(key, 32)}"


class UniqueState(RunState):
    """Records the runs of the calls of a unique task, and deletes their keys."""

    def __init__(self, inner: RunState, calls: UniqueCalls) -> None:
        #: Records the runs.
        self.inner: RunState = inner
        self.results: CallStates | None = inner.results
        self.acks_failures: bool = inner.acks_failures
        self._calls = calls

    def has_ended(self, message_id: str, message: JetStreamMsg) -> bool:
        """Return as `RunState.has_ended`."""
        return self.inner.has_ended(message_id, message)

    def begin(self, context: Context) -> bool:
        """Record that the function is about to run."""
        if not self.inner.begin(context):
            self._end(context.message)
            return False
        if self._calls.is_queued:
            try:
                self._release(context.message)
            except errors.Error as error:
                raise StateUnknownError(
                    f"the key of the call cannot be deleted: {error}"
                ) from error
        return True

    def done(self, context: Context) -> None:
        """Record that the call has succeeded."""
        self.inner.done(context)
        self._end(context.message)

    def failed(self, context: Context, error: BaseException, *, is_last: bool) -> bool:
        """Record that a run has failed."""
        found = self.inner.failed(context, error, is_last=is_last)
        if is_last:
            self._end(context.message)
        return found

    def cancel(self, message: JetStreamMsg) -> bool:
        """Record that a call that runs is cancelled."""
        found = self.inner.cancel(message)
        if found:
            self._end(message)
        return found

    def progress(self, message: JetStreamMsg, progress: CallProgress) -> None:
        """Record how far a run is."""
        self.inner.progress(message, progress)

    def give_up(self, message: JetStreamMsg, reason: str) -> None:
        """Record that a message is given up."""
        self.inner.give_up(message, reason)
        self._end(message)

    def _release(self, message: JetStreamMsg) -> None:
        with suppress(Reject):  # it is no call of the task, and has no key
            call = sent_call(message.data)
            self._calls.release(call_id(message), call.args, call.kwargs)

    def _end(self, message: JetStreamMsg) -> None:
        """Delete the key of a call that has ended; one that stays is replaced by the next sender."""
        try:
            self._release(message)
        except errors.Error as error:
            log.warning("call %s: its key for unique calls stays: %s", call_id(message), error)
