"""Fork and pickle: a child cannot use its parent's connection, and the parent is not affected."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from fixtures.fork import in_child
from fixtures.internals import transport_of
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConsumeHandle,
    ConsumerGroups,
    ElasticConsumerGroup,
    ForkedConnectionError,
    GroupConsumeHandle,
    JetStream,
    JetStreamMsg,
    KeyValue,
    KeyValueEntry,
    MessageIterator,
    Msg,
    NoServersError,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
    OrderedConsumer,
    OrderedMessages,
    PubAckFuture,
    PullConsumer,
    PullSubscription,
    PushSubscription,
    ReplyIterator,
    Stream,
    Subscription,
    Watch,
    WatchHandle,
)
from jetstream_sync.client.engine import Engine
from jetstream_sync.client.threads import _fork_aware, after_fork
from jetstream_sync.jetstream import publish
from jetstream_sync.jetstream import shared_connection as shared
from jetstream_sync.locks import InterruptSafeLock
from jetstream_sync.server import NatsServer
from jetstream_sync.services import Service

OPEN_FILES = Path("/proc/self/fd")

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.server(">=2.11"),  # because of the consumer group
]


@dataclass
class Inherited:
    """One object of each kind that a child can inherit."""

    nc: Connection
    sub: Subscription
    replies: ReplyIterator
    msg: Msg
    js: JetStream
    stream: Stream
    consumer: PullConsumer
    jsmsg: JetStreamMsg
    messages: MessageIterator
    on_demand: MessageIterator
    handle: ConsumeHandle
    ordered: OrderedConsumer
    ordered_messages: OrderedMessages
    psub: PullSubscription
    push: PushSubscription
    kv: KeyValue
    watch: Watch[KeyValueEntry]
    watch_handle: WatchHandle
    future: PubAckFuture
    store: ObjectStore
    object_reader: ObjectReader
    object_writer: ObjectWriter
    groups: ConsumerGroups
    group: ElasticConsumerGroup
    group_handle: GroupConsumeHandle
    service: Service


#: Calls of each inherited object, one for each way to reach or to wait for the server: refused in a child.
REFUSED: dict[str, Callable[[Inherited], object]] = {
    "Connection.publish": lambda it: it.nc.publish("fork.a", b"x"),
    "Connection.request": lambda it: it.nc.request("fork.a", timeout=None),
    "Connection.request_many": lambda it: it.nc.request_many("fork.a", timeout=None),
    "ReplyIterator.__next__": lambda it: next(it.replies),
    "Connection.add_service": lambda it: it.nc.add_service("fork", "1.0.0"),
    "Service.stop": lambda it: it.service.stop(),
    "Connection.service_ping": lambda it: it.nc.service_ping(),
    "Connection.subscribe": lambda it: it.nc.subscribe("fork.b"),
    "Connection.flush": lambda it: it.nc.flush(timeout=None),
    "Connection.rtt": lambda it: it.nc.rtt(timeout=None),
    "Connection.reconnect": lambda it: it.nc.reconnect(),
    "Connection.set_server_pool": lambda it: it.nc.set_server_pool(["nats://127.0.0.1:4222"]),
    "Connection.drain": lambda it: it.nc.drain(),
    "Subscription.next_msg": lambda it: it.sub.next_msg(timeout=None),
    "Subscription.__iter__": lambda it: next(iter(it.sub)),
    "Subscription.unsubscribe": lambda it: it.sub.unsubscribe(),
    "Subscription.drain": lambda it: it.sub.drain(),
    "Msg.respond": lambda it: it.msg.respond(b"x"),
    "JetStream.account_info": lambda it: it.js.account_info(),
    "ObjectStore.put": lambda it: it.store.put("a", b"x"),
    "ObjectStore.open to write": lambda it: it.store.open("a", "wb"),
    "ObjectStore.get_bytes": lambda it: it.store.get_bytes("a"),
    "ObjectReader.read": lambda it: it.object_reader.read(),
    "ObjectWriter.write": lambda it: it.object_writer.write(b"x" * 300_000),
    "ObjectWriter.close": lambda it: it.object_writer.close(),
    "JetStream.publish": lambda it: it.js.publish("fork.a"),
    "JetStream.publish_batch": lambda it: it.js.publish_batch([("fork.a", b"")]),
    "JetStream.fast_publish": lambda it: it.js.fast_publish().add("fork.a", b""),
    "ElasticConsumerGroup.consume": lambda it: it.group.consume("a", print),
    "GroupConsumeHandle.wait_closed": lambda it: it.group_handle.wait_closed(),
    "JetStream.publish_async": lambda it: it.js.publish_async("fork.a"),
    "JetStream.publish_async_completed": lambda it: it.js.publish_async_completed(),
    "JetStream.pull_subscribe": lambda it: it.js.pull_subscribe("js.>"),
    "JetStream.subscribe": lambda it: it.js.subscribe("js.>"),
    "PullSubscription.fetch": lambda it: it.psub.fetch(timeout=None),
    "PullSubscription.unsubscribe": lambda it: it.psub.unsubscribe(),
    "PullSubscription.drain": lambda it: it.psub.drain(),
    "PushSubscription.next_msg": lambda it: it.push.next_msg(timeout=None),
    "PushSubscription.unsubscribe": lambda it: it.push.unsubscribe(),
    "PushSubscription.drain": lambda it: it.push.drain(),
    "Stream.get_msg": lambda it: it.stream.get_msg(1),
    "Stream.snapshot": lambda it: it.stream.snapshot(),
    "PullConsumer.fetch": lambda it: it.consumer.fetch(1, timeout=None),
    "PullConsumer.messages": lambda it: it.consumer.messages(),
    "PullConsumer.consume": lambda it: it.consumer.consume(print),
    "JetStreamMsg.ack": lambda it: it.jsmsg.ack(),
    "JetStreamMsg.ack_sync": lambda it: it.jsmsg.ack_sync(timeout=None),
    "MessageIterator.next": lambda it: it.messages.next(),
    "MessageIterator.request": lambda it: it.on_demand.request(1),
    "MessageIterator.drain": lambda it: it.messages.drain(),
    "ConsumeHandle.wait_closed": lambda it: it.handle.wait_closed(),
    "ConsumeHandle.drain": lambda it: it.handle.drain(),
    "OrderedConsumer.fetch": lambda it: it.ordered.fetch(1, timeout=None),
    "OrderedConsumer.messages": lambda it: it.ordered.messages(),
    "OrderedConsumer.consume": lambda it: it.ordered.consume(print),
    "OrderedMessages.next": lambda it: it.ordered_messages.next(),
    "OrderedMessages.drain": lambda it: it.ordered_messages.drain(),
    "KeyValue.get": lambda it: it.kv.get("a"),
    "KeyValue.put": lambda it: it.kv.put("a", b""),
    "KeyValue.modify": lambda it: it.kv.modify("a", lambda _: b""),
    "KeyValue.lock": lambda it: it.kv.lock("a").acquire(),
    "KeyValue.watch": lambda it: it.kv.watch(),
    "Watch.next": lambda it: it.watch.next(),
    "Watch.wait_current": lambda it: it.watch.wait_current(),
    "Watch.drain": lambda it: it.watch.drain(),
    "WatchHandle.wait_closed": lambda it: it.watch_handle.wait_closed(),
    "WatchHandle.drain": lambda it: it.watch_handle.drain(),
    "Future.result": lambda it: it.future.result(),
}

#: Calls that close an object: allowed in a child, without effect.
ENDS: dict[str, Callable[[Inherited], object]] = {
    "Connection.close": lambda it: it.nc.close(),
    "MessageIterator.stop": lambda it: it.messages.stop(),
    "ConsumeHandle.stop": lambda it: it.handle.stop(),
    "OrderedConsumer.close": lambda it: it.ordered.close(),
    "OrderedMessages.stop": lambda it: it.ordered_messages.stop(),
    "ReplyIterator.close": lambda it: it.replies.close(),
    "ObjectReader.close": lambda it: it.object_reader.close(),
    "ObjectWriter.discard": lambda it: it.object_writer.discard(),
    "Watch.stop": lambda it: it.watch.stop(),
    "WatchHandle.stop": lambda it: it.watch_handle.stop(),
    "GroupConsumeHandle.stop": lambda it: it.group_handle.stop(),
    "GroupConsumeHandle.drain": lambda it: it.group_handle.drain(),
}


@pytest.fixture
def it(nats_server: NatsServer) -> Iterator[Inherited]:
    """One object of each kind, with messages or calls pending wherever possible."""
    nc = jetstream_sync.connect(nats_server.url)
    try:
        yield inherited(nc)
    finally:
        nc.close()
        with RawClient(nats_server.port) as raw:
            raw.delete_all_streams()


def inherited(nc: Connection) -> Inherited:
    sub = nc.subscribe("fork.mine")
    nc.publish("fork.mine", b"one", reply="fork.reply")
    nc.publish("fork.mine", b"waits")
    msg = sub.next_msg(timeout=5)
    wait_until(lambda: sub.pending_msgs)
    js = nc.jetstream(timeout=None)
    stream = js.create_stream(name="FORK", subjects=["js.>"], storage="memory")
    for number in range(6):
        js.publish("js.a", b"%d" % number)
    consumer = stream.create_consumer(durable_name="fork")
    jsmsg = consumer.next(timeout=5)
    messages = consumer.messages()
    messages.next(timeout=5)
    wait_until(lambda: len(messages._source._buffer_state()[0]) == 4)
    ordered = stream.ordered_consumer()
    ordered.next(timeout=5)
    ordered_messages = ordered.messages()
    ordered_messages.next(timeout=5)
    handle = stream.create_consumer(name="empty", filter_subject="js.nothing").consume(print)
    # The response is no ack, so the future stays pending.
    _kept = nc.subscribe("fork.silent")
    future = js.publish_async("fork.silent")
    nc.flush()
    psub = js.pull_subscribe("js.>", durable="psub")
    psub.fetch(timeout=5)
    push = js.subscribe("js.>")
    push.next_msg(timeout=5)
    store = js.create_object_store(bucket="F", storage="memory")
    store.put("a", b"x" * 400_000)
    object_reader = store.open("a")
    object_reader.read(140_000)
    object_writer = store.open("b", "wb")
    object_writer.write(b"x" * 140_000)
    kv = js.create_key_value(bucket="FORK", storage="memory")
    kv.put("a", b"1")
    kv.put("b", b"1")
    watch = kv.watch()
    watch.next(timeout=5)  # the other entry is in its buffer
    watch_handle = kv.watch(cb=print)
    group = js.consumer_groups.create_elastic("FORK", "g", 1)
    return Inherited(
        nc,
        sub,
        nc.request_many("fork.mine", timeout=None),
        msg,
        js,
        stream,
        consumer,
        jsmsg,
        messages,
        consumer.messages(on_demand=True),
        handle,
        ordered,
        ordered_messages,
        psub,
        push,
        kv,
        watch,
        watch_handle,
        future,
        store,
        object_reader,
        object_writer,
        js.consumer_groups,
        group,
        group.consume("a", print),
        nc.add_service("inherited", "1.0.0"),
    )


def test_every_call_is_refused_in_a_child(it):
    """In a child each call on an inherited object raises ForkedConnectionError at once."""

    def call_all() -> None:
        outcomes = {name: outcome_of(call) for name, call in REFUSED.items()}
        assert outcomes == dict.fromkeys(REFUSED, ForkedConnectionError)

    def outcome_of(call: Callable[[Inherited], object]) -> object:
        try:
            return call(it)
        except Exception as error:
            return type(error)

    in_child(call_all)
    assert it.sub.next_msg(timeout=0).data == b"waits"


def test_ending_an_inherited_object_in_a_child_spares_the_parent(it):
    """A `with` block or `finally` of the parent can run in a child without affecting the parent."""
    in_child(lambda: [end(it) for end in ENDS.values()])
    assert it.messages.next(timeout=5).data == b"2"
    assert it.ordered_messages.next(timeout=5).data == b"1"
    assert not it.handle.closed
    assert len(it.object_reader.read()) == 260_000
    it.object_writer.close()
    assert it.store.info("b").size == 140_000


def test_the_state_of_a_connection_in_a_child(nc):
    """In a child the connection is closed and has no server; closing it is allowed."""

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


@pytest.mark.parametrize("how", ["drain", "close"])
def test_a_child_has_no_message_of_an_ended_subscription(nats_server, how):
    """The messages that the parent has not read yet are for the parent alone."""
    nc = jetstream_sync.connect(nats_server.url)
    sub = nc.subscribe("fork.ended")
    nc.publish("fork.ended", b"x")
    nc.flush()
    if how == "drain":
        sub.drain()
    else:
        nc.close()

    def check() -> None:
        with pytest.raises(ForkedConnectionError):
            sub.next_msg(timeout=0)

    in_child(check)
    assert sub.next_msg(timeout=0).data == b"x"
    nc.close()


def test_a_child_holds_no_socket_of_its_parents(nc):
    """The child's copy of the socket is closed, so the link ends when the parent closes it."""
    stream = transport_of(nc).stream
    number = stream._socket.fileno()

    def check() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)

    in_child(check)
    os.fstat(number)


