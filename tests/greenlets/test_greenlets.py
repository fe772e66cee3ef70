"""Under gevent a call of the client that waits lets all other greenlets run."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import gevent
import gevent.monkey
import pytest
from fixtures.internals import direct_of, waiting_requests
from fixtures.proxy import Listener
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import NoRespondersError, TimeoutError
from jetstream_sync.server import NatsServer


@contextlib.contextmanager
def others_run() -> Iterator[None]:
    """Check that another greenlet runs all the while, however long it may compute in between."""
    ticks = [time.process_time()]

    def tick() -> None:
        while True:
            gevent.sleep(0.001)
            ticks.append(time.process_time())

    ticker = gevent.spawn(tick)
    try:
        yield
    finally:
        ticker.kill()
    # CPU time, since other processes may take the machine's. A blocked thread uses none: then
    # there are few ticks.
    pauses = [after - before for before, after in itertools.pairwise(ticks)]
    assert len(ticks) > 20
    assert max(pauses) < 0.1 * SCALE, f"the others stood still for {max(pauses):.3f} s"


def test_this_process_is_patched():
    """What these tests mean depends on it."""
    assert all(gevent.monkey.is_module_patched(name) for name in ("socket", "threading", "select"))


def test_only_the_reader_reads(nc):
    """A greenlet that makes request after request leaves the socket to the reader."""
    other = nc.subscribe("answering", cb=lambda msg: msg.respond(b"x"))
    nc.flush()
    with jetstream_sync.connect(nc.connected_url) as asking:
        for _ in range(100):
            asking.request("answering", timeout=5 * SCALE)
        assert direct_of(asking).count == 0
    other.unsubscribe()


def waits(nc: Connection, js: JetStream, name: str) -> dict[str, Callable[[], object]]:
    stream = js.create_stream(name=name, subjects=[name])
    consumer = stream.create_consumer(durable_name="C")
    sub = nc.subscribe(f"{name}.core")
    nc.subscribe(f"{name}.slow", cb=lambda _: None)

    def iterate() -> None:
        with consumer.messages() as messages:
            messages.next(0.3)

    return {
        "next_msg": lambda: sub.next_msg(0.3),
        "request": lambda: nc.request(f"{name}.slow", timeout=0.3),
        "fetch": lambda: consumer.fetch(10, timeout=0.3),
        "next": lambda: consumer.next(timeout=0.3),
        "iterator": iterate,
        "ordered": lambda: stream.ordered_consumer().next(0.3),
        "wait_closed": lambda: consumer.consume(lambda _: None).wait_closed(0.3),
    }


WAITS = ["next_msg", "request", "fetch", "next", "iterator", "ordered", "wait_closed"]


@pytest.mark.parametrize("call", WAITS)
def test_a_waiting_call_lets_other_greenlets_run(nc, js, stream_name, call):
    """Each call that waits for something that does not come gives way until its time is up."""
    wait = waits(nc, js, stream_name)[call]
    began = time.monotonic()
    with others_run(), contextlib.suppress(TimeoutError):
        wait()
    assert 0.25 < time.monotonic() - began < 2 * SCALE


def test_a_full_socket_blocks_only_publishers():
    """While a publisher waits for a server that takes nothing, other greenlets run, and get replies."""
    with Listener() as listener, jetstream_sync.connect(listener.url) as nc:
        listener.take()
        publisher = gevent.spawn(lambda: [nc.publish("big", b"x" * 500_000) for _ in range(200)])
        wait_until(lambda: nc.stats["out_msgs"] > 2)
        with others_run(), pytest.raises(TimeoutError):
            nc.flush(0.3)
        assert not publisher.ready()
        nc.close()
        publisher.join(5)
        assert isinstance(publisher.exception, jetstream_sync.errors.ConnectionClosedError)


def test_a_flood_of_messages_blocks_no_other_greenlet(nats_server, nc):
    """A server that always has more to send does not keep the one greenlet that reads running."""
    program = """
        import sys
        import jetstream_sync
        with jetstream_sync.connect(sys.argv[1]) as nc:
            for _ in range(200_000):
                nc.publish("greenlets.flood", b"x" * 100)
        """
    sub = nc.subscribe("greenlets.flood")
    nc.flush()
    publisher = gevent.spawn(run, program, nats_server.url)
    with others_run():
        for _ in range(200_000):
            sub.next_msg(20 * SCALE)
    publisher.get()


def test_reconnect_attempts_block_no_other_greenlet():
    """Failing attempts to reconnect leave other greenlets running."""
    server = NatsServer()
    server.start()
    with jetstream_sync.connect(server.url, reconnect_time_wait=0.01, error_cb=id) as nc:
        server.stop()
        with others_run():
            wait_until(lambda: nc.is_reconnecting)
            gevent.sleep(0.3)
        nc.close()


def test_a_hundred_greenlets_share_a_connection(nc, js, stream_name):
    """Requests, publishes and acks of all of them go through one link, and none is mixed up."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"])
    consumer = stream.create_consumer(durable_name="C")
    nc.subscribe("greenlets.echo", cb=lambda msg: msg.respond(msg.data))
    got: list[bytes] = []

    def work(number: int) -> None:
        for turn in range(5):
            text = b"%d.%d" % (number, turn)
            assert nc.request("greenlets.echo", text, 20).data == text
            assert js.publish(f"{stream_name}.{number}", text, timeout=20).stream == stream_name
        for msg in consumer.fetch(5, timeout=20):
            got.append(msg.data)
            msg.ack()

    workers = [gevent.spawn(work, number) for number in range(100)]
    gevent.joinall(workers, timeout=40, raise_error=True)
    assert all(worker.successful() for worker in workers)
    wait_until(lambda: len(got) == 500)
    assert set(got) == {b"%d.%d" % (number, turn) for number in range(100) for turn in range(5)}
    wait_until(lambda: consumer.info().num_ack_pending == 0)


