"""``jsm req``: the replies, given by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fixtures.rawnats import Heard, RawPeer
from fixtures.threads import between, within


def answering(peer: RawPeer, subject: str, respond: Callable[[Heard], None]) -> threading.Thread:
    """Have the peer act on the next request on a subject, on a thread."""
    peer.hear(subject)
    thread = threading.Thread(target=lambda: respond(peer.next()))
    thread.start()
    return thread


def test_a_reply_is_shown(jsm, peer):
    """A reply is shown with its subject, headers and latency."""

    def respond(heard: Heard) -> None:
        assert (heard.headers, heard.data) == (("X: y",), b"ping")
        peer.publish(heard.reply, b"pong", ("Kind: test",))

    thread = answering(peer, "req.one", respond)
    out = jsm("req", "req.one", "ping", "-H", "X:y").ok().out
    thread.join()
    lines = out.splitlines()
    assert lines[0] == "Published [req.one] : 'ping'"
    assert lines[1].startswith("Received [_INBOX.")
    assert "'pong' in " in lines[1]
    assert lines[2] == "  Kind: test"


@pytest.mark.parametrize("replies", ["1", "2", "0"])
def test_nobody_listens(jsm, replies):
    """No responders are reported at once, with an exit status of their own."""
    with within(4):
        result = jsm("req", "req.unserved", "x", "--replies", replies, "--timeout", "5s", "-j")
    assert (result.status, result.out) == (6, "")
    assert "no responders" in result.error["description"]


def test_nobody_answers(jsm, peer):
    """Without a reply the command waits for --timeout."""
    peer.hear("req.deaf")
    with between(0.2, 5):
        result = jsm("req", "req.deaf", "x", "--timeout", "200ms")
    assert result.status == 4


def twice(peer: RawPeer) -> Callable[[Heard], None]:
    def respond(heard: Heard) -> None:
        peer.publish(heard.reply, b"one")
        peer.publish(heard.reply, b"")
        peer.flush()

    return respond


def test_several_replies(jsm, peer):
    """With --replies N the command ends with the Nth reply; an empty one counts."""
    thread = answering(peer, "req.two", twice(peer))
    with within(4):
        result = jsm("req", "req.two", "x", "--replies", "2", "-j", "--timeout", "5s").ok()
    thread.join()
    assert [line.get("text") for line in result.lines] == ["one", ""]


def test_all_replies_in_time(jsm, peer):
    """With --replies 0 every reply within the timeout is shown, and that is a success."""
    thread = answering(peer, "req.all", twice(peer))
    with between(0.3, 5):
        result = jsm("req", "req.all", "x", "--replies", "0", "--timeout", "300ms", "--raw").ok()
    thread.join()
    assert result.out == "one\n\n"


def test_fewer_replies_than_wanted(jsm, peer):
    """Received replies are shown, and the exit status is 4 when there are too few."""
    thread = answering(peer, "req.few", twice(peer))
    args = ("--replies", "3", "--timeout", "10s", "--reply-timeout", "100ms", "-r")
    with within(5):
        result = jsm("req", "req.few", "x", *args)
    thread.join()
    assert (result.status, result.out) == (4, "one\n\n")
    assert "received 2 of 3 replies" in result.err


def test_a_consumer_can_be_asked(jsm, raw):
    """A consumer answers on the subject of its message, or with a status when there is none."""
    raw.api("STREAM.CREATE.R", name="R", subjects=["r.*"], storage="memory")
    config = {"durable_name": "C", "ack_policy": "explicit"}
    raw.api("CONSUMER.CREATE.R.C", stream_name="R", config=config)
    raw.request("r.one", b"body")
    asked = ("req", "$JS.API.CONSUMER.MSG.NEXT.R.C", '{"batch":1,"no_wait":true}')
    assert "Received [r.one] : 'body' in " in jsm(*asked).ok().out
    assert ": status 404 No Messages in " in jsm(*asked).ok().out
    document = jsm(*asked, "-j").ok().json
    assert document["status"] == {"code": 404, "description": "No Messages"}
