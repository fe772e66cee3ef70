"""A standalone Spark cluster on loopback: a master and workers as processes, from the jars of PySpark."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pyspark
from fixtures.spark import command_of, processes_of_session, spark_environment
from fixtures.threads import wait_until
from typing_extensions import Self

__all__ = ["Standalone"]

_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
#: Each worker has one core, so that the tasks of a batch run on all of them.
_WORKERS = 2


class Standalone:
    """
    The processes of the cluster; as a context manager it kills them all on exit.

    Args:
        folder: an empty folder for logs and the files of the executors.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        #: The address of the master, for ``SparkSession.builder.master``.
        self.url = ""

    def __enter__(self) -> Self:
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
        found = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
        self.url = found[1]
        for number in range(_WORKERS):
            self._start_worker(f"worker-{number}")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            _kill_session(process)

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        return self._having("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[int]:
        """Return the process ids of the Python workers of the executors."""
        return self._having("pyspark.daemon")

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, and start it again."""
        name = f"worker-{number % _WORKERS}"
        _kill_session(self._processes[name])
        self._start_worker(name)

    def _having(self, text: str) -> list[int]:
        sessions = [process.pid for process in self._processes.values()]
        pids = [pid for session in sessions for pid in processes_of_session(session)]
        return sorted(pid for pid in pids if text in " ".join(command_of(pid)))

    def _start_worker(self, name: str) -> None:
        resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name))
        self._start(name, "worker.Worker", "--host", "127.0.0.1", *resources, self.url)
        self._wait_for(name, "Successfully registered with master")

    def _start(self, name: str, main: str, *arguments: str) -> None:
        log = self._logs[name] = self._folder / f"{name}-{len(list(self._folder.iterdir()))}.log"
        variables = spark_environment() | {"SPARK_HOME": str(_HOME)}
        with log.open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [
                    str(_HOME / "bin" / "spark-class"),
                    f"{_DEPLOY}.{main}",
                    "--webui-port",
                    "0",
                    *arguments,
                ],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for(self, name: str, pattern: str) -> re.Match[str]:
        log = self._logs[name]
        found: list[re.Match[str] | None] = [None]

        def is_there() -> bool:
            text = log.read_text(errors="replace")
            found[0] = re.search(pattern, text)
            assert found[0] or self._processes[name].poll() is None, text
            return found[0] is not None

        wait_until(is_there, 60)
        assert found[0] is not None
        return found[0]


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    for pid in (process.pid, *processes_of_session(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(10)
