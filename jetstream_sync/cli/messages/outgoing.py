"""The messages of ``pub`` and ``req``: body, headers and templates."""

from __future__ import annotations

import random
import re
import string
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ... import Headers
from ...errors import PermissionsError
from ...suggestions import closest_match
from ..env import Environment
from ..long_running import password_once, read_interruptibly
from ..settings import Settings
from ..status import CommandError, ExitStatus

if TYPE_CHECKING:
    from ... import Connection

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: The argument that means standard input.
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send."""

    subject: str
    body: bytes
    headers: Headers | None


class Outgoing:
    """
    A message to send one or more times, with or without templates.

    Args:
        subject: the subject.
        body: the body.
        headers: pairs of name and value.
        templates: whether to fill in templates for each message.

    """

    def __init__(
        self, subject: str, body: bytes, headers: Sequence[tuple[str, str]], *, templates: bool
    ) -> None:
        self._fixed: Message | None = None
        if templates:
            self._subject = Template(subject)
            self._body = Template(body)
            self._headers = [(name, Template(value)) for name, value in headers]
        else:
            self._fixed = Message(subject, body, Headers(headers) if headers else None)

    def message(self, count: int) -> Message:
        """Return the message with a number, counted from 1."""
        if self._fixed is not None:
            return self._fixed
        values = Values(count=count)
        headers = [(name, value.fill_text(values)) for name, value in self._headers]
        return Message(
            self._subject.fill_text(values),
            self._body.fill(values),
            Headers(headers) if headers else None,
        )


def message_options(command: _Command) -> _Command:
    """Add the options of `outgoing()` to a click command."""
    for option in (
        click.option(
            "--templates/--no-templates",
            default=False,
            help="Fill in {{Count}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{ID}} and "
            "{{Random MIN MAX}} in subject, headers and body.",
        ),
        click.option(
            "--send-on",
            type=click.Choice(["eof", "newline"]),
            default="eof",
            show_default=True,
            help="Send standard input as one message, or one message per line.",
        ),
        click.option(
            "-H",
            "--header",
            "headers",
            multiple=True,
            metavar="K:V",
            callback=header_pairs,
            help="Add a header; repeatable.",
        ),
    ):
        command = option(command)
    return command


def header_pairs(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Return the names and values of ``--header NAME:VALUE``; the callback of a click option."""
    pairs = []
    for value in values:
        name, colon, text = value.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"invalid header {value!r}: expected NAME:VALUE")
        pairs.append((name.strip(), text.strip()))
    return pairs


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

    Args:
        settings: the settings of the command.
        subject: the subject.
        body: the body; ``None`` or ``-``: standard input.
        headers: the headers of every message.
        templates: whether to fill in templates.
        send_on: ``eof`` or ``newline``.
        count: how many times to send the body.

    Raises:
        CommandError: a template is invalid, or standard input cannot be read.
        click.UsageError: options exclude each other.

    """
    env = settings.env
    buffered = password_once(settings)
    if send_on == "newline":
        if body not in (None, _STDIN):
            raise click.UsageError("--send-on newline is for standard input: leave the body out")
        if count != 1:
            raise click.UsageError("--count and --send-on newline exclude each other")
        Outgoing(subject, b"", headers, templates=templates)  # report invalid templates at once
        return (
            Outgoing(subject, line, headers, templates=templates).message(number)
            for number, line in enumerate(_lines(env), 1)
        )
    data = body_of(env, body, buffered=buffered)
    if not templates and has_templates(subject, data, *(value for _, value in headers)):
        env.stderr.write("jsm: the message contains templates; fill them in with --templates\n")
    sent = Outgoing(subject, data, headers, templates=templates)
    return (sent.message(number) for number in range(1, count + 1))


def body_of(
    env: Environment, text: str | None, noun: str = "message", *, buffered: bool = False
) -> bytes:
    """
    Return the bytes of an argument; of standard input if it is missing or ``-``.

    Args:
        env: the environment with the input.
        text: the argument; ``None``: none was given.
        noun: what is read, for the hint on a terminal.
        buffered: whether a part of standard input was read before.

    Raises:
        CommandError: standard input cannot be read.

    """
    if text is not None and text != _STDIN:
        # The argument was passed as bytes and may not be valid UTF-8.
        return text.encode("utf-8", "surrogateescape")
    if env.stdin.isatty():
        env.stderr.write(f"Reading the {noun} from standard input; end it with Ctrl-D\n")
        env.stderr.flush()
    try:
        return b"".join(read_interruptibly(env.stdin, buffered=buffered))
    except OSError as error:
        raise _unreadable(error) from error


def _lines(env: Environment) -> Iterator[bytes]:
    try:
        # readline() instead of iteration, which may wait until a buffer is full.
        while line := env.stdin.readline():
            yield line.rstrip(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> CommandError:
    why = error.strerror or str(error)
    return CommandError(f"cannot read standard input: {why}", ExitStatus.USAGE)


_BRACES: Final = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LETTERS: Final = string.ascii_letters + string.digits
#: The largest payload that a server can be configured to accept, in bytes.
_MAX_RANDOM_LENGTH: Final = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Values:
    """
    The values of template names for one message: its subject, headers and body share them.

    Only ``Random`` produces a new text for each use.
    """

    count: int
    """The number of the message, from 1."""
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    """The creation time, with a time zone."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A unique id."""

    def _microseconds(self) -> int:
        return (self.time - _EPOCH) // timedelta(microseconds=1)

    def text(self, name: str, arguments: Sequence[int]) -> str:
        """Return the value of a name that `Template` has validated."""
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
    """A template name with its arguments."""

    name: str
    arguments: tuple[int, ...] = ()


