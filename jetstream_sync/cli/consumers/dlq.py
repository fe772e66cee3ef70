"""``jsm consumer dlq``: list, show and republish dead letters; see `jetstream_sync.workers.DeadLetters`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ... import errors
from ...durations import time_to_text
from ...workers import DeadLetter, DeadLetters
from ..messages.view import body_fields, header_fields, header_lines, write_bytes
from ..shared.env import readable
from ..shared.listings import UNANSWERED, in_parallel
from ..shared.names import (
    complete_consumer,
    complete_stream,
    consumer_arguments,
    find_consumer,
    find_stream,
    names_of,
)
from ..shared.output import count, emit, emit_text, size
from ..shared.render import Block, Field, Table, bad, show_rows, write_blocks
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, CommandError, FailedError, one_line
from ..shared.values import LIMITED_DURATION, force_option, option

if TYPE_CHECKING:
    from ... import JetStream, StoredMsg

#: The remedy when no stream stores the advisories.
_SETUP: Final = "'jsm consumer dlq setup' creates a stream that stores the advisories from now on"
_STORE: Final = "DEAD_LETTERS"


@command()
@option("--name TEXT", "Set the name of the stream.", default=_STORE)
@option("--max-age TIME", "How long to keep advisories.", LIMITED_DURATION, default="30d")
@option("--replicas N", "Store the stream on N servers.", click.IntRange(1, 5))
def setup(settings: Settings, *, name: str, max_age: timedelta, replicas: int | None) -> None:
    """Create a stream that stores the advisories, unless one exists."""
    with settings.jetstream() as js:
        letters = DeadLetters(js)
        known = letters.advisory_streams()
        stream = letters.store_advisories(name, max_age=max_age or None, num_replicas=replicas)
    done = "already stores the advisories"
    if not known:
        done = "stores the advisories of dead letters from now on"
    emit_text(settings, stream.cached_info, f"Stream {stream.name} {done}")


# --- ls -------------------------------------------------------------------------------------------


@command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumer", required=False, shell_complete=complete_consumer)
@option("--gone", "Include messages that are no longer in the stream.")
def ls(settings: Settings, *, stream: str | None, consumer: str | None, gone: bool) -> None:
    """
    List the dead letters of a CONSUMER, of a STREAM, or of all streams.

    Only dead letters with a stored advisory, or a copy stored by a worker, are listed. The exit status is 3 if
    no stream stores them.
    """
    with settings.jetstream() as js:
        if stream is not None:
            find_stream(js, stream)
        letters = DeadLetters(js)
        stores = sorted({*letters.advisory_streams(), *letters.copy_streams()})
        if not stores:
            # Not an empty list, which would mean that there are no dead letters.
            emit_text(settings, {"stored_in": [], "messages": None}, "")
            text = "dead letters are unknown: no stream stores the advisories"
            raise AbsentError(text, hint=_SETUP)
        lost: dict[str, str] = {}
        items = letters.find(stream, consumer)
        messages = in_parallel(lambda item: _message(letters, item, lost), items)
        found = list(zip(items, messages, strict=True))
        if consumer is not None and not found:
            # A deleted consumer may have left dead letters.
            find_consumer(settings, js, stream, consumer)
    present = [(letter, msg) for letter, msg in found if gone or msg is not None]
    result = {
        "stored_in": stores,
        "messages": [_letter_document(letter, msg) for letter, msg in present],
    }
    heading = f"Dead letters of {stream}" if stream is not None else "Dead letters"
    columns = _CONSUMER if stream is not None else _STREAM_AND_CONSUMER, *_LIST
    show_rows(settings, present, Table(columns, heading, "No dead letters"), document=result)
    if lost:
        listed = ", ".join(f"{name} ({reason})" for name, reason in lost.items())
        raise FailedError(f"these streams cannot be read: {listed}")


#: In place of a message whose stream does not answer.
_UNKNOWN: Final = "?"


def _message(
    letters: DeadLetters, letter: DeadLetter, lost: dict[str, str]
) -> StoredMsg | Literal["?"] | None:
    """Return the message of a letter; `_UNKNOWN` if its stream cannot be read, with the reason in ``lost``."""
    if letter.stream not in lost:
        try:
            return letters.get_msg(letter)
        except UNANSWERED as error:
            lost[letter.stream] = one_line(error)
    return _UNKNOWN


def _letter_document(letter: DeadLetter, msg: StoredMsg | Literal["?"] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "stream": letter.stream,
        "consumer": letter.consumer,
        "stream_seq": letter.seq,
        "kind": letter.kind,
        "deliveries": letter.deliveries,
        "time": time_to_text(letter.time),
        **({"reason": letter.reason} if letter.reason else {}),
        "in_stream": None if msg == _UNKNOWN else msg is not None,
    }
    if msg is not None and msg != _UNKNOWN:
        fields.update(subject=readable(msg.subject), bytes=len(msg.data))
    return fields


def why_dead(kind: str, reason: str) -> str:
    """Return why a message became a dead letter, in a few words."""
    shown = {"max_deliver": "max deliver", "copy": "worker"}.get(kind, kind)
    return f"{shown}: {reason}" if reason else shown


_CONSUMER: Final = Field("Consumer", lambda row: row[0].consumer)
_STREAM_AND_CONSUMER: Final = Field("Consumer", lambda row: f"{row[0].stream} > {row[0].consumer}")


def _subject(row: tuple[DeadLetter, Any]) -> Any:
    if row[1] == _UNKNOWN:
        return bad(_UNKNOWN)
    return bad("gone") if row[1] is None else row[1].subject


def _size(row: tuple[DeadLetter, Any]) -> Any:
    if row[1] is None:
        return None
    return _UNKNOWN if row[1] == _UNKNOWN else size(len(row[1].data))


_LIST: Final = (
    Field("Subject", _subject),
    Field("Why", lambda row: why_dead(row[0].kind, row[0].reason)),
    Field("When", lambda row: row[0].time, drop=2),
    Field("Sequence", lambda row: row[0].seq),
    Field("Deliveries", lambda row: row[0].deliveries, drop=1),
    Field("Size", _size, drop=3, right=True),
)


# --- show -----------------------------------------------------------------------------------------


@command()
@consumer_arguments
@click.argument("seq", type=click.IntRange(1), required=False)
@option("-r, --raw", "Show only the body.")
def show(
    settings: Settings, *, stream: str | None, consumer: str | None, seq: int | None, raw: bool
) -> None:
    """Show a dead letter of a CONSUMER by its stream sequence, or the oldest one."""
    with settings.jetstream() as js:
        stream, consumer = names_of(settings, js, stream, consumer)
        letters = DeadLetters(js)
        found = letters.find(stream, consumer)
        letter = next((item for item in found if seq in (None, item.seq)), None)
        if letter is None:
            raise _no_letter(settings, js, letters, (stream, consumer), seq)
        msg = letters.get_msg(letter)
        if msg is None:
            raise _gone(stream, [letter.seq])
    if raw:
        write_bytes(settings.env, msg.data)
        return
    result = {
        **_letter_document(letter, msg),
        "stored": time_to_text(msg.time),
        **header_fields(msg.headers),
        **body_fields(msg.data),
    }
    emit(settings, result, lambda: _show_one(settings, letter, msg))


def _show_one(settings: Settings, letter: DeadLetter, msg: StoredMsg) -> None:
    heading = f"Dead letter of consumer {letter.stream} > {letter.consumer}"
    write_blocks(settings, Block("", _ONE, (letter, msg)), heading=heading)
    lines = header_lines(msg.headers)
    parts = ["", *([*lines, ""] if lines else []), readable(msg.data)]
    settings.env.stdout.write("\n".join(parts) + "\n")


_ONE: Final = (
    Field("Subject", lambda row: row[1].subject),
    Field("Sequence", lambda row: row[0].seq),
    Field("Stored", lambda row: row[1].time),
    Field("Dead Since", lambda row: [row[0].time, why_dead(row[0].kind, row[0].reason)]),
    Field("Deliveries", lambda row: row[0].deliveries),
    Field("Size", lambda row: len(row[1].data), size),
)


def _no_letter(
    settings: Settings,
    js: JetStream,
    letters: DeadLetters,
    consumer: tuple[str, str],
    seq: int | None = None,
) -> CommandError:
    """Return the error for an unknown dead letter; raise that of an unknown stream or consumer."""
    find_consumer(settings, js, *consumer)
    which = "no dead letter" if seq is None else f"no dead letter {seq}"
    return AbsentError(
        f"{which} of {' > '.join(consumer)} found",
        hint="" if letters.advisory_streams() else _SETUP,
    )


def _gone(stream: str, sequences: Sequence[int]) -> CommandError:
    listed = ", ".join(map(str, sequences))
    return AbsentError(f"stream {stream} no longer has message {listed}")


# --- requeue --------------------------------------------------------------------------------------


@command()
@consumer_arguments
@click.argument("sequences", nargs=-1, type=click.IntRange(1), metavar="[SEQ]...")
@option("--all", "Republish all dead letters of the consumer.", to="everything")
@option("--to SUBJECT", "Publish to this subject instead of the original one.", to="subject")
@option("--delete", "Delete the originals from the stream afterwards.")
@force_option
def requeue(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    sequences: tuple[int, ...],
    everything: bool,
    subject: str | None,
    delete: bool,
    force: bool,
) -> None:
    """
    Publish dead letters of a CONSUMER again, selected by SEQuence or with --all.

    Each message is published with its subject and headers as a new message of the stream, so every
    consumer of the subject receives it. Its message id is derived from the original, so repeating the
    command within the stream's duplicate window stores no second copy. The message is then removed from
    the list of dead letters, with its advisories and the copy that a worker stored. The original stays in
    the stream unless --delete is given.
    """
    if bool(sequences) == everything:
        raise click.UsageError("give either sequences or --all")
    done: list[dict[str, Any]] = []
    gone: list[int] = []
    with settings.jetstream() as js:
        stream, consumer = names_of(settings, js, stream, consumer)
        letters = DeadLetters(js)
        known = {letter.seq: letter for letter in letters.find(stream, consumer)}
        for seq in sequences:
            if seq not in known:
                raise _no_letter(settings, js, letters, (stream, consumer), seq)
        if everything and not known and not letters.advisory_streams():
            raise _no_letter(settings, js, letters, (stream, consumer))
        chosen = [known[seq] for seq in dict.fromkeys(sequences)] or list(known.values())
        if chosen:
            settings.ask().confirm(
                f"Publish {count(len(chosen))} dead letters of consumer {stream} > {consumer} again?",
                force=force,
            )
        try:
            for letter in chosen:
                msg = letters.get_msg(letter)
                if msg is None:
                    gone.append(letter.seq)
                    continue
                if subject is not None:
                    msg = msg._replace(subject=subject)
                ack = letters.requeue(letter, msg)
                done.append(
                    {
                        "stream_seq": letter.seq,
                        "subject": readable(msg.subject),
                        "to_stream": ack.stream,
                        "to_seq": ack.seq,
                        "duplicate": ack.duplicate,
                    }
                )
                _remove(settings, letters, letter, delete=delete)
        finally:
            # Also after an error: messages were published, and others are left.
            left = [letter.seq for letter in chosen[len(done) + len(gone) :]]
            document = {"requeued": done, "gone": gone, **({"not_requeued": left} if left else {})}
            emit_text(settings, document, "\n".join(_requeue_lines(done, gone, left)))
    if gone and sequences:
        raise _gone(stream, gone)


def _remove(settings: Settings, letters: DeadLetters, letter: DeadLetter, *, delete: bool) -> None:
    """Delete what is left of a dead letter that was published; an error is a warning."""
    try:
        if delete:
            letters.delete_original(letter)
        letters.discard(letter)
    except errors.Error as error:
        text = f"dead letter {letter.seq} was published, but not removed"
        settings.note(f"warning: {text}: {one_line(error)}")


def _requeue_lines(
    done: Sequence[dict[str, Any]], gone: Sequence[int], left: Sequence[int]
) -> Iterator[str]:
    for item in done:
        what = f"message {count(item['stream_seq'])} to {item['subject']}"
        stored = f"{what}: {item['to_stream']} stored it as {count(item['to_seq'])}"
        yield f"Already published {what}" if item["duplicate"] else f"Published {stored}"
    for seq in gone:
        yield f"Message {count(seq)} is no longer in the stream"
    for seq in left:
        yield f"Message {count(seq)} was not published"
    if not (done or gone or left):
        yield "There are no dead letters"
