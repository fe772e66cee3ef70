"""Spark finds ``format("jetstream")``, or it is registered, and the workers run the right interpreter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from fixtures.apps import Program
from fixtures.rawnats import RawClient
from fixtures.spark import SparkHome, need_java, spark_environment

import jetstream_sync
from jetstream_sync.server import NatsServer
from jetstream_sync.spark import register

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

PACKAGE = Path(jetstream_sync.__file__).parent
#: The folder of the module that Spark finds, which an installation has at its top level.
TOP_LEVEL = Path(__file__).parents[2] / "jetstream_sync" / "top_level"

# The beginning of each driver program here; no driver imports test modules.
START = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(os.environ["SETTINGS"]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
reader = spark.read.format("jetstream").option("servers", os.environ["NATS_URL"])
"""
READ = """
for row in reader.option("stream", "S").load().collect():
    print("read:", row.subject, bytes(row.data).decode())
"""

# The program submitted to a cluster.
SUBMITTED = """
import os, sys
from pyspark.sql import SparkSession
from jetstream_sync.spark import register, start_query

spark = SparkSession.builder.getOrCreate()
register(spark)
options = {
    "servers": os.environ["NATS_URL"],
    "stream": "S",
    "user": "u",
    "passwordFile": "sparkFile:password.txt",
}
read = spark.read.format("jetstream").options(**options)
print("rows:", [(row.subject, bytes(row.data)) for row in read.load().collect()])
spark.createDataFrame([("two",)], ["data"]).write.format("jetstream").options(
    subject="s.2", **options
).mode("append").save()
print("then:", read.load().count())
copied = spark.readStream.format("jetstream").options(startingOffsets="earliest", **options).load()
start_query(copied.selectExpr("data").writeStream.format("jetstream").options(
    subject="s.3", checkpointLocation="checkpoint", **options
).trigger(availableNow=True).start).awaitTermination()
print("streamed:", read.options(subjects="s.3").load().count())
def where(_):
    import jetstream_sync
    return [(sys.executable, jetstream_sync.__file__)]
print("workers:", spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect())
"""


@pytest.fixture
def url(nats_server: NatsServer) -> Iterator[str]:
    """Yield the URL of a server with a message on stream S."""
    need_java()
    with jetstream_sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"], storage="memory")
        js.publish("s.1", b"one")
    yield nats_server.url
    with RawClient(nats_server.port) as raw:
        raw.delete_all_streams()


def variables_for(folder: Path, **changes: str) -> dict[str, str]:
    """Return the environment variables of a driver, without the tests on the path of the workers."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    settings = SparkHome(home).settings if not list(home.iterdir()) else {}
    variables = spark_environment() | {"SETTINGS": json.dumps(settings)}
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables | changes


def driver(folder: Path, code: str, url: str, variables: dict[str, str]) -> str:
    """Run a driver to its end, and return its output."""
    program = folder / "driver.py"
    program.write_text(START + code)
    with Program([str(program)], url, folder, variables=variables) as running:
        assert running.ended(60) == 0, running.output
        return running.output


def run_code(code: str, variables: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_spark_finds_the_installed_data_source(url, spark):
    """An installed package needs no registration."""
    from pyspark.sql.datasource import DataSource

    class Registered(DataSource):
        @classmethod
        def name(cls) -> str:
            return "registered"

    spark.dataSource.register(Registered)
    # It has the installed data sources, and none of those that are registered in another session.
    other = spark.newSession()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        other.read.format("registered").load()
    rows = other.read.format("jetstream").options(servers=url, stream="S").load().collect()
    assert [(row.subject, bytes(row.data)) for row in rows] == [("s.1", b"one")]


def packed(folder: Path) -> Path:
    """Create a zip of the package alone."""
    archive = folder / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in PACKAGE.rglob("*.py"):
            file.write(path, Path("jetstream_sync") / path.relative_to(PACKAGE))
    return archive


@pytest.mark.full
def test_the_package_as_a_zip(url, tmp_path):
    """A zip of the package is sufficient on the workers if the data source is registered."""
    archive = packed(tmp_path)
    code = f"""
spark.sparkContext.addPyFile({str(archive)!r})
import jetstream_sync
assert "shipped.zip" in jetstream_sync.__file__, jetstream_sync.__file__
from jetstream_sync.spark import register, start_query
register(spark)
def where(_):
    import jetstream_sync.spark.source
    return [jetstream_sync.spark.source.__file__]
