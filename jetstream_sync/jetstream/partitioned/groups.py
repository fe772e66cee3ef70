"""Partitioned consumer groups, in the formats of orbit.go's ``pcgroups``."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from ... import errors
from ...api.consumer import ConsumerConfig, ConsumerInfo
from ...api.enums import AckPolicy, DiscardPolicy, PriorityPolicy, RetentionPolicy, StorageType
from ...api.key_value import KeyValueConfig
from ...api.stream import StreamConfig, StreamSource, SubjectTransform
from ...durations import duration
from ...net.clock import seconds
from ...options import check_callback
from ...subjects import check_consumer_name, check_stream_name
from ..api_requests import APIRequests, with_one_deadline
from ..buckets.admin import BucketAdmin
from ..buckets.entries import KeyValueEntry
from ..buckets.key_value import KeyValue
from ..consume_handle import JetStreamCallback
from ..pull_consumer import PullConsumer
from ..server_support import require_level
from ..stream import StreamConsumers
from .members import (
    MIN_TIMEOUT_S,
    CallbackMember,
    GroupConsumeHandle,
    MemberConsumer,
    MemberRun,
    Membership,
    take_partition,
)
from .records import (
    ELASTIC_BUCKET,
    PRIORITY_GROUP,
    STATIC_BUCKET,
    ElasticGroupConfig,
    GroupConfig,
    PartitioningFilter,
    StaticGroupConfig,
    encode_config,
    listed,
    member_mappings,
    parse_config,
)

_G = TypeVar("_G", bound="ConsumerGroup")


def _group_not_found(stream: str, name: str) -> errors.ConsumerGroupNotFoundError:
    text = f"stream {stream!r} has no consumer group {name!r}"
    return errors.ConsumerGroupNotFoundError.found_here(text)


#: The default of ``ack_wait`` in seconds, as in orbit.go.
DEFAULT_ACK_WAIT_S: Final = 5.0


class ConsumerGroup:
    """
    A partitioned consumer group of a stream.

    Returned by the methods of `ConsumerGroups`, as a `StaticConsumerGroup` or an `ElasticConsumerGroup`.
    Members are programs that call `consume()` with the name of a member; several may do so with the same
    name and equal options, and one of them gets the messages.
    """

    _bucket: ClassVar[str]
    _config_type: ClassVar[type[GroupConfig]]

    def __init__(
        self, js: BucketAdmin, api: APIRequests, kv: KeyValue, stream: str, name: str
    ) -> None:
        self._js = js
        self._api = api
        self._kv = kv
        self._stream = stream
        self._name = name

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._name

    @property
    def stream_name(self) -> str:
        """The name of the stream whose messages the group handles."""
        return self._stream

    @property
    def consumer_stream_name(self) -> str:
        """The name of the stream that has the consumers of the members."""
        return self._stream

    def consumer_name(self, member: str) -> str:
        """Return the name of a member's consumer; raise `InvalidNameError` if the member's is invalid."""
        return check_consumer_name(member)

    @property
    def key(self) -> str:
        """The key of the config in the bucket of the groups."""
        return f"{self._stream}.{self._name}"

    def config(self) -> GroupConfig:
        """
        Return the current config of the group.

        Raises:
            ConsumerGroupNotFoundError: the group was deleted.
            ConsumerGroupError: the config is invalid.
            Error: otherwise as `KeyValue.get`.

        """
        try:
            return parse_config(
                self._config_type, self.key, self._kv.get(self.key, consistent=True).value
            )
        except errors.KeyNotFoundError:
            raise _group_not_found(self._stream, self._name) from None

    @with_one_deadline
    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions of each member; raises as `config()`."""
        config = self.config()
        return {member: config.partitions(member) for member in config.member_names}

    @with_one_deadline
    def active_members(self) -> list[str]:
        """
        Return the names of the members that take part at present, sorted.

        Raises:
            Error: as `config()` and `JetStream.list_consumers`.

        """
        active = self._active_consumers()
        members = self.config().member_names
        return sorted(member for member in members if self.consumer_name(member) in active)

    @with_one_deadline
    def absent_members(self) -> list[str]:
        """
        Return the names of the members whose messages are not received, sorted.

        They have partitions but no consumer, and no other member still has one of these partitions: their
        program does not run, or was killed. `ElasticConsumerGroup.drop_members` gives the partitions to
        others.

        Raises:
            Error: as `config()` and `JetStream.list_consumers`.

        """
        active = self._active_consumers()
        config = self.config()
        served = {
            subject for info in active.values() for subject in info.config.filter_subjects or ()
        }
        filters = {member: config.filters_of(member) for member in config.member_names}
        return sorted(
            member
            for member, wanted in filters.items()
            if wanted and self.consumer_name(member) not in active and served.isdisjoint(wanted)
        )

    def _active_consumers(self) -> dict[str, ConsumerInfo]:
        infos = self._consumers().list_consumers()
        return {info.name: info for info in infos if self._is_active(info)}

    def _consumers(self) -> StreamConsumers:
        return StreamConsumers(self._api, self.consumer_stream_name)

    def _is_active(self, info: ConsumerInfo) -> bool:
        raise NotImplementedError

    def step_down(self, member: str) -> None:
        """
        Have another instance of a member take over, if there is one.

        Raises:
            ConsumerNotFoundError: the member is not active.
            Error: otherwise as `JetStream.unpin_consumer`.

        """
        self._consumers().unpin_consumer(self.consumer_name(member), PRIORITY_GROUP)

    @with_one_deadline
    def delete(self) -> None:
        """
        Delete the group; the callbacks of its members end. Messages of the stream stay.

        Raises:
            StreamNotFoundError: the stream does not exist.
            Error: otherwise as `KeyValue.delete`.

        """
        members = []
        with suppress(errors.ConsumerGroupError, errors.ConsumerGroupNotFoundError):
            members = self.config().member_names
        self._kv.delete(self.key)
        self._clean_up(members)

    def _clean_up(self, members: list[str]) -> None:
        raise NotImplementedError

    @with_one_deadline
    def consume(
        self,
        member: str,
        callback: JetStreamCallback,
        ack_wait: float | timedelta = DEFAULT_ACK_WAIT_S,
        max_ack_pending: int = 1,
        *,
        auto_in_progress: bool = False,
    ) -> GroupConsumeHandle:
        """
        Call a function for each message of a member's partitions, on a dedicated thread.

        The subjects of the messages have no partition. The callback acknowledges them. Partitions are given
        to another member only after the callback has returned, and it should have acknowledged the message
        by then. An error that it raises is handled as in `PullConsumer.consume`.

        Args:
            member: the name of the member. An elastic group may get this member later.
            callback: called with each message.
            ack_wait: seconds after which an unacknowledged message is redelivered, and after which another
                instance or member takes over from one that does not respond.
            max_ack_pending: maximum number of unacknowledged messages; only with 1, redelivered messages
                are still in order.
            auto_in_progress: renew the ``ack_wait`` while the callback runs; see `ContinuousOptions`.

        Raises:
            ConsumerGroupError: the member is not one of a static group, or the config is invalid.
            ConsumerGroupNotFoundError: the group was deleted.
            ConsumerExistsError: a consumer of a static group has another config.
            InvalidNameError, InvalidOptionError: an argument is invalid.
            ServerTooOldError: the server is older than 2.11.
            Error: otherwise as `KeyValue.watch` and `JetStream.create_consumer`.

        """
        check_callback("callback", callback)
        membership = self._membership(member, ack_wait, max_ack_pending)
        return self._handle(CallbackMember(self._api, membership, callback, auto_in_progress))

    def _join(
        self,
        member: str,
        open_run: Callable[[PullConsumer], MemberRun],
        ack_wait: float | timedelta = DEFAULT_ACK_WAIT_S,
    ) -> GroupConsumeHandle:
        """
        Call a function with the consumer of a member whenever that has got partitions, as `consume` otherwise.

        What the function returns is stopped before the partitions are given to another member. For the
        worker runtime.
        """
        membership = self._membership(member, ack_wait, None)
        return self._handle(MemberConsumer(self._api, membership, open_run))

    #: Removes the partition from the subject of a message that `_join` has received, and returns it.
    _take_partition = staticmethod(take_partition)

    def _membership(
        self, member: str, ack_wait: float | timedelta, max_ack_pending: int | None
    ) -> Membership:
        """Return the part of a member, with the config of its consumer."""
        wait = seconds(duration(ack_wait, "ack_wait"))
        if wait <= 0:
            raise errors.InvalidOptionError("ack_wait", ack_wait, "must be above 0")
        require_level(self._api, 1, "a consumer group")
        config = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=timedelta(seconds=wait),
            max_ack_pending=max_ack_pending,
            priority_groups=[PRIORITY_GROUP],
            priority_policy=PriorityPolicy.PINNED_CLIENT,
            priority_timeout=timedelta(seconds=max(wait, MIN_TIMEOUT_S)),
            **self._consumer_fields(self.consumer_name(member), wait),
        )
        return Membership(self.key, self.consumer_stream_name, member, config, wait)

    def _consumer_fields(self, consumer: str, ack_wait: float) -> dict[str, Any]:
        raise NotImplementedError

    def _handle(self, instance: MemberConsumer) -> GroupConsumeHandle:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} of {self._stream!r}>"


