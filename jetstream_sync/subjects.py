"""Validation and matching of subjects, and validation of queue, stream and consumer names."""

# A name on a control line could inject a protocol command, so every name is validated before it is
# encoded. The rules are those of nats-server (``server/sublist.go``) and ADR-6. The checks are local and
# send nothing.

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from . import errors

#: Maximum length of a protocol command in bytes, without line end and payload: the default of
#: nats-server (``MAX_CONTROL_LINE_SIZE``). The server closes the connection on a longer command.
MAX_CONTROL_LINE: Final = 4096
#: Maximum length of a stream or consumer name in bytes (nats-server's ``JSMaxNameLen``).
_MAX_NAME_BYTES: Final = 255

# Names become file names on the server, so slashes are forbidden (ADR-6).
_FORBIDDEN_IN_NAMES = re.compile(r"[\s>*./\\\x00-\x1f\x7f]")
# Servers accept other white space and control characters in names (``isValidName``).
_FORBIDDEN_BY_SERVERS = re.compile(r"[ \t\r\n\f>*./\\\x00]")
_FORBIDDEN_IN_SUBJECTS = re.compile(r"[\s\x00-\x1f\x7f]")

#: The API of JetStream without a domain or a custom prefix, and the requests to services (ADR-32).
API_PREFIX: Final = "$JS.API"
SERVICES_PREFIX: Final = "$SRV"
#: The start of the names of the streams of key-value buckets and of object stores.
KV_PREFIX: Final = "KV_"
OBJECT_PREFIX: Final = "OBJ_"

#: The first tokens of subjects that call a server, or that only one client reads.
_RESERVED: Final = frozenset({"$JS", "$SYS", "_INBOX"})


def check_publish_subject(subject: str) -> str:
    """Validate a subject to publish to, and return it."""
    check_subject(subject)
    # "a*b" and "a>b" are literal tokens; only "*" and ">" as whole tokens are wildcards.
    if ("*" in subject or ">" in subject) and not {"*", ">"}.isdisjoint(subject.split(".")):
        raise errors.BadSubjectError(subject, "a subject to publish to must not contain wildcards")
    return subject


def check_subject(subject: str) -> str:
    """Validate a subject that may contain wildcards, and return it."""
    if not isinstance(subject, str):
        raise errors.BadSubjectError(repr(subject), f"must be a str, not {type(subject).__name__}")
    if not subject:
        raise errors.BadSubjectError(subject, "must not be empty")
    _check_length(subject)
    if _FORBIDDEN_IN_SUBJECTS.search(subject) or _has_surrogates(subject):
        raise errors.BadSubjectError(
            subject, "must not contain white space, control characters or surrogates"
        )
    if subject[0] == "." or subject[-1] == "." or ".." in subject:
        raise errors.BadSubjectError(subject, "must not contain an empty token")
    if ">" in subject and ">" in subject.split(".")[:-1]:
        raise errors.BadSubjectError(subject, "'>' must be the last token")
    return subject


def is_reserved(subject: str, api_prefix: str | None = None) -> bool:
    """Return whether a subject calls a server API, also behind the prefix of another account, or is an inbox."""
    if subject.partition(".")[0] in _RESERVED:
        return True
    return api_prefix is not None and f"{subject}.".startswith(f"{api_prefix}.")


def check_queue(queue: str) -> str:
    """Validate the name of a queue group, and return it."""
    if not isinstance(queue, str):
        raise errors.BadSubjectError(
            repr(queue), f"a queue group must be a str, not {type(queue).__name__}"
        )
    _check_length(queue)
    if _FORBIDDEN_IN_SUBJECTS.search(queue) or _has_surrogates(queue):
        raise errors.BadSubjectError(
            queue, "a queue group must not contain white space or control characters"
        )
    return queue


def _check_length(text: str) -> None:
    """Reject a text that exceeds any command; the encoder checks the length of the whole line."""
    if len(text) > MAX_CONTROL_LINE:
        raise errors.BadSubjectError(
            text, f"must not exceed {MAX_CONTROL_LINE} bytes, the maximum of a command"
        )


def _has_surrogates(text: str) -> bool:
    """Return whether a text has lone surrogates, which cannot be encoded as UTF-8."""
    # A pattern that contains them takes a third of a millisecond to compile.
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_stream_name(name: str, *, new: bool = False) -> str:
    """Validate a stream name, and return it."""
    return _check_name("stream", name, new)


def check_consumer_name(name: str, *, new: bool = False) -> str:
    """Validate a consumer name, and return it; args and errors are those of `check_stream_name()`."""
    return _check_name("consumer", name, new)


def _check_name(kind: str, name: str, new: bool) -> str:
    if not isinstance(name, str):
        raise errors.InvalidNameError(kind, repr(name), f"must be a str, not {type(name).__name__}")
    if not name:
        raise errors.InvalidNameError(kind, name, "must not be empty")
    forbidden = _FORBIDDEN_IN_NAMES if new else _FORBIDDEN_BY_SERVERS
    if forbidden.search(name) or _has_surrogates(name):
        raise errors.InvalidNameError(
            kind, name, "must not contain white space, '.', '*', '>', '/' or '\\'"
        )
    if len(name) > _MAX_NAME_BYTES or len(name.encode()) > _MAX_NAME_BYTES:
        raise errors.InvalidNameError(kind, name, f"must not exceed {_MAX_NAME_BYTES} bytes")
    return name


def subject_matches(pattern: str, subject: str) -> bool:
    """Return whether a subject, or every subject that a second pattern matches, matches a pattern."""
    wanted = pattern.split(".")
    tokens = subject.split(".")
    for position, expected in enumerate(wanted):
        if expected == ">":
            return len(tokens) > position
        if position >= len(tokens) or tokens[position] == ">":
            return False
        if expected not in ("*", tokens[position]):
            return False
    return len(wanted) == len(tokens)


def subjects_overlap(one: str, other: str) -> bool:
    """Return whether any subject matches both patterns."""
    ones, others = one.split("."), other.split(".")
    for first, second in zip(ones, others, strict=False):
        if ">" in {first, second}:
            return True
        if first != second and "*" not in {first, second}:
            return False
    # A final > matches at least one token: a.> does not match a.
    return len(ones) == len(others)


def filter_fields(subjects: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a config with these filters, one or several; none: all subjects of the stream."""
    several = len(subjects) > 1
    return {
        "filter_subject": subjects[0] if subjects and not several else None,
        "filter_subjects": list(subjects) if several else None,
    }
