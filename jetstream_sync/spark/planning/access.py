"""
From where to where a read goes in a stream: earliest, latest, a sequence, or a time.

What planning asks the server, on the connection that the options mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ...errors import InvalidOptionError, MessageNotFoundError
from ...jetstream.connection import Connection
from ...jetstream.context import JetStream
from ...jetstream.stored import leader_get
from ...nanos import time_to_ns
from ..connections import api_requests, connection
from ..options import EARLIEST, LATEST, OffsetSpec, ReadOptions
from ..reading.direct import count_from
from ..retry import retry_transient
from ..streams import StreamSelection, StreamView
from .batches import MessageCounter

__all__ = ["SourceAccess", "first_seq_since", "resolve_offset"]


def resolve_offset(given: OffsetSpec | None, default: int, view: StreamView) -> int:
    """
    Return the sequence that an option means in a stream; it may be one that the stream does not have.

    Args:
        given: the option; ``None``: not given.
        default: `EARLIEST` or `LATEST`, for what is not given.
        view: the stream.

    """
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

    It is searched for between the first and the last, going by times that rise with the sequences.

    Args:
        time_ns: in nanoseconds since 1970.
        view: the stream.
        stored_at: returns the sequence and time of the first message from a sequence on.

    Returns:
        `StreamView.end_seq` when all are older.

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
    The server, as the driver's planning sees it; for one thread.

    Every method goes on trying for ``planningTimeout`` where an error is one that passes, and
    raises what `JetStream.get_stream` does.

    Args:
        options: of the read.

    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._opened: tuple[Connection, JetStream] | None = None
        self.selection = StreamSelection(
            options.stream, options.stream_pattern, options.connection.domain
        )

    @property
    def js(self) -> JetStream:
        """JetStream on the process's connection, which is another one after one that was given up."""
        known = self._opened
        if known is None or known[0].is_closed:
            settings = self.options.connection
            opened = connection(settings)
            known = self._opened = opened, settings.jetstream(opened)
        return known[1]

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._opened is not None:
            self._opened[0].close()

    def retry_transient(self, call: Callable[[], T], what: str) -> T:
        """Call a function until it works, see `patience.patiently`."""
        return retry_transient(call, self.options.planning_timeout, what)

    def snapshot(self) -> dict[str, StreamView]:
        """Ask for all streams once, see `StreamSelection.snapshot`."""
        return self.retry_transient(
            lambda: self.selection.snapshot(self.js), "looking at the streams"
        )

    def counts(self, view: StreamView, filters: tuple[str, ...]) -> MessageCounter:
        """Return what knows how many messages match between sequences of a stream."""
        return MessageCounter(view, bool(filters), partial(self._probe, view.name, filters))

    def _probe(self, stream: str, filters: tuple[str, ...], seq: int) -> tuple[int | None, int]:
        found = [
            self.retry_transient(partial(self._count, stream, subject, seq), "counting messages")
            for subject in filters or (None,)
        ]
        firsts = [first for first, _ in found if first is not None]
        return min(firsts, default=None), sum(count for _, count in found)

    def _count(self, stream: str, subject: str | None, seq: int) -> tuple[int | None, int]:
        return count_from(self.js, stream, seq, subject)

    def start(self, view: StreamView, default: int) -> int:
        """
        Return the first sequence that the options mean for a stream.

        Args:
            view: the stream.
            default: `EARLIEST` or `LATEST`, where they say nothing.

        Raises:
            InvalidOptionError: the stream does not go that far.

        """
        options = self.options
        if options.starting_timestamp is not None:
            return self.first_seq_since(view, time_to_ns(options.starting_timestamp))
        start = resolve_offset(options.starting_offsets, default, view)
        if start > view.end_seq:
            raise InvalidOptionError(
                "startingOffsets",
                start,
                f"stream {view.name} has only got to sequence {view.end_seq - 1}",
            )
        return start

    def end(self, view: StreamView) -> int:
        """Return the sequence at which the options end a batch read of a stream."""
        options = self.options
        if options.ending_timestamp is not None:
            return self.first_seq_since(view, time_to_ns(options.ending_timestamp))
        return min(view.end_seq, resolve_offset(options.ending_offsets, LATEST, view))

    def first_seq_since(self, view: StreamView, time_ns: int) -> int:
        """Return the sequence of the first message of a stream that is not older than a time."""

        def stored_at(seq: int) -> tuple[int, int] | None:
            # The leader is asked: a replica that is behind would move the end of a read.
            api, request = api_requests(self.js), {"seq": seq, "next_by_subj": ">"}
            try:
                message = leader_get(api, view.name, request, api.deadline())
            except MessageNotFoundError:
                return None
            return message.seq, time_to_ns(message.time)

        return first_seq_since(
            time_ns,
            view,
            lambda seq: self.retry_transient(partial(stored_at, seq), "looking for a time"),
        )
