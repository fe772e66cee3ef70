"""Accounts and clusters: usage and limits, placement and replicas of streams and consumers."""

# Follows nats-server's server/jetstream.go, server/stream.go and server/jetstream_api.go. The target of a
# migration (``desired``, server 2.15) is in `ClusterInfo.extra`.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from ..codec import Record
from ..records import record, setting
from .enums import RetentionPolicy


@record
class AccountLimits(Record):
    """Limits of an account or a tier; -1 means no limit."""

    max_memory: int
    """Bytes in memory streams."""

    max_storage: int
    """Bytes in file streams."""

    max_streams: int
    """Maximum number of streams."""

    max_consumers: int
    """Maximum number of consumers."""

    max_ack_pending: int | None = None
    """Maximum of `ConsumerConfig.max_ack_pending`."""

    memory_max_stream_bytes: int | None = None
    """Maximum size of a memory stream in bytes; 0 and -1 mean no limit."""

    storage_max_stream_bytes: int | None = None
    """Maximum size of a file stream in bytes; 0 and -1 mean no limit."""

    max_bytes_required: bool | None = None
    """Whether every stream must have a `StreamConfig.max_bytes`."""


@record
class APIStats(Record):
    """JetStream API requests of an account since the server started."""

    level: int | None = None
    """
    The API level that the server implements (ADR-44).

    0 or not set before server 2.11, 1 with 2.11, 2 with 2.12. To test for a feature, check the API level
    and not the server version.
    """

    total: int
    """Number of requests."""

    errors: int
    """Number of requests that failed."""

    inflight: int | None = None
    """Number of requests in progress."""


@record
class Tier(Record):
    """Usage of an account, or of one tier such as ``R3``."""

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
    """Limits of the account or tier."""


@record
class AccountInfo(Tier):
    """Usage and limits of an account; with `tiers`, the numbers are totals."""

    domain: str | None = None
    """The JetStream domain of the server."""

    api: APIStats
    """API requests of the account."""

    tiers: Mapping[str, Tier] | None = None
    """Usage and limits per tier, for accounts with tiers."""


# --- clusters -----------------------------------------------------------------------------------


@record
class Placement(Record):
    """Which servers may hold a stream."""

    cluster: str | None = setting(default=None, flags="--cluster")
    """Name of the cluster; default: any."""

    tags: Sequence[str] | None = setting(default=None, flags="--tag --tags")
    """Tags that each server must have; default: none."""

    preferred: str | None = setting(default=None, since=(2, 11))
    """
    Preferred new leader in a step-down request.

    Not valid in a stream config.
    """


@record
class PeerInfo(Record):
    """One of the other servers that hold a stream or consumer."""

    name: str
    """The server's name."""

    current: bool
    """Whether the replica is in contact and up to date."""

    offline: bool | None = None
    """Whether the server is considered offline."""

    active: timedelta
    """Time since the last contact."""

    lag: int | None = None
    """Number of operations behind the leader."""

    peer: str | None = None
    """Id in the Raft group."""

    pending: bool | None = None
    """Whether the server is assigned but not yet in the Raft group; needs server 2.15."""

    @property
    def seen_ago(self) -> timedelta | None:
        """Time since the last contact; `None`: it is unknown, as for a server that was not seen yet."""
        # The server reports 0 for a replica that it has never heard of.
        return self.active if self.current or self.active > timedelta(0) else None


@record
class DesiredClusterOrigin(Record):
    """What a stream or consumer returns to if its change is cancelled."""

    replicas: int
    """Number of replicas before the change."""

    placement: Placement | None = None
    """Placement before the change."""

    retention: RetentionPolicy | str | None = None
    """The retention policy that is in force until the change has ended."""


@record
class DesiredClusterStatus(Record):
    """What the leader does, or waits for, to complete a change of replicas."""

    description: str | None = None
    """The step, in one line."""

    type: str | None = None
    """What the step needs: ``catchup``, ``quorum`` or ``blocked``, for example."""

    err: str | None = None
    """The failure that prevents the step, if it lasts."""


@record
class DesiredPeer(Record):
    """One of the servers that will hold a stream or consumer."""

    name: str
    """The server's name."""

    peer: str | None = None
    """Id in the Raft group."""


@record
class DesiredClusterInfo(Record):
    """Where a stream or consumer will be when a change of its replicas or placement has ended."""

    name: str | None = None
    """Name of the cluster."""

    created: datetime | None = None
    """Time when the change was requested."""

    replicas: Sequence[DesiredPeer] | None = None
    """The future servers; not set while the leader chooses the servers to keep."""

    origin: DesiredClusterOrigin | None = None
    """What a cancelled change returns to."""

    status: DesiredClusterStatus | None = None
    """The current step."""


@record
class ClusterInfo(Record):
    """The servers that hold a stream or consumer."""

    name: str | None = None
    """Name of the cluster."""

    raft_group: str | None = None
    """Name of the Raft group; needs server 2.12."""

    leader: str | None = None
    """Name of the leader; not set without a leader."""

    leader_since: datetime | None = None
    """Time of the leader's election; needs server 2.12."""

    system_account: bool | None = None
    """Whether replication uses the system account; server 2.12."""

    traffic_account: str | None = None
    """The account that replication uses; server 2.12."""

    replicas: Sequence[PeerInfo] | None = None
    """The replicas without the leader."""

    desired: DesiredClusterInfo | None = None
    """The target of a change of replicas or placement, while it lasts; needs server 2.15."""
