"""``jsm events`` and ``consumer sample``: show advisories and metrics of JetStream as they are published."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from ... import errors
from ...durations import time_from_text
from ...net.clock import Deadline
from ...subjects import check_subject
from ..shared.env import json_text, readable, single_line
from ..shared.long_running import wait_interruptibly
from ..shared.names import consumer_arguments, find_consumer, title
from ..shared.output import announce, emit_item, emit_line, ns_text, when
from ..shared.render import Block, Field, write_blocks
from ..shared.settings import Settings, command
from ..shared.status import CommandError
from ..shared.system import parsed
from ..shared.values import ANY_CASE_PATTERN, option, stop_options
from .receive import CoreSource, check_received

_ADVISORIES: Final = "$JS.EVENT.ADVISORY.>"
_METRICS: Final = "$JS.EVENT.METRIC.>"
_TYPE: Final = re.compile(r"io\.nats\.(?:jetstream|server)\.(advisory|metric)\.v\d+\.(\w+)")
#: Fields that are at the start of a line, or only in JSON.
_OMITTED: Final = frozenset({"type", "id", "timestamp", "schema"}) | frozenset(
    {"server", "client", "request", "response"}
)
#: Fields in nanoseconds.
_DURATIONS: Final = frozenset({"ack_time", "rtt", "nats_rtt"})


@command()
@option("--js-metric", "Show metrics, such as acknowledgement samples.")
@option("--js-advisory", "Show advisories, such as API calls and failures.")
@option("--subjects SUBJECT", "Also show events on this subject.", multiple=True)
@option("--filter RE", "Show only events whose JSON matches.", ANY_CASE_PATTERN, to="matches")
@stop_options("event")
def events(
    settings: Settings,
    *,
    subjects: tuple[str, ...],
    matches: re.Pattern[str] | None,
    count: int | None,
    wait: float | None,
    js_metric: bool,
    js_advisory: bool,
) -> None:
    """
    Show JetStream advisories and metrics until Ctrl-C, each in one line.

    With --json each event is written as the server sent it, with client, server, request and response.
    """
    kinds = {_ADVISORIES: js_advisory, _METRICS: js_metric}
    usual = not (subjects or any(kinds.values()))
    chosen = [*map(check_subject, subjects), *(kind for kind in kinds if usual or kinds[kind])]

    def show(event: dict[str, Any]) -> bool:
        if matches is not None and not matches.search(json_text(event)):
            return False
        line = "" if settings.json else single_line(_line(settings, event))
        emit_item(settings, event, line)
        return True

    # API calls of this command would be events as well, so none is made while listening.
    with settings.connection(reconnects="always") as nc:
        source = CoreSource(nc, chosen, "", settings.timeout)
        announce(settings, f"Listening on {' '.join(f'[{subject}]' for subject in chosen)}")
        _listen(settings, source, show, "event", count, wait)


def _listen(
    settings: Settings,
    source: CoreSource,
    show: Callable[[dict[str, Any]], bool],
    noun: str,
    count: int | None,
    wait: float | None,
) -> None:
    """Show events until ``count`` of them were shown, or none has arrived for ``wait`` seconds."""
    seen = 0
    with contextlib.ExitStack() as ending:
        ending.callback(source.end)
        while seen != count:
            try:
                msg = wait_interruptibly(source.next, Deadline(wait))
            except errors.TimeoutError:
                break
            if msg is None:
                break
            try:
                seen += show(parsed(msg.data, "event"))
            except errors.InvalidResponseError:
                about = f"{readable(msg.subject)}: {readable(msg.data[:200])}"
                settings.note(f"warning: {about}: not an event")
    check_received(seen, count, noun)


# --- output --------------------------------------------------------------------------------------


def _title(event: dict[str, Any]) -> str:
    """Return the title of an event, such as ``Metric: Consumer Ack``."""
    kind = str(event.get("type", "event without a type"))
    found = _TYPE.fullmatch(kind)
    if found is None:
        return kind
    return f"{found[1].capitalize()}: {found[2].replace('_', ' ').title()}"


def _line(settings: Settings, event: dict[str, Any]) -> str:
    fields = (f"{name}={value}" for name, value in _fields(event).items())
    return f"{_moment(settings, event)} {_title(event)} {' '.join(fields)}"


def _moment(settings: Settings, event: dict[str, Any]) -> str:
    text = str(event.get("timestamp", ""))
    try:
        return when(settings, time_from_text(text))
    except ValueError:
        return text or "-"


def _fields(event: dict[str, Any]) -> dict[str, str]:
    """Return the fields of an event; nested ones have names such as ``outer.inner``."""
    found: dict[str, str] = {}
    for name, value in event.items():
        if name in _OMITTED:
            continue
        inner = value if isinstance(value, dict) else {"": value}
        for part, item in inner.items():
            path = f"{name}.{part}" if part else name
            if (part or name) in _DURATIONS and isinstance(item, int):
                found[path] = ns_text(item)
            elif isinstance(item, (dict, list)):
                found[path] = json_text(item)
            else:
                found[path] = str(item)
    return found


# --- samples ------------------------------------------------------------------------------------

#: Subject prefix of samples; the names of the stream and the consumer follow.
_SAMPLES: Final = "$JS.EVENT.METRIC.CONSUMER.ACK"
_SAMPLE: Final = (
    Field("Stream Sequence", "stream_seq"),
    Field("Consumer Sequence", "consumer_seq"),
    # The format of 2020 counts redeliveries; the event includes the first delivery.
    Field("Redelivered", "deliveries", lambda number: max(0, number - 1)),
    Field("Delay", "ack_time", ns_text),
)


@command()
@consumer_arguments
@stop_options("sample")
def sample(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    count: int | None,
    wait: float | None,
) -> None:
    """
    Show acknowledgement samples of a CONSUMER of a STREAM until Ctrl-C.

    Sampling must be enabled with --sample of 'add' or 'edit'. With --json the events are shown as the
    server sent them.
    """
    with settings.connection(reconnects="always") as nc:
        info = find_consumer(settings, settings.jetstream_on(nc), stream, consumer)
        percent = (info.config.sample_freq or "0").removesuffix("%")
        if not int(percent):
            raise CommandError(
                f"consumer {title(info)} has sampling disabled",
                hint=f"'jsm consumer edit {info.stream_name} {info.name} --sample 100' enables it",
            )

        def show(event: dict[str, Any]) -> bool:
            numbers = {str(field.value): event.get(str(field.value), 0) for field in _SAMPLE}
            if not all(isinstance(number, int) for number in numbers.values()):
                settings.note(f"warning: {readable(json_text(event)[:200])}: not a sample")
                return False
            if settings.json:
                emit_line(settings, event)
                return True
            settings.env.stdout.write(f"\n[{datetime.now().astimezone():%H:%M:%S}] {title(info)}\n")
            write_blocks(settings, Block("", _SAMPLE, numbers))
            settings.env.stdout.flush()
            return True

        subject = f"{_SAMPLES}.{info.stream_name}.{info.name}"
        source = CoreSource(nc, [subject], "", settings.timeout)
        announce(
            settings,
            f"Listening for Ack Samples on {subject} with sampling frequency {percent} "
            f"for {title(info)}",
        )
        _listen(settings, source, show, "sample", count, wait)
