"""Handle the messages of a stream in other processes: ``python executor.py fork``, or ``spawn``."""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
OPTIONS = jetstream_sync.ConnectOptions(name="executor")


def work(data):
    """Compute the result of an order and publish it; runs in the pool's processes."""
    result = b"%d" % int(data) ** 2
    js = jetstream_sync.shared_connection(SERVERS, **OPTIONS).jetstream()
    js.publish("RESULTS.squares", result, msg_id=data.decode())
    return os.getpid()


def main(method):
    """Fetch orders, pass their data to the pool, and acknowledge those that succeeded."""
    js = jetstream_sync.shared_connection(SERVERS, **OPTIONS).jetstream()
    orders = js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    results = js.create_stream(name="RESULTS", subjects=["RESULTS.*"])
    for number in range(100):
        js.publish_async("ORDERS.received", b"%d" % number, msg_id=str(number))
    js.publish_async_completed(timeout=10)

    context = multiprocessing.get_context(method)
    consumer = orders.create_consumer(durable_name="squares")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        # A message belongs to the process of its connection, so pass only its data.
        messages = consumer.fetch(100, timeout=10)
        futures = [pool.submit(work, message.data) for message in messages]
        for message, future in zip(messages, futures, strict=True):
            future.result()
            message.ack()
    jetstream_sync.shared_connection(SERVERS, **OPTIONS).flush()
    print(results.info().state.messages, "results")
    print(consumer.info().num_ack_pending, "open")  # not acknowledged


if __name__ == "__main__":
    main(sys.argv[1])
