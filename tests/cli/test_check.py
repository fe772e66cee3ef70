"""``jsm server check``: the findings, the formats and the exit statuses."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import NOWHERE, Jsm, Result, run_jsm
from fixtures.jwt import Operator
from fixtures.server import wait_for_peers
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import StreamSource, errors
from jetstream_sync.server import NatsCluster, NatsServer


def check(jsm: Jsm, *words: str) -> Any:
    """Return the JSON document of a check, and compare its status with the exit status."""
    result = jsm("server", "check", *words, "-j")
    found = result.json
    assert result.status == ["OK", "WARNING", "CRITICAL"].index(found["status"]), result
    return found


def metrics(found: Any) -> dict[str, float]:
    return {item["name"]: item["value"] for item in found["perf_data"]}


def test_a_connection_is_checked(jsm):
    """All times are measured; the lowest threshold is reached by any of them."""
    shown = jsm("server", "check", "connection").ok().out
    assert shown.startswith("OK Connection OK:time to connect: 0.")
    for name in ("connect_time", "rtt", "request_time"):
        assert f" {name}=0." in shown
        assert "s;0.5000;1.0000" in shown
    slow = check(jsm, "connection", "--rtt-warn", "0s", "--req-critical", "0s")
    assert slow["status"] == "CRITICAL"
    assert len(slow["warning"]) == len(slow["critical"]) == len(slow["ok"]) == 1


def test_no_server_is_critical():
    """The error is a finding; wrong usage is not."""
    failed = run_jsm("-s", "nats://127.0.0.1:1", "server", "check", "connection")
    assert failed.status == 2
    assert failed.out.startswith("CRITICAL Connection Crit:")
    assert failed.err == ""
    assert run_jsm("server", "check", "stream").out == ""


def test_formats(jsm, js):
    """A check has the same findings in each format; for Prometheus the exit status is 0."""
    js.create_stream(name="S", subjects=["s"], storage="memory")
    words = ("server", "check", "stream", "--stream", "S", "--msgs-critical", "1")
    shown = jsm(*words)
    assert (shown.status, shown.err) == (2, "")
    assert shown.out == "CRITICAL S Crit:messages: 0 | messages=0;;1 subjects=0\n"
    found = jsm(*words, "--format", "json")
    assert found.status == 2
    assert found.json["critical"] == ["messages: 0"]
    assert found.json["perf_data"][0] == {
        "name": "messages",
        "value": 0,
        "warning": None,
        "critical": 1,
        "unit": "",
    }
    scraped = jsm(*words, "--format", "prometheus").ok().out
    assert "# TYPE nats_server_check_stream_messages gauge\n" in scraped
    assert 'nats_server_check_stream_messages{item="S"} 0\n' in scraped
    assert 'nats_server_check_stream_status_code{item="S",status="CRITICAL"} 2\n' in scraped


def test_streams(jsm, js):
    """Numbers of messages and subjects are judged."""
    js.create_stream(name="S", subjects=["s.*"], storage="memory")
    for number in range(4):
        js.publish(f"s.{number}", b"")
    found = check(jsm, "stream", "--stream", "S", "--msgs-warn", "5", "--subjects-warn", "3")
    assert found["warning"] == ["messages: 4", "subjects: 4"]
    assert metrics(found) == {"messages": 4, "subjects": 4}
    words = ("stream", "--stream", "S", "--msgs-warn", "1", "--subjects-warn", "9")
    assert check(jsm, *words)["ok"] == ["messages: 4", "subjects: 4"]
    # A lower critical threshold means that few subjects are bad.
    assert check(jsm, *words, "--subjects-critical", "4")["critical"] == ["subjects: 4"]
    assert check(jsm, *words, "--peer-expect", "3")["status"] == "CRITICAL"
    assert check(jsm, *words, "--lag-critical", "1")["status"] == "CRITICAL"
    js.create_stream(name="M", mirror=StreamSource(name="S"), storage="memory")
    words = ("stream", "--stream", "M", "--lag-critical", "1", "--seen-critical", "1m")
    wait_until(lambda: check(jsm, *words)["status"] == "OK", 10)
    assert check(jsm, "stream", "--stream", "absent")["status"] == "CRITICAL"


def test_consumers(jsm, js):
    """The numbers and the times of a consumer are judged."""
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    consumer = stream.create_consumer(durable_name="C")
    for _ in range(3):
        js.publish("s", b"")
    words = ("consumer", "--stream", "S", "--consumer", "C", "--last-ack-critical", "1h")
    found = check(jsm, *words, "--unprocessed-critical", "3", "--waiting-critical", "1")
    assert found["critical"] == ["messages to deliver: 3", "no acknowledgement"]
    assert found["ok"] == ["waiting pulls: 0"]
    first, _ = consumer.fetch(2)
    first.ack_sync()
    found = check(jsm, *words, "--outstanding-ack-critical", "1", "--last-delivery-critical", "1h")
    assert found["critical"] == ["unacknowledged messages: 1"]
    assert len(found["ok"]) == 2
    assert metrics(found)["last_ack"] >= 0
    assert check(jsm, *words, "--pinned")["critical"] == ["the consumer does not pin clients"]


@pytest.mark.server(">=2.11")
def test_pinned_consumers(jsm, js):
    """Each group needs a pinned client."""
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    consumer = stream.create_consumer(
        durable_name="C", priority_groups=["g"], priority_policy="pinned_client"
    )
    words = ("consumer", "--stream", "S", "--consumer", "C", "--pinned")
    assert check(jsm, *words)["critical"] == ["group g has no pinned client"]
    js.publish("s", b"")
    with consumer.messages(group="g") as messages:
        assert messages.next(5)
        assert check(jsm, *words)["status"] == "OK"


def test_messages(jsm, js):
    """The age and the body of the last message of a subject are judged."""
    js.create_stream(name="S", subjects=["s.*"], storage="memory")
    words = ("message", "--stream", "S")
    assert check(jsm, *words)["critical"] == ["no message of >"]
    js.publish("s.text", b"order 1")
    js.publish("s.time", b"%d\n" % (time.time() - 7200))
    text = (*words, "--subject", "s.text")
    assert check(jsm, *text, "--content", "^order", "--age-warn", "1h")["status"] == "OK"
    assert check(jsm, *text, "--content", "^bill")["status"] == "CRITICAL"
    assert check(jsm, *text, "--age-critical", "0s")["status"] == "CRITICAL"
    assert check(jsm, *text, "--body-timestamp")["status"] == "CRITICAL"
    for body in (b"nan", b"inf", b"-inf"):
        js.publish("s.nan", body)
        found = check(jsm, *words, "--subject", "s.nan", "--body-timestamp", "--age-warn", "1h")
        assert found["critical"] == ["the body is not a Unix timestamp"]
    dated = check(jsm, *words, "--subject", "s.time", "--body-timestamp", "--age-warn", "1h")
    assert dated["status"] == "WARNING"
    assert metrics(dated)["age"] >= 7200


def test_jetstream(jsm, js):
    """How much of an unlimited store is used is not known, and no percentage."""
    js.create_stream(name="S", subjects=["s"], storage="memory")
    found = check(jsm, "jetstream")
    assert found["status"] == "OK"
    assert metrics(found)["streams"] == metrics(found)["replicas_ok"] == 1
    for name in ("memory", "storage"):
        assert f"use of {name}: not known, since the account has no limit" in found["ok"]
        assert f"{name}_pct" not in metrics(found)
    assert check(jsm, "js", "--probe")["status"] == "OK"
    assert js.stream_names() == ["S"]


def test_a_full_store_is_critical():
    """A server that can store nothing more is found by a probe, and by a user of the system account."""
    config = """jetstream { max_file_store: 1MB, max_memory_store: 1MB }
    accounts {
        A { jetstream: enabled, users: [{user: a, password: a}] }
        $SYS { users: [{user: s, password: s}] }
    }"""
    with NatsServer(config=config, name="full") as server:

        def run(user: str, *words: str) -> Result:
            login = ("--user", user, "--password", user, "-s", server.url)
            return run_jsm(*words, *login)

        def on(user: str, *words: str) -> Any:
            return run(user, "server", "check", "jetstream", "-j", *words).json

        with jetstream_sync.connect(server.url, user="a", password="a") as nc:
            js = nc.jetstream()
            js.create_stream(name="S", subjects=["s"])
            assert on("a", "--probe")["status"] == "OK"
            assert on("s")["status"] == "OK"
            with pytest.raises(
                errors.ServerFullError, match="store of the stream's server is full"
            ):
                for _ in range(20):
                    js.publish("s", b"x" * 100_000)
            assert on("a")["status"] == "OK"
            found = on("a", "--probe")
            assert found["status"] == "CRITICAL"
            assert re.match(
                "nothing can be stored in the file store of full: .* is full", found["critical"][0]
            )
            assert len(found["critical"]) == 1
            found = on("s")
            assert found["status"] == "CRITICAL"
            assert found["critical"] == ["use of storage of server full: 104%"]
            refused = run("a", "pub", "s", "x", "-J")
            assert refused.status == 1
            assert "is full" in refused.err
            assert "raise its max_file_store" in refused.err
            assert js.stream_names() == ["S"]


def test_buckets(jsm, js):
    """A bucket has enough values, and a value for a key."""
    bucket = js.create_key_value(bucket="CONFIG")
    bucket.put("key", b"value")
    words = ("kv", "--bucket", "CONFIG")
    found = check(jsm, *words, "--key", "key", "--values-warn", "3", "--values-critical", "2")
    assert found["critical"] == ["stored values: 1"]
    assert found["ok"] == ["bucket CONFIG", "key key found"]
    bucket.delete("key")
    assert check(jsm, *words, "--key", "key")["critical"] == ["key key not found"]
    assert check(jsm, "kv", "--bucket", "absent")["status"] == "CRITICAL"


def creds(path: Path, **claims: object) -> str:
    """Write a credentials file with some claims, without a valid signature."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(item).encode())
        for item in ({"typ": "JWT"}, {"sub": "U", **claims}, "x")
    ]
    jwt = b".".join(part.rstrip(b"=") for part in parts).decode()
    path.write_text(f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n")
    return str(path)


@pytest.mark.parametrize(
    ("left", "options", "status"),
    [
        (7200, (), 0),
        (7200, ("--validity-warn", "3h"), 1),
        (7200, ("--validity-warn", "3h", "--validity-critical", "150m"), 2),
        (-5, (), 2),
        (None, (), 2),
        (None, ("--no-require-expiry",), 0),
    ],
)
def test_credentials(tmp_path, left, options, status):
    """A file that expires soon, or never, is found without a server."""
    claims = {} if left is None else {"exp": int(time.time()) + left}
    path = creds(tmp_path / "user.creds", **claims)
    words = ("server", "check", "credential", "--credential", path)
    assert run_jsm(*words, *options).status == status


def test_the_limits_of_an_account_with_tiers_are_those_of_each_tier(tmp_path):
    """A tier that is nearly full is found, although the account as a whole has no limits."""
    limits = {"mem_storage": 0, "disk_storage": 2000, "streams": 2, "consumer": -1}
    operator = Operator(tiers={"R1": limits})
    with NatsServer(config=operator.config()) as server:
        creds = operator.creds(tmp_path)
        with jetstream_sync.connect(server.url, user_credentials=creds) as nc:
            js = nc.jetstream()
            js.create_stream(name="S", subjects=["s"])
            js.publish("s", b"x" * 1800)

        def run(*words: str) -> Result:
            return run_jsm("-s", server.url, "--creds", str(creds), *words)

        found = run("server", "check", "jetstream", "-j")
        assert (found.status, found.json["status"]) == (2, "CRITICAL")
        assert metrics(found.json)["r1_storage_pct"] >= 90
        assert found.json["critical"] == ["use of storage in tier R1: 91%"]
        shown = run("account", "info").ok().out
        assert "Streams: 1\n" in shown
        assert "Streams: 1 of 2\n" in shown


def test_broken_credentials(tmp_path):
    """A file that is absent or has no JWT is critical."""
    (tmp_path / "empty").write_text("")
    for path in (f"{NOWHERE}/absent", str(tmp_path / "empty")):
        failed = run_jsm("server", "check", "credential", "--credential", path)
        assert failed.status == 2
        assert failed.out.startswith("CRITICAL Credential Crit:")


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsCluster]:
    """Three servers."""
    with NatsCluster() as cluster:
        wait_for_peers(cluster)
        yield cluster