def test_a_child_opens_its_own_connection(nats_server, nc):
    """A connection opened after the fork works, also in a grandchild."""

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


def test_a_callback_may_fork(nc):
    """A child that was forked in a callback gets none of the messages waiting for the callback."""
    seen: list[bytes] = []
    children: list[int] = []

    def callback(msg: jetstream_sync.Msg) -> None:
        seen.append(msg.data)
        if msg.data == b"0":
            pid = os.fork()
            if pid == 0:
                # It continues like the parent; pending messages must not reach it.
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


def locks(it: object, seen: dict[int, object]) -> Iterator[threading.Lock]:
    """Find every lock in the objects of the package."""
    if id(it) in seen:
        return
    seen[id(it)] = it
    if isinstance(it, type(threading.Lock()) | type(threading.RLock()) | InterruptSafeLock):
        yield it
        return
    if isinstance(it, threading.Condition | threading.Event):
        parts: list[object] = list(vars(it).values())
    elif isinstance(it, dict):
        parts = list(it.values())
    elif isinstance(it, list | tuple | set | deque):
        parts = list(it)
    elif type(it).__module__.startswith("jetstream_sync") or isinstance(it, Inherited):
        names = {name for cls in type(it).__mro__ for name in getattr(cls, "__slots__", ())}
        names |= getattr(it, "__dict__", {}).keys()
        parts = [getattr(it, name, None) for name in names]
    else:
        return
    for part in parts:
        yield from locks(part, seen)


