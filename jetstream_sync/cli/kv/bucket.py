"""``jsm kv add``, ``edit``, ``ls`` and ``info``: manage buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import click

from ... import ExternalStream, KeyValueConfig, KeyValueStatus, RePublish, StreamSource
from ...durations import duration_to_ns
from ..buckets import (
    BUCKET_NAME,
    bucket_document,
    bucket_options,
    chosen_bucket,
    fields_of,
    find_bucket,
    force_option,
    list_buckets,
    storage_option,
    write_bucket,
)
from ..completion import complete_bucket
from ..fields import SOURCE, changed
from ..output import Block, count, duration, emit, limit, size, when
from ..prompts import Asker
from ..render import Table, write_table
from ..sanitize import readable
from ..settings import Settings, common_options
from ..stream.show import source_text
from ..values import DURATION, LIMITED_SIZE
from .entries import KV, bucket_argument, entry_document, list_keys, shortened

_Command = TypeVar("_Command", bound=Callable[..., object])


def _config_options(command: _Command) -> _Command:
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--history",
            type=click.IntRange(1, 64),
            default=None,
            help="Number of revisions to keep for each key, 1 to 64.",
        ),
        click.option(
            "--max-value-size",
            type=LIMITED_SIZE,
            default=None,
            help="Maximum size of a value; -1 for no limit.",
        ),
        click.option(
            "--marker-ttl",
            "--limit-marker-ttl",
            "limit_marker_ttl",
            type=DURATION,
            default=None,
            help="Allow a time to live per key, and keep the markers of expired keys this long.",
        ),
        click.option("--republish-source", metavar="SRC", help="Subjects to republish."),
        click.option("--republish-destination", metavar="DEST", help="Republish changes here."),
        click.option("--republish-headers", is_flag=True, help="Republish only the headers."),
        click.option(
            "--source",
            "sources",
            type=SOURCE,
            multiple=True,
            metavar="BUCKET",
            help="Bucket to copy entries from; repeatable.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return bucket_options(command)


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of `_config_options`, and return the fields of `KeyValueConfig` they set."""
    fields = fields_of(options)
    for name in ("history", "max_value_size", "limit_marker_ttl"):
        if (value := options.pop(name)) is not None:
            fields[name] = value
    source, destination = options.pop("republish_source"), options.pop("republish_destination")
    headers_only = options.pop("republish_headers")
    if destination:
        fields["republish"] = RePublish(
            src=source or None, dest=destination, headers_only=headers_only or None
        )
    elif source or headers_only:
        raise click.UsageError(
            "--republish-source and --republish-headers need --republish-destination"
        )
    if sources := options.pop("sources"):
        fields["sources"] = list(sources)
    return fields


@click.command()
@click.argument("bucket", type=BUCKET_NAME)
@_config_options
@storage_option
@click.option("--mirror", type=SOURCE, metavar="BUCKET", help="Bucket to mirror.")
@click.option("--mirror-domain", metavar="NAME", help="JetStream domain of the bucket to mirror.")
@common_options
def add(
    settings: Settings,
    bucket: str,
    mirror: StreamSource | None,
    mirror_domain: str | None,
    **options: Any,
) -> None:
    """
    Create a bucket.

    Succeeds without a change if the bucket already exists with the same config. To create a key, use
    'jsm kv create'.

    \b
    Examples:
      jsm kv add CONFIG --history 5
      jsm kv add SESSIONS --ttl 1h --storage memory
      jsm kv add CONFIG_COPY --mirror CONFIG
    """  # noqa: D301 - click requires the character, not the escape
    storage = options.pop("storage")
    fields = _fields(options)
    if storage is not None:
        fields["storage"] = storage
    if mirror_domain and mirror is None:
        raise click.UsageError("--mirror-domain needs --mirror")
    if mirror is not None:
        if mirror_domain:
            mirror = replace(mirror, external=ExternalStream(api=f"$JS.{mirror_domain}.API"))
        fields["mirror"] = mirror
    config = KeyValueConfig(bucket=bucket, **fields)
    with settings.jetstream() as js:
        status = js.create_key_value(config).status()
    _show(settings, status, f"{KV.noun} {bucket} was created")


