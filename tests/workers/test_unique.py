"""Unique tasks, on a real server."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram, dead_letters, running

from jetstream_sync import (
    InvalidOptionError,
    MaxPayloadError,
    StreamNotFoundError,
    shared_connection,
)
from jetstream_sync.converters import to_json
from jetstream_sync.workers import Backoff, TaskArgumentsError, Worker
from jetstream_sync.workers import unique as unique_module
from jetstream_sync.workers.calls import NewCall
from jetstream_sync.workers.unique import UNIQUE_STREAM


@pytest.fixture
def worker(nats_server, js):
    """A worker whose connection for sending and buckets end with the test."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS", UNIQUE_STREAM):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def _keys(js) -> int:
    """Return the number of keys."""
    return js.get_stream(UNIQUE_STREAM).info().state.messages


@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_while_a_call_waits_no_other_one_is_sent(worker, js, results):
    """The call that waits is returned, by its arguments, however they are passed; afterwards one is sent again."""
    seen = []

    @worker.task(unique="queued", unique_by=["customer"], results=results)
    def sync(customer: int, reason: str = "") -> None:
        seen.append((customer, reason))

    first = sync.delay(1, "a")
    assert sync.delay(customer=1, reason="b").id == first.id
    assert sync.delay(1).id == first.id
    second = sync.delay(2)
    assert second.id != first.id
    stream = js.get_stream("TASKS")
    assert stream.info().state.messages == 2
    with running(worker):
        wait_until(lambda: stream.info().state.messages == 0)
        assert sorted(seen) == [(1, "a"), (2, "")]
        assert sync.delay(1, "c").id not in {first.id, second.id}
        wait_until(lambda: len(seen) == 3)
        wait_until(lambda: stream.info().state.messages == 0)
    assert _keys(js) == 0


def test_the_order_of_a_dictionary_makes_no_other_call(worker, js):
    """Also inside of other arguments, of keyword arguments, and of a default."""

    @worker.task(unique="queued")
    def sync(order: dict[str, object], more: object = None, **others: object) -> None:
        del order, more, others

    found = {
        sync.delay({"a": 1, "b": [{"c": 2, "d": 3}]}, {"e": {}, "f": None}, x=1, y=2).id,
        sync.delay({"b": [{"d": 3, "c": 2}], "a": 1}, {"f": None, "e": {}}, y=2, x=1).id,
    }
    assert len(found) == 1
    assert (
        sync.delay({"a": 1, "b": [{"c": 3, "d": 2}]}, {"e": {}, "f": None}, x=1, y=2).id
        not in found
    )
    assert sync.delay({"a": 1}).id not in found
    with running(worker):
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert _keys(js) == 0


def test_a_key_is_that_of_earlier_versions(worker, js):
    """Unless a dictionary has its keys in another order than that of the alphabet."""

    @worker.task(name="sync", unique="queued")
    def sync(*values: object) -> None:
        del values

    values = [1, 1.5, 1e16, "ü", None, True, [1, [2]], {"a": 1, "b": 2}]
    sync.delay(*values)
    key = to_json([sync.queue.prefix, "sync", [["values", values]]])
    subject = f"task-unique.{hashlib.sha256(key).hexdigest()[:32]}"
    assert js.get_stream(UNIQUE_STREAM).info(subjects_filter=">").state.subjects == {subject: 1}


def test_queued_is_over_before_the_function_reads_its_data(worker, js):
    """A call that is sent while another one runs is stored, and reads what the sender has written before."""
    begun, release, seen = threading.Event(), threading.Event(), []
    data = ["old"]

    @worker.task(unique="queued")
    def index() -> None:
        seen.append(data[0])
        begun.set()
        release.wait(20)

    with running(worker):
        first = index.delay()
        assert begun.wait(20)
        data[0] = "new"
        second = index.delay()
        assert second.id != first.id
        release.set()
        wait_until(lambda: seen == ["old", "new"])
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert _keys(js) == 0


@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_until_done_lasts_over_the_run_and_its_retries(worker, js, results):
    """A running call, and one that waits for its next attempt, is returned; one that has ended is not."""
    fail, begun, release = [True], threading.Event(), threading.Event()

    @worker.task(unique="until_done", results=results, retry=Backoff(first=3, jitter=0, attempts=3))
    def work(number: int) -> None:
        begun.set()
        if fail[0]:
            raise ValueError(number)
        release.wait(20)

    with running(worker):
        call = work.delay(1)
        assert begun.wait(20)
        wait_until(lambda: work.delay(1).id == call.id)
        fail[0] = False
        begun.clear()
        assert begun.wait(20)
        assert work.delay(1).id == call.id
        release.set()
        stream = js.get_stream("TASKS")
        wait_until(lambda: stream.info().state.messages == 0)
        assert _keys(js) == 0
        assert work.delay(1).id != call.id
        wait_until(lambda: stream.info().state.messages == 0)


