"""``jsm sub``, ``consumer next`` and ``consumer sub``: show messages as they arrive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from ... import DeliverPolicy, errors
from ...exit_status import ExitStatus
from ...subjects import check_stream_name, check_subject
from ..shared.env import readable
from ..shared.long_running import reconnect_options
from ..shared.names import complete_stream, consumer_arguments, find_consumer, find_pull, title
from ..shared.output import announce, note, when
from ..shared.output import count as with_separators
from ..shared.settings import Settings, command
from ..shared.status import CommandError, one_line
from ..shared.values import (
    FROM_1,
    TIME,
    TIMEOUT,
    Parsed,
    allow_one,
    option,
    parse_duration,
    stop_options,
    with_options,
)
from .outgoing import PermissionWatch
from .reading import (
    CoreSource,
    MatchingSource,
    NowSource,
    PullSource,
    PushSource,
    ReadLoop,
    Settle,
    Source,
    StreamStart,
    check_received,
    stream_source,
)
from .view import FORMAT_HELP, MessageWriter, SubWriter, header_lines

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream, JetStreamMsg, PullConsumer

#: The minimum expiry of a pull request, in seconds.
_MIN_EXPIRES_S = 1.0


class OptionalNak(click.Command):
    """A command whose ``--nak`` takes a value only after ``=``, never the next argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments with the default value for a bare ``--nak``."""
        return super().parse_args(ctx, ["--nak=0s" if word == "--nak" else word for word in args])


#: The delay of ``--nak``; 0 without a delay.
_DELAY: Final = Parsed("duration", partial(parse_duration, bare="s"))


#: How a read message is settled.
_settle_options = with_options(
    option("--no-ack", "Do not acknowledge; it is redelivered after ack wait."),
    option("--nak [=DELAY]", "Have it redelivered, at once or after DELAY.", _DELAY),
    option("--term", "Terminate the message, so that it is not redelivered."),
)
_read_options = with_options(
    option("--group NAME", "Pull for this priority group. (2.11)"),
    option("-r, --raw", "Show only the bodies."),
    option("-f, --format TEXT", FORMAT_HELP, to="layout"),
)


@command(cls=OptionalNak)
@consumer_arguments
@_settle_options
@option("--ack", "", hidden=True)
@option("--double-ack", "Wait until the server confirms the ack.")
@option("--count N", "Fetch at most N messages.", FROM_1, default=1)
@option("--no-wait", "Fetch only messages available now.")
@option("--expires, --wait TIME", "Time to wait for messages.", TIMEOUT)
@_read_options
def next(  # noqa: A001 - the command's name
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    count: int,
    no_wait: bool,
    expires: float | None,
    group: str | None,
    raw: bool,
    layout: str | None,
    **settlement: Any,
) -> None:
    """
    Fetch the next message of a CONSUMER, show it, and acknowledge it.

    The wait for messages is limited by --timeout. The exit status is 4 when no message arrived. With
    --count, each message is shown on arrival, and with --json each on its own line.
    """
    settlement.pop("ack")
    confirmed = settlement.pop("double_ack")
    watch = PermissionWatch(settings.timeout)
    with settings.connection(watch.on_error) as nc:
        js = settings.jetstream_on(nc)
        found = find_pull(settings, js, stream, consumer)
        view = _writer(settings, raw=raw, layout=layout, single=count == 1)
        policy = found.cached_info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=confirmed, **settlement)
        # Messages may arrive from now on.
        source = _source(found, count, no_wait=no_wait, expires=expires, group=group)
        reading = ReadLoop(
            settings=settings,
            source=source,
            view=view,
            settle=settle,
            flush=partial(watch.flush, nc),
        )
        wait = settings.timeout if expires is None else expires
        reading.run(count, wait, per_message=False)
        if not reading.shown:
            where = f"{found.stream_name} {found.name}"
            raise CommandError(
                "no message" if no_wait else f"no message in {wait:g} s",
                ExitStatus.TIMED_OUT,
                hint=f"'jsm consumer info {where}' shows what is left",
            )


def _writer(
    settings: Settings, *, raw: bool, layout: str | None, single: bool = False
) -> MessageWriter:
    def text(msg: JetStreamMsg) -> str:
        about = msg.metadata
        where = " / ".join(
            (
                f"tries: {about.num_delivered}",
                f"consumer seq: {with_separators(about.consumer_seq)}",
                f"stream seq: {with_separators(about.stream_seq)}",
                f"pending: {with_separators(about.num_pending)}",
                f"stored: {when(settings, about.timestamp)}",
            )
        )
        headers = header_lines(msg.headers)
        lines = [
            *([""] if writer.number > 1 else []),
            f"--- received on {readable(msg.subject)}",
            f"    {where}",
            *([*headers, ""] if headers else []),
            readable(msg.data),
        ]
        return "\n".join(lines) + "\n"

    writer = MessageWriter(settings, text, raw=raw, layout=layout, single=single)
    return writer


def _source(
    consumer: PullConsumer, count: int, *, no_wait: bool, expires: float | None, group: str | None
) -> Source:
    options: Any = {} if group is None else {"group": group}
    config = consumer.cached_info.config
    # One pull requests all messages, up to the limit of the consumer.
    batch = min(count, config.max_batch or count)
    if no_wait:
        return NowSource(consumer.fetch_no_wait(batch, **options))
    if expires is not None and not config.max_expires:
        # The command ends the pull request; this limits it when the process is killed.
        options["expires"] = max(expires, _MIN_EXPIRES_S)
    return PullSource(consumer.messages(max_messages=batch, stop_after=count, **options))


@command("sub", cls=OptionalNak)
@consumer_arguments
@_settle_options
@stop_options("message")
@_read_options
def consumer_sub(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    count: int | None,
    wait: float | None,
    group: str | None,
    raw: bool,
    layout: str | None,
    **settlement: Any,
) -> None:
    """
    Show and acknowledge the messages of a CONSUMER of a STREAM until Ctrl-C.

    The exit status is 0 after --count messages, 4 after --wait without a message, and 130 after Ctrl-C.
    """
    watch = PermissionWatch(settings.timeout)

    def on_error(error: Exception) -> None:
        watch.on_error(error)
        note(settings, f"warning: {one_line(error)}")

    with settings.connection(**reconnect_options(settings), error_cb=on_error) as nc:
        js = settings.jetstream_on(nc)
        info = find_consumer(settings, js, stream, consumer)
        view = _writer(settings, raw=raw, layout=layout)
        policy = info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=False, **settlement)
        reading = ReadLoop(
            settings=settings,
            source=_source_of(js, info, count, group),
            view=view,
            settle=settle,
            flush=partial(watch.flush, nc),
        )
        subject = info.config.deliver_subject
        announce(settings, f"Listening to {title(info)}{f' on {subject}' if subject else ''}")
        reading.run(count, wait, per_message=True)
    check_received(reading.shown, count)


def _source_of(js: JetStream, info: ConsumerInfo, count: int | None, group: str | None) -> Source:
    if not info.config.deliver_subject:
        options: Any = {} if group is None else {"group": group}
        if count is not None:
            options["stop_after"] = count
        return PullSource(js.get_consumer(info.stream_name, info.name).messages(**options))
    if group is not None:
        raise click.UsageError("--group is for pull consumers")
    try:
        subscription = js.subscribe_bind(
            info.stream_name, info.name, manual_ack=True, queue=info.config.deliver_group
        )
    except errors.DuplicateSubscriptionError as error:
        raise CommandError(
            f"another client is subscribed to {title(info)}",
            hint=f"to receive the same messages, use 'jsm sub {info.config.deliver_subject}'",
        ) from error
    return PushSource(subscription)


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
) -> StreamStart | None:
    """Return the start position that was given; ``None`` without one."""
    values = {name: options.pop(name) for name in _STARTS}
    allow_one({_STARTS[name][0]: value for name, value in values.items()})
    policies = [policy for name, (_, policy) in _STARTS.items() if values[name]]
    if not policies:
        return None
    return StreamStart(
        policy=policies[0],
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
@stop_options("message")
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
        start = StreamStart(filters=subjects, headers_only=headers_only)
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
    watch = PermissionWatch(settings.timeout)
    with settings.connection(watch.on_error, **reconnect_options(settings)) as nc:
        names = [f"[{subject}]" for subject in subjects]
        source: Source
        if match_replies:
            source = matching = MatchingSource(nc, subjects, settings.timeout)
            writer.reply_of = lambda: matching.reply
        elif start is None:
            source = CoreSource(nc, subjects, queue, settings.timeout)
        else:
            js = settings.jetstream_on(nc)
            stream = stream or js.find_stream_name_by_subject(subjects[0])
            limit = None if ignored else count
            source = stream_source(
                settings, js, stream, start, durable=durable, to_end=to_end, count=limit
            )
            names = [f"[{stream}]", *subjects]
        announce(settings, f"Listening on {' '.join(names)}")
        reading = ReadLoop(
            settings=settings,
            view=writer,
            source=source,
            settle=Settle(word="ack" if acks else "", wanted=acks or durable is not None),
            ignored=ignored,
            flush=partial(watch.flush, nc) if acks else None,
        )
        reading.run(count, wait, per_message=True)
    if reading.timed_out:
        check_received(reading.shown, count)
