"""`jetstream_sync.django` in this process, with SQLite and PostgreSQL."""

from __future__ import annotations

import re
import threading
import unittest
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from fixtures.django import clear, count, effects, execute
from fixtures.server import paused
from fixtures.threads import wait_until
from fixtures.worker import is_settled, running

from jetstream_sync import (
    APIError,
    BadSubjectError,
    InvalidHeaderError,
    InvalidOptionError,
    MaxPayloadError,
    Stream,
)
from jetstream_sync.workers import Backoff, Context, Reject
from jetstream_sync.workers.metrics import metrics_text

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]

FAST = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=5)


def stored(stream: Stream) -> list[bytes]:
    """The payloads of a stream, in order."""
    return [stream.get_msg(seq).data for seq in range(1, stream.info().state.last_seq + 1)]


def new_worker(**options: Any) -> Any:
    from jetstream_sync.django import Worker

    return Worker(**options)


def new_relay() -> Any:
    from jetstream_sync.django import Config
    from jetstream_sync.django.outbox import OutboxRelay

    return OutboxRelay(Config.load())


# --- publishing after the commit ---------------------------------------------------------------


def test_publish_on_commit(database, stream):
    """The message id is known at once; the message is published after the commit."""
    from django.db import transaction

    from jetstream_sync.django import publish_on_commit

    with transaction.atomic(using=database):
        execute(database, "INSERT INTO effects VALUES ('paid')")
        msg_id = publish_on_commit(f"{stream.name}.a", b"1", {"Kind": "x"}, using=database)
        assert stream.info().state.messages == 0
    msg = stream.get_msg(1)
    assert (msg.data, msg.headers["Kind"], msg.headers["Nats-Msg-Id"]) == (b"1", "x", msg_id)


def test_a_transaction_that_is_rolled_back_publishes_nothing(database, stream):
    """Neither with `publish_on_commit` nor with the outbox."""
    from django.db import transaction

    from jetstream_sync.django import publish_on_commit
    from jetstream_sync.django.models import Outbox

    with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):
        publish_on_commit(f"{stream.name}.a", b"1", using=database)
        Outbox.publish(f"{stream.name}.a", b"2", using=database)
        assert Outbox.state(using=database).messages == 1
        raise ZeroDivisionError
    publish_on_commit(f"{stream.name}.a", b"3", using=database)  # no transaction: now
    assert stored(stream) == [b"3"]
    assert count(database, "jetstream_outbox") == 0


def test_a_test_case_captures_publish_on_commit(database, stream):
    """`captureOnCommitCallbacks` holds the messages back, and publishes them on request."""
    from django.test import TestCase

    from jetstream_sync.django import publish_on_commit

    class Case(TestCase):
        databases = {database}  # noqa: RUF012 - as Django's documentation has it

        def runTest(self) -> None:  # noqa: N802
            with self.captureOnCommitCallbacks(using=database) as callbacks:
                publish_on_commit(f"{stream.name}.a", b"1", using=database)
            assert len(callbacks) == 1
            assert stored(stream) == []
            callbacks[0]()

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert stored(stream) == [b"1"]


# --- the outbox --------------------------------------------------------------------------------


def test_the_worker_publishes_the_outbox(database, stream):
    """Messages are published in their order, with their headers and ids, and their rows are deleted."""
    from django.db import transaction

    from jetstream_sync.django.models import Outbox

    worker = new_worker()
    worker.handler(stream=stream.name, consumer="C")(print_nothing)
    with transaction.atomic(using=database):
        ids = [
            Outbox.publish(f"{stream.name}.a", b"%d" % n, {"N": str(n)}, using=database)
            for n in range(250)
        ]
    state = Outbox.state(using=database)
    assert state.messages == 250
    assert 0 < state.age < 100
    with running(worker):
        wait_until(lambda: count(database, "jetstream_outbox") == 0, 20)
    assert stored(stream) == [b"%d" % n for n in range(250)]
    msgs = [stream.get_msg(seq) for seq in (1, 250)]
    assert [msg.headers["Nats-Msg-Id"] for msg in msgs] == [ids[0], ids[-1]]
    assert [msg.headers["N"] for msg in msgs] == ["0", "249"]
    assert Outbox.state(using=database).age == 0.0


