"""Tasks of Django's worker: transactions, the outbox, and calls that run at once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

import pytest
from fixtures.django import count, effects, execute
from fixtures.threads import SCALE, wait_until
from fixtures.worker import FAST, running

from jetstream_sync import JetStream, KeyNotFoundError, StreamNotFoundError
from jetstream_sync.workers import Backoff, Context, Reject, TaskError
from jetstream_sync.workers.call_messages import (
    CallRecord,
)

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]


@pytest.fixture
def worker(database: str, js: JetStream) -> Iterator[Any]:
    """A worker of the project; its streams end with the test."""
    from jetstream_sync import shared_connection
    from jetstream_sync.django import Worker as DjangoWorker

    execute(database, "CREATE TABLE parents (id integer PRIMARY KEY)")
    execute(
        database,
        "CREATE TABLE children (parent integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
    )
    found = DjangoWorker(name="calls", program="tests")
    yield found
    shared_connection(found.servers, name="calls").close()
    for table in ("children", "parents"):
        execute(database, f"DROP TABLE {table}")
    for stream in ("DEAD", "TASKS", "KV_R", "KV_R-flows"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_a_transaction_that_fails_at_its_commit_fails_the_call(worker, database, js):
    """A deferred foreign key: no row, status FAILED, one dead letter, and no return value."""
    runs: list[int] = []

    @worker.task(name="child", results="R", atomic=database, retry=FAST)
    def child(parent: int) -> str:
        runs.append(parent)
        execute(database, "INSERT INTO children VALUES (%s)", parent)
        return "made"

    call = child.delay(7)
    with running(worker):
        with pytest.raises(TaskError, match="IntegrityError") as caught:
            call.get(20 * SCALE)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert call.status == "FAILED"
    assert "INSERT" in caught.value.traceback or "commit" in caught.value.traceback.lower()
    assert (len(runs), count(database, "children"), count(database, "jetstream_inbox")) == (3, 0, 0)
    assert js.get_stream("DEAD").info().state.messages == 1


def test_a_value_that_cannot_be_stored_rolls_back(worker, database, js):
    """A set, and one above the limit of the server: the call has failed, and is not run again."""
    runs: list[str] = []

    @worker.task(name="make", results="R", atomic=database, retry=FAST)
    def make(kind: str) -> object:
        runs.append(kind)
        execute(database, "INSERT INTO effects VALUES (%s)", kind)
        return {1} if kind == "set" else "x" * 2_000_000

    calls = [make.delay("set"), make.delay("large")]
    with running(worker):
        for call in calls:
            with pytest.raises(TaskError, match="cannot be stored"):
                call.get(20 * SCALE)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert sorted(runs) == ["large", "set"]
    assert effects(database) == []
    assert js.get_stream("DEAD").info().state.messages == 2


def test_a_call_whose_state_was_not_stored_is_not_run_again(worker, database, js):
    """After the commit, a later delivery stores the return value of the first run."""
    runs: list[int] = []

    @worker.task(name="add", results="R", atomic=database, retry=FAST)
    def add(number: int) -> int:
        runs.append(number)
        execute(database, "INSERT INTO effects VALUES ('once')")
        return number + 1

    call = add.delay(1)
    ctx_ids = []

    @worker.on("message")
    def note(event: Any) -> None:
        ctx_ids.append(event.message.metadata)

    states = add.work.state
    stored = states._calls.store
    failures = iter([True])

    def store(record: CallRecord, revision: int) -> None:
        if record.status == "SUCCESSFUL" and next(failures, False):
            raise SystemExit("killed before the state is stored")
        stored(record, revision)

    states._calls.store = store
    with running(worker):
        assert call.get(20 * SCALE) == 2
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert runs == [1]
    assert len(ctx_ids) == 2
    assert effects(database) == ["once"]


@pytest.mark.parametrize("results", [None, "R"])
def test_an_error_after_the_commit_fails_nothing(worker, database, js, results):
    """Hooks of the commit run inside the handler: its last attempt is done, as the database shows."""
    from django.db import transaction

    def fail() -> None:
        raise ZeroDivisionError("in a hook of the commit")

    def wait() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            pass

    once = Backoff(first=0.1, attempts=1)
    options: dict[str, Any] = {"results": results, "atomic": database, "retry": once}

    @worker.task(name="note", soft_timeout=0.3, **options)
    def note(text: str) -> str:
        execute(database, "INSERT INTO effects VALUES (%s)", text)
        transaction.on_commit({"fail": fail, "wait": wait}[text], using=database)
        return text

    calls = [note.delay(text) for text in ("fail", "wait")]
    with running(worker):
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
        if results is not None:
            assert [call.get(20 * SCALE) for call in calls] == ["fail", "wait"]
    assert sorted(effects(database)) == ["fail", "wait"]
    assert "DEAD" not in js.stream_names() or js.get_stream("DEAD").info().state.messages == 0


def test_calls_in_the_outbox_follow_the_transaction(worker, database):
    """With outbox=True a call is sent if and only if the transaction commits."""
    from django.db import transaction

    @worker.task(name="note", results="R", outbox=database)
    def note(text: str) -> str:
        return text

    with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):
        lost = note.delay("lost")
        raise ZeroDivisionError
    with transaction.atomic(using=database):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):
            undone = note.delay("undone")
            raise ZeroDivisionError
        kept = note.delay("kept")
        late = note.apply_async(("late",), countdown=0.5)
        assert count(database, "jetstream_outbox") == 2
    with running(worker):
        assert kept.get(20 * SCALE) == "kept"
        assert late.get(20 * SCALE) == "late"
        for call in (lost, undone):
            with pytest.raises(KeyNotFoundError):
                _ = call.status


def test_a_call_of_the_outbox_can_be_cancelled(worker, database, js):
    """As soon as it is in the stream."""
    from django.db import transaction

    @worker.task(name="note", results="R", outbox=database)
    def note(text: str) -> str:
        return text

    note.queue.prepare()
    with transaction.atomic(using=database):
        call = note.delay("never")
    assert not call.cancel()
    relay().publish_batch(database)
    assert call.status == "READY"
    assert call.cancel()
    assert (call.status, js.get_stream("TASKS").info().state.messages) == ("CANCELLED", 0)


@pytest.mark.parametrize("results", [None, "R"])
@pytest.mark.parametrize("is_later", [False, True])
def test_the_message_of_a_call_in_the_outbox(worker, database, js, results, is_later):
    """It is the message that the stream gets without an outbox."""
    from django.db import transaction

    @worker.task(name="note", results=results, outbox=database)
    def note(text: str) -> None: ...

    note.queue.prepare()
    at = datetime(2100, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    with transaction.atomic(using=database):
        note.apply_async(("x",), task_id="x", eta=at if is_later else None, expires=at)
    relay().publish_batch(database)
    [msg] = js.get_stream("TASKS").get_last_msgs(">")
    headers = {key: text for key, text in (msg.headers or {}).items() if key != "Nats-Rollup"}
    target, subject = "tasks.calls.default.note.x", "tasks.calls.default.note.x"
    wanted = {"Nats-Msg-Id": target}
    if is_later:
        subject = f"{target}.later"
        headers["Nats-Schedule"] = headers["Nats-Schedule"].replace("Z", "+00:00")
        wanted |= {"Nats-Schedule": f"@at {at.isoformat()}", "Nats-Schedule-Target": target}
    assert (msg.subject, headers) == (subject, wanted)
    payload = json.loads(msg.data)
    if results is None:
        assert payload == {"args": ["x"], "kwargs": {}, "expires": at.timestamp()}
    else:
        assert payload.get("eta") == (at.isoformat() if is_later else None)
        assert (payload["id"], payload["task"], payload["status"]) == ("x", "note", "READY")
        assert (payload["args"], payload["expires"]) == (["x"], at.timestamp())
        assert "KV_R" not in js.stream_names()  # a worker creates the record


def relay() -> Any:
    from jetstream_sync.django import Config
    from jetstream_sync.django.outbox import OutboxRelay

    return OutboxRelay(Config.load())


def test_a_call_on_commit(worker):
    """It is sent after the commit, and has its id before."""
    from django.db import transaction

    @worker.task(name="note", results="R")
    def note(text: str) -> str:
        return text

    with running(worker):
        with transaction.atomic():
            call = note.delay_on_commit("x")
            with pytest.raises((KeyNotFoundError, StreamNotFoundError)):
                _ = call.status
        assert call.get(20 * SCALE) == "x"


def test_eager_by_the_setting(worker, database, settings_of):
    """``JETSTREAM = {"EAGER": True}``: calls run at once, within the transaction of the caller."""
    from django.db import transaction

    @worker.task(name="write", results="R", atomic=database)
    def write(text: str, ctx: Context) -> int:
        execute(database, "INSERT INTO effects VALUES (%s)", text)
        if text == "bad":
            raise Reject("no")
        return ctx.attempt

    with settings_of(EAGER=True):
        assert write.delay("a").get() == 1
        with pytest.raises(Reject):
            write.delay("bad")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):
            write.delay("b")
            raise ZeroDivisionError
    worker.eager_calls = None
    assert effects(database) == ["a"]


def test_the_test_client_keeps_the_connection_of_a_test_case(worker, database):
    """Within a transaction of the test, the connection stays open, and its rows are seen."""
    from django.db import connections, transaction

    @worker.handler(stream="S", consumer="C", atomic=database)
    def handle() -> None:
        execute(database, "INSERT INTO effects VALUES ('x')")

    with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):
        execute(database, "INSERT INTO effects VALUES ('a')")
        before = connections[database].connection
        assert worker.test_client().deliver("handle").kind == "ack"
        assert connections[database].connection is before
        assert effects(database) == ["a", "x"]
        raise ZeroDivisionError
    assert effects(database) == []


def test_the_admin_page_of_dead_letters(worker, js):
    """It lists them with message and error, publishes one again, and discards one."""
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.test import Client, override_settings
    from django.urls import path

    class Urls:
        urlpatterns = (path("admin/", admin.site.urls),)

    @worker.task(name="refuse")
    def refuse(text: str) -> None:
        raise Reject(f"no {text}")

    for text in ("first", "second"):
        refuse.delay(text)
    with running(worker):
        wait_until(lambda: "DEAD" in js.stream_names())
        wait_until(lambda: js.get_stream("DEAD").info().state.messages == 2)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    client, url = Client(), "/admin/jetstream/deadletter/"
    try:
        with override_settings(ROOT_URLCONF=Urls, ALLOWED_HOSTS=["testserver"]):
            client.force_login(User.objects.create_superuser("admin"))
            page = client.get(url).content.decode()
            assert "no first" in page
            assert "no second" in page
            assert "args" in page
            keys = re.findall('name="selected" value="([^"]*)"', page)
            assert len(keys) == 2
            assert client.post(url, {"selected": keys}).status_code == 403
            assert js.get_stream("DEAD").info().state.messages == 2
            client.post(url, {"action": "requeue", "selected": keys[:1]})
            assert js.get_stream("TASKS").info().state.messages == 1
            client.post(url, {"action": "discard", "selected": keys[1:]})
            assert "There are no dead letters" in client.get(url).content.decode()
            assert js.get_stream("DEAD").info().state.messages == 0
            client.force_login(User.objects.create_user("staff", is_staff=True))
            assert client.get(url).status_code == 403
    finally:
        User.objects.all().delete()


@pytest.fixture
def settings_of(worker: Any) -> Any:
    """Return a context manager that changes keys of the setting ``JETSTREAM``."""
    from django.conf import settings
    from django.test import override_settings

    assert worker.eager_calls is None
    return lambda **keys: override_settings(JETSTREAM={**settings.JETSTREAM, **keys})


@pytest.mark.usefixtures("django_project")
def test_every_option_of_a_worker_is_a_setting():
    """The setting takes what `Worker` takes, and the worker uses it."""
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    from jetstream_sync.django import Worker as DjangoWorker
    from jetstream_sync.workers.options import WorkerOptions, own_names

    options = {name: getattr(WorkerOptions(), name) for name in own_names(WorkerOptions)}
    changed = {"report": None, "http": "127.0.0.1:0", "concurrency": 3, "drain_timeout": 7.0}
    with override_settings(JETSTREAM={**options, **changed}):
        worker = DjangoWorker()
        own = DjangoWorker(concurrency=4)
    from jetstream_sync.django import Config

    names = [item.name for item in fields(Config) if item.init]
    with override_settings(JETSTREAM=dict.fromkeys(names)):
        assert (Config.load(), DjangoWorker().name) == (Config(), Config().name)
    setting: dict[str, object] = {"timeout": 3.0}
    with override_settings(JETSTREAM=setting):
        assert Config.load() is Config.load()
        setting["timeout"] = 4.0  # also of the dictionary itself
        assert Config.load().timeout == 4.0
        setting["connection"] = connection = {"name": "one"}
        assert Config.load().connection == connection
        connection["name"] = "two"  # and of those in it
        assert Config.load().connection == {"name": "two"}
        setting["eager"] = True
        assert Config.load().eager
        setting["eager"] = 1
        with pytest.raises(ImproperlyConfigured, match="eager"):
            Config.load()
    assert {name: getattr(worker, name) for name in changed} == changed
    assert (own.concurrency, own.report) == (4, None)


def test_a_step_commits_with_its_record(worker, database, js):
    """A worker that dies after the commit, and before the step is in the bucket, does not repeat its effect."""
    from django.db import transaction

    died: list[str] = []

    def insert(value: str) -> str:
        assert transaction.get_connection(database).in_atomic_block
        execute(database, "INSERT INTO effects VALUES (%s)", value)
        return f"made {value}"

    @worker.task(name="steps", results="R", atomic=database, steps=True, retry=FAST)
    def steps(ctx: Context) -> list[str]:
        assert not transaction.get_connection(database).in_atomic_block
        first = ctx.step(insert, "a")
        ctx.sleep(1.5)
        if len(died) < 2:
            ctx.steps._ask = failing(ctx.steps._ask, died)
        return [first, ctx.step(insert, "b")]

    call = steps.delay()
    with running(worker):
        assert call.get(30 * SCALE) == ["made a", "made b"]
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert sorted(effects(database)) == ["a", "b"]
    assert died == ["record", "record"]


def failing(ask: Any, died: list[str]) -> Any:
    """Return a function that fails where the value of a step would be stored."""

    def call(question: str, *arguments: Any) -> Any:
        if question == "record":
            died.append(question)
            raise OSError("the worker dies")
        return ask(question, *arguments)

    return call


def test_a_chain_begins_if_and_only_if_its_transaction_commits(worker, database, js):
    """With the outbox: the chain is one row, and the group as well."""
    from django.db import transaction

    from jetstream_sync.workers import chain, group

    @worker.task(name="add", results="R", outbox=database, retry=FAST)
    def add(first: int, second: int) -> int:
        return first + second

    @worker.task(name="total", results="R", outbox=database, retry=FAST)
    def total(values: list[int]) -> int:
        return sum(values)

    with suppress(ZeroDivisionError), transaction.atomic(using=database):
        chain(add.call(1, 2), add.call(3)).delay(task_id="never")
        raise ZeroDivisionError
    with transaction.atomic(using=database):
        calls = [chain(add.call(1, 2), add.call(3)).delay()]
        calls.append(group([add.call(1, 1), add.call(2, 2)], then=total.call()).delay())
        assert count(database, "jetstream_outbox") == 2
    with running(worker):
        assert [call.get(30 * SCALE) for call in calls] == [6, 6]
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    with pytest.raises(KeyNotFoundError):
        _ = add.result_of("never").status
