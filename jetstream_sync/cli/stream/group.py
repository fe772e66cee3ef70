"""``jsm stream``: the tree of the commands for streams, which are imported when they are used."""

from __future__ import annotations

import click

from ..groups import Later, NounGroup
from ..settings import Settings, common_options

__all__ = ["stream"]


def _later(name: str, module: str, text: str, *aliases: str) -> tuple[str, Later]:
    target = f"{__package__}.{module}:{name.replace('-', '_')}"
    return name, Later(target=target, help=text, aliases=aliases)


_COMMANDS = dict(
    [
        _later("add", "add", "Make a stream.", "create", "new"),
        _later("ls", "ls", "List streams.", "list", "l"),
        _later("info", "info", "Show a stream's config and state.", "nfo", "i"),
        _later("state", "info", "Show what a stream holds."),
        _later("edit", "edit", "Change a stream's config.", "update"),
        _later("rm", "rm", "Delete streams with all that is in them.", "delete", "del"),
        _later("purge", "rm", "Delete messages, all or some."),
        _later("report", "report", "Compare the streams of the account.", "rep"),
        _later("find", "find", "Find streams by what they are and hold.", "query"),
        _later("view", "view", "Read a stream's messages.", "v"),
        _later("get", "view", "Read one message."),
        _later("rmm", "rm", "Delete single messages."),
        _later("subjects", "subjects", "List the subjects that have messages.", "subj"),
        _later("gaps", "subjects", "List the sequences that have no message any more."),
        _later("graph", "graph", "Draw a stream's activity."),
        _later("seal", "edit", "Let nothing in or out any more."),
        _later("copy", "add", "Make a stream like another one.", "cp"),
        _later("backup", "backup", "Save a stream to a directory.", "snapshot"),
        _later("restore", "backup", "Make a stream of a backup."),
    ]
)


@click.group(cls=NounGroup, later=_COMMANDS)
@common_options
def stream(_settings: Settings) -> None:
    """
    Manage streams, which store messages.

    They were called Message Sets; who types "jsm ms" still reads of those.
    """
