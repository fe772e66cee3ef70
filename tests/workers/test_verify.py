"""`Worker.verify`: each call has a message, an end, or a dead letter; what disagrees is named."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import running

from jetstream_sync import JetStream, StreamNotFoundError, shared_connection
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Reject, TaskError, Worker
from jetstream_sync.workers.dead_letters import DeadLetters

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker with a task that fails for number 0, and another number of calls."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")
    found.queue("default", ack_wait=3)

    @found.task(name="work", results="RESULTS", retry=Backoff(first=0.1, attempts=2))
    def work(number: int) -> None:
        if number == 0:
            raise Reject("no")

    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_calls_that_wait_or_have_ended_agree(worker):
    """Waiting, later, successful, failed and cancelled calls are where their states say."""
    work = worker.queues.tasks["work"]
    assert worker.verify() == []
    with running(worker):
        work.delay(1).get(20 * SCALE)
        with pytest.raises(TaskError):
            work.delay(0).get(20 * SCALE)
        wait_until(lambda: worker.verify() == [])
    work.delay(2)
    work.apply_async((3,), countdown=600)
    assert work.delay(4).cancel()
    assert worker.verify() == []


def test_a_call_without_its_message_is_reported(worker, js):
    """A message that another client has deleted leaves a call that would be READY for ever."""
    call = worker.queues.tasks["work"].apply_async((1,), task_id="order-1")
    other = worker.queues.tasks["work"].apply_async((2,), task_id="order")
    js.get_stream("TASKS").delete_msg(1)
    (text,) = worker.verify()
    assert text == f"call {call.id} of task work is READY, and no message of it is stored"
    assert worker.queues.tasks["work"].result_of(other.id).status == "READY"


def test_a_failed_call_without_its_dead_letter_is_reported(worker, js):
    """A dead letter that was discarded, and one of a call that has succeeded."""
    work = worker.queues.tasks["work"]
    with running(worker):
        calls = [work.delay(0), work.delay(0)]
        for call in calls:
            with pytest.raises(TaskError):
                call.get(20 * SCALE)
        good = work.delay(1)
        good.get(20 * SCALE)
        wait_until(lambda: worker.verify() == [])
    letters = DeadLetters(js)
    gone, kept = letters.find("TASKS")
    letters.discard(gone)
    headers = js.get_stream("DEAD").get_msg(kept.stored[0][1]).headers or {}
    subject = f"tasks.{worker.name}.default.work.{good.id}"
    changed = {name: value for name, value in headers.items() if name.startswith("Dead-")}
    changed |= {"Dead-Subject": subject, "Dead-Sequence": "99"}
    js.publish(f"dead.TASKS.x.{subject}", b"", headers=changed)
    found = sorted(worker.verify())
    assert len(found) == 2
    assert {text.partition(" is ")[2] for text in found} == {
        "FAILED, and has no dead letter",
        "SUCCESSFUL, and has a dead letter",
    }


def test_each_call_of_a_requeued_dead_letter_has_its_own(worker, js):
    """The calls share the subject of their dead letters; one dead letter too many is reported."""
    call = worker.queues.tasks["work"].apply_async((0,), task_id="order-1")
    letters = DeadLetters(js)
    with running(worker):
        with pytest.raises(TaskError):
            call.get(20 * SCALE)
        for count in (1, 2):
            wait_until(lambda count=count: len(letters.find("TASKS")) == count, 20)
            letters.requeue(letters.find("TASKS")[-1])
        wait_until(lambda: len(letters.find("TASKS")) == 3, 20)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert len(js.key_value("RESULTS").keys()) == 3
    assert worker.verify() == []
    copy = js.get_stream("DEAD").get_msg(1)
    headers = {name: value for name, value in (copy.headers or {}).items() if "Dead-" in name}
    js.publish(copy.subject, b"", headers={**headers, "Dead-Sequence": "99"})
    assert worker.verify() == ["call order-1 of task work is FAILED, and has 4 dead letters"]


def test_stranded_calls_are_reported(worker, js):
    """Messages that the server has forgotten are named and counted, and a worker that starts runs them."""
    work = worker.queues.tasks["work"]
    worker.setup()
    calls = [work.delay(number) for number in range(1, 11)]
    queue = work.queue
    stream = js.get_stream(queue.stream)
    consumer = stream.get_consumer(queue.consumer)
    delivered = consumer.fetch(10, timeout=2)
    stream.purge(delivered[7].subject, force=True)
    for msg in delivered[8:]:
        msg.ack_sync()
    # Until the leases are over, the server counts the stranded messages as pending.
    wait_until(lambda: consumer.info().num_ack_pending == 0, 20)
    assert consumer.info().num_pending == 0
    assert stream.info().state.messages == 7
    found = worker.verify()
    assert sorted(found) == sorted(
        [
            *(
                f"call {call.id} of task work is READY, and no message of it is stored"
                for call in calls[7:]
            ),
            "queue default: 7 messages unknown to its consumer",
            next(text for text in found if "will never deliver message 1 " in text),
        ]
    )
    with running(worker):
        wait_until(lambda: stream.info().state.messages == 0, 20)
        for call in calls[:7]:
            call.get(20 * SCALE)
    assert len(worker.verify()) == 3  # the calls whose messages were removed here


def test_calls_without_results_are_compared_with_their_dead_letters(worker, js):
    """A message that is stored although it has a dead letter is named; what cannot be known is said."""

    @worker.task(name="plain")
    def plain(number: int) -> None:
        raise Reject(f"no {number}")

    plain.delay(1)
    with running(worker):
        wait_until(lambda: len(DeadLetters(js).find("TASKS")) == 1)
        wait_until(lambda: worker.verify() == [])
    plain.delay(2)
    assert worker.verify() == []
    msg = js.get_stream("TASKS").get_msg(2)
    copied = js.get_stream("DEAD").get_msg(1).headers or {}
    headers = {name: value for name, value in copied.items() if name.startswith("Dead-")}
    headers |= {"Dead-Subject": msg.subject, "Dead-Sequence": "2"}
    js.publish(f"dead.TASKS.x.{msg.subject}", b"", headers=headers)
    assert worker.verify() == ["message 2 of task plain has a dead letter, and is still stored"]
    assert worker.unverified().startswith("plain: without results, a call that has neither")


def test_a_busy_queue_agrees(worker, js):
    """While calls are sent and run, none counts as unknown to the consumer or as a call without message."""
    work = worker.queues.tasks["work"]
    with running(worker):
        ended = threading.Event()

        def send() -> None:
            while not ended.is_set():
                work.delay(1)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(3):
                assert worker.verify() == []
        finally:
            ended.set()
            sender.join()
        assert js.get_stream("TASKS").info().state.last_seq > 20


def test_calls_of_an_unknown_task_are_reported_beside_missing_streams(worker):
    """Both by `check` and by `verify`."""
    worker.task(name="gone")(print).delay()
    del worker.queues.in_use[0].tasks["gone"]
    for number in range(8):
        worker.queue(f"other{number}", stream=f"OTHER{number}", subject=f"other{number}")
        worker.task(name=f"other{number}", queue=f"other{number}")(print)
    (text,) = worker.verify()
    assert text.startswith("unknown task 'gone'")
    assert text in worker.check().errors
