"""Key-value buckets: manage them, and read and write their keys."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import (
    APICall,
    Base64Keys,
    ExternalStream,
    JetStream,
    KeyValue,
    KeyValueConfig,
    KeyValueEntry,
    KeyValueOperation,
    PathKeys,
    StreamSource,
    SubjectTransform,
    errors,
)
from jetstream_sync.server import NatsServer


@pytest.fixture
def bucket(stream_name: str) -> str:
    """A name for a bucket of this test alone."""
    return stream_name.replace(".", "-")


@pytest.fixture
def kv(js: JetStream, bucket: str) -> KeyValue:
    """A bucket with a history."""
    return js.create_key_value(bucket=bucket, history=5, storage="memory")


@pytest.fixture
def markers(js: JetStream, bucket: str) -> KeyValue:
    """A bucket with a history and markers."""
    return js.create_key_value(bucket=bucket, history=5, limit_marker_ttl=1, storage="memory")


# --- buckets ------------------------------------------------------------------------------------


@pytest.mark.server(">=2.11")
def test_an_update_ends_markers_and_sources(js, bucket):
    """``limit_marker_ttl=0`` and ``sources=[]`` remove what the bucket had; unset fields stay."""
    js.create_key_value(bucket=f"{bucket}-o")
    source = StreamSource(name=f"{bucket}-o")
    js.create_key_value(bucket=bucket, limit_marker_ttl=1, sources=[source], description="d")
    js.update_key_value(bucket=bucket, limit_marker_ttl=0, sources=[])
    config = js.key_value(bucket).status().config
    assert (config.limit_marker_ttl, config.sources, config.description) == (None, None, "d")


@pytest.mark.parametrize("create", [False, True])
def test_a_bucket_that_is_deleted_during_an_update(js, nc, bucket, create):
    """After its config was read, the bucket does not exist any more, or is created again."""
    js.create_key_value(bucket=bucket)

    def delete(call: APICall) -> None:
        if call.subject.startswith("$JS.API.STREAM.INFO."):
            js.delete_key_value(bucket)

    other = nc.jetstream(api_cb=delete)
    if create:
        other.create_or_update_key_value(bucket=bucket, description="new")
        assert js.key_value(bucket).status().config.description == "new"
    else:
        with pytest.raises(errors.BucketNotFoundError):
            other.update_key_value(bucket=bucket, description="new")


def test_the_config_of_a_bucket_of_another_client(js, bucket):
    """What the client would not create can be read, and an update keeps it."""
    js.create_key_value(bucket=f"{bucket}_O", storage="memory")
    source = StreamSource(name=f"KV_{bucket}_O", filter_subject=f"$KV.{bucket}_O.a")
    js.create_stream(name=f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"], sources=[source])
    config = js.key_value(bucket).status().config
    assert config.sources == [source]
    js.update_key_value(replace(config, description="new"))
    stored = js.get_stream(f"KV_{bucket}").cached_info.config
    assert (stored.sources, stored.description) == ([source], "new")
    # Without a limit of its history, with more than this client allows, and with a longer window.
    for history in (-1, 70):
        kept = js.create_or_update_stream(
            name=f"KV_{bucket}_H",
            subjects=[f"$KV.{bucket}_H.>"],
            max_msgs_per_subject=history,
            max_age=3600,
            duplicate_window=1800,
        ).name
        kv = js.key_value(f"{bucket}_H")
        for _ in range(70):
            kv.put("a", b"")
        js.update_key_value(replace(kv.status().config, description="new"))
        info = js.get_stream(kept).cached_info
        assert (info.state.messages, info.config.max_msgs_per_subject) == (70, history)
        assert info.config.duplicate_window == timedelta(minutes=30)
    js.create_stream(name="OBJ_\u00e9", subjects=["$O.e.C.>", "$O.e.M.>"])
    assert [status.config.bucket for status in js.list_object_stores()] == ["_"]
    js.delete_stream("OBJ_\u00e9")


def test_the_error_for_an_existing_bucket_names_the_fields(js, bucket):
    """A bucket without direct gets, as nats-py makes it, is another one; an update changes it."""
    stream = f"KV_{bucket}"
    js.create_stream(
        name=stream,
        subjects=[f"$KV.{bucket}.>"],
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        deny_delete=True,
        discard="new",
        duplicate_window=120,
    )
    with pytest.raises(errors.BucketExistsError, match=r"which differs in allow_direct \("):
        js.create_key_value(bucket=bucket)
    assert js.create_or_update_key_value(bucket=bucket, history=2).status().history == 2


def test_manage_buckets(js, bucket):
    """A bucket is created once, found, listed, changed and deleted."""
    with pytest.raises(errors.BucketNotFoundError):
        js.key_value(bucket)
    kv = js.create_key_value(KeyValueConfig(bucket=bucket, history=3, description="first"))
    assert js.create_key_value(bucket=bucket, history=3, description="first").bucket == bucket
    with pytest.raises(errors.BucketExistsError):
        js.create_key_value(bucket=bucket, history=4)
    kv.put("a", b"1")
    changed = js.update_key_value(bucket=bucket, ttl=3600, max_value_size=100)
    status = changed.status()
    assert status.bucket == bucket
    assert status.values == 1
    assert status.bytes > 0
    assert (status.history, status.ttl) == (3, timedelta(hours=1))
    assert status.limit_marker_ttl is None
    assert not status.is_compressed
    assert status.config.description == "first"
    assert status.config.max_value_size == 100
    again = js.update_key_value(replace(status.config, description="second"))
    assert again.status().config == replace(status.config, description="second")
    assert js.create_or_update_key_value(bucket=bucket, history=6).status().history == 6
    assert bucket in js.key_value_names()
    assert bucket in [item.bucket for item in js.list_key_values()]
    js.delete_key_value(bucket)
    for call in (kv.status, lambda: kv.get("a"), lambda: js.delete_key_value(bucket), kv.watch):
        with pytest.raises(errors.BucketNotFoundError):
            call()
    with pytest.raises(errors.BucketNotFoundError):
        js.update_key_value(bucket=bucket)
    with pytest.raises(errors.NoStreamResponseError):
        kv.put("a", b"1")
    assert js.create_or_update_key_value(bucket=bucket).status().history == 1


def test_only_buckets_are_listed(js, bucket):
    """A stream with the prefix of a bucket and other subjects is not listed; a mirror is."""
    js.create_stream(name=f"KV_{bucket}-x", subjects=[f"{bucket}.>"])
    js.create_key_value(bucket=bucket)
    js.create_key_value(bucket=f"{bucket}-m", mirror=StreamSource(name=bucket))
    found = [name for name in js.key_value_names() if name.startswith(bucket)]
    assert found == [bucket, f"{bucket}-m"]
    with pytest.raises(errors.BucketNotFoundError, match="not a key-value bucket"):
        js.key_value(f"{bucket}-x")


@pytest.mark.parametrize("key", ["a..b", ".a", "a b", "", "a.*", ">", "_kv.a"])
def test_refused_keys(kv, key):
    """No write accepts a malformed or reserved key, even one that the server would accept."""
    calls: list[Callable[[], object]] = [
        lambda: kv.put(key, b""),
        lambda: kv.create(key, b""),
        lambda: kv.update(key, b"", 1),
        lambda: kv.delete(key),
        lambda: kv.purge(key),
        lambda: kv.modify(key, lambda _: b""),
    ]
    if not key.startswith("_kv"):
        calls += [lambda: kv.get(key), lambda: kv.value(key), lambda: key in kv]
        calls += [lambda: kv.history(key)]
    for call in calls:
        with pytest.raises(errors.InvalidNameError):
            call()
    assert kv.status().values == 0


def longest_key(kv: KeyValue, subject: int) -> str:
    """Return a key with a subject of this number of bytes."""
    return "k" * (subject - len(f"$KV.{kv.bucket}."))


def test_the_longest_keys(kv):
    """Whatever accepts a key, the key can be read, watched and deleted; a longer one is refused by name."""
    key = longest_key(kv, 3840)
    revision = kv.put(key, b"1")
    assert kv.get(key).value == b"1"
    assert [entry.revision for entry in kv.history(key)] == [revision]
    assert kv.modify(key, lambda _: b"2") == revision + 1
    kv.delete(key)
    kv.purge(key, last=revision + 2)
    assert kv.create(key, b"3") == revision + 4
    writes: list[Callable[[str], object]] = [
        lambda key: kv.put(key, b""),
        lambda key: kv.create(key, b""),
        lambda key: kv.update(key, b"", 0),
        lambda key: kv.modify(key, lambda _: b""),
    ]
    for write in writes:
        with pytest.raises(errors.InvalidNameError, match=r"key name 'k+'.* exceed 3840 bytes"):
            write(key + "k")


@pytest.mark.parametrize("length", [4030, 4089])
def test_longer_keys_of_other_writers(nc, kv, length):
    """A key is read if another client could write it, even if its subject does not fit into a request."""
    key = longest_key(kv, length)

    def is_stored() -> bool:
        # Published again: without an acknowledgement, a server of a cluster may drop it while the stream is new.
        return key in kv or bool(nc.publish(f"$KV.{kv.bucket}.{key}", b"1"))

    wait_until(is_stored)
    for consistent in (False, True):
        assert kv.get(key, consistent=consistent).value == b"1"
    assert kv.get_many([key])[key].value == b"1"
    assert {entry.value for entry in kv.history(key)} == {b"1"}
    with kv.watch(key) as watch:
        assert [entry.key for entry in watch.initial(10)] == [key]
    assert key in kv.keys()  # noqa: SIM118 - the list
    if length < 4040:  # with the reply subject it fits into a command
        kv.delete(key)
        assert key not in kv


def test_keys_of_other_writers(js, kv):
    """Without validation any subject is a key, and an entry is never refused for its key."""
    loose = js.key_value(kv.bucket, validate_keys=False)
    loose.put("ü:$", b"1")
    assert loose.get("ü:$").value == b"1"
    assert kv.keys() == loose.keys("ü:$") == ["ü:$"]


# --- single keys --------------------------------------------------------------------------------


def test_put_and_get(kv):
    """An entry has what was put; a put overwrites, also with an empty value."""
    assert kv.put("a.b", b"1") == 1
    entry = kv.get("a.b")
    assert (entry.bucket, entry.key, entry.value, entry.revision) == (kv.bucket, "a.b", b"1", 1)
    assert (entry.operation, entry.delta, entry.headers) == (KeyValueOperation.PUT, 0, None)
    assert abs(entry.created.timestamp() - time.time()) < 60
    assert entry.created_ns == kv._stream.get_msg(1).time_ns
    assert kv.put("a.b", b"") == 2
    assert kv.get("a.b", consistent=True).value == b""
    assert kv.get("a.b", revision=1) == entry
    assert kv.get("a.b", revision=1, consistent=True) == entry


def test_get_without_a_value_raises_a_key_error(kv):
    """A key without a value is an error that is also a KeyError."""
    kv.put("a", b"1")
    kv.put("b", b"2")
    kv.delete("b")
    for key, marker in (("c", None), ("b", 3)):
        with pytest.raises(errors.KeyNotFoundError) as raised:
            kv.get(key)
        assert (raised.value.key, raised.value.marker) == (key, marker)
    with pytest.raises(errors.KeyNotFoundError, match="deleted at revision 3"):
        kv.get("b")
    for key, revision in (("a", 2), ("a", 99), ("b", 3)):
        with pytest.raises(errors.KeyNotFoundError):
            kv.get(key, revision=revision)
    with pytest.raises(KeyError):
        kv["c"]
    with pytest.raises(errors.InvalidOptionError, match=r"use put\(\)"):
        kv.update("a", b"", None)


@pytest.mark.parametrize("revision", [0, -1, 2**64, True, 1.5, "1"])
def test_revisions_that_are_refused(nc, kv, revision):
    """A revision that is not an int from 1 on is refused before a request, by its argument's name."""
    sent = nc.stats["out_msgs"]
    for call in (
        lambda: kv.get("a", revision=revision),
        lambda: kv.get("a", revision=revision, consistent=True),
        lambda: kv.get_many("a", up_to_revision=revision),
        lambda: kv.watch("a", resume_from_revision=revision),
    ):
        with pytest.raises(errors.InvalidOptionError, match="revision="):
            call()
    if revision != 0:
        for change in (
            lambda: kv.update("a", b"", revision),
            lambda: kv.delete("a", revision),
            lambda: kv.purge("a", revision),
        ):
            with pytest.raises(errors.InvalidOptionError, match="last="):
                change()
    assert nc.stats["out_msgs"] == sent


