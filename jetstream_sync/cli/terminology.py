"""
The names of streams and consumers in output, and the lookup of a stream by name.

Output of ``jsm ms`` and ``jsm obs`` says Message Set and Observable, the terms of 2020; all other
commands say stream and consumer. JSON output is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..errors import APIError, StreamNotFoundError
from ..suggestions import closest_match
from .groups import TYPED
from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from .. import JetStream, Stream
    from .prompts import Asker

_OLD_WORDS = frozenset({"ms", "messageset", "obs", "observable"})


@dataclass(frozen=True, kw_only=True)
class Terminology:
    """The terms for streams and consumers in text output."""

    stream: str = "Stream"
    consumer: str = "Consumer"
    old: bool = False
    """Whether these are the terms of 2020."""

    @property
    def streams(self) -> str:
        """The term for several streams."""
        return f"{self.stream}s"

    @property
    def consumers(self) -> str:
        """The term for several consumers."""
        return f"{self.consumer}s"


NEW_WORDS = Terminology()
OLD_WORDS = Terminology(stream="Message Set", consumer="Observable", old=True)


def words(ctx: click.Context | None = None) -> Terminology:
    """
    Return the terms that match the command name that was typed.

    Args:
        ctx: the context of the command; ``None``: the current one.

    """
    ctx = ctx or click.get_current_context(silent=True)
    typed = ctx.meta.get(TYPED, {}) if ctx is not None else {}
    old = any(typed.get(noun) in _OLD_WORDS for noun in ("stream", "consumer"))
    return OLD_WORDS if old else NEW_WORDS


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return ``, did you mean X?`` when one of the names is similar, else an empty string."""
    folded = {each.lower(): each for each in names}
    close = closest_match(name.lower(), folded)
    return f", did you mean {folded[close]}?" if close else ""


def not_found(
    kind: str, name: str, names: Sequence[str], cause: APIError | None = None
) -> CommandError:
    """
    Return the error for an unknown name, with status `ExitStatus.NOT_FOUND`.

    Args:
        kind: the kind of object, such as ``stream``.
        name: the name that was requested.
        names: the names that exist, for the suggestion.
        cause: the server's error, if any.

    """
    text = f'{kind} "{name}" not found{did_you_mean(name, names)}'
    return CommandError(text, ExitStatus.NOT_FOUND, cause=cause)


def find_stream(js: JetStream, name: str | None, ask: Asker | None = None) -> Stream:
    """
    Return the stream with a name; ask for one when no name was given.

    Args:
        js: the JetStream context to search.
        name: the name that was given; ``None``: none was.
        ask: prompts for the name; ``None``, or without a terminal: a missing name is an error.

    Raises:
        CommandError: the stream does not exist, or the name is missing.

    """
    noun = words().stream.lower()
    name = name if name is not None else _chosen(noun, js.stream_names, "STREAM", ask)
    try:
        return js.get_stream(name)
    except StreamNotFoundError as error:
        raise not_found(noun, name, js.stream_names(), error) from error


def _chosen(noun: str, names: Callable[[], Sequence[str]], flag: str, ask: Asker | None) -> str:
    if ask is None:
        raise CommandError(f"the {noun} name is missing", ExitStatus.USAGE)
    with ask:
        return ask.select(f"Select a {noun}", names, flag)
