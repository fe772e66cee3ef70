"""Records of the progress of streaming queries, made from what Spark reports."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

log: logging.Logger = logging.getLogger("jetstream_sync.spark")


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
        latest, end = _json(source.latestOffset), _json(source.endOffset)
        for key, state in latest.get("streams", {}).items():
            if "pending_bytes" in state:
                position = end.get("streams", {}).get(key, {})
                streams.append(
                    StreamProgress(
                        stream=key,
                        read_seq=position.get("next", 1) - 1,
                        last_seq=state["last"],
                        pending=state["pending"],
                        pending_bytes=state["pending_bytes"],
                        lag=state["lag_seconds"],
                    )
                )
    written = progress.sink.numOutputRows
    return QueryProgress(
        query_id=str(progress.id),
        name=progress.name,
        batch=progress.batchId,
        rows_read=progress.numInputRows,
        rows_written=None if written is None or written < 0 else written,
        streams=tuple(streams),
    )


def _json(text: str | None) -> dict[str, Any]:
    """Parse the offset of a source, which may be of another kind."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


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