def test_values_are_bytes(kv):
    """A text is refused; it is not encoded silently."""
    with pytest.raises(errors.InvalidArgumentError, match="must be bytes"):
        kv.put("a", "text")
    with pytest.raises(errors.InvalidArgumentError, match="must be bytes"):
        kv.create("a", "text")
    kv.put("a", bytearray(b"1"))
    assert kv["a"] == b"1"


def test_like_a_dict(kv):
    """Single keys are read, written, deleted and looked up by the operators of a dict."""
    kv["a"] = b"1"
    assert kv["a"] == b"1"
    assert "a" in kv
    assert "b" not in kv
    assert 1 not in kv
    assert list(kv) == ["a"]
    assert kv.value("a") == b"1"
    assert kv.value("b") is None
    assert kv.value("b", b"2") == b"2"
    del kv["a"]
    assert "a" not in kv
    assert kv.value("a", b"3") == b"3"
    with pytest.raises(TypeError):
        len(kv)


@pytest.mark.server(">=2.11")
def test_create_with_a_ttl(markers):
    """A value with a TTL expires; watchers are told, and the key can be created again."""
    with markers.watch() as watch:
        first = markers.create("a", b"1", ttl=1)
        assert watch.next(5 * SCALE).revision == first
        assert watch.next(10 * SCALE).operation is KeyValueOperation.PURGE
    assert "a" not in markers
    markers.create("a", b"2")
    markers.delete("a")
    # The marker removes the history, so the server reports the expiry.
    revision = markers.create("a", b"3", ttl=timedelta(seconds=1))
    assert [entry.revision for entry in markers.history("a")] == [revision]
    assert markers.get("a").ttl == timedelta(seconds=1)
    wait_until(lambda: "a" not in markers, 10 * SCALE)
    assert [str(entry.operation) for entry in markers.history("a")] in ([], ["PURGE"])
    # The marker expires, too.
    wait_until(lambda: not markers.history("a"), 10 * SCALE)
    assert markers.create("a", b"4") > revision


