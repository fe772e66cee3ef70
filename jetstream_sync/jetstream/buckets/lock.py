"""Locks on keys of a bucket."""

# Rules:
#
# 1. The holder writes the key again every third of the ttl, each time with the expected last revision.
# 2. A client that waits takes over a key whose revision has not changed for the ttl of its holder, also
#    with the expected last revision. So clocks are not compared, and at most one client succeeds.
# 3. The holder regards the lock as lost nine tenths of its ttl after it began to send the last write
#    that was confirmed: before another client can take over.
# 4. A write whose reply did not come is found by its owner, a name that is unique for each attempt.
# 5. Revisions repeat when a bucket is created again or restored. So before each write over a value, the
#    value is read from the leader, and it is written only if its owner is the expected one.

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from ... import errors
from ...client.threads import Signal, spawn
from ...codec import dumps, loads
from ...lease_times import LOST_FRACTION, RENEWAL_FRACTION
from ...locks import new_lock
from ...net.clock import Deadline, monotonic, seconds
from ..api_requests import limited

if TYPE_CHECKING:
    from typing_extensions import Self

    from .entries import KeyValueEntry
    from .watch import Watch

#: The shortest ``ttl``, in seconds: a shorter one would be lost by a short stall of the process.
_MIN_TTL_S: Final = 1.0
#: Seconds before a failed write is repeated, also one in place of a holder that has stopped.
_RETRY_S: Final = 0.25
#: Seconds after the timeout of `acquire` in which the reply to the last attempt may arrive.
_LAST_ATTEMPT_S: Final = 0.2


class LockState(Enum):
    """The state of a lock, apart from the time."""

    FREE = "not held"
    """It was not acquired, or was released."""
    HELD = "held"
    """It was acquired; it is lost when its last write is too old, or in a forked child."""
    LOST = "lost"
    """It was found to be over without a release."""


class LockEvent(Enum):
    """An event that changes the state of a lock."""

    ACQUIRE = "acquire"
    """The key was written with the name of this owner."""
    LOSE = "lose"
    """Another client has written the key, the last write is too old, or the thread of the renewals has failed."""
    RELEASE = "release"
    """The user called ``release()``, or was interrupted while acquiring."""


LOCK_TRANSITIONS: Final[dict[tuple[LockState, LockEvent], LockState]] = {
    (LockState.FREE, LockEvent.ACQUIRE): LockState.HELD,
    (LockState.FREE, LockEvent.LOSE): LockState.FREE,
    (LockState.FREE, LockEvent.RELEASE): LockState.FREE,
    # The last write was too old, and the thread of the renewals has not noticed it yet.
    (LockState.HELD, LockEvent.ACQUIRE): LockState.HELD,
    (LockState.HELD, LockEvent.LOSE): LockState.LOST,
    (LockState.HELD, LockEvent.RELEASE): LockState.FREE,
    (LockState.LOST, LockEvent.ACQUIRE): LockState.HELD,
    (LockState.LOST, LockEvent.LOSE): LockState.LOST,
    # A former holder still sees that it was lost.
    (LockState.LOST, LockEvent.RELEASE): LockState.LOST,
}


class _Bucket(Protocol):
    """What a lock needs of a `KeyValue`, which imports this module."""

    def create(self, key: str, value: bytes) -> int: ...

    def update(self, key: str, value: bytes, last: int) -> int: ...

    def delete(self, key: str, last: int | None = None) -> int: ...

    def get(
        self, key: str, revision: int | None = None, consistent: bool = False
    ) -> KeyValueEntry: ...

    def watch(self, keys: str) -> Watch[KeyValueEntry]: ...


