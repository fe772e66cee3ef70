"""What is checked is what is sent: members of enums and subclasses of str, int and bytes are taken by value."""

from __future__ import annotations

import inspect
import io
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from tempfile import NamedTemporaryFile
from typing import Any

import blocking_calls
import pytest
from fixtures.exact import as_member, as_subclass, recorded, replaced
from fixtures.internals import core_of
from fixtures.threads import SCALE

import jetstream_sync
from jetstream_sync import ConsumerConfig, Headers, errors, services, speedups
from jetstream_sync.client import encoder, engine

_FEATURES = [
    "allow_direct",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
    "allow_msg_ttl",
    "allow_rollup_hdrs",
]
_LATER = datetime(2100, 1, 1, tzinfo=timezone.utc)


def ignore(_: object) -> None:
    """Handle a message."""


class Walk:
    """Makes calls with replaced arguments, and notes which ones."""

    def __init__(self, how: Any) -> None:
        self.how = how
        self.given: dict[str, set[str]] = {}

    def __call__(self, owner: Any, method: str, /, *args: object, **named: object) -> Any:
        """Make a call of an object."""
        function = getattr(owner, method)
        names = inspect.signature(function).bind(*args, **named).arguments
        note = self.given.setdefault(method, set())
        for name, value in names.items():
            note |= set(value) if name in {"options", "fields"} else {name}
        # The names of keyword arguments are always plain.
        more = {name: replaced(value, self.how) for name, value in named.items()}
        return function(*replaced(args, self.how), **more)


class WalkWithBools(Walk):
    """Makes each call with a bool in place of each number first, which the call has to refuse."""

    def __init__(self, nc: Any) -> None:
        super().__init__(lambda value: value)
        self._nc = nc
        self.accepted: set[str] = set()

    def __call__(self, owner: Any, method: str, /, *args: object, **named: object) -> Any:
        """Try the bools, and make the call."""
        places = [*enumerate(args), *named.items()]
        for place, value in places:
            if type(value) is int and method != "endpoint":  # the decorator refuses it
                more = {**named, **({place: True} if isinstance(place, str) else {})}
                given = [True if at == place else item for at, item in enumerate(args)]
                sent = core_of(self._nc).writer.out_msgs
                try:
                    getattr(owner, method)(*given, **more)
                except (errors.InvalidArgumentError, TypeError):
                    if core_of(self._nc).writer.out_msgs == sent:
                        continue
                except errors.Error:
                    pass
                self.accepted.add(f"{type(owner).__name__}.{method} {place}")
        return super().__call__(owner, method, *args, **named)


def walk(call: Walk, nc: Any) -> None:
    """Make every public call that sends an argument of its caller."""
    js = call(nc, "jetstream", prefix="$JS.API", publish_async_max_pending=100)
    call(nc, "jetstream", domain="hub", required_api_level=1)
    call(nc, "jetstream", required_api_level=1).account_info()
    core_calls(call, nc)
    fields: dict[str, Any] = {
        "name": "S",
        "subjects": ["s.>"],
        "max_msgs": 10_000,
        "metadata": {"key": "value"},
        "storage": "memory",
        **dict.fromkeys(_FEATURES, True),
    }
    stream = call(js, "create_stream", **fields)
    call(js, "update_stream", **fields, description="other")
    call(js, "create_or_update_stream", **fields, description="other")
    call(js, "create_stream", name="GONE")
    call(js, "delete_stream", "GONE")
    assert call(js, "get_stream", "S").name == "S"
    assert call(js, "stream_names", "s.a") == ["S"]
    assert len(list(call(js, "list_streams", "s.a"))) == 1
    assert call(js, "find_stream_name_by_subject", "s.a") == "S"
    publishing(call, js, stream)
    reading(call, js, stream)
    for _ in range(10):
        js.publish("s.a")
    for owner, first in ((js, ("S",)), (stream, ())):
        consumers(call, owner, first, "J" if first else "T")
    subscribing(call, js)
    counters(call, js)
    groups(call, js)
    buckets(call, js)
    objects(call, js)


