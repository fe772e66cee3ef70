"""Fork and pickle: a child can not use its parent's connection, and the parent never notices."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
from fix_threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ForkedConnectionError,
    JetStream,
    Subscription,
    errors,
)
from jetstream_sync.server import NatsServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(check: Callable[[], object], limit: int = 10) -> None:
    """Run a check in a forked child; fail with its words when it raises, or hangs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            # The stack, and then the end.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=writing, chain=True)
            signal.alarm(int(limit * SCALE))
            check()
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        words = said.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, words


def all_calls(nc: Connection, sub: Subscription) -> dict[str, Callable[[], object]]:
    return {
        "publish": lambda: nc.publish("fork.a", b"x"),
        "publish with headers": lambda: nc.publish("fork.a", b"x", headers={"A": "b"}),
        "request": lambda: nc.request("fork.a", timeout=None),
        "subscribe": lambda: nc.subscribe("fork.b"),
        "flush": lambda: nc.flush(timeout=None),
        "rtt": lambda: nc.rtt(timeout=None),
        "drain": nc.drain,
        "next_msg": lambda: sub.next_msg(timeout=None),
        "iteration": lambda: next(iter(sub)),
        "unsubscribe": sub.unsubscribe,
        "unsubscribe later": lambda: sub.unsubscribe(10),
        "drain of a subscription": sub.drain,
        "js.publish": lambda: nc.jetstream().publish("fork.a", timeout=None),
        "js.publish_async": lambda: nc.jetstream().publish_async("fork.a", timeout=None),
        "js.account_info": lambda: nc.jetstream(timeout=None).account_info(),
    }


@pytest.fixture
def sub(nc: Connection) -> Subscription:
    """A subscription in which a message waits."""
    waiting = nc.subscribe("fork.mine")
    nc.publish("fork.mine", b"waits")
    wait_until(lambda: waiting.pending_msgs)
    return waiting


@pytest.mark.parametrize(
    "name",
    [
        "publish",
        "publish with headers",
        "request",
        "subscribe",
        "flush",
        "rtt",
        "drain",
        "next_msg",
        "iteration",
        "unsubscribe",
        "unsubscribe later",
        "drain of a subscription",
        "js.publish",
        "js.publish_async",
        "js.account_info",
    ],
)
def test_every_call_is_refused_in_a_child(nc: Connection, sub: Subscription, name: str) -> None:
    """In a child each call on the parent's connection raises ForkedConnectionError at once."""

    def check() -> None:
        with pytest.raises(ForkedConnectionError):
            all_calls(nc, sub)[name]()

    in_child(check)
    assert sub.next_msg(timeout=0).data == b"waits"


def test_what_is_known_of_it_in_a_child(nc: Connection) -> None:
    """A child sees a closed connection without a server, which it may close."""

    def check() -> None:
        assert nc.is_closed
        assert nc.connected_url is None
        assert isinstance(nc.last_error, ForkedConnectionError)
        assert "closed" in repr(nc)
        nc.close()
        with nc:
            pass

    in_child(check)
    assert nc.is_connected


def test_the_parent_does_not_notice(nc: Connection) -> None:
    """A child that uses, closes and leaves the connection sends nothing and ends nothing."""
    sub = nc.subscribe("fork.heard")
    nc.flush()

    def use() -> None:
        with pytest.raises(ForkedConnectionError):
            nc.publish("fork.heard", b"from the child")
        nc.close()

    in_child(use)
    nc.publish("fork.heard", b"from the parent")
    assert sub.next_msg(timeout=5).data == b"from the parent"
    assert nc.rtt()
    assert nc.stats["reconnects"] == 0


def test_a_child_holds_no_socket_of_its_parents(nc: Connection) -> None:
    """The child's copy of the socket is closed, so the parent's link ends when the parent ends it."""
    stream = nc._core._link.stream
    number = stream._socket.fileno()

    def check() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)

    in_child(check)
    os.fstat(number)


def test_a_child_opens_its_own(nats_server: NatsServer, nc: Connection) -> None:
    """A connection that is opened after the fork works, in a child of a child, too."""

    def open_one() -> None:
        with jetstream_sync.connect(nats_server.url) as own:
            sub = own.subscribe("fork.own")
            own.publish("fork.own", b"x")
            assert sub.next_msg(timeout=5).data == b"x"

            def again() -> None:
                with pytest.raises(ForkedConnectionError):
                    own.publish("fork.own")
                with jetstream_sync.connect(nats_server.url) as third:
                    third.flush()

            in_child(again)
            own.flush()

    in_child(open_one)
    nc.flush()


