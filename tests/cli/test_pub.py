"""``jsm pub``: what reaches others, heard by hand."""

from __future__ import annotations

import base64
import json
import signal
import time

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, between


@pytest.fixture
def orders(raw: RawClient) -> None:
    """A stream for ORDERS.*, removed by the fixture jsm."""
    raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"], storage="memory")


def test_a_body_is_published(jsm, peer):
    """The body on the command line is published, and a line in the format of nats-pub is shown."""
    peer.hear("pub.one")
    result = jsm("pub", "pub.one", "hello").ok()
    assert (result.out, result.err) == ("Published [pub.one] : 'hello'\n", "")
    heard = peer.next()
    assert (heard.subject, heard.reply, heard.headers, heard.data) == ("pub.one", "", (), b"hello")


def test_reply_and_headers_are_sent(jsm, peer):
    """Headers keep their order and may repeat; a value may have colons."""
    peer.hear("pub.two")
    headers = ("-H", "A: 1", "-H", "B:x:y", "--header", "A:2")
    jsm("pub", "pub.two", "", "--reply", "to.me", *headers).ok()
    heard = peer.next()
    assert heard.reply == "to.me"
    assert sorted(heard.headers) == ["A: 1", "A: 2", "B: x:y"]
    assert heard.data == b""


@pytest.mark.parametrize("body", [(), ("-",)])
def test_standard_input_is_a_body(jsm, peer, body):
    """Without a body, or with '-', all of standard input is one message, byte for byte."""
    peer.hear("pub.three")
    jsm("pub", "pub.three", *body, stdin=b"a\nb\r\n\xff").ok()
    assert peer.next().data == b"a\nb\r\n\xff"


def test_a_body_leaves_standard_input_alone(jsm, peer):
    """In a loop that reads lines, a command with a body takes none of them."""
    peer.hear("pub.loop")
    child = jsm.spawn("pub", "pub.loop", "body")
    # Its standard input is never closed: a program that read it would wait.
    assert child.wait(timeout=20) == 0
    child.communicate()
    assert peer.next().data == b"body"


def test_each_line_is_a_message_when_it_comes(jsm, peer):
    """With --send-on newline each line is published as it arrives."""
    peer.hear("pub.lines")
    child = jsm.spawn("pub", "pub.lines", "--send-on", "newline", "-q")
    assert child.stdin is not None
    for line in (b"one", b"", b"three\r"):
        child.stdin.write(line + b"\n")
        child.stdin.flush()
        assert peer.next().data == line.rstrip(b"\r")
    child.stdin.write(b"no line break")
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err) == (0, b"", b"")
    assert peer.next().data == b"no line break"


def test_templates_are_filled_in_everywhere(jsm, peer):
    """Subject, headers and body of a message have the same number and id."""
    peer.hear("pub.t.*")
    args = ("-H", "Id:{{ID}}-{{Count}}", "--templates", "--count", "3", "-q")
    jsm("pub", "pub.t.{{Count}}", "{{Count}}/{{ID}}", *args).ok()
    ids = set()
    for number in "123":
        heard = peer.next()
        assert heard.subject == f"pub.t.{number}"
        count, _, made = heard.data.decode().partition("/")
        assert count == number
        assert heard.headers == (f"Id: {made}-{number}",)
        ids.add(made)
    assert len(ids) == 3


def test_braces_stay_without_templates(jsm, peer):
    """Without --templates the braces are sent as they are."""
    peer.hear("pub.braces")
    jsm("pub", "pub.braces", "{{Count}}").ok()
    assert peer.next().data == b"{{Count}}"


def test_many_are_counted_and_not_listed(jsm, peer):
    """Many messages are counted, and only the first are listed."""
    peer.hear("pub.many")
    lines = jsm("pub", "pub.many", "x", "--count", "50").ok().out.splitlines()
    assert [peer.next().data for _ in range(50)] == [b"x"] * 50
    assert lines[0] == "Published [pub.many] : 'x'"
    assert len(lines) < 30
    assert lines[-1].startswith("Published 50 messages, 50 bytes in ")
    document = jsm("pub", "pub.many", "xy", "--count", "50", "-j").ok().json
    assert document == {"subject": "pub.many", "published": 50, "bytes": 100}