def test_a_relay_that_ends_ends_its_worker(database, stream, caplog):
    """A function of the user may raise SystemExit in it; a worker without its relay would look well."""
    from django.db.models.signals import pre_delete

    from jetstream_sync.django.models import Outbox

    def leave(**_: Any) -> None:
        raise SystemExit(0)

    worker = new_worker()
    worker.handler(stream=stream.name, consumer="C")(print_nothing)
    Outbox.publish(f"{stream.name}.a", using=database)
    pre_delete.connect(leave, sender=Outbox)
    try:
        with running(worker) as run:
            assert run.ended() == 1
    finally:
        pre_delete.disconnect(leave, sender=Outbox)
    assert "thread worker-outbox crashed" in caplog.text


def print_nothing() -> None:
    """Handle a message."""


def test_two_relays_at_a_time(database, stream):
    """Each message is stored once and in order, whichever relay publishes it."""
    from django.db import connections, transaction

    from jetstream_sync.django.models import Outbox

    with transaction.atomic(using=database):
        for n in range(500):
            Outbox.publish(f"{stream.name}.a", b"%d" % n, using=database)
    failures: list[BaseException] = []

    def relay() -> None:
        try:
            mine = new_relay()
            while count(database, "jetstream_outbox"):
                mine.publish_batch(database)
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=relay) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stored(stream) == [b"%d" % n for n in range(500)]


def test_a_relay_steps_back_while_an_earlier_row_is_locked(database, stream):
    """On PostgreSQL, rows behind those of another relay wait, and keep their order."""
    from django.db import connections, transaction

    from jetstream_sync.django.models import Outbox

    if database == "default":
        pytest.skip("SQLite has no row locks")
    for n in range(3):
        Outbox.publish(f"{stream.name}.a", b"%d" % n, using=database)
    results: list[int] = []

    def other() -> None:
        results.append(new_relay().publish_batch(database))
        connections.close_all()

    with transaction.atomic(using=database):
        list(Outbox.objects.using(database).order_by("id").select_for_update()[:1])
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)
        assert results == [0]
        assert stored(stream) == []
    with transaction.atomic(using=database):
        # Only the middle one: those before it are published.
        middle = Outbox.objects.using(database).order_by("id")[1].id
        list(Outbox.objects.using(database).filter(id=middle).select_for_update())
        results.clear()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)
        assert results == [1]
        assert stored(stream) == [b"0"]
    assert new_relay().publish_batch(database) == 2
    assert stored(stream) == [b"0", b"1", b"2"]


def test_a_subject_without_a_stream_does_not_block_others(database, js, stream, caplog):
    """Its messages wait in the outbox until there is a stream; those of other subjects are published."""
    from jetstream_sync.django.models import Outbox, OutboxState

    Outbox.publish("nowhere.a", b"1", using=database)
    Outbox.publish("nowhere.a", b"2", using=database)
    Outbox.publish(f"{stream.name}.a", b"3", using=database)
    relay = new_relay()
    with caplog.at_level("ERROR"):
        while relay.publish_batch(database):
            pass
    assert stored(stream) == [b"3"]
    waiting = execute(database, "SELECT subject FROM jetstream_outbox ORDER BY id")
    assert waiting == [("nowhere.a",), ("nowhere.a",)]
    # However often it is refused, it is not set aside.
    Outbox.objects.using(database).update(attempts=100)
    assert due(relay, database) == 2
    assert Outbox.state(database) == OutboxState(2, ANY, 0)
    js.create_stream(name=f"{stream.name}_NOWHERE", subjects=["nowhere.*"])
    assert due(relay, database) == 2
    assert Outbox.state(database) == OutboxState(0, 0.0, 0)


