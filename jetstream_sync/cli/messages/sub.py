"""``jsm sub``: show the messages of subjects, as they come, or those that a stream has stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ... import DeliverPolicy, JetStreamMsg, Msg
from ...errors import TimeoutError
from ...net.clock import Deadline, monotonic
from ...subjects import check_stream_name, check_subject, subject_matches
from ..completion.complete import complete_stream
from ..interruptible import wait_interruptibly
from ..long_running import reconnect_options
from ..output import counted
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import TIME, TIMEOUT
from .sub_sources import CoreSource, Source, Start, StreamSource
from .sub_view import Look, SubjectReport, Viewer
from .translate import Translator

if TYPE_CHECKING:
    from ... import Connection

__all__ = ["sub"]


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What the command line asks for."""

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
        """Whether it is a stream that is read, and not what is published just now."""
        return self.policy is not None or self.durable is not None or self.stream is not None

    def check(self) -> None:
        """
        Refuse what does not fit together.

        Raises:
            click.UsageError: it says what.

        """
        for subject in (*self.subjects, *self.ignored):
            check_subject(subject)
        if not self.subjects and self.stream is None:
            raise click.UsageError("a SUBJECT or --stream is needed")
        if self.stream is not None:
            check_stream_name(self.stream)
        if self.stored and self.queue:
            raise click.UsageError("--queue is for core NATS: share a stream with --durable")
        if self.to_end and not self.stored:
            raise click.UsageError("-T is for streams: core NATS has no end")


def _policy(
    starts: dict[str, bool], start_sequence: int | None, since: datetime | None
) -> DeliverPolicy | None:
    """Return the one start that was asked for, ``None`` when there was none."""
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
    "--stream", metavar="STREAM", shell_complete=complete_stream, help="Read this stream."
)
@click.option("--all", "from_all", is_flag=True, help="All that the stream has, and what follows.")
@click.option("--new", "from_new", is_flag=True, help="Only what is stored from now on.")
@click.option("--last", "from_last", is_flag=True, help="The last message, and what follows.")
@click.option("--last-per-subject", is_flag=True, help="The last message of each subject first.")
@click.option(
    "--since", type=TIME, metavar="TIME", help="What is not older than this, or this time."
)
@click.option(
    "--start-sequence", type=click.IntRange(1), metavar="SEQ", help="From this message on."
)
@click.option("--durable", metavar="NAME", help="Read as this consumer, which stays; acknowledges.")
@click.option(
    "--ack/--no-ack", default=None, help="Acknowledge what is shown.  [default: with --durable]"
)
@click.option("-T", "--terminate-at-end", "to_end", is_flag=True, help="End with the stream.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--wait", type=TIMEOUT, metavar="TIME", help="End after so long without a message.")
@click.option(
    "-I", "--ignore-subject", "ignored", multiple=True, metavar="SUBJECT", help="Skip it."
)
@click.option("-t", "--timestamp", "timestamps", is_flag=True, help="Show when a message came.")
@click.option(
    "-d", "--delta-time", "since_start", is_flag=True, help="Show seconds since the start."
)
@click.option("-r", "--raw", is_flag=True, help="Show the bodies, and nothing else.")
@click.option("--headers-only", is_flag=True, help="Show no bodies.")
@click.option("--subjects-only", is_flag=True, help="Show subjects, and nothing else.")
@click.option(
    "--dump", metavar="DIR", help="Write each message to a file; '-': NUL between them on stdout."
)
@click.option("--translate", metavar="COMMAND", help="Show what this command makes of a body.")
@click.option("--report-subjects", is_flag=True, help="Count messages by subject, show it at last.")
@click.option(
    "--report-top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many subjects --report-subjects shows.",
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

    With --stream, or with one of the options that say where to start, stored messages are read.
    Without --stream it is the stream that takes the first SUBJECT.

    The exit status is 0 when --count messages came, or with -T the stream's end; 4 when they did
    not come within --wait; 130 after Ctrl-C.

    \b
    Examples:
      jsm sub 'ORDERS.*' -t
      jsm sub --stream ORDERS --all -T -j
      jsm sub 'ORDERS.>' --last-per-subject --count 5
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    starts = {
        name: options.pop(name)
        for name in ("from_all", "from_new", "from_last", "last_per_subject")
    }
    look = {
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
    viewer: Viewer | SubjectReport
    if report_subjects:
        viewer = SubjectReport(settings, report_top)
    else:
        translator = Translator(translate).translate if translate else None
        chosen = Look(headers_only=wanted.headers_only, translate=translator, **look)
        viewer = Viewer(settings, chosen)
    with (
        settings.connection(**reconnect_options(settings)) as nc,
        _source(settings, nc, wanted) as source,
    ):
        _Reading(settings, wanted, source, viewer).run()


def _source(settings: Settings, nc: Connection, wanted: _Wanted) -> Source:
    """Start to read; what is read is said on ``stderr``."""
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
        source = StreamSource(
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


@dataclass
class _Reading:
    """One run of ``sub``."""

    settings: Settings
    wanted: _Wanted
    source: Source
    viewer: Viewer | SubjectReport
    messages: int = 0
    bytes: int = 0
    started: float = field(default_factory=monotonic)

    def run(self) -> None:
        """
        Read until it is enough.

        Raises:
            CommandError: it was not enough.
            KeyboardInterrupt: the user ended it; how much there was is said.

        """
        try:
            self._read()
        except KeyboardInterrupt:
            self._close()
            self.settings.env.stderr.write(
                f"\nReceived {counted(self.messages, 'message')}, {counted(self.bytes, 'byte')} "
                f"in {monotonic() - self.started:.1f} s\n"
            )
            raise
        except TimeoutError:
            self._close()
            self._waited()
        else:
            self._close()

    def _close(self) -> None:
        if isinstance(self.viewer, SubjectReport):
            self.viewer.close()

    def _waited(self) -> None:
        wanted = self.wanted
        if wanted.count is not None or not self.messages:
            asked = "" if wanted.count is None else f" of {wanted.count:,}"
            raise CommandError(
                f"{self.messages:,}{asked} messages came, and none for {wanted.wait:g} s",
                ExitStatus.TIMED_OUT,
            )

    def _read(self) -> None:
        wanted = self.wanted
        while self.messages != wanted.count and not self.source.ends:
            msg = wait_interruptibly(self.source.next, Deadline(wanted.wait))
            if not any(subject_matches(each, msg.subject) for each in wanted.ignored):
                self._take(msg)
            if wanted.to_end and isinstance(msg, JetStreamMsg) and not msg.metadata.num_pending:
                return

    def _take(self, msg: Msg) -> None:
        wanted = self.wanted
        acked = wanted.ack if wanted.ack is not None else wanted.durable is not None
        if acked and not isinstance(msg, JetStreamMsg):
            acked = msg.reply.startswith("$JS.ACK.")
        # Counted first: who sees it may type Ctrl-C at once.
        self.messages += 1
        self.bytes += len(msg.data)
        self.viewer.show(msg, acked=acked)
        if not acked:
            return
        if isinstance(msg, JetStreamMsg):
            msg.ack()
        else:
            msg.respond(b"+ACK")
