"""What ``jsm`` shows while servers of a cluster are down: every command is compared with what is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fixtures.apps import free_port
from fixtures.jsm import Result, run_jsm
from fixtures.server import wait_for_peers
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import ConsumerConfig, JetStream
from jetstream_sync.net.clock import monotonic
from jetstream_sync.server import NatsCluster, NatsServer

ACCOUNTS = """
accounts {
    SYS: { users: [{user: sys, password: sys}] }
    APP: { jetstream: enabled, users: [{user: app, password: app}] }
}
system_account: SYS
no_auth_user: app
"""


#: Reports whose rows are not servers.
REPORTS = (
    ("report", "connections"),
    ("report", "accounts"),
    ("report", "routes"),
    ("report", "gateways"),
    ("report", "leafnodes"),
    ("request", "statsz"),
)


@dataclass
class Account:
    """The streams of an account and the servers that hold them."""

    cluster: NatsCluster
    #: Messages by stream.
    messages: dict[str, int] = field(default_factory=dict)
    #: Names of the consumers by stream.
    consumers: dict[str, list[str]] = field(default_factory=dict)
    #: The server of each stream with one replica.
    only_on: dict[str, str] = field(default_factory=dict)
    #: The server that commands are sent to.
    asked: NatsServer = field(init=False)

    def __post_init__(self) -> None:
        self.asked = self.cluster.servers[1]

    def fill(self, js: JetStream, streams: int) -> None:
        """Create so many streams of one replica, and of three, with messages and consumers; and a bucket."""
        for number in range(streams):
            for replicas in (1, 3):
                name = f"R{replicas}_{number:02}"
                # Reserved space spreads the streams over the servers.
                info = js.create_stream(
                    name=name, subjects=[f"{name}.>"], num_replicas=replicas, max_bytes=1 << 30
                ).cached_info
                for _ in range(number % 4):
                    js.publish(f"{name}.a", b"x")
                self.messages[name] = number % 4
                self.consumers[name] = [f"C{item}" for item in range(number % 3)]
                for consumer in self.consumers[name]:
                    js.create_consumer(name, ConsumerConfig(durable_name=consumer))
                if replicas == 1:
                    assert info.cluster is not None
                    assert info.cluster.leader
                    self.only_on[name] = info.cluster.leader
        bucket = js.create_key_value(bucket="CONFIG", replicas=3)
        bucket.put("a", b"1")
        self.messages["KV_CONFIG"], self.consumers["KV_CONFIG"] = 1, []

    def jsm(self, *args: str, system: bool = False) -> Result:
        """Run a command; it ends soon after the longest wait of a cluster."""
        login = ("--user", "sys", "--password", "sys") if system else ()
        began = monotonic()
        result = run_jsm("-s", self.asked.url, *login, *args)
        assert monotonic() - began < 30 * SCALE, args
        return result

    def lost(self, *down: NatsServer) -> set[str]:
        """Return the streams whose only server is down."""
        names = {server.name for server in down}
        return {stream for stream, server in self.only_on.items() if server in names}


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    """Three servers with the streams of one account; the parameter is their number for each kind."""
    with NatsCluster(config=ACCOUNTS) as cluster:
        wait_for_peers(cluster)
        found = Account(cluster)
        with jetstream_sync.connect(cluster.urls) as nc:
            found.fill(nc.jetstream(timeout=20), request.param)
        yield found


def split(rows: list[dict[str, Any]], name: str = "config") -> tuple[dict[str, Any], set[str]]:
    """Return the rows with values by name, and the names of the missing ones."""
    by_name = {row[name]["name"] if name == "config" else row[name]: row for row in rows}
    missing = {key for key, row in by_name.items() if "missing" in row}
    return {key: row for key, row in by_name.items() if key not in missing}, missing


def check_streams(account: Account, lost: set[str]) -> None:
    """Compare the lists of streams: lost ones are rows without values, and match no condition."""
    everything = set(account.messages)
    result = account.jsm("stream", "ls", "-a", "-j")
    known, missing = split(result.json)
    assert (missing, known.keys() | missing) == (lost, everything)
    assert {name: row["state"]["messages"] for name, row in known.items()} == {
        name: number for name, number in account.messages.items() if name not in lost
    }
    assert result.status == (1 if lost else 0)
    for words in (("ls",), ("report",)):
        shown = account.jsm("stream", *words, "-a")
        lines = {line.split()[0]: line for line in shown.out.splitlines()[2:]}
        assert lines.keys() == everything
        assert {name for name, line in lines.items() if "unreachable:" in line} == lost
        assert all("?" in lines[name].split() for name in lost)
        assert shown.status == (1 if lost else 0), shown.err
        assert all(name in shown.err for name in sorted(lost)[:5])
    empty = account.jsm("stream", "find", "--empty", "-a", "-n")
    assert set(empty.out.split()) == {n for n, held in account.messages.items() if not held} - lost
    assert empty.status == (1 if lost else 0)
    # The names are known to the meta leader.
    assert set(account.jsm("stream", "ls", "-a", "-n").ok().out.split()) == everything


def check_consumers(account: Account, lost: set[str]) -> None:
    """Compare the lists of consumers."""
    result = account.jsm("consumer", "ls", "-a", "-j")
    known = {(row["stream_name"], row["name"]) for row in result.json if "missing" not in row}
    missing = {
        (row["stream_name"], row["config"]["name"]) for row in result.json if "missing" in row
    }
    expected = {(stream, name) for stream, names in account.consumers.items() for name in names}
    assert known == {item for item in expected if item[0] not in lost}
    # Whether a lost stream without consumers has any is not known.
    assert {item for item in missing if item[1] is not None} == expected - known
    assert {item[0] for item in missing} <= lost
    assert result.status == (1 if lost else 0)
    for stream in sorted(lost)[:1]:
        one = account.jsm("consumer", "ls", stream)
        assert all(name in one.out for name in account.consumers[stream])
        assert "unreachable" in one.out + one.err
        assert one.status in (1, 4)


def check_top(account: Account, lost: set[str]) -> None:
    """Compare the tables of ``top --once``."""
    result = account.jsm("top", "--once", "--interval", "0.1s", "-j")
    known, missing = split(result.json["streams"], "name") if not lost else ({}, set())
    if lost:
        rows = result.json["streams"]
        missing = {row["config"]["name"] for row in rows if "missing" in row}
        known = {row["name"]: row for row in rows if "missing" not in row}
    assert (missing, known.keys() | missing) == (lost, set(account.messages))
    assert result.status == (1 if lost else 0)


def check_servers(account: Account, *down: NatsServer) -> None:
    """Compare the lists and reports of servers with those that run."""
    names = {server.name for server in account.cluster.servers}
    off = {server.name for server in down}
    for words in (("ls",), ("ping",), ("report", "jetstream"), ("report", "health")):
        result = account.jsm("server", *words, "-j", system=True)
        rows = {row["server"]["name"]: row for row in result.json}
        assert rows.keys() == names, (words, result.err)
        assert {name for name, row in rows.items() if "missing" in row} == off, words
        assert (result.status != 0) is bool(off), words
    for words in REPORTS:
        result = account.jsm("server", *words, system=True)
        assert all(f"{name} did not" in result.err for name in off), (words, result)
        assert result.status == (1 if off else 0), (words, result)
    times = [
        row["rtt_ns"]
        for row in account.jsm("server", "ping", "-j", system=True).json
        if "rtt_ns" in row
    ]
    # The time of a server begins when the connection is open, and does not have that of a silent server.
    assert max(times) < 300_000_000 * SCALE


def check_one(account: Account, lost: set[str]) -> None:
    """Compare what is said of one lost stream."""
    for name in sorted(lost)[:1]:
        refused = account.jsm("stream", "info", name, "--timeout", "1s")
        assert f"stream {name} is unreachable" in refused.err
        assert refused.status == 4
        unsent = account.jsm("pub", f"{name}.a", "x", "-J", "--timeout", "2s")
        # A server that is stopped, and not down, is silent.
        assert "leader" in unsent.err or "no reply" in unsent.err
        assert unsent.status != 0
        checked = account.jsm("server", "check", "stream", "--stream", name, "--timeout", "1s")
        assert checked.out.startswith("CRITICAL")


def check_monitoring(account: Account, *, healthy: bool) -> None:
    """Compare the checks for monitoring systems."""
    words = ("server", "check", "jetstream")
    result = account.jsm(*words)
    assert result.out.startswith("OK" if healthy else "CRITICAL"), result.out


def check_prune(account: Account, tmp_path: Any, lost: set[str]) -> None:
    """Nothing is deleted while the list of streams is not complete."""
    file = tmp_path / "set.json"
    file.write_text(json.dumps({"set": "shop", "streams": [{"name": "NEW", "subjects": ["new"]}]}))
    result = account.jsm("apply", "-f", str(file), "--prune", "--dry-run")
    assert result.status == (1 if lost else 0), result
    if lost:
        assert min(lost) in result.err


def check_leaderless(account: Account, tmp_path: Any) -> None:
    """A single replica answers: each command says that it may lack the last changes, or fails."""
    for words in (("stream", "subjects", "R3_01"), ("stream", "get", "R3_01", "1")):
        assert "R3_01 has no leader" in account.jsm(*words).err
    assert "bucket CONFIG has no leader" in account.jsm("kv", "get", "CONFIG", "a").ok().err
    for words in (("CONFIG", "absent"), ("CONFIG", "absent", "--ignore-missing")):
        result = account.jsm("kv", "del", *words, "-f", "--timeout", "2s")
        assert result.status not in (0, 3), result
    same = account.jsm("stream", "edit", "R3_01", "--subjects", "R3_01.>", "-f", "--timeout", "2s")
    assert "R3_01 has no leader" in same.err
    for words in (
        ("kv", "put", "CONFIG", "a", "2"),
        ("pub", "R3_01.a", "x", "-J"),
        ("pub", "R3_01.a", "x", "--atomic"),
    ):
        assert "no leader" in account.jsm(*words, "--timeout", "2s").err
    for words in (
        ("message", "--stream", "R3_01"),
        ("stream", "--stream", "R3_01"),
        ("kv", "--bucket", "CONFIG"),
    ):
        result = account.jsm("server", "check", *words)
        assert (result.status, "no leader" in result.out) == (2, True), result
    began = monotonic()
    assert (
        account.jsm("stream", "backup", "R3_01", str(tmp_path / "b"), "--timeout", "1s").status != 0
    )
    assert monotonic() - began < 6 * SCALE


def wait_for_leaders(account: Account, lost: set[str]) -> None:
    """Wait until the streams that can have a leader have one."""

    def are_led() -> bool:
        found = account.jsm("stream", "ls", "-a", "-j")
        if not found.out:
            return False
        known, missing = split(found.json)
        return missing == lost and all(row["cluster"].get("leader") for row in known.values())

    wait_until(are_led, 40)


def check_all(account: Account, tmp_path: Any, *down: NatsServer) -> None:
    lost = account.lost(*down)
    check_servers(account, *down)
    wait_for_leaders(account, lost)
    check_streams(account, lost)
    check_consumers(account, lost)
    check_top(account, lost)
    check_one(account, lost)
    check_prune(account, tmp_path, lost)
    check_monitoring(account, healthy=not down)


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("account", [3], indirect=True)
def test_one_server_is_down(account):
    """Its streams are rows without values, and its name is known."""
    first = next(server for server in account.cluster.servers if account.lost(server))
    account.asked = next(server for server in account.cluster.servers if server is not first)
    assert account.jsm("server", "check", "meta", system=True).status == 0
    first.kill()
    # The leader of the meta group has not noticed it yet.
    checked = account.jsm("server", "check", "meta", system=True)
    assert checked.out.startswith("CRITICAL")
    assert f"{first.name} did not answer" in checked.out or "no meta leader" in checked.out
    times = run_jsm("-s", f"{account.asked.url},{first.url}", "rtt", "-j")
    assert [("min_ns" in row, "missing" in row) for row in times.json] == [
        (True, False),
        (False, True),
    ]
    assert times.status == 5
    lost = account.lost(first)
    wait_for_leaders(account, lost)
    check_consumers(account, lost)
    result = account.jsm("server", "ls", "-j", system=True)
    assert [row["server"]["name"] for row in result.json if "missing" in row] == [first.name]
    assert result.status == 4
    report = account.jsm("server", "report", "connections", system=True)
    assert report.status == 1
    assert f"2 of 3 servers answered; {first.name} did not" in report.err
    absent = account.jsm("server", "report", "connections", "--host", "absent", system=True)
    assert (absent.status, "no server answered" in absent.err) == (4, True)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("account", [3], indirect=True)
def test_lists_keep_their_timeout(account):
    """The meta leader waits 4 seconds for a silent server; a list asks for each item before that."""
    dead = next(server for server in account.cluster.servers if account.lost(server))
    account.asked = next(server for server in account.cluster.servers if server is not dead)
    lost = account.lost(dead)
    wait_for_leaders(account, set())
    dead.pause()
    try:
        # It may have been the meta leader.
        wait_until(lambda: account.jsm("stream", "ls", "-n").status == 0, 60)
        wait_for_leaders(account, lost)
        for words in (
            ("stream", "ls", "-a"),
            ("consumer", "ls", "-a"),
            ("kv", "ls"),
            ("object", "ls"),
        ):
            began = monotonic()
            listed = account.jsm(*words, "-j", "--timeout", "2s")
            assert monotonic() - began < 2.8 * SCALE, words
            if words[0] == "stream":
                known, missing = split(listed.json)
                assert (missing, known.keys() | missing) == (lost, account.messages.keys())
            elif words[0] == "consumer":
                assert {row["stream_name"] for row in listed.json if "missing" in row} <= lost
                known = {
                    (row["stream_name"], row["name"]) for row in listed.json if "missing" not in row
                }
                assert known == {
                    (stream, name)
                    for stream, names in account.consumers.items()
                    for name in names
                    if stream not in lost
                }
        began = monotonic()
        account.jsm("top", "--once", "--interval", "10ms", "--timeout", "2s")
        assert monotonic() - began < 4.8 * SCALE
    finally:
        dead.resume()


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("account", [1], indirect=True)
def test_checks_and_dead_letters_while_a_server_is_down(account):
    """A bucket with a lost replica is critical, and dead letters of a lost stream are rows."""
    account.jsm("consumer", "dlq", "setup", "--replicas", "3").ok()
    letter = {"stream": "R1_00", "consumer": "C", "stream_seq": 1, "deliveries": 5}
    letter |= {"type": "io.nats.jetstream.advisory.v1.max_deliver", "id": "1"}
    letter |= {"timestamp": "2026-01-02T03:04:05Z"}
    with jetstream_sync.connect(account.cluster.urls) as nc:
        subject = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.R1_00.C"
        nc.jetstream().publish(subject, json.dumps(letter).encode())
    lost = next(item for item in account.cluster.servers if item.name == account.only_on["R1_00"])
    account.asked = next(item for item in account.cluster.servers if item is not lost)
    account.jsm("server", "check", "kv", "--bucket", "CONFIG").ok()
    lost.kill()

    def is_noticed() -> bool:
        checked = account.jsm("server", "check", "kv", "--bucket", "CONFIG", "--timeout", "2s")
        return f"replica on {lost.name} was not seen" in checked.out and checked.status == 2

    wait_until(is_noticed, 40)
    # The stream of the dead letters elects a leader.
    words = ("consumer", "dlq", "ls", "-j", "--timeout", "2s")
    wait_until(lambda: account.jsm(*words).out, 40)
    shown = account.jsm(*words)
    (row,) = shown.json["messages"]
    assert (row["stream"], row["in_stream"]) == ("R1_00", None)
    assert shown.status == 1
    assert "R1_00" in shown.err
    assert "C" in account.jsm("consumer", "dlq", "ls", "--timeout", "2s").out
    refused = account.jsm("stream", "get", "R1_00", "1", "--timeout", "2s")
    assert "unreachable" in refused.err
    assert "server report health" in refused.err
    # The meta leader deletes a stream whose only server is lost, and nothing confirms it.
    removed = account.jsm("stream", "rm", "R1_00", "NOPE", "--force", "--timeout", "2s")
    assert (removed.status, removed.out) == (3, "")
    removed = account.jsm("stream", "rm", "R1_00", "-f", "-j", "--timeout", "2s").ok()
    assert removed.json == {"deleted": ["R1_00"]}
    assert "R1_00" not in account.jsm("stream", "ls", "-n").ok().out
    assert account.jsm("stream", "rm", "R1_00", "-f", "--timeout", "2s").status == 3


@pytest.mark.parametrize("account", [1], indirect=True)
def test_what_does_not_exist_without_a_meta_leader(account):
    """What cannot be asked is not called unreachable, and a refused creation says that it changed nothing."""
    first, _, third = account.cluster.servers
    first.kill()
    third.kill()
    wait_until(lambda: "no meta leader, so this" in account.jsm("stream", "ls").err, 60)
    # Only the meta leader knows what does not exist.
    for what, words in {
        "stream NOSUCH": ("stream", "info", "NOSUCH"),
        "consumer NOSUCH > C": ("consumer", "info", "NOSUCH", "C"),
        "bucket NOSUCH": ("kv", "get", "NOSUCH", "k"),
        "object store NOSUCH": ("object", "info", "NOSUCH"),
    }.items():
        result = account.jsm(*words, "--timeout", "1s")
        text = f"jsm: {what} does not answer, and neither does a meta leader: it is not known whether it exists"
        assert (result.err.startswith(text), result.status) == (True, 4), result
    for words in (
        ("stream", "add", "NEW", "--subjects", "new", "--defaults"),
        ("kv", "add", "NEW"),
        ("object", "add", "NEW"),
        ("consumer", "add", "NOSUCH", "NEW", "--defaults"),
        ("consumer", "add", "R3_00", "NEW", "--defaults"),
    ):
        result = account.jsm(*words, "--timeout", "1s")
        text = "jsm: JetStream has no meta leader, so this request changed nothing"
        assert text in result.err, result
    # What one replica has needs no consumer; the rest names the cause.
    for words in (
        ("kv", "ls", "CONFIG"),
        ("kv", "watch", "CONFIG", "--count", "1"),
        ("sub", "--stream", "R3_00", "--all", "-T"),
        ("stream", "get", "R3_00", "1"),
    ):
        result = account.jsm(*words, "--timeout", "1s")
        assert "has no leader: its state may be out of date\njsm: " in result.err, result
        assert "JetStream has no meta leader" in result.err.splitlines()[1], result
        assert result.status in (1, 4)
    with_values = account.jsm("kv", "get", "CONFIG", "a")
    assert (with_values.out, with_values.status) == ("1", 0)


@pytest.mark.timeout(180)
def test_one_stream_has_no_leader():
    """With a meta leader, its replica answers, and a consumer without a leader is named as such."""
    with NatsCluster(5) as cluster:
        wait_for_peers(cluster)
        with jetstream_sync.connect(cluster.urls) as nc:
            js = nc.jetstream(timeout=20)
            stream = js.create_stream(name="R3", subjects=["a"], num_replicas=3)
            js.create_consumer("R3", ConsumerConfig(durable_name="C"))
            js.publish("a", b"x")
            group = stream.info().cluster
        assert group is not None
        lost = {group.leader, group.replicas[0].name}
        for server in cluster.servers:
            if server.name in lost:
                server.kill()
        alive = [server.url for server in cluster.servers if server.name not in lost]

        def jsm(*words: str) -> Result:
            return run_jsm("-s", alive[0], *words, "--timeout", "2s")

        wait_until(lambda: "R3 has no leader" in jsm("stream", "info", "R3").err, 60)
        for words in (("stream", "get", "R3", "1"), ("consumer", "info", "R3", "C")):
            wait_until(lambda words=words: "consumer has no leader: a maj" in jsm(*words).err, 30)
        read = jsm("sub", "--stream", "R3", "--all", "-T", "--raw")
        assert (read.out, read.status) == ("x\n", 0)
        assert "R3 has no leader: its state may be out of date" in read.err
        assert jsm("kv", "get", "NOSUCH", "k").status == 3
        assert jsm("kv", "add", "NEW").status == 0


def test_a_leaf_node_is_cut(tmp_path):
    """A domain behind a leaf connection that is down is named; the server's own streams go on."""
    port = free_port()
    hub_config = f"""
    jetstream {{ domain: hub }}
    leafnodes {{ listen: "127.0.0.1:{port}" }}
    """
    leaf_config = f"""
    jetstream {{ domain: leaf }}
    leafnodes {{ reconnect: 1, remotes: [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}
    """
    with (
        NatsServer(name="hub", config=hub_config) as hub,
        NatsServer(name="leaf", config=leaf_config) as leaf,
    ):

        def far(*words: str) -> Result:
            return run_jsm(*words, "-s", leaf.url, "--js-domain", "hub", "--timeout", "1s")

        wait_until(lambda: far("kv", "add", "B").status == 0, 20)
        far("kv", "put", "B", "k", "v").ok()
        far("stream", "add", "S", "--subjects", "s", "--defaults").ok()
        run_jsm("stream", "add", "OWN", "--subjects", "own", "--defaults", "-s", leaf.url).ok()
        hub.pause()
        try:
            silent = far("stream", "info", "S")
            assert (silent.status, "S" in silent.err) == (4, True), silent
            # The reply of a meta leader would not change these errors.
            for words in (("account", "info"), ("kv", "add", "B")):
                assert "STREAM.NAMES" not in far(*words, "--trace").err
            # No creation could tell whether the stream exists.
            written = tmp_path / "config.json"
            words = ("consumer", "add", "S", "C", "--defaults", "--output", str(written))
            assert (far(*words).status, written.exists()) == (4, False)
        finally:
            hub.resume()
        hub.kill()
        wait_until(lambda: far("stream", "ls").status == 5, 20)
        for words in (
            ("stream", "ls"),
            ("stream", "info", "S"),
            ("stream", "add", "NEW", "--subjects", "new", "--defaults"),
            ("consumer", "ls", "S"),
            ("consumer", "next", "S", "C"),
            ("kv", "get", "B", "k"),
            ("kv", "ls"),
            ("object", "ls"),
            ("sub", "--stream", "S", "--all", "-T"),
            ("account", "info"),
            ("top", "--once"),
        ):
            cut = far(*words)
            assert (
                "JetStream domain 'hub' does not answer: the leaf node connection is down"
                in cut.err
            )
            assert "start the server" not in cut.err
            assert (cut.status, cut.out) == (5, ""), words
        for words in (("pub", "s", "x", "-J"), ("kv", "put", "B", "k", "2")):
            unsent = far(*words)
            assert "hub" in unsent.err, unsent
            assert unsent.status != 0
        assert run_jsm("stream", "ls", "-n", "-s", leaf.url).ok().out == "OWN\n"


