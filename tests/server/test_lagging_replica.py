"""A listing is complete although the replica that its consumer reads lags behind the leader."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_info
from fixtures.threads import SCALE

import jetstream_sync
from jetstream_sync import KeyValue

CREATED = "2024-01-01T00:00:00Z"
BUCKET = {
    "name": "KV_B",
    "subjects": ["$KV.B.>"],
    "max_msgs_per_subject": 1,
    "allow_rollup_hdrs": True,
}
STATE = {"messages": 3, "bytes": 99, "first_seq": 1, "last_seq": 3, "consumer_count": 0}
PEERS = [{"name": name, "current": True, "active": 0} for name in ("two", "three")]


class LaggingReplica:
    """A bucket with three keys at the leader, of which the consumer's replica has some."""

    def __init__(self, replicated: int) -> None:
        self._replicated = replicated
        self._name = ""
        self.asked: list[Any] = []
        self.server = FakeJetStream(self._respond)

    def _respond(self, subject: str, body: Any) -> dict[str, Any] | None:
        if subject == "STREAM.INFO.KV_B":
            cluster = {"name": "C", "leader": "one", "replicas": PEERS}
            found = {f"$KV.B.{key}": 1 for key in "abc"}
            state = {**STATE, "subjects": found} if body else STATE
            info = {"config": BUCKET, "state": state, "created": CREATED, "cluster": cluster}
            return {**info, "total": len(found)} if body else info
        if subject.startswith("CONSUMER.CREATE"):
            self._name = body["config"]["name"]
            start = body["config"].get("opt_start_seq", 1) - 1
            return consumer_info(
                self._name,
                body["config"],
                stream_name="KV_B",
                num_pending=self._replicated - start,
                delivered={"consumer_seq": 0, "stream_seq": start},
            )
        if subject.startswith("STREAM.MSG.GET"):
            self.asked.append(body)
            seq = body.get("seq", 3)
            # The messages below were stored at this time.
            time = "1970-01-01T00:00:00Z"
            return {"message": {"subject": f"$KV.B.{' abc'[seq]}", "seq": seq, "time": time}}
        if subject.startswith("CONSUMER.INFO"):
            return consumer_info(self._name, {}, stream_name="KV_B")
        return None

    def deliver(self, first: int, last: int, pending: int, *, is_new: bool = False) -> None:
        """Send the messages of keys a, b and c by their sequences; ``is_new``: to another consumer."""
        pull = self.server.wait_for(
            lambda command: f".CONSUMER.MSG.NEXT.KV_B.{self._name}" in command.subject
        )
        for seq in range(first, last + 1):
            number = seq - first + 1 if is_new else seq
            reply = f"$JS.ACK.KV_B.{self._name}.1.{seq}.{number}.0.{pending + last - seq}"
            message = self.server.message(pull.rest, b"value", reply)
            subject = f"$KV.B.{' abc'[seq]}".encode()
            self.server.send(message.replace(pull.rest.encode(), subject, 1))


@pytest.mark.parametrize("replicated", [0, 2])
def test_a_listing_includes_the_last_message_of_the_leader(replicated):
    """The consumer counts the messages of its replica; the last one of the leader arrives later."""
    lagging = LaggingReplica(replicated)
    with (
        lagging.server,
        jetstream_sync.connect(lagging.server.url) as nc,
        ThreadPoolExecutor(1) as pool,
    ):
        store: KeyValue = nc.jetstream().key_value("B")
        listing = pool.submit(lambda: sorted(store.keys()))
        lagging.deliver(1, replicated, 0)
        lagging.server.wait_for(lambda command: "STREAM.MSG.GET" in command.subject)
        lagging.deliver(replicated + 1, 3, 0)
        assert listing.result(20 * SCALE) == ["a", "b", "c"]
        assert lagging.asked[0] == {"last_by_subj": "$KV.B.>"}
        nc.close()


def test_a_listing_up_to_date_does_not_ask_the_leader():
    """With the last message of the stream received, nothing can be missing."""
    lagging = LaggingReplica(3)
    with (
        lagging.server,
        jetstream_sync.connect(lagging.server.url) as nc,
        ThreadPoolExecutor(1) as pool,
    ):
        listing = pool.submit(lambda: sorted(nc.jetstream().key_value("B").keys()))
        lagging.deliver(1, 3, 0)
        assert listing.result(20 * SCALE) == ["a", "b", "c"]
        assert lagging.asked == []
        nc.close()


def test_an_idle_watch_is_compared_with_the_leader(monkeypatch):
    """A current watch whose server is stuck gets another consumer, which delivers what the leader has."""
    monkeypatch.setattr("jetstream_sync.jetstream.buckets.watch._IDLE_CHECK_S", 0.3)
    monkeypatch.setattr("jetstream_sync.jetstream.buckets.watch._ARRIVAL_S", 0.1)
    lagging = LaggingReplica(2)
    monkeypatch.setitem(STATE, "last_seq", 2)
    with (
        lagging.server,
        jetstream_sync.connect(lagging.server.url) as nc,
        ThreadPoolExecutor(1) as pool,
    ):
        with nc.jetstream().key_value("B").watch() as watch:
            initial = pool.submit(lambda: [entry.key for entry in watch.initial(20 * SCALE)])
            lagging.deliver(1, 2, 0)
            assert initial.result(20 * SCALE) == ["a", "b"]
            following = pool.submit(watch.next, 20 * SCALE)
            created = lagging.server.wait_for(
                lambda command: ".CONSUMER.CREATE." in command.subject, 2
            )
            assert json.loads(created.body)["config"]["opt_start_seq"] == 3
            lagging.deliver(3, 3, 0, is_new=True)
            assert following.result(20 * SCALE).key == "c"
            assert watch.is_current
        nc.close()
