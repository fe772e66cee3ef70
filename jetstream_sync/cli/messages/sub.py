"""``jsm sub``: show messages of subjects as they arrive, or messages of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ... import DeliverPolicy
from ...subjects import check_stream_name, check_subject
from ..long_running import reconnect_options
from ..names import complete_stream
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import FILE, TIME, TIMEOUT
from .reading import CoreSource, Reading, Settle, Source, Start, stream_source
from .view import SubjectReport, SubWriter, Translator, ViewOptions

if TYPE_CHECKING:
    from ... import Connection


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The selection of messages on the command line."""

    subjects: tuple[str, ...]
    queue: str
    stream: str | None
    policy: DeliverPolicy | None
    start_sequence: int | None
    since: datetime | None
    durable: str | None
    ack: bool | None
    count: int | None
    wait: float | None
    to_end: bool
    ignored: tuple[str, ...]
    headers_only: bool

    @property
    def stored(self) -> bool:
        """Whether to read from a stream instead of core NATS."""
        return self.policy is not None or self.durable is not None or self.stream is not None

    def check(self) -> None:
        """
        Check that the options are valid together.

        Raises:
            click.UsageError: they are not.

        """
        for subject in (*self.subjects, *self.ignored):
            check_subject(subject)
        if not self.subjects and self.stream is None:
            raise click.UsageError("give a SUBJECT or --stream")
        if self.stream is not None:
            check_stream_name(self.stream)
        if self.stored and self.queue:
            raise click.UsageError("--queue is for core NATS: to share a stream, use --durable")
        if self.to_end and not self.stored:
            raise click.UsageError("-T is for streams: a core NATS subscription has no end")


def _policy(
    starts: dict[str, bool], start_sequence: int | None, since: datetime | None
) -> DeliverPolicy | None:
    """Return the start policy that was given; ``None`` without one."""
    asked = {
        "--all": (starts["from_all"], DeliverPolicy.ALL),
        "--new": (starts["from_new"], DeliverPolicy.NEW),
        "--last": (starts["from_last"], DeliverPolicy.LAST),
        "--last-per-subject": (starts["last_per_subject"], DeliverPolicy.LAST_PER_SUBJECT),
        "--start-sequence": (start_sequence is not None, DeliverPolicy.BY_START_SEQUENCE),
        "--since": (since is not None, DeliverPolicy.BY_START_TIME),
    }
    given = {option: policy for option, (said, policy) in asked.items() if said}
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other")
    return next(iter(given.values()), None)


