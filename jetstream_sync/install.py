"""The install command for extras, for error texts and the documentation."""

from __future__ import annotations

__all__ = ["install_command"]

#: The argument of pip: a clone of the repository, until a release is published.
_SOURCE = "."


def install_command(extras: str) -> str:
    """Return the command that installs this package with extras such as ``cli,server``."""
    return f"pip install '{_SOURCE}[{extras}]'"
