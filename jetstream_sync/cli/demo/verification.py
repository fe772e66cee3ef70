"""
Verification of a run: every order exactly once in every stage, with the right total.

The thread that reads the stream calls `Verification.add`. Other threads may read counts meanwhile;
`Verification.report` is for the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["STAGES", "ConsumerReport", "DemoReport", "StageReport", "Verification"]

#: The stages of an order, as the last token of the subject.
STAGES: Final = ("received", "processed", "completed")
_MAX_EXAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The messages of one stage, compared with the input."""

    stage: str
    messages: int
    orders: int
    missing: int
    duplicates: int
    #: Messages with another total than the order has.
    wrong_totals: int
    #: Messages that are not about an order of the input.
    unknown: int
    matches_input: bool
    #: A few ids of orders that are missing, duplicate or wrong.
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ConsumerReport:
    """The work of all workers of one consumer."""

    name: str
    workers: int
    #: Messages that were delivered, including redeliveries.
    deliveries: int
    redelivered: int
    #: Publishes that the stream recognized as duplicates by their message id.
    deduplicated: int
    #: Messages that a worker terminated because they were not valid.
    refused: int


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """The outcome of a run."""

    orders: int
    seconds: float
    server: str
    stages: tuple[StageReport, ...]
    consumers: tuple[ConsumerReport, ...]
    #: Percentiles of the time from received to completed in milliseconds, by the server's clock.
    latency_ms: Mapping[str, float]

    @property
    def exactly_once(self) -> bool:
        """Whether every order passed every stage exactly once, with the total of the input."""
        return all(stage.matches_input for stage in self.stages)

    def failure(self) -> str:
        """Return one line that describes what is wrong; only if not `exactly_once`."""
        parts = [
            f"{stage.stage}: {stage.missing} missing, {stage.duplicates} duplicate, "
            f"{stage.wrong_totals} with a wrong total, {stage.unknown} unknown"
            + (f" (for example {', '.join(stage.examples)})" if stage.examples else "")
            for stage in self.stages
            if not stage.matches_input
        ]
        return "; ".join(["not every order came through exactly once", *parts])


@dataclass
class _Stage:
    messages: int = 0
    unknown: int = 0
    #: Number of messages of each order.
    seen: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Verification:
    """
    Compare the messages of the stream with the input.

    Args:
        totals: the total of each order of the input by its id.

    """

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._totals = totals
        self._stages = {name: _Stage() for name in STAGES}
        self._received_ns: dict[str, int] = {}
        self._latencies_ns: list[int] = []
        #: The highest stream sequence that was added.
        self.last_seq = 0

    def add(self, stage: str, order_id: str, total: int, timestamp_ns: int) -> None:
        """
        Count a message.

        Args:
            stage: one of `STAGES`.
            order_id: as in the message.
            total: as in the message.
            timestamp_ns: when the server stored the message.

        """
        counts = self._stages[stage]
        counts.messages += 1
        if order_id not in self._totals:
            counts.unknown += 1
            return
        counts.seen[order_id] = counts.seen.get(order_id, 0) + 1
        if total != self._totals[order_id]:
            counts.wrong.append(order_id)
        if stage == STAGES[0]:
            self._received_ns.setdefault(order_id, timestamp_ns)
        elif stage == STAGES[-1] and order_id in self._received_ns:
            self._latencies_ns.append(timestamp_ns - self._received_ns.pop(order_id))

    def add_unknown(self, stage: str) -> None:
        """Count a message that is not about an order; one of no known stage fails all of them."""
        for name in [stage] if stage in self._stages else STAGES:
            self._stages[name].messages += 1
            self._stages[name].unknown += 1

    def counts(self) -> tuple[int, ...]:
        """Return the number of different orders in each stage so far."""
        return tuple(len(counts.seen) for counts in self._stages.values())

    def complete(self) -> bool:
        """Return whether the last stage has every order."""
        return self.counts()[-1] >= len(self._totals)

    def report(
        self, *, seconds: float, server: str, consumers: Sequence[ConsumerReport]
    ) -> DemoReport:
        """Return the result; only after the last `add`."""
        latencies = sorted(self._latencies_ns)
        return DemoReport(
            orders=len(self._totals),
            seconds=seconds,
            server=server,
            stages=tuple(self._stage_report(name) for name in STAGES),
            consumers=tuple(consumers),
            latency_ms={
                f"p{percent}": latencies[-(-percent * len(latencies) // 100) - 1] / 1e6
                for percent in (50, 99, 100)
                if latencies
            },
        )

    def _stage_report(self, name: str) -> StageReport:
        counts = self._stages[name]
        missing = [order_id for order_id in self._totals if order_id not in counts.seen]
        duplicate = [order_id for order_id, times in counts.seen.items() if times > 1]
        examples = [*missing, *duplicate, *counts.wrong]
        return StageReport(
            stage=name,
            messages=counts.messages,
            orders=len(counts.seen),
            missing=len(missing),
            duplicates=sum(counts.seen[order_id] - 1 for order_id in duplicate),
            wrong_totals=len(counts.wrong),
            unknown=counts.unknown,
            matches_input=not examples and not counts.unknown,
            examples=tuple(examples[:_MAX_EXAMPLES]),
        )
