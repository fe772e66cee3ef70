"""The connection of a worker process, on real servers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.threads import wait_until, within

import jetstream_sync
from jetstream_sync import JetStreamMsg, PullConsumer
from jetstream_sync.errors import AuthorizationError, NoServersError, TimeoutError
from jetstream_sync.server import NatsServer
from jetstream_sync.spark import ReadOptions, connection, plan_ranges, read_range, take_work

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
from jetstream_sync.spark import ReadOptions, connection, plan_ranges, read_range, take_work
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
