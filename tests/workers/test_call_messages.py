"""The messages of calls as the stream has them: other versions of a program read them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import running

from jetstream_sync import JetStream, StreamNotFoundError, shared_connection
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, Worker, chain, group

pytestmark = pytest.mark.timeout(60)

AT = datetime(2100, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
NULLS = dict.fromkeys(("return_value", "started_at", "finished_at", "last_attempted_at"))


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker that does not run; what it stores ends with the test."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests")
    found.queue("default", urgent=True)
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("TASKS", "TASK_UNIQUE", "KV_R", "KV_R-flows"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def stored(js: JetStream, stream: str = "TASKS") -> list[tuple[str, dict[str, str], Any]]:
    """Return subject, headers and payload of the messages of a stream."""
    found = []
    for msg in js.get_stream(stream).get_last_msgs(">"):
        headers = dict(msg.headers or {})
        if headers.pop("Nats-Rollup", "sub") != "sub":  # the server adds it to schedules
            raise AssertionError(headers)
        if "Nats-Schedule" in headers:
            headers["Nats-Schedule"] = headers["Nats-Schedule"].replace("Z", "+00:00")
        found.append((msg.subject, headers, json.loads(msg.data)))
    return found


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"expires": AT}, {"expires": AT.timestamp()}),
        ({"eta": AT}, {}),
        ({"eta": AT, "expires": AT}, {"expires": AT.timestamp()}),
        ({"priority": "urgent"}, {}),
        ({"priority": "urgent", "eta": AT}, {}),
    ],
)
@pytest.mark.parametrize("unique", [None, "queued"])
def test_a_call_without_results(worker, js, options, more, unique):
    @worker.task(name="bill", unique=unique)
    def bill(number: int, text: str = "") -> None: ...

    bill.apply_async([1], {"text": "ö"}, task_id="x", **options)
    queue = "default-urgent" if "priority" in options else "default"
    target = f"tasks.{worker.name}.{queue}.bill.x"
    subject, headers = target, {"Nats-Msg-Id": target, "Nats-Expected-Stream": "TASKS"}
    if "eta" in options:
        subject, headers = f"{target}.later", {"Nats-Msg-Id": target}
        headers |= {"Nats-Schedule": f"@at {AT.isoformat()}", "Nats-Schedule-Target": target}
    assert stored(js) == [(subject, headers, {"args": [1], "kwargs": {"text": "ö"}, **more})]


@pytest.mark.parametrize("is_later", [False, True])
def test_a_call_with_results_is_its_record(worker, js, is_later):
    """Its record in the bucket is the payload of the message."""

    @worker.task(name="bill", results="R")
    def bill(number: int) -> None: ...

    times = {"countdown": 1000, "expires": timedelta(hours=1)} if is_later else {}
    bill.apply_async([1], task_id="x", priority="urgent", **times)
    [(subject, headers, payload)] = stored(js)
    target = f"tasks.{worker.name}.default-urgent.bill.x"
    assert headers["Nats-Msg-Id"] == target
    assert headers["Worker-Revision"] == str(js.key_value("R").get("x").revision)
    assert subject == (f"{target}.later" if is_later else target)
    assert json.loads(js.key_value("R").get("x").value) == payload
    enqueued_at = payload.pop("enqueued_at")
    assert datetime.fromisoformat(enqueued_at).tzinfo is not None
    if is_later:
        at = datetime.fromisoformat(payload.pop("eta"))
        text = headers["Nats-Schedule"].removeprefix("@at ")
        assert datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z") == at
        assert headers["Nats-Schedule-Target"] == target
        now = datetime.fromisoformat(enqueued_at)
        assert abs(payload.pop("expires") - now.timestamp() - 3600) < 1
        assert abs(at - now - timedelta(seconds=1000)) < timedelta(seconds=1)
    assert payload == {
        **NULLS,
        "id": "x",
        "task": "bill",
        "status": "READY",
        "args": [1],
        "kwargs": {},
        "errors": [],
        "worker_ids": [],
        "priority": "urgent",
    }


def test_a_chain_is_one_message(worker, js):
    @worker.task(name="bill", results="R", steps=True)
    def bill(number: int) -> int: ...

    chain(bill.call(1), bill.call()).delay(task_id="x")
    [(subject, headers, payload)] = stored(js)
    assert subject == headers["Nats-Msg-Id"] == f"tasks.{worker.name}.default.bill.x-c1"
    assert payload["args"] == [1]
    flow = payload["flow"]
    place = {"queue": "default", "handler": "bill", "results": "R", "steps": True}
    assert {name: flow[name] for name in place} == place
    assert [(item["id"], item["args"], item["flow"]["then"]) for item in flow["then"]] == [
        ("x", [], [])
    ]


def test_a_group_is_one_message(worker, js):
    @worker.task(name="bill", results="R")
    def bill(number: int) -> int: ...

    @worker.task(name="total", results="R")
    def total(numbers: list[int]) -> int: ...

    group([bill.call(1), bill.call(2)], then=total.call()).delay(task_id="x")
    [(subject, headers, payload)] = stored(js)
    assert subject == headers["Nats-Msg-Id"] == f"tasks.{worker.name}.default.total.x"
    assert [item["id"] for item in payload["flow"]["members"]] == ["x-m0", "x-m1"]


def test_the_message_that_begins_a_call_again(worker, js):
    """It has an id of its own, with the step, the first message, and a random end for a time."""

    @worker.task(name="nap", results="R", steps=True)
    def nap(ctx: Context) -> None:
        ctx.sleep(1000)

    nap.apply_async(task_id="x")
    later = f"tasks.{worker.name}.default.nap.x.later"
    with running(worker):
        wait_until(lambda: [item[0] for item in stored(js)] == [later], 20)
    [(_, headers, payload)] = stored(js)
    target = later.removesuffix(".later")
    start = f"{target}#sleep=#TASKS/tasks-{worker.name}-default/1/"
    assert headers["Nats-Msg-Id"].startswith(start)
    assert headers["Nats-Schedule-Target"] == target
    assert (payload["id"], payload["status"]) == ("x", "READY")
    assert len(payload["flow"]["began"]) == 2


def test_the_message_of_a_long_retry(worker, js):
    """It waits as a later call, and has its attempts and its first message in headers."""
    worker.queue("slow", park_after=1)

    @worker.task(name="fail", queue="slow", retry=Backoff(first=200, attempts=2))
    def fail() -> None:
        raise ZeroDivisionError

    fail.apply_async(task_id="x")
    later = f"tasks.{worker.name}.slow.fail.x.later"
    with running(worker):
        wait_until(lambda: [item[0] for item in stored(js)] == [later], 20)
    [(_, headers, payload)] = stored(js)
    target, origin = later.removesuffix(".later"), headers["Worker-Origin"]
    assert origin.startswith(f"TASKS/tasks-{worker.name}-slow/1/")
    assert headers["Nats-Msg-Id"] == f"parked:{origin}:1:1"
    assert headers["Nats-Schedule-Target"] == headers["Worker-Subject"] == target
    assert headers["Worker-Attempt"] == "1"
    assert payload == {"args": [], "kwargs": {}}


def test_a_call_that_runs_at_once_has_the_same_payload(worker):
    seen: list[tuple[str, bytes]] = []

    @worker.task(name="bill")
    def bill(_number: int, ctx: Context) -> None:
        seen.append((ctx.message.subject, ctx.message.data))

    with worker.eager():
        bill.apply_async([1], task_id="x", expires=AT)
    [(subject, data)] = seen
    assert subject == "tasks.eager.default.bill.x"
    assert json.loads(data) == {"args": [1], "kwargs": {}, "expires": AT.timestamp()}


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_first_run_of_a_call_reads_its_record_only_if_it_was_changed(
    worker, js, nc, is_changed
):
    """The message has the revision of the record, which the run replaces without reading it."""

    @worker.task(name="bill", results="R")
    def bill(number: int) -> int:
        return number

    result = bill.delay(7)
    bucket = js.key_value("R")
    if is_changed:
        bucket.put(result.id, bucket.get(result.id).value)
    reads = [
        nc.subscribe(f"$JS.API.{request}")
        for request in ("DIRECT.GET.KV_R.>", "STREAM.MSG.GET.KV_R")
    ]
    nc.flush()
    worker.run(burst=True)
    nc.flush()
    assert sum(requests.pending_msgs for requests in reads) == (1 if is_changed else 0)
    record = json.loads(bucket.get(result.id).value)
    assert (record["status"], record["return_value"]) == ("SUCCESSFUL", 7)


def test_the_result_of_an_ended_call_is_one_read(worker, nc):
    """A consumer is made only to wait for the end of a call."""

    @worker.task(name="bill", results="R")
    def bill(number: int) -> int:
        return number

    calls = [bill.delay(number) for number in range(5)]
    worker.run(burst=True)
    reads, others = nc.subscribe("$JS.API.STREAM.MSG.GET.KV_R"), nc.subscribe("$JS.API.CONSUMER.>")
    nc.flush()
    assert [call.get(timeout=10 * SCALE) for call in calls] == [0, 1, 2, 3, 4]
    nc.flush()
    assert (reads.pending_msgs, others.pending_msgs) == (5, 0)
    with pytest.raises(TimeoutError):
        bill.delay(5).get(0)
    nc.flush()
    assert others.pending_msgs > 0
