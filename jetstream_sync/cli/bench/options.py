"""The options of ``jsm bench``, and what they ask for."""

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
    "Plan",
    "measure_options",
]

_MESSAGES: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command line asks for."""

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
    versus: str | None = None
    rounds: int = 3

    def check(self, settings: Settings) -> None:
        """
        Refuse what makes no sense.

        Raises:
            click.UsageError: it says what.

        """
        if self.msgs < 1 or self.size < 1:
            raise click.UsageError("--msgs and --size are at least 1")
        if self.subject is not None:
            check_publish_subject(self.subject)
        if self.versus and self.clients > 1:
            raise click.UsageError("--vs compares one client with one: leave out --clients")
        if self.csv == "-" and settings.json:
            raise click.UsageError("--csv - and --json exclude each other")
        if self.csv is not None and self.versus:
            raise click.UsageError("--csv and --vs exclude each other; --json has all of it")
        if not self.publisher and self.subject is None:
            raise click.UsageError("--no-publish needs the --subject that somebody publishes to")


def _positive(context: click.Context, parameter: click.Parameter, value: int) -> int:
    if value < 1:
        raise click.BadParameter("it is at least 1", context, parameter)
    return value


def measure_options(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a command the options of every measurement, and some more of its own."""

    def decorate(command: Any) -> Any:
        for option in reversed(
            (
                click.option(
                    "--msgs",
                    type=SIZE,
                    default=str(_MESSAGES),
                    callback=_positive,
                    metavar="N",
                    help=f"Messages, of all clients together.  [default: {_MESSAGES:,}]",
                ),
                click.option(
                    "--size",
                    type=SIZE,
                    default="128",
                    callback=_positive,
                    metavar="BYTES",
                    help="Size of a message.  [default: 128]",
                ),
                *more,
                click.option(
                    "--no-progress", "quiet", is_flag=True, help="Show nothing meanwhile."
                ),
                click.option(
                    "--csv", metavar="FILE", help="Write the numbers as CSV; '-': to stdout."
                ),
                click.option(
                    "--vs",
                    "versus",
                    type=click.Choice(["nats-py"]),
                    help="Let nats-py do the same, in turn, and show the ratios.",
                ),
                click.option(
                    "--rounds",
                    type=click.IntRange(1),
                    default=3,
                    show_default=True,
                    metavar="N",
                    help="How often each does it, with --vs.",
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
    help="Clients, each with a connection and a thread.",
)
BATCH = click.option(
    "--batch",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    metavar="N",
    help="Messages of one pull.",
)
STORAGE = click.option(
    "--storage",
    type=click.Choice(["memory", "file"]),
    default="memory",
    show_default=True,
    help="Where the stream is kept; memory measures the client more than a disk.",
)
REPLICAS = click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    metavar="N",
    help="Of the stream.",
)
RATE = click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Messages a second at most, of all clients together.",
)
SUBJECT = click.option(
    "--subject", metavar="SUBJECT", help="Where to.  [default: one nobody else uses]"
)
PUBLISHER = click.option(
    "--no-publish",
    "publisher",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Publish nothing: wait for what others publish to --subject.",
)
