"""Races between threads: nothing is lost or repeated, and no thread waits for ever."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator

import pytest
from fixtures.internals import core_of, engine_of, waiting_requests
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.threads import SCALE, run_all, wait_until

import jetstream_sync
from jetstream_sync import (
    ConnectionClosedError,
    ConnectionLostError,
    ConnectionStatus,
    NoServersError,
    StaleConnectionError,
    TimeoutError,
)
from jetstream_sync.client import engine as engine_module
from jetstream_sync.client.mailbox import Mailbox, ResultSlot
from jetstream_sync.errors import Error
from jetstream_sync.net.clock import FOREVER, Deadline

# --- mailboxes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [1, 2, 8])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_each_item_goes_to_one_reader(readers, batch):
    """Each item is read once, whatever the timing of waits, timeouts and deliveries."""
    mailbox: Mailbox[int] = Mailbox()
    total = 3000
    dice = random.Random(readers * 1000 + batch)
    got: list[list[int]] = [[] for _ in range(readers)]

    def read(mine: list[int], seed: int) -> None:
        own = random.Random(seed)
        while True:
            # So short that timeouts and deliveries coincide often.
            timeout = own.choice([0, 0.00005, 0.0002, 0.001])
            try:
                mine.append(mailbox.get(Deadline(timeout)))
            except TimeoutError:
                continue
            except ConnectionClosedError:
                return

    def write() -> None:
        for first in range(0, total, batch):
            items = range(first, min(first + batch, total))
            mailbox.put(items, len(items))
            if dice.random() < 0.3:
                # Longer than the waits: the next items arrive as readers give up.
                threading.Event().wait(dice.uniform(0, 0.0005))
        mailbox.close(ConnectionClosedError("over"))

    run_all(write, *[lambda mine=mine: read(mine, len(mine)) for mine in got])
    assert sorted(itertools.chain(*got)) == list(range(total))
    for mine in got:
        assert mine == sorted(mine)
    assert not mailbox._gates


def test_a_reader_without_a_timeout_gets_its_item():
    """A reader without a timeout gets its item while other readers keep giving up."""
    mailbox: Mailbox[int] = Mailbox()
    patient: list[int] = []
    impatient: list[int] = []
    rounds = 500

    def wait_for_ever() -> None:
        while True:
            item = mailbox.get(FOREVER)
            if item < 0:
                return
            patient.append(item)

    def give_up() -> None:
        while len(patient) + len(impatient) < rounds:
            with contextlib.suppress(TimeoutError):
                item = mailbox.get(Deadline(0.0001))
                if item < 0:  # the end, which is that of the other reader
                    mailbox.put([item], 1)
                    return
                impatient.append(item)

    def write() -> None:
        for number in range(rounds):
            mailbox.put([number], 1)
            # The next item follows only when this one is read: a lost wake-up would block the test.
            wait_until(lambda: len(patient) + len(impatient) > number)  # noqa: B023
        mailbox.put([-1], 1)

    run_all(write, wait_for_ever, give_up)
    assert sorted(patient + impatient) == list(range(rounds))


def test_closing_wakes_every_reader():
    """Each reader waiting at a mailbox that is closed gets its own copy of the error."""
    mailbox: Mailbox[int] = Mailbox()
    reason = ConnectionLostError("gone")
    errors: list[Error] = []

    def read() -> None:
        with pytest.raises(ConnectionLostError, match="gone") as caught:
            mailbox.get(FOREVER)
        errors.append(caught.value)

    def close() -> None:
        wait_until(lambda: len(mailbox._gates) == 8)
        mailbox.close(reason)

    run_all(close, *[read] * 8)
    assert len({id(error) for error in errors}) == 8
    assert reason not in errors


def test_a_result_at_the_moment_of_the_timeout():
    """A result that arrives as the timeout expires is returned completely or not at all."""
    for _ in range(300):
        handoff: ResultSlot[str] = ResultSlot()
        arrived: list[bool] = []
        run_all(
            lambda: handoff.set("here"),  # noqa: B023
            lambda: arrived.append(handoff.arrived(Deadline(0.00002))),  # noqa: B023
        )
        if arrived[0]:
            assert handoff.result() == "here"
        else:
            assert handoff.arrived(Deadline(0))


# --- scripted servers ---------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listening:
        yield listening


def test_replies_at_the_moment_of_the_timeout():
    """A late reply is delivered to its own request, or to none."""

    def play(peer: ScriptedPeer) -> None:
        peer.handshake()
        dice = random.Random(1)
        while line := peer.line():
            if line.startswith(b"PUB "):
                _, _, reply, size = line.split()
                payload = peer.read(int(size) + 2)[:-2]
                threading.Event().wait(dice.choice([0, 0.0002, 0.0006]))
                peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload))

    with Listener(play) as listener, jetstream_sync.connect(listener.url) as nc:
        late = answered = 0
        dice = random.Random(2)
        for number in range(400):
            timeout = dice.choice([0.0005, 0.001, 0.05])
            try:
                assert nc.request("a", b"%d" % number, timeout).data == b"%d" % number
                answered += 1
            except TimeoutError:
                late += 1
        assert not waiting_requests(nc)
        nc.close()  # the peer answers no pings, so a drain would wait
    assert late > 10
    assert answered > 10


def test_pongs_find_their_flushes(listener):
    """A PONG that comes after its flush timed out does not complete the next flush."""
    nc = jetstream_sync.connect(listener.url)
    peer = listener.take()
    with pytest.raises(TimeoutError):
        nc.flush(timeout=0.02)
    second = threading.Thread(target=nc.flush, args=(5,))
    second.start()
    assert peer.line() == b"PING\r\n"
    assert peer.line() == b"PING\r\n"
    peer.send(b"PONG\r\n")
    second.join(0.1)
    assert second.is_alive(), "it took the pong of the first one"
    peer.send(b"PONG\r\n")
    second.join(5 * SCALE)
    assert not second.is_alive()
    nc.close()


def test_unsolicited_pongs_are_ignored(listener):
    """Extra PONGs from the server have no effect."""
    nc = jetstream_sync.connect(listener.url)
    sub = nc.subscribe("a")
    listener.take().send(b"PONG\r\n" * 5 + b"MSG a 1 1\r\nx\r\n")
    assert sub.next_msg(timeout=5).data == b"x"
    nc.close()


@pytest.mark.parametrize("refused", ["reader", "flusher"])
def test_a_thread_that_cannot_be_started(listener, monkeypatch, refused):
    """If a thread cannot be started, connecting fails and leaves neither thread nor socket."""
    real = engine_module.spawn

    def spawn(name: str, *args: object) -> threading.Thread:
        if name.startswith(refused):
            raise RuntimeError("can't start new thread")
        return real(name, *args)

    monkeypatch.setattr(engine_module, "spawn", spawn)
    with pytest.raises(RuntimeError):
        jetstream_sync.connect(listener.url)
    assert listener.take().rest() == b"", "the socket is still open"


def test_an_error_inside_closes_the_connection(listener, monkeypatch):
    """An internal error on the reader thread closes the connection, with the error as the cause."""
    told: list[Exception] = []
    closed = threading.Event()
    nc = jetstream_sync.connect(listener.url, error_cb=told.append, closed_cb=closed.set)
    sub = nc.subscribe("a")
    fault = ZeroDivisionError("a fault")

    def pong() -> None:
        raise fault

    monkeypatch.setattr(engine_of(nc).keepalive, "pong", pong)
    listener.take().send(b"PONG\r\n")
    with pytest.raises(ConnectionClosedError, match="internal error"):
        sub.next_msg(timeout=None)
    assert closed.wait(5 * SCALE)
    assert fault in told
    assert isinstance(nc.last_error, ConnectionClosedError)
    assert nc.last_error.__cause__ is fault
    nc.close()


def test_a_closed_connection_always_has_its_reason():
    """`is_closed` is never true before the reason is set."""
    wrong: list[object] = []
    for _ in range(40):
        with Listener() as listener:
            nc = jetstream_sync.connect(listener.url, allow_reconnect=False)
            peer = listener.take()

            def watch() -> None:
                give_up = time.monotonic() + 5 * SCALE
                while not nc.is_closed and time.monotonic() < give_up:  # noqa: B023
                    pass
                wrong.append(nc.last_error)  # noqa: B023

            run_all(watch, peer.close)
            nc.close()
    assert all(isinstance(error, ConnectionClosedError) for error in wrong), wrong


def test_close_at_the_moment_of_a_reconnect():
    """A close during a reconnect also closes the new link, and leaves no thread."""
    dice = random.Random(7)
    before = set(threading.enumerate())

    def left() -> list[threading.Thread]:
        new = set(threading.enumerate()) - before
        return [thread for thread in new if thread.name.startswith("nats-")]

    for _ in range(40):
        with Listener() as listener:
            nc = jetstream_sync.connect(listener.url, reconnect_time_wait=0)
            listener.take().close()
            moment = dice.uniform(0, 0.003)
            give_up = time.monotonic() + moment
            while time.monotonic() < give_up and listener.clients < 2:
                pass
            nc.close()
            assert nc.status is ConnectionStatus.CLOSED
            for number in range(1, listener.clients):
                listener.take(number).rest()  # ends when the socket is closed
            wait_until(lambda: not left())


def test_pings_while_disconnected_do_not_count_for_the_next_link(listener):
    """Pings that were due while disconnected do not make the next link stale."""
    told: list[Exception] = []
    back = threading.Event()
    interval = 0.1 * SCALE  # a busy test must answer within two of them
    nc = jetstream_sync.connect(
        listener.url,
        ping_interval=interval,
        max_outstanding_pings=1,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=30,
        error_cb=told.append,
        reconnected_cb=back.set,
    )
    # The flusher may find pings unanswered while the reader reconnects.
    port = listener.port
    listener.refuse()
    listener.take().close()
    wait_until(lambda: nc.is_reconnecting)
    assert not back.wait(4 * interval)
    returned = Listener(port=port)
    assert back.wait(5 * SCALE)
    # The new server answers the pings, then closes, which is the expected error.
    with returned:
        peer = returned.take()
        for _ in range(3):
            line = b""
            while line != b"PING\r\n":
                line = peer.line()
                assert line, "the client has closed the link"
            peer.send(b"PONG\r\n")
    wait_until(lambda: nc.is_closed and told, 10)
    (error,) = told
    assert isinstance(error, NoServersError)
    assert isinstance(error.__cause__, ConnectionClosedError)
    assert not isinstance(error.__cause__, StaleConnectionError)
    nc.close()


@pytest.mark.parametrize("limit", [1, 5, 50])
def test_a_limit_set_while_its_messages_arrive(listener, limit):
    """A limit set while messages arrive ends the subscription, whichever thread is faster."""
    nc = jetstream_sync.connect(listener.url)
    peer = listener.take()
    for sid in range(1, 60):
        sub = nc.subscribe("a")
        assert sub.sid == sid
        run_all(
            lambda: sub.unsubscribe(limit),  # noqa: B023
            lambda: peer.send(b"MSG a %d 1\r\nx\r\n" % sid * 60),  # noqa: B023
        )
        got = len(list(sub))
        assert got == limit, sid
        assert sid not in core_of(nc).table.by_sid
    nc.close()


def test_a_limit_counts_the_message_that_is_being_passed(listener):
    """The message that the reader is passing counts for the limit, and is read."""
    nc = jetstream_sync.connect(listener.url)
    sub = nc.subscribe("a")
    passing, resume = threading.Event(), threading.Event()
    enqueue = sub._enqueue

    def enqueue_later(deliveries: object) -> None:
        passing.set()
        resume.wait(10 * SCALE)
        enqueue(deliveries)

    sub._enqueue = enqueue_later
    listener.take().send(b"MSG a 1 1\r\nx\r\n" * 3)
    assert passing.wait(10 * SCALE)
    sub.unsubscribe(1)
    later = threading.Timer(0.1, resume.set)
    later.start()
    assert [message.data for message in sub] == [b"x"]
    later.join()
    nc.close()


# --- all operations at once ---------------------------------------------------------------------


def test_eight_threads_do_everything(nc):
    """Threads can publish, subscribe, request and flush on one connection at the same time."""
    nc.subscribe("hammer.echo", cb=lambda msg: msg.respond(msg.data))
    everything = nc.subscribe("hammer.all.>", pending_msgs_limit=0)
    nc.flush()
    rounds = 60

    def hammer(number: int) -> None:
        dice = random.Random(number)
        for turn in range(rounds):
            mine = b"%d.%d" % (number, turn)
            nc.publish(f"hammer.all.{number}", mine + b" " * dice.choice([0, 10, 20_000]))
            assert nc.request("hammer.echo", mine, timeout=10).data == mine
            with nc.subscribe(f"hammer.own.{number}") as sub:
                nc.publish(f"hammer.own.{number}", mine)
                assert sub.next_msg(timeout=10).data == mine
            if dice.random() < 0.3:
                nc.flush(timeout=10)

    run_all(*[lambda number=number: hammer(number) for number in range(8)])
    nc.flush()
    seen: dict[bytes, list[int]] = {}
    while everything.pending_msgs:
        thread, _, turn = everything.next_msg(timeout=0).data.strip().partition(b".")
        seen.setdefault(thread, []).append(int(turn))
    assert len(seen) == 8
    assert all(turns == list(range(rounds)) for turns in seen.values())
    assert nc.stats["errors_received"] == 0
