"""The members of consumer groups: their consumers and callbacks."""

# What members do at a change is compatible with orbit.go's pcgroups. Rules:
#
# 1. A member's consumer has the filters of its partitions. The server does not allow two consumers of a
#    work-queue stream with the same filter, so a member that gains a partition retries until the former
#    member has given it up.
# 2. Before a member gives up partitions, it waits until its callback has returned and the server has
#    processed the acknowledgement. orbit.go does not wait.
# 3. Of several instances of a member, the server delivers to the pinned one. Only this one deletes the
#    consumer at a change; the others wait until it is gone, or no instance is pinned.
# 4. One thread per instance watches the config and creates the consumer. The callback has a thread of its own.

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple, Protocol

from ... import errors
from ...api.consumer import ConsumerConfig
from ...client.events import is_deliberate_close
from ...net.clock import BackoffDelay, Deadline
from ..api_requests import APIRequests
from ..buckets.key_value import KeyValue
from ..consume_handle import CallbackHandle, JetStreamCallback
from ..consumer_requests import CREATE, add_consumer, consumer_info, delete_consumer
from ..message import JetStreamMsg
from ..pull_consumer import PullConsumer
from .records import PRIORITY_GROUP, GroupConfig, parse_config

#: Minimum of the pull expiry and of the priority timeout, in seconds.
MIN_TIMEOUT_S: Final = 1.0
#: Seconds after which a member without a consumer tries again: the first time; the delay doubles each
#: time, up to ``ack_wait`` and this half second.
_FIRST_RETRY_S: Final = 0.1
_RETRY_MARGIN_S: Final = 0.5
#: Interval in which a member checks whether its consumer was deleted, in seconds.
_CHECK_S: Final = 0.25
#: Maximum time to wait until the server has processed an acknowledgement, in seconds.
_BARRIER_TIMEOUT_S: Final = 2.0
_IN_PROGRESS: Final = b"+WPI"
#: Age up to which a consumer was made by the request that returns its info.
_FRESH: Final = timedelta(seconds=1)


class MemberRun(Protocol):
    """Receives the messages of a member while it has partitions, such as a `ConsumeHandle`."""

    @property
    def closed(self) -> bool:
        """Whether it has ended."""

    @property
    def error(self) -> BaseException | None:
        """The error that ended it."""

    def drain(self) -> None:
        """Request no more messages, and handle those that have arrived."""

    def stop(self) -> None:
        """Request no more messages, and drop those that wait."""

    def wait_closed(self) -> None:
        """Wait until no message is handled any more."""


class Membership(NamedTuple):
    """The part of a member in a group."""

    key: str
    """The key of the group's config."""
    stream: str
    """The stream that has the consumers of the members."""
    member: str
    """The name of the member."""
    consumer: ConsumerConfig
    """The config of its consumer, without filters."""
    ack_wait: float
    """The ``ack_wait`` of the consumer in seconds."""


