"""Several drains, closes and blocks that end one connection at the same time."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fixtures.internals import open_subscriptions
from fixtures.threads import SCALE, threads_in, wait_until, within

import jetstream_sync
from jetstream_sync import (
    BadSubscriptionError,
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerInfo,
    DrainTimeoutError,
    Msg,
    PullConsumer,
    Stream,
)
from jetstream_sync.server import NatsServer


@pytest.fixture
def own(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection that the test ends."""
    connection = jetstream_sync.connect(nats_server.url)
    yield connection
    connection.close()


def test_two_callbacks_drain(own):
    """Two callbacks that drain the connection do not wait for each other."""
    both = threading.Barrier(2)
    done: list[str] = []

    def stop(msg: Msg) -> None:
        both.wait(5 * SCALE)
        own.drain()
        done.append(msg.subject)

    own.subscribe("drain.a", cb=stop)
    own.subscribe("drain.b", cb=stop)
    own.publish("drain.a")
    own.publish("drain.b")
    wait_until(lambda: len(done) == 2)
    assert own.is_closed


def test_the_end_of_a_with_block_waits_for_a_running_drain(nats_server):
    """The end of a with block does not shorten a drain that is in progress."""
    may_end = threading.Event()
    answered: list[bytes] = []
    with jetstream_sync.connect(nats_server.url) as other:
        responses = other.subscribe("drain.answers")
        other.flush()
        with jetstream_sync.connect(nats_server.url) as nc:

            def slowly(msg: Msg) -> None:
                may_end.wait(5 * SCALE)
                nc.publish("drain.answers", msg.data)

            nc.subscribe("drain.work", cb=slowly)
            for number in range(5):
                nc.publish("drain.work", b"%d" % number)
            nc.flush()
            drainer = threading.Thread(target=nc.drain)
            drainer.start()
            wait_until(lambda: nc.is_draining)
            threading.Timer(0.1, may_end.set).start()
        drainer.join(5 * SCALE)
        answered += [responses.next_msg(timeout=5).data for _ in range(5)]
    assert answered == [b"0", b"1", b"2", b"3", b"4"]


def test_a_program_that_ends_without_closing(nats_server):
    """Messages published before a program ends without closing arrive; it ends at once, silently."""
    program = (
        "import jetstream_sync\n"
        f"nc = jetstream_sync.connect({nats_server.url!r})\n"
        "nc.subscribe('drain.cb', cb=print)\n"
        "for number in range(1000): nc.publish('drain.last', b'%d' % number)\n"
        "import time; print(time.monotonic())\n"
    )
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = nc.subscribe("drain.last")
        nc.flush()
        path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
        done = subprocess.run(
            command, check=True, timeout=20 * SCALE, env=path, capture_output=True
        )
        assert done.stderr == b""
        assert time.monotonic() - float(done.stdout) < 5 * SCALE
        got = [int(sub.next_msg(timeout=5).data) for _ in range(1000)]
    assert got == list(range(1000))


# --- what is ending already ------------------------------------------------------------------------


class Slow:
    """A callback that is slow until the connection drains, and records what it has handled."""

    def __init__(self, handle: Callable[[Any], object] = lambda _: None) -> None:
        self.began = threading.Event()
        self.may_go_on = threading.Event()
        self.handled = 0
        self._handle = handle

    def __call__(self, msg: Any) -> None:
        self.began.set()
        assert self.may_go_on.wait(20 * SCALE)
        self._handle(msg)
        self.handled += 1

    def release_soon(self, nc: Connection) -> None:
        """Let it go on while the connection drains."""

        def release() -> None:
            wait_until(lambda: nc.is_draining)
            self.may_go_on.set()

        threading.Thread(target=release).start()


def in_thread(target: Callable[[], object]) -> threading.Thread:
    """Start a thread that calls a function, which may fail because the connection ends."""

    def run() -> None:
        with contextlib.suppress(ConnectionClosedError, DrainTimeoutError):
            target()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_subscription_that_has_reached_its_limit(nats_server, subject):
    """The end of a with block waits for the callbacks of a subscription that left the table."""
    slow = Slow()
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = nc.subscribe(subject, cb=slow)
        sub.unsubscribe(limit=10)
        for _ in range(20):
            nc.publish(subject)
        nc.flush()
        assert slow.began.wait(5)
        assert open_subscriptions(nc) == []
        slow.release_soon(nc)
    assert slow.handled == 10


def test_draining_a_subscription_that_has_reached_its_limit(own, subject):
    """`Subscription.drain` waits for the callback also after the limit, and raises nothing."""
    slow = Slow()
    sub = own.subscribe(subject, cb=slow)
    sub.unsubscribe(limit=10)
    for _ in range(20):
        own.publish(subject)
    own.flush()
    threading.Timer(0.1, slow.may_go_on.set).start()
    sub.drain()
    assert slow.handled == 10
    sub.drain()