@pytest.mark.server(">=2.11")
def test_ttls_that_are_not_possible(js, markers, bucket):
    """Only create and purge take a TTL, and only in a bucket with markers."""
    plain = js.create_key_value(bucket=f"{bucket}-p", storage="memory")
    with pytest.raises(errors.InvalidOptionError, match="limit_marker_ttl"):
        plain.create("a", b"", ttl=1)
    with pytest.raises(errors.InvalidOptionError, match="limit_marker_ttl"):
        plain.purge("a", ttl=1)
    with pytest.raises(errors.InvalidOptionError, match="one second"):
        markers.create("a", b"", ttl=0.5)
    assert markers.status().values == plain.status().values == 0
    # Another client allows them later.
    js.update_key_value(bucket=f"{bucket}-p", limit_marker_ttl=1)
    assert plain.create("a", b"", ttl=1) == 1
    plain.purge("a", ttl=1)
    wait_until(lambda: plain.status().values == 0, 10 * SCALE)


def test_limits(js, bucket):
    """A value that is too large, and a full bucket, have their own errors, at once."""
    kv = js.create_key_value(bucket=bucket, max_value_size=100, max_bytes=1000)
    with within(2):
        with pytest.raises(errors.ValueTooLargeError):
            kv.put("a", b"x" * 101)
        with pytest.raises(errors.StreamFullError):
            for number in range(50):
                kv.put(f"k{number}", b"x" * 50)
    assert not isinstance(errors.StreamFullError(503, 10077, ""), errors.TimeoutError)


