"""``jsm kv get``, ``history``, ``keys`` and ``watch``: read values and changes."""

from __future__ import annotations

import click

from ...net.clock import Deadline
from ..buckets import find_bucket
from ..completion import complete_key
from ..long_running import reconnect_options, wait_interruptibly
from ..messages.view import write_bytes
from ..output import count, emit, emit_line, to_json, when
from ..render import Table, write_table
from ..sanitize import readable
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from .entries import (
    KV,
    bucket_argument,
    entry_document,
    entry_line,
    key_argument,
    list_keys,
    operation_text,
    shortened,
)


@click.command()
@bucket_argument
@key_argument
@click.option("--revision", type=click.IntRange(1), help="Read this revision of the key.")
@click.option("-r", "--raw", is_flag=True, help="Write the value unchanged, also to a terminal.")
@common_options
def get(settings: Settings, bucket: str, key: str, revision: int | None, raw: bool) -> None:
    """
    Read the value of KEY.

    The value is written unchanged and without a line break at the end. A terminal shows the revision
    and the value as text.
    """
    if raw and settings.json:
        raise click.UsageError("--raw and --json exclude each other")
    with settings.jetstream() as js:
        entry = find_bucket(KV, js, bucket).get(key, revision=revision)
    out = settings.env.stdout
    if settings.json:
        out.write(to_json(entry_document(entry)))
    elif raw or not out.isatty():
        write_bytes(settings.env, entry.value)
    else:
        moment = when(settings, entry.created)
        head = f"{bucket} > {readable(key)} revision: {count(entry.revision)} created: {moment}"
        out.write(f"{head}\n\n{readable(entry.value)}\n")


@click.command()
@bucket_argument
@key_argument
@common_options
def history(settings: Settings, bucket: str, key: str) -> None:
    """Show the stored revisions of KEY, the oldest first; a bucket keeps --history of them."""
    with settings.jetstream() as js:
        found = find_bucket(KV, js, bucket).history(key)
    if not found:
        raise CommandError(
            f"key {readable(key)!r} not found in bucket {bucket}", ExitStatus.NOT_FOUND
        )

    def human() -> None:
        columns = ["Revision", "Operation", "Created", "Length", "Value"]
        rows = [
            [
                count(each.revision),
                operation_text(each),
                when(settings, each.created),
                count(len(each.value)),
                shortened(each),
            ]
            for each in found
        ]
        title = f"History of {bucket} > {readable(key)}"
        write_table(Table(title=title, columns=columns, rows=rows, left=5), settings.env)

    emit(settings, [entry_document(each) for each in found], human)


@click.command()
@bucket_argument
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...", shell_complete=complete_key)
@common_options
def keys(settings: Settings, bucket: str, patterns: tuple[str, ...]) -> None:
    """
    List the keys of a bucket in alphabetical order, one per line.

    A PATTERN selects keys, with '*' for one token and '>' for all that follow: 'db.*', 'orders.>'.
    """
    with settings.jetstream() as js:
        list_keys(settings, find_bucket(KV, js, bucket), patterns)


@click.command()
@bucket_argument
@click.argument("patterns", nargs=-1, metavar="[KEY]...", shell_complete=complete_key)
@click.option("--history", is_flag=True, help="Show all stored revisions of each key first.")
@click.option("--deletes/--no-deletes", default=True, help="Show deleted keys.")
@click.option("--updates", is_flag=True, help="Show only new changes, not the present values.")
@click.option("--revision", type=click.IntRange(1), metavar="SEQ", help="Start at this revision.")
@click.option(
    "--count", "number", type=click.IntRange(1), metavar="N", help="Exit after N changes."
)
@common_options
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

    A KEY may be a pattern, as for 'jsm kv keys'; without any, all keys are shown. The watch continues
    after a restart of the server.
    """
    if sum((history, updates, revision is not None)) > 1:
        raise click.UsageError("--history, --updates and --revision exclude each other")
    shown = 0
    with (
        settings.jetstream(**reconnect_options(settings)) as js,
        find_bucket(KV, js, bucket).watch(
            patterns or ">",
            history=history,
            ignore_deletes=not deletes,
            updates_only=updates,
            resume_from_revision=revision,
        ) as watcher,
    ):
        settings.env.stderr.write(f"Watching {bucket}\n")
        settings.env.stderr.flush()
        while shown != number:
            entry = wait_interruptibly(lambda left: watcher.next(timeout=left), Deadline(None))
            if settings.json:
                emit_line(settings, entry_document(entry))
            else:
                settings.env.stdout.write(entry_line(settings, entry))
                settings.env.stdout.flush()
            shown += 1
