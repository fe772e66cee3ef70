"""`publish`: acknowledgements, expectations, refusals and faults."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.internals import waiting_requests
from fixtures.server import paused
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import Headers, errors
from jetstream_sync.api.publish import EACH_MESSAGE

# --- acknowledgements ---------------------------------------------------------------------------


def test_an_ack_names_the_stream_and_the_sequence(js, stream):
    """An acknowledgement has the stream's name and the message's sequence, and no other field."""
    first = js.publish(f"{stream.name}.a", b"one")
    second = js.publish(f"{stream.name}.b", b"two")
    assert (first.stream, first.seq) == (stream.name, 1)
    assert (second.stream, second.seq) == (stream.name, 2)
    assert second.duplicate is False
    assert second.domain is None


def test_an_acknowledged_message_is_stored_as_it_was_given(js, stream):
    """The stored message has the subject, the payload and all header values."""
    headers = Headers({"One": "1"})
    headers.add("Two", "2")
    headers.add("Two", "zwei ü")
    ack = js.publish(f"{stream.name}.a", b"\x00\xff\r\n", headers=headers)
    stored = stream.get_msg(ack.seq)
    assert stored.subject == f"{stream.name}.a"
    assert stored.data == b"\x00\xff\r\n"
    assert stored.headers is not None
    assert stored.headers["One"] == "1"
    assert stored.headers.get_all("Two") == ["2", "zwei ü"]


def test_a_message_of_a_known_id_is_not_stored_again(js, stream):
    """A duplicate gets the sequence of the first message, and is not stored."""
    first = js.publish(f"{stream.name}.a", b"one", msg_id="x")
    again = js.publish(f"{stream.name}.a", b"two", msg_id="x")
    other = js.publish(f"{stream.name}.a", b"two", msg_id="y")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.seq == first.seq
    assert other.seq == 2
    assert stream.info().state.messages == 2


@pytest.mark.server(">=2.14")
def test_each_way_to_publish_sends_the_headers_of_each_message(js, stream_name, monkeypatch):
    """A header for all messages is declared once, and no way to publish leaves it out."""
    js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        storage="memory",
        allow_atomic=True,
        allow_batched=True,
    )
    subject = f"{stream_name}.a"
    monkeypatch.setitem(EACH_MESSAGE, "All", "1")
    js.publish(subject)
    js.publish(subject, headers={"Own": "2"}, msg_id="i")
    js.publish_async(subject).result(5)
    js.publish_async(subject, headers={"Own": "2"}, stream=stream_name).result(5)
    js.publish_batch([(subject, b""), (subject, b"")], stream=stream_name)
    with js.fast_publish() as fast:
        fast.add(subject)
        fast.add(subject, headers={"Own": "2"})
    kv = js.create_key_value(bucket=stream_name, storage="memory")
    kv.put("key", b"")
    kv.update("key", b"", 1)
    js.create_object_store(bucket=stream_name, storage="memory").put("name", b"content")
    for name in (stream_name, f"KV_{stream_name}", f"OBJ_{stream_name}"):
        stored = js.get_stream(name).get_msgs(max_messages=20, seq=1)
        assert stored
        assert [item.headers["All"] for item in stored] == ["1"] * len(stored)


# --- expectations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("met", "unmet", "error", "err_code"),
    [
        ({"stream": "S"}, {"stream": "OTHER"}, errors.WrongStreamError, 10060),
        (
            {"expected_last_sequence": 2},
            {"expected_last_sequence": 1},
            errors.WrongLastSequenceError,
            10071,
        ),
        (
            {"expected_last_subject_sequence": 1},
            {"expected_last_subject_sequence": 2},
            errors.WrongLastSequenceError,
            10071,
        ),
        (
            {"expected_last_msg_id": "two"},
            {"expected_last_msg_id": "one"},
            errors.WrongLastMsgIDError,
            10070,
        ),
    ],
)
def test_an_expectation_has_to_be_met(js, met, unmet, error, err_code):
    """A message with an expectation that is not met is refused with a typed error."""
    js.create_stream(name="S", subjects=["S.*"], storage="memory")
    js.publish("S.a", msg_id="one")
    js.publish("S.b", msg_id="two")
    with pytest.raises(error) as caught:
        js.publish("S.a", **unmet)
    assert (caught.value.code, caught.value.err_code) == (400, err_code)
    assert js.publish("S.a", **met).seq == 3


@pytest.mark.server(">=2.11")
def test_a_sequence_can_be_expected_of_other_subjects(js, stream):
    """With ``expected_last_subject`` the last message on those subjects must have the sequence."""
    js.publish(f"{stream.name}.a.one")
    js.publish(f"{stream.name}.b")
    a = f"{stream.name}.a.*"
    ack = js.publish(f"{stream.name}.c", expected_last_subject_sequence=1, expected_last_subject=a)
    assert ack.seq == 3
    js.publish(f"{stream.name}.a.two")
    with pytest.raises(errors.WrongLastSequenceError):
        js.publish(f"{stream.name}.c", expected_last_subject_sequence=1, expected_last_subject=a)
    future = js.publish_async(
        f"{stream.name}.c", expected_last_subject_sequence=4, expected_last_subject=a
    )
    assert future.result(5).seq == 5


@pytest.mark.server(">=2.11")
def test_msg_ttl_never_outlives_max_age(js, stream_name):
    """With ``msg_ttl="never"`` a message outlives the stream's ``max_age``."""
    stream = js.create_stream(
        name=stream_name, subjects=[stream_name], storage="memory", allow_msg_ttl=True, max_age=1
    )
    js.publish(stream_name, b"stays", msg_ttl="never")
    js.publish(stream_name, b"goes")
    wait_until(lambda: stream.info().state.messages == 1)
    assert stream.get_msg(1).data == b"stays"


