"""The parameters, documents and lines of keys and entries, for all commands of ``jsm kv``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from ... import KeyValue, KeyValueEntry
from ...durations import time_from_ns, time_to_text
from ..buckets import BUCKET_NAME, BucketKind
from ..completion import complete_bucket, complete_key
from ..messages.view import body_fields, header_fields
from ..output import emit, when
from ..sanitize import readable, single_line, visible
from ..settings import Settings
from ..values import Decorator

KV: Final = BucketKind[KeyValue](
    noun="Key-Value Bucket",
    open=lambda js, name: js.key_value(name),
    names=lambda js: js.key_value_names(),
    list=lambda js: js.list_key_values(),
    delete=lambda js, name: js.delete_key_value(name),
    info=lambda status: status.info,
)

#: The maximum length of a value in a table.
_MAX_SHOWN: Final = 40

bucket_argument: Decorator = click.argument(
    "bucket", type=BUCKET_NAME, shell_complete=complete_bucket
)
key_argument: Decorator = click.argument("key", shell_complete=complete_key)


def entry_document(entry: KeyValueEntry, *, meta_only: bool = False) -> dict[str, Any]:
    """
    Return the JSON document of an entry, the same for all commands.

    Args:
        entry: the entry.
        meta_only: whether the entry was read without its value.

    """
    document: dict[str, Any] = {
        "bucket": entry.bucket,
        "key": visible(entry.key),
        "revision": entry.revision,
        "operation": operation_text(entry),
        "created": time_to_text(time_from_ns(entry.created_ns)),
        **header_fields(entry.headers),
    }
    if not meta_only:
        document.update(body_fields(entry.value))
    return document


def operation_text(entry: KeyValueEntry) -> str:
    """Return ``PUT``, ``DELETE`` or ``PURGE``."""
    return entry.operation.name


def entry_line(settings: Settings, entry: KeyValueEntry) -> str:
    """Return a change of a key as a line of text."""
    value = f": {readable(entry.value)}" if operation_text(entry) == "PUT" else ""
    return (
        f"[{when(settings, entry.created)}] {operation_text(entry)} "
        f"{entry.bucket} > {readable(entry.key)}{value}\n"
    )


def shortened(entry: KeyValueEntry) -> str:
    """Return the start of a value as text, for a table."""
    text = readable(entry.value[: 4 * _MAX_SHOWN])
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def list_keys(settings: Settings, store: KeyValue, patterns: Sequence[str]) -> None:
    """Show the keys of a bucket that match a pattern, sorted; without patterns all keys."""
    found = [visible(each) for each in store.keys(*patterns)]
    out = settings.env.stdout
    emit(settings, found, lambda: out.writelines(f"{single_line(each)}\n" for each in found))
