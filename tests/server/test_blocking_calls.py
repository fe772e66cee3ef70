"""Every public call ends at its timeout, whatever it sends, when the server is silent."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import blocking_calls
import pytest
from blocking_calls import CALLS, KINDS
from fixtures.faults import FaultProxy, Toward
from fixtures.internals import api_of, core_of, set_timeout
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Error, ObjectMeta
from jetstream_sync.errors import TimeoutError
from jetstream_sync.server import NatsServer

ROOT = Path(__file__).parents[1]
#: Maximum delay of a call after its timeout, in seconds.
MARGIN_S = 0.3


class Objects:
    """The objects whose calls are measured, made while the server replies."""

    def __init__(self, url: str, path: Path) -> None:
        self.nc = jetstream_sync.connect(url)
        self.other_nc = jetstream_sync.connect(url)
        self.contexts = [self.nc.jetstream(timeout=10 * SCALE) for _ in range(3)]
        self.js, self.js2, self.js3 = self.contexts
        js = self.js
        self.path = path
        self.stream = js.create_stream(
            name="S",
            subjects=["s.*"],
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
            allow_msg_schedules=True,
        )
        js.create_stream(name="X", subjects=["x"])
        js.create_stream(name="COUNTS", subjects=["c.*"], allow_msg_counter=True, allow_direct=True)
        self.counters = js.counters("COUNTS")
        self.counters.add("c.a", 2)
        for _ in range(3):
            js.publish("s.a", b"x" * 1000)
        self.consumer = self.stream.create_consumer(durable_name="C", filter_subject="s.a")
        self.message = self.consumer.next(5)
        empty = self.stream.create_consumer(durable_name="E", filter_subject="s.none")
        self.consumer = empty
        self.stream.create_push_consumer(
            durable_name="P", deliver_subject="d", filter_subject="s.n"
        )
        self.messages, self.messages2 = empty.messages(), empty.messages()
        self.handle, self.handle2 = empty.consume(print), empty.consume(print)
        self.ordered, self.ordered2, self.ordered3, self.ordered4 = (
            self.stream.ordered_consumer(filter_subjects=["s.none"]) for _ in range(4)
        )
        self.ordered.fetch_no_wait(1)
        self.ordered2.fetch_no_wait(1)
        self.ordered_messages = self.stream.ordered_consumer(filter_subjects=["s.none"]).messages()
        self.ordered_messages2 = self.stream.ordered_consumer(filter_subjects=["s.none"]).messages()
        self.sub, self.sub2 = self.nc.subscribe("t"), self.nc.subscribe("t", cb=print)
        self.psub, self.psub2, self.psub3 = (
            js.pull_subscribe("s.none", durable) for durable in ("D1", "D2", "D3")
        )
        self.push, self.push2, self.push3 = (js.subscribe("s.none", cb=None) for _ in range(3))
        self.ordered_sub, self.ordered_sub2, self.ordered_sub3 = (
            js.subscribe("s.none", ordered_consumer=True) for _ in range(3)
        )
        self.service = self.nc.add_service("one", "1.0.0")
        self.service.add_endpoint("e", lambda request: request.respond(b""))
        self.service2 = self.nc.add_service("two", "1.0.0")
        self.batch = js.batch()
        self.batch.add("s.a")
        self.started_fast = self.js3.fast_publish()
        self.started_fast.add("s.f")
        self.groups = js.consumer_groups
        self.group = self.groups.create_elastic("S", "e", 2, {"s.*": [1]})
        self.group.add_members("a")
        self.kv = js.create_key_value(bucket="b", history=3)
        self.kv.put("k", b"v")
        lock = js.create_key_value(bucket="locks", limit_marker_ttl=60)
        self.lock, self.held_lock, self.held_lock2 = (
            lock.lock(name, ttl=60) for name in ("a", "h", "i")
        )
        self.held_lock.acquire(5)
        self.held_lock2.acquire(5)
        self.watch, self.watch2, self.watch3, self.watch4 = (
            self.kv.watch(updates_only=True) for _ in range(4)
        )
        self.watch_handle, self.watch_handle2 = (self.kv.watch(cb=print) for _ in range(2))
        self.replica = self.kv.replica()
        self.replica.wait_current(10 * SCALE)
        self.store = js.create_object_store(bucket="o")
        self.info = self.store.put("f", b"x" * 1000)
        self.meta = ObjectMeta(name="h")
        self.snapshot_info = self.stream.snapshot().info

    def set_timeout(self, timeout: float) -> None:
        """Set the timeout of the contexts, which was long while the objects were made."""
        for js in self.contexts:
            set_timeout(js, timeout)
        self.started_fast._timeout = min(timeout, self.started_fast._timeout)

    def fast(self, timeout: float) -> Any:
        """Return a fast publish that was created while the server replied."""
        api_of(self.js3).caches.levels.setdefault("$JS.API", (core_of(self.js3).reconnects, 4))
        return self.js3.fast_publish(timeout=timeout)

    def writer(self, timeout: float) -> Any:
        """Return a writer of an object with data."""
        writer = self.store.open("w", "wb", timeout=timeout)
        writer.write(b"x" * 300_000)
        return writer


@contextmanager
def silent_objects(server: NatsServer, path: Path, timeout: float) -> Iterator[Objects]:
    """Yield the objects of a server that does not reply any more."""
    on = Objects(server.url, path)
    try:
        on.set_timeout(timeout)
        with paused(server):
            yield on
            on.other_nc.close()
            with suppress(Error):
                on.held_lock2.release()  # ends its thread
    finally:
        server.kill()
        on.nc.close()


def measure(on: Objects, name: str, timeout: float) -> float:
    """Return the seconds that a call takes."""
    run = CALLS[name].run
    assert run is not None
    start = time.monotonic()
    with suppress(Error):
        run(on, timeout)
    return time.monotonic() - start


def late_calls(server: NatsServer, path: Path, timeout: float) -> dict[str, float]:
    """Return the calls that take longer than their timeout, with their seconds."""
    limit = timeout + MARGIN_S * SCALE
    late = {}
    with silent_objects(server, path, timeout) as on, ThreadPoolExecutor(12) as pool:
        for names, of_context in calls_by_timeout():
            # A timeout of the call holds for all requests inside, whatever that of the context is.
            on.set_timeout(timeout if of_context else 5.0)
            taken = list(pool.map(lambda name: measure(on, name, timeout), names))
            # A thread that waits for the processor is not late: each late call is repeated alone.
            late.update(
                (name, again)
                for name, seconds in zip(names, taken, strict=True)
                if seconds > limit and (again := measure(on, name, timeout)) > limit
            )
    return late


def calls_by_timeout() -> Iterator[tuple[list[str], bool]]:
    """Yield the names of the calls with the timeout of their context, and of those with their own."""
    runs = {name: call.run for name, call in CALLS.items() if call.run is not None}
    for parameter in ("_", "t"):
        names = [
            name
            for name, run in runs.items()
            if list(inspect.signature(run).parameters)[1] == parameter
        ]
        yield names, parameter == "_"


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("timeout", [0.1, pytest.param(1.0, marks=pytest.mark.full)])
def test_every_call_ends_at_its_timeout_when_the_server_is_silent(fresh_server, tmp_path, timeout):
    """No call of the list takes 0.3 seconds more than its timeout, with a server that is stopped."""
    assert late_calls(fresh_server, tmp_path / "f", timeout) == {}


#: Calls whose timeout is for each chunk, as they document.
_BY_CHUNK = {
    *(f"ObjectStore.{name}" for name in ("put", "put_file", "open", "get_bytes", "get_file")),
    "ObjectWriter.close",
}


@pytest.mark.server(">=2.14")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the calls make readers that are dropped
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("delay", [0.35, pytest.param(0.6, marks=pytest.mark.full)])
def test_every_call_ends_at_its_timeout_when_the_server_is_slow(fresh_server, tmp_path, delay):
    """All requests of a call share its timeout, of which each reply takes a part."""
    timeout = 1.0
    with FaultProxy(fresh_server.port) as proxy:
        on = Objects(proxy.url, tmp_path / "f")
        on.set_timeout(timeout)
        proxy.slow(Toward.CLIENT, delay=delay * timeout)
        late = {}
        for names, of_context in calls_by_timeout():
            on.set_timeout(timeout if of_context else 5.0)
            names = sorted({*names} - _BY_CHUNK)  # noqa: PLW2901 - in an order
            with ThreadPoolExecutor(12) as pool:
                taken = list(pool.map(lambda name: measure(on, name, timeout), names))
            late.update(
                (name, seconds)
                for name, seconds in zip(names, taken, strict=True)
                if seconds > timeout + MARGIN_S * SCALE
            )
        proxy.heal()
        on.other_nc.close()
        for lock in (on.lock, on.held_lock, on.held_lock2):
            with suppress(Error):
                lock.release()  # ends its thread
        fresh_server.kill()  # as `silent_objects`
        on.nc.close()
    assert late == {}


@pytest.mark.server(">=2.14")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_call_ends_at_its_timeout_when_the_second_request_has_no_reply(
    fresh_server, tmp_path
):
    """The first reply arrives, and the server gets nothing after it: all requests share the timeout."""
    timeout = 0.5
    late = {}
    with FaultProxy(fresh_server.port) as proxy:
        on = Objects(proxy.url, tmp_path / "f")
        for names, of_context in calls_by_timeout():
            for name in sorted({*names} - _BY_CHUNK):
                on.set_timeout(timeout if of_context else 5.0)
                proxy.silence_after(b"MSG _INBOX.")
                seconds = measure(on, name, timeout)
                proxy.heal()
                with suppress(Error):
                    on.nc.flush(5 * SCALE)
                if seconds > timeout + MARGIN_S * SCALE:
                    late[name] = seconds
        on.other_nc.close()
        for lock in (on.lock, on.held_lock, on.held_lock2):
            with suppress(Error):
                lock.release()  # ends its thread
        fresh_server.kill()  # as `silent_objects`
        on.nc.close()
    assert late == {}


def test_the_list_has_every_public_call():
    """Each public method that is not local to the program is in the list, with a kind."""
    listed = {name for name in CALLS if not name.startswith("Service.")}
    assert listed == blocking_calls.public_calls()
    assert {call.kind for call in CALLS.values()} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_names_its_test(kind):
    """The test of each kind exists."""
    file, _, name = KINDS[kind].test.partition("::")
    text = (ROOT / file).read_text()
    assert re.search(rf"^def {name}\(", text, re.MULTILINE) if name else "def test_" in text


def test_the_cells_of_the_table_are_short():
    """A cell has less than 200 characters, so that a row is readable on a phone."""
    assert [cell for row in blocking_calls.rows() for cell in row if len(cell) >= 200] == []


def test_the_table_of_the_documentation_is_the_list():
    """``python tests/blocking_calls.py`` has nothing to change."""
    assert blocking_calls.page_with_table() == blocking_calls.PAGE.read_text()


@pytest.mark.parametrize("timeout", [0.2, 1.0])
def test_publishing_without_waiting_is_limited(alone, fresh_server, timeout):
    """`publish_async` to a server that reads nothing raises at the timeout of the message."""
    js = alone.jetstream(publish_async_max_pending=10**6)
    js.create_stream(name="S", subjects=["s.*"], storage="memory")
    with paused(fresh_server):
        start = 0.0
        with pytest.raises(TimeoutError, match="accepts no more data"):
            while True:  # the socket takes some megabytes
                start = time.monotonic()
                js.publish_async("s.a", b"x" * 10_000, timeout=timeout)
        assert timeout - 0.1 < time.monotonic() - start < timeout + MARGIN_S * SCALE


@pytest.mark.parametrize("call", ["publish", "ack"])
def test_a_call_without_a_timeout_does_not_wait_for_ever(alone, fresh_server, monkeypatch, call):
    """`publish` of core NATS, and acknowledgements, raise when the server accepts nothing for a while."""
    monkeypatch.setattr("jetstream_sync.client.writer._STALL_LIMIT_S", 0.3)
    js = alone.jetstream()
    stream = js.create_stream(name="S", subjects=["s.*"], storage="memory")
    js.publish("s.a")
    message = stream.create_consumer(name="C").next(5)
    with paused(fresh_server):
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="the message is buffered"):
            while True:
                alone.publish("a", b"x" * 10_000)
        if call == "ack":
            with pytest.raises(TimeoutError, match="the message is buffered"):
                message.ack()
        assert time.monotonic() - start < 5 * SCALE


def test_a_slow_server_is_not_a_silent_one(alone, fresh_server, monkeypatch):
    """A call without a timeout waits as long as the server accepts some data."""
    monkeypatch.setattr("jetstream_sync.client.writer._STALL_LIMIT_S", 0.5)
    got = alone.subscribe("a", pending_bytes_limit=0, pending_msgs_limit=0)
    for _ in range(3):
        with paused(fresh_server):
            time.sleep(0.2)
        for _ in range(100):
            alone.publish("a", b"x" * 10_000)
    wait_until(lambda: got.delivered + got.pending_msgs >= 300)


def test_a_change_without_a_reply_may_have_been_made(alone, fresh_server):
    """A change that timed out is made when the server continues; a second one finds it."""
    js, short = alone.jetstream(timeout=10 * SCALE), alone.jetstream(timeout=0.1)
    with paused(fresh_server), pytest.raises(TimeoutError):
        short.create_stream(name="S", subjects=["s"])
    wait_until(lambda: js.stream_names() == ["S"])
    assert js.create_stream(name="S", subjects=["s"]).name == "S"
