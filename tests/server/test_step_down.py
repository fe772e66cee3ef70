"""Leaders of streams and consumers step down, and replicas move, in a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.server import running_cluster
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import Stream, StreamInfo, errors
from jetstream_sync.server import NatsCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """Three servers of these tests, with JetStream clustered."""
    with running_cluster() as servers:
        yield servers


def leader(stream: Stream) -> str | None:
    cluster = stream.info().cluster
    return cluster.leader if cluster is not None else None


def replicas(info: StreamInfo) -> set[str]:
    """Return the names of all servers with a replica, which have caught up."""
    cluster = info.cluster
    if cluster is None or not cluster.leader or not cluster.replicas:
        return set()
    return {cluster.leader, *(peer.name for peer in cluster.replicas if peer.current)}


def test_leaders_step_down(cluster):
    """Another replica becomes the leader, the preferred one if it is named."""
    with jetstream_sync.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20.0)
        stream = js.create_stream(name="S", subjects=["s"], num_replicas=3)
        consumer = stream.create_consumer(durable_name="C")
        before = leader(stream)
        assert before
        wait_until(lambda: len(replicas(stream.info())) == 3, 20.0)
        if nc.server_info.version.startswith("2.10."):
            with pytest.raises(errors.ServerTooOldError):
                stream.step_down(before)
            stream.step_down()
        else:
            other = min(replicas(stream.info()) - {before})
            stream.step_down(other)
            wait_until(lambda: leader(stream) == other, 20.0)
            with pytest.raises(errors.APIError):
                stream.step_down("absent")
        js.publish("s")

        info = consumer.info().cluster
        assert info is not None
        stream.step_down_consumer("C")

        def elected() -> bool:
            now = consumer.info().cluster
            return now is not None and bool(now.leader)

        wait_until(elected, 20.0)
        with pytest.raises(errors.ConsumerNotFoundError):
            stream.step_down_consumer("absent")
        with pytest.raises(errors.InvalidNameError):
            stream.step_down_consumer("a.b")
        js.delete_stream("S")


def test_a_replica_moves_to_another_server(cluster):
    """After the removal of a peer, the third server has the replica."""
    with jetstream_sync.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20.0)
        stream = js.create_stream(name="R", subjects=["r"], num_replicas=2)
        wait_until(lambda: len(replicas(stream.info())) == 2, 20.0)
        info = stream.info()
        assert info.cluster is not None
        (removed,) = replicas(info) - {info.cluster.leader}
        stream.remove_peer(removed)
        wait_until(lambda: len(replicas(stream.info()) - {removed}) == 2, 30.0)
        with pytest.raises(errors.APIError):
            stream.remove_peer("absent")


def test_without_a_cluster_the_server_refuses(stream):
    """A single server has no leaders."""
    with pytest.raises(errors.APIError):
        stream.step_down()
    with pytest.raises(errors.APIError):
        stream.remove_peer("any")