# --- several keys -------------------------------------------------------------------------------


def test_keys(kv):
    """Patterns match whole tokens; deleted keys are left out; the result is sorted."""
    assert kv.keys() == []
    for key in ("xfoo", "foo", "a.b", "a.c.d", "gone"):
        kv.put(key, b"")
    kv.put("foo", b"again")
    kv.delete("gone")
    assert kv.keys() == ["a.b", "a.c.d", "foo", "xfoo"]
    assert kv.keys("foo") == ["foo"]
    assert kv.keys("a.>", "a.b") == ["a.b", "a.c.d"]
    assert kv.keys("a.*", "*.b") == ["a.b"]
    assert kv.keys("none.>") == []
    assert list(kv.iter_keys("a.>", "foo")) == ["a.b", "a.c.d", "foo"]
    with pytest.raises(errors.InvalidNameError):
        kv.keys("a*b")


def test_get_many(kv):
    """Keys and patterns are read together, without those that have no value."""
    for key in ("a", "b.c", "b.d"):
        kv.put(key, b"2")
    kv.put("a", b"4")
    kv.delete("b.d")
    found = kv.get_many(["a", "b.>", "none"])
    assert {key: entry.value for key, entry in found.items()} == {"a": b"4", "b.c": b"2"}
    assert found["a"] == kv.get("a")
    assert kv.get_many("none") == kv.get_many([]) == {}
    with pytest.raises(errors.InvalidNameError):
        kv.get_many("a..b")


