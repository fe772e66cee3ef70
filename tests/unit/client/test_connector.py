"""The connector: the order of attempts, the delays between them, and giving up."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
from fixtures.threads import wait_until

from jetstream_sync.address import Server, parse_servers
from jetstream_sync.client import connector
from jetstream_sync.client.connector import Connector
from jetstream_sync.client.engine import Engine
from jetstream_sync.errors import (
    AuthorizationError,
    CertificateError,
    ConnectionLostError,
    CredentialsError,
    InvalidOptionError,
    NoServersError,
    ProtocolError,
)
from jetstream_sync.options import ConnectionOptions
from jetstream_sync.protocol.parser import ServerInfo

A, B, C = parse_servers("nats://a:1,nats://b:1,nats://c:1")
DOWN = ConnectionRefusedError(111, "refused")
BROKEN = ConnectionLostError("it broke")


class World:
    """Servers with scripted results, a clock that is set by the test, and a log of the events."""

    def __init__(self, monkeypatch, servers=(A,), **options):
        self.asked = []
        self.responses = {}  # host -> errors, the last one repeated; None: a link
        self.waits = []
        self.reports = []
        self.events = []
        self.now = 1000.0
        self.during_wait = lambda: None
        self.opener = SimpleNamespace(open=self.open, was_greeted=False)
        options.setdefault("dont_randomize", True)
        monkeypatch.setattr(connector, "monotonic", lambda: self.now)
        self.finder = Connector(
            ConnectionOptions(servers=servers, **options),
            self.opener,
            SimpleNamespace(
                error=self.reports.append,
                callback_raised=lambda _, error: self.reports.append(error),
                tell=self.events.append,
            ),
        )
        monkeypatch.setattr(self.finder, "_sleep", self.wait)

    def open(self, address, _):
        self.asked.append(address.host)
        responses = self.responses.get(address.host, [None])
        response = responses.pop(0) if len(responses) > 1 else responses[0]
        if response is not None:
            raise response
        return SimpleNamespace(address=address)

    def wait(self, seconds):
        self.waits.append(seconds)
        assert len(self.waits) < 1000, "it goes on for ever"
        self.during_wait()

    def reconnect(self, lost=A, cause=BROKEN):
        return self.finder.reconnect(lost, cause)


@pytest.fixture
def world(monkeypatch):
    return lambda *args, **options: World(monkeypatch, *args, **options)


# --- the order of attempts --------------------------------------------------------------------


def test_the_lost_server_is_tried_last(world):
    """The lost server is tried after the others, without a wait before it."""
    it = world((A, B, C))
    it.responses = {"b": [DOWN], "c": [DOWN]}
    assert it.reconnect(A).address is A
    assert it.asked == ["b", "c", "a"]
    assert it.waits == []


def test_there_is_one_wait_per_round(world):
    """There is one wait per round, however many servers there are."""
    it = world((A, B, C), reconnect_time_wait=5.0, reconnect_jitter=0)
    it.responses = {"a": [DOWN, DOWN, DOWN, None], "b": [DOWN], "c": [DOWN]}
    assert it.reconnect(A).address is A
    assert it.asked == ["b", "c", "a"] * 4
    assert it.waits == [5.0] * 3


def test_attempts_count_for_each_server(world):
    """When all servers have failed max_reconnect_attempts times, the error has the last reason of each."""
    it = world((A, B), max_reconnect_attempts=3)
    it.responses = {"a": [DOWN], "b": [OSError(113, "no route")]}
    with pytest.raises(NoServersError) as caught:
        it.reconnect(A)
    assert sorted(it.asked) == ["a"] * 3 + ["b"] * 3
    assert len(it.waits) == 2
    assert sorted(caught.value.attempts) == [("nats://a:1", "refused"), ("nats://b:1", "no route")]


def test_the_error_has_the_class_that_all_failures_share(world):
    """If every server failed with the same error class, the error is of that class."""
    it = world(max_reconnect_attempts=2)
    it.responses = {"a": [ProtocolError("no NATS", b"SSH")]}
    with pytest.raises(ProtocolError, match="a:1"):
        it.reconnect()


def test_a_success_resets_the_count(world):
    """Only consecutive failures count."""
    it = world(max_reconnect_attempts=3)
    for _ in range(5):
        it.now += 100
        it.responses = {"a": [DOWN, DOWN, None]}
        assert it.reconnect() is not None


def test_no_server_to_reconnect_to_yet(world):
    """If the first connect failed, there is no lost server, and the round starts at once."""
    it = world((A, B))
    it.responses = {"a": [DOWN]}
    with pytest.raises(NoServersError):
        it.responses["b"] = [DOWN]
        it.finder.first()
    it.responses["b"] = [None]
    it.asked.clear()
    assert it.finder.reconnect(None, DOWN).address is B
    assert it.asked == ["a", "b"]
    assert it.waits == []


def test_stop_ends_the_attempts(world):
    """`stop` ends the attempts, also during a wait."""
    it = world()
    it.responses = {"a": [DOWN]}
    it.during_wait = it.finder.stop
    assert it.reconnect() is None
    assert it.finder.stopped(0)
    assert len(it.waits) == 1
    assert it.reconnect() is None
    assert len(it.asked) == 1


def test_a_wait_ends_when_its_condition_holds():
    """Without a stop, the caller goes on; a thread that has changed the condition calls `wake`."""
    engine = Engine(ConnectionOptions(servers=(A,)))
    ended: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.connector.stopped, 60, lambda: ended)
        wait_until(lambda: engine.connector._waiters.gates)
        ended.append(True)
        engine.connector.wake()
        assert waiting.result(5) is False


# --- delays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "options", "least", "most"),
    [
        ("nats://a", {}, 2.0, 2.1),
        ("tls://a", {}, 2.0, 3.0),
        ("nats://a,tls://b", {}, 2.0, 3.0),
        ("nats://a", {"tls": True}, 2.0, 3.0),
        ("tls://a", {"reconnect_jitter": 0.5}, 2.0, 2.5),
        ("nats://a", {"reconnect_time_wait": 7, "reconnect_jitter": 3}, 7.0, 10.0),
        ("nats://a", {"reconnect_time_wait": 7, "reconnect_jitter": 0}, 7.0, 7.0),
        ("nats://a", {"reconnect_time_wait": 0}, 0.001, 0.05),
        ("nats://a", {"reconnect_time_wait": 0, "reconnect_jitter": 5}, 0.001, 0.05),
    ],
)
def test_a_wait_is_spread_by_chance(world, servers, options, least, most):
    """Jitter is up to 0.1 s, with TLS up to 1 s; without a wait there is almost none."""
    it = world(parse_servers(servers), max_reconnect_attempts=200, **options)
    it.responses = {"a": [DOWN], "b": [DOWN]}
    with pytest.raises(NoServersError):
        it.reconnect(it.finder.pool.addresses()[0])
    assert len(it.waits) == 199
    assert least <= min(it.waits)
    assert max(it.waits) <= most
    if most > least > 1:
        assert max(it.waits) - min(it.waits) > (most - least) / 2


@pytest.mark.parametrize(
    ("greeted", "error", "longest"),
    [(True, TimeoutError(), 60.0), (False, TimeoutError(), 0.1), (True, BROKEN, 0.1)],
)
def test_the_jitter_grows_while_handshakes_are_too_slow(
    world, monkeypatch, greeted, error, longest
):
    """A server that greets but does not finish in time has too many clients; others do not count."""
    monkeypatch.setattr(connector.random, "uniform", lambda _, most: most)
    it = world(max_reconnect_attempts=20)
    it.responses, it.opener.was_greeted = {"a": [error]}, greeted
    with pytest.raises((NoServersError, ConnectionLostError)):
        it.reconnect()
    assert it.waits[0] == pytest.approx(2.0 + (0.2 if longest > 1 else 0.1))
    assert it.waits[-1] == pytest.approx(2.0 + longest)


def test_a_connection_resets_the_jitter_of_slow_handshakes(world, monkeypatch):
    """After a success the waits are short again."""
    monkeypatch.setattr(connector.random, "uniform", lambda _, most: most)
    it = world()
    it.responses, it.opener.was_greeted = {"a": [*[TimeoutError()] * 5, None, DOWN, None]}, True
    it.reconnect()
    it.now += 100
    it.waits.clear()
    it.reconnect()
    assert it.waits == [pytest.approx(2.1)]


def test_a_delay_function_sets_the_wait(world):
    """It gets the number of rounds since the disconnect, and there is no jitter."""
    walks = []

    def delay(number):
        walks.append(number)
        return timedelta(seconds=number) if number % 2 else number

    it = world((A, B), reconnect_delay_cb=delay, max_reconnect_attempts=5)
    it.responses = {"a": [DOWN], "b": [DOWN]}
    with pytest.raises(NoServersError):
        it.reconnect()
    assert walks == [1, 2, 3, 4]
    assert it.waits == [1.0, 2.0, 3.0, 4.0]


def test_a_function_chooses_the_server(world):
    """It gets the servers with their failures, and each attempt waits as long as it says."""
    seen = []

    def choose(servers):
        seen.append([(server.uri, server.reconnects) for server in servers])
        wanted = "nats://c:1" if len(seen) < 3 else "nats://b:1"
        return next(server for server in servers if server.uri == wanted), len(seen)

    it = world((A, B, C), reconnect_to_cb=choose)
    it.responses = {"c": [DOWN]}
    assert it.reconnect(A).address is B
    assert it.asked == ["c", "c", "b"]
    assert it.waits == [1, 2, 3]
    assert [sorted(item) for item in seen] == [
        [("nats://a:1", 0), ("nats://b:1", 0), ("nats://c:1", failed)] for failed in range(3)
    ]


@pytest.mark.parametrize(
    "choice", [None, 7, (Server("nats://z:1"), 0), (Server("nats://b:1"), None)]
)
def test_a_function_that_chooses_no_server(world, choice):
    """The next server of the pool is used; anything but ``None`` is reported."""
    it = world((A, B, C), reconnect_to_cb=lambda _: choice)
    assert it.reconnect(A).address is B
    assert it.waits == []
    assert len(it.reports) == (choice is not None)


@pytest.mark.parametrize(
    ("result", "wait", "report"),
    [
        *((wrong, 7.0, InvalidOptionError) for wrong in (None, "soon", float("nan"), True)),
        (ZeroDivisionError("mine"), 7.0, ZeroDivisionError),
        # The wait is never 0, and never longer than the system supports.
        (-5, 0.01, None),
        (0, 0.01, None),
        (float("inf"), float("inf"), None),
    ],
)
def test_a_delay_function_with_another_result(world, caplog, result, wait, report):
    """An invalid result or an exception is reported, and the default wait is used."""
    caplog.set_level(logging.CRITICAL)

    def delay(_):
        if isinstance(result, Exception):
            raise result
        return result

    it = world(
        reconnect_delay_cb=delay,
        reconnect_time_wait=7,
        reconnect_jitter=0,
        max_reconnect_attempts=2,
    )
    it.responses = {"a": [DOWN]}
    with pytest.raises(NoServersError):
        it.reconnect()
    assert it.waits == [wait]
    assert [type(error) for error in it.reports] == ([report] if report else [])


def test_rounds_without_a_wait(world):
    """The first rounds follow each other fast; later ones are slower, to not use up the attempts."""
    it = world(reconnect_time_wait=0, max_reconnect_attempts=8)
    it.responses = {"a": [DOWN]}
    with pytest.raises(NoServersError):
        it.reconnect()
    assert it.waits == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.05, 0.05])


def test_skip_wait_leaves_out_the_next_delay(world):
    """`skip_wait()` ends the current delay, or the next one if there is none, and no other."""
    it = world()
    it.responses = {"a": [DOWN, DOWN, None]}
    it.finder.skip_wait()
    assert it.reconnect() is not None
    assert len(it.waits) == 2
    assert not it.finder._skips_wait


# --- links that break at once -----------------------------------------------------------------


def test_there_is_a_wait_after_links_that_break_at_once(world):
    """A server that closes right after accepting is retried once at once, then after the wait."""
    it = world(reconnect_time_wait=5, reconnect_jitter=0)
    it.finder.first()
    for _ in range(4):
        it.now += 0.1
        assert it.reconnect() is not None
    assert it.waits == [5.0] * 3
    it.now += 10  # a link that lasted
    assert it.reconnect() is not None
    assert len(it.waits) == 3


def test_other_servers_are_tried_before_that_wait(world):
    """As many links in a row as there are servers may break at once."""
    it = world((A, B, C), reconnect_time_wait=5, reconnect_jitter=0)
    current = it.finder.first().address
    for _ in range(3):
        current = it.reconnect(current).address
    assert it.asked == ["a", "b", "c", "a"]
    assert it.waits == []
    it.reconnect(current)
    assert it.waits == [5.0]


def test_a_forced_reconnect_has_no_wait(world):
    """Repeated requests for another link each get one without a wait."""
    it = world()
    it.finder.first()
    for _ in range(10):
        it.finder.skip_wait()
        assert it.reconnect() is not None
    assert it.waits == []


# --- logins -----------------------------------------------------------------------------------


def refusal(text="Authorization Violation"):
    return AuthorizationError(text)


def test_how_the_link_ended_counts(world):
    """An error line that ended the link, with the text of the next refusal, counts."""
    it = world()
    it.responses = {"a": [refusal("Revoked")]}
    with pytest.raises(AuthorizationError):
        it.reconnect(A, AuthorizationError("Revoked"))
    assert it.asked == ["a"]


def test_the_first_connect_counts(world):
    """With retry_on_failed_connect the refusal of the first connect counts."""
    it = world()
    it.responses = {"a": [refusal()]}
    with pytest.raises(AuthorizationError):
        it.finder.first()
    with pytest.raises(AuthorizationError):
        it.finder.reconnect(None, refusal())
    assert it.asked == ["a", "a"]


# --- reported errors and events ---------------------------------------------------------------


def test_a_failure_is_reported_until_it_repeats(world):
    """A failure other than an unreachable server is reported once, until it changes."""
    it = world(max_reconnect_attempts=6)
    bad, worse = CertificateError("expired"), CertificateError("of another host")
    it.responses = {"a": [bad, bad, worse, worse, DOWN]}
    with pytest.raises(NoServersError):
        it.reconnect()
    assert it.reports == [bad, worse]


@pytest.mark.parametrize(
    "failure", [DOWN, TimeoutError("late"), ConnectionLostError("hung up"), OSError(113, "no way")]
)
def test_a_server_that_is_down_is_not_reported(world, failure):
    """An unreachable server is not reported while reconnecting."""
    it = world(max_reconnect_attempts=2)
    it.responses = {"a": [failure]}
    with pytest.raises((NoServersError, ConnectionLostError)):
        it.reconnect()
    assert it.reports == []


def test_a_failed_login_option_ends_the_first_connect(world):
    """If the login options fail, the first connect tries no other server."""
    it = world((A, B))
    it.responses = {"a": [CredentialsError("token", "...", "it raised")]}
    with pytest.raises(CredentialsError):
        it.finder.first()
    assert it.asked == ["a"]


def info(*urls, **fields):
    return ServerInfo.from_fields({"connect_urls": list(urls), "server_id": "S1", **fields})


def test_discoveries_may_be_ignored(world):
    """With ignore_discovered_servers only the configured servers are tried."""
    it = world(ignore_discovered_servers=True)
    it.finder.on_info(info("a:1", "b:1"), A)
    it.finder.on_info(info("a:1", "c:1"), A)
    assert it.events == []
    it.responses = {"a": [DOWN, None]}
    it.reconnect()
    assert it.asked == ["a", "a"]


def test_websockets_find_websockets(world):
    """A WebSocket uses the list of WebSocket addresses, if there are two lists."""
    [ws] = parse_servers("ws://a:8080")
    both = info("b:1", ws_connect_urls=["c:8080"])
    it = world((ws,))
    it.finder.on_info(both, ws)
    assert [address.url for address in it.finder.pool.addresses()] == [
        "ws://a:8080",
        "ws://c:8080",
    ]
    it = world((ws,))
    it.finder.on_info(info("c:8080"), ws)
    assert [address.url for address in it.finder.pool.addresses()] == [
        "ws://a:8080",
        "ws://c:8080",
    ]
    it = world()
    it.finder.on_info(both, A)
    assert [address.url for address in it.finder.pool.addresses()] == ["nats://a:1", "nats://b:1"]
