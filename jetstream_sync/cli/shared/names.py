"""Names of streams, consumers and buckets: lookup, prompts for missing ones, errors, and completion."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...subjects import KV_PREFIX, check_consumer_name, check_stream_name
from .settings import Settings
from .status import AbsentError, CommandError, did_you_mean, not_found
from .values import STREAM_NAME, Decorator, with_options

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream, PullConsumer, Stream, StreamInfo


@contextlib.contextmanager
def stream_of(settings: Settings, name: str | None, **options: Any) -> Iterator[Stream]:
    """Open a connection and yield the stream with a name, by default the answer to a prompt."""
    with settings.jetstream(**options) as js:
        yield named_stream(settings, js, name)


def note_without_leader(settings: Settings, what: str, info: StreamInfo) -> None:
    """Write a note if a stream has no leader: a replica answers, which may lack the last changes."""
    if info.cluster is not None and info.cluster.name and not info.cluster.leader:
        settings.note(f"{what} has no leader: its state may be out of date")


def named_stream(settings: Settings, js: JetStream, name: str | None) -> Stream:
    """Return the stream with a name, by default the answer to a prompt."""
    if name is None:
        name = settings.ask().choose("Select a stream", js.stream_names, "STREAM")
    stream = find_stream(js, name)
    note_without_leader(settings, f"stream {name}", stream.cached_info)
    return stream


def find_stream(js: JetStream, name: str) -> Stream:
    """Return the stream with a name, or raise the error for an unknown name."""
    with suggesting(js, name):
        return js.get_stream(name)


@contextlib.contextmanager
def suggesting(js: JetStream, stream: str, consumer: str = "") -> Iterator[None]:
    """Raise the error for an unknown stream, or consumer of it, as one that suggests a known name."""
    try:
        yield
    except errors.StreamNotFoundError as error:
        raise not_found("stream", stream, js.stream_names(), error) from error
    except errors.ConsumerNotFoundError as error:
        close = did_you_mean(consumer, js.consumer_names(stream))
        text = f'stream {stream} has no consumer "{consumer}"{close}'
        raise AbsentError(text, cause=error) from error


# --- consumers ----------------------------------------------------------------------------------


def names_of(
    settings: Settings, js: JetStream, stream: str | None, consumer: str | None
) -> tuple[str, str]:
    """Return the names of a stream and of one of its consumers; prompt for missing names."""
    ask = settings.ask()
    if stream is None:
        stream = ask.select("Select a stream", js.stream_names, "STREAM")
    if consumer is None:
        chosen = stream

        def known() -> list[str]:
            with suggesting(js, chosen):
                return js.consumer_names(chosen)

        consumer = ask.select("Select a consumer", known, "CONSUMER")
    ask.done()
    return check_stream_name(stream), check_consumer_name(consumer)


@contextlib.contextmanager
def consumer_of(
    settings: Settings, stream: str | None, consumer: str | None
) -> Iterator[tuple[JetStream, ConsumerInfo]]:
    """Open a connection and yield JetStream with the info of a consumer; prompt for missing names."""
    with settings.jetstream() as js:
        yield js, find_consumer(settings, js, stream, consumer)


def find_consumer(
    settings: Settings, js: JetStream, stream: str | None, consumer: str | None
) -> ConsumerInfo:
    """Return the info of a pull or push consumer; prompt for missing names."""
    stream, consumer = names_of(settings, js, stream, consumer)
    with suggesting(js, stream, consumer):
        return js.consumer_info(stream, consumer)


def find_pull(
    settings: Settings, js: JetStream, stream: str | None, consumer: str | None
) -> PullConsumer:
    """Return a pull consumer; prompt for missing names."""
    stream, consumer = names_of(settings, js, stream, consumer)
    try:
        with suggesting(js, stream, consumer):
            return js.get_consumer(stream, consumer)
    except errors.ConsumerIsPushBasedError as error:
        raise CommandError(
            f"consumer {stream} > {consumer} is a push consumer",
            hint=f"read it with 'jsm consumer sub {stream} {consumer}'",
        ) from error


def title(info: ConsumerInfo) -> str:
    """Return the display name of a consumer, such as ``ORDERS > NEW``."""
    return f"{info.stream_name} > {info.name}"


# --- completion ---------------------------------------------------------------------------------

#: Timeout of the connection and of the request, in seconds.
_TIMEOUT_S = 0.3
#: The names that no shell takes for more than a word, and no command for an option.
_UNQUOTED: Final = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")

_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(ask: Callable[[JetStream, str], list[str]], outer: str = "") -> _Complete:
    """
    Return a ``shell_complete`` function.

    `ask`: returns the names; it gets the value of the parameter `outer`, such as the stream of a consumer.
    """

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        settings: Settings | None = ctx.find_root().obj
        given = ctx.params.get(outer, "")
        if settings is None or not isinstance(given, str):
            return []
        # Also where a variable enables the trace.
        settings = settings.with_options(timeout=_TIMEOUT_S, trace=False)
        logging.disable()
        try:
            with settings.jetstream(error_cb=lambda _: None, connect_timeout=_TIMEOUT_S) as js:
                names = ask(js, given)
        except (errors.Error, CommandError, click.ClickException, OSError):
            return []
        finally:
            logging.disable(logging.NOTSET)
        # A shell inserts a name as it is, without quotes, and names are chosen by other clients.
        return [name for name in names if name.startswith(incomplete) and _UNQUOTED.fullmatch(name)]

    return complete


def bucket_names(js: JetStream) -> list[str]:
    """Return the names of the key-value buckets. The meta leader has them, also of those that do not answer."""
    names = js.stream_names()
    return [name.removeprefix(KV_PREFIX) for name in names if name.startswith(KV_PREFIX)]


complete_stream: Final = _completer(lambda js, _: js.stream_names())
complete_consumer: Final = _completer(lambda js, stream: js.consumer_names(stream), "stream")
complete_bucket: Final = _completer(lambda js, _: bucket_names(js))
complete_store: Final = _completer(lambda js, _: js.object_store_names())

#: The name of a stream, prompted for if it is missing.
optional_stream_argument: Decorator = click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
#: The name of a stream.
stream_argument: Decorator = click.argument(
    "name", metavar="STREAM", type=STREAM_NAME, shell_complete=complete_stream
)

#: The names of a stream and of one of its consumers, prompted for if they are missing.
consumer_arguments: Decorator = with_options(
    click.argument("stream", required=False, shell_complete=complete_stream),
    click.argument("consumer", required=False, shell_complete=complete_consumer),
)
