"""Reading many messages of a stream: direct gets in batches, or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fixtures.fake_jetstream import scripted, send_block, send_msg
from fixtures.server import paused

from jetstream_sync import Connection, JetStream, Msg, StoredMsg, Stream, errors

MESSAGES = 700


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """A stream of numbers, first even ones and then odd ones, without the tenth message."""
    made = js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], allow_direct=True)
    for kind in (0, 1):
        for number in range(kind, MESSAGES, 2):
            js.publish_async(f"{stream_name}.{kind}", b"%d" % number, headers={"N": str(number)})
    js.publish_async_completed(10)
    made.delete_msg(10)
    return js.get_stream(stream_name)


def all_of(stream: Stream, most: int, subject: str | None = None) -> Iterator[StoredMsg]:
    """Call again behind the last message until the result is empty."""
    seq = 1
    while found := stream.get_msgs(most, seq, subject):
        assert len(found) <= most
        yield from found
        seq = found[-1].seq + 1


# --- what comes -------------------------------------------------------------------------------


@pytest.mark.parametrize("allow_direct", [True, False])
@pytest.mark.parametrize(("most", "kind"), [(100, None), (10_000, None), (250, "1"), (3000, "*")])
def test_every_message_comes_once_in_order(js, stream, allow_direct, most, kind):
    """Reading behind the last message returns the whole stream, with or without direct gets."""
    config = replace(stream.cached_info.config, allow_direct=allow_direct)
    stream = js.update_stream(config)
    subject = None if kind is None else f"{stream.name}.{kind}"
    found = list(all_of(stream, most, subject))
    numbers = [*range(0, MESSAGES, 2), *range(1, MESSAGES, 2)]
    wanted = [(seq, number) for seq, number in enumerate(numbers, 1) if seq != 10]
    if kind == "1":
        wanted = [(seq, number) for seq, number in wanted if number % 2]
    assert [(msg.seq, int(msg.data)) for msg in found] == wanted
    for msg, (seq, number) in zip(found, wanted, strict=True):
        assert (msg.stream, msg.subject) == (stream.name, f"{stream.name}.{number % 2}")
        assert msg.headers is not None
        assert dict(msg.headers) == {"N": str(number)}, seq


@pytest.mark.server(">=2.11")
def test_a_batch_takes_one_request(nc, stream):
    """A batch is one request, and returns the same messages as single gets."""
    before = nc.stats["out_msgs"]
    found = stream.get_msgs(20, 5)
    assert nc.stats["out_msgs"] == before + 1
    assert [msg.seq for msg in found] == [*range(5, 10), *range(11, 26)]
    assert found == [stream.get_msg(msg.seq) for msg in found]


@pytest.mark.server(">=2.11")
def test_a_reply_ends_with_the_message_that_reaches_the_bytes(js, stream_name):
    """``max_bytes`` limits a reply, and at least one message is returned."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name], allow_direct=True)
    for _ in range(10):
        js.publish(stream_name, bytes(10_000))
    assert len(stream.get_msgs(10, max_bytes=25_000)) == 3
    assert len(stream.get_msgs(10, max_bytes=1)) == 1
    assert len(stream.get_msgs(10)) == 10


def test_headers_of_the_message_s_own_stay(js, stream_name):
    """A republished message has the headers of a direct get twice; the last are the server's."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name], allow_direct=True)
    own = {"Nats-Sequence": "99", "Nats-Num-Pending": "9", "Nats-Last-Sequence": "8"}
    js.publish(stream_name, b"x", headers=own)
    (msg,) = stream.get_msgs(5)
    assert (msg.seq, msg.data) == (1, b"x")
    assert msg.headers is not None
    assert dict(msg.headers) == own


def test_where_there_is_none_nothing_comes(js, stream_name):
    """An empty stream, a start behind the end, and a subject without messages give empty lists."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], allow_direct=True)
    assert stream.get_msgs(5) == []
    js.publish(f"{stream_name}.a", b"")
    assert stream.get_msgs(5, 2) == []
    assert stream.get_msgs(5, next_by_subject=f"{stream_name}.b") == []


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("allow_direct", [True, False])
def test_a_deleted_stream_is_an_error_and_no_empty_list(js, stream_name, allow_direct):
    """The error of a deleted stream says so, instead of an empty list."""
    stream = js.create_stream(name=stream_name, allow_direct=allow_direct)
    js.delete_stream(stream_name)
    with pytest.raises(errors.StreamNotFoundError):
        stream.get_msgs(1, timeout=5.0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"max_messages": 0}, errors.InvalidOptionError),
        ({"max_messages": 1, "seq": 0}, errors.InvalidOptionError),
        ({"max_messages": 1, "max_bytes": 0}, errors.InvalidOptionError),
        ({"max_messages": 1, "next_by_subject": "a..b"}, errors.BadSubjectError),
    ],
)
def test_invalid_arguments_are_refused(stream, given, error):
    """Arguments are checked before anything is sent."""
    with pytest.raises(error):
        stream.get_msgs(**given)


def test_the_messages_of_an_interrupted_reply_are_returned(nats_server, stream):
    """The messages of an interrupted reply are contiguous, so they are returned."""

    def respond(nc: Connection, msg: Msg, _: int) -> None:
        send_msg(nc, msg, 1, 7)
        send_msg(nc, msg, 2, 7)

    with scripted(nats_server, respond) as user:
        fake = user.jetstream(prefix="FAKE").get_stream(stream.name)
        assert [msg.seq for msg in fake.get_msgs(5)] == [1, 2]


def test_without_responders_the_leader_is_asked(nats_server, stream):
    """A lost replica does not matter while the leader answers."""
    with scripted(nats_server, lambda *_: None) as user:
        (msg,) = user.jetstream(prefix="FAKE").get_stream(stream.name).get_msgs(5, 9)
    assert msg.seq == 9


def test_a_refusal_is_an_error(nats_server, stream):
    """The error is a typed one."""
    block = b"NATS/1.0 408 Bad Request\r\n\r\n"
    with (
        scripted(nats_server, lambda nc, msg, _: send_block(nc, msg, block)) as user,
        pytest.raises(errors.APIError),
    ):
        user.jetstream(prefix="FAKE").get_stream(stream.name).get_msgs(5)


def test_after_an_invalid_reply_the_leader_is_asked(nats_server, stream):
    """A reply that is not a message does not show what the stream has."""
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    with scripted(nats_server, lambda nc, msg, _: send_block(nc, msg, block)) as user:
        (msg,) = user.jetstream(prefix="FAKE").get_stream(stream.name).get_msgs(5, 9)
    assert msg.seq == 9


def test_a_server_that_is_silent_is_a_timeout(alone, fresh_server):
    """The whole call ends after its timeout."""
    stream = alone.jetstream().create_stream(name="S", allow_direct=True)
    with paused(fresh_server), pytest.raises(errors.TimeoutError):
        stream.get_msgs(5, timeout=1.5)


def test_a_break_during_the_reply_repeats_the_request(alone, fresh_server):
    """A link that breaks during the reply does not end the call."""
    js = alone.jetstream()
    stream = js.create_stream(name="S", subjects=["s"], allow_direct=True)
    js.publish("s", b"x")
    fresh_server.restart()
    assert [msg.data for msg in stream.get_msgs(5, timeout=20.0)] == [b"x"]