@click.command()
@bucket_argument
@_config_options
@force_option
@common_options
def edit(settings: Settings, bucket: str, force: bool, **options: Any) -> None:
    """
    Change the config of a bucket; each option changes one field, the others stay.

    A lower --history, --ttl or --max-bucket-size may delete values.
    """
    fields = _fields(options)
    if not fields:
        raise click.UsageError("pass at least one option to change")
    with settings.jetstream() as js:
        config = changed(find_bucket(KV, js, bucket).status().config, fields)
        Asker(settings).confirm(f"Change the config of bucket {bucket}?", force=force)
        status = js.update_key_value(config).status()
    _show(settings, status, f"{KV.noun} {bucket} was changed")


@click.command()
@click.argument(
    "name", required=False, metavar="[BUCKET]", type=BUCKET_NAME, shell_complete=complete_bucket
)
@common_options
def info(settings: Settings, name: str | None) -> None:
    """Show the config and state of a bucket."""
    with settings.jetstream() as js:
        bucket = chosen_bucket(KV, js, name, Asker(settings))
        status = find_bucket(KV, js, bucket).status()
    _show(settings, status)


@click.command()
@click.argument(
    "bucket", required=False, metavar="[BUCKET]", type=BUCKET_NAME, shell_complete=complete_bucket
)
@click.option("-n", "--names", is_flag=True, help="Show only the names of the buckets.")
@click.option("-v", "--verbose", is_flag=True, help="Show the revision and time of each key.")
@click.option(
    "--display-value", is_flag=True, help="Show the value of each key; implies --verbose."
)
@common_options
def ls(
    settings: Settings, bucket: str | None, names: bool, verbose: bool, display_value: bool
) -> None:
    """List the buckets, or the keys of BUCKET."""
    verbose = verbose or display_value
    if bucket is None:
        if verbose:
            raise click.UsageError("--verbose and --display-value need a BUCKET")
        list_buckets(settings, KV, _document, names=names)
        return
    with settings.jetstream() as js:
        store = find_bucket(KV, js, bucket)
        if not verbose:
            list_keys(settings, store, ())
            return
        with store.watch(ignore_deletes=True, meta_only=not display_value) as watch:
            found = sorted(watch.initial(), key=lambda each: each.key)

    def human() -> None:
        rows = [
            [
                readable(each.key),
                when(settings, each.created),
                count(each.revision),
                *([shortened(each)] if display_value else []),
            ]
            for each in found
        ]
        columns = ["Key", "Created", "Revision", *(["Value"] if display_value else [])]
        write_table(
            Table(title=f"Keys of {bucket}", columns=columns, rows=rows, left=4), settings.env
        )

    documents = [entry_document(each, meta_only=not display_value) for each in found]
    emit(settings, documents, human)


def _document(status: KeyValueStatus) -> dict[str, Any]:
    """Return the JSON document of a bucket."""
    size_limit = status.info.config.max_msg_size
    return bucket_document(
        status.info,
        status.bucket,
        values=status.values,
        history=status.history,
        max_value_size=-1 if size_limit is None else size_limit,
        limit_marker_ttl=duration_to_ns(status.limit_marker_ttl or timedelta()),
    )


def _show(settings: Settings, status: KeyValueStatus, done: str = "") -> None:
    config = status.info.config

    def human() -> None:
        if done:
            settings.env.stdout.write(f"{done}\n\n")
        first, held = Block(), Block()
        first.add("History", count(status.history))
        first.add("Maximum Value Size", limit(config.max_msg_size or None, size))
        if status.limit_marker_ttl:
            first.add("Marker TTL", duration(status.limit_marker_ttl))
        if config.republish is not None:
            rest = " (headers only)" if config.republish.headers_only else ""
            first.add(
                "Republish", f"{config.republish.src or '>'} to {config.republish.dest}{rest}"
            )
        if config.mirror is not None:
            first.add("Mirror", source_text(config.mirror))
        for source in config.sources or ():
            first.add("Source", source_text(source))
        held.add("Values", count(status.values))
        write_bucket(settings, KV, status.info, status.bucket, first, held)

    emit(settings, _document(status), human)
