"""Schedules of workers, which the server keeps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import count

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import running

import jetstream_sync
from jetstream_sync import InvalidOptionError, JetStream, MessageNotFoundError, Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker
from jetstream_sync.workers import run as run_module
from jetstream_sync.workers import schedules as schedules_module
from jetstream_sync.workers.schedules import Schedules

NOW = datetime.now(timezone.utc)


@pytest.fixture
def jobs(js: JetStream) -> Stream:
    """A stream for jobs and their schedules."""
    return js.create_stream(
        name="JOBS", subjects=["jobs.>", "schedules.JOBS.>"], allow_msg_schedules=True
    )


def make_worker(server: NatsServer, done: list[bytes], name: str = "shop", **options) -> Worker:
    """Return a worker that records the payloads of its jobs."""
    worker = Worker(server.url, name=name, **options)

    worker.handler(stream="JOBS", consumer=f"C-{name}", filter_subject="jobs.>")(done.append)

    return worker


def stored(jobs: Stream) -> dict[str, int]:
    """Return the sequences of the stored schedules."""
    found = {}
    for subject in jobs.info(subjects_filter="schedules.>").state.subjects or ():
        with suppress(MessageNotFoundError):  # deleted meanwhile
            found[subject] = jobs.get_msg(last_by_subject=subject).seq
    return found


@pytest.mark.server(">=2.14")
def test_schedules_are_kept_by_the_server(jobs, nats_server):
    """A restart leaves the same ones alone, replaces changed ones, and keeps those without code."""
    done: list[bytes] = []
    prefix = "schedules.JOBS.shop."
    first = make_worker(nats_server, done)
    first.schedule("often", subject="jobs.often", every=1)(lambda: b"often")
    first.schedule("daily", subject="jobs.daily", cron="0 0 5 * * *", time_zone="Asia/Tokyo")(
        lambda: b"daily"
    )
    first.schedule("old", subject="jobs.old", every=3600)(lambda: b"old")
    other = make_worker(nats_server, [], "other")
    other.schedule("old", subject="jobs.other", every=3600)(lambda: b"other")
    assert first.check().status == 0
    with running(first), running(other):
        wait_until(lambda: done.count(b"often") >= 2)
    before = stored(jobs)
    assert before.keys() == {
        f"{prefix}often",
        f"{prefix}daily",
        f"{prefix}old",
        "schedules.JOBS.other.old",
    }
    second = make_worker(nats_server, done)
    second.schedule("often", subject="jobs.often", every=1)(lambda: b"often")
    second.schedule("daily", subject="jobs.daily", cron="0 0 6 * * *")(lambda: b"daily")
    with running(second):
        wait_until(lambda: stored(jobs)[f"{prefix}daily"] > before[f"{prefix}daily"])
        after = stored(jobs)
    assert {**after, f"{prefix}daily": 0} == {**before, f"{prefix}daily": 0}


@pytest.mark.server(">=2.14")
def test_a_refresh_stores_what_is_missing_or_has_another_rule(
    jobs, nats_server, monkeypatch, caplog
):
    """An older process restarts during a deploy, and a schedule is purged; then nothing changes."""
    monkeypatch.setattr(run_module, "_REFRESH_S", 0.1)
    monkeypatch.setattr(schedules_module, "REFRESH_S", 0.1)
    prefix = "schedules.JOBS.shop."
    payloads = map(b"%d".__mod__, count())  # as one with the time of the start of the worker

    def version(number: int) -> Worker:
        worker = Worker(nats_server.url, name="shop")
        worker.handler(stream="JOBS", consumer=f"V{number}", filter_subject="jobs.>")(print)
        worker.schedule("same", subject="jobs.same", every=3600)(lambda: next(payloads))
        worker.schedule("daily", subject="jobs.daily", cron=f"0 0 {number} * * *")(bytes)
        worker.schedule(f"v{number}", subject=f"jobs.v{number}", every=3600)(bytes)
        return worker

    def rule() -> str | None:
        headers = jobs.get_msg(last_by_subject=f"{prefix}daily").headers
        return None if headers is None else headers.get("Nats-Schedule")

    with running(version(2)):
        wait_until(lambda: f"{prefix}v2" in stored(jobs))
        with running(version(1)):
            wait_until(lambda: f"{prefix}v1" in stored(jobs))
            assert f"{prefix}v2" in stored(jobs)
        jobs.purge(subject=f"{prefix}v2")
        wait_until(lambda: f"{prefix}v2" in stored(jobs))
        wait_until(lambda: rule() == "0 0 2 * * *")
        before = stored(jobs)
        with running(version(2)):
            # Another payload is stored once, at the start.
            wait_until(lambda: stored(jobs)[f"{prefix}same"] > before[f"{prefix}same"])
            before[f"{prefix}same"] = stored(jobs)[f"{prefix}same"]
            for _ in range(5):  # refreshes, in which this one is the last to be checked
                jobs.purge(subject=f"{prefix}v2")
                wait_until(lambda: f"{prefix}v2" in stored(jobs))
    assert {**stored(jobs), f"{prefix}v2": 0} == {**before, f"{prefix}v2": 0}
    assert "v2 was missing" in caplog.text
    assert "daily was replaced by one with another rule" in caplog.text


@pytest.mark.server(">=2.14")
def test_a_refresh_that_fails_ends_nothing(js, jobs, nats_server, monkeypatch, caplog):
    """The stream of a schedule refuses it: an error is logged once, until it is stored again."""
    monkeypatch.setattr(run_module, "_REFRESH_S", 0.1)
    monkeypatch.setattr(schedules_module, "REFRESH_S", 0.1)
    done: list[bytes] = []
    worker = make_worker(nats_server, done)
    worker.schedule("hourly", subject="jobs.hourly", every=3600)(bytes)
    subject = "schedules.JOBS.shop.hourly"
    with running(worker):
        wait_until(lambda: subject in stored(jobs))
        js.update_stream(replace(jobs.cached_info.config, subjects=["jobs.>"]))
        jobs.purge(subject=subject)
        wait_until(lambda: "schedule hourly cannot be checked" in caplog.text)
        js.publish("jobs.x", b"still handled")
        wait_until(lambda: done == [b"still handled"])
        assert caplog.text.count("schedule hourly cannot be checked") == 1
        js.update_stream(jobs.cached_info.config)
        wait_until(lambda: subject in stored(jobs))


@pytest.mark.server(">=2.14")
def test_unused_schedules_are_found_and_deleted(js, jobs, nats_server):
    """Those of another module are foreign: they are of a program with a worker of the same name."""

    def of_module(module: str, *names: str) -> Worker:
        worker = make_worker(nats_server, [])
        worker.handlers[0] = replace(worker.handlers[0], module=module)
        for name in names:

            def payload(name: str) -> bytes:
                return name.encode()

            payload.__module__ = module
            worker.schedule(name, subject=f"jobs.{name}", every=3600)(partial(payload, name))
        return worker

    def states(worker: Worker) -> dict[str, str]:
        return {schedule.name: schedule.state for schedule in worker.find_schedules()}

    prefix = "schedules.JOBS.shop."
    # Stored by an earlier version, which named no module.
    js.schedule(f"{prefix}older", b"", target="jobs.older", every=3600)
    bills = of_module("bills", "bill", "reminder")
    assert states(bills) == {"bill": "missing", "reminder": "missing", "older": "unused"}
    with running(bills), running(of_module("reports", "report")):
        wait_until(lambda: len(stored(jobs)) == 4)
    newer = of_module("bills", "bill")
    newer.schedule("reminder", subject="jobs.reminder", every=60)(bytes)
    found = {"bill": "stored", "reminder": "differs", "older": "unused", "report": "foreign"}
    assert states(newer) == found
    newest = of_module("bills", "bill")
    unused = [schedule for schedule in newest.find_schedules() if schedule.state == "unused"]
    newest.delete_schedules(unused)
    assert stored(jobs).keys() == {f"{prefix}bill", f"{prefix}report"}
    assert states(newest) == {"bill": "stored", "report": "foreign"}


@pytest.mark.server(">=2.12")
def test_a_schedule_under_a_pattern_deletes_no_other(jobs, nats_server, js, peer):
    """Another client may publish under any subject; as a filter, this one selects all schedules of the worker."""
    worker = make_worker(nats_server, [])
    worker.schedule("bill", subject="jobs.bill", every=3600)(bytes)
    js.schedule("schedules.JOBS.shop.older", b"", target="jobs.older", every=3600)
    with running(worker):
        wait_until(lambda: len(stored(jobs)) == 2)
    peer.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n')
    peer.send(b"PUB schedules.JOBS.shop.* 0\r\n\r\nPING\r\n")
    peer.expect(b"PONG\r\n")
    found = worker.find_schedules()
    assert {schedule.name: schedule.state for schedule in found} == {
        "bill": "stored",
        "older": "unused",
        "*": "unused",
    }
    worker.delete_schedules([schedule for schedule in found if schedule.name == "*"])
    assert {"schedules.JOBS.shop.bill", "schedules.JOBS.shop.older"} <= stored(jobs).keys()


@pytest.mark.server(">=2.12")
def test_a_message_at_a_time_comes_once(jobs, nats_server):
    """It is not stored again by a worker that starts later."""
    done: list[bytes] = []
    # Late enough for the first worker to start before.
    at = datetime.now(timezone.utc) + timedelta(seconds=SCALE)
    for _ in range(2):
        worker = make_worker(nats_server, done)
        worker.schedule("once", subject="jobs.once", at=at)(lambda: b"once")
        with running(worker):
            wait_until(lambda: done == [b"once"])
            wait_until(lambda: not jobs.consumer_info("C-shop").num_ack_pending)
    assert jobs.info(subjects_filter="jobs.>").state.subjects == {"jobs.once": 1}


class _SlowClock(datetime):
    """The time of a computer whose clock is an hour behind."""

    @classmethod
    def now(cls, tz=None) -> datetime:
        """Return the current time."""
        return datetime.now(tz) - timedelta(hours=1)


@pytest.mark.server(">=2.12")
def test_a_message_at_a_time_comes_once_although_the_clock_of_a_worker_is_behind(
    jobs, nats_server, monkeypatch
):
    """Whether its time has come is a question of the server's clock, also in a refresh."""
    done: list[bytes] = []
    at = datetime.now(timezone.utc) + timedelta(seconds=SCALE)
    worker = make_worker(nats_server, done)
    worker.schedule("once", subject="jobs.once", at=at)(lambda: b"once")
    with running(worker):
        wait_until(lambda: done == [b"once"])
    last = jobs.info().state.last_seq
    monkeypatch.setattr(schedules_module, "datetime", _SlowClock)
    monkeypatch.setattr(schedules_module, "REFRESH_S", 0.0)
    monkeypatch.setattr(run_module, "_REFRESH_S", 0.1)
    with running(worker):
        wait_until(lambda: jobs.consumer_info("C-shop").num_waiting)
        before = jobs.consumer_info("C-shop").ts
        wait_until(lambda: jobs.consumer_info("C-shop").ts > before + timedelta(seconds=0.5))
    assert jobs.info().state.last_seq == last


