"""
Text from elsewhere, made fit to be written: bodies, subjects, names, descriptions.

Whoever may publish or make a stream chooses them, so they may have what is no text, or what would move
the cursor, change the colours of a terminal or reverse the order of what is shown.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["readable", "readable_json", "single_line", "visible"]

#: The characters of Unicode that control the direction of text.
_BIDIRECTIONAL: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROLS: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDIRECTIONAL}]")
#: Those of them that JSON has as they are.
_IN_JSON: Final = re.compile(rf"[\x7f-\x9f{_BIDIRECTIONAL}]")


def visible(text: str) -> str:
    """Return text that can be written anywhere: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable(data: bytes | str) -> str:
    """Return a body or header for people: what is no text, or steers a terminal, is escaped."""
    text = visible(data) if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def readable_json(text: str) -> str:
    """Return the same JSON, with escapes for what steers a terminal."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def single_line(text: str) -> str:
    """Return the same for a place that has one line only."""
    return readable(text).replace("\n", "\\n").replace("\t", "\\t")
