"""
Handlers whose process is a member of a partitioned consumer group.

Rules:

1. The consumer of a member exists while it has partitions. Before these go to another member, the waiting
   messages and those between two attempts are returned, and the running ones are handled and confirmed.
2. Messages of a partition are handled one at a time and in order, unless the handler has a ``key``.
3. The processes manage the members of an elastic group: one that starts adds itself, and drops members that
   are absent for long, as after a kill. They leave mappings and static groups alone.
4. Messages are identified by the group, not by the member that receives them.
"""

from __future__ import annotations

import os
import platform
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from ... import ConsumerConfig, ElasticConsumerGroup, StaticConsumerGroup, errors
from ...lease_times import LeaseTimes
from ...net.clock import Deadline
from ..checks import check_option
from ..deliveries import DeliveryState
from ..events import spawn
from ..logs import log
from ..source import Source
from .consumers import (
    ACK_WAIT_S,
    HandlerConsumer,
    WorkerConsumer,
    check_consumer,
    check_dead_letters,
    generation_of,
    get_stream,
    missing_dead_letters,
)
from .pulling import Phase, Puller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ... import ConsumerInfo, GroupConsumeHandle, JetStream, JetStreamMsg, PullConsumer
    from ..deliveries import LeasedMessage

#: Seconds after which a member that is absent is dropped.
_ABSENT_S: Final = 60.0
#: Interval in which a member looks whether the time of its running messages is over, in seconds.
_GIVEN_UP_POLL_S: Final = 0.25
#: Timeout for messages in flight when a member gives up its partitions, in seconds.
_LEAVE_TIMEOUT_S: Final = 2.0
#: Timeout of the confirmations of the acknowledgements, in seconds.
_CONFIRM_TIMEOUT_S: Final = 5.0
#: What the name of a consumer must not have.
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


def find_group(js: JetStream, source: Source) -> StaticConsumerGroup | ElasticConsumerGroup:
    """Return the group of a handler; `ConsumerGroupNotFoundError`: it does not exist."""
    return js.consumer_groups.get(source.stream, cast("str", source.group))


def check_handler(js: JetStream, source: Source, *, may_change: bool, processes: int) -> list[str]:
    """Check the consumer or the group of a handler without a change on the server; return warnings."""
    if source.group is None:
        return check_consumer(js, source, may_change=may_change, processes=processes)
    ok = source.member is None or processes == 1
    check_option(
        "member", source.member, ok, "is for one process: to use several processes, omit it"
    )
    group = find_group(js, source)
    stream = get_stream(js, group.consumer_stream_name)
    if not (may_change and is_managed(group)):
        check_member(group, source)
    check_dead_letters(js, source, group.consumer_stream_name)
    return missing_dead_letters(stream, source)


def is_managed(group: StaticConsumerGroup | ElasticConsumerGroup) -> bool:
    """Return whether processes may add and drop members."""
    return isinstance(group, ElasticConsumerGroup) and not group.config().member_mappings


def check_member(group: StaticConsumerGroup | ElasticConsumerGroup, source: Source) -> None:
    """Check that the member of a handler belongs to a group with fixed members."""
    names = group.config().member_names
    rule = f"must be a member of group {group.key!r}, whose members are fixed: {', '.join(names)}"
    check_option("member", source.member, source.member in names, rule)


class GroupConsumer(WorkerConsumer):
    """The consumer of a member of a group, which exists while the member has partitions."""

    def __init__(self, js: JetStream, source: Source, *, may_change: bool) -> None:
        super().__init__(js, source, may_change=may_change)
        self.group: StaticConsumerGroup | ElasticConsumerGroup = find_group(js, source)
        host = _NO_NAME.sub("-", platform.node())
        self.member: str = source.member or f"{host}-{os.getpid()}"
        self._where = self.group.consumer_stream_name, self.group.consumer_name(self.member)
        self.ack_wait: float = source.ack_wait or ACK_WAIT_S
        self.times: LeaseTimes = LeaseTimes(ConsumerConfig(ack_wait=self.ack_wait))
        # When each absent member is dropped.
        self._absent: dict[str, Deadline] = {}
        self.recreate()

    def recreate(self) -> None:
        """Find the group, and add the member if it is missing; raises as the constructor."""
        self.group = find_group(self._js, self._source)
        stream = get_stream(self._js, self.group.consumer_stream_name)
        self.generation: str = generation_of(stream.cached_info)
        if self._may_change and is_managed(self.group):
            self._tend()
        else:
            check_member(self.group, self._source)

    def joined(self, pull: PullConsumer) -> None:
        """Use the consumer that the member has got."""
        self.pull: PullConsumer = pull
        self.info: ConsumerInfo | None = pull.cached_info

    def read(self) -> ConsumerInfo:
        """Return the state on the server; `ConsumerNotFoundError`: the member has no partitions."""
        if self.info is None:
            raise errors.ConsumerNotFoundError.found_here("the member has had no partitions yet")
        return super().read()

    def delivered_if_empty(self) -> int | None:
        """Return how many messages were delivered, 0 to a member without partitions; ``None``: some are left."""
        try:
            return super().delivered_if_empty()
        except errors.ConsumerNotFoundError:
            return None if self.group.config().partitions(self.member) else 0

    def refresh(self) -> None:
        """Read the state, add the member if it is missing, and drop those that are absent."""
        with suppress(errors.ConsumerNotFoundError):
            self.info = self.read()
            self.note_clock(self.info)
        if self._may_change and is_managed(self.group):
            self._tend()

    def _tend(self) -> None:
        group = cast("ElasticConsumerGroup", self.group)
        if self.member not in group.config().member_names:
            group.add_members(self.member)
            log.info("%s: member %s has joined group %s", self._source.name, self.member, group.key)
        absent = group.absent_members()
        self._absent = {name: self._absent.get(name) or Deadline(_ABSENT_S) for name in absent}
        gone = [name for name, end in self._absent.items() if end.expired()]
        if gone:
            group.drop_members(*gone)
            text = "%s: dropped from group %s, because they are absent: %s"
            log.warning(text, self._source.name, group.key, ", ".join(gone))

    def leave(self) -> None:
        """Give the partitions to other members; a member with a name of its own will come back."""
        if self._source.member is not None or not self._may_change:
            return
        with suppress(errors.Error):
            if is_managed(self.group):
                cast("ElasticConsumerGroup", self.group).drop_members(self.member)
                self._js.delete_consumer(*self._where)


