"""``jsm object add``, ``ls``, ``info`` and ``watch``: buckets and what they contain."""

from __future__ import annotations

from typing import Any

import click

from ... import ObjectInfo, ObjectStoreConfig, ObjectStoreStatus
from ...net.clock import Deadline
from ..buckets import (
    BUCKET_NAME,
    bucket_document,
    bucket_options,
    chosen_bucket,
    fields_of,
    find_bucket,
    list_buckets,
    storage_option,
    write_bucket,
)
from ..completion import complete_object, complete_store
from ..long_running import reconnect_options, wait_interruptibly
from ..output import Block, emit, emit_line, size, when, yes
from ..prompts import Asker
from ..render import Table, write_table
from ..sanitize import single_line, visible
from ..settings import Settings, common_options
from .entries import OBJECTS, bucket_argument, object_document, write_object


@click.command()
@click.argument("bucket", type=BUCKET_NAME)
@bucket_options
@storage_option
@common_options
def add(settings: Settings, bucket: str, **options: Any) -> None:
    """
    Create a bucket.

    Succeeds without a change if the bucket already exists with the same config.

    \b
    Examples:
      jsm object add FILES --max-bucket-size 10GB
      jsm object add BUILDS --ttl 30d --compress
    """  # noqa: D301 - click requires the character, not the escape
    storage = options.pop("storage")
    config = ObjectStoreConfig(bucket=bucket, storage=storage, **fields_of(options))
    with settings.jetstream() as js:
        status = js.create_object_store(config).status()
    show_bucket(settings, status, f"{OBJECTS.noun} {bucket} was created")


def show_bucket(settings: Settings, status: ObjectStoreStatus, done: str = "") -> None:
    """
    Show a bucket as the result of a command.

    Args:
        settings: the settings of the command.
        status: the status of the bucket.
        done: a line of text before it.

    """

    def human() -> None:
        if done:
            settings.env.stdout.write(f"{done}\n\n")
        first = Block()
        first.add("Sealed", yes(status.sealed))
        write_bucket(settings, OBJECTS, status.stream_info, status.bucket, first, Block())

    emit(settings, _document(status), human)


def _document(status: ObjectStoreStatus) -> dict[str, Any]:
    return bucket_document(status.stream_info, status.bucket, sealed=status.sealed)


@click.command()
@click.argument(
    "bucket", required=False, metavar="[BUCKET]", type=BUCKET_NAME, shell_complete=complete_store
)
@click.argument("name", required=False, metavar="[OBJECT]", shell_complete=complete_object)
@common_options
def info(settings: Settings, bucket: str | None, name: str | None) -> None:
    """Show the config and state of a bucket, or the size, digest and metadata of OBJECT."""
    with settings.jetstream() as js:
        bucket = chosen_bucket(OBJECTS, js, bucket, Asker(settings))
        store = find_bucket(OBJECTS, js, bucket)
        if name is None:
            show_bucket(settings, store.status())
            return
        found = store.info(name)
    emit(settings, object_document(found), lambda: write_object(settings, found))


@click.command()
@click.argument(
    "bucket", required=False, metavar="[BUCKET]", type=BUCKET_NAME, shell_complete=complete_store
)
@click.option("-n", "--names", is_flag=True, help="Show only the names, one per line.")
@common_options
def ls(settings: Settings, bucket: str | None, names: bool) -> None:
    """List the buckets, or the objects of BUCKET."""
    if bucket is None:
        list_buckets(settings, OBJECTS, _document, names=names)
        return
    with settings.jetstream() as js:
        found = sorted(find_bucket(OBJECTS, js, bucket).list(), key=lambda each: each.name)
    if names:
        listed = [visible(each.name) for each in found]
        out = settings.env.stdout
        emit(settings, listed, lambda: out.writelines(f"{single_line(each)}\n" for each in listed))
        return

    def human() -> None:
        if not found:
            settings.env.stdout.write(f"No objects in bucket {bucket}\n")
            return
        rows = [[each.name, when(settings, each.mtime), _size_text(each)] for each in found]
        columns = ["Name", "Modified", "Size"]
        table = Table(title=f"Objects of {bucket}", columns=columns, rows=rows, left=2)
        write_table(table, settings.env)

    emit(settings, [object_document(each) for each in found], human)


def _size_text(info: ObjectInfo) -> str:
    return size(info.size) if info.link is None else "link"


@click.command()
@bucket_argument
@click.option("--updates", is_flag=True, help="Show only new changes, not the present objects.")
@click.option(
    "--count", "number", type=click.IntRange(1), metavar="N", help="Exit after N changes."
)
@common_options
def watch(settings: Settings, bucket: str, updates: bool, number: int | None) -> None:
    """
    Show the present objects of a bucket, and then each change until Ctrl-C.

    The watch continues after a restart of the server.
    """
    shown = 0
    with (
        settings.jetstream(**reconnect_options(settings)) as js,
        find_bucket(OBJECTS, js, bucket).watch(updates_only=updates) as watcher,
    ):
        settings.env.stderr.write(f"Watching {bucket}\n")
        settings.env.stderr.flush()
        while shown != number:
            found = wait_interruptibly(lambda left: watcher.next(timeout=left), Deadline(None))
            if settings.json:
                emit_line(settings, object_document(found))
            else:
                settings.env.stdout.write(_line(settings, found))
                settings.env.stdout.flush()
            shown += 1


def _line(settings: Settings, info: ObjectInfo) -> str:
    head = f"[{when(settings, info.mtime)}] {'DEL' if info.deleted else 'PUT'}"
    rest = "" if info.deleted else f": {_size_text(info)}"
    return f"{head} {info.bucket} > {single_line(info.name)}{rest}\n"
