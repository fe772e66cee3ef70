"""``jsm account``: the account's usage, checked with an independent client."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.jsm import Jsm, Result, run_jsm
from fixtures.rawnats import RawClient
from fixtures.server import wait_for_peers
from fixtures.threads import wait_until

from jetstream_sync.cli.streams.backup import open_backup
from jetstream_sync.server import NatsCluster, NatsServer


def test_info_starts_with_usage_and_limits(jsm, raw):
    """Without configuration, usage and limits of the account are shown."""
    raw.api("STREAM.CREATE.A", name="A", subjects=["a"], storage="memory")
    lines = jsm("account", "info").ok().out.splitlines()
    assert lines[0].strip().startswith("Memory: 0 B of ")
    assert lines[1].strip().startswith("Storage: 0 B of ")
    assert lines[2].strip() == "Streams: 1 of Unlimited"
    assert lines[3].strip() == "Consumers: 0 of Unlimited"


def test_limits_of_the_account():
    """Limits of the account are shown as they are."""
    config = """accounts { A { jetstream { max_mem: 1MB, max_file: 1GB, max_streams: 3 }
        users [ { user: a, password: a } ] } }"""
    with NatsServer(config=config) as server:
        login = ("-s", server.url, "--user", "a", "--password", "a")
        out = run_jsm(*login, "account", "info").ok().out
    assert "Memory: 0 B of 1.0 MiB\n" in out
    assert "Storage: 0 B of 1.0 GiB\n" in out
    assert "Streams: 0 of 3\n" in out


# --- backup and restore -------------------------------------------------------------------------


@pytest.fixture
def two_streams(raw: RawClient) -> list[dict[str, Any]]:
    """Two streams with messages and a consumer, with their state on the server."""
    for name, subjects in (("ORDERS", ["ORDERS.*"]), ("AUDIT", ["audit"])):
        raw.api(f"STREAM.CREATE.{name}", name=name, subjects=subjects)
    for number in range(5):
        raw.request("ORDERS.new", b"order %d" % number)
    raw.request("audit", b"entry")
    config = {"durable_name": "NEW", "ack_policy": "explicit"}
    raw.api("CONSUMER.CREATE.ORDERS.NEW", stream_name="ORDERS", config=config)
    return described(raw)


def described(raw: RawClient) -> list[dict[str, Any]]:
    """Return configs and states of the streams, read with an independent client."""
    found = []
    for name in raw.api("STREAM.NAMES")["streams"]:
        info = raw.api(f"STREAM.INFO.{name}")
        state = {key: info["state"][key] for key in ("messages", "bytes", "first_seq", "last_seq")}
        consumers = raw.api(f"CONSUMER.NAMES.{name}")["consumers"] or []
        found.append({"name": name, "config": info["config"], **state, "consumers": consumers})
    return found


def test_an_account_is_backed_up_and_restored(jsm, raw, two_streams, tmp_path):
    """All streams are saved, each in its directory, and restored equal."""
    target = str(tmp_path / "backup")
    saved = jsm("account", "backup", target, "-j").ok()
    assert saved.json == [
        {"stream": name, "directory": f"{target}/{name}", "ok": True, **item}
        for name, item in (("AUDIT", saved_size(saved, 0, 1)), ("ORDERS", saved_size(saved, 1, 5)))
    ]
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {"AUDIT", "ORDERS"}
    raw.delete_all_streams()
    out = jsm("account", "restore", target).ok().out
    assert out.startswith("2 Streams restored: 6 messages")
    assert described(raw) == two_streams


def saved_size(result: Result, place: int, messages: int) -> dict[str, int]:
    size = result.json[place]["bytes"]
    assert size > 0
    return {"bytes": size, "messages": messages}


@pytest.mark.usefixtures("two_streams")
def test_streams_that_exist_are_left_alone(jsm, raw, tmp_path):
    """Existing streams are listed at the end; the others are restored, and the exit status is 1."""
    target = str(tmp_path)
    jsm("account", "backup", target).ok()
    raw.api("STREAM.DELETE.AUDIT")
    raw.request("ORDERS.new", b"one more")
    result = jsm("account", "restore", target)
    assert result.status == 1
    assert result.err.splitlines()[-1] == "jsm: not restored: ORDERS"
    assert [(item["name"], item["messages"]) for item in described(raw)] == [
        ("AUDIT", 1),
        ("ORDERS", 6),
    ]


def test_nothing_to_restore(jsm, tmp_path):
    """A directory without backups, and a missing one, have different errors."""
    assert jsm("account", "restore", str(tmp_path)).status == 3
    assert jsm("account", "restore", str(tmp_path / "none")).status == 2


def test_two_backups_of_a_stream_are_refused(jsm, raw, tmp_path):
    """Two backups of one stream are rejected; incomplete backups are ignored."""
    jsm("stream", "add", "ORDERS", "--subjects", "orders", "--defaults").ok()
    for name in ("one", ".two.partial-x"):
        jsm("stream", "backup", "ORDERS", str(tmp_path / name)).ok()
    raw.delete_all_streams()
    jsm("account", "restore", str(tmp_path)).ok()
    jsm("stream", "backup", "ORDERS", str(tmp_path / "two")).ok()
    raw.delete_all_streams()
    refused = jsm("account", "restore", str(tmp_path))
    assert (refused.status, refused.out) == (2, "")
    assert "one and" in refused.err
    assert "two are both backups of stream ORDERS" in refused.err
    assert raw.api("STREAM.NAMES")["total"] == 0


@pytest.mark.full
@pytest.mark.timeout(180)
def test_a_stream_without_a_leader_does_not_stop_the_others(tmp_path):
    """The other streams are saved, also one with an unusual name; the exit status is 1."""
    good = "GOOD\x0bname"
    with NatsCluster() as cluster:
        wait_for_peers(cluster)
        with RawClient(cluster.servers[0].port, 20) as raw:
            # Made before the loss: a single replica could be placed on the lost server.
            raw.api(f"STREAM.CREATE.{good}", name=good, subjects=["good"], num_replicas=3)
            fields = {"name": "DEAD", "subjects": ["dead"], "num_replicas": 2}
            leader = raw.api("STREAM.CREATE.DEAD", **fields)["cluster"]["leader"]
        next(server for server in cluster.servers if server.name == leader).kill()
        server = next(server for server in cluster.servers if server.is_running)

        def responds() -> bool:
            try:
                with RawClient(server.port, 2) as raw:
                    names = raw.api("STREAM.NAMES")  # by the leader of the meta group
                    return "streams" in names and "config" in raw.api(f"STREAM.INFO.{good}")
            except OSError:
                return False  # a leader was lost

        wait_until(responds, 30)
        result = Jsm(server)("account", "backup", str(tmp_path), "--timeout", "2s")
    assert result.status == 1
    assert result.err.splitlines()[-1] == "jsm: not backed up: DEAD"
    assert "1 Stream backed up" in result.out
    assert open_backup(tmp_path / good).info.config.name == good
