"""
Register the data source in a Spark session, with workers that can run it.

Facts about PySpark 4.3 that this relies on, each observed in a virtual environment that is not activated:

1. The workers run the first ``python3`` on ``PATH``.
2. The setting ``spark.pyspark.python`` of a session builder has no effect.
3. The variable ``PYSPARK_PYTHON`` takes effect if it is set before the session starts.
4. ``SparkContext.pythonExec`` takes effect for every function and data source that is passed to Spark after
   the change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import errors
from ..net.clock import Deadline
from ..version import needs_extra
from .options import EXPOSED_OPTIONS

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_REDACTION_CONF: Final = "spark.sql.redaction.options.regex"
#: Whether the number of shuffle partitions of a stateless streaming query depends on the number of cores.
_ADAPTIVE_CONF: Final = "spark.sql.adaptive.streaming.stateless.enabled"
#: The options that Spark must redact besides those that it redacts by default.
_REDACTED_OPTIONS: Final = f"(?i)^({'|'.join(EXPOSED_OPTIONS)})$"
#: The part of the errors of Spark that says that a Python process did not start within 10 s.
_START_FAILURES: Final = (
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
)
#: The last line of the log after such an error.
START_FAILURE_HELP: Final = (
    "Python worker failed to connect back: this machine was too busy to start a Python process within the 10 s that"
    " Spark waits, so nothing was read or written; start the query again, with start_query, when it is less busy"
)
#: How the status of a streaming query begins before its source is initialized.
_INITIALIZING: Final = "Initializing"
_STATUS_INTERVAL_S: Final = 0.1
#: Maximum time to wait for that, in seconds; such a process fails to start within 10.
_INITIALIZE_TIMEOUT_S: Final = 60.0

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

T = TypeVar("T")


def register(spark: SparkSession) -> None:
    """
    Register ``format("jetstream")`` in a session, and configure the session for it.

    *Interpreter.* If the workers run on this machine (the master is ``local``) and ``PYSPARK_PYTHON`` is not
    set, they use the interpreter of this process from now on. Otherwise workers started from a virtual
    environment that is not activated would run another interpreter without this package.

    *Secrets.* Spark writes the options of a table into the plan of a view of it, and so into its event log.
    It redacts options with secret, password or token in their name. From now on it also redacts ``creds``,
    ``nkeySeed`` and ``servers``.

    *Replays.* A repeated batch must have the same rows in the same partitions, or the sink cannot recognize
    them. Since Spark 4.1 the number of shuffle partitions of a stateless streaming query depends on the
    number of cores. From now on it is fixed (``spark.sql.adaptive.streaming.stateless.enabled`` is set to
    ``false``), unless that setting was set before.

    *Threads.* Spark looks up the data source of ``df.write`` in the active session of the thread. So the
    session becomes the active one of the calling thread: call this function in each thread that writes.

    *Shipped packages.* A package that was shipped with ``--py-files`` or ``addPyFile`` is also found by the
    process that plans a streaming query.

    Where the package is installed, Spark also finds the data source without this call, see
    ``pyspark_jetstream``. It does not if the package was shipped with ``--py-files`` or ``addPyFile``, or if
    the workers run another interpreter.

    Args:
        spark: the session; another session, as of ``newSession()``, needs its own call. On a cluster the
            interpreter of the workers is not changed: it is the value of ``PYSPARK_PYTHON`` when the driver
            started.

    Raises:
        ImportError: PySpark is older than 4.0, or PyArrow is missing.

    """
    try:
        with needs_extra("spark"):
            from .source import RedactedDataSource  # noqa: PLC0415 - it imports PySpark and PyArrow
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise
        raise ImportError(
            f"data sources in Python need PySpark 4.0 or newer, and this is {spark.version}: use the functions"
            " for tasks, publish_partition, read_range and take_work of jetstream_sync.spark"
        ) from None

    # A Spark Connect session has no context: its workers are configured on the Spark server.
    context = getattr(spark, "sparkContext", None)
    if context is None:
        _register_source(spark, RedactedDataSource)
    else:
        # spark-submit copies its setting spark.pyspark.python into this variable.
        if context.master.startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
            context.pythonExec = sys.executable
        sessions: Any = context._jvm.SparkSession  # noqa: SLF001 - PySpark has no public way
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
        _link_shipped_files()
        _silence_replacement(context)
        _register_source(spark, RedactedDataSource)
    if spark.conf.get(_ADAPTIVE_CONF, None) is None:
        spark.conf.set(_ADAPTIVE_CONF, "false")
    hidden = spark.conf.get(_REDACTION_CONF) or ""
    if _REDACTED_OPTIONS not in hidden:
        spark.conf.set(
            _REDACTION_CONF, f"{hidden}|{_REDACTED_OPTIONS}" if hidden else _REDACTED_OPTIONS
        )


def _register_source(spark: SparkSession, source: type[Any]) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - this module can be imported without PySpark

    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        # PySpark 4.0 keeps the same data source that it has found itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _link_shipped_files() -> None:
    """
    Let the process that plans a streaming query find the files of ``--py-files`` and ``addPyFile``.

    PySpark 4.3 looks for them in a folder of this name, into which it puts none.
    """
    from pyspark import SparkFiles  # noqa: PLC0415 - this module can be imported without PySpark

    with contextlib.suppress(FileExistsError):
        Path(SparkFiles.getRootDirectory(), "streaming_job").symlink_to(".")


def _silence_replacement(context: SparkContext) -> None:
    """
    Suppress the warning that this data source replaces the one that Spark has found itself.

    It is the same one, except that it knows that this session redacts its secrets. Spark repeats the warning
    for each streaming query.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - there is no public access to the log levels of Spark
    configurator = getattr(jvm, "org.apache.logging.log4j.core.config.Configurator")
    with contextlib.suppress(TypeError):  # another logging library
        configurator.setLevel(
            "org.apache.spark.sql.execution.datasources.DataSourceManager",
            jvm.org.apache.logging.log4j.Level.ERROR,
        )


