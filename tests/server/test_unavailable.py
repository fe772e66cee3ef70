"""No leader, no quorum and "does not exist" are different errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import errors


@pytest.mark.full
@pytest.mark.timeout(240)
def test_lost_majorities(cluster):
    """A stream with one of its two servers has no leader; a cluster with one of its three servers neither."""
    first, *others = cluster.servers
    with jetstream_sync.connect(first.url) as nc:
        js = nc.jetstream(timeout=5)
        stream = js.create_stream(
            name="S", subjects=["s"], num_replicas=2, allow_atomic=True, allow_batched=True
        )
        js.publish_batch([("s", b"")])  # the level of the API is known from then on
        peers = {"leader": stream.info().cluster.leader}
        peers |= {peer.name: peer.name for peer in stream.info().cluster.replicas}
        stream.create_consumer(name="C")
        store = js.create_key_value(bucket="B", replicas=3)
        store.put("a", b"1")
        down = next(server for server in others if server.name in peers.values())
        down.kill()
        wait_until(lambda: "'S' has no leader" in failure(lambda: js.publish("s", b"")), limit=40)
        for call in (
            lambda: js.publish_async("s", b"", timeout=10).result(),
            lambda: js.publish_batch([("s", b"")], timeout=10),
            lambda: js.fast_publish(timeout=10).add("s"),
        ):
            wait_until(lambda call=call: "'S' has no leader" in failure(call), limit=40)
        with pytest.raises(errors.StreamNotFoundError, match="'NOPE'"):
            js.get_stream("NOPE")
        with pytest.raises(errors.ConsumerNotFoundError, match="'NOPE' of stream 'KV_B'"):
            js.get_consumer("KV_B", "NOPE")
        next(server for server in others if server is not down).kill()
        # A server that was the meta leader is silent at first, and the others say that there is none.
        outages = (errors.NoLeaderError, errors.RequestTimeoutError)
        text = "the cluster .*(has|may have) no leader"
        wait_until(lambda: "no leader" in failure(lambda: js.get_stream("NOPE")), limit=40)
        # The remaining server of the stream may still answer for its consumers.
        with pytest.raises(outages, match=text):
            js.get_stream("NOPE")
        wait_until(lambda: "no leader" in failure(lambda: store.put("a", b"1")), limit=40)
        for write in (lambda: js.publish("s", b""), lambda: store.put("a", b"1")):
            with pytest.raises(
                errors.NoStreamResponseError, match="the cluster (has|may have) no leader"
            ):
                write()
        assert "no leader" in failure(lambda: js.key_value("NOPE"))


def failure(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises; empty: it raises none."""
    try:
        call()
    except errors.Error as error:
        return str(error)
    return ""
