"""``python -m jetstream_sync.workers``: run a worker without the ``jsm`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import InvalidArgumentError
from .command import add_run_arguments, run_options, run_worker
from .status import ExitStatus


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jetstream_sync.workers",
        description="Handle messages until Ctrl-C or SIGTERM.",
    )
    parser.add_argument(
        "target", metavar="MODULE:ATTRIBUTE", help="the worker, as in shop.workers:worker"
    )
    add_run_arguments(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return run_worker(run_options(given.target, given), sys.stderr)
    except InvalidArgumentError as error:
        parser.exit(ExitStatus.USAGE, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
