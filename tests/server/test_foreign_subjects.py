"""Messages of other clients under subjects that no key or object has, and with headers that no client here sends."""

from __future__ import annotations

import base64

import pytest
from fixtures.rawnats import RawPeer
from fixtures.threads import SCALE, wait_until

from jetstream_sync import JetStream
from jetstream_sync.server import NatsServer

_DELETED = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


def publish(peer: RawPeer, subject: bytes, data: bytes = b"", header: bytes = b"") -> None:
    """Publish under any subject, as the client of another language may."""
    verb, sizes = b"PUB", b"%d" % len(data)
    if header:
        verb, sizes = b"HPUB", b"%d %d" % (len(header), len(header) + len(data))
    peer.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n')
    peer.send(b"%b %b %b\r\n%b%b\r\nPING\r\n" % (verb, subject, sizes, header, data))
    peer.expect(b"PONG\r\n")


@pytest.mark.parametrize("key", [b">", b"*", b"c.*", b"bad\xff", b"bad\x01"])
def test_a_deletion_of_no_key_removes_no_other(js: JetStream, peer: RawPeer, key: bytes) -> None:
    """A marker under a pattern is not purged, since all keys that match would be."""
    kv = js.create_key_value(bucket="FOREIGN", storage="memory")
    for name in ("a", "b", "c.d", "gone"):
        kv.put(name, b"value")
    kv.delete("gone")
    publish(peer, b"$KV.FOREIGN." + key, header=_DELETED)
    assert kv.purge_deletes(0) == 1
    assert [kv.value(name) for name in ("a", "b", "c.d")] == [b"value"] * 3
    js.delete_key_value("FOREIGN")


@pytest.mark.parametrize("key", [b"bad\xff", b"\xe2\x82", b">", b"*"])
def test_a_key_of_another_client_survives_an_outage(fresh_server: NatsServer, alone, key) -> None:
    """The watch reports neither that it was deleted, nor that the bucket is another one."""
    kv = alone.jetstream().create_key_value(bucket="FOREIGN")
    kv.put("a", b"value")
    with RawPeer(fresh_server.port) as peer:
        publish(peer, b"$KV.FOREIGN." + key, b"value")
    with kv.watch() as watch, kv.replica() as replica:
        stored = [entry.key for entry in watch.initial(5 * SCALE)]
        replica.wait_current(5 * SCALE)
        fresh_server.restart()
        revision = kv.put("new", b"value")
        entry = watch.next(10 * SCALE)
        assert (entry.key, entry.revision) == ("new", revision)
        replica.wait_for(revision, 10 * SCALE)
        assert sorted(replica) == sorted([*stored, "new"])


@pytest.mark.parametrize("token", [b"*", b">"])
def test_a_chunk_under_a_pattern_removes_no_other(js: JetStream, peer: RawPeer, token) -> None:
    """Orphans are purged by their own subject alone."""
    store = js.create_object_store(bucket="FOREIGN", storage="memory")
    store.put("name", b"data")
    publish(peer, b"$O.FOREIGN.C." + token, b"chunk")
    store.purge_orphans(0)
    assert store.get_bytes("name") == b"data"
    js.delete_object_store("FOREIGN")


def test_the_subject_of_an_info_names_the_object(js: JetStream, peer: RawPeer) -> None:
    """An info with the name of another object, as a rename leaves it, hides neither of the two."""
    store = js.create_object_store(bucket="FOREIGN", storage="memory")
    for name in ("one", "two"):
        store.put(name, name.encode())
    subject = f"$O.FOREIGN.M.{base64.urlsafe_b64encode(b'one').decode()}"
    stored = js.get_stream("OBJ_FOREIGN").get_msg(last_by_subject=subject).data
    publish(peer, subject.encode(), stored.replace(b'"one"', b'"two"'))
    assert [info.name for info in store.list()] == ["one", "two"]
    with store.watch() as watch:
        assert sorted(info.name for info in watch.initial(5 * SCALE)) == ["one", "two"]
    assert store.purge_orphans(0) == 0
    assert [store.get_bytes(name) for name in ("one", "two")] == [b"one", b"two"]
    js.delete_object_store("FOREIGN")


@pytest.mark.server(">=2.12")
def test_a_schedule_beside_a_pattern_is_listed_once(
    js: JetStream, peer: RawPeer, stream_name
) -> None:
    """What is stored under a pattern is not the last message of another subject."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_msg_schedules=True
    )
    js.schedule(f"{stream_name}.a", target=f"{stream_name}.t", every=3600)
    publish(peer, f"{stream_name}.*".encode())
    js.schedule(f"{stream_name}.a", target=f"{stream_name}.t", every=3600)
    assert [item.subject for item in stream.schedules()] == [f"{stream_name}.a"]


def test_a_value_with_an_unknown_reason_of_a_marker_is_kept(js: JetStream) -> None:
    """A value is neither hidden nor purged for a header; a marker without a payload is one."""
    kv = js.create_key_value(bucket="FOREIGN", storage="memory")
    js.publish("$KV.FOREIGN.value", b"data", headers={"Nats-Marker-Reason": "Moved"})
    js.publish("$KV.FOREIGN.gone", b"", headers={"Nats-Marker-Reason": "Moved"})
    assert kv["value"] == b"data"
    assert kv.keys() == ["value"]
    assert list(kv.get_many(">")) == ["value"]
    assert kv.purge_deletes(0) == 1
    assert kv["value"] == b"data"
    js.delete_key_value("FOREIGN")


@pytest.mark.parametrize("header", [b"NATS/1.0\r\n", b"none", b"\xff\x00", b"NATS/1.0\r\nA: b"])
def test_a_header_block_without_an_end(js: JetStream, peer: RawPeer, stream_name, header) -> None:
    """The server appends its headers of a direct get to it; every read returns the message and those around it."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], allow_direct=True)
    js.publish(f"{stream_name}.1", b"1")
    publish(peer, f"{stream_name}.2".encode(), b"2", header)
    js.publish(f"{stream_name}.3", b"3")
    assert [stream.get_msg(seq).data for seq in (1, 2, 3)] == [b"1", b"2", b"3"]
    assert stream.get_msg(last_by_subject=f"{stream_name}.2").data == b"2"
    found: list[bytes] = []
    while messages := stream.get_msgs(10, len(found) + 1):
        found += [message.data for message in messages]
    assert found == [b"1", b"2", b"3"]


@pytest.mark.server(">=2.11")
def test_a_header_block_without_an_end_among_last_messages(js: JetStream, peer: RawPeer) -> None:
    """Neither the last messages of a stream nor the values of a bucket fail as a whole."""
    kv = js.create_key_value(bucket="FOREIGN", storage="memory")
    kv.put("a", b"1")
    publish(peer, b"$KV.FOREIGN.b", b"2", b"none")
    wait_until(lambda: kv.status().values == 2)  # stored after the PONG
    assert {key: entry.value for key, entry in kv.get_many(">").items()} == {"a": b"1", "b": b"2"}
    assert kv["b"] == b"2"
    stream = js.get_stream("KV_FOREIGN")
    assert [message.data for message in stream.get_last_msgs(">")] == [b"1", b"2"]
    js.delete_key_value("FOREIGN")
