"""
What the status messages of a pull mean.

The lists are ADR-37's ("Status handling"), the texts nats-server's (``server/consumer.go``). The
server uses one code for many things, so texts have to be matched: in lower case, by what they
contain, and only here.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from ..errors import (
    BadRequestStatusError,
    ConsumerDeletedError,
    ConsumerIsPushBasedError,
    LeadershipChangeError,
    PinIDMismatchError,
    PullError,
    RequestLimitError,
)
from ..headers import PENDING_BYTES, PENDING_MESSAGES, Headers, parse_headers, parse_status

__all__ = ["PullStatus", "PullStatusKind", "parse_pull_status"]


class PullStatusKind(Enum):
    """What a status does to a pull."""

    HEARTBEAT = "heartbeat"
    """Nothing: the server is there."""
    QUIET = "quiet"
    """It ended as it should: nothing there, or time is up."""
    FULL = "full"
    """It ended as it should: the next message does not fit."""
    AWAY = "away"
    """It ended because who served it is gone, for now: another one, or the same, will serve one
    later."""
    WARNING = "warning"
    """It ended for a reason that the user should hear of; a continuous pull goes on."""
    FATAL = "fatal"
    """It ended, and another pull would meet the same."""


class PullStatus(NamedTuple):
    """A status message, understood."""

    kind: PullStatusKind
    error: PullError | None
    """What to raise or report; ``None`` for heartbeats and quiet ends."""
    pending: tuple[int, int] | None
    """Messages and bytes of the pull that were not delivered; ``None``: not said."""


_HEARTBEAT: Final = PullStatus(PullStatusKind.HEARTBEAT, None, None)

# (code, words) -> kind and class; the first row whose words are in the text counts. An empty text
# fits every status of the code.
_ROWS: Final[tuple[tuple[int, str, PullStatusKind, type[PullError] | None], ...]] = (
    (404, "", PullStatusKind.QUIET, None),
    (408, "", PullStatusKind.QUIET, None),
    (409, "message size exceeds maxbytes", PullStatusKind.FULL, None),
    (409, "batch completed", PullStatusKind.FULL, None),
    (409, "consumer deleted", PullStatusKind.FATAL, ConsumerDeletedError),
    (409, "consumer is push based", PullStatusKind.FATAL, ConsumerIsPushBasedError),
    (409, "leadership change", PullStatusKind.AWAY, LeadershipChangeError),
    (409, "server shutdown", PullStatusKind.AWAY, PullError),
    (409, "exceeded max", PullStatusKind.WARNING, RequestLimitError),
    (409, "", PullStatusKind.WARNING, PullError),  # what newer servers add
    (400, "", PullStatusKind.FATAL, BadRequestStatusError),
    (412, "", PullStatusKind.FATAL, PullError),  # the server is too old for what the request needs
    (423, "", PullStatusKind.WARNING, PinIDMismatchError),
    # Nobody answers for the consumer: its leader is away for now, or it or its stream is gone.
    (503, "", PullStatusKind.AWAY, PullError),
)


def parse_pull_status(header: bytes, payload: bytes) -> PullStatus | None:
    """
    Read a message on a pull's inbox as a status.

    Args:
        header: the header block, ``b""`` without one.
        payload: the payload; with one it is a user's message, whatever its headers say.

    Returns:
        What the status means, or ``None``: it is a user's message.

    """
    if payload or not header:
        return None
    status = parse_status(header)
    if status is None:
        return None
    if status.code == 100:
        return _HEARTBEAT
    text = status.description.lower()
    kind, error = next(
        (
            (kind, error)
            for code, words, kind, error in _ROWS
            if code == status.code and words in text
        ),
        (PullStatusKind.WARNING, PullError),
    )
    described = status.description
    if status.code == 503 and not described:
        described = "No Responders: the consumer or its stream does not exist, or has no leader now"
    return PullStatus(
        kind,
        error(status.code, described) if error is not None else None,
        _pending(parse_headers(header)),
    )


def _pending(headers: Headers | None) -> tuple[int, int] | None:
    """Return the counts of what was not delivered; ADR-37: look for them in every status."""
    if headers is None or PENDING_MESSAGES not in headers:
        return None
    try:
        messages, size = int(headers[PENDING_MESSAGES]), int(headers.get(PENDING_BYTES, "0"))
        return max(0, messages), max(0, size)
    except ValueError:
        return None
