"""Lookup of consumers by name, with prompts for missing names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...errors import (
    APIError,
    ConsumerIsPushBasedError,
    ConsumerNotFoundError,
    StreamNotFoundError,
)
from ...subjects import check_consumer_name, check_stream_name
from ..completion import complete_consumer, complete_stream
from ..names import did_you_mean, not_found
from ..prompts import Asker
from ..status import CommandError, ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from ... import ConsumerInfo, JetStream, PullConsumer
    from ..settings import Settings

_Command = TypeVar("_Command", bound="Callable[..., object]")
_Found = TypeVar("_Found")


def consumer_arguments(command: _Command) -> _Command:
    """Add the optional arguments ``STREAM`` and ``CONSUMER`` to a command."""
    decorated: Any = click.argument("consumer", required=False, shell_complete=complete_consumer)(
        command
    )
    return click.argument(  # type: ignore[no-any-return]  # click's decorators lose the type
        "stream", required=False, shell_complete=complete_stream
    )(decorated)


def names_of(
    settings: Settings, js: JetStream, stream: str | None, consumer: str | None
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


def find(
    settings: Settings, js: JetStream, stream: str | None, consumer: str | None
) -> ConsumerInfo:
    """
    Return the info of a pull or push consumer; prompt for missing names.

    Raises:
        CommandError: the stream or consumer does not exist; the error suggests a similar name.

    """
    return _fetch(js, js.consumer_info, *names_of(settings, js, stream, consumer))


def find_pull(
    settings: Settings, js: JetStream, stream: str | None, consumer: str | None
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
