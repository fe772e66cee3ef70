"""``jsm bench``: measure throughput and latency."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable
from typing import Any, Final

import click

from ...subjects import check_publish_subject
from ..long_running import password_once
from ..output import count, size
from ..progress import show_progress
from ..render import Block, Field, show_blocks
from ..settings import Settings, common_options
from ..values import FROM_1, SIZE, Parsed, option, with_options
from .run import Interrupted, Outcome, prepared, run_clients, split
from .work import KINDS, Workload

_PERCENTILES: Final = {"p50_ns": 500, "p90_ns": 900, "p99_ns": 990, "p999_ns": 999}


def _positive(text: str) -> int:
    number: int = SIZE.parse(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


_POSITIVE: Final = Parsed("number", _positive)
_RATE: Final = option(
    "--rate N",
    "Maximum messages per second of all clients together.",
    click.FloatRange(0, min_open=True),
)
_SUBJECT: Final = option("--subject SUBJECT", "Subject of the messages.", default="jsm.bench")
_BATCH: Final = option(
    "--batch N", "Maximum number of messages in a pull request.", FROM_1, default=500
)
_STORED: Final = (
    option(
        "--storage",
        "Storage of the messages; with memory the disk does not affect the result.",
        click.Choice(["memory", "file"]),
        default="memory",
    ),
    option("--replicas N", "Number of replicas.", click.IntRange(1, 5), default=1),
)


def _command(path: str, text: str, *more: Callable[[Any], Any]) -> click.Command:
    """Return the command of one kind of work."""

    @click.command(help=text)
    @with_options(
        option(
            "--msgs N",
            "Number of messages of all clients together.",
            _POSITIVE,
            to="count",
            default="100k",
        ),
        option("--size BYTES", "Size of each message.", _POSITIVE, default="128"),
        option(
            "--clients N",
            "Number of clients, each with its own connection and thread.",
            click.IntRange(1, 256),
            default=1,
        ),
        *more,
        option("--no-progress", "Show no progress.", to="quiet"),
        common_options,
    )
    def measure(settings: Settings, clients: int, quiet: bool, **options: Any) -> None:
        own = uuid.uuid4().hex[:12]
        options = {"subject": f"jsm.bench.{own}", **options}
        check_publish_subject(options["subject"])
        workload = Workload(name=f"JSM_BENCH_{own}", **options)
        _measure(settings, path, workload, clients, quiet=quiet)

    return measure


pub: Final = _command(
    "pub", "Publish core NATS messages, which are not acknowledged.", _RATE, _SUBJECT
)
sub: Final = _command(
    "sub",
    "Receive core NATS messages that another process publishes, such as jsm bench pub.",
    _SUBJECT,
)
js_pub_sync: Final = _command(
    "js pub sync",
    "Publish to a stream and wait for each acknowledgement.",
    _RATE,
    *_STORED,
)
js_pub_async: Final = _command(
    "js pub async",
    "Publish to a stream asynchronously, with up to 4,000 pending acknowledgements.",
    _RATE,
    *_STORED,
)
js_fetch: Final = _command(
    "js fetch",
    "Fetch messages in batches and acknowledge each. The clients share one consumer.",
    _BATCH,
    *_STORED,
)
js_ordered: Final = _command(
    "js ordered",
    "Read a stream in order, without acknowledgements. Each client reads every message.",
    *_STORED,
)
kv_put: Final = _command("kv put", "Put values to 100 keys.", _RATE, *_STORED)
kv_get: Final = _command("kv get", "Get the values of 100 keys.", _RATE, *_STORED)


def _measure(
    settings: Settings, path: str, workload: Workload, clients: int, *, quiet: bool
) -> None:
    kind = KINDS[path]
    workloads = list(split(workload, clients, each=kind.each))
    password_once(settings)
    total = sum(each.count for each in workloads)
    with prepared(settings, kind, workload):
        try:
            with show_progress(
                settings.env, kind.title, total, quiet=quiet or settings.json
            ) as show:
                outcome = run_clients(settings, kind, workloads, show)
        except Interrupted as stopped:
            line = _summary(stopped.outcome, workload.size)
            settings.env.stderr.write(f"\n{kind.title}: {line}\n")
            raise
    document = _document(path, outcome, workload)
    clients_text = f", {clients} clients" if clients > 1 else ""
    show_blocks(
        settings,
        document,
        Block("", [Field("Result", lambda _: _summary(outcome, workload.size))], document),
        Block(f"Latency: {kind.latency}", _LATENCY, document["latency"]),
        heading=f"{kind.title}{clients_text}",
    )


def _summary(outcome: Outcome, bytes_each: int) -> str:
    """Return one line with the number of messages and the rates."""
    return (
        f"{count(outcome.total)} messages of {size(bytes_each)} in {outcome.seconds:.2f} s: "
        f"{outcome.rate:,.0f} msgs/s, {size(int(outcome.rate * bytes_each))}/s"
    )


def _document(path: str, outcome: Outcome, workload: Workload) -> dict[str, Any]:
    return {
        "kind": path,
        "title": KINDS[path].title,
        "clients": len(outcome.messages),
        "messages": outcome.total,
        "size_bytes": workload.size,
        "seconds": outcome.seconds,
        "messages_per_second": outcome.rate,
        "bytes_per_second": outcome.rate * workload.size,
        "messages_per_client": list(outcome.messages),
        "latency": {"of": KINDS[path].latency, **_latency(outcome.samples)},
    }


def _latency(samples: list[int]) -> dict[str, float]:
    """Return statistics of latencies in nanoseconds; nothing without samples."""
    if not samples:
        return {}
    # Before Python 3.13 `quantiles` needs two samples.
    several = samples if len(samples) > 1 else samples * 2
    cuts = statistics.quantiles(several, n=1000, method="inclusive")
    return {
        "samples": len(samples),
        "min_ns": min(samples),
        "avg_ns": statistics.fmean(samples),
        **{name: cuts[per_mille - 1] for name, per_mille in _PERCENTILES.items()},
        "max_ns": max(samples),
    }


def _micros(nanoseconds: float | None) -> str | None:
    return None if nanoseconds is None else f"{nanoseconds / 1000:,.1f} µs"


_LATENCY: Final = (
    Field("Samples", "samples"),
    *(
        Field(title, f"{name}_ns", _micros)
        for title, name in (
            ("Minimum", "min"),
            ("Average", "avg"),
            ("P50", "p50"),
            ("P90", "p90"),
            ("P99", "p99"),
            ("P99.9", "p999"),
            ("Maximum", "max"),
        )
    ),
)
