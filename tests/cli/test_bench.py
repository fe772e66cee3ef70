"""``jsm bench``: the work is done, the numbers are consistent, and the stream is deleted."""

from __future__ import annotations

import csv
import io
import json
import random
import signal
from itertools import pairwise
from typing import Any

import pytest
from fix_jsm import Jsm
from fix_raw import RawPeer
from fix_threads import wait_until
from rawnats import RawClient

from jetstream_sync.cli.bench.results import Latency, buckets_of, draw, human_ns
from jetstream_sync.cli.charts import bar
from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.progress import show_progress

KINDS = ("pub", "sub", "publish", "publish-async", "fetch", "consume", "ordered")


def assert_consistent(document: dict[str, Any]) -> None:
    """Check that the numbers of a document agree with each other."""
    assert document["messages"] == sum(each["messages"] for each in document["per_client"])
    rate = document["messages"] / document["seconds"]
    assert document["messages_per_second"] == pytest.approx(rate)
    assert document["bytes_per_second"] == pytest.approx(rate * document["size_bytes"])
    latency = document["latency"]
    order = [latency[f"{name}_ns"] for name in ("min", "p50", "p90", "p99", "p999", "max")]
    assert order == sorted(order)
    assert 0 < latency["min_ns"] <= latency["avg_ns"] <= latency["max_ns"]
    assert sum(each["count"] for each in document["histogram"]) == latency["samples"]


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_reports_consistent_numbers(
    jsm: Jsm, raw: RawClient, kind: str, clients: int
) -> None:
    """Each kind processes all messages, reports consistent numbers, and deletes its stream."""
    result = jsm("bench", kind, "--msgs", "700", "--clients", str(clients), "-j").ok()
    document = result.json
    assert result.err == ""
    passes = clients if kind in {"sub", "ordered"} else 1
    assert (document["kind"], document["messages"]) == (kind, 700 * passes)
    assert (document["clients"], len(document["per_client"])) == (clients, clients)
    assert_consistent(document)
    assert raw.api("STREAM.NAMES").get("streams") is None


def test_pub_publishes_messages_of_the_given_number_and_size(jsm: Jsm, peer: RawPeer) -> None:
    """Another client receives the number of messages, of the size, that the options say."""
    peer.hear("bench.here")
    jsm("bench", "pub", "--msgs", "50", "--size", "1KiB", "--subject", "bench.here", "-j").ok()
    assert [len(peer.next().data) for _ in range(50)] == [1024] * 50


def test_no_publish_receives_messages_of_other_clients(jsm: Jsm, peer: RawPeer) -> None:
    """With --no-publish the command receives what other clients publish."""
    child = jsm.spawn("bench", "sub", "--no-publish", "--subject", "bench.o", "--msgs", "5", "-j")

    def publish_until_done() -> bool:
        peer.publish("bench.o", b"x")
        return child.poll() is not None

    wait_until(publish_until_done, 20)
    out, _ = child.communicate()
    document = json.loads(out)
    assert (child.returncode, document["messages"]) == (0, 5)
    assert "latency" not in document


def test_rate_limits_all_clients_together(jsm: Jsm) -> None:
    """With --rate all clients together do not exceed the rate."""
    args = ("--msgs", "100", "--rate", "400", "--clients", "2", "-j")
    assert 100 < jsm("bench", "pub", *args).ok().json["messages_per_second"] < 600


def test_text_output_has_percentiles_and_a_histogram(jsm: Jsm) -> None:
    """The text has the rate, the percentiles by their names, and bars that add up to all samples."""
    out = jsm("bench", "publish", "--msgs", "300", "--no-progress").ok().out
    lines = out.splitlines()
    assert lines[0] == "Publish, wait for each ack"
    assert lines[2].startswith("  300 messages of 128 B in ")
    names = next(line for line in lines if "P50" in line).split()
    assert names == ["min", "avg", "P50", "P90", "P99", "P99.9", "max", "stddev"]
    counts = [int(line.split("%")[0].split()[-2].replace(",", "")) for line in lines if "%" in line]
    assert sum(counts) == 300
    assert "█" in out


