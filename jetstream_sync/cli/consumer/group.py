"""``jsm consumer``: manage and read consumers."""

from __future__ import annotations

from typing import Final

import click

from ..groups import LazyCommand, NounGroup
from ..settings import Settings, common_options


def _lazy(name: str, module: str, text: str, *aliases: str) -> tuple[str, LazyCommand]:
    target = f"jetstream_sync.cli.{module}:{name}"
    return name, LazyCommand(target=target, help=text, aliases=aliases)


_COMMANDS: Final = dict(
    [
        _lazy("add", "consumer.add", "Create a consumer.", "create", "new"),
        _lazy("ls", "consumer.ls", "List the consumers of a stream.", "list", "l"),
        _lazy("info", "consumer.ls", "Show a consumer's configuration and state.", "nfo", "i"),
        _lazy("state", "consumer.ls", "Show a consumer's state."),
        _lazy("report", "consumer.ls", "Compare the consumers of a stream in a table."),
        _lazy("next", "consumer.next", "Fetch and acknowledge messages.", "n"),
        _lazy("sub", "consumer.next", "Show a consumer's messages as they arrive."),
        _lazy("sample", "consumer.sample", "Show acknowledgement samples as they arrive."),
        _lazy("edit", "consumer.add", "Change a consumer.", "update"),
        _lazy("copy", "consumer.add", "Copy a consumer.", "cp"),
        _lazy("rm", "consumer.control", "Delete consumers.", "delete", "del"),
        _lazy("pause", "consumer.control", "Pause a consumer."),
        _lazy("resume", "consumer.control", "Resume a paused consumer."),
        _lazy("unpin", "consumer.control", "Unpin the client of a priority group."),
        _lazy("reset", "consumer.control", "Reset the position of a consumer."),
        _lazy("dlq", "dlq", "Find and republish dead letters."),
    ]
)


@click.group(cls=NounGroup, lazy=_COMMANDS)
@common_options
def consumer(_settings: Settings) -> None:
    """
    Manage and read consumers.

    "jsm obs" is an alias.
    """
