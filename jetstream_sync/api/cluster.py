"""
Clusters: where streams and consumers are, and where they are wanted.

Follows nats-server's ``server/stream.go`` and ``server/jetstream_api.go``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..codec import Record, record
from .enums import MigrationStatusType, RetentionPolicy

__all__ = [
    "ClusterInfo",
    "DesiredClusterInfo",
    "DesiredClusterInfoOrigin",
    "DesiredClusterInfoStatus",
    "PeerInfo",
    "Placement",
]


@record
class Placement(Record):
    """Which servers may hold a stream."""

    cluster: str | None = None
    """The name of their cluster; any when not said."""

    tags: Sequence[str] | None = None
    """Tags that each of them has; none needed when not said."""

    preferred: str | None = None
    """
    The server that should lead, for a request to step down; needs server 2.11.

    The server refuses it in a stream's config.
    """


@record
class PeerInfo(Record):
    """One of the other servers that hold a stream or consumer."""

    name: str
    """The server's name."""

    current: bool
    """Whether it was heard of lately and has everything."""

    offline: bool | None = None
    """Whether it counts as gone."""

    active: timedelta
    """How long ago it was last heard of."""

    lag: int | None = None
    """How many operations it is behind the leader."""

    peer: str | None = None
    """Its id in the Raft group."""

    pending: bool | None = None
    """Whether it is assigned and not in the Raft group yet; server 2.15."""


@record
class DesiredClusterInfoOrigin(Record):
    """What a stream or consumer was before the change that is under way; server 2.15."""

    replicas: int
    """How many replicas it had."""

    placement: Placement | None = None
    """Where it was wanted."""

    retention: RetentionPolicy | str | None = None
    """The retention that still applies; not said when it does not change."""


@record
class DesiredClusterInfoStatus(Record):
    """What a change under way does, or waits for; server 2.15."""

    description: str
    """A short line for people."""

    type: MigrationStatusType | str
    """The same, for programs."""

    err: str | None = None
    """What fails again and again, if something does."""


@record
class DesiredClusterInfo(Record):
    """Where a stream or consumer is to be, while it moves; server 2.15."""

    created: datetime | None = None
    """When the move was asked for."""

    name: str | None = None
    """The cluster that it moves to."""

    replicas: Sequence[PeerInfo] | None = None
    """The servers that are to hold it."""

    origin: DesiredClusterInfoOrigin | None = None
    """What it was before."""

    status: DesiredClusterInfoStatus | None = None
    """How far it is."""


@record
class ClusterInfo(Record):
    """The servers that hold a stream or consumer."""

    name: str | None = None
    """The name of their cluster."""

    raft_group: str | None = None
    """The name of their Raft group; server 2.12."""

    leader: str | None = None
    """The name of the server that leads; not said while there is none."""

    leader_since: datetime | None = None
    """Since when it leads; server 2.12."""

    system_account: bool | None = None
    """Whether replication uses the system account; server 2.12."""

    traffic_account: str | None = None
    """The account that replication uses; server 2.12."""

    replicas: Sequence[PeerInfo] | None = None
    """The servers that hold it, without the leader."""

    desired: DesiredClusterInfo | None = None
    """Where it is to be, while it moves; server 2.15."""
