"""
``jsm consumer dlq``: list, show and republish dead letters.

They are messages that a consumer does not deliver again. The server does not mark them in the stream. It
publishes an advisory when a message has reached the consumer's ``max_deliver``, and when a client
terminates a message. Advisories are not stored by default, so only those captured by a stream can be
listed. Without such a stream, the counters of a consumer give an estimate of the number of dead letters,
but not their sequences.

Workers store a copy of each message that they give up, on subjects that begin with ``dead.``. Headers of
the copy name the original. A copy counts as a dead letter, and replaces the advisory of its message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from .. import Headers, StorageType
from ..codec import loads
from ..durations import time_from_text, time_to_text
from ..errors import (
    ConsumerNotFoundError,
    Error,
    InvalidResponseError,
    MessageNotFoundError,
    StreamNotFoundError,
    TimeoutError,
)
from ..subjects import subject_matches, subjects_overlap
from .consumers import infos_of
from .env import readable
from .groups import NounGroup
from .messages.view import body_fields, header_fields, header_lines, write_bytes
from .names import (
    complete_consumer,
    complete_stream,
    consumer_arguments,
    names_of,
    no_consumer,
    no_stream,
)
from .output import count, document, emit, note, say, size
from .prompts import Asker
from .render import Block, Field, bad, show_rows, write_blocks, write_rows
from .settings import Settings, common_options
from .status import CommandError, ExitStatus, one_line
from .values import LIMITED_DURATION

if TYPE_CHECKING:
    from .. import ConsumerInfo, JetStream, JetStreamMsg, StoredMsg, Stream

#: Subjects of the advisories for messages at the delivery limit, and terminated by a client.
_MAX_DELIVER: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_TERMINATED: Final = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"
#: The subjects of a stream that stores these advisories.
ADVISORIES: Final = (f"{_MAX_DELIVER}.>", f"{_TERMINATED}.>")

#: The remedy when no stream stores the advisories.
SETUP: Final = "'jsm consumer dlq setup' creates a stream that stores the advisories from now on"

#: The subjects of the copies that workers store, and the prefix of the headers that they add.
_COPIES: Final = "dead.>"
_COPY_HEADER: Final = "dead-"

_KINDS: Final[Mapping[str, str]] = {
    "io.nats.jetstream.advisory.v1.max_deliver": "max_deliver",
    "io.nats.jetstream.advisory.v1.terminated": "terminated",
}
#: Timeout for an advisory that is in the stream, in seconds.
_READ_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that a consumer does not deliver again."""

    stream: str
    consumer: str
    seq: int
    """The stream sequence of the message."""
    kind: str
    """``max_deliver`` or ``terminated``, or ``copy``: a worker stored a copy."""
    deliveries: int
    time: datetime
    """The time of the advisory."""
    reason: str = ""
    """The reason given by the worker, or by the client that terminated the message."""
    advisories: list[tuple[str, int]] = field(default_factory=list)
    """The stream and sequence of each stored advisory for this message, and of its copies."""
    subject: str = ""
    """The subject of the original, if there is a copy."""
    pointer: bool = False
    """Whether the copy has no data, because the message was too large."""

    @property
    def why(self) -> str:
        """Return a short description of the reason."""
        if self.kind == "max_deliver":
            return "max deliver"
        if self.kind == "copy":
            return f"worker: {self.reason}" if self.reason else "worker"
        return f"terminated: {self.reason}" if self.reason else "terminated"

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "stream_seq": self.seq,
            "kind": self.kind,
            "deliveries": self.deliveries,
            "time": time_to_text(self.time),
            **({"reason": self.reason} if self.reason else {}),
        }

    def document_with(self, msg: StoredMsg | None) -> dict[str, Any]:
        """Return the JSON document with details of the message; ``None``: it was deleted."""
        fields: dict[str, Any] = {**self.document(), "in_stream": msg is not None}
        if msg is not None:
            fields.update(subject=readable(msg.subject), bytes=len(msg.data))
        return fields


