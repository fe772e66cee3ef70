"""
Stream state and stream selection.

Each trigger asks for the state of each selected stream once. All its decisions use this `StreamView`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from .. import errors
from ..api.enums import DiscardPolicy, RetentionPolicy
from ..api.stream import StreamInfo
from ..durations import time_to_ns
from ..headers import is_no_responders
from ..jetstream.api_requests import info_of, read_response
from ..jetstream.context import JetStream
from ..subjects import subjects_overlap
from .connections import api_requests, ask_all


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """The state and the relevant settings of a stream, from one ``STREAM.INFO`` reply."""

    name: str
    """The name of the stream."""

    created_ns: int
    """When the stream was created, in nanoseconds since 1970."""

    first_seq: int
    """The sequence of the first message; `end_seq` if there is none."""

    end_seq: int
    """The sequence that the next message will get."""

    messages: int
    """The number of messages."""

    bytes: int
    """The size of all messages, in bytes."""

    retention: str
    """The retention policy: a value of `RetentionPolicy`, or one of a newer server."""

    allow_direct: bool
    """Whether the replicas answer direct gets."""

    deny_purge: bool
    """Whether purging is denied."""

    removes_individually: bool
    """Whether messages also expire one by one or by subject, as in a key-value bucket."""

    removes_oldest: bool = False
    """Whether limits remove the oldest messages."""

    subjects: tuple[str, ...] = ()
    """The subjects that are published to the stream, with wildcards."""

    has_other_subjects: bool = False
    """Whether messages may be stored on other subjects: of a mirror or of sources, or after a transform."""

    first_ns: int = 0
    """When the first message was stored, in nanoseconds since 1970; 0 if there is none."""

    last_ns: int = 0
    """When the last message was stored."""

    consumers: int = 0
    """The number of consumers."""

    at_ns: int = 0
    """The time of this state according to the server; 0 if the server does not tell it."""

    @property
    def is_work_queue(self) -> bool:
        """Whether a message stays until it was acknowledged."""
        return self.retention == RetentionPolicy.WORK_QUEUE

    @property
    def is_interest(self) -> bool:
        """Whether a message stays until all interested consumers have acknowledged it."""
        return self.retention == RetentionPolicy.INTEREST

    @property
    def removes_when_consumed(self) -> bool:
        """Whether processed messages are removed from the stream."""
        return self.is_work_queue or self.is_interest

    @property
    def removes_messages(self) -> bool:
        """Whether the stream removes messages in normal operation."""
        return self.removes_oldest or self.removes_individually or self.removes_when_consumed

    @property
    def end(self) -> tuple[int, int]:
        """The last sequence and its time; a copy of the stream with other messages has another time."""
        return self.end_seq - 1, self.last_ns

    @property
    def is_contiguous(self) -> bool:
        """Whether every sequence from the first to the last has a message."""
        return self.messages == self.end_seq - self.first_seq

    def removes_unread(self, filters: tuple[str, ...]) -> bool:
        """Return whether the stream removes messages in normal operation that a reader has not read."""
        return (
            self.is_interest or self.removes_individually or (self.is_work_queue and bool(filters))
        )

    def may_store(self, subject: str) -> bool:
        """Return whether the stream may get messages that match a filter subject."""
        return self.has_other_subjects or any(
            subjects_overlap(item, subject) for item in self.subjects
        )

    @property
    def message_bytes(self) -> float:
        """The average message size in bytes; at least 1."""
        return max(1.0, self.bytes / self.messages) if self.messages else 1.0


def stream_view(info: StreamInfo) -> StreamView:
    """Return the view of a stream info."""
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
        first_ns=time_to_ns(state.first_ts) if state.messages and state.first_ts else 0,
        last_ns=time_to_ns(state.last_ts) if state.last_ts else 0,
        consumers=state.consumer_count,
        at_ns=time_to_ns(info.ts) if info.ts else 0,
        removes_oldest=bool(config.max_age)
        or (
            max(config.max_msgs or 0, config.max_bytes or 0) > 0
            and config.discard != DiscardPolicy.NEW
        ),
        subjects=tuple(config.subjects or ()),
        has_other_subjects=bool(config.mirror or config.sources or config.subject_transform),
        removes_individually=bool(config.allow_msg_ttl) or (config.max_msgs_per_subject or 0) > 0,
    )


@dataclass(frozen=True)
class StreamSelection:
    """The streams to read: by name, or all that match a pattern."""

    names: tuple[str, ...] = ()
    """The stream names; empty if there is a pattern."""

    pattern: str | None = None
    """A glob such as ``ORDERS_*``, or a regular expression between slashes."""

    domain: str | None = None
    """The JetStream domain of the streams."""

    @property
    def option(self) -> str:
        """The option that selects the streams."""
        return "stream" if self.pattern is None else "streamPattern"

    @property
    def text(self) -> str:
        """The value of that option."""
        return ",".join(self.names) if self.pattern is None else self.pattern

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        assert self.pattern is not None
        pattern = self.pattern
        if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
            return re.compile(pattern[1:-1])
        return re.compile(".*".join(map(re.escape, pattern.split("*"))))

    def selects(self, name: str) -> bool:
        """Return whether a stream of this name is selected."""
        if self.pattern is None:
            return name in self.names
        return self._expression.fullmatch(name) is not None

    def snapshot(self, js: JetStream, some: Collection[str] | None = None) -> dict[str, StreamView]:
        """Ask for the state of each selected stream once, or of some that are given by name."""
        names = self.names if some is None else [name for name in self.names if name in some]
        infos = self._listed(js) if self.pattern is not None else self._named(js, names)
        views = sorted((stream_view(info) for info in infos), key=lambda view: view.name)
        return {stream_key(view.name, self.domain): view for view in views}

    def _listed(self, js: JetStream) -> list[StreamInfo]:
        """Return the infos of all streams that match the pattern."""
        listing = js.list_streams(allow_incomplete=True)
        unknown = {name: reason for name, reason in listing.missing.items() if self.selects(name)}
        if unknown:
            raise errors.IncompleteListingError("streams", unknown)
        if not listing.missing:
            listing.check()  # a stream without a name may match
        return [info for info in listing if self.selects(info.config.name)]

    def _named(self, js: JetStream, names: Sequence[str]) -> list[StreamInfo]:
        """Return the infos of the streams that are given by name and exist."""
        api = api_requests(js)
        routes = [api.routes.to("STREAM.INFO", name) for name in names]
        infos: list[StreamInfo] = []
        replies = ask_all(api, [(route, b"") for route in routes])
        for route, (reply, *_) in zip(routes, replies, strict=True):
            if is_no_responders(*reply[2:]):
                raise errors.NoRespondersError(route)
            with suppress(errors.StreamNotFoundError):
                infos.append(info_of(read_response(route, reply)))
        return infos

    def check_all_exist(self, views: Mapping[str, StreamView]) -> None:
        """Raise `StreamNotFoundError` if a stream that is selected by name does not exist."""
        for name in self.names:
            if stream_key(name, self.domain) not in views:
                raise errors.StreamNotFoundError.found_here(f"stream {name!r} does not exist")


def stream_key(stream: str, domain: str | None) -> str:
    """Return the key of a stream in offsets; stream and domain names contain no slash."""
    return stream if domain is None else f"{domain}/{stream}"
