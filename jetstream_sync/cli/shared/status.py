"""How ``jsm`` reports an error: its exit status, its text and its remedy."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence
from typing import Final

import click

from ... import errors
from ...exit_status import ExitStatus
from ...exit_status import exit_status as status_of
from ...subjects import KV_PREFIX, OBJECT_PREFIX
from .env import STANDARD_OUTPUT, readable

#: The meaning of each exit status, for the help.
MEANINGS: Final = {
    ExitStatus.OK: "Success.",
    ExitStatus.FAILED: "The server refused, or the operation failed.",
    ExitStatus.USAGE: "Invalid usage: an option, a missing value without a terminal to ask on, "
    "an input that cannot be read, a consumer of the wrong kind, a server that is too old.",
    ExitStatus.NOT_FOUND: "A stream, consumer, message, bucket, key, object or context does not exist.",
    ExitStatus.TIMED_OUT: "There is nothing to deliver, or the time to wait ran out.",
    ExitStatus.NO_CONNECTION: "No server, a login or a permission that was refused, a connection that was "
    "lost, or JetStream is disabled.",
    ExitStatus.NO_RESPONDERS: "The subject of a request has no responders.",
    ExitStatus.INTERRUPTED: "Interrupted with Ctrl-C.",
    ExitStatus.BROKEN_PIPE: "The reader of the output closed the pipe.",
    ExitStatus.TERMINATED: "Terminated.",
}


class CommandError(Exception):
    """A command failed for a reason other than an error of the library; by default, the user can mend it."""

    status: ExitStatus = ExitStatus.USAGE

    def __init__(
        self,
        message: str,
        status: ExitStatus | None = None,
        *,
        hint: str = "",
        cause: errors.APIError | None = None,
    ) -> None:
        super().__init__(message, status)
        self.message = message
        self.status = self.status if status is None else status
        self.hint = hint
        self.cause = cause

    def __str__(self) -> str:
        return self.message


class FailedError(CommandError):
    """The operation failed."""

    status = ExitStatus.FAILED


class AbsentError(CommandError):
    """What the command is about does not exist."""

    status = ExitStatus.NOT_FOUND


class TimedOutError(CommandError):
    """There is nothing to deliver, or the time to wait ran out."""

    status = ExitStatus.TIMED_OUT


_LOG_IN: Final = "log in with --user, --creds, --nkey or --token, or choose a --context"
_USE_SUB: Final = "it delivers to a subject: read it with 'jsm consumer sub'"
#: Where an outage is shown.
_SEE_HEALTH: Final = "see 'jsm server report health'"
_SEE_LISTS: Final = "see 'jsm stream ls' and 'jsm server report health'"
_NO_JETSTREAM: Final = "start the server with -js, or choose another with --server or --js-domain"
_FREE_SPACE: Final = "'jsm stream info' names the server: delete messages, or raise its max_file_store or max_memory_store"

#: The remedy for each error; the first matching row is used.
_HINT_OF: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (errors.AuthorizationError, _LOG_IN),
    (errors.NoServersError, "choose one with --server, or start one with 'jsm server run'"),
    (errors.ServerFullError, _FREE_SPACE),
    (errors.NoStreamResponseError, _SEE_LISTS),
    (errors.ServerUnavailableError, "choose a server with --server"),
    (errors.JetStreamNotEnabledError, _NO_JETSTREAM),
    (errors.ConsumerIsPushBasedError, _USE_SUB),
    (errors.PullOnPushConsumerError, _USE_SUB),
    (errors.PushOnPullConsumerError, "it is a pull consumer: read it with 'jsm consumer next'"),
)


def exit_status(error: BaseException) -> ExitStatus:
    """Return the exit status of ``jsm`` for an error."""
    if isinstance(error, CommandError):
        return error.status
    if isinstance(error, click.Abort):
        return ExitStatus.INTERRUPTED
    if isinstance(error, click.UsageError):
        # Monitoring takes 2 for critical, and 3 for unknown.
        path = error.ctx.command_path if error.ctx is not None else ""
        return ExitStatus.NOT_FOUND if " server check " in f"{path} " else ExitStatus.USAGE
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return ExitStatus.BROKEN_PIPE
    return status_of(error)


# The patterns below are compiled when there is an error.

#: What a request that was not confirmed may have done to a stream or consumer, by its name in the API.
_CHANGES: Final = {
    "CREATE": "created or changed",
    "DURABLE.CREATE": "created or changed",
    "UPDATE": "changed",
    "DELETE": "deleted",
    "PURGE": "purged",
    "MSG.DELETE": "changed",
    "RESTORE": "created",
    "PAUSE": "paused or resumed",
    "RESET": "reset",
    "UNPIN": "changed",
    "LEADER.STEPDOWN": "changed",
    "PEER.REMOVE": "changed",
}
#: The subject of a request that the leader of a stream or consumer answers.
_OF_OBJECT: Final = (
    rf"(?:\S+\.)?(?:(STREAM|CONSUMER)\.({'|'.join(_CHANGES)}|INFO|LIST|NAMES|SNAPSHOT|MSG\.GET)"
    r"|DIRECT\.GET)\.([^.\s]+)(?:\.([^.\s]+)\S*)?"
)
#: The subject of a request that only the meta leader answers.
_OF_META_LEADER: Final = r"(?:\S+\.)?API\.(?:INFO|STREAM\.NAMES|STREAM\.LIST)"
#: The start of a subject that no stream stores.
_OF_SERVER: Final = r"\$JS\.|\$SYS\.|\$SRV\.|(?:\S+\.)?API\."
#: The text and the remedy by err_code, where the server's text does not say what is wrong: there is no meta leader, or
#: the servers of a stream or a consumer are down.
_OUTAGES: Final[dict[int, tuple[str, str]]] = {
    errors.ErrorCode.CLUSTER_NOT_AVAILABLE: (
        "JetStream has no meta leader, so this request changed nothing",
        _SEE_HEALTH,
    ),
    errors.ErrorCode.STREAM_OFFLINE: (
        "the stream is unreachable: its servers are offline",
        _SEE_LISTS,
    ),
    errors.ErrorCode.CONSUMER_OFFLINE: (
        "the consumer is unreachable: its servers are offline",
        _SEE_LISTS,
    ),
}


#: The start of a text about a required field of a record: it has the name of a class.
_MISSING_FIELD: Final = r"\b[A-Z]\w+\.(\w+): required field is missing"


def _usage_text(error: click.ClickException) -> str:
    """Return the text of an error of click, in the same words in all its versions."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return "a command is missing"  # the message is the help of the group
    if isinstance(error, click.NoSuchOption):
        close = f"; did you mean {error.possibilities[0]!r}?" if error.possibilities else ""
        return f"No such option {error.option_name!r}{close}"
    # The text of an invalid value says so.
    if isinstance(error, click.BadParameter) and re.search(r"\binvalid\b", error.message):
        param = error.param
        if isinstance(param, click.Argument) and re.match(
            r"(?:\w+ )?name .*\binvalid\b", error.message
        ):
            return error.message  # it says also what is invalid
        hint = error.param_hint or (param and param.get_error_hint(error.ctx))
        return f"{hint}: {error.message}" if hint else error.message
    return error.format_message()


