"""Ordered consumers: every message once and in order, over deletions, gaps and reconnects."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.internals import buffered, cursor_of, redirected
from fixtures.server import break_link, fill, paused
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    DeliverPolicy,
    JetStreamMsg,
    ReplayPolicy,
    Stream,
    StreamConsumerLimits,
    errors,
)
from jetstream_sync.jetstream.ordered import OrderedMessages
from jetstream_sync.net.clock import Deadline


def numbers(messages: OrderedMessages, count: int, timeout: float = 5) -> list[int]:
    """Take ``count`` messages and return the numbers that `fill` gave them."""
    return [int(messages.next(timeout).data) for _ in range(count)]


#: nats-server drops a request that arrives while its consumer is being deleted. Then the heartbeats
#: have to detect it; they are short here.
ALERT: dict[str, Any] = {"expires": 1, "heartbeat": 0.5}


def delete_consumers(stream: Stream) -> int:
    """Delete all consumers of a stream on the server; return how many there were."""
    names = stream.consumer_names()
    for name in names:
        try:
            stream.delete_consumer(name)
        except errors.ConsumerNotFoundError:
            continue  # it was deleted by the server
    return len(names)


@pytest.fixture
def filed(alone: Connection) -> Stream:
    """An empty stream on that server, which survives a restart."""
    return alone.jetstream().create_stream(name="S", subjects=["S.>"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use short delays between attempts to create a consumer."""
    monkeypatch.setattr("jetstream_sync.jetstream.ordered_cursor._FIRST_RETRY_DELAY_S", 0.05)


# --- start position and filters -----------------------------------------------------------------


def test_every_message_comes_once_and_in_order(js, stream):
    """20,000 messages are returned once and in order."""
    fill(js, stream.name, 20_000)
    expected = 0
    with stream.ordered_consumer().messages() as messages:
        for msg in messages:
            assert int(msg.data) == expected
            expected += 1
            if expected == 20_000:
                break
    assert msg.metadata.stream_seq == 20_000


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"deliver_policy": DeliverPolicy.LAST}, [5]),
        ({"deliver_policy": DeliverPolicy.NEW}, []),
        ({"deliver_policy": DeliverPolicy.LAST_PER_SUBJECT}, [3, 4, 5]),
        ({"opt_start_seq": 5}, [4, 5]),
        ({"opt_start_time": datetime(2000, 1, 1, tzinfo=timezone.utc)}, [0, 1, 2, 3, 4, 5]),
        ({"opt_start_time": datetime(2100, 1, 1, tzinfo=timezone.utc)}, None),
        ({"replay_policy": ReplayPolicy.ORIGINAL}, [0, 1, 2, 3, 4, 5]),
        ({"filter_subjects": "{}.1"}, [1, 4]),
        ({"filter_subjects": ["{}.1", "{}.2"]}, [1, 2, 4, 5]),
        (
            {
                "filter_subjects": ["{}.0", "{}.2"],
                "deliver_policy": DeliverPolicy.LAST_PER_SUBJECT,
            },
            [3, 5],
        ),
    ],
)
def test_an_ordered_consumer_starts_and_filters_as_configured(js, stream, options, expected):
    """Each deliver policy selects the stored messages, then new ones follow, also after a reset."""
    filters = options.get("filter_subjects")
    if filters is not None:
        named = [filters] if isinstance(filters, str) else filters
        options = {**options, "filter_subjects": [item.format(stream.name) for item in named]}
    fill(js, stream.name, 6)
    with stream.ordered_consumer(**options).messages(**ALERT) as messages:
        if expected is None:  # it starts far in the future
            with pytest.raises(jetstream_sync.TimeoutError):
                messages.next(0.1)
            return
        assert numbers(messages, len(expected)) == expected
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.05)
        delete_consumers(stream)
        fill(js, stream.name, 6, first=6)
        wanted = [6, 7, 8, 9, 10, 11]
        if filters is not None:
            ends = {int(option[-1]) for option in options["filter_subjects"]}
            wanted = [item for item in wanted if item % 3 in ends]
        assert numbers(messages, len(wanted)) == wanted


