"""The error texts on ``docs/howto/troubleshooting.rst`` are the real ones."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync.errors import Error, OutboundBufferLimitError, SlowConsumerError
from jetstream_sync.server import NatsServer

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "troubleshooting.rst"
TEXTS = re.findall(r"^``(.+?)``$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

_ACCOUNTS = """
accounts {
  PLAIN { users: [{user: plain, password: p}] }
  SHOP { jetstream: enabled, users: [
    {user: guest, password: p, permissions: {publish: {deny: ["ORDERS.received"]}}}
  ] }
}
"""


def text_of(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises, with the address of the page."""
    with pytest.raises(Error) as caught:
        call()
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:4222", str(caught.value))


def on_the_page(text: str) -> bool:
    return any(text.startswith(item) or text.endswith(item) for item in TEXTS)


def test_texts_of_connecting(nats_server):
    """The page explains each reason for a failed connection."""
    url = nats_server.url
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        tried = [lambda: jetstream_sync.connect(f"nats://127.0.0.1:{port}", connect_timeout=0.2)]
        assert on_the_page(text_of(tried[0]))
    with NatsServer(config="authorization { user: alice, password: secret }") as guarded:
        assert on_the_page(text_of(lambda: jetstream_sync.connect(guarded.url)))
    assert on_the_page(text_of(lambda: jetstream_sync.connect(f"nats://127.0.0.1:{port}")))
    assert on_the_page(
        text_of(lambda: jetstream_sync.connect(url.replace("nats:", "tls:"))).partition(": ")[2]
    )


def test_texts_of_accounts():
    """The page has the errors of an account without JetStream, and of a missing permission."""
    with NatsServer(config=_ACCOUNTS) as server:
        with jetstream_sync.connect(server.url, user="plain", password="p") as nc:
            assert on_the_page(text_of(lambda: nc.jetstream().create_stream(name="A")))
        with jetstream_sync.connect(
            server.url, user="guest", password="p", error_cb=lambda _: None
        ) as nc:
            assert on_the_page(text_of(lambda: nc.jetstream().publish("ORDERS.received", b"")))


def test_texts_of_publishing(nc, js):
    """The page has the texts of failed publishes."""
    js.create_stream(name="SHOP", subjects=["shop.*"], max_msgs=1, discard="new")
    js.publish("shop.a", b"")
    for call in (
        lambda: js.publish("ORDERS.received", b""),
        lambda: js.publish("shop.a", b""),
        lambda: js.publish("shop.a", b"", msg_ttl=5),
    ):
        assert on_the_page(text_of(call))
    assert nc.max_payload == 1048576
    assert on_the_page(text_of(lambda: js.publish("shop.a", bytes(2_000_000))))


def test_texts_of_managing_and_reading(js):
    """The page has the texts of refused operations on streams and consumers."""
    js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    js.create_stream(name="JOBS", subjects=["jobs.*"], retention="workqueue")
    js.create_consumer("JOBS", durable_name="A")
    consumer = js.create_consumer("ORDERS", durable_name="NEW")
    calls: list[Callable[[], object]] = [
        lambda: js.create_stream(name="ORDERS", subjects=["ORDERS.>"]),
        lambda: js.create_stream(name="MORE", subjects=["ORDERS.new"]),
        lambda: js.create_consumer("ORDERS", durable_name="NEW", ack_wait=5),
        lambda: js.create_consumer("JOBS", durable_name="B"),
        lambda: js.get_stream("NOPE"),
        lambda: js.get_consumer("ORDERS", "NOPE"),
        lambda: consumer.next(timeout=0.1),
    ]
    for call in calls[:-1]:
        assert on_the_page(text_of(call))
    assert f"``{text_of(calls[-1])}``" in PAGE.read_text(encoding="utf-8")
    js.publish("ORDERS.received", b"")
    message = consumer.next(timeout=5.0)
    message.ack()
    assert on_the_page(text_of(message.ack))


def test_texts_of_connections_that_cannot_be_used(nats_server):
    """The page has the errors after a fork, after a close, and of a full buffer."""
    nc = jetstream_sync.connect(nats_server.url)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            nc.publish("a", b"")
        except Error as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert on_the_page(os.read(reading, 1000).decode())
    os.close(reading)
    os.close(writing)
    nc.close()
    assert on_the_page(text_of(lambda: nc.publish("a", b"")))
    assert on_the_page(str(OutboundBufferLimitError(2 * 1024 * 1024)))
    assert on_the_page(str(SlowConsumerError("ORDERS.*", 1, 1)))
