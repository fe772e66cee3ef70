"""
What a stream holds at the moment.

A `StreamView` is what one ``STREAM.INFO`` said, in the words that planning needs.

Which streams a read means.

A trigger asks once for each stream, and all its decisions are made on that answer, a `StreamView`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..api.enums import RetentionPolicy
from ..api.stream import StreamInfo
from ..errors import StreamNotFoundError
from ..jetstream.context import JetStream
from ..nanos import time_to_ns

__all__ = ["StreamSelection", "StreamView", "stream_key", "stream_view"]


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

    removes_individually: bool
    """Whether messages also leave it by subject or by a time of their own, as in a key-value bucket."""

    assigns_timestamps: bool
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
    def removes_when_consumed(self) -> bool:
        """Whether reading a message is to take it away, in the end."""
        return self.is_work_queue or self.is_interest

    @property
    def is_contiguous(self) -> bool:
        """Whether every sequence from the first to the last has its message."""
        return self.messages == self.end_seq - self.first_seq

    @property
    def message_bytes(self) -> float:
        """How many bytes a message takes on average; at least 1."""
        return max(1.0, self.bytes / self.messages) if self.messages else 1.0


def stream_view(info: StreamInfo) -> StreamView:
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
        assigns_timestamps=config.mirror is None and not config.sources,
        removes_individually=bool(config.allow_msg_ttl) or (config.max_msgs_per_subject or 0) > 0,
    )


@dataclass(frozen=True)
class StreamSelection:
    """The streams that a read means: by name, or all that a pattern fits."""

    names: tuple[str, ...] = ()
    """The names; none when there is a pattern."""

    pattern: str | None = None
    """``ORDERS_*``, or a regular expression between slashes."""

    domain: str | None = None
    """Their JetStream domain."""

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        assert self.pattern is not None
        pattern = self.pattern
        if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
            return re.compile(pattern[1:-1])
        return re.compile(".*".join(map(re.escape, pattern.split("*"))))

    def has(self, name: str) -> bool:
        """Say whether a stream of this name is meant."""
        if self.pattern is None:
            return name in self.names
        return self._expression.fullmatch(name) is not None

    def snapshot(self, js: JetStream) -> dict[str, StreamView]:
        """
        Ask for every stream that is meant and there, once.

        Returns:
            The views by `stream_key`, sorted. A stream that does not exist has none.

        Raises:
            Error: as `JetStream.get_stream`, but for a stream that is not there.

        """
        names = self.names
        if self.pattern is not None:
            names = tuple(name for name in js.stream_names() if self.has(name))
        views: dict[str, StreamView] = {}
        for name in sorted(names):
            try:
                info = js.get_stream(name).cached_info
            except StreamNotFoundError:
                continue
            views[stream_key(name, self.domain)] = stream_view(info)
        return views

    def check_all_exist(self, views: Mapping[str, StreamView]) -> None:
        """
        Refuse to begin where a stream that was named does not exist.

        Raises:
            StreamNotFoundError: one is not there, or no stream fits the pattern.

        """
        for name in self.names:
            if stream_key(name, self.domain) not in views:
                raise StreamNotFoundError(404, 10059, f"there is no stream {name!r}")


def stream_key(stream: str, domain: str | None) -> str:
    """Return what a stream is called in offsets; names have no slash."""
    return stream if domain is None else f"{domain}/{stream}"
