"""Requests that only read are repeated while no leader answers; other requests are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_info
from fixtures.threads import SCALE, between, wait_until

import jetstream_sync
from jetstream_sync import APIError, JetStream, TimeoutError

UNAVAILABLE = {
    "error": {
        "code": 503,
        "err_code": 10008,
        "description": "JetStream system temporarily unavailable",
    }
}
NOT_LEADER = {"error": {"code": 500, "err_code": 10009, "description": "not the leader"}}
STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
STREAM = {"config": {"name": "S"}, "state": STATE, "created": "2024-01-01T00:00:00Z"}
PAGE = {"total": 1, "offset": 0, "limit": 1024}
STORED = {"message": {"subject": "s", "seq": 1, "time": "2024-01-01T00:00:00Z"}}
#: Subject of the request -> its reply, and the call that sends it.
READS: dict[str, tuple[dict[str, Any], Callable[[JetStream], object]]] = {
    "STREAM.INFO.S": (STREAM, lambda js: js.get_stream("S")),
    "STREAM.LIST": ({"streams": [STREAM], **PAGE}, lambda js: js.list_streams()),
    "STREAM.NAMES": ({"streams": ["S"], **PAGE}, lambda js: js.stream_names()),
    "STREAM.MSG.GET.S": (STORED, lambda js: js.get_stream("S").get_msg(1)),
    "CONSUMER.INFO.S.C": (consumer_info("C", {}), lambda js: js.get_consumer("S", "C").info()),
    "CONSUMER.LIST.S": (
        {"consumers": [consumer_info("C", {})], **PAGE},
        lambda js: js.list_consumers("S"),
    ),
    "CONSUMER.NAMES.S": ({"consumers": ["C"], **PAGE}, lambda js: js.consumer_names("S")),
}


def requests(server: FakeJetStream, subject: str) -> int:
    """Return how often a request was sent."""
    return sum(command.subject == f"$JS.API.{subject}" for command in server.received)


@pytest.mark.parametrize(
    "failure", [None, UNAVAILABLE, NOT_LEADER], ids=["silence", "503", "not-leader"]
)
@pytest.mark.parametrize("subject", READS)
def test_reads_are_repeated(subject, failure, monkeypatch):
    """A read without a reply, or without a leader, succeeds when one answers in time."""
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._REPEAT_AFTER_S", 0.1)
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._UNAVAILABLE_DELAY_S", 0.1)
    responses = {name: response for name, (response, _) in READS.items()}
    failures = 2

    def respond(asked: str, _: object) -> dict[str, Any] | None:
        nonlocal failures
        if asked == subject and failures:
            failures -= 1
            return failure
        return responses[asked]

    with FakeJetStream(respond) as server, jetstream_sync.connect(server.url) as nc:
        assert READS[subject][1](nc.jetstream(timeout=10 * SCALE))
        assert requests(server, subject) >= 3
        nc.close()


def test_reads_end_at_their_deadline():
    """Without a leader a read raises the error of the server, or a timeout."""
    with FakeJetStream(lambda *_: UNAVAILABLE) as server, jetstream_sync.connect(server.url) as nc:
        with between(0.3, 2), pytest.raises(APIError) as caught:
            nc.jetstream(timeout=1).get_stream("S")
        assert caught.value.err_code == 10008
        assert type(caught.value).__name__ == "NoLeaderError"
        assert "has no leader, which needs a majority of its servers" in str(caught.value)
        nc.close()
    with FakeJetStream(lambda *_: None) as server, jetstream_sync.connect(server.url) as nc:
        with between(1, 3), pytest.raises(TimeoutError):
            nc.jetstream(timeout=1.5).get_stream("S")
        assert requests(server, "STREAM.INFO.S") == 2
        nc.close()


def test_a_late_reply_counts(monkeypatch):
    """The reply to the first request is accepted after the request was repeated."""
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._REPEAT_AFTER_S", 0.1)
    with FakeJetStream(lambda *_: None) as server, jetstream_sync.connect(server.url) as nc:
        with ThreadPoolExecutor(1) as pool:
            js = nc.jetstream(timeout=10 * SCALE)
            opening = pool.submit(js.get_stream, "S")
            wait_until(lambda: requests(server, "STREAM.INFO.S") >= 2)
            first = next(command for command in server.received if command.verb == "PUB")
            server.deliver(first.rest, json.dumps(STREAM).encode())
            assert opening.result(10 * SCALE).name == "S"
        nc.close()


@pytest.mark.parametrize("failure", [None, UNAVAILABLE], ids=["silence", "503"])
def test_changes_are_sent_once(failure, monkeypatch):
    """A request that changes something is not repeated."""
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._REPEAT_AFTER_S", 0.1)
    monkeypatch.setattr("jetstream_sync.jetstream.api_requests._UNAVAILABLE_DELAY_S", 0.1)
    with FakeJetStream(lambda *_: failure) as server, jetstream_sync.connect(server.url) as nc:
        with pytest.raises((APIError, TimeoutError)):
            nc.jetstream(timeout=1).delete_stream("S")
        assert requests(server, "STREAM.DELETE.S") == 1
        nc.close()
