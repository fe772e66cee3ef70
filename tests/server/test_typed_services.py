"""Typed endpoints of services: functions of values, and calls that return objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import Connection, errors
from jetstream_sync.server import NatsServer
from jetstream_sync.services import ServiceRequest

if TYPE_CHECKING:
    from jetstream_sync.services import ServiceRequest as OnlyForTypeCheckers


class Kind(Enum):
    NEW = "new"


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    items: list[Item]
    at: datetime
    kind: Kind = Kind.NEW


@dataclass
class Total:
    total: Decimal
    kind: Kind


ORDER = Order([Item("a", Decimal("1.10")), Item("b", Decimal("2.20"))], datetime.now(timezone.utc))


def total(order: Order) -> Total:
    """Return the total of an order."""
    if not order.items:
        raise errors.ServiceError(422, "no items")
    return Total(sum((item.price for item in order.items), Decimal(0)), order.kind)


@pytest.fixture
def nc(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection that may report errors of handlers."""
    with jetstream_sync.connect(nats_server.url, error_cb=lambda _: None) as connection:
        yield connection


def test_a_typed_endpoint_and_a_typed_call(nc):
    """Objects arrive as objects; the function stays what it was; JSON is on the wire."""
    with nc.add_service("totals", "1.0.0") as service:
        assert service.endpoint("total", subject="totals.total")(total) is total
        found = nc.service_call("totals.total", ORDER, Total)
        assert found == Total(Decimal("3.30"), Kind.NEW)
        assert nc.service_call("totals.total", ORDER) == {"total": "3.30", "kind": "new"}
        raw = nc.request("totals.total", json.dumps({"items": [], "at": "2026-01-01"}).encode())
        assert raw.headers["Nats-Service-Error-Code"] == "422"
        with pytest.raises(errors.ServiceError, match="no items") as caught:
            nc.service_call("totals.total", Order([], ORDER.at), Total)
        assert caught.value.code == 422

        def counts() -> tuple[int, int]:
            (stats,) = service.stats().endpoints
            return stats.num_requests, stats.num_errors

        wait_until(lambda: counts() == (4, 2))  # a request is counted after its reply


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[]", b"null", b'{"items": 1}', b'{"items": [{"sku": "a"}], "at": "x"}'],
)
def test_a_request_that_does_not_fit_has_code_400(nc, data):
    """The requester gets the reason in one line, and the function is not called."""
    with nc.add_service("totals", "1.0.0") as service:
        service.add_endpoint("total", total, "totals.total")
        reply = nc.request("totals.total", data, timeout=5)
        assert reply.headers["Nats-Service-Error-Code"] == "400"
        assert reply.headers["Nats-Service-Error"].startswith("the request does not fit: ")
        assert nc.service_call("totals.total", ORDER, Total).kind is Kind.NEW


def test_values_that_are_not_json_are_refused(nc):
    """On both sides: an argument before it is sent, a return value as an error of the endpoint, a reply that misfits."""

    def wrong(kind: str) -> Any:
        values = {"nan": float("nan"), "object": object(), "set": {1}}
        if kind == "coroutine":
            return asyncio.sleep(0)
        return values[kind]

    with nc.add_service("values", "1.0.0") as service:
        service.add_endpoint("wrong", wrong, "values.wrong")
        for kind in ("nan", "object", "set", "coroutine", "unknown"):
            with pytest.raises(errors.ServiceError) as caught:
                nc.service_call("values.wrong", kind)
            assert caught.value.code == 500
        service.add_endpoint("text", lambda request: request.respond(b'"text"'), "values.text")
        assert nc.service_call("values.text", returns=str) == "text"
        with pytest.raises(errors.InvalidResponseError, match="the reply does not fit"):
            nc.service_call("values.text", returns=int)
        for value in (float("nan"), object(), {1}):
            with pytest.raises(errors.InvalidOptionError, match="value"):
                nc.service_call("values.text", value)
    with pytest.raises(errors.NoRespondersError):
        nc.service_call("values.text", 1)


def test_simple_values(nc):
    """A function without a parameter, plain values, bytes as they are, methods and objects that can be called."""

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, number: int = 1) -> int:
            self.count += number
            return self.count

        def __call__(self, data: bytes) -> bytes:
            return data[::-1]

    def now() -> datetime:
        return ORDER.at

    def nothing(text: str | None) -> None:
        del text

    counter = Counter()
    with nc.add_service("simple", "1.0.0") as service:
        service.add_endpoint("add", counter.add, "simple.add")
        service.add_endpoint("reverse", counter, "simple.reverse")
        service.add_endpoint("now", now, "simple.now")
        service.add_endpoint("nothing", nothing, "simple.nothing")
        assert nc.service_call("simple.add", 2, int) == 2
        assert nc.service_call("simple.reverse", b"\xff\x00", bytes) == b"\x00\xff"
        assert nc.service_call("simple.now", returns=datetime) == ORDER.at
        assert nc.service_call("simple.nothing", "x") is None
        assert nc.service_call("simple.nothing") is None


class CanRespond(Protocol):
    def respond(self, payload: bytes) -> object: ...


def test_handlers_of_requests_stay_such(nc):
    """A parameter without an annotation, or annotated as a request, is the request; an unknown type is refused."""

    def plain(request):
        request.respond(request.data)

    def typed(request: ServiceRequest) -> None:
        request.respond(request.data)

    def hidden(request: OnlyForTypeCheckers) -> None:
        request.respond(request.data)

    def protocol(request: CanRespond) -> None:
        request.respond(b"x")

    def anything(request: Any) -> None:
        request.respond(request.data)

    @dataclass
    class Local:
        number: int

    def local(value: Local) -> None:
        del value

    with nc.add_service("raw", "1.0.0") as service:
        for function in (plain, typed, protocol, anything):
            service.add_endpoint(function.__name__, function, f"raw.{function.__name__}")
            assert nc.request(f"raw.{function.__name__}", b"x", timeout=5).data == b"x"
        service.add_endpoint("lambda", lambda request: request.respond(b"x"), "raw.lambda")
        assert nc.request("raw.lambda", b"", timeout=5).data == b"x"
        for function in (local, hidden):
            with pytest.raises(errors.InvalidOptionError, match="at the top of its module"):
                service.add_endpoint("other", function)
