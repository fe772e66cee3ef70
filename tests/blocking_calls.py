"""
Every public call that can wait for a server: what its result means, and how to measure its time limit.

The table and the list of docs/topics/waiting.rst are made from this list: run ``python tests/blocking_calls.py``.
"""

from __future__ import annotations

import enum
import inspect
import io
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync.codec import Record

PAGE = Path(__file__).parents[1] / "docs/topics/waiting.rst"
_BEGIN = ".. The table is made by tests/blocking_calls.py.\n"
_END = ".. End of the table.\n"


class Kind(NamedTuple):
    """What calls of one kind promise."""

    title: str
    """The kind, in the plural."""
    returns: str
    """What is true when the call returns."""
    unknown: str
    """What it raises if it cannot know, and what may have happened then."""
    twice: str
    """What may happen twice if the call is repeated after that."""
    test: str
    """The test of the promise, below tests/."""


_TIMEOUT = "``TimeoutError``"

KINDS: dict[str, Kind] = {
    "read": Kind(
        "Reads",
        "the server's reply",
        f"{_TIMEOUT}; the request is repeated every second until then",
        "nothing",
        "server/test_repeated_reads.py::test_reads_end_at_their_deadline",
    ),
    "listing": Kind(
        "Listings",
        "every item that the server counts, or `Listing.missing` names the others",
        f"``IncompleteListingError`` at the end of the iteration; {_TIMEOUT}",
        "nothing",
        "server/test_listings.py::test_a_stopped_server_hides_no_stream_consumer_or_bucket",
    ),
    "change": Kind(
        "Changes of streams, consumers and buckets",
        "the leader has made the change",
        f"{_TIMEOUT}, ``ConnectionClosedError``: the change may have been made",
        "nothing that matters: a second create or update finds the same config, a second delete raises "
        "``NotFoundError``",
        "server/test_blocking_calls.py::test_a_change_without_a_reply_may_have_been_made",
    ),
    "publish": Kind(
        "Publishing",
        "the message is stored, or ``PubAck.duplicate``: an earlier one with this ``msg_id`` is",
        f"{_TIMEOUT}, ``ConnectionClosedError``: the message may be stored, and one that is still "
        "buffered is sent later",
        "the message is stored twice, unless it has a ``msg_id`` or an expectation",
        "server/test_publish.py",
    ),
    "publish_async": Kind(
        "Publishing without waiting",
        "the message is buffered; its future has a result when it is stored",
        f"{_TIMEOUT}: the server accepts no data, and the message is buffered; "
        "``TooManyStalledMsgsError``: nothing was sent",
        "as for ``publish``",
        "server/test_blocking_calls.py::test_publishing_without_waiting_is_limited",
    ),
    "completed": Kind(
        "Waiting for futures",
        "every future of the context is settled, some perhaps with an error",
        _TIMEOUT,
        "nothing",
        "server/test_publish_async.py",
    ),
    "batch": Kind(
        "Atomic batches",
        "all messages of the batch are stored",
        "``BatchUncertainError``: all, some or none may be stored",
        "the messages are stored twice, unless an expectation prevents it",
        "server/test_publish_batch.py",
    ),
    "fast": Kind(
        "Fast publishing",
        "``commit``: all messages are stored; ``add``: the message is on its way",
        "``FastPublishError``: the messages up to ``acked`` are stored, later ones may be",
        "messages after ``acked`` are stored twice",
        "server/test_fast_publish.py",
    ),
    "write": Kind(
        "Writes to a bucket",
        "the value, marker or object is stored with the revision that is returned",
        f"{_TIMEOUT}, ``ConnectionClosedError``: it may be stored",
        "another revision with the same value; ``create`` and ``update`` raise instead",
        "server/test_key_value.py",
    ),
    "lock": Kind(
        "Locks",
        "``acquire``: the lock is held until ``lost``; ``release``: it is free",
        f"``acquire``: false at its timeout; {_TIMEOUT}: the lock may be held until its ``ttl``",
        "nothing",
        "server/test_locks.py",
    ),
    "fetch": Kind(
        "Fetches",
        "messages; ``[]`` if the server said that there are none, or none came in time",
        "``PullError``, ``NoHeartbeatError``: nothing is known of the consumer",
        "a message is delivered again after ``ack_wait``",
        "server/test_fetch.py",
    ),
    "next": Kind(
        "The next message",
        "one message",
        f"{_TIMEOUT}: none came in time; the call can be repeated",
        "a message is delivered again after ``ack_wait``",
        "server/test_next.py",
    ),
    "buffered": Kind(
        "Core publishing and acknowledgements",
        "the message or acknowledgement is buffered, not sent",
        f"{_TIMEOUT} after 10 seconds in which the server accepts no data: it is buffered and may "
        "be sent later",
        "a message is published twice; a message is delivered again if its acknowledgement is lost",
        "server/test_blocking_calls.py::test_publishing_without_waiting_is_limited",
    ),
    "confirmed": Kind(
        "Confirmed acknowledgements",
        "the server has processed the acknowledgement",
        f"{_TIMEOUT}: it may have",
        "nothing: a second acknowledgement of a message has no effect",
        "server/test_acks.py",
    ),
    "request": Kind(
        "Requests to services",
        "the reply of the service",
        f"{_TIMEOUT}, ``ConnectionLostError``: the service may have processed the request",
        "the service processes the request twice",
        "server/test_core_requests.py",
    ),
    "flush": Kind(
        "Flushes",
        "the server has processed everything that was sent before",
        f"{_TIMEOUT}, ``ConnectionLostError``",
        "nothing",
        "server/test_closing.py",
    ),
    "drain": Kind(
        "Drains",
        "all callbacks have returned, and what they sent is with the server",
        "``DrainTimeoutError``: messages, replies or acknowledgements may be lost",
        "a message is delivered again after ``ack_wait``",
        "server/test_drain_close.py",
    ),
    "stop": Kind(
        "Ends",
        "no further message is delivered to the caller",
        "nothing: it does not wait for the server",
        "a buffered message is delivered again after ``ack_wait``",
        "server/test_consume.py",
    ),
    "wait": Kind(
        "Waiting for a state",
        "true, or the state that was waited for",
        f"false or {_TIMEOUT}",
        "nothing",
        "server/test_watch.py",
    ),
    "reader": Kind(
        "Starts of readers",
        "the subscription, iterator or watch exists; a new consumer is on the server",
        f"{_TIMEOUT}: a consumer may exist, until its ``inactive_threshold``",
        "nothing",
        "server/test_blocking_calls.py::test_every_call_ends_at_its_timeout_when_the_server_is_silent",
    ),
    "object": Kind(
        "Objects",
        "``put``, ``close``: the object is stored; ``get``: the data has the digest of the object",
        f"{_TIMEOUT}: the object may be stored, or parts of it, which ``purge_orphans`` removes",
        "the object is replaced by the same data",
        "server/test_object_store_faults.py",
    ),
    "snapshot": Kind(
        "Snapshots",
        "``write_to``: the whole snapshot was received; ``restore_stream``: the stream exists",
        f"``SnapshotBrokenError``, ``RestoreBrokenError``, {_TIMEOUT}: the file is not usable, or the "
        "stream may exist",
        "``restore_stream`` raises ``RestoreNameInUseError``",
        "server/test_snapshots.py",
    ),
}

