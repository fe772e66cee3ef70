"""
What a Ctrl-C promises (see the design page), for every public call that waits.

Each call is interrupted at many points. Afterwards another thread uses the connection, breaks its link
and closes it, within a time limit.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

import pytest
from fixtures.ctrl_c import interrupted, points, sends_ctrl_c
from fixtures.internals import transport_of
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    JetStream,
    JetStreamMsg,
    KeyValue,
    ObjectStore,
    Stream,
    Subscription,
    errors,
)
from jetstream_sync.server import NatsServer

pytestmark = [
    sends_ctrl_c,
    # An object whose construction was interrupted is freed with the interrupted frame.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Free what an interrupted call has left while the filters for its warnings are in use."""
    yield
    gc.collect()


#: Number of points of each call at which it is interrupted; a longer run takes all.
_SAMPLE = 30


@dataclass
class World:
    """A connection and what the calls use."""

    nc: Connection
    js: JetStream
    stream: Stream
    bucket: KeyValue
    store: ObjectStore
    subs: list[Subscription] = field(default_factory=list)


def published(world: World) -> None:
    world.nc.publish("interrupts.core", b"x", "re.ply", {"A": "b"})
    world.nc.publish("interrupts.core", b"x" * 70_000)


def asked(world: World) -> None:
    world.nc.request("interrupts.service", timeout=5)
    world.nc.flush(5)


def read(world: World) -> None:
    sub = world.nc.subscribe("interrupts.core")
    world.subs.append(sub)
    world.nc.publish("interrupts.core")
    sub.next_msg(timeout=5)
    with suppress(jetstream_sync.TimeoutError):
        sub.next_msg(timeout=0.002)
    sub.unsubscribe()


def publish_many(world: World) -> None:
    futures = [world.js.publish_async("interrupts.a", b"x") for _ in range(5)]
    futures[-1].result(10)


def completed(world: World) -> None:
    world.js.publish_async("interrupts.a", b"x")
    world.js.publish_async_completed(10)


def done_callback(world: World) -> None:
    called = threading.Semaphore(0)
    world.js.publish_async("interrupts.a", b"x").add_done_callback(lambda _: called.release())


def messages(world: World) -> None:
    with world.stream.create_consumer().messages() as found:
        list(islice(found, 3))


def consume(world: World) -> None:
    handle = world.stream.create_consumer().consume(lambda msg: msg.ack())
    try:
        handle.drain(5)
        handle.wait_closed(5)
    finally:
        handle.stop()


def pulled(world: World) -> None:
    consumer = world.stream.create_consumer()
    for msg in consumer.fetch(20, timeout=0.2):
        msg.ack_sync(timeout=5)
    with suppress(jetstream_sync.TimeoutError):
        consumer.next(timeout=0.01)


def ordered(world: World) -> None:
    consumer = world.stream.ordered_consumer()
    consumer.fetch(5, timeout=1)
    list(islice(consumer.messages(), 3))


def pushed(world: World) -> None:
    sub = world.js.subscribe("interrupts.a", ordered_consumer=True)
    world.subs.append(sub)
    sub.next_msg(timeout=5)
    sub.unsubscribe()


def called_back(world: World) -> None:
    sub = world.nc.subscribe("interrupts.core", cb=lambda _: None)
    world.subs.append(sub)
    world.nc.publish("interrupts.core")
    sub.drain(5)


def many_replies(world: World) -> None:
    list(world.nc.request_many("interrupts.service", stall=0.05, timeout=5, max_messages=1))


def keys(world: World) -> None:
    world.bucket.put("a", b"1")
    world.bucket.get("a")
    world.bucket.keys()
    with world.bucket.watch("a") as watch:
        watch.initial()


def watched(world: World) -> None:
    handle = world.bucket.watch("a", cb=lambda _: None)
    handle.wait_current(5)
    handle.stop()


def objects(world: World) -> None:
    world.store.put("a", b"x" * 200_000)
    world.store.get_bytes("a")


def reconnect(world: World) -> None:
    world.nc.reconnect()
    world.nc.flush(5)


CALLS: dict[str, Callable[[World], object]] = {
    "core publish": published,
    "request": asked,
    "next_msg": read,
    "publish": lambda world: world.js.publish("interrupts.a", b"x"),
    "publish_async": publish_many,
    "publish_async_completed": completed,
    "add_done_callback": done_callback,
    "fetch": pulled,
    "messages": messages,
    "consume": consume,
    "ordered": ordered,
    "push": pushed,
    "subscription with a callback": called_back,
    "request_many": many_replies,
    "key-value": keys,
    "watch with a callback": watched,
    "object store": objects,
    "reconnect": reconnect,
    "drain": lambda world: world.nc.drain(),
    "close": lambda world: world.nc.close(),
}


@contextmanager
def world_on(server: NatsServer) -> Iterator[World]:
    """Connect; the connection is closed in any case."""
    nc = jetstream_sync.connect(server.url, reconnect_time_wait=0.01, error_cb=lambda _: None)
    try:
        js = nc.jetstream(timeout=10, publish_async_max_pending=2)
        world = World(
            nc,
            js,
            js.get_stream("INTERRUPTS"),
            js.key_value("interrupts"),
            js.object_store("interrupts"),
        )
        yield world
        for sub in world.subs:  # an end that was interrupted is completed by repeating it
            with suppress(errors.Error):
                sub.unsubscribe()
    finally:
        nc.close()


