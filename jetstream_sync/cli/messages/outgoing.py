"""The messages of ``pub`` and ``req``: body, headers and templates."""

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
            callback=_pairs,
            help="Add a header; repeatable.",
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
    password_once(settings)
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
    data = _whole(env) if body is None or body == _STDIN else _bytes(body)
    if not templates and has_templates(subject, data, *(value for _, value in headers)):
        env.stderr.write("jsm: the message contains templates; fill them in with --templates\n")
    sent = Outgoing(subject, data, headers, templates=templates)
    return (sent.message(number) for number in range(1, count + 1))


def _bytes(text: str) -> bytes:
    # The argument was passed as bytes and may not be valid UTF-8.
    return text.encode("utf-8", "surrogateescape")


def _whole(env: Environment) -> bytes:
    if env.stdin.isatty():
        env.stderr.write("Reading the message from standard input; end it with Ctrl-D\n")
        env.stderr.flush()
    try:
        return env.stdin.read()
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
