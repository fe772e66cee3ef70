"""Which of some names was meant by one that is none of them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["closest_match"]


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like one with a slip; ``None``: none does."""
    from difflib import get_close_matches  # noqa: PLC0415 - for slips only

    return next(iter(get_close_matches(name, list(known), 1)), None)
