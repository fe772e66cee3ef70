"""`consume`: the thread of the callback, how it ends, and errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from fixtures.server import fill
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConsumeHandle,
    ConsumerConfig,
    ConsumerDeletedError,
    JetStream,
    JetStreamMsg,
    PullConsumer,
    Stream,
)


class Got(list[int]):
    """A callback that acknowledges and records the numbers of its messages."""

    def __call__(self, msg: JetStreamMsg) -> None:
        msg.ack()
        self.append(int(msg.data))


class Gate:
    """A callback that blocks at each message until it is released."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.got = 0

    def __call__(self, msg: JetStreamMsg) -> None:
        self.inside.release()
        assert self.go_on.acquire(timeout=20)
        msg.ack()
        self.got += 1


def in_a_thread_that_was_joined(function: Callable[[], object]) -> None:
    """Call a function on another thread and wait for it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def js(alone: Connection) -> JetStream:
    """JetStream on a server of this test alone."""
    return alone.jetstream()


@pytest.fixture
def stream(js: JetStream) -> Stream:
    """A stream that survives a restart."""
    return js.create_stream(name="S", subjects=["S.>"])


@pytest.fixture
def consumer(stream: Stream) -> PullConsumer:
    """A durable consumer of the whole stream."""
    return stream.create_consumer(durable_name="C", max_ack_pending=-1)


# --- messages -----------------------------------------------------------------------------------


def test_the_callback_gets_every_message_in_order(js, consumer, errors):
    """The callback gets each message once, in order, on one thread other than the caller's."""
    fill(js, "S", 5000)
    got = Got()
    threads = set()

    def callback(msg: JetStreamMsg) -> None:
        threads.add(threading.current_thread())
        got(msg)

    with consumer.consume(callback) as handle:
        wait_until(lambda: len(got) == 5000, 10)
        fill(js, "S", 10, first=5000)
        wait_until(lambda: len(got) == 5010)
        assert not handle.closed
    handle.wait_closed(5)
    assert got == list(range(5010))
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    wait_until(lambda: consumer.info().num_ack_pending == 0)
    assert (handle.error, errors) == (None, [])


def test_stop_after_closes_the_handle(js, consumer):
    """After this number of messages the handle is closed, and no more were requested."""
    fill(js, "S", 100)
    got = Got()
    handle = consumer.consume(got, stop_after=33, max_messages=10)
    handle.wait_closed(5)
    assert got == list(range(33))
    assert (handle.closed, handle.error) == (True, None)
    assert consumer.info().delivered.consumer_seq == 33


# --- errors of the callback ---------------------------------------------------------------------


def test_a_callback_that_raises_is_reported_and_called_again(js, consumer, errors):
    """An error of the callback goes to ``error_cb``, and the next message to the callback."""
    fill(js, "S", 10)
    got = Got()

    def callback(msg: JetStreamMsg) -> None:
        got(msg)
        if got[-1] % 2:
            raise ZeroDivisionError(got[-1])

    with consumer.consume(callback) as handle:
        wait_until(lambda: len(got) == 10)
        wait_until(lambda: len(errors) == 5)
        assert [error.args for error in errors] == [(1,), (3,), (5,), (7,), (9,)]
        assert handle.error is None


@pytest.mark.parametrize("way", ["consume", "subscribe"])
@pytest.mark.parametrize("backoff", [None, [0.2, 0.4]])
def test_a_callback_that_raises_gets_its_message_again_after_a_delay(
    js, stream, way, backoff, monkeypatch
):
    """The delay is longer than none and shorter than ack_wait; a ``backoff`` goes first."""
    monkeypatch.setattr(
        "jetstream_sync.jetstream.consume_handle.FAILED_NAK_DELAY_S", 9.0 if backoff else 0.2
    )
    times: list[float] = []

    def callback(msg: JetStreamMsg) -> None:
        times.append(time.monotonic())
        raise ZeroDivisionError(msg.metadata.num_delivered)

    fill(js, "S", 1)
    config = ConsumerConfig(durable_name="D", max_deliver=3, backoff=backoff)
    if way == "consume":
        with stream.create_consumer(config).consume(callback):
            wait_until(lambda: len(times) == 3)
    else:
        with js.subscribe("S.>", durable="D", cb=callback, config=config):
            wait_until(lambda: len(times) == 3)
    first, second = times[1] - times[0], times[2] - times[1]
    # The server's clock differs a little from the client's.
    assert first > 0.19
    assert second > (0.39 if backoff else 0.19)


@pytest.mark.parametrize("how", ["ack", "nak", "term"])
def test_a_message_that_the_callback_settled_is_left_alone(js, stream, errors, how, monkeypatch):
    """If the callback settled its message, an error sends nothing."""
    monkeypatch.setattr("jetstream_sync.jetstream.consume_handle.FAILED_NAK_DELAY_S", 0.05)

    def callback(msg: JetStreamMsg) -> None:
        if how == "nak":
            msg.nak(delay=30)
        else:
            getattr(msg, how)()
        raise ZeroDivisionError

    fill(js, "S", 1)
    consumer = stream.create_consumer(durable_name="D")
    with consumer.consume(callback):
        wait_until(lambda: errors)
        time.sleep(0.2)
    assert len(errors) == 1
    assert consumer.info().num_ack_pending == (1 if how == "nak" else 0)


