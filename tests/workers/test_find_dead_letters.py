"""`DeadLetters`: dead letters are found, published again, and discarded."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fixtures.fake_jetstream import scripted, send_block
from fixtures.threads import SCALE, wait_until
from fixtures.worker import is_settled, running

import jetstream_sync
from jetstream_sync import (
    Connection,
    JetStream,
    MessageNotFoundError,
    Msg,
    NoStreamResponseError,
    PullConsumer,
    RetentionPolicy,
    Stream,
)
from jetstream_sync.errors import BadSubjectError
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import (
    DeadLetter,
    DeadLetters,
    Reject,
    Worker,
    dead_letters,
)


@pytest.fixture
def consumer(stream: Stream) -> PullConsumer:
    return stream.create_consumer(durable_name="C", max_deliver=1, ack_wait=0.05)


@pytest.fixture
def letters(js: JetStream) -> DeadLetters:
    """Dead letters of an account that stores the advisories."""
    found = DeadLetters(js)
    found.store_advisories()
    return found


def terminate(
    js: JetStream, consumer: PullConsumer, letters: DeadLetters, **message: Any
) -> DeadLetter:
    """Publish a message to the consumer's stream, terminate it, and return its dead letter."""
    stream = consumer.cached_info.stream_name
    ack = js.publish(f"{stream}.a", **message)
    consumer.next(timeout=5.0 * SCALE).term("no address")
    wait_until(lambda: any(item.seq == ack.seq for item in letters.find(stream)))
    return next(item for item in letters.find(stream) if item.seq == ack.seq)


def test_advisories_are_stored_once(js):
    """A stream that stores all advisories is enough; without one, a stream is created."""
    letters = DeadLetters(js)
    assert letters.find() == []
    stream = letters.store_advisories("D", max_age=timedelta(hours=1))
    assert stream.cached_info.config.max_age == timedelta(hours=1)
    assert letters.store_advisories("OTHER").name == "D"
    js.delete_stream("D")
    js.create_stream(name="ALL", subjects=["$JS.EVENT.ADVISORY.>"], storage="memory")
    assert letters.store_advisories().name == "ALL"
    assert (letters.advisory_streams(), js.stream_names()) == (["ALL"], ["ALL"])


def test_advisories_of_both_kinds_are_found(js, consumer, letters):
    """They are sorted by sequence, and tell the consumer, the deliveries and the reason."""
    stream = consumer.cached_info.stream_name
    js.publish(f"{stream}.a", b"1")
    consumer.next(timeout=5.0 * SCALE)  # and no acknowledgement
    second = terminate(js, consumer, letters, payload=b"2")

    def given_up() -> bool:
        consumer.fetch(1, timeout=0.1)  # a pull consumer notices it at its next pull
        return len(letters.find()) == 2

    wait_until(given_up)
    first, last = letters.find(stream, "C")
    assert (first.kind, first.seq, first.deliveries, first.reason) == ("max_deliver", 1, 1, "")
    assert (last.kind, last.seq, last.reason) == ("terminated", 2, "no address")
    assert last == second
    assert letters.find(stream, "OTHER") == letters.find("OTHER") == []


@pytest.mark.parametrize("seq", [{}, {"stream_seq": None}, {"stream_seq": 0}])
def test_an_advisory_without_a_sequence_is_no_letter(js, nc, consumer, letters, seq):
    """Any client can publish one; the other letters are found."""
    letter = terminate(js, consumer, letters, payload=b"x")
    kind = "MAX_DELIVERIES"
    advisory = {
        "type": "io.nats.jetstream.advisory.v1.max_deliver",
        "id": "1",
        "timestamp": "2026-01-01T00:00:00Z",
        "stream": letter.stream,
        "consumer": letter.consumer,
        "deliveries": 1,
    }
    stored = js.get_stream(letters.advisory_streams()[0])
    before = stored.info().state.messages
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{letter.stream}.{letter.consumer}"
    nc.publish(subject, json.dumps(advisory | seq).encode())
    wait_until(lambda: stored.info().state.messages == before + 1)
    assert letters.find() == [letter]


def test_a_letter_of_an_earlier_stream_has_no_message(js, consumer, letters):
    """The same sequence in a recreated stream is another message, and is not deleted."""
    letter = terminate(js, consumer, letters, payload=b"x")
    config = js.get_stream(letter.stream).cached_info.config
    js.delete_stream(letter.stream)
    stream = js.create_stream(config)
    js.publish(f"{letter.stream}.a", b"another")
    assert letters.get_msg(letter) is None
    with pytest.raises(MessageNotFoundError, match="no longer stored"):
        letters.requeue(letter)
    letters.delete_original(letter)
    assert stream.get_msg(1).data == b"another"


