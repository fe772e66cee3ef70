"""
Accounts: what JetStream lets an account use, and what it uses.

Follows nats-server's ``server/jetstream.go``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..codec import Record, record

__all__ = ["APIStats", "AccountInfo", "AccountLimits", "Tier"]


@record
class AccountLimits(Record):
    """What an account, or a tier of it, may use; -1 is no limit."""

    max_memory: int
    """Bytes in memory streams."""

    max_storage: int
    """Bytes in file streams."""

    max_streams: int
    """Streams."""

    max_consumers: int
    """Consumers."""

    max_ack_pending: int | None = None
    """The most `ConsumerConfig.max_ack_pending` of a consumer."""

    memory_max_stream_bytes: int | None = None
    """Bytes in one memory stream; 0 is no limit, too."""

    storage_max_stream_bytes: int | None = None
    """Bytes in one file stream; 0 is no limit, too."""

    max_bytes_required: bool | None = None
    """Whether every stream must have a `StreamConfig.max_bytes`."""


@record
class APIStats(Record):
    """How much an account used the JetStream API since the server started."""

    level: int | None = None
    """
    The API level that the server implements (ADR-44).

    0 or not said before server 2.11, 1 there, 2 with 2.12. To find out whether a feature is there,
    look at this and not at the server's version.
    """

    total: int
    """Requests."""

    errors: int
    """Requests that were answered with an error."""

    inflight: int | None = None
    """Requests that are being served now."""


@record
class Tier(Record):
    """What an account uses, or what it uses of one tier such as ``R3``."""

    memory: int
    """Bytes in memory streams."""

    storage: int
    """Bytes in file streams."""

    reserved_memory: int | None = None
    """Bytes that memory streams have reserved with `StreamConfig.max_bytes`."""

    reserved_storage: int | None = None
    """Bytes that file streams have reserved with `StreamConfig.max_bytes`."""

    streams: int
    """Streams."""

    consumers: int
    """Consumers."""

    limits: AccountLimits
    """What it may use."""


@record
class AccountInfo(Tier):
    """What an account uses and may use; with `tiers`, its own numbers are the sums."""

    domain: str | None = None
    """The JetStream domain of the server."""

    api: APIStats
    """How much it used the API."""

    tiers: Mapping[str, Tier] | None = None
    """The same by tier, for accounts that have tiers."""