print("workers:", spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect())
start_query(
    spark.readStream.format("jetstream").option("servers", os.environ["NATS_URL"]).option("stream", "S")
    .option("startingOffsets", "earliest").load().select("subject").writeStream.format("csv")
    .option("path", "streamed").option("checkpointLocation", "checkpoint").trigger(availableNow=True).start
).awaitTermination()
print("streamed:", spark.read.schema("subject string").csv("streamed").collect()[0].subject)
{READ}"""
    # Only the zip of the package is on the path, unless the package is installed.
    said = driver(tmp_path, code, url, variables_for(tmp_path, PYTHONPATH=""))
    assert "read: s.1 one" in said
    assert "streamed: s.1" in said
    workers = next(line for line in said.splitlines() if line.startswith("workers:"))
    assert "shipped.zip" in workers


@pytest.mark.full
@pytest.mark.timeout(600)
def test_spark_submit_on_a_cluster(tmp_path):
    """--py-files ships the package to executors and --files ships a password; neither is installed there."""
    import pyspark

    need_java()
    (tmp_path / "password.txt").write_text("hush\n")
    (tmp_path / "orders.py").write_text(SUBMITTED)
    (tmp_path / "home").mkdir()
    home = Path(pyspark.__file__).parent
    settings = SparkHome(tmp_path / "home").settings | {"spark.pyspark.python": sys.executable}
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--py-files", str(packed(tmp_path)), "--files", str(tmp_path / "password.txt")]
    # No variable sets the interpreter, and the package is not on the path.
    variables = spark_environment() | {"SPARK_HOME": str(home)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
        variables.pop(name, None)
    before = set((home / "work").glob("*"))
    users = "authorization { users: [{user: u, password: hush}] }"
    try:
        with NatsServer(config=users) as server:
            with jetstream_sync.connect(server.url, user="u", password="hush") as nc:
                js = nc.jetstream()
                js.create_stream(name="S", subjects=["s.>"])
                js.publish("s.1", b"one")
            starting = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
            run_to_its_end = ["-c", starting, *command, str(tmp_path / "orders.py")]
            with Program(run_to_its_end, server.url, tmp_path, variables=variables) as program:
                assert program.ended(120) == 0, program.output
                said = program.output
    finally:
        # A local cluster writes to this folder whatever its settings are.
        for path in set((home / "work").glob("*")) - before:
            shutil.rmtree(path)
    assert "rows: [('s.1', b'one')]" in said
    assert "then: 2" in said
    assert "streamed: 2" in said
    workers = next(line for line in said.splitlines() if line.startswith("workers:"))
    assert "shipped.zip" in workers
    assert sys.executable in workers


@pytest.mark.full
def test_register_sets_the_interpreter_of_the_workers(url, tmp_path):
    """In a virtual environment that is not activated, register() gives the workers the interpreter of the driver."""
    # Another python3 is first on PATH, as in a system installation; it cannot run anything.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    variables = variables_for(tmp_path)
    variables["PATH"] = f"{other.parent}{os.pathsep}{variables['PATH']}"
    del variables["PYSPARK_PYTHON"], variables["PYSPARK_DRIVER_PYTHON"]
    code = f"""
from jetstream_sync.spark import register
register(spark)
{READ}
def who(_):
    import sys
    return [sys.executable]
print("workers:", spark.sparkContext.parallelize([0], 1).mapPartitions(who).collect())
print("stream:", spark.readStream.format("jetstream").option("servers", os.environ["NATS_URL"])
      .option("stream", "S").option("startingOffsets", "earliest").load()
      .writeStream.format("console").option("checkpointLocation", "checkpoint")
      .trigger(availableNow=True).start().awaitTermination(40))
"""
    said = driver(tmp_path, code, url, variables)
    assert "read: s.1 one" in said
    assert f"workers: [{sys.executable!r}]" in said
    assert "stream: True" in said


def test_register_keeps_a_configured_interpreter(spark, monkeypatch):
    """An interpreter set with PYSPARK_PYTHON is kept."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "the chosen one")
    monkeypatch.setenv("PYSPARK_PYTHON", "the chosen one")
    register(spark)
    assert spark.sparkContext.pythonExec == "the chosen one"
    monkeypatch.delenv("PYSPARK_PYTHON")
    register(spark)
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.full
def test_register_logs_no_replacement(url, spark, spark_home, tmp_path):
    """Neither register() nor a query warns that the same data source, found by Spark, is replaced."""
    before = len(spark_home.log.read_text())
    register(spark)
    rows = spark.readStream.format("jetstream").options(servers=url, stream="S").load()
    query = rows.writeStream.format("console").option("checkpointLocation", str(tmp_path))
    assert query.trigger(availableNow=True).start().awaitTermination(90)
    assert "replaced" not in spark_home.log.read_text()[before:]