_LATER = datetime(2100, 1, 1, tzinfo=timezone.utc)


class Call(NamedTuple):
    """A public call that can wait."""

    kind: str
    run: Callable[[Any, float], object] | None = None
    """Makes the call with objects of `test_blocking_calls.Objects` and a timeout in seconds; ``None``: \
it waits for nothing but other threads of the program, or another call of the table includes it."""


CALLS: dict[str, Call] = {
    # --- connections ---
    "Connection.publish": Call("buffered"),
    "Connection.request": Call("request", lambda on, t: on.nc.request("s.x", b"", t)),
    "Connection.request_many": Call(
        "request", lambda on, t: list(on.nc.request_many("s.x", b"", t))
    ),
    "ReplyIterator.__next__": Call("request"),
    "Connection.service_call": Call("request", lambda on, t: on.nc.service_call("s.x", timeout=t)),
    "Connection.service_ping": Call("request", lambda on, t: on.nc.service_ping(timeout=t)),
    "Connection.service_info": Call("request", lambda on, t: on.nc.service_info(timeout=t)),
    "Connection.service_stats": Call("request", lambda on, t: on.nc.service_stats(timeout=t)),
    "Connection.flush": Call("flush", lambda on, t: on.nc.flush(t)),
    "Connection.rtt": Call("flush", lambda on, t: on.nc.rtt(t)),
    "Connection.drain": Call("drain", lambda on, t: on.other_nc.drain(t)),
    "Connection.close": Call("stop"),
    "Msg.respond": Call("buffered"),
    "Subscription.next_msg": Call("next", lambda on, t: on.sub.next_msg(t)),
    "Subscription.drain": Call("drain", lambda on, t: on.sub2.drain(t)),
    "Service.stop": Call("drain", lambda on, t: on.service.stop(t)),
    "Service.wait_stopped": Call("wait", lambda on, t: on.service2.wait_stopped(t)),
    # --- publishing ---
    "JetStream.publish": Call("publish", lambda on, t: on.js.publish("s.a", b"", timeout=t)),
    "JetStream.publish_async": Call(
        "publish_async", lambda on, t: on.js.publish_async("s.a", b"", timeout=t).result()
    ),
    "PubAckFuture.result": Call("publish_async"),
    "PubAckFuture.exception": Call("publish_async"),
    "JetStream.publish_async_completed": Call(
        "completed", lambda on, t: (on.js2.publish_async("s.a"), on.js2.publish_async_completed(t))
    ),
    "JetStream.publish_batch": Call(
        "batch", lambda on, t: on.js.publish_batch([("s.a", b"")], timeout=t)
    ),
    "JetStream.batch": Call("batch"),
    "Batch.commit": Call("batch", lambda on, t: on.batch.commit(t)),
    "JetStream.fast_publish": Call("fast", lambda on, t: on.js3.fast_publish(timeout=t)),
    "FastPublisher.add": Call("fast", lambda on, t: on.fast(t).add("s.f")),
    "FastPublisher.commit": Call("fast", lambda on, _: on.started_fast.commit()),
    "JetStream.schedule": Call(
        "publish", lambda on, t: on.js.schedule("s.s", b"", target="s.a", every=60, timeout=t)
    ),
    "JetStream.cancel_schedule": Call("change", lambda on, _: on.js.cancel_schedule("s.s")),
    "JetStream.counters": Call("read", lambda on, _: on.js.counters("S")),
    "Counters.add": Call("publish", lambda on, t: on.counters.add("c.a", 1, timeout=t)),
    "Counters.get": Call("read", lambda on, _: on.counters.get("c.a")),
    "Counters.items": Call("read", lambda on, _: list(on.counters.items())),
    "Counters.reset": Call("change", lambda on, _: on.counters.reset("c.a")),
    # --- streams ---
    "JetStream.account_info": Call("read", lambda on, _: on.js.account_info()),
    "JetStream.create_stream": Call("change", lambda on, _: on.js.create_stream(name="X")),
    "JetStream.update_stream": Call("change", lambda on, _: on.js.update_stream(name="X")),
    "JetStream.create_or_update_stream": Call(
        "change", lambda on, _: on.js.create_or_update_stream(name="X")
    ),
    "JetStream.get_stream": Call("read", lambda on, _: on.js.get_stream("S")),
    "JetStream.delete_stream": Call("change", lambda on, _: on.js.delete_stream("X")),
    "JetStream.stream_names": Call("listing", lambda on, _: on.js.stream_names()),
    "JetStream.list_streams": Call("listing", lambda on, _: on.js.list_streams()),
    "JetStream.find_stream_name_by_subject": Call(
        "read", lambda on, _: on.js.find_stream_name_by_subject("s.a")
    ),
    "JetStream.restore_stream": Call(
        "snapshot",
        lambda on, t: on.js.restore_stream(
            on.snapshot_info, io.BytesIO(b"x"), timeout=t, final_timeout=t
        ),
    ),
    "Stream.info": Call("read", lambda on, _: on.stream.info()),
    "Stream.get_msg": Call("read", lambda on, _: on.stream.get_msg(1)),
    "Stream.get_msgs": Call("read", lambda on, t: list(on.stream.get_msgs(5, timeout=t))),
    "Stream.get_last_msgs": Call("read", lambda on, _: list(on.stream.get_last_msgs("s.*"))),
    "Stream.delete_msg": Call("change", lambda on, _: on.stream.delete_msg(1)),
    "Stream.purge": Call("change", lambda on, _: on.stream.purge()),
    "Stream.schedules": Call("read", lambda on, _: on.stream.schedules()),
    "Stream.snapshot": Call("snapshot", lambda on, t: on.stream.snapshot(timeout=t)),
    "StreamSnapshot.write_to": Call("snapshot"),
    "StreamSnapshot.close": Call("stop"),
    "Stream.step_down": Call("change", lambda on, _: on.stream.step_down()),
    "Stream.remove_peer": Call("change", lambda on, _: on.stream.remove_peer("p")),
    "Stream.step_down_consumer": Call("change", lambda on, _: on.stream.step_down_consumer("C")),
    # --- consumers ---
    **{
        f"{owner}.{name}": Call(kind, run)
        for owner, first in (("JetStream", ("S",)), ("Stream", ()))
        for name, kind, run in (
            (
                name,
                kind,
                lambda on, _, owner=owner, name=name, first=first, args=args, more=more: getattr(
                    on.js if owner == "JetStream" else on.stream, name
                )(*first, *args, **more),
            )
            for name, kind, args, more in (
                ("create_consumer", "change", (), {"name": "X"}),
                ("update_consumer", "change", (), {"name": "X"}),
                ("create_or_update_consumer", "change", (), {"name": "X"}),
                ("create_push_consumer", "change", (), {"name": "Y", "deliver_subject": "y"}),
                ("update_push_consumer", "change", (), {"name": "Y", "deliver_subject": "y"}),
                ("get_consumer", "read", ("C",), {}),
                ("consumer_info", "read", ("C",), {}),
                ("delete_consumer", "change", ("X",), {}),
                ("consumer_names", "listing", (), {}),
                ("list_consumers", "listing", (), {}),
                ("pause_consumer", "change", ("C", _LATER), {}),
                ("resume_consumer", "change", ("C",), {}),
                ("reset_consumer", "change", ("C",), {}),
                ("unpin_consumer", "change", ("C", "g"), {}),
                ("ordered_consumer", "reader", (), {}),
            )
        )
    },
    "PullConsumer.info": Call("read", lambda on, t: on.consumer.info(t)),
    "PullConsumer.stranded": Call("read", lambda on, _: on.consumer.stranded()),
    "Stream.stranded": Call("read", lambda on, _: on.stream.stranded("C")),
    "PullConsumer.reset": Call("change", lambda on, _: on.consumer.reset()),
    "PullConsumer.fetch": Call("fetch", lambda on, t: on.consumer.fetch(1, t)),
    "PullConsumer.fetch_no_wait": Call("fetch"),
    "PullConsumer.next": Call("next", lambda on, t: on.consumer.next(t)),
    "PullConsumer.messages": Call("reader", lambda on, _: on.consumer.messages().stop()),
    "PullConsumer.consume": Call("reader", lambda on, _: on.consumer.consume(print).stop()),
    "OrderedConsumer.info": Call("read", lambda on, t: on.ordered.info(t)),
    "OrderedConsumer.fetch": Call("fetch", lambda on, t: on.ordered.fetch(1, t)),
    "OrderedConsumer.fetch_no_wait": Call("fetch"),
    "OrderedConsumer.next": Call("next", lambda on, t: on.ordered2.next(t)),
    "OrderedConsumer.messages": Call("reader", lambda on, _: on.ordered3.messages()),
    "OrderedConsumer.consume": Call("reader", lambda on, _: on.ordered4.consume(print)),
    "OrderedConsumer.close": Call("stop"),
    "MessageIterator.next": Call("next", lambda on, t: on.messages.next(t)),
    **{
        f"{name}.__next__": Call("next") for name in ("MessageIterator", "OrderedMessages", "Watch")
    },
    "MessageIterator.drain": Call("drain", lambda on, t: on.messages2.drain(t)),
    "OrderedMessages.next": Call("next", lambda on, t: on.ordered_messages.next(t)),
    "OrderedMessages.drain": Call("drain", lambda on, t: on.ordered_messages2.drain(t)),
    "ConsumeHandle.drain": Call("drain", lambda on, t: on.handle.drain(t)),
    "ConsumeHandle.wait_closed": Call("wait", lambda on, t: on.handle2.wait_closed(t)),
    **{
        f"{name}.stop": Call("stop")
        for name in ("MessageIterator", "OrderedMessages", "ConsumeHandle", "Watch", "WatchHandle")
    },
    # --- subscriptions to streams ---
    "JetStream.subscribe": Call("reader", lambda on, _: on.js.subscribe("s.a")),
    "JetStream.subscribe_bind": Call("reader", lambda on, _: on.js.subscribe_bind("S", "P")),
    "JetStream.pull_subscribe": Call("reader", lambda on, _: on.js.pull_subscribe("s.a", "D")),
    "JetStream.pull_subscribe_bind": Call(
        "reader", lambda on, _: on.js.pull_subscribe_bind("C", "S")
    ),
    "PullSubscription.fetch": Call("fetch", lambda on, t: on.psub.fetch(1, t)),
    "PullSubscription.consumer_info": Call("read", lambda on, t: on.psub.consumer_info(t)),
    "PullSubscription.drain": Call("drain", lambda on, t: on.psub2.drain(t)),
    "PullSubscription.unsubscribe": Call("stop", lambda on, _: on.psub3.unsubscribe()),
    "OrderedSubscription.next_msg": Call("next", lambda on, t: on.ordered_sub.next_msg(t)),
    "OrderedSubscription.consumer_info": Call(
        "read", lambda on, t: on.ordered_sub.consumer_info(t)
    ),
    "OrderedSubscription.drain": Call("drain", lambda on, t: on.ordered_sub2.drain(t)),
    "OrderedSubscription.unsubscribe": Call("stop", lambda on, _: on.ordered_sub3.unsubscribe()),
    "PushSubscription.next_msg": Call("next", lambda on, t: on.push.next_msg(t)),
    "PushSubscription.consumer_info": Call("read", lambda on, t: on.push.consumer_info(t)),
    "PushSubscription.drain": Call("drain", lambda on, t: on.push2.drain(t)),
    "PushSubscription.unsubscribe": Call("stop", lambda on, _: on.push3.unsubscribe()),
    "JetStreamMsg.ack": Call("buffered"),
    "JetStreamMsg.nak": Call("buffered"),
    "JetStreamMsg.term": Call("buffered"),
    "JetStreamMsg.in_progress": Call("buffered"),
    "JetStreamMsg.respond": Call("buffered"),
    "JetStreamMsg.ack_sync": Call("confirmed", lambda on, t: on.message.ack_sync(t)),
    # --- groups ---
    "ConsumerGroups.create_static": Call(
        "change", lambda on, _: on.groups.create_static("S", "g2", 2, ["a"])
    ),
    "ConsumerGroups.create_elastic": Call(
        "change",
        lambda on, _: on.groups.create_elastic("S", "e2", 2, {"s.*": [1]}),
    ),
    "ConsumerGroups.get": Call("read", lambda on, _: on.groups.get("S", "e")),
    "ConsumerGroups.list": Call("read", lambda on, _: on.groups.list("S")),
    **{
        f"{owner}.{name}": Call(kind, run)
        for owner in ("ConsumerGroup", "StaticConsumerGroup", "ElasticConsumerGroup")
        for name, kind, run in (
            ("config", "read", lambda on, _: on.group.config()),
            ("partitions", "read", lambda on, _: on.group.partitions()),
            ("active_members", "listing", lambda on, _: on.group.active_members()),
            ("absent_members", "listing", lambda on, _: on.group.absent_members()),
            ("consume", "reader", lambda on, _: on.group.consume("a", print)),
            ("delete", "change", lambda on, _: on.group.delete()),
            ("step_down", "change", lambda on, _: on.group.step_down("a")),
        )
    },
    "ElasticConsumerGroup.add_members": Call("change", lambda on, _: on.group.add_members("b")),
    "ElasticConsumerGroup.drop_members": Call("change", lambda on, _: on.group.drop_members("b")),
    "ElasticConsumerGroup.set_mappings": Call(
        "change", lambda on, _: on.group.set_mappings({"a": [0, 1]})
    ),
    "GroupConsumeHandle.drain": Call("drain"),
    "GroupConsumeHandle.stop": Call("stop"),
    "GroupConsumeHandle.wait_closed": Call("wait"),
    # --- buckets ---
    **{
        f"JetStream.{name}": Call(
            kind, lambda on, _, name=name, args=args, more=more: getattr(on.js, name)(*args, **more)
        )
        for name, kind, args, more in (
            ("create_key_value", "change", (), {"bucket": "x"}),
            ("update_key_value", "change", (), {"bucket": "x"}),
            ("create_or_update_key_value", "change", (), {"bucket": "x"}),
            ("key_value", "read", ("b",), {}),
            ("delete_key_value", "change", ("x",), {}),
            ("key_value_names", "listing", (), {}),
            ("list_key_values", "listing", (), {}),
            ("create_object_store", "change", (), {"bucket": "x"}),
            ("update_object_store", "change", (), {"bucket": "x"}),
            ("create_or_update_object_store", "change", (), {"bucket": "x"}),
            ("object_store", "read", ("o",), {}),
            ("delete_object_store", "change", ("x",), {}),
            ("object_store_names", "listing", (), {}),
            ("list_object_stores", "listing", (), {}),
        )
    },
    "KeyValue.status": Call("read", lambda on, _: on.kv.status()),
    "KeyValue.get": Call("read", lambda on, t: on.kv.get("k", timeout=t)),
    "KeyValue.value": Call("read", lambda on, _: on.kv.value("k")),
    "KeyValue.get_many": Call("read", lambda on, _: on.kv.get_many(["k", "l"])),
    "KeyValue.history": Call("read", lambda on, _: on.kv.history("k")),
    "KeyValue.keys": Call("read", lambda on, _: on.kv.keys()),
    "KeyValue.iter_keys": Call("read", lambda on, _: list(on.kv.iter_keys())),
    "KeyValue.put": Call("write", lambda on, _: on.kv.put("k", b"")),
    "KeyValue.create": Call("write", lambda on, _: on.kv.create("n", b"")),
    "KeyValue.update": Call("write", lambda on, _: on.kv.update("k", b"", 1)),
    "KeyValue.delete": Call("write", lambda on, _: on.kv.delete("k")),
    "KeyValue.purge": Call("write", lambda on, _: on.kv.purge("k")),
    "KeyValue.modify": Call("write", lambda on, _: on.kv.modify("k", lambda _: b"")),
    "KeyValue.purge_deletes": Call("change", lambda on, _: on.kv.purge_deletes()),
    "KeyValue.watch": Call("reader", lambda on, t: on.kv.watch(timeout=t)),
    "KeyValue.replica": Call("reader", lambda on, _: on.kv.replica()),
    "KeyValue.lock": Call("lock"),
    "Lock.acquire": Call("lock", lambda on, t: on.lock.acquire(t)),
    "Lock.release": Call("lock", lambda on, _: on.held_lock.release()),
    "Lock.wait_lost": Call("wait", lambda on, t: on.held_lock2.wait_lost(t)),
    "Watch.next": Call("next", lambda on, t: on.watch.next(t)),
    "Watch.initial": Call("read", lambda on, t: list(on.watch2.initial(t))),
    "Watch.wait_current": Call("wait", lambda on, t: on.watch4.wait_current(t)),
    "Watch.drain": Call("drain", lambda on, t: on.watch3.drain(t)),
    "WatchHandle.drain": Call("drain", lambda on, t: on.watch_handle.drain(t)),
    "WatchHandle.wait_closed": Call("wait", lambda on, t: on.watch_handle2.wait_closed(t)),
    "WatchHandle.wait_current": Call("wait", lambda on, t: on.watch_handle2.wait_current(t)),
    "Replica.wait_current": Call("wait", lambda on, t: on.replica.wait_current(t)),
    "Replica.wait_for": Call("wait", lambda on, t: on.replica.wait_for(10**6, t)),
    "Replica.close": Call("stop"),
    # --- objects ---
    "ObjectStore.status": Call("read", lambda on, _: on.store.status()),
    "ObjectStore.info": Call("read", lambda on, t: on.store.info("f", timeout=t)),
    "ObjectStore.list": Call("read", lambda on, t: on.store.list(timeout=t)),
    "ObjectStore.put": Call("object", lambda on, t: on.store.put("g", b"x" * 300_000, timeout=t)),
    "ObjectStore.put_file": Call(
        "object", lambda on, t: on.store.put_file(__file__, "g", timeout=t)
    ),
    "ObjectStore.open": Call("object", lambda on, t: on.store.open("f", timeout=t).read()),
    "ObjectStore.get_bytes": Call("object", lambda on, t: on.store.get_bytes("f", timeout=t)),
    "ObjectStore.get_file": Call(
        "object", lambda on, t: on.store.get_file("f", on.path, timeout=t)
    ),
    "ObjectStore.delete": Call("change", lambda on, t: on.store.delete("f", timeout=t)),
    "ObjectStore.update_meta": Call(
        "change", lambda on, t: on.store.update_meta("f", on.meta, timeout=t)
    ),
    "ObjectStore.add_link": Call(
        "object", lambda on, t: on.store.add_link("l", on.info, timeout=t)
    ),
    "ObjectStore.add_bucket_link": Call(
        "object", lambda on, t: on.store.add_bucket_link("l", on.store, timeout=t)
    ),
    "ObjectStore.purge_orphans": Call("change", lambda on, t: on.store.purge_orphans(timeout=t)),
    "ObjectStore.seal": Call("change", lambda on, _: on.store.seal()),
    "ObjectStore.watch": Call("reader", lambda on, _: on.store.watch()),
    **{
        f"ObjectReader.{name}": Call("object")
        for name in ("read", "readall", "readinto", "readline", "readlines", "peek", "read_chunk")
    },
    "ObjectReader.__next__": Call("object"),
    "ObjectWriter.write": Call("object"),
    "ObjectWriter.writelines": Call("object"),
    "ObjectWriter.close": Call("object", lambda on, t: on.writer(t).close()),
    "ObjectWriter.discard": Call("object"),
}

