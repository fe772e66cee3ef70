"""`publish_async`: futures, the window, and that every future settles."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from fixtures.internals import core_of, open_subscriptions
from fixtures.threads import SCALE, between, wait_until

import jetstream_sync
from jetstream_sync import JetStream, PubAck, PubAckFuture, errors
from jetstream_sync.client.mailbox import MessageReceiver
from jetstream_sync.jetstream import publish as publishing
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer


@pytest.fixture
def alone(fresh_server: NatsServer) -> Iterator[JetStream]:
    """JetStream on a server of this test alone, with a stream for the subject s."""
    nc = jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.05)
    js = nc.jetstream()
    js.create_stream(name="S", subjects=["s"])
    yield js
    nc.close()


def pause(server: NatsServer, js: JetStream) -> None:
    """Suspend a server, and wait until it does not answer any more."""
    server.pause()

    def silent() -> bool:
        try:
            core_of(js).flush(Deadline(0.05))
        except jetstream_sync.TimeoutError:
            return True
        return False

    wait_until(silent)


@pytest.fixture
def paused(alone: JetStream, fresh_server: NatsServer) -> Iterator[JetStream]:
    """The same context with a suspended server."""
    pause(fresh_server, alone)
    yield alone
    fresh_server.resume()


# --- results ------------------------------------------------------------------------------------


def test_a_future_has_the_ack(js, stream):
    """Each future's result is the acknowledgement of its own message, in publishing order."""
    futures = [js.publish_async(f"{stream.name}.{n}", b"%d" % n) for n in range(1000)]
    acks = [future.result(5) for future in futures]
    assert [ack.seq for ack in acks] == list(range(1, 1001))
    assert all(type(ack) is PubAck and ack.stream == stream.name for ack in acks)
    assert stream.get_msg(1000).data == b"999"


def test_a_refusal_is_the_future_s_error(js, stream):
    """A refused message has its typed error in the future; others are stored."""
    good = js.publish_async(f"{stream.name}.a", expected_last_sequence=0)
    bad = js.publish_async(f"{stream.name}.a", expected_last_sequence=7)
    more = js.publish_async(f"{stream.name}.a", msg_id="m")
    again = js.publish_async(f"{stream.name}.a", msg_id="m")
    assert good.result(5).seq == 1
    with pytest.raises(errors.WrongLastSequenceError):
        bad.result(5)
    assert isinstance(bad.exception(), errors.WrongLastSequenceError)
    assert more.result(5).seq == 2
    assert again.result(5).duplicate


def test_an_invalid_message_is_an_error_at_once(js, stream, nc):
    """Invalid subjects, options and sizes raise in the call, and nothing is pending."""
    with pytest.raises(errors.BadSubjectError):
        js.publish_async("a b")
    with pytest.raises(errors.InvalidOptionError):
        js.publish_async(f"{stream.name}.a", expected_last_sequence=-1)
    with pytest.raises(errors.InvalidOptionError):
        js.publish_async(f"{stream.name}.a", timeout="soon")
    with pytest.raises(errors.MaxPayloadError):
        js.publish_async(f"{stream.name}.a", bytes(nc.max_payload + 1))
    assert js.publish_async_pending == 0
    assert js.publish_async(f"{stream.name}.a").result(5).seq == 1


def test_a_slow_callback_delays_no_other_future(js, stream):
    """While a callback runs, futures without a callback are settled, and the window has room."""
    held = threading.Event()
    threads: list[str] = []

    def slow(_: PubAckFuture) -> None:
        threads.append(threading.current_thread().name)
        held.wait(30)

    js.publish_async(f"{stream.name}.a").add_done_callback(slow)
    wait_until(lambda: threads)
    try:
        futures = [js.publish_async(f"{stream.name}.a", timeout=10) for _ in range(5_000)]
        wait_until(lambda: all(future.done() for future in futures))
        js.publish_async_completed(10)
        assert [future.result(0).seq for future in futures] == list(range(2, 5_002))
    finally:
        held.set()
    assert threads[0].startswith("nats-acks")


def test_a_callback_that_raises_affects_nothing_else(js, stream, caplog):
    """An error of a callback is reported, and the following futures settle."""

    def broken(_: PubAckFuture) -> None:
        raise RuntimeError("a user's mistake")

    futures = [js.publish_async(f"{stream.name}.a") for _ in range(20)]
    for future in futures:
        future.add_done_callback(broken)
    assert [future.result(5).seq for future in futures] == list(range(1, 21))
    assert js.publish_async(f"{stream.name}.a").result(5).seq == 21
    wait_until(lambda: caplog.text.count("RuntimeError: a user's mistake") >= 20)


