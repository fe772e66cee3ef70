"""Calls and consumers over links that break, at any byte and in any way, and over slow links."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.faults import FaultProxy, Toward, open_files
from fixtures.internals import open_subscriptions
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMsg, PullConsumer, Stream, errors
from jetstream_sync.server import NatsServer

#: Short reconnect delays; a silent server is given up after 0.6 s.
OPTIONS: dict[str, Any] = {
    "reconnect_time_wait": 0.01,
    "max_reconnect_attempts": -1,
    "connect_timeout": 0.5,
    "ping_interval": 0.2,
    "max_outstanding_pings": 2,
}
HEARTBEAT = 1.0

BREAKS: dict[str, Callable[[FaultProxy], object]] = {
    "FIN": FaultProxy.cut,
    "RST": lambda line: line.cut(reset=True),
    "server does not know": lambda line: line.cut((Toward.CLIENT,), reset=True),
    "client does not know": lambda line: line.cut((Toward.SERVER,), reset=True),
    "half closed": lambda line: line.half_close(Toward.CLIENT),
    "black hole": FaultProxy.hold,
    "black hole, one way": lambda line: line.hold(Toward.CLIENT),
}
every_break = pytest.mark.parametrize("how", BREAKS)


@pytest.fixture
def line(nats_server: NatsServer) -> Iterator[FaultProxy]:
    """The proxy between the server and `far`."""
    with FaultProxy(nats_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(line: FaultProxy) -> Iterator[Connection]:
    """A connection through the proxy; the fixture ``js`` uses it."""
    with jetstream_sync.connect(line.url, **OPTIONS) as nc:
        yield nc


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    return js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")


@pytest.fixture
def durable(far: Connection, stream: Stream) -> PullConsumer:
    """A durable consumer, used through the proxy."""
    stream.create_consumer(durable_name="C", ack_wait=60)
    return far.jetstream().get_consumer(stream.name, "C")


def break_link(far: Connection, line: FaultProxy, how: str) -> None:
    """Break the link, wait until the client notices, repair it, wait for the next connection."""
    before = far.stats["reconnects"]
    BREAKS[how](line)
    wait_until(lambda: not far.is_connected or far.stats["reconnects"] > before)
    line.heal()
    wait_until(lambda: far.is_connected and far.stats["reconnects"] > before)


def publish(js: JetStream, subject: str, numbers: range) -> None:
    for number in numbers:
        js.publish(subject, b"%d" % number)


def read(messages: Any, count: int) -> list[int]:
    """Read and acknowledge this number of messages, and wait until the server has the acks."""
    taken = []
    for _ in range(count):
        msg = messages.next(timeout=5 * SCALE)
        msg.ack_sync(5 * SCALE)
        taken.append(int(msg.data))
    return taken


def waiting(stream: Stream, consumer: str = "C") -> int:
    """Return the number of waiting pull requests on the server, asked directly."""
    return stream.get_consumer(consumer).info().num_waiting


# --- readers ------------------------------------------------------------------------------------


@every_break
def test_messages_and_consume_resume_within_two_heartbeats(far, line, js, stream, durable, how):
    """An iterator and a callback get new messages within two heartbeats of the new link."""
    got: SimpleQueue[int] = SimpleQueue()

    def called(msg: JetStreamMsg) -> None:
        msg.ack()
        got.put(int(msg.data))

    stream.create_consumer(durable_name="D", ack_wait=60)
    consumer = far.jetstream().get_consumer(stream.name, "D")
    handle = consumer.consume(called, heartbeat=HEARTBEAT, expires=4)
    with durable.messages(heartbeat=HEARTBEAT, expires=4) as messages:
        publish(js, stream.name, range(5))
        assert read(messages, 5) == [0, 1, 2, 3, 4]
        assert [got.get(timeout=5 * SCALE) for _ in range(5)] == [0, 1, 2, 3, 4]
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(messages.next, 20 * SCALE)
            break_link(far, line, how)
            back = time.monotonic()
            publish(js, stream.name, range(5, 10))
            taken.result(5 * SCALE).ack()
        while got.get(timeout=5 * SCALE) != 9:
            pass
        assert time.monotonic() - back < 2 * HEARTBEAT * SCALE
        assert read(messages, 4) == [6, 7, 8, 9]
        wait_until(lambda: stream.get_consumer("C").info().num_ack_pending == 0)
    assert handle.error is None
    handle.stop()
    handle.wait_closed(5 * SCALE)
    wait_until(lambda: waiting(stream) == 0 and waiting(stream, "D") == 0)


@every_break
def test_a_fetch_and_a_next_continue_after_a_break(far, line, js, stream, durable, how):
    """A fetch or next that waits during a break gets new messages, and leaves no request behind."""
    stream.create_consumer(durable_name="N")
    other = far.jetstream().get_consumer(stream.name, "N")
    with ThreadPoolExecutor(2) as pool:
        fetched = pool.submit(durable.fetch, 3, 20 * SCALE)
        single = pool.submit(other.next, 20 * SCALE)
        wait_until(lambda: waiting(stream) == 1 and waiting(stream, "N") == 1)
        break_link(far, line, how)
        wait_until(lambda: waiting(stream) >= 1 and waiting(stream, "N") >= 1)
        if how == "server does not know":
            # The requests of the old link are gone when the server has noticed the break.
            wait_until(lambda: waiting(stream) == 1 and waiting(stream, "N") == 1)
        publish(js, stream.name, range(3))
        assert [msg.data for msg in fetched.result(5 * SCALE)] == [b"0", b"1", b"2"]
        assert single.result(5 * SCALE).data == b"0"
    wait_until(lambda: waiting(stream) == 0 and waiting(stream, "N") == 0)


@pytest.mark.parametrize("count", [1, 41, 300, 100_000])
def test_an_ordered_consumer_may_be_cut_at_any_byte(far, line, js, stream, count):
    """A link that ends within a message loses nothing: the message is sent again."""
    for number in range(500):
        js.publish_async(stream.name, b"%d " % number + b"x" * 300)
    js.publish_async_completed(5 * SCALE)
    consumer = far.jetstream().ordered_consumer(stream.name)
    with consumer.messages(max_messages=20, heartbeat=0.5) as messages:
        line.cut_after(count, Toward.CLIENT, after=b"MSG ")
        got = [int(messages.next(5 * SCALE).data.split()[0]) for _ in range(500)]
    assert got == list(range(500))
    assert line.cuts == 1


def test_messages_sent_into_a_dead_link_are_redelivered(far, line, js, stream):
    """Messages sent into a dead link are redelivered after ack_wait."""
    stream.create_consumer(durable_name="C", ack_wait=0.5)
    consumer = far.jetstream().get_consumer(stream.name, "C")
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(consumer.fetch, 1, 20 * SCALE)
        wait_until(lambda: waiting(stream) == 1)
        line.cut((Toward.CLIENT,), reset=True)
        publish(js, stream.name, range(1))
        msg = fetched.result(10 * SCALE)[0]
    assert msg.data == b"0"
    msg.ack_sync(5 * SCALE)


def test_a_fetch_ends_in_time_in_a_black_hole(far, line, durable, stream):
    """If no bytes arrive, a fetch and a next return within their timeout and a second."""
    line.hold()
    with within(1.7):
        assert durable.fetch(3, timeout=0.5) == []
    with within(1.7), pytest.raises(errors.TimeoutError):
        durable.next(timeout=0.5)
    with within(2.7):
        assert far.jetstream().ordered_consumer(stream.name).fetch(1, timeout=0.5) == []


# --- publishing and asking ----------------------------------------------------------------------


def test_a_publish_whose_ack_is_lost_is_stored_once(far, line, stream):
    """Published again with its id, a message whose acknowledgement was lost is a duplicate."""
    line.hold(Toward.CLIENT)
    with pytest.raises(errors.TimeoutError):
        far.jetstream().publish(stream.name, b"0", msg_id="zero", timeout=0.3)
    break_link(far, line, "RST")
    ack = far.jetstream().publish(stream.name, b"0", msg_id="zero", timeout=5 * SCALE)
    assert (ack.seq, ack.duplicate) == (1, True)
    assert stream.info().state.messages == 1


@pytest.mark.parametrize("count", [5, 4000])
def test_a_publish_that_is_cut_off_is_not_stored_in_part(far, line, stream, count):
    """A partly sent message is an error in time, and complete when it is sent again."""
    payload = bytes(range(256)) * 40
    line.cut_after(count, Toward.SERVER, after=b"HPUB ")
    with pytest.raises(errors.TimeoutError):
        far.jetstream().publish(stream.name, payload, msg_id="one", timeout=0.5)
    assert stream.info().state.messages == 0
    ack = far.jetstream().publish(stream.name, payload, msg_id="one", timeout=5 * SCALE)
    assert not ack.duplicate
    assert stream.get_msg(1).data == payload


@every_break
def test_every_future_settles(far, line, stream, how):
    """Every future of publish_async settles; repeated with its id, each message is stored once."""
    far_js = far.jetstream()
    far_js.publish(stream.name, b"first")
    futures = {}
    BREAKS[how](line)
    for number in range(300):
        futures[number] = far_js.publish_async(
            stream.name, b"%d" % number, msg_id=f"{number}", timeout=3 * SCALE
        )
    failed = []
    with within(4.5):
        for number, future in futures.items():
            error = future.exception(timeout=10 * SCALE)
            assert error is None or isinstance(
                error, (errors.TimeoutError, errors.ConnectionLostError)
            )
            if error is not None:
                failed.append(number)
    line.heal()
    wait_until(lambda: far.is_connected)
    for number in failed:
        far_js.publish_async(stream.name, b"%d" % number, msg_id=f"{number}")
    far_js.publish_async_completed(10 * SCALE)
    assert far_js.publish_async_pending == 0
    assert stream.info().state.messages == 301


# --- slow links -----------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7])
def test_messages_arrive_unchanged_in_any_pieces(far, line, stream, durable, piece):
    """Messages with headers and any payload arrive unchanged, however the bytes are divided."""
    line.slow(piece=piece)
    payloads = [b"", b"\r\n", b"MSG a 1 5\r\n", bytes(range(256)), b"\r\n" * 100]
    for number, payload in enumerate(payloads):
        far.jetstream().publish(stream.name, payload, headers={"Number": f"{number}"})
    got = durable.fetch(5, timeout=5 * SCALE)
    assert [msg.data for msg in got] == payloads
    assert [msg.headers and msg.headers["Number"] for msg in got] == ["0", "1", "2", "3", "4"]


# --- leftovers ------------------------------------------------------------------------------------


def test_breaks_leave_nothing_behind(far, line, js, stream, durable):
    """After many breaks there are the files, subscriptions and pull requests of one link."""
    with durable.messages(heartbeat=HEARTBEAT, expires=4) as messages:
        publish(js, stream.name, range(1))
        assert read(messages, 1) == [0]
        files, subscriptions = open_files(), len(open_subscriptions(far))
        for round_number in range(1, 16):
            break_link(far, line, "RST" if round_number % 2 else "FIN")
            publish(js, stream.name, range(round_number, round_number + 1))
            assert read(messages, 1) == [round_number]
        wait_until(lambda: open_files() == files)
        assert len(open_subscriptions(far)) == subscriptions
        wait_until(lambda: waiting(stream) == 1)
    wait_until(lambda: waiting(stream) == 0)
    assert len(open_subscriptions(far)) == subscriptions - 1
