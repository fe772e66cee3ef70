"""A copy of a bucket in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from ... import errors
from ...api.echo import release
from ...client.mailbox import copy_exception
from ...client.threads import Waiters
from ...net.clock import Deadline, monotonic
from ...options import check_int
from ..api_requests import APIRequests
from .watch import Watch, is_made_up
from .watch_handle import WatchHandle

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...api.key_value import KeyValueStatus
    from .entries import KeyValueEntry


#: Seconds between two checks whether the watch has noticed that the bucket was created again.
_RECREATED_DELAY_S: Final = 0.05


def _created(api: APIRequests, stream: str, deadline: Deadline) -> str:
    """Return the creation time of a stream, as the server writes it."""
    # Only one value of the reply is used, so it is not decoded as a whole.
    response = api.ask(api.routes.to("STREAM.INFO", stream), None, deadline)
    return str(response.get("created", ""))


class _Copy:
    """The entries and the last revision, which the thread of the watch changes."""

    def __init__(self) -> None:
        self.entries: dict[str, KeyValueEntry] = {}
        self.changed = Waiters()
        self.revision = 0
        self.is_closed = False  # whether `Replica.close` was called

    def apply(self, entry: KeyValueEntry) -> None:
        """Take over a change."""
        if entry.has_value:
            self.entries[entry.key] = entry
        else:
            self.entries.pop(entry.key, None)
        if not is_made_up(entry._reply):  # noqa: SLF001 - it says which revisions have arrived
            self.revision = entry.revision
        self.changed.wake_all()

    def forget_revision(self) -> None:
        """Wait for revisions of another bucket, whose entries follow."""
        self.revision = 0


class Replica(Mapping[str, bytes]):
    """
    The current values of keys of a bucket in memory, kept up to date by a watch; read-only.

    Returned by `KeyValue.replica`. Reads need no request, and may be behind the bucket for the time that a
    message takes, or for the time of an outage, after which it catches up. If the bucket was deleted and
    created again, or restored to an earlier state, it takes over the keys of that bucket, and reports a
    `StreamRecreatedError` to ``error_cb``. A purge of the bucket's stream sends no message: the values stay
    until their keys change, or until the replica catches up after an outage. A replica that is collected is
    closed, with a `ResourceWarning`. Any thread may use it.

    After the end, because it was closed, the bucket was deleted, or the connection is closed, every read and
    wait raises the reason.
    """

    def __init__(
        self,
        api: APIRequests,
        status: KeyValueStatus,
        watch: Callable[[], Watch[KeyValueEntry]],
        origin: tuple[APIRequests, str] | None,
    ) -> None:
        # `origin`: the stream that stores what is written, if the bucket is a mirror of it.
        self._core = core = api.core
        # Values that expire without a marker are not reported.
        self._ttl: timedelta | None = None if status.limit_marker_ttl else status.ttl
        # The server's clock, because that of this machine may differ by more than the TTL.
        self._clock = status.info.ts or datetime.now(timezone.utc), monotonic()
        self._copy = copy = _Copy()
        what = f"a replica of bucket {status.bucket!r}"
        self._api, self._stream, self._origin = api, status.info.config.name, origin
        self._origin_created = "" if origin is None else _created(*origin, api.deadline())
        self._watch = watch()
        # Its thread holds the copy, not this object. At its end it wakes the threads that wait for a revision.
        self._handle = handle = WatchHandle(
            api, self._watch, copy.apply, None, copy.forget_revision, copy.changed.wake_all
        )
        try:
            core.stop_dropped(
                self, lambda: not (copy.is_closed or handle.closed), handle.stop, what
            )
        except BaseException:
            handle.stop()
            raise

    def entry(self, key: str) -> KeyValueEntry | None:
        """Return the current entry of a key; ``None``: it has no value."""
        self._check_open()
        return self._entry(key)

    def _entry(self, key: str) -> KeyValueEntry | None:
        entry = self._copy.entries.get(key)
        if entry is not None and self._ttl is not None:
            moment, at = self._clock
            if moment + timedelta(seconds=monotonic() - at) - entry.created > self._ttl:
                return None
        return entry

    def __getitem__(self, key: str) -> bytes:
        entry = self.entry(key)
        if entry is None:
            raise KeyError(key)
        return entry.value

    def __iter__(self) -> Iterator[str]:
        self._check_open()
        return iter(self._keys())

    def __len__(self) -> int:
        self._check_open()
        return len(self._keys())

    def _keys(self) -> list[str]:
        return [key for key in self._copy.entries.copy() if self._entry(key) is not None]

    # --- the state of the copy ------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The last revision of the bucket that was received; 0: none."""
        return self._copy.revision

    def wait_current(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until all values are here that existed when the replica was made.

        After the bucket was deleted and created again, or restored, these are the values that it had when
        this was noticed.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            IteratorClosedError: the replica was closed.
            Error: as `WatchHandle.wait_current`.

        """
        self._check_open()
        self._handle.wait_current(timeout)

    def wait_for(self, revision: int, timeout: float | timedelta | None = None) -> None:
        """
        Wait for a revision, such as that of a write of this program.

        The server is asked whether the bucket is still the one that was read, since another one has the same
        revisions again. It is not asked before server 2.11, whose creation times are not stable.

        Args:
            revision: a revision of one of the keys.
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: it did not come in time.
            StreamRecreatedError: the bucket is a mirror, and its origin was created again.
            IteratorClosedError: the replica was closed.
            Error: the error that ended the watch.

        """
        revision = check_int("revision", revision, 0)
        self._check_open()
        copy, handle, deadline = self._copy, self._handle, Deadline(timeout)
        while True:
            arrived = copy.changed.wait_for(
                lambda: copy.revision >= revision or copy.is_closed or handle.closed, deadline
            )
            if arrived and copy.revision < revision:
                self._check_open()
            if arrived and self._is_same_bucket(deadline):
                return
            if deadline.expired():
                raise errors.TimeoutError(f"revision {revision} did not come in time")
            self._core.wait_closed(deadline.sooner(_RECREATED_DELAY_S).left() or 0.0)

    def _is_same_bucket(self, deadline: Deadline) -> bool:
        """Return whether the bucket is still the one whose revisions have arrived."""
        known = self._watch._stream_created  # noqa: SLF001 - serves replicas alone
        if not known or (release(self._core.info.version) or (2, 11)) < (2, 11):
            return True
        limit = self._api.deadline() if deadline.left() is None else deadline
        try:
            if self._origin is not None and _created(*self._origin, limit) != self._origin_created:
                raise errors.StreamRecreatedError(self._origin[1])
            return _created(self._api, self._stream, limit) == known
        except errors.StreamNotFoundError:
            return False  # the watch ends, or finds the next one
        except (errors.PermissionsError, errors.NoRespondersError):
            return True

    def _check_open(self) -> None:
        """Raise the reason of the end."""
        reason = self._handle.error or self._core.closed_reason
        if reason is not None:
            raise copy_exception(reason)
        if self._copy.is_closed or self._handle.closed:
            raise errors.IteratorClosedError("the replica was closed")

    @property
    def error(self) -> BaseException | None:
        """The error that ended the watch, such as a deleted bucket; ``None``: the copy is kept up to date."""
        return self._handle.error

    def close(self) -> None:
        """End the watch; a second call does nothing."""
        self._copy.is_closed = True
        self._copy.changed.wake_all()
        self._handle.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._keys())} keys at revision {self.revision}>"