class StaticConsumerGroup(ConsumerGroup):
    """
    A group whose members do not change.

    The subjects of its stream begin with the partition. A change of the config ends all members.
    """

    _bucket = STATIC_BUCKET
    _config_type = StaticGroupConfig

    def consumer_name(self, member: str) -> str:
        """Return the name of a member's durable consumer; raises as `ConsumerGroup.consumer_name`."""
        return f"{self._name}-{check_consumer_name(member)}"

    def _is_active(self, info: ConsumerInfo) -> bool:
        return bool(info.num_waiting)

    def _clean_up(self, members: list[str]) -> None:
        for member in members:
            # Another client may have stored a name that no consumer can have.
            with suppress(errors.ConsumerNotFoundError, errors.InvalidNameError):
                self._consumers().delete_consumer(self.consumer_name(member))

    def _consumer_fields(self, consumer: str, ack_wait: float) -> dict[str, Any]:
        del ack_wait
        return {"durable_name": consumer}

    def _handle(self, instance: MemberConsumer) -> GroupConsumeHandle:
        config = self.config()
        if instance.member not in config.member_names:
            raise errors.ConsumerGroupError(
                f"{instance.member!r} is not a member of group {self.key!r}"
            )
        instance.create_consumer(config)
        return GroupConsumeHandle(self._api, self._kv, instance, config, elastic=False)


