"""The subscribe workflow on the wire: the exact requests in their order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_info
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConsumerConfig,
    DuplicateSubscriptionError,
    Error,
    NotJSMessageError,
    PullError,
    PushSubscription,
    TimeoutError,
)
from jetstream_sync.net.clock import Deadline

MISSING = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
TAKEN = {"error": {"code": 400, "err_code": 10148, "description": "consumer already exists"}}
DELETED = {"type": "io.nats.jetstream.api.v1.consumer_delete_response", "success": True}


class Streams:
    """A JetStream with one stream, S, and the consumers of a dict."""

    def __init__(self, **consumers: dict[str, Any]) -> None:
        self.consumers = consumers
        self.names = ["S"]
        self.appears: dict[str, Any] | None = None
        """A consumer's info that exists only once its creation was tried."""

    def __call__(self, route: str, body: Any) -> dict[str, Any] | None:
        if route == "STREAM.NAMES":
            return {"streams": self.names, "total": len(self.names), "offset": 0, "limit": 1024}
        what, _, name = route.partition(".S.")
        name = name.partition(".")[0]
        if what == "CONSUMER.INFO":
            return self.consumers.get(name, MISSING)
        if what == "CONSUMER.CREATE":
            if self.appears is not None:
                self.consumers[name] = self.appears
                return TAKEN
            made = consumer_info(name, {"name": name, **body["config"]}, push_bound=True)
            self.consumers[name] = made
            return made
        if what == "CONSUMER.DELETE":
            return DELETED if self.consumers.pop(name, None) else MISSING
        return None


@contextmanager
def fake_server(
    streams: Callable[[str, Any], dict[str, Any] | None], errors: list[Error] | None = None
) -> Iterator[tuple[FakeJetStream, Connection]]:
    """A fake server and a connection to it."""
    heard: Any = [] if errors is None else errors
    with (
        FakeJetStream(streams) as server,
        jetstream_sync.connect(server.url, error_cb=heard.append, drain_timeout=5) as nc,
    ):
        yield server, nc


def story(server: FakeJetStream) -> list[str]:
    """Return the client's commands in short form: inboxes as ``_``, without the reply inbox."""
    lines = []
    for verb, subject, rest, _ in server.received:
        if subject.endswith(".*"):
            continue
        inbox = subject.startswith("_INBOX.")
        group = f" {rest}" if verb == "SUB" and rest else ""
        lines.append(f"{verb} {'_' if inbox else subject.removeprefix('$JS.API.')}{group}")
    return lines


def body(server: FakeJetStream, route: str) -> Any:
    """Return the decoded body of the only request to a subject."""
    (request,) = (item for item in server.received if item.subject.startswith(f"$JS.API.{route}"))
    return json.loads(request.body) if request.body else None


def config(**fields: Any) -> dict[str, Any]:
    return {
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        **fields,
    }


# --- creation -----------------------------------------------------------------------------------


def test_an_ephemeral_consumer():
    """Without a durable: the stream is looked up, then comes the subscription, then the consumer."""
    with fake_server(Streams()) as (server, nc):
        sub = nc.jetstream().subscribe("foo")
        name = sub.consumer_name
        assert story(server) == [
            "PUB STREAM.NAMES",
            "SUB _",
            f"PUB CONSUMER.CREATE.S.{name}.foo",
        ]
        assert body(server, "STREAM.NAMES") == {"subject": "foo"}
        assert body(server, "CONSUMER.CREATE") == {
            "stream_name": "S",
            "action": "create",
            "config": config(name=name, deliver_subject=sub.subject, filter_subject="foo"),
        }
        assert sub.subject.startswith("_INBOX.")


