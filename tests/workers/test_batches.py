"""Handlers of batches: their size, and messages that fail alone or all together."""

from __future__ import annotations

import threading
import time

import pytest
from fixtures.threads import wait_until
from fixtures.worker import FAST, dead_letters, is_settled, publish_texts, running

from jetstream_sync import InvalidOptionError
from jetstream_sync.workers import Backoff, BatchError, Context, Reject, Retry


def test_a_batch_is_full_or_as_old_as_permitted(js, stream, worker):
    """Full batches are handled at once, and the rest after the longest wait; all are acknowledged."""
    batches: list[tuple[int, float]] = []

    @worker.batch(stream=stream.name, consumer="C", max_messages=4, max_wait=0.5, decode="text")
    def handle(texts: list[str], contexts: list[Context]) -> None:
        assert [ctx.message.data.decode() for ctx in contexts] == texts
        batches.append((len(texts), time.monotonic()))

    publish_texts(js, stream, *"abcdefghi")
    with running(worker):
        wait_until(lambda: len(batches) == 3 and is_settled(stream))
    assert [size for size, _ in batches] == [4, 4, 1]
    assert batches[2][1] - batches[1][1] >= 0.4
    assert stream.consumer_info("C").delivered.consumer_seq == 9


def test_no_wait_takes_what_is_there(js, stream, worker):
    """With a wait of 0 a single message is handled at once, in any number of threads."""
    seen: list[int] = []

    @worker.batch(stream=stream.name, consumer="C", max_wait=0, concurrency=3, prefetch=0)
    def handle(payloads: list[bytes]) -> None:
        seen.append(len(payloads))

    with running(worker):
        for count in range(1, 4):
            publish_texts(js, stream, "x")
            wait_until(lambda count=count: sum(seen) == count)
    assert seen == [1, 1, 1]


def test_some_messages_of_a_batch_fail(js, stream, worker):
    """Each failed message is retried or given up by itself; the others are acknowledged once."""
    runs: list[str] = []

    @worker.batch(
        stream=stream.name, consumer="C", max_messages=5, max_wait=0.2, decode="json", retry=FAST
    )
    def handle(names: list[str]) -> None:
        runs.extend(names)
        causes = {"reject": Reject("no"), "retry": Retry("busy", delay=0.1), "error": OSError("no")}
        raise BatchError(
            {index: causes[name] for index, name in enumerate(names) if name in causes}
        )

    publish_texts(js, stream, '"good"', '"reject"', '"retry"', '"error"', "{")
    with running(worker):
        wait_until(lambda: dead_letters(js) == 4 and is_settled(stream))
    assert sorted(runs) == sorted(["good", "reject", *3 * ["retry"], *3 * ["error"]])
    letters = [js.get_stream("DEAD").get_msg(seq=seq).headers for seq in range(1, 5)]
    assert {letter["Dead-Sequence"]: letter["Dead-Error"] for letter in letters if letter} == {
        "2": "Reject",
        "3": "Retry",
        "4": "OSError",
        "5": "DecodeError",
    }


@pytest.mark.parametrize("error", [RuntimeError("no"), BatchError({7: OSError("no")})], ids=repr)
def test_an_error_fails_the_whole_batch(js, stream, worker, caplog, error):
    """Any other error, or an index outside of the batch, counts for each message of it."""
    attempts: list[list[int]] = []

    @worker.batch(stream=stream.name, consumer="C", max_messages=3, max_wait=0.5, retry=FAST)
    def handle(contexts: list[Context]) -> None:
        attempts.append([ctx.attempt for ctx in contexts])
        if contexts[0].attempt == 1:
            raise error

    publish_texts(js, stream, "a", "b", "c")
    with running(worker):
        wait_until(lambda: is_settled(stream) and sum(map(len, attempts)) == 6)
    assert attempts[0] == [1, 1, 1]
    assert [item for batch in attempts[1:] for item in batch] == [2, 2, 2]
    assert caplog.text.count("Traceback") == (0 if isinstance(error, BatchError) else 1)


def test_the_messages_of_a_batch_keep_their_leases(js, stream, worker):
    """While a batch runs for longer than ``ack_wait``, it and the waiting messages come once."""
    sizes: list[int] = []

    @worker.batch(stream=stream.name, consumer="C", max_messages=2, max_wait=0.1, ack_wait=3)
    def handle(payloads: list[bytes]) -> None:
        sizes.append(len(payloads))
        if len(sizes) == 1:
            time.sleep(3.5)

    publish_texts(js, stream, "a", "b", "c", "d")
    with running(worker):
        wait_until(lambda: is_settled(stream), 15)
    assert sizes == [2, 2]
    assert stream.consumer_info("C").delivered.consumer_seq == 4


def test_a_batch_ends_before_its_worker(js, stream, worker):
    """A stop lets the running batch end, and handles the messages that wait for a full one."""
    began, release = threading.Event(), threading.Event()

    @worker.batch(stream=stream.name, consumer="C", max_messages=2, max_wait=30, ack_wait=60)
    def handle() -> None:
        began.set()
        assert release.wait(30)

    publish_texts(js, stream, "a", "b", "c")
    with running(worker) as run:
        assert began.wait(10)
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 3)
        worker.stop()
        release.set()
        assert run.ended() == 0
    assert stream.consumer_info("C").ack_floor.stream_seq == 3


def test_options_of_batches_are_checked(worker, stream):
    """Sizes are positive, waits are bounded, and an invalid batch is not registered."""
    for options in ({"max_messages": 0}, {"max_wait": -1}, {"max_wait": 1e6}):
        with pytest.raises(InvalidOptionError, match=next(iter(options))):
            worker.batch(stream=stream.name, consumer="C", **options)(print)
    with pytest.raises(InvalidOptionError, match="retry"):
        worker.batch(stream=stream.name, consumer="C", retry=Backoff(in_place=True, attempts=2))(
            print
        )
    with pytest.raises(InvalidOptionError, match="errors"):
        BatchError({"1": OSError()})
    assert worker.handlers == []
    stream.create_consumer(durable_name="C")
    worker.batch(stream=stream.name, consumer="C", max_messages=1000)(print)
    assert "max_ack_pending=1000 is below concurrency + prefetch = 2000" in "".join(
        worker.check().warnings
    )
