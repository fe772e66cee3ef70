"""
NATS JetStream as a data source and sink of Apache Spark, in pure Python.

Importing this package needs neither PySpark nor PyArrow: the parts that do are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..version import needs_extra
from .connections import ConnectionSettings, connection
from .options import ReadOptions, WriteOptions
from .progress import QueryProgress, StreamProgress
from .reading.ranges import (
    DirectGetRefusedError,
    RangeError,
    RangeLostError,
    RangeStalledError,
    SequenceRange,
    StreamRecreatedError,
)
from .schema import SchemaError
from .session import register, start_query
from .sink_errors import (
    CheckpointRewoundError,
    RowError,
    SinkError,
    TargetRewoundError,
)
from .task_helpers import plan_ranges, publish_partition, read_range, read_range_batches
from .work_queue import WORK_DDL, WorkBatch, acknowledge, take_work
from .writing.write_plan import Written

if TYPE_CHECKING:
    from .listener import ProgressListener
    from .source import JetStreamDataSource

__all__ = [
    "WORK_DDL",
    "CheckpointRewoundError",
    "ConnectionSettings",
    "DirectGetRefusedError",
    "JetStreamDataSource",
    "ProgressListener",
    "QueryProgress",
    "RangeError",
    "RangeLostError",
    "RangeStalledError",
    "ReadOptions",
    "RowError",
    "SchemaError",
    "SequenceRange",
    "SinkError",
    "StreamProgress",
    "StreamRecreatedError",
    "TargetRewoundError",
    "WorkBatch",
    "WriteOptions",
    "Written",
    "acknowledge",
    "connection",
    "plan_ranges",
    "publish_partition",
    "read_range",
    "read_range_batches",
    "register",
    "start_query",
    "take_work",
]

# Names that need PySpark or PyArrow, with their modules.
_LATE: Final = {
    "JetStreamDataSource": "source",
    "ProgressListener": "listener",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("spark"):
        return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
