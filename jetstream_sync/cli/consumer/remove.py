"""``jsm consumer rm``: delete consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...errors import ConsumerNotFoundError, StreamNotFoundError
from ..completion import complete_consumer, complete_stream
from ..output import counted, emit
from ..prompts import Asker
from ..settings import Settings, common_options
from ..terminology import words
from .find import names_of, no_consumer, no_stream, title

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream

__all__ = ["rm"]


@click.command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumers", metavar="[CONSUMER]...", nargs=-1, shell_complete=complete_consumer)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--ignore-missing", is_flag=True, help="Ignore consumers that do not exist.")
@common_options
def rm(
    settings: Settings,
    *,
    stream: str | None,
    consumers: tuple[str, ...],
    force: bool,
    ignore_missing: bool,
) -> None:
    """Delete one or more CONSUMERs of a STREAM. The messages stay in the stream."""
    deleted: list[str] = []
    with settings.jetstream() as js:
        stream, first = names_of(settings, js, stream, consumers[0] if consumers else None)
        found = _look_up(js, stream, [first, *consumers], ignore_missing=ignore_missing)
        _confirm(settings, found, force=force)
        for info in found:
            try:
                js.delete_consumer(stream, info.name)
            except ConsumerNotFoundError:
                continue  # deleted by another client
            deleted.append(info.name)
            if not settings.json:
                settings.env.stderr.write(f"{words().consumer} {title(info)} was removed\n")
    emit(settings, {"deleted": deleted}, lambda: None)


def _look_up(
    js: JetStream, stream: str, names: list[str], *, ignore_missing: bool
) -> list[ConsumerInfo]:
    """Return the infos of all consumers before the first is deleted."""
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(js.consumer_info(stream, name))
        except StreamNotFoundError as error:
            raise no_stream(js, stream, error) from error
        except ConsumerNotFoundError as error:
            if not ignore_missing:
                raise no_consumer(js, stream, name, error) from error
    return found


def _confirm(settings: Settings, found: list[ConsumerInfo], *, force: bool) -> None:
    if not found:
        return
    listed = ", ".join(
        f"{title(info)} ({counted(info.num_pending + info.num_ack_pending, 'message')} to go)"
        for info in found
    )
    noun = words()
    what = noun.consumer if len(found) == 1 else noun.consumers
    Asker(settings).confirm(f"Really remove {what.lower()} {listed}?", force=force)
