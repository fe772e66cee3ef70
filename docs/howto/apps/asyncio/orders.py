"""Orders over HTTP with FastAPI: one endpoint that runs in a thread, and one in the event loop."""

import asyncio
import os

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import jetstream_sync

app = FastAPI()


def connection() -> jetstream_sync.Connection:
    """Return the connection of this process."""
    url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    return jetstream_sync.shared_connection(url, name="web")


def request_price(article: str) -> str:
    """Request a price from the price service."""
    return connection().request(f"prices.{article}", timeout=2.0).data.decode()


@app.post("/orders/{number}", status_code=201)
def take_order(number: str) -> dict[str, object]:
    """Store an order; FastAPI runs a function without async in a thread."""
    ack = connection().jetstream().publish("ORDERS.received", number.encode(), msg_id=number)
    return {"seq": ack.seq, "again": ack.duplicate}


@app.get("/prices/{article}")
async def price(article: str) -> dict[str, str]:
    """Wait for the price service in a thread, while the event loop serves other requests."""
    return {"price": await asyncio.to_thread(request_price, article)}


@app.exception_handler(jetstream_sync.Error)
async def not_now(_request: Request, error: jetstream_sync.Error) -> JSONResponse:
    """Respond with 503, so that the client tries again."""
    return JSONResponse({"error": str(error)}, status_code=503)