def test_a_subject_that_nothing_answers_does_not_block_others(database, js, nc, stream):
    """Without a stream, and with a subscriber such as ``jsm sub '>'``, the server does not refuse: nothing replies."""
    from django.test import override_settings

    from jetstream_sync.django import connection
    from jetstream_sync.django.models import Outbox, OutboxState

    nc.subscribe("nowhere.>")
    nc.flush()
    with override_settings(JETSTREAM=setting_with(timeout=0.5)):
        Outbox.publish("nowhere.a", b"1", using=database)
        Outbox.publish(f"{stream.name}.a", b"2", using=database)
        relay = new_relay()
        while relay.publish_batch(database):
            pass
        assert stored(stream) == [b"2"]
        assert Outbox.state(database) == OutboxState(1, ANY, 0)
        js.create_stream(name=f"{stream.name}_NOWHERE", subjects=["nowhere.*"])
        assert due(relay, database) == 1
        assert Outbox.state(database) == OutboxState(0, 0.0, 0)
        connection().close()


def setting_with(**values: Any) -> dict[str, Any]:
    """Return the setting ``JETSTREAM`` with other values."""
    from django.conf import settings

    return {**settings.JETSTREAM, **values}


def test_a_silent_server_delays_no_subject(database, fresh_server):
    """Nothing was refused: the messages are published as soon as the server answers."""
    from django.test import override_settings

    from jetstream_sync.django import connection
    from jetstream_sync.django.models import Outbox

    setting = setting_with(servers=fresh_server.url, timeout=0.5)
    with override_settings(JETSTREAM=setting):
        connection().jetstream().create_stream(name="S", subjects=["s"])
        Outbox.publish("s", b"1", using=database)
        relay = new_relay()
        with paused(fresh_server), pytest.raises(TimeoutError):
            relay.publish_batch(database)
        assert Outbox.objects.using(database).get().attempts == 0
        assert relay.publish_batch(database) == 1
        connection().close()


def test_a_busy_database_does_not_keep_another_waiting(database, stream):
    """The outbox of one database never becomes empty; that of the next one is published all the same."""
    from django.db.models.signals import pre_delete
    from django.test import override_settings

    from jetstream_sync.django.models import Outbox

    other = "postgres" if database == "default" else "default"

    def publish_another(using: str, **_: Any) -> None:
        if using == database:
            Outbox.publish(f"{stream.name}.busy", using=database)

    Outbox.publish(f"{stream.name}.busy", using=database)
    Outbox.publish(f"{stream.name}.a", b"other", using=other)
    pre_delete.connect(publish_another, sender=Outbox)
    try:
        with override_settings(JETSTREAM=setting_with(outbox=[database, other])):
            relay = new_relay()
            with relay.running(lambda _error: None):
                wait_until(lambda: count(other, "jetstream_outbox") == 0, 20)
    finally:
        pre_delete.disconnect(publish_another, sender=Outbox)
        clear(other)


def test_a_router_does_not_choose_the_row_of_a_refused_message(database):
    """A project that writes to its primary database: rows of two databases have the same primary key."""
    from django.test import override_settings

    from jetstream_sync.django.models import Outbox

    other = "postgres" if database == "default" else "default"

    class Router:
        def db_for_write(self, *_: Any, **_hints: Any) -> str:
            return other

    for alias in (database, other):
        Outbox.publish("nowhere.a", using=alias)
        Outbox.objects.using(alias).update(id=7)
    with override_settings(DATABASE_ROUTERS=[Router()]):
        assert new_relay().publish_batch(database) == 1
    attempts = [Outbox.objects.using(alias).get().attempts for alias in (database, other)]
    assert attempts == [1, 0]
    clear(other)


def due(relay: Any, database: str) -> int:
    """Let a relay publish what is in the outbox, as if all delays were over."""
    from jetstream_sync.django.models import Outbox

    Outbox.objects.using(database).update(retry_at=None)
    number: int = relay.publish_batch(database)
    return number


