"""The states of calls whose bucket, message, task or process is lost."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.rawnats import RawClient
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until
from fixtures.worker import FAST, WorkerProgram, running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    KeyNotFoundError,
    StreamNotFoundError,
    errors,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, DeadLetters, TaskError, Worker
from jetstream_sync.workers.call_messages import (
    CallEvent,
    CallMessage,
)
from jetstream_sync.workers.calls import (
    CallBucket,
    NewCall,
)
from jetstream_sync.workers.logs import log

pytestmark = pytest.mark.timeout(110)


@dataclass
class Share:
    part: float


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose connection for sending, stream and bucket end with the test."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_R"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def waiting(js: JetStream, stream: str = "TASKS") -> int:
    """Return the number of messages of a stream; 0: there is none."""
    return js.get_stream(stream).info().state.messages if stream in js.stream_names() else 0


def test_a_deleted_bucket_of_results_is_created_again(worker, js):
    """By the next call, and by the worker that ends a run; neither is started again, nothing runs twice."""
    started, goes_on = threading.Event(), threading.Event()
    runs: list[int] = []

    @worker.task(name="bill", results="R", retry=FAST)
    def bill(number: int) -> int:
        runs.append(number)
        started.set()
        assert goes_on.wait(30)
        return number

    with running(worker):
        first = bill.delay(1)
        assert started.wait(20 * SCALE)
        js.delete_stream("KV_R")
        goes_on.set()
        wait_until(lambda: waiting(js) == 0, 20)
        assert first.get(20 * SCALE) == 1
        js.delete_stream("KV_R")
        assert bill.delay(2).get(20 * SCALE) == 2
        # Also the worker finds no bucket at the start of a run.
        call = bill.record((3,), {})[0]
        js.delete_stream("KV_R")
        message = NewCall(bill.queue, "bill", bill.states, call).message()
        bill.queue.store(message)
        wait_until(lambda: waiting(js) == 0, 20)
        assert bill.result_of(call.id).get(20 * SCALE) == 3
    assert runs == [1, 2, 3]
    assert waiting(js, "DEAD") == 0


def test_get_without_waiting_returns_what_a_call_has_returned(worker):
    """A timeout of 0 raises only if the call has not ended."""
    goes_on = threading.Event()

    @worker.task(results="R")
    def bill(number: int) -> int:
        assert goes_on.wait(30)
        return number

    with running(worker):
        call = bill.delay(1)
        with pytest.raises(TimeoutError, match=f"task {call.id} has not ended in time"):
            call.get(0)
        goes_on.set()
        assert call.get(20 * SCALE) == 1
        assert call.get(0) == 1
        assert bill.result_of(call.id).get(0) == 1


def test_get_ends_at_its_timeout_when_the_server_is_silent(fresh_server):
    """It does not wait for the timeout of the requests, which is longer."""
    worker = Worker(fresh_server.url, name=uuid.uuid4().hex, program="tests")

    @worker.task(results="R")
    def bill(number: int) -> int:
        return number

    other = Worker(fresh_server.url, name=worker.name, program="tests")
    call = bill.delay(1)
    try:
        with pytest.raises(TimeoutError):
            call.get(0.1)
        # The first request of another process.
        first = other.task(name=bill.name, results="R")(bill.function).result_of(call.id)
        with paused(fresh_server):
            for timeout, result in ((0.0, call), (0.5, call), (0.3, first), (None, call)):
                # Without a limit for the end of the call, that of a request holds.
                limit = 5.0 if timeout is None else timeout + 0.25
                started = time.monotonic()
                with pytest.raises(TimeoutError):
                    result.get(timeout)
                assert time.monotonic() - started < limit + 0.3 * SCALE
    finally:
        shared_connection(fresh_server.url, name=worker.name).close()


def test_the_requests_of_a_first_get_share_its_timeout(worker, nats_server):
    """Also when the server takes long for each of them."""

    @worker.task(name="bill", results="R")
    def bill() -> None:
        pass

    call = bill.delay()
    with closing(FaultProxy(nats_server.port)) as proxy:
        other = Worker(proxy.url, name=worker.name, program="tests")
        first = other.task(name="bill", results="R")(bill.function).result_of(call.id)
        shared_connection(proxy.url, name=worker.name).flush()  # the results use it
        proxy.slow(Toward.CLIENT, delay=1.2)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            first.get(1.5)
        assert time.monotonic() - began < 1.5 + 0.25 + 0.2 * SCALE
        shared_connection(proxy.url, name=worker.name).close()


def test_a_call_whose_sender_was_killed_before_its_message_is_sent_again(worker, js):
    """By a second call with its id, at any time later; a call that waits or has started is not."""
    runs: list[str] = []

    @worker.task(name="bill", results="R")
    def bill(text: str) -> str:
        runs.append(text)
        return text

    bill.queue.prepare()
    record, _ = bill.record(("first",), {}, task_id="same")
    assert bill.states.add(replace(record, enqueued_at="2026-01-01T00:00:00+00:00"))
    for _ in range(2):
        call = bill.apply_async(("second",), task_id="same")
        assert waiting(js) == 1
    with running(worker):
        assert call.get(20 * SCALE) == "first"
        assert bill.apply_async(("third",), task_id="same").get(20 * SCALE) == "first"
    assert runs == ["first"]


def test_a_call_with_the_id_of_an_expired_one_runs(worker, js):
    """Also while the stream remembers the id: the bucket forgets earlier."""
    runs: list[int] = []

    @worker.task(name="bill", results="R")
    def bill(number: int) -> int:
        runs.append(number)
        return number

    with running(worker):
        for number in (1, 2):
            assert bill.apply_async((number,), task_id="same").get(20 * SCALE) == number
            wait_until(lambda: waiting(js) == 0, 20)
            js.key_value("R").purge("same")
    assert runs == [1, 2]


def test_a_number_that_json_does_not_have_cannot_be_stored(worker):
    """A return value that would arrive as another one fails the call."""

    @worker.task(name="divide", results="R")
    def divide(number: float) -> dict[str, object]:
        return {"none": None, "quotients": (1.0, number * 1e300)}

    @worker.task(name="share", results="R")
    def share(number: float) -> list[Share]:
        return [Share(number * 1e300)]

    with running(worker):
        assert divide.delay(1.0).get(20 * SCALE) == {"none": None, "quotients": [1.0, 1e300]}
        for task in (divide, share):
            with pytest.raises(TaskError, match="inf cannot be a number in JSON"):
                task.delay(1e300).get(20 * SCALE)


def test_the_calls_of_a_deleted_stream(worker, js):
    """Their message is lost: they are sent again with the same id, and unknown ones are not found."""

    @worker.task(name="bill", results="R")
    def bill(number: int) -> int:
        return number

    bill.apply_async((1,), task_id="first")
    js.delete_stream("TASKS")
    unknown = bill.result_of("unknown")
    with pytest.raises(KeyNotFoundError):
        _ = unknown.status
    assert not unknown.cancel()
    again = bill.apply_async((1,), task_id="first")
    assert waiting(js) == 1
    with running(worker):
        assert again.get(20 * SCALE) == 1


def test_a_state_that_was_stored_without_its_reply_is_that_of_the_run(worker, js):
    """The repeated update is refused, since the first one was stored."""

    @worker.task(name="bill", results="R")
    def bill() -> None:
        pass

    call = bill.apply_async(task_id="call")
    states = bill.states
    record, revision, _ = states.change(call.id, None, lambda found: found.after(CallEvent.BEGIN))
    ended = record.after(CallEvent.SUCCEED)
    js.key_value("R").update(call.id, ended.to_json(), revision)
    assert states.store(ended, revision)
    assert not states.store(record.after(CallEvent.RETRY), revision)
    assert call.status == "SUCCESSFUL"


@pytest.mark.server(">=2.12")
def test_a_later_call_is_not_sent_a_second_time(worker):
    """Its schedule is its message, and a lost one is made for the time that was asked for at first."""

    @worker.task(name="bill", results="R")
    def bill() -> None:
        pass

    for task_id in ("stored", "lost"):
        bill.apply_async(task_id=task_id, countdown=600)
    bill.queue.withdraw("bill", "lost")
    for task_id in ("stored", "lost"):
        record = bill.states.read(task_id)
        bill.queue.store = sent_at = Sent()  # the stream would drop the same id for two minutes
        bill.apply_async(task_id=task_id)
        del bill.queue.store
        assert sent_at.times == ([] if task_id == "stored" else [record.eta])


class Sent:
    """Records the times of calls."""

    def __init__(self) -> None:
        self.times: list[str] = []

    def __call__(self, message: CallMessage) -> None:
        assert message.at is not None
        self.times.append(message.at.isoformat())


def test_a_call_without_a_record_is_ready_and_can_be_cancelled(worker, js):
    """The record of a call that waits may have expired: the message has what is needed."""
    runs: list[int] = []

    @worker.task(name="bill", results="R")
    def bill(number: int) -> int:
        runs.append(number)
        return number

    calls = [bill.delay(number) for number in range(2)]
    for call in calls:
        js.key_value("R").purge(call.id)
    assert [call.status for call in calls] == ["READY", "READY"]
    assert calls[0].cancel()
    assert waiting(js) == 1
    with running(worker):
        assert calls[1].get(20 * SCALE) == 1
        with pytest.raises(TaskError, match="cancelled"):
            calls[0].get(20 * SCALE)
    assert runs == [1]
    unknown = bill.result_of("unknown")
    assert not unknown.cancel()
    with pytest.raises(KeyNotFoundError):
        _ = unknown.status


def test_a_timeout_may_be_a_timedelta(worker):
    """A value of another type is named before the bucket is opened."""

    @worker.task(name="bill", results="R")
    def bill() -> None:
        pass

    call = bill.delay()
    with pytest.raises(TimeoutError):
        call.get(timeout=timedelta(milliseconds=100))
    for wrong in ("5", float("nan"), True):
        with pytest.raises(InvalidOptionError, match="timeout"):
            call.get(timeout=wrong)
    with pytest.raises(InvalidOptionError, match="name"):
        worker.schedule(7, subject="tasks.x", every=60)(lambda: b"")


@pytest.mark.parametrize("results", ["R", None])
def test_a_message_of_another_program_cannot_end_its_call(worker, js, results):
    """A status in it does not count, and a text as its time to expire makes a dead letter at once."""
    runs: list[int] = []

    @worker.task(name="bill", results=results)
    def bill(number: int) -> None:
        runs.append(number)

    bill.queue.prepare()
    subject = f"{bill.queue.prefix}bill"
    js.publish(f"{subject}.ended", b'{"args": [1], "status": "SUCCESSFUL"}')
    js.publish(f"{subject}.expires", b'{"args": [2], "expires": "tomorrow"}')
    with running(worker):
        wait_until(lambda: (waiting(js), waiting(js, "DEAD")) == (0, 1), 20)
    assert runs == [1]
    headers = js.get_stream("DEAD").get_msg(1).headers
    assert headers["Dead-Attempts"] == "1"
    assert "'expires' must be a number of seconds" in headers["Dead-Reason"]


def test_a_call_of_an_unknown_task_has_failed(worker, nats_server, js):
    """It is FAILED when its dead letter is stored, so nothing waits for its result for ever."""
    worker.queue("default", unknown_task_grace=0)

    @worker.task(name="known", results="R")
    def known() -> None:
        pass

    other = Worker(nats_server.url, name=worker.name, program="tests")

    @other.task(name="gone", results="R")
    def gone() -> None:
        pass

    call, ended = gone.delay(), gone.delay()
    # A process that has the task was killed after the run, before its acknowledgement.
    gone.states.store(gone.states.read(ended.id).after(CallEvent.BEGIN).after(CallEvent.SUCCEED), 2)
    with running(worker):
        with pytest.raises(TaskError, match="unknown task 'gone'"):
            call.get(20 * SCALE)
        wait_until(lambda: (waiting(js), waiting(js, "DEAD")) == (0, 1), 20)
    assert ended.status == "SUCCESSFUL"


def test_a_failure_that_cannot_be_stored_in_a_stop_is_no_dead_letter(worker, js, monkeypatch):
    """The message is returned, and the next worker runs the call."""
    started = threading.Event()
    runs = []

    @worker.task(name="fails", results="R", retry=Backoff(attempts=1))
    def fails(ctx: Context) -> None:
        runs.append(1)
        started.set()
        if len(runs) == 1:
            wait_until(lambda: ctx.stopping)
            raise ValueError("boom")

    call = fails.delay()
    with running(worker) as run:
        assert started.wait(20)
        with monkeypatch.context() as patch:
            patch.setattr(CallBucket, "store", unavailable)
            run.stop()
    assert (call.status, waiting(js), waiting(js, "DEAD")) == ("RUNNING", 1, 0)
    with running(worker):
        wait_until(lambda: call.status == "SUCCESSFUL", 20)
    assert (len(runs), waiting(js, "DEAD")) == (2, 0)


def unavailable(*_: object) -> bool:
    """Stand for a bucket that has no leader."""
    raise errors.TimeoutError("the bucket has no leader")


@pytest.mark.parametrize("call", [b"a@b", b"\xc3\xa9", b"\xff", b"*", b"stored"])
@pytest.mark.parametrize("is_known", [True, False], ids=["task", "unknown task"])
def test_a_message_that_cannot_be_a_call_is_a_dead_letter(nats_server, js, worker, call, is_known):
    """Its id cannot be a key, or the bucket has other data for it."""
    runs = []
    worker.queue("default", unknown_task_grace=0)

    @worker.task(name="known", results="R", retry=Backoff(first=60))
    def known() -> None:
        runs.append(1)

    known.delay()
    bucket = js.key_value("R")
    bucket.put("stored", b"of another program")
    subject = f"tasks.{worker.name}.default.{'known' if is_known else 'gone'}."
    with running(worker):
        client = RawClient(nats_server.port)
        client.send(b"PUB %s%s 2\r\n{}\r\n" % (subject.encode(), call))
        wait_until(lambda: waiting(js, "DEAD") == 1)
        client.close()
        wait_until(lambda: waiting(js) == 0)
    assert runs == [1]
    assert bucket.get("stored").value == b"of another program"
    assert len(bucket.keys()) == 2


@pytest.mark.parametrize("unique", [None, "until_done"])
def test_a_dead_letter_that_is_requeued_is_a_call_of_its_own(worker, js, unique):
    """It runs with all attempts, and has its own state; that of the call that has failed stays."""
    attempts: list[int] = []

    @worker.task(name="bill", results="R", retry=FAST, unique=unique)
    def bill(number: int, ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if len(attempts) < 6:
            raise ValueError("the bank is closed")
        return number

    with running(worker):
        call = bill.delay(17)
        with pytest.raises(TaskError, match="the bank is closed"):
            call.get(20 * SCALE)
        wait_until(lambda: waiting(js, "DEAD") == 1)
        letters = DeadLetters(js)
        letters.requeue(*letters.find())
        wait_until(lambda: len(attempts) == 6)
        wait_until(lambda: waiting(js) == 0)
        assert attempts == [1, 2, 3, 1, 2, 3]
        assert call.status == "FAILED"
        (again,) = [key for key in js.key_value("R").keys() if key != call.id]  # noqa: SIM118
        assert again.startswith(f"{call.id}-")
        assert bill.result_of(again).get(20 * SCALE) == 17
        assert waiting(js, "DEAD") == 1
    assert worker.verify() == []


#: A call that another program has sent or stored, without its id.
FOREIGN: dict[str, Any] = {
    "task": "known",
    "status": "READY",
    "args": [],
    "kwargs": {},
    "enqueued_at": "2026-11-29T08:00:00+00:00",
}
#: The place of a call in a flow, and one that it must have.
PLACE = {"queue": "default", "handler": "known", "results": "R"}


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "other"},
        {"id": "a b"},
        {"args": "no list"},
        {"flow": {**PLACE, "began": [5]}},
        {"flow": {**PLACE, "then": [{**FOREIGN, "id": "next"}]}},
        {"flow": {**PLACE, "members": [{**FOREIGN, "id": "member"}]}},
    ],
    ids=["id", "no id", "arguments", "begin", "next call", "member"],
)
def test_a_record_of_another_version_is_given_back(worker, js, changes):
    """The function does not run, no other call is changed, and the record may be that of a newer process."""
    runs: list[int] = []

    @worker.task(name="known", results="R", retry=Backoff(attempts=1))
    def known(ctx: Context) -> int:
        runs.append(ctx.attempt)
        return 1

    other = known.apply_async(task_id="other", countdown=3600)
    call = known.apply_async(task_id="mine")
    bucket = js.key_value("R")
    before, wanted = bucket.get("other").value, bucket.get("mine").value
    bucket.put("mine", json.dumps({**FOREIGN, "id": "mine", **changes}).encode())
    with running(worker):
        parked = js.get_stream("TASKS")
        wait_until(lambda: parked.info().state.last_seq > 3)  # given back, and delivered again
        assert not runs
        assert not waiting(js, "DEAD")
        bucket.put("mine", wanted)
        assert call.get(30 * SCALE) == 1
    assert runs == [1]
    assert bucket.get("other").value == before
    assert other.status == "READY"


@pytest.mark.parametrize("results", [None, "R"])
@pytest.mark.parametrize(
    "sent", [{"args": "abc"}, {"args": {"a": 1}}, {"kwargs": [["a", 1]]}], ids=str
)
def test_a_text_is_no_list_of_arguments(worker, js, results, sent):
    """It would be one argument for each of its letters."""
    runs: list[object] = []

    @worker.task(name="known", results=results, retry=Backoff(attempts=1))
    def known(*args: object, **kwargs: object) -> None:
        runs.append((args, kwargs))

    known.queue.prepare()
    js.publish(known.queue.address("known", "mine").now, json.dumps(sent).encode())
    with running(worker):
        wait_until(lambda: waiting(js, "DEAD") == 1)
        wait_until(lambda: waiting(js) == 0)
    assert not runs


def test_a_record_without_a_valid_time_is_not_sent(worker, js):
    """The sender of the same id gets an error that names it, and the record is kept."""

    @worker.task(name="known", results="R")
    def known() -> None: ...

    known.apply_async(task_id="other").cancel()
    bucket = js.key_value("R")
    bucket.put("mine", json.dumps({**FOREIGN, "id": "mine", "eta": "soon"}).encode())
    with pytest.raises(errors.InvalidResponseError, match="call mine has no time to start"):
        known.apply_async(task_id="mine")
    assert waiting(js) == 0
    for data in (b'["x"]', b'"abc"', b"[1, []]", b"5", b"[[]]"):
        bucket.put("mine.=progress", data)
        assert known.result_of("mine").progress is None


class UntoldError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file", "menu\udce9.txt"), r"'menu\udce9.txt'"),
        (UnicodeError("\ud800 in a name"), r"\ud800 in a name"),
        (UntoldError(), "<exception str() failed>"),
    ],
    ids=["name of a file", "surrogate", "str() fails"],
)
def test_a_call_ends_whatever_the_text_of_its_error(worker, js, error, text, monkeypatch):
    """What UTF-8 does not have is escaped in the record and in the dead letter."""
    # pytest cannot send captured records with such a text between processes.
    monkeypatch.setattr(log.logger, "disabled", True)

    @worker.task(name="fails", results="R", retry=FAST)
    def fails() -> None:
        raise error

    with running(worker), pytest.raises(TaskError) as caught:
        fails.delay().get(20 * SCALE)
    assert f"{type(error).__qualname__}: " in str(caught.value)
    assert text in str(caught.value)
    letters = js.get_stream("DEAD")
    wait_until(lambda: letters.info().state.messages == 1)
    assert text.strip("<>") in letters.get_msg(1).headers["Dead-Reason"]


def test_a_call_that_is_ended_in_its_last_attempt_is_no_dead_letter(
    worker, nats_server, js, tmp_path
):
    """It is CANCELLED, and its message is acknowledged."""
    code = """
worker = Worker(name="NAME", program="tests", dead_letters="DEAD", concurrency=1)
worker.queue("default", pool="processes")

@worker.task(name="sleep", results="R", retry=Backoff(first=0.1, attempts=1))
def sleep(seconds: float):
    record(seconds)
    time.sleep(seconds)
"""

    @worker.task(name="sleep", results="R")
    def sleep(seconds: float) -> None:
        del seconds

    call = sleep.delay(60.0)
    with WorkerProgram(code.replace("NAME", worker.name), nats_server.url, tmp_path) as program:
        program.wait_runs(1)
        assert call.cancel(terminate=True)
        wait_until(lambda: waiting(js) == 0, 20)
        program.stop()
    assert (call.status, waiting(js, "DEAD")) == ("CANCELLED", 0)