def test_a_message_is_requeued_once(js, consumer, letters, stream):
    """A repetition stores nothing; headers for the server that concern one publish are left out."""
    letter = terminate(
        js,
        consumer,
        letters,
        payload=b"x",
        headers={"A": "1"},
        msg_id="mine",
        expected_last_sequence=0,
    )
    first, second = letters.requeue(letter), letters.requeue(letter)
    assert (first.seq, first.duplicate, second.duplicate) == (2, False, True)
    again = stream.get_msg(2)
    assert (again.subject, again.data) == (f"{stream.name}.a", b"x")
    assert dict(again.headers or {}) == {
        "A": "1",
        "Jsm-Requeued-From": f"{stream.name} C 1",
        "Nats-Msg-Id": f"jsm.requeue.{stream.name}.C.1",
    }
    assert letters.find() == [letter]
    letters.discard(letter)
    assert letters.find() == []
    assert stream.get_msg(1).data == b"x"
    letters.delete_original(letter)
    assert stream.info().state.messages == 1


def test_a_changed_message_is_requeued(js, consumer, letters, stream):
    """Its data and subject may be corrected; without a stream nothing is lost."""
    letter = terminate(js, consumer, letters, payload=b"wrong")
    msg = letters.get_msg(letter)
    with pytest.raises(NoStreamResponseError):
        letters.requeue(letter, msg._replace(subject="nowhere"))
    letters.requeue(letter, msg._replace(data=b"right", subject=f"{stream.name}.b"))
    again = stream.get_msg(2)
    assert (again.subject, again.data) == (f"{stream.name}.b", b"right")


# --- copies that workers store --------------------------------------------------------------------


def reject(js: JetStream, server: NatsServer, stream: Stream, data: bytes) -> None:
    """Have a worker give up one message, which has a header, and store a copy."""
    worker = Worker(server.url, dead_letters="DEAD")

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        raise Reject("no address")

    js.publish(f"{stream.name}.a", data, headers={"A": "1"})
    with running(worker):
        wait_until(lambda: "C" in stream.consumer_names() and is_settled(stream))


