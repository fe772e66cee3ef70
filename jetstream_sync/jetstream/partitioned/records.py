"""Partitioned consumer groups: their configs and the assignment of partitions to members."""

# Names, formats and the assignment are those of orbit.go's pcgroups, so that members of both can share
# a group.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeVar

from ... import errors
from ...codec import Record, decode, dumps, encode, loads
from ...records import record
from ...subjects import check_subject

#: The priority group of the consumers of members.
PRIORITY_GROUP: Final = "PCG"
#: The largest number of partitions: with many more, the list of those of a member would exhaust the memory.
_MAX_PARTITIONS: Final = 1_000_000
#: The buckets with the configs of groups.
STATIC_BUCKET: Final = "static-consumer-groups"
ELASTIC_BUCKET: Final = "elastic-consumer-groups"


@record
class MemberMapping(Record):
    """The partitions that are assigned to a member."""

    member: str
    """The name of the member."""

    partitions: Sequence[int] | None = None
    """The partitions."""


@record
class PartitioningFilter(Record):
    """A subject filter of an elastic group, and the tokens that select the partition."""

    filter: str
    """The subjects, with wildcards."""

    partitioning_wildcards: Sequence[int] | None = None
    """The ``*`` wildcards of the filter, counted from 1; ``None`` or empty: the whole subject."""


