"""``jsm stream view`` asks for many messages at a time, where the server has a way for that."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fix_jsm import Jsm
from fix_threads import wait_until
from rawnats import RawClient

from jetstream_sync import Connection, Msg, connect
from jetstream_sync.server import NatsServer

MESSAGES = 1200
SINGLE, MANY = "--no-allow-direct", "--allow-direct"


@pytest.fixture
def numbers(jsm: Jsm, raw: RawClient) -> Jsm:
    """A stream N of numbers, first on one subject, then on another."""
    jsm("stream", "add", "N", "--subjects", "n.*").ok()
    own = b"NATS/1.0\r\nNats-Sequence: own\r\n\r\n"
    for subject in (b"n.odd", b"n.even"):
        for number in map(b"%d".__mod__, range(MESSAGES // 2)):
            sizes = b"%d %d" % (len(own), len(own) + len(number))
            raw.send(b"HPUB %s %s\r\n%s%s\r\n" % (subject, sizes, own, number))
    wait_until(lambda: raw.api("STREAM.INFO.N")["state"]["messages"] == MESSAGES)
    return jsm


@pytest.fixture
def old_server(nats_server: NatsServer) -> Iterator[list[str]]:
    """What forwards OLD.* to JetStream, and knows direct gets as a server before 2.11; what was asked."""
    asked: list[str] = []

    def forward(nc: Connection, msg: Msg) -> None:
        subject = f"$JS.API.{msg.subject.removeprefix('OLD.')}"
        body = msg.data
        if ".DIRECT.GET." in subject:
            asked.append(subject)
            fields = json.loads(body)
            fields.pop("batch", None)
            fields.pop("max_bytes", None)
            body = json.dumps(fields).encode()
        answer = nc.request(subject, body, 5)
        msg.respond(answer.data, answer.headers)

    with connect(nats_server.url) as ours, connect(nats_server.url) as theirs:
        theirs.subscribe("OLD.>", cb=lambda msg: forward(ours, msg))
        theirs.flush()
        yield asked


def requests(trace: str) -> int:
    """Return how often messages were asked for, by a trace of the connection."""
    return trace.count(">>> $JS.API.DIRECT.GET") + trace.count(">>> $JS.API.STREAM.MSG.GET")


@pytest.mark.server(">=2.11")
def test_many_messages_come_with_one_request(numbers: Jsm) -> None:
    """A whole stream takes a few requests, and its messages are what they are one by one."""
    shown = numbers("stream", "view", "N", "-j", "--trace").ok()
    assert [line["stream_seq"] for line in shown.lines] == list(range(1, MESSAGES + 1))
    assert requests(shown.err) <= 5
    numbers("stream", "edit", "N", SINGLE, "-f").ok()
    slowly = numbers("stream", "view", "N", "-j", "--id", str(MESSAGES - 30)).ok()
    assert slowly.lines == shown.lines[-31:]
    assert slowly.lines[0]["headers"] == {"Nats-Sequence": ["own"]}


def test_a_stream_without_direct_gets_is_read_in_order(numbers: Jsm, raw: RawClient) -> None:
    """Where one request brings one message, an ordered consumer reads on, and nothing is left of it."""
    numbers("stream", "edit", "N", SINGLE, "-f").ok()
    for seq in (3, 700, MESSAGES):
        raw.api("STREAM.MSG.DELETE.N", seq=seq)
    shown = numbers("stream", "view", "N", "-j", "--trace").ok()
    left = [seq for seq in range(1, MESSAGES) if seq not in (3, 700)]
    assert [line["stream_seq"] for line in shown.lines] == left
    assert requests(shown.err) <= 30
    assert shown.err.count("CONSUMER.CREATE") == 1
    one = numbers("stream", "get", "N", "800", "-j").ok().json
    assert shown.lines[797] == one
    for options, seqs in (
        (("--subject", "n.odd", "--id", "500"), range(500, MESSAGES // 2 + 1)),
        (("--last", "300"), range(MESSAGES - 300, MESSAGES)),
        (("--id", "500", "--limit", "600"), range(500, 1101)),
        (("--grep", "^599$"), [MESSAGES // 2]),
    ):
        shown = numbers("stream", "view", "N", "-j", *options).ok()
        assert [line["stream_seq"] for line in shown.lines] == [seq for seq in seqs if seq != 700]
    wait_until(lambda: raw.api("STREAM.INFO.N")["state"]["consumer_count"] == 0)


@pytest.mark.parametrize("refusal", ["workqueue", "interest", "full"])
def test_where_there_can_be_no_consumer_each_is_got(jsm: Jsm, raw: RawClient, refusal: str) -> None:
    """A consumer would take from a work queue or keep what nobody reads, or it is refused."""
    retention = "limits" if refusal == "full" else refusal
    config = {"retention": retention, "max_consumers": 1}
    raw.api("STREAM.CREATE.Q", name="Q", subjects=["q"], storage="memory", **config)
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    raw.api("CONSUMER.CREATE.Q.C", stream_name="Q", config=consumer)
    for number in range(60):
        raw.request("q", b"%d" % number)
    shown = jsm("stream", "view", "Q", "--raw", "--trace").ok()
    assert shown.out.split() == [str(number) for number in range(60)]
    state = raw.api("STREAM.INFO.Q")["state"]
    assert (state["messages"], state["consumer_count"]) == (60, 1)
    assert shown.err.count("CONSUMER.CREATE") == (refusal == "full")


def test_a_purge_while_it_is_read_ends_the_reading(jsm: Jsm, raw: RawClient) -> None:
    """When the rest of the messages is gone, there is no wait for them."""
    raw.api("STREAM.CREATE.P", name="P", subjects=["p"], storage="memory")
    jsm("pub", "p", "x" * 1000, "-J", "--count", "6000").ok()
    with jsm.spawn("stream", "view", "P", "--raw") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"x" * 1000 + b"\n"
        raw.api("STREAM.PURGE.P")
        rest, said = child.communicate(timeout=30)
        assert (child.returncode, said) == (0, b"")
        assert rest.count(b"\n") < 6000


@pytest.mark.server(">=2.11")
def test_no_more_are_asked_for_than_are_shown(numbers: Jsm) -> None:
    """A limit is a limit of what travels, unless messages are chosen by what is in them."""
    for options, seqs in (
        (("--limit", "2"), [1, 2]),
        (("--last", "2"), [MESSAGES - 1, MESSAGES]),
        (("--last", "1", "--subject", "n.odd"), [MESSAGES // 2]),
        (("--limit", "1", "--grep", "^599$"), [MESSAGES // 2]),
    ):
        shown = numbers("stream", "view", "N", "-j", "--trace", *options).ok()
        assert [line["stream_seq"] for line in shown.lines] == seqs
        assert requests(shown.err) <= 12
        if "--grep" not in options and "--subject" not in options:
            assert shown.err.count("<<<") <= 6


@pytest.mark.parametrize("allowed", [MANY, SINGLE])
def test_an_older_server_is_asked_for_each(
    numbers: Jsm, old_server: list[str], allowed: str
) -> None:
    """A server that does not know batches answers with one message: then they are got one by one."""
    numbers("stream", "edit", "N", allowed, "-f").ok()
    # Not to the end, which is a status: a client can not forward that.
    options = ("--js-api-prefix", "OLD", "--id", str(MESSAGES - 9), "--limit", "9")
    shown = numbers("stream", "view", "N", "-j", *options).ok()
    assert [line["stream_seq"] for line in shown.lines] == list(range(MESSAGES - 9, MESSAGES))
    assert len(old_server) == (9 if allowed == MANY else 0)


def test_what_is_young_in_an_empty_stream_is_nothing(jsm: Jsm) -> None:
    """--since is a place in a stream that never had a message, too."""
    jsm("stream", "add", "E", "--subjects", "e").ok()
    assert jsm("stream", "view", "E", "--since", "1h").ok().err == "No messages\n"


def test_a_stream_that_goes_while_pages_are_turned_is_not_found(jsm: Jsm) -> None:
    """A stream that is deleted meanwhile ends the reading with the status for that."""
    jsm("stream", "add", "E", "--subjects", "e").ok()
    jsm("pub", "e", "1", "-J", "--count", "3").ok()
    with jsm.spawn("stream", "view", "E", "--raw", "--follow") as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(3)] == [b"1\n"] * 3
        jsm("stream", "rm", "E", "-f").ok()
        _, said = child.communicate(timeout=20)
        assert (child.returncode, said.count(b"\n")) == (3, 1), said
