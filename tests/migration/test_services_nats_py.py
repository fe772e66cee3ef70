"""Services and clients of nats-py work with those of this package."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import nats
import nats.micro
import pytest
from nats.micro.request import ServiceError as NatsPyServiceError
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

import jetstream_sync
from jetstream_sync import Connection, ServiceError
from jetstream_sync.server import NatsServer
from jetstream_sync.services import raise_for_error


@pytest.fixture
def nc(fresh_server: NatsServer) -> Iterator[Connection]:
    """A connection to a server without other services."""
    with jetstream_sync.connect(fresh_server.url) as connection:
        yield connection


def test_nats_py_reads_our_replies(nc, fresh_server):
    """The parsers of nats-py accept the replies of a service, and its client gets errors as headers."""

    def handle(request: Any) -> None:
        if not request.data:
            raise ServiceError(400, "empty")
        request.respond(request.data)

    async def use() -> None:
        client = await nats.connect(fresh_server.url)
        parsers = {"PING": ServicePing, "INFO": ServiceInfo, "STATS": ServiceStats}
        for verb, parser in parsers.items():
            parsed = parser.from_dict(
                jetstream_sync.codec.loads((await client.request(f"$SRV.{verb}.ours")).data)
            )
            assert (parsed.name, parsed.id, parsed.metadata) == ("ours", service.id, {"a": "b"})
            if verb != "PING":
                assert [endpoint.name for endpoint in parsed.endpoints] == ["echo"]
        assert (await client.request("echo", b"x")).data == b"x"
        refused = await client.request("echo", b"")
        assert refused.headers == {
            "Nats-Service-Error": "empty",
            "Nats-Service-Error-Code": "400",
        }
        await client.close()

    with nc.add_service("ours", "1.0.0", metadata={"a": "b"}) as service:
        service.add_endpoint("echo", handle)
        asyncio.run(use())


# Its service calls a function that Python 3.12 deprecated.
@pytest.mark.filterwarnings("ignore:.*utcnow:DeprecationWarning")
def test_a_service_of_nats_py_is_discovered_and_called(nc, fresh_server):
    """Discovery decodes its replies, and its errors are raised."""
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        client = await nats.connect(fresh_server.url)
        service = await nats.micro.add_service(client, name="theirs", version="2.0.0")

        async def handle(request: Any) -> None:
            if not request.data:
                raise NatsPyServiceError("400", "empty")
            await request.respond(request.data)

        await service.add_endpoint(name="echo", handler=handle)
        await client.flush()
        ready.set()
        await asyncio.to_thread(done.wait)
        await service.stop()
        await client.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10.0)
        assert nc.request("echo", b"x", timeout=5.0).data == b"x"
        with pytest.raises(ServiceError, match="empty") as caught:
            raise_for_error(nc.request("echo", timeout=5.0))
        assert caught.value.code == 400
        (ping,), (info,), (stats,) = nc.service_ping(), nc.service_info(), nc.service_stats()
        assert ping.id == info.id == stats.id
        assert info.endpoints is not None
        assert info.endpoints[0].subject == "echo"
        assert stats.endpoints is not None
        assert (stats.endpoints[0].num_requests, stats.endpoints[0].num_errors) == (2, 1)
    finally:
        done.set()
        thread.join()
