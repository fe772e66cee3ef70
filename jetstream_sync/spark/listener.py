"""Progress of streaming queries, typed, for a callback, the log or Prometheus."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: The metrics of a stream, with their help texts; each is a field of `StreamProgress`.
_METRICS: Final = {
    "pending": "Messages that are in no batch yet",
    "pending_bytes": "Approximate size of these messages",
    "lag": "Age of the oldest of these messages in seconds",
}


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


class ProgressListener(StreamingQueryListener):
    """
    Listener for the progress of the queries that read with ``format("jetstream")``.

    ``spark.streams.addListener(ProgressListener())`` starts it. Spark calls it on a thread of its own, after
    each batch and about every ten seconds while a query waits for data.

    Args:
        callback: called with each progress; ``None``: it is logged at level INFO.
        registry: a Prometheus registry, which gets the gauges ``jetstream_spark_pending``,
            ``jetstream_spark_pending_bytes`` and ``jetstream_spark_lag_seconds``, with the labels ``query``
            and ``stream``; ``None``: no metrics.

    Raises:
        ImportError: there is a registry, and ``prometheus_client`` is missing.

    """

    def __init__(
        self,
        callback: Callable[[QueryProgress], object] | None = None,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._callback = callback or _log
        self._gauges: dict[str, Any] = {}
        if registry is not None:
            from prometheus_client import Gauge  # noqa: PLC0415 - an optional dependency

            for name, text in _METRICS.items():
                full_name = f"jetstream_spark_{name}" + ("_seconds" if name == "lag" else "")
                self._gauges[name] = Gauge(full_name, text, ["query", "stream"], registry=registry)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Report the progress of a batch."""
        progress = query_progress(event.progress)
        if not progress.streams:
            return
        for each in progress.streams:
            for name, gauge in self._gauges.items():
                labels = progress.name or progress.query_id, each.stream
                gauge.labels(*labels).set(getattr(each, name))
        self._callback(progress)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - PySpark's name
        """Do nothing: the first batch reports the progress."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - PySpark's name
        """Do nothing: an idle query has reported its progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - PySpark's name
        """Do nothing: Spark reports the end of a query."""


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


def _log(progress: QueryProgress) -> None:
    for each in progress.streams:
        log.info(
            "query %s, batch %d: stream %s read up to %d of %d; %d messages, %d bytes pending for %.1f s",
            progress.name or progress.query_id,
            progress.batch,
            each.stream,
            each.read_seq,
            each.last_seq,
            each.pending,
            each.pending_bytes,
            each.lag,
        )
