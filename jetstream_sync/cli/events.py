"""``jsm events``: show advisories and metrics of JetStream as they are published."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from .. import DeliverPolicy
from ..codec import loads
from ..durations import time_from_text
from ..errors import InvalidResponseError, TimeoutError
from ..net.clock import Deadline
from ..subjects import check_subject
from .completion import complete_stream
from .interruptible import wait_interruptibly
from .long_running import reconnect_options
from .messages.reading import CoreSource, Source, Start, stream_source
from .output import Block, emit_line, note, seconds_text, when
from .sanitize import readable
from .settings import Settings, common_options
from .status import CommandError, ExitStatus
from .values import TIME, TIMEOUT

if TYPE_CHECKING:
    from .. import Connection, Msg

_ADVISORIES: Final = "$JS.EVENT.ADVISORY.>"
_METRICS: Final = "$JS.EVENT.METRIC.>"
#: Client events of the server; only users of the system account may subscribe.
_SYSTEM: Final = (
    "$SYS.ACCOUNT.*.CONNECT",
    "$SYS.ACCOUNT.*.DISCONNECT",
    "$SYS.SERVER.*.CLIENT.AUTH.ERR",
)
_TYPE: Final = re.compile(r"io\.nats\.(?:jetstream|server)\.(advisory|metric)\.v\d+\.(\w+)")
#: Fields that are in the title of an event, or omitted.
_HEAD: Final = frozenset({"type", "id", "timestamp", "schema"})
#: Fields that --short omits.
_NOT_SHORT: Final = frozenset({"server", "client", "request", "response"})
#: Fields in nanoseconds.
_DURATIONS: Final = frozenset({"ack_time", "rtt", "nats_rtt"})


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The selection of events on the command line."""

    js_metric: bool
    js_advisory: bool
    srv_advisory: bool
    every: bool
    subjects: tuple[str, ...]
    stream: str | None
    since: datetime | None

    def subscriptions(self) -> tuple[str, ...]:
        """
        Return the subjects to subscribe to.

        Raises:
            click.UsageError: options exclude each other.

        """
        chosen = self.js_metric or self.js_advisory or self.srv_advisory or self.subjects
        if self.stream is not None and (chosen or self.every):
            raise click.UsageError(
                "--stream excludes the options that select subjects: it reads the events of the stream"
            )
        if self.since is not None and self.stream is None:
            raise click.UsageError("--since needs --stream, a stream with past events")
        usual = not chosen or self.every
        found = [check_subject(subject) for subject in self.subjects]
        if usual or self.js_advisory:
            found.append(_ADVISORIES)
        if usual or self.js_metric:
            found.append(_METRICS)
        if self.srv_advisory or self.every:
            found += _SYSTEM
        return tuple(found)


@click.command()
@click.option("--js-metric", is_flag=True, help="Show metrics, such as acknowledgement samples.")
@click.option(
    "--js-advisory", is_flag=True, help="Show advisories, such as API calls and failures."
)
@click.option(
    "--srv-advisory", is_flag=True, help="Show client connects and disconnects (system account)."
)
@click.option("-a", "--all", "every", is_flag=True, help="Show all events.")
@click.option(
    "--subjects", multiple=True, metavar="SUBJECT", help="Also show events on this subject."
)
@click.option(
    "--stream",
    metavar="STREAM",
    shell_complete=complete_stream,
    help="Show the events in a stream, stored and new.",
)
@click.option("--since", type=TIME, metavar="TIME", help="With --stream, start at this time.")
@click.option("--filter", "pattern", metavar="RE", help="Show only events whose JSON matches.")
@click.option("--short", is_flag=True, help="Show each event in one line.")
@click.option("--cloudevent", is_flag=True, help="Write JSON as CloudEvents 1.0; implies --json.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Exit after N events.")
@click.option("--wait", type=TIMEOUT, metavar="TIME", help="Exit after TIME without an event.")
@common_options
def events(
    settings: Settings,
    *,
    pattern: str | None,
    short: bool,
    cloudevent: bool,
    count: int | None,
    wait: float | None,
    **options: Any,
) -> None:
    """
    Show JetStream advisories and metrics until Ctrl-C.

    With --json each event is written as the server sent it.

    \b
    Examples:
      jsm events --js-advisory --short
      jsm events --filter max_deliver -j
    """  # noqa: D301 - click requires the character, not the escape
    wanted = _Wanted(**options)
    subjects = wanted.subscriptions()
    matches = _pattern(pattern)
    seen = 0
    # API calls of this command would be events as well, so none is made while listening.
    with settings.connection(**reconnect_options(settings)) as nc, contextlib.ExitStack() as ending:
        source = _source(settings, nc, wanted, subjects)
        ending.callback(source.end)
        for event in _events(settings, source, wait):
            if matches is not None and not matches.search(json.dumps(event, ensure_ascii=False)):
                continue
            _show(settings, event, short=short, cloudevent=cloudevent)
            seen += 1
            if seen == count:
                return
    if count is not None or not seen:
        text = f"no event arrived within {wait:g} s"
        if seen:
            text = f"received {seen:,} of {count:,} events, then none for {wait:g} s"
        raise CommandError(text, ExitStatus.TIMED_OUT)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--filter") from error


