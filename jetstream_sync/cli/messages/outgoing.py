"""The messages of ``pub`` and ``req``: body, headers and templates."""

from __future__ import annotations

import random
import re
import string
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import click

from ... import Headers, errors
from ...durations import time_to_ns
from ...options import closest_match
from ..shared.env import Environment
from ..shared.long_running import read_interruptibly
from ..shared.settings import Settings
from ..shared.status import CommandError, file_errors
from ..shared.values import Decorator, Parsed, option, with_options

if TYPE_CHECKING:
    from ... import Connection

#: Versions of nats-server that ignore the headers of newer features.
_OLD_VERSION: Final = re.compile(r"2\.([0-9]|10)\.")
#: The argument that means standard input.
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send."""

    subject: str
    body: bytes
    headers: Headers | None


def require_2_11(nc: Connection, feature: str) -> None:
    """Raise `ServerTooOldError` before a message is sent whose headers the server would ignore."""
    version = nc.server_info.version
    if _OLD_VERSION.match(version):
        raise errors.ServerTooOldError(feature, "2.11", version)


def _header(text: str) -> tuple[str, str]:
    """Return the name and the value of ``--header NAME:VALUE``."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"invalid header {text!r}: expected NAME:VALUE")
    return name.strip(), value.strip()


_HEADER: Final = Parsed("header", _header)
#: The headers of a message, as pairs.
header_option: Decorator = option(
    "-H, --header K:V", "Add a header; repeatable.", _HEADER, to="headers", multiple=True
)

#: The options of `outgoing()`.
message_options: Decorator = with_options(
    header_option,
    option(
        "--send-on",
        "Send standard input as one message, or one message per line.",
        click.Choice(["eof", "newline"]),
        default="eof",
    ),
    option(
        "--templates/--no-templates",
        "Fill in {{Count}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{ID}} and "
        "{{Random MIN MAX}} in subject, headers and body.",
        default=False,
    ),
)


def outgoing(
    settings: Settings,
    subject: str,
    body: str | None,
    *,
    headers: Sequence[tuple[str, str]],
    templates: bool,
    send_on: str,
    count: int,
) -> Iterator[Message]:
    """
    Return the messages for a command line.

    Standard input is read only when the body is missing or ``-``: as a whole, or line by line during
    iteration, so that each line is sent as it arrives.
    """
    env = settings.env
    fixed = Headers(headers) if headers else None

    def message(number: int, data: bytes) -> Message:
        if not templates:
            return Message(subject, data, fixed)
        values = values_of(number)
        pairs = [(name, fill_text(value, values)) for name, value in headers]
        sent = Headers(pairs) if pairs else None
        return Message(fill_text(subject, values), fill(data, values), sent)

    if send_on == "newline":
        if body not in (None, _STDIN):
            raise click.UsageError("--send-on newline is for standard input: leave the body out")
        if count != 1:
            raise click.UsageError("--count and --send-on newline exclude each other")
        message(0, b"")  # report invalid templates at once
        return (message(number, line) for number, line in enumerate(_lines(env), 1))
    data = body_of(env, body)
    if templates:
        message(0, data)
    return (message(number, data) for number in range(1, count + 1))


def body_of(env: Environment, text: str | None, noun: str = "message") -> bytes:
    """Return the bytes of an argument; of standard input if it is missing or ``-``."""
    if text is not None and text != _STDIN:
        # The argument was passed as bytes and may not be valid UTF-8.
        return text.encode("utf-8", "surrogateescape")
    if env.stdin.isatty():
        env.stderr.write(f"Reading the {noun} from standard input; end it with Ctrl-D\n")
        env.stderr.flush()
    with file_errors("standard input"):
        return b"".join(read_interruptibly(env.stdin))


def _lines(env: Environment) -> Iterator[bytes]:
    with file_errors("standard input"):
        # readline() instead of iteration, which may wait until a buffer is full.
        while line := env.stdin.readline():
            yield line.rstrip(b"\n").removesuffix(b"\r")


_BRACES: Final = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
_LETTERS: Final = string.ascii_letters + string.digits
#: The largest payload that a server can be configured to accept, in bytes.
_MAX_RANDOM_BYTES: Final = 64 * 1024 * 1024


def values_of(count: int, moment: datetime | None = None) -> dict[str, str]:
    """Return the texts for the names in templates of one message, which its subject, headers and body share."""
    moment = moment or datetime.now(timezone.utc)
    local, nanoseconds = moment.astimezone(), time_to_ns(moment)
    return {
        "Count": str(count),
        "ID": uuid.uuid4().hex,
        "Time": f"{local:%H:%M:%S}",
        "TimeStamp": local.isoformat(timespec="seconds"),
        "Unix": str(nanoseconds // 10**9),
        "UnixNano": str(nanoseconds),
    }


def fill(text: bytes, values: Mapping[str, str]) -> bytes:
    """Return a text with the names in braces filled in."""
    return _BRACES.sub(lambda found: _value(found, values).encode(), text)


def fill_text(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the names in braces filled in; see `fill`."""
    return fill(text.encode("utf-8", "surrogateescape"), values).decode("utf-8", "surrogateescape")


def _value(found: re.Match[bytes], values: Mapping[str, str]) -> str:
    words = re.sub("[,()]", " ", found[1].decode("utf-8", "replace")).split()
    name, *arguments = words or [""]
    if name in values and not arguments:
        return values[name]
    if name in values:
        reason = f"{name} takes no arguments"
    elif name != "Random":
        names = [*values, "Random"]
        close = closest_match(name, names)
        reason = f"did you mean {close}?" if close else f"expected one of {', '.join(names)}"
    elif len(arguments) != 2 or not all(argument.isdecimal() for argument in arguments):
        reason = "Random takes two lengths, as in {{Random 5 20}}"
    elif (low := int(arguments[0])) <= (high := int(arguments[1])) <= _MAX_RANDOM_BYTES:
        return "".join(random.choices(_LETTERS, k=random.randint(low, high)))  # noqa: S311
    else:
        reason = (
            "the first length must not exceed the second, and the second must not exceed 64 MiB"
        )
    text = found[0].decode("utf-8", "replace")
    raise CommandError(f"template {text}: {reason}")


#: Timeout for the callback with an error that has been received already, in seconds.
_CALLBACK_TIMEOUT_S: Final = 2.0


class PermissionWatch:
    """Collects permission errors: pass `on_error` to `Settings.connection`."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout  # of a flush, in seconds
        self._first: errors.PermissionsError | None = None
        self._received = threading.Event()

    def on_error(self, error: Exception) -> None:
        """Record an error; called on a thread of the library."""
        if isinstance(error, errors.PermissionsError):
            self._first = self._first or error
            self._received.set()

    def flush(self, nc: Connection) -> None:
        """Wait until the server has processed all publishes, and raise the first permission error."""
        nc.flush(self._timeout)
        if nc.stats["errors_received"]:
            self._received.wait(_CALLBACK_TIMEOUT_S)
        if self._first is not None:
            raise self._first
