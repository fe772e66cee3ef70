"""Consumers: create, get, list, update, pause and delete."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.internals import api_of
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until, within

from jetstream_sync import (
    Connection,
    ConsumerConfig,
    JetStream,
    PullConsumer,
    StreamConsumerLimits,
    connect,
    errors,
)
from jetstream_sync.codec import encode
from jetstream_sync.jetstream.consumer_requests import CREATE, add_consumer
from jetstream_sync.server import NatsServer


@pytest.fixture
def unanswered(nc: Connection) -> JetStream:
    """A context whose requests get no reply: a call that sends one times out."""
    _kept = nc.subscribe("unanswered.API.>")
    return nc.jetstream(prefix="unanswered.API", timeout=0.2)


# --- making and changing ------------------------------------------------------------------------


def test_a_consumer_is_created_with_its_config(stream, nats_server):
    """The server has the given config; the default ack policy is explicit."""
    consumer = stream.create_consumer(
        ConsumerConfig(
            durable_name="NEW",
            description="a test",
            filter_subject=f"{stream.name}.received",
            ack_wait=1.5,
            max_deliver=5,
            backoff=[0.5, timedelta(seconds=2)],
            max_ack_pending=7,
            metadata={"team": "a"},
        )
    )
    assert isinstance(consumer, PullConsumer)
    assert (consumer.name, consumer.stream_name) == ("NEW", stream.name)
    with RawClient(nats_server.port) as raw:
        config = raw.api(f"CONSUMER.INFO.{stream.name}.NEW")["config"]
    assert (config["durable_name"], config["description"]) == ("NEW", "a test")
    assert config["filter_subject"] == f"{stream.name}.received"
    assert config["backoff"] == [500_000_000, 2_000_000_000]
    assert (config["ack_policy"], config["deliver_policy"]) == ("explicit", "all")
    assert (config["max_deliver"], config["max_ack_pending"]) == (5, 7)
    assert config["metadata"]["team"] == "a"
    assert consumer.cached_info.config.backoff == [timedelta(seconds=0.5), timedelta(seconds=2)]


def test_a_consumer_without_a_name_is_ephemeral(stream):
    """Two consumers without names are two ephemeral consumers."""
    first = stream.create_consumer(inactive_threshold=60)
    second = stream.create_consumer(inactive_threshold=60)
    assert first.name != second.name
    assert stream.consumer_names() == sorted([first.name, second.name])
    assert first.cached_info.config.durable_name is None
    assert stream.get_consumer(first.name).name == first.name


def test_a_name_alone_makes_an_ephemeral_consumer(stream):
    """A consumer with a name alone is deleted when unused; a durable one is kept."""
    stream.create_consumer(name="goes", inactive_threshold=0.2)
    stream.create_consumer(durable_name="stays")
    wait_until(lambda: stream.consumer_names() == ["stays"], limit=10)


@pytest.mark.parametrize("name", ["durable_name", "name"])
def test_creating_an_equal_consumer_twice_is_allowed(js, stream, name):
    """Creating an equal consumer again returns the existing one, with its state."""
    js.publish(f"{stream.name}.a", b"x")
    first = stream.create_consumer(**{name: "a"})
    second = stream.create_consumer(**{name: "a"})
    assert second.cached_info.created == first.cached_info.created
    assert second.cached_info.num_pending == 1


@pytest.mark.parametrize("field", ["inactive_threshold", "max_ack_pending", "ack_wait"])
def test_a_value_in_place_of_the_servers_is_another_config(stream, field):
    """An ephemeral consumer with another value than the server's default is not an equal one."""
    stream.create_consumer(name="a", **{field: 40})
    with pytest.raises(errors.ConsumerExistsError, match="has other values of fields"):
        stream.create_consumer(name="a")


def test_another_config_below_the_limit_of_the_stream(js):
    """The error says so also if the stream permits less than the server's default inactive_threshold."""
    limits = StreamConsumerLimits(inactive_threshold=3)
    stream = js.create_stream(name="LIMITED", consumer_limits=limits)
    stream.create_consumer(name="a", ack_wait=40)
    with pytest.raises(errors.ConsumerExistsError, match="has other values of fields"):
        stream.create_consumer(name="a")


