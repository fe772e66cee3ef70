"""
Hold jetstream_sync against its own limits: start-up, threads, memory, and cost that stays flat.

Run it from the project's root::

    python -m tests.bench.limits                   # some minutes
    python -m tests.bench.limits --rows scaling    # cost and memory as the work grows
    python -m tests.bench.limits --rows flat-ordered --scale 5    # five million messages
    python -m tests.bench.limits --rows import connect
    python -m tests.bench.limits --scale 0.05      # fewer messages: a look, not a measurement

Each line of the table is a number with its unit, the aim, and whether it is reached. Each probe has
a process of its own, so that no number has another probe's memory or threads in it; the probes are
the functions of ``probes.py``, which say what they do.

Memory is measured twice, because each way misses something: ``traced`` is what Python objects take
(tracemalloc), ``resident`` is by how much the process grew (thread stacks and the allocator's waste
are in it; Linux only). Cost per message is processor time of the client's process, all threads, so
that a busy machine does not look like a slow client.

The exit status is 1 when a probe failed, whatever the aims.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .clients import ROOT, python_module
from .probes import PROBES, SCALING, Measure
from .report import align
from .run import running_server

__all__ = ["main"]

_PROBE_SECONDS_LIMIT = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probes, print the table and return the exit status."""
    options = _parser().parse_args(arguments)
    if options.child is not None:
        measures = PROBES[options.child](options.server, options.scale)
        print(json.dumps([measure.to_record() for measure in measures]))
        return 0
    records: list[dict[str, object]] = []
    failures: list[str] = []
    with running_server(options.server) as server:
        probes = [name for each in options.probes for name in _names(each)]
        for probe in probes:
            print(probe, file=sys.stderr, flush=True)
            done = _run_probe(probe, server.url, options.scale)
            if done.returncode == 0:
                found = json.loads(done.stdout)
                records += found
                # The whole table follows at the end.
                print(_table([Measure.from_record(each) for each in found]), file=sys.stderr)
            else:
                failures.append(f"{probe} failed: {done.stderr.strip()[-1500:]}")
    print(_table([Measure.from_record(record) for record in records]))
    for failure in failures:
        print(f"\n{failure}")
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=2) + "\n")
    return 1 if failures else 0


def _names(probe: str) -> Sequence[str]:
    return SCALING if probe == "scaling" else (probe,)


def _run_probe(probe: str, url: str, scale: float) -> subprocess.CompletedProcess[str]:
    command = [*python_module("limits"), "--child", probe, "--server", url, "--scale", str(scale)]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_PROBE_SECONDS_LIMIT * max(1.0, scale),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "not done in time")


def _table(measures: Sequence[Measure]) -> str:
    lines = [["", "measured", "aim", ""]]
    for measure in measures:
        shown = f"{measure.value:,.{measure.digits}f} {measure.unit}".rstrip()
        sign = ">=" if measure.at_least else "<="
        aim = "" if measure.aim is None else f"{sign} {measure.aim:,g} {measure.unit}".rstrip()
        verdict = {True: "reached", False: "not reached", None: ""}[measure.reached]
        lines.append([measure.what, shown, aim, verdict])
    return align(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.limits", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument(
        "--rows",
        "--probes",
        dest="probes",
        nargs="+",
        choices=[*PROBES, "scaling"],
        default=list(PROBES),
        metavar="PROBE",
        help=f"of {', '.join(PROBES)}; scaling: {', '.join(SCALING)}; default: all",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="factor on the number of messages; 1, the default, reads a million per flat cost",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    parser.add_argument(
        "--server",
        metavar="URL",
        help="use that server, which must have JetStream; default: start a fresh one",
    )
    parser.add_argument("--child", choices=list(PROBES), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
