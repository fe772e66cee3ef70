"""``jsm sub``: messages of subjects and of streams."""

from __future__ import annotations

import base64
import json
import signal
import subprocess

import pytest
from fixtures.jsm import Jsm
from fixtures.rawnats import RawClient, RawPeer
from fixtures.threads import wait_until, within

# --- core NATS ------------------------------------------------------------------------------------


def started(jsm: Jsm, *args: str) -> subprocess.Popen[bytes]:
    """Start ``jsm sub``, and wait until it listens."""
    child = jsm.spawn("sub", *args)
    assert child.stderr is not None
    line = child.stderr.readline()
    assert b"Listening on [" in line, line
    return child


def finished(child: subprocess.Popen[bytes]) -> list[str]:
    """Wait for the end, which has to be a good one, and return the lines of stdout."""
    out, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (0, b""), (child.returncode, err)
    return out.decode().splitlines()


def test_messages_are_lines_as_nats_sub_had_them(jsm, peer):
    """Each message has its number, subject and body; --count ends it with success."""
    child = started(jsm, "sub.one.*", "--count", "3")
    peer.publish("sub.one.a", b"order 1")
    peer.publish("sub.one.b", b"x", ("K: v", "K: w"))
    peer.publish("sub.one.c", b"\x1b\xff\n")
    assert finished(child) == [
        "[#1] Received on [sub.one.a]: 'order 1'",
        "[#2] Received on [sub.one.b]: 'x'",
        "  K: v",
        "  K: w",
        "[#3] Received on [sub.one.c]: '\\x1b\\xff",
        "'",
    ]


def test_the_listening_line_is_on_stderr(jsm):
    """The announcement of the subscription is written to stderr, not to stdout."""
    result = jsm("sub", "sub.quiet", "sub.other", "--wait", "50ms")
    assert (result.status, result.out) == (4, "")
    assert result.err.splitlines()[-1] == "jsm: received 0 messages"
    assert result.err.splitlines()[0] == "Listening on [sub.quiet] [sub.other]"


def test_several_subjects(jsm, peer):
    """One command subscribes to several subjects."""
    child = started(jsm, "sub.m1", "sub.m2", "--count", "2", "--subjects-only")
    peer.publish("sub.m1")
    peer.publish("sub.m2")
    assert sorted(finished(child)) == ["sub.m1", "sub.m2"]


def test_raw_bodies(jsm, peer):
    """With --raw the bodies are written unchanged, each followed by a line break."""
    child = started(jsm, "sub.raw", "--count", "2", "--raw")
    peer.publish("sub.raw", b"\xff\x00", ("K: v",))
    peer.publish("sub.raw", b"text")
    out, _ = child.communicate(timeout=20)
    assert out == b"\xff\x00\ntext\n"


def test_json_lines(jsm, peer):
    """With -j each message is a document on a line of its own, with nothing else on stdout."""
    child = started(jsm, "sub.json", "--count", "2", "-j")
    peer.publish("sub.json", b"a", ("K: v",))
    peer.publish("sub.json", b"\xff")
    first, second = map(json.loads, finished(child))
    assert first == {
        "subject": "sub.json",
        "headers": {"K": ["v"]},
        "data": base64.b64encode(b"a").decode(),
        "text": "a",
    }
    assert second == {"subject": "sub.json", "data": base64.b64encode(b"\xff").decode()}


def test_headers_only(jsm, peer):
    """With --headers-only no bodies are shown, in JSON neither."""
    for args, expected in (
        ((), ["[#1] Received on [sub.head]", "  K: v"]),
        (("-j",), ['{"subject":"sub.head","headers":{"K":["v"]}}']),
    ):
        child = started(jsm, "sub.head", "--count", "1", "--headers-only", *args)
        peer.publish("sub.head", b"secret", ("K: v",))
        assert finished(child) == expected


def test_ignored_subjects(jsm, peer):
    """Messages on ignored subjects are not shown and not counted."""
    child = started(jsm, "sub.ig.>", "--count", "1", "-I", "sub.ig.*.no", "--raw")
    peer.publish("sub.ig.a.no", b"ignored")
    peer.publish("sub.ig.a.yes", b"shown")
    assert finished(child) == ["shown"]


