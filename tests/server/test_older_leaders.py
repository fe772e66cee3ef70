"""A leader that ignores a header, as in a rolling upgrade: no call takes its acknowledgement for success."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager

import pytest
from fixtures.threads import wait_until

from jetstream_sync import Connection, JetStream, Msg, errors

REFUSAL = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"}}


class OldLeader:
    """A leader that stores each message for itself, and knows no header of later servers."""

    def __init__(self, nc: Connection, refused: tuple[bytes, ...] = ()) -> None:
        self.stored: list[bytes] = []
        self._refused = refused
        nc.subscribe("old.>", cb=self._store)
        nc.flush(5)

    def _store(self, msg: Msg) -> None:
        if msg.data in self._refused:
            response: dict[str, object] = {"type": "x", **REFUSAL}
        else:
            self.stored.append(msg.data)
            response = {"stream": "OLD", "seq": len(self.stored)}
        if msg.reply:
            msg.respond(json.dumps(response).encode())


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("refused", [(), (b"1",), (b"2",), (b"3",), (b"1", b"3"), (b"2", b"3")])
def test_an_old_leader_is_an_error_of_a_batch(other, nc, refused):
    """Whichever message the old leader refuses, the error says that a part may be stored."""
    leader = OldLeader(other, refused)
    js = nc.jetstream(timeout=5)
    messages = [("old.a", data) for data in (b"1", b"2", b"3")]
    with pytest.raises(errors.BatchUncertainError, match="an unknown part of them is stored"):
        js.publish_batch(messages)
    wait_until(lambda: leader.stored == [data for _, data in messages if data not in refused])
    with pytest.raises(errors.BatchUncertainError), js.batch() as batch:
        batch.add("old.a", b"4")
    assert batch.ack is None


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("gaps", ["fail", "ok"])
def test_an_ordinary_acknowledgement_does_not_end_a_fast_publish(other, nc, gaps):
    """The first message of a fast publish is stored as an ordinary one: an error says so."""
    leader = OldLeader(other)
    publisher = nc.jetstream(timeout=5).fast_publish(gaps=gaps)
    with pytest.raises(errors.FastPublishError, match="stored an ordinary message"):
        publisher.add("old.a", b"1")
    assert leader.stored == [b"1"]


@pytest.mark.server(">=2.12")
def test_an_ordinary_message_is_no_increment(js, other):
    """An acknowledgement without a total is not the one of an increment."""
    js.create_stream(name="OLD", subjects=["unused"], allow_msg_counter=True, allow_direct=True)
    try:
        OldLeader(other)
        with pytest.raises(errors.ServerTooOldError, match="which is not an increment"):
            js.counters("OLD").add("old.a")
    finally:
        js.delete_stream("OLD")


@pytest.mark.server(">=2.14")
def test_a_fast_publish_ends_at_a_message_without_a_stream(js, stream_name):
    """A message in the middle that no stream stores is named at once."""
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], allow_batched=True)
    publisher = js.fast_publish(timeout=20)
    publisher.add(f"{stream_name}.a")
    with pytest.raises(errors.FastPublishError, match=f"no stream stores '{stream_name}_2.b'"):
        publisher.add(f"{stream_name}_2.b")
        publisher.add(f"{stream_name}.c")
        publisher.commit()


# --- replies that are not to what was asked --------------------------------------------------------


@contextmanager
def replying(nc: Connection, subject: str, response: dict[str, object]):
    """Reply to all requests with one message."""
    sub = nc.subscribe(subject, cb=lambda msg: msg.respond(json.dumps(response).encode()))
    nc.flush(5)
    try:
        yield
    finally:
        sub.unsubscribe()


@pytest.mark.parametrize("seq", [0, -1])
def test_an_acknowledgement_needs_a_sequence(nc, other, seq):
    """Sequences begin at 1; another one acknowledges nothing."""
    js = nc.jetstream(timeout=5)
    with replying(other, "ack.>", {"stream": "S", "seq": seq}):
        with pytest.raises(errors.InvalidResponseError):
            js.publish("ack.a")
        with pytest.raises(errors.InvalidResponseError):
            js.publish_async("ack.a").result(5)


def test_the_acknowledgement_of_another_stream_is_an_error(other, js):
    """With ``stream=``, and for a bucket, the stream in the acknowledgement is compared."""
    with replying(other, "ack.>", {"stream": "OTHER", "seq": 1}):
        with pytest.raises(errors.WrongStreamError, match="'OTHER' has stored the message"):
            js.publish("ack.a", stream="S")
        with pytest.raises(errors.WrongStreamError, match="'OTHER' has stored the message"):
            js.publish_async("ack.a", stream="S").result(5)
        assert js.publish("ack.a").stream == "OTHER"


INFO = {
    "config": {"name": "OTHER"},
    "created": "2026-01-01T00:00:00Z",
    "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0},
}
MESSAGE = {"message": {"subject": "a", "seq": 9, "time": "2026-01-01T00:00:00Z"}}
CONSUMER = {"stream_name": "S", "name": "OTHER", "created": "2026-01-01T00:00:00Z", "config": {}}

WRONG: list[tuple[str, dict[str, object], Callable[[JetStream], object]]] = [
    ("STREAM.INFO.*", INFO, lambda js: js.get_stream("A")),
    ("CONSUMER.INFO.*.*", CONSUMER, lambda js: js.consumer_info("S", "C")),
]


@pytest.mark.parametrize(("route", "response", "call"), WRONG, ids=[route for route, *_ in WRONG])
def test_the_info_of_another_object_is_an_error(nc, other, route, response, call):
    """An info is only taken for the object that was asked for."""
    with (
        replying(other, f"wrong.API.{route}", response),
        pytest.raises(errors.InvalidResponseError, match="asked for"),
    ):
        call(nc.jetstream(prefix="wrong.API", timeout=5))


@pytest.mark.parametrize(
    "request_", [{"seq": 3}, {"seq": 3, "next_by_subject": "b"}, {"last_by_subject": "b"}]
)
def test_a_reply_with_another_message_is_an_error(nc, other, request_):
    """A message has the sequence, or the subject, that was asked for."""
    if "next_by_subject" in request_:
        response = {"message": {**MESSAGE["message"], "seq": 2}}
    else:
        response = MESSAGE
    info = {**INFO, "config": {"name": "S"}}
    with (
        replying(other, "wrong.API.STREAM.INFO.S", info),
        replying(other, "wrong.API.STREAM.MSG.GET.S", response),
    ):
        stream = nc.jetstream(prefix="wrong.API", timeout=5).get_stream("S")
        with pytest.raises(errors.InvalidResponseError, match="asked for"):
            stream.get_msg(**request_)


@pytest.mark.server(">=2.11")
def test_last_messages_need_direct_gets(js, stream_name):
    """Without ``allow_direct`` the error names the remedy."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name])
    with pytest.raises(errors.NoRespondersError, match="allow_direct=True"):
        stream.get_last_msgs(stream_name)