def test_every_lock_may_be_held_when_a_process_forks(it):
    """No call of a child waits for a lock that a thread of the parent holds."""
    it.future.add_done_callback(print)  # gives it locks
    held = threading.Event()
    forked = threading.Event()
    count = 0

    def hold() -> None:
        nonlocal count
        every = [*locks([it, shared._shared], {}), publish._lock]
        taken = [lock for lock in every if lock.acquire(blocking=False)]
        count = len(taken)
        held.set()
        forked.wait(20 * SCALE)
        for lock in taken:
            lock.release()

    def check() -> None:
        for call in REFUSED.values():
            with pytest.raises(ForkedConnectionError):
                call(it)
        for call in ENDS.values():
            call(it)
        with pytest.raises(NoServersError):
            jetstream_sync.shared_connection("nats://127.0.0.1:1")

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    try:
        in_child(check)
    finally:
        forked.set()
        thread.join()
    assert count > 30, "the search finds no locks any more"
    it.nc.flush()


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="open files cannot be listed")
def test_a_link_that_is_being_opened_is_closed_in_a_child():
    """A child keeps no copy of a socket during its parent's handshake."""
    go_on = threading.Event()

    def play(peer: ScriptedPeer) -> None:
        assert go_on.wait(10 * SCALE)
        peer.handshake()

    def check() -> None:
        assert peers(listener.port) == 0

    with Listener(play) as listener:
        opened: list[Connection] = []
        opener = threading.Thread(
            target=lambda: opened.append(
                jetstream_sync.connect(listener.url, connect_timeout=10 * SCALE)
            )
        )
        opener.start()
        # Not take(), which waits for the end of the handshake, or for its timeout.
        wait_until(lambda: listener.clients)
        # From then on, not from the connection on, a fork closes the socket.
        wait_until(lambda: is_being_opened(listener.port))
        assert peers(listener.port) == 1
        in_child(check)
        go_on.set()
        opener.join()
        opened[0].close()