@pytest.mark.parametrize("way", ["fetch", "messages"])
@pytest.mark.parametrize(
    ("policy", "expected"), [("new", [3, 4, 5]), (DeliverPolicy.LAST, [2, 3, 4, 5])]
)
def test_new_and_last_mean_the_time_of_the_call(js, stream, policy, expected, way):
    """What is published between the creation of the object and its first read is delivered."""
    fill(js, stream.name, 3)
    with stream.ordered_consumer(deliver_policy=policy) as ordered:
        fill(js, stream.name, 3, first=3)
        if way == "fetch":
            assert [int(msg.data) for msg in ordered.fetch(len(expected))] == expected
        else:
            assert numbers(ordered.messages(), len(expected)) == expected


def test_the_server_s_consumer_is_cheap(stream):
    """It has no acks, is in memory with one replica, and is deleted when unused."""
    ordered = stream.ordered_consumer(
        name_prefix="mine", inactive_threshold=30, metadata={"who": "me"}
    )
    with ordered.messages():
        (name,) = stream.consumer_names()
        config = stream.get_consumer(name).cached_info.config
    assert name.startswith("mine_")
    assert config.durable_name is None
    assert (config.ack_policy, config.mem_storage, config.num_replicas) == ("none", True, 1)
    assert config.inactive_threshold == timedelta(seconds=30)
    assert config.metadata is not None
    assert config.metadata["who"] == "me"


@pytest.mark.parametrize("kind", ["ordered", "watch", "object"])
def test_a_stream_with_a_lower_limit_of_inactivity_is_read(js, stream_name, kind):
    """The limit of the stream applies instead of the default here; a value of the user is refused."""
    limits = StreamConsumerLimits(inactive_threshold=2)
    if kind == "ordered":
        subjects = [f"{stream_name}.>"]
        stream = js.create_stream(name=stream_name, subjects=subjects, consumer_limits=limits)
        fill(js, stream_name, 3)
        with stream.ordered_consumer().messages() as messages:
            assert int(messages.next(5).data) == 0
            (name,) = stream.consumer_names()
            threshold = stream.get_consumer(name).cached_info.config.inactive_threshold
            assert threshold == timedelta(seconds=2)
        with pytest.raises(errors.BadRequestError, match="inactive threshold exceeds"):
            stream.ordered_consumer(inactive_threshold=3).next(5)
    elif kind == "watch":
        kv = js.create_key_value(bucket="LIMITED", storage="memory")
        js.update_stream(
            replace(js.get_stream("KV_LIMITED").cached_info.config, consumer_limits=limits)
        )
        kv.put("a", b"1")
        with kv.watch() as watch:
            assert watch.next(5).value == b"1"
        js.delete_key_value("LIMITED")
    else:
        store = js.create_object_store(bucket="LIMITED", storage="memory")
        js.update_stream(
            replace(js.get_stream("OBJ_LIMITED").cached_info.config, consumer_limits=limits)
        )
        store.put("large", b"x" * 1_000_000)
        assert len(store.get_bytes("large")) == 1_000_000
        js.delete_object_store("LIMITED")


def test_consumers_are_numbered_behind_a_prefix(js, stream):
    """The names can be foreseen, as in other clients."""
    fill(js, stream.name, 2)
    with stream.ordered_consumer(name_prefix="mine") as ordered:
        ordered.fetch(1)
        assert stream.consumer_names() == ["mine_1"]
        stream.delete_consumer("mine_1")
        assert [int(msg.data) for msg in ordered.fetch(1)] == [1]
        assert stream.consumer_names() == ["mine_2"]


