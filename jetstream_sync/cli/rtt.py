"""``jsm rtt``: measure round-trip times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from .long_running import password_once
from .output import emit, seconds_text
from .settings import Settings, common_options

_MICROSECOND = timedelta(microseconds=1)


@click.command()
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 10_000),
    default=5,
    show_default=True,
    help="Number of pings to each server.",
)
@common_options
def rtt(settings: Settings, *, count: int) -> None:
    """
    Measure the round-trip time to each server.

    A separate connection is opened to each server URL.
    """
    results: list[dict[str, Any]] = []
    password_once(settings)
    for url in settings.login().servers:
        settings.given["servers"] = [url]
        with settings.connection() as nc:
            times = sorted(nc.rtt(settings.timeout) for _ in range(count))
            results.append(
                {
                    "url": nc.connected_url,
                    "server_name": nc.server_info.server_name,
                    "count": count,
                    "min_ns": _nanoseconds(times[0]),
                    "median_ns": _nanoseconds(times[len(times) // 2]),
                    "average_ns": _nanoseconds(sum(times, timedelta(0)) / count),
                    "max_ns": _nanoseconds(times[-1]),
                }
            )

    def human() -> None:
        for each in results:
            texts = {
                name: seconds_text(timedelta(microseconds=each[f"{name}_ns"] // 1000))
                for name in ("min", "median", "average", "max")
            }
            said = ", ".join(f"{name} {text}" for name, text in texts.items())
            settings.env.stdout.write(f"{each['url']}: {said}\n")

    emit(settings, results, human)


def _nanoseconds(time: timedelta) -> int:
    return time // _MICROSECOND * 1000
