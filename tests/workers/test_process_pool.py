"""Handlers in processes of their own: crashes, timeouts, and what crosses the pipe."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from fixtures.apps import Program
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until, within
from fixtures.worker import WorkerProgram, dead_letters, exists, is_settled, publish_texts

from jetstream_sync import InvalidOptionError, JetStream
from jetstream_sync.workers import Worker
from jetstream_sync.workers.runtime import child, processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")


def dead_letter(js: JetStream, payload: bytes) -> dict[str, str]:
    """Return the headers of the dead letter with a payload."""
    dead = js.get_stream("DEAD")
    for seq in range(1, dead.info().state.last_seq + 1):
        msg = dead.get_msg(seq=seq)
        if msg.data == payload and msg.headers is not None:
            return dict(msg.headers)
    raise AssertionError(f"no dead letter {payload!r}")


def is_running(pid: int) -> bool:
    """Return whether a process exists that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_crash_or_a_hang_fails_only_its_message(js, stream, nats_server, tmp_path):
    """
    A segmentation fault, and a loop that is longer than the timeout, fail one message each.

    Others that run at that time are handled once; their leases are renewed, also while a handler
    keeps the interpreter for itself.
    """
    code = f"""
import faulthandler, re
worker = Worker(name="pool", dead_letters="DEAD")

@worker.handler(
    stream={stream.name!r}, consumer="C", concurrency=6, pool="processes", ack_wait=3, decode="text",
    retry=Backoff(first=0.1, attempts=1),
)
def handle(data, ctx: Context):
    record(f"{{os.getpid()}} {{data}} {{ctx.attempt}}")
    if data == "crash":
        faulthandler._sigsegv()
    elif data in ("loop", "lock"):
        ctx.extend(1)
        while data == "loop":
            pass
        re.match("(a+)+$", 60 * "a" + "b")  # keeps the GIL
    elif data == "exit":
        os._exit(7)
    time.sleep(3.5)  # longer than the lease
"""
    publish_texts(js, stream, "1", "2", "3", "crash", "loop", "lock")
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        worker.wait_runs(6)
        with within(5):
            wait_until(lambda: dead_letters(js) == 3)
        publish_texts(js, stream, "exit")
        wait_until(lambda: is_settled(stream), 20)
        pids = [int(line.split()[0]) for line in worker.runs]
        worker.stop()
        assert not any(exists(pid) for pid in pids)
        assert worker.output.count("(most recent call first)") >= 2  # where the two hang
        assert sorted(line.split()[1] for line in worker.runs) == sorted(
            ["1", "2", "3", "crash", "loop", "lock", "exit"]
        )
    assert stream.consumer_info("C").delivered.consumer_seq == 7
    crash = dead_letter(js, b"crash")
    assert crash["Dead-Error"] == "WorkerCrashedError"
    assert crash["Dead-Reason"] == "the process of the handler ended with signal SIGSEGV"
    assert dead_letter(js, b"exit")["Dead-Reason"].endswith("ended with exit status 7")
    for payload in (b"loop", b"lock"):
        assert dead_letter(js, payload)["Dead-Error"] == "HandlerTimeoutError"


def test_a_suspended_process_does_not_read_its_message(js, stream, nats_server, tmp_path):
    """A message that is larger than the pipe waits to be written; the timeout ends that, and the process."""
    code = f"""
from jetstream_sync.workers.runtime import processes
processes._KILL_GRACE_S = 1.0
worker = Worker(name="pool", dead_letters="DEAD")

@worker.handler(
    stream={stream.name!r}, consumer="C", concurrency=1, pool="processes", timeout=1,
    retry=Backoff(first=0.1, attempts=2),
)
def handle(data):
    record(f"{{os.getpid()}} {{len(data)}}")
"""
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        publish_texts(js, stream, "1")
        before = int(worker.wait_runs(1)[0].split()[0])
        os.kill(before, signal.SIGSTOP)
        js.publish(f"{stream.name}.a", bytes(900_000))
        pid, size = worker.wait_runs(2)[1].split()
        assert (int(pid) != before, size) == (True, "900000")
        assert not exists(before)
        wait_until(lambda: is_settled(stream))