def test_a_durable_consumer_that_does_not_exist():
    """A durable consumer is looked up before it is created."""
    with fake_server(Streams()) as (server, nc):
        sub = nc.jetstream().subscribe("foo", durable="dur", stream="S")
        assert story(server) == [
            "PUB CONSUMER.INFO.S.dur",
            "SUB _",
            "PUB CONSUMER.CREATE.S.dur.foo",
        ]
        assert body(server, "CONSUMER.CREATE")["config"] == config(
            durable_name="dur", deliver_subject=sub.subject, filter_subject="foo"
        )


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        (
            {"subject": "foo", "durable": "there"},
            ["PUB STREAM.NAMES", "PUB CONSUMER.INFO.S.there", "SUB to.here"],
        ),
        (
            {"subject": "foo", "stream": "S", "config": ConsumerConfig(deliver_subject="mine")},
            ["SUB mine", "PUB CONSUMER.CREATE.S.{}.foo"],
        ),
        ({"stream": "S"}, ["SUB _", "PUB CONSUMER.CREATE.S.{}"]),
    ],
    ids=["existing consumer", "deliver subject", "whole stream"],
)
def test_a_named_consumer_and_stream_need_no_lookup(options, requests):
    """An existing consumer is bound to, and a given deliver subject or stream is used."""
    there = consumer_info("there", {"durable_name": "there", "deliver_subject": "to.here"})
    with fake_server(Streams(there=there)) as (server, nc):
        sub = nc.jetstream().subscribe(**options)
        nc.flush()
        assert story(server) == [line.format(sub.consumer_name) for line in requests]


def test_the_queue_of_the_document():
    """The second member of a queue without a durable finds the consumer of the first one."""
    streams = Streams()
    with fake_server(streams) as (server, nc):
        js = nc.jetstream()
        one = js.subscribe("foo", "bar")
        two = js.subscribe("foo", "bar")
        nc.flush()
        assert story(server) == [
            "PUB STREAM.NAMES",
            "PUB CONSUMER.INFO.S.bar",
            "SUB _ bar",
            "PUB CONSUMER.CREATE.S.bar.foo",
            "PUB STREAM.NAMES",
            "PUB CONSUMER.INFO.S.bar",
            "SUB _ bar",
        ]
        assert body(server, "CONSUMER.CREATE")["config"] == config(
            durable_name="bar",
            deliver_subject=one.subject,
            deliver_group="bar",
            filter_subject="foo",
        )
        assert two.subject == one.subject


def test_a_failed_subscribe_leaves_no_subscription():
    """A failed check subscribes to nothing; after a server error the client unsubscribes."""
    bound = consumer_info("dur", {"durable_name": "dur", "deliver_subject": "x"}, push_bound=True)
    streams = Streams(dur=bound)
    with fake_server(streams) as (server, nc):
        js = nc.jetstream()
        with pytest.raises(DuplicateSubscriptionError):
            js.subscribe("foo", durable="dur", stream="S")
        # The server notices a lost subscriber a little later, so the client asks again.
        assert story(server) == ["PUB CONSUMER.INFO.S.dur"] * 2
        streams.consumers.clear()
        streams.appears = {"error": {"code": 500, "err_code": 1, "description": "no"}}
        with pytest.raises(Error):
            js.subscribe("foo", stream="S")
        server.wait_for(lambda said: said.verb == "UNSUB")
        assert len([line for line in story(server) if line in {"SUB _", "UNSUB _"}]) == 2


# --- the race -----------------------------------------------------------------------------------


def test_a_lost_race_of_a_queue():
    """A queue member that loses the race to create the consumer uses the winner's deliver subject."""
    streams = Streams()
    streams.appears = consumer_info(
        "bar",
        {"durable_name": "bar", "deliver_subject": "to.here", "deliver_group": "bar"},
        push_bound=True,
    )
    with fake_server(streams) as (server, nc):
        sub = nc.jetstream().subscribe("foo", "bar", stream="S")
        nc.flush()
        assert story(server) == [
            "PUB CONSUMER.INFO.S.bar",
            "SUB _ bar",
            "PUB CONSUMER.CREATE.S.bar.foo",
            "PUB CONSUMER.INFO.S.bar",
            "UNSUB _",
            "SUB to.here bar",
        ]
        assert sub.subject == "to.here"
        sub.unsubscribe()
        nc.flush()
        assert not any("DELETE" in line for line in story(server))