@pytest.mark.server(">=2.11")
def test_a_message_with_a_ttl_goes_after_that_time(js, stream_name):
    """With ``msg_ttl`` on a stream that allows it, the message is deleted after that time."""
    stream = js.create_stream(
        name=stream_name, subjects=[stream_name], storage="memory", allow_msg_ttl=True
    )
    js.publish(stream_name, b"stays")
    ack = js.publish(stream_name, b"goes", msg_ttl=1)
    stored = stream.get_msg(ack.seq)
    assert stored.headers is not None
    assert stored.headers["Nats-TTL"] == "1"
    wait_until(lambda: stream.info().state.messages == 1)
    assert stream.get_msg(1).data == b"stays"


@pytest.mark.server(">=2.11")
def test_a_ttl_is_refused_if_the_stream_does_not_allow_it(js, stream):
    """With ``msg_ttl`` on another stream nothing is stored, and the error has its own class."""
    with pytest.raises(errors.MessageTTLDisabledError) as caught:
        js.publish(f"{stream.name}.a", msg_ttl=5)
    assert caught.value.err_code == 10166
    assert stream.info().state.messages == 0


# --- invalid messages ---------------------------------------------------------------------------


# --- no responders ------------------------------------------------------------------------------


def test_without_a_stream_the_error_comes_after_two_retries(js, nc, stream_name):
    """Without responders it is sent three times, 250 ms apart, and then it is an error (ADR-22)."""
    sent = nc.stats["out_msgs"]
    with between(0.45, 1.5), pytest.raises(errors.NoStreamResponseError) as caught:
        js.publish(stream_name)
    assert caught.value.subject == stream_name
    assert nc.stats["out_msgs"] == sent + 3


@pytest.mark.parametrize(("timeout", "most"), [(0.2, 1), (0.45, 2)])
def test_without_a_stream_the_error_comes_within_a_short_time(js, nc, stream_name, timeout, most):
    """The retries stay within the timeout, and the error names the real reason."""
    sent = nc.stats["out_msgs"]
    with between(0, timeout + 0.2), pytest.raises(errors.NoStreamResponseError):
        js.publish(stream_name, timeout=timeout)
    assert 1 <= nc.stats["out_msgs"] - sent <= most


