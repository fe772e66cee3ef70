"""``jsm object``: buckets, objects and their transfer from and to files."""

from __future__ import annotations

import base64
import contextlib
import os
import posixpath
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from ... import ObjectInfo, ObjectMeta, ObjectStore, ObjectStoreConfig, errors
from ...codec import encode
from ...durations import counted
from ...exit_status import ExitStatus
from ..messages.outgoing import header_option
from ..messages.view import write_bytes
from ..shared.config import PAIR
from ..shared.env import single_line, visible
from ..shared.long_running import failover, read_interruptibly
from ..shared.names import complete_store
from ..shared.output import count, emit_names, emit_text, size, when
from ..shared.render import Block, Field, Table, show_blocks, show_progress, show_rows
from ..shared.settings import Settings, command
from ..shared.status import CommandError, file_errors
from ..shared.values import DURATION, FILE, FROM_1, Decorator, force_option, names_option, option
from .buckets import BucketKind, time_text

OBJECTS: Final[BucketKind[ObjectStore]] = BucketKind(
    noun="Object Store Bucket",
    config=ObjectStoreConfig,
    open=lambda js, name: js.object_store(name),
    names=lambda js: js.object_store_names(),
    list=lambda js: js.list_object_stores(allow_incomplete=True),
    info=lambda status: status.stream_info,
    own_document=lambda status: {"sealed": status.sealed},
    state=(Field("Sealed", "sealed", if_set=True),),
    item="object",
    look_up=lambda store, name: store.info(name),
    complete=complete_store,
)

bucket_argument: Decorator = OBJECTS.argument()
object_argument: Decorator = click.argument("name", metavar="OBJECT")


def object_document(info: ObjectInfo) -> dict[str, Any]:
    """Return the JSON document of an object: its info as it is stored, and the time of the change."""
    document: dict[str, Any] = encode(info)
    document["mtime"] = time_text(info.mtime)
    return document


def show_object(settings: Settings, info: ObjectInfo) -> None:
    """Show the info of an object."""
    heading = f"Information for object {info.bucket} > {single_line(info.name)}"
    show_blocks(settings, object_document(info), Block("", _OBJECT, info), heading=heading)


def _digest_text(digest: str | None) -> str:
    """Return a digest with its bytes as hexadecimal digits, as ``sha256sum`` shows them."""
    algorithm, _, encoded = (digest or "-").partition("=")
    try:
        data = base64.urlsafe_b64decode(encoded.rstrip("=") + "==")
    except ValueError:
        return digest or "-"
    return f"{algorithm} {data.hex()}".rstrip()


def _link_text(info: ObjectInfo) -> str | None:
    if info.link is None:
        return None
    return info.link.bucket + ("" if info.link.name is None else f" > {info.link.name}")


def _if_data(value: Callable[[ObjectInfo], Any]) -> Callable[[ObjectInfo], Any]:
    """Return a function that returns a value of an object, and ``None`` of a link."""
    return lambda info: None if info.is_link else value(info)


_OBJECT: Final = (
    Field("Description", "description"),
    Field("Link", _link_text),
    Field("Size", _if_data(lambda info: f"{size(info.size)} ({count(info.size)} bytes)")),
    Field("Chunks", _if_data(lambda info: info.chunks)),
    Field("Digest", _if_data(lambda info: _digest_text(info.digest))),
    Field("Deleted", "deleted", if_set=True),
    Field("Modified", "mtime"),
    Field(
        "Header",
        lambda info: [
            f"{name}: {one}" for name, values in (info.headers or {}).items() for one in values
        ],
        each=True,
    ),
    Field("Metadata", "metadata", each=True),
)

# --- buckets ------------------------------------------------------------------------------------

add: click.Command = OBJECTS.add_command(
    """
    Create a bucket.

    Succeeds without a change if the bucket already exists with the same config.
    """
)
edit: click.Command = OBJECTS.edit_command(
    """
    Change the config of a bucket; each option changes one field, the others stay.

    A lower --ttl or --max-bucket-size may delete objects.
    """
)


@command()
@OBJECTS.argument(required=False)
@click.argument("name", required=False, metavar="[OBJECT]")
def info(settings: Settings, bucket: str | None, name: str | None) -> None:
    """Show the config and state of a bucket, or the size, digest and metadata of OBJECT."""
    with OBJECTS.connected(settings, bucket) as store:
        if name is None:
            OBJECTS.show(settings, store.status())
            return
        found = store.info(name)
    show_object(settings, found)