def test_every_object_is_told_of_a_fork(monkeypatch):
    """An error in one object keeps no other one from being told, and Python reports it."""
    told: list[int] = []
    reported: list[type[BaseException]] = []

    def hook(report: sys.UnraisableHookArgs) -> None:
        if not isinstance(report.exc_value, ResourceWarning):  # of objects of other tests
            reported.append(report.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", hook)

    class Member:
        def __init__(self, number: int) -> None:
            self.number = number

        def forked(self) -> None:
            told.append(self.number)
            if self.number != 5:
                raise ValueError("broken")

    members = [Member(number) for number in range(10)]
    for member in members:
        after_fork(member)

    def check() -> None:
        assert sorted(told) == list(range(10))
        assert reported == [ValueError]

    in_child(check)


def is_being_opened(port: int) -> bool:
    """Return whether a fork would close a socket that is being opened to a port."""
    engines = [item for item in list(_fork_aware) if isinstance(item, Engine)]
    openings = [engine._opener._opening for engine in engines]
    return any(item is not None and item.stream.peer.endswith(f":{port}") for item in openings)


def peers(port: int) -> int:
    """Count the sockets of this process that are connected to a port."""
    count = 0
    for file in OPEN_FILES.iterdir():
        # A socket that has just closed, or is listening, has no peer.
        with suppress(OSError):
            if file.is_socket():
                with socket.socket(fileno=os.dup(int(file.name))) as copy:
                    count += copy.getpeername()[1:2] == (port,)
    return count


def test_nothing_that_has_a_connection_is_pickled(it):
    """Pickling it is refused, with the advice what to pass instead."""
    for field in fields(Inherited):
        with pytest.raises(TypeError, match="can ?not be pickled; "):
            pickle.dumps(getattr(it, field.name))
