"""Requests: each gets its own reply, or an error with the reason."""

from __future__ import annotations

import builtins
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from fixtures.threads import between

import jetstream_sync
from jetstream_sync import Msg, errors


@pytest.mark.parametrize("where", ["same", "other"])
def test_every_request_gets_its_own_reply(nc, other, subject, where):
    """Many threads send requests through one connection, and each gets its own reply."""
    responder = nc if where == "same" else other
    responder.subscribe(subject, cb=lambda msg: msg.respond(b"re " + msg.data))
    responder.flush(5)

    def ask(thread: int) -> list[bytes]:
        return [nc.request(subject, b"%d %d" % (thread, n), 10).data for n in range(200)]

    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(ask, range(16)))
    assert responses == [[b"re %d %d" % (thread, n) for n in range(200)] for thread in range(16)]


def test_replies_may_come_in_any_order(nc, other, subject):
    """Replies are matched by their inbox, not by their order."""
    questions = other.subscribe(subject)
    other.flush(5)
    with ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(nc.request, subject, b"%d" % n, 10) for n in range(10)]
        asked = [questions.next_msg(5) for _ in range(10)]
        assert len({msg.reply for msg in asked}) == 10
        for msg in reversed(asked):
            msg.respond(msg.data)
        assert [item.result(5).data for item in waiting] == [b"%d" % n for n in range(10)]


def test_the_first_reply_counts(nc, subject):
    """Of several replies the first is returned, and no other request gets the rest."""

    def respond(msg: Msg) -> None:
        for number in range(3):
            msg.respond(msg.data + b"%d" % number)

    nc.subscribe(subject, cb=respond)
    for name in (b"a", b"b", b"c"):
        assert nc.request(subject, name, 5).data == name + b"0"


@pytest.mark.parametrize("timeout", [5, None])
def test_a_request_without_responders(nc, subject, timeout):
    """Without responders a request fails at once, whatever the timeout."""
    with between(0, 2), pytest.raises(errors.NoRespondersError) as caught:
        nc.request(subject, b"?", timeout)
    assert caught.value.subject == subject


@pytest.mark.parametrize("timeout", [0.05, timedelta(milliseconds=50)])
def test_a_late_reply_goes_to_no_other_request(nc, other, subject, timeout):
    """A request times out, and its late reply is not given to another one."""
    questions = other.subscribe(subject)
    other.flush(5)
    with between(0.05, 1), pytest.raises(errors.TimeoutError, match=subject) as caught:
        nc.request(subject, b"1", timeout)
    assert isinstance(caught.value, builtins.TimeoutError)
    late = questions.next_msg(5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(nc.request, subject, b"2", 10)
        msg = questions.next_msg(5)
        late.respond(b"late")
        msg.respond(b"in time")
        assert waiting.result(5).data == b"in time"


def test_headers_go_both_ways(nc, subject):
    """Requests and replies carry headers; a reply may have no payload."""
    asked: list[Msg] = []

    def respond(msg: Msg) -> None:
        asked.append(msg)
        msg.respond(b"", {"Out": ["ö", "2"]})

    nc.subscribe(subject, cb=respond)
    msg = nc.request(subject, b"", 5, {"In": ["ä", "1"]})
    assert asked[0].headers is not None
    assert asked[0].headers.get_all("In") == ["ä", "1"]
    assert msg.headers is not None
    assert (msg.data, msg.headers.get_all("Out")) == (b"", ["ö", "2"])
    assert msg.subject == asked[0].reply


def test_a_status_with_a_payload_is_a_reply(nc, subject):
    """Only an empty message with status 503 means no responders."""
    nc.subscribe(subject, cb=lambda msg: msg.respond(b"", {"Status": "503"}))
    msg = nc.request(subject, b"", 5)
    assert msg.headers == {"Status": "503"}


def test_the_inbox_has_the_prefix(nats_server, subject):
    """Replies arrive below the ``inbox_prefix``, and `new_inbox` never repeats itself."""
    with jetstream_sync.connect(nats_server.url, inbox_prefix="my.own") as nc:
        nc.subscribe(subject, cb=lambda msg: msg.respond(msg.reply.encode()))
        assert nc.request(subject, b"", 5).data.startswith(b"my.own.")
        inboxes = {nc.new_inbox() for _ in range(1_000)}
        assert len(inboxes) == 1_000
        assert all(inbox.startswith("my.own.") for inbox in inboxes)


def test_respond_without_a_reply_subject_raises(nc, subject):
    """`respond` raises if the message has no reply subject."""
    with nc.subscribe(subject) as sub:
        nc.publish(subject, b"x")
        msg = sub.next_msg(5)
        with pytest.raises(errors.BadSubjectError, match="no reply"):
            msg.respond(b"y")


def test_invalid_requests_are_refused(nc, subject):
    """An invalid request is refused like a message, and the next one works."""
    nc.subscribe(subject, cb=lambda msg: msg.respond(msg.data))
    with pytest.raises(errors.BadSubjectError):
        nc.request("a.*", b"x", 5)
    with pytest.raises(errors.InvalidHeaderError):
        nc.request(subject, b"x", 5, {"A": "\r\n"})
    with pytest.raises(errors.MaxPayloadError):
        nc.request(subject, bytes(nc.max_payload + 1), 5)
    assert nc.request(subject, b"good", 5).data == b"good"


def test_a_callback_may_ask(nc, subject):
    """A callback may send requests on its own connection, also nested."""

    def relay(msg: Msg) -> None:
        msg.respond(nc.request(f"{subject}.inner", msg.data, 5).data + b" outer")

    nc.subscribe(f"{subject}.inner", cb=lambda msg: msg.respond(msg.data + b" inner"))
    nc.subscribe(f"{subject}.outer", cb=relay)
    assert nc.request(f"{subject}.outer", b"x", 5).data == b"x inner outer"