def test_a_context_works_in_a_process(js, stream, nats_server, tmp_path):
    """What a handler asks is answered by the worker; middleware runs in the process, too."""
    code = f"""
from jetstream_sync import BadSubjectError, InvalidOptionError, NoStreamResponseError

def around(call, ctx):
    record(f"before {{os.getpid() == int(os.environ['PARENT'])}}")
    try:
        return call()
    finally:
        record("after")

os.environ.setdefault("PARENT", str(os.getpid()))
worker = Worker(name="pool", middleware=[around])

@worker.handler(
    stream={stream.name!r}, consumer="C", filter_subject="{stream.name}.in", pool="processes",
    retry=Backoff(first=0.1, factor=1, attempts=3), timeout=30,
)
def handle(data, ctx):
    msg = ctx.message
    record((data, msg.data, msg.subject, msg.headers["A"], msg.metadata.stream_seq, ctx.attempt))
    left = ctx.deadline.timestamp() - time.time()
    ctx.extend(100)
    record((20 < left <= 30, 90 < ctx.deadline.timestamp() - time.time() <= 100))
    ctx.check()
    record((ctx.lease_lost, ctx.stopping))
    record([ctx.publish("{stream.name}.out", b"x").duplicate for _ in range(2)])
    for use in (
        lambda: ctx.publish("no.such.stream", b"", timeout=1),
        lambda: ctx.publish("a b", b""),
        lambda: ctx.publish("{stream.name}.out", b"", headers={{"A": lambda: 0}}),
        msg.nak,
    ):
        try:
            use()
        except (NoStreamResponseError, BadSubjectError, InvalidOptionError) as error:
            record(type(error).__name__)
    ctx.log.info("forwarded")
    if ctx.attempt == 1:
        raise ValueError("again")
    ctx.ack()
    ctx.ack()
    record("acked")
"""
    js.publish(f"{stream.name}.in", b"tea", headers={"A": "b"})
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        worker.wait_for("forwarded")
        wait_until(lambda: worker.runs and worker.runs[-1] == "after" and len(worker.runs) > 20)
        wait_until(lambda: is_settled(stream))
        runs = worker.runs
        assert "INFO forwarded" in worker.output
        assert "in handle\n" in worker.output  # the traceback of the process
    run = [
        "before False",
        f"(b'tea', b'tea', '{stream.name}.in', 'b', 1, 1)",
        "(True, True)",
        "(False, False)",
        "[False, False]",
        "NoStreamResponseError",
        "BadSubjectError",
        "InvalidOptionError",
        "InvalidOptionError",
        "after",
    ]
    second = [
        line.replace("1, 1)", "1, 2)").replace("[False, False]", "[True, True]") for line in run
    ]
    second.insert(-1, "acked")
    assert runs == run + second
    assert stream.consumer_info("C").delivered.consumer_seq == 2


def test_errors_keep_their_classes(js, stream, nats_server, tmp_path):
    """Errors decide about retries as in a thread, also those that cannot be sent as they are."""
    code = f"""
class Refused(Exception):
    pass

class Unpicklable(Refused):
    def __init__(self, a, b):
        super().__init__("two arguments")

worker = Worker(name="pool", dead_letters="DEAD")

@worker.handler(
    stream={stream.name!r}, consumer="C", pool="processes", decode="json",
    retry=Backoff(first=0.1, factor=1, attempts=2), reject_on=[Refused], retry_on=[OSError],
)
def handle(name, ctx):
    record(f"{{name}} {{ctx.attempt}}")
    class Local(OSError):
        pass
    if name == "exit":
        sys.exit("done")
    raise {{
        "refused": Refused("no"), "unpicklable": Unpicklable(1, 2), "local": Local("a local class"),
        "reject": Reject("no"), "retry": Retry("later", delay=0.2), "value": ValueError("no"),
    }}[name]
"""
    names = ("refused", "unpicklable", "local", "reject", "retry", "value", "exit", "bad")
    publish_texts(js, stream, *(f'"{name}"' if name != "bad" else "{" for name in names))
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        wait_until(lambda: dead_letters(js) == 8, 20)
        assert sorted(worker.runs) == sorted(
            [f"{name} 1" for name in names if name != "bad"] + ["local 2", "retry 2"]
        )
    found = {name: dead_letter(js, f'"{name}"'.encode()) for name in names if name != "bad"}
    assert {name: (item["Dead-Error"], item["Dead-Reason"]) for name, item in found.items()} == {
        "refused": ("Refused", "no"),
        "unpicklable": ("Unpicklable", "two arguments"),
        "local": ("Local", "a local class"),
        "reject": ("Reject", "no"),
        "retry": ("Retry", "later"),
        "value": ("ValueError", "no"),
        "exit": ("SystemExit", "done"),
    }
    assert dead_letter(js, b"{")["Dead-Error"] == "DecodeError"


