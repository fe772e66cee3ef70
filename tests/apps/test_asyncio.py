"""The application of docs/howto/asyncio with FastAPI, under uvicorn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.apps import Program, copied, free_port, http

import jetstream_sync
from jetstream_sync.server import NatsServer

# Other programs take some time to start and to stop.
pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]


@pytest.fixture
def site(fresh_server: NatsServer, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = ["-W", "error::RuntimeWarning", "-m", "uvicorn", "--port", str(port), "orders:app"]
    with Program(command, fresh_server.url, copied("asyncio", tmp_path)) as program:
        program.wait_for("Application startup complete")
        yield f"http://127.0.0.1:{port}"


def test_an_order_is_stored_once_and_a_price_is_requested(site: str, fresh_server: NatsServer):
    """Endpoints in threads and in the event loop use the client without a warning."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        assert http("POST", f"{site}/orders/17", b"")[0] == 503  # no stream takes it
        stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
        assert http("POST", f"{site}/orders/17", b"") == (201, {"seq": 1, "again": False})
        assert http("POST", f"{site}/orders/17", b"") == (201, {"seq": 1, "again": True})
        assert stream.get_msg(1).data == b"17"
        with nc.subscribe("prices.*", cb=lambda ask: ask.respond(b"4.50")):
            nc.flush()
            assert http("GET", f"{site}/prices/tea") == (200, {"price": "4.50"})
        assert http("GET", f"{site}/prices/tea")[0] == 503  # no price service
