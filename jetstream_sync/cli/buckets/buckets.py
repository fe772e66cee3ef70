"""The commands and descriptions that key-value buckets and object stores share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import click

from ... import StreamInfo, errors
from ...declare import CREATE, DELETE, NOTHING, Declared, Step
from ...durations import duration_to_ns, time_to_text
from ...net.clock import Deadline
from ...subjects import check_bucket
from ..shared.config import change_config, changed, config_options, display_fields, take_fields
from ..shared.env import single_line, visible
from ..shared.listings import emit_listed_names, lister
from ..shared.long_running import wait_interruptibly
from ..shared.names import note_without_leader
from ..shared.output import announce, emit_item, emit_text, size
from ..shared.render import Block, Field, Table, show_blocks, show_rows
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, about, not_found
from ..shared.values import Decorator, Parsed, force_option, option
from ..streams.streams import CLUSTER, REPLICATION

if TYPE_CHECKING:
    from ... import JetStream, Listing


class _Store(Protocol):
    @property
    def bucket(self) -> str: ...

    def status(self) -> Any: ...

    def delete(self, name: str, /) -> object: ...


_B = TypeVar("_B", bound=_Store)

#: The last lines of the state of a bucket, for the info of its stream.
_STATE: Final = (
    Field("Stream", "config.name"),
    Field("Size", "state.bytes", size),
    Field("Last Update", "state.last_ts"),
    Field("Created", "created"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketKind(Generic[_B]):
    """Key-value buckets or object stores, and the commands that they share."""

    noun: str
    """The name of one in headings."""
    config: Any
    """The record of its config."""
    open: Callable[[JetStream, str], _B]
    names: Callable[[JetStream], list[str]]
    list: Callable[[JetStream], Listing[Any]]
    """Return the status of all buckets."""
    info: Callable[[Any], StreamInfo]
    """Return the stream of a bucket from its status."""
    own_document: Callable[[Any], dict[str, Any]]
    """Return what only this kind of bucket has in its JSON document."""
    state: Sequence[Field]
    """The first lines of its state."""
    item: str
    """The name of a key or object in texts and usage."""
    look_up: Callable[[_B, str], object]
    """Ask the leader for a key or object; return it, or raise `NotFoundError`."""
    complete: Any
    """Completes the names of buckets."""

    def argument(self, *, required: bool = True) -> Decorator:
        """Return the decorator that adds the name of a bucket to a command."""
        return click.argument(
            "bucket",
            type=Parsed("bucket", check_bucket),
            required=required,
            metavar="BUCKET" if required else "[BUCKET]",
            shell_complete=self.complete,
        )

    def find(self, js: JetStream, name: str) -> _B:
        """Return the bucket with a name, or raise the error for an unknown name."""
        try:
            return self.open(js, name)
        except errors.NotFoundError as error:
            raise not_found("bucket", name, self.names(js), error) from error

    @contextlib.contextmanager
    def connected(self, settings: Settings, name: str | None, **options: Any) -> Iterator[_B]:
        """Open a connection and yield the bucket with a name, by default the answer to a prompt."""
        with settings.jetstream(**options) as js:
            if name is None:
                name = settings.ask().choose("Select a bucket", lambda: self.names(js), "BUCKET")
            store = self.find(js, name)
            note_without_leader(settings, f"bucket {name}", self.info(store.status()))
            yield store

    # --- output ---------------------------------------------------------------------------------

    def _document(self, status: Any) -> dict[str, Any]:
        """Return the JSON document of a bucket."""
        info = self.info(status)
        config = info.config
        return {
            "bucket": status.bucket,
            "description": config.description or "",
            **self.own_document(status),
            "bytes": info.state.bytes,
            "max_bytes": -1 if config.max_bytes is None else config.max_bytes,
            "ttl": duration_to_ns(config.max_age) if config.max_age else 0,
            "storage": str(config.storage),
            "replicas": config.num_replicas or 1,
            "compressed": config.compression not in (None, "none"),
            "created": time_text(info.created),
            "stream_info": info,
        }

    def show(self, settings: Settings, status: Any, done: str = "") -> None:
        """Show a bucket as the result of a command, after a line with what was ``done``."""
        info = self.info(status)
        heading = f"Information for {self.noun.lower()} {status.bucket}"
        show_blocks(
            settings,
            self._document(status),
            Block("Configuration", display_fields(self.config, without="bucket"), status.config),
            Block("Cluster", CLUSTER, info),
            Block("Replication", REPLICATION, info),
            Block("State", [*self.state, *map(self._of_stream, _STATE)], status),
            heading=f"{self.noun} {status.bucket} {done}\n\n{heading}" if done else heading,
        )

    def _of_stream(self, field: Field) -> Field:
        """Return a field of the info of a stream as a field of the status of its bucket."""
        return replace(field, value=lambda status: field.of(self.info(status)))

    def show_all(self, settings: Settings, *, names: bool) -> None:
        """List the buckets of the account: as a table, or with ``names`` one name per line."""
        with lister(settings) as lists:
            listed = lists.collect(
                "bucket",
                self.list,
                self.names,
                lambda js, name: self.open(js, name).status(),
                lambda name: {"bucket": name},
            )
        if names:
            emit_listed_names(settings, listed, lambda status: status.bucket)
            return
        held, updated, created = map(self._of_stream, _STATE[1:])
        description = self._of_stream(Field("Description", "config.description", drop=3))
        fields = [Field("Bucket", "bucket"), description, replace(created, drop=2), held]
        none = "" if listed.missing or listed.more else f"No {self.noun.lower()}s defined"
        table = Table([*fields, *self.state, replace(updated, drop=1)], f"{self.noun}s", none)
        rows = listed.by_name(lambda status: status.bucket)
        show_rows(settings, rows, table, item=self._document)
        listed.check()

    def show_changes(
        self,
        settings: Settings,
        bucket: str,
        number: int | None,
        watch: Callable[[_B], Any],
        document: Callable[[Any], dict[str, Any]],
        line: Callable[[Any], str],
    ) -> None:
        """Show the changes of a watch until Ctrl-C, or the first ``number`` of them."""
        shown = 0
        with (
            self.connected(settings, bucket, reconnects="always") as store,
            watch(store) as watcher,
        ):
            announce(settings, f"Watching {bucket}")
            while shown != number:
                entry = wait_interruptibly(lambda left: watcher.next(timeout=left), Deadline(None))
                emit_item(settings, document(entry), line(entry))
                shown += 1

    # --- commands -------------------------------------------------------------------------------

    def add_command(self, text: str) -> click.Command:
        """Return the command that creates a bucket, with its help."""

        @command(help=text)
        @self.argument()
        @config_options(self.config)
        def add(settings: Settings, bucket: str, **options: Any) -> None:
            config = changed(self.config(bucket=bucket), take_fields(self.config, options))
            with settings.jetstream() as js:
                try:
                    self.open(js, bucket)
                    verb = "is unchanged"  # the server refuses another config
                except errors.NotFoundError:
                    verb = "was created"
                except errors.RequestTimeoutError:
                    # The creation tells why there was no reply.
                    verb = "was created or is unchanged"
                status = Step(action=CREATE, declared=Declared(config=config)).run(js).status()
            self.show(settings, status, verb)

        return add

    def edit_command(self, text: str) -> click.Command:
        """Return the command that changes the config of a bucket, with its help."""

        @command(help=text)
        @self.argument()
        @config_options(self.config)
        @force_option
        def edit(settings: Settings, bucket: str, force: bool, **options: Any) -> None:
            fields = take_fields(self.config, options)
            if not fields:
                raise click.UsageError("pass at least one option to change")
            with settings.jetstream() as js:
                found = self.find(js, bucket).status()
                step = Declared(config=changed(found.config, fields)).change_from(found.config)
                if step.action != NOTHING:
                    found = change_config(settings, js, step, force=force).status()
            self.show(settings, found, "is unchanged" if step.action == NOTHING else "was changed")

        return edit

    def delete_command(self, text: str) -> click.Command:
        """Return the command that deletes keys or objects, or a bucket, with its help."""
        usage = f"[{self.item.upper()}]..."

        @command(help=text)
        @self.argument()
        @click.argument("names", nargs=-1, metavar=usage)
        @force_option
        @option("--ignore-missing", "Ignore what does not exist.")
        def delete(settings: Settings, bucket: str, names: tuple[str, ...], **flags: bool) -> None:
            with settings.jetstream() as js:
                if names:
                    self._delete_items(settings, self.find(js, bucket), names, **flags)
                else:
                    self._delete_bucket(settings, js, bucket, **flags)

        return delete

    def _delete_items(
        self,
        settings: Settings,
        store: _B,
        names: tuple[str, ...],
        force: bool,
        ignore_missing: bool,
    ) -> None:
        found, missing = [], []
        for name in dict.fromkeys(names):
            try:
                self.look_up(store, name)
                found.append(name)
            except errors.NotFoundError:
                missing.append(single_line(name))
        if missing and not ignore_missing:
            raise AbsentError(f"bucket {store.bucket} has no {self.item} {', '.join(missing)}")
        listed = ", ".join(f"{store.bucket} > {single_line(name)}" for name in found)
        if found:
            settings.ask().confirm(f"Delete {listed}?", force=force)
        deleted: list[str] = []
        try:
            for name in found:
                with about(f"{self.item} {single_line(name)}"):
                    store.delete(name)
                deleted.append(name)
        finally:
            # Also after an error: some were deleted.
            listed = ", ".join(f"{store.bucket} > {single_line(name)}" for name in deleted)
            document = {"bucket": store.bucket, "deleted": [visible(name) for name in deleted]}
            emit_text(settings, document, f"Deleted {listed or 'nothing'}")

    def _delete_bucket(
        self, settings: Settings, js: JetStream, bucket: str, force: bool, ignore_missing: bool
    ) -> None:
        absent = False
        try:
            found = self.open(js, bucket) if ignore_missing else self.find(js, bucket)
        except errors.NotFoundError:
            absent = True
        else:
            held = size(self.info(found.status()).state.bytes)
            text = f"Delete {self.noun.lower()} {bucket} with {held}?"
            settings.ask().confirm(text, force=force)
            declared = Declared(config=self.config(bucket=bucket))
            Step(action=DELETE, declared=declared).run(js)
        emit_text(settings, {"deleted": [] if absent else [bucket]}, "")
        if not absent and not settings.json:
            settings.env.stderr.write(f"{self.noun} {bucket} was deleted\n")


def time_text(moment: datetime | None) -> str | None:
    """Return a time as RFC 3339 text, as in the documents of the server."""
    return None if moment is None else time_to_text(moment)
