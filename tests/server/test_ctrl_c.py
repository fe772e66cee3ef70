"""Ctrl-C interrupts every waiting call, and the connection works afterwards."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.jetstream import publish as publishing

#: A number of opcodes that is not reached: the first pass only counts.
NEVER = 10**9


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Free what an interrupted call has left while the filters for its warnings are in use."""
    yield
    gc.collect()


def ours() -> list[str]:
    return [item.name for item in threading.enumerate() if item.name.startswith("nats-")]


@sends_ctrl_c
# A socket that was just created is freed with the interrupted frame.
@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["connect", "close", "drain"])
def test_connecting_and_closing_may_be_interrupted(nats_server, call):
    """An interrupted connect leaves nothing behind, and an interrupted close can be repeated."""
    before = ours()
    with jetstream_sync.connect(nats_server.url) as nc:
        interrupted(nc.drain, NEVER)
    interrupted(lambda: jetstream_sync.connect(nats_server.url).close(), NEVER)
    moment = 0
    went_off = True
    while went_off:
        moment += 1 + moment // 20  # the first opcodes, then fewer and fewer
        made: list[Connection] = []
        if call == "connect":
            went_off = interrupted(
                lambda: made.append(jetstream_sync.connect(nats_server.url)),  # noqa: B023
                moment,
            )
        else:
            made.append(jetstream_sync.connect(nats_server.url))
            sub = made[0].subscribe("ctrl_c.mine")
            went_off = interrupted(getattr(made[0], call), moment)
        for nc in made:
            nc.close()
            assert nc.is_closed
        if call == "close":
            assert not sub.is_valid
        wait_until(lambda: ours() == before)
    assert moment > 10


WAITING = {
    "next_msg": "sub.next_msg(timeout=None)",
    "iteration": "next(iter(sub))",
    "request": "nc.request('ctrl_c.silent', timeout=None)",
    "flush": "nc._core.writer._stream = None; nc.flush(timeout=None)",
    "fetch": "consumer.fetch(1, timeout=60)",
    "next": "consumer.next(timeout=60)",
    "messages": "next(iter(consumer.messages()))",
    "push": "js.subscribe('ctrl_c.stream').next_msg(timeout=60)",
    "publish": "js.publish('ctrl_c.silent', timeout=60)",
}

PROGRAM = """
import jetstream_sync
nc = jetstream_sync.connect({url!r})
js = nc.jetstream()
sub = nc.subscribe("ctrl_c.quiet")
silent = nc.subscribe("ctrl_c.silent")
if {name!r} in ("fetch", "next", "messages", "push"):
    stream = js.create_or_update_stream(name="CTRL_C", subjects=["ctrl_c.stream"])
    consumer = stream.create_consumer()
nc.flush()
try:
    print("waiting", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("name", WAITING)
def test_waiting_calls_are_interrupted(nats_server, name):
    """Every waiting call raises KeyboardInterrupt at once, and the program ends promptly."""
    program = PROGRAM.format(url=nats_server.url, name=name, call=WAITING[name])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"waiting\n"
        time.sleep(
            0.05
        )  # Preferably the call waits by now; otherwise it is interrupted just before.
        with within(2):
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == b"interrupted\n"
            assert child.wait(5 * SCALE) == 0


#: The programs import the package from where this process did.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
STORM = Path(__file__).with_name("ctrl_c_storm.py")


@pytest.mark.matrix
@pytest.mark.skipif(os.name != "posix", reason="timers that send signals are POSIX")
@pytest.mark.parametrize("seed", range(3))
def test_many_interrupts_corrupt_nothing(fresh_server, seed):
    """Hundreds of interrupted publishes, requests, flushes and fetches corrupt no bytes."""
    done = subprocess.run(
        [sys.executable, str(STORM), fresh_server.url, str(seed), "150"],
        capture_output=True,
        text=True,
        timeout=50 * SCALE,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("interrupted 150 times"), done.stdout


@sends_ctrl_c
@pytest.mark.parametrize("batch", [12, 50])
def test_an_interrupted_fetch_gives_its_messages_back(js, stream, batch):
    """The messages that an interrupted fetch has received are delivered again at once."""
    for _ in range(10):
        js.publish(f"{stream.name}.a", b"x")
    consumer = stream.create_consumer(durable_name="C", ack_wait=60)
    timer = threading.Timer(0.3 * SCALE, os.kill, [os.getpid(), signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with within(5), pytest.raises(KeyboardInterrupt):
            timer.start()
            consumer.fetch(batch, timeout=30)
    finally:
        signal.signal(signal.SIGINT, before)
    found = consumer.fetch(10, timeout=5)
    assert [msg.metadata.num_delivered for msg in found] == [2] * 10


@sends_ctrl_c
@pytest.mark.matrix
def test_an_interrupted_publisher_leaves_no_second_thread(nc, stream, monkeypatch):
    """The next message starts the thread for acknowledgements, and a thread whose start was interrupted ends."""
    monkeypatch.setattr(publishing, "_IDLE_CHECKS", NEVER)
    went_off = True
    moment = 0
    while went_off:
        moment += 1
        before = set(threading.enumerate())
        js = nc.jetstream()
        went_off = interrupted(lambda: js.publish_async(stream.name + ".a"), moment)  # noqa: B023
        js.publish_async(stream.name + ".a").result(5)
        wait_until(lambda: len(set(threading.enumerate()) - before) == 1)  # noqa: B023
    assert moment > 10
