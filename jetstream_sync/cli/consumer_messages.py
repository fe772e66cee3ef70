"""``jsm consumer next`` and ``sub``: read the messages of a consumer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from .. import errors
from ..exit_status import ExitStatus
from .env import readable
from .long_running import reconnect_options
from .names import consumer_arguments, find_consumer, find_pull, title
from .output import announce, note, when
from .output import count as with_separators
from .reading import NowSource, PullSource, PushSource, Reading, Settle, Source, check_received
from .settings import Settings, command
from .status import CommandError, one_line
from .values import FROM_1, TIMEOUT, Parsed, option, parse_duration, with_options
from .view import FORMAT_HELP, MessageWriter, header_lines

if TYPE_CHECKING:
    from .. import ConsumerInfo, JetStream, JetStreamMsg, PullConsumer


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
    with settings.connection() as nc:
        js = settings.jetstream_on(nc)
        found = find_pull(settings, js, stream, consumer)
        view = _writer(settings, raw=raw, layout=layout, single=count == 1)
        policy = found.cached_info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=confirmed, **settlement)
        # Messages may arrive from now on.
        source = _source(found, count, no_wait=no_wait, expires=expires, group=group)
        reading = Reading(
            settings=settings,
            source=source,
            view=view,
            settle=settle,
            flush=lambda: nc.flush(settings.timeout),
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


@command(cls=OptionalNak)
@consumer_arguments
@_settle_options
@option("--count N", "Exit after N messages.", FROM_1)
@option("--wait TIME", "Exit after TIME without a message.", TIMEOUT)
@_read_options
def sub(
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

    def on_error(error: Exception) -> None:
        note(settings, f"warning: {one_line(error)}")

    with settings.connection(**reconnect_options(settings), error_cb=on_error) as nc:
        js = settings.jetstream_on(nc)
        info = find_consumer(settings, js, stream, consumer)
        view = _writer(settings, raw=raw, layout=layout)
        policy = info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=False, **settlement)
        reading = Reading(
            settings=settings,
            source=_source_of(js, info, count, group),
            view=view,
            settle=settle,
            flush=lambda: nc.flush(settings.timeout),
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
