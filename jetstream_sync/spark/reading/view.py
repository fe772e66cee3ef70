"""
What a stream holds at the moment.

A `StreamView` is what one ``STREAM.INFO`` said, in the words that planning needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...api.enums import RetentionPolicy
from ...api.stream import StreamInfo
from ...nanos import time_to_ns

__all__ = ["StreamView", "view_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """A stream as one answer of the server shows it."""

    name: str
    """Its name."""

    created_ns: int
    """When it was made, in nanoseconds since 1970."""

    first_seq: int
    """The sequence of its first message; `end_seq` when it has none."""

    end_seq: int
    """The sequence that the next message will have, as far as can be said."""

    messages: int
    """How many messages it holds."""

    bytes: int
    """How many bytes they take."""

    retention: str
    """When it lets go of a message; a word of `RetentionPolicy`, or one of a newer server."""

    allow_direct: bool
    """Whether its replicas answer direct gets."""

    deny_purge: bool
    """Whether nobody may purge it."""

    sheds_inside: bool
    """Whether messages also leave it by subject or by a time of their own, as in a key-value bucket."""

    gives_times: bool
    """Whether it gives messages their times itself, and does not take them from other streams."""

    @property
    def is_work_queue(self) -> bool:
        """Whether a message stays until it was worked on."""
        return self.retention == RetentionPolicy.WORK_QUEUE

    @property
    def is_interest(self) -> bool:
        """Whether a message stays until all who want it have had it."""
        return self.retention == RetentionPolicy.INTEREST

    @property
    def is_consumed(self) -> bool:
        """Whether reading a message is to take it away, in the end."""
        return self.is_work_queue or self.is_interest

    @property
    def is_whole(self) -> bool:
        """Whether every sequence from the first to the last has its message."""
        return self.messages == self.end_seq - self.first_seq

    @property
    def message_bytes(self) -> float:
        """How many bytes a message takes on average; at least 1."""
        return max(1.0, self.bytes / self.messages) if self.messages else 1.0


def view_of(info: StreamInfo) -> StreamView:
    """Return the view that an info gives."""
    config, state = info.config, info.state
    end_seq = state.last_seq + 1
    return StreamView(
        name=config.name,
        created_ns=time_to_ns(info.created),
        first_seq=state.first_seq if state.messages else max(end_seq, state.first_seq),
        end_seq=max(end_seq, state.first_seq),
        messages=state.messages,
        bytes=state.bytes,
        retention=str(config.retention or RetentionPolicy.LIMITS),
        allow_direct=bool(config.allow_direct),
        deny_purge=bool(config.deny_purge),
        gives_times=config.mirror is None and not config.sources,
        sheds_inside=bool(config.allow_msg_ttl) or (config.max_msgs_per_subject or 0) > 0,
    )