class MemberConsumer:
    """The consumer of a member, and what receives its messages."""

    #: The thread of the last message, also while its callback is being stopped.
    callback_thread: threading.Thread | None = None

    def __init__(
        self,
        api: APIRequests,
        membership: Membership,
        open_run: Callable[[PullConsumer], MemberRun],
    ) -> None:
        self._api = api
        self.key: str = membership.key
        self.member: str = membership.member
        self.ack_wait: float = membership.ack_wait
        self._stream, self._consumer = membership.stream, membership.consumer
        self._name = self._consumer.durable_name or self._consumer.name or ""
        self._open_run = open_run
        self._pull: PullConsumer | None = None
        self._is_made = False  # whether the last create_consumer() has made it, as far as is known
        #: What receives messages; ``None``: nothing.
        self.running: MemberRun | None = None
        self._stopping: MemberRun | None = None

    def create_consumer(self, config: GroupConfig) -> None:
        """Create the consumer with the filters of the member; an equal one is kept."""
        wanted = replace(self._consumer, filter_subjects=config.filters_of(self.member))
        info = add_consumer(self._api, self._stream, wanted, CREATE)
        is_fresh = info.ts is not None and info.ts - info.created < _FRESH
        self._is_made = is_fresh and not info.delivered.consumer_seq
        self._pull = PullConsumer(self._api, info)

    def start(self) -> None:
        """Start to receive messages."""
        if self._pull is not None:
            self.running = self._open_run(self._pull)

    def stop(self, drains: Callable[[], bool] = lambda: False) -> None:
        """Stop to receive messages, and wait until none is handled; a drain handles the buffered ones."""
        # Assigned before `drains` is called: `drop()` is called after its result has changed.
        running, self.running = self.running, None
        self._stopping = running
        if running is None:
            return
        if drains():
            with suppress(errors.Error):
                running.drain()
        else:
            running.stop()
        running.wait_closed()

    def drop(self) -> None:
        """Drop the buffered messages of a drain."""
        stopping = self._stopping
        if stopping is not None:
            stopping.stop()

    def take_back(self) -> None:
        """Undo `create_consumer` and `start`: the member could not join."""
        with suppress(errors.Error):
            self.stop()
            if self._is_made:
                self.delete_consumer()

    def flush_acks(self) -> None:
        """Wait until the server has processed the acknowledgements; those of a `MemberRun` are confirmed."""

    def delete_consumer(self, wanted: GroupConfig | None = None) -> None:
        """Delete the consumer, unless another instance is pinned, which deletes it itself."""
        # A consumer with the wanted filters is kept.
        pin_id = self._pin_id()
        with suppress(errors.ConsumerNotFoundError, errors.StreamNotFoundError):
            info = consumer_info(self._api, self._stream, self._name)
            pinned = {group.pinned_client_id for group in info.priority_groups or ()}
            if pinned - {None, "", pin_id}:
                return
            filters = [] if wanted is None else wanted.filters_of(self.member)
            if not filters or filters != info.config.filter_subjects:
                delete_consumer(self._api, self._stream, self._name)

    def _pin_id(self) -> str | None:
        return None if self._pull is None else self._pull._requester.pin_id  # noqa: SLF001 - not public

    def unpin(self) -> None:
        """Let another instance of the member take over at once, if this one is pinned."""
        pin_id = self._pin_id()
        if not pin_id:
            return
        info = consumer_info(self._api, self._stream, self._name)
        if any(group.pinned_client_id == pin_id for group in info.priority_groups or ()):
            route = self._api.routes.to("CONSUMER.UNPIN", self._stream, self._name)
            self._api.ask(route, {"group": PRIORITY_GROUP})


class CallbackMember(MemberConsumer):
    """The consumer of a member, and the callback that gets its messages."""

    def __init__(
        self,
        api: APIRequests,
        membership: Membership,
        callback: JetStreamCallback,
        auto_in_progress: bool,
    ) -> None:
        super().__init__(api, membership, self._consume)
        self._callback = callback
        self._auto_in_progress = auto_in_progress
        self._last_reply = b""

    def _consume(self, pull: PullConsumer) -> MemberRun:
        return pull.consume(
            self._deliver,
            group=PRIORITY_GROUP,
            expires=max(self.ack_wait / 2, MIN_TIMEOUT_S),
            auto_in_progress=self._auto_in_progress,
        )

    def _deliver(self, msg: JetStreamMsg) -> object:
        take_partition(msg)
        self._last_reply = msg.ack_subject
        self.callback_thread: threading.Thread | None = threading.current_thread()
        return self._callback(msg)

    def flush_acks(self) -> None:
        """Wait until the server has processed the acknowledgements."""
        reply, self._last_reply = self._last_reply, b""
        if reply:
            # The consumer handles the messages to its reply subjects in order.
            with suppress(errors.NoRespondersError, errors.TimeoutError):
                self._api.core.requests.request(reply, _IN_PROGRESS, Deadline(_BARRIER_TIMEOUT_S))


def take_partition(msg: JetStreamMsg) -> bytes:
    """Remove the partition from the subject of a message, and return it."""
    partition, _, msg._subject = msg._subject.partition(b".")  # noqa: SLF001 - the subject has no setter
    return partition


