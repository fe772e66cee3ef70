"""The streams, buckets and consumers that a worker creates and checks."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from fixtures.threads import wait_until
from fixtures.worker import running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    KeyValueConfig,
    StreamConfig,
    StreamSource,
    connect,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

ORDERS = StreamConfig(name="SETUP", subjects=["setup.*"], max_age=timedelta(hours=1))
STATES = KeyValueConfig(bucket="SETUP", history=3)


def defined(url: str) -> Worker:
    """Return a worker that needs two streams and two buckets."""
    worker = Worker(url, dead_letters="SETUP_DEAD", ensure=[ORDERS])

    @worker.handler(stream="SETUP", consumer="C", once="SETUP_ONCE", ensure=[STATES])
    def handle() -> None:
        pass

    return worker


@pytest.fixture
def js(fresh_server: NatsServer, request: pytest.FixtureRequest) -> JetStream:
    """A context of a server without streams."""
    nc = connect(fresh_server.url)
    request.addfinalizer(nc.close)  # noqa: PT021 - the fixture has nothing else to end
    return nc.jetstream()


NAMES = ["stream 'SETUP'", "bucket 'SETUP'", "bucket 'SETUP_ONCE'", "stream 'SETUP_DEAD'"]
CONSUMER = "consumer 'C' of stream 'SETUP'"


def test_setup_creates_what_is_missing(js, fresh_server):
    """A check changes nothing; the second setup has nothing to do."""
    worker = defined(fresh_server.url)
    planned = worker.setup(check=True)
    assert [(item.action, item.name) for item in planned] == [
        ("create", name) for name in (*NAMES, CONSUMER)
    ]
    assert js.stream_names() == []
    result = worker.check()
    assert (result.status, len(result.warnings)) == (0, len(NAMES))
    shown: list[str] = []
    assert len(worker.setup(report=lambda step: shown.append(str(step)))) == len(planned)
    assert shown[0] == "create stream 'SETUP'"
    assert worker.setup() == []
    assert js.key_value("SETUP").status().history == 3
    assert js.consumer_info("SETUP", "C").config.max_deliver == -1


def test_a_running_worker_creates_and_reports(js, fresh_server, caplog):
    """What is missing is created at start; what differs is logged, and changed by setup only."""
    js.create_stream(name="SETUP", subjects=["setup.*"], max_age=60)
    js.create_stream(name="SETUP_DEAD", subjects=["dead.>"], max_age=60)
    worker = defined(fresh_server.url)
    with caplog.at_level(logging.WARNING), running(worker):
        wait_until(lambda: "KV_SETUP_ONCE" in js.stream_names())
        wait_until(lambda: "max_age: 1m0s -> 1h0m0s" in caplog.text)
    assert any("max_age: 1m0s -> 1h0m0s" in text for text in worker.check().warnings)
    (step,) = worker.setup()
    assert (step.action, step.differences) == ("update", ["max_age: 1m0s -> 1h0m0s"])
    assert js.get_stream("SETUP").info().config.max_age == timedelta(hours=1)
    # A stream that no config names keeps its values.
    assert js.get_stream("SETUP_DEAD").info().config.max_age == timedelta(minutes=1)


def test_ensure_is_checked(fresh_server):
    """An unknown word and what is no config are refused; with 'none', all must exist."""
    for wrong in ("all", ["ORDERS"]):
        with pytest.raises(InvalidOptionError, match="ensure"):
            Worker(ensure=wrong)  # type: ignore[arg-type]
    worker = defined(fresh_server.url)
    worker.ensure = "none"
    result = worker.check()
    assert result.status == 3
    assert [text.partition(":")[0] for text in result.errors[:4]] == NAMES


def test_replicas_of_what_is_created(fresh_server):
    """`num_replicas` is used where a config names none; a single server refuses three."""
    worker = Worker(fresh_server.url, num_replicas=3, ensure=[ORDERS])
    with connect(fresh_server.url) as nc:
        wanted = worker.resources(nc)[0].resource
    assert isinstance(wanted, StreamConfig)
    assert wanted.num_replicas == 3


def test_a_stream_that_stores_no_dead_letters_is_an_error(js, fresh_server, caplog):
    """The check fails, and a start logs an error, before a message fails that could not be given up."""
    js.create_stream(ORDERS)
    js.create_stream(name="SETUP_DEAD", subjects=["other.>"])
    worker = defined(fresh_server.url)
    text = "stream SETUP_DEAD must have the subject 'dead.SETUP.C.>'"
    result = worker.check()
    assert (result.status, len(result.errors)) == (2, 1)
    assert text in result.errors[0]
    with caplog.at_level(logging.ERROR), running(worker):
        wait_until(lambda: text in caplog.text)
    js.update_stream(name="SETUP_DEAD", subjects=["dead.SETUP.*.setup.>"])
    assert worker.check().errors == []


def test_a_stream_in_the_place_of_a_bucket_is_an_error(js, fresh_server):
    """The check fails as the start does; it does not say that the bucket is created."""
    js.create_stream(ORDERS)
    js.create_stream(name="KV_SETUP_ONCE", subjects=["other.>"])
    worker = defined(fresh_server.url)
    result = worker.check()
    assert (result.status, len(result.errors)) == (worker.run(), 1)
    assert (
        "bucket 'SETUP_ONCE': stream 'KV_SETUP_ONCE' is not a key-value bucket" in result.errors[0]
    )
    assert not [text for text in result.warnings if "SETUP_ONCE" in text]
    assert [text for text in result.warnings if "'SETUP_DEAD' does not exist" in text]


def test_filters_that_cannot_match_are_reported(js, fresh_server):
    """Of a handler as a warning, since stored messages may match; of a queue of tasks as an error."""
    js.create_stream(ORDERS)
    worker = Worker(fresh_server.url, name="tests", dead_letters="SETUP_DEAD")

    @worker.handler(stream="SETUP", consumer="C", filter_subject="setups.a")
    def handle() -> None:
        pass

    result = worker.check()
    assert (result.status, result.errors) == (0, [])
    assert any("no subject that matches setups.a" in text for text in result.warnings)

    @worker.task
    def bill() -> None:
        pass

    assert worker.check().errors == []  # the stream of tasks is created at start
    js.create_stream(name="TASKS", subjects=["other.>"])
    result = worker.check()
    assert result.status == 2
    assert "stream TASKS has no subject that matches tasks.tests.default.*.*" in result.errors[0]


def test_check_names_a_stream_of_calls_that_another_stream_copies(js, fresh_server):
    """The server removes what is copied and what no consumer selects, such as a delayed call."""
    worker = Worker(fresh_server.url, name="copied")

    @worker.task
    def add(_: int) -> None:
        pass

    add.apply_async((1,), countdown=600)
    tasks = js.get_stream("TASKS")
    assert tasks.info().state.messages == 1
    assert not [text for text in worker.check().warnings if "mirror" in text]
    js.create_stream(name="COPY", mirror=StreamSource(name="TASKS"))
    wait_until(lambda: tasks.info().state.messages == 0, 10)
    found = [text for text in worker.check().warnings if "mirror" in text]
    assert found == [
        "stream 'TASKS' has a mirror, or is a source: the server removes copied calls that are delayed"
    ]
