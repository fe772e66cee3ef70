"""Formats and assignment of consumer groups, derived by hand from the sources of orbit.go's ``pcgroups``."""

from __future__ import annotations

import json

import pytest

from jetstream_sync import BadSubjectError, ConsumerGroupError
from jetstream_sync.codec import decode, dumps, encode, loads
from jetstream_sync.jetstream.partitioned.records import (
    ElasticGroupConfig,
    PartitioningFilter,
    StaticGroupConfig,
    member_mappings,
)


@pytest.mark.parametrize(
    ("max_members", "members", "expected"),
    [
        # 10 // 3 = 3 consecutive partitions each; partition 9 goes to the first member.
        (10, "c a b", {"a": [0, 1, 2, 9], "b": [3, 4, 5], "c": [6, 7, 8]}),
        (6, "a b c d", {"a": [0, 4], "b": [1, 5], "c": [2], "d": [3]}),
        (4, "b a", {"a": [0, 1], "b": [2, 3]}),
        (3, "a", {"a": [0, 1, 2], "x": []}),
        # Members are distinct and sorted, and those beyond max_members have nothing.
        (2, "c b a b", {"a": [0], "b": [1], "c": []}),
        (2, "", {"a": []}),
    ],
)
def test_partitions_are_assigned_as_in_orbit(max_members, members, expected):
    """The partitions of each member are those of ``GeneratePartitionFilters``."""
    config = StaticGroupConfig(max_members=max_members, members=members.split())
    config.check()
    assert {member: config.partitions(member) for member in expected} == expected


def test_filters_are_those_of_orbit():
    """Filters come before partitions in the order; with mappings the filter is ``>``."""
    config = StaticGroupConfig(max_members=3, members=["b", "a"], filters=["x.*", "y"])
    assert config.filters_of("a") == ["0.x.*", "2.x.*", "0.y", "2.y"]
    mapped = StaticGroupConfig(
        max_members=3,
        filters=["x.*", "y"],
        member_mappings=member_mappings({"a": [2, 0], "b": [1]}),
    )
    assert mapped.filters_of("a") == ["2.>", "0.>"]
    assert StaticGroupConfig(max_members=1, members=["a"]).filters_of("a") == ["0.>"]


@pytest.mark.parametrize(
    ("source", "wildcards", "expected"),
    [
        ("foo.*", [1], "{{Partition(10,1)}}.foo.{{Wildcard(1)}}"),
        ("a.*.b.*", [2, 1], "{{Partition(10,2,1)}}.a.{{Wildcard(1)}}.b.{{Wildcard(2)}}"),
        ("a.*.>", [], "{{Partition(10)}}.a.{{Wildcard(1)}}.>"),
    ],
)
def test_transforms_are_those_of_orbit(source, wildcards, expected):
    """The destination has the partition, and the filter with numbered wildcards."""
    item = PartitioningFilter(filter=source, partitioning_wildcards=wildcards)
    config = ElasticGroupConfig(max_members=10, partitioning_filters=[item])
    config.check()
    assert config.transforms() == [(source, expected)]
    assert ElasticGroupConfig(max_members=2).transforms() == [(">", "{{Partition(2)}}.>")]


def test_the_json_is_that_of_orbit():
    """Configs are encoded with the field names of orbit.go, and unknown fields are kept."""
    elastic = {
        "max_members": 4,
        "partitioning_filters": [{"filter": "foo.*", "partitioning_wildcards": [1]}],
        "max_buffered_msg": 100,
        "max_buffered_bytes": 1000,
        "members": ["a"],
    }
    static = {
        "max_members": 2,
        "filters": ["foo"],
        "member_mappings": [{"member": "a", "partitions": [1, 0]}],
    }
    for cls, fields in ((ElasticGroupConfig, elastic), (StaticGroupConfig, static)):
        text = json.dumps({**fields, "newer": 1})
        config = decode(cls, loads(text))
        config.check()
        assert json.loads(dumps(encode(config))) == {**fields, "newer": 1}
    # Go encodes missing lists as null.
    bare = decode(ElasticGroupConfig, {"max_members": 1, "partitioning_filters": None})
    assert bare.has_settings_of(ElasticGroupConfig(max_members=1))


@pytest.mark.parametrize(
    "mappings",
    [
        {"a": [0, 1]},  # 2 is missing
        {"a": [0, 1], "b": [1, 2]},
        {"a": [0, 1, 2, 3]},
        {"a": [0], "b": [1], "c": [2], "d": []},
    ],
)
def test_every_partition_is_mapped_once(mappings):
    """Mappings with a gap, a double, or too many partitions or members are refused."""
    config = StaticGroupConfig(max_members=3, member_mappings=member_mappings(mappings))
    with pytest.raises(ConsumerGroupError, match="each partition from 0 to 2 exactly once"):
        config.check()


def test_configs_that_cannot_work_are_refused():
    """The number of members, double members, and filters are checked."""
    mappings = member_mappings({"a": [0]})
    for wrong in (
        StaticGroupConfig(max_members=0),
        StaticGroupConfig(max_members=1, members=["a"], member_mappings=mappings),
        StaticGroupConfig(max_members=2, member_mappings=mappings * 2),
        *(
            ElasticGroupConfig(
                max_members=1,
                partitioning_filters=[PartitioningFilter(filter=f, partitioning_wildcards=w)],
            )
            for f, w in (("foo", []), ("foo.*", [2]), ("foo.*", [0]), ("foo.*.*", [1, 1]))
        ),
    ):
        with pytest.raises(ConsumerGroupError):
            wrong.check()
    with pytest.raises(BadSubjectError):
        StaticGroupConfig(max_members=1, filters=["a..b"]).check()