def test_a_callback_that_forks(nc: Connection) -> None:
    """A child that was forked in a callback gets none of the messages that wait for it."""
    seen: list[bytes] = []
    children: list[int] = []

    def callback(msg: jetstream_sync.Msg) -> None:
        seen.append(msg.data)
        if msg.data == b"0":
            pid = os.fork()
            if pid == 0:
                # It goes on as if it were the parent: what waits must not reach it.
                end = threading.Timer(0.2, os._exit, [0])
                end.daemon = True
                end.start()
                seen.clear()
                return
            children.append(pid)
        elif not children:
            os._exit(3)

    nc.subscribe("fork.callback", cb=callback)
    for number in range(10):
        nc.publish("fork.callback", b"%d" % number)
    wait_until(lambda: len(seen) == 10)
    _, status = os.waitpid(children[0], 0)
    assert status == 0, "the child got messages of its parent"


@pytest.fixture
def busy(nc: Connection, js: JetStream, stream_name: str) -> Iterator[list[str]]:
    """Threads that use the connection in every way, all the time; the errors that they met."""
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], storage="memory")
    nc.subscribe("fork.service", cb=lambda msg: msg.respond(b"yes"))
    mine = nc.subscribe("fork.mine", pending_msgs_limit=100)
    stop = threading.Event()
    wrong: list[str] = []
    counts = {"publish": 0, "request": 0, "subscribe": 0, "flush": 0, "read": 0, "async": 0}

    def loop(name: str, call: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                call()
                counts[name] += 1
            except Exception:
                wrong.append(traceback.format_exc())
                return

    def read() -> None:
        nc.publish("fork.mine")
        mine.next_msg(timeout=5)

    calls: dict[str, Callable[[], object]] = {
        "publish": lambda: nc.publish("fork.noise", b"x" * 3000),
        "request": lambda: nc.request("fork.service", timeout=5),
        "subscribe": lambda: nc.subscribe("fork.other").unsubscribe(),
        "flush": lambda: nc.flush(timeout=5),
        "read": read,
        "async": lambda: js.publish_async(f"{stream_name}.a").result(5),
    }
    threads = [threading.Thread(target=loop, args=item) for item in calls.items()]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(counts.values()))
    yield wrong
    before = dict(counts)
    wait_until(lambda: wrong or all(counts[name] > before[name] for name in counts))
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.skipif(
    "coverage" in sys.modules and sys.modules["coverage"].Coverage.current() is not None,
    reason="a thread of the parent may hold a lock of coverage when it forks, and the child hangs",
)
def test_a_fork_amid_everything(nc: Connection, busy: list[str]) -> None:
    """Whatever threads of the parent are at when it forks, no call of the child hangs."""
    quiet = nc.subscribe("fork.quiet")
    nc.flush()

    def check() -> None:
        for call in all_calls(nc, quiet).values():
            with pytest.raises(ForkedConnectionError):
                call()
        nc.close()

    for _ in range(15):
        in_child(check)
        assert not busy
    assert nc.is_connected
    assert nc.stats["errors_received"] == 0


def test_a_connection_is_not_pickled(nc: Connection) -> None:
    """Pickling a connection is refused, with the advice to open one where it is used."""
    with pytest.raises(TypeError, match="open one in the process that uses it"):
        pickle.dumps(nc)


def test_errors_survive_pickle(nc: Connection, nats_server: NatsServer) -> None:
    """Errors that a connection raises come out of a pickle as they went in."""
    raised: list[Exception] = []
    for call in (
        lambda: nc.publish("a b"),
        lambda: nc.publish("a", b"x" * (nc.max_payload + 1)),
        lambda: nc.request("fork.nobody", timeout=5),
        lambda: nc.subscribe("fork.a").next_msg(timeout=0),
        lambda: jetstream_sync.connect("nats://127.0.0.1:1"),
        lambda: jetstream_sync.connect(nats_server.url, conect_timeout=1),
    ):
        with pytest.raises(errors.Error) as caught:
            call()
        raised.append(caught.value)
    for error in raised:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
