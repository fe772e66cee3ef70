"""``jsm consumer sub``: show what a consumer delivers, or what is pulled from it, as it comes."""

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
@click.option("--no-ack", is_flag=True, help="Do not acknowledge: it comes again, after a while.")
@click.option(
    "--nak",
    callback=read_delay,
    metavar="[=DELAY]",
    help="Give each back, to come again at once or after DELAY.",
)
@click.option("--term", is_flag=True, help="Have each never delivered again.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--wait", type=TIMEOUT, metavar="TIME", help="End after so long without a message.")
@click.option("--group", metavar="NAME", help="The priority group to pull for. (2.11)")
@click.option("-r", "--raw", is_flag=True, help="Show the bodies, and nothing else.")
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
    Show the messages of a CONSUMER of a STREAM as they come, until Ctrl-C, and acknowledge them.

    The exit status is 0 when --count messages came; 4 when they did not come within --wait; 130
    after Ctrl-C.
    """

    def tell(error: Exception) -> None:
        note(settings, f"warning: {one_line(error)}")

    with settings.connection(**reconnect_options(settings), error_cb=tell) as nc:
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
            f"{with_separators(reading.shown)}{asked} messages came", ExitStatus.TIMED_OUT
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
        raise click.UsageError("--group is for a consumer that is pulled from")
    try:
        subscription = js.subscribe_bind(
            info.stream_name, info.name, manual_ack=True, queue=info.config.deliver_group
        )
    except DuplicateSubscriptionError as error:
        raise CommandError(
            f"somebody else reads {title(info)}",
            ExitStatus.USAGE,
            hint=f"to listen along, use 'jsm sub {info.config.deliver_subject}'",
        ) from error
    return PushSource(subscription)
