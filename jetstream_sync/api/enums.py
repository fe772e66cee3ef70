"""
The policies of streams and consumers: the wire word of each, and what it means.

Every policy is a ``str``: ``AckPolicy.EXPLICIT == "explicit"``, and it prints as its word. A word
that a newer server sends and this version does not know stays a `jetstream_sync.codec.UnknownEnumValue` and is
sent back as it came. Words and meanings are nats-server's (``server/stream.go``,
``server/consumer.go``, ``server/store.go``).
"""

from __future__ import annotations

from enum import Enum

__all__ = [
    "AckPolicy",
    "DeliverPolicy",
    "DiscardPolicy",
    "MigrationStatusType",
    "PersistMode",
    "PriorityPolicy",
    "ReplayPolicy",
    "RetentionPolicy",
    "StorageType",
    "StoreCompression",
]


class _WireWord(str, Enum):
    """A string enum whose members print as their value; Python 3.10 has no ``StrEnum``."""

    # Otherwise str() and format() differ between the Pythons that we support.
    __str__ = str.__str__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)


class RetentionPolicy(_WireWord):
    """When a stream lets go of a message."""

    LIMITS = "limits"
    """A message stays until a limit of the stream (count, bytes, age) removes it."""

    INTEREST = "interest"
    """It stays until every consumer that wants it has acknowledged it; without any, not at all."""

    WORK_QUEUE = "workqueue"
    """It stays until the one consumer for its subject has acknowledged it."""


class DiscardPolicy(_WireWord):
    """What gives way when a stream is full."""

    OLD = "old"
    """The oldest messages are removed."""

    NEW = "new"
    """New messages are refused, and the publisher gets an error."""


class StorageType(_WireWord):
    """Where a stream keeps its messages."""

    FILE = "file"
    """On disk."""

    MEMORY = "memory"
    """In the server's memory; gone when the server (or all its replicas) stops."""


class StoreCompression(_WireWord):
    """How a file-based stream compresses what it stores."""

    NONE = "none"
    """Not at all."""

    S2 = "s2"
    """With S2, a fast relative of Snappy; needs server 2.10."""


class PersistMode(_WireWord):
    """When a stream's acknowledgement is sent, relative to writing the message to disk."""

    DEFAULT = "default"
    """The message is flushed first, then acknowledged."""

    ASYNC = "async"
    """The acknowledgement may come first; a server that is killed can lose what it acknowledged."""


class DeliverPolicy(_WireWord):
    """Where in the stream a new consumer starts."""

    ALL = "all"
    """At the first message."""

    LAST = "last"
    """At the last message."""

    NEW = "new"
    """At the first message that arrives after the consumer was made."""

    BY_START_SEQUENCE = "by_start_sequence"
    """At ``opt_start_seq``, or the first message after it."""

    BY_START_TIME = "by_start_time"
    """At the first message that is as young as ``opt_start_time`` or younger."""

    LAST_PER_SUBJECT = "last_per_subject"
    """With the last message of each subject that the filter takes in; needs a filter."""


class AckPolicy(_WireWord):
    """Which messages of a consumer have to be acknowledged."""

    NONE = "none"
    """None: a message counts as done when it is sent."""

    ALL = "all"
    """An acknowledgement covers the message and all before it."""

    EXPLICIT = "explicit"
    """Each on its own."""

    FLOW_CONTROL = "flow_control"
    """Like `ALL`, by answering flow-control messages; push consumers only, needs server 2.14."""


class ReplayPolicy(_WireWord):
    """How fast a consumer gets messages that the stream already holds."""

    INSTANT = "instant"
    """As fast as possible."""

    ORIGINAL = "original"
    """With the pauses between them that they arrived with."""


class PriorityPolicy(_WireWord):
    """How a consumer with priority groups chooses among waiting pull requests (ADR-42)."""

    NONE = "none"
    """By turns, as without groups."""

    OVERFLOW = "overflow"
    """A request may wait until enough messages are pending or unacknowledged; server 2.11."""

    PINNED_CLIENT = "pinned_client"
    """One client gets everything while the others stand by; server 2.11."""

    PRIORITIZED = "prioritized"
    """The requests with the lowest priority number come first; server 2.12."""


class MigrationStatusType(_WireWord):
    """What has to happen before the move of a stream or consumer to other peers goes on."""

    META = "meta"
    """The meta leader has to record or advance the wanted state."""

    MEMBERSHIP = "membership"
    """A proposed change of members has to be committed."""

    SNAPSHOT = "snapshot"
    """A snapshot has to be installed."""

    CATCHUP = "catchup"
    """Peers have to catch up with the data."""

    QUORUM = "quorum"
    """More peers have to be online, or a step would lose the quorum."""

    BLOCKED = "blocked"
    """Another stream or consumer has to move first."""

    UNAVAILABLE = "unavailable"
    """Nothing to do: the server is stopping, or the assignment is gone."""
