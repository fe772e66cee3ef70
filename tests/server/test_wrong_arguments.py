"""Arguments of wrong types: the error names the argument and the rule, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fixtures.internals import core_of

from jetstream_sync import Connection, JetStream, KeyValue, ObjectStore, Stream, errors


class Objects:
    """What the calls below are made on."""

    def __init__(self, nc: Connection, js: JetStream, stream: Stream) -> None:
        self.nc = nc
        self.js = js
        self.stream = stream
        self.consumer = stream.create_consumer(durable_name="C")
        self.kv: KeyValue = js.create_key_value(bucket="WRONG", storage="memory")
        self.store: ObjectStore = js.create_object_store(bucket="WRONG", storage="memory")


@pytest.fixture
def on(nc: Connection, js: JetStream, stream: Stream) -> Objects:
    return Objects(nc, js, stream)


def static(on: Objects, **options: Any) -> object:
    """Create a static group."""
    return on.js.consumer_groups.create_static(on.stream.name, "g", 2, **options)


#: Argument and call.
CALLS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "headers as a text": ("headers", lambda on: on.nc.publish("a", headers="x")),
    "headers as pairs": ("headers", lambda on: on.nc.request("a", headers=[("a", "b")])),
    "headers beside an id": (
        "headers",
        lambda on: on.js.publish("a", headers=[("a", "b")], msg_id="1"),
    ),
    "no limit of messages": (
        "pending_msgs_limit",
        lambda on: on.nc.subscribe("a", pending_msgs_limit=None),
    ),
    "limit of bytes": (
        "pending_bytes_limit",
        lambda on: on.nc.subscribe("a", pending_bytes_limit=1.5),
    ),
    "a text as a batch": ("messages", lambda on: on.js.publish_batch("a.b")),
    "texts in a batch": ("messages", lambda on: on.js.publish_batch(["a.b", "a.c"])),
    "a mapping as a batch": ("messages", lambda on: on.js.publish_batch({"a.b": b"1"})),
    "metadata of a service": (
        "metadata",
        lambda on: on.nc.add_service("s", "1.0.0", metadata=7),
    ),
    "description of a service": (
        "description",
        lambda on: on.nc.add_service("s", "1.0.0", description=7),
    ),
    "empty id of a service": ("id", lambda on: on.nc.service_ping("s", "")),
    "id of a service": ("id", lambda on: on.nc.service_ping("s", 7)),
    "prefix": ("prefix", lambda on: on.nc.jetstream(prefix=7)),
    "empty domain": ("domain", lambda on: on.nc.jetstream(domain="")),
    "batch of a fetch": ("batch", lambda on: on.consumer.fetch([1])),
    "too large a batch": ("batch", lambda on: on.consumer.fetch(2**63)),
    "timeout of a fetch": ("timeout", lambda on: on.consumer.fetch(1, timeout=[1])),
    "no_wait of a fetch": ("no_wait", lambda on: on.consumer.fetch(1, no_wait=True)),
    "no_wait of next": ("no_wait", lambda on: on.consumer.next(no_wait=True)),
    "no_wait twice": ("no_wait", lambda on: on.consumer.fetch_no_wait(1, no_wait=False)),
    "gaps of a fast publish": ("gaps", lambda on: on.js.fast_publish(gaps=["fail"])),
    "group of a fetch": ("group", lambda on: on.consumer.fetch(1, group="")),
    "buffer": ("max_messages", lambda on: on.consumer.messages(max_messages={})),
    "filters": ("filter_subjects", lambda on: on.stream.ordered_consumer(filter_subjects=7)),
    "start": ("opt_start_seq", lambda on: on.stream.ordered_consumer(opt_start_seq=[1])),
    "function": ("function", lambda on: on.kv.modify("a", b"value")),
    "no keys": ("keys", lambda on: on.kv.watch([])),
    "no keys of a replica": ("keys", lambda on: on.kv.replica(())),
    "codec": ("key", lambda on: on.kv.with_codecs(key=str)),
    "timeout of a lock": ("timeout", lambda on: on.kv.lock("a", timeout="5")),
    "progress": ("progress", lambda on: on.store.put("a", b"1", progress=True)),
    "members of a group": ("members", lambda on: static(on, members="worker")),
    "filters of a group": ("filters", lambda on: static(on, filters="orders.>")),
    "mappings of a group": ("mappings", lambda on: static(on, mappings={"a": 1})),
    "filters by name": (
        "filters",
        lambda on: on.js.consumer_groups.create_elastic(on.stream.name, "g", 2, ["orders.*"]),
    ),
}


@pytest.mark.parametrize(("name", "call"), CALLS.values(), ids=CALLS)
def test_an_argument_of_a_wrong_type_is_named(on, name, call):
    """Nothing is sent for it, also where values are compared or cached later."""
    sent = core_of(on.nc).writer.out_msgs
    with pytest.raises(errors.InvalidArgumentError, match=name):
        call(on)
    assert core_of(on.nc).writer.out_msgs == sent


def test_a_file_number_is_not_a_path(on):
    """A number would be read as an open file, and closed."""
    with pytest.raises(TypeError, match="PathLike"):
        on.store.put_file(1, "a")
