"""Handlers that one process at a time runs (pinned clients, ADR-42), and partitions of a stream."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

import pytest
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until
from fixtures.worker import is_settled, publish_numbers, running

from jetstream_sync import InvalidOptionError, Stream, connect
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

pinned = pytest.mark.server(">=2.11")


def pinned_workers(
    stream: Stream, nats_server: NatsServer
) -> tuple[list[Worker], list[list[bytes]], list[threading.Event]]:
    """Return two workers with one exclusive handler, what each has handled, and events that hold them."""
    workers = [Worker(nats_server.url, name=name) for name in ("first", "second")]
    seen: list[list[bytes]] = [[], []]
    released = [threading.Event(), threading.Event()]
    for worker, mine, release in zip(workers, seen, released, strict=True):

        @worker.handler(
            stream=stream.name,
            consumer="C",
            exclusive=True,
            prefetch=5,
            key=lambda msg: msg.subject,
        )
        def handle(
            data: bytes, mine: list[bytes] = mine, release: threading.Event = release
        ) -> None:
            mine.append(data)
            release.wait(30)

    return workers, seen, released


@pinned
def test_one_process_at_a_time_is_pinned(js, stream, nats_server, caplog):
    """The second worker gets nothing until the first one stops, and then takes over at once."""
    (first, second), seen, released = pinned_workers(stream, nats_server)
    for event in released:
        event.set()
    with running(first) as run:
        js.publish(f"{stream.name}.a", b"0")
        wait_until(lambda: seen[0] == [b"0"])
        with running(second):
            wait_until(lambda: stream.consumer_info("C").num_waiting == 2)
            publish_numbers(js, stream, 19, 1)
            wait_until(lambda: is_settled(stream))
            assert [int(data) for data in seen[0]] == list(range(20))
            assert run.stop() == 0
            js.publish(f"{stream.name}.a", b"20")
            # Long before the timeout of the pin.
            wait_until(lambda: seen[1] == [b"20"], 6)
            wait_until(lambda: is_settled(stream))
    assert seen[1] == [b"20"]
    assert stream.consumer_info("C").num_redelivered == 0
    assert "other processes" not in caplog.text


@pinned
def test_a_lost_pin_returns_the_waiting_messages(js, stream, nats_server, caplog):
    """When the server pins another process, it also gets what waited in the first one."""
    stream.create_consumer(
        durable_name="C",
        ack_wait=30,
        priority_groups=["mine"],
        priority_policy="pinned_client",
        priority_timeout=timedelta(seconds=3),
    )
    (first, second), seen, released = pinned_workers(stream, nats_server)
    publish_numbers(js, stream, 6)
    with running(first):
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 6)
        with running(second):
            # All places are taken: only the worker's own requests keep the pin.
            time.sleep(4)
            assert seen[1] == []
            released[1].set()
            stream.unpin_consumer("C", "mine")
            wait_until(lambda: len(seen[1]) == 5)
            assert seen[0] == [b"0"]
            assert sorted(seen[1]) == [b"%d" % number for number in range(1, 6)]
            released[0].set()
            wait_until(lambda: is_settled(stream))
    assert "another process has taken over" in caplog.text


@pinned
def test_the_policy_of_the_consumer_has_to_fit(stream, worker):
    """An exclusive handler refuses a consumer of another policy, and a plain one a pinned consumer."""
    stream.create_consumer(durable_name="O", priority_groups=["mine"], priority_policy="overflow")
    stream.create_consumer(
        durable_name="P", priority_groups=["mine"], priority_policy="pinned_client"
    )
    worker.handler(stream=stream.name, consumer="O", exclusive=True)(print)
    worker.handler(stream=stream.name, consumer="P")(print)
    result = worker.check()
    assert result.status == 2
    assert ["exclusive" in error for error in result.errors] == [True, True]
    worker.handlers[0].check_processes(4)


@pytest.mark.server("<2.11")
def test_an_older_server_is_refused(stream, worker, caplog):
    """A server without pinned clients ends the worker, before a message is handled."""
    worker.handler(stream=stream.name, consumer="C", exclusive=True)(print)
    with running(worker) as run:
        assert run.ended() == 2
    assert "2.11" in caplog.text
    assert "C" not in stream.consumer_names()


def test_several_processes_need_an_exclusive_consumer():
    """With a key, the order holds across processes only if one of them at a time is served."""
    worker = Worker()
    options = {"stream": "S", "key": lambda _msg: 1}
    worker.handler(consumer="A", exclusive=True, **options)(print).check_processes(2)
    with pytest.raises(InvalidOptionError, match="exclusive"):
        worker.handler(consumer="B", **options)(print).check_processes(2)


@pinned
@pytest.mark.full
@pytest.mark.timeout(110)
def test_a_stop_takes_one_timeout_for_all_pins_while_the_server_is_silent(fresh_server, caplog):
    """After the first request without a reply, the pins of the other handlers are left to the server."""
    worker = Worker(fresh_server.url, name="pins", drain_timeout=1.0)
    with connect(fresh_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="PINS", subjects=["pins.*"])
        for number in range(8):

            @worker.handler(
                stream="PINS",
                consumer=f"C{number}",
                filter_subject=f"pins.{number}",
                exclusive=True,
            )
            def handle(data: bytes) -> None:
                pass

            js.publish(f"pins.{number}")
        with caplog.at_level(logging.INFO), running(worker) as run:
            wait_until(lambda: "is ready" in caplog.text, 20)
            wait_until(
                lambda: all(
                    js.consumer_info("PINS", f"C{number}").ack_floor.stream_seq
                    for number in range(8)
                )
            )
            with paused(fresh_server):
                began = time.monotonic()
                worker.stop()
                run.ended(60)
                # 5 seconds each for a request on its way and the last drain, 2 each for messages in flight and
                # a pin, instead of 16 for all pins in the stop, and 16 before it.
                assert time.monotonic() - began < 16 + 3 * SCALE
