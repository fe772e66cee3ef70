"""Reading with ``spark.readStream``: the stream reader of the data source."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ...errors import Error
from ..options import ReadOptions
from ..reading.arrow import PartitionReader
from .query import StreamingQuery

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["JetStreamStreamReader"]


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Reads streams as they grow.

    Spark keeps one on the driver for a whole query, in a process of its own, and sends copies of
    another one to the executors to read with.

    Args:
        options: of the read.
        schema: the columns that are wanted.

    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = PartitionReader(options, schema)
        self._query: StreamingQuery | None = None

    # --- on the driver --------------------------------------------------------------------------

    @property
    def _planned(self) -> StreamingQuery:
        if self._query is None:
            _stop_on_sigterm()
            self._query = StreamingQuery(self._options)
        return self._query

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """Return where a new query starts; see `StreamingQuery.initial`."""
        return self._planned.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Take what there is now as all that there will be."""
        self._planned.prepare_available_now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """
        Return the limit that the options set.

        Spark has room for one only, so this is the first of those that are set; `latestOffset` goes
        by all of them, unless Spark asks it for everything.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - PySpark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """
        Return where the next batch ends; see `StreamingQuery.latest`.

        Raises:
            Error: this Spark does not say where the batch starts, as it does since 4.2.

        """
        if start is None:
            raise Error("reading streams needs PySpark 4.2 or newer")
        return self._planned.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - PySpark's name
        """Return how far the streams are, and how much waits; see `ProgressReport.report`."""
        return self._planned.progress.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each task of a batch; see `StreamingQuery.partitions`."""
        return [InputPartition(each) for each in self._planned.partitions(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what a committed batch has carried; see `StreamingQuery.commit`."""
        self._planned.commit(end)

    def stop(self) -> None:
        """Close the connection of the query's process."""
        if self._query is not None:
            self._query.close()

    # --- on the executors -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; raises as `read_chunks`."""
        return self._reader.read(partition)

    def __repr__(self) -> str:
        return f"JetStreamStreamReader({self._reader})"


def _stop_on_sigterm() -> None:
    """
    Have this process end in an orderly way when Spark ends the query.

    Spark sends SIGTERM, and twice. Without a handler Python dies of the first, and `stop` is not called.
    """
    # Only the main thread may do this; Spark asks on that one.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)
