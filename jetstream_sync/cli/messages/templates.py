"""
What ``--templates`` fills in: ``{{Count}}``, ``{{Time}}``, ``{{Random 5 20}}`` and their like.

A template is bytes, since a body may be anything; what stands outside the braces stays as it is.
The names are those of the ``nats`` command.
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
#: No message is larger than the largest payload that a server can be told to take.
_LONGEST_RANDOM: Final = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Values:
    """
    What the names stand for in one message: the same in its subject, its headers and its body.

    Only what `Random` makes is another text each time.
    """

    count: int
    """The message's number, from 1."""
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    """When it is made, with a time zone."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Nobody else's."""

    def _microseconds(self) -> int:
        return (self.time - _EPOCH) // timedelta(microseconds=1)

    def text(self, name: str, arguments: Sequence[int]) -> str:
        """Return what a name stands for; it is one of those that `Template` has checked."""
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
    """One pair of braces."""

    name: str
    arguments: tuple[int, ...] = ()


class Template:
    """
    A text with names in braces, read once and filled in for each message.

    Args:
        text: the text; bytes of a body, or a `str` of a subject or a header.

    Raises:
        CommandError: a name is not known, or ``Random`` has no two numbers that make sense.

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
        """Return the text of one message, as bytes."""
        return b"".join(
            part if isinstance(part, bytes) else values.text(part.name, part.arguments).encode()
            for part in self._parts
        )

    def fill_text(self, values: Values) -> str:
        """Return the text of one message."""
        return self.fill(values).decode("utf-8", "surrogateescape")


def has_templates(*texts: bytes | str) -> bool:
    """Say whether a known name stands in braces somewhere in these texts."""
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
        raise _wrong(inside, _suggestion(words[0] if words else ""))
    if words[0] != "Random":
        if len(words) > 1:
            raise _wrong(inside, f"{words[0]} takes no arguments")
        return _Call(words[0])
    if len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        raise _wrong(inside, "Random takes two lengths, as in {{Random 5 20}}")
    low, high = int(words[1]), int(words[2])
    if low > high or high > _LONGEST_RANDOM:
        raise _wrong(inside, "the first length is not above the second, nor that above 64 MiB")
    return _Call("Random", (low, high))


def _suggestion(name: str) -> str:
    close = closest_match(name, _NAMES)
    return f"did you mean {close}?" if close else f"there are {', '.join(_NAMES)}"


def _wrong(inside: str, why: str) -> CommandError:
    return CommandError(f"template {{{{{inside}}}}}: {why}", ExitStatus.USAGE)