def test_a_store_is_full():
    """Each command that stores something names the full store; what is stored can be read, changed and deleted."""
    with NatsServer(name="full", config="jetstream { max_file_store: 1MB }") as server:

        def jsm(*words: str, **more: Any) -> Result:
            return run_jsm(*words, "-s", server.url, "--timeout", "2s", **more)

        jsm("stream", "add", "S", "--subjects", "s", "--defaults").ok()
        jsm("kv", "add", "B").ok()
        jsm("kv", "put", "B", "k", "v").ok()
        jsm("object", "add", "O").ok()
        body = b"x" * 100_000
        wait_until(lambda: jsm("pub", "s", "-J", stdin=body).status != 0, 20)
        for words in (
            ("pub", "s", "-J"),
            ("kv", "put", "B", "k"),
            ("object", "put", "O", "--name", "f"),
        ):
            refused = jsm(*words, stdin=body)
            assert (refused.status, "is full" in refused.err) == (1, True), refused
            assert "max_file_store" in refused.err
        assert jsm("kv", "get", "B", "k").ok().out == "v"
        assert jsm("object", "ls", "O", "-j").ok().json == []
        # Two editors, of which the second has an older config.
        jsm("stream", "edit", "S", "--description", "one", "-f").ok()
        jsm("stream", "edit", "S", "--max-age", "1h", "-f").ok()
        config = jsm("stream", "info", "S", "-j").ok().json["config"]
        assert (config["description"], config["max_age"]) == ("one", 3_600_000_000_000)
        jsm("stream", "purge", "S", "-f").ok()
        jsm("pub", "s", "-J", stdin=body).ok()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("account", [15], indirect=True)
