"""How to install an extra of this package, for error texts and for the documentation."""

from __future__ import annotations

__all__ = ["install_command"]

#: What pip installs: a clone of the repository, until there is a release on an index.
_SOURCE = "."


def install_command(extras: str) -> str:
    """Return the command that installs this package with some extras, as ``cli,server``."""
    return f"pip install '{_SOURCE}[{extras}]'"
