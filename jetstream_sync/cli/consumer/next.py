"""``jsm consumer next``: get the next messages of a consumer that is pulled from."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from ...errors import TimeoutError
from ..output import count as with_separators
from ..output import seconds_text
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import TIMEOUT, parse_duration
from .find import consumer_arguments, find_pull, title
from .message import FORMAT_HELP, MessageView
from .reading import NowSource, PullSource, Reading, Settle, Source

if TYPE_CHECKING:
    from ... import ConsumerInfo, PullConsumer

__all__ = ["OptionalNak", "next"]

#: Seconds that a pull lasts at least.
_SHORTEST = 1.0


class OptionalNak(click.Command):
    """A command whose ``--nak`` has a value only behind ``=``, so that it eats no argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse them, with the value that a bare ``--nak`` stands for."""
        return super().parse_args(ctx, ["--nak=0s" if word == "--nak" else word for word in args])


def read_delay(_ctx: click.Context, _param: click.Parameter, value: str | None) -> timedelta | None:
    """Return the delay of a nak; no time at all for none."""
    if value is None:
        return None
    try:
        return parse_duration(value, bare="s")
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(cls=OptionalNak)
@consumer_arguments
@click.option("--no-ack", is_flag=True, help="Do not acknowledge: it comes again, after a while.")
@click.option("--ack", is_flag=True, hidden=True)
@click.option(
    "--nak",
    callback=read_delay,
    metavar="[=DELAY]",
    help="Give it back, to come again at once or after DELAY.",
)
@click.option("--term", is_flag=True, help="Have it never delivered again.")
@click.option("--double-ack", is_flag=True, help="Wait until the server has noted the ack.")
@click.option(
    "--count", type=click.IntRange(1), default=1, metavar="N", help="How many messages at most."
)
@click.option("--no-wait", is_flag=True, help="Only what is there now.")
@click.option(
    "--expires", "--wait", type=TIMEOUT, metavar="TIME", help="How long to wait for messages."
)
@click.option("--group", metavar="NAME", help="The priority group to pull for. (2.11)")
@click.option("-r", "--raw", is_flag=True, help="Show the bodies, and nothing else.")
@click.option("-f", "--format", "layout", metavar="TEXT", help=FORMAT_HELP)
@common_options
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
    **answer: Any,
) -> None:
    """
    Get the next message of a CONSUMER of a STREAM, show it, and acknowledge it.

    It waits as long as --timeout for one. The exit status is 4 when none came. With --count, each
    message is shown when it comes, with --json each on a line of its own.
    """
    answer.pop("ack")
    with settings.connection() as nc:
        js = settings.jetstream_on(nc)
        found = find_pull(settings, js, stream, consumer)
        view = MessageView(settings, raw=raw, layout=layout, single=count == 1)
        settle = _settle(settings, found, answer)
        # Messages come from now on.
        source = _source(found, count, no_wait=no_wait, expires=expires, group=group)
        reading = Reading(
            settings=settings,
            source=source,
            view=view,
            settle=settle,
            flush=lambda: nc.flush(settings.timeout),
        )
        wait = settings.timeout if expires is None else expires
        reading.run(count, wait, each=False)
        if not reading.shown:
            raise _nothing(found, None if no_wait else wait)


def _settle(settings: Settings, consumer: PullConsumer, answer: dict[str, Any]) -> Settle:
    return Settle.of(
        consumer.cached_info.config.ack_policy,
        settings.timeout,
        no_ack=answer["no_ack"],
        nak=answer["nak"],
        term=answer["term"],
        confirmed=answer["double_ack"],
    )


def _source(
    consumer: PullConsumer, count: int, *, no_wait: bool, expires: float | None, group: str | None
) -> Source:
    if no_wait:
        return NowSource(consumer, count, group)
    options: Any = {} if group is None else {"group": group}
    config = consumer.cached_info.config
    if expires is not None and not config.max_expires:
        # It ends with the command in any case; this is for one that is killed.
        options["expires"] = max(expires, _SHORTEST)
    # One pull asks for all of them, or for as many as one may.
    batch = min(count, config.max_batch or count)
    return PullSource(consumer.messages(max_messages=batch, stop_after=count, **options))


def _nothing(consumer: PullConsumer, waited: float | None) -> CommandError:
    """Return the error that says that nothing came, and what there is to know about that."""
    text = (
        "no message"
        if waited is None
        else f"no message in {seconds_text(timedelta(seconds=waited))}"
    )
    try:
        hint = _why(consumer.info())
    except TimeoutError:
        hint = ""
    return CommandError(text, ExitStatus.TIMED_OUT, hint=hint)


def _why(info: ConsumerInfo) -> str:
    if info.paused:
        return f"{title(info)} is paused"
    pending = info.num_ack_pending
    if info.num_pending:
        most = info.config.max_ack_pending
        full = most is not None and 0 < most <= pending
        reason = f": {with_separators(pending)} await their acknowledgement" if full else ""
        return f"{title(info)} has {with_separators(info.num_pending)} to deliver{reason}"
    if not pending:
        most = info.config.max_deliver
        # What was delivered so often counts neither as pending nor as not acknowledged.
        end = ", and acknowledged or given up" if most and most > 0 else " and acknowledged"
        return f"{title(info)} has everything delivered{end}"
    wait = info.config.ack_wait
    within = f" within {seconds_text(wait)}" if wait else ""
    left = with_separators(pending)
    return f"{title(info)}: {left} delivered and not acknowledged, to come again{within}"