class Lock:
    """
    A lock that one client holds at a time, as long as it writes to a key of a bucket.

    Returned by `KeyValue.lock`. A ``with`` block acquires and releases it. The lock of a client that stops,
    or loses its connection for longer than ``ttl``, goes to another one; `lost` tells the former holder.
    Effects on other systems can be protected by `token`, which is larger for each later holder. If the bucket
    is created again, another client can acquire the lock at once; the former holder notices it with its next
    renewal, after a third of ``ttl`` at most.

    Any thread may call the methods; two threads that exclude each other need an object each.
    """

    def __init__(
        self, kv: _Bucket, key: str, ttl: float | timedelta, timeout: float | timedelta | None
    ) -> None:
        self._kv = kv
        self._key = key
        self._ttl = seconds(ttl, "ttl")
        if self._ttl < _MIN_TTL_S:
            raise errors.InvalidOptionError("ttl", ttl, f"must be at least {_MIN_TTL_S:g} second")
        self._timeout = None if timeout is None else seconds(timeout)
        self._owner = ""
        # Held while the key is written, so that a renewal and a release follow each other.
        self._writing = new_lock()
        self._released = Signal()
        self._released.set()
        # Guards changes of the state; it is never held during a request.
        self._changing = new_lock()
        self._state = LockState.FREE
        self._pid = 0
        self._token = 0
        # --- under _writing ---
        self._renewed_at = 0.0

    @property
    def key(self) -> str:
        """The key."""
        return self._key

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._state is LockState.HELD and not (self._released.is_set() or self.lost)

    @property
    def lost(self) -> bool:
        """Whether the lock was acquired and is over without a release; another client may hold it."""
        if self._state is not LockState.HELD or self._released.is_set():
            return self._state is LockState.LOST
        late = monotonic() - self._renewed_at >= self._ttl * LOST_FRACTION
        return late or self._pid != os.getpid()

    @property
    def token(self) -> int:
        """
        The revision with which the lock was acquired last, for fencing; 0: it never was.

        Revisions start again when the bucket is deleted and created again.
        """
        return self._token

    def check(self) -> None:
        """
        Raise if the lock is not held; call it before an effect that must not happen twice.

        Raises:
            LockLostError: the lock is lost, or was not acquired.

        """
        if not self.held:
            raise errors.LockLostError(f"the lock {self._key!r} is not held any more")

    def wait_lost(self, timeout: float | timedelta | None = None) -> bool:
        """
        Wait until the lock is lost or released; return whether it is lost.

        Args:
            timeout: in seconds; ``None``: no limit.

        """
        deadline = Deadline(timeout)
        while self.held and not deadline.expired():
            left = self._renewed_at + self._ttl * LOST_FRACTION - monotonic()
            self._released.wait_for(lambda: not self.held, deadline.sooner(max(0.0, left)))
        return self.lost

    # --- acquiring ------------------------------------------------------------------------------

    def acquire(self, timeout: float | timedelta | None = None) -> bool:
        """
        Wait for the lock, and hold it until `release()`.

        Args:
            timeout: in seconds; 0: do not wait; ``None``: the timeout of `KeyValue.lock`.

        Returns:
            Whether the lock is held; ``False``: it was not free in time.

        Raises:
            Error: this object holds the lock already; otherwise as `KeyValue.put` and `KeyValue.watch`.

        """
        if self.held:
            raise errors.Error(f"this object holds the lock {self._key!r} already")
        deadline = Deadline(self._timeout if timeout is None else timeout)
        self._owner = os.urandom(11).hex()
        left = deadline.left()
        try:
            # The last attempt needs a reply. Without waiting, the timeout of the context applies.
            with nullcontext() if not left else limited(Deadline(left + _LAST_ATTEMPT_S)):
                if self._write_over(None):
                    return True
                if deadline.expired():
                    return False
                with self._kv.watch(self._key) as watch:
                    return self._acquire_after(watch, deadline)
        except errors.Error:
            raise
        except BaseException:
            self._take_back()  # a Ctrl-C, or there is no thread for the renewals
            raise

    def _take_back(self) -> None:
        """Delete the key if this object has written it."""
        self._released.set()
        self._change(LockEvent.RELEASE)
        with suppress(errors.Error):
            # A write that was interrupted is stored before this one is answered.
            with suppress(errors.KeyExistsError):
                self._kv.create(self._key, self._value())
            entry = self._entry_of(self._owner)
            if entry is not None:
                self._kv.delete(self._key, last=entry.revision)

    def _acquire_after(self, watch: Watch[KeyValueEntry], deadline: Deadline) -> bool:
        """Wait until the holder has released the lock, or has stopped; as `acquire`."""
        entry, free_at = None, monotonic() + self._ttl
        while True:
            try:
                entry = watch.next(deadline.sooner(max(0.0, free_at - monotonic())).left())
            except errors.TimeoutError:
                if monotonic() >= free_at:
                    if self._write_over(entry):
                        return True
                    free_at = monotonic() + _RETRY_S
                if deadline.expired():
                    return False
            else:
                free_at = monotonic() + (_ttl_of(entry, self._ttl) if entry.has_value else 0.0)

    def _write_over(self, entry: KeyValueEntry | None) -> bool:
        """Write the key in place of an entry that is over; return whether this object has the lock."""
        began = monotonic()
        try:
            if entry is None or not entry.has_value:
                revision = self._kv.create(self._key, self._value())
            elif (owner := _owner_of(entry)) is None:
                raise errors.InvalidOptionError(
                    "key", self._key, "is not a lock: it has the value of another program"
                )
            elif self._entry_of(owner, entry.revision) is None:
                return False
            else:
                revision = self._kv.update(self._key, self._value(), entry.revision)
        except (errors.KeyExistsError, errors.WrongLastRevisionError):
            return False
        except errors.TimeoutError:
            found = self._entry_of(self._owner)
            if found is None:
                raise
            revision = found.revision
        self._token = revision
        self._renewed_at = began
        self._pid = os.getpid()
        self._released = released = Signal()
        self._change(LockEvent.ACQUIRE)
        name = f"lock-{self._key}"
        spawn(name, lambda: self._renew_until(released), lambda _: self._lose(released))
        return True

    def _value(self) -> bytes:
        return dumps({"owner": self._owner, "ttl": self._ttl})

    def _entry_of(self, owner: str, revision: int | None = None) -> KeyValueEntry | None:
        """Return the entry of the key if an owner has written it, with a revision if that is given."""
        with suppress(errors.KeyNotFoundError):
            entry = self._kv.get(self._key, consistent=True)
            if _owner_of(entry) == owner and revision in (None, entry.revision):
                return entry
        return None

    # --- holding --------------------------------------------------------------------------------

    def _renew_until(self, released: Signal) -> None:
        """Write the key again and again; the function of a thread."""
        wait = self._ttl * RENEWAL_FRACTION
        while not released.wait(wait):
            wait = self._ttl * RENEWAL_FRACTION
            try:
                is_lost = self.lost or not self._renew(released)
            except errors.Error:
                wait = _RETRY_S  # until it is lost
                continue
            if is_lost:
                self._lose(released)
                return

    def _lose(self, released: Signal) -> None:
        """Regard the lock as lost, also because its thread has failed."""
        self._change(LockEvent.LOSE, released)
        released.wake_all()  # the threads in `wait_lost`

    def _change(self, event: LockEvent, released: Signal | None = None) -> None:
        """Change the state; with ``released``, unless the lock was acquired again since that was made."""
        with self._changing:
            if released is None or released is self._released:
                self._state = LOCK_TRANSITIONS[self._state, event]

    def _renew(self, released: Signal) -> bool:
        """Write the key again; return false if another client has written it."""
        with self._writing:
            if released.is_set():
                return True
            began = monotonic()
            entry = self._entry_of(self._owner)
            if entry is None:
                return False
            try:
                self._kv.update(self._key, self._value(), entry.revision)
            except errors.WrongLastRevisionError:
                # A write before this one may have been stored late, without a reply.
                entry = self._entry_of(self._owner)
                if entry is None:
                    return False
                self._kv.update(self._key, self._value(), entry.revision)
            if self.lost:
                return False  # it was seen to be lost, and stays so
            self._renewed_at = began
            return True

    def release(self) -> None:
        """
        Release the lock, so that another client gets it at once; if it is lost, nothing happens.

        Raises:
            Error: as `KeyValue.delete`; the lock is then free after its ``ttl``.

        """
        if self._pid != os.getpid() or self._released.is_set():
            return
        was_lost = self.lost
        # First: after a Ctrl-C the renewals have ended, and `held` is false.
        self._released.set()
        if was_lost:
            self._change(LockEvent.LOSE)
        self._change(LockEvent.RELEASE)
        with self._writing, suppress(errors.WrongLastRevisionError):
            entry = self._entry_of(self._owner)
            if entry is not None:
                self._kv.delete(self._key, last=entry.revision)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise errors.TimeoutError(f"the lock {self._key!r} was not free in time")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "held" if self.held else "lost" if self.lost else "not held"
        return f"<{type(self).__name__} {self._key!r} {state}>"


def _fields_of(entry: KeyValueEntry) -> dict[str, object]:
    try:
        fields = loads(entry.value)
    except errors.InvalidResponseError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _owner_of(entry: KeyValueEntry) -> str | None:
    """Return the owner of a lock; ``None``: the value is not that of a lock."""
    owner = _fields_of(entry).get("owner")
    return owner if isinstance(owner, str) else None


def _ttl_of(entry: KeyValueEntry, default: float) -> float:
    """Return for how long the lock of an entry is held without another write, in seconds."""
    ttl = _fields_of(entry).get("ttl")
    return float(ttl) if isinstance(ttl, int | float) and ttl > 0 else default
