"""Publish from a pool of processes: ``python pool.py fork``, or ``spawn``, or ``forkserver``."""

import multiprocessing
import os
import sys

import jetstream_sync

#: Arguments of `shared_connection()`: plain data that can be passed to other processes.
SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
OPTIONS = jetstream_sync.ConnectOptions(name="pool")


def publish(number):
    """Store one order; runs in the pool's processes."""
    js = jetstream_sync.shared_connection(SERVERS, **OPTIONS).jetstream()
    ack = js.publish("ORDERS.received", b"%d" % number, msg_id=str(number))
    return ack.seq, os.getpid()


def main(method):
    """Store 100 orders from the pool, and one from this process."""
    js = jetstream_sync.shared_connection(SERVERS, **OPTIONS).jetstream()
    stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    with multiprocessing.get_context(method).Pool(4) as pool:
        done = pool.map(publish, range(100), chunksize=5)
    js.publish("ORDERS.received", b"the parent's")
    print(len({seq for seq, _ in done}), "orders from", len({pid for _, pid in done}), "processes")
    print(stream.info().state.messages, "in the stream")


if __name__ == "__main__":
    main(sys.argv[1])