def test_ctrl_c_lets_handlers_in_processes_finish(js, stream, nats_server, tmp_path):
    """Signals of the terminal do not reach a handler; a second one kills its process."""
    code = f"""
worker = Worker(name="pool", drain_timeout=60)

@worker.handler(stream={stream.name!r}, consumer="C", pool="processes", ack_wait=60)
def handle():
    record(os.getpid())
    wait_for_file("finish")
"""
    publish_texts(js, stream, "1")
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        worker.wait_runs(1)
        worker.ctrl_c()
        worker.wait_for("is stopping")
        (tmp_path / "finish").touch()
        assert worker.ended() == 0
    assert is_settled(stream)
    (tmp_path / "finish").unlink()
    publish_texts(js, stream, "2")
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        pid = int(worker.wait_runs(2)[-1])
        worker.ctrl_c()
        worker.wait_for("is stopping")
        worker.ctrl_c()
        assert worker.ended() == 1
        wait_until(lambda: not is_running(pid))
    assert stream.consumer_info("C").num_ack_pending + stream.consumer_info("C").num_pending == 1


def test_processes_end_with_their_worker(js, stream, nats_server, tmp_path):
    """When the worker is killed, its processes end at once, also one that keeps the GIL."""
    code = f"""
import re
worker = Worker(name="pool")

@worker.handler(stream={stream.name!r}, consumer="C", pool="processes", concurrency=3)
def handle(data):
    record(os.getpid())
    if data == b"lock":
        re.match("(a+)+$", 60 * "a" + "b")
    time.sleep(300)
"""
    publish_texts(js, stream, "sleep", "lock")
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        pids = [int(line) for line in worker.wait_runs(2)]
        assert all(is_running(pid) for pid in pids)
        worker.process.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_the_processes_of_all_handlers_end_at_the_same_time(js, stream, nats_server, tmp_path):
    """Processes that take long to end leave the others their time."""
    code = f"""
import atexit
worker = Worker(name="pool")

options = dict(stream={stream.name!r}, pool="processes", concurrency=1)

def end_after(name, seconds):
    record(f"runs {{name}}")
    atexit.register(lambda: (time.sleep(seconds), record(f"ended {{name}}")))

@worker.handler(consumer="slow", filter_subject="{stream.name}.slow", **options)
def slow(data):
    end_after("slow", 9)

@worker.handler(consumer="late", filter_subject="{stream.name}.late", **options)
def late(data):
    end_after("late", 0.1)
"""
    js.publish(f"{stream.name}.slow", b"")
    js.publish(f"{stream.name}.late", b"")
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        worker.wait_runs(2)
        wait_until(lambda: is_settled(stream, "slow") and is_settled(stream, "late"))
        worker.stop()
        assert worker.runs[2:] == ["ended late"]


def test_a_handler_that_a_process_cannot_import_is_refused(stream, nats_server, tmp_path):
    """
    A function inside a function is refused at once, and one behind a condition at the start.

    So is a module that runs its worker when it is imported: each process would start others.
    """
    worker = Worker(nats_server.url, name="pool")

    def local() -> None:
        pass

    with pytest.raises(InvalidOptionError, match="at the top level of a module"):
        worker.handler(stream="S", consumer="C", pool="processes")(local)
    with pytest.raises(InvalidOptionError, match="must be 'threads' or 'processes'"):
        worker.handler(stream="S", consumer="C", pool="fibers")(time.sleep)
    (tmp_path / "app.py").write_text(f"""
import sys
from jetstream_sync.workers import Worker
worker = Worker(name="pool")
def handle():
    pass
if __name__ == "__main__":
    worker.handler(stream={stream.name!r}, consumer="C", pool="processes")(handle)
    sys.exit(worker.run())
""")
    with Program(["app.py"], nats_server.url, tmp_path) as program:
        assert program.ended() == 2
        assert "importing __main__ does not define it" in program.output
    (tmp_path / "unguarded.py").write_text(f"""
import sys
from jetstream_sync.workers import Worker
worker = Worker(name="pool")
@worker.handler(stream={stream.name!r}, consumer="C", pool="processes")
def handle():
    pass
sys.exit(worker.run())
""")
    with Program(["unguarded.py"], nats_server.url, tmp_path) as program:
        assert program.ended() == 2
        assert "call run() under if __name__ == '__main__'" in program.output


