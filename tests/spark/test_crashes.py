"""Random crashes of Spark and nats-server; see `tests/faults/spark` for the procedure and its checks."""

from __future__ import annotations

import os
import time

import pytest
from faults.spark.run import DELIVERIES, RETENTIONS, Outcome, run
from fixtures.rawnats import RawClient
from fixtures.spark import Driver, need_java
from fixtures.threads import wait_until

from jetstream_sync.spark.writing.rows import _GROUP_ROWS

#: Seconds of crashes in each run; set by the environments of tox.
SECONDS = float(os.environ.get("JETSTREAM_SYNC_KILL_SECONDS", "12"))
#: The seed of the plans; a failed run prints its own.
SEED = int(os.environ.get("JETSTREAM_SYNC_KILL_SEED", "1"))
#: Another one each time, for the runs on two clusters.
NEW_SEED = int(os.environ.get("JETSTREAM_SYNC_KILL_SEED", time.time_ns() % 1_000_000))

pytestmark = [pytest.mark.spark, pytest.mark.timeout(SECONDS * 2 + 400)]
NEEDS_BATCHES = pytest.mark.server(">=2.12")


def _held(outcome: Outcome) -> None:
    print(outcome)  # noqa: T201 - the figures, where output is shown
    assert not outcome.wrong, str(outcome)
    # Fewer rows would prove little.
    assert outcome.kills.total() > 0
    assert outcome.published > 0


# Each start of Spark takes seconds, so the other modes of delivery and retention policies are left to
# `tox -e spark-soak`, and to the repeated tasks and batches in test_sink.py.
@pytest.mark.full
@pytest.mark.parametrize(
    ("delivery", "retention", "master"),
    [
        ("transaction", "workqueue", "local"),
        # There the executors are separate processes, which are killed, too.
        ("window", "interest", "local-cluster"),
    ],
)
def test_each_message_is_written_exactly_once(delivery, retention, master):
    """Each message is written exactly once, and leaves a queue only afterwards, whatever process is killed."""
    need_java()
    _held(run(SEED, SECONDS, delivery=delivery, retention=retention, master=master, tell=print))


@pytest.mark.full
@pytest.mark.timeout(1200)
@NEEDS_BATCHES
@pytest.mark.parametrize(
    ("master", "kinds"),
    [
        ("local", ["driver", "worker"]),
        ("standalone", ["driver", "executor", "spark worker"]),
    ],
)
def test_filtered_mirrors_change_nothing(master, kinds):
    """A mirror answers direct gets for its origin, here for the source and for the records in the target."""
    need_java()
    given = {"delivery": "transaction", "read_mode": "direct", "trouble": "mirror"}
    # On a cluster, executors have a turn before all others.
    kills = len(kinds) + (master != "local")
    outcome = run(SEED, 300, **given, master=master, kinds=kinds, kills=kills, tell=print)
    _held(outcome)
    assert outcome.kills.keys() == set(kinds)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_an_executor_is_killed_while_it_reads_and_while_it_writes():
    """The tasks of both stages run again on another executor, and each message is written once."""
    need_java()
    kinds = ("executor, reading", "executor, writing")
    outcome = run(
        SEED, 300, delivery="window", master="local-cluster", kinds=kinds, kills=2, tell=print
    )
    _held(outcome)
    assert outcome.kills == dict.fromkeys(kinds, 1)


