"""``jsm consumer dlq show``: show a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...durations import time_to_text
from ...errors import ConsumerNotFoundError, StreamNotFoundError
from ..consumer.find import consumer_arguments, names_of, no_consumer, no_stream
from ..messages.shown import body_fields, header_fields, write_bytes
from ..output import Block, count, emit, size, when, write_blocks
from ..sanitize import readable
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..terminology import words
from .dead_letters import SETUP, DeadLetter, DeadLetters

if TYPE_CHECKING:
    from ... import JetStream, StoredMsg

__all__ = ["no_letter", "show"]


@click.command()
@consumer_arguments
@click.argument("seq", type=click.IntRange(1), required=False)
@click.option("-r", "--raw", is_flag=True, help="Show only the body.")
@common_options
def show(
    settings: Settings, *, stream: str | None, consumer: str | None, seq: int | None, raw: bool
) -> None:
    """Show a dead letter of a CONSUMER by its stream sequence, or the oldest one."""
    with settings.jetstream() as js:
        stream, consumer = names_of(settings, js, stream, consumer)
        letters = DeadLetters(js)
        found = letters.read(stream, consumer)
        letter = next((each for each in found if seq in (None, each.seq)), None)
        if letter is None:
            raise no_letter(js, letters, stream, consumer, seq)
        msg = letters.message(letter)
        if msg is None:
            raise CommandError(
                f"{words().stream.lower()} {stream} no longer has message {letter.seq}",
                ExitStatus.NOT_FOUND,
            )
    if raw:
        write_bytes(settings.env, msg.data)
        return
    result = {
        **letter.document_with(msg),
        "stored": time_to_text(msg.time),
        **header_fields(msg.headers),
        **body_fields(msg.data),
    }
    emit(settings, result, lambda: _show_one(settings, letter, msg))


def _show_one(settings: Settings, letter: DeadLetter, msg: StoredMsg) -> None:
    block = Block()
    block.add("Subject", msg.subject)
    block.add("Sequence", count(letter.seq))
    block.add("Stored", when(settings, msg.time))
    block.add("Dead Since", f"{when(settings, letter.time)}, {letter.why}")
    block.add("Deliveries", count(letter.deliveries))
    block.add("Size", size(len(msg.data)))
    heading = f"Dead letter of {words().consumer.lower()} {letter.stream} > {letter.consumer}"
    write_blocks(settings.env, block, heading=heading)
    headers: dict[str, list[str]] = header_fields(msg.headers).get("headers", {})
    lines = [f"{name}: {readable(one)}" for name, values in headers.items() for one in values]
    parts = ["", *([*lines, ""] if lines else []), readable(msg.data)]
    settings.env.stdout.write("\n".join(parts) + "\n")


def no_letter(
    js: JetStream, letters: DeadLetters, stream: str, consumer: str, seq: int | None
) -> CommandError:
    """Return the error for an unknown dead letter, with the most likely reason."""
    try:
        js.consumer_info(stream, consumer)
    except StreamNotFoundError as error:
        return no_stream(js, stream, error)
    except ConsumerNotFoundError as error:
        return no_consumer(js, stream, consumer, error)
    which = "no dead letter" if seq is None else f"no dead letter {seq}"
    return CommandError(
        f"{which} of {stream} > {consumer} found",
        ExitStatus.NOT_FOUND,
        hint="" if letters.stores else SETUP,
    )
