"""
A program whose main thread is interrupted repeatedly at random moments; see test_ctrl_c.py.

Arguments: the server's URL, a seed, and the number of interrupts. It ends with status 0 if the
connection was never lost, each interrupted call could be repeated, and the received messages were
complete.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys

import jetstream_sync
from jetstream_sync import TimeoutError


def main() -> None:
    url, seed, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dice = random.Random(seed)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with (
        jetstream_sync.connect(url, allow_reconnect=False, connect_timeout=20) as nc,
        jetstream_sync.connect(url, allow_reconnect=False, connect_timeout=20) as other,
    ):
        heard = other.subscribe("storm.heard", pending_msgs_limit=0, pending_bytes_limit=0)
        other.subscribe("storm.service", cb=lambda msg: msg.respond(msg.data))
        other.flush()
        js = nc.jetstream()
        stream = js.create_stream(name="STORM", subjects=["storm.stream"], storage="memory")
        consumer = stream.create_consumer()
        sub = nc.subscribe("storm.mine")
        sent = 0

        def publish() -> None:
            nonlocal sent
            while True:
                sent += 1  # counted before: an interrupted one may or may not have been sent
                nc.publish("storm.heard", b"%08d" % sent * dice.choice([1, 10, 9000]))

        def request() -> None:
            while True:
                assert nc.request("storm.service", b"%d" % sent, timeout=10).data == b"%d" % sent

        def flush() -> None:
            while True:
                nc.flush()

        def fetch() -> None:
            while True:
                js.publish("storm.stream", b"1", timeout=10)
                for msg in consumer.fetch(1, timeout=1):
                    msg.ack()

        def read() -> None:
            while True:
                nc.publish("storm.mine")
                sub.next_msg(timeout=10)

        def wait() -> None:
            while True:
                with contextlib.suppress(TimeoutError):
                    sub.next_msg(timeout=0.0005)

        for _ in range(times):
            call = dice.choice([publish, request, flush, fetch, read, wait])
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0005, 0.02))
                call()
            # At once, although the previous call was interrupted.
            nc.flush(timeout=5)
            assert nc.request("storm.service", b"?", timeout=5).data == b"?"
        nc.flush()
        other.flush()
        last = 0
        got = 0
        while heard.pending_msgs:
            data = heard.next_msg(timeout=0).data
            number = int(data[:8])
            assert data == b"%08d" % number * (len(data) // 8), "a message was cut up"
            assert number > last, "a message came twice, or out of order"
            last = number
            got += 1
        # At most the interrupted publishes may be missing.
        assert sent - times <= got <= sent, (sent, got)
        assert heard.dropped == 0
        assert nc.stats["errors_received"] == 0
        assert nc.stats["reconnects"] == 0
        print(f"interrupted {times} times, {got} messages of {sent}")  # noqa: T201


if __name__ == "__main__":
    main()
