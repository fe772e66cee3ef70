"""How a typed program uses `jetstream_sync.server`."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import assert_type

from jetstream_sync.server import NatsCluster, NatsServer, find_nats_server

with NatsServer(port=0, store_dir=Path("store"), config="debug: true") as server:
    assert_type(server, NatsServer)
    assert_type(server.url, str)
    assert_type(server.port, int)
    assert_type(server.pid, int | None)
    assert_type(server.restart(), NatsServer)

with NatsCluster(3) as cluster:
    assert_type(cluster.urls, list[str])
    assert_type(cluster.servers, tuple[NatsServer, ...])
    assert_type(cluster.leader(), NatsServer | None)

assert_type(find_nats_server(), Path)