def test_an_outage(account, tmp_path):
    """One server is killed, then two, then one is stopped; each command shows what is known."""
    first, _, third = account.cluster.servers
    check_all(account, tmp_path)
    first.kill()
    check_all(account, tmp_path, first)
    third.kill()

    # Without a quorum, no list can be made: each command says why.
    def has_no_leader() -> bool:
        listed = account.jsm("stream", "ls")
        # Before the leader steps down, its requests time out.
        return (listed.status, "no meta leader" in listed.err) == (1, True)

    wait_until(has_no_leader, 60)
    for words in (("stream", "ls"), ("consumer", "ls", "-a"), ("kv", "ls"), ("top", "--once")):
        result = account.jsm(*words)
        # A server that is a candidate does not answer.
        assert (result.status in (1, 4), result.out) == (True, ""), words
        assert "no meta leader" in result.err, words
    result = account.jsm("server", "check", "jetstream")
    assert result.out.startswith("CRITICAL")
    report = account.jsm("server", "report", "jetstream", system=True)
    assert report.status == 1
    assert "no meta leader: 1 of 3 servers answer, 2 are needed" in report.err
    assert all(server.name in report.out for server in account.cluster.servers)
    assert account.jsm("server", "report", "health", system=True).status == 1
    checked = account.jsm("server", "check", "meta", system=True)
    assert checked.out.startswith("CRITICAL")
    assert "1 of 3" in checked.out
    check_leaderless(account, tmp_path)

    third.start()
    first.start()
    wait_for_peers(account.cluster)
    wait_for_leaders(account, set())
    # Replicas may still be catching up.
    words = ("server", "report", "health")
    wait_until(lambda: account.jsm(*words, system=True).status == 0, 60)
    check_all(account, tmp_path)

    first.pause()
    try:
        check_all(account, tmp_path, first)
    finally:
        first.resume()
