"""The lengths of leases: of the messages of a consumer, and when they are renewed and lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol

#: Leases are renewed after this fraction of their length.
RENEWAL_FRACTION: Final = 1 / 3
#: A lease is lost after this fraction of its length. The rest is for the way from the server to the client, on a
#: loaded machine.
LOST_FRACTION: Final = 0.9
#: Default ``ack_wait`` of nats-server.
_DEFAULT_ACK_WAIT: Final = timedelta(seconds=30)


class _Waits(Protocol):
    """The fields of a consumer's config."""

    @property
    def ack_wait(self) -> timedelta | None: ...
    @property
    def backoff(self) -> Sequence[timedelta] | None: ...


class LeaseTimes:
    """The lengths of the leases of a consumer's messages: ``backoff`` replaces ``ack_wait``."""

    __slots__ = ("waits",)

    def __init__(self, config: _Waits) -> None:
        #: Of the first, the second, ... delivery, in seconds; replaced as a whole by `adopt`.
        self.waits: list[float] = []
        self.adopt(config)

    def adopt(self, config: _Waits) -> bool:
        """Use the lengths of this config from now on; return whether they are others."""
        steps = config.backoff or [config.ack_wait or _DEFAULT_ACK_WAIT]
        waits = [step.total_seconds() for step in steps]
        if waits == self.waits:
            return False
        self.waits = waits
        return True

    def of(self, delivered: int) -> float:
        """Return the length of the lease of a delivery with this number, from 1."""
        return self.waits[min(delivered, len(self.waits)) - 1]

    @property
    def shortest(self) -> float:
        """The length of the shortest lease."""
        return min(self.waits)
