"""Enums of stream and consumer configs."""

# Every member is a str: AckPolicy.EXPLICIT == "explicit", and prints as its value. An unknown value
# of a newer server is decoded as `jetstream_sync.codec.UnknownEnumValue` and sent back unchanged. Values and
# meanings are nats-server's (server/stream.go,
# server/consumer.go, server/store.go).

from __future__ import annotations

from enum import Enum


class StrEnum(str, Enum):
    """A string enum whose members print as their value; Python 3.10 has no ``StrEnum``."""

    # Otherwise str() and format() differ between the supported Python versions.
    __str__ = str.__str__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)


class RetentionPolicy(StrEnum):
    """When a stream removes a message."""

    LIMITS = "limits"
    """A message stays until a limit of the stream (count, bytes, age) removes it."""

    INTEREST = "interest"
    """A message stays until every interested consumer has acknowledged it; without any, it is dropped."""

    WORK_QUEUE = "workqueue"
    """A message stays until the only consumer of its subject has acknowledged it."""


class DiscardPolicy(StrEnum):
    """What to discard when a stream reaches a limit."""

    OLD = "old"
    """The oldest messages are removed."""

    NEW = "new"
    """New messages are rejected with an error."""


class StorageType(StrEnum):
    """Where a stream keeps its messages."""

    FILE = "file"
    """On disk."""

    MEMORY = "memory"
    """In memory; lost when the server (or all replicas) stops."""


class StoreCompression(StrEnum):
    """How a file-based stream compresses what it stores."""

    NONE = "none"
    """Not at all."""

    S2 = "s2"
    """With S2, a fast relative of Snappy."""


class PersistMode(StrEnum):
    """When a stream's acknowledgement is sent, relative to writing the message to disk."""

    DEFAULT = "default"
    """The message is flushed first, then acknowledged."""

    ASYNC = "async"
    """The acknowledgement may come first; a server that is killed can lose what it acknowledged."""


class DeliverPolicy(StrEnum):
    """Where in the stream a new consumer starts."""

    ALL = "all"
    """At the first message."""

    LAST = "last"
    """At the last message."""

    NEW = "new"
    """At the first message stored after the consumer was created."""

    BY_START_SEQUENCE = "by_start_sequence"
    """At ``opt_start_seq``, or the first message after it."""

    BY_START_TIME = "by_start_time"
    """At the first message stored at or after ``opt_start_time``."""

    LAST_PER_SUBJECT = "last_per_subject"
    """With the last message of each matching subject; requires a filter."""


class AckPolicy(StrEnum):
    """Which messages of a consumer have to be acknowledged."""

    NONE = "none"
    """No acknowledgements: a message counts as acknowledged when it is sent."""

    ALL = "all"
    """An acknowledgement covers the message and all before it."""

    EXPLICIT = "explicit"
    """Each message is acknowledged individually."""

    FLOW_CONTROL = "flow_control"
    """Like `ALL`, by answering flow-control messages; push consumers only, needs server 2.14."""


class ReplayPolicy(StrEnum):
    """How fast a consumer gets messages that the stream already holds."""

    INSTANT = "instant"
    """As fast as possible."""

    ORIGINAL = "original"
    """With the original intervals between messages."""


class PriorityPolicy(StrEnum):
    """How a consumer with priority groups chooses among waiting pull requests (ADR-42)."""

    NONE = "none"
    """Round-robin, as without groups."""

    OVERFLOW = "overflow"
    """A request may wait until enough messages are pending or unacknowledged; server 2.11."""

    PINNED_CLIENT = "pinned_client"
    """One client gets everything while the others stand by; server 2.11."""

    PRIORITIZED = "prioritized"
    """The requests with the lowest priority number come first; server 2.12."""


class KeyValueOperation(StrEnum):
    """What a message of a key-value bucket does to its key."""

    PUT = "PUT"
    """The key has a value."""

    DELETE = "DEL"
    """The key is deleted; earlier revisions stay in its history."""

    PURGE = "PURGE"
    """The key is deleted together with its history, or its value has expired."""
