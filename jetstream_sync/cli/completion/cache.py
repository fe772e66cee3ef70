"""
A cache of names for shell completion, so that repeated completions are fast.

It consists of files below ``XDG_CACHE_HOME`` that only their owner can read. Without write access
nothing is cached.
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

__all__ = ["cached_names"]

#: How long cached names are valid.
_MAX_AGE: Final = timedelta(seconds=10)
#: The maximum number of cache files.
_MAX_FILES: Final = 50


def cached_names(
    variables: Mapping[str, str], about: list[str], ask: Callable[[], list[str] | None]
) -> list[str]:
    """
    Return names from the cache, or request and cache them.

    Args:
        variables: the environment.
        about: the cache key: servers, login and the kind of names.
        ask: requests the names; ``None`` means a failure, which is not cached.

    """
    home = variables.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else home_of(variables) / ".cache") / "jsm"
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
    path = folder / f"{key}.json"
    with contextlib.suppress(OSError, ValueError):
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        if timedelta(0) <= datetime.now(timezone.utc) - changed < _MAX_AGE:
            return [str(name) for name in json.loads(path.read_text("utf-8"))]
    names = ask()
    if names is None:
        return []
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[: max(0, len(kept) - _MAX_FILES)]:
            old.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(names), "utf-8")
    return names
