"""Which rows of a partition an earlier attempt has stored, read from the headers of the stream itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...headers import MSG_ID
from ...jetstream.connection import Connection
from ...jetstream.context import JetStream
from ...nanos import time_to_ns
from ..options import WriteOptions
from ..reading.one_range import ReadPlan, read_chunks
from ..reading.ranges import SequenceRange

__all__ = ["StoredIds"]

_ID: Final = b"\r\n%b: " % MSG_ID.encode()


class StoredIds:
    """
    The message ids that are in a part of a stream.

    Args:
        connection: where to read.
        js: JetStream on it.
        options: of the sink.
        prefix: what the ids begin with; empty: those of others are of interest, too.

    """

    def __init__(
        self, connection: Connection, js: JetStream, options: WriteOptions, prefix: bytes
    ) -> None:
        self._connection = connection
        self._js = js
        self._options = options
        self._prefix = prefix
        #: The ids that were read.
        self.ids: set[bytes] = set()

    def read(self, start_seq: int, end_seq: int | None) -> None:
        """
        Read them.

        Args:
            start_seq: where to begin.
            end_seq: the first sequence that is not read; ``None``: all there are now.

        Raises:
            RangeLostError: messages have left the stream.
            Error: it can not be read.

        """
        options, settings = self._options, self._options.connection
        info = self._js.get_stream(options.stream).cached_info
        if end_seq is None:
            end_seq = info.state.last_seq + 1
        part = SequenceRange(
            options.stream, start_seq, max(start_seq, end_seq), created_ns=time_to_ns(info.created)
        )
        plan = ReadPlan(
            domain=settings.domain, api_prefix=settings.api_prefix, timeout=settings.timeout
        )
        prefix = self._prefix
        for chunk in read_chunks(self._connection, part, frozenset({"headers"}), plan):
            for block in chunk.headers:
                start = block.find(_ID)
                if start >= 0:
                    found = block[start + len(_ID) : block.index(b"\r\n", start + 2)]
                    if found.startswith(prefix):
                        self.ids.add(found)

    def missing(self, ids: Sequence[bytes]) -> Sequence[int]:
        """Return the places of the ids that are not among them."""
        if self.ids.isdisjoint(ids):
            return range(len(ids))
        return [place for place, each in enumerate(ids) if each not in self.ids]
