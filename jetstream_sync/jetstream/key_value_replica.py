"""A copy of a bucket in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from ..client.mailbox import copy_exception
from ..client.threads import Waiters
from ..errors import IteratorClosedError, TimeoutError
from ..net.clock import Deadline

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..api.key_value import KeyValueEntry, KeyValueStatus
    from .watch import WatchHandle


#: Seconds between two looks whether the watch has ended.
_POLL_S: Final = 0.25


class Replica(Mapping[str, bytes]):
    """
    The current values of keys of a bucket in memory, kept up to date by a watch; read-only.

    Returned by `KeyValue.replica`. Reads need no request, and may be behind the bucket for the time that a
    message takes, or for the time of an outage, after which it catches up. Any thread may use it.
    """

    def __init__(
        self,
        status: KeyValueStatus,
        watch: Callable[[Callable[[KeyValueEntry], object]], WatchHandle],
    ) -> None:
        self._entries: dict[str, KeyValueEntry] = {}
        self._changed = Waiters()
        self._revision = 0
        # Values that expire without a marker are not reported.
        self._ttl: timedelta | None = None if status.limit_marker_ttl else status.ttl
        self._handle = watch(self._apply)

    def _apply(self, entry: KeyValueEntry) -> None:
        """Take over a change; called by the thread of the watch."""
        if entry.has_value:
            self._entries[entry.key] = entry
        else:
            self._entries.pop(entry.key, None)
        self._revision = max(self._revision, entry.revision)
        self._changed.wake_all()

    def entry(self, key: str) -> KeyValueEntry | None:
        """Return the current entry of a key; ``None``: it has no value."""
        entry = self._entries.get(key)
        if entry is None or (self._ttl and datetime.now(timezone.utc) - entry.created > self._ttl):
            return None
        return entry

    def __getitem__(self, key: str) -> bytes:
        entry = self.entry(key)
        if entry is None:
            raise KeyError(key)
        return entry.value

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self._entries.copy() if self.entry(key) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # --- the state of the copy ------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The last revision of the bucket that was received; 0: none."""
        return self._revision

    def wait_current(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until all values are here that existed when the replica was made.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            Error: as `WatchHandle.wait_current`.

        """
        self._handle.wait_current(timeout)

    def wait_for(self, revision: int, timeout: float | timedelta | None = None) -> None:
        """
        Wait for a revision, such as that of a write of this program.

        Args:
            revision: a revision of one of the keys.
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: it did not come in time.
            IteratorClosedError: the replica was closed.
            Error: the error that ended the watch.

        """
        deadline = Deadline(timeout)
        while not self._changed.wait_for(
            lambda: self._revision >= revision, deadline.sooner(_POLL_S)
        ):
            if self._handle.error is not None:
                raise copy_exception(self._handle.error)
            if self._handle.closed:
                raise IteratorClosedError("the replica was closed")
            if deadline.expired():
                raise TimeoutError(f"revision {revision} did not come in time")

    @property
    def error(self) -> BaseException | None:
        """The error that ended the watch, such as a deleted bucket; ``None``: the copy is kept up to date."""
        return self._handle.error

    def close(self) -> None:
        """End the watch; the values stay as they are."""
        self._handle.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} keys at revision {self._revision}>"
