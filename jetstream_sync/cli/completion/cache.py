"""
Names that the shell's completion remembers for some seconds, so that a second tab key is quick.

They are in files for their owner alone, below ``XDG_CACHE_HOME``. Where that can not be written,
nothing is remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from ..context.store import home_of

__all__ = ["remembered"]

#: How long names are taken to be what they were.
_FRESH: Final = timedelta(seconds=10)
#: Files that are kept at most.
_MOST: Final = 50


def remembered(
    variables: Mapping[str, str], about: list[str], ask: Callable[[], list[str] | None]
) -> list[str]:
    """
    Return names, of a file or by asking.

    Args:
        variables: the environment.
        about: what the names depend on: servers, login, the question.
        ask: returns them; ``None``: they could not be had, and nothing is remembered.

    """
    home = variables.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else home_of(variables) / ".cache") / "jsm"
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
    path = folder / f"{key}.json"
    with contextlib.suppress(OSError, ValueError):
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        if timedelta(0) <= datetime.now(timezone.utc) - changed < _FRESH:
            return [str(name) for name in json.loads(path.read_text("utf-8"))]
    names = ask()
    if names is None:
        return []
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[: max(0, len(kept) - _MOST)]:
            old.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(names), "utf-8")
    return names