def test_two_threads_drain_a_subscription(own, subject):
    """The second drain waits for the callback as well."""
    slow = Slow()
    sub = own.subscribe(subject, cb=slow)
    for _ in range(5):
        own.publish(subject)
    own.flush()
    assert slow.began.wait(5)
    first = in_thread(sub.drain)
    wait_until(lambda: not sub.is_valid)
    threading.Timer(0.1, slow.may_go_on.set).start()
    sub.drain()
    assert slow.handled == 5
    first.join()
    with pytest.raises(BadSubscriptionError):
        sub.drain()


@pytest.mark.parametrize("how", ["drain", "unsubscribe"])
def test_a_subscription_that_another_thread_ends(nats_server, subject, how):
    """A subscription that drains, or whose last callback runs, counts until that has returned."""
    slow = Slow()
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = nc.subscribe(subject, cb=slow)
        for _ in range(10):
            nc.publish(subject)
        nc.flush()
        assert slow.began.wait(5)
        ending = in_thread(getattr(sub, how))
        wait_until(lambda: not sub.is_valid)
        slow.release_soon(nc)
    assert slow.handled == (10 if how == "drain" else 1)
    ending.join()


def test_a_service_that_another_thread_stops(nats_server, other, subject):
    """All requests that arrived are answered when the with block ends."""
    slow = Slow(lambda request: request.respond(b"ok"))
    responses = other.subscribe(f"{subject}.answers")
    other.flush()
    with jetstream_sync.connect(nats_server.url) as nc:
        service = nc.add_service("ending", "1.0.0")
        service.add_endpoint("end", slow, subject)
        for _ in range(30):
            other.publish(subject, b"", f"{subject}.answers")
        other.flush()
        assert slow.began.wait(5)
        nc.flush()
        stopping = in_thread(service.stop)
        wait_until(
            lambda: subject not in {subscription.subject for subscription in open_subscriptions(nc)}
        )
        slow.release_soon(nc)
    other.flush()
    assert responses.pending_msgs == slow.handled == 30
    stopping.join()


def acknowledged(info: ConsumerInfo) -> int:
    """Return the number of acknowledged messages of a consumer."""
    return info.delivered.consumer_seq - info.num_ack_pending


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *itertools.product(["consume", "ordered", "push", "watch"], ["drain", "stop"]),
        ("push", "limit"),
    ],
)
def test_a_consume_that_another_thread_ends(nats_server, js, stream, kind, how):
    """Acknowledgements of messages that arrived are with the server when the with block ends."""
    for number in range(30):
        js.publish(f"{stream.name}.{number}")
    acks = kind in {"consume", "push"}
    slow = Slow(lambda msg: msg.ack() if acks else None)
    with jetstream_sync.connect(nats_server.url) as nc:
        own = nc.jetstream()
        end: Any
        if kind == "consume":
            end = stream.create_consumer(durable_name="C") and own.get_consumer(stream.name, "C")
            end = end.consume(slow)
        elif kind == "ordered":
            end = own.ordered_consumer(stream.name).consume(slow)
        elif kind == "push":
            end = own.subscribe(
                "", stream=stream.name, durable="C", cb=slow, manual_ack=True, delete_consumer=False
            )
        else:
            kv = own.create_key_value(bucket="ENDING", storage="memory")
            for number in range(30):
                kv.put(str(number), b"")
            end = kv.watch(cb=slow)
        assert slow.began.wait(5)
        if how == "limit":
            wait_until(lambda: end.delivered == 30)
            end.unsubscribe(limit=10)
            ending = in_thread(lambda: None)
        else:
            nc.flush()
            ending = in_thread(
                end.unsubscribe if (kind, how) == ("push", "stop") else getattr(end, how)
            )
            wait_until(lambda: end.is_valid is False if kind == "push" else end._messages.closed)
        slow.release_soon(nc)
    wanted = {"drain": 30, "limit": 10, "stop": 1}[how]
    assert slow.handled == wanted
    if acks:
        # The server processes acknowledgements after it has received them.
        wait_until(lambda: acknowledged(stream.consumer_info("C")) == wanted)
    ending.join()


def test_a_callback_of_a_future(nats_server, stream):
    """A drain waits for the callback of the last future."""
    slow = Slow()
    with jetstream_sync.connect(nats_server.url) as nc:
        nc.jetstream().publish_async(f"{stream.name}.a").add_done_callback(slow)
        assert slow.began.wait(5)
        slow.release_soon(nc)
    assert slow.handled == 1