def test_readers_of_one_prefix_do_not_share_a_consumer(js, stream):
    """With one ``name_prefix`` each iterator and each ordered consumer has its own consumer."""
    fill(js, stream.name, 10)
    ordered, other = (stream.ordered_consumer(name_prefix="mine") for _ in range(2))
    with ordered.messages() as first, ordered.messages() as second, other.messages() as third:
        names = set(stream.consumer_names())
        assert len(names) == 3
        for messages in (first, second, third):
            assert numbers(messages, 10) == list(range(10))
        assert set(stream.consumer_names()) == names


@pytest.mark.parametrize(
    "options",
    [{"foo": 1}, {"durable_name": "D"}, {"max_reset_attempts": -1}, {"opt_start_seq": -1}],
)
def test_invalid_options_are_refused(stream, options):
    """An option that is unknown or out of range is an `InvalidOptionError`; no consumer is created."""
    with pytest.raises(errors.InvalidOptionError):
        stream.ordered_consumer(**options)
    with pytest.raises(errors.InvalidOptionError):
        stream.ordered_consumer().fetch(1, timeout=0)
    assert stream.consumer_names() == []


def test_messages_raises_what_the_server_refuses(stream):
    """Filters that the server refuses raise in `messages`."""
    ordered = stream.ordered_consumer(filter_subjects=[f"{stream.name}.>", f"{stream.name}.a"])
    with between(0, 1), pytest.raises(errors.BadRequestError):
        ordered.messages()


def test_a_missing_stream_is_an_error_at_once(js, stream):
    """Without the stream `messages`, `fetch` and `next` raise `StreamNotFoundError` at once."""
    ordered = stream.ordered_consumer()
    js.delete_stream(stream.name)
    for call in (ordered.messages, lambda: ordered.fetch(1), ordered.next):
        with between(0, 1), pytest.raises(errors.StreamNotFoundError):
            call()


# --- resets -------------------------------------------------------------------------------------


def test_a_deleted_consumer_is_replaced_repeatedly(js, stream):
    """The server's consumer is deleted repeatedly: no message is lost or repeated."""
    with stream.ordered_consumer().messages(max_messages=7, **ALERT) as messages:
        for round_ in range(10):
            fill(js, stream.name, 10, first=10 * round_)
            got = numbers(messages, 4)
            assert delete_consumers(stream) == 1
            got += numbers(messages, 6)
            assert got == list(range(10 * round_, 10 * round_ + 10))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(messages.next, 5)
            for _ in range(3):
                (name,) = wait_until(stream.consumer_names)
                stream.delete_consumer(name)
                wait_until(lambda old=name: set(stream.consumer_names()) - {old})
            fill(js, stream.name, 1, first=100)
            assert int(waiting.result(5).data) == 100
    wait_until(lambda: not stream.consumer_names())


@pytest.mark.parametrize(
    "policy", [DeliverPolicy.NEW, DeliverPolicy.ALL, DeliverPolicy.BY_START_TIME]
)
def test_a_reset_before_the_first_message_loses_nothing(js, stream, policy):
    """If the consumer is lost before the first message, all messages after the start are read."""
    options: dict[str, Any] = {"deliver_policy": policy}
    fill(js, stream.name, 5)
    if policy == DeliverPolicy.BY_START_TIME:
        options["opt_start_time"] = datetime.now(timezone.utc)
    with stream.ordered_consumer(**options).messages(**ALERT) as messages:
        delete_consumers(stream)
        fill(js, stream.name, 5, first=5)
        first = 0 if policy == DeliverPolicy.ALL else 5
        assert numbers(messages, 10 - first) == list(range(first, 10))


def test_a_gap_is_read_again(js, stream):
    """Lost deliveries are detected by their sequence, and read again."""
    fill(js, stream.name, 100)
    with stream.ordered_consumer().messages(max_messages=20) as messages:
        got = numbers(messages, 5)
        wait_until(lambda: len(buffered(messages)) >= 10)
        for _ in range(3):  # as if they had been dropped
            buffered(messages).items.popleft()
        got += numbers(messages, 95)
    assert got == list(range(100))


