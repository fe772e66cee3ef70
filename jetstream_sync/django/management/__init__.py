"""The management commands, whose argument is a worker."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ... import errors
from ...exit_status import ExitStatus, exit_status


class WorkerCommand(BaseCommand):
    """A command for a worker."""

    #: The flags of the command, each with its help.
    flags: tuple[tuple[str, str], ...] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the worker, and the flags."""
        text = "the worker; default: that of the setting JETSTREAM"
        parser.add_argument("worker", nargs="?", metavar="MODULE:ATTRIBUTE", help=text)
        for name, text in self.flags:
            parser.add_argument(name, action="store_true", help=text)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Do what the command is for; report its errors."""
        try:
            self.use(options)
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=ExitStatus.USAGE) from error
        except errors.Error as error:
            raise CommandError(str(error), returncode=exit_status(error)) from error

    def use(self, options: dict[str, Any]) -> None:
        """Do what the command is for."""
        raise NotImplementedError
