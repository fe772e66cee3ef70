"""``jsm consumer dlq requeue``: publish dead letters again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from ... import Headers
from ...errors import Error, MessageNotFoundError, StreamNotFoundError
from ...subjects import subject_matches
from ..consumer.find import consumer_arguments, names_of
from ..output import count, emit, note
from ..prompts import Asker
from ..sanitize import readable
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus, one_line
from ..terminology import words
from .dead_letters import DeadLetter, DeadLetters
from .show import no_letter

if TYPE_CHECKING:
    from ... import JetStream, StoredMsg

__all__ = ["requeue"]

#: Prefixes of headers that instruct the server how to store a message. On a copy they would make the
#: server reject it, or delete other messages.
_PUBLISH_HEADERS: Final = (
    "nats-expected-",
    "nats-msg-id",
    "nats-rollup",
    "nats-schedule",
    "nats-batch-",
)
#: Header with the stream, consumer and sequence of the original.
_ORIGIN: Final = "Jsm-Requeued-From"


@click.command()
@consumer_arguments
@click.argument("sequences", nargs=-1, type=click.IntRange(1), metavar="[SEQ]...")
@click.option(
    "--all", "everything", is_flag=True, help="Republish all dead letters of the consumer."
)
@click.option(
    "--to",
    "subject",
    metavar="SUBJECT",
    help="Publish to this subject instead of the original one.",
)
@click.option("--delete", is_flag=True, help="Delete the originals from the stream afterwards.")
@click.option("--keep", is_flag=True, help="Keep the messages in the list of dead letters.")
@click.option("--dry-run", is_flag=True, help="Show the messages without publishing them.")
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Skip the confirmation.")
@common_options
def requeue(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    sequences: tuple[int, ...],
    everything: bool,
    subject: str | None,
    delete: bool,
    keep: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """
    Publish dead letters of a CONSUMER again, selected by SEQuence or with --all.

    Each message is published with its subject and headers as a new message of the stream, so every
    consumer of the subject receives it. Its message id is derived from the original, so repeating the
    command within the stream's duplicate window stores no second copy. The message is then removed from
    the list of dead letters. The original stays in the stream unless --delete is given.
    """
    if bool(sequences) == everything:
        raise click.UsageError("give either sequences or --all")
    with settings.jetstream() as js:
        stream, consumer = names_of(settings, js, stream, consumer)
        letters = DeadLetters(js)
        known = {letter.seq: letter for letter in letters.read(stream, consumer)}
        for seq in sequences:
            if seq not in known:
                raise no_letter(js, letters, stream, consumer, seq)
        if everything and not known and not letters.stores:
            raise no_letter(js, letters, stream, consumer, None)
        chosen = [known[seq] for seq in dict.fromkeys(sequences)] or list(known.values())
        run = _Run(settings, js, letters, subject=subject, delete=delete, keep=keep)
        if chosen and not dry_run:
            noun = words().consumer.lower()
            Asker(settings).confirm(
                f"Publish {count(len(chosen))} dead letters of {noun} {stream} > {consumer} again?",
                force=force,
            )
        try:
            for letter in chosen:
                run.requeue(letter, dry_run=dry_run)
        finally:
            run.report(dry_run=dry_run)
    if run.gone and sequences:
        listed = ", ".join(map(str, run.gone))
        raise CommandError(
            f"{words().stream.lower()} {stream} no longer has message {listed}",
            ExitStatus.NOT_FOUND,
        )


@dataclass
class _Run:
    """The state of one run of the command."""

    settings: Settings
    js: JetStream
    letters: DeadLetters
    subject: str | None = field(kw_only=True)
    delete: bool = field(kw_only=True)
    keep: bool = field(kw_only=True)
    done: list[dict[str, Any]] = field(default_factory=list, init=False)
    gone: list[int] = field(default_factory=list, init=False)

    def requeue(self, letter: DeadLetter, *, dry_run: bool) -> None:
        """Publish a dead letter again and remove it from the list."""
        msg = self.letters.message(letter)
        if msg is None:
            self.gone.append(letter.seq)
            return
        subject = self.subject or msg.subject
        fields: dict[str, Any] = {"stream_seq": letter.seq, "subject": readable(subject)}
        if dry_run:
            self.done.append(fields)
            return
        ack = self.js.publish(
            subject,
            msg.data,
            headers=_headers(letter, msg),
            # Unique for the original, so that the duplicate window detects a second copy.
            msg_id=f"jsm.requeue.{letter.stream}.{letter.consumer}.{letter.seq}",
            stream=self._expected(letter.stream, subject),
        )
        fields.update(to_stream=ack.stream, to_seq=ack.seq, duplicate=bool(ack.duplicate))
        self.done.append(fields)
        if self.delete:
            self._remove(letter.stream, letter.seq)
        if not self.keep:
            for store, seq in letter.advisories:
                self._remove(store, seq)

    def _expected(self, stream: str, subject: str) -> str | None:
        """Return the stream to expect: the original one, if it stores the subject."""
        found = self.letters.stream(stream)
        subjects = (found.cached_info.config.subjects if found is not None else None) or ()
        return stream if any(subject_matches(each, subject) for each in subjects) else None

    def _remove(self, name: str, seq: int) -> None:
        stream = self.letters.stream(name)
        if stream is None:
            return
        try:
            stream.delete_msg(seq)
        except (MessageNotFoundError, StreamNotFoundError):
            return
        except Error as error:
            note(
                self.settings,
                f"warning: message {seq} of {name} was not deleted: {one_line(error)}",
            )

    def report(self, *, dry_run: bool) -> None:
        """Write the result, also after an error."""
        result = {
            "requeued": self.done,
            "gone": self.gone,
            **({"dry_run": True} if dry_run else {}),
        }
        emit(self.settings, result, lambda: self._show(dry_run=dry_run))

    def _show(self, *, dry_run: bool) -> None:
        out = self.settings.env.stdout
        for each in self.done:
            line = f"message {count(each['stream_seq'])} to {each['subject']}"
            if dry_run:
                out.write(f"Would publish {line}\n")
            elif each["duplicate"]:
                out.write(f"Already published {line}\n")
            else:
                place = f"{each['to_stream']} stored it as {count(each['to_seq'])}"
                out.write(f"Published {line}: {place}\n")
        for seq in self.gone:
            out.write(f"Message {count(seq)} is no longer in the stream\n")
        if not self.done and not self.gone:
            out.write("There are no dead letters\n")


def _headers(letter: DeadLetter, msg: StoredMsg) -> Headers:
    """Return the headers of the copy: the original ones without `_PUBLISH_HEADERS`."""
    headers = Headers()
    for name, value in (msg.headers or headers).pairs():
        if not name.lower().startswith(_PUBLISH_HEADERS):
            headers.add(name, value)
    headers[_ORIGIN] = f"{letter.stream} {letter.consumer} {letter.seq}"
    return headers
