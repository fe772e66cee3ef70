"""``jsm errors``: look up JetStream error codes."""

from __future__ import annotations

import json
import pkgutil
import re
from typing import Any

import click

from ..errors import APIError
from .output import Block, emit, write_blocks
from .render import Table, write_table
from .settings import Settings, common_options
from .status import CommandError, ExitStatus

#: The API errors of the server, derived from the list in the server's source.
_DATA = "data/errors.json"


def _known() -> list[dict[str, Any]]:
    # Not importlib.resources: its import takes longer than this command.
    document = json.loads(pkgutil.get_data(__package__, _DATA) or b"")
    return [
        {**each, "raised_as": _class_of(each).__name__, "source": document["source"]}
        for each in document["errors"]
    ]


def _class_of(error: dict[str, Any]) -> type[APIError]:
    by_code = APIError.by_code.get(error["code"], APIError)
    return APIError.by_err_code.get(error["err_code"], by_code)


@click.command()
@click.argument("pattern", required=False)
@common_options
def ls(settings: Settings, *, pattern: str | None) -> None:
    """List the errors whose description or name matches the regular expression PATTERN."""
    try:
        wanted = re.compile(pattern or "", re.IGNORECASE)
    except re.error as error:
        raise CommandError(
            f"invalid regular expression {pattern!r}: {error}", ExitStatus.USAGE
        ) from error
    found = [
        each for each in _known() if wanted.search(f"{each['description']} {each['constant']}")
    ]

    def human() -> None:
        columns = ["Error", "Code", "Server's Name", "Description"]
        keys = ("err_code", "code", "constant", "description")
        rows = [[str(each[key]) for key in keys] for each in found]
        title = f"Errors of {found[0]['source']}" if found else "No errors found"
        write_table(Table(title=title, columns=columns, rows=rows, left=4), settings.env)

    emit(settings, found, human)


@click.command()
@click.argument("codes", nargs=-1, required=True, type=int, metavar="CODE...")
@common_options
def lookup(settings: Settings, *, codes: tuple[int, ...]) -> None:
    """Show the errors with the given err_codes, such as 10059."""
    known = {each["err_code"]: each for each in _known()}
    for code in codes:
        if code not in known:
            raise CommandError(
                f"unknown error code {code}: {known[10003]['source']} does not define it",
                ExitStatus.NOT_FOUND,
                hint="list all codes with 'jsm errors ls'",
            )
    found = [known[code] for code in codes]

    def human() -> None:
        blocks = []
        for each in found:
            block = Block(f"Error {each['err_code']}")
            block.add("Description", each["description"])
            block.add("Code", each["code"])
            block.add("Server's Name", each["constant"])
            block.add("Raised As", each["raised_as"])
            block.add("Known To", each["source"])
            blocks.append(block)
        write_blocks(settings.env, *blocks)

    emit(settings, found if len(found) > 1 else found[0], human)
