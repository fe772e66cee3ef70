"""A fake JetStream server: it records client commands, answers API requests, and delivers on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fix_proxy import Listener, ScriptedPeer
from fix_threads import SCALE
from typing_extensions import Self

from jetstream_sync import (
    AckPolicy,
    Connection,
    ConsumerConfig,
    ConsumerInfo,
    PullConsumer,
    SequenceInfo,
)
from jetstream_sync.api.routes import Routes
from jetstream_sync.durations import time_from_ns
from jetstream_sync.jetstream.api_requests import APIRequests

__all__ = ["ClientCommand", "FakeJetStream", "consumer_info", "consumer_of"]

_STATE = {"consumer_seq": 0, "stream_seq": 0}


def consumer_of(
    nc: Connection, name: str = "C", policy: AckPolicy = AckPolicy.EXPLICIT
) -> PullConsumer:
    """Return a consumer object without any request to the server."""
    nowhere = SequenceInfo(**_STATE)
    info = ConsumerInfo(
        stream_name="S",
        name=name,
        created=time_from_ns(0),
        config=ConsumerConfig(durable_name=name, ack_policy=policy),
        delivered=nowhere,
        ack_floor=nowhere,
        num_ack_pending=0,
        num_redelivered=0,
        num_waiting=0,
        num_pending=0,
    )
    return PullConsumer(APIRequests(nc._core, Routes.of(None, None), 5, caches=nc._caches), info)


class ClientCommand(NamedTuple):
    """One protocol command of a client."""

    verb: str
    subject: str
    rest: str
    """The queue group of a SUB, the reply subject of a PUB."""
    body: bytes


def consumer_info(name: str, config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a CONSUMER.INFO response as nats-server sends it."""
    return {
        "type": "io.nats.jetstream.api.v1.consumer_info_response",
        "stream_name": "S",
        "name": name,
        "created": "2024-01-01T00:00:00Z",
        "config": {"ack_policy": "explicit", "deliver_policy": "all", **config},
        "delivered": _STATE,
        "ack_floor": _STATE,
        "num_ack_pending": 0,
        "num_redelivered": 0,
        "num_waiting": 0,
        "num_pending": 0,
        **fields,
    }


class FakeJetStream:
    """
    A server for one client, which may reconnect.

    Args:
        answer: called with the subject of an API request, without ``$JS.API.``, and its decoded
            body; returns the response, or ``None`` to send none.

    """

    def __init__(self, answer: Callable[[str, Any], dict[str, Any] | None]) -> None:
        self._answer = answer
        self._received_one = threading.Condition()
        self._sids: dict[str, int] = {}
        self.links = 0
        self.subscribed: set[str] = set()
        """The subjects of the subscriptions on the current link."""
        self._peer: ScriptedPeer | None = None
        self.received: list[ClientCommand] = []
        """The commands of the client after the handshake, in order, without PINGs."""
        self._listener = Listener(self._serve)
        self.url = self._listener.url

    def _serve(self, peer: ScriptedPeer) -> None:
        peer.handshake()
        self._peer = peer
        self.links += 1
        self.subscribed.clear()
        while line := peer.line().decode():
            verb, *words = line.split()
            if verb == "PING":
                peer.send(b"PONG\r\n")
            elif verb == "SUB":
                self._record(
                    ClientCommand("SUB", words[0], words[1] if len(words) == 3 else "", b""), words
                )
            elif verb == "UNSUB":
                subject = next((s for s, sid in self._sids.items() if str(sid) == words[0]), "")
                if len(words) == 1:
                    self.subscribed.discard(subject)
                self._record(ClientCommand("UNSUB", subject, " ".join(words[1:]), b""))
            elif verb in {"PUB", "HPUB"}:
                body = peer.read(int(words[-1]) + 2)[:-2]
                sizes = 2 if verb == "HPUB" else 1
                reply = words[1] if len(words) == sizes + 2 else ""
                self._record(ClientCommand(verb, words[0], reply, body))
                self._respond(words[0], reply, body)

    def _record(self, command: ClientCommand, words: list[str] | None = None) -> None:
        with self._received_one:
            if words is not None:
                self._sids[words[0]] = int(words[-1])
                self.subscribed.add(words[0])
            self.received.append(command)
            self._received_one.notify_all()

    def _respond(self, subject: str, reply: str, body: bytes) -> None:
        if not reply or not subject.startswith("$JS.API."):
            return
        answer = self._answer(subject[8:], json.loads(body) if body else None)
        if answer is not None:
            self.deliver(reply, json.dumps(answer).encode())

    def deliver(
        self, subject: str, payload: bytes = b"", reply: str = "", header: bytes = b""
    ) -> None:
        """Deliver a message to the subscription of its subject, or to the reply inbox wildcard."""
        assert self._peer is not None
        self._peer.send(self.message(subject, payload, reply, header))

    def message(
        self, subject: str, payload: bytes = b"", reply: str = "", header: bytes = b""
    ) -> bytes:
        """Return the bytes of a message to a subscription."""
        sid = self._sids.get(subject) or self._sids[subject.rpartition(".")[0] + ".*"]
        reply = f"{reply} " if reply else ""
        if header:
            sizes = f"{len(header)} {len(header) + len(payload)}"
            return f"HMSG {subject} {sid} {reply}{sizes}\r\n".encode() + header + payload + b"\r\n"
        return f"MSG {subject} {sid} {reply}{len(payload)}\r\n".encode() + payload + b"\r\n"

    def send(self, data: bytes) -> None:
        """Send bytes, which may be many messages at once."""
        assert self._peer is not None
        self._peer.send(data)

    def hang_up(self) -> None:
        """Break the current link."""
        assert self._peer is not None
        self._peer.close()

    def wait_for(self, wanted: Callable[[ClientCommand], bool], number: int = 1) -> ClientCommand:
        """Wait until the client has sent that many matching commands, and return the last of them."""

        def found() -> list[ClientCommand]:
            return [command for command in self.received if wanted(command)]

        with self._received_one:
            assert self._received_one.wait_for(lambda: len(found()) >= number, 5 * SCALE), (
                self.received
            )
            return found()[number - 1]

    def published(self, subject: str) -> list[ClientCommand]:
        """Return the messages published to a subject so far."""
        return [item for item in self.received if "PUB" in item.verb and item.subject == subject]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._listener.__exit__(None, None, None)