#: Public calls that do not wait for a server: they change or return what is in memory, or end a reader.
_LOCAL = {
    "Connection": "add_listener remove_listener add_service jetstream new_inbox reconnect set_server_pool subscribe",
    "Subscription": "unsubscribe",
    "ReplyIterator": "close",
    "Service": "add_endpoint add_group endpoint group info reset",
    "Batch": "add",
    "KeyValue": "with_codecs",
    "Lock": "check",
    "Replica": "entry get items keys values",
    "MessageIterator": "request",
    "OrderedMessages": "request",
    "ObjectReader": "close fileno flush isatty readable seek seekable tell truncate writable write "
    "writelines",
    "ObjectWriter": "__next__ fileno flush isatty read readable readall readinto readline readlines seek "
    "seekable tell truncate writable",
    "ConsumerGroup": "consumer_name",
    "StaticConsumerGroup": "consumer_name",
    "ElasticConsumerGroup": "consumer_name",
    "Listing": "check count index",
    "PubAckFuture": "add_done_callback done forked future settle settle_run",
}
#: Classes that hold values, or encode them, or describe options.
_VALUES = [
    "Base64Keys",
    "KeyCodec",
    "PathKeys",
    "ValueCodec",
    "KeyValueEntry",
    "PubAck",
    "Metadata",
    "Schedule",
    "Headers",
    "Status",
    "CounterEntry",
    "StoredMsg",
]


