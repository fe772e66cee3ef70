"""The first errors that people see name the object, what differs, and what to do."""

from __future__ import annotations

import pickle

import pytest

from jetstream_sync import errors


def test_a_missing_stream_or_consumer_is_named(js):
    """Each request that names it: the text and the attributes have the names."""
    stream = js.create_stream(name="HERE")
    for call in (
        js.get_stream,
        js.delete_stream,
        js.consumer_names,
        lambda name: js.consumer_info(name, "C"),
        lambda name: js.create_consumer(name, name="C"),
        lambda name: js.delete_consumer(name, "C"),
    ):
        with pytest.raises(errors.StreamNotFoundError, match="stream not found: 'NOPE'") as caught:
            call("NOPE")
        assert caught.value.stream == "NOPE"
    js.delete_stream("HERE")
    for call in (
        stream.info,
        stream.purge,
        lambda: stream.get_msg(1),
        lambda: stream.delete_msg(1),
    ):
        with pytest.raises(errors.StreamNotFoundError, match="stream not found: 'HERE'"):
            call()
    stream = js.create_stream(name="HERE")
    for call in (stream.get_consumer, stream.consumer_info, stream.delete_consumer):
        with pytest.raises(
            errors.ConsumerNotFoundError, match="consumer not found: 'C' of stream 'HERE'"
        ) as missing:
            call("C")
        assert (missing.value.stream, missing.value.consumer) == ("HERE", "C")
    copy = pickle.loads(pickle.dumps(missing.value))
    assert (str(copy), copy.consumer) == (str(missing.value), "C")


def test_a_changed_config_is_explained(js):
    """The fields with both values, and the call that changes them."""
    stream = js.create_stream(name="HERE", subjects=["here.*"], max_msgs=5)
    with pytest.raises(
        errors.StreamNameInUseError, match="max_msgs: 5 -> 6; update_stream"
    ) as used:
        js.create_stream(name="HERE", subjects=["here.*"], max_msgs=6)
    assert used.value.differences == {"max_msgs": (5, 6)}
    stream.create_consumer(name="C", max_deliver=3)
    with pytest.raises(
        errors.ConsumerExistsError, match="max_deliver: 3 -> 4; update_con"
    ) as exists:
        stream.create_consumer(name="C", max_deliver=4)
    assert exists.value.differences == {"max_deliver": (3, 4)}
    with pytest.raises(errors.ConsumerExistsError, match="has max_deliver: 3 -> -; update_con"):
        stream.create_consumer(name="C")
    with pytest.raises(errors.StreamNameInUseError, match="has max_msgs: 5 -> -; update_stream"):
        js.create_stream(name="HERE", subjects=["here.*"])
    with pytest.raises(
        errors.ConsumerDoesNotExistError, match="does not exist: 'D' of stream 'HERE'"
    ):
        stream.update_consumer(name="D")
    js.create_key_value(bucket="b", history=2)
    with pytest.raises(errors.BucketExistsError, match="max_msgs_per_subject") as bucket:
        js.create_key_value(bucket="b", history=3)
    assert bucket.value.differences == {"max_msgs_per_subject": (2, 3)}


def test_overlapping_subjects_name_the_other_stream(js):
    """In a create and in an update."""
    js.create_stream(name="ONE", subjects=["a.*"])
    js.create_stream(name="TWO", subjects=["b"])
    for call in (
        lambda: js.create_stream(name="THREE", subjects=["a.1"]),
        lambda: js.update_stream(name="TWO", subjects=["b", "a.1"]),
    ):
        with pytest.raises(
            errors.StreamSubjectOverlapError, match="'a.1' .* subjects of stream 'ONE'"
        ) as caught:
            call()
        assert caught.value.streams == ("ONE",)
