"""
The state of each message in a key-value bucket, for handlers with ``once``.

Rules:

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
from typing import TYPE_CHECKING, Final

from ... import errors
from ...locks import new_lock
from ..context import Context, RunState
from ..errors import Retry
from ..logs import log

if TYPE_CHECKING:
    from ... import JetStreamMsg, KeyValue

_RUNNING: Final = b"running"
_FAILED: Final = b"failed"
_DONE: Final = b"done"
#: Characters of an id that a key cannot have, and the one that introduces their codes.
_ESCAPED: Final = re.compile(rb"[^-/_.a-zA-Z0-9]")


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
