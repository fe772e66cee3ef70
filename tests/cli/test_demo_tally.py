"""The books of the demo, and how they are shown."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Iterable

import pytest

from jetstream_sync.cli.demo.progress import BarProgress, LineProgress, NoProgress, make_progress
from jetstream_sync.cli.demo.report import write_report
from jetstream_sync.cli.demo.tally import STAGES, DemoReport, Tally, WorkerReport
from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.render import Table, write_table

MS = 1_000_000


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def environment(out: io.StringIO, err: io.StringIO, **variables: str) -> Environment:
    return Environment(stdin=io.BytesIO(), stdout=out, stderr=err, variables=variables)


EXPECTED = {f"A-{number}": 1000 + number for number in range(100)}
WORKERS = (
    WorkerReport(
        name="NEW",
        workers=2,
        deliveries=103,
        redelivered=3,
        deduplicated=3,
        refused=0,
        first_refusal=None,
    ),
)


def run(
    *, drop: Iterable[tuple[str, str]] = (), double: Iterable[tuple[str, str]] = (), offset: int = 0
) -> DemoReport:
    """Pass all orders through a tally, 1 ms apart, each stage 10 ms after the one before it."""
    tally = Tally(EXPECTED)
    ids = list(EXPECTED)
    random.Random(1).shuffle(ids)
    for number, stage in enumerate(STAGES):
        for position, order_id in enumerate(ids):
            times = 1 + ((stage, order_id) in set(double)) - ((stage, order_id) in set(drop))
            stamp = (1 + position + 10 * number) * MS
            for _ in range(times):
                tally.see(stage, order_id, EXPECTED[order_id] + offset * number, stamp)
    return tally.report(seconds=1.5, server="nats-server 2.15.1", workers=WORKERS)


def test_all_orders_once_is_exactly_once() -> None:
    """Every order once in every stage at its price, in any order, is what the demo wants."""
    report = run()
    assert report.exactly_once
    assert {stage.digest for stage in report.stages} == {report.digest}
    assert [(s.messages, s.orders, s.missing, s.duplicates) for s in report.stages] == [
        (100, 100, 0, 0)
    ] * 3


def test_a_missing_order_is_found() -> None:
    """An order that did not reach a stage is counted there and named in the failure."""
    report = run(drop=[("completed", "A-7")])
    assert not report.exactly_once
    assert [stage.matches_input for stage in report.stages] == [True, True, False]
    assert report.stages[2].missing == 1
    assert "completed: 1 missing, 0 duplicates, 0 unknown (for example A-7)" in report.failure()


def test_a_doubled_order_is_found() -> None:
    """An order that came twice is counted, also when every order is there."""
    report = run(double=[("processed", "A-3")])
    assert not report.exactly_once
    assert report.stages[1].duplicates == 1
    assert report.stages[1].orders == 100
    assert report.stages[1].messages == 101


def test_an_order_doubled_and_one_missing_do_not_make_up_for_each_other() -> None:
    """The right number of messages is not enough."""
    report = run(double=[("completed", "A-3")], drop=[("completed", "A-4")])
    assert report.stages[2].messages == 100
    assert not report.exactly_once


def test_a_wrong_total_is_found_by_the_digest() -> None:
    """Every order once, but at another price, is a failure."""
    report = run(offset=1)
    assert [stage.matches_input for stage in report.stages] == [True, False, False]
    assert report.stages[1].missing == report.stages[1].duplicates == 0


def test_strangers_are_found() -> None:
    """A message of an unknown order, an unreadable one, and one on another subject all count."""
    tally = Tally(EXPECTED)
    tally.see("received", "B-1", 1, MS)
    tally.see_unreadable("received")
    tally.see_unreadable("scratch")
    report = tally.report(seconds=1, server="", workers=())
    assert [stage.strangers for stage in report.stages] == [3, 1, 1]
    assert "received: 100 missing, 0 duplicates, 3 unknown" in report.failure()


def test_a_stranger_among_all_orders_is_a_failure() -> None:
    """When every order came once and something else did, too, the run has failed."""
    tally = Tally({"A": 5})
    for stage in STAGES:
        tally.see(stage, "A", 5, MS)
    assert tally.report(seconds=1, server="", workers=()).exactly_once
    tally.see_unreadable("processed")
    assert not tally.report(seconds=1, server="", workers=()).exactly_once


def test_refusals_are_in_the_failure() -> None:
    """The first message that a worker refused is part of what is reported."""
    tally = Tally(EXPECTED)
    worker = WorkerReport(
        name="NEW",
        workers=1,
        deliveries=1,
        redelivered=0,
        deduplicated=0,
        refused=1,
        first_refusal="NEW-1 refused a message: id: text is needed",
    )
    failure = tally.report(seconds=1, server="", workers=[worker]).failure()
    assert failure.endswith("NEW-1 refused a message: id: text is needed")
    assert "\n" not in failure


def test_latency_is_from_received_to_completed() -> None:
    """Latencies are the time between the two stored messages of an order, by nearest rank."""
    tally = Tally(EXPECTED)
    for number, order_id in enumerate(EXPECTED, start=1):
        tally.see("received", order_id, 0, 5 * MS)
        tally.see("completed", order_id, 0, (5 + number) * MS)
    latency = tally.report(seconds=1, server="", workers=()).latency
    assert latency is not None
    assert (latency.min_ms, latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms) == (
        1.0,
        50.0,
        90.0,
        99.0,
        100.0,
    )


def test_rate_is_of_the_servers_clock() -> None:
    """100 messages that were stored within 99 ms are 1010 per second; one moment has no rate."""
    assert run().stages[0].rate == pytest.approx(100 / 0.099)
    tally = Tally(EXPECTED)
    tally.see("received", "A-1", 0, MS)
    report = tally.report(seconds=1, server="", workers=())
    assert report.stages[0].rate is None
    assert report.latency is None


def test_counts_are_different_orders() -> None:
    """Progress counts orders, not messages; the run is complete with the last stage."""
    tally = Tally({"A": 1, "B": 2})
    for stage in STAGES:
        tally.see(stage, "A", 1, MS)
        tally.see(stage, "A", 1, MS)
    assert tally.counts() == (1, 1, 1)
    assert not tally.complete()
    tally.see("completed", "B", 2, MS)
    assert tally.complete()


# --- how it is shown ----------------------------------------------------------------------------


def test_report_as_text() -> None:
    """Without a terminal the report is plain text, whole, with the digests in it."""
    out = io.StringIO()
    report = run()
    write_report(report, environment(out, io.StringIO()), as_json=False)
    text = out.getvalue()
    assert text.isascii()
    assert text.count(report.digest) == 4
    assert "p50 20.0 ms" in text
    assert "Every order came through exactly once: 100 orders, 3 stages, 1.50 s" in text


def test_report_of_a_failure_does_not_claim_success() -> None:
    """The tables of a failed run mark the stage, and the last line is missing."""
    out = io.StringIO()
    write_report(run(offset=1), environment(out, io.StringIO()), as_json=False)
    assert "Every order" not in out.getvalue()
    assert "NO" in out.getvalue()


def test_report_as_json() -> None:
    """The JSON document is all that is written, and has the fields of the report."""
    out = io.StringIO()
    report = run(drop=[("received", "A-0")])
    write_report(report, environment(out, io.StringIO()), as_json=True)
    document = json.loads(out.getvalue())
    assert document["exactly_once"] is False
    assert document["orders"] == 100
    assert document["digest"] == report.digest
    assert [stage["stage"] for stage in document["stages"]] == list(STAGES)
    assert document["stages"][0]["missing"] == 1
    assert document["stages"][0]["examples"] == ["A-0"]
    assert document["workers"][0]["deliveries"] == 103
    assert document["latency"]["p50_ms"] > 0


def test_report_on_a_terminal_is_drawn() -> None:
    """On a terminal the tables have lines, and colours unless NO_COLOR is set."""
    pytest.importorskip("rich")
    out = Terminal()
    write_report(run(), environment(out, io.StringIO(), TERM="xterm"), as_json=False)
    assert "─" in out.getvalue()
    out = Terminal()
    write_report(run(), environment(out, io.StringIO(), TERM="xterm", NO_COLOR="1"), as_json=False)
    assert "\x1b[3" not in out.getvalue()


def test_dumb_terminal_gets_plain_text() -> None:
    """A terminal that can not draw gets the plain text of a pipe."""
    out = Terminal()
    write_report(run(), environment(out, io.StringIO(), TERM="dumb"), as_json=False)
    assert out.getvalue().isascii()


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything works without the extra."""
    for name in ("rich", "rich.console", "rich.progress", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    out, err = Terminal(), Terminal()
    env = environment(out, err, TERM="xterm")
    write_report(run(), env, as_json=False)
    assert out.getvalue().isascii()
    assert isinstance(make_progress(env, 1, quiet=False), LineProgress)


def test_plain_table_is_aligned_and_never_cut() -> None:
    """Columns are as wide as their widest cell: names to the left, numbers to the right."""
    out = io.StringIO()
    table = Table(title="T", columns=("name", "n"), rows=[("x" * 300, "1"), ("y", "1,000")])
    write_table(table, environment(out, io.StringIO()))
    lines = out.getvalue().splitlines()
    assert lines[0] == "T"
    assert lines[2] == "x" * 300 + "      1"
    assert lines[3] == "y" + " " * 301 + "1,000"


def test_markup_in_a_cell_is_text() -> None:
    """What looks like rich's mark-up is shown as it is."""
    pytest.importorskip("rich")
    out = Terminal()
    env = environment(out, io.StringIO(), TERM="xterm", NO_COLOR="1")
    write_table(Table(title="[b]T[/b]", columns=("n",), rows=[("[red]x[/red]",)]), env)
    assert "[red]x[/red]" in out.getvalue()
    assert "[b]T[/b]" in out.getvalue()


@pytest.mark.parametrize(("width", "drawn"), [(22, True), (21, False)])
def test_a_table_is_drawn_where_it_fits(
    monkeypatch: pytest.MonkeyPatch, width: int, drawn: bool
) -> None:
    """A table that is too wide for the terminal is plain text, and nothing of it is folded."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    out = Terminal()
    env = environment(out, io.StringIO(), TERM="xterm", NO_COLOR="1")
    rows = [("a name", "1,000,000")]
    write_table(Table(title="T", columns=("stream", "bytes"), rows=rows), env)
    assert any("a name" in line and "1,000,000" in line for line in out.getvalue().splitlines())
    assert ("│" in out.getvalue()) is drawn


def test_line_progress_once_a_second() -> None:
    """Lines of progress go to stderr, at most one a second."""
    err = io.StringIO()
    now = [100.0]
    progress = LineProgress(environment(io.StringIO(), err), 5_000, clock=lambda: now[0])
    for step in range(25):
        now[0] = 100.0 + step / 10
        progress.show((step * 100, step * 10, step))
    assert err.getvalue() == (
        "  1.0 s: 1,000 received, 100 processed, 10 completed of 5,000\n"
        "  2.0 s: 2,000 received, 200 processed, 20 completed of 5,000\n"
    )


def test_bars_on_a_terminal() -> None:
    """On a terminal progress is a bar for each stage, and gone at the end."""
    pytest.importorskip("rich")
    err = Terminal()
    env = environment(io.StringIO(), err, TERM="xterm")
    with make_progress(env, 10, quiet=False) as progress:
        assert isinstance(progress, BarProgress)
        progress.show((10, 5, 1))
        assert "10/10" in err.getvalue()
        progress.show((10, 9, 8))  # too soon to be drawn
        assert "8/10" not in err.getvalue()
    assert "8/10" in err.getvalue()
    for stage in STAGES:
        assert stage in err.getvalue()
    # The last thing is to erase the lines.
    assert "\x1b[2K" in err.getvalue()[-40:]


def test_quiet_shows_nothing() -> None:
    """With --quiet nothing is shown, terminal or not."""
    err = Terminal()
    with make_progress(environment(io.StringIO(), err, TERM="xterm"), 1, quiet=True) as progress:
        progress.show((1, 1, 1))
        assert isinstance(progress, NoProgress)
    assert err.getvalue() == ""