def test_all_shows_every_kind_in_one_table(jsm: Jsm, raw: RawClient) -> None:
    """'all' measures every kind and shows a row for each."""
    lines = jsm("bench", "all", "--msgs", "300", "--no-progress").ok().out.splitlines()
    assert lines[0] == "Messages of 128 B, 1 clients"
    assert len(lines) == 2 + len(KINDS)
    assert raw.api("STREAM.NAMES").get("streams") is None
    documents = jsm("bench", "all", "--msgs", "300", "-j").ok().json
    assert [each["kind"] for each in documents] == [
        "pub",
        "publish",
        "publish-async",
        "fetch",
        "consume",
        "ordered",
        "sub",
    ]


@pytest.mark.parametrize(
    ("args", "kind"),
    [(("pub", "sync"), "publish"), (("pub", "async"), "publish-async"), (("fetch",), "fetch")],
)
def test_command_names_of_the_nats_cli(jsm: Jsm, args: tuple[str, ...], kind: str) -> None:
    """The JetStream measurements also have the command names of the nats CLI."""
    assert jsm("bench", "js", *args, "--msgs", "20", "-j").ok().json["kind"] == kind


def test_csv_goes_to_a_file_or_standard_output(jsm: Jsm, tmp_path: Any) -> None:
    """--csv writes the numbers to a file or to standard output."""
    path = tmp_path / "out.csv"
    jsm("bench", "publish", "--msgs", "20", "--csv", str(path), "--no-progress").ok()
    (row,) = csv.DictReader(io.StringIO(path.read_text()))
    assert (row["kind"], row["messages"], row["samples"]) == ("publish", "20", "20")
    out = jsm("bench", "all", "--msgs", "20", "--csv", "-", "--no-progress").ok().out
    assert next(csv.DictReader(io.StringIO(out)))["kind"] == "pub"
    assert jsm("bench", "pub", "--msgs", "20", "--csv", str(tmp_path)).status == 1


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
@pytest.mark.parametrize("kind", ["publish", "fetch", "ordered", "sub"])
def test_the_stream_is_deleted_on_a_signal(
    jsm: Jsm, raw: RawClient, kind: str, stop: int, status: int
) -> None:
    """Ctrl-C reports the messages so far; the stream is deleted after SIGINT and SIGTERM."""
    args = ("--msgs", "20M") if kind in {"publish", "sub"} else ("--msgs", "150k")
    child = jsm.spawn("bench", kind, *args, *(("--batch", "1") if kind == "fetch" else ()))
    assert child.stderr is not None
    # Progress is shown only after the work has started.
    title = {"publish": b"Publish", "fetch": b"Fetch", "ordered": b"", "sub": b"Core"}[kind]
    line = child.stderr.readline() if title else b""
    while title and not line.startswith(title):
        assert line, "it ended"
        line = child.stderr.readline()
    if not title:
        wait_until(lambda: raw.api("STREAM.NAMES").get("streams"), limit=30)
    child.send_signal(stop)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (status, b"")
    if status == 130 and title:
        assert b" messages of 128 B in " in err
    # A busy server may delete the stream only after the command has stopped waiting for it.
    wait_until(lambda: raw.api("STREAM.NAMES").get("streams") is None, limit=30)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("pub", "--msgs", "0"), "--msgs"),
        (("pub", "--msgs", "many"), "many"),
        (("fetch", "--clients", "3", "--msgs", "2"), "3 clients"),
        (("publish", "--csv", "-", "-j"), "--csv"),
        (("sub", "--no-publish"), "--subject"),
        (("pub", "--subject", "a.*"), "a.*"),
    ],
)
def test_invalid_options_are_usage_errors(jsm: Jsm, args: tuple[str, ...], said: str) -> None:
    """Invalid options exit with status 2, and the error names the option or value."""
    result = jsm("bench", *args)
    assert (result.status, result.out) == (2, "")
    assert said in result.err


def test_an_error_in_a_client_thread_is_the_error_of_the_command(jsm: Jsm, raw: RawClient) -> None:
    """A message above max_payload is one line of error, and the stream is deleted."""
    result = jsm("bench", "publish", "--msgs", "10", "--size", "3MiB", "--clients", "2")
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert "max_payload" in result.err
    assert raw.api("STREAM.NAMES").get("streams") is None


