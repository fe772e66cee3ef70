"""What the server does not permit is told once, in a line, with a status, and is not waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.jsm import Result, run_jsm, spawn_jsm
from fixtures.threads import wait_until

from jetstream_sync import ConsumerConfig, connect
from jetstream_sync.server import NatsServer


@pytest.fixture(scope="module")
def strict() -> Iterator[NatsServer]:
    """A server whose users may publish to, and subscribe to, few subjects."""
    users = """authorization { users: [
        { user: a, password: a, permissions: {
            publish: ["$JS.API.>", "ok.>", "_INBOX.>"], subscribe: ["ok.>", "_INBOX.>"] } }
        { user: b, password: b, permissions: { publish: "ok.>", subscribe: "ok.>" } }
        { user: c, password: c, permissions: { publish: "ok.>" } }
        { user: d, password: d }
    ] }"""
    with NatsServer(config=users) as server:
        yield server


def as_user(server: NatsServer, user: str, *args: str) -> Result:
    return run_jsm("-s", server.url, "--user", user, "--password", user, *args)


@pytest.mark.parametrize(
    "command",
    [
        ("pub", "denied", "x"),
        ("pub", "denied", "x", "--count", "30"),
        ("pub", "denied", "x", "-J"),
        ("req", "denied", "x"),
        ("stream", "add", "S", "--subjects", "s", "--defaults", "--js-api-prefix", "denied"),
    ],
)
def test_a_publish_that_is_refused_fails(strict, command):
    """The server says so after the publish: the status tells it, too, and nothing is waited for."""
    refused = as_user(strict, "a", *command)
    assert (refused.status, "Published [denied] : 'x'" in refused.out) == (5, command[0] == "req")
    assert refused.err.count("\n") == refused.err.count("Permissions Violation for Publish") == 1
    assert as_user(strict, "a", "pub", "ok.x", "x").ok().err == ""


def test_all_that_is_refused_is_told_once(strict):
    """A thousand refusals of the same kind are one line, and what was measured is not said."""
    refused = as_user(strict, "a", "bench", "pub", "--msgs", "1000", "--subject", "denied")
    assert (refused.status, refused.out) == (5, "")
    assert refused.err.count("Permissions Violation") == 1


@pytest.mark.parametrize(
    "command",
    [("sub", "no.1"), ("sub", "no.1", "no.2"), ("events",), ("reply", "no.1", "x")],
)
def test_a_subscription_that_is_refused_fails(strict, command):
    """If no subject is permitted, the command ends before it says that it listens."""
    refused = as_user(strict, "a", *command)
    assert (refused.status, refused.out) == (5, "")
    assert "Permissions Violation for Subscription" in refused.err
    assert "Listening" not in refused.err


def test_what_is_permitted_is_listened_to(strict):
    """One subject of two is told to be refused; the other one is waited for."""
    waited = as_user(strict, "a", "sub", "no.1", "ok.1", "--wait", "1s")
    assert waited.status == 4
    assert waited.err.count("Permissions Violation") == 1


def test_replies_that_are_not_permitted(strict):
    """A user without a permission for replies gets the error once, at once."""
    refused = as_user(strict, "b", "stream", "ls", "-j")
    assert (refused.status, refused.out) == (5, "")
    assert "Permissions Violation" in refused.error["description"]


@pytest.mark.parametrize("how", [(), ("--nak",), ("--term",), ("--double-ack",)], ids=str)
def test_an_acknowledgement_that_is_refused_fails(strict, how):
    """The message was shown and is delivered again: the command does not end as if it was acknowledged."""
    admin = ("--user", "d", "--password", "d", "-s", strict.url)
    with connect(strict.url, user="d", password="d") as nc:
        js = nc.jetstream()
        js.create_stream(name="ACKS", subjects=["acks"], storage="memory")
        js.create_consumer("ACKS", ConsumerConfig(durable_name="C"))
        js.publish("acks", b"x")
    try:
        for words in (("next",), ("sub", "--count", "1", "--wait", "5s")):
            if how == ("--double-ack",) and words[0] == "sub":
                continue
            refused = as_user(strict, "a", "consumer", *words, "ACKS", "C", *how)
            assert refused.status == 5, refused
            assert "x" in refused.out
            assert 'Permissions Violation for Publish to "$JS.ACK.ACKS' in refused.err
            run_jsm(*admin, "consumer", "rm", "ACKS", "C", "-f").ok()
            run_jsm(*admin, "consumer", "add", "ACKS", "C", "--pull", "--defaults").ok()
    finally:
        run_jsm(*admin, "stream", "rm", "ACKS", "-f").ok()


PART = """
authorization {
    users: [
        {user: all, password: all}
        {user: part, password: part, permissions: {publish: {deny: [
            "$JS.API.STREAM.DELETE.B", "$JS.API.CONSUMER.DELETE.A.B", "$KV.CONFIG.b",
            "$JS.API.CONSUMER.LIST.A", "$JS.API.STREAM.LIST"
        ]}}}
        {user: lists, password: lists, permissions: {publish: {deny: [
            "$JS.API.CONSUMER.LIST.A", "$JS.API.STREAM.SNAPSHOT.B"
        ]}}}
    ]
}
"""


@pytest.mark.parametrize(
    "command", [("stream", "rm"), ("consumer", "rm", "A"), ("kv", "del", "CONFIG")]
)
def test_what_was_deleted_before_an_error_is_reported(command):
    """The second of three deletions is refused: the output names the first one only, as the server has it."""
    with (
        NatsServer(config=PART) as server,
        connect(server.url, user="all", password="all") as nc,
    ):
        js = nc.jetstream()
        for name in "ABC":
            js.create_stream(name=name, subjects=[name])
        bucket = js.create_key_value(bucket="CONFIG")
        for name in "ABC":
            js.create_consumer("A", ConsumerConfig(durable_name=name))
            bucket.put(name.lower(), b"1")
        names = "abc" if command[0] == "kv" else "ABC"
        login = ("--user", "part", "--password", "part", "--timeout", "2s")
        done = run_jsm("-s", server.url, *login, *command, *names, "-f", "-j")
        assert done.status != 0
        assert "Permissions Violation" in done.err
        assert names[1] in done.error["description"]
        assert done.json["deleted"] == [names[0]]
        left = {
            "stream": lambda: [name for name in js.stream_names() if len(name) == 1],
            "consumer": lambda: js.consumer_names("A"),
            "kv": bucket.keys,
        }[command[0]]()
        assert sorted(left) == list(names[1:])


@pytest.mark.parametrize(
    "command",
    [("stream", "rmm", "A", "1", "-f"), ("stream", "backup", "A", "{tmp}"), ("top", "--once")],
)
def test_a_refusal_is_one_line(strict, tmp_path, command):
    """Commands that reconnect after a failover write the refusal that ends them once."""
    words = [word.format(tmp=tmp_path / "backup") for word in command]
    refused = as_user(strict, "c", *words)
    assert (refused.status, refused.err.count("\n")) == (5, 1), refused
    assert "Permissions Violation" in refused.err


@pytest.fixture(scope="module")
def partial() -> Iterator[NatsServer]:
    """A server with the streams A and B with a consumer each, of which users see a part."""
    with (
        NatsServer(config=PART) as server,
        connect(server.url, user="all", password="all") as nc,
    ):
        js = nc.jetstream()
        for name in "AB":
            js.create_stream(name=name, subjects=[name])
            js.publish(name, b"1")
            js.create_consumer(name, ConsumerConfig(durable_name="C"))
        js.create_key_value(bucket="CONFIG")
        yield server


def test_one_refused_listing_leaves_the_others(partial):
    """The consumers of a stream that may not be read are a row without values; the others are shown."""
    listed = as_user(partial, "lists", "consumer", "ls", "-a", "-j")
    rows = {row["stream_name"]: row for row in listed.json}
    assert "missing" in rows["A"]
    assert "Permissions Violation" in rows["A"]["missing"]["reason"]
    assert rows["B"]["name"] == "C"
    assert listed.status == 1


@pytest.mark.parametrize("invert", [(), ("--invert",)])
def test_an_unknown_condition_is_not_a_match(partial, invert):
    """A stream whose consumers may not be read is neither idle nor busy, and the list is incomplete."""
    found = as_user(partial, "lists", "stream", "ls", "--idle", "1ms", "-n", *invert)
    assert found.out.split() == ([] if invert else ["B"])
    assert found.status == 1
    assert "1 stream unreachable: A" in found.err
    none = as_user(partial, "lists", "stream", "ls", "--idle", "1ms", "--subject", "A")
    assert (none.status, none.out) == (1, "")


def test_a_bucket_that_is_not_listed_is_deleted(partial):
    """Whether a bucket exists is asked for its stream, not looked up in a list that may be incomplete."""
    words = ("kv", "del", "CONFIG", "--ignore-missing", "-f", "-j")
    assert as_user(partial, "part", *words).ok().json == {"deleted": ["CONFIG"]}
    assert as_user(partial, "part", *words).ok().json == {"deleted": []}
    with connect(partial.url, user="all", password="all") as nc:
        assert "KV_CONFIG" not in nc.jetstream().stream_names()


def test_an_incomplete_backup_says_so_when_it_is_restored(partial, tmp_path):
    """The directory has the names of the streams that are not saved, and the restore fails after the others."""
    target = tmp_path / "account"
    saved = as_user(partial, "lists", "account", "backup", str(target), "-j")
    assert {row["stream"]: row["ok"] for row in saved.json}["B"] is False
    assert saved.status == 1
    assert (target / "INCOMPLETE.txt").read_text() == "B\n"
    with NatsServer() as other:
        restored = run_jsm("-s", other.url, "account", "restore", str(target))
        assert restored.status == 1
        assert "not in the backup: B" in restored.err
        assert run_jsm("-s", other.url, "stream", "ls", "-n").ok().out == "A\n"
    complete = as_user(partial, "all", "account", "backup", str(target), "-f")
    assert complete.ok()
    assert not (target / "INCOMPLETE.txt").exists()


def test_a_repeated_list_says_that_it_is_incomplete(partial):
    """Each repetition has the note that a single list has as its error."""
    login = ("-s", partial.url, "--user", "lists", "--password", "lists")
    child = spawn_jsm(*login, "stream", "ls", "--idle", "1ms", "--watch", "50ms")
    try:
        # One of them may be the warning of the connection.
        lines = [child.stderr.readline() for _ in range(3)]
        assert sum(b"incomplete: 1 stream unreachable: A" in line for line in lines) >= 2
    finally:
        child.kill()
        child.communicate()


def test_a_requeue_that_fails_names_what_is_left():
    """After a refused publish, the dead letters that were not published are named; there are some."""
    config = """authorization { users: [
        { user: all, password: all }
        { user: part, password: part, permissions: { publish: { deny: [
            "s.2", "$JS.API.STREAM.MSG.DELETE.S"] } } }
    ] }"""
    with NatsServer(config=config) as server:
        for words in (
            ("stream", "add", "S", "--subjects", "s.*", "--defaults"),
            ("consumer", "add", "S", "C", "--pull", "--defaults"),
            ("consumer", "dlq", "setup"),
            *(("pub", f"s.{number}", "x", "-J") for number in (1, 2, 3)),
            ("consumer", "next", "S", "C", "--count", "3", "--term"),
        ):
            as_user(server, "all", *words).ok()
        listing = ("consumer", "dlq", "ls", "-j")
        wait_until(lambda: len(as_user(server, "all", *listing).ok().json["messages"]) == 3)
        words = ("consumer", "dlq", "requeue", "S", "C", "--all", "-f")
        failed = as_user(server, "part", *words, "-j")
        assert failed.status == 5
        assert [item["stream_seq"] for item in failed.json["requeued"]] == [1]
        assert failed.json["not_requeued"] == [2, 3]
        failed = as_user(server, "part", *words)
        assert failed.status == 5
        assert failed.out == "Message 2 was not published\nMessage 3 was not published\n"
        refused = as_user(server, "part", "stream", "rmm", "S", "1", "-f")
        assert (refused.status, refused.err.count("Permissions Violation")) == (5, 1)