class ElasticConsumerGroup(ConsumerGroup):
    """A group whose members may change at any time; a work-queue stream has its messages."""

    _bucket = ELASTIC_BUCKET
    _config_type = ElasticGroupConfig

    @property
    def consumer_stream_name(self) -> str:
        """The name of the work-queue stream."""
        return f"{self._stream}-{self._name}"

    def _is_active(self, info: ConsumerInfo) -> bool:
        return True  # the server deletes the consumer of an inactive member

    def _clean_up(self, members: list[str]) -> None:
        del members
        with suppress(errors.StreamNotFoundError):
            self._js.delete_stream(self.consumer_stream_name)

    def _consumer_fields(self, consumer: str, ack_wait: float) -> dict[str, Any]:
        return {"name": consumer, "inactive_threshold": timedelta(seconds=ack_wait)}

    def _handle(self, instance: MemberConsumer) -> GroupConsumeHandle:
        return GroupConsumeHandle(self._api, self._kv, instance, self.config(), elastic=True)

    def add_members(self, *members: str) -> list[str]:
        """
        Add members, and return the names of all members.

        Members beyond the number of partitions wait until others are dropped.

        Raises:
            InvalidNameError: a name cannot be the name of a consumer.
            ConsumerGroupError: the group has mappings.
            Error: otherwise as `config()` and `KeyValue.modify`.

        """
        added = [check_consumer_name(member, new=True) for member in members]
        return self._change(lambda known: [*known, *added])

    def drop_members(self, *members: str) -> list[str]:
        """Remove members, and return the names of the remaining ones; raises as `add_members()`."""
        return self._change(lambda known: [name for name in known if name not in members])

    def set_mappings(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """
        Assign the partitions to members, instead of an equal distribution.

        Args:
            partitions: the partitions of each member; empty: the group has no members.

        Raises:
            ConsumerGroupError: a partition is missing, or is assigned twice.
            Error: otherwise as `config()` and `KeyValue.modify`.

        """
        for member in partitions:
            check_consumer_name(member, new=True)

        def change(config: GroupConfig) -> GroupConfig:
            return replace(config, members=None, member_mappings=member_mappings(partitions))

        self._modify(change)

    def _change(self, function: Callable[[builtins.list[str]], builtins.list[str]]) -> list[str]:
        def change(config: GroupConfig) -> GroupConfig:
            if config.member_mappings:
                raise errors.ConsumerGroupError(f"group {self.key!r} has mappings: change these")
            return replace(config, members=function(config.member_names) or None)

        return self._modify(change).member_names

    def _modify(self, change: Callable[[GroupConfig], GroupConfig]) -> GroupConfig:
        changed: list[GroupConfig] = []

        def new_value(entry: KeyValueEntry | None) -> bytes:
            if entry is None:
                raise _group_not_found(self._stream, self._name)
            changed[:] = [change(parse_config(self._config_type, self.key, entry.value))]
            changed[0].check()
            return encode_config(changed[0])

        self._kv.modify(self.key, new_value)
        return changed[0]


class ConsumerGroups:
    """
    The partitioned consumer groups of an account; returned by `JetStream.consumer_groups`.

    They need server 2.11. Groups of orbit.go's ``pcgroups`` (Go) can be used as well, and its members can
    join the groups that are created here.
    """

    def __init__(self, js: BucketAdmin, api: APIRequests) -> None:
        self._js = js
        self._api = api

    @with_one_deadline
    def create_static(
        self,
        stream: str,
        name: str,
        max_members: int,
        members: Sequence[str] = (),
        mappings: Mapping[str, Sequence[int]] | None = None,
        filters: Sequence[str] = (),
    ) -> StaticConsumerGroup:
        """
        Create a static group, or return the one with this config.

        Args:
            stream: the name of the stream, whose subjects begin with the partition.
            name: the name of the group.
            max_members: the number of partitions.
            members: the names of the members.
            mappings: the partitions of each member, instead of ``members``.
            filters: the subjects of the group, without the partition; empty: all.

        Raises:
            ConsumerGroupError: the group exists with another config, or the config is invalid.
            StreamNotFoundError: the stream does not exist.
            InvalidNameError, BadSubjectError: a name or filter is invalid.
            ServerTooOldError: the server is older than 2.11; nothing was created.
            Error: otherwise as `JetStream.create_key_value` and `KeyValue.create`.

        """
        config = StaticGroupConfig(
            max_members=max_members,
            filters=listed("filters", filters) or None,
            members=listed("members", members) or None,
            member_mappings=member_mappings(mappings or {}),
        )
        group, existing = self._create(StaticConsumerGroup, stream, name, config)
        if existing is not None and not existing.has_members_of(config):
            raise errors.ConsumerGroupError(f"group {group.key!r} exists with other members")
        return group

    @with_one_deadline
    def create_elastic(
        self,
        stream: str,
        name: str,
        max_members: int,
        filters: Mapping[str, Sequence[int]] | None = None,
        max_buffered_msgs: int | None = None,
        max_buffered_bytes: int | None = None,
    ) -> ElasticConsumerGroup:
        """
        Create an elastic group and its work-queue stream, or return the one with this config.

        The stream is named ``<stream>-<name>``. It has the replicas and the storage of the source, and a copy
        of each message until it is acknowledged.

        Args:
            stream: the name of the stream.
            name: the name of the group.
            max_members: the number of partitions.
            filters: the subjects of the group, each with the numbers of the ``*`` wildcards that select the
                partition, from 1; without numbers, the whole subject does. ``None``: all subjects.
            max_buffered_msgs: maximum number of messages in the work-queue stream; ``None``: no limit.
            max_buffered_bytes: the same in bytes.

        Raises:
            ConsumerGroupError: the group exists with another config, or the config is invalid.
            StreamNotFoundError: the stream does not exist.
            InvalidNameError, BadSubjectError: a name or filter is invalid.
            ServerTooOldError: the server is older than 2.11; nothing was created.
            Error: otherwise as `JetStream.create_stream` and `KeyValue.create`.

        """
        if not isinstance(filters, (Mapping, type(None))):
            rule = "must be a mapping from subjects to numbers of wildcards"
            raise errors.InvalidOptionError("filters", filters, rule)
        config = ElasticGroupConfig(
            max_members=max_members,
            partitioning_filters=[
                PartitioningFilter(filter=subject, partitioning_wildcards=list(wildcards))
                for subject, wildcards in (filters or {}).items()
            ]
            or None,
            max_buffered_msg=max_buffered_msgs or None,
            max_buffered_bytes=max_buffered_bytes or None,
        )
        source = self._js.get_stream(stream).cached_info.config
        group, existing = self._create(ElasticConsumerGroup, stream, name, config)
        transforms = [SubjectTransform(src=src, dest=dest) for src, dest in config.transforms()]
        try:
            self._js.create_stream(
                StreamConfig(
                    name=group.consumer_stream_name,
                    retention=RetentionPolicy.WORK_QUEUE,
                    num_replicas=source.num_replicas,
                    storage=source.storage,
                    max_msgs=config.max_buffered_msg,
                    max_bytes=config.max_buffered_bytes,
                    discard=DiscardPolicy.NEW,
                    sources=[StreamSource(name=stream, subject_transforms=transforms)],
                    allow_direct=True,
                )
            )
        except BaseException:
            if existing is None:
                with suppress(errors.Error):
                    group._kv.delete(group.key)  # noqa: SLF001 - one module
            raise
        return group

    def _create(
        self, cls: type[_G], stream: str, name: str, config: GroupConfig
    ) -> tuple[_G, GroupConfig | None]:
        """Store the config of a group; return the group, and the config that existed before."""
        stream, name = check_stream_name(stream), check_stream_name(name, new=True)
        for member in config.member_names:
            check_consumer_name(member, new=True)
        config.check()
        require_level(self._api, 1, "a consumer group")
        replicas = self._js.get_stream(stream).cached_info.config.num_replicas
        bucket = cls._bucket
        try:
            kv = self._js.key_value(bucket)
        except errors.BucketNotFoundError:
            kv = self._js.create_key_value(
                KeyValueConfig(bucket=bucket, replicas=replicas, storage=StorageType.FILE)
            )
        group = cls(self._js, self._api, kv, stream, name)
        try:
            kv.create(group.key, encode_config(config))
        except errors.KeyExistsError:
            existing = group.config()
            if not existing.has_settings_of(config):
                raise errors.ConsumerGroupError(
                    f"group {group.key!r} exists with another config"
                ) from None
            return group, existing
        return group, None

    @with_one_deadline
    def get(self, stream: str, name: str) -> StaticConsumerGroup | ElasticConsumerGroup:
        """
        Return an existing group; of two with this name, the elastic one.

        Raises:
            ConsumerGroupNotFoundError: there is no such group.
            ConsumerGroupError: its config is invalid.
            InvalidNameError: a name is invalid.
            Error: otherwise as `KeyValue.get`.

        """
        stream, name = check_stream_name(stream), check_stream_name(name)
        for cls in (ElasticConsumerGroup, StaticConsumerGroup):
            with suppress(errors.BucketNotFoundError, errors.ConsumerGroupNotFoundError):
                group = cls(self._js, self._api, self._js.key_value(cls._bucket), stream, name)
                group.config()
                return group
        raise _group_not_found(stream, name)

    @with_one_deadline
    def list(
        self, stream: str | None = None
    ) -> builtins.list[StaticConsumerGroup | ElasticConsumerGroup]:
        """
        Return the groups of a stream, or of all streams, sorted by stream and name.

        Args:
            stream: the name of the stream; ``None``: all.

        Raises:
            InvalidNameError: the name is invalid.
            Error: otherwise as `KeyValue.keys`.

        """
        pattern = f"{'*' if stream is None else check_stream_name(stream)}.*"
        groups: builtins.list[StaticConsumerGroup | ElasticConsumerGroup] = []
        for cls in (ElasticConsumerGroup, StaticConsumerGroup):
            with suppress(errors.BucketNotFoundError):
                kv = self._js.key_value(cls._bucket)
                found = [key.split(".") for key in kv.keys(pattern)]
                groups += [cls(self._js, self._api, kv, *names) for names in found]
        return sorted(groups, key=lambda group: (group.stream_name, group.name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
