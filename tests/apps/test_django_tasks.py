"""The backend for Django's tasks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.threads import wait_until
from fixtures.worker import running

from jetstream_sync import APIError, InvalidOptionError, JetStream, ServerTooOldError
from jetstream_sync.workers import Backoff, TaskArgumentsError

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]

BACKEND = {
    "BACKEND": "jetstream_sync.django.tasks.JetStreamBackend",
    "QUEUES": ["default", "mail"],
    "OPTIONS": {
        "retry": Backoff(first=0.1, jitter=0.0, attempts=3),
        "unknown_task_grace": 0,
    },
}


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """The backend in the settings; the first task creates its stream and its bucket."""
    request.getfixturevalue("django_project")
    from django.test import override_settings

    from jetstream_sync.django.workers import default_worker, discover

    server = request.getfixturevalue("nats_server")
    request.getfixturevalue("js")  # which deletes the streams afterwards
    setting = {"servers": server.url, "name": "project", "dead_letters": "DEAD", "outbox": []}
    with override_settings(JETSTREAM=setting, TASKS={"default": BACKEND}):
        from fixtures import django_tasks  # the backend checks tasks when they are defined

        django_tasks.runs.clear()
        for item in (default_worker, discover):
            item.cache_clear()
        yield
        from jetstream_sync.django import connection

        connection().close()
    for item in (default_worker, discover):
        item.cache_clear()


def exceptions() -> Any:
    try:
        from django.tasks import exceptions
    except ImportError:
        from django_tasks import exceptions
    return exceptions


def worker() -> Any:
    from jetstream_sync.django.workers import find_worker

    return find_worker()


def test_tasks_and_their_results():
    """A task is ready, then done with its value, or failed with its error; each runs once."""
    from fixtures.django_tasks import add, fail, runs, times

    good, bad, context = add.enqueue(1, 2), fail.enqueue("no"), times.enqueue(text="x")
    assert good.status == "READY"
    assert add.get_result(good.id).status == "READY"
    with running(worker()):
        wait_until(lambda: len(runs) == 3)
        for item in (good, bad, context):
            wait_until(lambda item=item: item.refresh() or item.is_finished)
    assert sorted(runs, key=str) == [("no",), ("x", 1), (1, 2)]
    assert (good.return_value, context.return_value) == (3, ["x", 1])
    assert good.enqueued_at <= good.started_at <= good.finished_at
    assert good.args == [1, 2]
    assert good.attempts == 1
    assert bad.status == "FAILED"
    assert bad.errors[0].exception_class is ValueError
    assert "ValueError: no" in bad.errors[0].traceback


def last_message(js: JetStream) -> bytes:
    """Return the record of the task that was enqueued last."""
    stream = js.get_stream("TASKS")
    return stream.get_msg(stream.info().state.last_seq).data


def test_a_task_that_comes_again(js):
    """A task that has ended is not run again; one whose worker was killed is."""
    from fixtures.django_tasks import runs, times

    result = times.enqueue("x")
    message = last_message(js)
    with running(worker()):
        wait_until(lambda: result.refresh() or result.is_finished)
        js.publish(f"tasks.project.default.django-default.{result.id}", message)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
        assert runs == [("x", 1)]
        bucket = js.key_value("TASK_RESULTS")
        state = bucket.get(result.id).value.replace(b'"SUCCESSFUL"', b'"RUNNING"')
        bucket.put(result.id, state)
        js.publish(f"tasks.project.default.django-default.{result.id}", message)
        wait_until(lambda: len(runs) == 2)
    assert runs == [("x", 1), ("x", 2)]


def test_what_was_deleted_is_created_by_the_next_task(js):
    """The stream and the bucket; a task that is not stored has no result."""
    from fixtures.django_tasks import add, runs

    add.enqueue(1, 2)
    for stream in ("TASKS", "KV_TASK_RESULTS"):
        js.delete_stream(stream)
    add.enqueue(3, 4)
    config = js.get_stream("TASKS").cached_info.config
    js.update_stream(replace(config, max_msg_size=100))
    with pytest.raises(APIError):
        add.enqueue(5, 6)
    assert len(list(js.key_value("TASK_RESULTS"))) == 1
    with running(worker()):
        wait_until(lambda: runs == [(3, 4)], 20)
    js.delete_stream("TASKS")


def test_a_result_that_has_expired(js):
    """The task is run nevertheless: its message has everything."""
    from fixtures.django_tasks import add, runs

    result = add.enqueue(1, 2)
    js.key_value("TASK_RESULTS").purge(result.id)
    with pytest.raises(exceptions().TaskResultDoesNotExist):
        add.get_result(result.id)
    with running(worker()):
        wait_until(lambda: runs == [(1, 2)])


def test_a_task_that_does_not_exist(js):
    """Its message is a dead letter; only functions that are tasks can be called."""
    from fixtures.django_tasks import add

    add.enqueue(1)
    message = last_message(js)
    js.get_stream("TASKS").purge()
    for name, path in (("x", b"fixtures.django_tasks.gone"), ("y", b"os.abort")):
        changed = message.replace(b"fixtures.django_tasks.add", path)
        start = changed.index(b'"id"')
        changed = changed.replace(
            changed[start : changed.index(b",", start)], b'"id":"%b"' % name.encode()
        )
        js.publish(f"tasks.project.default.django-default.{name}", changed)
    with running(worker()):
        # A work queue: a message that is terminated is deleted.
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    dead = js.get_stream("DEAD")
    reasons = [dead.get_msg(seq).headers["Dead-Reason"] for seq in (1, 2)]
    assert all("the task cannot be found" in reason for reason in reasons), reasons


def test_what_disagrees_is_found(js):
    """Results are compared as states of other tasks are; a task that raises has failed without a dead letter."""
    from django.core.management import call_command
    from fixtures.django_tasks import add, fail

    done = [add.enqueue(1), fail.enqueue("no")]
    with running(worker()):
        for item in done:
            wait_until(lambda item=item: item.refresh() or item.is_finished)
        wait_until(lambda: worker().verify() == [])
    waiting = [add.enqueue(number) for number in range(2)]
    assert worker().verify() == []
    stream = js.get_stream("TASKS")
    stream.delete_msg(stream.info().state.last_seq)
    wanted = f"call {waiting[1].id} of task fixtures.django_tasks.add is READY, and no message"
    output = io.StringIO()
    with pytest.raises(SystemExit) as caught:
        call_command("jetstream_check", verify=True, stdout=output, stderr=io.StringIO())
    assert caught.value.code == 1
    assert output.getvalue() == f"{wanted} of it is stored\n"


def test_a_task_that_fails_in_a_transaction_leaves_no_row():
    """With ``atomic`` the transaction of a failed task is rolled back; that of a good one commits."""
    from django.test import override_settings
    from fixtures.django import clear, effects
    from fixtures.django_tasks import write

    backend = {**BACKEND, "OPTIONS": {"atomic": True}}
    with override_settings(TASKS={"default": backend}):
        good, bad = write.enqueue("good"), write.enqueue("bad")
        with running(worker()):
            for item in (good, bad):
                wait_until(lambda item=item: item.refresh() or item.is_finished, 20)
    assert (good.status, good.return_value, bad.status) == ("SUCCESSFUL", "good", "FAILED")
    assert bad.errors[0].exception_class is ValueError
    assert effects("default") == ["good"]
    clear("default")


def test_a_subclass_of_the_backend_has_its_tasks_run(monkeypatch):
    """A project adds to the backend; a backend that cannot be imported is named."""
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings
    from fixtures import django_tasks

    monkeypatch.setattr(django_tasks, "Backend", django_tasks.backend(), raising=False)
    own = {**BACKEND, "BACKEND": "fixtures.django_tasks.Backend"}
    with override_settings(TASKS={"default": own}):
        call = django_tasks.add.enqueue(3, 4)
        with running(worker()):
            wait_until(lambda: call.refresh() or call.is_finished)
        assert call.return_value == 7

        from jetstream_sync.django.workers import discover

        discover.cache_clear()
    with (
        override_settings(TASKS={"default": {"BACKEND": "fixtures.django_tasks.Missing"}}),
        pytest.raises(ImproperlyConfigured, match="Missing"),
    ):
        worker()


def test_the_result_of_a_queue_that_was_removed(monkeypatch):
    """It is none of this version, as that of a task that was removed; Django refuses tasks of unknown queues."""
    from fixtures.django_tasks import fail

    result = fail.enqueue("no")
    backend = fail.get_backend()
    monkeypatch.setattr(backend, "queues", {"default"})
    with pytest.raises(exceptions().TaskResultDoesNotExist, match="not valid"):
        backend.get_result(result.id)


def test_a_queued_task_can_be_cancelled(js):
    """It does not run, and its result has failed."""
    from fixtures.django_tasks import add, runs

    result = add.enqueue(1)
    assert result.task.get_backend().cancel(result.id)
    assert add.get_result(result.id).status == "FAILED"
    other = add.enqueue(2)
    with running(worker()):
        wait_until(lambda: other.refresh() or other.is_finished)
    assert runs == [(2,)]
    assert not other.task.get_backend().cancel(other.id)
    assert js.get_stream("TASKS").info().config.retention == "workqueue"


def test_what_is_refused():
    """Unknown queues, priorities and unknown results are refused with Django's errors."""
    from fixtures.django_tasks import add

    refused = getattr(exceptions(), "InvalidTask", None) or exceptions().InvalidTaskError
    with pytest.raises(refused):
        add.using(queue_name="nowhere")
    with pytest.raises(InvalidOptionError, match="urgent"):
        add.using(priority=5).enqueue(1, 2)
    with pytest.raises(refused):
        add.using(priority=500)
    for number in (float("nan"), [float("inf")]):
        with pytest.raises(TaskArgumentsError, match="cannot be a number in JSON"):
            add.enqueue(number)
    for result_id in ("unknown", "not a key"):
        with pytest.raises(exceptions().TaskResultDoesNotExist):
            add.get_result(result_id)