def test_a_lost_race_without_a_queue():
    """Losing the race without a queue is a duplicate subscription, and leaves no subscription."""
    streams = Streams()
    streams.appears = consumer_info(
        "dur", {"durable_name": "dur", "deliver_subject": "to.here"}, push_bound=True
    )
    with fake_server(streams) as (server, nc):
        with pytest.raises(DuplicateSubscriptionError, match="dur"):
            nc.jetstream().subscribe("foo", durable="dur", stream="S")
        nc.flush()
        assert story(server)[-1] == "UNSUB _"


# --- the end ------------------------------------------------------------------------------------


def deletions(server: FakeJetStream) -> list[str]:
    return [line for line in story(server) if "CONSUMER.DELETE" in line]


def test_a_queue_consumer_is_deleted_by_its_last_member():
    """The member that created the consumer deletes it only if no other member is bound."""
    streams = Streams()
    with fake_server(streams) as (server, nc):
        js = nc.jetstream()
        sub = js.subscribe("foo", "bar")
        sub.unsubscribe()  # still bound
        assert deletions(server) == []
        streams.consumers.clear()
        sub = js.subscribe("foo", "bar")
        streams.consumers["bar"]["push_bound"] = False
        sub.unsubscribe()
        assert deletions(server) == ["PUB CONSUMER.DELETE.S.bar"]


def test_an_error_of_the_deletion():
    """unsubscribe() raises it; a consumer that is already deleted is not an error."""
    refusal = {"error": {"code": 500, "err_code": 1, "description": "not now"}}
    responses: list[dict[str, Any]] = [MISSING, refusal]
    streams = Streams()

    def respond(route: str, said: Any) -> dict[str, Any] | None:
        return responses.pop(0) if route.startswith("CONSUMER.DELETE") else streams(route, said)

    with fake_server(respond) as (_, nc):
        js = nc.jetstream()
        js.subscribe("foo").unsubscribe()
        sub = js.subscribe("foo")
        with pytest.raises(Error, match="not now"):
            sub.unsubscribe()
        assert not sub.is_valid


def test_an_error_of_a_late_deletion():
    """A violation after a drain is reported: no call waits for it."""
    refusal = {"error": {"code": 500, "err_code": 1, "description": "not now"}}
    streams = Streams()
    errors: list[Error] = []

    def respond(route: str, said: Any) -> dict[str, Any] | None:
        return refusal if route.startswith("CONSUMER.DELETE") else streams(route, said)

    with fake_server(respond, errors) as (_, nc):
        nc.jetstream().subscribe("foo").drain()
        wait_until(lambda: errors)
    assert "not now" in str(errors[0])


# --- statuses -----------------------------------------------------------------------------------

BEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%s\r\n"
FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


def ack(seq: int, form: int = 1) -> str:
    """Return the reply subject of a delivery, in version 1 or 2."""
    head = "hub.ACCOUNT." if form == 2 else ""
    tail = ".random" if form == 2 else ""
    return f"$JS.ACK.{head}S.C.1.{100 + seq}.{seq}.1700000000000000000.0{tail}"


class Wire:
    """A subscription to a fake consumer with heartbeats, and its messages."""

    def __init__(self, server: FakeJetStream, sub: PushSubscription) -> None:
        self._server = server
        self.sub = sub

    def message(self, seq: int, form: int = 1) -> bytes:
        return self._server.message(self.sub.subject, b"%d" % seq, ack(seq, form))

    def status(self, header: bytes, reply: str = "") -> bytes:
        return self._server.message(self.sub.subject, b"", reply, header)

    def beat(self, seq: int, stalled: bytes = b"") -> bytes:
        extra = b"Nats-Consumer-Stalled: %s\r\n" % stalled if stalled else b""
        return self.status(BEAT % (seq, 100 + seq, extra))

    def say(self, *parts: bytes) -> None:
        self._server.send(b"".join(parts))

    def replies(self, subject: str) -> int:
        return len(self._server.published(subject))


