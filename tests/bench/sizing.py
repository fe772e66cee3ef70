"""
Measure what a fleet costs the server, and simulate fleets of 10,000 clients and 1,000 workers.

Run it from the project's root, with simpy installed::

    python -m tests.bench.sizing measure             # the costs at a real server, six minutes
    python -m tests.bench.sizing restart             # 10,000 clients whose server restarts
    python -m tests.bench.sizing restart --tls
    python -m tests.bench.sizing restart --clients 1000 --readers 0 --handlers 50    # workers

``measure`` prints the processor time of nats-server for each request, and the messages that an idle
client, reader or worker exchanges with it. The simulation takes these numbers from `COSTS_US`. It
models the server as one queue that works for a number of cores, and the clients with the delays of
the package, which are read from its modules.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.client import connector
from jetstream_sync.jetstream import ordered_cursor
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

from ..fixtures.rawnats import RawClient
from .report import align, measured_copy, processor_seconds_of

#: Processor time of nats-server for each request, in microseconds, as ``measure`` prints it.
COSTS_US: Final = {
    "connect": 330.0,
    "connect_tls": 1_100.0,  # with a certificate for ECDSA; RSA: 2,400
    "subscribe": 3.0,
    "pull": 4.0,
    "create": 156.0,
    "info": 45.0,
}

# --- measurements -------------------------------------------------------------------------------

_STREAM = "SIZING"
#: A stream with ephemeral consumers, of which a server allows 1,000 by default.
_OTHER = "SIZING_OTHER"
_CREATE = {
    "ack_policy": "none",
    "mem_storage": True,
    "num_replicas": 1,
    "inactive_threshold": 10**11,
}


def _costs(server: NatsServer, raw: RawClient) -> Iterator[tuple[str, float]]:
    """Yield the processor microseconds of the server for each kind of request."""

    def cost(work: Callable[[], object], count: int) -> float:
        before = processor_seconds_of(server.pid) or 0.0
        work()
        return ((processor_seconds_of(server.pid) or 0.0) - before) / count * 1e6

    def connect() -> None:
        for _ in range(1_000):
            RawClient(server.port).close()

    def ask(subject: str, body: dict[str, Any], count: int) -> Callable[[], object]:
        payload = json.dumps(body).encode() if body else b""
        return lambda: [raw.requests(subject, [payload] * 100) for _ in range(count // 100)]

    yield "a connection: open, log in, close", cost(connect, 1_000)
    yield (
        "an ordered or ephemeral consumer: create",
        cost(
            ask(
                f"$JS.API.CONSUMER.CREATE.{_OTHER}", {"stream_name": _OTHER, "config": _CREATE}, 900
            ),
            900,
        ),
    )
    yield "a consumer info", cost(ask(f"$JS.API.CONSUMER.INFO.{_STREAM}.pull", {}, 5_000), 5_000)
    yield "a stream info", cost(ask(f"$JS.API.STREAM.INFO.{_STREAM}", {}, 5_000), 5_000)
    no_wait = {"batch": 1, "no_wait": True}
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.pull"
    yield "a pull request without a message", cost(ask(subject, no_wait, 5_000), 5_000)
    yield (
        "a published message of 128 bytes",
        cost(lambda: [raw.requests("sizing.m", [b"x" * 128] * 100) for _ in range(100)], 10_000),
    )
    yield "a direct get", cost(ask(f"$JS.API.DIRECT.GET.{_STREAM}.sizing.m", {}, 5_000), 5_000)


_IDLE_S: Final = 45.0


class _Traffic:
    """Counts the messages of the account by the first tokens of their subjects."""

    def __init__(self, nc: Connection) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        nc.subscribe(">", cb=self._count)
        nc.flush()

    def _count(self, msg: jetstream_sync.Msg) -> None:
        tokens = msg.subject.split(".")
        name = ".".join(tokens[2:5]) if tokens[0] == "$JS" else tokens[0]
        kind = ".".join(part for part in name.split(".") if part.isupper() and part != _STREAM)
        with self._lock:
            self.counts[kind or "replies and heartbeats"] += 1


@contextmanager
def _idle(server: NatsServer, kind: str) -> Iterator[None]:
    with ExitStack() as stack:
        nc = stack.enter_context(jetstream_sync.connect(server.url))
        js = nc.jetstream()
        if kind == "a consumer that reads with messages()":
            messages = js.get_consumer(_STREAM, "idle").messages()
            stack.callback(messages.stop)
            threading.Thread(target=lambda: list(messages), daemon=True).start()
        elif kind == "an ordered consumer":
            ordered = js.ordered_consumer(_STREAM).messages()
            stack.callback(ordered.stop)
            threading.Thread(target=lambda: list(ordered), daemon=True).start()
        elif kind == "a watch of a bucket":
            handle = js.key_value("SIZING").watch(">")
            stack.callback(handle.stop)
            threading.Thread(target=lambda: list(handle), daemon=True).start()
        elif kind.startswith("a worker"):
            worker = Worker(server.url, name="sizing")
            for number in range(50 if "50 handlers" in kind else 1):
                worker.handler(stream=_STREAM, consumer=f"worker{number}")(_nothing)
            if "tasks" in kind:
                worker.handlers.clear()
                for number in range(50):
                    worker.task(name=f"task{number}")(_nothing)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(worker.stop)
        yield


def _nothing(*_: object) -> None:
    """Handle a message."""


def measure() -> None:
    """Print the costs of requests, and the traffic of idle clients."""
    with NatsServer() as server, RawClient(server.port, 30) as raw:
        raw.api(
            f"STREAM.CREATE.{_STREAM}",
            name=_STREAM,
            subjects=["sizing.>"],
            storage="memory",
            allow_direct=True,
        )
        raw.api(f"STREAM.CREATE.{_OTHER}", name=_OTHER, subjects=["other"], storage="memory")
        for name in ("pull", "idle"):
            raw.api(
                f"CONSUMER.DURABLE.CREATE.{_STREAM}.{name}",
                stream_name=_STREAM,
                config={"durable_name": name, "ack_policy": "explicit"},
            )
        print(measured_copy())
        lines = [["", "µs"]]
        lines += [[what, f"{value:,.0f}"] for what, value in _costs(server, raw)]
        print(align(lines), "\n", flush=True)
        raw.api(f"STREAM.DELETE.{_OTHER}")
        raw.api(f"STREAM.PURGE.{_STREAM}")
        with jetstream_sync.connect(server.url) as nc:
            nc.jetstream().create_key_value(bucket="SIZING")
        rows = [["idle, for one minute", "messages", "kinds"]]
        for kind in (
            "a connection",
            "a consumer that reads with messages()",
            "an ordered consumer",
            "a watch of a bucket",
            "a worker with one handler",
            "a worker with 50 handlers",
            "a worker with 50 tasks",
        ):
            with _idle(server, kind), jetstream_sync.connect(server.url) as nc:
                time.sleep(3.0)  # the start
                traffic = _Traffic(nc)
                time.sleep(_IDLE_S)
                found = {name: count * 60 / _IDLE_S for name, count in traffic.counts.items()}
            text = ", ".join(f"{name} {count:.0f}" for name, count in sorted(found.items()))
            rows.append([kind, f"{sum(found.values()):.0f}", text])
        print(align(rows))
        rss = Path(f"/proc/{server.pid}/statm")
        before = int(rss.read_text().split()[1])
        with ExitStack() as stack:
            for _ in range(500):
                stack.enter_context(RawClient(server.port))
            grown = (int(rss.read_text().split()[1]) - before) * 4 / 500
        print(f"\nmemory of the server for a connection: {grown:.0f} KiB")


# --- the restart of a server --------------------------------------------------------------------


@dataclass
class Load:
    """What each client has: readers, whose consumers are created again, and handlers of a worker."""

    readers: int
    handlers: int


@dataclass
class Rules:
    """The delays of a client."""

    wait: float = 2.0
    jitter: float = 0.1
    #: Largest jitter of a client whose attempts time out; the jitter doubles with each round.
    max_jitter: float = 0.1
    connect_timeout: float = 2.0
    create_timeout: float = 2.0
    max_create_timeout: float = 10.0


@dataclass
class Fleet:
    """What happened to the clients of a simulation, by second."""

    connected: Counter[int] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    created: Counter[int] = field(default_factory=Counter)
    create_requests: Counter[int] = field(default_factory=Counter)
    ready: list[float] = field(default_factory=list)


class _Server:
    """One queue for the work of all cores; work whose client has gone is done all the same."""

    def __init__(self, env: Any, cores: float, up_at: float) -> None:
        self._env = env
        self._cores = cores
        self._free_at = up_at
        self.up_at = up_at
        self.busy: Counter[int] = Counter()

    def reply_at(self, cost_us: float) -> float:
        """Enqueue a request; return when it is answered."""
        start = max(self._env.now, self._free_at)
        self._free_at = start + cost_us / 1e6 / self._cores
        self.busy[int(start)] += int(cost_us)
        return self._free_at


def _client(
    env: Any, server: _Server, rules: Rules, fleet: Fleet, *, load: Load, tls: bool
) -> Generator[Any, Any, None]:
    slow = 0
    connect = COSTS_US["connect_tls" if tls else "connect"]
    while True:
        fleet.attempts[int(env.now)] += 1
        if env.now >= server.up_at:
            done = server.reply_at(connect)
            if done <= env.now + rules.connect_timeout:
                yield env.timeout(done - env.now)
                break
            yield env.timeout(rules.connect_timeout)
            slow += 1
        jitter = min(rules.jitter * 2**slow, max(rules.jitter, rules.max_jitter))
        yield env.timeout(rules.wait + random.uniform(0, jitter))
    fleet.connected[int(env.now)] += 1
    subscriptions = 3 + load.readers + load.handlers
    server.reply_at(subscriptions * COSTS_US["subscribe"])
    server.reply_at(load.handlers * (COSTS_US["pull"] + COSTS_US["info"]))
    for _ in range(load.readers):
        timeout = rules.create_timeout
        while True:
            fleet.create_requests[int(env.now)] += 1
            done = server.reply_at(COSTS_US["create"])
            if done <= env.now + timeout:
                yield env.timeout(done - env.now)
                break
            yield env.timeout(timeout)
            timeout = min(2 * timeout, rules.max_create_timeout)
        fleet.created[int(env.now)] += 1
    fleet.ready.append(env.now)


def restart(
    clients: int, down: float, cores: float, rules: Rules, *, load: Load, tls: bool
) -> Fleet:
    """Simulate clients whose server is down for a time; print the seconds after it."""
    import simpy  # the measurements do not need it

    random.seed(1)
    env = simpy.Environment()
    server, fleet = _Server(env, cores, down), Fleet()
    for _ in range(clients):
        env.process(_client(env, server, rules, fleet, load=load, tls=tls))
    env.run(until=600)
    columns = (fleet.attempts, fleet.connected, fleet.create_requests, fleet.created)
    last = int(max(fleet.ready, default=0)) + 1
    print(
        align(
            [
                ["second", "attempts", "connected", "creations asked", "created", "server busy"],
                *(
                    [
                        str(second),
                        *(f"{counts[second]:,}" for counts in columns),
                        f"{server.busy[second] / 1e6 / cores:.0%}",
                    ]
                    for second in [*range(int(down), min(last, int(down) + 20)), last]
                ),
            ]
        )
    )
    times = sorted(fleet.ready)
    attempts, creations = sum(fleet.attempts.values()), sum(fleet.create_requests.values())
    print(
        f"{len(times):,} of {clients:,} are ready; half of them {times[len(times) // 2] - down:.1f} s, "
        f"all {times[-1] - down:.1f} s after the server was up; {attempts / clients:.1f} attempts and "
        f"{creations / clients:.1f} creations for each\n"
        if times
        else "no client got ready\n"
    )
    return fleet


def _rules_of_package(*, tls: bool) -> Rules:
    return Rules(
        jitter=connector._JITTER_TLS_S if tls else connector._JITTER_S,
        max_jitter=connector._MAX_JITTER_S,
        create_timeout=ordered_cursor._FIRST_CREATE_TIMEOUT_S,
        max_create_timeout=ordered_cursor._MAX_CREATE_TIMEOUT_S,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sizing")
    parser.add_argument("part", choices=["measure", "restart"])
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--down", type=float, default=5.0, help="seconds without the server")
    parser.add_argument("--cores", type=float, default=1.0, help="cores of the server")
    parser.add_argument("--readers", type=int, default=1, help="ordered consumers of a client")
    parser.add_argument("--handlers", type=int, default=0, help="handlers of a client, a worker")
    parser.add_argument("--max-jitter", type=float, help="instead of the limit of the package")
    chosen = parser.parse_args(arguments)
    if chosen.part == "measure":
        measure()
        return
    rules = _rules_of_package(tls=chosen.tls)
    if chosen.max_jitter is not None:
        rules.max_jitter = chosen.max_jitter
    load = Load(chosen.readers, chosen.handlers)
    restart(chosen.clients, chosen.down, chosen.cores, rules, load=load, tls=chosen.tls)


if __name__ == "__main__":
    main()