def test_a_message_that_is_refused_is_set_aside(database, js, stream, caplog):
    """After ten attempts it has its error, and the messages behind it are published."""
    from jetstream_sync.django.models import Outbox, OutboxState

    large, small = f"{stream.name}.large", f"{stream.name}.small"
    js.update_stream(replace(stream.cached_info.config, max_msg_size=100))
    Outbox.publish(large, bytes(200), using=database)
    Outbox.publish(large, b"after", using=database)
    Outbox.publish(small, bytes(300), using=database)
    relay = new_relay()
    for attempt in range(1, 10):
        assert due(relay, database) == 3
        rows = list(Outbox.objects.using(database).order_by("id"))
        assert [row.attempts for row in rows] == [attempt, 0, attempt]
        assert relay.publish_batch(database) == 0  # both subjects are delayed
        assert Outbox.state(database).failed == 0
    due(relay, database)
    assert relay.publish_batch(database) == 1
    assert stored(stream) == [b"after"]
    assert Outbox.state(database) == OutboxState(0, 0.0, 2)
    failed = Outbox.objects.using(database).order_by("id")[0]
    assert (failed.subject, failed.attempts) == (large, 10)
    assert "exceeds" in failed.error
    # Each subject is reported once a minute, and each message that is set aside.
    assert caplog.text.count("is refused, trying again") == 2
    assert caplog.text.count("is set aside") == 2


@pytest.mark.parametrize(
    ("code", "err_code", "set_aside"),
    [
        (400, 10054, True),  # too large
        (400, 10166, True),  # a TTL that the stream does not allow
        (400, 10002, False),  # the account is full
        (404, 10059, False),
        (429, 10167, False),  # the stream has too much to do
        (500, 10047, False),  # the disk is full
        (503, 10077, False),
    ],
)
@pytest.mark.usefixtures("database")
def test_only_refusals_of_the_message_set_it_aside(code, err_code, set_aside):
    """Where the state of a server is the reason, the messages wait, and keep their order."""
    from jetstream_sync.django.outbox import _is_about_message

    error = APIError.from_response({"code": code, "err_code": err_code, "description": "no"})
    assert _is_about_message(error) == set_aside


def test_metrics_of_the_outbox(database, stream, monkeypatch):
    """Number and age of the messages that wait, and the number of those that are set aside."""
    from jetstream_sync.django import outbox as outbox_module
    from jetstream_sync.django.models import Outbox

    monkeypatch.setattr(outbox_module, "_SAMPLE_S", 0.1)
    for _ in range(2):
        Outbox.publish("nowhere.a", using=database)
    Outbox.publish("nowhere.b", using=database)
    failed = Outbox.objects.using(database).get(subject="nowhere.b")
    failed.note_failure("no", delay=None)
    worker = new_worker()
    handler = worker.handler(stream=stream.name, consumer="C")(print_nothing)
    assert handler.module == __name__  # a process of a handler imports it

    def gauges() -> dict[str, float]:
        text = metrics_text([worker.snapshot()])
        label = f'{{database="{database}"}}'
        return {
            name.removeprefix("jetstream_worker_").removesuffix(label): float(value)
            for name, value in (line.split() for line in text.splitlines() if label in line)
        }

    with running(worker):
        wait_until(lambda: worker.snapshot() is not None and gauges().get("outbox_messages") == 2)
        assert gauges()["outbox_failed_messages"] == 1
        age = gauges()["outbox_age_seconds"]
        wait_until(lambda: gauges()["outbox_age_seconds"] > age)
        Outbox.objects.using(database).filter(subject="nowhere.a").delete()
        wait_until(lambda: gauges()["outbox_messages"] == 0)
        assert gauges()["outbox_age_seconds"] == 0


