"""What the server does not permit is told once, in a line, with a status, and is not waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.jsm import Result, run_jsm

from jetstream_sync import ConsumerConfig, connect
from jetstream_sync.server import NatsServer


@pytest.fixture(scope="module")
def strict() -> Iterator[NatsServer]:
    """A server whose users may publish to, and subscribe to, few subjects."""
    users = """authorization { users: [
        { user: a, password: a, permissions: {
            publish: ["$JS.API.>", "ok.>", "_INBOX.>"], subscribe: ["ok.>", "_INBOX.>"] } }
        { user: b, password: b, permissions: { publish: "ok.>", subscribe: "ok.>" } }
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
    assert refused.status == 5
    assert refused.err.count("\n") == refused.err.count("Permissions Violation for Publish") == 1
    assert as_user(strict, "a", "pub", "ok.x", "x").ok().err == ""


def test_all_that_is_refused_is_told_once(strict):
    """A thousand refusals of the same kind are one line, and what was measured is not said."""
    refused = as_user(strict, "a", "bench", "pub", "--msgs", "1000", "--subject", "denied")
    assert (refused.status, refused.out) == (5, "")
    assert refused.err.count("Permissions Violation") == 1


@pytest.mark.parametrize(
    ("command", "status"),
    [(("sub", "no.1"), 5), (("sub", "no.1", "no.2"), 1), (("events",), 1)],
)
def test_nobody_listens_where_it_is_not_permitted(strict, command, status):
    """Where no subject is permitted, nothing will ever come: that ends the command."""
    refused = as_user(strict, "a", *command)
    assert refused.status == status
    assert "Permissions Violation for Subscription" in refused.err


def test_what_is_permitted_is_listened_to(strict):
    """One subject of two is told to be refused; the other one is waited for."""
    waited = as_user(strict, "a", "sub", "no.1", "ok.1", "--wait", "1s")
    assert waited.status == 4
    assert waited.err.count("Permissions Violation") == 1


def test_answers_that_are_not_permitted(strict):
    """Who may not have answers is told that, once, at once."""
    refused = as_user(strict, "b", "stream", "ls", "-j")
    assert (refused.status, refused.out) == (5, "")
    assert "Permissions Violation" in refused.error["description"]


PART = """
authorization {
    users: [
        {user: all, password: all}
        {user: part, password: part, permissions: {publish: {deny: [
            "$JS.API.STREAM.DELETE.B", "$JS.API.CONSUMER.DELETE.A.B", "$KV.CONFIG.b"
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
        assert done.json["deleted"] == [names[0]]
        left = {
            "stream": lambda: [name for name in js.stream_names() if len(name) == 1],
            "consumer": lambda: js.consumer_names("A"),
            "kv": bucket.keys,
        }[command[0]]()
        assert sorted(left) == list(names[1:])
