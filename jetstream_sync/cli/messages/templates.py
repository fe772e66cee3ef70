"""
The templates of ``--templates``: ``{{Count}}``, ``{{Time}}``, ``{{Random 5 20}}`` and others.

A template is bytes, since a body may be binary. Text outside the braces is not changed. The names are
those of the ``nats`` command.
"""

from __future__ import annotations

import random
import re
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Final

from ...suggestions import closest_match
from ..status import CommandError, ExitStatus

__all__ = ["Template", "Values", "has_templates"]

_BRACES: Final = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LETTERS: Final = string.ascii_letters + string.digits
#: The largest payload that a server can be configured to accept, in bytes.
_MAX_RANDOM_LENGTH: Final = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Values:
    """
    The values of template names for one message: its subject, headers and body share them.

    Only ``Random`` produces a new text for each use.
    """

    count: int
    """The number of the message, from 1."""
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    """The creation time, with a time zone."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A unique id."""

    def _microseconds(self) -> int:
        return (self.time - _EPOCH) // timedelta(microseconds=1)

    def text(self, name: str, arguments: Sequence[int]) -> str:
        """Return the value of a name that `Template` has validated."""
        if name == "Random":
            length = random.randint(arguments[0], arguments[-1])  # noqa: S311 - no secret
            return "".join(random.choices(_LETTERS, k=length))  # noqa: S311
        return _PLAIN[name](self)


_PLAIN: Final[Mapping[str, Callable[[Values], str]]] = {
    "Count": lambda values: str(values.count),
    "ID": lambda values: values.id,
    "Time": lambda values: values.time.astimezone().strftime("%H:%M:%S"),
    "TimeStamp": lambda values: values.time.astimezone().isoformat(timespec="seconds"),
    "Unix": lambda values: str(values._microseconds() // 1_000_000),  # noqa: SLF001 - its own table
    "UnixNano": lambda values: str(values._microseconds() * 1000),  # noqa: SLF001
}
_NAMES: Final = (*_PLAIN, "Random")


@dataclass(frozen=True)
class _Call:
    """A template name with its arguments."""

    name: str
    arguments: tuple[int, ...] = ()


class Template:
    """
    A text with names in braces, parsed once and filled in for each message.

    Args:
        text: the text; bytes of a body, or a `str` of a subject or a header.

    Raises:
        CommandError: a name is unknown, or its arguments are invalid.

    """

    def __init__(self, text: bytes | str) -> None:
        parts: list[bytes | _Call] = []
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        end = 0
        for match in _BRACES.finditer(raw):
            parts += (raw[end : match.start()], _call(match[1].decode("utf-8", "replace")))
            end = match.end()
        self._parts: tuple[bytes | _Call, ...] = (*parts, raw[end:])

    def fill(self, values: Values) -> bytes:
        """Return the filled-in text of one message as bytes."""
        return b"".join(
            part if isinstance(part, bytes) else values.text(part.name, part.arguments).encode()
            for part in self._parts
        )

    def fill_text(self, values: Values) -> str:
        """Return the filled-in text of one message."""
        return self.fill(values).decode("utf-8", "surrogateescape")


def has_templates(*texts: bytes | str) -> bool:
    """Return whether any of the texts contains a known name in braces."""
    for text in texts:
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        for match in _BRACES.finditer(raw):
            words = match[1].decode("utf-8", "replace").split()
            if words and words[0] in _NAMES:
                return True
    return False


def _call(inside: str) -> _Call:
    words = inside.replace(",", " ").replace("(", " ").replace(")", " ").split()
    if not words or words[0] not in _NAMES:
        raise _invalid(inside, _suggestion(words[0] if words else ""))
    if words[0] != "Random":
        if len(words) > 1:
            raise _invalid(inside, f"{words[0]} takes no arguments")
        return _Call(words[0])
    if len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        raise _invalid(inside, "Random takes two lengths, as in {{Random 5 20}}")
    low, high = int(words[1]), int(words[2])
    if low > high or high > _MAX_RANDOM_LENGTH:
        raise _invalid(
            inside,
            "the first length must not exceed the second, and the second must not exceed 64 MiB",
        )
    return _Call("Random", (low, high))


def _suggestion(name: str) -> str:
    close = closest_match(name, _NAMES)
    return f"did you mean {close}?" if close else f"expected one of {', '.join(_NAMES)}"


def _invalid(inside: str, why: str) -> CommandError:
    return CommandError(f"template {{{{{inside}}}}}: {why}", ExitStatus.USAGE)
