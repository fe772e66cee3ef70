"""The last messages of many subjects, and messages from a time on (ADR-31)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from fixtures.fake_jetstream import scripted, send_block, send_end, send_msg
from fixtures.server import paused
from fixtures.threads import between

from jetstream_sync import Connection, JetStream, Msg, StoredMsg, Stream, StreamSource, errors

PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)
FUTURE = datetime(2100, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """A stream with three messages on each of the subjects a to e, in turns: 15 messages."""
    made = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], allow_direct=True)
    for number in range(3):
        for key in "abcde":
            js.publish(f"{stream_name}.{key}", b"%s%d" % (key.encode(), number))
    return made


def all_subjects(stream: Stream) -> str:
    """Return the pattern for all subjects of the stream."""
    return f"{stream.name}.>"


def data(messages: Iterator[StoredMsg]) -> list[str]:
    """Return the payloads as text."""
    return [message.data.decode() for message in messages]


# --- the last messages --------------------------------------------------------------------------


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("batch", [None, 1, 2, 5, 5000])
def test_the_last_message_of_each_subject_is_returned(stream, batch):
    """Each subject has one message, in the order of their sequences, whatever the size of a page."""
    found = list(stream.get_last_msgs([all_subjects(stream)], batch=batch))
    assert [(msg.seq, msg.data) for msg in found] == [
        (11, b"a2"),
        (12, b"b2"),
        (13, b"c2"),
        (14, b"d2"),
        (15, b"e2"),
    ]
    assert found == [stream.get_msg(msg.seq) for msg in found]


@pytest.mark.server(">=2.11")
def test_subjects_may_overlap_and_be_missing(stream):
    """A subject that two patterns match is returned once; one without messages is left out."""
    name = stream.name
    assert data(stream.get_last_msgs([f"{name}.b", f"{name}.*", f"{name}.b", f"{name}.x"])) == [
        *("a2", "b2", "c2", "d2", "e2")
    ]
    assert data(stream.get_last_msgs([f"{name}.e", f"{name}.a"])) == ["a2", "e2"]
    assert data(stream.get_last_msgs(f"{name}.c")) == ["c2"]
    assert data(stream.get_last_msgs([f"{name}.x", f"{name}.y.>"])) == []


@pytest.mark.server(">=2.11")
def test_each_page_takes_one_request(nc, stream):
    """No request is sent besides those for the pages."""
    before = nc.stats["out_msgs"]
    assert len(list(stream.get_last_msgs([all_subjects(stream)]))) == 5
    assert nc.stats["out_msgs"] == before + 1
    assert len(list(stream.get_last_msgs([all_subjects(stream)], batch=2))) == 5
    assert nc.stats["out_msgs"] == before + 4


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("batch", [None, 2])
def test_up_to_seq_leaves_out_later_messages(js, stream_name, storage, batch):
    """
    With ``up_to_seq`` a subject has the message that was its last one at that point.

    A sequence that the stream does not have yet is the same as none; servers find nothing up to it in
    a stream with file storage.
    """
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_direct=True, storage=storage
    )
    for number in range(3):
        for key in "abcde":
            js.publish(f"{stream_name}.{key}", b"%s%d" % (key.encode(), number))
    found = stream.get_last_msgs([all_subjects(stream)], up_to_seq=8, batch=batch)
    assert data(found) == ["d0", "e0", "a1", "b1", "c1"]
    assert data(stream.get_last_msgs([all_subjects(stream)], up_to_seq=2)) == ["a0", "b0"]
    for beyond in (16, 10**9):
        found = stream.get_last_msgs([all_subjects(stream)], up_to_seq=beyond, batch=batch)
        assert data(found) == ["a2", "b2", "c2", "d2", "e2"]
    assert data(stream.get_last_msgs([f"{stream_name}.x"], up_to_seq=beyond)) == []


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("year", [1, 1677, 2263, 9999])
def test_a_time_that_the_server_cannot_compare_is_refused(js, stream, year):
    """The server would take it for another time: every message, or none, would be before it."""
    at = datetime(year, 6, 1, tzinfo=timezone.utc)
    calls = (
        lambda: list(stream.get_last_msgs(">", up_to_time=at)),
        lambda: stream.get_msgs(5, start_time=at),
        lambda: stream.create_consumer(deliver_policy="by_start_time", opt_start_time=at),
        lambda: stream.ordered_consumer(opt_start_time=at),
        lambda: js.create_stream(
            name="COPY", mirror=StreamSource(name=stream.name, opt_start_time=at)
        ),
    )
    for call in calls:
        with pytest.raises(errors.InvalidOptionError, match="must be in the years 1678 to 2261"):
            call()


@pytest.mark.server(">=2.11")
def test_up_to_time_leaves_out_later_messages(stream):
    """With ``up_to_time`` a subject has its last message stored before that time."""
    at = stream.get_msg(9).time
    found = stream.get_last_msgs([all_subjects(stream)], up_to_time=at, batch=2)
    assert data(found) == ["d0", "e0", "a1", "b1", "c1"]
    assert data(stream.get_last_msgs([all_subjects(stream)], up_to_time=PAST)) == []
    assert len(list(stream.get_last_msgs([all_subjects(stream)], up_to_time=FUTURE))) == 5


@pytest.mark.server(">=2.11")
def test_pages_show_the_state_at_the_first_one(js, stream):
    """Messages that are stored while pages are requested are not returned."""
    found = stream.get_last_msgs([all_subjects(stream)], batch=2)
    js.publish(f"{stream.name}.e", b"later")
    js.publish(f"{stream.name}.f", b"later")
    assert data(found) == ["a2", "b2", "c2", "d2", "e2"]


@pytest.mark.server(">=2.11")
def test_a_message_replaced_between_two_pages_is_an_error(js, stream_name):
    """No subject is silently left out: the messages that were read are not one point in time."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_direct=True, max_msgs_per_subject=1
    )
    for key in "abcd":
        js.publish(f"{stream_name}.{key}", key.encode())
    found = stream.get_last_msgs([f"{stream_name}.>"], batch=2)
    js.publish(f"{stream_name}.c", b"new")
    assert next(found).data == b"a"
    assert next(found).data == b"b"
    with pytest.raises(errors.MessagesChangedError, match="read them again"):
        list(found)
    assert data(stream.get_last_msgs([f"{stream_name}.>"], batch=2)) == ["a", "b", "d", "new"]


