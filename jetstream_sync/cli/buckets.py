"""The common parts of ``jsm kv`` and ``jsm object``: names, options and descriptions of buckets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import click

from .. import Placement, StreamInfo
from ..durations import duration_to_ns, time_to_text
from ..errors import NotFoundError
from .config import labels_of
from .fields import STORAGE
from .names import not_found
from .output import Block, count, emit, limit, size, when, write_blocks, yes
from .output import duration as duration_text
from .prompts import Asker
from .render import Table, write_table
from .settings import Settings
from .stream.show import STORAGES, cluster_block, replication_block
from .values import LIMITED_DURATION, LIMITED_SIZE, Decorator, ParamType

if TYPE_CHECKING:
    from .. import JetStream

_Command = TypeVar("_Command", bound=Callable[..., object])


class _BucketName(ParamType):
    """A valid bucket name."""

    name = "bucket"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail when it is invalid."""
        if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
            reason = "it must consist of letters, digits, '-' and '_'"
            self.fail(f"bucket name {value!r} is invalid: {reason}", param, ctx)
        return value


BUCKET_NAME: Final = _BucketName()

force_option: Decorator = click.option(
    "-f", "--force", "-y", "--yes", is_flag=True, help="Do not ask for confirmation."
)


# --- options ------------------------------------------------------------------------------------

#: Options whose value is the value of a field: flag, field, settings.
_FIELD_OPTIONS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("--description", "description", {"metavar": "TEXT", "help": "Description of the bucket."}),
    ("--ttl", "ttl", {"type": LIMITED_DURATION, "help": "Maximum age of the content, such as 1d."}),
    ("--replicas", "replicas", {"type": click.IntRange(1), "help": "Number of replicas."}),
    (
        "--max-bucket-size",
        "max_bytes",
        {"type": LIMITED_SIZE, "help": "Maximum total size; -1 for no limit."},
    ),
    ("--compress/--no-compress", "compression", {"help": "Compress the data."}),
)


