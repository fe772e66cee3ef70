"""``jsm object``: the command group for object stores; each command is imported when it is used."""

from __future__ import annotations

import click

from ..groups import LazyCommand, NounGroup
from ..settings import Settings, common_options


def _lazy(name: str, module: str, text: str, *aliases: str) -> tuple[str, LazyCommand]:
    target = f"{__package__}.{module}:{name if name != 'del' else 'delete'}"
    return name, LazyCommand(target=target, help=text, aliases=aliases)


_COMMANDS = dict(
    [
        _lazy("add", "bucket", "Create a bucket.", "create", "new"),
        _lazy("put", "transfer", "Store a file or standard input as an object."),
        _lazy("get", "transfer", "Write an object to a file or standard output."),
        _lazy("ls", "bucket", "List the buckets, or the objects of a bucket.", "list"),
        _lazy("info", "bucket", "Show a bucket or an object.", "status", "show", "i"),
        _lazy("del", "change", "Delete objects, or a bucket.", "rm", "delete"),
        _lazy("link", "change", "Create a link to an object or a bucket."),
        _lazy("seal", "change", "Make a bucket read-only, permanently."),
        _lazy("watch", "bucket", "Show changes of objects as they happen."),
    ]
)


@click.group("object", cls=NounGroup, lazy=_COMMANDS)
@common_options
def object_(_settings: Settings) -> None:
    """Manage object store buckets and their objects: files of any size."""
