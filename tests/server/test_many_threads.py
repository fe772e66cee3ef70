"""Eight threads on one connection: nothing is lost and nothing is done twice, with and without a GIL."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from fixtures.threads import wait_until

from jetstream_sync import errors

_THREADS = 8
_EACH = 150


def test_eight_threads_publish_and_each_ack_is_of_its_message(js, stream):
    """Synchronous and asynchronous publishers get a sequence each, and the stream has what they sent."""
    start = threading.Barrier(_THREADS)
    subject = f"{stream.name}.many"

    def publish(thread: int) -> list[tuple[int, bytes]]:
        start.wait(20)
        sent = []
        for number in range(_EACH):
            data = b"%d-%d" % (thread, number)
            if thread % 2:
                sent.append((js.publish(subject, data, timeout=20).seq, data))
            else:
                sent.append((js.publish_async(subject, data, timeout=20), data))
        return [
            (item if isinstance(item, int) else item.result(20).seq, data) for item, data in sent
        ]

    with ThreadPoolExecutor(_THREADS) as pool:
        acked = dict(pair for pairs in pool.map(publish, range(_THREADS)) for pair in pairs)
    assert len(acked) == _THREADS * _EACH
    reader = stream.ordered_consumer()
    stored = {message.metadata.stream_seq: message.data for message in reader.fetch(len(acked))}
    assert stored == acked


def test_eight_threads_share_an_iterator(js, stream):
    """Each message goes to one thread, and the server has every acknowledgement."""
    count = _THREADS * _EACH
    subject = f"{stream.name}.shared"
    for future in [js.publish_async(subject, b"%d" % number) for number in range(count)]:
        future.result(20)
    consumer = stream.create_consumer(durable_name="SHARED", max_ack_pending=count)
    taken: list[Counter[bytes]] = [Counter() for _ in range(_THREADS)]
    with consumer.messages(max_messages=100, stop_after=count) as messages:

        def take(counter: Counter[bytes]) -> None:
            try:
                while True:
                    message = messages.next(20)
                    counter[message.data] += 1
                    message.ack()
            except errors.IteratorClosedError:
                return

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(take, taken))
    total = sum(taken, Counter())
    assert total == Counter(b"%d" % number for number in range(count))
    # The server queues acknowledgements, so an info may come first.
    wait_until(lambda: consumer.info().ack_floor.consumer_seq == count)
    assert consumer.info().num_ack_pending == 0
