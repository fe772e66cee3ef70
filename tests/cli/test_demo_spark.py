"""``jsm demo --spark``: the whole job with Spark, what it needs, and how it ends."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_apps import Program
from fix_spark import need_java, processes_of_session
from fix_threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync.cli.demo import orders
from jetstream_sync.cli.demo.intake import read_lines
from jetstream_sync.cli.demo.spark_jobs import work_of
from jetstream_sync.cli.demo.spark_session import failure_of
from jetstream_sync.cli.demo.spark_tally import SparkDemoReport, Total, expected_totals
from jetstream_sync.cli.demo.tally import Tally
from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.main import run
from jetstream_sync.server import NatsServer

COUNT = 2_500
#: An order costs 2 x 19.90 and 19 % tax, which is 47.36.
PRICE_MINOR = 4736


def order_line(number: int, currency: str = "EUR") -> bytes:
    item = {"sku": "X", "quantity": 2, "price": "19.90"}
    order = {"id": number, "customer": "C", "currency": currency, "country": "DE", "items": [item]}
    return json.dumps(order).encode()


@contextlib.contextmanager
def demo(folder: Path, *args: str) -> Iterator[Program]:
    """Start ``jsm demo --spark``, whose temporary files are in ``folder/temporary``."""
    need_java()
    (folder / "temporary").mkdir()
    lines = b"\n".join(order_line(number) for number in range(COUNT))
    (folder / "orders.jsonl").write_bytes(lines)
    variables = {
        **os.environ,
        "TMPDIR": str(folder / "temporary"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = ["-m", "jetstream_sync.cli", "demo", "--spark", "-i", "orders.jsonl", *args]
    with Program(command, "", folder, variables=variables) as program:
        yield program


def assert_nothing_left(program: Program, folder: Path) -> None:
    """See that a demo that has ended left no file; workers soon notice the end of their JVM."""
    assert list((folder / "temporary").iterdir()) == []
    wait_until(lambda: not processes_of_session(program.process.pid), 15)


@contextlib.contextmanager
def in_the_middle(server: NatsServer, folder: Path) -> Iterator[Program]:
    """Start a demo on a server, and go on when Spark has written there."""
    with (
        jetstream_sync.connect(server.url) as nc,
        nc.subscribe("ORDERS.processed") as processed,
        demo(folder, "-q", "-s", server.url, "--rate", "50") as program,
    ):
        nc.flush()
        processed.next_msg(timeout=110 * SCALE)
        yield program


@pytest.mark.spark
@pytest.mark.timeout(200)
def test_every_order_comes_through_once(tmp_path: Path) -> None:
    """Spark takes all orders through both steps, does batches twice, and adds up what the input has."""
    with demo(tmp_path, "-j", "-q") as program:
        assert program.ended(150) == 0
        report = json.loads(program.said)
        assert_nothing_left(program, tmp_path)
    assert report["exactly_once"]
    assert [
        (stage["stage"], stage["messages"], stage["matches_input"]) for stage in report["stages"]
    ] == [(name, COUNT, True) for name in ("received", "processed", "completed")]
    assert {stage["digest"] for stage in report["stages"]} == {report["digest"]}
    assert report["totals"] == [
        {
            "currency": "EUR",
            "orders": COUNT,
            "total_minor": COUNT * PRICE_MINOR,
            "matches_input": True,
        }
    ]
    # Each job had more than one batch, and did its last one again.
    assert report["batches"] >= 4
    for worker in report["workers"]:
        assert worker["redelivered"] > 0
        assert worker["deliveries"] == COUNT + worker["redelivered"]
        assert worker["deduplicated"] == worker["redelivered"]
        assert worker["refused"] == 0


@pytest.mark.spark
@pytest.mark.timeout(200)
def test_ctrl_c_leaves_nothing_behind(fresh_server: NatsServer, tmp_path: Path) -> None:
    """Ctrl-C in the middle ends with 130: no stream, no process, no file, and no traceback."""
    with in_the_middle(fresh_server, tmp_path) as program:
        program.ctrl_c()
        assert program.ended(40) == 130
        assert program.said == "jsm: interrupted\n"
        assert_nothing_left(program, tmp_path)
    with jetstream_sync.connect(fresh_server.url) as nc:
        assert list(nc.jetstream().stream_names()) == []


@pytest.mark.spark
def test_ctrl_c_while_java_starts(tmp_path: Path) -> None:
    """A JVM that has just been started is not left behind either."""
    with demo(tmp_path, "-q") as program:
        wait_until(lambda: list((tmp_path / "temporary").glob("jsm-spark-*")), 30)
        program.ctrl_c()
        assert program.ended(30) == 130
        assert program.said == "jsm: interrupted\n"
        assert_nothing_left(program, tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(200)
def test_a_server_that_goes_away(fresh_server: NatsServer, tmp_path: Path) -> None:
    """When the server is gone the demo ends with one line and status 5, and leaves nothing."""
    with in_the_middle(fresh_server, tmp_path) as program:
        fresh_server.stop()
        assert program.ended(40) == 5
        lines = [line for line in program.said.splitlines() if "warning" not in line]
        assert len(lines) == 1
        assert lines[0].startswith("jsm: ")
        assert_nothing_left(program, tmp_path)


# --- without Spark ----------------------------------------------------------------------------


def refused(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], java: str) -> str:
    """Run ``jsm demo --spark`` where these packages are, and return what it says."""

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("JAVA_HOME", java)
    out, err = io.StringIO(), io.StringIO()
    env = Environment(stdin=io.BytesIO(), stdout=out, stderr=err)
    assert run(["demo", "--spark"], env) == 1
    assert out.getvalue() == ""
    return err.getvalue()


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, "needs pyspark, which is not installed: pip install 'jetstream-sync[spark]'"),
        ({"pyspark": "4.3.0"}, "needs pyarrow, which is not installed: pip install"),
        (
            {"pyspark": "3.5.8", "pyarrow": "26.0.1"},
            "needs pyspark 4.2 or newer, and this is 3.5.8: pip install --upgrade",
        ),
        ({"pyspark": "4.3.0", "pyarrow": "26.0.1"}, "Spark needs Java 17 or newer: JAVA_HOME is"),
    ],
)
def test_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, versions: dict[str, str], said: str
) -> None:
    """Without PySpark, PyArrow or Java, one line says so before anything starts."""
    line = refused(monkeypatch, versions, str(tmp_path))
    assert said in line
    assert line.startswith("jsm: ")
    assert line.count("\n") == 1


def test_a_message_that_is_no_order() -> None:
    """A step of Spark refuses it with a reason, and goes on."""
    work = work_of("NEW", "processed", orders.process)
    msg_id, data, refusal = work(b"no order")
    assert (msg_id, data) == (None, None)
    assert refusal
    msg_id, data, refusal = work(order_line(7))
    assert (msg_id, refusal) == ("processed:7", None)
    assert json.loads(data or b"")["total_minor"] == PRICE_MINOR


def test_totals_that_differ_are_a_failure() -> None:
    """A currency whose total is not the input's makes the run fail, and is named."""
    found = read_lines([order_line(1), order_line(2, "USD"), order_line(3)], "test")
    assert expected_totals(found) == {"EUR": (2, 2 * PRICE_MINOR), "USD": (1, PRICE_MINOR)}
    tally = Tally({order.id: order.fingerprint for order in found})
    for stage in ("received", "processed", "completed"):
        for order in found:
            tally.see(stage, order.id, order.fingerprint, 1)

    def report(**usd: Any) -> SparkDemoReport:
        eur = Total(currency="EUR", orders=2, total_minor=2 * PRICE_MINOR, matches_input=True)
        other = Total(**{"currency": "USD", "orders": 1, "total_minor": 1, **usd})
        books = tally.report(seconds=1, server="", workers=[])
        return SparkDemoReport.of(books, spark="4", batches=2, totals=(eur, other))

    assert report(matches_input=True).exactly_once
    wrong = report(matches_input=False)
    assert not wrong.exactly_once
    assert "not those of the input: USD" in wrong.failure()


def test_the_reason_in_an_error_of_spark() -> None:
    """Of Spark's chain of tracebacks the last error in Python is told, without the rest."""
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n"
        '  File "worker.py", line 1, in main\n'
        "jetstream_sync.errors.StreamNotFoundError: stream not found (10059)\n"
        "\n\tat org.apache.spark.Something(Something.scala:1)\n"
    )
    said = failure_of(text)
    assert said == "jetstream_sync.errors.StreamNotFoundError: stream not found (10059)"
    assert failure_of("only this\nand that") == "only this"