def test_a_copy_replaces_the_advisory(js, stream_name, letters, nats_server):
    """Both are one dead letter; the copy of a work queue's message is requeued, and then deleted."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention=RetentionPolicy.WORK_QUEUE
    )
    reject(js, nats_server, stream, b"xxx")
    wait_until(lambda: [len(item.stored) for item in letters.find()] == [2])
    (letter,) = letters.find(stream.name, "C")
    assert (letter.kind, letter.seq, letter.reason) == ("copy", 1, "no address")
    msg = letters.get_msg(letter)
    assert (msg.subject, msg.data, dict(msg.headers or {})) == (letter.subject, b"xxx", {"A": "1"})
    assert letters.requeue(letter).stream == stream.name
    assert "Dead-Stream" not in (stream.get_msg(2).headers or {})
    letters.discard(letter)
    assert letters.find() == []
    assert js.get_stream("DEAD").info().state.messages == 0


def test_a_letter_is_not_taken_for_another_one_at_its_place(js, stream, nats_server):
    """If the stream of dead letters was created again, its copy is gone, and the others are kept."""
    worker = Worker(nats_server.url, dead_letters="AGAIN")

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        raise Reject("no")

    letters = DeadLetters(js)

    def stored(data: bytes) -> DeadLetter:
        """Return the dead letter of a new message."""
        seq = js.publish(f"{stream.name}.a", data).seq
        wait_until(lambda: any(item.seq == seq for item in letters.find(stream.name)))
        return next(item for item in letters.find(stream.name) if item.seq == seq)

    with running(worker):
        first = stored(b"1")
        js.delete_stream("AGAIN")
        js.create_stream(name="AGAIN", subjects=["dead.>"])
        second = stored(b"2")
    assert first.stored == second.stored == (("AGAIN", 1),)
    assert letters.get_msg(first) is None
    letters.discard(first)
    assert [item.seq for item in letters.find(stream.name)] == [second.seq]
    with pytest.raises(MessageNotFoundError):
        letters.requeue(first)
    letters.discard(second)
    assert letters.find(stream.name) == []
    js.delete_stream("AGAIN")


def test_the_copy_of_a_large_message_points_to_it(js, stream, nats_server):
    """A copy without data stands for the message in its stream."""
    data = b"x" * (1024 * 1024 - 20)  # with its header the maximum of the server
    reject(js, nats_server, stream, data)
    letters = DeadLetters(js)
    (letter,) = letters.find()
    msg = letters.get_msg(letter)
    assert letter.pointer
    assert msg.data == data
    stream.purge()
    assert letters.get_msg(letter) is None


def test_other_messages_on_the_subjects_are_no_letters(js):
    """A message without the headers of a copy, or another advisory, is no dead letter."""
    js.create_stream(name="DEAD", subjects=["dead.>"], storage="memory")
    js.publish("dead.end", b"x")
    js.create_stream(name="ALL", subjects=["$JS.EVENT.>"], storage="memory")
    kind = "io.nats.jetstream.advisory.v1.terminated"
    for data in ("x", "[]", '{"type": 1}', f'{{"type": "{kind}", "stream": "S"}}'):
        js.publish("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.C", data.encode())
    assert DeadLetters(js).find() == []


# --- reading --------------------------------------------------------------------------------------


def test_messages_deleted_while_they_are_read(js, consumer, letters, monkeypatch):
    """The list ends without them."""
    terminate(js, consumer, letters, payload=b"x")
    ordered_consumer = Stream.ordered_consumer

    def purge(stream: Stream, **options: Any) -> Any:
        stream.purge()
        return ordered_consumer(stream, **options)

    monkeypatch.setattr(Stream, "ordered_consumer", purge)
    monkeypatch.setattr(dead_letters, "_READ_TIMEOUT_S", 0.3)
    assert letters.find() == []


def test_a_list_that_would_be_incomplete_raises(js, consumer, letters, monkeypatch):
    """Stored messages that do not arrive are not left out."""
    terminate(js, consumer, letters, payload=b"x")

    def never(*_: object) -> None:
        raise jetstream_sync.errors.TimeoutError("nothing has arrived")

    monkeypatch.setattr(jetstream_sync.OrderedMessages, "next", never)
    with pytest.raises(jetstream_sync.errors.TimeoutError, match="DEAD_LETTERS"):
        letters.find()


def test_no_letter_is_missed_while_a_leader_moves(cluster):
    """Each list is complete, while the leader of the stream steps down again and again."""
    ended = threading.Event()
    moves: list[bytes] = []

    def move() -> None:
        with jetstream_sync.connect(cluster.urls) as nc:
            while not ended.wait(0.05):
                with suppress(jetstream_sync.errors.Error):
                    request = "$JS.API.STREAM.LEADER.STEPDOWN.DEAD"
                    reply = nc.request(request, timeout=2 * SCALE).data
                    moves.extend([reply] if b'"success":true' in reply else [])

    mover = threading.Thread(target=move)
    with jetstream_sync.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20 * SCALE)
        js.create_stream(name="DEAD", subjects=["dead.>"], num_replicas=3)
        origin = {
            "Dead-Stream": "S",
            "Dead-Consumer": "C",
            "Dead-Subject": "s",
            "Dead-Attempts": "1",
        }
        for seq in range(1, 501):
            js.publish_async("dead.a", b"x", headers={**origin, "Dead-Sequence": str(seq)})
        js.publish_async_completed(timeout=20 * SCALE)
        letters = DeadLetters(js)
        mover.start()
        try:
            while len(moves) < 3:
                assert [item.seq for item in letters.find()] == list(range(1, 501))
        finally:
            ended.set()
            mover.join()


@pytest.mark.parametrize("subject", ["$JS.API.STREAM.PURGE.{}", "$SYS.REQ.USER.INFO", "_INBOX.a.b"])
def test_a_forged_dead_letter_calls_no_server(js, stream, subject):
    """A copy that names a subject of the server as the original one is refused, and changes nothing."""
    js.publish(f"{stream.name}.a", b"kept")
    js.create_stream(name="DEAD", subjects=["dead.>"])
    forged = {
        "Dead-Stream": stream.name,
        "Dead-Consumer": "C",
        "Dead-Sequence": "1",
        "Dead-Attempts": "1",
        "Dead-Subject": subject.format(stream.name),
    }
    js.publish(f"dead.{stream.name}.C.a", b"", headers=forged)
    letters = DeadLetters(js)
    (letter,) = letters.find()
    with pytest.raises(BadSubjectError, match="dead letter"):
        letters.requeue(letter)
    assert stream.info().state.messages == 1


def test_a_replica_that_is_behind_hides_no_letter(js, stream, nats_server):
    """A letter that a replica does not have yet is discarded all the same, and its message is published."""
    letters = DeadLetters(js)
    letters.store_advisories()
    consumer = stream.create_consumer(durable_name="C", max_deliver=1, ack_wait=0.05)
    letter = terminate(js, consumer, letters, payload=b"order")
    (advisories,) = letters.advisory_streams()
    js.update_stream(replace(js.get_stream(stream.name).info().config, allow_direct=True))

    def respond_behind(nc: Connection, msg: Msg, _number: int) -> None:
        send_block(nc, msg, b"NATS/1.0 404 Message Not Found\r\n\r\n")

    with scripted(nats_server, respond_behind) as user:
        behind = DeadLetters(user.jetstream(prefix="FAKE"))
        assert behind.get_msg(letter).data == b"order"
        behind.discard(letter)
        behind.delete_original(letter)
    assert js.get_stream(advisories).info().state.messages == 0
    assert js.get_stream(stream.name).info().state.messages == 0
