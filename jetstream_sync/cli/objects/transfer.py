"""``jsm object put`` and ``get``: store files as objects, and write objects to files."""

from __future__ import annotations

import codecs
import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from ... import ObjectInfo, ObjectMeta, ObjectStore
from ...errors import ObjectNotFoundError
from ..buckets import find_bucket, force_option
from ..config import labels_of
from ..long_running import failover, failover_options, password_once, read_interruptibly
from ..messages.outgoing import header_pairs
from ..messages.view import write_bytes
from ..output import emit, note, say, size
from ..progress import show_progress
from ..prompts import Asker
from ..sanitize import readable, single_line, visible
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import FILE
from .entries import OBJECTS, bucket_argument, object_argument, object_document, write_object

#: The argument that means standard input or standard output.
_STANDARD: Final = "-"
_BUFFER_SIZE: Final = 128 * 1024

#: The callback of a transfer: bytes done, bytes in total if known.
_ShowProgress = Callable[[int, "int | None"], None]

_progress_option = click.option(
    "--progress/--no-progress", default=True, help="Show a progress bar on a terminal."
)


@click.command()
@bucket_argument
@click.argument("file", required=False, type=FILE)
@click.option("--name", metavar="NAME", help="Name of the object.  [default: FILE]")
@click.option("--description", metavar="TEXT", help="Description of the object.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="K:V",
    callback=header_pairs,
    help="Add a header; repeatable.",
)
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata entry; repeatable.")
@_progress_option
@force_option
@common_options
def put(
    settings: Settings,
    *,
    bucket: str,
    file: str | None,
    name: str | None,
    progress: bool,
    force: bool,
    **options: Any,
) -> None:
    """
    Store FILE as an object.

    Without FILE, or when it is '-', standard input is stored, and --name is required. The object
    appears when all data is stored, and replaces an object of the same name at once. An interrupted
    command leaves nothing behind.

    \b
    Examples:
      jsm object put FILES report.pdf
      tar cz src | jsm object put FILES --name src.tar.gz
    """  # noqa: D301 - click requires the character, not the escape
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
        metadata=labels_of(options["metadata"]) or None,
    )
    buffered = password_once(settings)
    connect_options = failover_options(settings)
    with _source(settings, path) as opened, settings.jetstream(**connect_options) as js:
        store = find_bucket(OBJECTS, js, bucket)
        _confirm_replacement(settings, store, name, force=force)
        data = opened if path is not None else read_interruptibly(opened, buffered=buffered)
        title = f"Storing {single_line(name)}"

        def store_it() -> ObjectInfo:
            if file_size is not None and path is not None:
                opened.seek(0)
            with _shown_progress(settings, title, file_size, on=progress) as show:
                return store.put(meta, data, progress=show)

        file_size = _size_of(opened)
        # Other input can be read only once.
        repeats = path is not None and file_size is not None
        info = failover(store_it) if repeats else store_it()
    emit(settings, object_document(info), lambda: write_object(settings, info))


@contextlib.contextmanager
def _source(settings: Settings, path: str | None) -> Iterator[BinaryIO]:
    """Open the file to read; ``None`` is standard input."""
    if path is None:
        stdin = settings.env.stdin
        if stdin.isatty():
            note(settings, "reading the object from standard input; end it with Ctrl-D")
        yield stdin
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    with file:
        yield file


