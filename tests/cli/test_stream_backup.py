"""``jsm stream backup`` and ``restore``: a stream is saved to a directory and restored."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.jsm import Jsm, run_jsm, spawn_jsm
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

from jetstream_sync.server import NatsServer

MESSAGES = 300


def fill(raw: RawClient, count: int = MESSAGES) -> None:
    """Incompressible messages."""
    responses = raw.requests("ORDERS.new", [os.urandom(3000) for _ in range(count)])
    assert all(b'"seq"' in response for response in responses)


@pytest.fixture
def orders(jsm: Jsm, raw: RawClient) -> Jsm:
    """ORDERS with messages, one of them deleted, and a consumer."""
    jsm("stream", "add", "ORDERS", "--subjects", "ORDERS.*", "--description", "shop").ok()
    fill(raw)
    jsm("stream", "rmm", "ORDERS", "7", "-f").ok()
    raw.api(
        "CONSUMER.CREATE.ORDERS.NEW",
        stream_name="ORDERS",
        config={"durable_name": "NEW", "name": "NEW", "ack_policy": "explicit"},
    )
    return jsm


def held(raw: RawClient) -> dict[str, Any]:
    said = raw.api("STREAM.INFO.ORDERS")
    said["config"].pop("metadata", None)
    messages = [raw.api("STREAM.MSG.GET.ORDERS", seq=seq) for seq in (1, 7, 8, MESSAGES)]
    consumers = raw.api("CONSUMER.NAMES.ORDERS")["consumers"]
    return {"config": said["config"], "state": said["state"], "of": [messages, consumers]}


def gone(jsm: Jsm, raw: RawClient) -> None:
    """Delete ORDERS."""
    jsm("stream", "rm", "ORDERS", "-f").ok()
    assert raw.api("STREAM.NAMES")["total"] == 0


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_restored_stream_equals_the_original(orders, raw, tmp_path):
    """Config, messages, sequences, times, gaps and consumers equal the original."""
    before = held(raw)
    saved = orders("stream", "backup", "ORDERS", str(tmp_path / "b")).ok()
    assert saved.out.startswith(f"Stream ORDERS was backed up to {tmp_path / 'b'}: 299 messages, ")
    assert saved.err == ""
    gone(orders, raw)
    restored = orders("stream", "restore", str(tmp_path / "b")).ok()
    assert restored.out.startswith("Stream ORDERS was restored\n")
    assert held(raw) == before


def test_a_backup_has_the_format_of_the_nats_cli(orders, raw, tmp_path):
    """A backup consists of backup.json with config and state, and an S2 stream with the data."""
    target = tmp_path / "deep" / "b"
    saved = orders("stream", "snapshot", "ORDERS", str(target), "-j").ok().json
    assert leftovers(target) == ["SHA256SUMS", "backup.json", "stream.tar.s2"]
    assert leftovers(target.parent) == ["b"]
    said = raw.api("STREAM.INFO.ORDERS")
    document = json.loads((target / "backup.json").read_text())
    assert set(document) == {"config", "state", "server_version"}
    assert document["config"]["name"] == "ORDERS"
    assert document["state"]["messages"] == said["state"]["messages"]
    assert document["state"]["last_seq"] == said["state"]["last_seq"]
    data = (target / "stream.tar.s2").read_bytes()
    assert data.startswith(b"\xff\x06\x00\x00S2sTwO")
    assert saved["bytes"] == len(data)
    assert saved["sha256"] == hashlib.sha256(data).hexdigest()
    assert (saved["stream"], saved["directory"]) == ("ORDERS", str(target))
    assert saved["config"] == document["config"]
    sums = dict(reversed(line.split()) for line in (target / "SHA256SUMS").read_text().splitlines())
    assert sums["stream.tar.s2"] == saved["sha256"]


def test_a_backup_of_the_nats_cli_can_be_restored(orders, raw, tmp_path):
    """A backup of the nats CLI has no checksums and is restored without them."""
    target = tmp_path / "b"
    orders("stream", "backup", "ORDERS", str(target), "--no-consumers").ok()
    (target / "SHA256SUMS").unlink()
    document = json.loads((target / "backup.json").read_text())
    del document["server_version"]
    (target / "backup.json").write_text(json.dumps(document))
    gone(orders, raw)
    response = orders("stream", "restore", str(target), "-j").ok().json
    assert response["state"]["messages"] == 299
    assert raw.api("STREAM.INFO.ORDERS")["state"] == response["state"]
    assert raw.api("CONSUMER.NAMES.ORDERS")["total"] == 0


def test_a_backup_of_a_newer_server_is_refused(orders, raw, tmp_path):
    """An older server cannot read it: the error has both versions, and nothing was deleted."""
    target = tmp_path / "one" / "b"
    orders("stream", "backup", "ORDERS", str(target)).ok()
    document = json.loads((target / "backup.json").read_text())
    own = document["server_version"]
    assert own == raw.info["version"]
    document["server_version"] = "99.1.0"
    (target / "backup.json").write_text(json.dumps(document))
    (target / "SHA256SUMS").unlink()
    for words in (
        ("stream", "restore", str(target), "--overwrite", "-f"),
        ("account", "restore", str(target.parent)),
    ):
        refused = orders(*words)
        assert refused.status == 1
        assert f"made by nats-server 99.1.0, and this server is {own}" in refused.err
    assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == MESSAGES - 1


def test_a_restore_may_change_the_config(orders, raw, tmp_path):
    """--config replaces the config, but cannot rename the stream."""
    target, file = tmp_path / "b", tmp_path / "c.json"
    orders("stream", "backup", "ORDERS", str(target)).ok()
    config = json.loads((target / "backup.json").read_text())["config"]
    gone(orders, raw)
    file.write_text(json.dumps({**config, "name": "OTHER"}))
    refused = orders("stream", "restore", str(target), "--config", str(file))
    assert refused.status == 2
    assert "OTHER" in refused.err
    file.write_text(json.dumps({**config, "description": "from a backup"}))
    orders("stream", "restore", str(target), "--config", str(file), "--replicas", "1").ok()
    assert raw.api("STREAM.INFO.ORDERS")["config"]["description"] == "from a backup"
    # The hint of the refusal makes the copy.
    hint = "jsm stream add OTHER --source ORDERS"
    assert hint in refused.err
    orders(*hint.split()[1:], "--subjects", "other", "--defaults").ok()
    wait_until(lambda: raw.api("STREAM.INFO.OTHER")["state"]["messages"] == 299)


def test_an_existing_stream_needs_overwrite(orders, raw, tmp_path):
    """An existing stream is replaced only with --overwrite and after confirmation."""
    target = tmp_path / "b"
    orders("stream", "backup", "ORDERS", str(target)).ok()
    raw.request("ORDERS.new", b"one more")
    refused = orders("stream", "restore", str(target))
    assert refused.status == 1
    assert "--overwrite" in refused.err
    assert orders("stream", "restore", str(target), "--overwrite").status == 2
    assert raw.api("STREAM.INFO.ORDERS")["state"]["last_seq"] == MESSAGES + 1
    orders("stream", "restore", str(target), "--overwrite", "-f").ok()
    assert raw.api("STREAM.INFO.ORDERS")["state"]["last_seq"] == MESSAGES
    failed = orders("stream", "restore", str(target), "--overwrite", "-f", "--replicas", "5")
    assert failed.status == 1
    assert "the former stream ORDERS was deleted before the restore" in failed.err


def test_an_existing_backup_needs_force(orders, raw, tmp_path):
    """A backup is replaced only with --force; a directory with other files never is."""
    target = tmp_path / "b"
    target.mkdir()
    orders("stream", "backup", "ORDERS", str(target)).ok()
    before = (target / "backup.json").read_bytes()
    refused = orders("stream", "backup", "ORDERS", str(target))
    assert refused.status == 2
    assert "--force" in refused.err
    raw.request("ORDERS.new", b"one more")
    orders("stream", "backup", "ORDERS", str(target), "--force").ok()
    assert (target / "backup.json").read_bytes() != before
    assert leftovers(tmp_path) == ["b"]
    (target / "letters.txt").write_text("mine")
    assert orders("stream", "backup", "ORDERS", str(target), "--force").status == 2
    file = tmp_path / "file"
    file.write_text("mine")
    assert orders("stream", "backup", "ORDERS", str(file), "--force").status == 2
    assert orders("stream", "backup", "NOPE", str(tmp_path / "n")).status == 3
    assert leftovers(tmp_path) == ["b", "file"]


def test_a_directory_that_exists_is_kept(orders, tmp_path, monkeypatch):
    """An existing target directory is kept, also as a symbolic link or the current directory."""
    target = tmp_path / "b"
    target.mkdir()
    (target / ".partial-x").mkdir()  # of one that was killed
    link = tmp_path / "link"
    link.symlink_to(target)
    before = target.stat().st_ino
    orders("stream", "backup", "ORDERS", str(link)).ok()
    monkeypatch.chdir(target)
    orders("stream", "backup", "ORDERS", ".", "--force").ok()
    assert (link.is_symlink(), target.stat().st_ino) == (True, before)
    assert leftovers(target) == [".partial-x", "SHA256SUMS", "backup.json", "stream.tar.s2"]
    assert leftovers(tmp_path) == ["b", "link"]
    orders("stream", "restore", ".", "--overwrite", "-f").ok()


def test_a_backup_is_readable_by_its_owner_only(orders, tmp_path):
    """Created files and directories have owner permissions only, because messages may be secret."""
    (tmp_path / "old").mkdir(mode=0o755)
    for name in ("old", "new"):
        orders("stream", "backup", "ORDERS", str(tmp_path / name)).ok()
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {0o600}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def damage(target: Path, how: str) -> None:
    data, described = target / "stream.tar.s2", target / "backup.json"
    if how == "cut":
        data.write_bytes(data.read_bytes()[:-100])
    elif how == "changed":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif how == "described otherwise":
        described.write_text(described.read_text().replace("shop", "shed"))
    elif how == "no data":
        data.unlink()
    elif how == "no description":
        described.unlink()
    elif how == "nonsense":
        (target / "SHA256SUMS").unlink()
        described.write_text('{"config": {}}')
    elif how == "sums that are no text":
        (target / "SHA256SUMS").write_bytes(b"\xff\xfe")


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "changed",
        "described otherwise",
        "no data",
        "no description",
        "nonsense",
        "sums that are no text",
    ],
)
def test_a_damaged_backup_is_rejected(orders, raw, tmp_path, how):
    """Damage is detected before anything is sent or deleted."""
    target = tmp_path / "b"
    orders("stream", "backup", "ORDERS", str(target)).ok()
    damage(target, how)
    refused = orders("stream", "restore", str(target), "--overwrite", "-f")
    assert refused.status == 2
    assert str(target) in refused.err
    assert len(refused.err.splitlines()) == 1
    assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 299


@pytest.mark.parametrize("how", ["changed", "cut"])
def test_damage_that_only_the_server_detects_leaves_no_stream(orders, raw, tmp_path, how):
    """Without checksums the server detects the damage, and no partial stream is left."""
    target = tmp_path / "b"
    orders("stream", "backup", "ORDERS", str(target)).ok()
    (target / "SHA256SUMS").unlink()
    damage(target, how)
    gone(orders, raw)
    refused = orders("stream", "restore", str(target), "-j")
    assert refused.status == 1
    assert refused.error["err_code"] == 10062
    assert raw.api("STREAM.NAMES")["total"] == 0


def test_messages_lost_to_limits_are_a_warning(orders, raw, tmp_path):
    """If the config removes messages of the backup, the command warns."""
    target, file = tmp_path / "b", tmp_path / "c.json"
    orders("stream", "backup", "ORDERS", str(target)).ok()
    config = json.loads((target / "backup.json").read_text())["config"]
    file.write_text(json.dumps({**config, "max_msgs": 10}))
    gone(orders, raw)
    restored = orders("stream", "restore", str(target), "--config", str(file)).ok()
    assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 10
    assert "messages is 10, was 299" in restored.err


def test_a_terminal_shows_a_progress_bar(orders, terminal, raw, tmp_path):
    """On a terminal a progress bar is drawn and erased at the end."""
    child = terminal("stream", "backup", "ORDERS", str(tmp_path / "b"))
    child.expect("Stream ORDERS was backed up to")
    assert child.wait() == 0
    gone(orders, raw)
    child = terminal("stream", "restore", str(tmp_path / "b"))
    child.expect("Stream ORDERS was restored")
    assert child.wait() == 0
    assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 299


# --- when it goes wrong on the way --------------------------------------------------------------


@pytest.fixture
def own(fresh_server: NatsServer) -> NatsServer:
    """A server of its own with ORDERS of 9 MB."""
    run_jsm("stream", "add", "ORDERS", "--subjects", "ORDERS.*", NATS_URL=fresh_server.url).ok()
    with RawClient(fresh_server.port) as raw:
        for _ in range(10):
            fill(raw)
    return fresh_server


def test_a_server_that_dies_leaves_no_backup(own, tmp_path):
    """The error says that the connection was lost, and no part of the directory is left."""
    with FaultProxy(own.port) as proxy:
        proxy.hold_after(1_000_000, Toward.CLIENT)
        words = ("stream", "backup", "ORDERS", str(tmp_path / "b"), "--timeout", "1s")
        child = spawn_jsm(*words, NATS_URL=proxy.url)
        wait_until(lambda: leftovers(tmp_path), 20)
        proxy.refuse()
        proxy.cut()
        _, err = child.communicate(timeout=20 * SCALE)
    assert child.returncode in {4, 5}
    assert err.startswith(b"jsm: the backup of ORDERS failed: ")
    assert leftovers(tmp_path) == []


def test_a_lost_connection_leaves_no_stream(own, tmp_path):
    """The error says that nothing is left, and the same restore succeeds afterwards."""
    url, target = own.url, str(tmp_path / "b")
    run_jsm("stream", "backup", "ORDERS", target, NATS_URL=url).ok()
    run_jsm("stream", "rm", "ORDERS", "-f", NATS_URL=url).ok()
    with FaultProxy(own.port) as proxy:
        proxy.cut_after(1_000_000, Toward.SERVER, after=b"S2sTwO")
        result = run_jsm("stream", "restore", target, NATS_URL=proxy.url)
    assert result.status == 5
    assert "nothing is left on the server" in result.err
    with RawClient(own.port) as raw:
        assert raw.api("STREAM.NAMES")["total"] == 0
        run_jsm("stream", "restore", target, NATS_URL=url).ok()
        assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 10 * MESSAGES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_backup_leaves_nothing(own, tmp_path, number):
    """SIGINT and SIGTERM have their exit statuses and leave no partial backup."""
    with FaultProxy(own.port) as proxy:
        proxy.slow(piece=20_000, pause=0.01)
        child = Jsm(own).spawn(
            "stream", "backup", "ORDERS", str(tmp_path / "b"), NATS_URL=proxy.url
        )
        with child:
            wait_until(lambda: list(tmp_path.glob(".b.partial-*/stream.tar.s2")), limit=10)
            child.send_signal(number)
            assert child.wait(10) == 128 + number
    assert leftovers(tmp_path) == []
