"""Lookup of streams and consumers by name, prompts for missing names, and errors for unknown ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..errors import (
    APIError,
    ConsumerIsPushBasedError,
    ConsumerNotFoundError,
    StreamNotFoundError,
)
from ..subjects import check_consumer_name, check_stream_name
from ..suggestions import closest_match
from .prompts import Asker
from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from .. import ConsumerInfo, JetStream, PullConsumer, Stream
    from .env import CommonOptions


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


# --- consumers ----------------------------------------------------------------------------------

_Found = TypeVar("_Found")


def names_of(
    settings: CommonOptions, js: JetStream, stream: str | None, consumer: str | None
) -> tuple[str, str]:
    """
    Return the names of a stream and of one of its consumers; prompt for missing names.

    Raises:
        CommandError: names are missing and prompts are not possible; the error lists them.
        InvalidNameError: a name is invalid.

    """
    ask = Asker(settings)
    if stream is None:
        stream = ask.select("Select a stream", js.stream_names, "STREAM")
    if consumer is None:
        chosen = stream

        def known() -> list[str]:
            try:
                return js.consumer_names(chosen)
            except StreamNotFoundError as error:
                raise no_stream(js, chosen, error) from error

        consumer = ask.select("Select a consumer", known, "CONSUMER")
    ask.done()
    return check_stream_name(stream), check_consumer_name(consumer)


def find_consumer(
    settings: CommonOptions, js: JetStream, stream: str | None, consumer: str | None
) -> ConsumerInfo:
    """
    Return the info of a pull or push consumer; prompt for missing names.

    Raises:
        CommandError: the stream or consumer does not exist; the error suggests a similar name.

    """
    return _fetch(js, js.consumer_info, *names_of(settings, js, stream, consumer))


def find_pull(
    settings: CommonOptions, js: JetStream, stream: str | None, consumer: str | None
) -> PullConsumer:
    """
    Return a pull consumer; prompt for missing names.

    Raises:
        CommandError: the stream or consumer does not exist, or it is a push consumer.

    """
    stream, consumer = names_of(settings, js, stream, consumer)
    try:
        return _fetch(js, js.get_consumer, stream, consumer)
    except ConsumerIsPushBasedError as error:
        raise CommandError(
            f"consumer {stream} > {consumer} is a push consumer",
            ExitStatus.USAGE,
            hint=f"read it with 'jsm consumer sub {stream} {consumer}'",
        ) from error


def _fetch(js: JetStream, get: Callable[[str, str], _Found], stream: str, consumer: str) -> _Found:
    try:
        return get(stream, consumer)
    except StreamNotFoundError as error:
        raise no_stream(js, stream, error) from error
    except ConsumerNotFoundError as error:
        raise no_consumer(js, stream, consumer, error) from error


def no_stream(js: JetStream, name: str, cause: APIError) -> CommandError:
    """Return the error for a stream that does not exist."""
    return not_found("stream", name, js.stream_names(), cause)


def no_consumer(js: JetStream, stream: str, name: str, cause: APIError) -> CommandError:
    """Return the error for a consumer that does not exist."""
    close = did_you_mean(name, js.consumer_names(stream))
    text = f'stream {stream} has no consumer "{name}"{close}'
    return CommandError(text, ExitStatus.NOT_FOUND, cause=cause)


def title(info: ConsumerInfo) -> str:
    """Return the display name of a consumer, such as ``ORDERS > NEW``."""
    return f"{info.stream_name} > {info.name}"
