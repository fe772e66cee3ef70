"""
What is done once: calls of unique tasks with the same arguments, and messages of handlers with ``once``.

Rules of unique tasks, of which one call with some arguments waits, or waits and runs, at a time:

1. A key, the last message of a subject, has the id of the call. The sender creates it before it sends the message. A worker deletes it
   before the function reads its data (``"queued"``), or when the call has ended (``"until_done"``).
2. A key counts while the message of its call is stored. A sender that finds a key without a message waits for
   the other sender, and replaces the key when that must have given up: no wish is lost with a killed sender.
3. Only the message that was read is replaced or deleted.
4. Data of another program in a key is no call. Its key is replaced as one without a message.
5. An argument that equals its default counts as not passed. So versions of a program with other defaults, or with
   further ones, compute the same key from a message.

Rules of ``once``, which keeps the state of each message in a key-value bucket:

1. The key is the id of the message, and the value ``running``, ``failed`` or ``done``.
2. A delivery that finds ``running`` follows one whose worker died, or lost its lease: the handler may
   have had its effect. It runs again, unless it still runs in this process.
3. ``failed`` replaces ``running`` only after a first run that raised. If a later run raises, the record
   stays ``running``: an earlier run may have had its effect.
4. ``done`` is stored before the message is acknowledged. If it cannot be stored, the message is
   acknowledged all the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from .. import StreamConfig, errors
from ..locks import new_lock
from ..net.clock import BackoffDelay, Deadline
from .arguments import Arguments, ordered_json
from .call_messages import call_id, is_call_id
from .calls import CallStates, sent_call
from .checks import check_option, short_digest
from .context import CallProgress, Context, RunState
from .errors import NoCallError, Reject, Retry, StateUnknownError
from .logs import log
from .openers import Creator, Opener

if TYPE_CHECKING:
    from .. import JetStreamMsg, KeyValue, Stream
    from .call_messages import CallRecord

#: The stream of the keys, and the first token of its subjects. Not a bucket, whose messages cannot be deleted: a
#: marker would stay for each call.
UNIQUE_STREAM: Final = "TASK_UNIQUE"
_SUBJECT: Final = "task-unique"
UNIQUE: Final = StreamConfig(name=UNIQUE_STREAM, subjects=[f"{_SUBJECT}.>"], max_msgs_per_subject=1)
#: The values of the option.
UNIQUE_MODES: Final = ("queued", "until_done")
#: Time in which a sender stores its message after the key, in seconds, and the delays of looking for it.
_SENDING_S: Final = 10.0
_FIRST_DELAY_S: Final = 0.05
_MAX_DELAY_S: Final = 0.5
#: The states of messages with ``once``.
_RUNNING: Final = b"running"
_FAILED: Final = b"failed"
_DONE: Final = b"done"
#: Characters of an id that a key cannot have, and the one that introduces their codes.
_ESCAPED: Final = re.compile(rb"[^-/_.a-zA-Z0-9]")


class UniqueCalls:
    """
    The keys of the calls of one task.

    Args:
        task: the `Task`.
        mode: ``"queued"`` or ``"until_done"``.
        names: the parameters that tell calls apart; empty: all.
        create: creates the stream of the keys, which may be deleted at any time.

    """

    def __init__(self, task: Any, mode: str, names: Sequence[str], create: Creator) -> None:
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
            lambda nc: create(nc, [UNIQUE]),
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


class Once(RunState):
    """The states of the messages of one handler."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        self._lock = new_lock()
        # The messages whose handlers run now, and the revisions to replace if they fail.
        self._running: dict[str, int | None] = {}

    def begin(self, context: Context) -> bool:
        """Record that the handler is about to run; return false if it is done."""
        message_id = context.id
        with self._lock:
            if message_id in self._running:
                raise Retry("the handler still runs for an earlier delivery of the message")
            self._running[message_id] = None
        try:
            revision, is_new = self._begin(_key(message_id))
        except BaseException:
            self._forget(message_id)
            raise
        if not revision:
            self._forget(message_id)
            log.info("message %s is done already", message_id)
            return False
        context.maybe_done = not is_new
        with self._lock:
            self._running[message_id] = revision if is_new else None
        return True

    def _begin(self, key: str) -> tuple[int, bool]:
        """Return the revision of the record, 0 if it is done, and whether no earlier run may have had its effect."""
        try:
            return self._bucket.create(key, _RUNNING), True
        except errors.KeyExistsError:
            pass
        try:
            entry = self._bucket.get(key, consistent=True)
            if entry.value == _DONE:
                return 0, False
            revision = self._bucket.update(key, _RUNNING, last=entry.revision)
        except (errors.KeyNotFoundError, errors.WrongLastSequenceError):
            raise Retry("another worker begins with the message, too") from None
        return revision, entry.value == _FAILED

    def has_ended(self, message_id: str, message: JetStreamMsg) -> bool:
        """Return whether the handler has succeeded; raises as `KeyValue.value`."""
        del message
        return self._bucket.value(_key(message_id)) == _DONE

    def done(self, context: Context) -> None:
        """Record that the handler has succeeded."""
        message_id = context.id
        self._forget(message_id)
        try:
            self._bucket.put(_key(message_id), _DONE)
        except errors.Error as error:
            log.warning("message %s was handled, but that was not recorded: %s", message_id, error)

    def failed(self, context: Context, error: BaseException, *, is_last: bool) -> bool:
        """Record that the handler has raised; if that fails, the next run may repeat an effect."""
        del error, is_last
        revision = self._forget(context.id)
        if revision is not None:
            try:
                self._bucket.update(_key(context.id), _FAILED, last=revision)
            except errors.Error as failure:
                log.debug("the failure of message %s was not recorded: %s", context.id, failure)
        return False

    def _forget(self, message_id: str) -> int | None:
        with self._lock:
            return self._running.pop(message_id, None)


def _key(message_id: str) -> str:
    """Return the key of a message: its id, with codes for the characters that a key cannot have."""
    escaped = _ESCAPED.sub(lambda found: b"=%02X" % found[0][0], message_id.encode())
    return escaped.decode()