@command()
@OBJECTS.argument(required=False)
@names_option
def ls(settings: Settings, bucket: str | None, names: bool) -> None:
    """List the buckets, or the objects of BUCKET."""
    if bucket is None:
        OBJECTS.show_all(settings, names=names)
        return
    with OBJECTS.connected(settings, bucket) as store:
        found = store.list(allow_incomplete=True)
    if names:
        emit_names(settings, [visible(item.name) for item in found])
        found.check()
        return
    if not found:
        found.check()
    table = Table(_OBJECTS, f"Objects of {bucket}", f"No objects in bucket {bucket}")
    show_rows(settings, [*found], table, item=object_document)
    found.check()


def _size_text(info: ObjectInfo) -> str:
    return size(info.size) if info.link is None else "link"


_OBJECTS: Final = (
    Field("Name", "name"),
    Field("Modified", "mtime", drop=1),
    Field("Size", _size_text, right=True),
)


@command()
@bucket_argument
@option("--updates", "Show only new changes, not the present objects.")
@option("--count N", "Exit after N changes.", FROM_1, to="number")
def watch(settings: Settings, bucket: str, updates: bool, number: int | None) -> None:
    """
    Show the present objects of a bucket, and then each change until Ctrl-C.

    The watch continues after a restart of the server.
    """
    OBJECTS.show_changes(
        settings,
        bucket,
        number,
        lambda store: store.watch(updates_only=updates),
        object_document,
        lambda found: _line(settings, found),
    )


def _line(settings: Settings, info: ObjectInfo) -> str:
    head = f"[{when(settings, info.mtime)}] {'DEL' if info.deleted else 'PUT'}"
    rest = "" if info.deleted else f": {_size_text(info)}"
    return f"{head} {info.bucket} > {single_line(info.name)}{rest}"


# --- transfer -----------------------------------------------------------------------------------

#: The argument that means standard input or standard output.
_STANDARD: Final = "-"
_BUFFER_BYTES: Final = 128 * 1024


@command()
@bucket_argument
@click.argument("file", required=False, type=FILE)
@option("--name NAME", "Name of the object.  [default: FILE]")
@option("--description TEXT", "Description of the object.")
@header_option
@option("--metadata", "Metadata entry; repeatable.", PAIR, multiple=True)
@force_option
def put(
    settings: Settings,
    *,
    bucket: str,
    file: str | None,
    name: str | None,
    force: bool,
    **options: Any,
) -> None:
    """
    Store FILE as an object.

    Without FILE, or when it is '-', standard input is stored, and --name is required. The object
    appears when all data is stored, and replaces an object of the same name at once. An interrupted
    command leaves nothing behind.
    """
    path = None if file in (None, _STANDARD) else file
    if name is None:
        if path is None:
            raise click.UsageError("--name is required for standard input")
        name = posixpath.normpath(path)
    headers: dict[str, list[str]] = {}
    for key, value in options["headers"]:
        headers.setdefault(key, []).append(value)
    meta = ObjectMeta(
        name=name,
        description=options["description"],
        headers=headers or None,
        metadata=dict(options["metadata"]) or None,
    )
    with (
        _source(settings, path) as opened,
        OBJECTS.connected(settings, bucket, reconnects="failover") as store,
    ):
        _confirm_replacement(settings, store, name, force=force)
        data = opened if path is not None else read_interruptibly(opened)
        title = f"Storing {single_line(name)}"
        # Other input can be read only once.
        repeats = path is not None and Path(path).is_file()
        total = os.fstat(opened.fileno()).st_size if repeats else None

        def store_it() -> ObjectInfo:
            if repeats:
                opened.seek(0)
            with show_progress(settings.env, title, total, in_bytes=True) as show:
                return store.put(meta, data, progress=lambda done, _: show(done))

        info = failover(store_it, settings.timeout) if repeats else store_it()
    show_object(settings, info)


@contextlib.contextmanager
def _source(settings: Settings, path: str | None) -> Iterator[BinaryIO]:
    """Open the file to read; ``None`` is standard input. An error of a read names it."""
    if path is None:
        stdin = settings.env.stdin
        if stdin.isatty():
            settings.note("reading the object from standard input; end it with Ctrl-D")
        with file_errors(_STANDARD):
            yield stdin
    else:
        with file_errors(single_line(path)), Path(path).open("rb") as file:
            yield file


