"""The stream reader of the data source, for ``spark.readStream``."""

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

from ... import errors
from ..options import ReadOptions
from ..planning.offsets import Offset
from ..reading.arrow import PartitionReader
from ..retry import one_line_errors
from ..stored import to_json
from .query import QueryPlanner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Stream reader, which reads streams as they grow.

    Spark keeps one instance on the driver for the whole query, in a separate process. It sends copies of
    another instance to the executors.
    """

    def __init__(self, options: ReadOptions | errors.Error, schema: StructType) -> None:
        self._options = options
        self._reader = (
            None if isinstance(options, errors.Error) else PartitionReader(options, schema)
        )
        self._query: QueryPlanner | None = None
        # The offset that was parsed last: Spark passes the same one at each trigger.
        self._parsed: tuple[dict[str, Any], Offset] | None = None

    # --- on the driver --------------------------------------------------------------------------

    @property
    def _planned(self) -> QueryPlanner:
        if self._query is None:
            if isinstance(self._options, errors.Error):
                raise self._options
            _stop_on_sigterm()
            self._query = QueryPlanner(self._options)
        return self._query

    def _offset(self, value: dict[str, Any]) -> Offset:
        if self._parsed is None or self._parsed[0] != value:
            self._parsed = value, Offset.from_json(value)
        return self._parsed[1]

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """Return the offset where a new query starts; see `QueryPlanner.initial`."""
        return self._planned.initial().to_json()

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Fix the current end of the streams as the end of the query."""
        self._planned.prepare_available_now()

    @one_line_errors()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """
        Return the read limit of the options.

        Spark supports a single limit, so this is the first one that is set. `latestOffset` applies all of
        them unless Spark asks for all available messages.
        """
        options = self._planned.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @one_line_errors()
    def latestOffset(  # noqa: N802 - PySpark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end offset of the next batch; see `QueryPlanner.latest`."""
        assert start is not None  # since PySpark 4.2
        offset = self._offset(start)
        end = self._planned.latest(offset, unlimited=isinstance(limit, ReadAllAvailable))
        return start if end is offset else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - PySpark's name
        """Return the state of the streams and the backlog; see `QueryPlanner.progress`."""
        report = self._planned.progress
        return None if report is None else to_json(report)

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each task of a batch; see `QueryPlanner.partitions`."""
        planned = self._planned.partitions(self._offset(start), Offset.from_json(end))
        return [InputPartition(item) for item in planned]

    @one_line_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Release the messages of committed batches; see `QueryPlanner.commit`."""
        self._planned.commit(self._offset(end))

    def stop(self) -> None:
        """Close the connection of this process."""
        if self._query is not None:
            self._query.close()

    # --- on the executors -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; raises like `read_chunks`."""
        assert self._reader is not None
        return self._reader.read(partition)

    def __repr__(self) -> str:
        return f"JetStreamStreamReader({self._reader})"


def _stop_on_sigterm() -> None:
    """
    Exit this process in an orderly way when Spark ends the query.

    Spark sends SIGTERM, and sends it twice. Without a handler the first one kills Python, and `stop` is not
    called.
    """
    # Only the main thread may install a handler; Spark calls on the main thread.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)