@dataclass(frozen=True, kw_only=True)
class DeadLetterEstimate:
    """An estimate of a consumer's dead letters, from its counters."""

    info: ConsumerInfo

    @property
    def upper_bound(self) -> int | None:
        """
        The maximum number of dead letters: all unacknowledged redelivered messages.

        ``None`` for ``max_deliver=1``, since the server does not count these messages.
        """
        return None if self.info.config.max_deliver == 1 else self.info.num_redelivered

    @property
    def lower_bound(self) -> int:
        """The minimum number of dead letters: messages with a pending acknowledgement are excluded."""
        return max(0, self.info.num_redelivered - self.info.num_ack_pending)

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        info = self.info
        return {
            "stream": info.stream_name,
            "consumer": info.name,
            "max_deliver": info.config.max_deliver,
            "at_least": self.lower_bound,
            "at_most": self.upper_bound,
            "num_redelivered": info.num_redelivered,
            "num_ack_pending": info.num_ack_pending,
            "ack_floor_stream_seq": info.ack_floor.stream_seq,
            "delivered_stream_seq": info.delivered.stream_seq,
        }

    @classmethod
    def of(cls, infos: Sequence[ConsumerInfo]) -> list[DeadLetterEstimate]:
        """Return the estimates of the consumers that may have dead letters."""
        return [
            cls(info=info)
            for info in infos
            if (info.config.max_deliver or -1) > 0
            and (
                info.num_redelivered or (info.config.max_deliver == 1 and info.delivered.stream_seq)
            )
        ]