def _outage(error: BaseException) -> tuple[str, str] | None:
    """Return what an error means that comes from an outage, and the remedy; ``None`` for another error."""
    if isinstance(error, errors.APIError):
        return _OUTAGES.get(error.err_code)
    return _silence(error) if isinstance(error, errors.RequestTimeoutError) else None


def noun_of(stream: str) -> str:
    """Return what users call a stream: its name, or the bucket or object store that it is."""
    for prefix, noun in ((KV_PREFIX, "bucket"), (OBJECT_PREFIX, "object store")):
        if stream.startswith(prefix):
            return f"{noun} {stream.removeprefix(prefix)}"
    return f"stream {stream}"


def _asked_for(subject: str) -> tuple[str, str]:
    """Return what a request to a stream or consumer is about, and its kind; empty for another request."""
    found = re.fullmatch(_OF_OBJECT, subject)
    if found is None:
        return "", ""
    kind, request, stream, consumer = found.groups()
    what = noun_of(stream)
    if kind == "CONSUMER" and consumer is not None:
        what = f"consumer {stream} > {consumer}"
    elif kind == "CONSUMER" and request in _CHANGES:
        what = f"a consumer of {what}"
    return what, request or ""


def may_lack_meta_leader(error: errors.Error) -> bool:
    """Return whether a request may be without a reply because there is no meta leader."""
    unanswered = (errors.RequestTimeoutError, errors.NoLeaderError)
    reason = error if isinstance(error, unanswered) else error.__cause__
    if not isinstance(reason, errors.RequestTimeoutError):
        return isinstance(reason, errors.NoLeaderError)
    what, request = _asked_for(reason.subject)
    # The other requests have a text that says enough.
    explained = reason is not error or (bool(what) and request not in _CHANGES)
    return explained and not reason.outage


