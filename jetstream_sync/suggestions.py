"""Suggest the closest known name for an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelled one, or ``None``."""
    from difflib import get_close_matches  # noqa: PLC0415 - for errors only

    return next(iter(get_close_matches(name, list(known), 1)), None)
