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