@pytest.mark.parametrize("attempts", [0, 1, 4])
def test_the_caller_chooses_the_retries(js, nc, stream_name, attempts):
    """``retry_attempts`` and ``retry_wait`` set the number of attempts and their interval."""
    sent = nc.stats["out_msgs"]
    with (
        between(attempts * 0.1 - 0.05, attempts * 0.1 + 1),
        pytest.raises(errors.NoStreamResponseError),
    ):
        js.publish(stream_name, retry_attempts=attempts, retry_wait=0.1)
    assert nc.stats["out_msgs"] == sent + 1 + attempts


def test_retries_may_end_with_the_time_alone(js, nc, stream_name):
    """With -1 it is sent again until the timeout."""
    sent = nc.stats["out_msgs"]
    with between(0.4, 1.5), pytest.raises(errors.NoStreamResponseError):
        js.publish(stream_name, timeout=0.6, retry_attempts=-1, retry_wait=0.05)
    assert nc.stats["out_msgs"] > sent + 5


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retry_attempts", -2),
        ("retry_wait", -1),
        ("retry_atempts", 1),
    ],
)
def test_invalid_retry_options_are_refused(js, option, value):
    """The error names the option, and nothing is sent."""
    for publish in (js.publish, js.publish_async):
        with pytest.raises(errors.InvalidOptionError) as caught:
            publish("s", **{option: value})
        assert caught.value.option == option
    assert js.publish_async_pending == 0


def test_a_stream_that_comes_during_the_retries_gets_the_message(js, nc, stream_name):
    """A stream that is created between the attempts gets the message once."""
    sent = nc.stats["out_msgs"]
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(js.publish, stream_name, b"late")
        wait_until(lambda: nc.stats["out_msgs"] > sent)
        stream = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
        assert published.result(5).seq == 1
    assert stream.info().state.messages == 1
    assert stream.get_msg(1).data == b"late"


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["publish", "publish_async"])
def test_invalid_options_are_refused_without_the_server(alone, fresh_server, name):
    """An option that needs an API level is checked before that is requested."""
    with paused(fresh_server), between(0, 1), pytest.raises(errors.InvalidOptionError):
        getattr(alone.jetstream(), name)("a", b"", msg_ttl=0)


def test_a_silent_server_means_a_timeout(alone, fresh_server):
    """Without a reply the timeout is raised; the connection stays usable."""
    js = alone.jetstream()
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    with paused(fresh_server):
        with between(0.3, 0.6), pytest.raises(jetstream_sync.TimeoutError):
            js.publish("s", b"slow", timeout=0.3)
        with between(0.3, 0.6), pytest.raises(TimeoutError):
            alone.jetstream(timeout=0.3).publish("s", b"slow, too")
    # An unacknowledged message may be stored, as here.
    assert js.publish("s").seq == 3
    assert stream.info().state.messages == 3


def test_closing_wakes_a_call_that_waits_for_an_ack(fresh_server):
    """A call that waits for an acknowledgement raises at once when the connection is closed."""
    nc = jetstream_sync.connect(fresh_server.url)
    js = nc.jetstream(timeout=None)
    js.create_stream(name="S", subjects=["s"], storage="memory")
    fresh_server.pause()
    sent = nc.stats["out_msgs"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(js.publish, "s")
        wait_until(lambda: nc.stats["out_msgs"] > sent)
        nc.close()
        fresh_server.resume()
        # The error tells it from that of a message that was not sent.
        with (
            between(0, 1),
            pytest.raises(errors.ConnectionClosedError, match="may have been processed"),
        ):
            waiting.result(5)
    with pytest.raises(errors.ConnectionClosedError, match="is closed"):
        js.publish("s")


def test_closing_ends_the_retries(nats_server):
    """A call that waits for its next attempt raises at once when the connection is closed."""
    mine = jetstream_sync.connect(nats_server.url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.jetstream().publish, "no.stream.takes.this")
        wait_until(lambda: mine.stats["out_msgs"] > 0)
        mine.close()
        with pytest.raises(errors.ConnectionClosedError):
            waiting.result(5)


def test_a_wait_that_timed_out_leaves_nothing_behind(js):
    """Calls that time out leave no entries for expected replies."""
    for _ in range(50):
        with pytest.raises((jetstream_sync.TimeoutError, errors.NoStreamResponseError)):
            js.publish("no.stream.takes.this", timeout=0)
    assert not waiting_requests(js)
