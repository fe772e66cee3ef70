"""``python -m jetstream_sync.workers``: run a worker without the ``jsm`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import InvalidArgumentError
from .command import RunOptions, run_worker
from .supervisor import Limits
from .worker import ExitStatus

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jetstream_sync.workers",
        description="Handle messages until Ctrl-C or SIGTERM.",
    )
    parser.add_argument(
        "target", metavar="MODULE:ATTRIBUTE", help="the worker, as in shop.workers:worker"
    )
    parser.add_argument(
        "-s",
        "--server",
        action="append",
        default=[],
        dest="servers",
        metavar="URL",
        help="server address; may be repeated (default: that of the worker)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        metavar="SECONDS",
        help="seconds that running handlers may take after a signal (default: that of the worker)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="number of worker processes, each with its own connection, under a supervisor",
    )
    parser.add_argument(
        "--max-messages",
        type=int,
        metavar="N",
        help="replace a worker process after this number of messages",
    )
    parser.add_argument(
        "--max-age",
        type=float,
        metavar="SECONDS",
        help="replace a worker process after this time",
    )
    parser.add_argument(
        "--max-rss",
        type=int,
        metavar="MIB",
        help="replace a worker process that uses this much memory (Linux)",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="replace the worker processes when a source file changes, for development",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /livez, /readyz and /metrics at this address (default: that of the worker)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of log records on standard error (default: text)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log one line for each message"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        limits = Limits(
            max_messages=given.max_messages,
            max_age=given.max_age,
            max_rss=None if given.max_rss is None else given.max_rss * 2**20,
        )
        options = RunOptions(
            target=given.target,
            servers=given.servers,
            drain_timeout=given.drain_timeout,
            processes=given.processes,
            limits=limits,
            reload=given.reload,
            http=given.http,
            log_format=given.log_format,
            verbose=given.verbose,
        )
        return run_worker(options, sys.stderr)
    except InvalidArgumentError as error:
        parser.exit(ExitStatus.USAGE, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
