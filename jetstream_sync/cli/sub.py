"""``jsm sub``: show messages of subjects as they arrive, or messages of a stream."""

from __future__ import annotations

from typing import Any, Final

import click

from .. import DeliverPolicy
from ..subjects import check_stream_name, check_subject
from .long_running import reconnect_options
from .names import complete_stream
from .output import announce
from .reading import (
    CoreSource,
    MatchingSource,
    Reading,
    Settle,
    Source,
    Start,
    check_received,
    stream_source,
)
from .settings import Settings, command
from .values import FROM_1, TIME, TIMEOUT, option
from .view import SubWriter

#: The option and the start policy for each parameter that selects one.
_STARTS: Final = {
    "from_all": ("--all", DeliverPolicy.ALL),
    "from_new": ("--new", DeliverPolicy.NEW),
    "from_last": ("--last", DeliverPolicy.LAST),
    "last_per_subject": ("--last-per-subject", DeliverPolicy.LAST_PER_SUBJECT),
    "start_sequence": ("--start-sequence", DeliverPolicy.BY_START_SEQUENCE),
    "since": ("--since", DeliverPolicy.BY_START_TIME),
}


def _start(
    options: dict[str, Any], subjects: tuple[str, ...], *, headers_only: bool
) -> Start | None:
    """Return the start position that was given; ``None`` without one."""
    values = {name: options.pop(name) for name in _STARTS}
    given = [_STARTS[name] for name, value in values.items() if value not in (None, False)]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(flag for flag, _ in given)} exclude each other")
    if not given:
        return None
    return Start(
        policy=given[0][1],
        sequence=values["start_sequence"],
        since=values["since"],
        filters=subjects,
        headers_only=headers_only,
    )


@command()
@click.argument("subjects", metavar="[SUBJECT]...", nargs=-1)
@option("--queue GROUP", "Share the messages with a queue group.", default="")
@option("--stream STREAM", "Read from this stream.", shell_complete=complete_stream)
@option("--all", "Start at the first message of the stream.", to="from_all")
@option("--new", "Start with new messages of the stream.", to="from_new")
@option("--last", "Start at the last message of the stream.", to="from_last")
@option("--last-per-subject", "Start with the last message of each subject.")
@option("--since TIME", "Start at a time, or at a duration before now.", TIME)
@option("--start-sequence SEQ", "Start at this stream sequence.", FROM_1)
@option("--durable NAME", "Read from a durable consumer; implies --ack.")
@option("--ack/--no-ack", "Acknowledge shown messages.  [default: with --durable]", default=None)
@option("-T, --terminate-at-end", "Exit at the end of the stream.", to="to_end")
@option("--count N", "Exit after N messages.", FROM_1)
@option("--wait TIME", "Exit after TIME without a message.", TIMEOUT)
@option("-I, --ignore-subject SUBJECT", "Skip this subject.", to="ignored", multiple=True)
@option("-t, --timestamp", "Show the time of receipt.", to="timestamps")
@option("-r, --raw", "Show only the bodies.")
@option("--headers-only", "Show headers without bodies.")
@option("--subjects-only", "Show only the subjects.")
@option("--match-replies", "Show each request with its reply.")
def sub(
    settings: Settings,
    *,
    subjects: tuple[str, ...],
    queue: str,
    stream: str | None,
    durable: str | None,
    ack: bool | None,
    to_end: bool,
    count: int | None,
    wait: float | None,
    ignored: tuple[str, ...],
    headers_only: bool,
    match_replies: bool,
    **options: Any,
) -> None:
    """
    Show the messages of each SUBJECT until Ctrl-C.

    With --stream, --durable or an option for the start, messages are read from a stream. Without
    --stream it is the stream that stores the first SUBJECT.

    The exit status is 0 after --count messages or, with -T, at the end of the stream; 4 after --wait
    without a message; 130 after Ctrl-C.
    """
    start = _start(options, subjects, headers_only=headers_only)
    if start is None and (durable is not None or stream is not None):
        start = Start(filters=subjects, headers_only=headers_only)
    for subject in (*subjects, *ignored):
        check_subject(subject)
    if not subjects and stream is None:
        raise click.UsageError("give a SUBJECT or --stream")
    if stream is not None:
        check_stream_name(stream)
    if start is not None and queue:
        raise click.UsageError("--queue is for core NATS: to share a stream, use --durable")
    if to_end and start is None:
        raise click.UsageError("-T is for streams: a core NATS subscription has no end")
    if match_replies and (start is not None or queue):
        raise click.UsageError("--match-replies excludes streams and --queue")
    writer = SubWriter(settings, headers_only=headers_only, **options)
    acks = ack if ack is not None else durable is not None
    with settings.connection(**reconnect_options(settings)) as nc:
        names = [f"[{subject}]" for subject in subjects]
        source: Source
        if match_replies:
            source = matching = MatchingSource(nc, subjects)
            writer.reply_of = lambda: matching.reply
        elif start is None:
            source = CoreSource(nc, subjects, queue)
        else:
            js = settings.jetstream_on(nc)
            stream = stream or js.find_stream_name_by_subject(subjects[0])
            limit = None if ignored else count
            source = stream_source(js, stream, start, durable=durable, to_end=to_end, count=limit)
            names = [f"[{stream}]", *subjects]
        announce(settings, f"Listening on {' '.join(names)}")
        reading = Reading(
            settings=settings,
            view=writer,
            source=source,
            settle=Settle(word="ack" if acks else "", wanted=acks or durable is not None),
            ignored=ignored,
        )
        reading.run(count, wait, per_message=True)
    if reading.timed_out:
        check_received(reading.shown, count)