def test_register_in_a_thread_that_writes(url, spark):
    """Spark looks up the sink in the active session of the thread, which register() sets."""
    failures: list[Exception] = []

    def write() -> None:
        rows = spark.createDataFrame([("two",)], ["data"]).write.format("jetstream").mode("append")
        spark.sparkContext._jvm.SparkSession.clearActiveSession()
        register(spark)
        try:
            rows.options(servers=url, stream="S", subject="s.2").save()
        except Exception as error:
            failures.append(error)

    thread = Thread(target=write)
    thread.start()
    thread.join()
    assert not failures
    with jetstream_sync.connect(url) as nc:
        assert nc.jetstream().get_stream("S").cached_info.state.messages == 2


@pytest.mark.full
def test_errors_are_one_line(url, spark, tmp_path):
    """An error of this package is in the first line of what Spark shows, without a Python traceback."""
    options = {"servers": url, "stream": "MISSING"}
    batch = spark.read.format("jetstream").options(**options)
    stream = spark.readStream.format("jetstream").options(**options)
    written = spark.createDataFrame([("two",)], ["data"]).write.format("jetstream")
    finished = (
        stream.load()
        .writeStream.format("console")
        .option("checkpointLocation", str(tmp_path / "1"))
        .start()
    )
    with_a_schema = (
        stream.schema("subject string")
        .option("endingOffsets", "latest")
        .load()
        .writeStream.format("console")
        .option("checkpointLocation", str(tmp_path / "2"))
        .start()
    )
    for call, expected in (
        (lambda: batch.load().count(), "stream 'MISSING' does not exist"),
        (lambda: batch.option("batchByte", "1").load(), "did you mean batchBytes?"),
        (written.options(**options).mode("append").save, "create it first"),
        (finished.awaitTermination, "stream 'MISSING' does not exist"),
        (with_a_schema.awaitTermination, "applies to spark.read only"),
    ):
        with pytest.raises(Exception, match=re.escape(expected)) as raised:
            call()
        text = str(raised.value)
        assert expected in text.splitlines()[0]
        assert "Traceback" not in text


@pytest.mark.full
def test_start_query_repeats_a_start_that_timed_out(url, tmp_path):
    """If Spark's Python process starts too late, the query is started again."""
    slow = tmp_path / "slow"
    slow.touch()
    (tmp_path / "sitecustomize.py").write_text(f"""
import pathlib, sys, time
if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
    slow = pathlib.Path({str(slow)!r})
    if slow.exists():
        slow.unlink()
        time.sleep(12)
""")
    code = """
from jetstream_sync.spark import register, start_query
register(spark)
rows = (spark.readStream.format("jetstream").option("servers", os.environ["NATS_URL"])
        .option("stream", "S").option("startingOffsets", "earliest").load())
sink = rows.writeStream.format("console").option("checkpointLocation", "checkpoint")
query = start_query(lambda: sink.trigger(availableNow=True).start())
query.awaitTermination()
print("rows:", query.lastProgress["numInputRows"])
"""
    variables = variables_for(tmp_path)
    variables["PYTHONPATH"] += os.pathsep + str(tmp_path)
    said = driver(tmp_path, code, url, variables)
    assert "could not start a Python process in time" in said
    assert "rows: 1" in said


def test_the_discovery_module_imports_nothing_and_never_fails(tmp_path):
    """The look-up of all data sources imports this module, so it imports no other module and cannot fail."""
    code = """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
import pyspark_jetstream
print(sorted(set(sys.modules) - before - set(sys.stdlib_module_names)))
print(pyspark_jetstream.DefaultSource.name(),
      issubclass(pyspark_jetstream.DefaultSource, pyspark.sql.datasource.DataSource))
"""
    blocked = "import sys; sys.modules['pyspark'] = None; import pyspark_jetstream"
    variables = spark_environment()
    variables["PYTHONPATH"] += os.pathsep + str(TOP_LEVEL)
    assert run_code(code, variables, tmp_path).splitlines() == [
        "['pyspark_jetstream']",
        "jetstream True",
    ]
    # PySpark is not installed, or older than 4.0.
    run_code(blocked, variables, tmp_path)


def test_the_discovery_module_with_a_broken_package(tmp_path):
    """If the package itself is broken, only using the data source raises an error."""
    code = """
import sys
sys.modules["jetstream_sync"] = None
import pyspark_jetstream
try:
    pyspark_jetstream.DefaultSource({})
except ImportError as error:
    print("said:", error.name)
"""
    variables = spark_environment()
    variables["PYTHONPATH"] += os.pathsep + str(TOP_LEVEL)
    assert "said: jetstream_sync" in run_code(code, variables, tmp_path)