def core_calls(call: Walk, nc: Any) -> None:
    headers = {"Name": "value", "Names": ["one", "two"]}
    received = call(nc, "subscribe", "core.*", "queue", None, 1000, 10_000)
    plain = nc.subscribe("core.*")
    call(nc, "publish", "core.a", b"data", "core.reply", headers)
    for sub in (received, plain):
        msg = sub.next_msg(5 * SCALE)
        assert (msg.subject, msg.data, msg.reply) == ("core.a", b"data", "core.reply")
        assert msg.headers.get_all("names") == ["one", "two"]
        assert msg.headers["Name"] == "value"
    call(plain, "unsubscribe", 100)
    built = Headers()
    call(built, "add", "Name", "value")
    call(built, "__setitem__", "Other", "value")
    assert call(built, "get_all", "name") == ["value"]
    assert built == {"Name": "value", "Other": "value"}
    assert call(built, "__getitem__", "other") == "value"
    nc.publish("core.b", b"", headers=built)
    nc.publish("core.b", b"", headers=Headers(replaced(headers, call.how)))
    service = call(
        nc, "add_service", "svc", "1.0.0", "about", {"key": "value"}, "q", None, None, "$SRV"
    )
    answer = lambda request: call(request, "respond", b"reply", headers)  # noqa: E731
    call(service, "add_endpoint", "ep", answer, "ep.sub", 1, 10, "eq", {"key": "value"})
    call(call(service, "add_group", "grp", "gq"), "add_endpoint", "inner", answer)
    call(service, "endpoint", "fails", "fails", 1, 10, "eq", {"key": "value"})(
        lambda request: call(request, "respond_error", 404, "why")
    )
    assert call(nc, "request", "ep.sub", b"data", 5, headers).data == b"reply"
    assert nc.request("grp.inner", timeout=5).data == b"reply"
    failed = nc.request("fails", timeout=5)
    assert failed.headers["Nats-Service-Error-Code"] == "404"
    assert failed.headers["Nats-Service-Error"] == "why"
    assert len(list(call(nc, "request_many", "ep.sub", b"", 2, 1, 1, None, headers))) == 1
    service.endpoint("typed", "typed")(lambda request: request.respond_json(1))
    assert call(nc, "service_call", "typed", "data", int, 5) == 1
    for verb in ("service_ping", "service_info", "service_stats"):
        found = call(nc, verb, "svc", service.id, 2, 1, "$SRV")
        assert [item.name for item in found] == ["svc"], verb
    service.stop()
    call(nc, "set_server_pool", nc.servers)


def publishing(call: Walk, js: Any, stream: Any) -> None:
    headers = {"Name": "value"}
    one = call(js, "publish", "s.a", b"data", 5, "S", headers, "id-1")
    assert call(js, "publish", "s.a", b"data", 5, "S", headers, "id-1").duplicate
    assert js.publish("s.a", msg_id="id-1").duplicate
    options = {"retry_attempts": 1, "retry_wait": 1}
    two = call(js, "publish", "s.a", b"", expected_last_sequence=one.seq, msg_ttl=60, **options)
    call(js, "publish", "s.a", b"", expected_last_subject_sequence=two.seq, msg_ttl="never")
    call(
        js,
        "publish",
        "s.b",
        b"",
        msg_id="id-2",
        expected_last_subject="s.a",
        expected_last_subject_sequence=two.seq + 1,
    )
    call(js, "publish", "s.b", b"", expected_last_msg_id="id-2")
    call(js, "publish_async", "s.a", b"data", 5, "S", headers, "id-3", **options).result(5)
    call(js, "publish_batch", [("s.c", b"1", headers), ("s.c", b"2")], "S", 5)
    with call(js, "batch", "S", 5) as batch:
        call(batch, "add", "s.c", b"3", headers, "id-4")
        call(batch, "add", "s.c", b"4", msg_ttl=60)
    with call(js, "fast_publish", "fail", 10, 2, None, 5) as fast:
        call(fast, "add", "s.f", b"5", headers, "id-5", msg_ttl=60)
        call(fast, "commit", "s.f", b"6", headers)
    call(
        js,
        "schedule",
        "s.sched",
        b"",
        target="s.late",
        cron="0 0 0 1 1 *",
        time_zone="Europe/Berlin",
        source="s.a",
        ttl=60,
        rollup=True,
        headers=headers,
        msg_id="id-6",
        timeout=5,
    )
    call(js, "schedule", "s.every", b"", target="s.late", every=60)
    assert [item.target for item in call(stream, "schedules", "s.*")] == ["s.late", "s.late"]
    assert call(js, "cancel_schedule", "s.sched")
    call(js, "publish", "s.ended", b"", cancels="s.every")


