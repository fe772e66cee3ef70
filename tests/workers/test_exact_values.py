"""The options of workers and of calls are taken by value: members of enums and subclasses of str and int."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

import pytest
from fixtures.exact import as_member, as_subclass, recorded, replaced
from fixtures.threads import SCALE, wait_until
from fixtures.worker import running

import jetstream_sync
from jetstream_sync.workers import Context, DeadLetters, Worker
from jetstream_sync.workers.options import QueueOptions, TaskOptions, WorkerOptions
from jetstream_sync.workers.schedules import Schedule
from jetstream_sync.workers.source import Handler

pytestmark = [pytest.mark.server(">=2.14"), pytest.mark.timeout(110)]
_LATER = datetime(2100, 1, 1, tzinfo=timezone.utc)
#: Options that do not reach the server, or that another test covers.
_NOT_SENT = {
    "http",
    "pool",
    "group",
    "member",
    "num_replicas",
    "module",
    "concurrency",
    "unknown_task_grace",
    "atomic",
}


class Options:
    """Replaces options, and notes their names."""

    def __init__(self, how: Any) -> None:
        self.how = how
        self.names: set[str] = set()

    def __call__(self, **options: Any) -> dict[str, Any]:
        self.names |= set(options)
        return {name: replaced(value, self.how) for name, value in options.items()}


def sent_names() -> set[str]:
    """Return the options that take texts or numbers and are sent."""
    return {
        item.name
        for kind in (WorkerOptions, QueueOptions, TaskOptions, Handler, Schedule)
        for item in fields(kind)
        if item.init and re.search(r"\b(str|int)\b", str(item.type))
    } - _NOT_SENT


@pytest.mark.parametrize("how", [as_subclass, as_member])
def test_a_worker_sends_the_values_of_its_options(fresh_server, how):
    """Names, subjects, rules and ids reach the server by value, and the calls run."""
    given = Options(how)
    seen: list[object] = []
    with recorded(fresh_server) as recorder, jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="JOBS", subjects=["jobs.>"], retention="workqueue")
        js.create_stream(
            name="CRON", subjects=["cron.>", "schedules.CRON.>"], allow_msg_schedules=True
        )
        worker = Worker(
            how(recorder.url),
            **given(
                name="shop",
                program="program",
                dead_letters="DEAD",
                ensure="consumer",
                trace="link",
                report="messages",
                connection={"name": "client"},
            ),
        )
        worker.limit(how("mail"), **given(concurrency=2, scope="process"))
        worker.limit(how("bank"), **given(concurrency=2, rate="100/s", scope="cluster"))

        @worker.handler(
            **given(
                stream="JOBS",
                consumer="JOB",
                filter_subjects=["jobs.a"],
                once="ONCE",
                limit="mail",
                rate="1000/s",
                deliver="all",
                decode="text",
                ack="after",
                prefetch=2,
                max_bytes=10_000,
                ack_wait=30,
                timeout=60,
            )
        )
        def job(data: str, ctx: Context) -> None:
            ctx.publish(how("jobs.out"), how(b"data"), replaced({"Name": "value"}, how))
            seen.append(data)

        @worker.batch(
            **given(stream="JOBS", consumer="BATCH", filter_subject="jobs.out", max_messages=1)
        )
        def out(messages: list[bytes]) -> None:
            seen.extend(messages)

        @worker.handler(**given(stream="JOBS", consumer="BAD", filter_subject="jobs.bad"))
        def bad(_: bytes) -> None:
            raise jetstream_sync.workers.Reject(how("reason"))

        worker.queue(how("mails"), **given(stream="WORK", subject="work", park_after=60))

        @worker.task(
            **given(
                name="send",
                queue="mails",
                results="RESULTS",
                limit="bank",
                unique="until_done",
                unique_by=["to"],
                limit_key=lambda call: how(call.kwargs["to"]),
            )
        )
        def send(to: str) -> str:
            return to

        @worker.task(**given(name="steps", results="RESULTS"), steps=True)
        def steps(ctx: Context) -> object:
            ctx.step(lambda: 1, name=how("first"))
            ctx.progress(1, 2, how("half"))
            return ctx.wait(how("signal"))

        @worker.task(
            **given(name="daily", cron="0 0 0 1 1 *", time_zone="Europe/Berlin", missed="all")
        )
        def daily() -> None:
            pass

        @worker.schedule(how("yearly"), **given(subject="cron.yearly", at=_LATER))
        def yearly() -> bytes:
            return how(b"data")

        worker.schedule(daily, **given(every=86_400, schedule_name="every"))

        worker.setup()
        with running(worker):
            for subject in ("jobs.a", "jobs.bad"):
                js.publish(subject, b"work")
            result = send.apply_async([how("you")], **given(task_id="call-1", priority="normal"))
            assert result.id == "call-1"
            assert result.get(20 * SCALE) == "you"
            assert send.result_of(how("call-1")).get(20 * SCALE) == "you"
            waiting = steps.delay()
            assert waiting.signal(how("signal"), "come")
            assert waiting.get(20 * SCALE) == "come"
            wait_until(lambda: {"work", b"data"} <= set(seen))
            letters = DeadLetters(js)
            wait_until(lambda: len(letters.find(how("JOBS"), how("BAD"))) == 1)
        assert recorder.formatted() == []
        assert {"JOBS", "CRON", "DEAD", "WORK", "KV_RESULTS", "KV_ONCE"} <= set(js.stream_names())
    assert sent_names() - given.names == set()
    assert set(inspect.signature(worker.limit).parameters) <= {*given.names, "name"}
