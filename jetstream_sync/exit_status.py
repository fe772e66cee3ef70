"""
The exit statuses of ``jsm`` and of the commands that run a worker, and the mapping of errors to them.

Scripts branch on these numbers, so they are part of the public contract: a number never changes its meaning.
"""

from __future__ import annotations

import enum

from . import errors


class ExitStatus(enum.IntEnum):
    """Exit statuses; the results of `Worker.run` are among them. The last three are 128 and a signal."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TIMED_OUT = 4
    NO_CONNECTION = 5
    NO_RESPONDERS = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


# The first matching row is used: classes precede their bases.
_STATUS_OF: tuple[tuple[type[BaseException], ExitStatus], ...] = (
    (KeyboardInterrupt, ExitStatus.INTERRUPTED),
    (BrokenPipeError, ExitStatus.BROKEN_PIPE),
    (errors.InvalidArgumentError, ExitStatus.USAGE),
    (errors.ServerTooOldError, ExitStatus.USAGE),
    (errors.ConsumerIsPushBasedError, ExitStatus.USAGE),
    (errors.ConsumerDeletedError, ExitStatus.NOT_FOUND),
    (errors.NotFoundError, ExitStatus.NOT_FOUND),
    (errors.JetStreamNotEnabledError, ExitStatus.NO_CONNECTION),
    (errors.JetStreamNotEnabledForAccountError, ExitStatus.NO_CONNECTION),
    (errors.ConnectionClosedError, ExitStatus.NO_CONNECTION),
    (errors.NoServersError, ExitStatus.NO_CONNECTION),
    (errors.PermissionsError, ExitStatus.NO_CONNECTION),
    (errors.ServerUnavailableError, ExitStatus.NO_CONNECTION),
    (errors.NoRespondersError, ExitStatus.NO_RESPONDERS),
    (errors.TimeoutError, ExitStatus.TIMED_OUT),
)


def exit_status(error: BaseException) -> ExitStatus:
    """Return the exit status for an error that ends a program."""
    for kind, status in _STATUS_OF:
        if isinstance(error, kind):
            return status
    return ExitStatus.FAILED
