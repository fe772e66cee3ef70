"""Placement and replicas of streams and consumers."""

# Follows nats-server's server/stream.go and server/jetstream_api.go. The target of a migration (``desired``,
# server 2.15) is in `ClusterInfo.extra`.

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..codec import Record
from ..records import record, setting


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
