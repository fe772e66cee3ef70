"""Format the protocol traffic of a connection as readable lines."""

# The rules:
#
# 1. A `LineCutter` follows one direction of one transport. It takes the bytes in pieces of any size, and
#    returns one line of text for each complete command, without a line end.
# 2. A line is the unchanged command; for a message, header block and payload follow after `` | ``. JSON is
#    shown completely up to a limit, other payloads with their start. Characters that are not printable,
#    or would move a terminal's cursor, are shown as escapes.
# 3. Of CONNECT, only fields known to be harmless are shown, and URLs are shown without their login.
#    Payloads belong to the user and are shown unchanged.
# 4. It accepts more than the parser and never raises: invalid bytes give invalid lines. The part kept of
#    an incomplete command is bounded.

from __future__ import annotations

import re
from typing import Final

from .. import errors
from ..codec import dumps, loads
from .parser import MAX_PAYLOAD

SENT: Final = "> "
RECEIVED: Final = "< "

#: Maximum number of bytes kept of a line, and of a header block with its payload.
_KEPT: Final = 64 * 1024
#: Number of bytes shown of a payload that is not JSON or is too long.
_START: Final = 256
_MORE: Final = "..."
_MASK: Final = "***"

# Commands with a payload, and the number of sizes at their end.
_SIZES: Final = {b"PUB": 1, b"MSG": 1, b"HPUB": 2, b"HMSG": 2}
#: The fields of CONNECT that are not secret. All others are masked, also those that a later version adds.
_HARMLESS: Final = frozenset(
    {
        "echo",
        "headers",
        "lang",
        "name",
        "nkey",
        "no_responders",
        "pedantic",
        "protocol",
        "tls_required",
        "user",
        "verbose",
        "version",
    }
)
_URL_LOGIN: Final = r"(?<=://)[^/\s\"']*@"
# White space in JSON other than spaces.
_JSON_SPACES: Final = str.maketrans("\r\n\t", "   ")


class LineCutter:
    """Format the bytes of one direction as lines."""

    # One thread at a time may use it. A copy continues independently from the same state.

    __slots__ = ("_behind_payload", "_command", "_kept", "_left", "_longer", "_mark")

    def __init__(self, mark: str) -> None:
        self._mark = mark
        # The start of an incomplete line or payload, and whether some of it was dropped.
        self._kept = b""
        self._longer = False
        # The command whose payload is incomplete, and the number of missing bytes.
        self._command = b""
        self._left = 0
        # Whether the next line end closes a payload.
        self._behind_payload = False

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes and return the lines that are complete now."""
        lines: list[str] = []
        at = 0
        while at < len(data):
            take = self._take_payload if self._left else self._take_line
            at = take(data, at, lines)
        return lines

    def _keep(self, data: bytes, start: int, end: int) -> None:
        room = _KEPT - len(self._kept)
        self._kept += data[start : min(end, start + room)]
        self._longer |= end - start > room

    def _take_payload(self, data: bytes, at: int, lines: list[str]) -> int:
        end = min(at + self._left, len(data))
        self._keep(data, at, end)
        self._left -= end - at
        if not self._left:
            self._finish_message(lines)
        return end

    def _take_line(self, data: bytes, at: int, lines: list[str]) -> int:
        end = data.find(b"\n", at)
        self._keep(data, at, end if end >= 0 else len(data))
        if end < 0:
            return len(data)
        line = self._kept.removesuffix(b"\r")
        longer, behind_payload = self._longer, self._behind_payload
        self._kept, self._longer, self._behind_payload = b"", False, False
        sizes = _sizes(line)
        if sizes and not longer:
            self._command, self._left = line, sizes[-1]
            if not self._left:
                self._finish_message(lines)
        elif line or not behind_payload:
            lines.append(self._mark + _control_text(line, longer=longer))
        return end + 1

    def _finish_message(self, lines: list[str]) -> None:
        """Add the line of a message whose payload is complete."""
        sizes = _sizes(self._command)
        header_size = sizes[0] if len(sizes) == 2 else 0
        parts = [_printable(self._command)]
        if header_size:
            parts.append(_header_text(self._kept[:header_size]))
        if sizes[-1] > header_size:
            parts.append(_payload_text(self._kept[header_size:], whole=not self._longer))
        lines.append(self._mark + " | ".join(parts))
        self._kept, self._longer, self._command, self._behind_payload = b"", False, b"", True


def _sizes(line: bytes) -> list[int]:
    """Return the sizes in a command, that of the payload last; empty for commands without payload."""
    words = line.split()
    count = _SIZES.get(words[0], 0) if words else 0
    if not count or len(words) < count + 2:
        return []
    last = words[-count:]
    if not all(word.isdigit() and len(word) < 10 for word in last):
        return []
    sizes = [int(word) for word in last]
    return sizes if sizes == sorted(sizes) and sizes[-1] <= MAX_PAYLOAD else []


def _control_text(line: bytes, *, longer: bool) -> str:
    """Return the text for a line that is not a message."""
    command = line.lstrip()
    if command[:7].upper() == b"CONNECT":
        return f"CONNECT {_connect_text(command[7:])}"
    text = _printable(line.rstrip()) + (_MORE if longer else "")
    return re.sub(_URL_LOGIN, f"{_MASK}@", text)


def _connect_text(fields: bytes) -> str:
    """Return the fields of CONNECT, with possible secrets masked."""
    try:
        options = loads(fields)
    except errors.InvalidResponseError:
        return _MASK
    if not isinstance(options, dict):
        return _MASK
    shown = {name: value if name in _HARMLESS else _MASK for name, value in options.items()}
    return _printable(dumps(shown))


def _header_text(block: bytes) -> str:
    """Return a header block as one line."""
    lines = [line for line in _cut(block).split("\r\n") if line]
    return ", ".join(_escaped(line) for line in lines)


def _cut(data: bytes) -> str:
    """Return the start of the bytes as text, followed by ``...`` if there are more."""
    longest = 4 * _START
    return data[:longest].decode("utf-8", "backslashreplace") + _MORE * (len(data) > longest)


def _payload_text(payload: bytes, *, whole: bool) -> str:
    if whole and payload.lstrip(b" \t\r\n")[:1] in (b"{", b"["):
        try:
            text = payload.decode().translate(_JSON_SPACES)
        except UnicodeDecodeError:
            pass
        else:
            return text if text.isprintable() else "".join(map(_json_escape, text))
    return _printable(payload[:_START]) + _MORE * (not whole or len(payload) > _START)


def _printable(data: bytes) -> str:
    return _escaped(data.decode("utf-8", "backslashreplace"))


def _escaped(text: str) -> str:
    """Escape the characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(
        item if item.isprintable() else item.encode("unicode_escape").decode() for item in text
    )


def _json_escape(character: str) -> str:
    """Return a character in the form of a JSON escape if it is not printable."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
