"""What editing a config of either kind is made of: the differences, shown; and the editor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ...codec import Record, encode
from ...errors import APIError, Error
from ..output import emit
from ..render import to_json
from ..settings import Settings
from ..status import CommandError, ExitStatus
from .diff import Difference, difference_documents, without_server_labels
from .files import config_of

__all__ = ["edit_options", "in_editor", "show_differences", "update_error"]

R = TypeVar("R", bound=Record)
_Command = TypeVar("_Command", bound=Callable[..., object])


def edit_options(command: _Command) -> _Command:
    """Give a command the options that say how a config is edited."""
    for option in (
        click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Ask nothing; do it."),
        click.option(
            "--exit-code", is_flag=True, help="With --dry-run: status 1 when something would."
        ),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        click.option("-i", "--interactive", is_flag=True, help="Edit the config in $EDITOR."),
        click.option(
            "--config", "file", metavar="FILE", help="The new config, from a file; - is stdin."
        ),
    ):
        command = option(command)
    return command


def show_differences(settings: Settings, found: list[Difference]) -> None:
    """Write how two configs differ, one field in each line."""
    document = {"changed": bool(found), "differences": difference_documents(found)}

    def human() -> None:
        if not found:
            settings.env.stdout.write("No differences\n")
        settings.env.stdout.writelines(f"  {each.line()}\n" for each in found)

    emit(settings, document, human)


def update_error(kind: str, name: str, error: APIError, found: list[Difference]) -> CommandError:
    """Return the error for a change that the server does not make; it says what differs."""
    listed = "; ".join(each.line() for each in found)
    return CommandError(
        f"{kind} {name} can not be changed: {error} [{listed}]", ExitStatus.FAILED, cause=error
    )


def in_editor(config: R, names: Mapping[str, Any]) -> R:
    """
    Return a config as a person leaves it in the editor.

    Args:
        config: what the editor shows.
        names: the fields that stay as they are, whatever the person does.

    Raises:
        CommandError: it can not be read, and the person gives up.

    """
    text = to_json(encode(without_server_labels(config)))
    while True:
        edited = click.edit(text, extension=".json")
        if edited is None:
            return config
        try:
            return config_of(type(config), json.loads(edited), dict(names))
        except (ValueError, Error) as error:
            if not click.confirm(f"{error}\nEdit it again?", default=True, err=True):
                raise CommandError("nothing was done", ExitStatus.USAGE) from error
            text = edited
