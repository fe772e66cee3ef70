"""The headers that say how a message is to be stored: its id, its TTL, and what must be true first."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from ..durations import duration, duration_to_ns
from ..errors import InvalidOptionError
from ..headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ_SUBJECT,
    EXPECTED_STREAM,
    MSG_ID,
    MSG_TTL,
    Headers,
    HeadersLike,
)
from ..subjects import check_stream_name, check_subject

__all__ = ["NEVER", "publish_headers"]

#: The TTL of a message that stays, whatever the stream's limits of age are (ADR-43).
NEVER: Final = "never"

_SECOND: Final = 1_000_000_000
_LAST_SEQUENCE: Final = 2**64 - 1


def publish_headers(
    headers: HeadersLike | None,
    stream: str | None,
    msg_id: str | None,
    expected_last_sequence: int | None,
    expected_last_subject_sequence: int | None,
    expected_last_msg_id: str | None,
    msg_ttl: float | timedelta | Literal["never"] | None,
    expected_last_subject: str | None = None,
) -> HeadersLike | None:
    """
    Return the headers of a message with those that the arguments of a publish make.

    What the user gave as headers is not changed, and the other arguments come before it. For what
    they mean see `JetStream.publish`.

    Raises:
        InvalidNameError: the stream's name can not be one.
        BadSubjectError: the subject of an expectation can not be one.
        InvalidOptionError: another argument can not work.
        InvalidHeaderError: one of the headers can not be sent.

    """
    made: dict[str, str] = {}
    if msg_id is not None:
        made[MSG_ID] = _text(msg_id, "msg_id")
    if stream is not None:
        made[EXPECTED_STREAM] = check_stream_name(stream)
    if expected_last_sequence is not None:
        made[EXPECTED_LAST_SEQ] = _number(expected_last_sequence, "expected_last_sequence")
    if expected_last_subject_sequence is not None:
        made[EXPECTED_LAST_SUBJECT_SEQ] = _number(
            expected_last_subject_sequence, "expected_last_subject_sequence"
        )
    if expected_last_subject is not None:
        if expected_last_subject_sequence is None:
            raise InvalidOptionError(
                "expected_last_subject",
                expected_last_subject,
                "needs expected_last_subject_sequence",
            )
        made[EXPECTED_LAST_SUBJECT_SEQ_SUBJECT] = check_subject(expected_last_subject)
    if expected_last_msg_id is not None:
        made[EXPECTED_LAST_MSG_ID] = _text(expected_last_msg_id, "expected_last_msg_id")
    if msg_ttl is not None:
        made[MSG_TTL] = _ttl(msg_ttl)
    if not made:
        return headers
    if not headers:
        return made
    together = Headers(headers)
    together.update(made)
    return together


def _text(value: str, option: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOptionError(option, value, "expected a str with something in it")
    return value


def _number(value: int, option: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LAST_SEQUENCE:
        raise InvalidOptionError(option, value, "a sequence is an int from 0 on")
    return str(value)


def _ttl(value: float | timedelta | Literal["never"]) -> str:
    if isinstance(value, str):
        if value != NEVER:
            raise InvalidOptionError("msg_ttl", value, "must be seconds, a timedelta or 'never'")
        return NEVER
    ns = duration_to_ns(duration(value, "msg_ttl"))
    if ns < _SECOND:
        raise InvalidOptionError("msg_ttl", value, "it is at least a second")
    # Whole seconds, or a duration as Go writes it (ADR-43).
    return f"{ns}ns" if ns % _SECOND else str(ns // _SECOND)
