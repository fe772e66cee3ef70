"""Administration of consumers: get, push consumers, reset and unpin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import AckPolicy, JetStream, PriorityPolicy, Stream, errors


@pytest.fixture
def ten(js: JetStream, stream: Stream) -> Stream:
    """A stream of ten messages."""
    for number in range(1, 11):
        js.publish(f"{stream.name}.{number}", b"%d" % number)
    return stream


# --- push consumers, and the info of any ----------------------------------------------------------


def test_a_push_consumer_is_made_and_changed(js, stream, nats_server):
    """The server has the given config, and delivers to the deliver subject."""
    info = stream.create_push_consumer(
        durable_name="MONITOR", deliver_subject="monitor", ack_policy=AckPolicy.NONE
    )
    assert (info.name, info.stream_name) == ("MONITOR", stream.name)
    assert stream.create_push_consumer(info.config).config == info.config
    js.update_push_consumer(stream.name, replace(info.config, description="all of them"))
    with RawClient(nats_server.port) as raw:
        config = raw.api(f"CONSUMER.INFO.{stream.name}.MONITOR")["config"]
    assert (config["deliver_subject"], config["description"]) == ("monitor", "all of them")
    assert stream.consumer_info("MONITOR").config.description == "all of them"
    assert js.consumer_info(stream.name, "MONITOR").name == "MONITOR"


def test_a_push_consumer_needs_a_subject(js, stream):
    """A push consumer without a deliver subject is refused before anything is sent."""
    for call in (stream.create_push_consumer, stream.update_push_consumer):
        with pytest.raises(errors.InvalidOptionError, match="deliver_subject"):
            call(durable_name="a")
    assert js.consumer_names(stream.name) == []


def test_creating_an_existing_consumer_with_another_config_is_refused(js, stream):
    """Creating an existing consumer with another config, or updating a missing one, is refused."""
    js.create_push_consumer(stream.name, durable_name="a", deliver_subject="one")
    with pytest.raises(errors.ConsumerExistsError):
        js.create_push_consumer(stream.name, durable_name="a", deliver_subject="two")
    with pytest.raises(errors.ConsumerDoesNotExistError):
        stream.update_push_consumer(durable_name="b", deliver_subject="two")
    assert js.consumer_info(stream.name, "a").config.deliver_subject == "one"


# --- reset ----------------------------------------------------------------------------------------


@pytest.mark.server(">=2.14")
def test_a_reset_goes_back_to_the_ack_floor(ten):
    """Unacknowledged messages are redelivered at once, with a delivery count of 1."""
    consumer = ten.create_consumer(durable_name="a")
    first, *_rest = consumer.fetch(5)
    first.ack_sync()
    result = ten.reset_consumer("a")
    assert result.reset_seq == 2
    assert (result.name, result.stream_name) == ("a", ten.name)
    assert (result.num_ack_pending, result.num_pending) == (0, 9)
    again = consumer.fetch(5)
    assert [msg.data for msg in again] == [b"2", b"3", b"4", b"5", b"6"]
    assert {msg.metadata.num_delivered for msg in again} == {1}
    assert again[0].metadata.consumer_seq == 1


@pytest.mark.server(">=2.14")
def test_a_consumer_is_reset_while_messages_are_read(ten):
    """The requests of its iterator continue after the reset."""
    consumer = ten.create_consumer(durable_name="a")
    with consumer.messages(max_messages=20) as messages:
        assert [messages.next(5).data for _ in range(10)] == [b"%d" % n for n in range(1, 11)]
        assert consumer.reset().reset_seq == 1
        assert messages.next(5).metadata.stream_seq == 1


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize(("seq", "left"), [(1, 10), (4, 7), (9, 2), (11, 0)])
def test_a_reset_goes_to_a_sequence(js, ten, nats_server, seq, left):
    """A consumer that delivers all can be moved to any sequence."""
    consumer = ten.create_consumer(durable_name="a")
    for msg in consumer.fetch(5):
        msg.ack_sync()
    assert js.reset_consumer(ten.name, "a", seq).reset_seq == seq
    with RawClient(nats_server.port) as raw:
        info = raw.api(f"CONSUMER.INFO.{ten.name}.a")
    assert info["num_pending"] == left
    assert info["ack_floor"] == {"consumer_seq": 0, "stream_seq": seq - 1}


@pytest.mark.server(">=2.14")
def test_a_push_consumer_can_be_reset(js, nc, ten):
    """After a reset a push subscriber gets all messages again."""
    listener = nc.subscribe("again")
    ten.create_push_consumer(durable_name="a", deliver_subject="again", ack_policy="none")
    assert [listener.next_msg(5).data for _ in range(10)] == [b"%d" % n for n in range(1, 11)]
    js.reset_consumer(ten.name, "a", 9)
    assert [listener.next_msg(5).data for _ in range(2)] == [b"9", b"10"]


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize(
    ("start", "seq"),
    [
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 5}, 4),
        ({"deliver_policy": "last"}, 9),
        ({"deliver_policy": "new"}, 1),
    ],
)
def test_the_config_bounds_a_reset(ten, start, seq):
    """A sequence that the start in the config excludes is refused; the consumer is unchanged."""
    ten.create_consumer(durable_name="a", **start)
    before = ten.consumer_info("a")
    with pytest.raises(errors.ConsumerInvalidResetError) as caught:
        ten.reset_consumer("a", seq)
    assert caught.value.err_code == 10204
    assert ten.consumer_info("a").ack_floor == before.ack_floor
    ten.reset_consumer("a")


@pytest.mark.parametrize("seq", [0, 1.5])
def test_a_sequence_has_a_range(js, stream, seq):
    """An invalid sequence is refused before anything is sent; 0 is not a valid sequence."""
    with pytest.raises(errors.InvalidOptionError, match="seq"):
        js.reset_consumer(stream.name, "a", seq)


# --- unpin ----------------------------------------------------------------------------------------


@pytest.mark.server(">=2.11")
def test_unpinning_lets_another_client_in(js, ten, nats_server):
    """The pin goes to the client that pulls next."""
    consumer = ten.create_consumer(
        durable_name="a", priority_groups=["A"], priority_policy=PriorityPolicy.PINNED_CLIENT
    )
    consumer.next(timeout=5, group="A").ack_sync()

    def pinned() -> str:
        with RawClient(nats_server.port) as raw:
            group = raw.api(f"CONSUMER.INFO.{ten.name}.a")["priority_groups"][0]
        return str(group.get("pinned_client_id", ""))

    first = pinned()
    assert first
    js.unpin_consumer(ten.name, "a", "A")
    wait_until(lambda: not pinned())
    with jetstream_sync.connect(nats_server.url) as other:
        other.jetstream().get_consumer(ten.name, "a").next(timeout=5, group="A")
    assert pinned() not in {first, ""}
    ten.unpin_consumer("a", "A")


@pytest.mark.server(">=2.11")
def test_only_a_group_of_the_consumer_is_unpinned(js, stream):
    """A group or consumer that does not exist is an error."""
    stream.create_consumer(durable_name="a")
    with pytest.raises(errors.BadRequestError):
        stream.unpin_consumer("a", "A")
    with pytest.raises(errors.ConsumerNotFoundError):
        js.unpin_consumer(stream.name, "none", "A")


# --- older servers --------------------------------------------------------------------------------


def test_the_server_of_the_consumer_counts(nc):
    """The version of the server that has the consumer counts, not of the connected one."""
    body = (
        b'{"stream_name":"S","name":"C","created":"2024-01-01T00:00:00Z","config":{'
        b'"deliver_policy":"all","ack_policy":"none","replay_policy":"instant",'
        b'"metadata":{"_nats.ver":"2.12.8"}},"delivered":{"consumer_seq":0,"stream_seq":0},'
        b'"ack_floor":{"consumer_seq":0,"stream_seq":0},"num_ack_pending":0,"num_redelivered":0,'
        b'"num_waiting":0,"num_pending":0}'
    )
    nc.subscribe("far.API.CONSUMER.INFO.S.C", cb=lambda msg: nc.publish(msg.reply, body))
    with pytest.raises(errors.ServerTooOldError) as caught:
        nc.jetstream(prefix="far.API").reset_consumer("S", "C")
    assert (caught.value.needs, caught.value.version) == ("2.14", "2.12.8")
    assert str(caught.value) == "resetting a consumer needs nats-server 2.14; this server is 2.12.8"