# --- percentiles and histograms ---------------------------------------------------------------------


def test_percentiles_use_the_nearest_rank() -> None:
    """A percentile is the smallest sample that at least this share does not exceed."""
    latency = Latency.of(range(1, 1001))
    found = (latency.min_ns, latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns)
    assert found == (1, 500, 900, 990, 999)
    assert (latency.max_ns, latency.avg_ns) == (1000, 500.5)
    assert latency.stddev_ns == pytest.approx(288.675, abs=0.001)
    one = Latency.of([7])
    assert (one.min_ns, one.p50_ns, one.p999_ns, one.max_ns, one.stddev_ns) == (7, 7, 7, 7, 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_sample_is_in_one_bucket(seed: int) -> None:
    """Buckets are adjacent, cover minimum to maximum, and contain every sample."""
    rng = random.Random(seed)
    spread = rng.choice([1, 3, 100, 10_000_000])
    samples = sorted(
        rng.randrange(1, 50) + int(rng.expovariate(1) * spread)
        for _ in range(rng.choice([1, 2, 50, 5000]))
    )
    buckets = buckets_of(samples)
    assert (buckets[0].low_ns, buckets[-1].high_ns) == (samples[0], samples[-1])
    for left, right in pairwise(buckets):
        assert left.low_ns < left.high_ns == right.low_ns
        assert left.count == sum(left.low_ns <= each < left.high_ns for each in samples)
    assert sum(each.count for each in buckets) == len(samples)
    assert [mark for each in buckets for mark in each.marks] == ["P50", "P90", "P99", "P99.9"]
    assert len(buckets) <= 14
    lines = draw(samples, width=80, blocks=False)
    assert len(lines) == len(buckets)
    assert all(line.isascii() or "µ" in line for line in lines)


def test_bar_length_is_proportional() -> None:
    """A bar is as long as its share, and a share above 0 is always visible."""
    assert bar(1, 10, blocks=True) == "█" * 10
    assert bar(0.5, 10, blocks=True) == "█" * 5
    assert bar(1e-9, 10, blocks=True) == "▏"
    assert (bar(0, 10, blocks=True), bar(0, 10, blocks=False)) == ("", "")
    assert (bar(1e-9, 10, blocks=False), bar(0.5, 10, blocks=False)) == ("#", "#####")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_400, "999 µs"),
        (999_600, "1.00 ms"),
        (2_500_000_000, "2.50 s"),
        (125_000_000_000, "125 s"),
    ],
)
def test_durations_have_three_digits(nanoseconds: int, text: str) -> None:
    """A duration has three significant digits and a unit."""
    assert human_ns(nanoseconds) == text


class _Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_redraws_a_line_or_writes_lines(terminal: bool) -> None:
    """A terminal shows one line that is erased at the end; other outputs get a line per second."""
    out = _Screen() if terminal else io.StringIO()
    env = Environment(
        stdin=io.BytesIO(), stdout=io.StringIO(), stderr=out, variables={"TERM": "xterm"}
    )
    moments = iter([0.0, 0.05, 0.9, 0.91, 3.0])
    with show_progress(env, "Work", 100, clock=lambda: next(moments)) as shown:
        for done in (1, 50, 51, 99):
            shown.show(done)
    text = out.getvalue()
    if terminal:
        # The only line break moves the cursor below the bar, and the bar is erased after it.
        assert text.count("\n") == 1
        assert text.endswith("\x1b[1A\x1b[2K")
        assert "Work: 50 of 100 56/s" in text
        assert "51 of 100" not in text
    else:
        assert text == "Work: 99 of 100 33/s\n"


def test_progress_without_a_known_total() -> None:
    """Without a total only the number of items and the rate are shown; steps are added up."""
    err = io.StringIO()
    env = Environment(stdin=io.BytesIO(), stdout=io.StringIO(), stderr=err, variables={})
    moments = iter([0.0, 0.5, 2.0])
    with show_progress(env, "Work", None, in_bytes=True, clock=lambda: next(moments)) as shown:
        shown.advance(1024)
        shown.advance(1024)
    assert err.getvalue() == "Work: 2.0 KiB 1.0 KiB/s\n"