@pytest.mark.server(">=2.11")
def test_get_many_of_missing_keys_needs_no_consumer(nc, kv):
    """One more request proves that keys are missing; in an empty bucket, the leader alone says so."""
    requests = []
    bucket = nc.jetstream(api_cb=requests.append).key_value(kv.bucket)
    missing = [f"none{number}" for number in range(1200)]
    assert bucket.get_many(missing) == {}
    kv.put("a", b"1")
    assert list(bucket.get_many([*missing, "a"])) == ["a"]
    assert bucket.get_many(missing) == {}
    assert not [call.subject for call in requests if "CONSUMER" in call.subject]


@pytest.mark.server(">=2.11")
def test_get_many_at_a_revision(kv):
    """The values are those that were current at a revision."""
    kv.put("a", b"1")
    revision = kv.put("b", b"2")
    kv.put("a", b"3")
    found = kv.get_many(">", up_to_revision=revision)
    assert {key: entry.value for key, entry in found.items()} == {"a": b"1", "b": b"2"}


def test_get_very_many(nc, js, kv):
    """More keys than the server returns in one reply are read with several requests, patterns by a watch."""
    for number in range(1100):
        js.publish_async(f"$KV.{kv.bucket}.k{number}", b"%d" % number)
    js.publish_async_completed(30 * SCALE)
    found = kv.get_many(">")
    assert {key: entry.value for key, entry in found.items()} == {
        f"k{number}": b"%d" % number for number in range(1100)
    }
    # No consumer has a filter for each key, which costs the square of their number.
    calls: list[APICall] = []
    reader = nc.jetstream(api_cb=calls.append).key_value(kv.bucket)
    assert reader.get_many(sorted(found)) == found
    assert max(call.request_size for call in calls) < 20_000
    with pytest.raises((errors.TooManyResultsError, errors.ServerTooOldError)):
        kv.get_many(">", up_to_revision=1100)
    # A deleted bucket is an error, not an empty result.
    js.delete_key_value(kv.bucket)
    with pytest.raises(errors.BucketNotFoundError):
        kv.get_many(">")


def test_purge_deletes_keeps_new_values(kv, monkeypatch):
    """A value that is written between the listing and the purge stays."""
    for number in range(20):
        kv.put(f"k{number}", b"old")
        kv.delete(f"k{number}")
    purge = kv._stream.purge

    def write_first(subject: str, seq: int, force: bool) -> int:
        kv.put(subject.removeprefix(f"$KV.{kv.bucket}."), b"new")
        return purge(subject=subject, seq=seq, force=force)

    monkeypatch.setattr(kv._stream, "purge", write_first)
    assert kv.purge_deletes(0) == 40
    with pytest.raises(errors.InvalidOptionError):
        kv.purge_deletes(-1)
    assert {key: entry.value for key, entry in kv.get_many(">").items()} == {
        f"k{number}": b"new" for number in range(20)
    }


@pytest.mark.parametrize("operation", ["PUT", "UPDATE", "DELETED"])
def test_an_unknown_operation_of_another_client_is_a_value(kv, js, operation):
    """Only known deletions are deletions: other messages keep their value, and `create` does not replace it."""
    js.publish(f"$KV.{kv.bucket}.a", b"theirs", headers={"KV-Operation": operation})
    assert kv.get("a").value == b"theirs"
    with pytest.raises(errors.KeyExistsError):
        kv.create("a", b"mine")
    assert list(kv.keys()) == ["a"]
    assert kv.purge_deletes(0) == 0
    with kv.watch(ignore_deletes=True) as watch:
        assert [entry.value for entry in watch.initial(5)] == [b"theirs"]


# --- concurrent writers -------------------------------------------------------------------------


def test_modify(kv):
    """The function gets the entry or None, and returns the value or None."""
    assert kv.modify("a", lambda entry: b"1" if entry is None else b"") == 1
    assert kv.modify("a", lambda entry: entry and entry.value + b"2") == 2
    assert kv["a"] == b"12"
    assert kv.modify("a", lambda _: None) == 3
    assert kv.modify("a", lambda _: None) == 3
    assert kv.modify("b", lambda _: None) == 0
    assert kv.modify("a", lambda entry: b"4" if entry is None else b"") == 4
    assert kv["a"] == b"4"