def test_killed_greenlets_leave_the_connection_alone(nc):
    """A kill or a `gevent.Timeout` in the middle of a call affects no other greenlet."""
    nc.subscribe("greenlets.echo", cb=lambda msg: msg.respond(msg.data))
    nc.subscribe("greenlets.silent", cb=lambda _: None)
    nc.flush()

    def ask(subject: str) -> None:
        while True:
            nc.request(subject, b"x" * 100, timeout=None)

    victims = [gevent.spawn(ask, f"greenlets.{kind}") for kind in ("echo", "silent") * 20]
    for number, victim in enumerate(victims):
        gevent.sleep(0.0005 * (number % 7))
        victim.kill()
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        nc.request("greenlets.silent", timeout=None)
    sub = nc.subscribe("greenlets.more")
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        sub.next_msg(None)
    assert nc.request("greenlets.echo", b"still", 5).data == b"still"
    nc.publish("greenlets.more", b"here")
    assert sub.next_msg(5).data == b"here"
    with pytest.raises(NoRespondersError):
        nc.request("greenlets.unserved", timeout=5)
    assert not waiting_requests(nc)


def run(program: str, *args: str) -> str:
    """Run a program in a process of its own, which is not patched, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        capture_output=True,
        text=True,
        timeout=30 * SCALE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_patching_after_the_import_is_early_enough(nats_server):
    """A preloading server imports the package before its workers patch: what counts is the connect."""
    said = run(
        """
        import sys
        import jetstream_sync
        from gevent import monkey
        monkey.patch_all()
        import gevent
        ticks = []
        def tick():
            while True:
                gevent.sleep(0.001)
                ticks.append(1)
        gevent.spawn(tick)
        with jetstream_sync.connect(sys.argv[1]) as nc:
            sub = nc.subscribe("late", cb=lambda msg: msg.respond(msg.data))
            assert nc.request("late", b"x", 5).data == b"x"
            try:
                nc.subscribe("late.none").next_msg(0.3)
            except jetstream_sync.TimeoutError:
                print(len(ticks))
        """,
        nats_server.url,
    )
    assert int(said) > 20


def test_a_ctrl_c_in_a_callback_reaches_the_main_greenlet(nats_server):
    """The signal may arrive in any greenlet; the subscription goes on, and the program is interrupted."""
    said = run(
        """
        import os
        import signal
        import sys
        from gevent import monkey
        monkey.patch_all()
        import threading
        import jetstream_sync

        def interrupt(msg):
            os.kill(os.getpid(), signal.SIGINT)

        with jetstream_sync.connect(sys.argv[1], error_cb=lambda _: None) as nc:
            sub = nc.subscribe("ctrl-c", cb=interrupt)
            nc.publish("ctrl-c")
            try:
                threading.Event().wait(10)
            except KeyboardInterrupt:
                print("interrupted", sub.is_valid)
        """,
        nats_server.url,
    )
    assert said == "interrupted True\n"


@pytest.mark.parametrize("part", ["socket", "thread", "select"])
def test_half_a_patch_is_refused(part):
    """Where gevent has left something out, connecting says so at once instead of hanging."""
    said = run(
        """
        import sys
        from gevent import monkey
        monkey.patch_all(**{sys.argv[1]: False})
        import jetstream_sync
        try:
            jetstream_sync.connect("nats://127.0.0.1:1")
        except jetstream_sync.Error as error:
            print(type(error).__name__, error)
        """,
        part,
    )
    assert said.startswith("Error gevent has patched ")
    assert f"but not {part}" in said


def test_a_forked_child_has_no_connection_and_can_make_one(nats_server):
    """The greenlets of the parent run in the child, too, and must not touch the parent's link."""
    said = run(
        """
        import os, sys
        from gevent import monkey
        monkey.patch_all()
        import gevent
        import jetstream_sync
        nc = jetstream_sync.connect(sys.argv[1])
        nc.subscribe("forked", cb=lambda msg: msg.respond(b"parent"))
        nc.flush()
        pid = os.fork()
        if pid == 0:
            # Greenlets of the parent end here, and `threading` is surprised that it does not know them.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            status = 1
            try:
                try:
                    nc.publish("a")
                except jetstream_sync.errors.ForkedConnectionError:
                    with jetstream_sync.connect(sys.argv[1]) as own:
                        gevent.sleep(0.05)
                        if own.request("forked", b"", 5).data == b"parent":
                            status = 0
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(nc.request("forked", b"", 5).data, nc.stats["reconnects"])
        nc.close()
        """,
        nats_server.url,
    )
    assert said.split() == ["0", "b'parent'", "0"]
