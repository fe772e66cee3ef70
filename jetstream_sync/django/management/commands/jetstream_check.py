"""``manage.py jetstream_check``."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...workers import find_worker


class Command(BaseCommand):
    """Check streams, consumers, options and permissions of a worker."""

    help = "Check that the worker can run. No message is read, and nothing is changed."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the worker."""
        parser.add_argument(
            "worker",
            nargs="?",
            metavar="MODULE:ATTRIBUTE",
            help="the worker; default: that of the setting JETSTREAM",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Check the worker; exit with the status with which it would end."""
        try:
            worker = find_worker(options["worker"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        result = worker.check()
        for each in worker.handlers:
            self.stdout.write(f"{each.name}: consumer {each.consumer} of stream {each.stream}")
        for text in result.warnings:
            self.stderr.write(self.style.WARNING(f"warning: {text}"))
        for text in result.errors:
            self.stderr.write(self.style.ERROR(f"error: {text}"))
        sys.exit(result.status)
