"""The connection of a worker process, on real servers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import JetStreamMsg, PullConsumer
from jetstream_sync.errors import AuthorizationError, Error, NoServersError, TimeoutError
from jetstream_sync.server import NatsServer
from jetstream_sync.spark import (
    ReadOptions,
    WriteOptions,
    acknowledge,
    connection,
    plan_ranges,
    publish_partition,
    read_range,
    take_work,
)
from jetstream_sync.spark.options import BucketReadOptions
from jetstream_sync.spark.reading.bucket import check_bucket_exists
from jetstream_sync.spark.reading.range_reader import ReadPlan, read_partition
from jetstream_sync.spark.streaming.query import QueryPlanner
from jetstream_sync.spark.writing.message_ids import WriteTaskId
from jetstream_sync.spark.writing.rows import RowLayout
from jetstream_sync.spark.writing.write_plan import WritePlan, Written

LOGIN = "authorization { user: orders, password: hunter2 }\n"


def options(server: NatsServer, **more: str) -> ReadOptions:
    return ReadOptions.from_options({"stream": "S", "servers": server.url} | more)


def test_one_connection_for_all_tasks_of_a_process(fresh_server):
    """Equal settings give the same connection, others another; a closed one is replaced."""
    settings = options(fresh_server).connection
    nc = connection(settings)
    assert connection(options(fresh_server).connection) is nc
    other = connection(options(fresh_server, connectTimeout="7s").connection)
    assert other is not nc
    nc.close()
    again = connection(settings)
    assert again is not nc
    again.flush()
    again.close()
    other.close()


def test_a_connection_works_again_after_an_outage(fresh_server):
    """After an outage of the server, the next task gets a connection that works."""
    settings = options(fresh_server).connection
    nc = connection(settings)
    fresh_server.kill()
    wait_until(lambda: not nc.is_connected)
    fresh_server.start()
    with within(5.0):
        again = connection(settings)
        assert settings.jetstream(again).account_info().streams == 0
    assert again is nc
    nc.close()


@pytest.mark.parametrize("kind", ["range", "work"])
def test_a_task_waits_for_a_server_that_cannot_be_reached_yet(kind, fresh_server, caplog):
    """The first connection of a task is attempted again: in local mode Spark does not repeat a failed task."""
    caplog.set_level(logging.WARNING, "jetstream_sync.spark")
    with jetstream_sync.connect(fresh_server.url) as nc:
        stream = nc.jetstream().create_stream(name="S", subjects=["s"])
        stream.create_consumer(durable_name="C")
        nc.jetstream().publish("s", b"row")
    on_driver = options(fresh_server)
    planned = plan_ranges(on_driver)
    connection(on_driver.connection).close()
    fresh_server.stop()
    in_task = options(fresh_server, connectTimeout="7s", consumer="C")
    tasks = {
        "range": lambda: [data for (data,) in read_range(planned[0], in_task, ["data"])],
        "work": lambda: [msg.data for batch in take_work(in_task, max_messages=1) for msg in batch],
    }
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(tasks[kind])
        wait_until(lambda: "connecting failed" in caplog.text or rows.done())
        fresh_server.start()
        assert rows.result(timeout=30) == [b"row"]
    connection(in_task.connection).close()


def test_a_batch_of_work_keeps_what_was_fetched(nats_server, js, stream, monkeypatch):
    """An error while the batch is filled does not lose its first message, which would wait for ``ack_wait``."""
    stream.create_consumer(durable_name="C")
    js.publish(f"{stream.name}.a", b"row")

    def fail(_consumer: PullConsumer, _count: int) -> list[JetStreamMsg]:
        raise TimeoutError("no reply")

    monkeypatch.setattr(PullConsumer, "fetch_no_wait", fail)
    work = options(nats_server, stream=stream.name, consumer="C")
    (batch,) = take_work(work, max_messages=10, idle_seconds=0.1)
    with batch:
        assert [message.data for message in batch] == [b"row"]
    connection(work.connection).close()


def test_the_error_of_a_task_is_not_that_of_returning_its_messages(nats_server, js, stream):
    """Messages that cannot be returned are delivered again after ``ack_wait``."""
    stream.create_consumer(durable_name="C")
    js.publish(f"{stream.name}.a", b"row")
    work = options(nats_server, stream=stream.name, consumer="C")
    (batch,) = take_work(work, max_messages=1)
    with pytest.raises(ValueError, match="not a row"), batch:
        connection(work.connection).close()
        raise ValueError("not a row")


@pytest.mark.parametrize("how", ["url", "option", "file", "variable"])
def test_logging_in(how, tmp_path, monkeypatch):
    """A login may be in a URL, an option, a file or an environment variable."""
    path = tmp_path / "password"
    path.write_text("hunter2\n")
    monkeypatch.setenv("ORDERS_PASSWORD", "hunter2")
    with NatsServer(name="closed", config=LOGIN) as server:
        more = {
            "url": {"servers": server.url.replace("//", "//orders:hunter2@")},
            "option": {"user": "orders", "password": "hunter2"},
            "file": {"user": "orders", "passwordFile": str(path)},
            "variable": {"user": "orders", "passwordEnv": "ORDERS_PASSWORD"},
        }[how]
        nc = connection(options(server, **more).connection)
        nc.flush()
        nc.close()


@pytest.mark.parametrize("how", ["url", "option"])
def test_a_login_that_fails_shows_no_secret(how, caplog):
    """The error with its causes and frames, and the log, have no password or login of the URL."""
    caplog.set_level("DEBUG")
    with NatsServer(name="closed", config=LOGIN) as server:
        more = {
            "url": {"servers": server.url.replace("//", "//orders:wrong-one@")},
            "option": {"user": "orders", "password": "wrong-one"},
        }[how]
        settings = options(server, **more).connection
        with pytest.raises((AuthorizationError, NoServersError)) as caught:
            connection(settings)
    told = "".join(traceback.format_exception(caught.value))
    assert "wrong-one" not in told
    assert "wrong-one" not in caplog.text
    assert "wrong-one" not in repr(settings)


def test_a_forked_child_has_its_own_connection(fresh_server):
    """After a fork the child gets another connection, and the parent's stays usable."""
    program = f"""
import os
from jetstream_sync.spark import ReadOptions, WriteOptions, acknowledge, connection, plan_ranges, publish_partition, read_range, take_work
from jetstream_sync.spark.options import BucketReadOptions
from jetstream_sync.spark.reading.bucket import check_bucket_exists
from jetstream_sync.spark.reading.range_reader import ReadPlan, read_partition
from jetstream_sync.spark.streaming.query import QueryPlanner
from jetstream_sync.spark.writing.message_ids import WriteTaskId
from jetstream_sync.spark.writing.rows import RowLayout
from jetstream_sync.spark.writing.write_plan import WritePlan, Written
settings = ReadOptions.from_options({{"stream": "S", "servers": {fresh_server.url!r}}}).connection
nc = connection(settings)
child = os.fork()
if child == 0:
    mine = connection(settings)
    mine.flush()
    os._exit(0 if mine is not nc else 1)
assert os.waitpid(child, 0)[1] == 0
nc.flush()
assert connection(settings) is nc
"""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=True,
        timeout=60,
        env={**os.environ},
    )


