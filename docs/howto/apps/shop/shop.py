"""A worker that bills the orders of a shop."""

import sqlite3
import sys
from contextlib import closing

from jetstream_sync.workers import Backoff, Reject, Worker

worker = Worker("nats://127.0.0.1:4222", name="shop", dead_letters="DEAD")


def open_database():
    """Open the database of bills; it is created at first use."""
    database = sqlite3.connect("shop.db")
    database.execute("CREATE TABLE IF NOT EXISTS bills (number INTEGER PRIMARY KEY, total REAL)")
    return closing(database)


@worker.handler(
    stream="SHOP",
    consumer="BILLING",
    concurrency=4,
    decode="json",
    retry=Backoff(first=1.0, maximum=60.0, attempts=20),
)
def bill(order: dict) -> None:
    """Write a bill; a second delivery changes nothing."""
    if "total" not in order:
        raise Reject("the order has no total")
    with open_database() as database, database:
        row = (order["number"], order["total"])
        database.execute("INSERT OR IGNORE INTO bills VALUES (?, ?)", row)


if __name__ == "__main__":
    sys.exit(worker.run())
