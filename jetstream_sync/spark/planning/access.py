"""Server requests of the planning on the driver: stream state, message counts, and start and end sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from ... import errors
from ...api.stream import MsgGetRequest
from ...durations import time_to_ns
from ...jetstream.connection import Connection
from ...jetstream.context import JetStream
from ...jetstream.direct_get import leader_get
from ...net.clock import Deadline
from ..connections import api_requests, connection
from ..option_values import NothingSince
from ..options import EARLIEST, LATEST, OffsetSpec, ReadOptions
from ..reading.direct import count_from_each, matching_seqs
from ..retry import retry_transient
from ..streams import StreamSelection, StreamView
from .batches import MessageCounter

#: Maximum size of matches that are read to know their sequences, in bytes.
_MAX_MATCHES_BYTES: Final = 2 * 1024 * 1024

log: logging.Logger = logging.getLogger("jetstream_sync.spark")


def resolve_offset(given: OffsetSpec | None, default: int, view: StreamView) -> int:
    """Return the sequence that an offset option selects, which the stream may not contain."""
    value = None if given is None else given.of(view.name)
    if value is None:
        value = default
    if value == EARLIEST:
        return view.first_seq
    return view.end_seq if value == LATEST else value


def first_seq_since(
    time_ns: int, view: StreamView, stored_at: Callable[[int], tuple[int, int] | None]
) -> int:
    """
    Return the sequence of the first message that was stored at a time or later.

    A binary search, which relies on times that rise with the sequences.
    """
    low, high = view.first_seq, view.end_seq
    while low < high:
        middle = (low + high) // 2
        found = stored_at(middle)
        if found is None or found[1] >= time_ns:
            high = middle
        else:
            low = found[0] + 1
    return min(low, view.end_seq)


T = TypeVar("T")


class SourceAccess:
    """
    Access to the server for the planning on the driver; for one thread.

    Each method retries transient errors for ``planningTimeout``, and raises like `JetStream.get_stream`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._opened: tuple[Connection, JetStream] | None = None
        self.selection: StreamSelection = StreamSelection(
            options.stream, options.stream_pattern, options.connection.domain
        )

    @property
    def js(self) -> JetStream:
        """The JetStream context on the connection of this process; a new one if that was closed."""
        return self._open()[1]

    @property
    def connection(self) -> Connection:
        """The connection of this process."""
        return self._open()[0]

    @property
    def link(self) -> tuple[Connection, int] | None:
        """The connection and its number of reconnects, which a restarted server changes; ``None``: disconnected."""
        opened = None if self._opened is None else self._opened[0]
        if opened is None or not opened.is_connected:
            return None
        return opened, opened.stats["reconnects"]

    def _open(self) -> tuple[Connection, JetStream]:
        known = self._opened
        if known is None or known[0].is_closed:
            settings = self.options.connection
            opened = connection(settings)
            known = self._opened = opened, settings.jetstream(opened)
        return known

    def close(self) -> None:
        """Close the connection if it was opened."""
        if self._opened is not None:
            self._opened[0].close()

    def retry_transient(self, call: Callable[[], T], what: str, *, limits_calls: bool = True) -> T:
        """Call a function until it succeeds, see `retry.retry_transient`."""
        deadline = Deadline(self.options.planning_timeout)
        return retry_transient(call, deadline, what, limits_calls=limits_calls)

    def snapshot(self, some: Collection[str] | None = None) -> dict[str, StreamView]:
        """Return the state of the selected streams, see `StreamSelection.snapshot`."""
        return self.retry_transient(
            lambda: self.selection.snapshot(self.js, some), "reading the state of the streams"
        )

    def counts(self, view: StreamView, filters: tuple[str, ...]) -> MessageCounter:
        """Return the message counter of a stream and its filters."""
        matches = partial(self._matches, view, filters) if filters else None
        return MessageCounter(view, bool(filters), partial(self._probe, view, filters), matches)

    def _matches(
        self, view: StreamView, filters: tuple[str, ...], seq: int, count: int
    ) -> list[int] | None:
        """Return the sequences of a few matches from a sequence on; ``None``: they must be counted."""
        if not view.allow_direct or count * view.message_bytes > _MAX_MATCHES_BYTES:
            return None
        return self.retry_transient(
            lambda: matching_seqs(self.js, view.name, seq, filters, count), "counting messages"
        )

    def _probe(
        self, view: StreamView, filters: tuple[str, ...], seqs: Sequence[int]
    ) -> list[tuple[int | None, int]]:
        def count() -> list[tuple[int | None, int]]:
            subjects, direct = filters or (None,), view.allow_direct
            return count_from_each(self.js, view.name, seqs, subjects, direct=direct)

        return self.retry_transient(count, "counting messages")

    def first_match(self, view: StreamView, filters: tuple[str, ...], seq: int) -> int | None:
        """Return the first sequence from one on that matches a filter, if any, according to the leader."""
        found = [self.stored_at(view.name, seq, subject) for subject in filters]
        return min((item[0] for item in found if item is not None), default=None)

    def check_filters(self, views: Mapping[str, StreamView]) -> None:
        """
        Check that a stream has messages on each filter subject, or may get some.

        Raises `InvalidOptionError` if it cannot. With a pattern, such a stream may appear later, so that there is only
        a warning.
        """
        for subject in self.options.subjects:
            if not views or any(view.may_store(subject) for view in views.values()):
                continue
            if all(self.first_match(view, (subject,), 1) is None for view in views.values()):
                names = ", ".join(sorted(view.name for view in views.values()))
                problem = f"no message of {names} can match {subject!r}: the subjects of a stream are other ones"
                if self.options.stream_pattern is None:
                    raise errors.InvalidOptionError("subjects", subject, problem)
                log.warning("subjects=%s: %s", subject, problem)

    def start(self, view: StreamView, default: int) -> int:
        """Return the start that the options select; raise `InvalidOptionError` if the stream ends before it."""
        options = self.options
        since = options.starting_time(view.name)
        if since is not None:
            first = self.first_seq_since(view, time_to_ns(since))
            if first == view.end_seq:
                problem = f"no message of stream {view.name} was stored since then"
                if options.starting_offsets_by_timestamp_strategy == NothingSince.ERROR:
                    raise errors.InvalidOptionError(
                        options.starting_time_option, since.isoformat(), problem
                    )
                log.warning("%s=%s: %s", options.starting_time_option, since.isoformat(), problem)
            return first
        start = resolve_offset(options.starting_offsets, default, view)
        if start > view.end_seq:
            raise errors.InvalidOptionError(
                "startingOffsets",
                start,
                f"is beyond the end of stream {view.name}: its last sequence is {view.end_seq - 1}",
            )
        return start

    def is_earliest(self, view: StreamView, default: int) -> bool:
        """Return whether a read of a stream begins with the first message that the stream still has."""
        given, since = self.options.starting_offsets, self.options.starting_time(view.name)
        if since is not None:
            return view.first_ns >= time_to_ns(since)
        value = None if given is None else given.of(view.name)
        return (default if value is None else value) == EARLIEST

    def end(self, view: StreamView) -> int:
        """Return the end sequence that the options select in a stream, for a batch read."""
        options = self.options
        until = options.ending_time(view.name)
        if until is not None:
            return self.first_seq_since(view, time_to_ns(until))
        return min(view.end_seq, resolve_offset(options.ending_offsets, LATEST, view))

    def first_seq_since(self, view: StreamView, time_ns: int) -> int:
        """Return the sequence of the first message of a stream stored at a time or later."""
        return first_seq_since(time_ns, view, partial(self.stored_at, view.name))

    def stored_at(self, stream: str, seq: int, subject: str = ">") -> tuple[int, int] | None:
        """Return sequence and time of the first message on a subject of a stream from a sequence on."""

        def get() -> tuple[int, int] | None:
            # Ask the leader: a lagging replica would move the end of the read.
            api, request = api_requests(self.js), MsgGetRequest(seq, next_by_subj=subject)
            try:
                message = leader_get(api, stream, request, api.deadline())
            except errors.MessageNotFoundError:
                return None
            return message.seq, time_to_ns(message.time)

        return self.retry_transient(get, "reading a message")
