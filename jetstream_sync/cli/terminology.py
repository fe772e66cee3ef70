"""
The nouns: what they are called, and how one is found by its name.

Who types ``jsm ms`` or ``jsm obs`` reads of Message Sets and Observables, everybody else of streams
and consumers. JSON never changes with it.
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

__all__ = ["Terminology", "did_you_mean", "find_stream", "not_found", "words"]

_OLD_WORDS = frozenset({"ms", "messageset", "obs", "observable"})


@dataclass(frozen=True, kw_only=True)
class Terminology:
    """What streams and consumers are called in text for people."""

    stream: str = "Stream"
    consumer: str = "Consumer"
    old: bool = False
    """Whether these are the words of 2020."""

    @property
    def streams(self) -> str:
        """The plural of a stream."""
        return f"{self.stream}s"

    @property
    def consumers(self) -> str:
        """The plural of a consumer."""
        return f"{self.consumer}s"


NEW_WORDS = Terminology()
OLD_WORDS = Terminology(stream="Message Set", consumer="Observable", old=True)


def words(ctx: click.Context | None = None) -> Terminology:
    """
    Return the words that go with what was typed.

    Args:
        ctx: of the command; ``None``: the one that runs.

    """
    ctx = ctx or click.get_current_context(silent=True)
    typed = ctx.meta.get(TYPED, {}) if ctx is not None else {}
    old = any(typed.get(noun) in _OLD_WORDS for noun in ("stream", "consumer"))
    return OLD_WORDS if old else NEW_WORDS


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return ``, did you mean X?`` when one of the names is close, else nothing."""
    folded = {each.lower(): each for each in names}
    close = closest_match(name.lower(), folded)
    return f", did you mean {folded[close]}?" if close else ""


def not_found(
    kind: str, name: str, names: Sequence[str], cause: APIError | None = None
) -> CommandError:
    """
    Return the error for a name that nothing has; its status is that of what is not found.

    Args:
        kind: what it was to be: ``stream``.
        name: what was looked for.
        names: what there is.
        cause: what the server said.

    """
    text = f'{kind} "{name}" not found{did_you_mean(name, names)}'
    return CommandError(text, ExitStatus.NOT_FOUND, cause=cause)


def find_stream(js: JetStream, name: str | None, ask: Asker | None = None) -> Stream:
    """
    Return the stream of a name; one that is chosen from a list when there is none.

    Args:
        js: where to look.
        name: as it was given; ``None``: not at all.
        ask: who asks; where nobody may be asked the error says what is missing.

    Raises:
        CommandError: there is no such stream, or no name.

    """
    noun = words().stream.lower()
    name = name if name is not None else _chosen(noun, js.stream_names, "STREAM", ask)
    try:
        return js.get_stream(name)
    except StreamNotFoundError as error:
        raise not_found(noun, name, js.stream_names(), error) from error


def _chosen(noun: str, names: Callable[[], Sequence[str]], flag: str, ask: Asker | None) -> str:
    if ask is None:
        raise CommandError(f"a {noun}'s name is missing", ExitStatus.USAGE)
    with ask:
        return ask.select(f"Select a {noun}", names, flag)
