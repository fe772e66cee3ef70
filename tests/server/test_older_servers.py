"""Features that a server is too old for: the call says so, and undoes its effect (ADR-44)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream
from fixtures.threads import wait_until
from packaging.version import Version

import jetstream_sync
from jetstream_sync import ConsumerConfig, JetStream, StreamConfig
from jetstream_sync.api.account import Placement
from jetstream_sync.api.stream import (
    ExternalStream,
    RePublish,
    StreamConsumerLimits,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)
from jetstream_sync.errors import (
    ConsumerNotFoundError,
    ServerTooOldError,
    StreamNotFoundError,
)
from jetstream_sync.server import NatsServer

LATER = datetime(2100, 1, 1, tzinfo=timezone.utc)
EARLIER = datetime(2020, 1, 1, tzinfo=timezone.utc)
VERSION = Version(NatsServer().version)
SOURCE = StreamSource(
    name="O", filter_subject="o.>", opt_start_seq=3, external=ExternalStream(api="$JS.x.API")
)

#: A field of a future server; from 2.12 on a server refuses unknown fields.
STRICT = Version("2.12.0") <= VERSION
UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("unknown", {"extra": {"unknown": True}}, "99"),
    ("unknown", {"extra": {"unknown": False}}, ""),
][: 1 if STRICT else 2]
#: Every field of a StreamConfig that a create may have, with the fields that it requires; and the
#: first server that knows it, if that is later than 2.10.
STREAMS: list[tuple[str, dict[str, Any], str]] = [
    ("description", {"description": "d"}, ""),
    ("retention", {"retention": "workqueue"}, ""),
    ("max_consumers", {"max_consumers": 3}, ""),
    ("max_msgs", {"max_msgs": 3}, ""),
    ("max_bytes", {"max_bytes": 3000}, ""),
    ("max_age", {"max_age": 90}, ""),
    ("max_age", {"max_age": 0.1000000001}, ""),
    ("max_msgs_per_subject", {"max_msgs_per_subject": 3}, ""),
    ("max_msg_size", {"max_msg_size": 300}, ""),
    ("discard", {"discard": "new"}, ""),
    (
        "discard_new_per_subject",
        {"discard_new_per_subject": True, "discard": "new", "max_msgs_per_subject": 1},
        "",
    ),
    ("storage", {"storage": "memory"}, ""),
    ("num_replicas", {"num_replicas": 0}, ""),
    ("num_replicas", {"num_replicas": 1}, ""),
    ("no_ack", {"no_ack": True}, ""),
    ("duplicate_window", {"duplicate_window": 9}, ""),
    ("duplicate_window", {"duplicate_window": 9, "sources": [SOURCE]}, ""),
    ("placement", {"placement": Placement()}, ""),
    ("mirror", {"mirror": SOURCE, "subjects": None}, ""),
    (
        "mirror",
        {
            "mirror": StreamSource(
                name="O",
                opt_start_time=EARLIER,
                subject_transforms=[SubjectTransform(src="o.a", dest="o.b")],
            ),
            "subjects": None,
            "mirror_direct": True,
        },
        "",
    ),
    ("sources", {"sources": [SOURCE, StreamSource(name="P")]}, ""),
    (
        "sources[0].consumer",
        {
            "sources": [
                StreamSource(
                    name="P", consumer=StreamConsumerSource(name="c", deliver_subject="d.d")
                )
            ]
        },
        "2.14",
    ),
    ("deny_delete", {"deny_delete": True}, ""),
    ("deny_purge", {"deny_purge": True}, ""),
    ("allow_rollup_hdrs", {"allow_rollup_hdrs": True}, ""),
    ("allow_direct", {"allow_direct": True}, ""),
    ("republish", {"republish": RePublish(src="E.>", dest="r.>", headers_only=True)}, ""),
    ("subject_transform", {"subject_transform": SubjectTransform(src="E.>", dest="F.>")}, ""),
    ("subject_transform", {"subject_transform": SubjectTransform(src="", dest="F.>")}, ""),
    ("compression", {"compression": "s2", "storage": "file"}, ""),
    ("first_seq", {"first_seq": 30}, ""),
    (
        "consumer_limits",
        {"consumer_limits": StreamConsumerLimits(inactive_threshold=9, max_ack_pending=9)},
        "",
    ),
    ("metadata", {"metadata": {"a": "b", "_nats.x": "y"}}, ""),
    ("metadata", {"metadata": {"_nats.x": "y"}}, ""),
    ("allow_msg_ttl", {"allow_msg_ttl": True}, "2.11"),
    ("allow_msg_ttl", {"allow_msg_ttl": False}, ""),
    ("subject_delete_marker_ttl", {"subject_delete_marker_ttl": 9}, "2.11"),
    ("allow_msg_counter", {"allow_msg_counter": True}, "2.12"),
    ("allow_atomic", {"allow_atomic": True}, "2.12"),
    ("allow_msg_schedules", {"allow_msg_schedules": True}, "2.12"),
    ("persist_mode", {"persist_mode": "async", "storage": "file"}, "2.12"),
    ("persist_mode", {"persist_mode": "default"}, ""),
    ("allow_batched", {"allow_batched": True}, "2.14"),
    *UNKNOWN,
]
PRIORITY: dict[str, Any] = {"priority_groups": ["a"], "priority_policy": "pinned_client"}
PUSH: dict[str, Any] = {"deliver_subject": "d.d"}
#: The same for a ConsumerConfig.
CONSUMERS: list[tuple[str, dict[str, Any], str]] = [
    ("durable_name", {"durable_name": "C"}, ""),
    ("durable_name", {"durable_name": "C", "name": "C"}, ""),
    ("name", {"name": "C"}, ""),
    ("description", {"description": "d"}, ""),
    ("deliver_policy", {"deliver_policy": "last"}, ""),
    ("opt_start_seq", {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, ""),
    ("opt_start_time", {"deliver_policy": "by_start_time", "opt_start_time": EARLIER}, ""),
    ("ack_policy", {"ack_policy": "all"}, ""),
    ("ack_policy", {"ack_policy": "none", "ack_wait": 3, "max_deliver": 1}, ""),
    ("max_ack_pending", {"ack_policy": "none", "max_ack_pending": 3}, ""),
    ("ack_wait", {"ack_wait": 3}, ""),
    ("max_deliver", {"max_deliver": 3}, ""),
    ("backoff", {"backoff": [1, 2], "ack_wait": 9, "max_deliver": 5}, ""),
    ("filter_subject", {"filter_subject": "E.a"}, ""),
    ("filter_subject", {"filter_subject": "E.>"}, ""),
    ("filter_subject", {"filter_subject": ">"}, ""),
    ("filter_subjects", {"filter_subjects": ["E.a"]}, ""),
    ("filter_subjects", {"filter_subjects": ["E.a", "E.b"]}, ""),
    ("replay_policy", {"replay_policy": "original"}, ""),
    ("rate_limit_bps", {"rate_limit_bps": 4096, **PUSH}, ""),
    ("sample_freq", {"sample_freq": "30%"}, ""),
    ("sample_freq", {"sample_freq": "0"}, ""),
    ("max_waiting", {"max_waiting": 3}, ""),
    ("max_ack_pending", {"max_ack_pending": 3}, ""),
    ("flow_control", {"flow_control": True, "idle_heartbeat": 1, **PUSH}, ""),
    ("headers_only", {"headers_only": True}, ""),
    ("max_batch", {"max_batch": 3}, ""),
    ("max_expires", {"max_expires": 3}, ""),
    ("max_bytes", {"max_bytes": 300}, ""),
    ("deliver_group", {"deliver_group": "g", **PUSH}, ""),
    ("inactive_threshold", {"inactive_threshold": 9}, ""),
    ("num_replicas", {"num_replicas": 1}, ""),
    ("mem_storage", {"mem_storage": True}, ""),
    ("metadata", {"metadata": {"a": "b", "_nats.x": "y"}}, ""),
    ("pause_until", {"pause_until": LATER}, "2.11"),
    ("pause_until", {"pause_until": EARLIER}, "2.11"),
    ("priority_groups", {"priority_groups": ["a"], "priority_policy": "overflow"}, "2.11"),
    ("priority_policy", PRIORITY, "2.11"),
    ("priority_policy", {"priority_policy": "none"}, ""),
    ("priority_timeout", {"priority_timeout": 9, **PRIORITY}, "2.11"),
    *UNKNOWN,
]
#: The server refuses these in a create, or in every request of a client.
NOT_CREATED = {"name", "subjects", "sealed", "mirror_direct", "extra"}
SERVERS_OWN = {"direct", "sourcing", "deliver_subject", "idle_heartbeat", "extra"}


def is_known(first: str) -> bool:
    """Return whether the server under test knows a field."""
    return not first or Version(f"{first}.0") <= VERSION


def names(table: list[tuple[str, dict[str, Any], str]]) -> set[str]:
    """The fields that a table covers."""
    return {name.partition("[")[0] for name, _, _ in table} - {"unknown"}


def check_error(error: ServerTooOldError, name: str, first: str) -> None:
    """Check that an error names a field, the release that it needs, and the outcome."""
    # A server that refuses a field does not say in which record it is.
    assert (name.rpartition(".")[2] if STRICT else name) in error.fields
    assert error.needs == ("of a newer release" if name == "unknown" else first)
    assert error.outcome.endswith("nothing was changed" if STRICT else "was removed")
    assert str(error).endswith(error.outcome)


def test_the_tables_name_every_field():
    """A field that is added to a record must be added here."""
    assert names(STREAMS) | NOT_CREATED == {field.name for field in fields(StreamConfig)}
    assert names(CONSUMERS) | SERVERS_OWN == {field.name for field in fields(ConsumerConfig)}


@pytest.mark.parametrize(("name", "said", "first"), STREAMS)
def test_a_stream_field_is_taken_or_named(name, said, first, js):
    """A known field is accepted; an unknown one is named, and nothing is left behind."""
    config = StreamConfig(**{"name": "E", "subjects": ["E.>"], "storage": "memory", **said})
    if is_known(first):
        js.create_stream(config)
        js.create_stream(config)  # an existing one is accepted
        # The server's config can be sent back.
        js.update_stream(js.get_stream("E").cached_info.config)
        return
    with pytest.raises(ServerTooOldError) as caught:
        js.create_stream(config)
    check_error(caught.value, name, first)
    with pytest.raises(StreamNotFoundError):
        js.get_stream("E")


@pytest.mark.parametrize(("name", "said", "first"), CONSUMERS)
def test_a_consumer_field_is_taken_or_named(name, said, first, js):
    """The same for consumers of each kind."""
    js.create_stream(name="E", subjects=["E.>"], storage="memory")
    config = ConsumerConfig(**({"durable_name": "C"} | said if "name" not in said else said))
    push = config.deliver_subject is not None
    create = js.create_push_consumer if push else js.create_consumer
    update = js.update_push_consumer if push else js.update_consumer
    if is_known(first):
        create("E", config)
        if config.durable_name:
            create("E", config)  # an existing one is accepted
        update("E", js.consumer_info("E", "C").config)
        return
    with pytest.raises(ServerTooOldError) as caught:
        create("E", config)
    check_error(caught.value, name, first)
    with pytest.raises(ConsumerNotFoundError):
        js.consumer_info("E", "C")


def test_a_limit_of_the_stream_is_no_field_left_out(js):
    """Limits of a stream, and a changed pause_until, do not count as missing fields."""
    limits = StreamConsumerLimits(inactive_threshold=9, max_ack_pending=9)
    js.create_stream(name="E", subjects=["E.>"], storage="memory", consumer_limits=limits)
    js.create_consumer("E", name="C", max_deliver=0, max_ack_pending=0, inactive_threshold=0)
    if is_known("2.11"):
        # The server keeps the existing value, and does not pause.
        js.update_consumer("E", name="C", pause_until=LATER, inactive_threshold=9)


def test_sealing_is_taken(js):
    """A sealed stream loses its age limit and roll-ups, which does not count as missing."""
    stream = js.create_stream(
        name="E", subjects=["E.>"], storage="memory", max_age=90, allow_rollup_hdrs=True
    )
    js.update_stream(replace(stream.cached_info.config, sealed=True))


@pytest.mark.server("<2.12")
def test_an_object_that_existed_before_the_call_is_kept(js):
    """Only what the call created is removed, not what it matched or changed."""
    unknown = {"unknown": True}
    stream = js.create_stream(name="E", subjects=["E.>"], storage="memory")
    stream.create_consumer(durable_name="C")
    created = stream.info().created
    wait_until(lambda: datetime.now(timezone.utc) - created > timedelta(seconds=0.1))
    with pytest.raises(ServerTooOldError, match="not created by this call") as caught:
        js.create_stream(name="E", subjects=["E.>"], storage="memory", extra=unknown)
    assert caught.value.fields == ("unknown",)
    with pytest.raises(ServerTooOldError, match="not created by this call"):
        stream.create_consumer(durable_name="C", extra=unknown)
    for update in (js.update_stream, js.create_or_update_stream):
        with pytest.raises(ServerTooOldError, match="updated with the rest: max_msgs, storage"):
            update(name="E", storage="memory", max_msgs=7, extra=unknown)
    for change in (stream.update_consumer, stream.create_or_update_consumer):
        with pytest.raises(ServerTooOldError, match=r"updated with the rest: .*description"):
            change(durable_name="C", description="d", extra=unknown)
    assert stream.info().config.max_msgs == 7
    assert stream.consumer_info("C").config.description == "d"


@pytest.mark.server("<2.12")
def test_an_unnamed_consumer_is_removed(stream):
    """An ephemeral consumer that lacks a field is removed."""
    with pytest.raises(ServerTooOldError, match="unknown needs nats-server .*was removed"):
        stream.create_consumer(extra={"unknown": True})
    assert stream.consumer_names() == []


@pytest.mark.parametrize(
    ("created", "messages", "outcome", "deletions"),
    [
        ("2024-01-01T00:00:00Z", 0, "could not be removed: .*no, no", 1),
        ("2024-01-01T00:00:00Z", 1, "stays as it is", 0),
        ("2023-12-31T23:00:00Z", 0, "stays as it is", 0),
        ("2024-01-01T01:00:00Z", 0, "stays as it is", 0),
    ],
)
def test_only_a_new_and_empty_stream_is_removed(created, messages, outcome, deletions):
    """Judged by the server's times; if that fails or is uncertain, the error says so."""
    state = {"bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0, "messages": messages}
    response = {
        "config": {"name": "S"},
        "created": created,
        "ts": "2024-01-01T00:00:00Z",
        "state": state,
        "did_create": True,
    }

    def reply(route: str, _: Any) -> dict[str, Any]:
        if "DELETE" in route:
            return {"error": {"code": 500, "err_code": 1, "description": "no, no"}}
        return response

    with FakeJetStream(reply) as server:
        with jetstream_sync.connect(server.url) as nc:
            with pytest.raises(ServerTooOldError, match=outcome) as caught:
                nc.jetstream(timeout=5).create_stream(name="S", max_msgs=3, allow_atomic=True)
            nc.close()
        assert len(server.published("$JS.API.STREAM.DELETE.S")) == deletions
    assert caught.value.fields == ("allow_atomic",)
    assert caught.value.needs == "2.12"


# --- the level of the API -----------------------------------------------------------------------


def info_requests(server: FakeJetStream) -> int:
    """The number of requests for the API level."""
    return len(server.published("$JS.API.INFO"))


def level(number: int | None) -> dict[str, Any]:
    """Return an account info of a server with an API level."""
    return {"api": {"total": 0, "errors": 0} | ({} if number is None else {"level": number})}


def ack(server: FakeJetStream, number: int) -> None:
    """Acknowledge the n-th message."""
    said = server.wait_for(lambda said: said.subject == "a", number)
    server.deliver(said.rest, b'{"stream":"S","seq":1}')


@pytest.mark.parametrize("number", [None, 0])
def test_a_ttl_is_refused_at_once_by_an_older_server(number):
    """Without the API level the message would be kept for ever: it is not sent."""
    with FakeJetStream(lambda *_: level(number)) as server:
        with jetstream_sync.connect(server.url) as nc:
            js = nc.jetstream(timeout=5)
            for publish in (js.publish, js.publish_async):
                with pytest.raises(ServerTooOldError, match=r"msg_ttl needs nats-server 2\.11"):
                    publish("a", b"", msg_ttl=1)
            with pytest.raises(ServerTooOldError, match=r"pausing a consumer needs .* 2\.11"):
                js.pause_consumer("S", "C", LATER)
            with pytest.raises(ServerTooOldError):
                js.resume_consumer("S", "C")
            nc.close()
        assert server.published("a") == []
        assert info_requests(server) == 1


def test_the_level_is_asked_for_once_for_each_link():
    """The level is requested once for each link, for all contexts of a connection."""
    with (
        FakeJetStream(lambda *_: level(1)) as server,
        jetstream_sync.connect(server.url, reconnect_time_wait=0.01) as nc,
    ):
        for number in range(1, 4):
            nc.jetstream(timeout=5).publish_async("a", b"", msg_ttl=1)
            ack(server, number)
        assert info_requests(server) == 1
        nc.reconnect()
        wait_until(lambda: nc.stats["reconnects"] == 1)
        for number in range(4, 7):
            nc.jetstream(timeout=5).publish_async("a", b"", msg_ttl=1)
            ack(server, number)
        assert info_requests(server) == 2
        nc.jetstream(timeout=5).publish_async("a", b"")
        assert info_requests(server) == 2
        nc.close()


def test_without_the_permission_to_ask_the_version_decides():
    """A user who may publish and not request the level can use a TTL."""
    config = """
    jetstream: enabled
    authorization { users = [
      {user: all, password: all}
      {user: few, password: few, permissions: {
        publish: {deny: "$JS.API.>"}, subscribe: "_INBOX.>"
      }}
    ] }
    """
    with NatsServer(name="denied", config=config) as server:
        with jetstream_sync.connect(server.url, user="all", password="all") as nc:
            extra = {"allow_msg_ttl": True} if is_known("2.11") else {}
            nc.jetstream().create_stream(name="E", subjects=["E.>"], storage="memory", **extra)
        with jetstream_sync.connect(server.url, user="few", password="few") as nc:
            js = nc.jetstream()
            if is_known("2.11"):
                assert js.publish("E.a", b"", msg_ttl=1).seq == 1
            else:
                with pytest.raises(ServerTooOldError):
                    js.publish("E.a", b"", msg_ttl=1)


GROUPS = "static-consumer-groups"
OLD_GROUP = b'{"max_members":1,"members":["a"]}'
IN_ONE_BATCH = [("old.a", b""), ("old.b", b"")]
UNMET: dict[str, Any] = {"expected_last_subject": "old.b", "expected_last_subject_sequence": 0}
#: The version that each feature needs, and its call. Services need none.
NEW_FEATURES: dict[str, tuple[str, Callable[[JetStream], object]]] = {
    "a batch": ("2.12", lambda js: js.publish_batch(IN_ONE_BATCH)),
    "a fast publish": ("2.14", lambda js: js.fast_publish().add("old.a", b"")),
    "a counter": (
        "2.12",
        lambda js: js.create_stream(name="NEW", subjects=["new"], allow_msg_counter=True),
    ),
    "a schedule": ("2.12", lambda js: js.schedule("old.a", target="old.b", at=LATER)),
    "a repeated schedule": ("2.14", lambda js: js.schedule("old.a", target="old.b", every=1)),
    "a daily schedule": ("2.14", lambda js: js.schedule("old.a", target="old.b", cron="@daily")),
    "a cancelled schedule": ("2.12", lambda js: js.publish("old.a", cancels="old.b")),
    "another subject": ("2.11", lambda js: js.publish("old.a", **UNMET)),
    "another subject later": ("2.11", lambda js: js.publish_async("old.a", **UNMET)),
    "a pedantic request": ("2.11", lambda js: js.create_stream(name="NEW", pedantic=True)),
    "markers": ("2.11", lambda js: js.create_key_value(bucket="NEW", limit_marker_ttl=1)),
    "later markers": ("2.11", lambda js: js.update_key_value(bucket=GROUPS, limit_marker_ttl=1)),
    "values at a revision": (
        "2.11",
        lambda js: js.key_value(GROUPS).get_many(">", up_to_revision=1),
    ),
    "last messages": ("2.11", lambda js: js.get_stream("OLD").get_last_msgs("old.>")),
    "messages from a time on": (
        "2.11",
        lambda js: js.get_stream("OLD").get_msgs(10, start_time=EARLIER),
    ),
    "an unpinned group": ("2.11", lambda js: js.unpin_consumer("OLD", "c", "A")),
    "a reset": ("2.14", lambda js: js.reset_consumer("OLD", "c")),
    "a static group": ("2.11", lambda js: js.consumer_groups.create_static("OLD", "g", 1, ["a"])),
    "an elastic group": ("2.11", lambda js: js.consumer_groups.create_elastic("OLD", "g", 1)),
    "a member of a group": (
        "2.11",
        lambda js: js.consumer_groups.get("OLD", "made").consume("a", print),
    ),
}


@pytest.mark.parametrize(
    ("needs", "call"),
    [
        pytest.param(needs, call, marks=pytest.mark.server(f"<{needs}"), id=name)
        for name, (needs, call) in NEW_FEATURES.items()
    ],
)
def test_a_new_feature_leaves_nothing_behind(js, needs, call):
    """A feature that the server does not have is refused by version, and nothing is created."""
    stream = js.create_stream(name="OLD", subjects=["old.>"], storage="memory", allow_direct=True)
    stream.create_consumer(durable_name="c")
    kv = js.create_key_value(bucket=GROUPS, storage="memory")
    kv.put("OLD.made", OLD_GROUP)
    before = js.stream_names()
    with pytest.raises(ServerTooOldError, match=re.escape(needs)):
        call(js)
    assert js.stream_names() == before
    assert js.get_stream("OLD").cached_info.state.messages == 0
    assert js.consumer_names("OLD") == ["c"]
    assert kv.keys() == ["OLD.made"]
