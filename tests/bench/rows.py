"""The rows of the comparison: the work, its amount for each client, and the aims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["BARE", "BARE_READER", "CLIENTS", "MESSAGE_BYTES", "OURS", "ROWS", "Row"]

MESSAGE_BYTES = 128
"""Size of every payload, in bytes."""

OURS = "ours"
BARE = "bare"
BARE_READER = "bare-reader"

CLIENTS: Mapping[str, str] = {
    OURS: "ours",
    "nats-py": "nats-py",
    "nats-py-blocking": "nats-py blocking",
    "c": "C (libnats)",
    BARE: "bare socket",
    BARE_READER: "with a reader thread",
}
"""Names for ``--clients`` and what the table calls them, in its order."""

_SECONDS_PER_CELL = 1.5


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of work, which every client does in its usual way."""

    name: str
    """What ``--rows`` takes and what a client's file is asked for."""

    title: str

    reads: bool = False
    """The stream is filled before the clock starts, and the client reads it."""

    pulls: bool = False
    """The client is bound to a durable pull consumer with explicit acks, made for the cell."""

    stores: bool = False
    """What the client publishes must be in the stream afterwards."""

    direct: bool = False
    """The client requests the last message of the stream, which the server itself sends."""

    bucket: bool = False
    """The client creates a bucket, fills it before the clock starts, and checks what it reads."""

    batch: int = 0
    """Messages per ``fetch``; 0 where there is none."""

    rates: Mapping[str, int]
    """
    Expected messages per second.

    They only size a cell, so that it takes between one and two seconds for a slow client and for
    a fast one; a client without a rate has no natural way to do this work and is left out.
    """

    aims: Mapping[str, float]
    """Peer -> the least ratio of our rate to that peer's."""

    def count(self, client: str, scale: float) -> int:
        """
        Say how many messages a cell has.

        Args:
            client: a key of `CLIENTS` that has a rate in this row.
            scale: factor on the number of messages; 1 means one to two seconds per cell.

        Returns:
            a number of messages, at least 500 and a multiple of 500.

        """
        wanted = self.rates[client] * _SECONDS_PER_CELL * scale
        return max(1, round(wanted / 500)) * 500


# The same work by two APIs: the rates and aims are those of the work.
_FETCH500 = Row(
    name="fetch500",
    title="fetch(500), ack each",
    reads=True,
    pulls=True,
    batch=500,
    rates={OURS: 290_000, "nats-py": 49_000, "nats-py-blocking": 32_000, "c": 260_000},
    aims={"nats-py": 8.0, "c": 1.1},
)
_ROUND_TRIPS = {BARE: 30_000, BARE_READER: 24_000}
_FETCH1 = Row(
    name="fetch1",
    title="fetch(1), ack",
    reads=True,
    pulls=True,
    batch=1,
    rates={
        OURS: 30_000,
        "nats-py": 18_500,
        "nats-py-blocking": 13_500,
        "c": 1_000,
        **_ROUND_TRIPS,
    },
    aims={"nats-py": 1.6, "c": 2.5},
)
_ORDERED = Row(
    name="ordered",
    title="ordered / no-ack read",
    reads=True,
    rates={OURS: 500_000, "nats-py": 55_000, "nats-py-blocking": 42_000, "c": 800_000},
    aims={"nats-py": 16.0, "c": 0.9},
)
_CORE_RATES = {OURS: 1_400_000, "nats-py": 800_000, "nats-py-blocking": 64_000, "c": 8_000_000}

ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row(
            name="publish",
            title="publish, wait for each ack",
            stores=True,
            rates={
                OURS: 27_000,
                "nats-py": 18_000,
                "nats-py-blocking": 12_000,
                "c": 22_000,
                **_ROUND_TRIPS,
            },
            aims={"nats-py": 1.8, "c": 1.2},
        ),
        Row(
            name="request",
            title="request",
            direct=True,
            rates={OURS: 27_000, "nats-py": 18_000, "c": 22_000, **_ROUND_TRIPS},
            aims={"nats-py": 1.8, "c": 1.2},
        ),
        Row(
            name="publish_async",
            title="publish_async, window 4,000",
            stores=True,
            rates={OURS: 300_000, "nats-py": 70_000, "c": 390_000},
            aims={"nats-py": 5.0, "c": 0.6},
        ),
        _FETCH500,
        _FETCH1,
        replace(
            _FETCH500,
            name="messages",
            title="messages(), ack each",
            rates={OURS: 250_000, "nats-py": 49_000, "c": 260_000},
        ),
        # A worker has retries and leases, and waits until the server has stored its acks; the others are
        # loops without these.
        replace(
            _FETCH500,
            name="worker",
            title="worker, one thread",
            rates={OURS: 100_000, "nats-py": 49_000, "c": 260_000},
            aims={},
        ),
        Row(
            name="ack_sync",
            title="ack_sync",
            reads=True,
            pulls=True,
            rates={OURS: 27_000, "nats-py": 18_000, "c": 22_000, **_ROUND_TRIPS},
            aims={"nats-py": 1.6},
        ),
        replace(_FETCH500, name="pull_subscribe500", title="pull_subscribe, fetch(500), ack each"),
        replace(
            _FETCH1,
            name="pull_subscribe1",
            title="pull_subscribe, fetch(1), ack",
            rates={each: rate for each, rate in _FETCH1.rates.items() if each not in _ROUND_TRIPS},
        ),
        _ORDERED,
        replace(
            _ORDERED,
            name="push_ordered",
            title="subscribe, ordered",
            aims={"nats-py": 9.0, "c": 0.6},
        ),
        Row(
            name="push",
            title="subscribe, no acks",
            reads=True,
            rates={OURS: 500_000, "nats-py": 60_000, "nats-py-blocking": 45_000, "c": 800_000},
            aims={"nats-py": 9.0, "c": 0.6},
        ),
        Row(
            name="kv_put",
            title="key-value: put",
            bucket=True,
            rates={OURS: 27_000, "nats-py": 18_000, **_ROUND_TRIPS},
            aims={"nats-py": 1.8},
        ),
        Row(
            name="kv_get",
            title="key-value: get",
            bucket=True,
            rates={OURS: 22_000, "nats-py": 15_000, **_ROUND_TRIPS},
            aims={"nats-py": 1.6},
        ),
        Row(
            name="kv_read",
            title="key-value: read all keys",
            bucket=True,
            rates={OURS: 100_000, "nats-py": 7_000},
            aims={"nats-py": 5.0},
        ),
        Row(
            name="obj_put",
            title="object store: put, chunks",
            bucket=True,
            rates={OURS: 1_200, "nats-py": 1_000},
            aims={"nats-py": 1.3},
        ),
        Row(
            name="obj_get",
            title="object store: get, chunks",
            bucket=True,
            rates={OURS: 1_000, "nats-py": 150},
            aims={"nats-py": 3.0},
        ),
        Row(
            name="core",
            title="core publish",
            rates=_CORE_RATES,
            aims={"nats-py": 2.5, "c": 0.3},
        ),
        Row(
            name="core_read",
            title="core publish and subscribe",
            rates={OURS: 500_000, "nats-py": 60_000, "c": 2_000_000},
            aims={"nats-py": 15.0, "c": 0.4},
        ),
    )
}