def test_a_worker_can_set_up_its_processes(js, stream, nats_server, tmp_path):
    """A subclass names a function that is called before the module of the handler is imported."""
    (tmp_path / "project.py").write_text("calls = []\ndef setup(): calls.append(1)\n")
    code = f"""
import project
ready_at_import = list(project.calls)

class ProjectWorker(Worker):
    process_setup = "project:setup"

worker = ProjectWorker()

@worker.handler(stream={stream.name!r}, consumer="C", pool="processes")
def handle():
    record(ready_at_import)
"""
    publish_texts(js, stream, "1")
    with WorkerProgram(code, nats_server.url, tmp_path, []) as worker:
        assert worker.wait_runs(1) == ["[1]"]


def test_a_worker_stops_while_its_processes_start(stream, nats_server, tmp_path):
    """SIGTERM does not wait for a process that imports modules, and the worker is not ready before."""
    (tmp_path / "app.py").write_text(f"""
import sys, time
from jetstream_sync.workers import Worker
if __name__ != "__main__":
    print("importing", flush=True)
    time.sleep(300)
worker = Worker(name="pool", drain_timeout=100)
@worker.handler(stream={stream.name!r}, consumer="C", pool="processes")
def handle():
    pass
if __name__ == "__main__":
    import logging
    logging.basicConfig(level="INFO")
    sys.exit(worker.run())
""")
    with Program(["app.py"], nats_server.url, tmp_path) as program:
        program.wait_for("importing")
        program.stop()
        assert "is stopping" in program.output
        assert "is ready" not in program.output


def test_a_process_that_is_killed_while_it_starts_is_replaced(js, stream, nats_server, tmp_path):
    """A signal at the start, such as that of the out-of-memory killer, does not end the worker."""
    code = f"""
if __name__ != "__main__" and not os.path.exists("killed"):
    open("killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)

worker = Worker(name="pool")

@worker.handler(stream={stream.name!r}, consumer="C", pool="processes", decode="text")
def handle(data):
    record(data)
"""
    publish_texts(js, stream, "1")
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        assert worker.wait_runs(1) == ["1"]
        wait_until(lambda: is_settled(stream))
        worker.stop()
        assert "ended with signal SIGKILL, another one is started" in worker.output


def test_what_cannot_cross_the_pipe_does_not_fail_a_message(stream, nats_server, tmp_path):
    """A subject that is no UTF-8, and log records with objects that the worker cannot have."""
    code = f"""
class Mine:
    pass

worker = Worker(name="pool")

@worker.handler(stream={stream.name!r}, consumer="C", pool="processes")
def handle(data, ctx: Context):
    ctx.log.warning("with a lock", extra={{"lock": threading.Lock()}})
    ctx.log.warning("with a class", extra={{"mine": Mine()}})
    record(ctx.message.subject.encode("utf-8", "surrogateescape"))
"""
    client = RawClient(nats_server.port)
    client.send(b"PUB %s.\xff 0\r\n\r\n" % stream.name.encode())
    client.close()
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        assert worker.wait_runs(1) == [f"b'{stream.name}.\\xff'"]
        wait_until(lambda: is_settled(stream))
        worker.stop()
        assert worker.output.count("with a lock") == worker.output.count("with a class") == 1
        assert "Traceback" not in worker.output
    assert stream.consumer_info("C").delivered.consumer_seq == 1


def test_an_error_that_cannot_be_pickled_keeps_its_name():
    """The state of a call has the module and the qualified name of its class."""

    class LocalError(OSError):
        pass

    error = processes._error_of(child._report(LocalError("a local class")))
    assert isinstance(error, OSError)
    assert (type(error).__module__, type(error).__qualname__) == (__name__, LocalError.__qualname__)
    assert str(error) == "a local class"