@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_a_call_that_ends_without_success_frees_its_key(worker, js, results):
    """After a dead letter, a cancelled call, and one that cannot be sent, the next one is sent."""

    @worker.task(unique="until_done", results=results, retry=Backoff(attempts=1))
    def work(number: int, text: str = "") -> None:
        raise ValueError(number, text)

    with running(worker):
        failed = work.delay(1)
        wait_until(lambda: "DEAD" in js.stream_names() and dead_letters(js) == 1)
        wait_until(lambda: _keys(js) == 0)
    assert work.delay(1).id != failed.id
    call = work.delay(2)
    assert call.cancel()
    again = work.delay(2)
    assert again.id != call.id
    with pytest.raises(MaxPayloadError):
        work.delay(3, "x" * 2_000_000)
    work.delay(3)
    later = work.apply_async([4], countdown=60)
    assert work.delay(4).id == later.id
    assert _keys(js) == 4


def test_a_killed_sender_keeps_nothing(worker, js, monkeypatch):
    """A key without a message is replaced when its sender must have given up, and not before."""
    monkeypatch.setattr(unique_module, "_SENDING_S", 2.0)

    @worker.task(unique="queued")
    def work(number: int) -> None:
        del number

    first = work.delay(1)
    assert js.get_stream("TASKS").info().state.messages == 1
    work.queue.withdraw(work.name, first.id)  # as if it was never stored
    begun = time.monotonic()
    second = work.delay(1)
    assert second.id != first.id
    assert 0.5 < time.monotonic() - begun < 20
    assert work.delay(1).id == second.id


@contextmanager
def _times_ahead(port: int) -> Iterator[str]:
    """A relay that shows the messages of a server as stored a century later, as after its clock was set back."""
    ends: list[socket.socket] = []

    def forward(source: socket.socket, sink: socket.socket, *, changes: bool) -> None:
        data = b""
        with suppress(OSError):
            while piece := source.recv(65536):
                data += piece
                if data.endswith(b"\r\n"):
                    sink.sendall(data.replace(b'"time":"20', b'"time":"21') if changes else data)
                    data = b""

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, server = (
                    listening.accept()[0],
                    socket.create_connection(("127.0.0.1", port)),
                )
                ends.extend((client, server))
                for source, sink in ((client, server), (server, client)):
                    options = {"changes": source is server}
                    threading.Thread(target=forward, args=(source, sink), kwargs=options).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept).start()
        yield f"nats://127.0.0.1:{listening.getsockname()[1]}"
        for end in (listening, *ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
    for end in ends:
        end.close()


def test_a_clock_that_was_set_back_is_not_waited_for(worker, js, nats_server, monkeypatch):
    """A key without a message is replaced after the time of a sender, whatever the times of messages are."""
    monkeypatch.setattr(unique_module, "_SENDING_S", 1.0)
    with _times_ahead(nats_server.port) as url:
        sender = Worker(url, name=worker.name, program="tests")

        @sender.task(name="work", unique="queued")
        def work() -> None: ...

        first = work.delay()
        key = js.get_stream(UNIQUE_STREAM).get_msg(last_by_subject="task-unique.>")
        assert key.data.decode() == first.id
        work.queue.withdraw(work.name, first.id)  # as if it was never stored
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(work.delay().id), daemon=True)
        thread.start()
        thread.join(20 * SCALE)
        assert found
        assert found != [first.id]
        shared_connection(url, name=worker.name).close()


@pytest.mark.parametrize("data", [b"\xff\xfe", b"", b">", b"*", b"a.b", b"a b", "\xe4".encode()])
@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_foreign_data_in_a_key_is_no_call(worker, js, monkeypatch, data, results):
    """It is replaced by the call, and reaches no subject: a wildcard would find the message of another call."""
    monkeypatch.setattr(unique_module, "_SENDING_S", 0.5)

    @worker.task(name="work", unique="until_done", results=results)
    def work(number: int) -> None: ...

    other, first = work.delay(1), work.delay(2)
    keys = js.get_stream(UNIQUE_STREAM)
    key = keys.get_msg(last_by_subject="task-unique.>")
    assert key.data.decode() == first.id
    js.publish(key.subject, data)
    second = work.delay(2)
    assert second.id not in {other.id, first.id}
    assert keys.get_msg(last_by_subject=key.subject).data.decode() == second.id
    assert js.get_stream("TASKS").info().state.messages == 3


