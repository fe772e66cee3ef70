"""Fixtures for Spark: a shared session, drivers as separate processes, checkpoints on disk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_apps import Program
from fix_threads import wait_until

import jetstream_sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "NO_JAVA",
    "Driver",
    "SparkHome",
    "batches",
    "command_of",
    "forget_commit",
    "need_java",
    "offsets_of",
    "processes_of_session",
    "session",
    "spark_environment",
]

#: Set this variable to 1 to leave out the tests that need Java where it is missing, instead of failing.
NO_JAVA = "JETSTREAM_SYNC_NO_JAVA"

_TESTS = Path(__file__).parent
_PACKAGE = Path(jetstream_sync.__file__).parents[1]
_STAT_SESSION = 3


def _asked_for(config: pytest.Config) -> bool:
    return "spark" in (config.getoption("-m") or "")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run tests of Spark without Java, unless `NO_JAVA` leaves out those that need it."""
    missing = _missing_java()
    if _asked_for(config) and missing and os.environ.get(NO_JAVA) != "1":
        raise pytest.UsageError(
            f"{missing}; or set {NO_JAVA}=1 to leave out the tests that need it"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report in one line how many tests were left out because Java is missing."""
    missing = _missing_java()
    skipped = [
        report
        for report in terminalreporter.getreports("skipped")
        if missing and missing in report.longrepr[-1]
    ]
    if skipped:
        terminalreporter.write_line(f"left out: {len(skipped)} tests. {missing}")


def _missing_java() -> str:
    """Return what to do if Spark would find no Java, or an empty string."""
    home = os.environ.get("JAVA_HOME")
    if os.access(Path(home, "bin", "java"), os.X_OK) if home else shutil.which("java"):
        return ""
    return (
        "Spark needs Java 17 or newer: install it (apt install default-jre-headless, dnf install "
        "java-headless or brew install openjdk@21), or set JAVA_HOME to its folder"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import tests that import PySpark, unless they are selected."""
    return True if collection_path == _TESTS / "spark" and not _asked_for(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Deselect tests marked ``spark``, unless ``-m`` names that marker.

    If it does, no test is skipped: without PySpark or Java the tests fail.
    """
    marked = [item for item in items if item.get_closest_marker("spark")]
    if not marked:
        return
    if not _asked_for(config):
        config.hook.pytest_deselected(items=marked)
        left_out = set(marked)
        items[:] = [item for item in items if item not in left_out]
        return
    with contextlib.suppress(ModuleNotFoundError):
        from pyspark.cloudpickle import register_pickle_by_value

        # The workers cannot import a test file, so its functions and classes are pickled by value.
        for module in {item.module for item in marked if isinstance(item, pytest.Function)}:
            register_pickle_by_value(module)


def need_java() -> None:
    """Skip the test if Spark would find no Java."""
    if missing := _missing_java():
        pytest.skip(missing)


def spark_environment() -> dict[str, str]:
    """
    Return the environment variables of a Spark driver, which its workers inherit.

    The workers use this interpreter, and can import the package under test and the test helpers. They do
    not inherit the warning filters of pytest. The JVMs, none of which lives for long, compile in the cheapest
    way.
    """
    environment = dict(os.environ)
    for name in ("PYTHONWARNINGS", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        environment.pop(name, None)
    paths = [str(_TESTS), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    if not any(part in {"site-packages", "dist-packages"} for part in _PACKAGE.parts):
        # As an installation has them.
        paths[:0] = [str(_PACKAGE), str(_PACKAGE / "jetstream_sync" / "top_level")]
    environment.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        PYTHONPATH=os.pathsep.join(dict.fromkeys(filter(None, paths))),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    return environment


_LOG4J = """
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


class SparkHome:
    """
    The files and settings of a Spark session.

    Args:
        folder: an empty folder for the log, the warehouse and temporary files.
        level: the log level of the JVM, ``warn`` or ``info``.

    """

    def __init__(self, folder: Path, level: str = "warn") -> None:
        self.folder = folder
        #: The log of the JVM.
        self.log = folder / "spark.log"
        #: What the JVM of the shared session and its Python processes print.
        self.output = folder / "output.txt"
        #: The event logs, if ``spark.eventLog.enabled`` is set.
        self.events = folder / "events"
        self.events.mkdir()
        self._log4j = folder / "log4j2.properties"
        self._log4j.write_text(_LOG4J.format(level=level, file=self.log), encoding="utf-8")

    @property
    def settings(self) -> dict[str, str]:
        """Settings for a small and quiet Spark: no web UI, and no files outside the folder."""
        java = (
            f"-Dlog4j2.configurationFile={self._log4j.as_uri()} -Dderby.system.home={self.folder}"
        )
        return {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": java,
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }


def session(home: SparkHome, master: str = "local[2]", **settings: str) -> SparkSession:
    """
    Start Spark in this process, with the data source registered.

    Args:
        home: the folder for its files.
        master: the Spark master; ``local[2,4]`` attempts a task four times.
        settings: more Spark settings, with ``__`` for a dot in their names.

    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("tests").master(master)
    more = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in (home.settings | more).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    from jetstream_sync.spark import register

    # PySpark before 4.0 has no Python data sources.
    with contextlib.suppress(ImportError):
        register(spark)
    return spark


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> SparkHome:
    """Return the folder of the shared session."""
    return SparkHome(tmp_path_factory.mktemp("spark"))


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give processes that are started in the block a file as their standard error."""
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture(scope="session")
def _shared_spark(spark_home: SparkHome) -> Iterator[SparkSession]:
    need_java()
    before, ours = dict(os.environ), spark_environment()
    os.environ.clear()
    os.environ.update(ours)
    # The JVM inherits the variables when it starts, once in a process.
    try:
        with _stderr_to(spark_home.output):
            spark = session(spark_home)
        yield spark
        process = spark.sparkContext._gateway.proc
        spark.stop()
        # The JVM ends at the end of its input.
        process.stdin.close()
        process.wait(20)
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def spark(_shared_spark: SparkSession, spark_home: SparkHome) -> Iterator[SparkSession]:
    """
    Yield the shared session: ``local[2]``, workers with this interpreter and the package.

    The data source ``jetstream`` is registered. A test that needs settings of the JVM or another
    master starts a `Driver`. Streaming queries that a test has not stopped are stopped afterwards.
    """
    printed = spark_home.output.stat().st_size
    yield _shared_spark
    for query in _shared_spark.streams.active:
        query.stop()
    _shared_spark.catalog.clearCache()
    # Shown by pytest if the test fails.
    sys.stderr.write(spark_home.output.read_bytes()[printed:].decode(errors="replace"))


class Driver(Program):
    """
    A Spark driver as a separate process, for tests that kill it.

    At the end of a ``with`` block, all processes that it started are gone: JVM, executors, workers.

    Args:
        code: the program. It can use `session` of ``fix_spark``, and ``home``, a `SparkHome`.
        folder: its working folder; a second driver in the same folder continues with the same files.
        url: the URL of the nats-server, which the program finds in ``NATS_URL``.
        variables: more environment variables.

    """

    def __init__(
        self, code: str, folder: Path, url: str = "", variables: dict[str, str] | None = None
    ) -> None:
        number = len(list(folder.glob("driver-*.py")))
        self.home = folder / f"spark-{number}"
        self.home.mkdir()
        self.program = folder / f"driver-{number}.py"
        preamble = (
            "from pathlib import Path\n"
            "from fix_spark import SparkHome, session\n"
            f"home = SparkHome(Path({str(self.home)!r}))\n"
        )
        self.program.write_text(preamble + code, encoding="utf-8")
        super().__init__(
            [str(self.program)], url, folder, variables=spark_environment() | (variables or {})
        )

    def kill(self) -> None:
        """Kill the driver and its JVM with SIGKILL, and wait until its workers are gone."""
        for pid in (self.process.pid, *self.jvms()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        wait_until(lambda: not self.processes(), 20)

    def jvms(self) -> list[int]:
        """Return the process ids of the JVMs of the driver and the executors."""
        return [pid for pid in self.processes() if "java" in command_of(pid)[:1]]

    def executors(self) -> list[int]:
        """Return the process ids of the executor JVMs, which only ``local-cluster`` has."""
        backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
        return [pid for pid in self.jvms() if backend in command_of(pid)]

    def having(self, text: str) -> list[int]:
        """Return the process ids of the processes with a text in their command line, oldest first."""
        return sorted(pid for pid in self.processes() if text in " ".join(command_of(pid)))

    def processes(self) -> list[int]:
        """Return the process ids of the driver and of all running processes that it has started."""
        return processes_of_session(self.process.pid)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        # Workers have their own process group.
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        log = self.home / "spark.log"
        if log.exists():
            sys.stdout.write(f"--- {log}\n{log.read_text(encoding='utf-8', errors='replace')}")


def processes_of_session(leader: int) -> list[int]:
    """Return the process ids of the session of a process, which may have ended."""
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in every if _session(pid) == leader]


def _session(pid: int) -> int:
    """Return the session id of a running process, or 0."""
    try:
        # The process name, in parentheses, may contain spaces.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(fields[_STAT_SESSION - 1])


def command_of(pid: int) -> list[str]:
    """Return the command line of a process as a list, with the name of the program first."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
    first, *rest = [word.decode(errors="replace") for word in words]
    return [Path(first).name, *rest]


def batches(checkpoint: Path, log: str = "commits") -> list[int]:
    """Return the batch numbers in a log of a checkpoint, ``commits`` or ``offsets``."""
    folder = checkpoint / log
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def offsets_of(checkpoint: Path, batch: int) -> list[Any]:
    """Return the end offsets of a batch from the checkpoint, one for each source."""
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "v1", lines[0]
    return [json.loads(line) for line in lines[2:]]


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Undo the commit of a batch, as if the driver had died between its last row and the commit."""
    (checkpoint / "commits" / str(batch)).unlink()
    # A checksum without its file would look like corruption.
    (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
