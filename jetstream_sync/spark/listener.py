"""A listener for streaming queries: their progress for a callback, the log or Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from .progress import QueryProgress, log_progress, query_progress

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: The metrics of a stream, with their help texts; each is a field of `StreamProgress`.
_METRICS: Final = {
    "pending": "Messages that are in no batch yet",
    "pending_bytes": "Approximate size of these messages",
    "lag": "Age of the oldest of these messages in seconds",
}


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
        self._callback = callback or log_progress
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