def test_a_callback_that_does_not_end(nats_server, subject):
    """The end of the block raises after ``drain_timeout``, and the callback gets no more messages."""
    slow = Slow()
    with pytest.raises(DrainTimeoutError), within(3):  # noqa: SIM117 - the end of the block raises
        with jetstream_sync.connect(nats_server.url, drain_timeout=0.2) as nc:
            sub = nc.subscribe(subject, cb=slow)
            sub.unsubscribe(limit=5)
            for _ in range(5):
                nc.publish(subject)
            nc.flush()
            assert slow.began.wait(5)
    assert nc.is_closed
    slow.may_go_on.set()
    wait_until(lambda: not threads_in("_run"))
    assert slow.handled == 1


def test_a_failed_drain_of_another_thread(nats_server, subject):
    """A block that ends during a drain of another thread raises what that drain has raised."""
    slow = Slow()
    with pytest.raises(DrainTimeoutError):  # noqa: SIM117 - the end of the block raises
        with jetstream_sync.connect(nats_server.url) as nc:
            nc.subscribe(subject, cb=slow)
            nc.publish(subject)
            assert slow.began.wait(5)
            drainer = in_thread(lambda: nc.drain(0.3))
            wait_until(lambda: nc.is_draining)
    slow.may_go_on.set()
    drainer.join()


def test_a_block_that_ends_without_a_connection(fresh_server, subject):
    """If messages could not be sent, the end of the block raises; otherwise it does not."""
    with jetstream_sync.connect(fresh_server.url) as quiet:
        with pytest.raises(ConnectionClosedError):  # noqa: SIM117 - the end of the block raises
            with jetstream_sync.connect(fresh_server.url) as nc:
                fresh_server.stop()
                wait_until(lambda: nc.is_reconnecting and quiet.is_reconnecting)
                nc.publish(subject)
        assert nc.is_closed
    assert quiet.is_closed


def test_a_block_after_a_close(fresh_server, subject, caplog):
    """A program that closes without a server decides so: a warning names the messages, and no error follows."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        fresh_server.stop()
        wait_until(lambda: nc.is_reconnecting)
        nc.publish(subject)
        nc.close()
    assert "closed with 1 message unsent" in caplog.text


#: What a program has done -> whether a connection that breaks in its last drain may have lost something of it.
MAY_LOSE: dict[str, tuple[Callable[[Connection, Stream], object], bool]] = {
    "publish": (lambda nc, _: nc.publish("a"), True),
    "publish_async": (lambda nc, _: nc.jetstream().publish_async("s").result(5.0), True),
    "ack": (lambda _, stream: stream.create_consumer(name="c").next(5.0).ack(), True),
    "nothing": (lambda *_: None, False),
    "publish with an ack": (lambda nc, _: nc.jetstream().publish("s"), False),
    "next": (lambda _, stream: stream.create_consumer(name="c").next(5.0), False),
    "ordered": (lambda _, stream: stream.ordered_consumer().next(5.0), False),
    "messages": (lambda _, stream: read_one(stream.create_consumer(name="c")), False),
    "push": (lambda nc, _: nc.jetstream().subscribe("s").next_msg(5.0), False),
}


def read_one(consumer: PullConsumer) -> None:
    """Read one message, and keep those that follow."""
    with consumer.messages() as messages:
        next(messages)


@pytest.mark.parametrize("what", MAY_LOSE)
def test_a_connection_that_breaks_at_the_end_of_a_block(fresh_server, what):
    """The block raises if a message may be lost; requests, and what the client itself sends, do not count."""
    call, may_lose = MAY_LOSE[what]
    with contextlib.ExitStack() as block:
        if may_lose:
            block.enter_context(pytest.raises(ConnectionLostError))
        nc = block.enter_context(jetstream_sync.connect(fresh_server.url))
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"], storage="memory")
        js.publish("s")
        call(nc, stream)
        fresh_server.pause()
        threading.Timer(0.2, fresh_server.kill).start()


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_program_that_ends_with_a_dead_server(fresh_server, is_silent):
    """The exit of a program warns once of messages that were not sent or acknowledged, with their number."""
    program = (
        "import jetstream_sync, sys, time\n"
        f"nc = jetstream_sync.connect({fresh_server.url!r}, name='exiting')\n"
        "js = nc.jetstream()\n"
        "js.create_stream(name='S', subjects=['s'], storage='memory')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"while not {is_silent} and nc.is_connected: time.sleep(0.01)\n"
        "for number in range(7): js.publish_async('s')\n"
    )
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    with subprocess.Popen(
        command, env=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if is_silent:
            fresh_server.pause()
        else:
            fresh_server.stop()
        _, errors = process.communicate(b"go\n", timeout=20 * SCALE)
    if is_silent:
        fresh_server.resume()
    text = errors.decode()
    assert text.count("ResourceWarning: the process exits") == 1
    assert text.count("the process exits with 7 messages ") == 2, "once as a log line"
