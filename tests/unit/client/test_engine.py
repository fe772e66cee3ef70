"""The engine of a connection without a network: reading a transport, requests, and the end."""

from __future__ import annotations

import threading

import pytest
from fixtures.memory import MemoryStream

from jetstream_sync import errors
from jetstream_sync.address import parse_servers
from jetstream_sync.client.engine import Engine
from jetstream_sync.client.mailbox import MessageReceiver
from jetstream_sync.client.state import ConnectionStatus
from jetstream_sync.client.transport import Transport
from jetstream_sync.client.writer import SOON
from jetstream_sync.net.clock import Deadline
from jetstream_sync.options import ConnectionOptions
from jetstream_sync.protocol.parser import Ok, Parser, Ping, ServerInfo

ADDRESS = parse_servers(["nats://127.0.0.1"])[0]


class Recorder(MessageReceiver):
    """A receiver that records what it is told."""

    def __init__(self, known: bool = False) -> None:
        self.messages: list[bytes] = []
        self.closed: list[str] = []
        self.refusals: list[tuple[bytes, str]] = []
        self.links: list[bool] = []
        self.known = known

    def deliver(self, deliveries):
        self.messages += [delivery[3] for delivery in deliveries]

    def on_closed(self, reason):
        self.closed.append(str(reason))

    def on_permission_error(self, subject, error):
        self.refusals.append((subject, error.operation))
        return self.known

    def on_connection_change(self, *, connected):
        self.links.append(connected)


class Broken(Recorder):
    """A receiver that raises."""

    def deliver(self, deliveries):
        raise ValueError("a fault")


