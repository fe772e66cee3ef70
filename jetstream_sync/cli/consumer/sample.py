"""``jsm consumer sample``: show acknowledgement samples."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ...codec import loads
from ...errors import InvalidResponseError, TimeoutError
from ...net.clock import Deadline
from ..interruptible import wait_interruptibly
from ..long_running import reconnect_options
from ..output import Block, count, emit_line, note, seconds_text
from ..sanitize import readable
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import TIMEOUT
from .find import consumer_arguments, find, title

if TYPE_CHECKING:
    from ... import ConsumerInfo

#: Subject prefix of samples; the names of the stream and the consumer follow.
_METRICS = "$JS.EVENT.METRIC.CONSUMER.ACK"
#: The numeric fields of a sample.
_NUMBERS = ("stream_seq", "consumer_seq", "deliveries", "ack_time")


@click.command()
@consumer_arguments
@click.option(
    "--count", "wanted", type=click.IntRange(1), metavar="N", help="Exit after N samples."
)
@click.option("--wait", type=TIMEOUT, metavar="TIME", help="Exit after TIME without a sample.")
@common_options
def sample(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    wanted: int | None,
    wait: float | None,
) -> None:
    """
    Show acknowledgement samples of a CONSUMER of a STREAM until Ctrl-C.

    Sampling must be enabled with --sample of 'add' or 'edit'. With --json the events are shown as the
    server sent them.
    """
    with settings.connection(**reconnect_options(settings)) as nc:
        info = find(settings, settings.jetstream_on(nc), stream, consumer)
        percent = (info.config.sample_freq or "0").removesuffix("%")
        if not int(percent):
            raise CommandError(
                f"consumer {title(info)} has sampling disabled",
                ExitStatus.USAGE,
                hint=f"'jsm consumer edit {info.stream_name} {info.name} --sample 100' enables it",
            )
        subject = f"{_METRICS}.{info.stream_name}.{info.name}"
        with nc.subscribe(subject) as samples:
            # Acknowledgements after the announcement must be seen.
            nc.flush(settings.timeout)
            _announce(settings, info, subject, percent)
            seen = 0
            while seen != wanted:
                try:
                    msg = wait_interruptibly(samples.next_msg, Deadline(wait))
                except TimeoutError:
                    break
                seen += _show(settings, info, msg.data)
    if seen != wanted and (wanted is not None or not seen):
        asked = "" if wanted is None else f" of {count(wanted)}"
        raise CommandError(f"received {count(seen)}{asked} samples", ExitStatus.TIMED_OUT)


def _announce(settings: Settings, info: ConsumerInfo, subject: str, percent: str) -> None:
    settings.env.stderr.write(
        f"Listening for Ack Samples on {subject} with sampling frequency {percent} "
        f"for {title(info)}\n"
    )
    settings.env.stderr.flush()


def _show(settings: Settings, info: ConsumerInfo, data: bytes) -> bool:
    """Show a sample; return whether the data is a sample."""
    try:
        event: Any = loads(data)
    except InvalidResponseError as error:
        note(settings, f"warning: {error}")
        return False
    known = event if isinstance(event, dict) else dict.fromkeys(_NUMBERS)
    fields: list[Any] = [known.get(name, 0) for name in _NUMBERS]
    if not all(isinstance(each, int) for each in fields):
        note(settings, f"warning: {readable(data[:200])}: not a sample")
        return False
    if settings.json:
        emit_line(settings, event)
        return True
    stream_seq, consumer_seq, deliveries, ack_time = fields
    block = Block()
    block.add("Stream Sequence", count(stream_seq))
    block.add("Consumer Sequence", count(consumer_seq))
    # The format of 2020 counts redeliveries; the event includes the first delivery.
    block.add("Redelivered", count(max(0, deliveries - 1)))
    block.add("Delay", seconds_text(timedelta(microseconds=ack_time // 1000)))
    now = datetime.now().astimezone()
    settings.env.stdout.write(f"\n[{now:%H:%M:%S}] {title(info)}\n{block.text()}")
    settings.env.stdout.flush()
    return True
