"""``manage.py jetstream_worker``."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

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
            help="the worker; default: that of the setting JETSTREAM",
        )
        parser.add_argument(
            "--drain-timeout",
            type=float,
            metavar="SECONDS",
            help="seconds that running handlers may take after a signal",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the worker; exit with its status."""
        try:
            worker = find_worker(options["worker"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        if options["drain_timeout"] is not None:
            worker.drain_timeout = options["drain_timeout"]
        if not logging.getLogger().handlers:
            logging.basicConfig(format="%(asctime)s %(levelname)s %(threadName)s %(message)s")
            logging.getLogger("jetstream_sync.worker").setLevel(logging.INFO)
        sys.exit(worker.run())
