"""
The ORDERS architecture with Spark in the place of the workers: ``jsm demo --spark``.

::

    input ──> ORDERS.received ──> Spark ──> ORDERS.processed ──> Spark ──> ORDERS.completed
                     └───────────────────────┴───────── MONITOR ────────────────┘

NEW and DISPATCH are two streaming queries of Spark, see `jetstream_sync.cli.demo.spark_jobs`; MONITOR is
the ordered consumer that it is without Spark. When all orders have come through, each job does its
last batch once more, as it would after a crash between its writing and Spark's note of it, and
MONITOR sees that nothing was stored twice. At the end Spark SQL adds up what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...net.clock import Deadline, monotonic
from ..status import CommandError, ExitStatus
from . import orders
from .flow import Errand, Flow
from .spark_jobs import Job, completed_totals, start_job
from .spark_session import failure_of, running_spark
from .spark_tally import SparkDemoReport, Total, expected_totals
from .tally import STAGES, WorkerReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ... import Stream

__all__ = ["run_spark_pipeline"]

_LOOK_INTERVAL = 1.0


def run_spark_pipeline(errand: Errand, place: Mapping[str, str]) -> SparkDemoReport:
    """
    Send all orders through, and report: the books, whether they balance or not.

    Args:
        errand: what is to be done; ``workers`` is the number of tasks that Spark runs at a time.
        place: how Spark connects to the same server: options of the data source.

    Raises:
        CommandError: the stream exists already, nothing moved for as long as is planned, or a job of
            Spark has failed.
        Error: the server refused something, or the connection is lost.

    """
    plan = errand.plan
    # In this order: the stream is removed when nobody reads it any more.
    with errand.stream() as stream, running_spark(plan.workers) as (spark, folder):
        run = _Run(errand, stream, spark, place, folder)
        with run.flow.monitor(stream):
            run.start()
            # What Spark needs to start is not what an order takes.
            started = monotonic()
            run.flow.publish()
            run.wait()
            run.stop()
            if plan.redeliver_percent:
                run.repeat()
            totals = run.totals()
            run.catch_up()
        return run.report(totals, monotonic() - started, errand.server)


class _Run:
    """One run: the books, the jobs and the waiting."""

    def __init__(
        self,
        errand: Errand,
        stream: Stream,
        spark: SparkSession,
        place: Mapping[str, str],
        folder: Path,
    ) -> None:
        plan = errand.plan
        self._stream = stream
        self._show = errand.show
        self._plan = plan
        self._input = errand.orders
        self._spark = spark
        self._place = place
        self.flow = Flow(errand, self._check)
        self._jobs = tuple(
            Job(
                name=name,
                place=place,
                stream=plan.stream,
                source=plan.subject(source),
                subject=plan.subject(stage),
                stage=stage,
                work=work,
                checkpoint=folder / name,
            )
            for name, source, stage, work in (
                ("NEW", STAGES[0], STAGES[1], orders.process),
                ("DISPATCH", STAGES[1], STAGES[2], orders.complete),
            )
        )
        self._running: list[StreamingQuery] = []
        self._look = Deadline(_LOOK_INTERVAL)
        #: What Spark said of each batch, by the job's name; and of those that were done again.
        self._batches: dict[str, list[dict[str, Any]]] = {job.name: [] for job in self._jobs}
        self._repeated: dict[str, list[dict[str, Any]]] = {job.name: [] for job in self._jobs}

    def start(self) -> None:
        """Start both jobs, and wait until each has looked for orders."""
        self._running = [start_job(self._spark, job) for job in self._jobs]
        patience = Deadline(self._plan.timeout)
        while not all(query.lastProgress for query in self._running):
            self._show(self.flow.tally.counts())
            self._check()
            if patience.expired():
                raise CommandError(
                    f"Spark's jobs did not start in {self._plan.timeout:g} s", ExitStatus.TIMED_OUT
                )
            self.flow.wait()

    def wait(self) -> None:
        """Wait until every order has come out at the end, and Spark has noted that."""
        while not self.flow.tally.complete() or any(map(_busy, self._running)):
            self.flow.tick()
            self.flow.wait()
        self.flow.tick()

    def stop(self) -> None:
        """Stop both jobs, and take down what they have done."""
        for job, query in zip(self._jobs, self._running, strict=True):
            query.stop()
            self._batches[job.name] += _progress(query)
        self._running = []

    def repeat(self) -> None:
        """Do the last batch of each job again."""
        for job in self._jobs:
            _forget_last_batch(job.checkpoint)
            query = start_job(self._spark, job, to_the_end=True)
            self._running = [query]
            while query.isActive:
                self.flow.tick()
                self.flow.wait()
            self.flow.tick()
            self._repeated[job.name] += _progress(query)
        self._running = []

    def catch_up(self) -> None:
        """Wait until the books have all that is stored."""
        last = self._stream.info().state.last_seq
        while self.flow.tally.last_seq < last:
            self.flow.tick()
            self.flow.wait()

    def totals(self) -> list[Total]:
        """Have Spark add up what came out, and compare it with the input."""
        found = completed_totals(
            self._spark, self._place, self._plan.stream, self._plan.subject(STAGES[-1])
        ).collect()
        expected = expected_totals(self._input)
        return [
            Total(
                currency=row["currency"],
                orders=row["orders"],
                total_minor=row["total_minor"],
                matches_input=(
                    expected.get(row["currency"]) == (row["orders"], row["total_minor"])
                    and {each["currency"] for each in found} == expected.keys()
                ),
            )
            for row in found
        ]

    def report(self, totals: Sequence[Total], seconds: float, server: str) -> SparkDemoReport:
        """Close the books; only when everything has stopped."""
        stored = {name: self.flow.tally.messages(name) for name in STAGES}
        report = self.flow.tally.report(
            seconds=seconds,
            server=server,
            workers=[self._job_report(job, stored) for job in self._jobs],
        )
        batches = sum(len(list(filter(_rows, each))) for each in self._batches.values())
        return SparkDemoReport.of(
            report, spark=self._spark.version, batches=batches, totals=tuple(totals)
        )

    def _job_report(self, job: Job, stored: dict[str, int]) -> WorkerReport:
        batches, repeated = self._batches[job.name], self._repeated[job.name]
        done = [_counts(job.name, batch) for batch in (*batches, *repeated)]
        rows, refused = (
            sum(counts["rows"] for counts in done),
            sum(counts["refused"] for counts in done),
        )
        refusals = [counts["refusal"] for counts in done if counts["refusal"]]
        return WorkerReport(
            name=job.name,
            workers=self._plan.workers,
            deliveries=rows,
            redelivered=sum(_counts(job.name, batch)["rows"] for batch in repeated),
            # What was written, less what is stored.
            deduplicated=rows - refused - stored[job.stage],
            refused=refused,
            first_refusal=f"{job.name} refused a message: {refusals[0]}" if refusals else None,
        )

    def _check(self) -> None:
        """Raise what ended a job, or the connection."""
        if self._look.expired():
            self._stream.info()
            self._look = Deadline(_LOOK_INTERVAL)
        for query in self._running:
            if query.isActive:
                continue
            error = query.exception()
            if error is not None:
                raise CommandError(
                    f"Spark's job {query.name} has failed: {failure_of(str(error))}",
                    ExitStatus.FAILED,
                )


def _busy(query: StreamingQuery) -> bool:
    return bool(query.status["isTriggerActive"])


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    return [dict(progress) for progress in query.recentProgress]


def _rows(batch: dict[str, Any]) -> int:
    return int(batch["numInputRows"])


def _counts(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Return what was observed in a batch; an idle one observes nothing."""
    observed = batch["observedMetrics"].get(name)
    return {"rows": 0, "refused": 0, "refusal": None} if observed is None else observed.asDict()


def _forget_last_batch(checkpoint: Path) -> None:
    """Make the last batch one that was written, but not noted as done."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    # Its checksum alone would be taken for a damaged file.
    (commits / f".{last}.crc").unlink(missing_ok=True)
