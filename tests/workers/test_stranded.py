"""Messages that the server would never deliver again: found, reported, and delivered."""

from __future__ import annotations

import threading
import uuid

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import running

from jetstream_sync import JetStream, Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Retry, Worker

pytestmark = pytest.mark.timeout(110)

#: Options that the handler does not name, which a consumer that is created again must keep.
_OPTIONS = {"ack_wait": 5, "max_ack_pending": 77, "max_deliver": -1}


@pytest.fixture
def queue(js: JetStream, stream_name: str) -> Stream:
    """A work queue with a consumer ``C``."""
    found = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], retention="workqueue")
    found.create_consumer(durable_name="C", filter_subject=f"{stream_name}.>", **_OPTIONS)
    return found


def strand(js: JetStream, queue: Stream) -> None:
    """Have the server forget seven of ten messages: a purge by subject, and acknowledgements after it."""
    for number in range(10):
        js.publish(f"{queue.name}.{number}", b"%d" % number)
    delivered = {msg.subject[-1]: msg for msg in queue.get_consumer("C").fetch(10, timeout=2)}
    queue.purge(f"{queue.name}.7", force=True)
    for key in "89":
        delivered[key].ack_sync()
    wait_until(lambda: queue.stranded("C") is not None)


def define(worker: Worker, queue: Stream, runs: list[bytes]) -> None:
    """Add a handler of the consumer."""

    @worker.handler(stream=queue.name, consumer="C", filter_subject=f"{queue.name}.>")
    def handle(data: bytes) -> None:
        runs.append(data)


def new_worker(server: NatsServer, **options: object) -> Worker:
    """Return a worker of its own name."""
    return Worker(server.url, name=uuid.uuid4().hex, **options)  # type: ignore[arg-type]


def test_a_worker_frees_stranded_messages_at_its_start(js, queue, nats_server, caplog):
    """The consumer is created again with the same config; each message is delivered, with one warning."""
    strand(js, queue)
    runs: list[bytes] = []
    workers = [new_worker(nats_server), new_worker(nats_server)]
    for worker in workers:
        define(worker, queue, runs)
    text = "will never deliver message 1"
    assert any(text in error for error in workers[0].check().errors)
    with running(workers[0]), running(workers[1]):
        wait_until(lambda: queue.info().state.messages == 0, 20)
        config = queue.get_consumer("C").info().config
        assert config.max_ack_pending == 77
        assert not workers[0].check().errors
    assert sorted(runs) == [b"%d" % number for number in range(7)]
    assert caplog.text.count("would never deliver message 1: it is created again") == 1


def test_a_running_worker_frees_stranded_messages(js, queue, nats_server):
    """Messages that wait for their retry, and are stranded by a purge of another client, come again soon."""
    failed: set[bytes] = set()
    done: set[bytes] = set()
    purged = threading.Event()
    worker = new_worker(nats_server)

    @worker.handler(
        stream=queue.name,
        consumer="C",
        filter_subject=f"{queue.name}.>",
        concurrency=10,
        prefetch=0,
    )
    def handle(data: bytes) -> None:
        if data in {b"8", b"9"}:
            assert purged.wait(20 * SCALE)
        elif data not in failed:
            failed.add(data)
            raise Retry("later", delay=600.0)
        done.add(data)

    with running(worker):
        for number in range(10):
            js.publish(f"{queue.name}.{number}", b"%d" % number)
        wait_until(lambda: len(failed) == 8)
        wait_until(lambda: queue.get_consumer("C").info().num_ack_pending == 10)
        queue.purge(f"{queue.name}.7", force=True)
        purged.set()
        wait_until(lambda: len(done) == 9, 30)
        wait_until(lambda: queue.info().state.messages == 0)


def test_a_worker_that_must_not_change_consumers_reports_stranded_messages(js, queue, nats_server):
    """With ``ensure="none"`` it is not ready, and says what to do."""
    strand(js, queue)
    runs: list[bytes] = []
    worker = new_worker(nats_server, ensure="none")
    define(worker, queue, runs)
    with running(worker):
        reasons = lambda: (worker.snapshot() or {"not_ready": []})["not_ready"]  # noqa: E731
        wait_until(
            lambda: any("delete the consumer and create it again" in item for item in reasons()), 20
        )
        assert not runs
