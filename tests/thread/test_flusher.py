"""The processor time of the flusher thread, which only sends what no other thread sends."""

from __future__ import annotations

import threading
import time

from fixtures.internals import connection_threads, core_of

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.server import NatsServer


def flusher_time(nc: Connection) -> float:
    """Return the processor time of the flusher of a connection in seconds."""
    flusher = next(thread for thread in connection_threads(nc) if "flusher" in thread.name)
    assert flusher.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(flusher.ident))


def test_flusher_does_not_spin_while_two_threads_publish(nats_server: NatsServer) -> None:
    """Two publishing threads pass the lock of the sender on to each other, which leaves nothing to do."""
    count = 150_000
    with jetstream_sync.connect(nats_server.url) as nc, nc.subscribe("other") as idle:

        def publish() -> None:
            for _ in range(count):
                nc.publish("flusher.spin", b"x" * 128)

        nc.flush()
        threads = [threading.Thread(target=publish) for _ in range(2)]
        in_flusher, in_process = flusher_time(nc), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        nc.flush(timeout=30.0)
        in_flusher, in_process = flusher_time(nc) - in_flusher, time.process_time() - in_process
        assert nc.stats["out_msgs"] == 2 * count
        assert not idle.pending_msgs
    assert in_flusher < 0.4 * in_process, f"{in_flusher:.3f} of {in_process:.3f} s"


def test_lone_message_is_sent_by_its_thread(nats_server: NatsServer) -> None:
    """A message now and then does not keep the flusher awake, and arrives at once."""
    count = 40
    with (
        jetstream_sync.connect(nats_server.url) as nc,
        nc.subscribe("flusher.lone") as subscription,
    ):
        nc.flush()
        time.sleep(0.1)
        before = flusher_time(nc)
        for number in range(count):
            nc.publish("flusher.lone", b"%d" % number)
            assert subscription.next_msg(timeout=5.0).data == b"%d" % number
            time.sleep(0.02)
        spent = (flusher_time(nc) - before) / count
    assert spent < 60e-6, f"{spent * 1e6:.0f} us for each message"


def test_burst_after_a_silence_is_sent_together(nats_server: NatsServer) -> None:
    """Only its first message is sent alone."""
    with (
        jetstream_sync.connect(nats_server.url) as nc,
        nc.subscribe("flusher.burst") as subscription,
    ):
        nc.flush()
        time.sleep(0.05)
        sends = 0
        writer = core_of(nc).writer
        for number in range(1000):
            nc.publish("flusher.burst", b"%d" % number)
            sends += writer.pending_bytes == 0
        received = [subscription.next_msg(timeout=5.0).data for _ in range(1000)]
    assert received == [b"%d" % number for number in range(1000)]
    assert sends < 300
