"""Messages that the server publishes later (ADR-51)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from fixtures.threads import wait_until

from jetstream_sync import JetStream, Stream, errors


@pytest.fixture
def jobs(js: JetStream, stream_name: str) -> Stream:
    """A stream that allows schedules."""
    return js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_msg_schedules=True
    )


def subjects(stream: Stream) -> dict[str, int]:
    return dict(stream.info(subjects_filter=">").state.subjects or {})


@pytest.mark.server(">=2.12")
def test_a_message_is_published_at_its_time(js, jobs):
    """The message has the payload and headers of the schedule, which is then gone."""
    at = datetime.now(timezone.utc) + timedelta(seconds=1)
    target = f"{jobs.name}.due"
    js.schedule(f"{jobs.name}.plan", b"x", target=target, at=at, headers={"A": "1"}, msg_id="one")
    assert subjects(jobs) == {f"{jobs.name}.plan": 1}
    wait_until(lambda: subjects(jobs) == {target: 1})
    msg = jobs.get_msg(last_by_subject=target)
    assert msg.data == b"x"
    assert msg.time >= at
    assert msg.headers is not None
    assert msg.headers["A"] == "1"
    assert "Nats-Msg-Id" not in msg.headers


@pytest.mark.server(">=2.12")
def test_a_schedule_survives_a_restart(alone, fresh_server):
    """A message whose time comes while the server is down is published once after its restart."""
    js = alone.jetstream()
    stream = js.create_stream(name="JOBS", subjects=["JOBS.>"], allow_msg_schedules=True)
    at = datetime.now(timezone.utc) + timedelta(seconds=1)
    js.schedule("JOBS.plan", b"x", target="JOBS.due", at=at)
    fresh_server.stop()
    wait_until(lambda: datetime.now(timezone.utc) > at)
    fresh_server.start()
    wait_until(lambda: alone.is_connected)
    wait_until(lambda: subjects(stream) == {"JOBS.due": 1})
    assert stream.get_msg(last_by_subject="JOBS.due").time >= at
    # Another schedule, which is published after it, shows that the first one does not come again.
    js.schedule("JOBS.plan", b"y", target="JOBS.due", at=datetime.now(timezone.utc))
    wait_until(lambda: subjects(stream).get("JOBS.due", 0) > 1)
    assert subjects(stream) == {"JOBS.due": 2}


@pytest.mark.server(">=2.14")
def test_a_schedule_with_an_interval_stays_until_it_is_purged(js, jobs):
    """A schedule with an interval stays until its subject is purged; another one replaces it."""
    plan = f"{jobs.name}.plan"
    js.schedule(plan, b"old", target=f"{jobs.name}.due", cron="0 0 5 * * *", time_zone="Asia/Tokyo")
    js.schedule(plan, b"new", target=f"{jobs.name}.due", every=1)
    assert subjects(jobs) == {plan: 1}
    wait_until(lambda: subjects(jobs).get(f"{jobs.name}.due", 0) >= 2)
    assert jobs.get_msg(last_by_subject=f"{jobs.name}.due").data == b"new"
    jobs.purge(subject=plan)
    assert plan not in subjects(jobs)


@pytest.mark.server(">=2.14")
def test_a_message_is_taken_from_a_source_with_a_ttl(js, stream_name):
    """The messages have the last payload of the source, expire, and replace each other."""
    jobs = js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        allow_msg_schedules=True,
        allow_msg_ttl=True,
    )
    plan, due, source = (f"{stream_name}.{name}" for name in ("plan", "due", "source"))
    js.publish(source, b"old")
    js.schedule(plan, target=due, every=1, source=source, ttl=60, rollup=True)
    js.publish(source, b"new")

    def produced() -> bool:
        return due in subjects(jobs) and jobs.get_msg(last_by_subject=due).data == b"new"

    wait_until(produced)
    headers = jobs.get_msg(last_by_subject=due).headers
    assert headers is not None
    assert headers["Nats-TTL"] == "60"
    seq = jobs.get_msg(last_by_subject=due).seq
    wait_until(lambda: jobs.get_msg(last_by_subject=due).seq > seq)
    assert subjects(jobs)[due] == 1
    (found,) = jobs.schedules()
    assert (found.subject, found.rule, found.target) == (plan, "@every 1s", due)
    assert (found.source, found.ttl, found.rollup) == (source, "60", True)


@pytest.mark.server(">=2.12")
def test_schedules_are_listed_and_cancelled(js, jobs):
    """Messages are not listed; a cancelled schedule publishes nothing."""
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    for name in ("b", "a"):
        js.schedule(f"{jobs.name}.plan.{name}", b"x", target=f"{jobs.name}.due", at=at)
    js.publish(f"{jobs.name}.plain")
    assert [schedule.subject.rpartition(".")[2] for schedule in jobs.schedules()] == ["a", "b"]
    (found,) = jobs.schedules(f"{jobs.name}.plan.a")
    assert (found.payload, found.time_zone, found.source) == (b"x", None, None)
    assert found.rule.startswith("@at ")
    assert js.cancel_schedule(f"{jobs.name}.plan.a")
    assert not js.cancel_schedule(f"{jobs.name}.plan.a")
    # Published only if the schedule is still there.
    js.publish(
        f"{jobs.name}.cancelled",
        cancels=f"{jobs.name}.plan.b",
        expected_last_subject=f"{jobs.name}.plan.b",
        expected_last_subject_sequence=jobs.schedules()[0].seq,
    )
    assert jobs.schedules() == []
    assert subjects(jobs) == {f"{jobs.name}.plain": 1, f"{jobs.name}.cancelled": 1}
    with pytest.raises(errors.StreamNotFoundError):
        js.cancel_schedule("unknown.subject")


@pytest.mark.server(">=2.12")
def test_messages_are_not_cancelled_in_place_of_a_schedule(js, jobs):
    """The target of a schedule has the messages that are due, which have to stay."""
    due = f"{jobs.name}.due"
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    js.schedule(f"{jobs.name}.plan", b"x", target=due, at=at)
    js.publish(due, b"earlier")
    with pytest.raises(errors.InvalidOptionError, match="is not a schedule"):
        js.cancel_schedule(due)
    assert subjects(jobs) == {due: 1, f"{jobs.name}.plan": 1}


@pytest.mark.server(">=2.14")
def test_a_cron_of_five_fields_begins_each_minute(js, jobs):
    """It is written as in a crontab; the server wants a field for seconds."""
    plan = f"{jobs.name}.plan"
    js.schedule(plan, target=f"{jobs.name}.due", cron="15  5 * * 1-5")
    headers = jobs.get_msg(last_by_subject=plan).headers
    assert headers is not None
    assert headers["Nats-Schedule"] == "0 15 5 * * 1-5"


@pytest.mark.server(">=2.12")
def test_a_stream_without_schedules_refuses_them(js, stream):
    """The stream must allow schedules, and have the target."""
    at = datetime.now(timezone.utc)
    with pytest.raises(errors.BadRequestError, match="schedules is disabled"):
        js.schedule(f"{stream.name}.plan", target=f"{stream.name}.due", at=at)


@pytest.mark.parametrize(
    ("rule", "option"),
    [
        ({}, "at, every, cron"),
        ({"every": 5, "cron": "@daily"}, "at, every, cron"),
        ({"every": 0.5}, "every"),
        ({"cron": "0 5 * *"}, "cron"),
        ({"cron": "@every 5s"}, "cron"),
        ({"every": 5, "time_zone": "UTC"}, "time_zone"),
        ({"at": datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001 - this is what is refused
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}, "at"),
    ],
)
def test_rules_are_checked(js, rule, option):
    """Exactly one rule, in the form that the server knows."""
    with pytest.raises(errors.InvalidOptionError) as caught:
        js.schedule("plan", target="due", **rule)
    assert caught.value.option == option


def test_a_target_is_one_subject(js):
    """Wildcards are refused."""
    with pytest.raises(errors.BadSubjectError):
        js.schedule("plan", target="due.*", every=5)