class DeadLetters:
    """
    The dead letters of an account whose advisories or copies are stored.

    Args:
        js: the JetStream context of the account.

    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._streams: dict[str, Stream | None] = {}
        #: The streams that store some or all of the advisories.
        self.stores: list[str] = sorted(
            {name for subject in ADVISORIES for name in js.stream_names(subject=subject)}
        )
        #: The streams that store the copies of workers.
        self.copies: list[str] = js.stream_names(subject=_COPIES)

    def read(self, stream: str | None = None, consumer: str | None = None) -> list[DeadLetter]:
        """
        Return the dead letters, sorted by stream, consumer and sequence.

        Args:
            stream: only those of this stream; ``None``: of all streams.
            consumer: only those of this consumer; ``None``: of all consumers.

        """
        found: dict[tuple[str, str, int], DeadLetter] = {}
        wanted = [
            f"{each}.{stream or '*'}.{consumer or '*'}" for each in (_MAX_DELIVER, _TERMINATED)
        ]
        advisories = (each for store in self.stores for each in self._stored(store, wanted))
        # After the advisories, which they replace. A worker chooses the rest of their subjects.
        copies = (each for store in self.copies for each in self._stored(store, [_COPIES]))
        for letter in itertools.chain(advisories, copies):
            if stream not in (None, letter.stream) or consumer not in (None, letter.consumer):
                continue
            key = (letter.stream, letter.consumer, letter.seq)
            # The last advisory replaces earlier ones for the same message.
            before = found.pop(key, None)
            if before is not None:
                letter.advisories[:0] = before.advisories
            found[key] = letter
        return [found[key] for key in sorted(found)]

    def _stored(self, store: str, wanted: list[str]) -> Iterator[DeadLetter]:
        """Yield the dead letters from the advisories or copies on these subjects of one stream."""
        held = self.stream(store)
        if held is None:
            return
        copies = wanted == [_COPIES]
        covered = held.cached_info.config.subjects or ()
        filters = [each for each in wanted if any(subjects_overlap(one, each) for one in covered)]
        total = 0
        for each in filters:
            total += sum((held.info(subjects_filter=each).state.subjects or {}).values())
        if not total:
            return
        ordered = held.ordered_consumer(filter_subjects=filters, headers_only=copies)
        with ordered.messages(stop_after=total) as messages:
            for _ in range(total):
                try:
                    msg = messages.next(_READ_TIMEOUT_S)
                except TimeoutError:
                    return  # some messages have just expired
                about = msg.metadata
                stored = (store, about.stream_seq)
                letter = _copy(msg, stored) if copies else _letter(msg.data, stored)
                if letter is not None:
                    yield letter
                if not about.num_pending:
                    return

    def stream(self, name: str) -> Stream | None:
        """Return a stream, cached after the first lookup; ``None``: it does not exist."""
        if name not in self._streams:
            try:
                self._streams[name] = self._js.get_stream(name)
            except StreamNotFoundError:
                self._streams[name] = None
        return self._streams[name]

    def message(self, letter: DeadLetter) -> StoredMsg | None:
        """Return the message of a dead letter; ``None``: it is no longer in the stream."""
        name, seq = letter.stream, letter.seq
        if letter.kind == "copy" and not letter.pointer:
            name, seq = letter.advisories[-1]
        stream = self.stream(name)
        try:
            msg = stream.get_msg(seq) if stream is not None else None
        except (MessageNotFoundError, StreamNotFoundError):
            return None
        if msg is not None and name != letter.stream:
            return msg._replace(subject=letter.subject, headers=_original_headers(msg))
        # A message stored after the advisory belongs to a recreated stream.
        return None if msg is None or msg.time > letter.time else msg


def _letter(data: bytes, stored: tuple[str, int]) -> DeadLetter | None:
    """Return the dead letter for an advisory; ``None``: the data is not such an advisory."""
    try:
        event = loads(data)
        kind = _KINDS.get(event["type"])
        if kind is None:
            return None
        return DeadLetter(
            stream=str(event["stream"]),
            consumer=str(event["consumer"]),
            seq=int(event["stream_seq"]),
            kind=kind,
            deliveries=int(event.get("deliveries", 0)),
            time=time_from_text(event["timestamp"]),
            reason=str(event.get("reason", "")),
            advisories=[stored],
        )
    except (InvalidResponseError, KeyError, TypeError, ValueError):
        return None


def _copy(msg: JetStreamMsg, stored: tuple[str, int]) -> DeadLetter | None:
    """Return the dead letter for a copy that a worker stored; ``None``: it is none."""
    headers = msg.headers or Headers()
    try:
        return DeadLetter(
            stream=headers["Dead-Stream"],
            consumer=headers["Dead-Consumer"],
            seq=int(headers["Dead-Sequence"]),
            kind="copy",
            deliveries=int(headers["Dead-Attempts"]),
            time=msg.metadata.timestamp,
            reason=headers.get("Dead-Reason", ""),
            advisories=[stored],
            subject=headers["Dead-Subject"],
            pointer="Dead-Pointer" in headers,
        )
    except (KeyError, ValueError):
        return None


def _original_headers(msg: StoredMsg) -> Headers:
    """Return the headers of a copy without those that the worker added."""
    headers = Headers()
    for name, value in (msg.headers or headers).pairs():
        if not name.lower().startswith((_COPY_HEADER, *_PUBLISH_HEADERS)):
            headers.add(name, value)
    return headers


_STORE: Final = "DEAD_LETTERS"


@click.group(cls=NounGroup)
@common_options
def dlq(_settings: Settings) -> None:
    """
    Find and republish dead letters: messages that consumers do not deliver again.

    A message becomes a dead letter when it reaches the consumer's --max-deliver, or when a client
    terminates it. It stays in the stream without a mark. The server publishes one advisory for it.
    'dlq setup' creates a stream that stores these advisories; dead letters can be listed from then on.
    Workers store copies of the messages that they give up, on subjects that begin with 'dead.'; these are
    listed, too.
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
    done = (
        f"Stream {stream.name} already stores the advisories"
        if known
        else (f"Stream {stream.name} stores the advisories of dead letters from now on")
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

    Only dead letters with a stored advisory, or a copy stored by a worker, are listed. When no stream stores
    either, estimates from the counters of the consumers are shown instead.
    """
    with settings.jetstream() as js:
        infos = infos_of(js, stream)
        if consumer is not None:
            infos = [info for info in infos if info.name == consumer]
        letters = DeadLetters(js)
        estimates = DeadLetterEstimate.of(infos)
        if not letters.stores and not letters.copies:
            _show_unknown(settings, estimates)
            _offer(settings, js)
            return
        found = [(each, letters.message(each)) for each in letters.read(stream, consumer)]
        if consumer is not None and not infos and not found:
            # A deleted consumer may have left dead letters.
            raise no_letter(js, letters, str(stream), consumer, None)
    present = [(letter, msg) for letter, msg in found if gone or msg is not None]
    result = {
        "stored_in": sorted({*letters.stores, *letters.copies}),
        "messages": [letter.document_with(msg) for letter, msg in present],
        "consumers": [each.document() for each in estimates],
    }
    emit(settings, result, lambda: _show_list(settings, stream, present))
    _warn_of_more(settings, [letter for letter, _ in found], estimates)


def _show_list(
    settings: Settings, stream: str | None, found: list[tuple[DeadLetter, StoredMsg | None]]
) -> None:
    heading = f"Dead letters of {stream}" if stream is not None else "Dead letters"
    name = Field(
        "Consumer",
        lambda row: (
            row[0].consumer if stream is not None else f"{row[0].stream} > {row[0].consumer}"
        ),
    )
    write_rows(settings, found, (name, *_LIST), title=heading, none="No dead letters")


_LIST: Final = (
    Field("Subject", lambda row: bad("gone") if row[1] is None else row[1].subject),
    Field("Why", lambda row: row[0].why),
    Field("When", lambda row: row[0].time, drop=2),
    Field("Sequence", lambda row: row[0].seq),
    Field("Deliveries", lambda row: row[0].deliveries, drop=1),
    Field("Size", lambda row: None if row[1] is None else len(row[1].data), size, drop=3),
)


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

    none = "The counters of the consumers show no dead letters"
    title = "Estimated dead letters from consumer counters"
    show_rows(settings, estimates, _ESTIMATES, title=title, none=none, document=result)


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
    if ask.agrees(f"Store the advisories from now on in stream {_STORE}, for 30 days?"):
        _create_stream(js, _STORE, timedelta(days=30), None)
        say(settings, f"Stream {_STORE} was created")


_ESTIMATES: Final = (
    Field("Consumer", lambda each: f"{each.info.stream_name} > {each.info.name}"),
    Field("Max Deliver", lambda each: each.info.config.max_deliver or 0, drop=1),
    Field("Dead Letters", _how_many, right=True),
    Field("Ack Pending", "info.num_ack_pending", drop=2),
    Field("Sequences", lambda each: _among(each.info), right=True, drop=3),
)


@dlq.command("show", aliases=("view", "get"), short_help="Show a dead letter.")
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
                f"stream {stream} no longer has message {letter.seq}",
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
    heading = f"Dead letter of consumer {letter.stream} > {letter.consumer}"
    write_blocks(settings, Block("", _ONE, (letter, msg)), heading=heading)
    lines = header_lines(msg.headers)
    parts = ["", *([*lines, ""] if lines else []), readable(msg.data)]
    settings.env.stdout.write("\n".join(parts) + "\n")


_ONE: Final = (
    Field("Subject", lambda row: row[1].subject),
    Field("Sequence", lambda row: row[0].seq),
    Field("Stored", lambda row: row[1].time),
    Field("Dead Since", lambda row: [row[0].time, row[0].why]),
    Field("Deliveries", lambda row: row[0].deliveries),
    Field("Size", lambda row: len(row[1].data), size),
)


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


#: Prefixes of headers that instruct the server how to store a message. On a copy they would make the
#: server reject it, or delete other messages.
_PUBLISH_HEADERS: Final = (
    "nats-expected-",
    "nats-msg-id",
    "nats-rollup",
    "nats-schedule",
    "nats-batch-",
    "worker-attempt",
    "worker-origin",
)
#: Header with the stream, consumer and sequence of the original.
_ORIGIN: Final = "Jsm-Requeued-From"


@dlq.command("requeue", aliases=("retry",), short_help="Publish dead letters again.")
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
    the list of dead letters, with its advisories and the copy that a worker stored. The original stays in
    the stream unless --delete is given.
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
            Asker(settings).confirm(
                f"Publish {count(len(chosen))} dead letters of consumer {stream} > {consumer} again?",
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
            f"stream {stream} no longer has message {listed}",
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
        if self.delete and self._is_original(letter):
            self._remove(letter.stream, letter.seq)
        if not self.keep:
            for store, seq in letter.advisories:
                self._remove(store, seq)

    def _is_original(self, letter: DeadLetter) -> bool:
        """Return whether the stream still has the message; it may have been created again."""
        original = replace(letter, pointer=True)
        return letter.kind != "copy" or self.letters.message(original) is not None

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