def reading(call: Walk, js: Any, stream: Any) -> None:
    assert call(stream, "info", "s.a").state.subjects
    assert call(stream, "get_msg", 1).seq == 1
    assert call(stream, "get_msg", last_by_subject="s.a").subject == "s.a"
    assert call(stream, "get_msg", last_by_subject="s.a", consistent=True).subject == "s.a"
    assert call(stream, "get_msg", 2, next_by_subject="s.b").subject == "s.b"
    assert len(call(stream, "get_msgs", 2, 1, "s.a", max_bytes=100_000, timeout=5)) == 2
    assert len(list(call(stream, "get_last_msgs", ["s.a", "s.b"], 20, batch=1))) == 2
    assert len(list(call(stream, "get_last_msgs", "s.a"))) == 1
    call(stream, "delete_msg", 2)
    assert call(stream, "purge", "s.c", keep=1) == 3
    call(stream, "purge", "s.c", 2)
    filed = js.create_stream(name="FILED", subjects=["filed"])
    js.publish("filed", b"data")
    data = io.BytesIO()
    with call(filed, "snapshot", chunk_size=4096, window_size=8192, timeout=5) as snapshot:
        snapshot.write_to(data)
    js.delete_stream("FILED")
    restored = call(js, "restore_stream", snapshot.info, [data.getvalue()], 5, 5)
    assert restored.get_msg(1).data == b"data"
    for refused in (
        lambda: call(stream, "step_down", "server"),
        lambda: call(stream, "remove_peer", "server"),
    ):
        with suppress(errors.APIError):
            refused()


def consumers(call: Walk, owner: Any, first: tuple[str, ...], name: str) -> None:
    fields = {"filter_subject": "s.a", "description": "about", "metadata": {"key": "value"}}
    consumer = call(
        owner,
        "create_consumer",
        *first,
        name=name,
        priority_policy="pinned_client",
        priority_groups=["g"],
        priority_timeout=60,
        max_ack_pending=50,
        **fields,
    )
    config = ConsumerConfig(**replaced({"durable_name": f"{name}D", **fields}, call.how))
    call(owner, "create_consumer", *first, config)
    call(
        owner,
        "create_or_update_consumer",
        *first,
        name=f"{name}D",
        durable_name=f"{name}D",
        filter_subject="s.a",
        description="new",
    )
    call(
        owner,
        "update_consumer",
        *first,
        name=f"{name}D",
        durable_name=f"{name}D",
        filter_subject="s.a",
        description="newer",
    )
    push = {"name": f"{name}P", "deliver_subject": f"deliver.{name}", "deliver_group": "dg"}
    call(owner, "create_push_consumer", *first, **push)
    call(owner, "update_push_consumer", *first, **push, description="new")
    assert call(owner, "get_consumer", *first, name).name == name
    assert call(owner, "consumer_info", *first, name).config.filter_subject == "s.a"
    if first:
        assert name in call(owner, "consumer_names", *first)
        assert call(owner, "list_consumers", *first)
    call(owner, "pause_consumer", *first, f"{name}D", _LATER)
    call(owner, "resume_consumer", *first, f"{name}D")
    call(owner, "reset_consumer", *first, f"{name}D", 1)
    msg = call(consumer, "fetch", 1, 5, group="g", min_pending=0, max_bytes=100_000, heartbeat=1)[0]
    msg.ack_sync(5)
    call(owner, "unpin_consumer", *first, name, "g")
    durable = call(owner, "get_consumer", *first, f"{name}D")
    call(durable, "reset", 1)
    assert len(call(durable, "fetch_no_wait", 1, max_bytes=100_000)) == 1
    msg = call(durable, "next", 5)
    call(msg, "nak", 60)
    call(durable.next(5 * SCALE), "term", "reason")
    call(durable.next(5 * SCALE), "ack_sync", 5)
    with call(
        durable,
        "messages",
        max_messages=10,
        threshold_messages=2,
        expires=5,
        heartbeat=1,
        stop_after=1,
    ) as messages:
        call(messages, "next", 5)
    with durable.messages(on_demand=True) as messages:
        call(messages, "request", 1)
        messages.next(5 * SCALE)
    call(durable, "consume", ignore, max_messages=10, threshold_messages=2).stop()
    ordered = call(
        owner,
        "ordered_consumer",
        *first,
        filter_subjects=["s.a"],
        opt_start_seq=1,
        inactive_threshold=60,
        metadata={"key": "value"},
        name_prefix=f"{name}O",
        max_reset_attempts=3,
    )
    assert call(ordered, "fetch", 1, 5, max_bytes=100_000)
    call(ordered, "fetch_no_wait", 1)
    ordered.close()
    call(owner, "delete_consumer", *first, name)
    if not first:
        assert call(owner, "stranded", f"{name}D") is None
        with suppress(errors.APIError):
            call(owner, "step_down_consumer", f"{name}D", "server")


