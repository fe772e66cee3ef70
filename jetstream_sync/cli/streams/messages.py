"""
``jsm stream view``, ``get`` and ``rmm``: read and delete stored messages.

Messages are read with batched direct gets, never with a consumer: on a work queue it would take the place
of a worker. A request returns only one message if the stream has no ``allow_direct`` or the server is older
than 2.11.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...durations import counted
from ..messages.view import FORMAT_HELP, MessageWriter, header_lines
from ..shared.env import readable
from ..shared.long_running import pause
from ..shared.names import optional_stream_argument, stream_argument, stream_of
from ..shared.output import emit_text, when
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, CommandError, FailedError, about
from ..shared.values import (
    FROM_1,
    PATTERN,
    TIME,
    Parsed,
    allow_one,
    force_option,
    option,
    with_options,
)

if TYPE_CHECKING:
    from ... import StoredMsg, Stream

_ALL_SUBJECTS: Final = ">"
#: Limits of one batch; it ends with the message that reaches one of them.
_BATCH_MESSAGES: Final = 500
_BATCH_BYTES: Final = 1_000_000


def _messages(
    stream: Stream,
    seq: int,
    subject: str | None = None,
    *,
    until: int | None = None,
    most: int | None = None,
) -> Iterator[StoredMsg]:
    """Iterate over the messages from a sequence to the end of the stream, in batches if the server supports them."""
    seq = max(seq, 1)
    while until is None or seq <= until:
        limits = [_BATCH_MESSAGES, most, None if until is None else until - seq + 1]
        batch = min(limit for limit in limits if limit)
        found = stream.get_msgs(batch, seq, subject, max_bytes=_BATCH_BYTES)
        if not found:
            return
        for msg in found:
            if until is not None and msg.seq > until:
                return
            yield msg
            seq = msg.seq + 1


def _last(stream: Stream, number: int, subject: str | None = None) -> list[StoredMsg]:
    """Return the last messages in stream order, at most ``number``."""
    state = stream.cached_info.state
    if not state.messages:
        return []
    found: list[StoredMsg] = []
    end, width = state.last_seq, number
    if subject is not None:
        try:
            end = stream.get_msg(last_by_subject=subject, consistent=True).seq
        except errors.MessageNotFoundError:
            return []
    # Deleted messages and other subjects leave gaps: go back in increasing steps.
    while len(found) < number and end >= state.first_seq:
        start = max(state.first_seq, end - width + 1)
        found = [*_messages(stream, start, subject, until=end), *found]
        end, width = start - 1, width * 2
    return found[-number:]


def _sequence_at(stream: Stream, moment: datetime) -> int:
    """Return the sequence of the first message at or after a time, else the next sequence."""
    state = stream.cached_info.state
    # The first sequence of a stream that never had a message is 0.
    low, high = max(state.first_seq, 1), state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        try:
            msg = stream.get_msg(middle, None, _ALL_SUBJECTS, consistent=True)
        except errors.MessageNotFoundError:
            high = middle
            continue
        if msg.time < moment:
            low = msg.seq + 1
        else:
            high = middle
    return low


_FOLLOW_INTERVAL_S = 0.2

#: How a message is written.
_write_options = with_options(
    option("-r, --raw", "Write only the payload, unchanged."),
    option("-f, --format TEXT", FORMAT_HELP, to="layout"),
)


def _writer(settings: Settings, *, single: bool = False, **options: Any) -> MessageWriter:
    def text(msg: StoredMsg) -> str:
        head = f"[{msg.seq}] Subject: {readable(msg.subject)} Received: {when(settings, msg.time)}"
        headers = [f"  {line}" for line in header_lines(msg.headers)]
        return "\n".join([head, *headers, "", readable(msg.data), ""]) + "\n"

    return MessageWriter(settings, text, single=single, **options)


def _parse_header(text: str) -> tuple[str, re.Pattern[str]]:
    name, _, pattern = text.partition("=")
    return name, PATTERN.parse(pattern)


def _matches(
    msg: StoredMsg, body: re.Pattern[str] | None, headers: Sequence[tuple[str, re.Pattern[str]]]
) -> bool:
    """Return whether a message has a matching payload and matching headers."""
    # Invalid UTF-8 does not match, but does not hide the rest.
    if body is not None and not body.search(msg.data.decode("utf-8", "surrogateescape")):
        return False
    found = msg.headers
    return all(
        found is not None and any(pattern.search(one) for one in found.get_all(name))
        for name, pattern in headers
    )


@command()
@optional_stream_argument
@click.argument("page", required=False, type=click.IntRange(1), default=10, metavar="[PAGE]")
@option("--id, --seq", "Start at this sequence.", FROM_1, to="seq")
@option("--since TIME", "Start at this time, or this long ago.", TIME)
@option("--last N", "Show only the last N messages.", FROM_1)
@option("--limit, --count N", "Show at most N messages.", FROM_1, to="limit")
@option("--subject SUBJECT", "Show only messages of this subject.")
@option("--grep REGEX", "Show only messages with a matching payload.", PATTERN)
@option(
    "--header NAME=REGEX",
    "Show only messages with a matching header; repeatable.",
    Parsed("NAME=REGEX", _parse_header),
    to="headers",
    multiple=True,
)
@option("--follow", "Continue with new messages until Ctrl-C.")
@_write_options
def view(
    settings: Settings,
    *,
    name: str | None,
    page: int,
    seq: int | None,
    since: datetime | None,
    last: int | None,
    limit: int | None,
    subject: str | None,
    grep: re.Pattern[str] | None,
    headers: tuple[tuple[str, re.Pattern[str]], ...],
    follow: bool,
    **writing: Any,
) -> None:
    """
    Read the messages of a stream, without acknowledging them and without a consumer.

    A whole stream on a server before 2.11 is read faster with 'jsm sub --stream NAME --all -T'.

    On a terminal, pauses after each page of PAGE messages, by default 10. Elsewhere, writes all
    messages; with -j as one line of JSON each.
    """
    allow_one({"--id": seq, "--since": since, "--last": last})
    writer = _writer(settings, **writing)
    ask = settings.ask()
    paged = settings.interactive and not (follow or limit or last)
    number = 0
    with stream_of(settings, name, reconnects="failover") as stream:
        if since is not None:
            seq = _sequence_at(stream, since)
        most = None if grep or headers else page + 1 if paged else limit
        selected = _select(stream, seq, last, subject, follow=follow, most=most)
        with closing(selected) as messages:
            for msg in messages:
                if not _matches(msg, grep, headers):
                    continue
                is_full = paged and number and number % page == 0
                if is_full and not ask.agrees("Next page?", default=True):
                    break
                writer.write(msg)
                number += 1
                if number == limit:
                    break
        is_whole = not (seq or since or last or subject or grep or headers)
        held = stream.info().state.messages if not number and is_whole else 0
        if held:
            text = (
                f"stream {stream.name} has {counted(held, 'message')}, but the server returns none"
            )
            raise FailedError(text)
    if not number and not settings.json and not writing["raw"]:
        settings.env.stderr.write("No messages\n")


def _select(
    stream: Stream,
    seq: int | None,
    last: int | None,
    subject: str | None,
    *,
    follow: bool,
    most: int | None,
) -> Generator[StoredMsg, None, None]:
    """Iterate over the selected messages, and with ``follow`` over new messages."""
    if last is not None:
        yield from _last(stream, last, subject)
        following = stream.cached_info.state.last_seq + 1
    else:
        following = seq or 1
        for msg in _messages(stream, following, subject, most=most):
            yield msg
            following = msg.seq + 1
    while follow:
        try:
            _check_same(stream, following)
            for msg in _messages(stream, following, subject):
                yield msg
                following = msg.seq + 1
        except errors.StreamNotFoundError as error:
            raise AbsentError(f'stream "{stream.name}" was deleted', cause=error) from error
        pause(_FOLLOW_INTERVAL_S)


def _check_same(stream: Stream, following: int) -> None:
    """Raise an error if a stream is not the one that was read up to a sequence: it would seem to be quiet."""
    known = stream.cached_info.created
    found = stream.info()
    if found.created != known:
        raise errors.StreamRecreatedError(stream.name)
    if found.state.last_seq + 1 < following:
        raise errors.StreamRecreatedError(stream.name, reason="it was restored to an earlier state")


@command()
@stream_argument
@click.argument("seq", required=False, type=click.IntRange(1), metavar="[SEQ]")
@option("-S, --last-for SUBJECT", "Read the last message of a subject.")
@option("--next-for SUBJECT", "Read the first message of a subject, from SEQ on.")
@_write_options
def get(
    settings: Settings,
    *,
    name: str,
    seq: int | None,
    last_for: str | None,
    next_for: str | None,
    **writing: Any,
) -> None:
    """Read one message by sequence, or the last one of a subject."""
    if last_for is not None and (seq is not None or next_for is not None):
        raise click.UsageError("--last-for cannot be combined with SEQ or --next-for")
    if last_for is None and seq is None and next_for is None:
        raise CommandError("no message selected: use SEQ, --last-for or --next-for")
    writer = _writer(settings, single=True, **writing)
    with stream_of(settings, name) as stream:
        try:
            msg = stream.get_msg(seq=seq, last_by_subject=last_for, next_by_subject=next_for)
        except errors.MessageNotFoundError as error:
            subject = last_for or next_for
            which = f"of {readable(subject)}" if subject is not None else f"{seq}"
            raise AbsentError(f"stream {name} has no message {which}", cause=error) from error
        writer.write(msg)


@command()
@stream_argument
@click.argument("sequences", nargs=-1, required=True, type=click.IntRange(1), metavar="SEQ...")
@option("--no-erase", "Do not overwrite the data; this is faster.")
@force_option
def rmm(
    settings: Settings, name: str, sequences: tuple[int, ...], no_erase: bool, force: bool
) -> None:
    """Delete single messages by sequence; their data is overwritten."""
    ask = settings.ask()
    deleted: list[int] = []
    missing: list[int] = []
    with stream_of(settings, name) as stream:
        listed = ", ".join(map(str, sequences))
        kind = "message" if len(sequences) == 1 else "messages"
        ask.confirm(f"Delete {kind} {listed} of {stream.name}?", force=force)
        try:
            for seq in dict.fromkeys(sequences):
                found = _delete(stream, seq, secure=not no_erase)
                (deleted if found else missing).append(seq)
        finally:
            # Also after an error: some messages were deleted.
            result = {"deleted": deleted, **({"missing": missing} if missing else {})}
            emit_text(settings, result, "\n".join(f"Deleted message {seq}" for seq in deleted))
    if missing:
        listed = ", ".join(map(str, missing))
        if deleted:
            settings.note(f"{len(deleted)} of {len(deleted) + len(missing)} messages were deleted")
        raise AbsentError(f"{name} has no message {listed}")


def _delete(stream: Stream, seq: int, *, secure: bool) -> bool:
    """Delete a message, and return whether there was one."""
    try:
        with about(f"message {seq}"):
            stream.delete_msg(seq, secure=secure)
    except errors.MessageNotFoundError:
        return False
    return True
