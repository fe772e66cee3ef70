"""Watch a bucket with callbacks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, cast

from ... import errors
from ...client.mailbox import copy_exception
from ...client.threads import Signal
from ...net.clock import Deadline
from ...options import check_callback, check_returned
from ..api_requests import APIRequests
from ..consume_handle import ConsumeHandle, JetStreamCallback
from .watch import Watch

E = TypeVar("E")


class WatchHandle(ConsumeHandle):
    """
    A watch that calls a function for each entry.

    Returned by `KeyValue.watch` and `ObjectStore.watch` with a callback. The callbacks run on one thread
    of their own, one at a time; an error of a callback is reported to the connection's ``error_cb``, and
    the next entry follows. Any thread may call the methods, and so may the callbacks.
    """

    def __init__(
        self,
        api: APIRequests,
        watch: Watch[E],
        callback: Callable[[E], object],
        current_cb: Callable[[], object] | None,
        recreated_cb: Callable[[], object] | None = None,
        ended_cb: Callable[[], object] | None = None,
    ) -> None:
        """Start the thread."""
        # `current_cb`: called once, after the callback has handled the entries that existed at the
        # start; ``None``: not called.
        # `recreated_cb`: called each time when the bucket is another one, before its entries.
        # `ended_cb`: called at the end of the thread.
        self._core = api.core  # first, so that pickling fails with its explanation
        self._current_cb = current_cb
        self._current_event = Signal()
        self._recreated_cb = recreated_cb
        self._ended_cb = ended_cb
        try:
            # The thread holds the watch until its end, and the messages will hold this object.
            source = watch._source(self._report_current, self._on_recreated)  # noqa: SLF001 - serves handles alone
            super().__init__(api.core, source.stream, source, cast("JetStreamCallback", callback))
        except BaseException:
            watch.stop()
            raise

    @property
    def is_current(self) -> bool:
        """Whether the callback has handled all entries that existed at the start; see `Watch.is_current`."""
        return self._current_event.is_set()

    def wait_current(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until the callback has handled all entries that existed at the start.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: it was not in time.
            Error: the error that ended the watch before.
            IteratorClosedError: the watch was stopped before.

        """
        self._core.writer.check_not_forked()
        current = self._current_event
        if not current.wait_for(lambda: current.is_set() or self.closed, Deadline(timeout)):
            raise errors.TimeoutError("the watch was not current in time")
        # The event is cleared again when the bucket is created again; then it was current.
        if self.closed and not current.is_set():
            if self._error is not None:
                raise copy_exception(self._error)
            raise errors.IteratorClosedError("the watch was stopped before it was current")

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._current_event.wake_all()
            if self._ended_cb is not None:
                self._ended_cb()

    def _on_recreated(self) -> None:
        self._current_event.clear()
        if self._recreated_cb is not None:
            self._recreated_cb()

    def _report_current(self) -> None:
        current_cb, self._current_cb = self._current_cb, None
        try:
            if current_cb is not None:
                check_returned(current_cb())
        except BaseException as error:  # noqa: BLE001 - reported
            self._core.events.callback_raised("the current_cb of a watch", error)
        finally:
            self._current_event.set()


def watch_with_callbacks(
    api: APIRequests,
    make: Callable[[], Watch[E]],
    cb: Callable[[E], object] | None,
    current_cb: Callable[[], object] | None,
) -> WatchHandle:
    """Return a handle of a new watch; raise `InvalidOptionError` if a callback is not callable."""
    if cb is None:
        raise errors.InvalidOptionError("current_cb", current_cb, "requires cb")
    check_callback("cb", cb)
    if current_cb is not None:
        check_callback("current_cb", current_cb)
    return WatchHandle(api, make(), cb, current_cb)