def test_a_callback_may_publish_though_the_window_is_full(js, stream):
    """A callback that publishes does not wait for room in the window that it would free itself."""
    js._publisher._window = 2
    chained: list[PubAckFuture] = []

    def publish_more(_: PubAckFuture) -> None:
        chained.extend(js.publish_async(f"{stream.name}.b", timeout=5) for _ in range(3))

    with between(0, 3):
        for _ in range(10):
            js.publish_async(f"{stream.name}.a").add_done_callback(publish_more)
        wait_until(lambda: len(chained) == 30)
        assert all(future.result(5).seq for future in chained)
    assert stream.info().state.messages == 40


# --- the window ---------------------------------------------------------------------------------


def test_the_window_is_an_option(nats_server):
    """Two contexts of one connection have their own windows."""
    with jetstream_sync.connect(nats_server.url) as nc:
        js = nc.jetstream(publish_async_max_pending=2)
        _kept = nc.subscribe("window.silent")  # accepts requests, and does not answer
        for _ in range(2):
            js.publish_async("window.silent", timeout=5)
        with pytest.raises(errors.TooManyStalledMsgsError, match="2"):
            js.publish_async("window.silent", timeout=0.1)
        nc.jetstream().publish_async("window.silent", timeout=0.1)
        nc.close()
        for wrong in (0, -1, True, 1.5, "2"):
            with pytest.raises(errors.InvalidOptionError, match="publish_async_max_pending"):
                nc.jetstream(publish_async_max_pending=wrong)


def test_a_full_window_blocks_and_room_frees(alone, fresh_server):
    """A publisher waits while the window is full, and continues when acknowledgements arrive."""
    alone._publisher._window = 10
    pause(fresh_server, alone)
    futures = [alone.publish_async("s", timeout=None) for _ in range(10)]
    assert alone.publish_async_pending == 10
    started = threading.Event()

    def eleventh() -> PubAckFuture:
        started.set()
        return alone.publish_async("s", timeout=30)

    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(eleventh)
        assert started.wait(5)
        with pytest.raises(concurrent.futures.TimeoutError):
            blocked.result(0.2)
        assert alone.publish_async_pending == 10
        fresh_server.resume()
        assert blocked.result(5).result(5).seq == 11
    assert [future.result(5).seq for future in futures] == list(range(1, 11))


