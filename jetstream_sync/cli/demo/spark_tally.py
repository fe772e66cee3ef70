"""The books of ``jsm demo --spark``: those of the demo, and the totals that Spark SQL has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import Self

from . import orders
from .intake import InputOrder
from .tally import DemoReport

__all__ = ["SparkDemoReport", "Total", "expected_totals"]


@dataclass(frozen=True, kw_only=True)
class Total:
    """What was sold in one currency, in its minor unit, as Spark SQL added it up."""

    currency: str
    orders: int
    total_minor: int
    matches_input: bool


@dataclass(frozen=True, kw_only=True)
class SparkDemoReport(DemoReport):
    """The outcome of a run with Spark."""

    #: Spark's version.
    spark: str
    #: Micro-batches that had rows, of both jobs.
    batches: int
    totals: tuple[Total, ...]

    @classmethod
    def of(cls, report: DemoReport, *, spark: str, batches: int, totals: tuple[Total, ...]) -> Self:
        """Return a report with what Spark adds to it."""
        fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
        return cls(**fields, spark=spark, batches=batches, totals=totals)

    @property
    def exactly_once(self) -> bool:
        """Whether every order went through every stage once, and Spark's totals agree."""
        return super().exactly_once and all(total.matches_input for total in self.totals)

    def failure(self) -> str:
        """Say in one line what is wrong; only when not `exactly_once`."""
        wrong = [total.currency for total in self.totals if not total.matches_input]
        parts = [super().failure()]
        if wrong:
            parts.append(f"the totals by Spark SQL are not those of the input: {', '.join(wrong)}")
        return "; ".join(parts)


def expected_totals(input_orders: Iterable[InputOrder]) -> dict[str, tuple[int, int]]:
    """Return the number of orders and their total by currency, worked out from the input."""
    totals: dict[str, tuple[int, int]] = {}
    for each in input_orders:
        order = orders.parse(each.payload)
        number, amount = totals.get(order.currency, (0, 0))
        totals[order.currency] = (number + 1, amount + orders.total(order))
    return totals