def test_versions_with_other_defaults_have_one_key(worker, js, nats_server):
    """A worker with another default, or with one more parameter, frees the key of the call that it runs."""
    begun, release = threading.Event(), threading.Event()

    @worker.task(name="work", unique="queued")
    def work(number: int, size: int = 1, at: object = object()) -> None:
        del number, size, at

    newer = Worker(nats_server.url, name=worker.name, program="tests")

    @newer.task(name="work", unique="queued")
    def work_newer(number: int, size: int = 2, at: object = object(), more: str = "") -> None:
        del number, size, at, more
        begun.set()
        release.wait(20)

    first = work.delay(1)
    assert work.delay(1, 1).id == work.delay(1, size=1).id == work_newer.delay(1, 2).id == first.id
    with running(newer):
        assert begun.wait(20)
        second = work.delay(1)  # the call that runs may have read its data
        assert second.id != first.id
        release.set()
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert _keys(js) == 0


def test_a_call_of_another_version_can_be_cancelled(worker, nats_server, js):
    """Its arguments do not fit the function here, which computes no key of them."""

    @worker.task(name="work", unique="queued")
    def work(number: int) -> None: ...

    newer = Worker(nats_server.url, name=worker.name, program="tests")

    @newer.task(name="work", unique="queued")
    def work_newer(number: int, language: str) -> None: ...

    call = work_newer.delay(1, "de")
    assert work.result_of(call.id).cancel()
    assert js.get_stream("TASKS").info().state.messages == 0


def test_an_other_sender_is_waited_for(worker, js):
    """A sender that finds the key of one that is sending returns that call when it is stored."""

    @worker.task(unique="queued")
    def work() -> None: ...

    work.delay().cancel()
    record, at = work.record([], {})
    assert work.unique.claim(record) == record.id  # the other sender, before its message
    found = []
    thread = threading.Thread(target=lambda: found.append(work.delay().id))
    thread.start()
    time.sleep(0.5)
    assert not found
    worker.queues.put(NewCall(work.queue, work.name, work.states, record, at))
    thread.join(20)
    assert found == [record.id]
    assert js.get_stream("TASKS").info().state.messages == 1


_CODE = """
worker = Worker(name={name!r}, program="tests", concurrency=4)

@worker.task(name="work", unique={mode!r}, unique_by=["key"])
def work(key: int, value: int) -> None:
    record(f"{{key}} {{value}} begin")
    time.sleep(0.05)
    record(f"{{key}} {{value}} end")
"""


@pytest.mark.parametrize("mode", ["queued", "until_done"])
def test_the_last_value_is_seen_under_kills(worker, js, nats_server, tmp_path, mode):
    """Of concurrent senders and killed workers: at most one call of a key waits, and the last wish is done."""

    @worker.task(name="work", unique=mode, unique_by=["key"])
    def work(key: int, value: int) -> None:
        del key, value

    code = _CODE.format(name=worker.name, mode=mode).replace(
        "concurrency=4)", "concurrency=4)\nworker.queue('default', ack_wait=3)"
    )
    stream = None
    with ExitStack() as stack:
        programs = [
            stack.enter_context(WorkerProgram(code, nats_server.url, tmp_path)) for _ in range(3)
        ]
        stream = js.get_stream("TASKS")
        ids: list[set[str]] = [set() for _ in range(3)]

        def send(values: range) -> None:
            for value in values:
                ids[value % 3].add(work.delay(value % 3, value).id)

        senders = [
            threading.Thread(target=send, args=[range(first, first + 60)]) for first in (0, 60, 120)
        ]
        for sender in senders:
            sender.start()
        for program in programs[:2]:
            time.sleep(0.5)
            os.kill(program.process.pid, signal.SIGKILL)
        for sender in senders:
            sender.join()
        wait_until(lambda: stream.info().state.messages == 0, 40)
    assert _keys(js) == 0
    done = {line.rsplit(" ", 1)[0] for line in programs[0].runs if line.endswith("end")}
    assert {line.split()[0] for line in done} == {"0", "1", "2"}
    # Each call that was stored has run, and many were not stored.
    sent = sum(map(len, ids))
    assert len(done) == sent
    assert sent < 180


def test_options_are_checked(worker):
    """Wrong modes and parameters are refused where the task is defined; eager calls run all."""

    def work(customer: int) -> int:
        return customer

    for options in (
        {"unique": "yes"},
        {"unique": True},
        {"unique_by": ["customer"]},
        {"unique": "queued", "unique_by": ["other"]},
        {"unique": "queued", "unique_by": "customer"},
    ):
        with pytest.raises(InvalidOptionError):
            worker.task(**options)(work)
    task = worker.task(unique="queued", results="RESULTS")(work)
    with pytest.raises(TaskArgumentsError):
        task.delay()
    with worker.eager():
        assert [task.delay(1).get(), task.delay(1).get()] == [1, 1]
    assert worker.test_client().deliver(task, {"args": [3]}).result == 3
