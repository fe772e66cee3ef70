"""
Text from elsewhere, made fit to be written: bodies, subjects, names, descriptions.

Whoever may publish or make a stream chooses them, so they may have what is no text, or what would move
the cursor or change the colours of a terminal.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["in_a_line", "readable", "visible"]

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return text that can be written anywhere: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable(data: bytes | str) -> str:
    """Return a body or header for people: what is no text, or steers a terminal, is escaped."""
    text = visible(data) if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def in_a_line(text: str) -> str:
    """Return the same for a place that has one line only."""
    return readable(text).replace("\n", "\\n").replace("\t", "\\t")