class GroupConsumeHandle(CallbackHandle):
    """
    The running callback of a member of a consumer group; returned by `ConsumerGroup.consume`.

    It ends when it is stopped, when the group is deleted or the connection is closed, and with an
    `error` if the config is changed in a way that is not allowed. Any thread may call the methods, including
    the one of the callback.
    """

    def __init__(
        self,
        api: APIRequests,
        kv: KeyValue,
        instance: MemberConsumer,
        config: GroupConfig,
        *,
        elastic: bool,
    ) -> None:
        super().__init__(api.core)
        self._instance = instance
        self._config = config
        self._elastic = elastic
        self._drain = False
        self._retries = BackoffDelay(_FIRST_RETRY_S, instance.ack_wait + _RETRY_MARGIN_S)
        try:
            self._watch = kv.watch(instance.key)
        except BaseException:
            instance.take_back()
            raise
        try:
            if not elastic:
                instance.start()
            self._thread = self._core.callbacks.spawn(
                f"group-{instance.key}", self._run, self._end_with
            )
        except BaseException:
            self._watch.stop()
            instance.take_back()
            raise

    @property
    def member(self) -> str:
        """The name of the member."""
        return self._instance.member

    @property
    def partitions(self) -> list[int]:
        """The partitions of the member according to the last received config."""
        return list(self._config.partitions(self.member))

    def stop(self) -> None:
        """
        Stop and drop the buffered messages, which are redelivered after the ``ack_wait``.

        A running callback finishes its message; `wait_closed()` waits for that. Idempotent.
        """
        self._drain = False
        self._watch.stop()
        self._instance.drop()

    def drain(self) -> None:
        """Stop as `stop()` does, but let the callback handle the buffered messages first."""
        self._drain = True
        self._watch.stop()

    def _is_callback_thread(self) -> bool:
        return threading.current_thread() is self._instance.callback_thread

    def _end_with(self, reason: BaseException) -> None:
        """Stop because the thread has failed; the end of the connection ends the watch."""
        if not isinstance(reason, errors.ConnectionClosedError):
            self._error = reason

    # --- the control thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._follow()
        except errors.IteratorClosedError:
            self._leave()
        except errors.ConnectionClosedError as error:
            self._error = None if is_deliberate_close(error) else error
            if isinstance(error, errors.ConnectionDrainingError):
                self._instance.stop(lambda: True)
        except errors.Error as error:
            self._error = error
            self._core.events.error(error)
        except BaseException as error:
            self._error = error
            raise
        finally:
            with suppress(errors.Error):
                self._watch.stop()
                self._instance.stop()
            self._closed.set()

    def _leave(self) -> None:
        """End the callback after `stop()` or `drain()`."""
        with suppress(errors.Error):
            self._instance.stop(lambda: self._drain)
            self._instance.unpin()

    def _follow(self) -> None:
        """Follow the config until the group is deleted."""
        while True:
            try:
                entry = self._watch.next(self._delay())
            except errors.PullError as error:
                self._core.events.error(error)
            except errors.TimeoutError:
                self._check()
            else:
                if not entry.has_value:
                    self._end_consumer()
                    return
                self._apply(parse_config(type(self._config), self._instance.key, entry.value))

    def _delay(self) -> float:
        is_idle = not self._config.partitions(self.member)
        return _CHECK_S if self._instance.running is not None or is_idle else self._retries.delay

    def _apply(self, config: GroupConfig) -> None:
        """Apply a new config."""
        old = self._config
        if not config.has_settings_of(old) or not (self._elastic or config.has_members_of(old)):
            self._end_consumer()
            raise errors.ConsumerGroupError(
                f"the config of group {self._instance.key!r} was changed"
            )
        before, after = (item.filters_of(self.member) for item in (old, config))
        self._config = config
        self._retries.reset()
        if before == after and self._instance.running is not None:
            return
        if before != after:
            self._instance.stop()
            self._instance.flush_acks()
            self._instance.delete_consumer(config)
        if after:
            self._join()

    def _end_consumer(self) -> None:
        self._instance.stop()
        if not self._elastic:
            self._instance.flush_acks()
            self._instance.delete_consumer()

    def _check(self) -> None:
        """Create the consumer if there is none."""
        running = self._instance.running
        if running is not None:
            if not running.closed:
                return
            error = running.error
            if isinstance(error, (errors.ConnectionClosedError, errors.PermissionsError)):
                raise error
            self._instance.stop()
        if self._config.partitions(self.member):
            self._join()

    def _join(self) -> None:
        """Try to create the consumer and to start the callback."""
        instance = self._instance
        try:
            instance.create_consumer(self._config)
        except (errors.ConnectionClosedError, errors.ServerTooOldError, errors.InvalidOptionError):
            raise
        except errors.ConsumerExistsError:
            # It has the filters of an earlier config.
            instance.delete_consumer(self._config)
        except errors.Error as error:
            if (
                not isinstance(error, errors.APIError)
                or error.err_code != errors.ErrorCode.QUEUE_CONSUMER_NOT_UNIQUE
            ):
                self._core.events.error(error)
        else:
            self._retries.reset()
            instance.start()
            return
        self._retries.next()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "running"
        return f"<{type(self).__name__} {self.member!r} of {self._instance.key!r} {state}>"
