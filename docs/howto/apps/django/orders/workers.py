"""The worker that handles orders."""

import logging

from django.conf import settings
from django.db import close_old_connections

from jetstream_sync.workers import Backoff, Reject, Worker

log = logging.getLogger(__name__)


def with_database(call, _ctx):
    """Drop broken and expired database connections, as Django does around each request."""
    close_old_connections()
    try:
        return call()
    finally:
        close_old_connections()


worker = Worker(
    settings.NATS["servers"],
    name="shop-worker",
    dead_letters="DEAD",
    middleware=[with_database],
)


def save_order(number):
    """Save an order: in this example, log its number."""
    log.info("handled %d", number)


@worker.handler(
    stream="ORDERS",
    consumer="orders",
    concurrency=4,
    decode="text",
    retry=Backoff(first=10.0, attempts=5),
)
def handle_order(text):
    """Handle one order."""
    try:
        number = int(text)
    except ValueError:
        raise Reject("not an order") from None  # another attempt cannot succeed
    save_order(number)
