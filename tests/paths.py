"""
Count the files and functions of the package that a warm call runs through, in all threads.

For a reconnect it counts how often the reader thread goes on in another file.

    python tests/paths.py
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from urllib.parse import urlsplit

from fixtures.rawnats import RawClient

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

#: Measured calls; the shortest way counts: on a busy machine, a call takes steps of other threads, too.
_RUNS = 10
_WORKER_RUNS = 3
PACKAGE = str(Path(jetstream_sync.__file__).parent)
#: Has the methods that `dataclass` would generate, which a reader does not open.
_RECORDS = str(Path(PACKAGE) / "records.py")
#: Parts of functions that are code of their own before Python 3.12.
_COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
#: A call -> the greatest number of files and functions.
AIMS = {
    "publish": (10, 25),
    "fetch(1)": (10, 38),
    "first entry of kv.watch()": (24, 145),
    "one message of a worker": (23, 105),
}
#: The greatest number of changes of file in a reconnect.
RECONNECT_AIM = 40


def is_followed(code: CodeType) -> bool:
    """Return whether a reader of a call opens the file of a function."""
    is_function = code.co_name not in _COMPREHENSIONS and code.co_filename != _RECORDS
    return is_function and code.co_filename.startswith(PACKAGE)


@contextmanager
def recorded() -> Iterator[set[CodeType]]:
    """Record the functions of the package that run in the block."""
    called: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_followed(frame.f_code):
            called.add(frame.f_code)

    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(profile)
    else:
        threading.setprofile(profile)
        sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
        if sys.version_info >= (3, 12):
            threading.setprofile_all_threads(None)
        else:
            threading.setprofile(None)


def calls(js: JetStream) -> dict[str, Callable[[], object]]:
    """Return the measured calls by name."""
    js.create_stream(name="S", subjects=["s"], storage="memory")
    consumer = js.create_consumer("S", durable_name="C")
    store = js.create_key_value(bucket="B", storage="memory")
    store.put("key", b"value")

    def watch() -> None:
        with store.watch() as entries:
            entries.next(5)

    def fetch() -> None:
        for message in consumer.fetch(1, timeout=5):
            message.ack()

    return {
        "publish": lambda: js.publish("s", b"data"),
        "fetch(1)": fetch,
        "first entry of kv.watch()": watch,
    }


def worker_message(js: JetStream, url: str) -> set[CodeType]:
    """Return the functions that each message of a running worker runs through."""
    ready, handled = threading.Event(), threading.Semaphore(0)
    worker = Worker(url)
    worker.on("ready")(lambda _: ready.set())
    js.create_stream(name="W", subjects=["w"], storage="memory")

    @worker.handler(stream="W", consumer="H")
    def handle(message: object) -> None:
        del message
        handled.release()

    # Another client publishes: only the worker is counted.
    client = RawClient(urlsplit(url).port or 0)
    with recorded() as called:  # threads take the profile when they start
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert ready.wait(20)
        for _ in range(3):
            client.send(b"PUB w 4\r\ndata\r\n")
            assert handled.acquire(timeout=20)
        runs = []
        for _ in range(_WORKER_RUNS):
            time.sleep(0.3)  # the acknowledgements are sent and confirmed
            called.clear()
            client.send(b"PUB w 4\r\ndata\r\n")
            assert handled.acquire(timeout=20)
            time.sleep(0.3)
            runs.append(set(called))
        worker.stop()
        thread.join(20)
        client.close()
    # A report every second runs beside some messages.
    return set.intersection(*runs)


def measured() -> dict[str, set[CodeType]]:
    """Return the functions that each call runs through."""
    with NatsServer() as server, recorded() as called, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        found: dict[str, set[CodeType]] = {}
        for name, call in calls(js).items():
            js.publish("s", b"data")
            call()
            runs = []
            for _ in range(_RUNS):
                js.publish("s", b"data")
                called.clear()
                call()
                runs.append(set(called))
            found[name] = min(runs, key=len)
        found["one message of a worker"] = worker_message(js, server.url)
    return found


def file_count(codes: set[CodeType]) -> int:
    """Return the number of files of some functions."""
    return len({code.co_filename for code in codes})


def changes_in_reconnect() -> int:
    """Return how often the reader thread goes on in another file while it reconnects."""
    files: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not is_followed(code):
            return
        if threading.current_thread().name.startswith("nats-reader"):
            if code.co_name == "_replace_transport":
                files.clear()
            files.append(code.co_filename if code.co_name != "read" else "")

    threading.setprofile(profile)  # the reader takes it when it starts
    back = threading.Event()
    try:
        with (
            NatsServer() as server,
            jetstream_sync.connect(server.url, reconnected_cb=back.set) as nc,
        ):
            nc.subscribe("s")
            nc.flush()
            time.sleep(1.1)  # a connection that breaks earlier is redialed after a delay
            nc.reconnect()
            assert back.wait(20)
            nc.flush()
            story = files[: files.index("")]  # until the new transport is read
    finally:
        threading.setprofile(None)
    return sum(one != other for one, other in pairwise(story))


def main() -> None:
    """Print the table."""
    for name, codes in measured().items():
        files = file_count(codes)
        aim = AIMS[name]
        sys.stdout.write(
            f"{name:28}{files:4} files (aim {aim[0]}){len(codes):5} functions (aim {aim[1]})\n"
        )
    sys.stdout.write(
        f"{'reconnect':28}{changes_in_reconnect():4} changes of file (aim {RECONNECT_AIM})\n"
    )


if __name__ == "__main__":
    main()