def subscribing(call: Walk, js: Any) -> None:
    sub = call(
        js,
        "subscribe",
        "s.a",
        "q",
        None,
        "SUBD",
        "S",
        pending_msgs_limit=100,
        pending_bytes_limit=100_000,
        deliver_policy="all",
        inactive_threshold=60,
    )
    sub.next_msg(5 * SCALE)
    bound = call(js, "subscribe_bind", "S", "SUBD", queue="q")
    bound.unsubscribe()
    sub.unsubscribe()
    ordered = call(js, "subscribe", "s.a", ordered_consumer=True, idle_heartbeat=1)
    call(ordered, "next_msg", 5)
    call(ordered, "unsubscribe", 0)
    pull = call(js, "pull_subscribe", "s.a", "PULLD", "S")
    assert call(pull, "fetch", 1, 5, 1)
    call(call(js, "pull_subscribe_bind", "PULLD", "S"), "fetch", 1, 5)


def counters(call: Walk, js: Any) -> None:
    js.create_stream(
        name="C", subjects=["c.>"], allow_msg_counter=True, allow_direct=True, storage="memory"
    )
    found = call(js, "counters", "C")
    assert call(found, "add", "c.a", 5, "cid", 5) == 5
    assert call(found, "add", "c.a", 5, "cid", 5) == 5
    assert call(found, "get", "c.a").value == 5
    assert [entry.value for entry in call(found, "items", "c.*")] == [5]
    assert call(found, "reset", "c.a") == 5
    assert found["c.a"] == 0


def groups(call: Walk, js: Any) -> None:
    known = js.consumer_groups
    static = call(known, "create_static", "S", "static", 2, ["m"], None, ["s.a"])
    call(known, "create_static", "S", "mapped", 2, (), {"m": [0, 1]})
    elastic = call(known, "create_elastic", "S", "elastic", 2, {"s.*": [1]}, 100, 100_000)
    assert call(elastic, "add_members", "m", "n") == ["m", "n"]
    assert call(elastic, "drop_members", "n") == ["m"]
    call(elastic, "set_mappings", {"m": [0, 1]})
    assert call(elastic, "consumer_name", "m") == "m"
    call(elastic, "consume", "m", ignore, 5, 1).stop()
    call(static, "consume", "m", ignore, 5, 1).stop()
    with suppress(errors.Error):
        call(elastic, "step_down", "m")
    assert call(known, "get", "S", "static").key == "S.static"
    assert len(call(known, "list", "S")) == 3


def buckets(call: Walk, js: Any) -> None:
    call(
        js,
        "create_key_value",
        bucket="b",
        history=5,
        description="about",
        limit_marker_ttl=60,
        metadata={"key": "value"},
        storage="memory",
    )
    call(js, "update_key_value", bucket="b", description="new")
    call(js, "create_or_update_key_value", bucket="b", description="newer")
    kv = call(js, "key_value", "b")
    for bucket in (kv, call(js, "key_value", "b", validate_keys=False)):
        first = call(bucket, "put", "k.a", b"value")
        second = call(bucket, "update", "k.a", b"other", first)
        assert call(bucket, "get", "k.a").value == b"other"
        assert call(bucket, "get", "k.a", first, consistent=True).value == b"value"
        assert call(bucket, "value", "k.a") == b"other"
        assert call(bucket, "value", "none", b"default") == b"default"
        assert list(call(bucket, "get_many", ["k.a", "k.b"], second)) == ["k.a"]
        assert len(call(bucket, "history", "k.a")) >= 2
        assert call(bucket, "keys", "k.*") == list(call(bucket, "iter_keys", "k.*")) == ["k.a"]
        call(bucket, "modify", "k.a", lambda _: call.how(b"modified"), 3)
        with call(bucket, "watch", "k.*", resume_from_revision=1, inactive_threshold=60) as watch:
            assert call(watch, "next", 5).key == "k.a"
        with call(bucket, "replica", ["k.*"]) as replica:
            call(replica, "wait_current", 5)
            assert call(replica, "get", "k.a") == b"modified"
            assert call(replica, "entry", "k.a").key == "k.a"
            call(replica, "wait_for", bucket["k.a"] and bucket.get("k.a").revision, 5)
        assert call(bucket, "__getitem__", "k.a") == b"modified"
        assert call(bucket, "__contains__", "k.a")
        call(bucket, "__setitem__", "k.c", b"value")
        call(bucket, "__delitem__", "k.c")
        call(bucket, "delete", "k.a", bucket.get("k.a").revision)
        call(bucket, "create", "k.a", b"value", 60)
        call(bucket, "purge", "k.a", bucket.get("k.a").revision, 60)
        call(bucket, "purge_deletes", 0)
    with call(kv, "lock", "lock", 30.5, 5.5) as lock:
        assert not call(lock, "wait_lost", 0)
    call(js, "delete_key_value", "b")


