"""What belongs to a thread of a worker can be released at its end."""

from __future__ import annotations

import threading

from fixtures.threads import wait_until
from fixtures.worker import running

from jetstream_sync.workers import Worker


def test_each_handler_thread_reports_its_end(nats_server, js, stream):
    """`on_thread_end` is called in each thread that runs handlers, once, after its last message."""
    ended: list[int] = []
    handled: set[int] = set()

    class Closing(Worker):
        def on_thread_end(self) -> None:
            ended.append(threading.get_ident())

    worker = Closing(nats_server.url)
    barrier = threading.Barrier(3)

    @worker.handler(stream=stream.name, consumer="C", concurrency=3)
    def handle() -> None:
        barrier.wait(20)  # each thread has one of the messages
        handled.add(threading.get_ident())

    for _ in range(3):
        js.publish(f"{stream.name}.x", b"")
    with running(worker):
        wait_until(lambda: len(handled) == 3)
        assert ended == []
    assert set(ended) == handled
    assert len(ended) == 3
