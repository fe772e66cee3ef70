"""``jsm stream rm``, ``purge`` and ``rmm``: delete streams, all messages or single messages."""

from __future__ import annotations

from typing import Any

import click

from ... import JetStream, Stream, StreamInfo
from ...errors import MessageNotFoundError, StreamNotFoundError
from ...subjects import check_stream_name
from ..completion import complete_stream, optional_stream_argument, stream_argument
from ..names import find_stream, not_found
from ..output import counted, emit_text, note
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import STREAM_NAME, force_option
from .show import write_state


@click.command()
@click.argument(
    "names", nargs=-1, metavar="[STREAM]...", type=STREAM_NAME, shell_complete=complete_stream
)
@force_option
@click.option("--ignore-missing", is_flag=True, help="Ignore streams that do not exist.")
@common_options
def rm(settings: Settings, names: tuple[str, ...], force: bool, ignore_missing: bool) -> None:
    """Delete streams with their messages and consumers."""
    ask = Asker(settings)
    deleted = []
    with settings.jetstream() as js:
        if not names:
            names = (ask.select("Select a stream", js.stream_names, "STREAM"),)
            ask.done()
        found = _existing(js, names, ignore_missing=ignore_missing)
        held = sum(each.state.messages for each in found)
        listed = ", ".join(each.config.name for each in found)
        if found:
            kind = "Stream" if len(found) == 1 else "Streams"
            ask.confirm(f"Delete {kind} {listed} with {counted(held, 'message')}?", force=force)
        for each in found:
            try:
                js.delete_stream(each.config.name)
            except StreamNotFoundError:
                if not ignore_missing:
                    raise
                continue
            deleted.append(each.config.name)
    emit_text(settings, {"deleted": deleted}, "")
    if not settings.json:
        for name in deleted:
            settings.env.stderr.write(f"Stream {name} was deleted\n")


def _existing(js: JetStream, names: tuple[str, ...], *, ignore_missing: bool) -> list[StreamInfo]:
    """Return the streams; raise for an unknown name before anything is deleted."""
    found = []
    for name in dict.fromkeys(names):
        check_stream_name(name)
        try:
            found.append(js.get_stream(name).cached_info)
        except StreamNotFoundError:
            if not ignore_missing:
                raise not_found("stream", name, js.stream_names()) from None
    return found


@click.command()
@optional_stream_argument
@click.option("--subject", metavar="SUBJECT", help="Delete only messages of this subject.")
@click.option("--seq", type=click.IntRange(1), help="Delete only messages before this sequence.")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Keep the newest N messages.")
@click.option("--dry-run", is_flag=True, help="Show how many messages would be deleted.")
@force_option
@common_options
def purge(
    settings: Settings,
    name: str | None,
    subject: str | None,
    seq: int | None,
    keep: int | None,
    dry_run: bool,
    force: bool,
) -> None:
    """Delete all or some messages of a stream; the stream remains."""
    if seq is not None and keep is not None:
        raise click.UsageError("--seq and --keep exclude each other")
    ask = Asker(settings)
    with settings.jetstream() as js:
        stream = find_stream(js, name, ask)
        number = None
        if dry_run or not force:
            number = _count_purged(stream, subject, seq, keep)
        if dry_run:
            text = f"{_count_text(number)} would be purged from {stream.name}"
            emit_text(settings, {"dry_run": True, "would_purge": number}, text)
            return
        ask.confirm(f"Purge {_count_text(number)} from {stream.name}?", force=force)
        purged = stream.purge(subject=subject, seq=seq, keep=keep)
        info = stream.info() if not settings.json else stream.cached_info
    emit_text(
        settings,
        {"success": True, "purged": purged},
        f"Purged {counted(purged, 'message')}\n",
    )
    if not settings.json:
        write_state(settings, info)


def _count_text(number: int | None) -> str:
    return "an unknown number of messages" if number is None else counted(number, "message")


def _count_purged(
    stream: Stream, subject: str | None, seq: int | None, keep: int | None
) -> int | None:
    """Return how many messages a purge would delete, or ``None`` if the server cannot count them."""
    if subject is None:
        if seq is None:
            return max(0, stream.cached_info.state.messages - (keep or 0))
        return _count_before(stream, seq)
    if seq is not None:
        return None
    counts = stream.info(subjects_filter=subject).state.subjects or {}
    return max(0, sum(counts.values()) - (keep or 0))


def _count_before(stream: Stream, seq: int) -> int:
    """Return the number of existing messages before a sequence."""
    state = stream.info(deleted_details=True).state
    if not state.messages or seq <= state.first_seq:
        return 0
    deleted = sum(1 for each in state.deleted or () if each < seq)
    return min(seq, state.last_seq + 1) - state.first_seq - deleted


@click.command()
@stream_argument
@click.argument("sequences", nargs=-1, required=True, type=click.IntRange(1), metavar="SEQ...")
@click.option("--no-erase", is_flag=True, help="Do not overwrite the data; this is faster.")
@force_option
@common_options
def rmm(
    settings: Settings, name: str, sequences: tuple[int, ...], no_erase: bool, force: bool
) -> None:
    """Delete single messages by sequence; their data is overwritten."""
    ask = Asker(settings)
    deleted: list[int] = []
    missing: list[int] = []
    with settings.jetstream() as js:
        stream = find_stream(js, name)
        listed = ", ".join(map(str, sequences))
        kind = "message" if len(sequences) == 1 else "messages"
        ask.confirm(f"Delete {kind} {listed} of {stream.name}?", force=force)
        for seq in dict.fromkeys(sequences):
            try:
                stream.delete_msg(seq, secure=not no_erase)
                deleted.append(seq)
            except MessageNotFoundError:
                missing.append(seq)
    result: dict[str, Any] = {"deleted": deleted}
    if missing:
        result["missing"] = missing
    emit_text(settings, result, "\n".join(f"Deleted message {seq}" for seq in deleted))
    if missing:
        listed = ", ".join(map(str, missing))
        if deleted:
            note(settings, f"{len(deleted)} of {len(deleted) + len(missing)} messages were deleted")
        raise CommandError(f"{name} has no message {listed}", ExitStatus.NOT_FOUND)
