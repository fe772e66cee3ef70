"""The worker of docs/howto/workers, with PostgreSQL."""

from __future__ import annotations

import os
import signal

import pytest
from fixtures.apps import Program, copied
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]

#: Runs the worker, and kills it between the commit and the first ack.
_UNLUCKY = """
import os, signal
from jetstream_sync.workers.deliveries import Settlements
Settlements.ack = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
import shop
shop.worker.run()
"""


def test_effects_happen_once(fresh_server, tmp_path, postgres_database):
    """A worker is killed after the commit: each order has one invoice, and is announced once."""
    import psycopg

    folder = copied("sqlalchemy", tmp_path)
    (folder / "unlucky.py").write_text(_UNLUCKY)
    host, name = postgres_database["PGHOST"], postgres_database["PGDATABASE"]
    url = f"postgresql+psycopg://postgres@/{name}?host={host}"
    variables = {**os.environ, "DATABASE_URL": url}

    def start(*command: str) -> Program:
        return Program(list(command), fresh_server.url, folder, variables=variables)

    with start("-c", "import shop; shop.Base.metadata.create_all(shop.engine)") as create:
        assert create.ended() == 0
    with RawClient(fresh_server.port) as raw:
        raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"])
        config = {"durable_name": "BILLING", "ack_policy": "explicit", "ack_wait": 3 * 10**9}
        config["filter_subject"] = "ORDERS.received"
        raw.api("CONSUMER.CREATE.ORDERS.BILLING", stream_name="ORDERS", config=config)
        for number in range(5):
            raw.request("ORDERS.received", b"%d" % number)
    with start("unlucky.py") as unlucky:
        assert unlucky.ended() == -signal.SIGKILL

    def billed() -> list[bytes]:
        with RawClient(fresh_server.port) as raw:
            stored = raw.stored("ORDERS")
        return sorted(item.data for item in stored if item.subject == "ORDERS.billed")

    with (
        start("-m", "jetstream_sync.cli", "worker", "run", "shop:worker") as worker,
        start("shop.py"),
    ):
        wait_until(lambda: billed() == [b"0", b"1", b"2", b"3", b"4"], 20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    with psycopg.connect(host=host, user="postgres", dbname=name) as connection:
        invoices = connection.execute("SELECT number FROM invoice ORDER BY number").fetchall()
        assert invoices == [("0",), ("1",), ("2",), ("3",), ("4",)]
        assert connection.execute("SELECT count(*) FROM outbox").fetchall() == [(0,)]
    with RawClient(fresh_server.port) as raw:
        assert raw.api("CONSUMER.INFO.ORDERS.BILLING")["num_ack_pending"] == 0
