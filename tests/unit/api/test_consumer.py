"""Consumer configs and pauses: invalid values are rejected."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from jetstream_sync.api.consumer import ConsumerConfig, ConsumerInfo, ConsumerPause
from jetstream_sync.codec import UnknownEnumValue, decode, encode
from jetstream_sync.durations import time_to_text
from jetstream_sync.errors import InvalidOptionError

REPLIES = Path(__file__).with_name("replies")


def reply(name):
    return json.loads(REPLIES.joinpath(f"{name}.json").read_text())


def test_pauses_are_understood():
    """The reply to a pause has its end; the reply to a resume has the server's zero time."""
    paused = decode(ConsumerPause, reply("consumer_pause"))
    assert paused.paused is True
    assert time_to_text(paused.pause_until) == "2100-01-01T00:00:00.000000001Z"
    assert paused.pause_remaining > timedelta(days=365)
    assert encode(paused) == reply("consumer_pause")
    resumed = decode(ConsumerPause, reply("consumer_resume"))
    assert (resumed.paused, resumed.pause_remaining) == (False, None)
    assert resumed.pause_until == datetime(1, 1, 1, tzinfo=timezone.utc)
    assert decode(ConsumerInfo, reply("consumer_info_paused")).paused is True


def test_the_policies_are_always_sent():
    """The policies are sent even with their defaults, because the default ack policy of the server differs."""
    assert encode(ConsumerConfig()) == {
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
    }


NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
PUSH = {"deliver_subject": "d"}


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a", "durable_name": "a"},
        {"filter_subject": "a.>", "filter_subjects": []},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 1},
        {"deliver_policy": "by_start_time", "opt_start_time": NOW},
        {"deliver_policy": "last_per_subject", "filter_subjects": ["a"]},
        {"backoff": [1, 2], "max_deliver": 2},
        {"backoff": [1, 2], "max_deliver": -1},
        {"backoff": [], "ack_policy": "none"},
        {"sample_freq": "100"},
        {"max_ack_pending": 5, "ack_policy": "none"},
        {**PUSH, "flow_control": True, "idle_heartbeat": 0.1, "rate_limit_bps": 1},
        {**PUSH, "ack_policy": "flow_control", "flow_control": True, "max_deliver": -1},
        {**PUSH, "ack_policy": "none", "max_ack_pending": -1},
        {"priority_policy": "overflow", "priority_groups": ["a/b=C-1_"]},
        {"priority_policy": "none"},
        {"priority_policy": UnknownEnumValue("newest"), "priority_groups": ["a"]},
        {"deliver_policy": UnknownEnumValue("newest")},
    ],
)
def test_valid_combinations_are_accepted(fields):
    """Valid combinations pass the checks."""
    ConsumerConfig(**fields)


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("name", {"name": "a", "durable_name": "b"}),
        ("filter_subjects", {"filter_subject": "a", "filter_subjects": ["b"]}),
        ("filter_subjects", {"filter_subjects": "a"}),
        ("opt_start_seq", {"opt_start_seq": 1}),
        ("opt_start_time", {"opt_start_time": NOW}),
        (
            "opt_start_time",
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 1, "opt_start_time": NOW},
        ),
        ("opt_start_time", {"deliver_policy": "by_start_time", "opt_start_time": 0}),
        ("deliver_policy", {"deliver_policy": "by_start_sequence"}),
        ("deliver_policy", {"deliver_policy": "by_start_sequence", "opt_start_seq": 0}),
        ("deliver_policy", {"deliver_policy": "by_start_time"}),
        ("deliver_policy", {"deliver_policy": "last_per_subject"}),
        ("deliver_policy", {"deliver_policy": "first"}),
        ("ack_policy", {"ack_policy": None}),
        ("backoff", {"backoff": [1, 2, 3], "max_deliver": 2}),
        ("backoff", {"backoff": [1, -1]}),
        ("backoff", {"backoff": 1}),
        ("ack_wait", {"ack_wait": -1}),
        ("max_deliver", {"max_deliver": -2}),
        ("max_ack_pending", {"max_ack_pending": -2}),
        ("max_expires", {"max_expires": 0.0009}),
        ("num_replicas", {"num_replicas": 6}),
        ("sample_freq", {"sample_freq": "often"}),
        ("sample_freq", {"sample_freq": "-1%"}),
        ("sample_freq", {"sample_freq": 30}),
        ("pause_until", {"pause_until": datetime(2024, 1, 1)}),  # noqa: DTZ001
        ("idle_heartbeat", {**PUSH, "idle_heartbeat": 0.09}),
        ("flow_control", {**PUSH, "flow_control": True}),
        ("max_waiting", {**PUSH, "max_waiting": 1}),
        ("max_ack_pending", {**PUSH, "ack_policy": "none", "max_ack_pending": 1}),
        ("ack_wait", {**PUSH, "ack_policy": "flow_control", "ack_wait": 1}),
        ("backoff", {**PUSH, "ack_policy": "flow_control", "backoff": [1]}),
        ("max_deliver", {**PUSH, "ack_policy": "flow_control", "max_deliver": 1}),
        ("priority_groups", {**PUSH, "priority_policy": "overflow", "priority_groups": ["a"]}),
        ("priority_groups", {"priority_groups": ["a"]}),
        ("priority_timeout", {"priority_timeout": 1}),
        ("priority_policy", {"priority_policy": "overflow"}),
        ("priority_groups", {"priority_policy": "overflow", "priority_groups": ["a", ""]}),
        ("priority_groups", {"priority_policy": "overflow", "priority_groups": ["a" * 17]}),
    ],
)
def test_invalid_values_are_refused(option, fields):
    """The error for an invalid value or combination names the option."""
    with pytest.raises(InvalidOptionError) as caught:
        ConsumerConfig(**fields)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("idle_heartbeat", 1),
        ("flow_control", True),
        ("rate_limit_bps", 1),
        ("ack_policy", "flow_control"),
    ],
)
def test_a_pull_consumer_refuses_options_of_push_consumers(option, value):
    """Options of push consumers are valid in a config, and rejected for a pull consumer."""
    config = ConsumerConfig(**{option: value})
    with pytest.raises(InvalidOptionError) as caught:
        config.check_pulled()
    assert caught.value.option == option