def test_sleep_is_between_messages(jsm):
    """--sleep pauses only between messages."""
    with between(0.2, 5):
        jsm("pub", "pub.slow", "x", "--count", "3", "--sleep", "100ms").ok()


# --- with acknowledgements ------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
def test_the_acknowledgement_is_shown(jsm, raw):
    """With --jetstream the stream and the sequence are shown once it is stored."""
    out = jsm("pub", "ORDERS.new", "a", "-J").ok().out
    assert out == "Published [ORDERS.new] : stored in ORDERS with sequence 1\n"
    said = jsm("pub", "ORDERS.new", "b", "--jetstream", "-j").ok().json
    assert said == {"subject": "ORDERS.new", "stream": "ORDERS", "seq": 2}
    stored = [(item.seq, item.subject, item.data) for item in raw.stored("ORDERS")]
    assert stored == [(1, "ORDERS.new", b"a"), (2, "ORDERS.new", b"b")]


@pytest.mark.usefixtures("orders")
def test_several_acknowledgements_are_lines(jsm):
    """Several acknowledgements are one JSON document a line."""
    lines = jsm("pub", "ORDERS.new", "a", "-J", "-j", "--count", "3").ok().lines
    assert [line["seq"] for line in lines] == [1, 2, 3]


def test_nobody_stores_it(jsm):
    """Without a stream for the subject, publishing fails with --jetstream and succeeds without it."""
    assert jsm("pub", "no.stream", "a").status == 0
    result = jsm("pub", "no.stream", "a", "-J")
    assert (result.status, result.out) == (1, "")
    assert "no stream stores 'no.stream'" in result.err


@pytest.mark.usefixtures("orders")
def test_an_id_is_stored_once(jsm, raw):
    """A message of the same id is a duplicate; a template makes an id for each."""
    jsm("pub", "ORDERS.new", "a", "--msg-id", "x", "-J").ok()
    assert "duplicate" in jsm("pub", "ORDERS.new", "a", "--msg-id", "x", "-J").ok().out
    assert jsm("pub", "ORDERS.new", "a", "--msg-id", "x", "-J", "-j").ok().json["duplicate"] is True
    ids = ("--msg-id", "n{{Count}}", "--templates", "--count", "2")
    jsm("pub", "ORDERS.new", "b", *ids).ok()
    assert len(raw.stored("ORDERS")) == 3


@pytest.mark.server("<2.11")
def test_ttl_is_refused_by_older_servers(jsm, raw):
    """A server that would ignore --ttl gets no message, with and without --jetstream."""
    raw.api("STREAM.CREATE.T", name="T", subjects=["t"], storage="memory")
    for options in ((), ("-J",)):
        failed = jsm("pub", "t", "a", "--ttl", "90s", *options)
        assert failed.status != 0
        assert "2.11" in failed.err
    assert raw.api("STREAM.INFO.T")["state"]["messages"] == 0


@pytest.mark.server(">=2.11")
def test_ttl(jsm, raw):
    """--ttl sets the header with the time to live."""
    raw.api("STREAM.CREATE.T", name="T", subjects=["t"], storage="memory", allow_msg_ttl=True)
    jsm("pub", "t", "a", "-J", "--ttl", "1m30s").ok()
    response = json.loads(raw.request("$JS.API.STREAM.MSG.GET.T", b'{"seq":1}'))
    assert b"Nats-TTL: 90s" in base64.b64decode(response["message"]["hdrs"])
    assert jsm("pub", "t", "a", "-J", "--ttl", "10ms").status == 2


# --- wrong usage, and how it ends -----------------------------------------------------------------


@pytest.mark.parametrize("subject", ["a b", "a.*"])
def test_an_invalid_subject_is_wrong_usage(jsm, subject):
    """A subject that cannot be published to is named."""
    result = jsm("pub", subject, "x")
    assert (result.status, result.out) == (2, "")
    assert subject in result.err


def test_ctrl_c_sums_up(jsm, peer):
    """Ctrl-C between two messages says how many were sent, on stderr, and is status 130."""
    peer.hear("pub.stop")
    child = jsm.spawn("pub", "pub.stop", "x", "--count", "100", "--sleep", "1m")
    peer.next()
    time.sleep(0.2 * SCALE)  # it counts the message, and sleeps
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert b"Published 1 message, 1 byte" in err
