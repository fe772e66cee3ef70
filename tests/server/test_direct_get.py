"""Reading one message of a stream, by direct get or from the leader."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from fixtures.internals import api_of
from fixtures.threads import between, wait_until

from jetstream_sync import JetStream, Msg, RePublish, Stream, StreamSource, errors
from jetstream_sync.durations import time_from_ns

#: Servers before 2.11 send no 503 for an unserved direct get, so the fallback takes longer.
SOON = 2.0

BINARY = bytes(range(256))


@pytest.fixture(params=["direct", "leader"])
def stream(request: pytest.FixtureRequest, js: JetStream, stream_name: str) -> Stream:
    """A stream that allows direct gets, and one that does not."""
    return js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        storage="memory",
        allow_direct=request.param == "direct",
    )


def fill(js: JetStream, stream: Stream, *subjects: str) -> None:
    for number, subject in enumerate(subjects, 1):
        js.publish(f"{stream.name}.{subject}", b"%d" % number)


def test_a_message_comes_by_its_sequence(js, stream):
    """A sequence selects one message."""
    fill(js, stream, "a", "b", "c")
    got = stream.get_msg(2)
    assert (got.stream, got.subject, got.seq, got.data, got.headers) == (
        stream.name,
        f"{stream.name}.b",
        2,
        b"2",
        None,
    )


@pytest.mark.parametrize(("pattern", "seq"), [("a", 4), ("*", 5), (">", 5), ("b", 2)])
def test_the_last_of_a_subject(js, stream, pattern, seq):
    """The last message of a subject, or of all subjects that match a wildcard."""
    fill(js, stream, "a", "b", "c", "a", "c")
    assert stream.get_msg(last_by_subject=f"{stream.name}.{pattern}").seq == seq


@pytest.mark.parametrize(
    ("pattern", "start", "seq"),
    [
        ("a", None, 1),
        ("a", 1, 1),
        ("a", 2, 4),
        ("*", None, 1),
        ("*", 3, 3),
        ("c", 4, 5),
        (">", 2, 2),
    ],
)
def test_the_next_of_a_subject(js, stream, pattern, start, seq):
    """The first message of a subject from a sequence on, or from the start."""
    fill(js, stream, "a", "b", "c", "a", "c")
    assert stream.get_msg(start, next_by_subject=f"{stream.name}.{pattern}").seq == seq


def test_payload_headers_and_time_are_returned_unchanged(js, stream):
    """Payload, repeated headers, non-ASCII text and the exact time are unchanged."""
    before = datetime.now(timezone.utc)
    headers = {"Kind": ["a", "b"], "Ort": "Köln", "Empty": ""}
    js.publish(f"{stream.name}.a", BINARY, headers=headers)
    got = stream.get_msg(1)
    assert got.data == BINARY
    assert got.headers is not None
    assert dict.fromkeys(got.headers) == dict.fromkeys(headers)
    assert got.headers.get_all("Kind") == ["a", "b"]
    assert got.headers["ort"] == "Köln"
    assert got.headers["Empty"] == ""
    assert abs(got.time - before) < timedelta(seconds=5)
    assert time_from_ns(got.time_ns) == got.time
    state = stream.info().state
    assert state.first_ts == got.time


@pytest.mark.parametrize("headers", [None, {"A": "1"}])
def test_a_payload_may_be_empty(js, stream, headers):
    """A message without a payload is a message, not a status."""
    js.publish(f"{stream.name}.a", b"", headers=headers)
    got = stream.get_msg(1)
    assert got.data == b""
    assert (dict(got.headers) if got.headers else None) == headers


def test_the_leader_and_a_direct_get_return_equal_messages(js, stream_name):
    """Both ways return equal messages, also of one that was republished."""
    origin = js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.a.>"],
        storage="memory",
        republish=RePublish(src=f"{stream_name}.a.>", dest=f"{stream_name}.b.>"),
    )
    copies = js.create_stream(
        name=f"{stream_name}_2", subjects=[f"{stream_name}.b.>"], storage="memory"
    )
    js.publish(f"{stream_name}.a.x", b"0")
    js.publish(f"{stream_name}.a.y", b"1", headers={"A": ["1", "2"]})
    wait_until(lambda: copies.info().state.messages == 2)
    by_leader = copies.get_msg(2)
    js.update_stream(replace(copies.info().config, allow_direct=True))
    copies.info()
    assert copies.cached_info.config.allow_direct
    assert copies.get_msg(2) == by_leader
    assert copies.get_msg(last_by_subject=f"{stream_name}.b.y") == by_leader
    assert by_leader.stream == copies.name
    assert by_leader.seq == 2
    assert by_leader.headers is not None
    # The headers of republishing are part of the message.
    assert by_leader.headers.get_all("Nats-Stream") == [origin.name]
    assert by_leader.headers.get_all("Nats-Subject") == [f"{stream_name}.a.y"]
    assert by_leader.headers.get_all("A") == ["1", "2"]


@pytest.mark.parametrize(
    ("seq", "selector"),
    [
        (3, {}),
        (1, {}),  # deleted
        (None, {"last_by_subject": "{}.none"}),
        (None, {"next_by_subject": "{}.none"}),
        (3, {"next_by_subject": "{}.b"}),
    ],
)
def test_a_missing_message_raises_the_same_error_for_each_selector(js, stream, seq, selector):
    """Each selector of a missing message raises the same typed error at once."""
    fill(js, stream, "a", "b")
    stream.delete_msg(1)
    selector = {key: subject.format(stream.name) for key, subject in selector.items()}
    with between(0, 1), pytest.raises(errors.MessageNotFoundError) as caught:
        stream.get_msg(seq, **selector)
    assert (caught.value.code, caught.value.err_code) == (404, 10037)


@pytest.mark.parametrize(
    ("seq", "last", "following", "option"),
    [
        (None, None, None, "seq"),
        (1, "s", None, "seq"),
        (None, "s", "s", "next_by_subject"),
        (0, None, None, "seq"),
        (0, None, "s", "seq"),
    ],
)
def test_exactly_one_selector_is_required(stream, seq, last, following, option):
    """No selector, two exclusive ones, or an invalid sequence is refused by the client."""
    with pytest.raises(errors.InvalidOptionError) as caught:
        stream.get_msg(seq, last, following)
    assert caught.value.option == option


def test_a_missing_stream_is_named_in_the_error(js, stream):
    """If the stream does not exist, both ways raise the error that says so."""
    fill(js, stream, "a")
    js.delete_stream(stream.name)
    with between(0, SOON), pytest.raises(errors.StreamNotFoundError):
        stream.get_msg(1)


def test_direct_gets_that_are_switched_off_fall_back_to_the_leader(js, stream_name):
    """The cached stream info may be outdated: a direct get without responders asks the leader."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], storage="memory", allow_direct=True
    )
    fill(js, stream, "a")
    js.update_stream(replace(stream.cached_info.config, allow_direct=False))
    assert stream.cached_info.config.allow_direct
    with between(0, SOON):
        assert stream.get_msg(1).data == b"1"