def test_replicas(servers):
    """A server that is away is found by the checks of streams and of JetStream."""
    with jetstream_sync.connect(servers.urls[0]) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"], storage="memory", num_replicas=3)

        def on(*words: str) -> Result:
            return run_jsm("-s", servers.urls[0], "server", "check", *words)

        words = ("stream", "--stream", "S", "--peer-lag-critical", "9", "--peer-seen-critical")
        wait_until(lambda: on(*words, "1m").status == 0, 20)
        assert on("jetstream").status == 0
        assert "3 of 2 expected replicas" in on(*words, "1m", "--peer-expect", "2").out
        cluster = stream.info().cluster
        assert cluster is not None
        names = {server.name: server for server in servers.servers}
        replicas = [names[peer.name] for peer in cluster.replicas or ()]
        away = next(replica for replica in replicas if replica is not servers.servers[0])
        away.stop()
        wait_until(lambda: on(*words, "1s").status == 2, 20)
        wait_until(lambda: on("jetstream", "--replica-seen-critical", "1s").status == 2, 20)


def test_wrong_usage_is_unknown(jsm):
    """Monitoring reads 2 as critical, so that wrong options of a check are 3, unknown."""
    assert jsm("server", "check", "stream", "--msgs-critical", "many").status == 3
    assert jsm("server", "check", "jetstream", "--no-such-option").status == 3
    assert jsm("server", "check", "stream").status == 3
    assert jsm("server", "report", "--no-such-option").status == 2
