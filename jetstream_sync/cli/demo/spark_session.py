"""
A Spark for one run: its JVM, its workers and its files are gone when the run is over.

PySpark starts the JVM and leaves its end to the process's own. Here it ends before the folder is
removed that it writes to, also after Ctrl-C in the middle of a call into it: its standard input is
closed, which is what it takes for the end of its driver.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...net.clock import Deadline
from ...spark.java import find_java
from ..status import CommandError, ExitStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_spark", "failure_of", "running_spark"]

#: The first one whose data sources in Python know limits of a micro-batch.
_OLDEST: Final = (4, 2)
_STOP_TIMEOUT: Final = 5.0
_END_TIMEOUT: Final = 20.0
_TICK: Final = 0.02
_LOG4J: Final = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def check_spark() -> None:
    """
    See that there is a Spark to run.

    Raises:
        CommandError: PySpark or PyArrow is missing, or is too old.
        JavaNotFoundError: there is no Java for it.

    """
    install = "pip install 'jetstream-sync[spark]'"
    for package in ("pyspark", "pyarrow"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise CommandError(
                f"--spark needs {package}, which is not installed: {install}", ExitStatus.FAILED
            ) from None
        if package == "pyspark" and _numbers(version) < _OLDEST:
            raise CommandError(
                f"--spark needs pyspark {'.'.join(map(str, _OLDEST))} or newer, "
                f"and this is {version}: {install.replace('pip install', 'pip install --upgrade')}",
                ExitStatus.FAILED,
            )
    find_java()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


@contextlib.contextmanager
def running_spark(cores: int) -> Iterator[tuple[SparkSession, Path]]:
    """
    Start Spark for a ``with`` block, on this machine.

    Args:
        cores: tasks that run at a time.

    Yields:
        The session, with the data source registered, and a folder that is removed at the end.

    """
    with contextlib.ExitStack() as removing:
        with _signals_later():
            folder = Path(
                removing.enter_context(
                    tempfile.TemporaryDirectory(prefix="jsm-spark-", ignore_cleanup_errors=True)
                )
            )
        (folder / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        with (
            (folder / "log.txt").open("wb") as log,
            warnings.catch_warnings(),
            contextlib.ExitStack() as ending,
        ):
            # About versions of pandas, which is not used here.
            warnings.simplefilter("ignore", FutureWarning)
            ending.enter_context(_quiet_py4j())
            yield _started(cores, folder, log, ending), folder


def _started(cores: int, folder: Path, log: Any, ending: contextlib.ExitStack) -> SparkSession:
    """Start the JVM, whose end is left to ``ending``, and a session in it."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from ...spark.session import register  # noqa: PLC0415

    # SparkConf without defaults: with them it would start a JVM of its own.
    conf = SparkConf(loadDefaults=False).setAll(_settings(cores, folder))
    with _variables_of_workers(), _signals_later():
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf, popen_kwargs={"stdout": log, "stderr": log}
        )
        ending.callback(_end, gateway.proc)
    at_ctrl_c = signal.getsignal(signal.SIGINT)
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler calls into the JVM, perhaps in the middle of a call.
        signal.signal(signal.SIGINT, at_ctrl_c)
    ending.callback(_stop, spark)
    spark.sparkContext.pythonExec = sys.executable
    register(spark)
    return spark


def _settings(cores: int, folder: Path) -> list[tuple[str, str]]:
    java = (
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
        f" -Djava.io.tmpdir={folder} -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )
    return [
        ("spark.app.name", "jsm demo"),
        ("spark.master", f"local[{cores}]"),
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.driver.memory", "1g"),
        ("spark.driver.extraJavaOptions", java),
        ("spark.local.dir", str(folder)),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", str(cores)),
        # So that the numbers of every batch are there at the end.
        ("spark.sql.streaming.numRecentProgressUpdates", "1000000"),
        ("spark.sql.warehouse.dir", str(folder / "warehouse")),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
    ]


@contextlib.contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Leave out the tracebacks that py4j logs, there and at the root, when a call is interrupted."""

    def not_py4j(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    py4j = logging.getLogger("py4j")
    logging.root.addFilter(not_py4j)
    py4j.propagate = False
    try:
        yield
    finally:
        py4j.propagate = True
        logging.root.removeFilter(not_py4j)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM come at the end of the block: what it makes is not held by anybody yet."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(signal.Signals(came[0]))


@contextlib.contextmanager
def _variables_of_workers() -> Iterator[None]:
    """
    Set what the JVM hands to its workers: this interpreter, and a way to this package.

    PySpark gives the JVM the variables of this process, and takes none as arguments.
    """
    here = str(Path(__file__).parents[3])
    paths = [here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stop(spark: SparkSession) -> None:
    """Stop the queries, and what PySpark has in this process, which would complain without its JVM."""
    accumulators = getattr(spark.sparkContext, "_accumulatorServer", None)
    if accumulators is not None:
        accumulators.shutdown()
    # A thread has a way of its own into the JVM; a call of this one may have been interrupted.
    stopping = ThreadPoolExecutor(1)
    try:
        stopping.submit(_stop_queries, spark).exception(_STOP_TIMEOUT)
    except FutureTimeoutError:
        pass  # the JVM is ended next, and with it the call
    finally:
        stopping.shutdown(wait=False)


def _stop_queries(spark: SparkSession) -> None:
    # Each has a process of its own, which may be waiting for a server, and ends with its query only.
    for query in spark.streams.active:
        query.stop()
    spark.stop()


def _end(jvm: Any) -> None:
    """End the JVM, and its workers with it."""
    with contextlib.suppress(BrokenPipeError):
        jvm.stdin.close()
    end = Deadline(_END_TIMEOUT)
    while jvm.poll() is None:
        if end.expired():
            jvm.kill()
            jvm.wait()
        time.sleep(_TICK)


def failure_of(text: str) -> str:
    """
    Return the line of one of Spark's errors that says what happened.

    Args:
        text: the error's; a chain of tracebacks of Java and Python.

    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last error in Python is the first cause: ours, or that of a worker.
    causes = [line for line in lines if re.match(r"[\w.]+(?:Error|Exception|Interrupt): ", line)]
    return next(iter(causes[-1:] or lines[:1]), "no reason was given")
