"""The checks of ADR-15: a row for each sentence of the document that calls something an error."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync import (
    AckPolicy,
    ConfigMismatchError,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DuplicateSubscriptionError,
    InvalidNameError,
    InvalidOptionError,
    PullOnPushConsumerError,
    PushOnPullConsumerError,
    ReplayPolicy,
    SequenceInfo,
    SubscribeError,
)
from jetstream_sync.api.subscribing import SubscribeRequest, ordered_config

NOTHING = SequenceInfo(consumer_seq=0, stream_seq=0)


def consumer(push_bound: bool | None = None, **fields: Any) -> ConsumerInfo:
    """Return the info of an existing consumer."""
    return ConsumerInfo(
        stream_name="S",
        name="C",
        created=datetime(2024, 1, 1, tzinfo=timezone.utc),
        config=ConsumerConfig(**{"durable_name": "C", "name": "C", **fields}),
        delivered=NOTHING,
        ack_floor=NOTHING,
        num_ack_pending=0,
        num_redelivered=0,
        num_waiting=0,
        num_pending=0,
        push_bound=push_bound,
    )


PUSH = {"deliver_subject": "to.here"}
GROUP = {**PUSH, "deliver_group": "workers"}
BEAT = {"idle_heartbeat": 5}
FLOW = {**BEAT, "flow_control": True}
CFG = ConsumerConfig
FIVE = timedelta(seconds=5)
IN_QUEUE = {"subject": "a", "queue": "workers"}
PULL = {"subject": "a", "pull": True}
NAMED = {"subject": "a", "durable": "C"}
MEMBER = {**NAMED, "queue": "workers"}
OTHERS = {**NAMED, "queue": "others"}

# Arguments that cannot be combined: the request, the existing consumer, and the option with its value.
REFUSED: list[tuple[dict[str, Any], ConsumerInfo | None, str, object]] = [
    # The server would send the heartbeats of a queue to random members, and so with flow control.
    ({**IN_QUEUE, "options": BEAT}, None, "queue", "workers"),
    ({**IN_QUEUE, "config": CFG(**BEAT)}, None, "queue", "workers"),
    ({**IN_QUEUE, "options": {"flow_control": True}}, None, "queue", "workers"),
    (MEMBER, consumer(**GROUP, **FLOW), "queue", "workers"),
    (MEMBER, consumer(**GROUP, **BEAT), "queue", "workers"),
    # Without a subject and a stream there is no way to find the consumer.
    ({"subject": ""}, None, "subject", ""),
    ({"subject": None, "durable": "C"}, None, "subject", None),
    # A pull subscription acknowledges each message.
    ({**PULL, "config": CFG(ack_policy="none")}, None, "ack_policy", AckPolicy.NONE),
    ({**PULL, "config": CFG(ack_policy="all")}, None, "ack_policy", AckPolicy.ALL),
]

# Requests that do not match a consumer: the error, the requested value, and the found value.
MISMATCHES: list[tuple[dict[str, Any], ConsumerInfo | None, type, object, object]] = [
    # --- "Stream name": the filter has to be the subject even if the stream is named ------------
    (
        {**NAMED, "stream": "S"},
        consumer(**PUSH, filter_subject="b"),
        ConfigMismatchError,
        "a",
        "b",
    ),
    # --- "Push Consumer active information and queue group binding" ------------------------------
    (NAMED, consumer(push_bound=True, **PUSH), DuplicateSubscriptionError, "C", "to.here"),
    (NAMED, consumer(push_bound=False, **GROUP), ConfigMismatchError, None, "workers"),
    (NAMED, consumer(push_bound=True, **GROUP), ConfigMismatchError, None, "workers"),
    (OTHERS, consumer(push_bound=True, **GROUP), ConfigMismatchError, "others", "workers"),
    (MEMBER, consumer(push_bound=False, **PUSH), ConfigMismatchError, "workers", None),
    (MEMBER, consumer(push_bound=True, **PUSH), ConfigMismatchError, "workers", None),
    # --- "Other checks" --------------------------------------------------------------------------
    (NAMED, consumer(**PUSH, filter_subject="a.new"), ConfigMismatchError, "a", "a.new"),
    # Several filters are newer than the document.
    (NAMED, consumer(**PUSH, filter_subjects=["a", "b"]), ConfigMismatchError, "a", ["a", "b"]),
    ({**NAMED, "pull": True}, consumer(**PUSH), PullOnPushConsumerError, "C", "to.here"),
    (NAMED, consumer(), PushOnPullConsumerError, "C", None),
    # A subscription does not change an existing consumer.
    (
        {**NAMED, "config": CFG(ack_wait=5)},
        consumer(**PUSH, ack_wait=30),
        ConfigMismatchError,
        FIVE,
        timedelta(seconds=30),
    ),
    # --- "Creating the JS Consumer" --------------------------------------------------------------
    (
        {**NAMED, "pull": True, "config": CFG(deliver_subject="x")},
        None,
        PullOnPushConsumerError,
        "C",
        "x",
    ),
    # Another client may have created the consumer meanwhile.
    ({**NAMED, "pull": True}, consumer(**GROUP), PullOnPushConsumerError, "C", "to.here"),
]


def attempt(asked: dict[str, Any], existing: ConsumerInfo | None) -> SubscribeRequest:
    wanted = SubscribeRequest.of(**asked)
    if existing is not None:
        wanted.check_existing(existing)
    return wanted


@pytest.mark.parametrize(("asked", "existing", "option", "value"), REFUSED)
def test_arguments_that_cannot_be_combined_are_refused(asked, existing, option, value):
    """The error names the argument and its value."""
    with pytest.raises(InvalidOptionError) as caught:
        attempt(asked, existing)
    assert (caught.value.option, caught.value.value) == (option, value)


@pytest.mark.parametrize(("asked", "existing", "error", "one", "other"), MISMATCHES)
def test_a_mismatch_names_both_values(asked, existing, error, one, other):
    """The error has the requested value and that of the consumer, also in its text."""
    with pytest.raises(SubscribeError) as caught:
        attempt(asked, existing)
    assert type(caught.value) is error
    assert caught.value.asked == one
    assert caught.value.found == other
    for value in (one, other):
        said = str(value) if isinstance(value, timedelta) else repr(value)
        assert said.strip("'") in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "existing"),
    [
        ({"subject": "a", "durable": "C"}, consumer(push_bound=False, **PUSH)),
        ({"subject": "a", "durable": "C"}, consumer(**PUSH, filter_subject="a")),
        ({"subject": "a", "durable": "C", "queue": "workers"}, consumer(push_bound=True, **GROUP)),
        ({"subject": "a", "durable": "C", "pull": True}, consumer(filter_subject="a")),
        ({"stream": "S", "bind": "C"}, consumer(**PUSH, filter_subject="a")),
        ({"stream": "S", "bind": "C", "queue": "workers"}, consumer(**GROUP)),
        # The group may be in the config, as in nats-py.
        ({"stream": "S", "bind": "C", "config": CFG(deliver_group="workers")}, consumer(**GROUP)),
        # Filters are a set.
        (
            {"subject": "a", "durable": "C", "config": CFG(filter_subjects=["y", "x"])},
            consumer(**PUSH, filter_subjects=["x", "y"]),
        ),
        # Heartbeats and flow control of an existing consumer are accepted without being requested.
        ({"subject": "a", "durable": "C"}, consumer(**PUSH, **FLOW)),
        # Options of an existing consumer that are not requested are accepted.
        (
            {"subject": "a", "durable": "C", "options": {"deliver_policy": "all"}},
            consumer(**PUSH, ack_policy="none", description="of others"),
        ),
    ],
)
def test_a_consumer_with_the_requested_options_can_be_bound(asked, existing):
    """A consumer with the requested options can be bound."""
    attempt(asked, existing)


NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("option", "asked", "found"),
    [
        ("ack_wait", {"ack_wait": 5}, {"ack_wait": 30}),
        ("backoff", {"backoff": [1, 2]}, {"backoff": [1, 3]}),
        ("deliver_policy", {"deliver_policy": "new"}, {"deliver_policy": "all"}),
        ("durable_name", {"durable_name": "C"}, {"durable_name": None}),
        ("filter_subjects", {"filter_subjects": ["a", "b"]}, {}),
        ("flow_control", {**FLOW}, {**BEAT}),
        ("flow_control", {"flow_control": False}, {**FLOW}),
        ("max_ack_pending", {"max_ack_pending": 5}, {"max_ack_pending": 1000}),
        ("metadata", {"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}),
        (
            "opt_start_time",
            {"deliver_policy": "by_start_time", "opt_start_time": NOON},
            {"deliver_policy": "by_start_time", "opt_start_time": NOON + timedelta(seconds=1)},
        ),
    ],
)
def test_any_option_that_differs_is_named(option, asked, found):
    """The error has the option, the requested value and the value of the consumer."""
    existing = consumer(**PUSH, **found)
    with pytest.raises(ConfigMismatchError) as caught:
        attempt({"stream": "S", "bind": "C", "config": CFG(**asked)}, existing)
    error = caught.value
    assert error.option == option
    assert error.asked == getattr(CFG(**asked), option)
    assert error.found == getattr(existing.config, option)
    assert option in str(error)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # The server's defaults, and its notation of the requested values.
        ({"ack_wait": 0}, {"ack_wait": 30}),
        ({"max_deliver": 0}, {"max_deliver": -1}),
        ({"num_replicas": 0}, {"num_replicas": 3}),
        ({"headers_only": False}, {}),
        ({"sample_freq": "30"}, {"sample_freq": "30%"}),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "1", "_nats.level": "1"}}),
        ({"backoff": [1, 2], "ack_wait": 30}, {"backoff": [1, 2], "ack_wait": 1}),
        ({"opt_start_time": NOON, "deliver_policy": "by_start_time"},) * 2,
    ],
)
def test_different_notations_of_a_value_are_equal(asked, found):
    """Different notations of one value, and a default written out, are equal."""
    attempt({"stream": "S", "bind": "C", "config": CFG(**asked)}, consumer(**PUSH, **found))


# --- names --------------------------------------------------------------------------------------


def test_the_queue_is_the_durable_where_neither_is_named():
    """Without a durable name, the queue group is the durable name."""
    wanted = SubscribeRequest.of(subject="a", queue="workers")
    assert wanted.consumer == "workers"
    assert wanted.new_config("inbox").durable_name == "workers"
    assert SubscribeRequest.of(subject="a", queue="workers", durable="d").consumer == "d"
    assert SubscribeRequest.of(stream="S", queue="workers", bind="c").consumer == "c"
    named = SubscribeRequest.of(subject="a", queue="workers", config=CFG(name="n"))
    assert named.consumer == "n"
    assert named.new_config("inbox").durable_name is None


def test_a_queue_with_an_invalid_durable_name_needs_a_durable():
    """A queue group that is not a valid consumer name requires a durable name."""
    with pytest.raises(InvalidNameError):
        SubscribeRequest.of(subject="a", queue="my.workers")
    assert SubscribeRequest.of(subject="a", queue="my.workers", durable="d").queue == "my.workers"


@pytest.mark.parametrize(
    ("option", "asked"),
    [
        ("durable", {"durable": "d", "config": CFG(durable_name="e")}),
        ("queue", {"queue": "g", "config": CFG(deliver_group="h")}),
        ("subject", {"config": CFG(filter_subject="b")}),
        ("config", {"config": {"ack_wait": 5}}),
    ],
)
def test_a_name_is_not_said_in_two_ways(option, asked):
    """Different values in the arguments and the config are rejected; the error names the argument."""
    with pytest.raises(InvalidOptionError) as caught:
        SubscribeRequest.of(**{"subject": "a", **asked})
    assert caught.value.option == option


# --- the consumer to make -----------------------------------------------------------------------


def test_arguments_go_before_the_config():
    """Arguments take precedence over the config, as in nats-py."""
    config = CFG(idle_heartbeat=1, inactive_threshold=5, ack_policy="none")
    options = {"idle_heartbeat": 2, "deliver_policy": "new"}
    made = SubscribeRequest.of(subject="a", config=config, options=options).new_config("inbox")
    assert made.idle_heartbeat == timedelta(seconds=2)
    assert made.inactive_threshold == timedelta(seconds=5)
    assert made.deliver_policy == DeliverPolicy.NEW
    assert made.ack_policy == AckPolicy.NONE


def test_several_filters_go_before_the_subject():
    """With filter_subjects, the subject only selects the stream."""
    config = CFG(filter_subjects=["a.x", "a.y"])
    made = SubscribeRequest.of(subject="a.>", config=config).new_config("inbox")
    assert made.filter_subject is None
    assert made.filter_subjects == ["a.x", "a.y"]


def test_a_pull_subscription_refuses_options_of_push_consumers():
    """Options of push consumers, such as a rate limit, are rejected."""
    wanted = SubscribeRequest.of(subject="a", pull=True, config=CFG(rate_limit_bps=1000))
    with pytest.raises(InvalidOptionError):
        wanted.new_config(None)


# --- ordered consumers (ADR-17) -----------------------------------------------------------------


def ordered(**asked: Any) -> ConsumerConfig:
    request = SubscribeRequest.of(**{"subject": "a", **asked})
    return ordered_config(request, "name", timedelta(seconds=300))


@pytest.mark.parametrize(
    ("option", "asked"),
    [
        ("durable_name", {"durable": "d"}),
        ("deliver_subject", {"config": CFG(deliver_subject="x")}),
        ("ack_policy", {"config": CFG(ack_policy="all")}),
        ("rate_limit_bps", {"config": CFG(rate_limit_bps=1000)}),
        ("mem_storage", {"config": CFG(mem_storage=False)}),
        ("num_replicas", {"config": CFG(num_replicas=3)}),
        ("queue", {"queue": "g"}),
    ],
)
def test_options_unsupported_by_ordered_consumers_are_refused(option, asked):
    """The error names the unsupported option."""
    with pytest.raises(InvalidOptionError) as caught:
        ordered(**asked)
    assert caught.value.option == option


def test_other_fields_of_an_ordered_consumer_are_kept():
    """Other fields of the config are kept, and a fixed field may be given with its required value."""
    config = CFG(
        ack_policy="none",
        max_deliver=1,
        mem_storage=True,
        replay_policy="original",
        headers_only=True,
        metadata={"a": "b"},
        idle_heartbeat=1,
        name="mine",
    )
    made = ordered(config=config, options={"deliver_policy": "new"})
    assert made.replay_policy == ReplayPolicy.ORIGINAL
    assert made.headers_only
    assert made.metadata == {"a": "b"}
    assert made.idle_heartbeat is None  # that of the pull requests
    assert made.inactive_threshold == timedelta(seconds=300)
    assert made.deliver_policy == DeliverPolicy.NEW
    assert made.name == "mine"
