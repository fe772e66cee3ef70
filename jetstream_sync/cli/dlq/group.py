"""``jsm consumer dlq``: list, show and republish dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from ... import StorageType
from ..completion.complete import complete_consumer, complete_stream
from ..consumer.list import infos_of
from ..groups import LazyCommand, NounGroup
from ..output import count, document, emit, note, say, size, when
from ..prompts import Asker
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..terminology import words
from ..values import LIMITED_DURATION
from .dead_letters import ADVISORIES, SETUP, DeadLetter, DeadLetterEstimate, DeadLetters
from .show import no_letter

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream, StoredMsg, Stream

__all__ = ["dlq"]

_STORE: Final = "DEAD_LETTERS"

_COMMANDS: Final = {
    "show": LazyCommand(
        target="jetstream_sync.cli.dlq.show:show",
        help="Show a dead letter.",
        aliases=("view", "get"),
    ),
    "requeue": LazyCommand(
        target="jetstream_sync.cli.dlq.requeue:requeue",
        help="Publish dead letters again.",
        aliases=("retry",),
    ),
}


@click.group(cls=NounGroup, lazy=_COMMANDS)
@common_options
def dlq(_settings: Settings) -> None:
    """
    Find and republish dead letters: messages that consumers do not deliver again.

    A message becomes a dead letter when it reaches the consumer's --max-deliver, or when a client
    terminates it. It stays in the stream without a mark. The server publishes one advisory for it.
    'dlq setup' creates a stream that stores these advisories; dead letters can be listed from then on.
    """


@dlq.command("setup", short_help="Create a stream that stores the advisories.")
@click.option("--name", default=_STORE, show_default=True, help="Set the name of the stream.")
@click.option(
    "--max-age",
    type=LIMITED_DURATION,
    default="30d",
    show_default=True,
    metavar="TIME",
    help="Keep advisories for this time; -1: no limit.",
)
@click.option(
    "--replicas", type=click.IntRange(1, 5), metavar="N", help="Store the stream on N servers."
)
@common_options
def setup(settings: Settings, *, name: str, max_age: timedelta, replicas: int | None) -> None:
    """Create a stream that stores the advisories, unless one exists."""
    with settings.jetstream() as js:
        known = DeadLetters(js).stores
        stream = js.get_stream(known[0]) if known else _create_stream(js, name, max_age, replicas)
    noun = words().stream
    done = (
        f"{noun} {stream.name} already stores the advisories"
        if known
        else (f"{noun} {stream.name} stores the advisories of dead letters from now on")
    )
    emit(settings, document(stream.cached_info), lambda: say(settings, done))


def _create_stream(js: JetStream, name: str, max_age: timedelta, replicas: int | None) -> Stream:
    return js.create_stream(
        name=name,
        subjects=list(ADVISORIES),
        description="Dead letters: advisories of max deliver and of termination",
        storage=StorageType.FILE,
        max_age=max_age or None,
        num_replicas=replicas,
        allow_direct=True,
    )


# --- ls -------------------------------------------------------------------------------------------


@dlq.command("ls", aliases=("list", "l"), short_help="List dead letters.")
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumer", required=False, shell_complete=complete_consumer)
@click.option("--gone", is_flag=True, help="Include messages that are no longer in the stream.")
@common_options
def ls(settings: Settings, *, stream: str | None, consumer: str | None, gone: bool) -> None:
    """
    List the dead letters of a CONSUMER, of a STREAM, or of all streams.

    Only dead letters with a stored advisory are listed. When no stream stores the advisories, estimates from
    the counters of the consumers are shown instead.
    """
    with settings.jetstream() as js:
        infos = infos_of(js, stream)
        if consumer is not None:
            infos = [info for info in infos if info.name == consumer]
        letters = DeadLetters(js)
        estimates = DeadLetterEstimate.of(infos)
        if not letters.stores:
            _show_unknown(settings, estimates)
            _offer(settings, js)
            return
        found = [(each, letters.message(each)) for each in letters.read(stream, consumer)]
        if consumer is not None and not infos and not found:
            # A deleted consumer may have left dead letters.
            raise no_letter(js, letters, str(stream), consumer, None)
    present = [(letter, msg) for letter, msg in found if gone or msg is not None]
    result = {
        "stored_in": letters.stores,
        "messages": [letter.document_with(msg) for letter, msg in present],
        "consumers": [each.document() for each in estimates],
    }
    emit(settings, result, lambda: _show_list(settings, stream, present))
    _warn_of_more(settings, [letter for letter, _ in found], estimates)


def _show_list(
    settings: Settings, stream: str | None, found: list[tuple[DeadLetter, StoredMsg | None]]
) -> None:
    if not found:
        say(settings, "No dead letters")
        return
    rows = [
        [
            letter.consumer if stream is not None else f"{letter.stream} > {letter.consumer}",
            "gone" if msg is None else msg.subject,
            letter.why,
            when(settings, letter.time),
            count(letter.seq),
            count(letter.deliveries),
            "-" if msg is None else size(len(msg.data)),
        ]
        for letter, msg in found
    ]
    columns = [words().consumer, "Subject", "Why", "When", "Sequence", "Deliveries", "Size"]
    heading = f"Dead letters of {stream}" if stream is not None else "Dead letters"
    write_table(Table(title=heading, columns=columns, rows=rows, left=4), settings.env)


def _warn_of_more(
    settings: Settings, letters: list[DeadLetter], estimates: list[DeadLetterEstimate]
) -> None:
    """Warn when the counters show more dead letters than the stored advisories."""
    for each in estimates:
        info = each.info
        known = sum(
            1
            for letter in letters
            if (letter.stream, letter.consumer) == (info.stream_name, info.name)
            and letter.kind == "max_deliver"
        )
        if each.lower_bound > known:
            note(
                settings,
                f"warning: {info.stream_name} > {info.name} has {count(each.lower_bound - known)} more "
                "dead letters, without a stored advisory",
            )


def _show_unknown(settings: Settings, estimates: list[DeadLetterEstimate]) -> None:
    """Show estimates when no stream stores the advisories."""
    # Not an empty list, which would mean that there are no dead letters.
    result = {
        "stored_in": [],
        "messages": None,
        "consumers": [each.document() for each in estimates],
    }
    note(settings, f"dead letters cannot be listed: no stream stores the advisories; {SETUP}")

    def human() -> None:
        if not estimates:
            say(settings, "The counters of the consumers show no dead letters")
            return
        rows = [
            [
                f"{each.info.stream_name} > {each.info.name}",
                count(each.info.config.max_deliver or 0),
                _how_many(each),
                count(each.info.num_ack_pending),
                _among(each.info),
            ]
            for each in estimates
        ]
        columns = [words().consumer, "Max Deliver", "Dead Letters", "Ack Pending", "Sequences"]
        title = "Estimated dead letters from consumer counters"
        write_table(Table(title=title, columns=columns, rows=rows), settings.env)

    emit(settings, result, human)


def _how_many(estimate: DeadLetterEstimate) -> str:
    least, most = estimate.lower_bound, estimate.upper_bound
    if most is None:
        return "unknown"
    return count(most) if least == most else f"{count(least)} to {count(most)}"


def _among(info: ConsumerInfo) -> str:
    """Return the range of stream sequences of the dead letters."""
    return f"{count(info.ack_floor.stream_seq + 1)} to {count(info.delivered.stream_seq)}"


def _offer(settings: Settings, js: JetStream) -> None:
    """Offer to create the stream for the advisories, if prompts are possible."""
    ask = Asker(settings)
    if not ask.interactive:
        return
    answer = ask.choice(
        f"Store the advisories from now on in {words().stream.lower()} {_STORE}",
        ["y", "n"],
        "'jsm consumer dlq setup'",
        default="n",
        help="It stores the advisories of max deliver and of termination for 30 days",
    )
    if answer == "y":
        _create_stream(js, _STORE, timedelta(days=30), None)
        say(settings, f"{words().stream} {_STORE} was created")
