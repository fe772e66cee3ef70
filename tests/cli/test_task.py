"""``jsm task``: the calls of tasks with results, from what workers have stored."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest
from fixtures.threads import wait_until
from fixtures.worker import running

from jetstream_sync import StreamNotFoundError, shared_connection
from jetstream_sync.workers import Backoff, Worker, chain, group


@pytest.fixture
def calls(nats_server, js):
    """The ids of a call that has succeeded, one that has failed, one that waits, and a later one; by their names."""
    worker = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")

    @worker.task(name="add", results="RESULTS")
    def add(a: int, *, b: int) -> int:
        return a + b

    @worker.task(name="shop-fail", results="OTHERS", retry=Backoff(first=0.1, attempts=2))
    def fail(secret: str) -> None:
        raise LookupError(f"no {len(secret)}\n\x1b[31m")

    found = {"done": add.delay(1, b=2).id, "failed": fail.delay("hidden-word").id}
    with running(worker):
        wait_until(lambda: add.result_of(found["done"]).status == "SUCCESSFUL")
        wait_until(lambda: fail.result_of(found["failed"]).status == "FAILED")
    found["waiting"] = add.delay(3, b=4).id
    js.key_value("OTHERS").put("a", b"no call")
    yield found
    shared_connection(nats_server.url, name=worker.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS", "KV_OTHERS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_calls_are_listed(jsm, js, calls):
    """All buckets that workers have created are read, the last change first; the filters select."""

    def ids(*options: str) -> list[str]:
        return [item["id"] for item in jsm("task", "ls", "-j", *options).ok().json]

    assert set(ids()) == set(calls.values())
    assert ids()[0] == calls["waiting"]
    assert ids("--failed") == [calls["failed"]]
    assert ids("--status", "successful") == [calls["done"]]
    assert ids("--name", "SHOP") == [calls["failed"]]
    assert set(ids("--bucket", "RESULTS")) == {calls["done"], calls["waiting"]}
    assert set(ids("--since", "1h")) == set(calls.values())
    assert ids("--since", "2099-01-01") == []
    assert ids("--limit", "1") == [calls["waiting"]]
    found = jsm("task", "ls", "--limit", "1").ok()
    assert "2 older calls are left out" in found.err
    assert "1 record cannot be read as a call: OTHERS > a" in found.err
    failed = jsm("task", "show", "a")
    assert (failed.status, failed.out) == (1, "")
    assert "the bucket has other data for the call" in failed.err
    # A bucket that an earlier version has created is not marked.
    config = js.get_stream("KV_RESULTS").cached_info.config
    js.update_stream(replace(config, metadata={}))
    assert ids() == [calls["failed"]]
    assert len(ids("--bucket", "RESULTS", "--bucket", "OTHERS")) == 3
    assert jsm("task", "ls", "--bucket", "NONE").status == 3
    assert jsm("task", "ls", "--failed", "--status", "READY").status == 2


def test_a_record_of_another_program_ends_no_listing(jsm, js, calls):
    """A time that is none, or has no offset, is not shown, and the other calls are."""
    bucket = js.key_value("RESULTS")
    record = json.loads(bucket.get(calls["waiting"]).value)
    for key, changes in {
        "never": {"enqueued_at": "never"},
        "local": {"started_at": "2026-01-01T00:00:00", "finished_at": "2026-01-01T00:00:00Z"},
    }.items():
        bucket.put(key, json.dumps({**record, "id": key, **changes}).encode())
    shown = jsm("task", "ls").ok().out
    assert {"never", "local", *calls.values()} <= set(shown.split())
    assert "never" in jsm("task", "show", "never").ok().out
    assert jsm("task", "show", "local", "-j").ok().json["started_at"] == "2026-01-01T00:00:00"


def test_no_buckets_is_not_no_calls(jsm, js):
    """Without a bucket of results, the calls are unknown."""
    del js
    found = jsm("task", "ls")
    assert found.status == 3
    assert "--bucket" in found.err


def test_a_call_is_shown(jsm, calls):
    """State, times, arguments and return value; the errors of each attempt, without control characters."""
    done = jsm("task", "show", calls["done"]).ok().out
    for text in ("SUCCESSFUL", '{"b":2}', "[1]", "Return Value: 3", "Bucket: RESULTS", "Finished"):
        assert text in done
    failed = jsm("task", "show", calls["failed"]).ok().out
    for text in ("FAILED", "Failed attempt 2 of 2", "LookupError", "no 11", "hidden-word"):
        assert text in failed
    assert "\x1b" not in failed
    document = jsm("task", "show", "-j", calls["failed"]).ok().json
    assert [item["exception_class_path"] for item in document["errors"]] == [
        "builtins.LookupError"
    ] * 2
    assert jsm("task", "show", calls["waiting"]).ok().out.count("READY") == 1
    assert jsm("task", "show", "unknown").status == 3
    assert jsm("task", "show", "no key!").status == 3


@pytest.mark.parametrize(
    "command",
    [("task", "show"), ("task", "ls"), ("top", "--once", "--interval", "10ms", "--view", "tasks")],
)
@pytest.mark.parametrize("json", [(), ("-j",)], ids=["text", "json"])
def test_arguments_are_masked(jsm, calls, command, json):
    """With --mask, arguments and return values are in no output."""
    arguments = (calls["failed"],) if command[1] == "show" else ()
    found = jsm(*command, "--mask", *json, *arguments).ok()
    assert "hidden-word" not in found.out + found.err
    if command[1] == "show" or json:
        assert "***" in found.out


def test_top_shows_calls(jsm, calls):
    """The view of tasks has the calls of all marked buckets."""
    rows = jsm("top", "--once", "--interval", "10ms", "-j", "--view", "tasks").ok().json["tasks"]
    assert {row["id"]: row["status"] for row in rows} == {
        calls["done"]: "SUCCESSFUL",
        calls["failed"]: "FAILED",
        calls["waiting"]: "READY",
    }
    text = jsm("top", "--once", "--interval", "10ms", "--view", "tasks").ok().out
    assert "LookupError" in text


def test_the_calls_of_a_flow_are_shown(jsm, js, nats_server):
    """The last call of a chain shows all of them, with members of groups, also before it has begun."""
    worker = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests")

    @worker.task(name="add", results="RESULTS")
    def add(a: int, b: int) -> int:
        return a + b

    @worker.task(name="total", results="RESULTS")
    def total(values: list[int]) -> int:
        return sum(values)

    chained = chain(add.call(1, 2), add.call(98765)).delay()
    assert "98765" not in jsm("task", "ls", "-j", "--mask").ok().out
    grouped = group([add.call(1, number) for number in range(2)], then=total.call()).delay()
    waiting = jsm("task", "show", chained.id).ok().out
    assert f"add {chained.id}-c1: READY" in waiting
    with running(worker):
        assert (chained.get(timeout=20), grouped.get(timeout=20)) == (98768, 3)
    lines = jsm("task", "show", "-j", chained.id).ok().json["flow"]
    assert lines == [f"add {chained.id}-c1: SUCCESSFUL", f"add {chained.id}: SUCCESSFUL"]
    found = jsm("task", "show", grouped.id).ok().out
    assert f"total {grouped.id}: SUCCESSFUL" in found
    # A call whose flow cannot be read is shown without it.
    js.key_value("RESULTS").put(f"{chained.id}-c1", b"no call")
    left = jsm("task", "show", "-j", chained.id).ok().json
    assert (left["status"], "flow" in left) == ("SUCCESSFUL", False)
    shared_connection(nats_server.url, name=worker.name).close()
    for stream in js.stream_names():
        if stream == "TASKS" or stream.startswith("KV_RESULTS"):
            js.delete_stream(stream)
