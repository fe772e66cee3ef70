"""Call a callback for each message, on a dedicated thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from .. import errors
from ..api.consumer import ConsumerConfig
from ..client.core import ConnectionCore
from ..client.events import is_deliberate_close
from ..client.threads import Signal
from ..lease_times import LeaseTimes
from ..net.clock import FOREVER, Deadline
from ..options import ErrorCallback, check_returned
from .continuous_pull import MessageFeed
from .message import JetStreamMsg

if TYPE_CHECKING:
    from typing_extensions import Self

#: Called with each message, on the handle's own thread.
JetStreamCallback = Callable[[JetStreamMsg], object]

#: Redelivery delay of a message whose callback raised, for consumers without a ``backoff``.
FAILED_NAK_DELAY_S: Final = 5.0


def nak_failed(msg: JetStreamMsg, config: ConsumerConfig) -> None:
    """Negatively acknowledge a message whose callback raised, unless the callback settled it."""
    # The redelivery is delayed, because a short failure would otherwise use up max_deliver at once.
    if msg.is_acked:
        return
    delay = FAILED_NAK_DELAY_S
    with suppress(errors.Error):  # the error of the callback matters more
        if config.backoff:
            delay = LeaseTimes(config).of(msg.metadata.num_delivered)
        msg.nak(delay)


class CallbackHandle:
    """What the handles of running callbacks have in common."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._closed = Signal()
        self._error: BaseException | None = None

    @property
    def closed(self) -> bool:
        """Whether the callback has handled its last message."""
        return self._closed.is_set()

    @property
    def error(self) -> BaseException | None:
        """The error that ended it; ``None`` if it was stopped or still runs."""
        return self._error

    def stop(self) -> None:
        """Stop and drop the buffered messages; `wait_closed()` waits for a running callback."""
        raise NotImplementedError

    def wait_closed(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until the callback has handled its last message.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: the timeout expired, or the callback itself called this.
            ForkedConnectionError: the handle belongs to the parent process.

        """
        self._core.writer.check_not_forked()
        if self._is_callback_thread():
            raise errors.TimeoutError("the callback cannot wait for its own end")
        if not self._closed.wait(Deadline(timeout).left()):
            raise errors.TimeoutError("the callback has not handled its last message yet")

    def _is_callback_thread(self) -> bool:
        """Return whether the callback runs on the calling thread."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ConsumeHandle(CallbackHandle):
    """
    A running callback of a consumer.

    Returned by `PullConsumer.consume`. The callback runs on one thread, one message at a time. An error
    that it raises is reported to the connection's ``error_cb``, and the next message follows. If the
    callback did not acknowledge the failed message, it is redelivered after a delay. Any thread may call the
    methods, including that of the callback.

    Args:
        core: the connection.
        name: the name of the consumer, for the name of the thread.
        messages: the source of the messages.
        callback: the function to call.
        config: the config of the consumer; ``None``: its messages are not acknowledged.
        error_cb: called with each error instead of that of the connection; ``None``: the latter.

    """

    def __init__(
        self,
        core: ConnectionCore,
        name: str,
        messages: MessageFeed,
        callback: JetStreamCallback,
        config: ConsumerConfig | None = None,
        error_cb: ErrorCallback | None = None,
    ) -> None:
        self._error_cb = error_cb
        self._name = name
        self._messages = messages
        self._callback = callback
        self._config = config
        # Before another thread may look at it, such as one that closes the connection.
        self._thread: threading.Thread | None = None
        try:
            super().__init__(core)
            messages.set_callback_waiter(self._finished, self._report)
            self._thread = core.callbacks.spawn(f"consume-{name}", self._run, self._end_with)
        except BaseException:
            if hasattr(self, "_closed"):
                self._closed.set()  # no callback runs
            messages.stop()
            raise

    def stop(self) -> None:
        """
        Stop and drop the buffered messages.

        A running callback finishes its message; `wait_closed()` waits for that. Idempotent.
        """
        self._messages.stop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        Stop requesting messages, and let the callback handle those that are buffered or in flight.

        Args:
            timeout: how long to wait for messages in flight, in seconds; ``None``: the
                connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed or was lost.

        """
        self._messages.drain(timeout)

    def _is_callback_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _finished(self, deadline: Deadline) -> bool:
        """Wait until the callback has handled its last message; return whether it has."""
        return self._is_callback_thread() or self._closed.wait(deadline.left())

    def _report(self, error: BaseException) -> None:
        self._core.events.error(error, self._error_cb)

    def _end_with(self, reason: BaseException) -> None:
        """Stop because the connection was closed by the user, or with what the thread raised."""
        if not isinstance(reason, errors.ConnectionClosedError):
            self._error = reason
        elif is_deliberate_close(reason):
            self._messages.stop()  # the callback gets no more messages

    def _run(self) -> None:
        callback = self._callback
        take = self._messages.take
        try:
            while True:
                msg = take(FOREVER)
                try:
                    returned = callback(msg)
                    if returned is not None:
                        check_returned(returned)
                except BaseException as error:  # noqa: BLE001 - reported
                    if self._config is not None:
                        nak_failed(msg, self._config)
                    what = f"the callback of {self._name!r}"
                    self._core.events.callback_raised(what, error, self._error_cb)
        except errors.IteratorClosedError:
            pass
        except errors.ConnectionClosedError as error:
            # The connection reports this itself.
            self._error = None if is_deliberate_close(error) else error
        except errors.PermissionsError as error:
            # The reader has reported it already.
            self._error = error
        except errors.Error as error:
            self._error = error
            self._report(error)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._messages.stop()
            self._closed.set()