# --- ends ---------------------------------------------------------------------------------------


def test_stop_drops_the_buffered_messages(js, consumer):
    """After ``stop`` the callback finishes its message and gets no other."""
    fill(js, "S", 50)
    gate = Gate()
    handle = consumer.consume(gate, max_messages=20)
    assert gate.inside.acquire(timeout=5)
    wait_until(lambda: consumer.info().delivered.consumer_seq == 20)
    handle.stop()
    handle.stop()
    with between(0.1, 1), pytest.raises(jetstream_sync.TimeoutError):
        handle.wait_closed(0.1)
    assert not handle.closed
    gate.go_on.release()
    handle.wait_closed(5)
    assert gate.got == 1
    assert (handle.closed, handle.error) == (True, None)
    assert consumer.info().num_waiting == 0


def test_drain_delivers_the_buffered_messages(js, consumer):
    """After ``drain`` the callback gets everything that was delivered; then consume ends."""
    fill(js, "S", 50)
    gate = Gate()
    handle = consumer.consume(gate, max_messages=20)
    assert gate.inside.acquire(timeout=5)
    wait_until(lambda: consumer.info().delivered.consumer_seq == 20)
    handle.drain()
    for _ in range(50):
        gate.go_on.release()
    handle.wait_closed(5)
    info = consumer.info()
    assert gate.got == info.delivered.consumer_seq == 20
    wait_until(lambda: consumer.info().num_ack_pending == 0)
    assert (info.num_waiting, handle.error) == (0, None)


@pytest.mark.parametrize("how", ["stop", "drain"])
def test_the_callback_may_stop_or_drain_its_handle(js, consumer, errors, how):
    """The callback may stop or drain; it cannot wait for its own end."""
    fill(js, "S", 100)
    handles: list[ConsumeHandle] = []
    ready = threading.Event()
    got = Got()

    def callback(msg: JetStreamMsg) -> None:
        assert ready.wait(5)
        got(msg)
        if len(got) == 3:
            getattr(handles[0], how)()
            with pytest.raises(jetstream_sync.TimeoutError):
                handles[0].wait_closed(10)

    handles.append(consumer.consume(callback, max_messages=10))
    ready.set()
    handles[0].wait_closed(5)
    if how == "stop":
        assert got == [0, 1, 2]
    else:
        assert got == list(range(consumer.info().delivered.consumer_seq))
    assert (handles[0].error, errors) == (None, [])


def test_another_thread_stops_a_waiting_consume(consumer):
    """Another thread stops a consume that waits for messages, at once."""
    handle = consumer.consume(print)
    wait_until(lambda: consumer.info().num_waiting == 1)
    with between(0, 0.5):
        in_a_thread_that_was_joined(handle.stop)
        handle.wait_closed(5)
    assert consumer.info().num_waiting == 0


def test_draining_the_connection_lets_the_callback_finish(alone, js, consumer, fresh_server):
    """A draining connection lets the callback finish buffered messages, and sends its acks."""
    fill(js, "S", 50)
    got = Got()
    started = threading.Event()

    def callback(msg: JetStreamMsg) -> None:
        started.set()
        got(msg)

    handle = consumer.consume(callback, max_messages=20)
    assert started.wait(5)
    alone.drain()
    assert handle.closed
    with jetstream_sync.connect(fresh_server.url) as other:
        info = other.jetstream().get_consumer("S", "C").cached_info
    assert len(got) >= 20
    # Messages sent just after the subscription ended are not received, and are redelivered later.
    assert info.num_ack_pending == info.delivered.consumer_seq - len(got)


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_a_deleted_consumer_closes_the_handle(js, stream, consumer, errors, what):
    """The handle closes within a second, and the error goes to ``error_cb`` once."""
    got = Got()
    handle = consumer.consume(got)
    fill(js, "S", 3)
    wait_until(lambda: len(got) == 3)
    with between(0, 1):
        if what == "consumer":
            stream.delete_consumer("C")
        else:
            js.delete_stream("S")
        handle.wait_closed(5)
    assert isinstance(handle.error, ConsumerDeletedError)
    wait_until(lambda: errors)
    assert [type(error) for error in errors] == [ConsumerDeletedError]


def test_a_lost_connection_is_the_error(fresh_server):
    """Without reconnecting, a lost connection closes the handle with the reason."""
    nc = jetstream_sync.connect(fresh_server.url, allow_reconnect=False)
    js = nc.jetstream()
    js.create_stream(name="S", subjects=["S.>"])
    handle = js.create_consumer("S", durable_name="C").consume(print)
    fresh_server.kill()
    handle.wait_closed(5)
    assert isinstance(handle.error, jetstream_sync.ConnectionClosedError)
    nc.close()
