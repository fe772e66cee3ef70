"""Spark: one session that tests share, drivers as processes of their own, checkpoints on disk."""

from __future__ import annotations

import contextlib
import json
import os
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
    "forget_commit",
    "need_java",
    "offsets_of",
    "processes_of_session",
    "session",
    "spark_environment",
]

#: Set to 1, it has the tests that need Java skipped where there is none, instead of failing.
NO_JAVA = "JETSTREAM_SYNC_NO_JAVA"

_TESTS = Path(__file__).parent
_PACKAGE = Path(jetstream_sync.__file__).parents[1]
_STAT_SESSION = 3


def _asked_for(config: pytest.Config) -> bool:
    return "spark" in (config.getoption("-m") or "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the tests that import PySpark, unless they are asked for."""
    return True if collection_path == _TESTS / "spark" and not _asked_for(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave out what is marked ``spark``, unless ``-m`` speaks of it.

    Where it does, nothing is skipped: without PySpark or Java the tests fail.
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

        # The workers can not import a test file: its functions and classes travel to them whole.
        for module in {item.module for item in marked if isinstance(item, pytest.Function)}:
            register_pickle_by_value(module)


def need_java() -> None:
    """Fail where Spark finds no Java, or skip when `NO_JAVA` says so."""
    from jetstream_sync.spark.java import JavaNotFoundError, find_java

    try:
        find_java()
    except JavaNotFoundError as error:
        if os.environ.get(NO_JAVA) == "1":
            pytest.skip(str(error))
        pytest.fail(f"{error}; or set {NO_JAVA}=1 to leave these tests out", pytrace=False)


def spark_environment() -> dict[str, str]:
    """
    Return the environment variables of a Spark driver, which its workers inherit.

    The workers have this interpreter, and import the package under test and the helpers of the
    tests. What pytest makes of warnings is not theirs.
    """
    environment = dict(os.environ)
    for name in ("PYTHONWARNINGS", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        environment.pop(name, None)
    paths = [str(_TESTS), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    if not any(part in {"site-packages", "dist-packages"} for part in _PACKAGE.parts):
        paths.insert(0, str(_PACKAGE))
    environment.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
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
    Where one Spark keeps its files, and its settings.

    Args:
        folder: empty; the log, the warehouse and temporary files go there.
        level: how much the JVM logs, ``warn`` or ``info``.

    """

    def __init__(self, folder: Path, level: str = "warn") -> None:
        self.folder = folder
        #: What the JVM logs.
        self.log = folder / "spark.log"
        #: The event logs, when ``spark.eventLog.enabled`` is set.
        self.events = folder / "events"
        self.events.mkdir()
        self._log4j = folder / "log4j2.properties"
        self._log4j.write_text(_LOG4J.format(level=level, file=self.log), encoding="utf-8")

    @property
    def settings(self) -> dict[str, str]:
        """Settings for a small and quiet Spark: no web pages, nothing outside of the folder."""
        java = (
            f"-Dlog4j2.configurationFile={self._log4j.as_uri()}"
            f" -Dderby.system.home={self.folder} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
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
        home: where its files go.
        master: as Spark has it; ``local[2,4]`` tries a task four times.
        settings: more of Spark's settings, with ``__`` for a dot in their names.

    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("tests").master(master)
    more = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in (home.settings | more).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    from jetstream_sync.spark import register

    # PySpark before 4.0 has no data sources in Python.
    with contextlib.suppress(ImportError):
        register(spark)
    return spark


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> SparkHome:
    """Where the shared session keeps its files."""
    return SparkHome(tmp_path_factory.mktemp("spark"))


@pytest.fixture(scope="session")
def _shared_spark(spark_home: SparkHome) -> Iterator[SparkSession]:
    need_java()
    before, ours = dict(os.environ), spark_environment()
    os.environ.clear()
    os.environ.update(ours)
    # The JVM inherits the variables when it starts, and is started once in a process.
    try:
        spark = session(spark_home)
        yield spark
        process = spark.sparkContext._gateway.proc
        spark.stop()
        # It ends by the end of its input.
        process.stdin.close()
        process.wait(20)
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def spark(_shared_spark: SparkSession) -> Iterator[SparkSession]:
    """
    The Spark that tests share: ``local[2]``, workers with this interpreter and the package.

    The data source ``jetstream`` is registered. A test that needs settings of the JVM, or another
    master, starts a `Driver`. Streaming queries that a test leaves behind are stopped.
    """
    yield _shared_spark
    for query in _shared_spark.streams.active:
        query.stop()
    _shared_spark.catalog.clearCache()


class Driver(Program):
    """
    A Spark driver as a process of its own, for tests that kill it.

    A ``with`` block ends with all that it started gone: JVM, executors, workers.

    Args:
        code: the program. It finds `session` in ``fix_spark``, and has ``home``, a `SparkHome`.
        folder: where it runs and writes; a second driver there goes on where the first one was.
        url: the address of the nats-server, which the program finds in ``NATS_URL``.
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
        """Kill the driver and its JVM with signal 9, and wait until its workers are gone, too."""
        for pid in (self.process.pid, *self.jvms()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        wait_until(lambda: not self.processes(), 20)

    def jvms(self) -> list[int]:
        """The process ids of its JVMs: the driver's, and those of executors."""
        return [pid for pid in self.processes() if "java" in _command(pid)[:1]]

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs, which only ``local-cluster`` has."""
        backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
        return [pid for pid in self.jvms() if backend in _command(pid)]

    def having(self, text: str) -> list[int]:
        """The process ids of those with a text in their command line, the oldest first."""
        return sorted(pid for pid in self.processes() if text in " ".join(_command(pid)))

    def processes(self) -> list[int]:
        """The process ids of all that it started and that still runs, and its own."""
        return processes_of_session(self.process.pid)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        # Workers have a process group of their own.
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        log = self.home / "spark.log"
        if log.exists():
            sys.stdout.write(f"--- {log}\n{log.read_text(encoding='utf-8', errors='replace')}")


def processes_of_session(leader: int) -> list[int]:
    """The process ids of all in the session of a process, which may have ended."""
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in every if _session(pid) == leader]


def _session(pid: int) -> int:
    """The session of a process that has not ended, or 0."""
    try:
        # The name, in parentheses, may hold spaces.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(fields[_STAT_SESSION - 1])


def _command(pid: int) -> list[str]:
    """The words of a process's command line, the first one without its folder."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
    first, *rest = [word.decode(errors="replace") for word in words]
    return [Path(first).name, *rest]


def batches(checkpoint: Path, log: str = "commits") -> list[int]:
    """The numbers of the batches in a log of a checkpoint, ``commits`` or ``offsets``."""
    folder = checkpoint / log
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def offsets_of(checkpoint: Path, batch: int) -> list[Any]:
    """The end offsets of a batch as the checkpoint has them, one for each source."""
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "v1", lines[0]
    return [json.loads(line) for line in lines[2:]]


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Make a batch one whose rows were written, but that was not noted as done."""
    (checkpoint / "commits" / str(batch)).unlink()
    # Its checksum alone would be taken for a damaged file.
    (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
