"""``jsm stream``: the tree of the commands for streams, which are imported when they are used."""

from __future__ import annotations

import click

from ..groups import LazyCommand, NounGroup
from ..settings import Settings, common_options

__all__ = ["stream"]


def _lazy(name: str, module: str, text: str, *aliases: str) -> tuple[str, LazyCommand]:
    target = f"{__package__}.{module}:{name.replace('-', '_')}"
    return name, LazyCommand(target=target, help=text, aliases=aliases)


_COMMANDS = dict(
    [
        _lazy("add", "add", "Make a stream.", "create", "new"),
        _lazy("ls", "ls", "List streams.", "list", "l"),
        _lazy("info", "info", "Show a stream's config and state.", "nfo", "i"),
        _lazy("state", "info", "Show what a stream holds."),
        _lazy("edit", "edit", "Change a stream's config.", "update"),
        _lazy("rm", "rm", "Delete streams with all that is in them.", "delete", "del"),
        _lazy("purge", "rm", "Delete messages, all or some."),
        _lazy("report", "report", "Compare the streams of the account.", "rep"),
        _lazy("find", "find", "Find streams by what they are and hold.", "query"),
        _lazy("view", "view", "Read a stream's messages.", "v"),
        _lazy("get", "view", "Read one message."),
        _lazy("rmm", "rm", "Delete single messages."),
        _lazy("subjects", "subjects", "List the subjects that have messages.", "subj"),
        _lazy("gaps", "subjects", "List the sequences that have no message any more."),
        _lazy("graph", "graph", "Draw a stream's activity."),
        _lazy("seal", "edit", "Let nothing in or out any more."),
        _lazy("copy", "add", "Make a stream like another one.", "cp"),
        _lazy("backup", "backup", "Save a stream to a directory.", "snapshot"),
        _lazy("restore", "backup", "Make a stream of a backup."),
    ]
)


@click.group(cls=NounGroup, lazy=_COMMANDS)
@common_options
def stream(_settings: Settings) -> None:
    """
    Manage streams, which store messages.

    They were called Message Sets; who types "jsm ms" still reads of those.
    """
