"""
The exit statuses of ``jsm``, and the one place where an error becomes one of them.

Scripts branch on these numbers, so they are part of the public contract: a number never changes
its meaning.
"""

from __future__ import annotations

import enum
import errno

import click

from ..errors import (
    APIError,
    AuthorizationError,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerIsPushBasedError,
    Error,
    InvalidArgumentError,
    JetStreamNotEnabledError,
    JetStreamNotEnabledForAccountError,
    NoRespondersError,
    NoServersError,
    NotFoundError,
    PullOnPushConsumerError,
    PushOnPullConsumerError,
    ServerUnavailableError,
    TimeoutError,
)
from .sanitize import readable

__all__ = ["CommandError", "ExitStatus", "document_of", "exit_status", "hint_of", "one_line"]


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
        hint: what to do about it, in the same form.
        cause: what the server said, where that is the reason.

    """

    def __init__(
        self, message: str, status: ExitStatus, *, hint: str = "", cause: APIError | None = None
    ) -> None:
        super().__init__(message, status)
        self.message = message
        self.status = status
        self.hint = hint
        self.cause = cause

    def __str__(self) -> str:
        return self.message


# The first row that fits decides: exact classes stand before their bases.
_STATUS_OF: tuple[tuple[type[BaseException], ExitStatus], ...] = (
    (KeyboardInterrupt, ExitStatus.INTERRUPTED),
    (click.Abort, ExitStatus.INTERRUPTED),
    (BrokenPipeError, ExitStatus.BROKEN_PIPE),
    (click.UsageError, ExitStatus.USAGE),
    (InvalidArgumentError, ExitStatus.USAGE),
    (ConsumerIsPushBasedError, ExitStatus.USAGE),
    (ConsumerDeletedError, ExitStatus.NOT_FOUND),
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
    (OSError, ExitStatus.FAILED),
)

_LOG_IN = "log in with --user, --creds, --nkey or --token, or choose a --context"
_USE_SUB = "it delivers to a subject: read it with 'jsm consumer sub'"
_NO_JETSTREAM = "start the server with -js, or choose another with --server or --js-domain"

# What a person can do about it; the first row that fits, as above.
_HINT_OF: tuple[tuple[type[BaseException], str], ...] = (
    (AuthorizationError, _LOG_IN),
    (NoServersError, "choose one with --server, or start one with 'jsm server run'"),
    (ServerUnavailableError, "choose a server with --server"),
    (JetStreamNotEnabledError, _NO_JETSTREAM),
    (ConsumerIsPushBasedError, _USE_SUB),
    (PullOnPushConsumerError, _USE_SUB),
    (PushOnPullConsumerError, "it waits to be asked: read it with 'jsm consumer next'"),
)


def exit_status(error: BaseException) -> ExitStatus:
    """
    Say what ``jsm`` exits with after an error.

    Args:
        error: a `CommandError`, an error of the library, of click, ``KeyboardInterrupt`` or
            ``OSError``; anything else counts as `ExitStatus.FAILED`.

    """
    if isinstance(error, CommandError):
        return error.status
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return ExitStatus.BROKEN_PIPE
    for kind, status in _STATUS_OF:
        if isinstance(error, kind):
            return status
    return ExitStatus.FAILED


def hint_of(error: BaseException) -> str:
    """Say what can be done about an error, in one line; nothing where that is not known."""
    if isinstance(error, CommandError):
        return error.hint
    for kind, text in _HINT_OF:
        if isinstance(error, kind):
            return text
    if isinstance(error, APIError) and error.err_code:
        return f"see 'jsm errors lookup {error.err_code}'"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"see '{error.ctx.command_path} --help'"
    return ""


def one_line(error: BaseException) -> str:
    """Say an error in one line, whatever line breaks its text has."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted"
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, OSError) and not isinstance(error, Error) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return readable(" ".join(text.split())).removesuffix(".") or type(error).__name__


def document_of(error: BaseException) -> dict[str, object]:
    """Return an error as the document that ``--json`` shows."""
    fields: dict[str, object] = {
        "exit_status": int(exit_status(error)),
        "description": one_line(error),
    }
    said = error.cause if isinstance(error, CommandError) else error
    if isinstance(said, APIError):
        fields.update(code=said.code, err_code=said.err_code)
        if said is error:
            fields["description"] = said.description
    if hint := hint_of(error):
        fields["hint"] = hint
    return {"error": fields}
