"""Editing a stream or consumer config: options, differences and the editor."""

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
    """Add the options for editing a config to a command."""
    for option in (
        click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Skip the confirmation."),
        click.option(
            "--exit-code", is_flag=True, help="With --dry-run, exit with status 1 on changes."
        ),
        click.option("--dry-run", is_flag=True, help="Show the changes without applying them."),
        click.option("-i", "--interactive", is_flag=True, help="Edit the config in $EDITOR."),
        click.option(
            "--config", "file", metavar="FILE", help="Read the new config from FILE; - is stdin."
        ),
    ):
        command = option(command)
    return command


def show_differences(settings: Settings, found: list[Difference]) -> None:
    """Write the differences, one field per line."""
    document = {"changed": bool(found), "differences": difference_documents(found)}

    def human() -> None:
        if not found:
            settings.env.stdout.write("No differences\n")
        settings.env.stdout.writelines(f"  {each.line()}\n" for each in found)

    emit(settings, document, human)


def update_error(kind: str, name: str, error: APIError, found: list[Difference]) -> CommandError:
    """Return the error for a change that the server rejected, with the differences."""
    listed = "; ".join(each.line() for each in found)
    return CommandError(
        f"{kind} {name} cannot be changed: {error} [{listed}]", ExitStatus.FAILED, cause=error
    )


def in_editor(config: R, names: Mapping[str, Any]) -> R:
    """
    Return a config as edited by the user.

    Args:
        config: the config to edit.
        names: fields that keep their values in any case.

    Raises:
        CommandError: the result is invalid, and the user does not edit it again.

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
