"""``jsm server run``: a server that is there until Ctrl-C, and gone after it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fixtures.jsm import run_jsm, spawn_jsm
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE
from fixtures.tls import free_port as free_port  # noqa: PLC0414 - a fixture


@contextmanager
def running(*args: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, object]]]:
    """Run a server as a process, with what it says first."""
    child = spawn_jsm("server", "run", "-p", "0", "-j", *args)
    try:
        assert child.stdout
        yield child, json.loads(child.stdout.readline())
    finally:
        child.kill()
        child.communicate()


def port_of(said: dict[str, object]) -> int:
    return int(str(said["url"]).rpartition(":")[2])


def is_there(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_runs_until_it_is_ended(number, status):
    """A server with JetStream answers, and is gone once the command was ended."""
    with running() as (child, said):
        with RawClient(port_of(said)) as raw:
            assert raw.api("INFO")["streams"] == 0
        child.send_signal(number)
        assert child.wait(10 * SCALE) == status
        assert not is_there(port_of(said))
        assert child.stderr is not None
        assert b"interrupted" not in child.stderr.read()


def test_streams_are_kept_where_that_is_said(tmp_path):
    """With a directory, streams are there again the next time."""
    for found in (0, 1):
        with running("--store-dir", str(tmp_path / "store")) as (child, said):
            with RawClient(port_of(said)) as raw:
                assert raw.api("INFO")["streams"] == found
                raw.api("STREAM.CREATE.A", name="A", subjects=["a"])
            child.send_signal(signal.SIGINT)
            child.wait(10 * SCALE)


def test_a_config_is_used(tmp_path):
    """A file in the server's language configures it."""
    file = tmp_path / "server.conf"
    file.write_text('authorization { token: "abc" }')
    with running("--config", str(file), "--no-jetstream", "--name", "me") as (_, said):
        url = str(said["url"])
        assert run_jsm("-s", url, "rtt", "-j").status == 5
        measured = run_jsm("-s", url, "rtt", "-j", "--token", "abc").ok().json
        assert measured[0]["server_name"] == "me"


def test_a_cluster():
    """Several servers form a cluster."""
    with running("--cluster", "3") as (_, said):
        urls = str(said["url"]).split(",")
        assert len(urls) == 3
        info = run_jsm("-s", urls[1], "account", "info", "-j").ok().json
        assert info["connection"]["cluster"]


def test_a_port_that_is_taken(nats_server):
    """A port that is already in use is an error in one line."""
    result = run_jsm("server", "run", "-p", str(nats_server.port))
    assert result.status == 5
    assert result.err.count("\n") == 1
    assert "address already in use" in result.err
    assert result.err.endswith("choose another port with --port\n")
    assert "[INF]" not in result.err


def test_a_config_that_is_wrong(tmp_path):
    """What the server says of its config is told."""
    file = tmp_path / "server.conf"
    file.write_text("jetstream { max_mem: }")
    result = run_jsm("server", "run", "-p", "0", "--config", str(file))
    assert (result.status, result.err.count("\n")) == (5, 1)
    assert "max_mem" in result.err


def test_rtt(nats_server):
    """The round trip is measured to each server that is named."""
    both = f"{nats_server.url},{nats_server.url}"
    found = run_jsm("-s", both, "rtt", "-n", "3", "-j").ok().json
    assert len(found) == 2
    for item in found:
        assert 0 < item["min_ns"] <= item["median_ns"] <= item["max_ns"] < 5_000_000_000
    assert "Median" in run_jsm("-s", nats_server.url, "rtt").ok().out
