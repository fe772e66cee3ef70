"""``jsm bench``: the work is done, the numbers are consistent, and the stream is deleted."""

from __future__ import annotations

import io
import json
import signal

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.render import show_progress

STREAM_KINDS = ("js pub sync", "js pub async", "js fetch", "js ordered")


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("kind", ["pub", *STREAM_KINDS])
def test_each_kind_reports_consistent_numbers(jsm, raw, kind, clients):
    """Each kind processes all messages, reports consistent numbers, and deletes its stream."""
    result = jsm("bench", *kind.split(), "--msgs", "700", "--clients", str(clients), "-j").ok()
    document = result.json
    assert result.err == ""
    passes = clients if kind == "js ordered" else 1
    assert (document["kind"], document["messages"]) == (kind, 700 * passes)
    assert document["clients"] == clients
    rate = document["messages"] / document["seconds"]
    assert document["messages_per_second"] == pytest.approx(rate)
    assert document["bytes_per_second"] == pytest.approx(rate * document["size_bytes"])
    latency = document["latency"]
    order = [latency[f"{name}_ns"] for name in ("min", "p50", "p90", "p99", "p999", "max")]
    assert order == sorted(order)
    assert 0 < latency["min_ns"] <= latency["avg_ns"] <= latency["max_ns"]
    assert latency["samples"] > 0
    assert raw.api("STREAM.NAMES").get("streams") is None


def test_sub_receives_messages_of_other_clients(jsm, peer):
    """The command receives what other clients publish."""
    child = jsm.spawn("bench", "sub", "--subject", "bench.o", "--msgs", "5", "-j")

    def publish_until_done() -> bool:
        peer.publish("bench.o", b"x")
        return child.poll() is not None

    wait_until(publish_until_done, 20)
    out, _ = child.communicate()
    assert (child.returncode, json.loads(out)["messages"]) == (0, 5)


def test_the_subject_may_be_an_argument(jsm, raw):
    """The messages are published to the subject that is given as for nats, and it is given once."""
    raw.api("STREAM.CREATE.O", name="O", subjects=["o.*"])
    jsm("bench", "pub", "o.a", "--msgs", "7").ok()
    wait_until(lambda: raw.api("STREAM.INFO.O")["state"]["messages"] == 7)
    assert jsm("bench", "pub", "o.a", "--subject", "o.b").status == 2


def test_rate_limits_all_clients_together(jsm):
    """With --rate all clients together do not exceed the rate."""
    args = ("--msgs", "100", "--rate", "400", "--clients", "2", "-j")
    assert 50 < jsm("bench", "pub", *args).ok().json["messages_per_second"] < 600


def _is_working(raw: RawClient, kind: str) -> bool:
    """Return whether the clients have published to the stream, or have fetched from it."""
    streams = raw.api("STREAM.LIST").get("streams") or ()
    if kind != "js fetch":
        return any(stream["state"]["messages"] for stream in streams)
    consumers = [
        consumer
        for stream in streams
        for consumer in raw.api(f"CONSUMER.LIST.{stream['config']['name']}").get("consumers") or ()
    ]
    return any(consumer["delivered"]["consumer_seq"] for consumer in consumers)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
@pytest.mark.parametrize("kind", ["js pub sync", "js fetch"])
def test_the_stream_is_deleted_on_a_signal(jsm, raw, kind, stop, status):
    """Ctrl-C reports the messages so far; the stream is deleted after SIGINT and SIGTERM."""
    msgs = "50k" if kind == "js fetch" else "20M"
    args = ("--batch", "1") if kind == "js fetch" else ()
    child = jsm.spawn("bench", *kind.split(), "--msgs", msgs, *args)
    wait_until(lambda: _is_working(raw, kind), limit=30)
    child.send_signal(stop)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (status, b"")
    if status == 130:
        assert b" messages of 128 B in " in err
    # A busy server may delete the stream only after the command has stopped waiting for it.
    wait_until(lambda: raw.api("STREAM.NAMES").get("streams") is None, limit=30)


def test_an_error_in_a_client_thread_is_the_error_of_the_command(jsm, raw):
    """A message above max_payload is one line of error, and the stream is deleted."""
    words = "js pub sync --msgs 10 --size 3MiB --clients 2"
    result = jsm("bench", *words.split())
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert "max_payload" in result.err
    assert raw.api("STREAM.NAMES").get("streams") is None


# --- progress -------------------------------------------------------------------------------------


class _Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal():
    """A terminal shows one line that is erased at the end, also if more is done than expected."""
    out = _Screen()
    env = Environment(
        stdin=io.BytesIO(), stdout=io.StringIO(), stderr=out, variables={"TERM": "xterm"}
    )
    with show_progress(env, "Work", 100) as show:
        for done in (1, 50, 120):
            show(done)
    text = out.getvalue()
    # The only line break moves the cursor below the bar, and the bar is erased after it.
    assert text.count("\n") == 1
    assert text.endswith("\x1b[1A\x1b[2K")
    assert "Work" in text
    assert "120/120" in text