@record
class GroupConfig(Record):
    """The fields of all consumer groups."""

    max_members: int
    """The number of partitions, which is the maximum number of members."""

    members: Sequence[str] | None = None
    """The members, to which the partitions are assigned."""

    member_mappings: Sequence[MemberMapping] | None = None
    """The partitions of each member, instead of `members`."""

    @property
    def member_names(self) -> list[str]:
        """The names of the members, including those without a partition."""
        mapped = [mapping.member for mapping in self.member_mappings or ()]
        return mapped or list(dict.fromkeys(self.members or ()))

    def partitions(self, member: str) -> list[int]:
        """
        Return the partitions of a member.

        Consecutive partitions go to each member in the order of the names. What remains of the division
        goes to the first members, one partition each. Members beyond `max_members` have none.
        """
        names = sorted(set(self.members or ()))[: self.max_members]
        if not names:
            mappings = self.member_mappings or ()
            return [
                p
                for mapping in mappings
                if mapping.member == member
                for p in mapping.partitions or ()
            ]
        share = self.max_members // len(names)
        shared = share * len(names)
        return [
            p
            for p in range(self.max_members)
            if names[p // share if p < shared else p - shared] == member
        ]

    def filters_of(self, member: str) -> list[str]:
        """Return the subject filters of a member's consumer."""
        # With mappings, orbit.go ignores the filters of the group.
        filters = self._filters() if self.members else [">"]
        partitions = self.partitions(member)
        return [f"{partition}.{subject}" for subject in filters for partition in partitions]

    def _filters(self) -> list[str]:
        raise NotImplementedError

    def check(self) -> None:
        """Raise if the group would not work."""
        if not 1 <= self.max_members <= _MAX_PARTITIONS:
            raise errors.ConsumerGroupError(
                f"invalid max_members {self.max_members}: must be from 1 to {_MAX_PARTITIONS}"
            )
        mappings = self.member_mappings
        if not mappings:
            return
        if self.members:
            raise errors.ConsumerGroupError("members and member_mappings exclude each other")
        if len(self.member_names) != len(set(self.member_names)):
            raise errors.ConsumerGroupError("a member has several member_mappings")
        mapped = sorted(p for mapping in mappings for p in mapping.partitions or ())
        if mapped != list(range(self.max_members)) or len(mappings) > self.max_members:
            raise errors.ConsumerGroupError(
                f"member_mappings must contain each partition from 0 to {self.max_members - 1} exactly "
                f"once, and at most {self.max_members} members"
            )

    def has_settings_of(self, other: GroupConfig) -> bool:
        """Return whether another config differs only in its members."""
        return self._settings() == other._settings()

    def _settings(self) -> tuple[Any, ...]:
        """Return what must not change; missing and empty values are the same."""
        return self.max_members, self._filters()

    def has_members_of(self, other: GroupConfig) -> bool:
        """Return whether another config assigns the partitions in the same way."""
        return _membership(self) == _membership(other)


@record
class StaticGroupConfig(GroupConfig):
    """
    The config of a static consumer group.

    The subjects of its stream begin with the partition, for example with the subject transform
    ``{{partition(10,1)}}.orders.{{wildcard(1)}}``. Its members do not change.
    """

    filters: Sequence[str] | None = None
    """The subjects of the group, without the partition; ``None``: all."""

    def _filters(self) -> list[str]:
        return list(self.filters or (">",))

    def check(self) -> None:
        """Raise if the group would not work."""
        GroupConfig.check(self)
        for subject in self.filters or ():
            check_subject(subject)


@record
class ElasticGroupConfig(GroupConfig):
    """
    The config of an elastic consumer group.

    A work-queue stream takes the messages from the stream and prepends the partition to their subjects.
    Its members may change at any time.
    """

    partitioning_filters: Sequence[PartitioningFilter] | None = None
    """The subjects of the group; ``None``: all."""

    max_buffered_msg: int | None = None
    """The limit of the work-queue stream, in messages."""

    max_buffered_bytes: int | None = None
    """The limit of the work-queue stream, in bytes."""

    def _filters(self) -> list[str]:
        return [item.filter for item in self.partitioning_filters or ()] or [">"]

    def _settings(self) -> tuple[Any, ...]:
        wildcards = [list(f.partitioning_wildcards or ()) for f in self.partitioning_filters or ()]
        limits = self.max_buffered_msg or 0, self.max_buffered_bytes or 0
        return self.max_members, self._filters(), wildcards, limits

    def check(self) -> None:
        """Raise if the group would not work."""
        GroupConfig.check(self)
        for item in self.partitioning_filters or ():
            tokens = check_subject(item.filter).split(".")
            stars = tokens.count("*")
            if not stars and tokens[-1] != ">":
                raise errors.ConsumerGroupError(
                    f"invalid filter {item.filter!r}: it must have a '*' wildcard or end with '>'"
                )
            wildcards = list(item.partitioning_wildcards or ())
            if len(wildcards) != len(set(wildcards)) or not all(1 <= w <= stars for w in wildcards):
                raise errors.ConsumerGroupError(
                    f"invalid partitioning_wildcards {wildcards} of filter {item.filter!r}: expected "
                    f"different numbers from 1 to {stars}, the number of its '*' wildcards"
                )

    def transforms(self) -> list[tuple[str, str]]:
        """Return the subject transforms that prepend the partition: source and destination."""
        filters = self.partitioning_filters or (PartitioningFilter(filter=">"),)
        return [(item.filter, self._destination(item)) for item in filters]

    def _destination(self, source: PartitioningFilter) -> str:
        arguments = [self.max_members, *(source.partitioning_wildcards or ())]
        wildcards = count(1)
        mapped = [
            f"{{{{Wildcard({next(wildcards)})}}}}" if part == "*" else part
            for part in source.filter.split(".")
        ]
        return ".".join([f"{{{{Partition({','.join(map(str, arguments))})}}}}", *mapped])


_C = TypeVar("_C", bound=GroupConfig)


def parse_config(cls: type[_C], key: str, value: bytes) -> _C:
    """Return the config in the value of a key; raise `ConsumerGroupError` if it is invalid."""
    try:
        config = decode(cls, loads(value))
    except (ValueError, errors.Error) as error:
        raise errors.ConsumerGroupError(f"invalid config of group {key!r}: {error}") from error
    config.check()
    return config


def encode_config(config: GroupConfig) -> bytes:
    """Return the value of the key of a group."""
    return dumps(encode(config))


def listed(option: str, given: Iterable[str]) -> list[str]:
    """Return a list of texts; a single text is refused, because it is a list of its characters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise errors.InvalidOptionError(option, given, "must be a list")
    return list(given)


def member_mappings(partitions: Mapping[str, Sequence[int]]) -> list[MemberMapping] | None:
    """Return the mappings of a dict from members to partitions."""
    if not isinstance(partitions, Mapping) or not all(
        isinstance(numbers, Iterable) for numbers in partitions.values()
    ):
        rule = "must be a mapping from members to lists of partitions"
        raise errors.InvalidOptionError("mappings", partitions, rule)
    return [
        MemberMapping(member=name, partitions=list(p)) for name, p in partitions.items()
    ] or None


def _membership(config: GroupConfig) -> tuple[Any, ...]:
    mapped = [(m.member, list(m.partitions or ())) for m in config.member_mappings or ()]
    return list(config.members or ()), mapped
