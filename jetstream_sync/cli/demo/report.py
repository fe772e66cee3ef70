"""The outcome of the demo, as tables for people and as a document for programs."""

from __future__ import annotations

import dataclasses

from ..env import Environment
from ..render import Table, to_json, write_table
from .spark_tally import SparkDemoReport
from .tally import DemoReport

__all__ = ["report_document", "write_report"]


def write_report(report: DemoReport, env: Environment, *, as_json: bool) -> None:
    """Write a report to ``env.stdout``; whether it is good news is the caller's to say."""
    if as_json:
        env.stdout.write(to_json(report_document(report)))
        return
    write_table(_stages(report), env)
    env.stdout.write("\n")
    write_table(_workers(report), env)
    if isinstance(report, SparkDemoReport):
        env.stdout.write("\n")
        write_table(_totals(report), env)
    if report.latency is not None:
        latency = report.latency
        env.stdout.write(
            f"\nreceived to completed: p50 {latency.p50_ms:,.1f} ms, p90 {latency.p90_ms:,.1f} ms, "
            f"p99 {latency.p99_ms:,.1f} ms, max {latency.max_ms:,.1f} ms\n"
        )
    if report.exactly_once:
        env.stdout.write(
            f"\nEvery order came through exactly once: "
            f"{report.orders:,} orders, 3 stages, {report.seconds:.2f} s on {_ran_on(report)}\n"
        )


def report_document(report: DemoReport) -> dict[str, object]:
    """
    Return a report as the JSON document of ``jsm demo --json``.

    Its keys are the field names of `DemoReport`, and ``exactly_once``.
    """
    return {"exactly_once": report.exactly_once, **dataclasses.asdict(report)}


def _ran_on(report: DemoReport) -> str:
    if not isinstance(report, SparkDemoReport):
        return report.server
    return f"{report.server} and Spark {report.spark}, in {report.batches:,} micro-batches"


def _stages(report: DemoReport) -> Table:
    rows = [["input", f"{report.orders:,}", "", "", "", "", "", report.digest, ""]]
    rows += [
        [
            stage.stage,
            f"{stage.orders:,}",
            f"{stage.messages:,}",
            f"{stage.missing:,}",
            f"{stage.duplicates:,}",
            f"{stage.strangers:,}",
            "" if stage.rate is None else f"{stage.rate:,.0f}",
            stage.digest,
            "yes" if stage.matches_input else "NO",
        ]
        for stage in report.stages
    ]
    return Table(
        title="What the stream holds",
        columns=(
            "stage", "orders", "messages", "missing", "duplicates", "unknown", "per second",
            "digest", "as input",
        ),
        rows=rows,
    )  # fmt: skip


def _workers(report: DemoReport) -> Table:
    return Table(
        title="What the workers did",
        columns=("consumer", "workers", "deliveries", "redelivered", "deduplicated", "refused"),
        rows=[
            [
                worker.name,
                f"{worker.workers:,}",
                f"{worker.deliveries:,}",
                f"{worker.redelivered:,}",
                f"{worker.deduplicated:,}",
                f"{worker.refused:,}",
            ]
            for worker in report.workers
        ],
    )


def _totals(report: SparkDemoReport) -> Table:
    return Table(
        title="What Spark SQL adds up",
        columns=("currency", "orders", "total in minor units", "as input"),
        rows=[
            [
                total.currency,
                f"{total.orders:,}",
                f"{total.total_minor:,}",
                "yes" if total.matches_input else "NO",
            ]
            for total in report.totals
        ],
    )
