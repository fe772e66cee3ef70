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

from ..options import check_returned
from .progress import QueryProgress, log, log_progress, query_progress
from .session import START_FAILURE_HELP, is_start_failure

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: The metrics of a stream, with their help texts; each is a field of `StreamProgress`.
_METRICS: Final = {
    "pending": "Messages that are in no batch yet",
    "pending_bytes": "Approximate size of these messages",
    "lag": "Age of the oldest of these messages in seconds",
    "read_seq": "Last sequence of the last batch",
    "last_seq": "Last sequence of the stream",
}
#: The counters of a query, with their help texts; each is a field of `QueryProgress`.
_COUNTERS: Final = {
    "rows_read": "Rows of all batches",
    "rows_written": "Rows that the sink has written",
}


class ProgressListener(StreamingQueryListener):
    """
    Listener for the progress of the queries that read with ``format("jetstream")``.

    ``spark.streams.addListener(ProgressListener())`` starts it. Spark calls it on a thread of its own, after
    each batch and about every ten seconds while a query waits for data.

    Args:
        callback: called with each progress; ``None``: it is logged at level INFO.
        registry: a Prometheus registry, which gets the gauges ``jetstream_spark_pending``,
            ``jetstream_spark_pending_bytes``, ``jetstream_spark_lag_seconds``, ``jetstream_spark_read_seq`` and
            ``jetstream_spark_last_seq``, with the labels ``query`` and ``stream``, and the counters
            ``jetstream_spark_rows_read_total`` and ``jetstream_spark_rows_written_total`` of each ``query``;
            ``None``: no metrics.

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
        self._counters: dict[str, Any] = {}
        if registry is not None:
            from prometheus_client import Counter, Gauge  # noqa: PLC0415 - an optional dependency

            for name, text in _METRICS.items():
                full_name = f"jetstream_spark_{name}" + ("_seconds" if name == "lag" else "")
                self._gauges[name] = Gauge(full_name, text, ["query", "stream"], registry=registry)
            for name, text in _COUNTERS.items():
                full_name = f"jetstream_spark_{name}"
                self._counters[name] = Counter(full_name, text, ["query"], registry=registry)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Report the progress of a batch."""
        progress = query_progress(event.progress)
        if not progress.streams:
            return
        query = progress.name or progress.query_id
        for stream in progress.streams:
            for name, gauge in self._gauges.items():
                gauge.labels(query, stream.stream).set(getattr(stream, name))
        for name, counter in self._counters.items():
            counter.labels(query).inc(getattr(progress, name) or 0)
        check_returned(self._callback(progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - PySpark's name
        """Do nothing: the first batch reports the progress."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - PySpark's name
        """Do nothing: an idle query has reported its progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - PySpark's name
        """Log what to do if Spark could not start a Python process; Spark reports other ends itself."""
        if is_start_failure(event.exception):
            log.error(START_FAILURE_HELP)