#: Seconds that each call of the next test may take, and that it may be late on a busy machine.
_LIMIT_S, _LATE_S = 1.0, 0.5 * SCALE


@pytest.mark.server(">=2.12")
def test_each_call_ends_while_the_server_is_silent(fresh_server):
    """Connecting and the request after it have one limit, for each function that a user or Spark calls."""
    limits = {"timeout": f"{_LIMIT_S}s", "connectTimeout": f"{_LIMIT_S}s"}
    read = options(
        fresh_server,
        planningTimeout=f"{_LIMIT_S}s",
        startingOffsets="earliest",
        consumer="C",
        **limits,
    )
    sink = {"servers": fresh_server.url, "stream": "S", "subject": "S.a"} | limits
    sink["ackTimeout"] = f"{_LIMIT_S}s"
    marked = sink | {"delivery": "transaction", "markerSubject": "S.m", "jobId": "J"}
    bucket = {"servers": fresh_server.url, "bucket": "B", "planningTimeout": f"{_LIMIT_S}s"}
    entries = BucketReadOptions.from_options(bucket | limits)
    task = WriteTaskId(name="J", batch=0, partition=0, has_ends=True)
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["S.>"], allow_direct=True, allow_atomic=True)
        js.create_consumer("S", durable_name="C", ack_policy="explicit")
        js.create_key_value(bucket="B")
        for number in range(5):
            js.publish("S.a", b"%d" % number)
        layout = RowLayout.of_names(["data"])
        plain = WritePlan.checked(WriteOptions.from_options(sink), layout)
        transaction = WritePlan.checked(WriteOptions.from_options(marked), layout)
        (part,) = plan_ranges(read)
        (batch,) = take_work(read, batch=2, idle_seconds=0.1, max_messages=2)
        replies = [message.ack_subject.decode() for message in batch.messages]
        query = QueryPlanner(read)
        start = query.initial()
        end = query.latest(start, unlimited=True)
        calls = {
            "plan": lambda: plan_ranges(read),
            "read": lambda: list(
                read_partition(
                    read.connection,
                    part,
                    frozenset({"data"}),
                    ReadPlan(timeout=_LIMIT_S, retry_timeout=_LIMIT_S),
                )
            ),
            "bucket": lambda: check_bucket_exists(entries),
            "work": lambda: list(take_work(read, idle_seconds=_LIMIT_S)),
            "acknowledge": lambda: acknowledge(replies, read),
            "check": lambda: publish_partition([b"row"], sink),
            "write": lambda: plain.write(task, [[layout.columns([[b"row"]])]]),
            "transaction": lambda: transaction.write(task, [[layout.columns([[b"row"]])]]),
            "confirm": lambda: plain.confirm([Written(partition=0, rows=1, last_seq=1)]),
            "end": lambda: transaction.end_batch(task),
            "purge": lambda: plain.purge(2),
            "initial": lambda: QueryPlanner(read).initial(),
            "latest": lambda: QueryPlanner(read).latest(end, unlimited=True),
            "partitions": lambda: QueryPlanner(read).partitions(start, end),
            "commit": lambda: query.commit(end),
        }
        with ThreadPoolExecutor(len(calls)) as pool, paused(fresh_server):
            outcomes = dict(zip(calls, pool.map(_timed, calls.values()), strict=True))
        query.close()
    assert {name: error for name, (error, _) in outcomes.items() if error is None} == {}
    # The first acknowledgement has a limit of its own.
    outcomes["write"] = outcomes["write"][0], outcomes["write"][1] - _LIMIT_S
    late = {name: took for name, (_, took) in outcomes.items() if took > _LIMIT_S + _LATE_S}
    assert late == {}


def _timed(call: Callable[[], object]) -> tuple[Error | None, float]:
    """Return the error of a call, and the seconds that it took."""
    began = monotonic()
    try:
        call()
    except Error as error:
        return error, monotonic() - began
    return None, monotonic() - began
