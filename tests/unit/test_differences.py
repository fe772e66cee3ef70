"""The differences of two configs, as `jsm` and workers show them."""

from __future__ import annotations

from jetstream_sync import StreamConfig
from jetstream_sync.differences import differences


def test_labels_of_the_server_are_no_difference():
    """A change of labels of the user is shown without the labels that the server adds."""
    before = StreamConfig(name="S", metadata={"_nats.level": "1", "_nats.ver": "2.12", "x": "1"})
    (found,) = differences(before, StreamConfig(name="S", metadata={"x": "2"}))
    assert (found.before, found.after) == ({"x": "1"}, {"x": "2"})
    assert "_nats" not in found.text
    assert differences(before, StreamConfig(name="S", metadata={"x": "1"})) == []


def test_a_difference_is_one_line():
    """A line break in a description does not look like the next field."""
    before = StreamConfig(name="S", description="a -> b\n  max_msgs: 1 -> 2", subjects=["a", "b"])
    found = differences(before, StreamConfig(name="S", description="c", subjects=["a"]))
    assert [item.text for item in found] == [
        r'description: "a -> b\n  max_msgs: 1 -> 2" -> c',
        "subjects: a, b -> a",
    ]
