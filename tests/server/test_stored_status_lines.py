"""Messages of other clients that look like a status of the server: readers return them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE

from jetstream_sync import JetStream, Stream
from jetstream_sync.server import NatsServer

#: What a server would send to a pull request or a push subscription.
LINES = ["404 No Messages", "409 Consumer Deleted", "100 Idle Heartbeat", "503", "423"]


def fetched(_: JetStream, stream: Stream) -> list[str]:
    messages = stream.create_consumer().fetch(3, timeout=5 * SCALE)
    return [message.subject for message in messages]


def iterated(_: JetStream, stream: Stream) -> list[str]:
    with stream.create_consumer().messages() as messages:
        return [messages.next(5 * SCALE).subject for _ in range(3)]


def in_order(_: JetStream, stream: Stream) -> list[str]:
    with stream.ordered_consumer().messages() as messages:
        return [messages.next(5 * SCALE).subject for _ in range(3)]


def pushed(js: JetStream, stream: Stream) -> list[str]:
    with js.subscribe(stream=stream.name) as messages:
        return [messages.next_msg(5 * SCALE).subject for _ in range(3)]


def got(_: JetStream, stream: Stream) -> list[str]:
    return [stream.get_msg(seq).subject for seq in (1, 2, 3)]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("read", [fetched, iterated, in_order, pushed, got])
def test_a_stored_status_line_is_a_message(
    nats_server: NatsServer,
    js: JetStream,
    stream_name: str,
    read: Callable[[JetStream, Stream], list[str]],
    line: str,
) -> None:
    """Servers before 2.12 store the line; no reader stops at the message, or leaves it out."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], allow_direct=True)
    js.publish(f"{stream_name}.1", b"data")
    header = f"NATS/1.0 {line}\r\n\r\n".encode()
    client = RawClient(nats_server.port)
    client.send(
        b"HPUB %s.2 %d %d\r\n%s\r\nPING\r\n"
        % (stream_name.encode(), len(header), len(header), header)
    )
    client.expect(b"PONG\r\n")
    client.close()
    js.publish(f"{stream_name}.3", b"data")
    assert read(js, stream) == [f"{stream_name}.{number}" for number in (1, 2, 3)]
