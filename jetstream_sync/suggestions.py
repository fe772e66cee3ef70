"""Suggestions in error texts: the closest known name, and the command that installs an extra."""

from __future__ import annotations

from collections.abc import Iterable


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelled one, or ``None``."""
    from difflib import get_close_matches  # noqa: PLC0415 - for errors only

    return next(iter(get_close_matches(name, list(known), 1)), None)


_NAME = "jetstream-sync"


def install_command(extras: str) -> str:
    """Return the command that installs this package with extras such as ``cli,server``."""
    # It names the distribution, which pip also finds if it was installed from a clone. A source tree
    # that runs without an installation is named by its path.
    # Slow to import, and needed for an error only.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    source = _NAME
    try:
        distribution(_NAME)
    except PackageNotFoundError:
        tree = Path(__file__).parents[1]
        if (tree / "pyproject.toml").is_file():
            source = str(tree)
    return f"pip install '{source}[{extras}]'"