def test_a_queue_group_shares(jsm, peer):
    """Two members of a queue group receive each message once."""
    both = [started(jsm, "sub.q", "--queue", "g", "--raw", "--wait", "500ms") for _ in range(2)]
    for number in range(30):
        peer.publish("sub.q", b"%d" % number)
    found = [int(line) for child in both for line in child.communicate(timeout=20)[0].split()]
    assert sorted(found) == list(range(30))


def test_ctrl_c_sums_up(jsm, peer):
    """After Ctrl-C the summary is on stderr, and the exit status is 130."""
    child = started(jsm, "sub.stop")
    peer.publish("sub.stop", b"abc")
    assert child.stdout is not None
    assert child.stdout.readline() == b"[#1] Received on [sub.stop]: 'abc'\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert b"Received 1 message, 3 bytes in " in err


def test_fewer_than_wanted(jsm, peer):
    """The exit status is 4 when --wait passes before --count is reached."""
    child = started(jsm, "sub.wait", "--count", "2", "--wait", "300ms")
    peer.publish("sub.wait", b"abc")
    _, err = child.communicate(timeout=20)
    assert child.returncode == 4
    assert b"received 1 of 2 messages" in err


def test_wait_alone_is_a_way_to_end(jsm, peer):
    """--wait without --count succeeds when a message arrived."""
    child = started(jsm, "sub.wait2", "--wait", "300ms", "--raw")
    peer.publish("sub.wait2", b"abc")
    assert finished(child) == ["abc"]


def test_the_server_may_restart(fresh_server):
    """The subscription continues after a server restart, and stderr reports the disconnect."""
    child = started(Jsm(fresh_server), "sub.again", "--raw", "--count", "1")
    fresh_server.kill()
    assert child.stderr is not None
    assert b"disconnected: " in child.stderr.readline()
    fresh_server.restart()
    assert b"reconnected to nats://" in child.stderr.readline()
    someone = RawPeer(fresh_server.port)

    def heard() -> bool:
        # The subscription is on its way.
        someone.publish("sub.again", b"still there")
        return child.poll() is not None

    wait_until(heard, 20)
    assert finished(child) == ["still there"]
    someone.close()


# --- streams --------------------------------------------------------------------------------------


@pytest.fixture
def orders(raw: RawClient) -> None:
    """A stream with six messages on three subjects."""
    raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"], storage="memory")
    for number, subject in enumerate("abcabc", 1):
        raw.request(f"ORDERS.{subject}", b"%d" % number)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("args", "bodies"),
    [
        (("--stream", "ORDERS"), "123456"),
        (("--stream", "ORDERS", "--all"), "123456"),
        (("ORDERS.*", "--all"), "123456"),
        (("ORDERS.a", "--stream", "ORDERS"), "14"),
        (("ORDERS.a", "ORDERS.c", "--all"), "1346"),
        (("--stream", "ORDERS", "--last"), "6"),
        (("ORDERS.a", "--last"), "4"),
        (("--stream", "ORDERS", "--last-per-subject"), "456"),
        (("ORDERS.a", "--last-per-subject"), "4"),
        (("--stream", "ORDERS", "--start-sequence", "5"), "56"),
        (("--stream", "ORDERS", "--since", "1h"), "123456"),
        (("--stream", "ORDERS", "--since", "2020-01-01T00:00:00Z"), "123456"),
        (("--stream", "ORDERS", "--new"), ""),
        (("ORDERS.zzz", "--stream", "ORDERS"), ""),
    ],
    ids=" ".join,
)
def test_where_to_start(jsm, raw, args, bodies):
    """A stream is read from the start position, with -T to its end, and no consumer is left."""
    with within(10):
        out = jsm("sub", *args, "-T", "--raw").ok().out
    assert out.split() == list(bodies)
    wait_until(lambda: raw.api("STREAM.INFO.ORDERS")["state"]["consumer_count"] == 0)


