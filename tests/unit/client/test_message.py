"""Messages without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync import Msg, Status


def message(header: bytes, data: bytes = b"") -> Msg:
    core: Any = None
    return Msg((b"a.b", b"", header, data), core)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "status", "headers"),
    [
        (b"", None, None),
        (b"NATS/1.0\r\nA: b\r\n\r\n", None, {"A": "b"}),
        (b"NATS/1.0 503\r\n\r\n", Status(503, ""), None),
        (b"NATS/1.0 404 No Messages\r\n\r\n", Status(404, "No Messages"), None),
        (
            b"NATS/1.0 408 Timeout\r\nNats-Pending-Messages: 3\r\n\r\n",
            Status(408, "Timeout"),
            {"Nats-Pending-Messages": "3"},
        ),
    ],
)
def test_status_and_headers(header, status, headers):
    """The status is available with and without headers, before and after they are read."""
    for first in ("status", "headers"):
        msg = message(header)
        getattr(msg, first)
        assert msg.status == status
        assert msg.headers == headers
        assert msg.status == status


def test_headers_are_read_once():
    """The parsed headers are the same object each time."""
    msg = message(b"NATS/1.0\r\nA: b\r\n\r\n")
    assert msg.headers is msg.headers