@click.command()
@click.argument("subjects", metavar="[SUBJECT]...", nargs=-1)
@click.option("--queue", metavar="GROUP", default="", help="Share the messages with a queue group.")
@click.option(
    "--stream", metavar="STREAM", shell_complete=complete_stream, help="Read from this stream."
)
@click.option("--all", "from_all", is_flag=True, help="Start at the first message of the stream.")
@click.option("--new", "from_new", is_flag=True, help="Start with new messages of the stream.")
@click.option("--last", "from_last", is_flag=True, help="Start at the last message of the stream.")
@click.option(
    "--last-per-subject", is_flag=True, help="Start with the last message of each subject."
)
@click.option(
    "--since", type=TIME, metavar="TIME", help="Start at a time, or at a duration before now."
)
@click.option(
    "--start-sequence", type=click.IntRange(1), metavar="SEQ", help="Start at this stream sequence."
)
@click.option("--durable", metavar="NAME", help="Read from a durable consumer; implies --ack.")
@click.option(
    "--ack/--no-ack", default=None, help="Acknowledge shown messages.  [default: with --durable]"
)
@click.option(
    "-T", "--terminate-at-end", "to_end", is_flag=True, help="Exit at the end of the stream."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Exit after N messages.")
@click.option("--wait", type=TIMEOUT, metavar="TIME", help="Exit after TIME without a message.")
@click.option(
    "-I",
    "--ignore-subject",
    "ignored",
    multiple=True,
    metavar="SUBJECT",
    help="Skip messages on this subject.",
)
@click.option("-t", "--timestamp", "timestamps", is_flag=True, help="Show the time of receipt.")
@click.option(
    "-d", "--delta-time", "since_start", is_flag=True, help="Show seconds since the start."
)
@click.option("-r", "--raw", is_flag=True, help="Show only the bodies.")
@click.option("--headers-only", is_flag=True, help="Show headers without bodies.")
@click.option("--subjects-only", is_flag=True, help="Show only the subjects.")
@click.option(
    "--dump",
    type=FILE,
    metavar="DIR",
    help="Write each message to a file in DIR; '-': to stdout, NUL-separated.",
)
@click.option("--translate", metavar="COMMAND", help="Pass each body through COMMAND.")
@click.option("--report-subjects", is_flag=True, help="Show message counts by subject at the end.")
@click.option(
    "--report-top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Limit --report-subjects to N subjects.",
)
@common_options
def sub(
    settings: Settings,
    *,
    subjects: tuple[str, ...],
    since: datetime | None,
    start_sequence: int | None,
    translate: str | None,
    report_subjects: bool,
    report_top: int,
    **options: Any,
) -> None:
    """
    Show the messages of each SUBJECT until Ctrl-C.

    With --stream, --durable or an option for the start, messages are read from a stream. Without
    --stream it is the stream that stores the first SUBJECT.

    The exit status is 0 after --count messages or, with -T, at the end of the stream; 4 after --wait
    without a message; 130 after Ctrl-C.

    \b
    Examples:
      jsm sub 'ORDERS.*' -t
      jsm sub --stream ORDERS --all -T -j
      jsm sub 'ORDERS.>' --last-per-subject --count 5
    """  # noqa: D301 - click requires the character, not the escape
    starts = {
        name: options.pop(name)
        for name in ("from_all", "from_new", "from_last", "last_per_subject")
    }
    shown = {
        name: options.pop(name)
        for name in ("timestamps", "since_start", "raw", "subjects_only", "dump")
    }
    wanted = _Wanted(
        subjects=subjects,
        since=since,
        start_sequence=start_sequence,
        policy=_policy(starts, start_sequence, since),
        **options,
    )
    wanted.check()
    report = SubjectReport(settings, report_top) if report_subjects else None
    translator = Translator(translate).translate if translate is not None else None
    chosen = ViewOptions(headers_only=wanted.headers_only, translate=translator, **shown)
    view = report or SubWriter(settings, chosen)
    acks = wanted.ack if wanted.ack is not None else wanted.durable is not None
    with settings.connection(**reconnect_options(settings)) as nc:
        reading = Reading(
            settings=settings,
            view=view,
            source=_source(settings, nc, wanted),
            settle=Settle(word="ack" if acks else "", wanted=acks or wanted.durable is not None),
            ignored=wanted.ignored,
        )
        try:
            reading.run(wanted.count, wanted.wait, each=True)
        except KeyboardInterrupt:
            if report is not None:
                report.close()
            reading.write_summary()
            raise
    if report is not None:
        report.close()
    if reading.timed_out and (wanted.count is not None or not reading.shown):
        text = f"no message arrived within {wanted.wait:g} s"
        if reading.shown:
            received = f"{reading.shown:,} of {wanted.count:,} messages"
            text = f"received {received}, then none for {wanted.wait:g} s"
        raise CommandError(text, ExitStatus.TIMED_OUT)


def _source(settings: Settings, nc: Connection, wanted: _Wanted) -> Source:
    """Return the source of messages, and announce it on ``stderr``."""
    if not wanted.stored:
        source: Source = CoreSource(nc, wanted.subjects, wanted.queue)
        names = " ".join(f"[{subject}]" for subject in wanted.subjects)
    else:
        js = settings.jetstream_on(nc)
        stream = wanted.stream or js.find_stream_name_by_subject(wanted.subjects[0])
        start = Start(
            policy=wanted.policy or DeliverPolicy.ALL,
            sequence=wanted.start_sequence,
            since=wanted.since,
            filters=wanted.subjects,
            headers_only=wanted.headers_only,
        )
        source = stream_source(
            js,
            stream,
            start,
            durable=wanted.durable,
            to_end=wanted.to_end,
            count=None if wanted.ignored else wanted.count,
        )
        names = f"[{stream}]" + "".join(f" {subject}" for subject in wanted.subjects)
    settings.env.stderr.write(f"Listening on {names}\n")
    settings.env.stderr.flush()
    return source
