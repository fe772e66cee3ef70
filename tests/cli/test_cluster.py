"""``jsm stream cluster``, ``jsm consumer cluster`` and ``jsm consumer find``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from fixtures.jsm import Jsm, Result, run_jsm
from fixtures.server import wait_for_peers
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import ConsumerConfig, JetStream
from jetstream_sync.server import NatsCluster


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsCluster]:
    """Three servers with JetStream."""
    with NatsCluster() as cluster:
        wait_for_peers(cluster)
        yield cluster


@pytest.fixture
def js3(servers: NatsCluster) -> Iterator[JetStream]:
    """JetStream on them; the streams are deleted afterwards."""
    with jetstream_sync.connect(servers.urls) as nc:
        js = nc.jetstream()
        yield js
        for name in js.stream_names():
            js.delete_stream(name)


@pytest.fixture
def on(servers: NatsCluster) -> Callable[..., Result]:
    """Run ``jsm`` against the cluster."""
    return lambda *args: run_jsm("-s", servers.urls[0], *args)


def make_stream(js: JetStream, name: str) -> str:
    """Create a stream with three current replicas, and return the name of its leader."""
    stream = js.create_stream(name=name, subjects=[f"{name}.*"], storage="memory", num_replicas=3)

    def is_current() -> bool:
        found = stream.info().cluster
        return bool(found and found.leader and all(peer.current for peer in found.replicas or ()))

    wait_until(is_current, 20)
    return leader_of(js, name)


def leader_of(js: JetStream, name: str) -> str:
    cluster = js.get_stream(name).cached_info.cluster
    return (cluster and cluster.leader) or ""


def test_step_down_waits_for_the_new_leader(js3, on):
    """The old and the new leader are shown; a consumer has a leader of its own."""
    before = make_stream(js3, "S")
    found = on("stream", "cluster", "step-down", "S", "-j").ok().json
    assert found["previous_leader"] == before
    assert found["leader"] == leader_of(js3, "S") != before
    js3.create_consumer("S", ConsumerConfig(durable_name="C"))
    shown = on("consumer", "cluster", "step-down", "S", "C").ok().out
    assert shown.startswith("S > C: the leader was ")


@pytest.mark.server(">=2.11")
def test_step_down_to_a_preferred_server(js3, on):
    """The server that is named is elected; one without a replica is refused."""
    before = make_stream(js3, "S")
    cluster = js3.get_stream("S").cached_info.cluster
    assert cluster is not None
    wanted = (cluster.replicas or ())[0].name
    found = on("s", "c", "d", "S", "--preferred", wanted, "-j").ok().json
    assert (found["previous_leader"], found["leader"]) == (before, wanted)
    refused = on("stream", "cluster", "step-down", "S", "--preferred", "absent")
    assert refused.status == 2
    assert "the replicas are" in refused.err


@pytest.mark.server("<2.11")
def test_old_servers_elect_no_preferred_leader(js3, on):
    """The version that is needed is named."""
    make_stream(js3, "S")
    cluster = js3.get_stream("S").cached_info.cluster
    assert cluster is not None
    wanted = (cluster.replicas or ())[0].name
    refused = on("stream", "cluster", "step-down", "S", "--preferred", wanted)
    assert refused.status == 2
    assert "2.11" in refused.err


def test_peer_remove(js3, on):
    """A server leaves the replicas of a stream, if another one can take its place or none is needed."""
    make_stream(js3, "S")
    missing = on("stream", "cluster", "peer-remove", "S", "absent", "--force")
    assert missing.status == 3
    assert "'absent' has no replica of S" in missing.err
    # With two of three servers in use, the third one takes over.
    js3.create_stream(name="TWO", subjects=["two"], storage="memory", num_replicas=2)
    peer = leader_of(js3, "TWO")
    assert on("stream", "cluster", "pr", "TWO", peer).status == 2
    found = on("stream", "cluster", "pr", "TWO", peer, "--force", "-j").ok().json
    assert found == {"name": "TWO", "removed_peer": peer}
    wait_until(lambda: leader_of(js3, "TWO") not in ("", peer), 20)


@pytest.mark.server(">=2.11")
def test_balance_spreads_the_leaders(js3, on):
    """Leaders move to servers that lead fewer streams; a dry run only shows it."""
    names = [f"S{number}" for number in range(6)]
    first = make_stream(js3, names[0])
    for name in names[1:]:
        if make_stream(js3, name) != first:
            js3.get_stream(name).step_down(first)
            wait_until(lambda name=name: leader_of(js3, name) == first, 20)  # type: ignore[misc]
    planned = on("stream", "cluster", "balance", "--dry-run", "-j").ok().json
    assert [(item["from"], "leader" in item) for item in planned] == [(first, False)] * 4
    assert Counter(leader_of(js3, name) for name in names) == {first: 6}
    moved = on("stream", "cluster", "balance", "-j").ok().json
    assert all(item["leader"] == item["to"] for item in moved)
    assert sorted(Counter(leader_of(js3, name) for name in names).values()) == [2, 2, 2]
    assert "Stream leaders are balanced" in on("stream", "cluster", "balance").ok().out


# --- consumer find --------------------------------------------------------------------------------


def find(jsm: Jsm, *options: str) -> list[str]:
    found: list[str] = jsm("consumer", "find", "S", "-n", "-j", *options).ok().json
    return found


def test_find_consumers(jsm, nc, js, raw):
    """Each option selects consumers by config or state; --invert selects the others."""
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    for number in range(5):
        js.publish("s", b"%d" % number)
    busy = stream.create_consumer(durable_name="busy", max_ack_pending=2)
    stream.create_consumer(durable_name="idle")
    stream.create_consumer(durable_name="new", deliver_policy="new")
    push = {"durable_name": "push", "deliver_subject": "deliver", "ack_policy": "explicit"}
    raw.api("CONSUMER.CREATE.S.push", stream_name="S", config=push)
    assert len(busy.fetch(2)) == 2
    assert find(jsm) == ["busy", "idle", "new", "push"]
    assert find(jsm, "--pending", "3") == ["busy", "new"]
    assert find(jsm, "--pending", "3", "--invert") == ["idle", "push"]
    assert find(jsm, "--ack-pending", "0") == ["idle", "new", "push"]
    assert find(jsm, "--idle", "1h") == []
    assert find(jsm, "--idle", "0s") == ["busy", "idle", "new", "push"]
    assert find(jsm, "--leader", "absent") == find(jsm, "--pinned") == []
    # One has reached max_ack_pending, the others have messages and no client.
    assert find(jsm, "--stuck") == ["busy", "idle", "push"]
    with nc.subscribe("deliver") as bound:
        assert bound.next_msg(5)
        wait_until(lambda: find(jsm, "--stuck") == ["busy", "idle"])
    assert "S > busy" in jsm("consumer", "find").ok().out
    assert jsm("consumer", "find", "S", "--leader", "x").ok().out == "No consumers of S match\n"


@pytest.mark.server(">=2.11")
def test_find_pinned_consumers(jsm, js):
    """Consumers that pin no clients are never found."""
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    stream.create_consumer(durable_name="plain")
    consumer = stream.create_consumer(
        durable_name="pinned", priority_groups=["g"], priority_policy="pinned_client"
    )
    assert find(jsm, "--pinned", "--invert") == ["pinned"]
    js.publish("s", b"")
    with consumer.messages(group="g") as messages:
        assert messages.next(5)
        assert find(jsm, "--pinned") == ["pinned"]
