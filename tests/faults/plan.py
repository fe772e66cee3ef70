"""
The faults of a run and their times, planned from a seed before the start.

There are three tracks, which run at the same time: faults of the network, faults of servers, and changes
by an operator. So they coincide, for example a link that breaks while a server restarts. A track is a
list; the same seed gives the same list.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LINES", "Fault", "network_plan", "operator_plan", "process_plan", "server_plan"]

#: The connections: each has its own network.
LINES: Final = ("publishing", "reading", "fetching", "patient", "alone", "watching")

_NETWORK: Final = {
    "cut": 4,
    "reset": 4,
    "cut client only": 2,
    "reset client only": 2,
    "reset server only": 2,
    "half close": 2,
    "cut after": 8,
    "hold": 3,
    "stall": 6,
    "cut a write": 4,
    "hold to client": 2,
    "hold to server": 2,
    "delay": 2,
    "fragments": 2,
    "trickle": 1,
    "refuse": 2,
    "reconnect": 2,
}
#: The range of powers of ten for the position of a fault in the bytes.
_BYTES: Final = {
    "cut after": (0, 5),
    "fragments": (0, 5),
    "stall": (2, 6),
    "cut a write": (4, 6.5),
}
_SERVER: Final = {"kill": 3, "stop": 2, "pause": 2}
_OPERATOR: Final = {"consumer edited": 3, "consumer paused": 2, "stream edited": 2}
_PROCESS: Final = {"kill": 6, "pause": 2, "terminate": 2}
_CLUSTER: Final = {
    "kill": 2,
    "stop": 1,
    "pause": 1,
    "stream leader steps down": 3,
    "consumer leader steps down": 3,
}


@dataclass(frozen=True)
class Fault:
    """One fault."""

    after: float
    """Seconds after the one before."""
    kind: str
    lasts: float
    """Seconds until it is mended."""
    where: str = ""
    """The line, or how to choose the server."""
    number: int = 0
    """Bytes that still go through, or the size of fragments."""

    def __str__(self) -> str:
        more = f" {self.number} bytes" if self.number else ""
        return f"+{self.after:.2f} s: {self.kind}{more} ({self.where}) for {self.lasts:.2f} s"


def network_plan(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of links."""
    rng = random.Random(f"network {seed}")
    plan: list[Fault] = []
    total = 0.0
    while total < seconds:
        kind = _choice(rng, _NETWORK)
        fault = Fault(
            after=round(rng.uniform(0.05, 0.8), 3),
            kind=kind,
            lasts=round(rng.choice((0.05, 0.3, 0.6, 1.5, 3.0)) * rng.uniform(0.3, 1), 3),
            where=rng.choice((*LINES, "all")),
            number=int(10 ** rng.uniform(*_BYTES[kind])) if kind in _BYTES else 0,
        )
        plan.append(fault)
        total += fault.after + fault.lasts
    return plan


def server_plan(seed: int, seconds: float, *, cluster: bool) -> list[Fault]:
    """Return the faults of servers; each is over before the next one begins."""
    rng = random.Random(f"server {seed}")
    plan: list[Fault] = []
    total = 0.0
    while total < seconds:
        fault = Fault(
            after=round(rng.uniform(1.5, 6.0 if cluster else 4.0), 3),
            kind=_choice(rng, _CLUSTER if cluster else _SERVER),
            lasts=round(rng.choice((0.05, 0.5, 2.0)) * rng.uniform(0.5, 1.5), 3),
            where=rng.choice(("stream leader", "connected", "any")) if cluster else "server",
        )
        plan.append(fault)
        total += fault.after + fault.lasts
    return plan


def operator_plan(seed: int, seconds: float, consumers: Sequence[str]) -> list[Fault]:
    """Return the changes by an operator to these consumers and to their stream."""
    rng = random.Random(f"operator {seed}")
    plan: list[Fault] = []
    total = 0.0
    while total < seconds:
        fault = Fault(
            after=round(rng.uniform(1.0, 6.0), 3),
            kind=_choice(rng, _OPERATOR),
            lasts=round(rng.uniform(0.5, 2.0), 3),
            where=rng.choice(consumers),
        )
        plan.append(fault)
        total += fault.after + fault.lasts
    return plan


def process_plan(
    seed: int, seconds: float, processes: int, *, children: bool = False
) -> list[Fault]:
    """Return the faults of the processes of a worker, and of their children if they have some."""
    rng = random.Random(f"processes {seed}")
    kinds = _PROCESS | ({"kill child": 10} if children else {})
    plan: list[Fault] = []
    total = 0.0
    while total < seconds:
        fault = Fault(
            after=round(rng.uniform(0.5, 2.5), 3),
            kind=_choice(rng, kinds),
            lasts=round(rng.choice((0.05, 0.5, 4.0)) * rng.uniform(0.5, 1.5), 3),
            where=f"process {rng.randrange(processes)}",
        )
        plan.append(fault)
        total += fault.after + fault.lasts
    return plan


def _choice(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