@pytest.mark.server(">=2.14")
def test_a_stream_that_does_not_fit_is_refused(js, nats_server):
    """The error names the option; `check` says the same, and nothing is stored."""

    def worker(**options) -> Worker:
        made = Worker(nats_server.url, name="shop")
        made.handler(stream="JOBS", consumer="C", **options)(print)
        made.schedule("often", subject="jobs.often", every=1)(bytes)
        return made

    fits = {"filter_subject": "jobs.>"}
    area = "schedules.JOBS.>"
    cases = [
        ("allow_msg_schedules", fits, {"subjects": ["jobs.>", area]}),
        ("subjects", fits, {"subjects": ["jobs.>"], "allow_msg_schedules": True}),
        ("filter_subjects", {}, {"subjects": ["jobs.>", area], "allow_msg_schedules": True}),
        (
            "filter_subjects",
            {"filter_subjects": ["jobs.>", "schedules.*.shop.>"]},
            {"subjects": ["jobs.>", area], "allow_msg_schedules": True},
        ),
        (
            "retention",
            fits,
            {"subjects": ["jobs.>", area], "allow_msg_schedules": True, "retention": "interest"},
        ),
    ]
    for option, filters, config in cases:
        stream = js.create_stream(name="JOBS", **config)
        made = worker(**filters)
        assert option in made.check().errors[0]
        with running(made) as run:
            assert run.ended() == 2
        assert stream.info().state.messages == 0
        js.delete_stream("JOBS")
    assert worker(**fits).check().status == 3  # no stream


