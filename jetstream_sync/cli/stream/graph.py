"""``jsm stream graph``: draw the activity of a stream over time."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

import click

from ... import Stream
from ...net.clock import monotonic
from ..charts import sparkline, writes_blocks
from ..completion import optional_stream_argument
from ..interruptible import pause
from ..names import find_stream
from ..output import counted, emit_line, size, when
from ..prompts import Asker
from ..sanitize import unescaped
from ..settings import Settings, common_options
from ..values import PAUSE

#: Width of a graph, in samples.
_GRAPH_WIDTH = 60


class _Sample:
    """The state of a stream at one time."""

    def __init__(self, stream: Stream) -> None:
        info = stream.info()
        self.at = monotonic()
        self.moment: datetime | None = info.ts
        self.messages = info.state.messages
        self.bytes = info.state.bytes
        self.last_seq = info.state.last_seq


@click.command()
@optional_stream_argument
@click.option("--interval", type=PAUSE, default="1s", help="Time between samples.")
@click.option("--count", "number", type=click.IntRange(1), help="Exit after N samples.")
@common_options
def graph(settings: Settings, name: str | None, interval: timedelta, number: int | None) -> None:
    """
    Draw the activity of a stream: the rate of new messages, and the number of stored ones.

    On a terminal, redraws the graph until Ctrl-C. Elsewhere, writes one line per sample, with -j as
    JSON, and exits after one sample unless --count is given.
    """
    if number is None and (settings.json or settings.env.console(settings.env.stdout) is None):
        number = 1
    samples: deque[_Sample] = deque(maxlen=_GRAPH_WIDTH + 1)
    with settings.jetstream() as js:
        stream = find_stream(js, name, Asker(settings))
        samples.append(_Sample(stream))
        done = 0
        while number is None or done < number:
            pause(interval.total_seconds())
            samples.append(_Sample(stream))
            done += 1
            _show(settings, stream.name, list(samples))


def _rates(samples: list[_Sample]) -> list[float]:
    return [
        (after.last_seq - before.last_seq) / max(after.at - before.at, 1e-6)
        for before, after in zip(samples, samples[1:])  # noqa: B905, RUF007 - one shorter
    ]


def _show(settings: Settings, name: str, samples: list[_Sample]) -> None:
    rates, last = _rates(samples), samples[-1]
    if settings.json:
        emit_line(
            settings,
            {
                "stream": name,
                "messages": last.messages,
                "bytes": last.bytes,
                "last_seq": last.last_seq,
                "messages_per_second": round(rates[-1], 3),
            },
        )
        return
    out = settings.env.stdout
    if settings.env.console(out) is None:
        moment = when(settings, last.moment)
        out.write(
            f"{moment}  {rates[-1]:,.0f} msgs/s  {counted(last.messages, 'message')}  "
            f"{size(last.bytes)}\n"
        )
    else:
        blocks = writes_blocks(getattr(out, "encoding", None))

        def drawn(values: list[float]) -> str:
            return sparkline(values, len(values), blocks=blocks)

        held = [float(sample.messages) for sample in samples[1:]]
        unescaped(out).write("\x1b[H\x1b[2J")
        out.write(f"Stream {name}\n\n")
        out.write(f"  In:    {drawn(rates)} {rates[-1]:,.0f} msgs/s\n")
        out.write(
            f"  Holds: {drawn(held)} {counted(last.messages, 'message')}, {size(last.bytes)}\n"
        )
    out.flush()
