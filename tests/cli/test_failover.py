"""Commands that read or write much survive the loss of one server of a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from fixtures.jsm import Jsm
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.cli.streams.backup import open_backup
from jetstream_sync.server import NatsCluster

pytestmark = [pytest.mark.full, pytest.mark.timeout(150)]


@pytest.fixture
def js(cluster: NatsCluster) -> Iterator[JetStream]:
    """JetStream on the servers that stay."""
    with jetstream_sync.connect([server.url for server in cluster.servers[1:]]) as nc:
        yield nc.jetstream(timeout=20 * SCALE)


@pytest.fixture
def jsm(cluster: NatsCluster) -> Jsm:
    return Jsm(cluster.servers[0])


def survives(
    cluster: NatsCluster, child: subprocess.Popen[bytes], started: Callable[[], object]
) -> bytes:
    """Kill the server of a command once it has started, and return what it writes to its good end."""
    try:
        wait_until(started, 20)
        cluster.servers[0].kill()
        out, err = child.communicate(timeout=60 * SCALE)
    finally:
        child.kill()
    assert child.returncode == 0, err
    return out


def test_pub_stores_each_message_once(cluster, js, jsm):
    """Messages with ids are published again after the loss, and stored once."""
    stream = js.create_stream(name="S", subjects=["s"], num_replicas=3)
    words = ("--templates", "--count", "60", "--sleep", "30ms", "-J", "--timeout", "10s")
    child = jsm.spawn("pub", "s", "{{Count}}", "-H", "Nats-Msg-Id: {{Count}}", *words)
    survives(cluster, child, lambda: stream.info().state.messages > 10)
    found = [stream.get_msg(seq).data for seq in range(1, 61)]
    assert found == [b"%d" % number for number in range(1, 61)]
    assert stream.info().state.messages == 60


def test_a_backup_begins_again(cluster, js, jsm, tmp_path):
    """A snapshot that breaks off with its link is taken again."""
    stream = js.create_stream(name="S", subjects=["s"], num_replicas=3)
    with RawClient(cluster.servers[1].port, 20 * SCALE) as raw:
        raw.requests("s", [bytes(100_000)] * 400)
    saved = tmp_path / "saved"
    words = ("--window-size", "64KiB", "--chunk-size", "32KiB", "--timeout", "10s")
    child = jsm.spawn("stream", "backup", "S", str(saved), *words)
    survives(cluster, child, lambda: [*tmp_path.glob("*partial*"), *tmp_path.glob("saved")])
    assert open_backup(saved).info.state.messages == stream.info().state.messages == 400


def test_an_object_is_stored(cluster, js, jsm, tmp_path):
    """A file is stored again from its beginning, and is whole."""
    store = js.create_object_store(bucket="B", replicas=3)
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 200_000)
    child = jsm.spawn("object", "put", "B", str(path), "--name", "o", "--timeout", "10s")
    survives(cluster, child, lambda: store.status().size > 1_000_000)
    assert store.get_bytes("o") == path.read_bytes()


def test_a_repeated_report_goes_on(cluster, js, jsm):
    """A report that is repeated goes on while no server answers, as a leader is being elected."""
    js.create_stream(name="S", subjects=["s"], num_replicas=3)
    child = jsm.spawn("stream", "report", "--watch", "100ms", "-j", "--timeout", "4s")
    assert child.stdout is not None
    try:
        assert child.stdout.readline()
        cluster.servers[0].kill()
        for _ in range(30):
            assert child.stdout.readline(), child.communicate()
    finally:
        child.kill()
        child.communicate()