@pytest.mark.parametrize(
    "changes",
    [{"status": "PAUSED"}, {"run_after": 5}, {"started_at": "2026-13-01T00:00:00Z"}],
    ids=str,
)
def test_a_result_of_another_version(js, changes):
    """It does not exist here, and its task has not failed: it does not fit this process."""
    from fixtures.django_tasks import add, runs

    result = add.enqueue(1, 2)
    bucket = js.key_value("TASK_RESULTS")
    stored = json.loads(bucket.get(result.id).value)
    bucket.put(result.id, json.dumps({**stored, **changes}).encode())
    with pytest.raises(exceptions().TaskResultDoesNotExist, match=result.id):
        add.get_result(result.id)
    with running(worker()):
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    if "status" in changes:  # it has a status of this version since its run began
        assert runs == [(1, 2)]
    else:
        assert not runs
        reason = js.get_stream("DEAD").get_msg(1).headers["Dead-Reason"]
        assert f"the task cannot be found: {result.id} is no result of this version" in reason


def test_a_wildcard_is_no_result(js):
    """Cancelling it withdraws no task of another one."""
    from fixtures.django_tasks import add

    add.enqueue(1, 2)
    backend = add.get_backend()
    assert not backend.cancel("*")
    assert not backend.cancel(">")
    assert js.get_stream("TASKS").info().state.messages == 1


