"""
The books of the demo: what came through each stage, and whether that is every order exactly once.

Nothing here knows of servers. `Tally` is written by the one thread that reads the stream in order,
and may be read by any other while that goes on; `Tally.report` is for when it is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["STAGES", "DemoReport", "Latency", "StageReport", "Tally", "WorkerReport"]

#: The stages of an order, as the last token of the subject.
STAGES: Final = ("received", "processed", "completed")

_DIGEST_SIZE: Final = 1 << 64
_NS_PER_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long orders took from received to completed, in milliseconds by the server's clock."""

    min_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """What is stored on the subject of one stage, compared with the input."""

    stage: str
    messages: int
    orders: int
    missing: int
    duplicates: int
    #: Messages that belong to no order of the input, or can not be read.
    strangers: int
    #: Messages per second from the first to the last, by the server's clock; ``None`` when all
    #: have one time stamp.
    rate: float | None
    digest: str
    matches_input: bool
    #: Ids of a few orders that are missing or doubled, for the error.
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What the workers of one consumer did."""

    name: str
    workers: int
    #: Messages that the workers got, redeliveries included.
    deliveries: int
    redelivered: int
    #: Publishes that the stream recognized as done before, by their message id.
    deduplicated: int
    refused: int
    first_refusal: str | None


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """The outcome of a run."""

    orders: int
    digest: str
    seconds: float
    server: str
    stages: tuple[StageReport, ...]
    workers: tuple[WorkerReport, ...]
    latency: Latency | None

    @property
    def exactly_once(self) -> bool:
        """Whether every order went through every stage once, at the price of the input."""
        return all(stage.matches_input for stage in self.stages)

    def failure(self) -> str:
        """Say in one line what is wrong; only when not `exactly_once`."""
        parts = [
            f"{stage.stage}: {stage.missing} missing, {stage.duplicates} duplicates, "
            f"{stage.strangers} unknown"
            + (f" (for example {', '.join(stage.examples)})" if stage.examples else "")
            for stage in self.stages
            if not stage.matches_input
        ]
        refusals = [w.first_refusal for w in self.workers if w.first_refusal is not None]
        return "; ".join(["not every order came through exactly once", *parts, *refusals[:1]])


@dataclass
class _Stage:
    """The running books of one stage."""

    messages: int = 0
    strangers: int = 0
    fingerprints: int = 0
    first_ns: int = 0
    last_ns: int = 0
    #: How often each order was seen.
    seen: dict[str, int] = field(default_factory=dict)


class Tally:
    """
    Counts messages per stage against the orders of the input.

    Args:
        expected: the fingerprint of each order of the input by its id.

    """

    def __init__(self, expected: Mapping[str, int]) -> None:
        self._expected = expected
        self._stages = {name: _Stage() for name in STAGES}
        self._received_ns: dict[str, int] = {}
        self._latencies_ns: list[int] = []
        #: The highest stream sequence that was counted.
        self.last_seq = 0

    def see(self, stage: str, order_id: str, fingerprint: int, timestamp_ns: int) -> None:
        """
        Count a message.

        Args:
            stage: one of `STAGES`.
            order_id: whose message it is.
            fingerprint: of id, currency and total, as the message has them.
            timestamp_ns: when the server stored it.

        """
        books = self._stages[stage]
        books.first_ns = books.first_ns or timestamp_ns
        books.last_ns = timestamp_ns
        books.messages += 1
        if order_id not in self._expected:
            books.strangers += 1
            return
        books.fingerprints += fingerprint
        books.seen[order_id] = books.seen.get(order_id, 0) + 1
        if stage == STAGES[0]:
            self._received_ns.setdefault(order_id, timestamp_ns)
        elif stage == STAGES[-1] and books.seen[order_id] == 1 and order_id in self._received_ns:
            self._latencies_ns.append(timestamp_ns - self._received_ns[order_id])

    def see_unreadable(self, stage: str | None) -> None:
        """Count a message of a stage, or of none of them, that says nothing about an order."""
        for name in STAGES if stage not in self._stages else (stage,):
            self._stages[name].messages += 1
            self._stages[name].strangers += 1

    def counts(self) -> tuple[int, ...]:
        """Return how many different orders each stage has seen so far."""
        return tuple(len(books.seen) for books in self._stages.values())

    def messages(self, stage: str) -> int:
        """Return how many messages a stage has seen so far, doubles and strangers included."""
        return self._stages[stage].messages

    def complete(self) -> bool:
        """Say whether every order was seen in the last stage."""
        return self.counts()[-1] >= len(self._expected)

    def report(self, *, seconds: float, server: str, workers: Sequence[WorkerReport]) -> DemoReport:
        """
        Close the books.

        Args:
            seconds: how long the run took.
            server: what it ran on.
            workers: what the workers say of themselves.

        """
        return DemoReport(
            orders=len(self._expected),
            digest=_hex(sum(self._expected.values())),
            seconds=seconds,
            server=server,
            stages=tuple(self._stage_report(name) for name in STAGES),
            workers=tuple(workers),
            latency=_latency(self._latencies_ns),
        )

    def _stage_report(self, name: str) -> StageReport:
        books = self._stages[name]
        missing = [order_id for order_id in self._expected if order_id not in books.seen]
        doubled = [order_id for order_id, times in books.seen.items() if times > 1]
        digest = _hex(books.fingerprints)
        nanoseconds = books.last_ns - books.first_ns
        return StageReport(
            stage=name,
            messages=books.messages,
            orders=len(books.seen),
            missing=len(missing),
            duplicates=sum(books.seen[order_id] - 1 for order_id in doubled),
            strangers=books.strangers,
            rate=books.messages * _NS_PER_SECOND / nanoseconds if nanoseconds > 0 else None,
            digest=digest,
            matches_input=(
                not missing
                and not doubled
                and not books.strangers
                and digest == _hex(sum(self._expected.values()))
            ),
            examples=tuple((missing + doubled)[:3]),
        )


def _hex(fingerprints: int) -> str:
    return f"{fingerprints % _DIGEST_SIZE:016x}"


def _latency(latencies_ns: Sequence[int]) -> Latency | None:
    if not latencies_ns:
        return None
    ordered = sorted(latencies_ns)

    def percentile(percent: int) -> float:
        # Nearest rank: the smallest value that this share of the orders does not exceed.
        rank = -(-percent * len(ordered) // 100)
        return ordered[max(rank, 1) - 1] / 1e6

    return Latency(
        min_ms=percentile(0),
        p50_ms=percentile(50),
        p90_ms=percentile(90),
        p99_ms=percentile(99),
        max_ms=percentile(100),
    )