@pytest.mark.usefixtures("django_project")
def test_the_admin_page_of_the_outbox():
    """It lists messages by state, shows one, and lets workers publish those that are set aside again."""
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.test import Client, override_settings
    from django.urls import path

    from jetstream_sync.django.models import Outbox

    class Urls:
        urlpatterns = (path("admin/", admin.site.urls),)

    Outbox.publish("orders.waits", b"tea")
    Outbox.publish("orders.failed", "T\u00fcr".encode() + bytes([255]) + 2000 * b"x")
    failed = Outbox.objects.get(subject="orders.failed")
    failed.note_failure("message size exceeds maximum allowed", delay=None)
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    try:
        with override_settings(ROOT_URLCONF=Urls, ALLOWED_HOSTS=["testserver"]):
            url = "/admin/jetstream/outbox/"

            def subjects(query: str) -> list[str]:
                page = client.get(url + query).content.decode()
                return re.findall('class="field-subject">([^<]*)<', page)

            assert subjects("") == ["orders.waits", "orders.failed"]
            assert subjects("?failed_at__isempty=1") == ["orders.waits"]
            assert subjects("?failed_at__isempty=0") == ["orders.failed"]
            page = client.get(f"{url}{failed.id}/change/").content.decode()
            assert "message size exceeds maximum allowed" in page
            assert "T\u00fcr\ufffdxx" in page
            assert "(2005 bytes)" in page
            assert client.get(f"{url}add/").status_code == 403
            client.post(url, {"action": "publish_again", "_selected_action": [failed.id]})
            assert subjects("?failed_at__isempty=1") == ["orders.waits", "orders.failed"]
            failed.refresh_from_db()
            assert (failed.attempts, failed.error, failed.failed_at) == (0, "", None)
    finally:
        User.objects.all().delete()
        clear("default")


def test_the_relay_after_its_connection_was_closed(database, stream):
    """The relay connects to the database again, and publishes what is there then."""
    from jetstream_sync.django.models import Outbox

    if database == "default":
        pytest.skip("SQLite has no server")
    worker = new_worker()
    worker.handler(stream=stream.name, consumer="C")(print_nothing)
    terminate = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    with running(worker):
        for n in range(3):
            Outbox.publish(f"{stream.name}.a", b"%d" % n, using=database)
            wait_until(lambda: count(database, "jetstream_outbox") == 0, 20)
            assert execute(database, terminate)  # its only connection
    assert stored(stream) == [b"0", b"1", b"2"]


def test_databases_that_share_a_stream(database, stream):
    """The first messages of two databases have the same primary key; both are stored."""
    from jetstream_sync.django.models import Outbox

    for _ in range(2):
        Outbox.publish(f"{stream.name}.a", b"x", using=database)
        Outbox.objects.using(database).update(id=7)
        assert new_relay().publish_batch(database) == 1
    assert stored(stream) == [b"x", b"x"]


def test_what_cannot_be_published_is_refused_at_once(database):
    """A wrong subject or header, or a size above the limit, raises in the call, not in the relay."""
    from jetstream_sync.django.models import Outbox

    with pytest.raises(BadSubjectError):
        Outbox.publish("a b", using=database)
    with pytest.raises(InvalidHeaderError):
        Outbox.publish("a", headers={"a:b": "1"}, using=database)
    with pytest.raises(TypeError):
        Outbox.publish("a", "text", using=database)
    with pytest.raises(InvalidOptionError, match="at most 255 characters"):
        Outbox.publish("a", using=database, msg_id="x" * 256)
    Outbox.publish("a", using=database, msg_id="x" * 255)
    Outbox.objects.using(database).all().delete()
    # The limit is that of the server, whose headers count too.
    with pytest.raises(MaxPayloadError) as caught:
        Outbox.publish("a", bytes(2**20), using=database, msg_id="m")
    assert caught.value.size == 2**20 + len("NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n")
    assert count(database, "jetstream_outbox") == 0


# --- handlers in transactions ------------------------------------------------------------------


def test_an_atomic_handler(database, js, stream):
    """A failed attempt leaves nothing in the database; the successful one has its effect once."""
    worker = new_worker()
    attempts: list[str] = []

    @worker.handler(stream=stream.name, consumer="C", atomic=database, decode="text", retry=FAST)
    def handle(text: str) -> None:
        attempts.append(text)
        execute(database, "INSERT INTO effects VALUES (%s)", text)
        if attempts.count(text) < 3 and text == "b":
            raise ZeroDivisionError

    for text in (b"a", b"b", b"c"):
        js.publish(f"{stream.name}.x", text)
    with running(worker):
        wait_until(lambda: len(attempts) == 5, 20)
        wait_until(lambda: is_settled(stream, "C"))
    assert effects(database) == ["a", "b", "c"]
    assert count(database, "jetstream_inbox") == 3


