"""
Makes the sample of orders that ships with the package: ``python tests/cli/make_orders.py``.

The sample depends on the seed alone: only ``Random.random`` is used, whose sequence is the same in
every version of Python.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

COUNT = 5_000
SEED = 2020
SAMPLE = Path(__file__).parents[2] / "jetstream_sync" / "cli" / "demo" / "data" / "orders.jsonl"

# Country, its currency, what a price in euros is multiplied with, decimal places, share of orders.
MARKETS = (
    ("DE", "EUR", 1.0, 2, 22),
    ("FR", "EUR", 1.0, 2, 14),
    ("NL", "EUR", 1.0, 2, 8),
    ("IT", "EUR", 1.0, 2, 8),
    ("GB", "GBP", 0.86, 2, 13),
    ("SE", "SEK", 11.2, 2, 4),
    ("PL", "PLN", 4.3, 2, 5),
    ("CH", "CHF", 0.95, 2, 4),
    ("US", "USD", 1.08, 2, 12),
    ("BR", "BRL", 5.6, 2, 3),
    ("IN", "INR", 90.0, 2, 3),
    ("JP", "JPY", 163.0, 0, 4),
)
# Article and its price in euros.
ARTICLES = (
    ("KB-104-ISO", 89.9),
    ("KB-087-ANSI", 119.0),
    ("MS-WL-3", 24.5),
    ("MS-TRACK-1", 54.0),
    ("DK-TB4-11", 219.0),
    ("CB-USBC-2M", 12.9),
    ("CB-HDMI-3M", 14.9),
    ("HS-ANC-40", 179.0),
    ("WC-4K-AF", 99.5),
    ("SSD-NV-1T", 84.9),
    ("SSD-NV-4T", 289.0),
    ("MON-27-QHD", 329.0),
    ("MON-34-UW", 649.0),
    ("LAMP-DSK-2", 39.9),
    ("MAT-XL", 19.9),
    ("STAND-NB", 44.0),
)
FIRST_DAY = datetime(2020, 1, 6, 6, 0, tzinfo=timezone.utc)

_T = TypeVar("_T")


def pick(rng: random.Random, choices: Sequence[_T], weights: Sequence[int]) -> _T:
    """Return one of the choices, each as often as its weight says."""
    left = rng.random() * sum(weights)
    for choice, weight in zip(choices, weights, strict=True):
        left -= weight
        if left < 0:
            return choice
    return choices[-1]


def make_orders(count: int = COUNT, seed: int = SEED) -> Iterator[str]:
    """Yield the orders as JSON lines, without line breaks."""
    rng = random.Random(seed)
    placed_at = FIRST_DAY
    for number in range(1, count + 1):
        placed_at += timedelta(seconds=1 + int(rng.random() * 60))
        country, currency, factor, places, _ = pick(rng, MARKETS, [m[-1] for m in MARKETS])
        items = []
        for _ in range(pick(rng, (1, 2, 3, 4, 6), (50, 25, 14, 8, 3))):
            sku, price = ARTICLES[int(rng.random() * len(ARTICLES))]
            quantity = pick(rng, (1, 2, 3, 5, 10, 25), (70, 14, 7, 4, 3, 2))
            items.append(
                {"sku": sku, "quantity": quantity, "price": f"{price * factor:.{places}f}"}
            )
        order = {
            "id": f"SO-{100_000 + number}",
            "placed_at": placed_at.isoformat().replace("+00:00", "Z"),
            "customer": f"C-{10_000 + int(rng.random() ** 2 * 2_500)}",
            "country": country,
            "currency": currency,
            "items": items,
        }
        yield json.dumps(order, separators=(",", ":"))


if __name__ == "__main__":
    SAMPLE.write_text("".join(f"{line}\n" for line in make_orders()), encoding="utf-8")
