"""The progress of streaming queries: what the driver reports to Spark, and records of what Spark reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import errors
from ..codec import loads
from .stored import INTEGER, NUMBER, by_name, from_json, stored

log: logging.Logger = logging.getLogger("jetstream_sync.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The state of a stream and the backlog of a query, as Spark shows them in ``sources[].latestOffset``."""

    bytes: int = stored("bytes", INTEGER)
    """The size of all messages, in bytes."""
    first_seq: int = stored("first", INTEGER)
    """The sequence of the first message."""
    lag: float = stored("lag_seconds", NUMBER)
    """The age of the oldest pending message, in seconds; 0 if there is none."""
    last_seq: int = stored("last", INTEGER)
    """The sequence of the last message."""
    messages: int = stored("messages", INTEGER)
    """The number of messages."""
    pending: int = stored("pending", INTEGER)
    """The number of messages that are in no batch yet."""
    pending_bytes: int = stored("pending_bytes", INTEGER)
    """The approximate size of these messages."""
    read_seq: int = stored("read", INTEGER)
    """The last sequence of the last batch."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The reports of all streams of a source, by `stream_key`."""

    streams: Mapping[str, StreamReport] = stored("streams", by_name(StreamReport))


@dataclass(frozen=True, kw_only=True)
class StreamProgress:
    """How far a query has read a stream."""

    stream: str
    """The name of the stream."""
    read_seq: int
    """The last sequence of the last batch."""
    last_seq: int
    """The last sequence of the stream."""
    pending: int
    """The number of messages that are in no batch yet."""
    pending_bytes: int
    """The approximate size of these messages."""
    lag: float
    """The age of the oldest of these messages, in seconds; 0 if there is none."""


@dataclass(frozen=True, kw_only=True)
class QueryProgress:
    """The progress of a query after a batch."""

    query_id: str
    """The id in the checkpoint."""
    name: str | None
    """The query name."""
    batch: int
    """The number of the batch."""
    rows_read: int
    """The rows of the batch."""
    rows_written: int | None
    """The rows that the sink has written; ``None``: it does not report them."""
    streams: tuple[StreamProgress, ...]
    """The streams of all ``jetstream`` sources of the query."""


def query_progress(progress: Any) -> QueryProgress:
    """Return the progress of a query, given a ``StreamingQueryProgress`` of PySpark."""
    streams: list[StreamProgress] = []
    for source in progress.sources:
        streams += [
            StreamProgress(
                stream=key,
                read_seq=state.read_seq,
                last_seq=state.last_seq,
                pending=state.pending,
                pending_bytes=state.pending_bytes,
                lag=state.lag,
            )
            for key, state in _reports(source.latestOffset).items()
        ]
    written = progress.sink.numOutputRows
    return QueryProgress(
        query_id=str(progress.id),
        name=progress.name,
        batch=progress.batchId,
        rows_read=progress.numInputRows,
        rows_written=None if written is None or written < 0 else written,
        streams=tuple(streams),
    )


def _reports(text: str | None) -> Mapping[str, StreamReport]:
    """Return the reports that Spark has as text; none if it has no text, or that of a source of another kind."""
    try:
        return from_json(SourceReport, loads(text or "")).streams
    except (ValueError, errors.InvalidResponseError):
        return {}


def log_progress(progress: QueryProgress) -> None:
    """Log the progress of a query, one line for each stream."""
    for stream in progress.streams:
        log.info(
            "query %s, batch %d: stream %s read up to %d of %d; %d messages, %d bytes pending for %.1f s",
            progress.name or progress.query_id,
            progress.batch,
            stream.stream,
            stream.read_seq,
            stream.last_seq,
            stream.pending,
            stream.pending_bytes,
            stream.lag,
        )
