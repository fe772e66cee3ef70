"""``jsm kv del``, ``purge`` and ``compact``: delete keys and buckets."""

from __future__ import annotations

from datetime import timedelta

import click

from ...errors import KeyNotFoundError
from ..buckets import delete_bucket, find_bucket, force_option
from ..completion import complete_key
from ..output import counted, emit, say
from ..prompts import Asker
from ..sanitize import readable, visible
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import DURATION, TIMEOUT
from .entries import KV, bucket_argument, key_argument


@click.command("del")
@bucket_argument
@click.argument("keys", nargs=-1, metavar="[KEY]...", shell_complete=complete_key)
@force_option
@click.option("--ignore-missing", is_flag=True, help="Ignore what does not exist.")
@common_options
def delete(
    settings: Settings, bucket: str, keys: tuple[str, ...], force: bool, ignore_missing: bool
) -> None:
    """
    Delete each KEY, or without a KEY the whole bucket.

    A deleted key keeps its history, and a marker; 'jsm kv purge' and 'jsm kv compact' remove them.
    """
    if not keys:
        delete_bucket(settings, KV, bucket, force=force, ignore_missing=ignore_missing)
        return
    ask = Asker(settings)
    with settings.jetstream() as js:
        store = find_bucket(KV, js, bucket)
        found, missing = [], []
        for key in dict.fromkeys(keys):
            try:
                store.get(key)
                found.append(key)
            except KeyNotFoundError:
                missing.append(key)
        if missing and not ignore_missing:
            listed = ", ".join(readable(key) for key in missing)
            raise CommandError(f"bucket {bucket} has no key {listed}", ExitStatus.NOT_FOUND)
        listed = ", ".join(f"{bucket} > {readable(key)}" for key in found)
        if found:
            ask.confirm(f"Delete {listed}?", force=force)
        for key in found:
            store.delete(key)
    document = {"bucket": bucket, "deleted": [visible(key) for key in found]}
    emit(settings, document, lambda: say(settings, f"Deleted {listed or 'nothing'}"))


@click.command()
@bucket_argument
@key_argument
@click.option(
    "--ttl",
    type=TIMEOUT,
    metavar="TIME",
    help="Delete the marker after TIME, at least 1s; the bucket needs --marker-ttl.",
)
@force_option
@common_options
def purge(settings: Settings, bucket: str, key: str, ttl: float | None, force: bool) -> None:
    """Delete KEY with all its revisions; only a marker of the deletion remains."""
    ask = Asker(settings)
    with settings.jetstream() as js:
        store = find_bucket(KV, js, bucket)
        ask.confirm(f"Purge {bucket} > {readable(key)} with its history?", force=force)
        store.purge(key, ttl=ttl)
    document = {"bucket": bucket, "purged": visible(key)}
    emit(settings, document, lambda: say(settings, f"Purged {bucket} > {readable(key)}"))


@click.command()
@bucket_argument
@click.option(
    "--older-than",
    type=DURATION,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="Keep the markers of keys that were deleted less than TIME ago, for clients that watch.",
)
@force_option
@common_options
def compact(settings: Settings, bucket: str, older_than: timedelta, force: bool) -> None:
    """
    Purge the history of all deleted keys, to free its space.

    The marker of a deletion is removed as well if it is older than --older-than. Values of existing
    keys stay.
    """
    ask = Asker(settings)
    with settings.jetstream() as js:
        store = find_bucket(KV, js, bucket)
        ask.confirm(f"Purge the history of deleted keys of {bucket}?", force=force)
        purged = store.purge_deletes(older_than=older_than)
    document = {"bucket": bucket, "purged": purged}
    emit(settings, document, lambda: say(settings, f"Purged {counted(purged, 'message')}"))
