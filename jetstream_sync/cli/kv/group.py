"""``jsm kv``: the command group for key-value buckets; each command is imported when it is used."""

from __future__ import annotations

import click

from ..groups import LazyCommand, NounGroup
from ..settings import Settings, common_options


def _lazy(name: str, module: str, text: str, *aliases: str) -> tuple[str, LazyCommand]:
    target = f"{__package__}.{module}:{name if name != 'del' else 'delete'}"
    return name, LazyCommand(target=target, help=text, aliases=aliases)


_COMMANDS = dict(
    [
        _lazy("add", "bucket", "Create a bucket.", "new"),
        _lazy("edit", "bucket", "Change the config of a bucket."),
        _lazy("ls", "bucket", "List the buckets, or the keys of a bucket.", "list"),
        _lazy("info", "bucket", "Show the config and state of a bucket.", "status", "view"),
        _lazy("get", "read", "Read the value of a key."),
        _lazy("put", "write", "Store the value of a key."),
        _lazy("create", "write", "Store the value of a key that does not exist."),
        _lazy("update", "write", "Store the value of a key whose revision is known."),
        _lazy("revert", "write", "Store an older value of a key again."),
        _lazy("del", "remove", "Delete keys, or a bucket.", "rm", "delete"),
        _lazy("purge", "remove", "Delete a key with its history."),
        _lazy("compact", "remove", "Purge deleted keys to free their space."),
        _lazy("history", "read", "Show the stored revisions of a key."),
        _lazy("keys", "read", "List the keys of a bucket."),
        _lazy("watch", "read", "Show changes of keys as they happen."),
    ]
)


@click.group(cls=NounGroup, lazy=_COMMANDS)
@common_options
def kv(_settings: Settings) -> None:
    """
    Manage key-value buckets, their keys and values.

    As in the nats command, "jsm kv add" creates a bucket and "jsm kv create" creates a key.
    """
