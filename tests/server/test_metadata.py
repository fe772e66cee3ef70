"""The delivery metadata in the reply subject."""

from __future__ import annotations

import pytest

import jetstream_sync
from jetstream_sync import JetStream, Stream
from jetstream_sync.durations import time_to_ns
from jetstream_sync.server import NatsServer

V2 = 'feature_flags { js_ack_fc_v2: true }\njetstream { domain: "hub" }'


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """A stream with five messages."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], storage="memory")
    for number in range(5):
        js.publish(f"{stream_name}.{number % 2}", b"%d" % number)
    return stream


def test_metadata_has_the_names_and_counts_of_the_server(stream):
    """Names, sequences and counts are those of the server."""
    consumer = stream.create_consumer(durable_name="C", filter_subject=f"{stream.name}.0")
    facts = [msg.metadata for msg in consumer.fetch(3)]
    assert [fact.stream for fact in facts] == [stream.name] * 3
    assert [fact.consumer for fact in facts] == ["C"] * 3
    assert [fact.domain for fact in facts] == [None] * 3
    assert [fact.stream_seq for fact in facts] == [1, 3, 5]
    assert [fact.consumer_seq for fact in facts] == [1, 2, 3]
    assert [fact.num_delivered for fact in facts] == [1, 1, 1]
    assert [fact.num_pending for fact in facts] == [2, 1, 0]


@pytest.mark.server(">=2.14")
def test_the_second_form_of_the_reply_is_read_and_answered():
    """The form of ``$JS.ACK`` with domain and account has the same metadata, and acks work."""
    with NatsServer(config=V2) as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"], storage="memory")
        for number in range(20):
            js.publish("s", b"%d" % number)
        consumer = stream.create_consumer(durable_name="C")
        for number, msg in enumerate(consumer.fetch(10), 1):
            assert len(msg.reply.split(".")) >= 11
            facts = msg.metadata
            assert (facts.stream, facts.consumer, facts.domain) == ("S", "C", "hub")
            assert (facts.stream_seq, facts.consumer_seq) == (number, number)
            assert (facts.num_delivered, facts.num_pending) == (1, 20 - number)
            assert facts.timestamp_ns == time_to_ns(stream.get_msg(number).time)
            msg.ack_sync()
        assert consumer.info().ack_floor.stream_seq == 10
        consumer.fetch(10)[0].nak()
        assert consumer.next().metadata.num_delivered == 2
        with stream.ordered_consumer().messages() as messages:
            assert [int(messages.next(5).data) for _ in range(20)] == list(range(20))
