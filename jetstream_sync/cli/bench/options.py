"""The options of ``jsm bench``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from ...subjects import check_publish_subject
from ..settings import Settings, common_options
from ..values import SIZE

__all__ = [
    "BATCH",
    "CLIENTS",
    "PUBLISHER",
    "RATE",
    "REPLICAS",
    "STORAGE",
    "SUBJECT",
    "BenchOptions",
    "measure_options",
]

_MESSAGES: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of a measurement."""

    msgs: int
    size: int
    clients: int = 1
    batch: int = 500
    storage: str = "memory"
    replicas: int = 1
    rate: float | None = None
    subject: str | None = None
    publisher: bool = True
    quiet: bool = False
    csv: str | None = None

    def check(self, settings: Settings) -> None:
        """
        Check the options.

        Raises:
            click.UsageError: a value is out of range, or two options exclude each other.

        """
        if self.msgs < 1 or self.size < 1:
            raise click.UsageError("--msgs and --size must be at least 1")
        if self.subject is not None:
            check_publish_subject(self.subject)
        if self.csv == "-" and settings.json:
            raise click.UsageError("--csv - and --json exclude each other")
        if not self.publisher and self.subject is None:
            raise click.UsageError(
                "--no-publish needs --subject, which another client publishes to"
            )


def _positive(context: click.Context, parameter: click.Parameter, value: int) -> int:
    if value < 1:
        raise click.BadParameter("must be at least 1", context, parameter)
    return value


def measure_options(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds the common options of all measurements, and these ones."""

    def decorate(command: Any) -> Any:
        for option in reversed(
            (
                click.option(
                    "--msgs",
                    type=SIZE,
                    default=str(_MESSAGES),
                    callback=_positive,
                    metavar="N",
                    help=f"Number of messages of all clients together.  [default: {_MESSAGES:,}]",
                ),
                click.option(
                    "--size",
                    type=SIZE,
                    default="128",
                    callback=_positive,
                    metavar="BYTES",
                    help="Size of each message.  [default: 128]",
                ),
                *more,
                click.option("--no-progress", "quiet", is_flag=True, help="Show no progress."),
                click.option(
                    "--csv",
                    metavar="FILE",
                    help="Write the results as CSV; '-' for standard output.",
                ),
                common_options,
            )
        ):
            command = option(command)
        return command

    return decorate


CLIENTS = click.option(
    "--clients",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of clients, each with its own connection and thread.",
)
BATCH = click.option(
    "--batch",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    metavar="N",
    help="Maximum number of messages in a pull request.",
)
STORAGE = click.option(
    "--storage",
    type=click.Choice(["memory", "file"]),
    default="memory",
    show_default=True,
    help="Storage of the stream; with memory the disk does not affect the result.",
)
REPLICAS = click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of replicas of the stream.",
)
RATE = click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Maximum messages per second of all clients together.",
)
SUBJECT = click.option(
    "--subject", metavar="SUBJECT", help="Subject to use.  [default: a generated one]"
)
PUBLISHER = click.option(
    "--no-publish",
    "publisher",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not publish; receive what other clients publish to --subject.",
)
