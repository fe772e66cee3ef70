"""``jsm consumer sub``: show the messages of a push or pull consumer as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...errors import DuplicateSubscriptionError
from ...net.clock import monotonic
from ..long_running import reconnect_options
from ..output import count as with_separators
from ..output import counted, note
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus, one_line
from ..values import TIMEOUT
from .find import consumer_arguments, find, title
from .message import FORMAT_HELP, MessageView
from .next import OptionalNak, read_delay
from .reading import PullSource, PushSource, Reading, Settle, Source

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream

__all__ = ["sub"]


@click.command(cls=OptionalNak)
@consumer_arguments
@click.option(
    "--no-ack", is_flag=True, help="Do not acknowledge; it is redelivered after ack wait."
)
@click.option(
    "--nak",
    callback=read_delay,
    metavar="[=DELAY]",
    help="Negatively acknowledge, to redeliver at once or after DELAY.",
)
@click.option(
    "--term", is_flag=True, help="Terminate the messages, so that they are not redelivered."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Exit after N messages.")
@click.option("--wait", type=TIMEOUT, metavar="TIME", help="Exit after TIME without a message.")
@click.option("--group", metavar="NAME", help="Pull for this priority group. (2.11)")
@click.option("-r", "--raw", is_flag=True, help="Show only the bodies.")
@click.option("-f", "--format", "layout", metavar="TEXT", help=FORMAT_HELP)
@common_options
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
    **answer: Any,
) -> None:
    """
    Show and acknowledge the messages of a CONSUMER of a STREAM until Ctrl-C.

    The exit status is 0 after --count messages, 4 after --wait without a message, and 130 after Ctrl-C.
    """

    def on_error(error: Exception) -> None:
        note(settings, f"warning: {one_line(error)}")

    with settings.connection(**reconnect_options(settings), error_cb=on_error) as nc:
        js = settings.jetstream_on(nc)
        info = find(settings, js, stream, consumer)
        view = MessageView(settings, raw=raw, layout=layout)
        policy = info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=False, **answer)
        reading = Reading(
            settings=settings,
            source=_source(js, info, count, group),
            view=view,
            settle=settle,
            flush=lambda: nc.flush(settings.timeout),
        )
        settings.env.stderr.write(f"Listening to {title(info)}{_subject(info)}\n")
        settings.env.stderr.flush()
        started = monotonic()
        try:
            reading.run(count, wait, each=True)
        except KeyboardInterrupt:
            lasted = monotonic() - started
            settings.env.stderr.write(
                f"\nReceived {counted(reading.shown, 'message')} in {lasted:.1f} s\n"
            )
            raise
    if reading.shown != count and (count is not None or not reading.shown):
        asked = "" if count is None else f" of {with_separators(count)}"
        raise CommandError(
            f"received {with_separators(reading.shown)}{asked} messages", ExitStatus.TIMED_OUT
        )


def _subject(info: ConsumerInfo) -> str:
    return f" on {info.config.deliver_subject}" if info.config.deliver_subject else ""


def _source(js: JetStream, info: ConsumerInfo, count: int | None, group: str | None) -> Source:
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
    except DuplicateSubscriptionError as error:
        raise CommandError(
            f"another client is subscribed to {title(info)}",
            ExitStatus.USAGE,
            hint=f"to receive the same messages, use 'jsm sub {info.config.deliver_subject}'",
        ) from error
    return PushSource(subscription)