def public_calls() -> set[str]:
    """Return the public methods of the package that are not `_LOCAL`."""
    found = set()
    for name in jetstream_sync.__all__:
        cls = getattr(jetstream_sync, name)
        if (
            not inspect.isclass(cls)
            or name in _VALUES
            or issubclass(cls, (BaseException, enum.Enum))
        ):
            continue
        if issubclass(cls, (Record, dict)) or hasattr(cls, "__dataclass_fields__"):
            continue
        local = _LOCAL.get(name, "").split()
        found |= {
            f"{name}.{method}"
            for method in dir(cls)
            if (method == "__next__" or not method.startswith("_"))
            and method not in local
            and callable(getattr(cls, method, None))
        }
    return found


def rows() -> list[tuple[str, str, str, str]]:
    """Return the cells of the table, a row for each kind."""
    return [(kind.title, kind.returns, kind.unknown, kind.twice) for kind in KINDS.values()]


def table() -> str:
    """Return the table of promises, and the calls with each of them."""
    heads = ("Calls", "A return means", "If it cannot know", "What may happen twice")
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 16 28 30 26", ""]
    for cells in (heads, *rows()):
        lines += [f"   {'*' if not at else ' '} - {cell}" for at, cell in enumerate(cells)]
    for name, kind in KINDS.items():
        lines += ["", kind.title]
        calls: dict[str, list[str]] = {}
        for call, row in CALLS.items():
            if row.kind == name and not call.endswith("__next__"):
                owner, method = call.split(".")
                calls.setdefault(owner, []).append(f"``{method}``")
        lines += [f"   | {owner}: {', '.join(methods)}" for owner, methods in calls.items()]
    return "\n".join(lines) + "\n"


def page_with_table() -> str:
    """Return the page with the current table."""
    text = PAGE.read_text()
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    return f"{text[:begin]}\n{table()}\n{text[end:]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table())
    sys.stdout.write(f"wrote {PAGE}\n")
