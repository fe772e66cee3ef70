"""``jsm stream view`` reads messages in batches if the server supports them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fixtures.jsm import Jsm
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

from jetstream_sync import Connection, Msg, connect
from jetstream_sync.server import NatsServer

MESSAGES = 1200
SINGLE, MANY = "--no-allow-direct", "--allow-direct"


@pytest.fixture
def numbers(jsm: Jsm, raw: RawClient) -> Jsm:
    """A stream N of numbers on two subjects, one after the other."""
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
    """A proxy of the API at OLD.* with the direct gets of a server before 2.11; yields the requests."""
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
        response = nc.request(subject, body, 5)
        msg.respond(response.data, response.headers)

    with connect(nats_server.url) as ours, connect(nats_server.url) as theirs:
        theirs.subscribe("OLD.>", cb=lambda msg: forward(ours, msg))
        theirs.flush()
        yield asked


def requests(trace: str) -> int:
    """Return the number of get requests in a trace of the connection."""
    return trace.count(">>> $JS.API.DIRECT.GET") + trace.count(">>> $JS.API.STREAM.MSG.GET")


@pytest.mark.server(">=2.11")
def test_many_messages_come_with_one_request(numbers):
    """A whole stream is read with few requests, with the same messages as single gets."""
    shown = numbers("stream", "view", "N", "-j", "--trace").ok()
    assert [line["stream_seq"] for line in shown.lines] == list(range(1, MESSAGES + 1))
    assert requests(shown.err) <= 5
    numbers("stream", "edit", "N", SINGLE, "-f").ok()
    slowly = numbers("stream", "view", "N", "-j", "--id", str(MESSAGES - 30)).ok()
    assert slowly.lines == shown.lines[-31:]
    assert slowly.lines[0]["headers"] == {"Nats-Sequence": ["own"]}


def test_a_purge_ends_the_iteration(jsm, raw):
    """If the remaining messages are purged, the command ends without waiting for them."""
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
def test_a_limit_limits_the_request(numbers):
    """--limit also limits the request, unless messages are filtered by content."""
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
def test_an_older_server_without_batches(numbers, old_server, allowed):
    """A server without batch support returns one message per request; all messages are read."""
    numbers("stream", "edit", "N", allowed, "-f").ok()
    # Not to the end, which is a status: a client cannot forward that.
    options = ("--js-api-prefix", "OLD", "--id", str(MESSAGES - 9), "--limit", "9")
    shown = numbers("stream", "view", "N", "-j", *options).ok()
    assert [line["stream_seq"] for line in shown.lines] == list(range(MESSAGES - 9, MESSAGES))
    assert len(old_server) == (9 if allowed == MANY else 0)


def test_since_in_an_empty_stream(jsm):
    """--since works in a stream that never had a message."""
    jsm("stream", "add", "E", "--subjects", "e").ok()
    assert jsm("stream", "view", "E", "--since", "1h").ok().err == "No messages\n"


def test_a_stream_deleted_between_pages_is_not_found(jsm):
    """A stream that is deleted between two pages exits with status 3."""
    jsm("stream", "add", "E", "--subjects", "e").ok()
    jsm("pub", "e", "1", "-J", "--count", "3").ok()
    with jsm.spawn("stream", "view", "E", "--raw", "--follow") as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(3)] == [b"1\n"] * 3
        jsm("stream", "rm", "E", "-f").ok()
        _, said = child.communicate(timeout=20)
        assert (child.returncode, said.count(b"\n")) == (3, 1), said