@pytest.mark.usefixtures("orders")
def test_a_stream_goes_on(jsm, peer):
    """Without -T, messages stored later are shown."""
    child = started(jsm, "--stream", "ORDERS", "--new", "--raw", "--count", "1")
    peer.publish("ORDERS.a", b"later")
    assert finished(child) == ["later"]


@pytest.mark.usefixtures("orders")
def test_the_document_of_a_stored_message(jsm, raw):
    """A stored message is shown with its stream and sequence; JSON has all its metadata."""
    out = jsm("sub", "--stream", "ORDERS", "--start-sequence", "6", "-T").ok().out
    assert out == "[#1] Received on [ORDERS.c] stream: ORDERS seq 6: '6'\n"
    (document,) = jsm("sub", "ORDERS.b", "--last", "-T", "-j").ok().lines
    stored = raw.api("STREAM.MSG.GET.ORDERS", seq=5)["message"]
    assert document.pop("consumer")
    assert document == {
        "subject": "ORDERS.b",
        "stream": "ORDERS",
        "stream_seq": 5,
        "consumer_seq": 1,
        "delivered": 1,
        "pending": 0,
        "time": stored["time"],
        "data": stored["data"],
        "text": "5",
        "acked": False,
    }


@pytest.mark.usefixtures("orders")
def test_a_durable_continues_at_its_position(jsm, raw):
    """Shown messages of a durable consumer are acknowledged; the others are redelivered at once."""
    args = ("sub", "ORDERS.*", "--durable", "ME", "--raw")
    assert jsm(*args, "--count", "2").ok().out == "1\n2\n"
    info = raw.api("CONSUMER.INFO.ORDERS.ME")
    assert info["ack_floor"]["stream_seq"] == 2
    assert info["config"]["ack_policy"] == "explicit"
    with within(10):
        assert jsm(*args, "-T").ok().out.split() == list("3456")
    assert raw.api("CONSUMER.INFO.ORDERS.ME")["num_ack_pending"] == 0
    assert jsm(*args, "-T").ok().out == ""


@pytest.mark.usefixtures("orders")
def test_a_durable_may_acknowledge_nothing(jsm, raw):
    """With --no-ack shown messages stay unacknowledged."""
    jsm("sub", "ORDERS.*", "--durable", "ME", "--no-ack", "--count", "2").ok()
    info = raw.api("CONSUMER.INFO.ORDERS.ME")
    assert (info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]) == (2, 0)


@pytest.mark.usefixtures("orders")
def test_ack_of_what_a_consumer_pushes(jsm, raw):
    """With --ack the messages that a push consumer delivers are acknowledged."""
    config = {
        "durable_name": "P",
        "deliver_subject": "push.here",
        "ack_policy": "explicit",
        "filter_subject": "ORDERS.a",
    }
    raw.api("CONSUMER.CREATE.ORDERS.P.ORDERS.a", stream_name="ORDERS", config=config)
    out = jsm("sub", "push.here", "--count", "2", "--ack").ok().out
    assert out == "[#1] Received on [ORDERS.a]: '1'\n[#2] Received on [ORDERS.a]: '4'\n"
    info = raw.api("CONSUMER.INFO.ORDERS.P")
    # Servers differ in whether the floor moves on over what the filter leaves out.
    assert info["ack_floor"]["stream_seq"] in {4, 6}
    assert (info["ack_floor"]["consumer_seq"], info["num_ack_pending"]) == (2, 0)


@pytest.mark.usefixtures("orders")
def test_the_document_of_what_a_consumer_pushes(jsm, raw):
    """A message that a consumer pushes to a subject has in JSON what its stream says of it, too."""
    config = {"durable_name": "P", "deliver_subject": "push.j", "ack_policy": "none"}
    raw.api("CONSUMER.CREATE.ORDERS.P", stream_name="ORDERS", config=config)
    (document,) = jsm("sub", "push.j", "--count", "1", "-j").ok().lines
    assert (document["stream"], document["consumer"], document["stream_seq"]) == ("ORDERS", "P", 1)
    assert (document["pending"], document["acked"]) == (5, False)
    assert "reply" not in document
