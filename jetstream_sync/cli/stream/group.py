"""``jsm stream``: the command group for streams; each command is imported when it is used."""

from __future__ import annotations

import click

from ..groups import LazyCommand, NounGroup
from ..settings import Settings, common_options


def _lazy(name: str, module: str, text: str, *aliases: str) -> tuple[str, LazyCommand]:
    target = f"jetstream_sync.cli.{module}:{name.replace('-', '_')}"
    return name, LazyCommand(target=target, help=text, aliases=aliases)


_COMMANDS = dict(
    [
        _lazy("add", "stream.add", "Create a stream.", "create", "new"),
        _lazy("ls", "stream.ls", "List streams.", "list", "l"),
        _lazy("info", "stream.show", "Show the config and state of a stream.", "nfo", "i"),
        _lazy("state", "stream.show", "Show the state of a stream."),
        _lazy("edit", "stream.add", "Edit the config of a stream.", "update"),
        _lazy(
            "rm", "stream.rm", "Delete streams with their messages and consumers.", "delete", "del"
        ),
        _lazy("purge", "stream.rm", "Delete all or some messages of a stream."),
        _lazy("report", "stream.ls", "Compare the streams of the account.", "rep"),
        _lazy("find", "stream.ls", "Find streams by config and state.", "query"),
        _lazy("view", "stream.view", "Read the messages of a stream.", "v"),
        _lazy("get", "stream.view", "Read one message."),
        _lazy("rmm", "stream.rm", "Delete single messages."),
        _lazy(
            "subjects",
            "stream.show",
            "List the subjects of a stream with message counts.",
            "subj",
        ),
        _lazy("gaps", "stream.show", "List the deleted sequences of a stream."),
        _lazy("graph", "stream.graph", "Draw the activity of a stream."),
        _lazy("seal", "stream.add", "Make a stream read-only, permanently."),
        _lazy("copy", "stream.add", "Create a stream with the config of another one.", "cp"),
        _lazy("backup", "backup", "Save a stream to a directory.", "snapshot"),
        _lazy("restore", "backup", "Restore a stream from a backup."),
    ]
)


@click.group(cls=NounGroup, lazy=_COMMANDS)
@common_options
def stream(_settings: Settings) -> None:
    """
    Manage streams, which store messages.

    "jsm ms" is an alias.
    """
