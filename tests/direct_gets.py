"""Direct gets that the test answers, while the rest of the API is the server's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jetstream_sync import Connection, Msg, connect
from jetstream_sync.server import NatsServer

__all__ = ["scripted", "send_block", "send_end", "send_msg"]


@contextmanager
def scripted(
    server: NatsServer, answer: Callable[[Connection, Msg, int], None]
) -> Iterator[Connection]:
    """Answer direct gets below the prefix FAKE; forward the other requests to JetStream."""
    with connect(server.url) as nc, connect(server.url) as forwarding, connect(server.url) as user:
        asked = 0

        def take(msg: Msg) -> None:
            nonlocal asked
            if ".DIRECT.GET." in msg.subject:
                asked += 1
                answer(nc, msg, asked)
            else:
                subject = msg.subject.replace("FAKE", "$JS.API", 1)
                msg.respond(forwarding.request(subject, msg.data, 5).data)

        sub = nc.subscribe("FAKE.>", cb=take)
        nc.flush()
        yield user
        sub.unsubscribe()


def send_msg(nc: Connection, msg: Msg, seq: int, pending: int | None) -> None:
    """Send a message of an answer, with the number of those that follow."""
    headers = {
        "Nats-Stream": "S",
        "Nats-Subject": f"s.{seq}",
        "Nats-Sequence": str(seq),
        "Nats-Time-Stamp": "2026-01-15T10:00:00Z",
    }
    if pending is not None:
        headers |= {"Nats-Num-Pending": str(pending), "Nats-Last-Sequence": "0"}
    nc.publish(msg.reply, b"%d" % seq, headers=headers)


def send_end(nc: Connection, msg: Msg, up_to: int = 9) -> None:
    """Send the status that ends an answer."""
    block = (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\n"
        b"Nats-UpTo-Sequence: %d\r\n\r\n" % up_to
    )
    send_block(nc, msg, block)


def send_block(nc: Connection, msg: Msg, block: bytes) -> None:
    """Send a header block as it is."""
    reply = msg.reply.encode()
    core = nc._core  # a status cannot be published otherwise
    core.send(b"HPUB %s %d %d\r\n%s\r\n" % (reply, len(block), len(block), block), 1, 0)