def test_a_gap_does_not_end_the_wait_of_other_threads(js, stream):
    """A gap seen by one thread does not end the wait of another one on the same iterator."""
    with stream.ordered_consumer().messages() as messages, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(messages.next, 10) for _ in range(2)]
        wait_until(lambda: len(buffered(messages)._gates) == 2)
        # As if the first delivery had been dropped: the next one has the number 2.
        cursor_of(messages).sequence.last = -1
        fill(js, stream.name, 2)
        assert sorted(int(item.result(5).data) for item in waiting) == [0, 1]


def test_a_purge_is_not_a_gap(js, stream):
    """Messages that are purged before their delivery are not waited for; the order is kept."""
    fill(js, stream.name, 100)
    with stream.ordered_consumer().messages(max_messages=5) as messages:
        assert numbers(messages, 3) == [0, 1, 2]
        stream.purge()
        fill(js, stream.name, 10, first=100)
        got = numbers(messages, 10)
        while got[-1] != 109:
            got += numbers(messages, 1)
    assert got[-10:] == list(range(100, 110))
    # Before them come at most the buffered ones.
    assert got[:-10] == list(range(3, 3 + len(got) - 10))


def test_missed_heartbeats_lead_to_a_reset(alone, filed, fresh_server, quick):
    """After missed heartbeats another consumer is created when the server answers again."""
    del quick
    fill(alone.jetstream(), "S", 10)
    with filed.ordered_consumer().messages(expires=1, heartbeat=0.5) as messages:
        assert numbers(messages, 10) == list(range(10))
        with paused(fresh_server), between(1.5, 2.2), pytest.raises(jetstream_sync.TimeoutError):
            messages.next(1.5)
        fill(alone.jetstream(), "S", 10, first=10)
        assert numbers(messages, 10) == list(range(10, 20))


@pytest.mark.parametrize("way", ["messages", "consume", "fetch"])
def test_a_deleted_stream_is_a_typed_error(js, stream, way):
    """A reader gets `StreamNotFoundError` within a second when the stream is deleted."""
    fill(js, stream.name, 3)
    ordered = stream.ordered_consumer()
    with ThreadPoolExecutor(1) as pool:
        if way == "fetch":
            assert len(ordered.fetch(3)) == 3
            waiting: Any = pool.submit(ordered.fetch, 1, 20)
            (name,) = stream.consumer_names()
            wait_until(lambda: stream.get_consumer(name).cached_info.num_waiting == 1)
        elif way == "messages":
            messages = ordered.messages()
            numbers(messages, 3)
            waiting = pool.submit(messages.next, 20)
        else:
            got: list[JetStreamMsg] = []
            handle = ordered.consume(got.append)
            wait_until(lambda: len(got) == 3)
        js.delete_stream(stream.name)
        with between(0, 1):
            if way == "consume":
                handle.wait_closed(5)
                assert isinstance(handle.error, errors.StreamNotFoundError)
            else:
                with pytest.raises(errors.StreamNotFoundError):
                    waiting.result(5)


def test_attempts_may_be_limited(alone, filed, fresh_server, quick):
    """After ``max_reset_attempts`` failures in a row the reader gets an error."""
    del quick
    fill(alone.jetstream(), "S", 1)
    with filed.ordered_consumer(max_reset_attempts=2).messages() as messages:
        numbers(messages, 1)
        # The API does not reply, so no consumer can be created.
        with redirected(messages, alone.jetstream(prefix="unserved.api")):
            break_link(alone)
            with between(0, 5), pytest.raises(errors.OrderedConsumerResetError):
                messages.next(10)
    del fresh_server


def test_attempts_are_limited_after_a_moment_without_the_stream(alone, filed, quick, monkeypatch):
    """An attempt that finds no stream does not count, and the next failures do."""
    del quick
    monkeypatch.setattr("jetstream_sync.jetstream.ordered_cursor._GONE_LIMIT_S", 30.0)
    js = alone.jetstream()
    fill(js, "S", 1)
    with (
        filed.ordered_consumer(max_reset_attempts=1).messages() as messages,
        ThreadPoolExecutor(1) as pool,
    ):
        numbers(messages, 1)
        waiting = pool.submit(messages.next, 20)
        js.delete_stream("S")
        wait_until(lambda: cursor_of(messages)._pace.gone_since is not None)
        unserved = alone.jetstream(prefix="unserved.api")
        with redirected(messages, unserved), pytest.raises(errors.OrderedConsumerResetError):
            waiting.result(10)


