"""The worker of the orders: ``jsm worker run worker:worker``, or ``python worker.py``."""

import logging
import sys

from orders import SERVERS, app

from jetstream_sync.workers import Worker


def in_app_context(call, _ctx):
    """Give each order an application context, as Flask gives one to each request."""
    with app.app_context():
        return call()


worker = Worker(SERVERS, name="orders", dead_letters="DEAD", middleware=[in_app_context])


@worker.handler(stream="ORDERS", consumer="BILLING", concurrency=4, decode="text")
def bill(order):
    """Bill one order: in this example, log it."""
    app.logger.info("billed %s", order)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(worker.run())