@pytest.mark.server(">=2.11")
def test_large_messages_come_in_pages(nc, js, stream_name):
    """A reply is limited in bytes, so that it cannot exceed the server's buffer."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], allow_direct=True)
    for number in range(10):
        js.publish(f"{stream_name}.{number}", bytes(900_000))
    before = nc.stats["out_msgs"]
    assert [msg.seq for msg in stream.get_last_msgs([f"{stream_name}.*"])] == [*range(1, 11)]
    assert nc.stats["out_msgs"] - before == 2


@pytest.mark.server(">=2.11")
def test_more_than_1024_subjects_are_refused(js, stream_name):
    """The server refuses more subjects, before the first message, whatever the page."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], allow_direct=True)
    for number in range(1025):
        js.publish_async(f"{stream_name}.{number}", b"x")
    js.publish_async_completed(20)
    for batch in (None, 10):
        with pytest.raises(errors.TooManyResultsError) as caught:
            stream.get_last_msgs([f"{stream_name}.>"], batch=batch)
        assert caught.value.code == 413
    assert len(list(stream.get_last_msgs([f"{stream_name}.>"], up_to_seq=1024))) == 1024


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.server(">=2.11")
def test_an_old_replica_is_named(nats_server, stream):
    """An old server among newer ones may answer with one message and nothing behind it."""

    def respond(nc: Connection, msg: Msg, number: int) -> None:
        if number == 1:
            send_msg(nc, msg, 1, 1)
            send_end(nc, msg)
        else:
            send_msg(nc, msg, 5, None)

    with scripted(nats_server, respond) as user:
        found = user.jetstream(prefix="FAKE").get_stream(stream.name).get_last_msgs(["s.*"])
        assert next(found).seq == 1
        with pytest.raises(errors.ServerTooOldError, match="needs nats-server 2.11"):
            next(found)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"subjects": []}, errors.InvalidOptionError),
        ({"subjects": ["a..b"]}, errors.BadSubjectError),
        ({"subjects": None}, errors.InvalidOptionError),
        ({"subjects": ["a"], "up_to_seq": 0}, errors.InvalidOptionError),
        ({"subjects": ["a"], "batch": 0}, errors.InvalidOptionError),
        ({"subjects": ["a"], "up_to_seq": 5, "up_to_time": PAST}, errors.InvalidOptionError),
        ({"subjects": ["a"], "up_to_time": datetime(2026, 1, 1)}, errors.InvalidOptionError),  # noqa: DTZ001
    ],
)
def test_invalid_arguments_of_get_last_msgs_are_refused(nc, stream, given, error):
    """Arguments are checked when the method is called, before a request is sent."""
    before = nc.stats["out_msgs"]
    with pytest.raises(error):
        stream.get_last_msgs(**given)
    assert nc.stats["out_msgs"] == before


@pytest.mark.server(">=2.11")
def test_a_stream_without_direct_gets_has_no_responders(js, stream):
    """A deleted stream is not found; one without ``allow_direct`` has no responders."""
    js.update_stream(replace(stream.cached_info.config, allow_direct=False))
    with between(0, 2.0):
        with pytest.raises(errors.NoRespondersError):
            stream.get_last_msgs([all_subjects(stream)])
        js.delete_stream(stream.name)
        with pytest.raises(errors.StreamNotFoundError):
            stream.get_last_msgs([all_subjects(stream)])