@pytest.mark.usefixtures("settings_with_urgent")
def test_a_priority_is_urgent(js):
    """A task with a priority above 0 is an urgent call of its queue; others are not."""
    from fixtures.django_tasks import add

    low, high = add.using(priority=-1).enqueue(1, 1), add.using(priority=7).enqueue(1, 2)
    stream = js.get_stream("TASKS")
    queues = [stream.get_msg(seq).subject.split(".")[2] for seq in (1, 2)]
    assert queues == ["default", "default-urgent"]
    assert add.get_result(high.id).status == "READY"
    with running(worker()):
        wait_until(lambda: all(item.refresh() or item.is_finished for item in (low, high)))
    assert (low.return_value, high.return_value) == (2, 3)
    assert stream.info().state.messages == 0


@pytest.fixture
def settings_with_urgent() -> Iterator[None]:
    """The backend with urgent calls."""
    from django.test import override_settings

    options = {**BACKEND.get("OPTIONS", {}), "urgent": True}
    with override_settings(TASKS={"default": {**BACKEND, "OPTIONS": options}}):
        yield


def test_run_after_needs_a_server_with_schedules(nats_server):
    """Without schedules the task would run at once, or never: it is refused."""
    from django.utils import timezone
    from fixtures.django_tasks import add

    if nats_server.version.startswith(("2.10.", "2.11.")):
        with pytest.raises(ServerTooOldError):
            add.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue(1)


