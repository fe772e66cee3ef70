"""``jsm kv put``, ``create``, ``update`` and ``revert``: store values."""

from __future__ import annotations

from collections.abc import Callable

import click

from ... import KeyValue
from ..buckets import find_bucket, force_option
from ..completion import complete_key
from ..long_running import password_once
from ..messages.outgoing import body_of
from ..output import count, emit, say
from ..prompts import Asker
from ..sanitize import readable, visible
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import TIMEOUT
from .entries import KV, bucket_argument, key_argument

_value_argument = click.argument("value", required=False)


def _store(
    settings: Settings,
    bucket: str,
    key: str,
    value: str | None,
    write: Callable[[KeyValue, bytes], int],
) -> None:
    """Read the value, write it to the bucket and show the new revision."""
    password_once(settings)
    data = body_of(settings.env, value, "value")
    with settings.jetstream() as js:
        revision = write(find_bucket(KV, js, bucket), data)
    _show(settings, bucket, key, revision)


def _show(settings: Settings, bucket: str, key: str, revision: int) -> None:
    document = {"bucket": bucket, "key": visible(key), "revision": revision}
    text = f"Stored {bucket} > {readable(key)} with revision {count(revision)}"
    emit(settings, document, lambda: say(settings, text))


@click.command()
@bucket_argument
@key_argument
@_value_argument
@common_options
def put(settings: Settings, bucket: str, key: str, value: str | None) -> None:
    """
    Store VALUE for KEY, whether or not the key exists.

    Without VALUE, or when it is '-', the value is read from standard input, unchanged.

    \b
    Examples:
      jsm kv put CONFIG db.url postgres://db.example.com
      jsm kv put CONFIG logo < logo.png
    """  # noqa: D301 - click requires the character, not the escape
    _store(settings, bucket, key, value, lambda store, data: store.put(key, data))


@click.command()
@bucket_argument
@click.argument("key", required=False, metavar="KEY", shell_complete=complete_key)
@_value_argument
@click.option(
    "--ttl",
    type=TIMEOUT,
    metavar="TIME",
    help="Delete the key after TIME, at least 1s; the bucket needs --marker-ttl.",
)
@common_options
def create(
    settings: Settings, bucket: str, key: str | None, value: str | None, ttl: float | None
) -> None:
    """
    Store VALUE for KEY if the key does not exist or was deleted.

    Without VALUE, or when it is '-', the value is read from standard input. Fails with status 1 if the
    key exists. To create a bucket, use 'jsm kv add'.
    """
    if key is None:
        raise click.UsageError("missing argument 'KEY'; to create a bucket, use 'jsm kv add'")
    name = key
    _store(settings, bucket, key, value, lambda store, data: store.create(name, data, ttl=ttl))


@click.command()
@bucket_argument
@key_argument
@click.argument("value")
@click.argument("revision", type=click.IntRange(0))
@common_options
def update(settings: Settings, bucket: str, key: str, value: str, revision: int) -> None:
    """
    Store VALUE for KEY if REVISION is its last revision; 0 means that the key does not exist.

    When VALUE is '-', it is read from standard input. Fails with status 1 if the key has another revision.
    """
    _store(settings, bucket, key, value, lambda store, data: store.update(key, data, revision))


@click.command()
@bucket_argument
@key_argument
@click.argument("revision", type=click.IntRange(1))
@force_option
@common_options
def revert(settings: Settings, bucket: str, key: str, revision: int, force: bool) -> None:
    """
    Store the value of an older REVISION of KEY again, as a new revision.

    The bucket must keep a history. A change of the key by another client in between is not overwritten.
    """
    ask = Asker(settings)
    with settings.jetstream() as js:
        store = find_bucket(KV, js, bucket)
        stored = store.history(key)
        found = next((each for each in stored if each.revision == revision), None)
        if found is None or found.operation.name != "PUT":
            raise CommandError(
                f"bucket {bucket} has no value of key {readable(key)} with revision {revision}",
                ExitStatus.NOT_FOUND,
                hint="list the revisions with 'jsm kv history'",
            )
        ask.confirm(f"Revert {bucket} > {readable(key)} to revision {revision}?", force=force)
        last = stored[-1].revision
        _show(settings, bucket, key, store.update(key, found.value, last))