def explained(error: errors.Error, *, led: bool) -> Exception:
    """Return the error of a request without a reply, given whether a meta leader answers."""
    cause, text = None, f"{one_line(error)}: JetStream has no meta leader"
    if isinstance(error, errors.NoLeaderError) is not led:
        return error
    if isinstance(error, errors.NoLeaderError):
        cause = error
        text = "the stream or the consumer has no leader: a majority of its servers is needed"
    elif isinstance(error, errors.RequestTimeoutError):
        what, _ = _asked_for(error.subject)
        text = f"{what} does not answer, and neither does a meta leader: it is not known whether it exists"
    return CommandError(text, exit_status(error), hint=_SEE_HEALTH, cause=cause)


def _silence(error: errors.RequestTimeoutError) -> tuple[str, str]:
    """Return what it means that a request has no reply, and the remedy."""
    what, request = _asked_for(error.subject)
    if request in _CHANGES:
        done = f"{what} may have been {_CHANGES[request]}"
        return f"the servers did not confirm in time; {done}{error.outage}", _SEE_LISTS
    if not re.match(_OF_SERVER, error.subject):
        return f"{error}: a stream may have stored the message", ""
    if error.outage:
        return str(error), ""
    if re.fullmatch(_OF_META_LEADER, error.subject):
        return "JetStream does not answer: it may have no meta leader", _SEE_HEALTH
    if not what:
        return str(error), ""
    return f"{what} is unreachable: its servers do not answer", _SEE_LISTS


def hint_of(error: BaseException) -> str:
    """Return the remedy for an error in one line; empty when none is known."""
    if isinstance(error, CommandError):
        return error.hint
    if (found := _outage(error)) is not None:
        return found[1]
    for kind, text in _HINT_OF:
        if isinstance(error, kind):
            return text
    if isinstance(error, errors.APIError) and error.err_code:
        return f"see 'jsm errors lookup {error.err_code}'"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"see '{error.ctx.command_path} --help'"
    return ""


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line, without line breaks and internal names."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted"
    if (found := _outage(error)) is not None:
        return found[0]
    text = _usage_text(error) if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, OSError) and not isinstance(error, errors.Error) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = readable(" ".join(text.split())).removesuffix(".")
    text = re.sub(_MISSING_FIELD, r"the field '\1' is missing", text)
    return text or type(error).__name__


def document_of(error: BaseException) -> dict[str, object]:
    """Return the document that ``--json`` shows for an error."""
    fields: dict[str, object] = {
        "exit_status": int(exit_status(error)),
        "description": one_line(error),
    }
    said = error.cause if isinstance(error, CommandError) else error
    if isinstance(said, errors.APIError):
        fields.update(code=said.code, err_code=said.err_code)
        codes = f" (code {said.code}, err_code {said.err_code})"
        fields["description"] = one_line(error).removesuffix(codes)
    if hint := hint_of(error):
        fields["hint"] = hint
    return {"error": fields}


@contextlib.contextmanager
def file_errors(path: object, status: ExitStatus = ExitStatus.USAGE) -> Iterator[None]:
    """Raise an error of a file as a `CommandError` that names it; errors of connections are not changed."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: the file is not UTF-8 text", status) from error
    except OSError as error:
        if isinstance(error, errors.Error) or is_about_output(error):
            raise
        place = "standard input" if path == "-" else path
        raise CommandError(f"{place}: {error.strerror or error}", status) from error


def is_about_output(error: BaseException) -> bool:
    """Return whether an error says that standard output could not be written."""
    return isinstance(error, OSError) and error.filename == STANDARD_OUTPUT


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
    """Add what a call is about to the text of its error, for one of several items; not if the text has it."""
    try:
        yield
    except errors.NotFoundError:
        raise  # it has an error of its own
    except errors.Error as error:
        text = one_line(error)
        if what.rpartition(" ")[2] in text:
            raise
        cause = error if isinstance(error, errors.APIError) else None
        raise CommandError(
            f"{what}: {text}", exit_status(error), hint=hint_of(error), cause=cause
        ) from error


# --- unknown names --------------------------------------------------------------------------------


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return ``, did you mean X?`` when one of the names is similar, else an empty string."""
    from ...options import closest_match  # noqa: PLC0415 - for errors only

    folded = {name.lower(): name for name in names}
    close = closest_match(name.lower(), folded)
    return f", did you mean {folded[close]}?" if close else ""


def not_found(
    kind: str, name: str, names: Sequence[str], cause: errors.APIError | None = None
) -> CommandError:
    """Return the error for an unknown name, with status `ExitStatus.NOT_FOUND`."""
    return AbsentError(f'{kind} "{name}" not found{did_you_mean(name, names)}', cause=cause)