def objects(call: Walk, js: Any) -> None:
    call(js, "create_object_store", bucket="o", description="about", storage="memory")
    call(js, "update_object_store", bucket="o", description="new")
    call(js, "create_or_update_object_store", bucket="o", description="newer")
    store = call(js, "object_store", "o")
    info = call(store, "put", "file", b"data")
    call(store, "put", "text", b"data")
    assert call(store, "get_bytes", "file") == b"data"
    assert call(store, "info", "file").name == "file"
    with NamedTemporaryFile() as file:
        call(store, "get_file", "file", file.name, None, 5)
        call(store, "put_file", file.name, "copy", None, 5)
    assert store.get_bytes("copy") == b"data"
    call(store, "add_link", "link", info)
    call(store, "add_bucket_link", "all", store)
    with call(store, "open", "file") as reader:
        assert reader.read(2) == b"da"  # as a file: a bool is the number 1
    with call(store, "open", "new", "wb") as writer:
        call(writer, "write", b"data")
    assert store.get_bytes("new") == b"data"
    meta = jetstream_sync.ObjectMeta(
        **replaced({"name": "renamed", "description": "about", "headers": {"N": ["v"]}}, call.how)
    )
    call(store, "update_meta", "file", meta)
    call(store, "delete", "renamed")
    call(store, "purge_orphans", 60)
    call(js, "delete_object_store", "o")


#: Parameters that the server does not see, or that another test covers.
_NOT_SENT = """
ObjectStore.open.encoding ObjectStore.open.newline ObjectStore.open.mode ObjectReader.peek.size
PubAckFuture.settle.outcome PubAckFuture.settle_run.pending PubAckFuture.settle_run.token_at
ObjectStore.get_file.path ObjectStore.put_file.path ObjectReader.read.size ObjectWriter.read.size
"""


def missing_parameters(given: Mapping[str, set[str]]) -> set[str]:
    """Return the parameters of public calls for a str, a number or bytes that the walk has not given."""
    missing = set()
    calls = blocking_calls.public_calls()
    calls |= {
        f"{owner}.{name}"
        for owner, names in blocking_calls._LOCAL.items()
        for name in names.split()
    }
    for call in calls:
        owner, _, method = call.partition(".")
        # Where a class is not public by name, the list has it by its base class or its owner.
        function = getattr(getattr(jetstream_sync, owner, services.Service), method, None)
        if function is None:
            continue
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # of the base class of files, in C
            continue
        for parameter in parameters:
            if (
                method.startswith(("create_", "update_"))
                and parameter.kind is parameter.KEYWORD_ONLY
            ):
                continue  # a field of the config, which all have one codec
            kind = str(parameter.annotation)
            sent = re.search(r"\b(str|int|bytes|HeadersLike)\b", kind) and "Callable" not in kind
            if sent and parameter.name not in given.get(method, ()):
                missing.add(f"{call}.{parameter.name}")
    return missing - set(_NOT_SENT.split())


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("how", [as_subclass, as_member])
@pytest.mark.parametrize("in_c", [True, False])
def test_each_public_call_sends_values_and_not_their_texts(fresh_server, monkeypatch, how, in_c):
    """Every call takes subclasses by value, and no text or number of a subclass reaches the server."""
    if not in_c:
        if speedups.Encoder is None:
            pytest.skip("there is no C extension")
        monkeypatch.setattr(engine, "FastEncoder", encoder.MessageEncoder)
    call = Walk(how)
    with recorded(fresh_server) as recorder:
        options = replaced({"name": "client", "inbox_prefix": "_INBOX.own"}, how)
        with jetstream_sync.connect(how(recorder.url), **options) as nc:
            walk(call, nc)
        assert recorder.formatted() == []
        assert json.loads(re.search(rb"CONNECT (.*)\r\n", recorder.sent)[1])["name"] == "client"
    assert missing_parameters(call.given) == set()


@pytest.mark.server(">=2.14")
def test_a_bool_is_not_a_number(fresh_server):
    """Every call refuses a bool in place of a number, before anything is sent."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        call = WalkWithBools(nc)
        walk(call, nc)
    assert call.accepted == set()