@contextmanager
def wired(errors: list[Error] | None = None, **options: Any) -> Iterator[tuple[Wire, Connection]]:
    asked: dict[str, Any] = {"idle_heartbeat": 30, "flow_control": True, **options}
    with fake_server(Streams(), errors) as (server, nc):
        sub = nc.jetstream().subscribe("foo", stream="S", **asked)
        yield Wire(server, sub), nc
        sub.unsubscribe()


def test_flow_control_waits_for_the_message_before_it():
    """The reply is sent by the call that reads the message after it."""
    with wired() as (wire, nc):
        wire.say(wire.message(1), wire.status(FLOW, "$JS.FC.1"), wire.message(2))
        assert wire.sub.next_msg(5).data == b"1"
        nc.flush()
        assert wire.replies("$JS.FC.1") == 0
        assert wire.sub.next_msg(5).data == b"2"
        nc.flush()
        assert wire.replies("$JS.FC.1") == 1


def test_flow_control_is_answered_within_a_wait():
    """A call that finds only a flow control request answers it, and keeps waiting."""
    with wired() as (wire, nc):
        wire.say(wire.status(FLOW, "$JS.FC.1"))
        wait_until(lambda: wire.sub.pending_msgs)
        with pytest.raises(TimeoutError):
            wire.sub.next_msg(0.05)
        nc.flush()
        assert wire.replies("$JS.FC.1") == 1


def test_a_stalled_consumer_is_answered_once_for_each_subject():
    """Heartbeats that repeat the request are answered once, whichever came first."""
    with wired() as (wire, nc):
        wire.say(
            wire.message(1),
            wire.status(FLOW, "$JS.FC.1"),
            wire.beat(1, b"$JS.FC.1"),
            wire.beat(1, b"$JS.FC.1"),
            wire.beat(1, b"$JS.FC.2"),
            wire.beat(1, b"$JS.FC.2"),
            wire.message(2),
        )
        assert [wire.sub.next_msg(5).data for _ in range(2)] == [b"1", b"2"]
        nc.flush()
        assert (wire.replies("$JS.FC.1"), wire.replies("$JS.FC.2")) == (1, 1)


def test_a_flow_control_reply_acknowledges_all_messages_before():
    """The reply acknowledges all messages before the request (ADR-60)."""
    cfg = ConsumerConfig(ack_policy="flow_control")
    with wired(config=cfg) as (wire, nc):
        wire.say(wire.message(1), wire.message(2), wire.status(FLOW, "$JS.FC.1"), wire.message(3))
        messages = [wire.sub.next_msg(5) for _ in range(3)]
        nc.flush()
        (response,) = wire._server.published("$JS.FC.1")
        assert b"Nats-Last-Consumer: 2\r\nNats-Last-Stream: 102\r\n" in response.body
        messages[0].ack()  # does nothing
        nc.flush()
        assert wire.replies(ack(1)) == 0


def test_quiet_statuses_are_never_seen():
    """404, 408 and heartbeats are neither raised nor counted as messages."""
    with wired() as (wire, _):
        wire.say(
            wire.status(b"NATS/1.0 404 No Messages\r\n\r\n"),
            wire.status(b"NATS/1.0 408 Request Timeout\r\n\r\n"),
            wire.beat(0),
            wire.message(1),
        )
        assert wire.sub.next_msg(5).data == b"1"
        assert wire.sub.delivered == 1
        assert wire.sub.pending_msgs == 0


