"""The stream ORDERS of the document of 2020, and its consumers, accessed without `jsm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fix_jsm import Jsm
from rawnats import RawClient

__all__ = ["Orders", "orders"]


class Orders:
    """The stream, and the server's infos of its consumers."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw
        raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"], storage="memory")

    def make(self, name: str, **config: Any) -> None:
        """Create a durable consumer."""
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        made = self.raw.api(f"CONSUMER.CREATE.ORDERS.{name}", stream_name="ORDERS", config=config)
        assert made.get("name") == name, made

    def info(self, name: str) -> dict[str, Any]:
        """Return the info of a consumer."""
        return self.raw.api(f"CONSUMER.INFO.ORDERS.{name}")

    def config(self, name: str) -> dict[str, Any]:
        """Return a consumer's configuration."""
        config: dict[str, Any] = self.info(name)["config"]
        return config

    def names(self) -> list[str]:
        """Return the names of all consumers."""
        return list(self.raw.api("CONSUMER.NAMES.ORDERS")["consumers"] or ())

    def publish(self, *bodies: str, subject: str = "ORDERS.processed") -> None:
        """Store messages."""
        for answer in self.raw.requests(subject, [body.encode() for body in bodies]):
            assert b'"seq"' in answer, answer


@pytest.fixture
def orders(jsm: Jsm) -> Iterator[Orders]:
    """An empty stream ORDERS for ``ORDERS.*``, on the server that `jsm` uses."""
    with RawClient(jsm.server.port) as raw:
        yield Orders(raw)
