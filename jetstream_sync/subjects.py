"""
Subjects, queue groups, stream and consumer names: what is well formed, and what matches.

A name that ends up on a control line is a place where somebody could inject a protocol command,
so everything is checked here before a byte is made of it. The rules are nats-server's
(``server/sublist.go``) and ADR-6's; the checks are local and send nothing.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import BadSubjectError, InvalidNameError

__all__ = [
    "MAX_CONTROL_LINE",
    "check_consumer_name",
    "check_publish_subject",
    "check_queue",
    "check_stream_name",
    "check_subject",
    "subject_matches",
    "subjects_overlap",
]

#: Bytes of a command without its line end and payload that a server accepts unless it is configured
#: otherwise (nats-server's ``MAX_CONTROL_LINE_SIZE``). It closes the connection on a longer one.
MAX_CONTROL_LINE: Final = 4096
#: Bytes of a stream or consumer name that a server accepts (nats-server's ``JSMaxNameLen``).
_MAX_NAME: Final = 255

# Names become file names on the server, hence no slashes; ADR-6.
_FORBIDDEN_IN_NAMES = re.compile(r"[\s>*./\\\x00-\x1f\x7f\ud800-\udfff]")
# Surrogates alone are no text: they can not be sent as UTF-8.
_FORBIDDEN_IN_SUBJECTS = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")


def check_publish_subject(subject: str) -> str:
    """
    Check a subject that a message is published to, and return it.

    Args:
        subject: dot-separated tokens; no wildcards.

    Raises:
        BadSubjectError: it is no str, is empty, has white space, control characters, an empty
            token or a wildcard token, or is longer than a command line can be.

    """
    check_subject(subject)
    # "a*b" and "a>b" are literal tokens; only whole-token wildcards are refused.
    if ("*" in subject or ">" in subject) and not {"*", ">"}.isdisjoint(subject.split(".")):
        raise BadSubjectError(subject, "wildcards can not be published to")
    return subject


def check_subject(subject: str) -> str:
    """
    Check a subject that may have wildcards, and return it.

    Args:
        subject: dot-separated tokens; ``*`` stands for one token, a final ``>`` for one or more.

    Raises:
        BadSubjectError: it is no str, is empty, has white space, control characters or an empty
            token, ``>`` is not its last token, or it is longer than a command line can be.

    """
    if not isinstance(subject, str):
        raise BadSubjectError(repr(subject), f"a subject is a str, not {type(subject).__name__}")
    if not subject:
        raise BadSubjectError(subject, "it is empty")
    _check_length(subject)
    if _FORBIDDEN_IN_SUBJECTS.search(subject):
        raise BadSubjectError(
            subject, "white space, control characters and surrogates are not allowed"
        )
    if subject[0] == "." or subject[-1] == "." or ".." in subject:
        raise BadSubjectError(subject, "it has an empty token")
    if ">" in subject and ">" in subject.split(".")[:-1]:
        raise BadSubjectError(subject, "'>' must be the last token")
    return subject


def check_queue(queue: str) -> str:
    """
    Check the name of a queue group, and return it.

    Raises:
        BadSubjectError: it is no str, has white space or control characters, or is longer than a
            command line can be.

    """
    if not isinstance(queue, str):
        raise BadSubjectError(repr(queue), f"a queue group is a str, not {type(queue).__name__}")
    _check_length(queue)
    if _FORBIDDEN_IN_SUBJECTS.search(queue):
        raise BadSubjectError(queue, "a queue group has no white space or control characters")
    return queue


def _check_length(text: str) -> None:
    """Refuse what is too long for any command; the whole line is checked where it is made."""
    if len(text) > MAX_CONTROL_LINE:
        raise BadSubjectError(text, f"it is longer than the {MAX_CONTROL_LINE} bytes of a command")


def check_stream_name(name: str) -> str:
    """
    Check a stream's name, and return it.

    Raises:
        InvalidNameError: it is no str, is empty, has white space, a dot, a wildcard or a slash, or
            is longer than 255 bytes.

    """
    return _check_name("stream", name)


def check_consumer_name(name: str) -> str:
    """
    Check a consumer's name, and return it.

    Raises:
        InvalidNameError: it is no str, is empty, has white space, a dot, a wildcard or a slash, or
            is longer than 255 bytes.

    """
    return _check_name("consumer", name)


def _check_name(kind: str, name: str) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(kind, repr(name), f"a name is a str, not {type(name).__name__}")
    if not name:
        raise InvalidNameError(kind, name, "it is empty")
    if _FORBIDDEN_IN_NAMES.search(name):
        raise InvalidNameError(
            kind, name, "white space, '.', '*', '>', '/' and '\\' are not allowed"
        )
    if len(name) > _MAX_NAME or len(name.encode()) > _MAX_NAME:
        raise InvalidNameError(kind, name, f"it is longer than {_MAX_NAME} bytes")
    return name


def subject_matches(pattern: str, subject: str) -> bool:
    """
    Say whether a subject without wildcards falls under a pattern that may have them.

    Args:
        pattern: a subject as `check_subject` accepts it.
        subject: a subject as `check_publish_subject` accepts it.

    """
    wanted = pattern.split(".")
    tokens = subject.split(".")
    for position, expected in enumerate(wanted):
        if expected == ">":
            return len(tokens) > position
        if position >= len(tokens) or expected not in ("*", tokens[position]):
            return False
    return len(wanted) == len(tokens)


def subjects_overlap(one: str, other: str) -> bool:
    """
    Say whether there is a subject that falls under both of two patterns.

    Args:
        one: a subject as `check_subject` accepts it, with or without wildcards.
        other: the same.

    """
    ones, others = one.split("."), other.split(".")
    for first, second in zip(ones, others, strict=False):
        if ">" in {first, second}:
            return True
        if first != second and "*" not in {first, second}:
            return False
    # What a final > stands for has to be there: a.> is not a.
    return len(ones) == len(others)