@pytest.fixture
def server(nats_server: NatsServer) -> Iterator[NatsServer]:
    with jetstream_sync.connect(nats_server.url) as nc:
        nc.subscribe("interrupts.service", cb=lambda msg: msg.respond(b"yes"))
        nc.flush()
        js = nc.jetstream()
        js.create_stream(name="INTERRUPTS", subjects=["interrupts.a"], storage="memory")
        js.create_key_value(bucket="interrupts", storage="memory")
        js.create_object_store(bucket="interrupts", storage="memory")
        for _ in range(20):
            js.publish("interrupts.a", b"x")
        yield nats_server
        js.delete_stream("INTERRUPTS")
        js.delete_key_value("interrupts")
        js.delete_object_store("interrupts")


def delete_consumers(server: NatsServer) -> None:
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        for name in js.stream_names():
            stream = js.get_stream(name)
            for consumer in stream.consumer_names():
                with suppress(errors.ConsumerNotFoundError):
                    stream.delete_consumer(consumer)


def check(world: World, *, ending: bool) -> None:
    """Use the connection unless the call ends it, break its link, use it again and close it."""
    nc = world.nc
    if not ending:
        use(world)
        transport = transport_of(nc)
        if transport is not None:
            transport.stream.shutdown()
        wait_until(lambda: nc.is_connected and transport_of(nc) is not transport)
        use(world)
    assert nc.stats["errors_received"] == 0
    nc.close()
    assert nc.is_closed


def use(world: World) -> None:
    """Use the connection; a break of the link that is noticed late may end a call."""
    give_up = time.monotonic() + 5 * SCALE
    while True:
        try:
            use_once(world)
        except errors.ConnectionLostError:
            assert time.monotonic() < give_up
        else:
            return


def use_once(world: World) -> None:
    world.nc.flush(5)
    assert world.nc.request("interrupts.service", timeout=5).data == b"yes"
    world.js.publish_async("interrupts.a", b"x").result(5)
    # Also the messages of the interrupted call have ended.
    world.js.publish_async_completed(5)
    assert len(list(world.stream.create_consumer().fetch(2, timeout=5))) == 2


def check_on_another_thread(world: World, what: str, *, ending: bool) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            check(world, ending=ending)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20 * SCALE)
    if thread.is_alive():
        frame = sys._current_frames()[thread.ident or 0]
        pytest.fail(f"{what}: it hangs\n{''.join(traceback.format_stack(frame))}")
    if raised:
        raise AssertionError(f"{what}: {raised[0]!r}") from raised[0]


def interrupt(server: NatsServer, name: str, moments: Callable[[int], list[int]]) -> None:
    def call(world: World) -> None:
        with suppress(errors.Error):
            CALLS[name](world)

    with world_on(server) as world:
        call(world)
        if not world.nc.is_closed:  # once more: the first call creates what the others use
            count = points(lambda: call(world))
        else:
            with world_on(server) as other:
                count = points(lambda: call(other))
    assert count > 10
    for moment in moments(count):
        with world_on(server) as world:
            if interrupted(lambda: call(world), moment):
                what = f"{name}, point {moment} of {count}"
                check_on_another_thread(world, what, ending=name in {"close", "drain"})
        if moment % 50 == 0:  # ordered consumers whose end was interrupted
            delete_consumers(server)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_interrupted(server, name):
    """The connection works, reconnects and closes, wherever a Ctrl-C has interrupted a call."""
    dice = random.Random(name)
    interrupt(
        server, name, lambda count: sorted(dice.sample(range(1, count), min(_SAMPLE, count - 1)))
    )


@pytest.mark.soak
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_interrupted_at_each_point(server, name):
    """The same at every point."""
    interrupt(server, name, lambda count: list(range(1, count)))


# --- messages -------------------------------------------------------------------------------------


def by_fetch(stream: Stream) -> Callable[[], list[JetStreamMsg]]:
    consumer = stream.get_consumer("READ")
    return lambda: consumer.fetch(5, timeout=0.5)


def by_messages(stream: Stream) -> Callable[[], list[JetStreamMsg]]:
    found = stream.get_consumer("READ").messages(max_messages=4)
    return lambda: [found.next(timeout=0.5)]


def by_ordered_fetch(stream: Stream) -> Callable[[], list[JetStreamMsg]]:
    consumer = stream.ordered_consumer()
    return lambda: consumer.fetch(5, timeout=0.5)


def by_ordered_messages(stream: Stream) -> Callable[[], list[JetStreamMsg]]:
    found = stream.ordered_consumer().messages()
    return lambda: [found.next(timeout=0.5)]


READERS = {
    "fetch": by_fetch,
    "messages": by_messages,
    "ordered fetch": by_ordered_fetch,
    "ordered messages": by_ordered_messages,
}


@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="Python 3.10 handles signals between the return of a function and its caller",
)
@pytest.mark.parametrize("name", READERS)
def test_reading_without_acks_continues_after_an_interrupt(server, name):
    """After an interrupt at any point, the next calls return the later messages at once, in order."""
    with world_on(server) as world:
        stream = world.stream

        def start() -> Callable[[], list[JetStreamMsg]]:
            with suppress(errors.ConsumerNotFoundError):
                stream.delete_consumer("READ")
            stream.create_consumer(durable_name="READ", ack_policy="none")
            return READERS[name](stream)

        read = start()
        read()
        moment = 1
        went_off = True
        while went_off:
            read = start()
            got = read()
            while len(got) < 5:
                got += read()
            went_off = interrupted(lambda: got.extend(read()), moment)  # noqa: B023
            began = time.monotonic()
            while got[-1].metadata.stream_seq < 20:
                got += read()
            took = time.monotonic() - began
            found = [msg.metadata.stream_seq for msg in got]
            what = f"{name}, point {moment}: {found}"
            assert found == sorted(set(found)), what
            assert len(found) >= 15, what  # at most those of the interrupted call are lost
            assert took < 2 * SCALE, what
            moment += 1
    assert moment > 5
