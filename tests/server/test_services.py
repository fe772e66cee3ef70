"""Services (ADR-32): requests, statistics, discovery, errors, and a stop that loses no request."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fixtures.internals import open_subscriptions
from fixtures.server import paused
from fixtures.threads import run_all, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, errors
from jetstream_sync.server import NatsServer
from jetstream_sync.services import ServiceRequest, raise_for_error


@pytest.fixture
def nc(fresh_server: NatsServer) -> Iterator[Connection]:
    """A connection to a server without other services."""
    with jetstream_sync.connect(fresh_server.url, error_cb=lambda _: None) as connection:
        yield connection


@pytest.fixture
def client(fresh_server: NatsServer) -> Iterator[Connection]:
    """The connection of the requester."""
    with jetstream_sync.connect(fresh_server.url) as connection:
        yield connection


def echo(request: ServiceRequest) -> None:
    request.respond(request.data)


def test_requests_and_statistics(nc, client):
    """An endpoint gets the requests of its subject, and counts them."""
    with nc.add_service("orders", "1.0.0", "test", {"team": "a"}) as service:
        service.add_endpoint("create", echo, subject="orders.create", metadata={"auth": "no"})
        for _ in range(5):
            assert client.request("orders.create", b"x", timeout=5.0).data == b"x"
        wait_until(lambda: service.stats().endpoints[0].num_requests == 5)
        (stats,) = client.service_stats("orders")
        (endpoint,) = stats.endpoints
        assert (endpoint.name, endpoint.subject, endpoint.queue_group) == (
            "create",
            "orders.create",
            "q",
        )
        assert (endpoint.num_requests, endpoint.num_errors, endpoint.last_error) == (5, 0, "")
        assert endpoint.processing_time > timedelta(0)
        assert endpoint.average_processing_time <= endpoint.processing_time
        (info,) = client.service_info("orders", service.id)
        assert info == service.info()
        assert (info.description, info.metadata, info.version) == ("test", {"team": "a"}, "1.0.0")
        assert info.endpoints[0].metadata == {"auth": "no"}
        assert len(service.id) == 22
        started = service.stats().started
        service.reset()
        (endpoint,) = service.stats().endpoints
        assert (endpoint.num_requests, endpoint.processing_time) == (0, timedelta(0))
        assert endpoint.average_processing_time == timedelta(0)
        assert service.stats().started > started
        assert service.info() == info


def test_replies_have_the_documented_types_and_fields(nc, client):
    """The JSON of the replies is that of ADR-32."""
    with nc.add_service("wire", "1.2.3-rc.1+b7") as service:
        service.add_endpoint("e", echo)
        responses = {
            verb: json.loads(client.request(f"$SRV.{verb}.wire.{service.id}", timeout=5.0).data)
            for verb in ("PING", "INFO", "STATS")
        }
    identity = {"name": "wire", "id": service.id, "version": "1.2.3-rc.1+b7", "metadata": {}}
    assert responses["PING"] == {"type": "io.nats.micro.v1.ping_response", **identity}
    assert responses["INFO"] == {
        "type": "io.nats.micro.v1.info_response",
        **identity,
        "description": "",
        "endpoints": [{"name": "e", "subject": "e", "queue_group": "q", "metadata": {}}],
    }
    stats = responses["STATS"]
    assert stats["type"] == "io.nats.micro.v1.stats_response"
    assert stats["started"].endswith("Z")
    assert stats["endpoints"] == [
        {
            "name": "e",
            "subject": "e",
            "queue_group": "q",
            "num_requests": 0,
            "num_errors": 0,
            "last_error": "",
            "processing_time": 0,
            "average_processing_time": 0,
            "data": None,
        }
    ]


def test_all_instances_answer_discovery_and_share_requests(fresh_server, client):
    """Each instance answers a ping; each request goes to one of them."""
    connections = [jetstream_sync.connect(fresh_server.url) for _ in range(3)]
    services = [connection.add_service("shared", "1.0.0") for connection in connections]
    for service in services:
        service.add_endpoint("work", echo)
        service.add_endpoint("all", echo, queue_group="")
    other = connections[0].add_service("other", "2.0.0")
    pings = client.service_ping("shared")
    assert sorted(ping.id for ping in pings) == sorted(service.id for service in services)
    assert Counter(item.name for item in client.service_ping()) == {"shared": 3, "other": 1}
    assert [item.id for item in client.service_ping("shared", services[1].id)] == [services[1].id]
    assert client.service_ping("absent") == []
    for _ in range(300):
        client.request("work", timeout=5.0)

    def counted() -> int:
        return sum(stat.endpoints[0].num_requests for stat in client.service_stats("shared"))

    wait_until(lambda: counted() == 300)
    # Without a queue group every instance answers.
    assert len(list(client.request_many("all", timeout=5.0, max_messages=3))) == 3
    assert all(service.info().endpoints[1].queue_group is None for service in services)
    other.stop()
    for connection in connections:
        connection.drain()
    assert client.service_ping(timeout=0.5) == []


def test_groups_prefix_subjects_and_pass_on_the_queue_group(nc):
    """The queue group of an endpoint comes from itself, its group, the outer group or the service."""
    with nc.add_service("groups", "1.0.0", queue_group="svc") as service:
        v1 = service.add_group("v1")
        admin = v1.add_group("admin", queue_group="ops")
        plain = admin.add_group("", queue_group="")
        service.add_endpoint("root", echo)
        v1.add_endpoint("a", echo)
        admin.add_endpoint("b", echo, subject="users.*.get")
        admin.add_group("deep").add_endpoint("c", echo)
        plain.add_endpoint("d", echo)
        admin.add_endpoint("e", echo, queue_group="own")
        found = {
            endpoint.name: (endpoint.subject, endpoint.queue_group)
            for endpoint in service.info().endpoints
        }
    assert found == {
        "root": ("root", "svc"),
        "a": ("v1.a", "svc"),
        "b": ("v1.admin.users.*.get", "ops"),
        "c": ("v1.admin.deep.c", "ops"),
        "d": ("v1.admin.d", None),
        "e": ("v1.admin.e", "own"),
    }


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda nc: nc.add_service("a.b", "1.0.0"), errors.InvalidNameError),
        (lambda nc: nc.add_service("", "1.0.0"), errors.InvalidNameError),
        (lambda nc: nc.add_service("a", "1"), errors.InvalidOptionError),
        (lambda nc: nc.add_service("a", "1.0.0", queue_group="a b"), errors.BadSubjectError),
        (lambda nc: nc.add_service("a", "1.0.0", prefix="*"), errors.BadSubjectError),
        (lambda nc: nc.add_service("a", "1.0.0", stop_cb=1), errors.InvalidOptionError),
        # Its discovery requests could not be answered.
        (lambda nc: nc.add_service("a", "1.0.0", description="\ud800"), errors.InvalidOptionError),
        (
            lambda nc: nc.add_service("a", "1.0.0", metadata={"a": "\ud800"}),
            errors.InvalidOptionError,
        ),
        (
            lambda nc: nc.add_service("a", "1.0.0", metadata={"\ud800": "a"}),
            errors.InvalidOptionError,
        ),
        (lambda nc: nc.service_ping(id="x"), errors.InvalidOptionError),
        (lambda nc: nc.service_info("a.b"), errors.InvalidNameError),
    ],
)
def test_invalid_arguments_are_refused(nc, call, error):
    """Invalid names and options are refused, and leave no subscription."""
    before = len(open_subscriptions(nc))
    with pytest.raises(error):
        call(nc)
    assert len(open_subscriptions(nc)) == before


def test_invalid_endpoints_are_refused(nc):
    """Invalid groups and endpoints are refused, and are not listed."""
    with nc.add_service("a", "1.0.0") as service:
        with pytest.raises(errors.BadSubjectError):
            service.add_group("a.>")
        with pytest.raises(errors.InvalidNameError):
            service.add_endpoint("a.b", echo)
        with pytest.raises(errors.BadSubjectError):
            service.add_endpoint("a", echo, subject="a..b")
        with pytest.raises(errors.InvalidOptionError):
            service.add_endpoint("a", echo, workers=0)
        with pytest.raises(errors.InvalidOptionError):
            service.add_endpoint("a", echo, metadata={"a": "\ud800"})
        assert service.info().endpoints == []
    with pytest.raises(errors.InvalidOptionError, match="stopped"):
        service.add_endpoint("late", echo)


def test_errors_of_handlers_are_answered_and_counted(fresh_server, client):
    """A ServiceError is the reply; another exception is a reply without its text."""
    reported: list[BaseException] = []

    def handle(request: ServiceRequest) -> None:
        if request.data == b"known":
            raise errors.ServiceError(409, "exists", b"details")
        if request.data == b"own":
            request.respond_error(404, "absent", headers={"Hint": "other"})
            return
        if request.data == b"bug":
            raise ValueError("password 123")
        request.respond_json({"n": 1}, headers={"Kind": "json"})

    with (
        jetstream_sync.connect(fresh_server.url, error_cb=reported.append) as nc,
        nc.add_service("errors", "1.0.0") as service,
    ):
        service.add_endpoint("e", handle)

        def raised(data: bytes) -> errors.ServiceError:
            with pytest.raises(errors.ServiceError) as caught:
                raise_for_error(client.request("e", data, timeout=5.0))
            return caught.value

        assert raised(b"known").args == (409, "exists", b"details")
        assert raised(b"own").args == (404, "absent", b"")
        bug = raised(b"bug")
        assert bug.code == 500
        assert "123" not in str(bug)
        good = raise_for_error(client.request("e", timeout=5.0))
        assert json.loads(good.data) == {"n": 1}
        assert good.headers is not None
        assert good.headers["kind"] == "json"
        client.publish("e", b"known")  # without a reply subject
        wait_until(lambda: service.stats().endpoints[0].num_requests == 5)
        (stats,) = service.stats().endpoints
        assert (stats.num_errors, stats.last_error) == (4, "409:exists")
    assert [str(item) for item in reported] == ["password 123"]


def test_workers_handle_requests_concurrently(nc, client):
    """With 8 workers, 8 requests are in progress at a time; with one worker the order is kept."""
    together = threading.Barrier(8)
    order: list[bytes] = []

    def meet(request: ServiceRequest) -> None:
        together.wait(10.0)
        request.respond()

    with nc.add_service("workers", "1.0.0") as service:
        service.add_endpoint("parallel", meet, workers=8)
        service.add_endpoint("ordered", lambda request: order.append(request.data))
        replies = client.subscribe(client.new_inbox())
        for _ in range(80):
            client.publish("parallel", reply=replies.subject)
        for number in range(500):
            client.publish("ordered", b"%d" % number)
        for _ in range(80):
            replies.next_msg(timeout=10.0)
        wait_until(lambda: len(order) == 500)
    assert order == [b"%d" % number for number in range(500)]


def test_stop_answers_queued_requests(nc, client):
    """Requests that have arrived before the stop are answered; later ones find no responders."""
    reasons: list[object] = []
    release = threading.Event()

    def slow(request: ServiceRequest) -> None:
        release.wait(10.0)
        request.respond(request.data)

    service = nc.add_service("stopping", "1.0.0", stop_cb=reasons.append)
    service.add_endpoint("slow", slow, workers=2)
    replies = client.subscribe(client.new_inbox())
    for number in range(50):
        client.publish("slow", b"%d" % number, reply=replies.subject)
    client.flush()
    wait_until(lambda: service._endpoints[0].subscription.pending_msgs == 48)
    threading.Timer(0.2, release.set).start()
    service.stop()
    assert {replies.next_msg(timeout=5.0).data for _ in range(50)} == {
        b"%d" % number for number in range(50)
    }
    assert service.is_stopped
    assert service.wait_stopped(0)
    assert reasons == [None]
    service.stop()
    assert reasons == [None]
    with pytest.raises(errors.NoRespondersError):
        client.request("slow", timeout=5.0)
    with pytest.raises(errors.NoRespondersError):
        client.request("$SRV.PING.stopping", timeout=5.0)


def test_discovery_during_a_stop_is_answered_or_finds_no_responders(nc, client):
    """No discovery request is lost between the last reply and the end of the subscriptions."""
    for _ in range(30):
        service = nc.add_service("stopping", "1.0.0")
        stop = threading.Thread(target=service.stop)
        stop.start()
        with pytest.raises(errors.NoRespondersError):
            while True:
                client.request("$SRV.PING.stopping", timeout=5.0)
        stop.join()


def test_a_silent_or_lost_server_is_not_an_absence_of_services(fresh_server, client):
    """A listing of services is empty only if the server says so."""
    assert client.service_ping() == []
    for call in (client.service_ping, client.service_info, client.service_stats):
        with paused(fresh_server), pytest.raises(errors.TimeoutError):
            call(timeout=0.3)
    fresh_server.kill()
    wait_until(lambda: not client.is_connected)
    with pytest.raises((errors.TimeoutError, errors.ConnectionLostError), match="connection"):
        client.service_ping(timeout=0.3)


def test_an_endpoint_that_is_not_permitted_raises():
    """The call that adds it raises the refusal of the server, which stops the service."""
    config = "authorization { users: [{ user: u, password: p, permissions: { subscribe: { deny: refused } }}]}"
    with (
        NatsServer(config=config) as server,
        jetstream_sync.connect(
            server.url, user="u", password="p", error_cb=lambda _: None
        ) as connection,
    ):
        service = connection.add_service("refused", "1.0.0")
        service.add_endpoint("permitted", echo)
        with pytest.raises(errors.PermissionsError):
            service.add_endpoint("refused", echo)
        assert service.wait_stopped(5.0)
        assert isinstance(service.error, errors.PermissionsError)


def test_discovery_is_answered_before_a_stop_returns(fresh_server, client):
    """A connection that is closed right after the stop of its service cuts off no reply."""
    for _ in range(20):
        nc = jetstream_sync.connect(fresh_server.url, error_cb=lambda _: None)
        service = nc.add_service("stopping", "1.0.0")

        def ask_until_stopped() -> None:
            with pytest.raises(errors.NoRespondersError):
                while True:
                    client.request("$SRV.PING.stopping", timeout=5.0)

        def stop(nc=nc, service=service) -> None:
            service.stop()
            nc.close()

        run_all(stop, *[ask_until_stopped] * 4)


def test_stop_within_a_handler_and_with_a_handler_that_does_not_end(nc, client):
    """A handler may stop its service; a stop gives up on a handler after its timeout."""
    service = nc.add_service("self", "1.0.0")

    def end(request: ServiceRequest) -> None:
        request.respond(b"bye")
        service.stop()

    service.add_endpoint("end", end)
    assert client.request("end", timeout=5.0).data == b"bye"
    assert service.wait_stopped(5.0)

    release = threading.Event()
    stuck = nc.add_service("stuck", "1.0.0")
    stuck.add_endpoint("stuck", lambda _: release.wait(30.0))
    client.publish("stuck")
    client.flush()
    with within(10.0), pytest.raises(errors.DrainTimeoutError, match="stuck"):
        stuck.stop(timeout=0.2)
    assert stuck.is_stopped
    release.set()


def test_a_stop_that_the_server_does_not_confirm(fresh_server, nc):
    """The service has stopped and says so, although the subscriptions could not be drained."""
    reasons: list[object] = []
    service = nc.add_service("paused", "1.0.0", stop_cb=reasons.append)
    service.add_endpoint("paused", lambda _: None)
    with paused(fresh_server), within(10.0), pytest.raises(errors.DrainTimeoutError):
        service.stop(timeout=0.3)
    assert service.is_stopped
    assert reasons == [None]


def test_a_closed_or_drained_connection_stops_the_service(fresh_server):
    """The stop callback gets the reason, and a drain answers the queued requests first."""
    reasons: list[BaseException | None] = []
    with jetstream_sync.connect(fresh_server.url) as client:
        nc = jetstream_sync.connect(fresh_server.url)
        service = nc.add_service("drained", "1.0.0", stop_cb=reasons.append)

        def slow(request: ServiceRequest) -> None:
            time.sleep(0.01)
            request.respond()

        service.add_endpoint("slow", slow)
        replies = client.subscribe(client.new_inbox())
        for _ in range(20):
            client.publish("slow", reply=replies.subject)
        client.flush()
        nc.flush()
        nc.drain()
        for _ in range(20):
            replies.next_msg(timeout=5.0)
        assert service.wait_stopped(5.0)
        assert isinstance(service.error, jetstream_sync.Error)

        nc = jetstream_sync.connect(fresh_server.url)
        closed = nc.add_service("closed", "1.0.0", stop_cb=reasons.append)
        closed.add_endpoint("e", echo)
        nc.close()
        assert closed.wait_stopped(5.0)
    wait_until(lambda: len(reasons) == 2)
    assert isinstance(reasons[1], errors.ConnectionClosedError)


def test_an_overloaded_endpoint_refuses_requests(nc, client):
    """Requests above the limit are answered with 503 at once; other endpoints are not affected."""
    release = threading.Event()

    def wait(request: ServiceRequest) -> None:
        release.wait(30.0)
        request.respond()

    with nc.add_service("busy", "1.0.0") as service:
        service.add_endpoint("slow", wait, pending_msgs_limit=10)
        service.add_endpoint("fast", echo)
        replies = client.subscribe(client.new_inbox())
        for _ in range(100):
            client.publish("slow", reply=replies.subject)
        refused = 0
        with pytest.raises(jetstream_sync.TimeoutError):
            while True:
                with pytest.raises(errors.ServiceError, match="overloaded"):
                    raise_for_error(replies.next_msg(timeout=1.0))
                refused += 1
        assert 89 <= refused <= 90
        assert client.request("fast", b"ok", timeout=5.0).data == b"ok"
        release.set()
        for _ in range(100 - refused):
            assert raise_for_error(replies.next_msg(timeout=5.0)).data == b""
        wait_until(lambda: service.stats().endpoints[0].num_requests == 100)
        assert service.stats().endpoints[0].num_errors == refused


def test_stats_handler(nc, client):
    """Its result is the data of the endpoint; if it raises, there is no data."""

    def more(stats: Any) -> dict[str, int]:
        if stats.name == "bad":
            raise ValueError("no data")
        return {"seen": stats.num_requests}

    with nc.add_service("data", "1.0.0", stats_handler=more) as service:
        service.add_endpoint("good", echo)
        service.add_endpoint("bad", echo)
        (stats,) = client.service_stats("data")
    assert [endpoint.data for endpoint in stats.endpoints] == [{"seen": 0}, None]


def test_a_malformed_reply_hides_no_other_instance(fresh_server):
    """Discovery reports a malformed reply, and returns the others."""
    reported: list[BaseException] = []
    with jetstream_sync.connect(fresh_server.url, error_cb=reported.append) as nc:
        nc.subscribe("$SRV.PING", cb=lambda msg: msg.respond(b"{"))
        service = nc.add_service("good", "1.0.0")
        assert [item.id for item in nc.service_ping()] == [service.id]
        wait_until(lambda: len(reported) == 1)


def test_only_a_malformed_reply_is_an_error(fresh_server):
    """Without another instance, an empty list would say that there is no service."""
    with jetstream_sync.connect(fresh_server.url, error_cb=lambda _: None) as nc:
        nc.subscribe("$SRV.PING", cb=lambda msg: msg.respond(b"{"))
        with pytest.raises(errors.InvalidResponseError):
            nc.service_ping()


def test_a_service_whose_description_is_too_large_is_an_error(fresh_server):
    """It has no list of endpoints that fits into a message, and says so."""
    reported: list[BaseException] = []
    with jetstream_sync.connect(fresh_server.url, error_cb=reported.append) as nc:
        metadata = {"text": "x" * 400_000}
        with nc.add_service("large", "1.0.0", metadata=metadata) as service:
            for name in "abc":
                service.add_endpoint(name, echo, metadata=metadata)
            assert [item.name for item in nc.service_ping()] == ["large"]
            with pytest.raises(errors.ServiceError, match="too large"):
                nc.service_info()
            wait_until(lambda: [type(item) for item in reported[:1]] == [errors.MaxPayloadError])


class UntoldError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (UntoldError(), "UntoldError: <exception str() failed>"),
        (OSError("menu\udcff"), "OSError: menu\\udcff"),
        (ValueError("z" * 2_000_000), f"ValueError: {'z' * 988}"),
    ],
    ids=["str() fails", "surrogate", "long"],
)
def test_an_endpoint_goes_on_whatever_the_text_of_an_error(fresh_server, raised, text):
    """The next request is answered, and the statistics have the beginning of a readable text."""

    def fail(_: ServiceRequest) -> None:
        raise raised

    with (
        jetstream_sync.connect(fresh_server.url, error_cb=lambda _: None) as nc,
        nc.add_service("s", "1.0.0") as service,
    ):
        service.add_endpoint("e", fail)
        for _ in range(2):
            with pytest.raises(errors.ServiceError, match="could not be handled"):
                raise_for_error(nc.request("e", timeout=5.0))
        wait_until(lambda: service.stats().endpoints[0].num_errors == 2)
        (stats,) = nc.service_stats("s")
        assert stats.endpoints[0].last_error == text


def test_another_prefix(nc, client):
    """A service with its own prefix is found under that only."""
    with nc.add_service("own", "1.0.0", prefix="ACME.SRV") as service:
        assert [item.id for item in client.service_ping(prefix="ACME.SRV")] == [service.id]
        assert client.service_ping(timeout=0.5) == []


def test_a_service_survives_a_reconnect(fresh_server):
    """After a restart of the server, endpoints and discovery answer as before."""
    with (
        jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.1) as nc,
        jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.1) as client,
        nc.add_service("again", "1.0.0") as service,
    ):
        service.add_endpoint("echo", echo)
        client.request("echo", b"1", timeout=5.0)
        fresh_server.restart()
        wait_until(lambda: nc.is_connected and client.is_connected, limit=20.0)
        nc.flush()
        assert client.request("echo", b"2", timeout=5.0).data == b"2"
        assert [item.id for item in client.service_ping("again")] == [service.id]
        wait_until(lambda: service.stats().endpoints[0].num_requests == 2)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.ServiceError(400, "line 1\nline 2"), "line 1 line 2"),
        (errors.ServiceError(400, "text", b"x" * 2_000_000), "text"),
        (errors.ServiceError(0, "no code"), "no code"),
        (errors.ServiceError(400, "\r\n"), "the request could not be handled"),
    ],
    ids=["lines", "size", "code", "empty"],
)
def test_an_error_that_cannot_be_sent_is_replaced(nc, client, error, text):
    """The requester gets a 500 with the text in one line."""

    def fail(_: ServiceRequest) -> None:
        raise error

    with nc.add_service("s", "1.0.0") as service:
        service.add_endpoint("e", fail)
        with pytest.raises(errors.ServiceError) as caught:
            raise_for_error(client.request("e", timeout=5.0))
        wait_until(lambda: service.stats().endpoints[0].num_errors == 1)
    assert (caught.value.code, caught.value.description) == (500, text)


def test_a_request_without_a_reply_subject_counts_as_an_error(nc, client):
    """No reply can be sent: the statistics show it."""
    with nc.add_service("s", "1.0.0") as service:
        service.add_endpoint("e", echo)
        client.publish("e", b"x")
        wait_until(lambda: service.stats().endpoints[0].num_requests == 1)
        assert service.stats().endpoints[0].num_errors == 1
        assert service.stats().endpoints[0].last_error == "the request has no reply subject"


@pytest.mark.parametrize(
    ("code", "text"), [(0, "text"), (600, "text"), (-1, "text"), (True, "text"), (400, "")]
)
def test_the_code_and_text_of_an_error_are_checked(nc, client, code, text):
    """Codes are from 1 to 599, and the text is not empty."""
    raised: list[errors.InvalidOptionError] = []

    def fail(request: ServiceRequest) -> None:
        try:
            request.respond_error(code, text)
        except errors.InvalidOptionError as error:
            raised.append(error)
            request.respond(b"checked")

    with nc.add_service("s", "1.0.0") as service:
        service.add_endpoint("e", fail)
        assert client.request("e", timeout=5.0).data == b"checked"
    assert len(raised) == 1
