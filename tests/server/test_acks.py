"""Acknowledgements: their payloads, their effects, and that each is sent once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from fixtures.internals import core_of
from fixtures.server import paused
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import (
    AckPolicy,
    Connection,
    JetStream,
    JetStreamMsg,
    PullConsumer,
    Stream,
    Subscription,
    errors,
)

#: All ways to settle a message, by name.
SETTLE: dict[str, Callable[[JetStreamMsg], None]] = {
    "ack": JetStreamMsg.ack,
    "ack_sync": JetStreamMsg.ack_sync,
    "nak": JetStreamMsg.nak,
    "nak later": lambda msg: msg.nak(60),
    "term": JetStreamMsg.term,
    "term with a reason": lambda msg: msg.term("no good"),
}


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """A stream with ten messages."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    for number in range(10):
        js.publish(stream_name, b"%d" % number)
    return stream


@pytest.fixture
def consumer(stream: Stream) -> PullConsumer:
    """A durable consumer of it."""
    return stream.create_consumer(durable_name="C", ack_wait=30)


@pytest.fixture
def wire(nc: Connection, stream: Stream) -> Iterator[Subscription]:
    """A subscription to the ack subjects of the consumer."""
    with nc.subscribe(f"$JS.ACK.{stream.name}.C.>") as sub:
        nc.flush()
        yield sub


# --- on the wire --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settle", "payload"),
    [
        (JetStreamMsg.ack, b"+ACK"),
        (JetStreamMsg.ack_sync, b"+ACK"),
        (JetStreamMsg.nak, b"-NAK"),
        (lambda msg: msg.nak(0), b'-NAK {"delay":0}'),
        (lambda msg: msg.nak(1.5), b'-NAK {"delay":1500000000}'),
        (lambda msg: msg.nak(timedelta(milliseconds=3)), b'-NAK {"delay":3000000}'),
        (lambda msg: msg.nak(0.000000001), b'-NAK {"delay":1}'),
        (JetStreamMsg.in_progress, b"+WPI"),
        (JetStreamMsg.term, b"+TERM"),
        (lambda msg: msg.term(""), b"+TERM"),
        (lambda msg: msg.term("kaputt: ü"), "+TERM kaputt: ü".encode()),
    ],
)
def test_each_reply_has_its_payload(consumer, wire, settle, payload):
    """Each acknowledgement has the payload of ADR-15."""
    msg = consumer.next()
    settle(msg)
    seen = wire.next_msg(2)
    assert (seen.data, seen.subject) == (payload, msg.reply)
    assert bool(seen.reply) == (settle is JetStreamMsg.ack_sync)


# --- what it does -------------------------------------------------------------------------------


def test_an_acknowledged_message_is_done(consumer):
    """After ``ack`` the message is not pending on the server any more."""
    for msg in consumer.fetch(10):
        msg.ack()
        assert msg.is_acked
    wait_until(lambda: consumer.info().ack_floor.consumer_seq == 10)
    assert consumer.info().num_ack_pending == 0


def test_a_confirmed_acknowledgement_is_noted_on_return(consumer):
    """When ``ack_sync`` returns, the server has processed the acknowledgement."""
    for number in range(1, 11):
        consumer.next().ack_sync()
        assert consumer.info().ack_floor.consumer_seq == number


def test_a_refused_message_comes_again_after_the_delay(consumer):
    """After ``nak`` with a delay other messages come first, and this one not before the delay."""
    first = consumer.next()
    with between(0.45, 2):
        first.nak(0.5)
        rest = consumer.fetch(9)
        assert all(msg.metadata.num_delivered == 1 for msg in rest)
        again = consumer.next(5)
    assert (again.data, again.metadata.num_delivered) == (first.data, 2)


def test_a_terminated_message_does_not_come_again(consumer, nc, stream):
    """After ``term`` the message is not redelivered; the server's advisory has the reason, with escapes."""
    with nc.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.C") as advisories:
        nc.flush()
        consumer.next().term("spoilt \udcff")
        advisory = json.loads(advisories.next_msg(2).data)
    assert advisory["stream_seq"] == 1
    assert advisory["reason"] == "spoilt \\udcff"
    wait_until(lambda: consumer.info().num_ack_pending == 0)
    assert consumer.next().data == b"1"


# --- once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", SETTLE)
def test_a_message_is_settled_once(consumer, wire, nc, first):
    """After any settlement another one raises `MsgAlreadyAckdError`, and nothing is sent."""
    msg = consumer.next()
    SETTLE[first](msg)
    wire.next_msg(2)
    nc.flush()
    sent = nc.stats["out_msgs"]
    for second in SETTLE.values():
        with pytest.raises(errors.MsgAlreadyAckdError):
            second(msg)
    with pytest.raises(errors.MsgAlreadyAckdError):
        msg.in_progress()
    assert nc.stats["out_msgs"] == sent