class Template:
    """
    A text with names in braces, parsed once and filled in for each message.

    Args:
        text: the text; bytes of a body, or a `str` of a subject or a header.

    Raises:
        CommandError: a name is unknown, or its arguments are invalid.

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
        """Return the filled-in text of one message as bytes."""
        return b"".join(
            part if isinstance(part, bytes) else values.text(part.name, part.arguments).encode()
            for part in self._parts
        )

    def fill_text(self, values: Values) -> str:
        """Return the filled-in text of one message."""
        return self.fill(values).decode("utf-8", "surrogateescape")


def has_templates(*texts: bytes | str) -> bool:
    """Return whether any of the texts contains a known name in braces."""
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
        raise _invalid(inside, _suggestion(words[0] if words else ""))
    if words[0] != "Random":
        if len(words) > 1:
            raise _invalid(inside, f"{words[0]} takes no arguments")
        return _Call(words[0])
    if len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        raise _invalid(inside, "Random takes two lengths, as in {{Random 5 20}}")
    low, high = int(words[1]), int(words[2])
    if low > high or high > _MAX_RANDOM_LENGTH:
        raise _invalid(
            inside,
            "the first length must not exceed the second, and the second must not exceed 64 MiB",
        )
    return _Call("Random", (low, high))


def _suggestion(name: str) -> str:
    close = closest_match(name, _NAMES)
    return f"did you mean {close}?" if close else f"expected one of {', '.join(_NAMES)}"


def _invalid(inside: str, why: str) -> CommandError:
    return CommandError(f"template {{{{{inside}}}}}: {why}", ExitStatus.USAGE)


#: Timeout for the callback with an error that has been received already, in seconds.
_CALLBACK_TIMEOUT_S: Final = 2.0


class PermissionWatch:
    """Collects permission errors: pass `on_error` as the ``error_cb`` of a connection."""

    def __init__(self) -> None:
        self._errors: list[PermissionsError] = []
        self._received = threading.Event()

    def on_error(self, error: Exception) -> None:
        """Record an error; called on a thread of the library."""
        if isinstance(error, PermissionsError):
            self._errors.append(error)
            self._received.set()

    def check(self, nc: Connection) -> None:
        """
        Raise the first permission error. Flush before, so that the server has processed all publishes.

        Raises:
            PermissionsError: the server has denied a publish.

        """
        if nc.stats["errors_received"] and self._received.wait(_CALLBACK_TIMEOUT_S):
            raise self._errors[0]
