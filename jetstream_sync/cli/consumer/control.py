"""``jsm consumer pause``, ``resume``, ``unpin`` and ``reset``: control a consumer."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from ...errors import ConsumerNotFoundError, StreamNotFoundError
from ..completion import complete_consumer, complete_stream, consumer_arguments
from ..names import find_consumer, names_of, no_consumer, no_stream, title
from ..output import count, counted, duration, emit_text, when
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import force_option
from .add import UNTIL
from .show import show

if TYPE_CHECKING:
    from ... import ConsumerInfo, ConsumerPause, JetStream


@click.command()
@consumer_arguments
@click.argument("until", required=False, type=UNTIL)
@force_option
@common_options
def pause(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    until: datetime | None,
    force: bool,
) -> None:
    """
    Pause a CONSUMER until a time or for a duration; it resumes automatically.

    \b
    Examples:
      jsm consumer pause ORDERS NEW 1h
      jsm consumer pause ORDERS NEW 2026-12-24T18:00:00+01:00
    """  # noqa: D301 - click requires the character, not the escape
    ask = Asker(settings)
    with settings.jetstream() as js:
        info = find_consumer(settings, js, stream, consumer)
        end = ask.value(
            "Pause until",
            "UNTIL",
            UNTIL.parse,
            value=until,
            blank=info.created,
            help="A time, or a duration from now",
        )
        ask.done()
        ask.confirm(
            f"Pause consumer {title(info)} until {when(settings, end)}?",
            force=force,
        )
        result = js.pause_consumer(info.stream_name, info.name, end)
    emit_text(settings, result, _pause_text(settings, info, result))


@click.command()
@consumer_arguments
@common_options
def resume(settings: Settings, *, stream: str | None, consumer: str | None) -> None:
    """Resume a paused CONSUMER of a STREAM."""
    with settings.jetstream() as js:
        info = find_consumer(settings, js, stream, consumer)
        result = js.resume_consumer(info.stream_name, info.name)
    emit_text(settings, result, _pause_text(settings, info, result))


def _pause_text(settings: Settings, info: ConsumerInfo, result: ConsumerPause) -> str:
    if not result.paused:
        return f"Consumer {title(info)} is not paused"
    text = f"Consumer {title(info)} is paused until {when(settings, result.pause_until)}"
    if result.pause_remaining:
        text += f", for {duration(result.pause_remaining)}"
    return text


@click.command()
@consumer_arguments
@click.argument("group", required=False)
@force_option
@common_options
def unpin(
    settings: Settings, *, stream: str | None, consumer: str | None, group: str | None, force: bool
) -> None:
    """Unpin the client of a priority GROUP, so that the server pins another one."""
    ask = Asker(settings)
    with settings.jetstream() as js:
        info = find_consumer(settings, js, stream, consumer)
        groups = list(info.config.priority_groups or ())
        if not groups:
            raise CommandError(f"{title(info)} has no priority groups", ExitStatus.USAGE)
        if group is None and len(groups) == 1:
            group = groups[0]
        if group is None:
            group = ask.select("Select a group", groups, "GROUP")
            ask.done()
        client = next(
            (each.pinned_client_id for each in info.priority_groups or () if each.group == group),
            None,
        )
        if client:
            ask.confirm(f"Unpin client {client} from group {group}?", force=force)
        js.unpin_consumer(info.stream_name, info.name, group)
    document = {"group": group, "unpinned_client_id": client or None}
    done = f"client {client} is no longer pinned" if client else "no client was pinned"
    emit_text(settings, document, f"{title(info)}, group {group}: {done}")


@click.command()
@consumer_arguments
@click.option(
    "--seq",
    "--sequence",
    "seq",
    type=click.IntRange(1),
    metavar="SEQ",
    help="Continue at this stream sequence.",
)
@force_option
@common_options
def reset(
    settings: Settings, *, stream: str | None, consumer: str | None, seq: int | None, force: bool
) -> None:
    """
    Reset a CONSUMER to its ack floor, or to a sequence of the stream.

    Unacknowledged messages are delivered again with new delivery counts. After a reset to an earlier
    sequence, acknowledged messages are delivered again as well. After a reset to a later sequence, the
    messages in between are skipped. It needs nats-server 2.14.
    """
    with settings.jetstream() as js:
        info = find_consumer(settings, js, stream, consumer)
        start = info.ack_floor.stream_seq + 1
        where = f"at sequence {count(seq)}" if seq is not None else "after its ack floor"
        what = f"Reset consumer {title(info)}, which is at {count(start)}, to continue"
        Asker(settings).confirm(f"{what} {where}?", force=force)
        result = js.reset_consumer(info.stream_name, info.name, seq)
    emit_text(
        settings,
        result,
        f"Consumer {title(info)} continues at sequence {count(result.reset_seq)}\n",
    )
    if not settings.json:
        show(settings, result, state_only=True)


@click.command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumers", metavar="[CONSUMER]...", nargs=-1, shell_complete=complete_consumer)
@force_option
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
        if found:
            listed = ", ".join(
                f"{title(info)} ({counted(info.num_pending + info.num_ack_pending, 'message')} to go)"
                for info in found
            )
            what = "consumer" if len(found) == 1 else "consumers"
            Asker(settings).confirm(f"Really remove {what} {listed}?", force=force)
        for info in found:
            try:
                js.delete_consumer(stream, info.name)
            except ConsumerNotFoundError:
                continue  # deleted by another client
            deleted.append(info.name)
            if not settings.json:
                settings.env.stderr.write(f"Consumer {title(info)} was removed\n")
    emit_text(settings, {"deleted": deleted}, "")


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