def bucket_options(command: _Command) -> _Command:
    """Add the options of both kinds of buckets to a command; see `fields_of`."""
    options: list[Callable[[Any], Any]] = [
        click.option(flags, field, default=None, **settings)
        for flags, field, settings in _FIELD_OPTIONS
    ]
    options += [
        click.option("--cluster", metavar="NAME", help="Cluster to place the bucket in."),
        click.option(
            "--tags",
            "--tag",
            "tags",
            multiple=True,
            metavar="TAG",
            help="Tag that its servers must have; repeatable.",
        ),
        click.option(
            "--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata entry; repeatable."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


#: The storage cannot be changed later.
storage_option: Decorator = click.option(
    "--storage", type=STORAGE, default=None, help="Storage of the bucket."
)


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """
    Remove the options of `bucket_options` from a command's options, and return the fields they set.

    Raises:
        click.BadParameter: a value is invalid.

    """
    fields = {
        field: value for _, field, _ in _FIELD_OPTIONS if (value := options.pop(field)) is not None
    }
    cluster, tags = options.pop("cluster"), list(options.pop("tags"))
    if cluster or tags:
        fields["placement"] = Placement(cluster=cluster, tags=tags or None)
    if labels := labels_of(options.pop("metadata")):
        fields["metadata"] = labels
    return fields


# --- buckets ------------------------------------------------------------------------------------


class _Bucket(Protocol):
    def status(self) -> Any: ...


_B = TypeVar("_B", bound=_Bucket)


@dataclass(frozen=True, kw_only=True)
class BucketKind(Generic[_B]):
    """Key-value buckets or object stores."""

    noun: str
    """The name of one in headings."""
    open: Callable[[JetStream, str], _B]
    names: Callable[[JetStream], list[str]]
    list: Callable[[JetStream], list[Any]]
    """Return the status of all buckets."""
    delete: Callable[[JetStream, str], object]
    info: Callable[[Any], StreamInfo]
    """Return the stream of a bucket from its status."""


def chosen_bucket(kind: BucketKind[Any], js: JetStream, name: str | None, ask: Asker) -> str:
    """
    Return the name of a bucket: the given one, else the answer to a prompt.

    Raises:
        CommandError: the name is missing, and there is no terminal.

    """
    if name is not None:
        return name
    with ask:
        return ask.select("Select a bucket", lambda: kind.names(js), "BUCKET")


def find_bucket(kind: BucketKind[_B], js: JetStream, name: str) -> _B:
    """
    Return the bucket with a name.

    Raises:
        CommandError: the bucket does not exist.

    """
    try:
        return kind.open(js, name)
    except NotFoundError as error:
        raise not_found("bucket", name, kind.names(js), error) from error


def bucket_document(info: StreamInfo, bucket: str, **fields: Any) -> dict[str, Any]:
    """
    Return the JSON document of a bucket.

    Args:
        info: the stream of the bucket.
        bucket: the name of the bucket.
        **fields: what only one kind of bucket has.

    """
    config = info.config
    return {
        "bucket": bucket,
        "description": config.description or "",
        **fields,
        "bytes": info.state.bytes,
        "max_bytes": -1 if config.max_bytes is None else config.max_bytes,
        "ttl": duration_to_ns(config.max_age) if config.max_age else 0,
        "storage": str(config.storage),
        "replicas": config.num_replicas or 1,
        "compressed": config.compression not in (None, "none"),
        "created": time_text(info.created),
        "stream_info": info,
    }


def time_text(moment: datetime | None) -> str | None:
    """Return a time as RFC 3339 text, as in the documents of the server."""
    return None if moment is None else time_to_text(moment)


def write_bucket(
    settings: Settings, kind: BucketKind[Any], info: StreamInfo, bucket: str, *blocks: Block
) -> None:
    """
    Write the config and state of a bucket to ``stdout``.

    Args:
        settings: the settings of the command.
        kind: the kind of the bucket.
        info: the stream of the bucket.
        bucket: the name of the bucket.
        *blocks: what only one kind of bucket has: the first rows of the config, and of the state.

    """
    config, state = info.config, info.state
    first, second = blocks
    block = Block("Configuration")
    if config.description:
        block.add("Description", config.description)
    block.rows.extend(first.rows)
    block.add("Maximum Bucket Size", limit(_positive(config.max_bytes), size))
    block.add(
        "Maximum Age",
        duration_text(config.max_age, unlimited=True) if config.max_age else "Unlimited",
    )
    block.add("Storage", STORAGES.get(str(config.storage), config.storage))
    block.add("Replicas", config.num_replicas or 1)
    block.add("Compressed", yes(config.compression not in (None, "none")))
    block.add("Stream", config.name)
    own = sorted(
        f"{key}: {value}"
        for key, value in (config.metadata or {}).items()
        if not key.startswith("_nats.")
    )
    if own:
        block.add("Metadata", "\n".join(own))
    held = Block("State")
    held.rows.extend(second.rows)
    held.add("Size", size(state.bytes))
    held.add("Last Update", when(settings, state.last_ts))
    held.add("Created", when(settings, info.created))
    heading = f"Information for {kind.noun.lower()} {bucket}"
    parts = [block, cluster_block(info), replication_block(info), held]
    write_blocks(settings.env, *parts, heading=heading)


def _positive(value: int | None) -> int | None:
    """Return a limit; ``None`` for 0, which means no limit as well."""
    return value or None


def list_buckets(
    settings: Settings,
    kind: BucketKind[Any],
    document: Callable[[Any], dict[str, Any]],
    *,
    names: bool,
) -> None:
    """
    List the buckets of the account: as a table, or with ``names`` one name per line.

    Args:
        settings: the settings of the command.
        kind: the kind of buckets.
        document: returns the JSON document of a status; see `bucket_document`.
        names: whether to list only names.

    """
    with settings.jetstream() as js:
        found = sorted(kind.names(js)) if names else kind.list(js)
    if names:
        emit(settings, found, lambda: settings.env.stdout.writelines(f"{each}\n" for each in found))
        return
    documents = sorted((document(each) for each in found), key=lambda each: each["bucket"])

    def human() -> None:
        if not documents:
            settings.env.stdout.write(f"No {kind.noun}s defined\n")
            return
        rows = []
        for each in documents:
            info: StreamInfo = each["stream_info"]
            values = [count(each["values"])] if "values" in each else []
            rows.append(
                [
                    each["bucket"],
                    each["description"],
                    when(settings, info.created),
                    size(info.state.bytes),
                    *values,
                    when(settings, info.state.last_ts),
                ]
            )
        values = ["Values"] if "values" in documents[0] else []
        columns = ["Bucket", "Description", "Created", "Size", *values, "Last Update"]
        write_table(Table(title=f"{kind.noun}s", columns=columns, rows=rows, left=3), settings.env)

    emit(settings, documents, human)


def delete_bucket(
    settings: Settings,
    kind: BucketKind[Any],
    name: str,
    *,
    force: bool,
    ignore_missing: bool,
) -> None:
    """
    Delete a bucket with its content, after confirmation.

    Raises:
        CommandError: the bucket does not exist, or there is no confirmation.

    """
    ask = Asker(settings)
    deleted = []
    with settings.jetstream() as js:
        if not (ignore_missing and name not in kind.names(js)):
            bucket = find_bucket(kind, js, name)
            held = size(kind.info(bucket.status()).state.bytes)
            ask.confirm(f"Delete {kind.noun.lower()} {name} with {held}?", force=force)
            kind.delete(js, name)
            deleted.append(name)
    emit(settings, {"deleted": deleted}, lambda: None)
    if deleted and not settings.json:
        settings.env.stderr.write(f"{kind.noun} {name} was deleted\n")
