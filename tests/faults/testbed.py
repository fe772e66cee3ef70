"""The servers and the networks of a run, and the actions of each fault."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from fixtures.faults import FaultProxy, Toward
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE

from jetstream_sync import Connection
from jetstream_sync.server import NatsCluster, NatsServer

from .plan import LINES, Fault
from .recorder import Recorder

__all__ = ["CONFIG", "STREAM", "Testbed"]

#: Every write is synced before its acknowledgement: a kill must lose nothing.
CONFIG: Final = "jetstream { sync_interval: always }\n"

STREAM = "FAULTS"

#: What an operator changes, and how it was before.
_CHANGES: Final[dict[str, dict[str, Any]]] = {
    "consumer edited": {"ack_wait": 3 * 10**9, "max_ack_pending": 500, "description": "edited"},
    "consumer paused": {},
    "stream edited": {"max_msg_size": 2**20, "description": "edited"},
}
_UNCHANGED: Final[dict[str, dict[str, Any]]] = {
    "consumer edited": {"ack_wait": 2 * 10**9, "max_ack_pending": 2000, "description": ""},
    "consumer paused": {"pause_until": None},
    "stream edited": {"max_msg_size": -1, "description": ""},
}


class Testbed:
    """
    Servers, with a proxy for each of them on each line.

    Args:
        recorder: where each fault is noted.
        cluster: three servers instead of one.
        seed: for choices that a fault leaves open, such as the server.

    """

    def __init__(self, recorder: Recorder, *, cluster: bool, seed: int) -> None:
        self._recorder = recorder
        self._cluster = NatsCluster(config=CONFIG) if cluster else None
        self.servers: tuple[NatsServer, ...] = (
            self._cluster.servers if self._cluster is not None else (NatsServer(config=CONFIG),)
        )
        self._rng = random.Random(f"testbed {seed}")
        #: The number of each kind of action.
        self.done: Counter[str] = Counter()
        self.connections: dict[str, Connection] = {}
        self.proxies: dict[str, list[FaultProxy]] = {}
        self._over = threading.Event()

    def start(self) -> None:
        if self._cluster is not None:
            self._cluster.start()
        else:
            self.servers[0].start()
        self.proxies = {
            line: [FaultProxy(server.port, small=line == "publishing") for server in self.servers]
            for line in LINES
        }

    def urls(self, line: str) -> list[str]:
        return [proxy.url for proxy in self.proxies[line]]

    # --- actions ----------------------------------------------------------------------------

    def follow(self, plan: list[Fault], tell: Callable[[str], None]) -> None:
        """Perform the actions of a track one after the other, until its end or `stop()`."""
        for fault in plan:
            if self._over.wait(fault.after):
                return
            tell(str(fault))
            with self._recorder.fault(*((fault.where,) if fault.where in LINES else ())):
                mend = self._do(fault)
                self.done[fault.kind] += 1
                self._over.wait(fault.lasts)
                mend()

    def wait(self, seconds: float) -> bool:
        """Wait for some time; return whether `stop()` was called meanwhile."""
        return self._over.wait(seconds)

    def stop(self) -> None:
        """Stop all actions, and repair what is broken."""
        self._over.set()

    def whole(self) -> None:
        """Repair everything."""
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.heal()
                proxy.accept()
        for server in self.servers:
            server.start()
        if self._cluster is not None:
            self._cluster.wait_ready(60 * SCALE)

    def _do(self, fault: Fault) -> Callable[[], object]:
        """Perform an action, and return the function that repairs it."""
        if fault.kind in {"kill", "stop", "pause"}:
            return self._to_server(fault)
        if fault.kind.endswith("steps down"):
            self._step_down(fault.kind)
            return lambda: None
        if fault.kind in _CHANGES:
            return self._change(fault)
        lines = LINES if fault.where == "all" else (fault.where,)
        if fault.kind == "reconnect":
            for line in lines:
                self.connections[line].reconnect()
            return lambda: None
        proxies = [proxy for line in lines for proxy in self.proxies[line]]
        for proxy in proxies:
            _to_network(proxy, fault)

        def mend() -> None:
            for proxy in proxies:
                proxy.heal()
                proxy.accept()

        return mend

    def _to_server(self, fault: Fault) -> Callable[[], object]:
        server = self._chosen(fault.where)
        if fault.kind == "pause":
            server.pause()
            return server.resume
        if fault.kind == "kill":
            server.kill()
        else:
            server.stop()

        def mend() -> None:
            server.start()
            if self._cluster is not None:
                # With three replicas, two missing ones are one too many.
                self._cluster.wait_ready(60 * SCALE)

        return mend

    def _chosen(self, where: str) -> NatsServer:
        if where == "connected":
            url = self.connections[LINES[1]].connected_url
            for proxy, server in zip(self.proxies[LINES[1]], self.servers, strict=True):
                if proxy.url == url:
                    return server
        if where == "stream leader":
            leader = None
            # During an election there are no responders; afterwards any server may be the leader.
            with contextlib.suppress(OSError, ValueError), self.raw() as raw:
                leader = raw.api(f"STREAM.INFO.{STREAM}").get("cluster", {}).get("leader")
            for server in self.servers:
                if server.name == leader:
                    return server
        return self._rng.choice(self.servers)

    def _step_down(self, kind: str) -> None:
        # A group that has just lost its leader has no responders; it steps down by itself.
        with contextlib.suppress(OSError, ValueError), self.raw() as raw:
            if kind.startswith("stream"):
                raw.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}")
                return
            for name in raw.api(f"CONSUMER.NAMES.{STREAM}").get("consumers") or ():
                raw.request(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{STREAM}.{name}")

    def _change(self, fault: Fault) -> Callable[[], object]:
        """Change a consumer or the stream as an operator does, and return what changes it back."""
        config = _CHANGES[fault.kind]
        if fault.kind == "consumer paused":
            end = datetime.now(timezone.utc) + timedelta(seconds=fault.lasts)
            config = {"pause_until": end.isoformat()}

        def change(fields: dict[str, Any]) -> None:
            # A stopped server, or a group without a leader, does not change anything.
            ignored = (OSError, ValueError, StopIteration, KeyError)
            with contextlib.suppress(*ignored), self.raw() as raw:
                if fault.kind == "stream edited":
                    info = raw.api(f"STREAM.INFO.{STREAM}")
                    raw.api(f"STREAM.UPDATE.{STREAM}", **{**info["config"], **fields})
                else:
                    name = f"{STREAM}.{fault.where}"
                    info = raw.api(f"CONSUMER.INFO.{name}")
                    raw.api(
                        f"CONSUMER.CREATE.{name}",
                        stream_name=STREAM,
                        config={**info["config"], **fields},
                        action="update",
                    )

        change(config)
        return lambda: change(_UNCHANGED[fault.kind])

    def raw(self) -> RawClient:
        """Return an independent connection to a running server, without the networks."""
        return RawClient(
            next(server for server in self.servers if server.is_running).port, 5 * SCALE
        )

    def close(self) -> None:
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.close()
        if self._cluster is not None:
            self._cluster.close()
        else:
            self.servers[0].close()


def _to_network(proxy: FaultProxy, fault: Fault) -> None:
    """Perform a network fault on one proxy."""
    up, down = (Toward.SERVER,), (Toward.CLIENT,)
    deeds: dict[str, Callable[[], object]] = {
        "cut": proxy.cut,
        "reset": lambda: proxy.cut(reset=True),
        "cut client only": lambda: proxy.cut(down),
        "reset client only": lambda: proxy.cut(down, reset=True),
        "reset server only": lambda: proxy.cut(up, reset=True),
        "half close": lambda: proxy.half_close(
            Toward.CLIENT if fault.lasts > 0.5 else Toward.SERVER
        ),
        "cut after": lambda: proxy.cut_after(
            fault.number,
            Toward.SERVER if fault.number % 2 else Toward.CLIENT,
            reset=fault.number % 3 == 0,
        ),
        "cut a write": lambda: proxy.cut_after(fault.number, Toward.SERVER),
        "stall": lambda: proxy.hold_after(fault.number, Toward.CLIENT),
        "hold": proxy.hold,
        "hold to client": lambda: proxy.hold(*down),
        "hold to server": lambda: proxy.hold(*up),
        "delay": lambda: proxy.slow(delay=min(fault.lasts, 0.3)),
        "fragments": lambda: proxy.slow(piece=fault.number),
        "trickle": lambda: proxy.slow(piece=1, pause=0.0005),
        "refuse": lambda: (proxy.refuse(), proxy.cut()),
    }
    deeds[fault.kind]()