def test_the_wait_at_a_full_window_has_its_own_limit(alone, fresh_server):
    """With ``publish_async_stall_wait`` the timeout of the messages does not count."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream(timeout=None, publish_async_max_pending=2, publish_async_stall_wait=0.2)
        pause(fresh_server, alone)
        futures = [js.publish_async("s") for _ in range(2)]
        with between(0.2, 0.6), pytest.raises(errors.TooManyStalledMsgsError, match="2"):
            js.publish_async("s")
        fresh_server.resume()
        assert all(future.result(5) for future in futures)


def test_a_full_window_without_a_connection_names_the_outage(fresh_server):
    """The error of a stalled publisher tells whether the server is slow or disconnected."""
    # After a failed attempt to reconnect, all messages of the lost connection have failed.
    attempted = threading.Event()
    options: dict[str, Any] = {
        "reconnect_time_wait": 0.05,
        "reconnect_error_cb": lambda _: attempted.set(),
    }
    with closing(jetstream_sync.connect(fresh_server.url, **options)) as nc:
        js = nc.jetstream(publish_async_max_pending=1)
        fresh_server.stop()
        assert attempted.wait(10 * SCALE)
        _kept = js.publish_async("s")
        with pytest.raises(errors.TooManyStalledMsgsError, match="no connection to a server for"):
            js.publish_async("s", timeout=0.1)


def test_a_small_window_passes_many_messages(js, stream):
    """Publishers in eight threads share a small window: all messages pass, and it stays bounded."""
    js._publisher._window = 16
    highest = 0

    def publish(_: int) -> None:
        nonlocal highest
        for _ in range(500):
            js.publish_async(f"{stream.name}.a")
            highest = max(highest, js.publish_async_pending)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    js.publish_async_completed(10)
    assert stream.info().state.messages == 4000
    assert highest < 16 + 8  # each thread may have found the last place free


# --- waiting for all futures ----------------------------------------------------------------------


def test_completed_returns_when_nothing_is_pending(js, stream):
    """``publish_async_completed`` returns at once if nothing is pending."""
    with between(0, 0.2):
        js.publish_async_completed(0)
    futures = [js.publish_async(f"{stream.name}.a") for _ in range(2000)]
    js.publish_async_completed(10)
    assert all(future.done() for future in futures)
    assert js.publish_async_pending == 0


def test_completed_times_out(paused):
    """It raises a `TimeoutError` with the number of pending messages."""
    futures = [paused.publish_async("s") for _ in range(3)]
    with between(0.1, 0.4), pytest.raises(jetstream_sync.TimeoutError, match="3"):
        paused.publish_async_completed(0.1)
    assert not any(future.done() for future in futures)


# --- every future settles -----------------------------------------------------------------------


def test_each_future_has_retries_of_its_own(js, nc, stream_name):
    """``retry_attempts`` and ``retry_wait`` are per message."""
    sent = nc.stats["out_msgs"]
    slow = js.publish_async(stream_name, retry_attempts=1, retry_wait=1)
    none = js.publish_async(stream_name, retry_attempts=0)
    often = js.publish_async(stream_name, retry_attempts=5, retry_wait=0.05)
    with between(0, 0.2 + 0.5), pytest.raises(errors.NoStreamResponseError):
        none.result(5)
    with between(0, 0.9), pytest.raises(errors.NoStreamResponseError):
        often.result(5)
    assert not slow.done()
    with pytest.raises(errors.NoStreamResponseError):
        slow.result(5)
    assert nc.stats["out_msgs"] == sent + 2 + 1 + 6


def test_other_futures_settle_while_the_reason_of_one_is_asked(js, nc, stream_name, monkeypatch):
    """The server that says why there is no response is silent, and callbacks of other futures are called."""
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._NAMES_TIMEOUT_S", 2.0)
    js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    with nc.subscribe("$JS.FAKE.API.>") as silent:
        far = nc.jetstream(domain="FAKE")
        lost = [far.publish_async(f"{stream_name}.{at}", retry_attempts=0) for at in "aab"]
        assert silent.next_msg(5 * SCALE).subject == "$JS.FAKE.API.STREAM.NAMES"
        called = threading.Event()
        far.publish_async(stream_name).add_done_callback(lambda _: called.set())
        assert called.wait(1)
        assert not any(future.done() for future in lost)
        with pytest.raises(jetstream_sync.TimeoutError):
            far.publish_async_completed(0.1)
        for future in lost:
            with pytest.raises(
                errors.NoStreamResponseError, match="'.*[.][ab]': .*may have no leader"
            ):
                future.result(5 * SCALE)
        far.publish_async_completed(1)
        # The second subject has the reason of the first one.
        asked = [silent.next_msg(1).data for _ in range(silent.pending_msgs)]
        assert [data for data in asked if b".b" in data] == []


def test_a_message_that_no_stream_has_stored_stays_so(nc, stream_name, monkeypatch):
    """Its time may be up, or its link lost, while the reason is asked: the error does not say that it may be stored."""
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._NAMES_TIMEOUT_S", 5.0 * SCALE)
    with nc.subscribe("$JS.FAKE.API.>") as silent:
        far = nc.jetstream(domain="FAKE")
        late = far.publish_async(f"{stream_name}.a", timeout=0.5, retry_attempts=0)
        silent.next_msg(5 * SCALE)
        with pytest.raises(errors.NoStreamResponseError):
            late.result(2 * SCALE)
        lost = far.publish_async(f"{stream_name}.a", retry_attempts=0)
        wait_until(lambda: nc.stats["in_msgs"] > 0 and far._publisher._acks._not_stored)
        nc.reconnect()
        with pytest.raises(errors.NoStreamResponseError):
            lost.result(2 * SCALE)


def test_no_thread_asks_where_there_is_no_reason(js, stream_name, monkeypatch):
    """A single server is not asked why a message was not stored."""
    names = []
    spawn = publishing.spawn
    monkeypatch.setattr(
        publishing, "spawn", lambda name, *rest: names.append(name) or spawn(name, *rest)
    )
    for _ in range(3):
        with pytest.raises(errors.NoStreamResponseError):
            js.publish_async(stream_name, retry_attempts=0).result(5)
    assert [name for name in names if name.startswith("reasons")] == []


def test_a_stream_that_comes_during_the_retries_gets_the_message_once(js, nc, stream_name):
    """A stream created meanwhile gets the repeated message, and the future its ack."""
    sent = nc.stats["out_msgs"]
    future = js.publish_async(stream_name, b"late")
    wait_until(lambda: nc.stats["out_msgs"] > sent)
    stream = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    assert future.result(5).seq == 1
    assert stream.info().state.messages == 1


def test_completed_waits_for_messages_that_are_tried_again(js, stream_name):
    """A message between two attempts counts as pending."""
    futures = [js.publish_async(stream_name) for _ in range(50)]
    js.publish_async_completed(10)
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("idle", [False, True], ids=["first", "after a pause"])
def test_a_future_fails_when_its_time_is_up(alone, fresh_server, idle):
    """Without a reply the future fails after its timeout, also if the publisher is idle."""
    alone.publish_async("s").result(5)
    if idle:
        wait_until(lambda: alone._publisher._acks.thread is None, 10)
    pause(fresh_server, alone)
    try:
        future = alone.publish_async("s", timeout=0.2)
        patient = alone.publish_async("s", timeout=60)
        with between(0.1, 1.5), pytest.raises(jetstream_sync.TimeoutError):
            future.result(5)
        assert not patient.done()
    finally:
        fresh_server.resume()
    assert patient.result(5).seq == 3


def test_an_idle_context_has_neither_a_thread_nor_an_inbox(alone, fresh_server):
    """A program may make a context for each request; the next message starts both again."""
    with jetstream_sync.connect(fresh_server.url, name="many") as nc:
        contexts = [nc.jetstream() for _ in range(5)]
        for _ in range(2):
            for js in contexts:
                js.publish_async("s").result(5)
            wait_until(lambda: "nats-acks-many" not in {t.name for t in threading.enumerate()}, 10)
            assert open_subscriptions(nc) == []
    assert alone.get_stream("S").info().state.messages == 10


def test_a_connection_that_was_lost_before_fails_no_message(js, nc, stream):
    """The loss may be reported while the thread of an idle context ends; the next message is stored."""

    class Slow(MessageReceiver):
        """Delays the report to the context, which has subscribed later."""

        def on_connection_change(self, *, connected: bool) -> None:
            if not connected:
                wait_until(lambda: js._publisher._acks.thread is None, 10)

    core_of(nc).table.add(f"{stream.name}.slow", "", Slow())
    js.publish_async(f"{stream.name}.a").result(5)
    nc.reconnect()
    wait_until(lambda: nc.stats["reconnects"], 20)
    assert js.publish_async(f"{stream.name}.a").result(5).seq == 2
    assert stream.info().state.messages == 2


@pytest.mark.parametrize("how", ["close", "drain"])
def test_futures_fail_when_the_connection_ends(fresh_server, how):
    """Closing the connection fails pending futures at once, and refuses later messages."""
    nc = jetstream_sync.connect(fresh_server.url, drain_timeout=0.5)
    js = nc.jetstream()
    js.create_stream(name="S", subjects=["s"], storage="memory")
    js.publish_async("s").result(5)
    pause(fresh_server, js)
    futures = [js.publish_async("s", timeout=None) for _ in range(50)]
    with ThreadPoolExecutor(1) as pool:
        completed = pool.submit(js.publish_async_completed, 10)
        ends: dict[str, Callable[[], Any]] = {"close": nc.close, "drain": nc.drain}
        with between(0, 3):
            if how == "close":
                ends[how]()
            else:
                with pytest.raises(jetstream_sync.TimeoutError):
                    ends[how]()
        completed.result(5)
    fresh_server.resume()
    for future in futures:
        error = future.exception(1)
        assert isinstance(error, errors.ConnectionClosedError)
        assert "may be stored" in str(error)
    with pytest.raises(errors.ConnectionClosedError):
        js.publish_async("s")


def test_a_drained_connection_has_its_acks(nats_server, stream_name):
    """A drain waits for pending acknowledgements, and then closes."""
    nc = jetstream_sync.connect(nats_server.url)
    js = nc.jetstream()
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], storage="memory")
    futures = [js.publish_async(f"{stream_name}.a", b"x") for _ in range(3000)]
    nc.drain()
    assert [future.result(0).seq for future in futures] == list(range(1, 3001))
    with jetstream_sync.connect(nats_server.url) as other:
        other.jetstream().delete_stream(stream_name)