def test_allow_direct_bypasses_the_leader(js, stream, nc):
    """`allow_direct` bypasses the leader; a last subject is part of the request's subject."""
    fill(js, stream, "a")
    spy = nc.subscribe("$JS.API.>")
    subject = f"{stream.name}.a"
    stream.get_msg(1)
    stream.get_msg(last_by_subject=subject)
    stream.get_msg(last_by_subject=f"{stream.name}.*")
    stream.get_msg(next_by_subject=subject)
    routes = [spy.next_msg(timeout=2).subject for _ in range(4)]
    if stream.cached_info.config.allow_direct:
        plain = f"$JS.API.DIRECT.GET.{stream.name}"
        assert routes == [plain, f"{plain}.{subject}", plain, plain]
    else:
        assert routes == [f"$JS.API.STREAM.MSG.GET.{stream.name}"] * 4


def test_a_mirror_is_asked_as_its_own_config_says(js, stream_name):
    """`mirror_direct` is for gets of the origin (ADR-31); the mirror's own is `allow_direct`."""
    origin = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], storage="memory", allow_direct=True
    )
    fill(js, origin, "a", "b")
    for name, allow_direct in ((f"{stream_name}_m1", False), (f"{stream_name}_m2", True)):
        mirror = js.create_stream(
            name=name,
            mirror=StreamSource(name=origin.name),
            mirror_direct=True,
            allow_direct=allow_direct,
            storage="memory",
        )
        wait_until(lambda mirror=mirror: mirror.info().state.messages == 2)
        got = mirror.get_msg(last_by_subject=f"{origin.name}.a")
        assert (got.stream, got.seq, got.data) == (name, 1, b"1")


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {"Nats-Sequence": "1"},
        {"Nats-Sequence": "x", "Nats-Stream": "S", "Nats-Subject": "s", "Nats-Time-Stamp": "now"},
    ],
)
def test_a_reply_without_a_message_proves_nothing(nc, js, stream_name, headers):
    """After a reply that is not a message of a stream the leader is asked, which has no responders here."""
    created = js.create_stream(name=stream_name, storage="memory", allow_direct=True)

    def respond(message: Msg) -> None:
        message.respond(b"{}", headers)

    nc.subscribe("odd.API.DIRECT.GET.>", cb=respond)
    # The config is real, the reply to the get is not.
    odd = nc.jetstream(prefix="odd.API")
    stream = Stream(api_of(odd), created.cached_info)
    with pytest.raises(errors.JetStreamNotEnabledError):
        stream.get_msg(1)
