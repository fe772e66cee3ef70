"""``jsm stream view`` and ``get``: read stored messages."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable
from contextlib import closing
from datetime import datetime
from typing import Any

import click

from ... import StoredMsg, Stream
from ...durations import time_to_text
from ..completion import complete_stream
from ..interruptible import pause
from ..message_format import FORMAT_HELP, MessageFormat
from ..messages.shown import body_fields, header_fields, write_bytes
from ..messages.translate import Translator
from ..names import STREAM_NAME
from ..output import emit_line, when
from ..prompts import Asker
from ..render import to_json
from ..sanitize import readable, visible
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..terminology import find_stream
from ..values import TIME
from .reading import Reader

__all__ = ["get", "view"]

_FOLLOW_INTERVAL_S = 0.2

_raw = click.option("-r", "--raw", is_flag=True, help="Write only the payload, unchanged.")
_format = click.option("-f", "--format", "layout", metavar="TEXT", help=FORMAT_HELP)
_translate = click.option(
    "--translate", metavar="COMMAND", help="Pipe each payload through this command."
)


class _MessageWriter:
    """
    Write messages in the output format of the command.

    Args:
        settings: provides the output streams, and whether the output is JSON.
        raw: write only the payloads.
        layout: the format of ``--format``; ``None`` uses the default text.
        command: the command that translates each payload; ``None`` translates nothing.
        single: write one JSON document instead of JSON lines.

    """

    def __init__(
        self,
        settings: Settings,
        *,
        raw: bool,
        layout: str | None,
        command: str | None,
        single: bool = False,
    ) -> None:
        if raw and layout is not None:
            raise click.UsageError("--raw and --format exclude each other")
        self._settings = settings
        self._raw = raw
        self._layout = None if layout is None else MessageFormat(layout)
        self._translator = None if command is None else Translator(command)
        self._single = single

    def write(self, msg: StoredMsg) -> None:
        """Write a message and flush the output."""
        body = msg.data
        if self._translator is not None:
            body = self._translator.translate(msg.subject, body)
        out = self._settings.env.stdout
        if self._raw:
            write_bytes(self._settings.env, body + b"\n")
        elif self._layout is not None:
            out.write(self._layout.fill(_document(msg, body)))
        elif self._settings.json and self._single:
            out.write(to_json(_document(msg, body)))
        elif self._settings.json:
            emit_line(self._settings, _document(msg, body))
        else:
            out.write(self._text(msg, body))
        out.flush()

    def _text(self, msg: StoredMsg, body: bytes) -> str:
        headers: dict[str, list[str]] = header_fields(msg.headers).get("headers", {})
        headers_text = [
            f"  {name}: {readable(one)}" for name, all_ in headers.items() for one in all_
        ]
        moment = when(self._settings, msg.time)
        head = f"[{msg.seq}] Subject: {readable(msg.subject)} Received: {moment}"
        return "\n".join([head, *headers_text, "", readable(body), ""]) + "\n"


def _document(msg: StoredMsg, body: bytes) -> dict[str, Any]:
    return {
        "subject": visible(msg.subject),
        "stream": msg.stream,
        "stream_seq": msg.seq,
        "time": time_to_text(msg.time),
        **header_fields(msg.headers),
        **body_fields(body),
    }


class _MessageFilter:
    """
    Conditions on the payload and the headers of a message.

    Args:
        body: a regular expression to find in the payload; ``None`` accepts any payload.
        headers: ``NAME=REGEX`` for each header to search.

    """

    def __init__(self, body: str | None, headers: Iterable[str]) -> None:
        try:
            self._body = None if body is None else re.compile(os.fsencode(body))
            pairs = [each.partition("=") for each in headers]
            self._headers = [(name, re.compile(text)) for name, _, text in pairs]
        except re.error as error:
            raise click.UsageError(
                f"{error.pattern!r} is not a valid regular expression: {error}"
            ) from None
        #: Whether the filter has any condition.
        self.is_set = bool(self._body or self._headers)

    def matches(self, msg: StoredMsg) -> bool:
        """Return whether a message fulfils all conditions."""
        if self._body is not None and not self._body.search(msg.data):
            return False
        found = msg.headers
        return all(
            found is not None and any(text.search(one) for one in found.get_all(name))
            for name, text in self._headers
        )


@click.command()
@click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
@click.argument("page", required=False, type=click.IntRange(1), default=10, metavar="[PAGE]")
@click.option("--id", "--seq", "seq", type=click.IntRange(1), help="Start at this sequence.")
@click.option("--since", type=TIME, metavar="TIME", help="Start at this time, or this long ago.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Show only the last N messages.")
@click.option(
    "--limit",
    "--count",
    "limit",
    type=click.IntRange(1),
    metavar="N",
    help="Show at most N messages.",
)
@click.option("--subject", metavar="SUBJECT", help="Show only messages of this subject.")
@click.option("--grep", metavar="REGEX", help="Show only messages with a matching payload.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=REGEX",
    help="Show only messages with a matching header; repeatable.",
)
@click.option("--follow", is_flag=True, help="Continue with new messages until Ctrl-C.")
@_raw
@_format
@_translate
@common_options
def view(
    settings: Settings,
    name: str | None,
    page: int,
    seq: int | None,
    since: datetime | None,
    last: int | None,
    limit: int | None,
    raw: bool,
    layout: str | None,
    translate: str | None,
    **options: Any,
) -> None:
    """
    Read the messages of a stream, without acknowledging them or leaving a consumer behind.

    On a terminal, pauses after each page of PAGE messages, by default 10. Elsewhere, writes all
    messages; with -j as one line of JSON each.
    """
    if sum(each is not None for each in (seq, since, last)) > 1:
        raise click.UsageError("--id, --since and --last exclude each other")
    follow, subject = bool(options["follow"]), options["subject"]
    writer = _MessageWriter(settings, raw=raw, layout=layout, command=translate)
    message_filter = _MessageFilter(options["grep"], options["headers"])
    ask = Asker(settings)
    paged = settings.interactive and not (follow or limit or last)
    number = 0
    with settings.connection() as nc:
        stream = find_stream(settings.jetstream_on(nc), name, ask)
        reader = Reader(stream)
        if since is not None:
            seq = reader.sequence_at(since)
        most = None if message_filter.is_set else page + 1 if paged else limit
        selected = _select(reader, stream, seq, last, subject, follow=follow, most=most)
        with closing(selected) as messages:
            for msg in messages:
                if not message_filter.matches(msg):
                    continue
                if paged and number and number % page == 0 and not _ask_next_page(ask):
                    break
                writer.write(msg)
                number += 1
                if number == limit:
                    break
    if not number and not settings.json and not raw:
        settings.env.stderr.write("No messages\n")


def _select(
    reader: Reader,
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
        yield from reader.last(last, subject)
        following = stream.cached_info.state.last_seq + 1
    else:
        following = seq or 1
        for msg in reader.messages(following, subject, most=most):
            yield msg
            following = msg.seq + 1
    while follow:
        for msg in reader.messages(following, subject):
            yield msg
            following = msg.seq + 1
        pause(_FOLLOW_INTERVAL_S)


def _ask_next_page(ask: Asker) -> bool:
    answer = ask.text(
        "Next page? (Y/n)", "--limit", default="y", help="y shows the next page, n exits"
    )
    return answer.lower() not in ("n", "no", "q", "quit")


@click.command()
@click.argument("name", metavar="STREAM", type=STREAM_NAME, shell_complete=complete_stream)
@click.argument("seq", required=False, type=click.IntRange(1), metavar="[SEQ]")
@click.option("-S", "--last-for", metavar="SUBJECT", help="Read the last message of a subject.")
@click.option(
    "--next-for", metavar="SUBJECT", help="Read the first message of a subject, from SEQ on."
)
@_raw
@_format
@_translate
@common_options
def get(
    settings: Settings,
    name: str,
    seq: int | None,
    last_for: str | None,
    next_for: str | None,
    raw: bool,
    layout: str | None,
    translate: str | None,
) -> None:
    """Read one message by sequence, or the last one of a subject."""
    if last_for is not None and (seq is not None or next_for is not None):
        raise click.UsageError("--last-for cannot be combined with SEQ or --next-for")
    if last_for is None and seq is None and next_for is None:
        raise CommandError(
            "no message selected: use SEQ, --last-for or --next-for", ExitStatus.USAGE
        )
    writer = _MessageWriter(settings, raw=raw, layout=layout, command=translate, single=True)
    with settings.jetstream() as js:
        stream = find_stream(js, name)
        writer.write(stream.get_msg(seq=seq, last_by_subject=last_for, next_by_subject=next_for))