def _source(
    settings: Settings, nc: Connection, wanted: _Wanted, subjects: tuple[str, ...]
) -> Source:
    if wanted.stream is None:
        source: Source = CoreSource(nc, subjects, "")
        names = " ".join(f"[{subject}]" for subject in subjects)
    else:
        policy = DeliverPolicy.ALL if wanted.since is None else DeliverPolicy.BY_START_TIME
        start = Start(policy=policy, since=wanted.since)
        js = settings.jetstream_on(nc)
        source = stream_source(js, wanted.stream, start)
        names = f"[{wanted.stream}]"
    settings.env.stderr.write(f"Listening on {names}\n")
    settings.env.stderr.flush()
    return source


def _events(settings: Settings, source: Source, wait: float | None) -> Iterator[dict[str, Any]]:
    """Yield events until none arrives within ``wait`` seconds."""
    while True:
        try:
            msg = wait_interruptibly(source.next, Deadline(wait))
        except TimeoutError:
            return
        if msg is None:
            return
        event = _read(msg)
        if event is None:
            note(
                settings,
                f"warning: {readable(msg.subject)}: {readable(msg.data[:200])}: not an event",
            )
        else:
            yield event


def _read(msg: Msg) -> dict[str, Any] | None:
    try:
        event = loads(msg.data)
    except InvalidResponseError:
        return None
    return event if isinstance(event, dict) else None


# --- output --------------------------------------------------------------------------------------


def _show(settings: Settings, event: dict[str, Any], *, short: bool, cloudevent: bool) -> None:
    if cloudevent:
        emit_line(settings, _cloud_event(event))
        return
    if settings.json:
        emit_line(settings, event)
        return
    moment = _moment(settings, event)
    fields = _fields(event)
    if short:
        values = " ".join(
            f"{name}={value}" for name, value in fields.items() if name not in _NOT_SHORT
        )
        text = f"{moment} {_title(event)} {values}\n"
    else:
        block = Block()
        for name, value in fields.items():
            block.add(name.replace("_", " ").replace(".", ": ").capitalize(), value)
        text = f"[{moment}] {_title(event)}\n{block.text() if fields else ''}\n"
    settings.env.stdout.write(text)
    settings.env.stdout.flush()


def _title(event: dict[str, Any]) -> str:
    """Return the title of an event, such as ``Metric: Consumer Ack``."""
    kind = str(event.get("type", "event without a type"))
    found = _TYPE.fullmatch(kind)
    if found is None:
        return readable(kind)
    return f"{found[1].capitalize()}: {found[2].replace('_', ' ').title()}"


def _moment(settings: Settings, event: dict[str, Any]) -> str:
    text = str(event.get("timestamp", ""))
    try:
        return when(settings, time_from_text(text))
    except ValueError:
        return readable(text) or "-"


def _fields(event: dict[str, Any]) -> dict[str, str]:
    """Return the fields of an event; nested ones have names such as ``outer.inner``."""
    found: dict[str, str] = {}
    for name, value in event.items():
        if name in _HEAD:
            continue
        if name == "client" and isinstance(value, dict):
            found[name] = _client(value)
            continue
        inner = value if isinstance(value, dict) else {"": value}
        for part, each in inner.items():
            path = f"{name}.{part}" if part else name
            if (part or name) in _DURATIONS and isinstance(each, int):
                found[path] = seconds_text(timedelta(microseconds=each / 1000))
            elif isinstance(each, (dict, list)):
                found[path] = readable(json.dumps(each, ensure_ascii=False))
            else:
                found[path] = readable(str(each))
    return found


def _client(client: dict[str, Any]) -> str:
    """Return a short description of a client."""
    known = {
        "name": client.get("name"),
        "user": client.get("user"),
        "account": client.get("acc"),
        "host": client.get("host"),
        "id": client.get("id"),
        "language": client.get("lang"),
    }
    return ", ".join(f"{name} {readable(str(value))}" for name, value in known.items() if value)


def _cloud_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event in the envelope of CloudEvents 1.0."""
    return {
        "specversion": "1.0",
        "type": event.get("type", ""),
        "id": event.get("id", ""),
        "time": event.get("timestamp", ""),
        "source": "urn:nats:jetstream",
        "datacontenttype": "application/json",
        "data": {name: value for name, value in event.items() if name not in _HEAD},
    }