def test_modify_gives_up(kv):
    """When every attempt has a conflict, the last one is raised; so is an error of the function."""
    calls = 0

    def change(_: KeyValueEntry | None) -> bytes:
        nonlocal calls
        calls += 1
        kv.put("a", b"other")
        return b"mine"

    with pytest.raises(errors.WrongLastRevisionError):
        kv.modify("a", change, attempts=3)
    assert calls == 3
    with pytest.raises(ZeroDivisionError):
        kv.modify("a", lambda _: b"%d" % (1 // 0))
    with pytest.raises(errors.InvalidOptionError):
        kv.modify("a", change, attempts=0)
    assert kv["a"] == b"other"


def test_modify_is_repeated_until_the_timeout(kv):
    """Under contention no change is lost and none fails; a key that changes for ever raises in time."""
    kv.put("n", b"0")

    def work() -> None:
        for _ in range(20):
            kv.modify("n", lambda entry: b"%d" % (int(entry.value) + 1 if entry else 1))

    with ThreadPoolExecutor(12) as pool:
        for future in [pool.submit(work) for _ in range(12)]:
            future.result(60)
    assert kv["n"] == b"240"


def test_modify_of_a_key_that_always_changes(nc, kv):
    """It raises soon after the timeout of the context, and stores nothing."""
    impatient = nc.jetstream(timeout=0.5).key_value(kv.bucket)

    def change(_: KeyValueEntry | None) -> bytes:
        kv.put("a", b"other")
        return b"mine"

    begin = time.monotonic()
    with pytest.raises((errors.WrongLastRevisionError, errors.TimeoutError)):
        impatient.modify("a", change)
    assert 0.3 < time.monotonic() - begin < 2 * SCALE
    assert kv["a"] == b"other"


@pytest.mark.parametrize(("code", "err_code"), [(409, 10158), (503, 10163), (400, 10164)], ids=str)
def test_a_write_waits_for_the_message_in_process(nc, js, bucket, code, err_code):
    """A server that cannot check the expected revision yet is asked again."""
    # No server state produces these refusals reliably: a subscriber takes the place of the stream.
    kv = js.create_key_value(bucket=bucket)
    js.delete_stream(f"KV_{bucket}")
    refusal = {"code": code, "err_code": err_code, "description": "wrong last sequence"}
    replies = [{"error": refusal}, {"stream": f"KV_{bucket}", "seq": 7}]
    nc.subscribe(f"$KV.{bucket}.>", cb=lambda msg: msg.respond(json.dumps(replies.pop(0)).encode()))
    nc.flush()
    assert kv.update("key", b"value", last=6) == 7
    assert not replies


def test_extra_fields_that_would_be_ignored_are_refused(js, bucket):
    """A field that the bucket sets itself cannot be given as an unknown one; others reach the server."""
    with pytest.raises(errors.InvalidOptionError, match="'discard' is a field of StreamConfig"):
        js.create_key_value(bucket=bucket, extra={"discard": "old"})
    with pytest.raises(errors.InvalidOptionError, match="'ttl' is a field of KeyValueConfig"):
        KeyValueConfig(bucket=bucket, extra={"ttl": 1})
    with pytest.raises(errors.ServerTooOldError, match="newer_field"):
        js.create_key_value(bucket=bucket, extra={"newer_field": 1})


# --- mirrors, sources, domains, codecs ----------------------------------------------------------


def test_mirror(js, kv, bucket):
    """A mirror under another name is read here and written in the origin."""
    kv.put("a", b"1")
    mirror = js.create_key_value(
        bucket=f"{bucket}-m", mirror=StreamSource(name=bucket), storage="memory"
    )
    wait_until(lambda: mirror.value("a") == b"1", 10 * SCALE)
    assert mirror.get("a").bucket == f"{bucket}-m"
    mirror.put("b", b"2")
    # The mirror, which may lag behind, answers reads of the origin as well.
    assert kv.get("b", consistent=True).value == b"2"
    wait_until(lambda: mirror.keys() == ["a", "b"], 10 * SCALE)
    with mirror.watch("a") as watch:
        assert [(entry.key, entry.value) for entry in watch.initial()] == [("a", b"1")]
        kv.put("a", b"3")
        assert watch.next(10 * SCALE).value == b"3"
    found = js.key_value(f"{bucket}-m")
    assert found.create("c", b"4") == kv.get("c", consistent=True).revision
    with pytest.raises(errors.KeyExistsError):
        wait_until(lambda: "c" in found, 10 * SCALE)
        found.create("c", b"5")


@pytest.mark.parametrize("is_empty", [False, True])
def test_mirror_of_a_mirror(js, kv, bucket, is_empty):
    """It has the keys of the first bucket, where it writes, too; also if it was opened before it had one."""
    if not is_empty:
        kv.put("a", b"1")
    for name, origin in ((f"{bucket}-m", bucket), (f"{bucket}-mm", f"{bucket}-m")):
        js.create_key_value(bucket=name, mirror=StreamSource(name=origin), storage="memory")
    if not is_empty:
        wait_until(lambda: js.key_value(f"{bucket}-mm").status().values == 1, 10 * SCALE)
    mirror = js.key_value(f"{bucket}-mm")
    mirror.put("a", b"2")
    assert kv.get("a", consistent=True).value == b"2"
    wait_until(lambda: mirror.value("a") == b"2", 10 * SCALE)
    assert mirror.keys() == ["a"]
    assert mirror.get_many(["a"])["a"].value == b"2"
    assert mirror.get("a", consistent=True).bucket == f"{bucket}-mm"


def test_mirror_of_a_mirror_that_lags(js, kv, bucket):
    """The leader of the first bucket decides, which writes go to."""
    kv.put("a", b"1")
    # It has nothing of the first bucket, and neither has its own mirror.
    behind = StreamSource(name=bucket, opt_start_seq=100)
    js.create_key_value(bucket=f"{bucket}-m", mirror=behind, storage="memory")
    mirror = js.create_key_value(
        bucket=f"{bucket}-mm", mirror=StreamSource(name=f"{bucket}-m"), storage="memory"
    )
    assert mirror.value("a") is None
    assert mirror.get("a", consistent=True).value == b"1"
    mirror.modify("a", lambda entry: entry and entry.value + b"2")
    assert kv["a"] == b"12"


def test_mirror_of_a_mirror_of_another_account_writes_there_only(js, kv, bucket):
    """A bucket of this account with the name of the first one is another bucket."""
    kv.put("a", b"own")
    # The API of the other account does not exist here, so that nothing is copied.
    external = ExternalStream(api="$JS.elsewhere.API", deliver="")
    js.create_key_value(
        bucket=f"{bucket}-m",
        mirror=StreamSource(name=bucket, external=external),
        storage="memory",
    )
    mirror = js.create_key_value(
        bucket=f"{bucket}-mm", mirror=StreamSource(name=f"{bucket}-m"), storage="memory"
    )
    with pytest.raises(errors.NoStreamResponseError):
        mirror.put("a", b"other")
    assert kv["a"] == b"own"


@pytest.mark.parametrize("renamed", [False, True])
def test_mirror_that_lags(js, kv, bucket, renamed):
    """Through a mirror without the last messages, the leader of the origin decides."""
    transform = SubjectTransform(src=f"$KV.{bucket}.>", dest=f"$KV.{bucket}-m.>")
    kv.put("a", b"1")
    mirror = js.create_key_value(
        bucket=f"{bucket}-m",
        mirror=StreamSource(
            name=bucket,
            opt_start_seq=100,
            subject_transforms=[transform] if renamed else None,
        ),
        storage="memory",
    )
    assert mirror.value("a") is None
    entry = mirror.get("a", consistent=True)
    assert (entry.key, entry.value, entry.bucket) == ("a", b"1", f"{bucket}-m")
    assert mirror.get("a", entry.revision, consistent=True) == entry
    with pytest.raises(errors.KeyExistsError):
        mirror.create("a", b"2")
    mirror.modify("a", lambda entry: entry and entry.value + b"3")
    assert kv["a"] == b"13"
    mirror.modify("a", lambda _: None)
    assert "a" not in kv


def test_another_mirror_is_refused(js, bucket):
    """An update with the same mirror changes the other fields; another one is an error of the server."""
    js.create_key_value(bucket=bucket)
    js.create_key_value(bucket=f"{bucket}-m", mirror=StreamSource(name=bucket))
    same = js.update_key_value(
        bucket=f"{bucket}-m", mirror=StreamSource(name=bucket), description="d"
    ).status()
    assert same.config.description == "d"
    js.update_key_value(replace(same.config, description="e"))
    with pytest.raises(errors.APIError, match="mirror"):
        js.update_key_value(bucket=f"{bucket}-m", mirror=StreamSource(name="other"))
    config = js.key_value(f"{bucket}-m").status().config
    assert (config.mirror and config.mirror.name, config.description) == (f"KV_{bucket}", "e")


def test_sources(js, kv, bucket):
    """The keys of a source have the same names, or those of its transform."""
    kv.put("a", b"1")
    kv.put("sub.b", b"2")
    moved = SubjectTransform(src=f"$KV.{bucket}.sub.>", dest=f"$KV.{bucket}-t.moved.>")
    plain = js.create_key_value(bucket=f"{bucket}-s", sources=[StreamSource(name=bucket)])
    mapped = js.create_key_value(
        bucket=f"{bucket}-t",
        sources=[StreamSource(name=f"KV_{bucket}", subject_transforms=[moved])],
    )
    wait_until(lambda: plain.keys() == ["a", "sub.b"], 10 * SCALE)
    wait_until(lambda: mapped.keys() == ["moved.b"], 10 * SCALE)
    plain.put("own", b"3")
    assert plain["own"] == b"3"
    assert "own" not in kv
    status = plain.status()
    assert js.update_key_value(replace(status.config, description="x")).status().config.sources


def test_domain():
    """Through the prefix of a domain, keys are written, read and watched."""
    with (
        NatsServer(config="jetstream { domain: hub }") as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        kv = nc.jetstream(domain="hub").create_key_value(bucket="B")
        assert kv.put("a", b"1") == 1
        assert kv.get("a").value == b"1"
        with kv.watch() as watch:
            assert [entry.key for entry in watch.initial()] == ["a"]
            kv.update("a", b"2", 1)
            assert watch.next(5 * SCALE).value == b"2"
        assert nc.jetstream().key_value("B")["a"] == b"2"
        # The message was sent to the API of the domain, which a leaf node would not store itself.
        assert kv._subjects.write == "$JS.hub.API.$KV.B."


class Upper:
    """A codec of values that cannot decode all of them."""

    def encode(self, value: bytes) -> bytes:
        return value.upper()

    def decode(self, value: bytes) -> bytes:
        if value != value.upper():
            raise ValueError("not encoded")
        return value.lower()


class Reversed:
    """A codec of keys that cannot encode patterns."""

    def encode(self, key: str) -> str:
        return key[::-1]

    def decode(self, key: str) -> str:
        if key == "foreign":
            raise ValueError("not encoded")
        return key[::-1]


def test_codec_without_patterns(kv):
    """Without patterns a codec lists all keys, and returns the history and values of given keys."""
    coded = kv.with_codecs(key=Reversed())
    coded.put("ab", b"1")
    coded.put("ab", b"2")
    kv.put("foreign", b"3")
    assert coded.keys() == ["ab"]
    assert [entry.value for entry in coded.history("ab")] == [b"1", b"2"]
    assert set(coded.get_many(["ab"])) == {"ab"}
    assert set(coded.get_many(">")) == {"ab"}
    with pytest.raises(errors.InvalidOptionError, match="patterns"):
        coded.keys("a.*")


def test_history_of_a_key_like_a_wildcard(kv):
    """A codec makes any text a key; a history is that of this key only."""
    coded = kv.with_codecs(key=Base64Keys())
    coded.put("a", b"1")
    assert coded.history("*") == coded.history(">") == []
    coded.put("*", b"2")
    assert [entry.value for entry in coded.history("*")] == [b"2"]


def test_codecs(kv):
    """Keys and values are decoded in every result, and patterns are encoded."""
    coded = kv.with_codecs(key=[PathKeys(), Base64Keys()], value=Upper())
    assert coded.create("/é a/1", b"one") == 1
    coded.put("/é a/2", b"two")
    coded.modify("/é a/2", lambda entry: (entry.value if entry else b"") + b"!")
    assert coded["/é a/2"] == b"two!"
    assert coded.keys("/é a/*") == ["/é a/1", "/é a/2"]
    assert [entry.value for entry in coded.history("/é a/2")] == [b"two", b"two!"]
    assert set(coded.get_many("/>")) == {"/é a/1", "/é a/2"}
    assert kv.get(kv.keys()[0]).value.isupper()
    # Undecodable values do not end a watch: the error is raised by the access.
    kv.put("X3Jvb3Rf.x", b"small")
    with coded.watch() as watch:
        *_, foreign = watch.initial()
        with pytest.raises(errors.InvalidNameError):
            _ = foreign.key
        with pytest.raises(ValueError, match="not encoded"):
            _ = foreign.value
        coded.put("/b", b"after")
        assert watch.next(5 * SCALE).value == b"after"


def test_entries_of_get_many_have_the_times_of_the_stream(js, kv):
    """A time is decoded when it is read, and exact."""
    revisions = {key: kv.put(key, b"x") for key in ("a", "b.c")}
    stream = js.get_stream(f"KV_{kv.bucket}")
    entries = kv.get_many(">")
    assert set(entries) == set(revisions)
    for key, entry in entries.items():
        assert entry.revision == revisions[key]
        assert entry.created == stream.get_msg(entry.revision).time
        assert entry.created_ns == kv.get(key).created_ns
        assert entry.headers is None
