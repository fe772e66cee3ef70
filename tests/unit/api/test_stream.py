"""Stream configs and stored messages: invalid values are rejected."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from jetstream_sync.api.enums import (
    PersistMode,
    StorageType,
)
from jetstream_sync.api.stream import (
    StoredMsgReply,
    StreamConfig,
    StreamConsumerSource,
    StreamInfo,
    StreamSource,
    SubjectTransform,
)
from jetstream_sync.codec import UnknownEnumValue, decode, encode
from jetstream_sync.errors import InvalidOptionError

REPLIES = Path(__file__).with_name("replies")


def reply(name):
    return json.loads(REPLIES.joinpath(f"{name}.json").read_text())


def test_an_empty_stream_has_no_times():
    """The server's zero time, year 1, is decoded without an error."""
    state = decode(StreamInfo, reply("stream_defaults")).state
    assert state.first_ts == state.last_ts == datetime(1, 1, 1, tzinfo=timezone.utc)


def test_stored_messages_are_understood():
    """Headers and payload are bytes; missing ones are omitted."""
    msg = decode(StoredMsgReply, reply("stored_msg_headers")["message"])
    assert msg.hdrs.startswith(b"NATS/1.0\r\n")
    assert b"Nats-Msg-Id: 1\r\n" in msg.hdrs
    assert msg.data == b"x"
    assert (msg.subject, msg.seq) == ("ORDERS.b", 2)
    assert encode(msg) == reply("stored_msg_headers")["message"]
    assert decode(StoredMsgReply, reply("stored_msg_empty")["message"]).data is None


def test_a_config_is_sent_with_the_given_fields_only():
    """A config is sent with its name and the given fields only."""
    config = StreamConfig(name="ORDERS", subjects=["ORDERS.*"], max_age=1.5, storage="memory")
    assert encode(config) == {
        "name": "ORDERS",
        "subjects": ["ORDERS.*"],
        "max_age": 1_500_000_000,
        "storage": "memory",
    }


MIRROR = StreamSource(name="ORIGIN")


@pytest.mark.parametrize(
    "fields",
    [
        {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
        {"mirror": MIRROR, "subjects": [], "sources": [], "allow_direct": True},
        {"max_age": 0, "duplicate_window": 0},
        {"max_age": 0.1, "duplicate_window": 0.1},
        {"duplicate_window": 3600},
        {"max_msgs": -1, "max_bytes": -1, "max_consumers": -1, "max_msg_size": -1},
        {"allow_msg_counter": True, "retention": "limits", "discard": "old"},
        {"allow_msg_schedules": True, "allow_msg_ttl": True},
        {"persist_mode": PersistMode.ASYNC, "storage": StorageType.FILE, "num_replicas": 1},
        {"allow_rollup_hdrs": True, "deny_delete": True},
        {"allow_msg_schedules": True, "discard": UnknownEnumValue("newest")},
    ],
)
def test_valid_combinations_are_accepted(fields):
    """Valid combinations pass the checks."""
    StreamConfig(name="S", **fields)


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("subjects", {"mirror": MIRROR, "subjects": ["a"]}),
        ("sources", {"mirror": MIRROR, "sources": [StreamSource(name="X")]}),
        ("first_seq", {"mirror": MIRROR, "first_seq": 5}),
        ("allow_msg_counter", {"mirror": MIRROR, "allow_msg_counter": True}),
        ("allow_atomic", {"mirror": MIRROR, "allow_atomic": True}),
        ("allow_batched", {"mirror": MIRROR, "allow_batched": True}),
        ("allow_msg_schedules", {"mirror": MIRROR, "allow_msg_schedules": True}),
        ("subject_delete_marker_ttl", {"mirror": MIRROR, "subject_delete_marker_ttl": 1}),
        ("subjects", {"subjects": ["a", "b", "a"]}),
        ("subjects", {"subjects": "a"}),
        ("discard_new_per_subject", {"discard_new_per_subject": True, "max_msgs_per_subject": 1}),
        ("discard_new_per_subject", {"discard_new_per_subject": True, "discard": "new"}),
        ("allow_rollup_hdrs", {"allow_rollup_hdrs": True, "deny_purge": True}),
        ("allow_msg_schedules", {"allow_msg_schedules": True, "discard": "new"}),
        ("allow_msg_schedules", {"allow_msg_schedules": True, "sources": [StreamSource(name="X")]}),
        ("allow_msg_counter", {"allow_msg_counter": True, "discard": "new"}),
        ("allow_msg_counter", {"allow_msg_counter": True, "allow_msg_ttl": True}),
        ("allow_msg_counter", {"allow_msg_counter": True, "allow_msg_schedules": True}),
        ("allow_msg_counter", {"allow_msg_counter": True, "retention": "interest"}),
        ("persist_mode", {"persist_mode": "async", "storage": "memory"}),
        ("persist_mode", {"persist_mode": "async", "allow_atomic": True}),
        ("duplicate_window", {"max_age": 60, "duplicate_window": 61}),
        ("duplicate_window", {"duplicate_window": 0.09}),
        ("max_age", {"max_age": 0.09}),
        ("max_age", {"max_age": "1h"}),
        ("subject_delete_marker_ttl", {"subject_delete_marker_ttl": 0.9}),
        ("max_bytes", {"max_bytes": 2**63}),
        ("max_consumers", {"max_consumers": 1.0}),
        ("max_msg_size", {"max_msg_size": 2**31}),
        ("num_replicas", {"num_replicas": 6}),
        ("first_seq", {"first_seq": -1}),
        ("retention", {"retention": "work_queue"}),
        ("metadata", {"metadata": {"a": 1}}),
        ("mirror", {"mirror": "ORIGIN"}),
        ("sources", {"sources": MIRROR}),
    ],
)
def test_invalid_values_are_refused(option, fields):
    """The error for an invalid value or combination names the option."""
    with pytest.raises(InvalidOptionError) as caught:
        StreamConfig(name="S", **fields)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        (
            "subject_transforms",
            {"filter_subject": "a", "subject_transforms": [SubjectTransform(src="b", dest="c")]},
        ),
        ("opt_start_seq", {"opt_start_seq": 1, "consumer": StreamConsumerSource(name="c")}),
        ("filter_subject", {"filter_subject": "a", "consumer": StreamConsumerSource(name="c")}),
        ("opt_start_seq", {"opt_start_seq": -1}),
        ("opt_start_time", {"opt_start_time": datetime(2024, 1, 1)}),  # noqa: DTZ001
    ],
)
def test_a_source_is_checked_too(option, fields):
    """Options of a source that exclude each other are rejected when it is created."""
    with pytest.raises(InvalidOptionError) as caught:
        StreamSource(name="S", **fields)
    assert caught.value.option == option