# --- ends ---------------------------------------------------------------------------------------


def test_stop_deletes_the_server_s_consumer(js, stream):
    """After ``stop`` no message is returned, and the server's consumer is deleted."""
    fill(js, stream.name, 10)
    messages = stream.ordered_consumer().messages()
    assert numbers(messages, 2) == [0, 1]
    assert len(stream.consumer_names()) == 1
    messages.stop()
    messages.stop()
    with pytest.raises(errors.IteratorClosedError):
        messages.next(1)
    assert list(messages) == []
    assert messages.closed
    wait_until(lambda: not stream.consumer_names(), 1)


def test_stop_after_is_exact_over_resets(js, stream):
    """``stop_after`` counts over resets; at the end the server's consumer is deleted."""
    fill(js, stream.name, 50)
    messages = stream.ordered_consumer().messages(stop_after=20, max_messages=8, **ALERT)
    got = numbers(messages, 5)
    delete_consumers(stream)
    got += [int(msg.data) for msg in messages]
    assert got == list(range(20))
    wait_until(lambda: not stream.consumer_names(), 1)


def test_drain_returns_the_buffered_messages(js, stream):
    """After ``drain`` buffered messages can be read, then the iteration ends."""
    fill(js, stream.name, 50)
    messages = stream.ordered_consumer().messages(max_messages=10)
    wait_until(lambda: len(buffered(messages)) == 10)
    messages.drain()
    assert [int(msg.data) for msg in messages] == list(range(10))
    wait_until(lambda: not stream.consumer_names(), 1)


def test_another_thread_s_reset_keeps_to_the_time(alone, filed):
    """While one thread creates a consumer, a read of another thread keeps its timeout."""
    messages = filed.ordered_consumer().messages()
    unserved = redirected(messages, alone.jetstream(prefix="unserved.api"))
    with unserved, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(messages.next)
        break_link(alone)
        wait_until(messages._source._lock.locked)
        with between(0.1, 0.5), pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.1)
        messages.stop()
        with pytest.raises(errors.IteratorClosedError):
            waiting.result(5)


def test_polling_creates_few_consumers_while_none_is_created_in_time(fresh_server, alone, filed):
    """A creation that the deadline cuts short delays the next one, as a short-lived consumer does."""
    with jetstream_sync.connect(fresh_server.url) as observer:
        creations = observer.subscribe("silent.api.CONSUMER.CREATE.>")
        observer.flush()
        messages = filed.ordered_consumer().messages()
        with redirected(messages, alone.jetstream(prefix="silent.api")):
            break_link(alone)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                with pytest.raises(jetstream_sync.TimeoutError):
                    messages.next(timeout=0.01)
            alone.flush()
            observer.flush()
            # The delays after the first two attempts: 0.1, 0.2, 0.4 and 0.8 seconds.
            assert 2 <= creations.pending_msgs <= 6
        fill(alone.jetstream(), "S", 1)
        assert numbers(messages, 1, 30) == [0]
        messages.stop()


@pytest.mark.parametrize("end", ["close", "drain"])
def test_closing_the_connection_ends_an_ordered_iteration(alone, filed, end):
    """When the user closes the connection, iterations and consumes end without an error."""
    messages = filed.ordered_consumer().messages()
    handle = filed.ordered_consumer().consume(print)
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(list, messages)
        with between(0, 1.5):
            if end == "close":
                alone.close()
            else:
                alone.drain()
            assert listed.result(5) == []
            handle.wait_closed(5)
    assert handle.error is None
    with pytest.raises(errors.ConnectionClosedError):
        messages.next(1)