@pytest.mark.server(">=2.11")
def test_a_page_from_a_replica_that_is_behind_is_requested_again(nats_server, stream):
    """A reply with fewer messages than announced is not the end."""
    asked = []

    def respond(nc: Connection, msg: Msg, number: int) -> None:
        asked.append(msg.data)
        if number == 1:
            send_msg(nc, msg, 1, 2)
        elif number == 2:
            send_block(nc, msg, b"NATS/1.0 404 No Results\r\n\r\n")
            return
        elif number == 3:
            send_msg(nc, msg, 4, 0)
        else:
            send_msg(nc, msg, 4, 1)
            send_msg(nc, msg, 5, 0)
        send_end(nc, msg)

    with scripted(nats_server, respond) as user:
        fake = user.jetstream(prefix="FAKE").get_stream(stream.name)
        assert [msg.seq for msg in fake.get_last_msgs(["s.*"], up_to_time=PAST)] == [1, 4, 5]
    again = {"multi_last": ["s.*"], "max_bytes": 4000000, "seq": 2, "up_to_seq": 9}
    assert list(map(json.loads, asked[1:])) == [again] * 3


@pytest.mark.server(">=2.11")
def test_a_page_that_broke_off_is_requested_again(nats_server, stream):
    """Messages of an incomplete page are dropped; the end status is needed for the other pages."""

    def respond(nc: Connection, msg: Msg, number: int) -> None:
        if number == 1:
            send_msg(nc, msg, 1, 5)
        else:
            send_msg(nc, msg, 7, 0)
            send_end(nc, msg)

    with scripted(nats_server, respond) as user:
        fake = user.jetstream(prefix="FAKE").get_stream(stream.name)
        assert [msg.seq for msg in fake.get_last_msgs(["s.*"])] == [7]


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize(
    ("block", "error"),
    [
        (b"NATS/1.0 408 Bad Request\r\n\r\n", errors.APIError),
        (b"NATS/1.0 408 Empty Request\r\n\r\n", errors.ServerTooOldError),
        (b"NATS/1.0 204 EOB\r\n\r\n", errors.InvalidResponseError),
        (b"NATS/1.0\r\nA: b\r\n\r\n", errors.InvalidResponseError),
    ],
)
def test_other_replies_to_get_last_msgs_are_errors(nats_server, stream, block, error):
    """A refusal is a typed error, and an invalid reply is an error."""
    with scripted(nats_server, lambda nc, msg, _: send_block(nc, msg, block)) as user:
        fake = user.jetstream(prefix="FAKE").get_stream(stream.name)
        with pytest.raises(error):
            fake.get_last_msgs(["s.*"])


@pytest.mark.server(">=2.11")
def test_a_silent_server_ends_the_call_in_time(alone, fresh_server):
    """The timeout of the context applies to each page."""
    stream = alone.jetstream(timeout=1.5).create_stream(name="S", allow_direct=True)
    with paused(fresh_server), between(0, 5), pytest.raises(TimeoutError):
        stream.get_last_msgs(["S"])


@pytest.mark.server(">=2.11")
def test_pages_continue_after_a_restart_of_the_server(alone, fresh_server):
    """A connection that is lost between two pages does not end the read."""
    js = alone.jetstream(timeout=20.0)
    stream = js.create_stream(name="S", subjects=["s.*"], allow_direct=True)
    for key in "abcd":
        js.publish(f"s.{key}", key.encode())
    found = stream.get_last_msgs(["s.*"], batch=1)
    assert next(found).data == b"a"
    fresh_server.restart()
    assert data(found) == ["b", "c", "d"]


# --- messages from a time on --------------------------------------------------------------------


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("allow_direct", [True, False])
def test_messages_from_a_time_on(js, stream, allow_direct):
    """``start_time`` starts at the first message stored at that time or later."""
    stream = js.update_stream(replace(stream.cached_info.config, allow_direct=allow_direct))
    tenth = stream.get_msg(10).time
    found = stream.get_msgs(3, start_time=tenth)
    assert [msg.seq for msg in found] == ([10, 11, 12] if allow_direct else [10])
    subject = f"{stream.name}.b"
    found = stream.get_msgs(3, next_by_subject=subject, start_time=tenth)
    assert data(iter(found)) == ["b2"]
    assert stream.get_msgs(1, start_time=PAST)[0].seq == 1
    assert stream.get_msgs(3, start_time=FUTURE) == []
    cet = timezone(timedelta(hours=1))
    assert stream.get_msgs(1, start_time=tenth.astimezone(cet))[0].seq <= 10


@pytest.mark.parametrize(
    "given",
    [
        {"start_time": datetime(2026, 1, 1)},  # noqa: DTZ001 - what is refused
        {"start_time": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))},
        {"start_time": PAST, "seq": 3},
    ],
)
def test_invalid_start_times_are_refused(nc, stream, given):
    """A start time has a time zone, is in the years 1 to 9999, and excludes a sequence."""
    before = nc.stats["out_msgs"]
    with pytest.raises(errors.InvalidOptionError):
        stream.get_msgs(5, **given)
    assert nc.stats["out_msgs"] == before


def test_an_old_replica_does_not_ignore_the_start_time(nats_server, stream):
    """A server before 2.11 ignores the start time; its reply is not used."""
    with scripted(nats_server, lambda nc, msg, _: send_msg(nc, msg, 1, None)) as user:
        fake = user.jetstream(prefix="FAKE").get_stream(stream.name)
        with pytest.raises(errors.ServerTooOldError):
            fake.get_msgs(5, start_time=PAST)