@pytest.mark.parametrize(
    "line",
    [
        "409 Exceeded MaxAckPending",
        "409 Message Size Exceeds MaxBytes",
        "503",
        "503 No Responders",
        "418 I am a teapot",
    ],
)
@pytest.mark.parametrize("queue", [None, "workers"])
def test_errors_are_raised_where_they_came(line, queue):
    """409, 503 and an unknown status are raised to the reader, and the subscription continues."""
    options = {"queue": queue, "idle_heartbeat": None, "flow_control": False} if queue else {}
    with wired(**options) as (wire, _):
        wire.say(wire.message(1), wire.status(f"NATS/1.0 {line}\r\n\r\n".encode()), wire.message(2))
        assert wire.sub.next_msg(5).data == b"1"
        with pytest.raises(PullError) as caught:
            wire.sub.next_msg(5)
        assert caught.value.code == int(line[:3])
        assert wire.sub.next_msg(5).data == b"2"


def test_errors_of_a_callback_subscription_are_reported():
    """With a callback, error statuses go to error_cb."""
    errors: list[Error] = []
    got: list[bytes] = []
    with wired(errors, cb=lambda msg: got.append(msg.data)) as (wire, _):
        wire.say(
            wire.message(1), wire.status(b"NATS/1.0 409 Server Shutdown\r\n\r\n"), wire.message(2)
        )
        wait_until(lambda: len(got) == 2)
        assert isinstance(errors[0], PullError)
    assert got == [b"1", b"2"]


