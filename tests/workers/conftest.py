"""Fixtures for several tests of workers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.threads import SCALE

from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker


@pytest.fixture
def worker(nats_server: NatsServer) -> Worker:
    """A worker with a stream for dead letters."""
    return Worker(nats_server.url, name="tests", dead_letters="DEAD")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager that workers notify, also those in other processes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.settimeout(10 * SCALE)
        notified.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield notified
