"""Offsets of streaming queries, as stored in checkpoints."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import InvalidArgumentError
from jetstream_sync.spark.planning.offsets import Offset, OffsetError, StreamOffset
from jetstream_sync.spark.streams import stream_key


@st.composite
def positions(draw: st.DrawFn) -> StreamOffset:
    bounds = sorted(draw(st.sets(st.integers(1, 2**63), min_size=1, max_size=6)))
    return StreamOffset(
        created_ns=draw(st.integers(0, 2**63)),
        start_seq=bounds[0],
        next_seq=bounds[-1],
        cuts=tuple(bounds[1:-1]),
        filters=tuple(draw(st.lists(st.sampled_from(["a", "b.*", "c.>"]), unique=True))),
        since_ns=draw(st.none() | st.integers(0, 2**63)),
        last_ns=draw(st.none() | st.integers(0, 2**63)),
        from_earliest=draw(st.booleans()),
    )


offsets = st.builds(
    Offset,
    st.dictionaries(st.sampled_from(["A", "B", "D/C"]), positions()),
    st.text("0f", max_size=3),
)


@given(offsets)
def test_an_offset_survives_the_checkpoint(offset):
    """Parsing the JSON of an offset returns the same offset; the order of the streams does not matter."""
    text = json.dumps(offset.to_json())
    again = Offset.from_json(json.loads(text))
    turned = Offset(dict(reversed(offset.positions.items())), offset.query)
    assert again == offset
    assert json.dumps(again.to_json()) == json.dumps(turned.to_json()) == text


def test_the_format_in_the_checkpoint():
    """An offset contains for each stream its creation time, and start, cuts and end of the batch."""
    position = StreamOffset(
        created_ns=17, start_seq=1001, next_seq=1501, cuts=(1200,), filters=("a.>",)
    )
    assert Offset({"ORDERS": position}).to_json() == {
        "streams": {
            "ORDERS": {
                "created": "17",
                "cuts": [1200],
                "from": 1001,
                "next": 1501,
                "subjects": ["a.>"],
            }
        },
        "v": 1,
    }
    assert Offset({}, "0f").to_json() == {"query": "0f", "streams": {}, "v": 1}


#: The offsets that versions of this package have written into checkpoints.
FORMER_OFFSETS = (
    '{"streams": {"A": {"created": "17", "cuts": [], "from": 1, "next": 1}}, "v": 1}',
    (
        '{"query": "0f", "streams": {"D/A": {"created": "17", "cuts": [3, 5], "from": 1, "next": 9,'
        ' "subjects": ["a.>", "b"]}}, "v": 1}'
    ),
    (
        '{"query": "0f", "streams": {"A": {"created": "17", "cuts": [], "earliest": true, "from": 1, "last": "9",'
        ' "next": 2, "since": "1767225600000000000"}, "B": {"created": "1", "cuts": [], "from": 4, "next": 4}}, "v": 1}'
    ),
)


@pytest.mark.parametrize("text", FORMER_OFFSETS)
def test_offsets_of_former_versions_are_read(text):
    """An offset that an earlier version has stored is read, and gives the same text again."""
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text


@given(positions())
def test_partition_bounds_cover_the_batch(position):
    """The partitions of a batch are adjacent, cover it and are not empty."""
    bounds = position.partition_bounds()
    assert [low for low, _ in bounds] + [position.next_seq] == [
        position.start_seq,
        *(high for _, high in bounds),
    ]
    assert all(low < high for low, high in bounds)


def test_the_next_batch_starts_at_the_end_of_the_last_one():
    """`empty_after` returns the empty batch after a batch."""
    position = StreamOffset(created_ns=5, start_seq=1, next_seq=9, cuts=(4,), filters=("a",))
    assert position.empty_after() == StreamOffset(
        created_ns=5, start_seq=9, next_seq=9, filters=("a",)
    )
    assert position.empty_after().partition_bounds() == []


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_other_versions_are_refused(version):
    """An offset of another version is refused."""
    with pytest.raises(OffsetError, match="version"):
        Offset.from_json({"streams": {}, "v": version})


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"created": "x", "cuts": [], "from": 1, "next": 2},
        {"created": "1", "cuts": [5], "from": 1, "next": 2},
        {"created": "1", "cuts": [], "from": 3, "next": 2},
        {"created": "1", "cuts": [], "from": 0, "next": 2},
        {"created": 1, "cuts": [], "from": 1, "next": 2},
        {"created": "1", "cuts": [], "from": True, "next": 2},
        {"created": "1", "cuts": "5", "from": 1, "next": 9},
        {"created": "1", "from": 1, "next": 2},
        None,
    ],
)
def test_damaged_offsets_are_refused(entry):
    """A value that cannot be the end of a batch is refused."""
    with pytest.raises(OffsetError):
        Offset.from_json({"streams": {"A": entry}, "v": 1})


def test_cuts_must_be_within_the_batch():
    """A batch with duplicate cuts, or cuts outside, cannot be created."""
    for cuts in [(1,), (9,), (5, 5), (6, 5)]:
        with pytest.raises(InvalidArgumentError):
            StreamOffset(created_ns=1, start_seq=1, next_seq=9, cuts=cuts)


def test_stream_keys_contain_the_domain():
    """The key of a stream contains its domain, if there is one."""
    assert stream_key("A", None) == "A"
    assert stream_key("A", "hub") == "hub/A"
