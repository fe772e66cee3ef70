"""
Names of streams, consumers, buckets, keys and objects for shell completion.

Failures and timeouts complete nothing and write no errors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from ..errors import Error
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

#: Return the names for JetStream, the name of the outer object and the incomplete text.
_Ask = Callable[["JetStream", str, str], Iterable[str]]


class _Completer:
    """
    A ``shell_complete`` function.

    Args:
        ask: requests the names.
        outer: the parameter with the name of the stream or bucket, which was typed before; empty: none.

    """

    def __init__(self, ask: _Ask, outer: str = "") -> None:
        self._ask = ask
        self._outer = outer

    def __call__(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        """Return the matching names."""
        del param
        settings: Settings | None = ctx.find_root().obj
        outer = ctx.params.get(self._outer, "")
        if settings is None or (self._outer and not isinstance(outer, str)):
            return []
        settings.given["timeout"] = _TIMEOUT_S
        for name in ("trace", "password_stdin"):  # standard input belongs to the shell
            settings.given.pop(name, None)
        logging.disable()
        try:
            with settings.jetstream(error_cb=_ignore, connect_timeout=_TIMEOUT_S) as js:
                names = list(islice(self._ask(js, outer, incomplete), _MAX_NAMES))
        except (Error, CommandError, click.ClickException, OSError):
            return []
        finally:
            logging.disable(logging.NOTSET)
        # A shell inserts a name as it is, without quotes, and names are chosen by other clients.
        return [each for each in names if each.startswith(incomplete) and _UNQUOTED.fullmatch(each)]


def _ignore(error: Exception) -> None:
    del error


def _keys(js: JetStream, bucket: str, incomplete: str) -> Iterable[str]:
    # Only the keys below the tokens that are complete: a bucket may have millions of keys.
    tokens = incomplete.rpartition(".")[0]
    return js.key_value(bucket).iter_keys(f"{tokens}.>" if tokens else ">")


complete_stream: Final = _Completer(lambda js, _, __: js.stream_names())
complete_consumer: Final = _Completer(lambda js, stream, _: js.consumer_names(stream), "stream")
complete_bucket: Final = _Completer(lambda js, _, __: js.key_value_names())
complete_key: Final = _Completer(_keys, "bucket")
complete_store: Final = _Completer(lambda js, _, __: js.object_store_names())
complete_object: Final = _Completer(
    lambda js, bucket, _: (each.name for each in js.object_store(bucket).list()), "bucket"
)

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