class Unserved:
    """An engine without threads, and the errors that it reported."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        options = ConnectionOptions(
            servers=(ADDRESS,), error_cb=self.errors.append, closed_cb=lambda: None
        )
        self.engine = Engine(options)

    def transport(self, *script: bytes, early: tuple = ()) -> Transport:
        return Transport(MemoryStream(script), Parser(), ServerInfo(), list(early), ADDRESS)

    def read(self, *script: bytes) -> BaseException:
        """Read a script to its end, and return the reason for the end."""
        return self.engine.reader.read(self.transport(*script))

    def add(self, subject: str = "a", receiver: MessageReceiver | None = None, queue: str = ""):
        receiver = receiver or Recorder()
        return receiver, self.engine.table.add(subject, queue, receiver)

    def buffered(self) -> bytes:
        """Return the commands that wait for a transport."""
        return bytes(self.engine.writer._buffer)

    def close(self) -> list[BaseException]:
        """Close, which waits for the callbacks, and return the reported errors."""
        self.engine.close()
        return self.errors


@pytest.fixture
def unserved():
    unserved = Unserved()
    yield unserved
    unserved.engine.close()


# --- reading ------------------------------------------------------------------------------------


def test_messages_reach_the_receiver_of_their_subscription(unserved):
    """Pieces may end anywhere; a message for no subscription is dropped, and not counted."""
    one, _ = unserved.add()
    two, _ = unserved.add("b")
    ended = unserved.read(
        b"MSG a 1 1\r\nx\r\nMSG b 2 1\r", b"\ny\r\nMSG c 9 1\r\nz\r\nMSG a 1 1\r\nw\r\n"
    )
    assert (one.messages, two.messages) == ([b"x", b"w"], [b"y"])
    assert unserved.engine.reader.received() == (3, 4)
    assert isinstance(ended, errors.ConnectionLostError)
    assert "closed the connection" in str(ended)


def test_operations_that_came_with_the_handshake_are_first(unserved):
    """They are dispatched before the first bytes of the transport."""
    transport = unserved.transport(early=(Ping(), Ok()))
    unserved.engine.reader.read(transport)
    assert unserved.buffered() == b"PONG\r\n"


def test_a_receiver_that_raises_does_not_end_the_reader(unserved):
    """Its subscription ends, and the error is reported; the other subscriptions receive their messages."""
    broken, subscription = unserved.add(receiver=Broken())
    other, _ = unserved.add("b")
    unserved.read(b"MSG a 1 1\r\nx\r\nMSG b 2 1\r\ny\r\n")
    assert other.messages == [b"y"]
    assert [type(error) for error in unserved.close()] == [errors.ConnectionClosedError]
    assert subscription.sid not in unserved.engine.table.by_sid
    assert len(broken.closed) == 1


def test_a_subscription_ends_with_its_last_message(unserved):
    """Messages above the limit are not delivered, also in the same piece."""
    receiver, subscription = unserved.add()
    unserved.engine.table.remove(subscription, 2)
    unserved.read(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\nMSG a 1 1\r\n3\r\n")
    assert receiver.messages == [b"1", b"2"]
    assert receiver.closed == ["the subscription ended after its limit of 2 messages"]
    assert unserved.engine.table.by_sid == {}


def test_malformed_bytes_end_the_transport(unserved):
    """The reason is a ProtocolError; messages before them are delivered."""
    receiver, _ = unserved.add()
    ended = unserved.read(b"MSG a 1 1\r\nx\r\n", b"NONSENSE\r\n", b"MSG a 1 1\r\ny\r\n")
    assert isinstance(ended, errors.ProtocolError)
    assert receiver.messages == [b"x"]


def test_the_last_error_of_a_server_is_the_reason(unserved):
    """A server names the reason and closes the connection."""
    ended = unserved.read(b"-ERR 'User Authentication Expired'\r\n")
    assert isinstance(ended, errors.AuthorizationError)
    assert unserved.engine.reader.errors_received == 1
    assert isinstance(unserved.read(), errors.ConnectionLostError), "the next transport has its own"


def test_a_refused_subscription_is_named(unserved):
    """Only the receivers with its subject and queue are told, and the error is reported."""
    plain, _ = unserved.add()
    queued, _ = unserved.add(queue="q")
    other, _ = unserved.add("b")
    unserved.read(b'-ERR \'Permissions Violation for Subscription to "a" using queue "q"\'\r\n')
    assert (plain.refusals, queued.refusals, other.refusals) == ([], [(b"a", "subscribe")], [])
    assert isinstance(unserved.close()[0], errors.PermissionsError)


def test_a_refused_message_is_claimed_by_one_receiver(unserved):
    """The server sends one error for each refused message: the first receiver that knows it ends the search."""
    unknowing, _ = unserved.add(receiver=Recorder())
    knowing, _ = unserved.add(receiver=Recorder(known=True))
    late, _ = unserved.add(receiver=Recorder(known=True))
    unserved.read(b"-ERR 'Permissions Violation for Publish to \"p\"'\r\n")
    assert (len(unknowing.refusals), len(knowing.refusals), len(late.refusals)) == (1, 1, 0)


def test_a_limit_of_subscriptions_refuses_the_newest(unserved):
    """The server does not name them; a subscription that has received messages is not one of them."""
    old, _ = unserved.add("a")
    newer, _ = unserved.add("b")
    newest, _ = unserved.add("c")
    error = b"-ERR 'maximum subscriptions exceeded'\r\n"
    unserved.read(b"MSG a 1 1\r\nx\r\n" + error + error + error)
    assert [len(receiver.refusals) for receiver in (old, newer, newest)] == [0, 1, 1]
    assert not isinstance(unserved.close()[-1], errors.PermissionsError)


def test_an_info_while_connected_updates_the_limits(unserved):
    """A server may change its maximum payload, or announce others."""
    unserved.read(b'INFO {"server_id":"X","max_payload":77}\r\n')
    assert unserved.engine.encoder.max_payload == 77
    with pytest.raises(errors.MaxPayloadError):
        unserved.engine.encoder.encode_message("a", b"x" * 78)


def test_a_transport_that_is_shut_down_is_read_until_its_deadline(unserved):
    """Without one more second for it, the rest is not read; the given reason is returned."""
    receiver, _ = unserved.add()
    transport = unserved.transport(b"MSG a 1 1\r\nx\r\n", b"MSG a 1 1\r\ny\r\n")
    reason = errors.ConnectionClosedError("closed by a test")
    unserved.engine.reader.stop_reading(transport, 0.0, reason)
    assert unserved.engine.reader.read(transport) is reason
    assert receiver.messages == [b"x"]


# --- requests -----------------------------------------------------------------------------------


class Request:
    """A request on a thread, and its outcome."""

    def __init__(self, engine: Engine, subject: bytes = b"q", timeout: float | None = 20.0) -> None:
        self.result: bytes | None = None
        self.error: BaseException | None = None
        self._arguments = engine, subject, timeout
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        engine, subject, timeout = self._arguments
        try:
            self.result = engine.requests.request(subject, b"", Deadline(timeout))[3]
        except errors.Error as error:
            self.error = error

    def outcome(self) -> object:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return type(self.error) if self.error is not None else self.result


def requested(unserved, count=1):
    """Return requests that were sent, and their reply subjects."""
    requests = []
    subjects = []
    for number in range(count):
        request = Request(unserved.engine, b"q%d" % number)
        requests.append(request)
        while f"PUB q{number} ".encode() not in unserved.buffered():
            request.thread.join(0.001)
        line = unserved.buffered().partition(b"PUB q%d " % number)[2]
        subjects.append(line.split()[0])
    return requests, subjects


def reply(subject: bytes, data: bytes) -> bytes:
    return b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(data), data)


def test_each_reply_reaches_its_request(unserved):
    """One subscription receives the replies of all requests, in any order; a second reply is dropped."""
    requests, subjects = requested(unserved, 2)
    assert unserved.buffered().count(b"SUB ") == 1
    first, second = subjects
    unserved.read(reply(second, b"2") + reply(second, b"late") + reply(first, b"1"))
    assert [request.outcome() for request in requests] == [b"1", b"2"]
    assert not unserved.engine.requests.caller_waits()


def test_no_responders_ends_a_request_at_once(unserved):
    """The server answers with status 503."""
    (request,), (subject,) = requested(unserved)
    status = b"NATS/1.0 503\r\n\r\n"
    unserved.read(b"HMSG %b 1 %d %d\r\n%b\r\n" % (subject, len(status), len(status), status))
    assert request.outcome() is errors.NoRespondersError


def test_a_request_without_a_reply_ends_with_its_deadline(unserved):
    """The error is a TimeoutError, and nothing of the request stays."""
    request = Request(unserved.engine, timeout=0.01)
    assert request.outcome() is errors.RequestTimeoutError
    assert not unserved.engine.requests.caller_waits()


def test_a_refused_request_fails_alone(unserved):
    """The last request to the subject is meant; the others continue to wait."""
    requests, subjects = requested(unserved, 2)
    unserved.read(
        b"-ERR 'Permissions Violation for Publish to \"q1\"'\r\n" + reply(subjects[0], b"1")
    )
    assert [request.outcome() for request in requests] == [b"1", errors.PermissionsError]


def test_a_refused_inbox_fails_each_request_and_is_subscribed_again(unserved):
    """The permissions may have changed when the next request is sent."""
    requests, subjects = requested(unserved, 2)
    inbox = subjects[0].rpartition(b".")[0]
    unserved.read(b"-ERR 'Permissions Violation for Subscription to \"%b.*\"'\r\n" % inbox)
    assert {request.outcome() for request in requests} == {errors.PermissionsError}
    request = Request(unserved.engine, timeout=0.01)
    assert request.outcome() is errors.RequestTimeoutError
    assert unserved.buffered().count(b"\r\nSUB ") == 1


def test_requests_without_a_deadline_fail_with_the_connection(unserved):
    """Nothing else would end them: the reply may be lost."""
    forever = Request(unserved.engine, b"never", None)
    while b"PUB never " not in unserved.buffered():
        forever.thread.join(0.001)
    (limited,), (subject,) = requested(unserved)
    unserved.engine.table.on_connection_change(connected=False)
    assert forever.outcome() is errors.ConnectionLostError
    unserved.read(reply(subject, b"1"))
    assert limited.outcome() == b"1"


def test_the_end_of_the_connection_fails_each_request(unserved):
    """Those that wait, and those that come later."""
    requests, _ = requested(unserved, 2)
    unserved.engine.close()
    later = Request(unserved.engine)
    outcomes = {request.outcome() for request in (*requests, later)}
    assert outcomes == {errors.ConnectionClosedError}


# --- the end ------------------------------------------------------------------------------------


def test_the_end_reaches_each_receiver_once(unserved):
    """A second close changes nothing."""
    receiver, _ = unserved.add()
    unserved.engine.close()
    unserved.engine.close()
    assert receiver.closed == ["the connection is closed"]
    assert unserved.engine.state.status is ConnectionStatus.CLOSED


def test_a_forked_copy_sends_nothing_and_says_so(unserved):
    """Its calls raise ForkedConnectionError, and its receivers end."""
    receiver, _ = unserved.add()
    before = unserved.buffered()
    unserved.engine.forked()
    with pytest.raises(errors.ForkedConnectionError):
        unserved.engine.writer.append(b"PUB a 0\r\n\r\n", 0, SOON)
    assert Request(unserved.engine).outcome() is errors.ForkedConnectionError
    assert unserved.buffered() in {b"", before}
    assert len(receiver.closed) == 1
