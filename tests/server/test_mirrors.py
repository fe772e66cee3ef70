"""Reads of a stream while its mirrors answer direct gets in its place, with other messages than it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fixtures.fake_jetstream import scripted, send_block, send_end
from fixtures.threads import wait_until

from jetstream_sync import (
    Connection,
    JetStream,
    Msg,
    Stream,
    StreamSource,
    SubjectTransform,
    connect,
    errors,
)
from jetstream_sync.spark.reading.direct import count_from_each, matching_seqs

#: Enough calls that mirrors answer some of them; each reply is of a stream chosen at random.
CALLS = 24
#: What mirrors have: not all messages, the last ones only, and all under another subject.
KINDS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "filter": lambda origin, first: {"mirror": StreamSource(name=origin, filter_subject=first)},
    "limit": lambda origin, _: {"mirror": StreamSource(name=origin), "max_msgs": 1},
    "transform": lambda origin, _: {
        "mirror": StreamSource(
            name=origin, subject_transforms=[SubjectTransform(src=">", dest="moved.>")]
        )
    },
    "disallowed": lambda origin, first: {
        "mirror": StreamSource(name=origin, filter_subject=first),
        "mirror_direct": False,
    },
}


def add_mirrors(nc: Connection, js: JetStream, origin: Stream, kind: str, first: str) -> None:
    """Create two mirrors, and wait until direct gets show that one of them answers for the stream."""
    for number in range(2):
        js.create_stream(name=f"{origin.name}_M{number}", **KINDS[kind](origin.name, first))

    def answers() -> bool:
        request = json.dumps({"seq": 2}).encode()
        reply = nc.request(f"$JS.API.DIRECT.GET.{origin.name}", request, timeout=1)
        headers = reply.headers or {}
        return headers.get("Nats-Stream") != origin.name or kind == "limit"

    wait_until(answers)


@pytest.fixture(params=list(KINDS))
def origin(request: pytest.FixtureRequest, nc: Connection, js: JetStream, stream_name: str) -> Any:
    """A stream with the subjects a, b and c, of which b has two messages, and two mirrors of it."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.*"], allow_direct=True, storage="memory"
    )
    for key in "abcb":
        js.publish(f"{stream_name}.{key}", key.encode())
    add_mirrors(nc, js, stream, request.param, f"{stream_name}.a")
    return stream


def test_a_message_of_the_stream_is_always_found(origin):
    """Each selector of a stored message returns this message, from the stream itself."""
    name = origin.name
    for _ in range(CALLS):
        by_seq = origin.get_msg(2)
        assert (by_seq.stream, by_seq.subject, by_seq.data) == (name, f"{name}.b", b"b")
        assert origin.get_msg(last_by_subject=f"{name}.c").seq == 3
        assert origin.get_msg(last_by_subject=f"{name}.*").seq == 4
        assert origin.get_msg(2, next_by_subject=f"{name}.b").seq == 2
        assert origin.get_msg(1, next_by_subject=">").subject == f"{name}.a"
        with pytest.raises(errors.MessageNotFoundError):
            origin.get_msg(9)
        with pytest.raises(errors.MessageNotFoundError):
            origin.get_msg(last_by_subject=f"{name}.none")


def test_many_messages_are_those_of_the_stream(origin):
    """Repeated batches return every message of the stream, and no other."""
    for _ in range(CALLS):
        seqs: list[int] = []
        while found := origin.get_msgs(2, (seqs[-1] if seqs else 0) + 1):
            assert {msg.subject.split(".")[0] for msg in found} == {origin.name}
            seqs += [msg.seq for msg in found]
        assert seqs == [1, 2, 3, 4]


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("batch", [None, 1])
def test_the_last_messages_are_those_of_the_stream(origin, batch):
    """The last messages of subjects are complete, on several pages and at an earlier point as well."""
    name = origin.name

    def read(subjects: Any, **options: Any) -> list[tuple[str, int]]:
        found = origin.get_last_msgs(subjects, batch=batch, **options)
        return [(msg.subject[-1], msg.seq) for msg in found if msg.stream == name]

    between = origin.get_msg(4).time
    for _ in range(CALLS):
        assert read([f"{name}.*"]) == [("a", 1), ("c", 3), ("b", 4)]
        assert read([f"{name}.b", f"{name}.x"]) == [("b", 4)]
        assert read([f"{name}.x"]) == []
        for options in ({"up_to_seq": 3}, {"up_to_time": between}):
            assert read([f"{name}.*", f"{name}.b"], **options) == [("a", 1), ("b", 2), ("c", 3)]
        assert read([f"{name}.c"], up_to_seq=2) == []
        assert origin.schedules() == []


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_key_that_exists_is_always_found(nc, js, stream_name, kind):
    """A mirror that is made while keys are read does not hide keys, and adds none."""
    kv = js.create_key_value(bucket=stream_name, storage="memory")
    for key in ("first", "one", "two"):
        kv.put(key, key.encode())
    with pytest.raises(errors.KeyNotFoundError):
        kv.get("none")
    kv.delete("first")
    add_mirrors(nc, js, js.get_stream(f"KV_{stream_name}"), kind, f"$KV.{stream_name}.first")
    for _ in range(CALLS):
        assert kv.get("one").value == b"one"
        assert kv.get("two", revision=3).value == b"two"
        assert kv.value("two") == b"two"
        assert "two" in kv
        assert "first" not in kv
        assert kv.value("none") is None
        with pytest.raises(errors.KeyNotFoundError):
            kv.get("first")
        assert sorted(kv.keys()) == ["one", "two"]
        assert {key: entry.value for key, entry in kv.get_many(["one", "two", "none"]).items()} == {
            "one": b"one",
            "two": b"two",
        }
        assert sorted(kv.get_many(">")) == ["one", "two"]
        assert kv.get_many(["none"]) == {}


