"""``manage.py jetstream_schedules``."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from .... import Error
from ...workers import find_worker


class Command(BaseCommand):
    """List the schedules of a worker, or delete unused ones."""

    help = "List the schedules of the worker; --prune deletes those that it does not define."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the worker and for the deletion."""
        parser.add_argument(
            "worker",
            nargs="?",
            metavar="MODULE:ATTRIBUTE",
            help="the worker; default: that of the setting JETSTREAM",
        )
        parser.add_argument(
            "--prune", action="store_true", help="delete schedules in the state 'unused'"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """List the schedules, as ``jsm worker schedules`` does."""
        try:
            worker = find_worker(options["worker"])
            states = worker.find_schedules()
            unused = [each for each in states if each.state == "unused"] if options["prune"] else []
            worker.delete_schedules(unused)
        except (ImproperlyConfigured, Error) as error:
            raise CommandError(str(error)) from error
        for each in states:
            state = "deleted" if each in unused else each.state
            self.stdout.write(f"{each.name}: {state} in stream {each.stream}")