@pytest.mark.server(">=2.11")
def test_an_atomic_handler_of_a_group(database, js, stream):
    """The consumer of a member, and the stream of an elastic group, have other names than the handler."""
    js.consumer_groups.create_elastic(stream.name, "group", 2, {f"{stream.name}.*": [1]})
    worker = new_worker()
    attempts: list[str] = []

    @worker.handler(stream=stream.name, group="group", atomic=database, decode="text", retry=FAST)
    def handle(text: str) -> None:
        attempts.append(text)
        execute(database, "INSERT INTO effects VALUES (%s)", text)
        if len(attempts) == 1:
            raise ZeroDivisionError

    js.publish(f"{stream.name}.x", b"a")
    with running(worker):
        wait_until(lambda: len(attempts) == 2, 20)
    assert effects(database) == ["a"]
    assert count(database, "jetstream_inbox") == 1


def test_an_atomic_handler_whose_message_comes_again(database, js, stream):
    """After the commit a message is acknowledged without another run: here its first one is returned."""
    worker = new_worker()
    attempts: list[int] = []

    @worker.handler(stream=stream.name, consumer="C", atomic=database, retry=FAST)
    def handle(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        execute(database, "INSERT INTO effects VALUES ('once')")
        if ctx.attempt == 1:
            ctx.message.nak()  # the server delivers it again, although the transaction commits

    js.publish(f"{stream.name}.x", b"")
    with running(worker):
        wait_until(
            lambda: is_settled(stream, "C") and stream.consumer_info("C").delivered.stream_seq
        )
        wait_until(lambda: stream.consumer_info("C").delivered.consumer_seq == 2)
        wait_until(lambda: is_settled(stream, "C"))
    assert attempts == [1]
    assert effects(database) == ["once"]


def test_an_integrity_error_of_the_handler_is_not_taken_for_a_second_run(database, js, stream):
    """Only a duplicate in the inbox skips the handler; its own duplicates fail the attempt."""
    from django.db import IntegrityError

    worker = new_worker()

    @worker.handler(
        stream=stream.name, consumer="C", atomic=database, retry_on=(), retry=FAST, decode="text"
    )
    def handle(text: str) -> None:
        if text == "reject":
            raise Reject("no")
        raise IntegrityError("its own")

    js.publish(f"{stream.name}.x", b"fail")
    js.publish(f"{stream.name}.x", b"reject")
    with running(worker):
        wait_until(lambda: is_settled(stream, "C"))
    dead = js.get_stream("DEAD")
    assert [dead.get_msg(seq).headers["Dead-Error"] for seq in (1, 2)] == [
        "IntegrityError",
        "Reject",
    ]
    assert count(database, "jetstream_inbox") == 0


@pytest.mark.usefixtures("django_project")
def test_a_handler_that_catches_an_error_of_its_transaction(database, js, stream):
    """The database rolls back all of it, so the message is not acknowledged; a block of its own is rolled back alone."""
    from django.db import IntegrityError, transaction

    from jetstream_sync.django.models import Inbox

    worker = new_worker()
    attempts: list[int] = []

    @worker.handler(stream=stream.name, consumer="C", atomic=database, retry=FAST)
    def handle(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        execute(database, "INSERT INTO effects VALUES ('paid')")
        block = transaction.atomic(using=database) if ctx.attempt > 1 else nullcontext()
        with suppress(IntegrityError), block:
            Inbox(id=ctx.id).save(using=database, force_insert=True)

    js.publish(f"{stream.name}.x", b"")
    with running(worker):
        wait_until(lambda: is_settled(stream, "C"), 20)
    assert effects(database) == ["paid"]
    assert attempts == [1, 2]


def test_a_batch_cannot_be_atomic():
    """The inbox has one row per message, and a batch may fail in parts."""
    worker = new_worker()
    with pytest.raises(InvalidOptionError, match="not possible for batches"):
        worker.batch(stream="S", consumer="C", atomic=True)(print_nothing)


def test_the_test_client_runs_atomic_handlers(database):
    """`Worker.test_client` delivers a message within the transaction and the inbox."""
    worker = new_worker()

    @worker.handler(stream="S", consumer="C", atomic=database, decode="text")
    def handle(text: str) -> None:
        execute(database, "INSERT INTO effects VALUES (%s)", text)
        if text == "bad":
            raise Reject("no")

    client = worker.test_client()
    assert client.deliver("handle", "good").kind == "ack"
    assert client.deliver("handle", "bad").kind != "ack"
    assert effects(database) == ["good"]
    assert count(database, "jetstream_inbox") == 1


def test_old_entries_of_the_inbox_are_deleted(database):
    """Entries older than the limit are deleted, and no others."""
    from datetime import timedelta

    from django.utils import timezone

    from jetstream_sync.django.models import Inbox

    for days in (0, 6, 8, 30):
        Inbox.objects.using(database).create(
            id=f"S/C/{days}/1", created_at=timezone.now() - timedelta(days=days)
        )
    Inbox.delete_old(7.0, database)
    left = set(Inbox.objects.using(database).values_list("id", flat=True))
    assert left == {"S/C/0/1", "S/C/6/1"}


# --- connections of the database ---------------------------------------------------------------


def test_no_database_connection_stays_behind(database, js, stream):
    """A thread that has ended has closed its connections, also persistent ones."""
    from django.db import connections

    worker = new_worker()
    used: list[Any] = []
    persistent = threading.Barrier(4)

    @worker.handler(stream=stream.name, consumer="C", concurrency=4)
    def handle() -> None:
        connections[database].settings_dict["CONN_MAX_AGE"] = None
        connections[database].close_at = None
        execute(database, "SELECT 1")
        used.append(connections[database])
        persistent.wait(20)

    for _ in range(4):
        js.publish(f"{stream.name}.x", b"")
    try:
        with running(worker):
            wait_until(lambda: len(used) == 4, 20)
            wait_until(lambda: is_settled(stream, "C"))
        assert [item.connection for item in used] == [None] * 4
    finally:
        connections.settings[database]["CONN_MAX_AGE"] = 0


@pytest.mark.parametrize(
    "options",
    [{"CONN_MAX_AGE": 0}, {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}],
    ids=["closed", "persistent"],
)
def test_a_database_that_closes_idle_connections(database, js, stream, options):
    """No message fails, whether connections are closed after each message or checked before it."""
    from django.db import connections

    if database == "default":
        pytest.skip("SQLite has no server")
    worker = new_worker()
    most: list[int] = []

    @worker.handler(stream=stream.name, consumer="C", concurrency=4, retry=FAST, decode="text")
    def handle(text: str) -> None:
        execute(database, "INSERT INTO effects VALUES (%s)", text)
        most.append(backends())

    others = (
        "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )

    def backends() -> int:
        number: int = execute(database, f"SELECT count(*) + 1 {others}")[0][0]
        return number

    before = dict(connections.settings[database])
    connections.settings[database].update(options)
    try:
        with running(worker):
            for gap in range(10):
                for n in range(10):
                    js.publish(f"{stream.name}.x", b"%d" % (10 * gap + n))
                wait_until(lambda gap=gap: count(database, "effects") == 10 * (gap + 1), 20)
                wait_until(lambda: is_settled(stream, "C"))
                if options["CONN_MAX_AGE"] == 0:
                    wait_until(lambda: backends() <= 2)  # those of the relay and of this thread
                execute(database, f"SELECT pg_terminate_backend(pid) {others}")
    finally:
        connections.settings[database].update(before)
    assert sorted(map(int, effects(database))) == list(range(100))
    info = stream.consumer_info("C")
    assert info.delivered.consumer_seq == 100, "a message was delivered again"
    # The four threads, the relay and this test; the server counts some that were just closed.
    assert max(most) <= 2 * 6


# --- checks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"server": "nats://x"}, "did you mean 'servers'"),
        ([], "must be a dictionary"),
        ({"connection": "nats://x"}, "it must be a dictionary"),
        ({"max_payload": "1M"}, "it must be a number of bytes"),
        ({"inbox_days": "7"}, "it must be a number"),
        ({"inbox_days": 1e9}, "it must be a number of days, from 0 to"),
        ({"ensure": "everything"}, "must be 'consumer', 'none' or a list"),
        ({"worker": "nowhere:worker"}, "cannot import the worker"),
        ({"worker": "os:path"}, "create it with its class Worker"),
        ({"outbox": ["archive"]}, "the database 'archive', which DATABASES does not have"),
    ],
)
@pytest.mark.usefixtures("django_project")
def test_wrong_settings(setting, text):
    """``manage.py check`` names the key, the rule and the remedy."""
    from django.core.management import call_command
    from django.core.management.base import SystemCheckError
    from django.test import override_settings

    from jetstream_sync.django.workers import default_worker

    default_worker.cache_clear()
    with override_settings(JETSTREAM=setting), pytest.raises(SystemCheckError, match=text):
        call_command("check")
    default_worker.cache_clear()


@pytest.mark.usefixtures("django_project")
def test_warnings_of_the_checks():
    """Handlers without dead letters, and connections that the database may close, are named."""
    from django.conf import settings
    from django.core.checks import run_checks
    from django.test import override_settings

    from jetstream_sync.django.workers import default_worker

    default_worker.cache_clear()
    persistent = settings.DATABASES["postgres"] | {"CONN_MAX_AGE": 60}
    databases = settings.DATABASES | {"postgres": persistent}
    with override_settings(JETSTREAM={}):
        worker = default_worker()
        assert run_checks() == []
        worker.handler(stream="S", consumer="A", dead_letters="DEAD")(print_nothing)
        worker.handler(stream="S", consumer="B")(print_nothing)
        assert [check.id for check in run_checks()] == ["jetstream.W001"]
        checked = dict(settings.DATABASES)
        settings.DATABASES.update(databases)
        try:
            assert {check.id for check in run_checks()} == {"jetstream.W001", "jetstream.W002"}
        finally:
            settings.DATABASES.update(checked)
    default_worker.cache_clear()


@pytest.mark.usefixtures("django_project")
def test_what_would_not_be_committed_or_published_is_an_error():
    """A database without autocommit, and an outbox that no worker reads."""
    from django.conf import settings
    from django.test import override_settings

    from jetstream_sync.django.apps import check_jetstream
    from jetstream_sync.django.workers import default_worker

    default_worker.cache_clear()
    with override_settings(JETSTREAM={"name": "shop", "dead_letters": "DEAD"}):
        default_worker().task(outbox="postgres", name="one")(print_nothing)
        default_worker().task(outbox=True, name="two")(print_nothing)
        assert [check.id for check in check_jetstream()] == ["jetstream.E004"]
        settings.DATABASES["default"]["AUTOCOMMIT"] = False
        try:
            ids = [check.id for check in check_jetstream()]
        finally:
            settings.DATABASES["default"]["AUTOCOMMIT"] = True
        assert ids == ["jetstream.E004", "jetstream.E005"]
    default_worker.cache_clear()


@pytest.mark.usefixtures("django_project")
def test_an_unknown_database_of_a_task_with_steps_is_an_error_of_the_checks():
    """Each of its steps has a transaction there, as a whole handler has."""
    from django.core.checks import run_checks
    from django.test import override_settings

    from jetstream_sync.django.workers import default_worker

    default_worker.cache_clear()
    with override_settings(JETSTREAM={"name": "shop"}):
        task = default_worker().task(results="R", steps=True, atomic="absent")
        task(print_nothing)
        found = {check.id: check.msg for check in run_checks()}
        assert "'absent'" in found["jetstream.E002"]
    default_worker.cache_clear()


@pytest.mark.usefixtures("django_project")
def test_migrations_are_complete():
    """The migrations create what the models describe."""
    from django.core.management import call_command

    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
