"""Lookup of a stream by name, and errors for unknown names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import APIError, StreamNotFoundError
from ..suggestions import closest_match
from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from .. import JetStream, Stream
    from .prompts import Asker


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
    if name is None:
        if ask is None:
            raise CommandError("the stream name is missing", ExitStatus.USAGE)
        with ask:
            name = ask.select("Select a stream", js.stream_names, "STREAM")
    try:
        return js.get_stream(name)
    except StreamNotFoundError as error:
        raise not_found("stream", name, js.stream_names(), error) from error
