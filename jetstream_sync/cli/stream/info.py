"""``jsm stream info`` and ``state``: show the config and state of a stream."""

from __future__ import annotations

import click

from ..completion import complete_stream
from ..names import STREAM_NAME
from ..output import emit
from ..prompts import Asker
from ..settings import Settings, common_options
from ..terminology import find_stream
from .show import write_info, write_state

__all__ = ["info", "state"]


@click.command()
@click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
@click.option("--state", "only_state", is_flag=True, help="Show only the state.")
@common_options
def info(settings: Settings, name: str | None, only_state: bool) -> None:
    """Show the config and state of a stream."""
    _info(settings, name, only_state=only_state)


@click.command()
@click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
@common_options
def state(settings: Settings, name: str | None) -> None:
    """Show the state of a stream."""
    _info(settings, name, only_state=True)


def _info(settings: Settings, name: str | None, *, only_state: bool) -> None:
    with settings.jetstream() as js:
        found = find_stream(js, name, Asker(settings)).cached_info
    if only_state:
        emit(settings, found.state, lambda: write_state(settings, found))
    else:
        emit(settings, found, lambda: write_info(settings, found))