#: A job of 10,000 rows in one partition, each of which takes Spark a moment the first time.
_SLOW_JOB = """
import os
settings = {"spark.python.use.daemon": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "256"}
spark = session(home, "local[1]", **settings)
columns = ["string(id) AS data", "reflect('java.lang.Thread', 'sleep', DELAYL) AS delay"]
rows = spark.range(0, 10_000, 1, 1).selectExpr(*columns).where("delay != ''").select("data")
writer = rows.write.format("jetstream").options(servers=os.environ["NATS_URL"], **OPTIONS)
writer.mode("append").save()
spark.stop()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("delivery", "ids"),
    [
        ("window", "content"),
        pytest.param("transaction", "content", marks=NEEDS_BATCHES),
        pytest.param("transaction", "position", marks=NEEDS_BATCHES),
    ],
)
def test_rows_that_ended_early_are_completed(js, nats_server, tmp_path, delivery, ids):
    """A worker takes the end of its killed JVM for the end of its rows; the repeated job stores the missing ones."""
    need_java()
    config = {"allow_atomic": True} if delivery == "transaction" else {}
    stream = js.create_stream(name="SINK", subjects=["OUT.*", "MARK.>"], **config)
    options = {"stream": "SINK", "subject": "OUT.0", "delivery": delivery, "ids": ids, "jobId": "1"}
    if delivery == "transaction":
        options["markerSubject"] = "MARK"
    job = _SLOW_JOB.replace("OPTIONS", repr(options))

    def count() -> int:
        return (stream.info(subjects_filter="OUT.0").state.subjects or {}).get("OUT.0", 0)

    with Driver(job.replace("DELAY", "1"), tmp_path, nats_server.url) as driver:
        wait_until(lambda: count() >= _GROUP_ROWS, 120)
        time.sleep(1)
        # Without the daemon nothing ends the worker, which sends the rows that it has.
        driver.kill()
    assert _GROUP_ROWS < count() < 2 * _GROUP_ROWS
    with Driver(job.replace("DELAY", "0"), tmp_path, nats_server.url) as driver:
        assert driver.ended(120) == 0, driver.output
    with RawClient(nats_server.port) as raw:
        stored = [int(item.data) for item in raw.stored("SINK") if item.subject == "OUT.0"]
    assert sorted(stored) == list(range(10_000))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("master", ["local", "local-cluster"])
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_exactly_once_in_a_long_run(delivery, retention, master):
    """The same holds for five minutes, in each delivery mode and for each retention policy."""
    need_java()
    outcome = run(SEED, 300, delivery=delivery, retention=retention, master=master, tell=print)
    _held(outcome)


def _transaction(*arguments: object) -> object:
    """Return the parameters of a case with transactions, which older servers do not have."""
    return pytest.param("transaction", *arguments, marks=NEEDS_BATCHES)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("delivery", "read_mode", "in_batches"),
    [
        ("window", "auto", False),
        _transaction("direct", False),
        _transaction("pull", False),
        ("window", "pull", True),
        _transaction("auto", True),
        _transaction("direct", True),
    ],
)
def test_exactly_once_on_two_clusters(delivery, read_mode, in_batches):
    """The same holds with a standalone Spark cluster and three nats-servers; no consumer is left."""
    need_java()
    outcome = run(
        NEW_SEED,
        max(SECONDS, 60),
        delivery=delivery,
        master="standalone",
        read_mode=read_mode,
        in_batches=in_batches,
        tell=print,
    )
    _held(outcome)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("delivery", "trouble"),
    [
        ("window", "restore"),
        ("window", "limits"),
        ("window", "filter"),
        ("window", "mirror"),
        _transaction("restore"),
        _transaction("limits"),
        _transaction("filter"),
        _transaction("mirror"),
    ],
)
def test_trouble_on_two_clusters(delivery, trouble):
    """
    Nothing is lost after a checkpoint was copied back, in a target with limits, with a filter, and beside mirrors.

    Nothing is stored twice either, but after a copied checkpoint without transactions.
    """
    need_java()
    outcome = run(
        NEW_SEED,
        max(SECONDS, 60),
        delivery=delivery,
        master="standalone",
        trouble=trouble,
        tell=print,
    )
    _held(outcome)


@pytest.mark.soak
@NEEDS_BATCHES
@pytest.mark.timeout(3500)
def test_twenty_driver_kills_on_two_clusters():
    """Transactions stay exact when the driver is killed 20 times, sometimes with a lost commit."""
    need_java()
    kinds = ("driver", "driver, commit lost")
    outcome = run(
        NEW_SEED,
        3000,
        delivery="transaction",
        master="standalone",
        kinds=kinds,
        kills=20,
        tell=print,
    )
    _held(outcome)
    assert outcome.kills.total() == 20
