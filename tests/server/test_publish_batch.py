"""Atomic batches (ADR-50): all messages or none, typed errors, and nothing left behind."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from fixtures.internals import core_of
from fixtures.server import paused
from fixtures.threads import run_all, wait_until, within

import jetstream_sync
from jetstream_sync import JetStream, Stream, errors
from jetstream_sync.server import NatsServer

atomic = pytest.mark.server(">=2.12")


@pytest.fixture
def target(js: JetStream, stream_name: str) -> Stream:
    """An empty stream that allows atomic batches."""
    return js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        storage="memory",
        allow_atomic=True,
        allow_msg_ttl=True,
        allow_direct=True,
    )


def count(stream: Stream) -> int:
    return stream.info().state.messages


@atomic
def test_a_batch_of_1000_messages_is_stored_in_order(js, target):
    """The acknowledgement has the last of the contiguous sequences; one message more is refused."""
    js.publish(f"{target.name}.before")
    messages = [(f"{target.name}.{number % 40}", b"%d" % number) for number in range(1000)]
    ack = js.publish_batch(messages, stream=target.name)
    assert (ack.stream, ack.seq, ack.batch_size) == (target.name, 1001, 1000)
    stored = target.get_msgs(max_messages=1000, seq=2)
    assert [(item.subject, item.data) for item in stored] == messages
    with pytest.raises(errors.BatchTooLargeError):
        js.publish_batch([*messages, (f"{target.name}.more", b"")])
    with pytest.raises(errors.InvalidOptionError, match="at least one"):
        js.publish_batch([])
    assert count(target) == 1001


@atomic
def test_messages_with_headers_and_received_messages(nc, js, target):
    """Headers are stored, and a received message can be an item."""
    subscription = nc.subscribe("elsewhere")
    nc.publish("elsewhere", b"core", headers={"A": ["1", "2"]})
    msg = subscription.next_msg(timeout=5.0)
    with js.batch(target.name) as batch:
        batch.add(f"{target.name}.a", bytearray(b"1"), headers={"B": "ü"}, msg_id="one")
        batch.add(f"{target.name}.b", msg.data, headers=msg.headers, msg_ttl=60)
        assert len(batch) == 2
        assert batch.ack is None
        assert list(batch.sequences) == []
    assert batch.ack is not None
    assert list(batch.sequences) == [batch.ack.seq - 1, batch.ack.seq]
    first, second = target.get_msgs(max_messages=2, seq=batch.sequences[0])
    assert first.headers is not None
    assert second.headers is not None
    assert (first.headers["B"], first.headers["Nats-Msg-Id"]) == ("ü", "one")
    assert second.headers.get_all("A") == ["1", "2"]
    assert second.headers["Nats-TTL"] == "60"
    with pytest.raises(errors.InvalidOptionError, match="committed"):
        batch.add(f"{target.name}.c")
    subscription.unsubscribe()

    with nc.subscribe(f"{target.name}.c") as own:
        js.publish(f"{target.name}.c", b"again")
        assert js.publish_batch([own.next_msg(timeout=5.0)]).batch_size == 1


@atomic
def test_messages_of_an_earlier_batch(nc, js, target):
    """The last message of a batch, which has its commit, ends no other batch."""
    js.publish_batch([(f"{target.name}.{number}", b"%d" % number) for number in range(3)])
    stored = target.get_msgs(max_messages=3)
    assert [item.headers and item.headers["Nats-Batch-Sequence"] for item in stored] == list("123")
    again = [(item.subject, item.data, item.headers) for item in reversed(stored)]
    ack = js.publish_batch(again)
    assert (ack.seq, ack.batch_size) == (6, 3)
    found = target.get_msgs(max_messages=3, seq=4)
    assert [item.data for item in found] == [b"2", b"1", b"0"]
    assert [item.headers and item.headers.get_all("Nats-Batch-Id") for item in found] == [
        [ack.batch_id]
    ] * 3
    with nc.subscribe(f"{target.name}.own") as own:
        nc.publish(f"{target.name}.own", headers={"Nats-Batch-Commit": "eob", "A": "1"})
        message = own.next_msg(timeout=5.0)
    assert js.publish_batch([message, message]).batch_size == 2
    last = target.get_msg(last_by_subject=f"{target.name}.own")
    assert last.headers
    assert (last.headers["A"], last.headers.get_all("Nats-Batch-Commit")) == ("1", ["1"])


@atomic
def test_an_exception_in_the_block_abandons_the_batch(js, target):
    """Nothing is sent, and the exception is raised."""
    with pytest.raises(KeyError), js.batch() as batch:
        batch.add(f"{target.name}.a")
        raise KeyError
    with pytest.raises(errors.InvalidOptionError, match="abandoned"):
        batch.commit()
    assert count(target) == 0


@atomic
def test_one_unmet_expectation_refuses_the_batch(js, target):
    """Of three expectations one is stale: the error names that, and nothing is stored."""
    seqs = [js.publish(f"{target.name}.{key}").seq for key in "abc"]
    js.publish(f"{target.name}.b")
    with pytest.raises(errors.WrongLastSequenceError) as caught, js.batch() as batch:
        for key, seq in zip("abc", seqs, strict=True):
            batch.add(f"{target.name}.{key}", expected_last_subject_sequence=seq)
    assert caught.value.err_code == 10071
    assert count(target) == 4
    with js.batch() as batch:
        batch.add(f"{target.name}.a", expected_last_sequence=4)
        batch.add(
            f"{target.name}.d",
            expected_last_subject_sequence=4,
            expected_last_subject=f"{target.name}.b",
        )
    assert list(batch.sequences) == [5, 6]


@atomic
def test_add_refuses_messages_that_a_batch_cannot_contain(js, target):
    """Local checks raise in ``add()``; the batch can still be used."""
    subject = f"{target.name}.a"
    with js.batch() as batch:
        batch.add(subject, msg_id="one")
        with pytest.raises(errors.InvalidOptionError, match="twice"):
            batch.add(subject, msg_id="one")
        with pytest.raises(errors.InvalidOptionError, match="first message"):
            batch.add(subject, expected_last_sequence=1)
        with pytest.raises(errors.InvalidOptionError, match="Nats-Rollup"):
            batch.add(subject, headers={"Nats-Rollup": "all"})
        with pytest.raises(errors.InvalidOptionError, match="Last-Msg-Id"):
            batch.add(subject, headers={"Nats-Expected-Last-Msg-Id": "x"})
        with pytest.raises(jetstream_sync.BadSubjectError):
            batch.add(f"{target.name}.*")
        with pytest.raises(errors.MaxPayloadError):
            batch.add(subject, bytes(core_of(js).max_payload + 1))
    assert count(target) == 1
    almost = bytes(core_of(js).max_payload)
    with pytest.raises(errors.MaxPayloadError):
        js.publish_batch([(subject, b""), (subject, almost)])
    assert count(target) == 1


@atomic
def test_the_cause_of_a_refusal_is_raised(js, target):
    """The first error is raised, not the one that the batch is incomplete."""
    name = target.name
    with pytest.raises(errors.NoStreamResponseError, match=f"{name}.a, unknown.subject"):
        js.publish_batch([("unknown.subject", b""), (f"{name}.a", b"")])
    with pytest.raises(errors.NoStreamResponseError):
        js.publish_batch([(f"{name}.a", b""), ("unknown.subject", b""), (f"{name}.b", b"")])
    with pytest.raises(jetstream_sync.WrongStreamError):
        js.publish_batch([(f"{name}.a", b""), (f"{name}.b", b"")], stream="OTHER")
    js.create_stream(name=f"{name}_2", subjects=[f"{name}_2.>"], allow_atomic=True)
    plain = js.create_stream(name=f"{name}_3", subjects=[f"{name}_3.>"])
    for other in (f"{name}_2.x", f"{name}_3.x"):
        with pytest.raises(jetstream_sync.APIError) as caught:
            js.publish_batch([(f"{name}.a", b""), (other, b""), (f"{name}.b", b"")])
        assert caught.value.err_code in (10174, 10176)
    with pytest.raises(errors.BatchNotEnabledError):
        js.publish_batch([(f"{name}_3.x", b""), (f"{name}_3.y", b"")])
    js.publish(f"{name}.a", msg_id="used")
    with pytest.raises(errors.BatchDuplicateError), js.batch() as batch:
        batch.add(f"{name}.a")
        batch.add(f"{name}.a", msg_id="used")
    assert (count(target), count(plain)) == (1, 0)


@atomic
def test_sixty_threads_with_a_batch_each(js, target):
    """More batches than a stream may have open are repeated until they are stored."""

    def run(number: int) -> None:
        js.publish_batch([(f"{target.name}.{number}", b"")] * 300, timeout=60.0)

    run_all(*[partial(run, number) for number in range(60)])
    found = target.info(subjects_filter=">").state.subjects
    assert found == {f"{target.name}.{number}": 300 for number in range(60)}


@atomic
def test_no_acknowledgement_leaves_the_batch_uncertain(alone, fresh_server):
    """A server that does not answer gives an error with the batch id."""
    js = alone.jetstream()
    js.create_stream(name="S", subjects=["s"], allow_atomic=True)
    js.publish_batch([("s", b"")])  # requests the level of the server
    with paused(fresh_server):
        with (
            within(5.0),
            pytest.raises(errors.BatchUncertainError, match="no acknowledgement") as caught,
        ):
            js.publish_batch([("s", b"")], timeout=0.5)
        assert len(caught.value.batch_id) == 32


@atomic
def test_a_close_leaves_a_batch_in_flight_uncertain(fresh_server):
    """The server may store the batch of a connection that is closed meanwhile."""
    nc = jetstream_sync.connect(fresh_server.url)
    js = nc.jetstream()
    js.create_stream(name="S", subjects=["s"], allow_atomic=True)
    js.publish_batch([("s", b"")])  # requests the level of the server
    with paused(fresh_server), ThreadPoolExecutor(1) as pool:
        sent = nc.stats["out_msgs"]
        waiting = pool.submit(js.publish_batch, [("s", b""), ("s", b"")], timeout=30)
        wait_until(lambda: nc.stats["out_msgs"] > sent)
        nc.close()
        with pytest.raises(errors.BatchUncertainError, match="closed"):
            waiting.result(5)
    with jetstream_sync.connect(fresh_server.url) as other:
        stream = other.jetstream().get_stream("S")
        wait_until(lambda: stream.info().state.messages == 3)
    with pytest.raises(errors.ConnectionClosedError):
        js.publish_batch([("s", b"")])


@atomic
@pytest.mark.full
def test_a_killed_server_has_all_messages_of_a_batch_or_none(tmp_path):
    """After each of 20 kills every batch has 0 or 50 messages, and 50 if it was acknowledged."""
    size, stored = 50, set()
    number = 0
    with NatsServer(store_dir=tmp_path) as server:
        server.start()
        for _ in range(20):
            with jetstream_sync.connect(
                server.url, allow_reconnect=False, error_cb=lambda _: None
            ) as nc:
                js = nc.jetstream(timeout=10.0)
                stream = js.create_or_update_stream(
                    name="S", subjects=["s.>"], allow_atomic=True, duplicate_window=10
                )
                timer = threading.Timer(random.uniform(0.05, 0.5), server.kill)
                timer.start()
                try:
                    while True:
                        number += 1
                        js.publish_batch([(f"s.{number}", b"x" * 500)] * size)
                        stored.add(f"s.{number}")
                except (jetstream_sync.Error, ConnectionError):
                    timer.join()
            server.start()
            time.sleep(0.1)
            with jetstream_sync.connect(server.url) as nc:
                stream = nc.jetstream(timeout=10.0).get_stream("S")
                found = Counter(stream.info(subjects_filter=">").state.subjects or {})
                assert set(found.values()) <= {size}
                assert stored <= set(found)
    assert stored
