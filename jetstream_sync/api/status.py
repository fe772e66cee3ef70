"""Classification of the status messages of pull requests."""

# The statuses are those of ADR-37 ("Status handling"), the texts those of nats-server
# (server/consumer.go). The server uses one code for several conditions, so the texts are matched as
# lower-case substrings. Only this module matches them.

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


class PullStatusKind(Enum):
    """Effect of a status on a pull."""

    HEARTBEAT = "heartbeat"
    """No effect: the server is alive."""
    QUIET = "quiet"
    """The request ended normally: no messages, or expired."""
    FULL = "full"
    """The request ended normally: the next message exceeds its limits."""
    AWAY = "away"
    """The request ended because the consumer is temporarily unavailable; a later request can succeed."""
    WARNING = "warning"
    """The request ended for a reason to report; a continuous pull continues."""
    FATAL = "fatal"
    """The request ended, and another request would fail in the same way."""


class PullStatus(NamedTuple):
    """A parsed status message."""

    kind: PullStatusKind
    error: PullError | None
    """The error to raise or report; ``None`` for heartbeats and normal ends."""
    pending: tuple[int, int] | None
    """Undelivered messages and bytes of the request; ``None``: not reported."""


_HEARTBEAT: Final = PullStatus(PullStatusKind.HEARTBEAT, None, None)

# (code, text) -> kind and error class. The first row whose text is contained in the description
# applies; an empty text matches every status with the code.
_STATUSES: Final[tuple[tuple[int, str, PullStatusKind, type[PullError] | None], ...]] = (
    (404, "", PullStatusKind.QUIET, None),
    (408, "", PullStatusKind.QUIET, None),
    (409, "message size exceeds maxbytes", PullStatusKind.FULL, None),
    (409, "batch completed", PullStatusKind.FULL, None),
    (409, "consumer deleted", PullStatusKind.FATAL, ConsumerDeletedError),
    (409, "consumer is push based", PullStatusKind.FATAL, ConsumerIsPushBasedError),
    (409, "leadership change", PullStatusKind.AWAY, LeadershipChangeError),
    (409, "server shutdown", PullStatusKind.AWAY, PullError),
    (409, "exceeded max", PullStatusKind.WARNING, RequestLimitError),
    (409, "", PullStatusKind.WARNING, PullError),  # other texts, including those of newer servers
    (400, "", PullStatusKind.FATAL, BadRequestStatusError),
    (412, "", PullStatusKind.FATAL, PullError),  # the server is too old for the request
    (423, "", PullStatusKind.WARNING, PinIDMismatchError),
    # No responders: the consumer has no leader now, or it or its stream was deleted.
    (503, "", PullStatusKind.AWAY, PullError),
)


def parse_pull_status(header: bytes, payload: bytes) -> PullStatus | None:
    """Return the status in a message on the inbox of a pull; ``None``: it is for the user."""
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
            for code, fragment, kind, error in _STATUSES
            if code == status.code and fragment in text
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
    """Return the undelivered messages and bytes, which any status may report (ADR-37)."""
    if headers is None or PENDING_MESSAGES not in headers:
        return None
    try:
        messages, size = int(headers[PENDING_MESSAGES]), int(headers.get(PENDING_BYTES, "0"))
        return max(0, messages), max(0, size)
    except ValueError:
        return None
