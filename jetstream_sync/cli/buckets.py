"""The commands and descriptions that key-value buckets and object stores share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import click

from .. import StreamInfo
from ..differences import without_server_labels
from ..durations import duration_to_ns, time_to_text
from ..errors import NotFoundError
from .fields import changed, config_options, display_fields, take_fields
from .names import complete_bucket, complete_store, not_found
from .output import emit, emit_names, size
from .prompts import Asker
from .render import Block, Field, show_rows, write_blocks
from .settings import Settings, common_options
from .stream_config import CLUSTER, REPLICATION
from .values import Decorator, ParamType, force_option

if TYPE_CHECKING:
    from .. import JetStream


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


class _Bucket(Protocol):
    def status(self) -> Any: ...


_B = TypeVar("_B", bound=_Bucket)


@dataclass(frozen=True, kw_only=True)
class BucketKind(Generic[_B]):
    """Key-value buckets or object stores."""

    noun: str
    """The name of one in headings."""
    config: Any
    """The record of its config."""
    open: Callable[[JetStream, str], _B]
    names: Callable[[JetStream], list[str]]
    list: Callable[[JetStream], list[Any]]
    """Return the status of all buckets."""
    create: Callable[[JetStream, Any], _B]
    update: Callable[[JetStream, Any], _B]
    delete: Callable[[JetStream, str], object]
    info: Callable[[Any], StreamInfo]
    """Return the stream of a bucket from its status."""
    own_document: Callable[[Any], dict[str, Any]]
    """Return what only this kind of bucket has in its JSON document."""
    state: Sequence[Field] = ()
    """The first lines of its state."""

    def argument(self, name: str = "bucket", *, required: bool = True) -> Decorator:
        """Return the decorator that adds the name of a bucket to a command."""
        return click.argument(
            name,
            type=BUCKET_NAME,
            required=required,
            metavar="BUCKET" if required else "[BUCKET]",
            shell_complete=complete_bucket if self.noun.startswith("Key") else complete_store,
        )


def chosen_bucket(kind: BucketKind[Any], js: JetStream, name: str | None, ask: Asker) -> str:
    """Return the given name of a bucket, else the answer to a prompt."""
    if name is not None:
        return name
    with ask:
        return ask.select("Select a bucket", lambda: kind.names(js), "BUCKET")


def find_bucket(kind: BucketKind[_B], js: JetStream, name: str) -> _B:
    """Return the bucket with a name, or raise the error for an unknown name."""
    try:
        return kind.open(js, name)
    except NotFoundError as error:
        raise not_found("bucket", name, kind.names(js), error) from error


def time_text(moment: datetime | None) -> str | None:
    """Return a time as RFC 3339 text, as in the documents of the server."""
    return None if moment is None else time_to_text(moment)


# --- output -------------------------------------------------------------------------------------


def _document(kind: BucketKind[Any], status: Any) -> dict[str, Any]:
    """Return the JSON document of a bucket."""
    info = kind.info(status)
    config = info.config
    return {
        "bucket": status.bucket,
        "description": config.description or "",
        **kind.own_document(status),
        "bytes": info.state.bytes,
        "max_bytes": -1 if config.max_bytes is None else config.max_bytes,
        "ttl": duration_to_ns(config.max_age) if config.max_age else 0,
        "storage": str(config.storage),
        "replicas": config.num_replicas or 1,
        "compressed": config.compression not in (None, "none"),
        "created": time_text(info.created),
        "stream_info": info,
    }


#: The last lines of the state of a bucket, for the info of its stream.
_STATE: Final = (
    Field("Stream", "config.name"),
    Field("Size", "state.bytes", size),
    Field("Last Update", "state.last_ts"),
    Field("Created", "created"),
)


def show_bucket(
    settings: Settings, kind: BucketKind[Any], status: Any, done: str | None = None
) -> None:
    """Show a bucket as the result of a command, after a line with what was ``done``."""
    info = kind.info(status)
    fields = display_fields(kind.config, without="bucket")
    heading = f"Information for {kind.noun.lower()} {status.bucket}"

    def human() -> None:
        if done is not None:
            settings.env.stdout.write(f"{kind.noun} {status.bucket} {done}\n\n")
        write_blocks(
            settings,
            Block("Configuration", fields, status.config),
            Block("Cluster", CLUSTER, info),
            Block("Replication", REPLICATION, info),
            Block("State", [*kind.state, *_of_stream(kind)], status),
            heading=heading,
        )

    emit(settings, _document(kind, status), human)


def _of_stream(kind: BucketKind[Any]) -> list[Field]:
    """Return the lines of the state, for the status of a bucket."""

    def value_of(field: Field) -> Callable[[Any], Any]:
        return lambda status: field.of(kind.info(status))

    return [Field(each.title, value_of(each), each.shown) for each in _STATE]


def list_buckets(settings: Settings, kind: BucketKind[Any], *, names: bool) -> None:
    """List the buckets of the account: as a table, or with ``names`` one name per line."""
    with settings.jetstream() as js:
        if names:
            emit_names(settings, sorted(kind.names(js)))
            return
        found = sorted(kind.list(js), key=lambda status: status.bucket)
    show_rows(
        settings,
        found,
        [
            Field("Bucket", "bucket"),
            Field("Description", lambda status: kind.info(status).config.description, drop=3),
            Field("Created", lambda status: kind.info(status).created, drop=2),
            Field("Size", lambda status: kind.info(status).state.bytes, size),
            *kind.state,
            Field("Last Update", lambda status: kind.info(status).state.last_ts, drop=1),
        ],
        title=f"{kind.noun}s",
        none=f"No {kind.noun}s defined",
        document=[_document(kind, status) for status in found],
    )


# --- commands -----------------------------------------------------------------------------------


def add_command(kind: BucketKind[Any], text: str) -> click.Command:
    """Return the command that creates a bucket, with its help."""

    @click.command(help=text)
    @kind.argument()
    @config_options(kind.config)
    @common_options
    def add(settings: Settings, bucket: str, **options: Any) -> None:
        config = changed(kind.config(bucket=bucket), take_fields(kind.config, options))
        with settings.jetstream() as js:
            status = kind.create(js, config).status()
        show_bucket(settings, kind, status, "was created")

    return add


def edit_command(kind: BucketKind[Any], text: str) -> click.Command:
    """Return the command that changes the config of a bucket, with its help."""

    @click.command(help=text)
    @kind.argument()
    @config_options(kind.config)
    @force_option
    @common_options
    def edit(settings: Settings, bucket: str, force: bool, **options: Any) -> None:
        fields = take_fields(kind.config, options)
        if not fields:
            raise click.UsageError("pass at least one option to change")
        with settings.jetstream() as js:
            before = find_bucket(kind, js, bucket).status().config
            config = changed(without_server_labels(before), fields)
            Asker(settings).confirm(f"Change the config of bucket {bucket}?", force=force)
            status = kind.update(js, config).status()
        show_bucket(settings, kind, status, "was changed")

    return edit


def delete_bucket(
    settings: Settings, kind: BucketKind[Any], name: str, *, force: bool, ignore_missing: bool
) -> None:
    """Delete a bucket with its content, after confirmation."""
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