@pytest.mark.server(">=2.12")
def test_counters_are_those_of_the_stream(nc, js, stream_name):
    """Counters are read from the stream, although a mirror without most of them answers for it."""
    stream = js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.*"],
        allow_direct=True,
        allow_msg_counter=True,
        storage="memory",
    )
    counters = js.counters(stream_name)
    for key in "ab":
        counters.add(f"{stream_name}.{key}", 3)
    add_mirrors(nc, js, stream, "filter", f"{stream_name}.a")
    for _ in range(CALLS):
        assert counters.get(f"{stream_name}.b").value == 3
        assert len(list(counters.items())) == 2


def test_a_found_key_takes_one_request_and_a_missing_key_two(nc, js, stream_name):
    """Only a key that seems to be missing is asked for again, at the leader."""
    kv = js.create_key_value(bucket=stream_name, storage="memory")
    kv.put("a", b"1")
    routes = nc.subscribe("$JS.API.>")
    nc.flush()
    before = nc.stats["out_msgs"]
    assert kv.get("a").value == b"1"
    assert nc.stats["out_msgs"] == before + 1
    assert kv.value("b") is None
    assert nc.stats["out_msgs"] == before + 3
    asked = [routes.next_msg(timeout=2).subject for _ in range(3)]
    assert [subject.split(".")[2] for subject in asked] == ["DIRECT", "DIRECT", "STREAM"]


@pytest.mark.parametrize("call", ["get_msg", "get_msgs"])
def test_a_replica_that_is_behind_does_not_hide_a_message(nats_server, js, stream_name, call):
    """A reply that finds nothing does not count, until the leader finds nothing, too."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name], allow_direct=True)
    js.publish(stream_name, b"1")
    missing = b"NATS/1.0 404 Message Not Found\r\n\r\n"
    with scripted(nats_server, lambda nc, msg, _: send_block(nc, msg, missing)) as user:
        behind = user.jetstream(prefix="FAKE").get_stream(stream.name)
        if call == "get_msg":
            assert behind.get_msg(1).data == b"1"
            assert behind.get_msg(last_by_subject=stream_name).data == b"1"
        else:
            assert [msg.seq for msg in behind.get_msgs(10)] == [1]
            assert behind.get_msgs(10, 2) == []


@pytest.mark.server(">=2.11")
def test_keys_that_a_replica_does_not_have_yet_are_read_from_the_leader(nats_server, js):
    """Keys that are missing in an incomplete reply are looked up once more."""
    kv = js.create_key_value(bucket="BEHIND", storage="memory")
    for key in ("a", "b"):
        kv.put(key, key.encode())

    with connect(nats_server.url) as proxy, connect(nats_server.url) as nc:

        def forward(msg: Msg) -> None:
            subject = msg.subject.replace("$JS.FAKE.API", "$JS.API")
            if ".DIRECT.GET." not in subject:
                proxy.publish(subject, msg.data, reply=msg.reply)
                return
            headers = {
                "Nats-Stream": "KV_BEHIND",
                "Nats-Subject": "$KV.BEHIND.a",
                "Nats-Sequence": "1",
                "Nats-Time-Stamp": "2026-01-15T10:00:00Z",
                "Nats-Num-Pending": "0",
                "Nats-Last-Sequence": "0",
            }
            proxy.publish(msg.reply, b"a", headers=headers)
            send_end(proxy, msg, 1)

        proxy.subscribe("$JS.FAKE.API.>", cb=forward)
        proxy.flush()
        bucket = nc.jetstream(domain="FAKE").key_value("BEHIND")
        found = bucket.get_many(["a", "b", "c"])
        assert {key: entry.value for key, entry in found.items()} == {"a": b"a", "b": b"b"}
    js.delete_key_value("BEHIND")


@pytest.mark.server(">=2.11")
def test_spark_counts_the_messages_of_the_stream(js, origin):
    """The numbers that Spark plans with are those of the stream."""
    for _ in range(CALLS):
        assert count_from_each(js, origin.name, [1, 3], [None]) == [(1, 4), (3, 2)]
        seqs = matching_seqs(js, origin.name, 1, [f"{origin.name}.b"], 3)
        assert seqs in ([2, 4], None)