def test_progress_may_be_reported_any_number_of_times(consumer, wire):
    """``in_progress`` does not settle a message."""
    msg = consumer.next()
    for _ in range(3):
        msg.in_progress()
        assert not msg.is_acked
    msg.ack()
    assert [wire.next_msg(2).data for _ in range(4)] == [b"+WPI", b"+WPI", b"+WPI", b"+ACK"]


def test_a_reply_that_could_not_be_sent_may_be_sent_again(alone, fresh_server):
    """A confirmation that timed out leaves the message open, so it can be repeated."""
    js = alone.jetstream()
    stream = js.create_stream(name="S", subjects=["s"])
    js.publish("s")
    consumer = stream.create_consumer(durable_name="C", ack_wait=60)
    msg = consumer.next()
    with paused(fresh_server):
        with between(0.2, 0.6), pytest.raises(jetstream_sync.TimeoutError):
            msg.ack_sync(0.2)
        assert not msg.is_acked
    msg.ack_sync(5)
    assert msg.is_acked
    assert consumer.info().num_ack_pending == 0


def test_bad_arguments_leave_the_message_open(consumer):
    """A negative delay and a reason with a line break are refused; the message can be settled."""
    msg = consumer.next()
    for delay in (-1, timedelta(seconds=-1), "soon"):
        with pytest.raises(errors.InvalidOptionError):
            msg.nak(delay)
    for reason in ("a\nb", "a\rb", 7, b"reason"):
        with pytest.raises(errors.InvalidOptionError):
            msg.term(reason)
    msg.ack_sync()


def test_a_closed_connection_leaves_the_message_open(nats_server, consumer):
    """On a closed connection every acknowledgement raises, and settles nothing."""
    nc = jetstream_sync.connect(nats_server.url)
    msg = nc.jetstream().get_consumer(consumer.stream_name, "C").next()
    nc.close()
    for settle in SETTLE.values():
        with pytest.raises(errors.ConnectionClosedError):
            settle(msg)
        assert not msg.is_acked


# --- no reply subject, or no responders ---------------------------------------------------------


@pytest.mark.parametrize("how", [*SETTLE, "in_progress"])
def test_nothing_is_sent_where_no_acks_are_wanted(stream, nc, how):
    """With ack policy ``none`` acknowledgements do nothing, however often they are called."""
    consumer = stream.create_consumer(durable_name="N", ack_policy=AckPolicy.NONE)
    msg = consumer.next()
    nc.flush()
    sent = nc.stats["out_msgs"]
    for _ in range(2):
        (JetStreamMsg.in_progress if how == "in_progress" else SETTLE[how])(msg)
    assert nc.stats["out_msgs"] == sent
    assert not msg.is_acked


def test_ack_sync_of_a_deleted_consumer_has_no_responders(stream, consumer):
    """``ack_sync`` after the consumer was deleted raises `NoRespondersError` at once."""
    msg = consumer.next()
    stream.delete_consumer("C")
    with between(0, 0.5), pytest.raises(errors.NoRespondersError):
        msg.ack_sync(5)
    assert not msg.is_acked


def test_a_message_without_a_consumer_cannot_be_acknowledged(nc):
    """A message without a reply subject cannot be acknowledged."""
    msg = JetStreamMsg((b"s", b"", b"", b""), core_of(nc))
    for settle in SETTLE.values():
        with pytest.raises(errors.NotJSMessageError):
            settle(msg)
    with pytest.raises(errors.NotJSMessageError):
        msg.in_progress()


def test_settlements_in_runs_are_confirmed(nc: Connection, consumer: PullConsumer) -> None:
    """Each message of a run is confirmed; a missing consumer counts apart, and other replies do not count."""
    messages = consumer.fetch(3, timeout=5)
    confirmations = nc._confirmations()
    confirmations.send([message.ack_subject for message in messages[:2]], b"+ACK", 7)
    confirmations.send([messages[2].ack_subject], b"-NAK", 8)
    confirmations.send([b"$JS.ACK.NONE.C.1.1.1.1.0"] * 2, b"+ACK", 9)
    found: Counter[tuple[int, bool]] = Counter()
    nc.publish(confirmations._reply.decode() + "forged", b"")

    def all_arrived() -> bool:
        for token, number, is_absent in confirmations.counts():
            found[token, is_absent] += number
        return found.total() == 5

    wait_until(all_arrived)
    assert found == {(7, False): 2, (8, False): 1, (9, True): 2}
    assert consumer.info().ack_floor.consumer_seq == 2
    assert confirmations.counts() == []
