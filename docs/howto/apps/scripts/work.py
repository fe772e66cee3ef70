"""Handle orders until Ctrl-C or SIGTERM."""

import logging
import sys

from jetstream_sync.workers import Backoff, Reject, Worker

log = logging.getLogger("work")

# The server comes from NATS_URL.
worker = Worker(name="work", dead_letters="DEAD")


def save(number):
    """Save an order: in this example, log its number."""
    log.info("handled %d", number)


@worker.handler(
    stream="ORDERS", consumer="work", decode="text", retry=Backoff(first=2.0, attempts=5)
)
def handle(text):
    """Handle one order."""
    try:
        number = int(text)
    except ValueError:
        raise Reject("not an order") from None  # another attempt cannot succeed
    save(number)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(worker.run())
