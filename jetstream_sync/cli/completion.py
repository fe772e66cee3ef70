"""
Names of streams, consumers, buckets, keys and objects for shell completion.

Failures and timeouts complete nothing and write no errors. Names are cached, so that repeated
completions are fast, in files below ``XDG_CACHE_HOME`` that only their owner can read. Without write
access nothing is cached.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..errors import Error
from .context_store import home_of
from .status import CommandError
from .values import STREAM_NAME, Decorator, with_options

if TYPE_CHECKING:
    from .. import JetStream
    from .settings import Settings

#: Timeout of the connection and of the request, in seconds.
_TIMEOUT_S = 0.3
#: The maximum number of keys or objects that are offered.
_MAX_NAMES = 500
#: The names that no shell takes for more than a word, and no command for an option.
_UNQUOTED: Final = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")


def complete_stream(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching stream names; for ``shell_complete`` of a parameter."""
    del param
    return _beginning(_names(ctx, "streams", lambda js: js.stream_names()), incomplete)


def complete_consumer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching consumer names of the stream that was typed before."""
    del param
    stream = ctx.params.get("stream")
    if not isinstance(stream, str):
        return []
    names = _names(ctx, f"consumers of {stream}", lambda js: js.get_stream(stream).consumer_names())
    return _beginning(names, incomplete)


def complete_bucket(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching names of key-value buckets."""
    del param
    return _beginning(_names(ctx, "buckets", lambda js: js.key_value_names()), incomplete)


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching keys of the bucket that was typed before."""
    del param
    bucket = ctx.params.get("bucket")
    if not isinstance(bucket, str):
        return []
    # Only the keys below the tokens that are complete: a bucket may have millions of keys.
    tokens = incomplete.rpartition(".")[0]
    pattern = f"{tokens}.>" if tokens else ">"

    def ask(js: JetStream) -> list[str]:
        return list(islice(js.key_value(bucket).iter_keys(pattern), _MAX_NAMES))

    return _beginning(_names(ctx, f"keys {pattern} of {bucket}", ask), incomplete)


def complete_store(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching names of object stores."""
    del param
    return _beginning(_names(ctx, "stores", lambda js: js.object_store_names()), incomplete)


def complete_object(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching objects of the bucket that was typed before."""
    del param
    bucket = ctx.params.get("bucket")
    if not isinstance(bucket, str):
        return []

    def ask(js: JetStream) -> list[str]:
        return [each.name for each in js.object_store(bucket).list()[:_MAX_NAMES]]

    return _beginning(_names(ctx, f"objects of {bucket}", ask), incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    # A shell inserts a name as it is, without quotes, and names are chosen by other clients.
    return [name for name in names if name.startswith(incomplete) and _UNQUOTED.fullmatch(name)]


def _names(ctx: click.Context, what: str, ask: Callable[[JetStream], list[str]]) -> list[str]:
    settings: Settings | None = ctx.find_root().obj
    if settings is None:
        return []
    settings.given["timeout"] = _TIMEOUT_S
    for name in ("trace", "password_stdin"):  # standard input belongs to the shell
        settings.given.pop(name, None)
    try:
        login = settings.login()
    except CommandError:
        return []
    about = [what, *sorted(f"{part}={value}" for part, value in login.values.items())]
    return _cached_names(settings.env.variables, about, lambda: _request(settings, ask))


def _request(settings: Settings, ask: Callable[[JetStream], list[str]]) -> list[str] | None:
    logging.disable()
    try:
        with settings.jetstream(error_cb=_ignore, connect_timeout=_TIMEOUT_S) as js:
            return ask(js)
    except (Error, CommandError, click.ClickException, OSError):
        return None
    finally:
        logging.disable(logging.NOTSET)


def _ignore(error: Exception) -> None:
    del error


#: How long cached names are valid.
_MAX_AGE: Final = timedelta(seconds=10)
#: The maximum number of cache files.
_MAX_FILES: Final = 50


def _cached_names(
    variables: Mapping[str, str], about: list[str], ask: Callable[[], list[str] | None]
) -> list[str]:
    """
    Return names from the cache, or request and cache them.

    Args:
        variables: the environment.
        about: the cache key: servers, login and the kind of names.
        ask: requests the names; ``None`` means a failure, which is not cached.

    """
    import hashlib  # noqa: PLC0415 - every command imports this module

    home = variables.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else home_of(variables) / ".cache") / "jsm"
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
    path = folder / f"{key}.json"
    with contextlib.suppress(OSError, ValueError):
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        if timedelta(0) <= datetime.now(timezone.utc) - changed < _MAX_AGE:
            return [str(name) for name in json.loads(path.read_text("utf-8"))]
    names = ask()
    if names is None:
        return []
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[: max(0, len(kept) - _MAX_FILES)]:
            old.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(names), "utf-8")
    return names


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