class GroupPuller(Puller):
    """Requests and receives the messages of a member of a group."""

    _consumer: GroupConsumer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # --- under the lock of the held messages ---
        self._handle: GroupConsumeHandle | None = None

    def stop(self, deadline: Deadline) -> None:
        """End `run`, after the phase of the held messages was changed; wait for messages in flight."""
        super().stop(deadline)
        with self.held.lock:
            handle = self._handle
        if handle is not None:
            handle.stop()

    def _pull(self) -> None:
        consumer = self._consumer
        handle = consumer.group._join(consumer.member, self._open, consumer.ack_wait)  # noqa: SLF001 - for workers
        with handle:
            with self.held.lock:
                self._handle = handle
            if self._stopped.is_set():
                handle.stop()
            handle.wait_closed()
        if self._stopped.is_set():
            consumer.leave()
        elif handle.error is not None:
            raise handle.error
        else:
            text = f"group {consumer.group.key!r} was deleted"
            raise errors.ConsumerGroupNotFoundError.found_here(text)

    # --- for the thread that follows the config of the group ------------------------------------

    def _open(self, pull: PullConsumer) -> _Receiving:
        self._consumer.joined(pull)
        with self.held.lock:
            self.requests.is_paused = False
            if self.held.phase is Phase.RECEIVING:
                self.interrupted.clear()
        return _Receiving(self)

    def receive(self) -> None:
        """Receive messages until `leave`; the function of a thread."""
        super()._pull()

    def leave(self) -> None:
        """Let `receive` end."""
        with self.held.lock:
            self.requests.is_paused = True
        self.interrupted.set()
        self._end_iterator(Deadline(_LEAVE_TIMEOUT_S))

    def crashed(self, error: BaseException) -> None:
        """End the worker after an unexpected error of the thread that receives."""
        self._shared.on_fatal(error)

    def wait_settled(self) -> None:
        """Return the waiting messages, and wait until the running ones are confirmed or given up."""
        held = self.held
        is_settled = False
        while not is_settled:
            # A worker that stops handles the waiting messages, and returns them after some time.
            if not self._stopped.is_set():
                self.return_waiting()
            with held.lock:
                is_settled = held.wait_finished(_is_given_up, _GIVEN_UP_POLL_S)
        self._shared.settlements.wait_confirmed(Deadline(_CONFIRM_TIMEOUT_S))
        if self.pin is not None:
            self.pin.forget()

    # --- receiving ------------------------------------------------------------------------------

    def _leased(self, run: Sequence[JetStreamMsg]) -> list[LeasedMessage]:
        group = self._consumer.group
        partitions = [group._take_partition(msg) for msg in run]  # noqa: SLF001 - for workers
        deliveries = super()._leased(run)
        for delivery, partition in zip(deliveries, partitions, strict=True):
            delivery.consumer = self._source.consumer
            if self._source.key is None:
                delivery.key = partition
        return deliveries


def _is_given_up(delivery: LeasedMessage) -> bool:
    """Return whether a running message may go to another member."""
    return delivery.exceeds_timeout or delivery.state is DeliveryState.LOST


class _Receiving:
    """Receives messages on a thread of its own while the member has partitions; see `MemberRun`."""

    def __init__(self, puller: GroupPuller) -> None:
        self._puller = puller
        self._ended = threading.Event()
        #: The error that ended it.
        self.error: errors.Error | None = None
        spawn("worker-group", self._run, puller.crashed)

    def _run(self) -> None:
        try:
            self._puller.receive()
        except errors.Error as error:
            self.error = error
            self._puller.error = str(error)
        finally:
            self._ended.set()

    @property
    def closed(self) -> bool:
        """Whether no more messages are received."""
        return self._ended.is_set()

    def drain(self) -> None:
        """Receive no more messages."""
        self.stop()

    def stop(self) -> None:
        """Receive no more messages."""
        self._puller.leave()

    def wait_closed(self) -> None:
        """Wait until no message is handled any more."""
        self._ended.wait()
        self._puller.wait_settled()


def receiver_of(
    js: JetStream, source: Source, *, may_change: bool
) -> tuple[WorkerConsumer, type[Puller]]:
    """Return where the messages of a handler come from, and what receives them; raises as the sources."""
    if source.group is None:
        return HandlerConsumer(js, source, may_change=may_change), Puller
    return GroupConsumer(js, source, may_change=may_change), GroupPuller