def test_another_config_that_the_user_may_not_read():
    """A user who may not read consumers gets the server's error as well."""
    config = """authorization { users: [ { user: a, password: a, permissions: {
        publish: { deny: "$JS.API.CONSUMER.INFO.>" } } } ] }"""
    with (
        NatsServer(config=config) as server,
        connect(server.url, user="a", password="a", error_cb=lambda _: None) as nc,
    ):
        stream = nc.jetstream().create_stream(name="S")
        stream.create_consumer(durable_name="a", max_deliver=3)
        with pytest.raises(errors.ConsumerExistsError, match="already exists"):
            stream.create_consumer(durable_name="a", max_deliver=4)


def test_create_refuses_another_config(stream):
    """`create` never changes a consumer."""
    stream.create_consumer(durable_name="a", max_deliver=3)
    with within(1), pytest.raises(errors.ConsumerExistsError):
        stream.create_consumer(durable_name="a", max_deliver=4)
    assert stream.get_consumer("a").cached_info.config.max_deliver == 3


def test_update_never_creates_a_consumer(stream):
    """`update` of a consumer that does not exist is an error, and creates nothing."""
    with within(1), pytest.raises(errors.ConsumerDoesNotExistError):
        stream.update_consumer(durable_name="a")
    assert stream.consumer_names() == []


@pytest.mark.server(">=2.11")
def test_a_pedantic_server_corrects_nothing(js, stream):
    """With `pedantic` each call refuses what the server would silently correct."""
    backoff: dict[str, Any] = {"backoff": [1, 2], "ack_wait": 30, "max_deliver": 5}
    deliver = {**backoff, "deliver_subject": "pedantic.deliver"}
    stream.create_consumer(name="one", **backoff)
    stream.create_push_consumer(name="two", **deliver)
    for owner, first in ((stream, ()), (js, (stream.name,))):
        for call, fields in (
            (owner.create_consumer, {"name": "new", **backoff}),
            (owner.update_consumer, {"name": "one", **backoff}),
            (owner.create_or_update_consumer, {"name": "one", **backoff}),
            (owner.create_push_consumer, {"name": "new", **deliver}),
            (owner.update_push_consumer, {"name": "two", **deliver}),
        ):
            with pytest.raises(errors.BadRequestError, match="pedantic"):
                call(*first, pedantic=True, **fields)
    assert stream.consumer_names() == ["one", "two"]


def test_create_or_update_does_either(stream):
    """`create_or_update` creates a consumer, and changes it at the next call."""
    made = stream.create_or_update_consumer(durable_name="a", max_deliver=3)
    changed = stream.create_or_update_consumer(durable_name="a", max_deliver=4)
    assert changed.cached_info.created == made.cached_info.created
    assert changed.cached_info.config.max_deliver == 4


def test_an_update_changes_only_the_given_field(stream):
    """A config that was read, changed and sent back changes only the changed field."""
    config = (
        stream.create_consumer(durable_name="a", filter_subject=f"{stream.name}.x").info().config
    )
    changed = stream.update_consumer(replace(config, ack_wait=7)).info().config
    assert changed == replace(config, ack_wait=7)


def test_no_more_consumers_than_allowed(js, stream_name):
    """The stream's limit of consumers has its own error."""
    stream = js.create_stream(name=stream_name, storage="memory", max_consumers=1)
    stream.create_consumer(durable_name="a")
    with within(1), pytest.raises(errors.MaxConsumersError):
        stream.create_consumer(durable_name="b")


# --- filters and the route ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({}, ""),
        ({"filter_subject": "$.a"}, ".$.a"),
        ({"filter_subject": "$.*.b"}, ".$.*.b"),
        ({"filter_subject": "$.>"}, ".$.>"),
        ({"filter_subjects": ["$.a"]}, ""),
        ({"filter_subjects": ["$.a", "$.b.*"]}, ""),
    ],
)
def test_a_single_filter_is_in_the_route(nc, stream, fields, token):
    """A single filter is in the subject of the request, so permissions can be given by filter."""
    fields = json.loads(json.dumps(fields).replace("$", stream.name))
    spy = nc.subscribe("$JS.API.CONSUMER.CREATE.>")
    made = stream.create_consumer(durable_name="C", **fields)
    route = spy.next_msg(timeout=2).subject
    assert route == f"$JS.API.CONSUMER.CREATE.{stream.name}.C{token.replace('$', stream.name)}"
    config = encode(made.info().config)
    assert {key: config.get(key) for key in fields} == fields


def test_filters_that_overlap_are_refused(stream):
    """Overlapping filters are refused by the server, and no consumer is created."""
    with within(1), pytest.raises(errors.APIError):
        stream.create_consumer(durable_name="a", filter_subjects=["x.*", "x.a"])
    assert stream.consumer_names() == []


# --- push consumers -----------------------------------------------------------------------------


