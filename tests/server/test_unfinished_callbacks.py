"""A callback that returns code that did not run has failed: the error is reported, and nothing is acknowledged."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import EventKind
from jetstream_sync.errors import UnfinishedError


def decorated(function: Callable[..., object]) -> Callable[..., object]:
    """Return a plain function that calls another one, as an ordinary decorator does."""

    @functools.wraps(function)
    def call(*args: object) -> object:
        return function(*args)

    del call.__wrapped__  # type: ignore[attr-defined] - as of a decorator without functools
    return call


async def coroutine(*_: object) -> None:
    """Return a coroutine."""


def generator(*_: object) -> Iterator[None]:
    """Return a generator."""
    yield


async def async_generator(*_: object) -> AsyncIterator[None]:
    """Return an asynchronous generator."""
    yield


class Awaitable:
    """An object with ``__await__``."""

    def __init__(self, *_: object) -> None:
        """Take the arguments of a callback."""

    def __await__(self) -> Any:
        raise AssertionError


def asyncio_future(*_: object) -> object:
    """Return a future of asyncio."""
    loop = asyncio.new_event_loop()
    try:
        return loop.create_future()
    finally:
        loop.close()


UNFINISHED = [
    decorated(coroutine),
    decorated(generator),
    decorated(async_generator),
    Awaitable,
    asyncio_future,
]
IDS = ["coroutine", "generator", "async generator", "awaitable", "asyncio future"]
each_kind = pytest.mark.parametrize("callback", UNFINISHED, ids=IDS)


@pytest.fixture
def nc(nats_server, errors):
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc:
        yield nc


@pytest.fixture
def js(js):
    js.create_stream(name="S", subjects=["s.*"], storage="memory", retention="workqueue")
    js.publish("s.a", b"1")
    return js


def reported(found: list[Exception], count: int = 1) -> None:
    """Wait until an error of this kind was reported."""
    wait_until(lambda: len(found.of(UnfinishedError)) >= count, 5)  # type: ignore[attr-defined]


@each_kind
@pytest.mark.parametrize("queue", ["", "q"])
def test_core_subscription(nc, errors, callback, queue):
    nc.subscribe("core.a", queue, cb=callback)
    nc.publish("core.a")
    reported(errors)


@pytest.mark.parametrize("callback", [*UNFINISHED, lambda _: Future()], ids=[*IDS, "future"])
def test_push_subscription_acknowledges_nothing(js, errors, callback):
    """The message stays in the work queue, and is delivered again."""
    js.subscribe("s.a", durable="D", cb=callback, config=jetstream_sync.ConsumerConfig(ack_wait=60))
    reported(errors)
    info = js.get_stream("S").info()
    assert info.state.messages == 1
    assert js.consumer_info("S", "D").ack_floor.stream_seq == 0


@each_kind
def test_consume(js, errors, callback):
    consumer = js.create_consumer("S", name="C")
    with consumer.consume(callback):
        reported(errors)
    assert js.get_stream("S").info().state.messages == 1


@each_kind
def test_ordered_consume(js, errors, callback):
    js.create_stream(name="O", subjects=["o"])
    js.publish("o")
    with js.ordered_consumer("O").consume(callback):
        reported(errors)
    found: list[Exception] = []
    with js.ordered_consumer("O").consume(callback, error_cb=found.append):
        wait_until(lambda: found, 5)
    assert isinstance(found[0], UnfinishedError)


@pytest.mark.server(">=2.11")
@each_kind
def test_consumer_group(js, errors, callback):
    js.create_stream(name="G", subjects=["g.*"])
    group = js.consumer_groups.create_elastic("G", "e", 1, {"g.*": [1]})
    group.add_members("m")
    js.publish("g.a")
    with group.consume("m", callback):
        reported(errors)
        assert js.get_stream("G-e").info().state.messages == 1


@each_kind
def test_watches(js, errors, callback):
    """The callback for entries, that for the current state, and a watch of objects."""
    kv = js.create_key_value(bucket="b", storage="memory")
    kv.put("k", b"v")
    store = js.create_object_store(bucket="o", storage="memory")
    store.put("f", b"data")
    for count, watch in enumerate(
        (
            lambda: kv.watch(cb=callback),
            lambda: kv.watch(cb=lambda _: None, current_cb=callback),
            lambda: store.watch(cb=callback),
        ),
        1,
    ):
        with watch():
            reported(errors, count)


@each_kind
def test_service_answers_500(nc, errors, callback):
    service = nc.add_service("svc", "1.0.0", stop_cb=callback)
    service.add_endpoint("ep", callback)
    reply = nc.request("ep", timeout=5 * SCALE)
    assert reply.headers["Nats-Service-Error-Code"] == "500"
    assert nc.service_stats("svc")[0].endpoints[0].num_errors == 1
    reported(errors)
    service.stop()
    reported(errors, 2)


def test_service_with_a_future_answers_500(nc, errors):
    with nc.add_service("svc", "1.0.0") as service:
        service.add_endpoint("ep", lambda _: Future())
        reply = nc.request("ep", timeout=5 * SCALE)
    assert reply.headers["Nats-Service-Error-Code"] == "500"
    reported(errors)


@each_kind
def test_callbacks_on_the_thread_of_the_caller_raise(nc, js, callback):
    """Progress of objects, the sentinel of replies."""
    store = js.create_object_store(bucket="o", storage="memory")
    with pytest.raises(UnfinishedError):
        store.put("f", b"data", progress=callback)
    store.put("f", b"data")
    with pytest.raises(UnfinishedError):
        store.get_bytes("f", progress=callback)
    nc.subscribe("many", cb=lambda msg: msg.respond(b""))
    with pytest.raises(UnfinishedError):
        list(nc.request_many("many", timeout=5 * SCALE, sentinel=callback))


@each_kind
def test_codecs(js, callback):
    """A value, a key and a pattern that a codec did not make are neither stored, returned nor left out."""
    kv = js.create_key_value(bucket="KV", storage="memory")
    kv.put("a", b"1")
    broken = SimpleNamespace(encode=callback, decode=callback)
    values, keys = kv.with_codecs(value=broken), kv.with_codecs(key=broken)
    values_of_a = values.get("a")
    for call in (
        lambda: values.put("b", b"1"),
        lambda: values_of_a.value,
        lambda: keys.put("b", b"1"),
        lambda: keys.watch("b"),
        lambda: list(keys.keys()),
    ):
        with pytest.raises(UnfinishedError):
            call()
    assert list(kv.keys()) == ["a"]


@each_kind
def test_connection_callbacks(nats_server, caplog, callback):
    """Events of the connection, requests to the API, futures and the trace: logged or reported."""
    found: list[Exception] = []
    with jetstream_sync.connect(nats_server.url, error_cb=found.append, trace_cb=callback) as nc:
        nc.add_listener(callback, EventKind.CLOSED)
        nc.jetstream(api_cb=callback).account_info()
        wait_until(lambda: found, 5)
        nc.jetstream().publish_async("none").add_done_callback(callback)
        wait_until(lambda: caplog.text.count("UnfinishedError") >= 3, 5)
    assert isinstance(found[0], UnfinishedError)
    wait_until(lambda: caplog.text.count("a callback raised") >= 1, 5)


def test_error_cb(nats_server, caplog):
    with jetstream_sync.connect(nats_server.url, error_cb=decorated(coroutine)) as nc:
        nc.subscribe("a", cb=lambda _: 1 / 0)
        nc.publish("a")
        wait_until(lambda: "UnfinishedError" in caplog.text, 5)


def test_a_thread_pool_may_have_the_message(nc, js, errors):
    """A callback that acknowledges later may return the future of a pool."""
    done: list[bytes] = []
    with ThreadPoolExecutor(1) as pool:
        consumer = js.create_consumer("S", name="C")

        def work(msg: Any) -> None:
            msg.ack_sync(5 * SCALE)
            done.append(msg.data)

        nc.subscribe("core.a", cb=lambda msg: pool.submit(done.append, msg.data))
        nc.publish("core.a", b"2")
        with consumer.consume(lambda msg: pool.submit(work, msg)):
            wait_until(lambda: sorted(done) == [b"1", b"2"], 5)
    assert js.get_stream("S").info().state.messages == 0
    assert not errors
