"""What ``pub`` and ``req`` send: the body and where it comes from, headers, and templates in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from ... import Headers
from ..env import Environment
from ..long_running import password_once
from ..settings import Settings
from ..status import CommandError, ExitStatus
from .templates import Template, Values, has_templates

__all__ = ["Message", "Outgoing", "message_options", "outgoing"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: What stands for standard input.
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send."""

    subject: str
    body: bytes
    headers: Headers | None


class Outgoing:
    """
    What is to be sent again and again, with or without templates.

    Args:
        subject: where to.
        body: what.
        headers: pairs of name and value.
        templates: whether names in braces are filled in, for each message anew.

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
        """Return the message of that number, counted from 1."""
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
    """Give a click command the options that `outgoing()` takes."""
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
            help="Standard input is one message, or each of its lines is one.",
        ),
        click.option(
            "-H",
            "--header",
            "headers",
            multiple=True,
            metavar="K:V",
            callback=_pairs,
            help="Add a header; repeat it for several.",
        ),
    ):
        command = option(command)
    return command


def _pairs(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[str, str]]:
    pairs = []
    for value in values:
        name, colon, text = value.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{value!r} is not NAME:VALUE")
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
    Return the messages that a command line asks for.

    Standard input is read only when there is no body on the command line, or it is ``-``: at once,
    or line by line while the messages are taken, so that each is sent when it comes.

    Args:
        settings: has the streams.
        subject: where to.
        body: what; ``None`` or ``-``: standard input.
        headers: for every message.
        templates: whether templates are filled in.
        send_on: ``eof`` or ``newline``.
        count: how often the body is sent.

    Raises:
        CommandError: a template is wrong, or standard input can not be read.
        click.UsageError: the options exclude each other.

    """
    env = settings.env
    password_once(settings)
    if send_on == "newline":
        if body not in (None, _STDIN):
            raise click.UsageError("--send-on newline is for standard input: leave the body out")
        if count != 1:
            raise click.UsageError("--count and --send-on newline exclude each other")
        Outgoing(subject, b"", headers, templates=templates)  # what is wrong is said at once
        return (
            Outgoing(subject, line, headers, templates=templates).message(number)
            for number, line in enumerate(_lines(env), 1)
        )
    data = _whole(env) if body is None or body == _STDIN else _bytes(body)
    if not templates and has_templates(subject, data, *(value for _, value in headers)):
        env.stderr.write("jsm: there are templates in the message; --templates fills them in\n")
    sent = Outgoing(subject, data, headers, templates=templates)
    return (sent.message(number) for number in range(1, count + 1))


def _bytes(text: str) -> bytes:
    # What the shell passed was bytes, and may be no UTF-8.
    return text.encode("utf-8", "surrogateescape")


def _whole(env: Environment) -> bytes:
    if env.stdin.isatty():
        env.stderr.write("Reading the message from standard input; Ctrl-D ends it\n")
        env.stderr.flush()
    try:
        return env.stdin.read()
    except OSError as error:
        raise _unreadable(error) from error


def _lines(env: Environment) -> Iterator[bytes]:
    try:
        # readline() and not a loop over it, which may wait until a buffer is full.
        while line := env.stdin.readline():
            yield line.rstrip(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> CommandError:
    why = error.strerror or str(error)
    return CommandError(f"can not read standard input: {why}", ExitStatus.USAGE)
