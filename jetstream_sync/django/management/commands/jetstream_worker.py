"""``manage.py jetstream_worker``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from .... import InvalidArgumentError
from ....workers.command import add_run_arguments, run_options, run_worker
from ...config import Config
from ...workers import find_worker


class Command(BaseCommand):
    """Handle messages until Ctrl-C or SIGTERM."""

    help = "Handle messages until Ctrl-C or SIGTERM; the exit status is that of 'jsm worker run'."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of ``jsm worker run``."""
        parser.add_argument(
            "worker",
            nargs="?",
            metavar="MODULE:ATTRIBUTE",
            help="the worker (default: that of the setting JETSTREAM)",
        )
        add_run_arguments(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the worker; exit with its status."""
        # Each process of several is this program, with its options for the settings.
        names = [name for name in ("settings", "pythonpath") if options[name]]
        command = [sys.executable, sys.argv[0], "jetstream_worker", "--skip-checks"]
        command += [f"--{name}={options[name]}" for name in names]
        try:
            target = options["worker"] or Config.load().worker
            chosen = run_options(target, argparse.Namespace(**options))
            status = run_worker(chosen, sys.stderr, load=find_worker, command=command)
        except (ImproperlyConfigured, InvalidArgumentError) as error:
            raise CommandError(str(error), returncode=2) from error
        sys.exit(status)