@pytest.mark.server("<2.14")
def test_an_older_server_is_refused(js, nats_server):
    """The worker ends with the status of a wrong option, and names the release."""
    js.create_stream(name="JOBS", subjects=["jobs.>", "schedules.JOBS.>"])
    worker = make_worker(nats_server, [])
    worker.schedule("often", subject="jobs.often", every=1)(bytes)
    assert "2.14" in worker.check().errors[0]
    with running(worker) as run:
        assert run.ended() == 2


def test_options_of_schedules_are_checked():
    """One rule, a name that fits into a subject, and each name once."""
    worker = Worker(name="tests")
    worker.schedule("a", subject="jobs.a", every=1)(bytes)
    for name, rule, option in [
        ("a", {"every": 1}, "name"),
        ("b.c", {"every": 1}, "name"),
        ("b", {}, "cron, every, at"),
        ("b", {"every": 1, "cron": "@daily"}, "cron, every, at"),
        ("b", {"at": NOW.replace(tzinfo=None)}, "at"),
    ]:
        with pytest.raises(InvalidOptionError) as caught:
            worker.schedule(name, subject="jobs.b", **rule)(bytes)
        assert caught.value.option == option


@pytest.mark.server(">=2.14")
def test_a_start_and_a_refresh_without_changes_take_few_requests(fresh_server, monkeypatch):
    """The number of requests does not grow with the number of schedules."""
    worker = Worker(fresh_server.url, name="many")
    for number in range(60):
        worker.task(name=f"task-{number}", cron=f"{number} 3 * * *", time_zone="Europe/Berlin")(
            print
        )
    worker.setup()
    with jetstream_sync.connect(fresh_server.url) as nc, running(worker):
        stream = nc.jetstream().get_stream("TASKS")
        stored = lambda: stream.info(subjects_filter="schedules.>").state.subjects or ()  # noqa: E731
        wait_until(lambda: len(stored()) == 60)
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        last = js.get_stream("TASKS").info().state.last_seq
        before = js.account_info().api.total
        schedules = Schedules(js, worker.name, worker.schedules, worker.handlers)
        schedules.store()
        assert js.account_info().api.total - before <= 10
        assert js.get_stream("TASKS").info().state.last_seq == last
        monkeypatch.setattr(schedules_module, "REFRESH_S", 0)
        schedules.store()
        before = js.account_info().api.total
        schedules.refresh()
        assert js.account_info().api.total - before <= 3
        js.get_stream("TASKS").purge(subject=f"schedules.TASKS.{worker.name}.task-7", force=True)
        schedules.refresh()
        assert js.get_stream("TASKS").info().state.last_seq == last + 1


@pytest.mark.server(">=2.14")
def test_the_schedule_of_a_removed_task_is_unused(fresh_server):
    """The modules of the tasks that are left are known, so that it can be pruned."""
    old, new = (Worker(fresh_server.url, name="prune") for _ in range(2))
    for worker in (old, new):
        worker.task(name="kept")(record_nothing)
    old.task(name="removed", every=3600)(record_nothing)
    old.setup()
    with running(old):
        wait_until(lambda: any(item.state == "stored" for item in old.find_schedules()))
    assert [(item.name, item.state) for item in new.find_schedules()] == [("removed", "unused")]
    new.delete_schedules(new.find_schedules())
    assert new.find_schedules() == []


def record_nothing() -> None:
    """Stand for a task."""