def _size_of(file: BinaryIO) -> int | None:
    """Return the size of a regular file; ``None`` for other streams."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _confirm_replacement(settings: Settings, store: ObjectStore, name: str, *, force: bool) -> None:
    if force:
        return
    try:
        found = store.info(name)
    except ObjectNotFoundError:
        return
    text = f"Replace {found.bucket} > {single_line(name)} with {size(found.size)}?"
    Asker(settings).confirm(text, force=force)


@contextlib.contextmanager
def _shown_progress(
    settings: Settings, title: str, total: int | None, *, on: bool
) -> Iterator[_ShowProgress]:
    """Show a progress bar on a terminal, and yield the callback of a transfer."""
    quiet = not on or settings.json or not settings.env.stderr.isatty()
    with show_progress(settings.env, title, total, in_bytes=True, quiet=quiet) as progress:
        yield lambda done, _total: progress.show(done)


@click.command()
@bucket_argument
@object_argument
@click.option(
    "-O",
    "--output",
    type=FILE,
    metavar="FILE",
    help="File to write; '-' for standard output.  [default: the last part of OBJECT]",
)
@_progress_option
@force_option
@common_options
def get(
    settings: Settings, *, bucket: str, name: str, output: str | None, progress: bool, force: bool
) -> None:
    """
    Write OBJECT to a file in the current directory, or to --output.

    The file appears when all data was received and matches its digest. An interrupted command leaves
    nothing behind, and an existing file unchanged. A link is followed.

    \b
    Examples:
      jsm object get FILES report.pdf
      jsm object get FILES src.tar.gz -O - | tar xz
    """  # noqa: D301 - click requires the character, not the escape
    if output == _STANDARD and settings.json:
        raise click.UsageError("--output - and --json exclude each other")
    target = None if output == _STANDARD else _target(name, output)
    with settings.jetstream() as js:
        store = find_bucket(OBJECTS, js, bucket)
        info = store.info(name)
        if info.link is not None and info.link.name is None:
            raise CommandError(
                f"{bucket} > {single_line(name)} is a link to bucket {info.link.bucket}",
                ExitStatus.USAGE,
                hint=f"list its objects with 'jsm object ls {info.link.bucket}'",
            )
        if target is not None and target.is_file() and not force:
            Asker(settings).confirm(f"Replace file {single_line(str(target))}?", force=force)
        total = None if info.link is not None else info.size
        title = f"Reading {single_line(name)}"
        with _shown_progress(settings, title, total, on=progress) as show:
            if target is None:
                info = _copy(store, name, _stdout_writer(settings), show)
            else:
                info = store.get_file(name, target, progress=show)
    if target is None:
        return
    text = f"Wrote {size(info.size)} to {single_line(str(target))}"
    document = {**object_document(info), "file": visible(str(target))}
    emit(settings, document, lambda: say(settings, text))


def _target(name: str, output: str | None) -> Path:
    """Return the path of the file to write."""
    base = posixpath.basename(name) if output is None else output
    if output is None and (base in ("", ".", "..") or "\0" in base):
        raise CommandError(
            f"object name {single_line(name)!r} has no file name",
            ExitStatus.USAGE,
            hint="name the file with --output",
        )
    # A link is followed, so that the file it points to is replaced, not the link.
    path = Path(os.path.realpath(base))
    if path.is_dir():
        raise CommandError(
            f"{single_line(base)}: is a directory", ExitStatus.USAGE, hint="name a file in it"
        )
    if not path.parent.is_dir():
        raise CommandError(
            f"{single_line(str(path.parent))}: the directory does not exist", ExitStatus.USAGE
        )
    return path


def _copy(
    store: ObjectStore, name: str, write: Callable[[bytes], object], show: _ShowProgress
) -> ObjectInfo:
    """Write the data of an object in parts; return its info."""
    done = 0
    with store.open(name) as source:
        info: ObjectInfo = source.info
        while data := source.read(_BUFFER_SIZE):
            write(data)
            done += len(data)
            show(done, None)
    return info


def _stdout_writer(settings: Settings) -> Callable[[bytes], object]:
    """Return a function that writes data to ``stdout``: unchanged, on a terminal as text."""
    out = settings.env.stdout
    if not out.isatty():
        return lambda data: write_bytes(settings.env, data)
    # A character may be split between two parts.
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return lambda data: out.write(readable(decoder.decode(data)))


def _unreadable(path: str, error: Exception) -> CommandError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CommandError(f"{single_line(path)}: {reason}", ExitStatus.USAGE)