def test_a_task_of_django_follows_a_call_that_runs_at_once():
    """In ``Worker.eager``, a chain runs a task of Django after a task of the worker."""
    from fixtures.django_tasks import add, runs

    from jetstream_sync.django.tasks import call
    from jetstream_sync.workers import chain

    eager = worker()

    @eager.task(name="double", results="TASK_RESULTS")
    def double(number: int) -> int:
        return number * 2

    runs.clear()
    with eager.eager():
        chain(double.call(2), call(add, 10)).delay()
    assert runs == [(4, 10)]


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("is_later", [False, True])
def test_the_message_of_a_task(js, is_later):
    """It is the record of the result, with the queue and the time of the task."""
    from fixtures.django_tasks import add

    at = datetime(2100, 1, 2, 3, 4, 5, tzinfo=timezone.utc) if is_later else None
    result = add.using(run_after=at).enqueue(1, 2)
    [msg] = js.get_stream("TASKS").get_last_msgs(">")
    target = f"tasks.project.default.django-default.{result.id}"
    headers = msg.headers or {}
    assert msg.subject == (target if at is None else f"{target}.later")
    assert headers["Nats-Msg-Id"] == target
    assert headers.get("Nats-Schedule-Target") == (None if at is None else target)
    payload = json.loads(msg.data)
    assert payload == json.loads(js.key_value("TASK_RESULTS").get(result.id).value)
    assert datetime.fromisoformat(payload.pop("enqueued_at")) == result.enqueued_at
    assert payload == {
        "id": result.id,
        "task": "fixtures.django_tasks.add",
        "status": "READY",
        "args": [1, 2],
        "kwargs": {},
        "errors": [],
        "worker_ids": [],
        "queue": "default",
        "run_after": None if at is None else at.isoformat(),
        **dict.fromkeys(("return_value", "started_at", "finished_at", "last_attempted_at")),
    }


@pytest.mark.server(">=2.12")
def test_run_after(js):
    """The server keeps the task until its time."""
    from django.utils import timezone
    from fixtures.django_tasks import add, runs

    later = timezone.now() + timedelta(seconds=2)
    delayed = add.using(run_after=later).enqueue(1)
    add.enqueue(2)
    with running(worker()):
        wait_until(lambda: runs == [(2,)])
        wait_until(lambda: runs == [(2,), (1,)], 20)
        wait_until(lambda: delayed.refresh() or delayed.is_finished)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert delayed.started_at >= later
    assert delayed.task.run_after == later


def test_a_project_with_tasks_needs_a_name(nats_server):
    """``manage.py check`` has the line to add: without a name, two projects would run each other's tasks."""
    from django.core.management import call_command
    from django.core.management.base import SystemCheckError
    from django.test import override_settings

    with (
        override_settings(JETSTREAM={"servers": nats_server.url}),
        pytest.raises(SystemCheckError, match=r'JETSTREAM = \{"name": "shop"\}'),
    ):
        call_command("check")


def test_chains_and_groups_of_tasks(js):
    """The calls after one that fails have failed, and nothing of a flow is left."""
    from fixtures.django_tasks import add, fail, total

    from jetstream_sync.django.tasks import call
    from jetstream_sync.workers import chain, group

    following = chain(call(add, 1, 2), call(add, 10)).delay()
    grouped = group([call(add, 1, 2), call(add, 3, 4)], then=call(total, 5)).delay()
    failed = chain(call(fail, "no"), call(add, 1)).delay()
    assert following.status == "READY"
    with running(worker()):
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0, 20)
    assert add.get_result(following.id).return_value == 13
    assert total.get_result(grouped.id).return_value == 15
    assert add.get_result(failed.id).status == "FAILED"
    assert js.get_stream("KV_TASK_RESULTS-flows").info().state.messages == 0
    for stream in ("TASKS", "KV_TASK_RESULTS", "KV_TASK_RESULTS-flows"):
        js.delete_stream(stream)


@pytest.mark.parametrize("place", ["backend", "project"])
def test_a_queue_with_processes_is_refused(place):
    """The processes of handlers would not have the tasks of the backend: each of their calls would fail."""
    from django.test import override_settings

    from jetstream_sync.django.workers import default_worker, discover

    options = {"pool": "processes"}
    if place == "project":
        default_worker().queue("mail", **options)
        options = {}
    with (
        override_settings(TASKS={"default": {**BACKEND, "OPTIONS": options}}),
        pytest.raises(InvalidOptionError, match="pool='processes'"),
    ):
        discover()
