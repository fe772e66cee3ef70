"""``jsm consumer pause``, ``resume``, ``unpin`` and ``reset``: what an operator does to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...errors import TimeoutError
from ..output import count, duration, emit, say, when
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..terminology import words
from .find import consumer_arguments, find, title
from .options import until as moment
from .show import show

if TYPE_CHECKING:
    from ... import ConsumerInfo, ConsumerPause

__all__ = ["pause", "reset", "resume", "unpin"]


@click.command()
@consumer_arguments
@click.argument("until", required=False)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Ask nothing.")
@common_options
def pause(
    settings: Settings, *, stream: str | None, consumer: str | None, until: str | None, force: bool
) -> None:
    """
    Let a CONSUMER of a STREAM deliver nothing until a time, or for so long; it goes on by itself.

    \b
    Examples:
      jsm consumer pause ORDERS NEW 1h
      jsm consumer pause ORDERS NEW 2026-12-24T18:00:00+01:00
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    ask = Asker(settings)
    with settings.jetstream() as js:
        info = find(settings, js, stream, consumer)
        end = ask.value(
            "Pause until",
            "UNTIL",
            moment,
            value=None if until is None else moment(until),
            blank=info.created,
            help="A time, or how long from now",
        )
        ask.done()
        ask.confirm(
            f"Pause {words().consumer.lower()} {title(info)} until {when(settings, end)}?",
            force=force,
        )
        try:
            result = js.pause_consumer(info.stream_name, info.name, end)
        except TimeoutError as error:
            raise _too_old(info, "pausing") from error
    emit(settings, result, lambda: _show_pause(settings, info, result))


@click.command()
@consumer_arguments
@common_options
def resume(settings: Settings, *, stream: str | None, consumer: str | None) -> None:
    """Let a paused CONSUMER of a STREAM deliver again."""
    with settings.jetstream() as js:
        info = find(settings, js, stream, consumer)
        try:
            result = js.resume_consumer(info.stream_name, info.name)
        except TimeoutError as error:
            raise _too_old(info, "resuming") from error
    emit(settings, result, lambda: _show_pause(settings, info, result))


def _too_old(info: ConsumerInfo, doing: str) -> Exception:
    """Return what no answer means: servers that do not know a request do not answer it."""
    if "_nats.ver" in (info.config.metadata or {}):  # which they say since 2.11
        return TimeoutError(f"{doing} {title(info)}: no answer in time")
    return CommandError(f"{doing} a consumer needs nats-server 2.11", ExitStatus.FAILED)


def _show_pause(settings: Settings, info: ConsumerInfo, result: ConsumerPause) -> None:
    noun = words().consumer
    if not result.paused:
        say(settings, f"{noun} {title(info)} is not paused")
        return
    text = f"{noun} {title(info)} is paused until {when(settings, result.pause_until)}"
    if result.pause_remaining:
        text += f", for {duration(result.pause_remaining)}"
    say(settings, text)


@click.command()
@consumer_arguments
@click.argument("group", required=False)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Ask nothing.")
@common_options
def unpin(
    settings: Settings, *, stream: str | None, consumer: str | None, group: str | None, force: bool
) -> None:
    """Take the pin of a priority GROUP from the client that has it; another one gets it."""
    ask = Asker(settings)
    with settings.jetstream() as js:
        info = find(settings, js, stream, consumer)
        groups = list(info.config.priority_groups or ())
        if not groups:
            raise CommandError(f"{title(info)} has no priority groups", ExitStatus.USAGE)
        if group is None and len(groups) == 1:
            group = groups[0]
        if group is None:
            group = ask.select("Select a group", groups, "GROUP")
            ask.done()
        if group not in groups:
            known = ", ".join(groups)
            raise CommandError(
                f"{title(info)} has no group {group!r}: it has {known}", ExitStatus.NOT_FOUND
            )
        client = next(
            (each.pinned_client_id for each in info.priority_groups or () if each.group == group),
            None,
        )
        if client:
            ask.confirm(f"Take the pin of group {group} from client {client}?", force=force)
        js.unpin_consumer(info.stream_name, info.name, group)
    document = {"group": group, "unpinned_client_id": client or None}
    done = f"client {client} is not pinned any more" if client else "no client was pinned"
    emit(settings, document, lambda: say(settings, f"{title(info)}, group {group}: {done}"))


@click.command()
@consumer_arguments
@click.option(
    "--seq", "--sequence", "seq", type=click.IntRange(1), metavar="SEQ", help="Go on at this one."
)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Ask nothing.")
@common_options
def reset(
    settings: Settings, *, stream: str | None, consumer: str | None, seq: int | None, force: bool
) -> None:
    """
    Let a CONSUMER of a STREAM start over: behind its ack floor, or at a sequence of the stream.

    What was delivered and not acknowledged comes again, as if for the first time. Going back, so
    does what was acknowledged; going forward, what is between is never delivered. It needs
    nats-server 2.14.
    """
    with settings.jetstream() as js:
        info = find(settings, js, stream, consumer)
        start = info.ack_floor.stream_seq + 1
        where = f"at sequence {count(seq)}" if seq is not None else "behind its ack floor"
        what = f"Let {words().consumer.lower()} {title(info)}, which is at {count(start)}, go on"
        Asker(settings).confirm(f"{what} {where}?", force=force)
        result = js.reset_consumer(info.stream_name, info.name, seq)

    def human() -> None:
        noun = words().consumer
        say(settings, f"{noun} {title(info)} goes on at sequence {count(result.reset_seq)}\n")
        show(settings, result, state_only=True)

    emit(settings, result, human)