def _confirm_replacement(settings: Settings, store: ObjectStore, name: str, *, force: bool) -> None:
    if force:
        return
    try:
        found = store.info(name)
    except errors.ObjectNotFoundError:
        return
    text = f"Replace {found.bucket} > {single_line(name)} with {size(found.size)}?"
    settings.ask().confirm(text, force=force)


@command()
@bucket_argument
@object_argument
@option("-O, --output FILE", "File to write, by default in this directory; - is stdout.", FILE)
@force_option
def get(settings: Settings, *, bucket: str, name: str, output: str | None, force: bool) -> None:
    """
    Write OBJECT to a file in the current directory, or to --output.

    The file appears when all data was received and matches its digest. An interrupted command leaves
    nothing behind, and an existing file unchanged. A link is followed.
    """
    if output == _STANDARD and settings.json:
        raise click.UsageError("--output - and --json exclude each other")
    if output == _STANDARD and settings.env.stdout.isatty():
        raise click.UsageError("--output - is for a pipe or a file, not for a terminal")
    target = None if output == _STANDARD else _target(name, output)
    with OBJECTS.connected(settings, bucket) as store:
        info = store.info(name)
        if info.link is not None and info.link.name is None:
            raise CommandError(
                f"{bucket} > {single_line(name)} is a link to bucket {info.link.bucket}",
                hint=f"list its objects with 'jsm object ls {info.link.bucket}'",
            )
        if target is not None and target.is_file() and not force:
            settings.ask().confirm(f"Replace file {single_line(str(target))}?", force=force)
        total = None if info.link is not None else info.size
        title = f"Reading {single_line(name)}"
        with show_progress(settings.env, title, total, in_bytes=True) as show:
            if target is None:
                _copy(settings, store, name, show)
            else:
                with file_errors(single_line(str(target)), ExitStatus.FAILED):
                    info = store.get_file(name, target, progress=lambda done, _: show(done))
    if target is None:
        return
    text = f"Wrote {size(info.size)} to {single_line(str(target))}"
    document = {**object_document(info), "file": visible(str(target))}
    emit_text(settings, document, text)


def _target(name: str, output: str | None) -> Path:
    """Return the path of the file to write."""
    base = posixpath.basename(name) if output is None else output
    if output is None and (base in ("", ".", "..") or "\0" in base):
        raise CommandError(
            f"object name {single_line(name)!r} has no file name",
            hint="name the file with --output",
        )
    path = Path(base).absolute()
    if path.is_dir():
        raise CommandError(f"{single_line(base)}: is a directory", hint="name a file in it")
    if not path.parent.is_dir():
        raise CommandError(f"{single_line(str(path.parent))}: the directory does not exist")
    return path


def _copy(settings: Settings, store: ObjectStore, name: str, show: Callable[[int], None]) -> None:
    """Write the data of an object to standard output, in parts."""
    done = 0
    with store.open(name) as source:
        while data := source.read(_BUFFER_BYTES):
            write_bytes(settings.env, data)
            done += len(data)
            show(done)


# --- changes ------------------------------------------------------------------------------------


delete: click.Command = OBJECTS.delete_command(
    """Delete each OBJECT, or without an OBJECT the whole bucket."""
)


@command()
@bucket_argument
@option(
    "--older-than TIME",
    "Keep the chunks of uploads that stored one less than TIME ago.",
    DURATION,
    default="1d",
)
@force_option
def compact(settings: Settings, bucket: str, older_than: timedelta, force: bool) -> None:
    """Delete the chunks of uploads that never ended, to free their space."""
    with OBJECTS.connected(settings, bucket) as store:
        settings.ask().confirm(f"Delete chunks without an object of {bucket}?", force=force)
        purged = store.purge_orphans(older_than=older_than)
    document = {"bucket": bucket, "purged": purged}
    emit_text(settings, document, f"Deleted {counted(purged, 'chunk')}")


@command()
@bucket_argument
@force_option
def seal(settings: Settings, bucket: str, force: bool) -> None:
    """Make a bucket read-only, permanently; objects can neither be added nor deleted."""
    with OBJECTS.connected(settings, bucket) as store:
        if not store.status().sealed:
            settings.ask().confirm(f"Seal bucket {bucket} permanently?", force=force)
            store.seal()
        status = store.status()
    OBJECTS.show(settings, status, "is sealed")
