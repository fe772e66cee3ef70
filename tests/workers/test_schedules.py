"""Schedules of workers, which the server keeps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from fix_threads import wait_until
from fix_worker import running

from jetstream_sync import InvalidOptionError, JetStream, MessageNotFoundError, Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

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

    @worker.handler(stream="JOBS", consumer=f"C-{name}", filter_subject="jobs.>")
    def handle(data: bytes) -> None:
        done.append(data)

    return worker


def stored(jobs: Stream) -> dict[str, int]:
    """Return the sequences of the stored schedules."""
    found = {}
    for subject in jobs.info(subjects_filter="schedules.>").state.subjects or ():
        with suppress(MessageNotFoundError):  # deleted meanwhile
            found[subject] = jobs.get_msg(last_by_subject=subject).seq
    return found


@pytest.mark.server(">=2.14")
def test_schedules_are_kept_by_the_server(jobs: Stream, nats_server: NatsServer) -> None:
    """A restart leaves the same ones alone, replaces changed ones and deletes those without code."""
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
        wait_until(lambda: f"{prefix}old" not in stored(jobs))
        after = stored(jobs)
    assert after[f"{prefix}often"] == before[f"{prefix}often"]
    assert after[f"{prefix}daily"] > before[f"{prefix}daily"]
    assert after["schedules.JOBS.other.old"] == before["schedules.JOBS.other.old"]
    with running(make_worker(nats_server, done)):  # without any
        wait_until(lambda: stored(jobs).keys() == {"schedules.JOBS.other.old"})


@pytest.mark.server(">=2.14")
def test_schedules_of_another_program_are_kept(
    js: JetStream, jobs: Stream, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker of the same name in another module deletes neither schedule; one of this module does."""

    def of_module(module: str, *names: str) -> Worker:
        worker = make_worker(nats_server, [])
        worker.handlers[0] = replace(worker.handlers[0], module=module)
        for name in names:
            payload = partial(bytes, name, "ascii")
            payload.__module__ = module
            worker.schedule(name, subject=f"jobs.{name}", every=3600)(payload)
        return worker

    prefix = "schedules.JOBS.shop."
    # Stored by an earlier version, which named no module: deleted as it always was.
    js.schedule(f"{prefix}older", b"", target="jobs.older", every=3600)
    with running(of_module("bills", "bill", "reminder")):
        wait_until(lambda: stored(jobs).keys() == {f"{prefix}bill", f"{prefix}reminder"})
    with running(of_module("reports", "report")):
        wait_until(lambda: "reminder is of module bills" in caplog.text)
    assert stored(jobs).keys() == {f"{prefix}bill", f"{prefix}reminder", f"{prefix}report"}
    with running(of_module("bills", "bill")):
        wait_until(lambda: stored(jobs).keys() == {f"{prefix}bill", f"{prefix}report"})


@pytest.mark.server(">=2.12")
def test_a_message_at_a_time_comes_once(jobs: Stream, nats_server: NatsServer) -> None:
    """It is not stored again by a worker that starts later."""
    done: list[bytes] = []
    at = datetime.now(timezone.utc) + timedelta(seconds=1)
    for _ in range(2):
        worker = make_worker(nats_server, done)
        worker.schedule("once", subject="jobs.once", at=at)(lambda: b"once")
        with running(worker):
            wait_until(lambda: done == [b"once"])
            wait_until(lambda: not jobs.consumer_info("C-shop").num_ack_pending)
    assert jobs.info(subjects_filter="jobs.>").state.subjects == {"jobs.once": 1}


@pytest.mark.server(">=2.14")
def test_a_stream_that_does_not_fit_is_refused(js: JetStream, nats_server: NatsServer) -> None:
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
def test_an_older_server_is_refused(js: JetStream, nats_server: NatsServer) -> None:
    """The worker ends with the status of a wrong option, and names the release."""
    js.create_stream(name="JOBS", subjects=["jobs.>", "schedules.JOBS.>"])
    worker = make_worker(nats_server, [])
    worker.schedule("often", subject="jobs.often", every=1)(bytes)
    assert "2.14" in worker.check().errors[0]
    with running(worker) as run:
        assert run.ended() == 2


def test_options_of_schedules_are_checked() -> None:
    """One rule, a name that fits into a subject, and each name once."""
    worker = Worker()
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