# --- fetch, next, consume -----------------------------------------------------------------------


def test_fetch_and_next_share_one_position(js, stream):
    """``fetch`` and ``next`` share one position; `messages` has its own."""
    fill(js, stream.name, 20)
    ordered = stream.ordered_consumer()
    assert ordered.stream_name == stream.name
    assert [int(msg.data) for msg in ordered.fetch(5)] == [0, 1, 2, 3, 4]
    assert int(ordered.next().data) == 5
    with ordered.messages() as messages:
        assert numbers(messages, 2) == [0, 1]
    assert [int(msg.data) for msg in ordered.fetch(100, timeout=0.2)] == list(range(6, 20))
    with between(0.2, 0.5):
        assert ordered.fetch(1, timeout=0.2) == []
    with pytest.raises(jetstream_sync.TimeoutError):
        ordered.next(0.1)
    assert ordered.cached_info is not None
    assert ordered.cached_info.name in stream.consumer_names()


def test_fetch_is_in_order_over_resets(js, stream):
    """The consumer is deleted between and during fetches: nothing is missing."""
    fill(js, stream.name, 30)
    ordered = stream.ordered_consumer()
    got: list[int] = []
    while len(got) < 25:
        got += [int(msg.data) for msg in ordered.fetch(7, timeout=2)]
        delete_consumers(stream)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ordered.fetch, 31 - len(got), 5, heartbeat=0.5)
        wait_until(stream.consumer_names)
        delete_consumers(stream)
        fill(js, stream.name, 1, first=30)
        got += [int(msg.data) for msg in waiting.result(10)]
    if len(got) < 31:
        got += [int(msg.data) for msg in ordered.fetch(31 - len(got), timeout=2)]
    assert got == list(range(31))


def test_threads_take_from_one_iterator(js, stream):
    """Four threads read one iterator while its consumer is deleted: each message goes to one."""
    fill(js, stream.name, 3000)
    got: list[int] = []
    lock = threading.Lock()
    with stream.ordered_consumer().messages(stop_after=3000, max_messages=100, **ALERT) as messages:

        def work(_: int) -> None:
            mine = [int(msg.data) for msg in messages]
            assert mine == sorted(mine)
            with lock:
                got.extend(mine)

        with ThreadPoolExecutor(5) as pool:
            readers = [pool.submit(work, number) for number in range(4)]
            for _ in range(5):
                delete_consumers(stream)
                wait_until(lambda: stream.consumer_names() or all(r.done() for r in readers), 10)
            for reader in readers:
                reader.result(20)
    assert sorted(got) == list(range(3000))


def test_a_lost_consumer_loses_no_accepted_message(js, stream):
    """
    Messages that one thread has accepted in one step with another one are not lost with the consumer.

    A second thread may find out that the consumer is lost before the first one has taken them all.
    """
    fill(js, stream.name, 300)
    with stream.ordered_consumer().messages(stop_after=300) as messages:
        inner = messages._source._messages
        wait_until(lambda: len(inner._buffer_state()[0]) == 300)
        got = numbers(messages, 10)
        assert len(inner._ready) > 100
        inner.abandon(errors.ConnectionLostError("lost"), cursor_of(messages).rewind)
        assert got + [int(msg.data) for msg in messages] == list(range(300))


@sends_ctrl_c
def test_a_ctrl_c_does_not_lock_out_the_next_call(js, stream):
    """A Ctrl-C around the lock for creating a consumer leaves it free, so that reading continues."""
    fill(js, stream.name, 1)
    with stream.ordered_consumer().messages() as messages:
        source = messages._source
        for moment in range(1, 30):
            cursor_of(messages)._pace.created_at = 0.0  # no delay, as after a long life
            interrupted(lambda: source._recreate(source._messages, Deadline(5)), moment)
            assert not source._lock.locked(), f"at {moment}"
        cursor_of(messages)._pace.created_at = 0.0
        assert messages.next(5).metadata.stream_seq == 1
