"""``jsm kv``: buckets, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ... import KeyValueConfig, KeyValueStatus
from ...durations import counted, duration_to_ns, time_from_ns, time_to_text
from ..messages.outgoing import body_of
from ..messages.view import body_fields, header_fields, write_bytes
from ..shared.env import readable, visible
from ..shared.names import bucket_names, complete_bucket
from ..shared.output import count, emit_names, emit_text, to_json, when
from ..shared.render import Field, Table, show_rows
from ..shared.settings import Settings, command
from ..shared.status import AbsentError
from ..shared.values import DURATION, FROM_1, TIMEOUT, Decorator, allow_one, force_option, option
from .buckets import BucketKind

if TYPE_CHECKING:
    from ... import KeyValue, KeyValueEntry


def _own_document(status: KeyValueStatus) -> dict[str, Any]:
    size_limit = status.info.config.max_msg_size
    return {
        "values": status.values,
        "history": status.history,
        "max_value_size": -1 if size_limit is None else size_limit,
        "limit_marker_ttl": duration_to_ns(status.limit_marker_ttl or timedelta()),
    }


KV: Final[BucketKind[KeyValue]] = BucketKind(
    noun="Key-Value Bucket",
    config=KeyValueConfig,
    open=lambda js, name: js.key_value(name),
    names=bucket_names,
    list=lambda js: js.list_key_values(allow_incomplete=True),
    info=lambda status: status.info,
    own_document=_own_document,
    state=(Field("Values", "values"),),
    item="key",
    look_up=lambda store, key: store.get(key, consistent=True),
    complete=complete_bucket,
)

#: The maximum length of a value in a table.
_MAX_SHOWN: Final = 40

bucket_argument: Decorator = KV.argument()
key_argument: Decorator = click.argument("key")


def entry_document(entry: KeyValueEntry) -> dict[str, Any]:
    """Return the JSON document of an entry."""
    return {
        "bucket": entry.bucket,
        "key": visible(entry.key),
        "revision": entry.revision,
        "operation": entry.operation.name,
        "created": time_to_text(time_from_ns(entry.created_ns)),
        **header_fields(entry.headers),
        **body_fields(entry.value),
    }


def entry_line(settings: Settings, entry: KeyValueEntry) -> str:
    """Return a change of a key as a line of text."""
    value = f": {readable(entry.value)}" if entry.operation.name == "PUT" else ""
    return (
        f"[{when(settings, entry.created)}] {entry.operation.name} "
        f"{entry.bucket} > {readable(entry.key)}{value}"
    )


def _shortened(entry: KeyValueEntry) -> str:
    """Return the start of a value as text, for a table."""
    text = readable(entry.value[: 4 * _MAX_SHOWN])
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


# --- buckets ------------------------------------------------------------------------------------

add: click.Command = KV.add_command(
    """
    Create a bucket.

    Succeeds without a change if the bucket already exists with the same config. To create a key, use
    'jsm kv create'.
    """
)
edit: click.Command = KV.edit_command(
    """
    Change the config of a bucket; each option changes one field, the others stay.

    A lower --history, --ttl or --max-bucket-size may delete values.
    """
)


@command()
@KV.argument(required=False)
def info(settings: Settings, bucket: str | None) -> None:
    """Show the config and state of a bucket."""
    with KV.connected(settings, bucket) as store:
        status = store.status()
    KV.show(settings, status)


@command()
@KV.argument(required=False)
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@option("-n, --names", "Show only the names of the buckets.")
@option("-v, --verbose", "Show the revision, the time and the value of each key.")
@option("--updates", "Show the keys that change from now on, until Ctrl-C.")
def ls(
    settings: Settings,
    *,
    bucket: str | None,
    patterns: tuple[str, ...],
    names: bool,
    verbose: bool,
    updates: bool,
) -> None:
    """
    List the buckets, or the keys of BUCKET in alphabetical order.

    A PATTERN selects keys, with '*' for one token and '>' for all that follow: 'db.*', 'orders.>'.
    """
    if bucket is None:
        if verbose or updates:
            raise click.UsageError(f"{'--verbose' if verbose else '--updates'} needs a BUCKET")
        KV.show_all(settings, names=names)
        return
    if updates:
        document: Any = entry_document if verbose else lambda entry: {"key": visible(entry.key)}
        KV.show_changes(
            settings,
            bucket,
            None,
            lambda store: store.watch(patterns or ">", updates_only=True),
            document,
            lambda entry: entry_line(settings, entry) if verbose else readable(entry.key),
        )
        return
    with KV.connected(settings, bucket) as store:
        if not verbose:
            emit_names(settings, [visible(item) for item in store.keys(*patterns)])
            return
        found = _entries(store, patterns)
    table = Table(_KEYS, f"Keys of {bucket}", f"No keys in bucket {bucket}")
    show_rows(settings, found, table, item=entry_document)


_KEYS: Final = (
    Field("Key", lambda entry: readable(entry.key)),
    Field("Created", "created", drop=1),
    Field("Revision", "revision"),
    Field("Value", _shortened),
)


# --- reading ------------------------------------------------------------------------------------


@command()
@bucket_argument
@key_argument
@option("--revision", "Read this revision of the key.", FROM_1)
@option("-r, --raw", "Write the value unchanged, also to a terminal.")
def get(settings: Settings, bucket: str, key: str, revision: int | None, raw: bool) -> None:
    """
    Read the value of KEY, or the values of all keys that match a pattern.

    The value is written unchanged and without a line break at the end. A terminal shows the revision
    and the value as text. A KEY with '*' or '>' is a pattern, as for 'jsm kv ls': the keys that match are a
    table, or with --raw their values with a line break after each.
    """
    allow_one({"--raw": raw, "--json": settings.json})
    pattern = not {"*", ">"}.isdisjoint(key.split("."))
    if pattern and revision is not None:
        raise click.UsageError("--revision needs a single key")
    with KV.connected(settings, bucket) as store:
        if pattern:
            _get_many(settings, store, bucket, key, raw=raw)
            return
        entry = store.get(key, revision=revision)
    out = settings.env.stdout
    if settings.json:
        out.write(to_json(entry_document(entry)))
    elif raw or not out.isatty():
        write_bytes(settings.env, entry.value)
    else:
        moment = when(settings, entry.created)
        head = f"{bucket} > {readable(key)} revision: {count(entry.revision)} created: {moment}"
        out.write(f"{head}\n\n{readable(entry.value)}\n")


def _get_many(settings: Settings, store: KeyValue, bucket: str, pattern: str, *, raw: bool) -> None:
    found = _entries(store, (pattern,))
    if not found:
        raise AbsentError(f"bucket {bucket} has no key that matches {readable(pattern)!r}")
    if raw:
        write_bytes(settings.env, b"".join(entry.value + b"\n" for entry in found))
        return
    show_rows(settings, found, Table(_KEYS, f"Keys of {bucket}"), item=entry_document)


def _entries(store: KeyValue, patterns: tuple[str, ...]) -> list[KeyValueEntry]:
    """Return the entries of the keys that match, in alphabetical order."""
    found = store.get_many(patterns or ">")
    return [found[key] for key in sorted(found)]


@command()
@bucket_argument
@key_argument
def history(settings: Settings, bucket: str, key: str) -> None:
    """Show the stored revisions of KEY, the oldest first; a bucket keeps --history of them."""
    with KV.connected(settings, bucket) as store:
        found = store.history(key)
    if not found:
        raise AbsentError(f"key {readable(key)!r} not found in bucket {bucket}")
    title = f"History of {bucket} > {readable(key)}"
    show_rows(settings, found, Table(_HISTORY, title), item=entry_document)


_HISTORY: Final = (
    Field("Revision", "revision", right=False),
    Field("Operation", "operation.name"),
    Field("Created", "created", drop=1),
    Field("Length", lambda entry: len(entry.value), drop=2),
    Field("Value", _shortened),
)


@command()
@bucket_argument
@click.argument("patterns", nargs=-1, metavar="[KEY]...")
@option("--history", "Show all stored revisions of each key first.")
@option("--deletes/--no-deletes", "Show deleted keys.", default=True)
@option("--updates", "Show only new changes, not the present values.")
@option("--revision SEQ", "Start at this revision.", FROM_1)
@option("--count N", "Exit after N changes.", FROM_1, to="number")
def watch(
    settings: Settings,
    *,
    bucket: str,
    patterns: tuple[str, ...],
    history: bool,
    deletes: bool,
    updates: bool,
    revision: int | None,
    number: int | None,
) -> None:
    """
    Show the present values of keys, and then each change until Ctrl-C.

    A KEY may be a pattern, as for 'jsm kv ls'; without any, all keys are shown. The watch continues
    after a restart of the server.
    """
    allow_one({"--history": history, "--updates": updates, "--revision": revision})
    KV.show_changes(
        settings,
        bucket,
        number,
        lambda store: store.watch(
            patterns or ">",
            history=history,
            ignore_deletes=not deletes,
            updates_only=updates,
            resume_from_revision=revision,
        ),
        entry_document,
        lambda entry: entry_line(settings, entry),
    )


# --- writing ------------------------------------------------------------------------------------

_value_argument = click.argument("value", required=False)


def _store(
    settings: Settings,
    bucket: str,
    key: str,
    value: str | None,
    write: Callable[[KeyValue, bytes], int],
) -> None:
    """Read the value, write it to the bucket and show the new revision."""
    data = body_of(settings.env, value, "value")
    with KV.connected(settings, bucket) as store:
        revision = write(store, data)
    _show(settings, bucket, key, revision)


def _show(settings: Settings, bucket: str, key: str, revision: int) -> None:
    document = {"bucket": bucket, "key": visible(key), "revision": revision}
    text = f"Stored {bucket} > {readable(key)} with revision {count(revision)}"
    emit_text(settings, document, text)


@command()
@bucket_argument
@key_argument
@_value_argument
def put(settings: Settings, bucket: str, key: str, value: str | None) -> None:
    """
    Store VALUE for KEY, whether or not the key exists.

    Without VALUE, or when it is '-', the value is read from standard input, unchanged.
    """
    _store(settings, bucket, key, value, lambda store, data: store.put(key, data))


@command()
@bucket_argument
@click.argument("key", required=False, metavar="KEY")
@_value_argument
@option("--ttl TIME", "Delete the key after TIME; the bucket needs --marker-ttl.", TIMEOUT)
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


@command()
@bucket_argument
@key_argument
@click.argument("value")
@click.argument("revision", type=click.IntRange(0))
def update(settings: Settings, bucket: str, key: str, value: str, revision: int) -> None:
    """
    Store VALUE for KEY if REVISION is its last revision; 0 means that the key does not exist.

    When VALUE is '-', it is read from standard input. Fails with status 1 if the key has another revision.
    """
    _store(settings, bucket, key, value, lambda store, data: store.update(key, data, revision))


@command()
@bucket_argument
@key_argument
@click.argument("revision", type=click.IntRange(1))
@force_option
def revert(settings: Settings, bucket: str, key: str, revision: int, force: bool) -> None:
    """
    Store the value of an older REVISION of KEY again, as a new revision.

    The bucket must keep a history. A change of the key by another client in between is not overwritten.
    """
    with KV.connected(settings, bucket) as store:
        stored = store.history(key)
        found = next((item for item in stored if item.revision == revision), None)
        if found is None or found.operation.name != "PUT":
            raise AbsentError(
                f"bucket {bucket} has no value of key {readable(key)} with revision {revision}",
                hint="list the revisions with 'jsm kv history'",
            )
        settings.ask().confirm(
            f"Revert {bucket} > {readable(key)} to revision {revision}?", force=force
        )
        last = stored[-1].revision
        _show(settings, bucket, key, store.update(key, found.value, last))


# --- deleting -----------------------------------------------------------------------------------


delete: click.Command = KV.delete_command(
    """
    Delete each KEY, or without a KEY the whole bucket.

    A deleted key keeps its history, and a marker; 'jsm kv purge' and 'jsm kv compact' remove them.
    """
)


@command()
@bucket_argument
@key_argument
@option(
    "--ttl TIME",
    "Delete the marker after TIME, at least 1s; the bucket needs --marker-ttl.",
    TIMEOUT,
)
@force_option
def purge(settings: Settings, bucket: str, key: str, ttl: float | None, force: bool) -> None:
    """Delete KEY with all its revisions; only a marker of the deletion remains."""
    with KV.connected(settings, bucket) as store:
        settings.ask().confirm(f"Purge {bucket} > {readable(key)} with its history?", force=force)
        store.purge(key, ttl=ttl)
    document = {"bucket": bucket, "purged": visible(key)}
    emit_text(settings, document, f"Purged {bucket} > {readable(key)}")


@command()
@bucket_argument
@option(
    "--older-than TIME",
    "Keep the markers of keys that were deleted less than TIME ago, for clients that watch.",
    DURATION,
    default="30m",
)
@force_option
def compact(settings: Settings, bucket: str, older_than: timedelta, force: bool) -> None:
    """
    Purge the history of all deleted keys, to free its space.

    The marker of a deletion is removed as well if it is older than --older-than. Values of existing
    keys stay.
    """
    with KV.connected(settings, bucket) as store:
        settings.ask().confirm(f"Purge the history of deleted keys of {bucket}?", force=force)
        purged = store.purge_deletes(older_than=older_than)
    document = {"bucket": bucket, "purged": purged}
    emit_text(settings, document, f"Purged {counted(purged, 'message')}")
