"""The hooks of a worker: which are called, and what an error in one does."""

from __future__ import annotations

from collections import Counter

import pytest
from fixtures.threads import wait_until
from fixtures.worker import is_settled, publish_texts, running

from jetstream_sync.workers import Backoff, Reject, Worker, WorkerEvent
from jetstream_sync.workers.observer import EVENT_KINDS

FAST = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=2)


def test_hooks_are_called_for_the_life_of_the_worker(js, stream, nats_server):
    """Each event calls its hooks, with the handler, the message, the error and what follows."""
    worker = Worker(nats_server.url, name="hooked", dead_letters="DEAD")
    events: list[WorkerEvent] = []
    for kind in EVENT_KINDS:
        assert worker.on(kind)(events.append) == events.append

    @worker.handler(stream=stream.name, consumer="C", retry=FAST, decode="text")
    def handle(what: str) -> None:
        if what != "good":
            raise {"twice": OSError("busy"), "bad": Reject("no")}[what]

    with running(worker) as run:
        publish_texts(js, stream, "good", "twice", "bad")
        wait_until(lambda: is_settled(stream) and len(events) >= 12)
        assert run.stop() == 0
    assert all(event.worker == "hooked" for event in events)
    kinds = [event.kind for event in events]
    # A message may be handled before the worker has reported that all threads are ready.
    assert (kinds[0], kinds[-2], kinds[-1]) == ("start", "drain", "stop")
    assert kinds.count("ready") == 1
    assert events[-1].status == 0
    found = [
        (
            event.message.data.decode(),
            event.kind,
            type(event.error).__name__ if event.error else "",
            event.delay,
        )
        for event in events
        if event.message is not None and event.handler is handle
    ]
    # Of several threads and messages: the order of one message's events is kept.
    assert [event[1:] for event in found if event[0] == "good"] == [
        ("message", "", None),
        ("success", "", None),
    ]
    assert [event[1:] for event in found if event[0] == "twice"] == [
        ("message", "", None),
        ("failure", "OSError", 0.1),
        ("message", "", None),
        ("failure", "OSError", None),
        ("dead_letter", "OSError", None),
    ]
    assert [event[1:] for event in found if event[0] == "bad"] == [
        ("message", "", None),
        ("failure", "Reject", None),
        ("dead_letter", "Reject", None),
    ]
    assert len(found) == len(events) - 4


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(9)], ids=["error", "exit"])
def test_a_hook_that_raises_changes_nothing(js, stream, worker, caplog, error):
    """Its error is logged once with a traceback; messages are settled, and later hooks are called."""
    calls: Counter[str] = Counter()

    def fail(_event: WorkerEvent) -> None:
        raise error

    for kind in EVENT_KINDS:
        worker.on(kind)(fail)
        worker.on(kind)(lambda event: calls.update([event.kind]))
    runs = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST, decode="text")
    def handle(what: str) -> None:
        runs.append(what)
        if what == "bad":
            raise OSError("busy")

    with running(worker) as run:
        publish_texts(js, stream, "good", "bad", "good")
        wait_until(lambda: is_settled(stream) and calls["dead_letter"] == 1)
        assert run.stop() == 0
    assert Counter(runs) == {"good": 2, "bad": 2}
    assert stream.consumer_info("C").delivered.consumer_seq == 4
    assert calls == {
        **dict.fromkeys(("start", "ready", "dead_letter", "drain", "stop"), 1),
        "message": 4,
        "success": 2,
        "failure": 2,
    }
    logged = [record for record in caplog.records if record.getMessage().startswith("hook ")]
    assert len([item for item in logged if item.levelname == "ERROR" and item.exc_info]) == 1