def test_a_push_consumer_is_not_made_here(stream):
    """A deliver subject is refused before anything is sent."""
    for call in (
        stream.create_consumer,
        stream.update_consumer,
        stream.create_or_update_consumer,
    ):
        with pytest.raises(errors.InvalidOptionError) as caught:
            call(durable_name="a", deliver_subject="there")
        assert caught.value.option == "deliver_subject"
    assert stream.consumer_names() == []


def test_a_push_consumer_can_be_managed_and_not_pulled_from(js, stream):
    """A push consumer is listed and deleted like any other; pulling from it is a typed error."""
    config = ConsumerConfig(durable_name="pushes", deliver_subject="there")
    made = add_consumer(api_of(js), stream.name, config, CREATE)
    assert made.config.deliver_subject == "there"
    with within(1), pytest.raises(errors.ConsumerIsPushBasedError, match="pushes"):
        stream.get_consumer("pushes")
    assert [info.config.deliver_subject for info in stream.list_consumers()] == ["there"]
    stream.delete_consumer("pushes")
    assert stream.consumer_names() == []


# --- finding, listing, deleting -----------------------------------------------------------------


def test_calls_for_a_missing_consumer_raise_at_once(stream):
    """Every call for a consumer that does not exist raises at once."""
    for call in (
        lambda: stream.get_consumer("none"),
        lambda: stream.delete_consumer("none"),
    ):
        with within(1), pytest.raises(errors.ConsumerNotFoundError) as caught:
            call()
        assert caught.value.code == 404


# --- what is refused before anything is sent ----------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fields", "option"),
    [
        (ConsumerConfig(name="C"), {"max_deliver": 1}, "max_deliver"),
        ("C", {}, "config"),
        (None, {"name": "C", "max_delivery": 1}, "max_delivery"),
        (None, {"name": "C", "max_deliver": "1"}, "max_deliver"),
        (None, {"name": "C", "durable_name": "D"}, "name"),
    ],
)
def test_a_bad_config_is_refused_here(unanswered, config, fields, option):
    """A config together with fields, or an invalid field, is refused by the client."""
    for call in (
        unanswered.create_consumer,
        unanswered.update_consumer,
        unanswered.create_or_update_consumer,
    ):
        with pytest.raises(errors.InvalidOptionError) as caught:
            call("S", config, **fields)
        assert caught.value.option == option


def test_an_update_needs_a_name(unanswered):
    """An update without a name is refused by the client."""
    with pytest.raises(errors.InvalidOptionError) as caught:
        unanswered.update_consumer("S", max_deliver=5)
    assert caught.value.option == "name"


# --- pausing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "until",
    [
        None,
        datetime(2030, 1, 1),  # noqa: DTZ001 - that is the point
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_a_time_has_a_zone(unanswered, until):
    """A datetime without a time zone, or after the year 9999 in UTC, is refused."""
    with pytest.raises(errors.InvalidOptionError) as caught:
        unanswered.pause_consumer("S", "C", until)
    assert caught.value.option == "until"


@pytest.mark.server(">=2.11")
def test_pause_and_resume(stream):
    """A paused consumer reports its time, a resumed one is not paused."""
    consumer = stream.create_consumer(durable_name="a")
    until = datetime.now(timezone(timedelta(hours=2))) + timedelta(hours=1)
    paused = stream.pause_consumer("a", until)
    assert paused.paused
    assert paused.pause_until == until
    assert paused.pause_remaining is not None
    assert timedelta(minutes=59) < paused.pause_remaining <= timedelta(hours=1)
    wait_until(lambda: consumer.info().paused)  # in a cluster, the pause is not applied yet
    info = consumer.info()
    assert info.config.pause_until == until
    resumed = stream.resume_consumer("a")
    assert not resumed.paused
    wait_until(lambda: not consumer.info().paused)  # nor is the resume
    assert not stream.resume_consumer("a").paused, "resuming twice is fine"


@pytest.mark.server(">=2.11")
def test_pausing_until_a_time_that_is_over_resumes(js, stream):
    """Pausing until a past time resumes; the context has the same methods."""
    stream.create_consumer(durable_name="a")
    now = datetime.now(timezone.utc)
    assert js.pause_consumer(stream.name, "a", now + timedelta(hours=1)).paused
    assert not js.pause_consumer(stream.name, "a", now - timedelta(hours=1)).paused
    assert js.pause_consumer(stream.name, "a", now + timedelta(hours=1)).paused
    assert not js.resume_consumer(stream.name, "a").paused
