"""
The exit statuses of ``jsm``, and the one place where an error becomes one of them.

Scripts branch on these numbers, so they are part of the public contract: a number never changes
its meaning.
"""

from __future__ import annotations

import enum

import click

from ..errors import (
    ConnectionClosedError,
    Error,
    InvalidArgumentError,
    JetStreamNotEnabledError,
    JetStreamNotEnabledForAccountError,
    NoRespondersError,
    NoServersError,
    NotFoundError,
    ServerUnavailableError,
    TimeoutError,
)

__all__ = ["CommandError", "ExitStatus", "exit_status", "one_line"]


class ExitStatus(enum.IntEnum):
    """What ``jsm`` tells the program that started it."""

    OK = 0
    #: The server refused, or the operation was done and its outcome is not the one asked for.
    FAILED = 1
    #: Wrong usage: an option, a missing value, an input that can not be read.
    USAGE = 2
    #: A stream, consumer, message or key does not exist.
    NOT_FOUND = 3
    #: Nothing to deliver, or the time to wait ran out.
    TIMED_OUT = 4
    #: No server, login refused, connection lost, or JetStream is disabled.
    NO_CONNECTION = 5
    #: Nobody answers on the subject of a request.
    NO_RESPONDERS = 6
    #: Ctrl-C: 128 + SIGINT, as shells have it.
    INTERRUPTED = 130
    #: The reader of a pipe went away: 128 + SIGPIPE.
    BROKEN_PIPE = 141
    #: 128 + SIGTERM.
    TERMINATED = 143


class CommandError(Exception):
    """
    A command can not go on, for a reason that is its own and not the library's.

    Args:
        message: one line for a person, without a final full stop.
        status: what ``jsm`` exits with.

    """

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(message, status)
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return self.message


# The first row that fits decides: exact classes stand before their bases.
_STATUS_OF: tuple[tuple[type[BaseException], ExitStatus], ...] = (
    (KeyboardInterrupt, ExitStatus.INTERRUPTED),
    (click.Abort, ExitStatus.INTERRUPTED),
    (BrokenPipeError, ExitStatus.BROKEN_PIPE),
    (click.UsageError, ExitStatus.USAGE),
    (InvalidArgumentError, ExitStatus.USAGE),
    (NotFoundError, ExitStatus.NOT_FOUND),
    (JetStreamNotEnabledError, ExitStatus.NO_CONNECTION),
    (JetStreamNotEnabledForAccountError, ExitStatus.NO_CONNECTION),
    (ConnectionClosedError, ExitStatus.NO_CONNECTION),
    (NoServersError, ExitStatus.NO_CONNECTION),
    (ServerUnavailableError, ExitStatus.NO_CONNECTION),
    (NoRespondersError, ExitStatus.NO_RESPONDERS),
    (TimeoutError, ExitStatus.TIMED_OUT),
    (Error, ExitStatus.FAILED),
    (click.ClickException, ExitStatus.FAILED),
)


def exit_status(error: BaseException) -> ExitStatus:
    """
    Say what ``jsm`` exits with after an error.

    Args:
        error: a `CommandError`, an error of the library, of click, ``KeyboardInterrupt`` or
            ``BrokenPipeError``; anything else counts as `ExitStatus.FAILED`.

    """
    if isinstance(error, CommandError):
        return error.status
    for kind, status in _STATUS_OF:
        if isinstance(error, kind):
            return status
    return ExitStatus.FAILED


def one_line(error: BaseException) -> str:
    """Say an error in one line, whatever line breaks its text has."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return " ".join(text.split()) or type(error).__name__
