"""A JetStream that a test plays: it notes what a client says, answers its API, and delivers by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fix_proxy import Listener, ScriptedPeer
from fix_threads import SCALE
from typing_extensions import Self

__all__ = ["PlayedJetStream", "Said", "consumer_info"]

_STATE = {"consumer_seq": 0, "stream_seq": 0}


class Said(NamedTuple):
    """One thing that a client said."""

    verb: str
    subject: str
    rest: str
    """The queue group of a SUB, the reply subject of a PUB."""
    body: bytes


def consumer_info(name: str, config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """What nats-server says of a consumer."""
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


class PlayedJetStream:
    """
    The server of one client.

    Args:
        answer: called with the subject of an API request, without ``$JS.API.``, and its decoded
            body; returns the answer, or ``None`` to say nothing.

    """

    def __init__(self, answer: Callable[[str, Any], dict[str, Any] | None]) -> None:
        self._answer = answer
        self._heard = threading.Condition()
        self._sids: dict[str, int] = {}
        self._puppet: ScriptedPeer | None = None
        self.said: list[Said] = []
        """What the client said after the handshake, in order, without PINGs."""
        self._listener = Listener(self._play)
        self.url = self._listener.url

    def _play(self, puppet: ScriptedPeer) -> None:
        puppet.shake_hands()
        self._puppet = puppet
        while line := puppet.line().decode():
            verb, *words = line.split()
            if verb == "PING":
                puppet.say(b"PONG\r\n")
            elif verb == "SUB":
                self._note(Said("SUB", words[0], words[1] if len(words) == 3 else "", b""), words)
            elif verb == "UNSUB":
                subject = next((s for s, sid in self._sids.items() if str(sid) == words[0]), "")
                self._note(Said("UNSUB", subject, " ".join(words[1:]), b""))
            elif verb in {"PUB", "HPUB"}:
                body = puppet.read(int(words[-1]) + 2)[:-2]
                sizes = 2 if verb == "HPUB" else 1
                reply = words[1] if len(words) == sizes + 2 else ""
                self._note(Said(verb, words[0], reply, body))
                self._respond(words[0], reply, body)

    def _note(self, said: Said, words: list[str] | None = None) -> None:
        with self._heard:
            if words is not None:
                self._sids[words[0]] = int(words[-1])
            self.said.append(said)
            self._heard.notify_all()

    def _respond(self, subject: str, reply: str, body: bytes) -> None:
        if not reply or not subject.startswith("$JS.API."):
            return
        answer = self._answer(subject[8:], json.loads(body) if body else None)
        if answer is not None:
            self.deliver(reply, json.dumps(answer).encode())

    def deliver(
        self, subject: str, payload: bytes = b"", reply: str = "", header: bytes = b""
    ) -> None:
        """Deliver a message to the subscription of its subject, or of its mux."""
        assert self._puppet is not None
        self._puppet.say(self.message(subject, payload, reply, header))

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

    def say(self, data: bytes) -> None:
        """Say bytes, which may be many messages at once."""
        assert self._puppet is not None
        self._puppet.say(data)

    def wait_for(self, wanted: Callable[[Said], bool], number: int = 1) -> Said:
        """Wait until the client has said so many things that fit, and return the last of them."""

        def found() -> list[Said]:
            return [said for said in self.said if wanted(said)]

        with self._heard:
            assert self._heard.wait_for(lambda: len(found()) >= number, 5 * SCALE), self.said
            return found()[number - 1]

    def published(self, subject: str) -> list[Said]:
        """Return what was published to a subject so far."""
        return [said for said in self.said if "PUB" in said.verb and said.subject == subject]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._listener.__exit__(None, None, None)
