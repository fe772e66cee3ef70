"""Handlers with keys, and retries in place."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict

import pytest
from fixtures.threads import wait_until
from fixtures.worker import dead_letters, is_settled, running

from jetstream_sync import JetStream, Stream
from jetstream_sync.workers import Backoff, Context, Retry, Worker

QUICK = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=4)


def publish_keys(js: JetStream, stream: Stream, keys: list[str]) -> None:
    """Publish one message for each key, whose payload is its position."""
    futures = [
        js.publish_async(f"{stream.name}.a", b"%d" % number, headers={"Key": key})
        for number, key in enumerate(keys)
    ]
    for future in futures:
        future.result(20)


def test_messages_of_one_key_are_handled_one_after_the_other(js, stream, worker):
    """No two of a key overlap, also across retries; each starts in order, and other keys run meanwhile."""
    lock = threading.Lock()
    clock = itertools.count()
    # For each key: the number of the message, and the order of its first start and its end.
    spans: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    begun: dict[int, int] = {}
    durations: list[float] = []
    failures = random.Random(15)
    redelivered = []

    @worker.handler(
        stream=stream.name,
        consumer="C",
        key=lambda msg: msg.headers["Key"],
        concurrency=8,
        prefetch=100,
        retry=QUICK,
        decode=int,
    )
    def handle(number: int, ctx: Context) -> None:
        with lock:
            begun.setdefault(number, next(clock))
            fails = ctx.attempt < 4 and failures.random() < 0.05
        if ctx.message.metadata.num_delivered > 1:
            redelivered.append(number)
        start = time.monotonic()
        time.sleep(0.01)
        with lock:
            durations.append(time.monotonic() - start)
            if fails:
                raise OSError("not now")
            spans[ctx.message.headers["Key"]].append((number, begun[number], next(clock)))

    count = 500
    publish_keys(js, stream, [f"k{number % 20}" for number in range(count)])
    start = time.monotonic()
    with running(worker):
        wait_until(lambda: sum(map(len, spans.values())) == count, 30)
        wall = time.monotonic() - start
        wait_until(lambda: is_settled(stream))
    assert redelivered == []
    assert stream.consumer_info("C").delivered.consumer_seq == count
    for found in spans.values():
        assert [number for number, _, _ in found] == sorted(number for number, _, _ in found)
        for (_, _, ended), (_, began, _) in itertools.pairwise(found):
            assert ended < began
    assert len(durations) > count  # some have failed
    assert wall < sum(durations) / 4 + 0.1 * (len(durations) - count)


def test_a_busy_key_does_not_stop_other_keys(js, stream, worker):
    """Messages of a busy key occupy no thread, and their leases are renewed while they wait."""
    release = threading.Event()
    seen: list[int] = []

    @worker.handler(
        stream=stream.name,
        consumer="C",
        key=lambda msg: msg.headers["Key"],
        concurrency=2,
        prefetch=10,
        ack_wait=3,
        decode=int,
    )
    def handle(number: int) -> None:
        if not number:
            release.wait(30)
        seen.append(number)

    keys = ["busy"] * 6 + ["a", "b", "a", "b"] * 5
    publish_keys(js, stream, keys)
    with running(worker):
        others = [number for number, key in enumerate(keys) if key != "busy"]
        wait_until(lambda: len(seen) == len(others))
        assert sorted(seen) == others
        time.sleep(4)  # longer than the lease
        release.set()
        wait_until(lambda: len(seen) == len(keys))
        wait_until(lambda: is_settled(stream))
    assert seen[len(others) :] == list(range(6))
    info = stream.consumer_info("C")
    assert (info.num_redelivered, info.delivered.consumer_seq) == (0, len(keys))


@pytest.mark.parametrize(
    ("key", "error", "good"),
    [(lambda msg: msg.headers["Key"], "KeyError", [b"good"]), (lambda _msg: [], "TypeError", [])],
    ids=["raises", "not hashable"],
)
def test_a_key_function_that_fails(js, stream, worker, key, error, good):
    """It counts as a failed attempt of its message, and the worker continues."""
    seen = []

    worker.handler(stream=stream.name, consumer="C", key=key, retry=QUICK)(seen.append)

    js.publish(f"{stream.name}.a", b"bad", headers={"No-Key": "k"})
    js.publish(f"{stream.name}.a", b"good", headers={"Key": "k"})
    with running(worker):
        wait_until(lambda: dead_letters(js) == 2 - len(good) and is_settled(stream))
    assert seen == good
    letter = js.get_stream("DEAD").get_msg(seq=1)
    assert letter.headers["Dead-Attempts"] == "4"
    assert letter.headers["Dead-Error"] == error


def test_retries_in_place(js, stream, worker):
    """The handler runs again in its slot: one delivery, growing attempts, then a dead letter."""
    attempts = []

    @worker.handler(
        stream=stream.name,
        consumer="C",
        prefetch=0,
        retry=Backoff(first=0.1, factor=1.0, attempts=3, in_place=True),
    )
    def handle(data: bytes, ctx: Context) -> None:
        attempts.append((data, ctx.attempt))
        if data == b"bad":
            raise Retry("not now") if ctx.attempt == 1 else OSError("not now")

    js.publish(f"{stream.name}.a", b"bad")
    js.publish(f"{stream.name}.a", b"good")
    with running(worker):
        wait_until(lambda: len(attempts) == 4)
        wait_until(lambda: is_settled(stream))
    assert attempts == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]
    assert stream.consumer_info("C").delivered.consumer_seq == 2
    headers = js.get_stream("DEAD").get_msg(seq=1).headers
    assert headers["Dead-Attempts"] == "3"


def test_a_stop_interrupts_a_retry_in_place(js, stream, worker):
    """The message is returned at once, and the worker ends cleanly."""
    failed = threading.Event()

    @worker.handler(
        stream=stream.name,
        consumer="C",
        ack_wait=30,
        retry=Backoff(first=30, jitter=0, attempts=2, in_place=True),
    )
    def handle() -> None:
        failed.set()
        raise OSError("not now")

    js.publish(f"{stream.name}.a", b"x")
    with running(worker) as run:
        assert failed.wait(20)
        start = time.monotonic()
        assert run.stop() == 0
        assert time.monotonic() - start < 15
    msg = stream.get_consumer("C").next(timeout=10)
    assert (msg.data, msg.metadata.num_delivered) == (b"x", 2)
    msg.ack()


@pytest.mark.parametrize("option", ["key", "decode"])
def test_an_option_that_returns_a_coroutine_fails_the_message(js, stream, nats_server, option):
    """Each coroutine would be a key of its own, and the handler would take one for the payload."""

    async def coroutine(_: object) -> str:
        return "a"

    worker, handled = Worker(nats_server.url, dead_letters="DEAD"), []
    function = lambda given: coroutine(given)  # noqa: E731, PLW0108 - as a plain decorator does

    @worker.handler(stream=stream.name, consumer="C", **{option: function})
    def handle(payload: object) -> None:
        handled.append(payload)

    publish_keys(js, stream, ["a"] * 3)
    with running(worker):
        wait_until(lambda: dead_letters(js) == 3)
    assert not handled
    assert "did not run" in js.get_stream("DEAD").get_msg(1).headers["Dead-Reason"]


def test_other_pulls_are_noticed(stream, nats_server, caplog):
    """A worker with a key warns when another process already pulls from its consumer."""
    options = {"stream": stream.name, "consumer": "C"}
    plain, keyed = Worker(nats_server.url), Worker(nats_server.url)
    plain.handler(**options)(str)  # type: ignore[arg-type]
    keyed.handler(**options, key=lambda msg: msg.subject)(str)  # type: ignore[arg-type]
    with running(plain):
        wait_until(lambda: "C" in stream.consumer_names())
        wait_until(lambda: stream.consumer_info("C").num_waiting == 1)
        assert "other processes" not in caplog.text
        with running(keyed):
            wait_until(lambda: "other processes pull from consumer" in caplog.text)


def test_a_busy_key_does_not_keep_other_keys_away(js, stream, nats_server):
    """While a message of a key is retried in place, more messages of that key than fit do not stop others."""
    worker = Worker(nats_server.url, drain_timeout=1.0)
    handled = []
    slow = Backoff(first=60.0, maximum=60.0, jitter=0.0, attempts=2)

    @worker.handler(
        stream=stream.name,
        consumer="C",
        key=lambda msg: msg.headers["Key"],
        concurrency=2,
        retry=slow,
        decode=int,
    )
    def handle(number: int, ctx: Context) -> None:
        if ctx.message.headers["Key"] == "bad":
            raise OSError("not now")
        handled.append(number)

    publish_keys(js, stream, ["bad"] * 100 + ["good"] * 10)
    with running(worker):
        wait_until(lambda: len(handled) == 10)
    assert handled == list(range(100, 110))
