"""Listeners for events, failed attempts to reconnect, error callbacks of a `consume`, and pending bytes."""

from __future__ import annotations

import pytest
from fixtures.server import break_link
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import ConnectionEvent, ConsumerDeletedError, EventKind, InvalidOptionError


def test_listeners_are_added_and_removed(fresh_server):
    """A listener gets the events of its kinds, besides the callbacks of the options."""
    option: list[str] = []
    some: list[ConnectionEvent] = []
    every: list[EventKind] = []

    def listen(event: ConnectionEvent) -> None:
        every.append(event.kind)

    with jetstream_sync.connect(
        fresh_server.url, reconnect_time_wait=0.01, reconnected_cb=lambda: option.append("again")
    ) as nc:
        nc.add_listener(some.append, EventKind.DISCONNECTED)
        nc.add_listener(listen)
        break_link(nc)
        wait_until(lambda: option and EventKind.RECONNECTED in every)
        assert [event.kind for event in some] == [EventKind.DISCONNECTED]
        assert nc.remove_listener(listen)
        assert not nc.remove_listener(listen)
        seen = list(every)
        break_link(nc)
        wait_until(lambda: len(option) == 2)
        assert every == seen
        with pytest.raises(InvalidOptionError):
            nc.add_listener(divmod)  # type: ignore[arg-type]


def test_each_failed_attempt_is_reported(fresh_server):
    """``reconnect_error_cb`` gets the server and the error of each attempt; messages are pending then."""
    failed: list[ConnectionEvent] = []
    with jetstream_sync.connect(
        fresh_server.url,
        reconnect_time_wait=0.02,
        max_reconnect_attempts=-1,
        reconnect_error_cb=failed.append,
    ) as nc:
        nc.flush()
        assert nc.pending_bytes == 0
        fresh_server.stop()
        wait_until(lambda: len(failed) >= 3)
        assert {event.server for event in failed} == {nc.servers[0]}
        assert isinstance(failed[0].error, OSError)
        nc.publish("pending", bytes(1000))
        assert 1000 < nc.pending_bytes < 1100
        fresh_server.start()
        wait_until(lambda: nc.is_connected and nc.pending_bytes == 0)


@pytest.mark.parametrize("kind", ["pull", "ordered"])
def test_an_error_callback_of_a_consume(alone, errors, kind):
    """It gets the errors of its callback and of the consumer, and the connection's gets none."""
    own = alone.jetstream()
    made = own.create_stream(name="S", subjects=["s"], storage="memory")
    own.publish("s")
    found: list[BaseException] = []

    def fail(_: object) -> None:
        raise ValueError("in the callback")

    consumer = made.create_consumer(durable_name="C") if kind == "pull" else made.ordered_consumer()
    handle = consumer.consume(fail, error_cb=found.append)
    wait_until(lambda: found)
    assert isinstance(found[0], ValueError)
    if kind == "pull":
        made.delete_consumer("C")
        wait_until(lambda: handle.closed)
        assert isinstance(handle.error, ConsumerDeletedError)
        wait_until(lambda: len(found) == 2)
        assert isinstance(found[1], ConsumerDeletedError)
    handle.stop()
    handle.wait_closed(5)
    assert errors == []
    with pytest.raises(InvalidOptionError):
        consumer.consume(fail, error_cb=3)  # type: ignore[arg-type]
