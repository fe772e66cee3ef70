"""Offsets of streaming queries, as they stand in checkpoints."""

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
    )


offsets = st.builds(
    Offset,
    st.dictionaries(st.sampled_from(["A", "B", "D/C"]), positions()),
    st.text("0f", max_size=3),
)


@given(offsets)
def test_an_offset_survives_the_checkpoint(offset: Offset) -> None:
    """What was written as JSON is read as the same offset."""
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(offsets)
def test_the_same_offset_is_the_same_text(offset: Offset) -> None:
    """The order in which streams were found does not show, and reading and writing changes nothing."""
    text = json.dumps(offset.to_json())
    turned = Offset(dict(reversed(offset.positions.items())), offset.query)
    assert json.dumps(turned.to_json()) == text
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text


def test_the_form_in_the_checkpoint() -> None:
    """An offset says for each stream when it was made, and the batch's start, cuts and end."""
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


@given(positions())
def test_partition_bounds_cover_the_batch(position: StreamOffset) -> None:
    """The partitions of a batch join, from its start to its end, and none is empty."""
    bounds = position.partition_bounds()
    assert [low for low, _ in bounds] + [position.next_seq] == [
        position.start_seq,
        *(high for _, high in bounds),
    ]
    assert all(low < high for low, high in bounds)


def test_the_batch_after_another_starts_at_its_end() -> None:
    """`ended` is the empty batch behind a batch."""
    position = StreamOffset(created_ns=5, start_seq=1, next_seq=9, cuts=(4,), filters=("a",))
    assert position.empty_after() == StreamOffset(created_ns=5, start_seq=9, next_seq=9, filters=("a",))
    assert position.empty_after(()).filters == ()
    assert position.empty_after().partition_bounds() == []


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_other_versions_are_refused(version: object) -> None:
    """An offset that another version of the package wrote is not guessed at."""
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
        None,
    ],
)
def test_damaged_offsets_are_refused(entry: object) -> None:
    """What can not be the end of a batch is not taken for one."""
    with pytest.raises(OffsetError):
        Offset.from_json({"streams": {"A": entry}, "v": 1})


def test_cuts_lie_within_the_batch() -> None:
    """A batch with cuts outside of it, or twice the same, can not be made."""
    for cuts in [(1,), (9,), (5, 5), (6, 5)]:
        with pytest.raises(InvalidArgumentError):
            StreamOffset(created_ns=1, start_seq=1, next_seq=9, cuts=cuts)


def test_streams_of_two_domains_are_two_streams() -> None:
    """The key of a stream has its domain, when there is one."""
    assert stream_key("A", None) == "A"
    assert stream_key("A", "hub") == "hub/A"