#: What arrives, and the arguments of the errors that are reported for it.
GAPS: dict[str, tuple[Callable[[Wire], list[bytes]], list[tuple[int, ...]]]] = {
    "a status in place of a message": (
        lambda wire: [
            wire.message(1),
            wire.status(FLOW, "$JS.FC.1"),
            wire.message(3),
            wire.message(4),
        ],
        [(101, 1, 2)],
    ),
    "a heartbeat ahead of the messages": (
        lambda wire: [wire.message(1), wire.beat(1), wire.beat(4), wire.beat(4), wire.message(5)],
        [(101, 1, 4)],
    ),
    "two messages": (lambda wire: [wire.message(n, 2) for n in (1, 2, 5, 6)], [(102, 2, 4)]),
    "a first message that is not the first": (lambda wire: [wire.message(3)], [(0, 0, 2)]),
    "heartbeats without valid headers": (
        lambda wire: [
            wire.message(1),
            wire.status(b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"),
            wire.status(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: many\r\n\r\n"),
            wire.message(2),
        ],
        [],
    ),
}


@pytest.mark.parametrize(("parts", "gaps"), GAPS.values(), ids=GAPS)
def test_each_gap_is_reported_once(parts, gaps):
    """A missing message is reported, by the next message or heartbeat; all others arrive."""
    errors: list[Error] = []
    with wired(errors) as (wire, _):
        sent = parts(wire)
        wire.say(*sent)
        messages = sum(part.startswith(b"MSG") for part in sent)
        for _ in range(messages):
            wire.sub.next_msg(5)
        assert wire.sub.delivered == messages
        wait_until(lambda: len(errors) == len(gaps))
    assert [error.args for error in errors] == gaps


def test_messages_without_a_payload_are_messages():
    """With headers or without, as a headers-only consumer sends them."""
    with wired() as (wire, _):
        bare = wire._server.message(wire.sub.subject, b"", ack(1))
        headed = wire._server.message(
            wire.sub.subject, b"", ack(2), b"NATS/1.0\r\nNats-Msg-Size: 9\r\n\r\n"
        )
        wire.say(bare, headed, wire.message(3))
        assert wire.sub.next_msg(5).data == b""
        headers = wire.sub.next_msg(5).headers
        assert headers is not None
        assert headers["Nats-Msg-Size"] == "9"
        assert wire.sub.next_msg(5).data == b"3"
        assert wire.sub.delivered == 3


def test_queues_are_not_checked_for_gaps():
    """A queue member gets only some of the messages, so gaps are normal."""
    errors: list[Error] = []
    with wired(errors, queue="q", idle_heartbeat=None, flow_control=False) as (wire, nc):
        wire.say(wire.message(1), wire.message(7), wire.beat(20, b"$JS.FC.1"), wire.message(9))
        assert [wire.sub.next_msg(5).data for _ in range(3)] == [b"1", b"7", b"9"]
        nc.flush()
        assert wire.replies("$JS.FC.1") == 0
    assert errors == []


@pytest.mark.parametrize("reply", ["", "some.where", "$JS.ACK.a.b.c.d.e.f.g.h"])
def test_a_message_without_a_stream_cannot_be_acknowledged(reply):
    """A foreign message on the deliver subject is delivered; acknowledging it is an error."""
    errors: list[Error] = []
    with wired(errors) as (wire, _):
        foreign = wire._server.message(wire.sub.subject, b"hello", reply)
        wire.say(wire.message(1), foreign, wire.message(2))
        assert wire.sub.next_msg(5).data == b"1"
        msg = wire.sub.next_msg(5)
        assert msg.data == b"hello"
        with pytest.raises(NotJSMessageError):
            _ = msg.metadata
        assert wire.sub.next_msg(5).data == b"2"
        wire.say(foreign)  # and without a message
        assert wire.sub.next_msg(5).data == b"hello"
    assert errors == []


# --- acks ---------------------------------------------------------------------------------------


def acks(server: FakeJetStream) -> list[tuple[str, bytes]]:
    return [
        (said.subject, said.body) for said in server.received if said.subject.startswith("$JS.ACK")
    ]


def test_a_callback_acknowledges_when_it_returns():
    """Ack when it returns, nak when it raises, nothing if it settled the message."""
    errors: list[Error] = []

    def work(msg: Any) -> None:
        if msg.data == b"2":
            raise ValueError("no")
        if msg.data == b"3":
            msg.term()
        if msg.data == b"4":
            msg.nak()
            raise ValueError("no")

    with wired(errors, cb=work) as (wire, _):
        wire.say(*(wire.message(seq) for seq in range(1, 6)))
        wait_until(lambda: len(acks(wire._server)) == 5)
        assert acks(wire._server) == [
            (ack(1), b"+ACK"),
            (ack(2), b'-NAK {"delay":5000000000}'),
            (ack(3), b"+TERM"),
            (ack(4), b"-NAK"),
            (ack(5), b"+ACK"),
        ]
        wait_until(lambda: len(errors) == 2)
    assert [str(error) for error in errors] == ["no", "no"]


def test_a_connection_that_is_closed_by_the_callback():
    """An acknowledgement that fails because the connection is closed is not an error."""
    errors: list[Error] = []
    closed: list[bytes] = []
    with fake_server(Streams(), errors) as (server, nc):

        def work(msg: Any) -> None:
            nc.close()
            closed.append(msg.data)

        sub = nc.jetstream().subscribe("foo", stream="S", cb=work)
        server.send(Wire(server, sub).message(1))
        wait_until(lambda: closed)
        wait_until(lambda: sub._wait_drained(Deadline(0)))
        assert acks(server) == []
    assert errors == []


def test_manual_acks_are_left_to_the_callback():
    """With ``manual_ack`` only the callback acknowledges, also if it raises."""
    done: list[bytes] = []
    errors: list[Error] = []

    def work(msg: Any) -> None:
        done.append(msg.data)
        if msg.data == b"1":
            raise ZeroDivisionError
        if msg.data == b"2":
            msg.ack()

    with wired(errors, cb=work, manual_ack=True) as (wire, nc):
        wire.say(wire.message(1), wire.message(2), wire.message(3))
        wait_until(lambda: len(done) == 3)
        nc.flush()
        assert acks(wire._server) == [(ack(2), b"+ACK")]


def test_reading_acknowledges_nothing_by_itself():
    """Without a callback the user acknowledges, with the reply subject as received."""
    with wired() as (wire, nc):
        wire.say(wire.message(1, form=2), wire.message(2, form=2))
        messages = [wire.sub.next_msg(5) for _ in range(2)]
        messages[1].ack()
        nc.flush()
        assert acks(wire._server) == [(ack(2, form=2), b"+ACK")]
        assert messages[0].metadata.domain == "hub"
