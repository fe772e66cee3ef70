"""``jsm events``: events of a real server, and events that the test publishes in its place."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from fixtures.jsm import Jsm
from fixtures.rawnats import RawPeer
from fixtures.threads import between

#: An event as a server sends it; the times are its own.
ACK = {
    "type": "io.nats.jetstream.metric.v1.consumer_ack",
    "id": "I1",
    "timestamp": "2026-01-02T03:04:05.678901234Z",
    "stream": "ORDERS",
    "consumer": "NEW",
    "consumer_seq": 2,
    "stream_seq": 1,
    "ack_time": 5168400,
    "deliveries": 1,
}


def started(jsm: Jsm, *args: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start ``jsm events``, and wait until it listens."""
    child = jsm.spawn("events", *args, **variables)
    assert child.stderr is not None
    line = child.stderr.readline()
    assert b"Listening on [" in line, line
    return child


def finished(child: subprocess.Popen[bytes]) -> str:
    out, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (0, b"")
    return out.decode()


def tell(peer: RawPeer, event: dict[str, Any], subject: str = "METRIC.X") -> None:
    peer.publish(f"$JS.EVENT.{subject}", json.dumps(event).encode())


def test_what_is_done_with_a_stream_is_an_advisory(jsm, raw):
    """Creating and deleting a stream are advisories, one JSON line each."""
    child = started(jsm, "-j", "--js-advisory", "--filter", "stream_action", "--count", "2")
    raw.api("STREAM.CREATE.EV", name="EV", subjects=["ev"], storage="memory")
    raw.api("STREAM.DELETE.EV")
    made, gone = map(json.loads, finished(child).splitlines())
    assert made["type"] == "io.nats.jetstream.advisory.v1.stream_action"
    assert (made["stream"], made["action"], gone["action"]) == ("EV", "create", "delete")
    assert made["id"] != gone["id"]


def test_samples_of_acknowledgements_are_metrics(jsm, raw):
    """An acknowledgement of a sampled consumer is a metric."""
    raw.api("STREAM.CREATE.EV", name="EV", subjects=["ev"], storage="memory")
    config = {"durable_name": "C", "ack_policy": "explicit", "sample_freq": "100"}
    raw.api("CONSUMER.CREATE.EV.C", stream_name="EV", config=config)
    raw.request("ev", b"x")
    child = started(jsm, "-j", "--js-metric", "--count", "1")
    jsm("consumer", "next", "EV", "C").ok()
    event = json.loads(finished(child))
    assert (event["stream"], event["consumer"], event["stream_seq"]) == ("EV", "C", 1)


def test_an_event_in_a_line(jsm, peer):
    """An event is one line without long fields, with its time and durations with units."""
    child = started(jsm, "--count", "1", "--utc")
    tell(peer, {**ACK, "client": {"name": "me", "id": 3}, "server": "S"}, "ADVISORY.X")
    assert finished(child) == (
        "2026-01-02 03:04:05+00:00 Metric: Consumer Ack stream=ORDERS consumer=NEW "
        "consumer_seq=2 stream_seq=1 ack_time=5.168ms deliveries=1\n"
    )


def test_only_what_is_asked_for(jsm, peer):
    """Event types and a case-insensitive pattern select events."""
    child = started(jsm, "--js-metric", "--filter", '"CONSUMER": "n.w"', "-j", "--count", "1")
    tell(peer, {**ACK, "id": "advisory"}, "ADVISORY.X")
    tell(peer, {**ACK, "id": "other", "consumer": "OLD"})
    tell(peer, {**ACK, "id": "mine"})
    assert json.loads(finished(child))["id"] == "mine"


def test_what_is_no_event_is_a_warning(jsm, peer):
    """Data that is not an event is a warning, and the command continues."""
    child = started(jsm, "-j", "--count", "1")
    peer.publish("$JS.EVENT.METRIC.X", b"\xffnonsense")
    peer.publish("$JS.EVENT.METRIC.X", b"[1]")
    tell(peer, {"no": "type"})
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (0, b'{"no":"type"}\n')
    assert err.count(b"not an event") == 2


def test_none_in_time(jsm):
    """--wait without an event is status 4."""
    with between(0.2, 10):
        result = jsm("events", "--subjects", "quiet", "--wait", "200ms")
    assert result.status == 4
