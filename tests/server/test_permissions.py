"""Permission violations: which call gets the error, how soon, and that nothing else ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.proxy import Listener
from fixtures.threads import wait_until, within

import jetstream_sync
from jetstream_sync import Connection, ConnectionLostError, Msg, PermissionsError, TimeoutError
from jetstream_sync.server import NatsServer

CONFIG = """authorization { users: [
    { user: admin, password: a }
    { user: guest, password: g, permissions: {
        publish: { allow: ["public.>", "_INBOX.>"] }
        subscribe: { allow: ["public.>", "_INBOX.>", "shared workers"], deny: "public.hidden" }
    } }
    { user: deaf, password: d, permissions: { subscribe: { deny: "_INBOX.>" } } }
] }"""

#: Longer than any reply takes: a call that waits so long got no error.
LONG = 30.0


@pytest.fixture(scope="module")
def strict() -> Iterator[NatsServer]:
    """A server with a user with few permissions, and one that may not receive replies."""
    with NatsServer(name="strict", jetstream=False, config=CONFIG) as server:
        yield server


class Guest:
    """A connection with few permissions, and the errors reported to it."""

    def __init__(self, server: NatsServer, user: str = "guest") -> None:
        self.reported: SimpleQueue[Exception] = SimpleQueue()
        self.nc: Connection = jetstream_sync.connect(
            server.url, user=user, password=user[0], error_cb=self.reported.put
        )

    def told(self) -> PermissionsError:
        """Return the only reported error."""
        error = self.reported.get(timeout=5)
        assert isinstance(error, PermissionsError)
        self.nc.flush()
        assert self.reported.empty()
        return error


@pytest.fixture
def guest(strict: NatsServer) -> Iterator[Guest]:
    """A connection of the user with few permissions."""
    made = Guest(strict)
    yield made
    assert made.nc.is_connected
    made.nc.close()


@pytest.fixture
def deaf(strict: NatsServer) -> Iterator[Guest]:
    """A connection of a user that must not subscribe to an inbox."""
    made = Guest(strict, "deaf")
    yield made
    assert made.nc.is_connected
    made.nc.close()


@pytest.fixture
def admin(strict: NatsServer) -> Iterator[Connection]:
    """A connection of a user with all permissions, which responds on ``public.echo``."""
    with jetstream_sync.connect(strict.url, user="admin", password="a") as nc:
        nc.subscribe("public.echo", cb=lambda msg: msg.respond(msg.data))
        nc.flush()
        yield nc


# --- subscriptions --------------------------------------------------------------------------------


def test_reading_a_subscription_that_is_not_permitted(guest):
    """Each read and iteration raises the error, which is reported once."""
    sub = guest.nc.subscribe("private.a")
    with within(5):
        for read in (sub.next_msg, iter(sub).__next__, sub.next_msg):
            with pytest.raises(PermissionsError) as caught:
                read()
            error = caught.value
            assert (error.operation, error.subject, error.queue) == ("subscribe", "private.a", "")
    assert str(guest.told()) == str(error)
    assert not sub.is_valid
    for end in (sub.unsubscribe, sub.drain):
        with pytest.raises(PermissionsError):
            end()


def test_a_thread_waiting_for_a_message_is_woken(guest):
    """All reading threads get the error, also those that waited before."""
    sub = guest.nc.subscribe("private.b")
    with ThreadPoolExecutor(3) as pool, within(5):
        reading = [pool.submit(sub.next_msg, LONG) for _ in range(3)]
        for item in reading:
            assert isinstance(item.exception(LONG), PermissionsError)
    guest.told()


def test_the_error_names_a_refused_queue_group(guest):
    """The error names the group; the same subject in a permitted group works."""
    allowed = guest.nc.subscribe("shared", queue="workers")
    with within(5):
        for queue in ("others", ""):
            refused = guest.nc.subscribe("shared", queue=queue)
            with pytest.raises(PermissionsError) as caught:
                refused.next_msg(timeout=LONG)
            assert (caught.value.subject, caught.value.queue) == ("shared", queue)
            guest.told()
    assert allowed.is_valid


def test_a_callback_is_not_called_and_its_thread_ends(guest):
    """A subscription with a callback is reported once, to ``error_cb``."""
    sub = guest.nc.subscribe("private.c", cb=print)
    assert guest.told().subject == "private.c"
    wait_until(lambda: not [t for t in threading.enumerate() if "private.c" in t.name])
    assert not sub.is_valid


def test_pending_messages_can_be_read_after_a_permission_is_revoked():
    """If a permission is revoked, pending messages can be read; then the error is raised."""
    refusal = b'-ERR \'Permissions Violation for Subscription to "a" (sid "1")\'\r\n'
    reported: SimpleQueue[Exception] = SimpleQueue()
    with Listener() as server, jetstream_sync.connect(server.url, error_cb=reported.put) as nc:
        sub = nc.subscribe("a")
        peer = server.take()
        peer.line()
        peer.send(b"MSG a 1 2\r\nhi\r\n" * 2 + refusal)
        with within(5):
            assert [sub.next_msg(LONG).data, sub.next_msg(LONG).data] == [b"hi", b"hi"]
            with pytest.raises(PermissionsError):
                sub.next_msg(timeout=LONG)
        assert isinstance(reported.get(timeout=5), PermissionsError)
        nc.publish("b", b"")  # UNSUB is sent together with the next command
        assert peer.line() == b"UNSUB 1\r\n"
        nc.close()


@pytest.mark.parametrize("referenced", [True, False])
def test_a_refused_subscription_is_not_restored(strict, referenced):
    """A refused subscription is not restored, also if the program no longer refers to it."""
    guest = Guest(strict)
    with Listener() as server:
        nc = jetstream_sync.connect(
            [server.url, strict.url],
            user="guest",
            password="g",
            dont_randomize=True,
            error_cb=guest.reported.put,
        )
        refused = nc.subscribe("private.d")
        kept = nc.subscribe("public.d")
        peer = server.take()
        assert b"private.d" in peer.line()
        if not referenced:
            del refused
            gc.collect()
        peer.send(b"-ERR 'Permissions Violation for Subscription to \"private.d\"'\r\n")
        guest.reported.get(timeout=5)
        peer.close()
        wait_until(lambda: nc.connected_url == strict.url)
        nc.publish("public.d", b"x")
        assert kept.next_msg(timeout=5).data == b"x"
        assert guest.reported.empty()
        nc.close()
    guest.nc.close()


# --- publishing and requests ----------------------------------------------------------------------


def test_a_refused_publish_is_reported_to_error_cb(guest):
    """No call waits for it, so only ``error_cb`` gets the error; other calls are unaffected."""
    sub = guest.nc.subscribe("public.e")
    guest.nc.publish("private.e", b"x")
    guest.nc.publish("public.e", b"y")
    error = guest.told()
    assert (error.operation, error.subject) == ("publish", "private.e")
    assert sub.next_msg(timeout=5).data == b"y"


@pytest.mark.parametrize("timeout", [LONG, None])
def test_a_request_that_is_not_permitted_fails_at_once(guest, timeout):
    """It does not wait for a reply; the error is reported, too."""
    with within(5), pytest.raises(PermissionsError) as caught:
        guest.nc.request("private.f", b"x", timeout=timeout)
    assert (caught.value.operation, caught.value.subject) == ("publish", "private.f")
    assert str(guest.told()) == str(caught.value)


@pytest.mark.usefixtures("admin")
def test_a_refused_request_does_not_affect_others(guest):
    """Of many concurrent requests, each gets its own reply or error."""

    def ask(number: int) -> Msg | None:
        if number % 2:
            return guest.nc.request("public.echo", b"%d" % number, timeout=LONG)
        with pytest.raises(PermissionsError):
            guest.nc.request("private.echo", b"%d" % number, timeout=LONG)
        return None

    with within(5), ThreadPoolExecutor(8) as pool:
        responses = [item for item in pool.map(ask, range(40)) if item is not None]
    assert [int(response.data) for response in responses] == list(range(1, 40, 2))
    for _ in range(20):
        assert isinstance(guest.reported.get(timeout=5), PermissionsError)


@pytest.mark.usefixtures("admin")
def test_an_inbox_that_is_not_permitted(deaf):
    """A request without a permitted reply inbox fails at once, and so does the next one."""
    for _ in range(3):
        with within(5), pytest.raises(PermissionsError) as caught:
            deaf.nc.request("public.echo", b"x", timeout=LONG)
        assert caught.value.operation == "subscribe"
        assert caught.value.subject.startswith("_INBOX.")
        deaf.told()


def test_permissions_of_the_next_login():
    """Requests work as soon as the server permits the inbox, without a new connection."""
    denied = (
        "authorization { users: [{ user: u, password: p, permissions: { subscribe: nothing }}]}"
    )
    allowed = "authorization { users: [{ user: u, password: p }] }"
    reported: SimpleQueue[Exception] = SimpleQueue()
    options: dict[str, Any] = {"user": "u", "password": "p", "error_cb": reported.put}
    with NatsServer(jetstream=False, config=denied) as server:
        nc = jetstream_sync.connect(server.url, reconnect_time_wait=0.01, **options)
        with pytest.raises(PermissionsError):
            nc.request("echo", timeout=LONG)
        port = server.port
    with NatsServer(jetstream=False, port=port, config=allowed), nc:
        wait_until(lambda: nc.is_connected)
        nc.subscribe("echo", cb=lambda msg: msg.respond(b"yes"))
        assert nc.request("echo", timeout=LONG).data == b"yes"


def test_a_reply_that_is_not_permitted():
    """If the server refuses the reply subject, only that request fails."""
    with Listener() as server, jetstream_sync.connect(server.url, error_cb=print) as nc:
        with ThreadPoolExecutor(2) as pool, within(5):
            asked = [pool.submit(nc.request, "a", b"", LONG) for _ in range(2)]
            peer = server.take()
            replies = []
            while len(replies) < 2:
                words = peer.line().split()
                if words[0] == b"PUB":
                    replies.append(words[2])
                    peer.line()
            for reply in reversed(replies):
                peer.send(
                    b"-ERR 'Permissions Violation for Publish with Reply of \"%b\"'\r\n" % reply
                )
            for item in asked:
                assert isinstance(item.exception(LONG), PermissionsError)
        nc.close()


# --- requests and broken links --------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [LONG, None])
def test_requests_may_fail_as_soon_as_the_link_breaks(timeout):
    """With ``fail_requests_on_disconnect`` no request waits for the next link."""
    with Listener() as server:
        nc = jetstream_sync.connect(
            server.url, fail_requests_on_disconnect=True, allow_reconnect=True
        )
        peer = server.take()
        with ThreadPoolExecutor(1) as pool, within(5):
            asked = pool.submit(nc.request, "a", b"", timeout)
            line: Callable[[], bytes] = peer.line
            while not line().startswith(b"PUB a"):
                pass
            peer.close()
            assert isinstance(asked.exception(LONG), ConnectionLostError)
        nc.close()


def test_requests_wait_for_the_next_link_otherwise():
    """Without the option, a request keeps its timeout over a reconnect."""
    with Listener() as server:
        nc = jetstream_sync.connect(server.url, reconnect_time_wait=0.01)
        peer = server.take()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(nc.request, "a", b"", 0.5)
            while not peer.line().startswith(b"PUB a"):
                pass
            peer.close()
            assert isinstance(asked.exception(LONG), TimeoutError)
        nc.close()


# --- limits -------------------------------------------------------------------------------------


@pytest.fixture
def full() -> Iterator[Connection]:
    """A connection that has as many subscriptions as the server accepts."""
    with (
        NatsServer(config="max_subscriptions: 3") as server,
        jetstream_sync.connect(server.url, error_cb=lambda _: None) as nc,
    ):
        nc.jetstream(timeout=5).create_stream(name="S", subjects=["s"])
        kept = [nc.subscribe(f"kept.{number}") for number in range(2)]
        nc.flush(5)
        yield nc
        assert all(sub.is_valid for sub in kept)


def test_a_subscription_above_the_limit_raises(full):
    """Reading it raises at once, as after a refused permission; the others stay."""
    subs = [full.subscribe(f"refused.{number}") for number in range(2)]
    for sub in subs:
        with within(1), pytest.raises(PermissionsError, match="maximum subscriptions"):
            sub.next_msg(timeout=10)
    assert full.request("$JS.API.INFO", timeout=5).data


def test_a_fetch_above_the_limit_raises(full):
    """A fetch has no inbox then: that is an error, and not an empty list."""
    js = full.jetstream(timeout=5)
    consumer = js.create_consumer("S", durable_name="C")
    with within(1), pytest.raises(PermissionsError, match="maximum"):
        consumer.fetch(1, timeout=10)
    with within(1), pytest.raises(PermissionsError, match="maximum"):
        next(iter(consumer.messages()))
    with within(1), pytest.raises(PermissionsError, match="maximum"):
        list(full.request_many("s", timeout=10))


def test_a_publish_above_the_limit_raises(full):
    """The acknowledgements of `publish_async` have an inbox, too."""
    js = full.jetstream(timeout=10)
    with within(1), pytest.raises(PermissionsError, match="maximum"):
        js.publish_async("s").result(10)
    assert js.publish("s").seq


def test_requests_above_the_limit_raise():
    """The inbox of requests is refused: each request raises, until there is room."""
    with (
        NatsServer(config="max_subscriptions: 2") as server,
        jetstream_sync.connect(server.url, error_cb=lambda _: None) as nc,
    ):
        subs = [nc.subscribe("a"), nc.subscribe("b")]
        nc.flush(5)
        with within(1), pytest.raises(PermissionsError, match="maximum"):
            nc.request("$JS.API.INFO", timeout=10)
        subs[0].unsubscribe()
        nc.flush(5)
        assert nc.request("$JS.API.INFO", timeout=5).data
