"""``manage.py jetstream_worker``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import CommandParser

from ....workers.command import add_run_arguments, run_options, run_worker
from ...config import Config
from ...workers import find_worker
from .. import WorkerCommand


class Command(WorkerCommand):
    """Handle messages until Ctrl-C or SIGTERM."""

    help = "Handle messages until Ctrl-C or SIGTERM; the exit status is that of 'jsm worker run'."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of ``jsm worker run``."""
        super().add_arguments(parser)
        add_run_arguments(parser)

    def use(self, options: dict[str, Any]) -> None:
        """Run the worker; exit with its status."""
        # Each process of several is this program, with its options for the settings.
        names = [name for name in ("settings", "pythonpath") if options[name]]
        command = [sys.executable, sys.argv[0], "jetstream_worker", "--skip-checks"]
        command += [f"--{name}={options[name]}" for name in names]
        target = options["worker"] or Config.load().worker
        chosen = run_options(target, argparse.Namespace(**options))
        sys.exit(run_worker(chosen, sys.stderr, load=find_worker, command=command))