def start_query(start: Callable[[], T], *, attempts: int = 5) -> T:
    """
    Start a streaming query, again if Spark could not start a Python process for it in time.

    Spark waits 10 seconds for such a process. On a busy machine that is too short, and the query ends with
    ``Python worker failed to connect back``. No other error is repeated. When this function returns, the
    source of the query is initialized, or was not within a minute.

    Args:
        start: starts the query and returns it, or runs a batch; called again after that error.
        attempts: the number of calls.

    Returns:
        The result of ``start``. If all attempts fail so, the log says what to do in its last line.

    Raises:
        InvalidArgumentError: ``attempts`` is less than 1.
        Exception: the error of ``start``. The error of a query is raised by its own methods.

    """
    if attempts < 1:
        raise errors.InvalidArgumentError(f"attempts must be at least 1, not {attempts}")
    attempt = 1
    while True:
        try:
            started = start()
        except Exception as error:
            if not is_start_failure(error):
                raise
            if attempt == attempts:
                log.error(START_FAILURE_HELP)  # noqa: TRY400 - the caller gets the error
                raise
        else:
            if not is_start_failure(_initial_error(started)):
                return started
            if attempt == attempts:
                log.error(START_FAILURE_HELP)
                return started
        log.warning("Spark could not start a Python process in time (attempt %d)", attempt)
        attempt += 1


def _initial_error(query: Any) -> Exception | None:
    """Wait until the source of a query is initialized, and return the error that ended the query."""
    if not hasattr(query, "isActive"):
        return None
    deadline = Deadline(_INITIALIZE_TIMEOUT_S)
    while query.isActive and query.status["message"].startswith(_INITIALIZING):
        if deadline.expired():
            break
        sleep(_STATUS_INTERVAL_S)
    error: Exception | None = query.exception()
    return error


def is_start_failure(error: object) -> bool:
    """Return whether an error says that Spark could not start a Python process in time."""
    text = str(error)
    return any(reason in text for reason in _START_FAILURES)
