"""The version of this package, independent of installed metadata, and how to install its extras."""

# A zip file, as Spark sends it to executors, has no metadata.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__version__: Final = "1.0.0rc1"

_NAME: Final = "jetstream-sync"


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


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """
    Name the extra to install if an import in the block finds a package missing.

    Args:
        extra: the extra that installs the packages that the block imports.

    Raises:
        ModuleNotFoundError: a package is missing; its ``name`` is kept.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A module with a dot belongs to a package that is there, in another version.
        if error.name is None or "." in error.name:
            raise
        text = f"No module named {error.name!r}: {install_command(extra)}"
        raise ModuleNotFoundError(text, name=error.name) from None
