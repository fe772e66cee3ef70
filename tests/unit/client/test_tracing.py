"""The trace of a stream: in order, bounded, and on its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from fixtures.memory import MemoryStream
from fixtures.threads import wait_until

from jetstream_sync.client import tracing
from jetstream_sync.client.tracing import Tracer


class Callback:
    """Records lines, and blocks while the gate is closed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, line: str) -> None:
        assert self.gate.wait(10)
        self.threads.add(threading.current_thread().name)
        self.lines.append(line)


@pytest.fixture
def callback() -> Callback:
    return Callback()


@pytest.fixture
def tracer(callback: Callback) -> Iterator[Tracer]:
    tracer = Tracer("test", callback)
    yield tracer
    callback.gate.set()
    tracer.close(5)
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "nats-trace-test"])


class PartialStream(MemoryStream):
    """A stream that accepts a number of bytes at a time; 0: none now; an error: the link broke."""

    def __init__(self, *takes: int | OSError) -> None:
        super().__init__([])
        self.takes = list(takes)

    def send(self, data: memoryview, sent: list[int]) -> None:
        take = self.takes.pop(0)
        if isinstance(take, OSError):
            raise take
        if not take:
            raise BlockingIOError
        super().send(data[:take], sent)


def test_only_what_was_sent_is_traced(callback, tracer):
    """A full socket and a broken link accept nothing, and an incomplete command is not a line."""
    broken = ConnectionResetError("gone")
    stream = tracer.wrap(PartialStream(0, 3, 0, 8, broken))
    data = memoryview(b"PING\r\nSUB a 1\r\n")
    sent: list[int] = []
    with pytest.raises(BlockingIOError):
        stream.send(data, sent)
    stream.send(data, sent)
    with pytest.raises(BlockingIOError):
        stream.send(data[3:], sent)
    stream.send(data[3:], sent)
    with pytest.raises(ConnectionResetError):
        stream.send(data[11:], sent)
    assert sent == [3, 8]
    tracer.close(5)
    assert callback.lines == ["> PING"]


def test_a_command_stands_before_its_reply(callback, tracer):
    """Bytes that another thread receives during a send are traced after the sent ones."""
    reader = threading.Thread(target=tracer.wrap(MemoryStream([b"PONG\r\n"])).receive)

    class QuickStream(MemoryStream):
        """The reply is there before `send` has returned."""

        def send(self, data: memoryview, sent: list[int]) -> None:
            super().send(data, sent)
            reader.start()
            reader.join(0.1)

    tracer.wrap(QuickStream([])).send(memoryview(b"PING\r\n"), [])
    reader.join()
    tracer.close(5)
    assert callback.lines == ["> PING", "< PONG"]


def test_a_slow_callback_drops_lines_and_gets_their_number(callback, tracer, monkeypatch):
    """The queue is bounded; every line is traced or counted, and the count is in its place."""
    monkeypatch.setattr(tracing, "_MAX_QUEUED_BYTES", 20_000)
    stream = tracer.wrap(
        MemoryStream([b"MSG a 1 %d\r\n%b\r\n" % (n, b"x" * n) for n in range(900)])
    )
    callback.gate.clear()
    for _ in range(450):
        stream.receive()
        stream.send(memoryview(b"PING\r\n"), [])
    assert tracer._bytes < 21_000
    assert len(tracer._lines) < 400
    callback.gate.set()
    wait_until(lambda: not len(tracer._lines) and tracer._bytes == 0)
    for _ in range(3):
        stream.receive()
    tracer.close(5)
    notes = [line for line in callback.lines if line.startswith("! ")]
    (note,) = notes
    text, _, count = note.rpartition(": ")
    assert text == "! lines dropped, since trace_cb is slow"
    told = [line for line in callback.lines if line != note]
    assert len(told) + int(count) == 903
    assert told[:4] == ["< MSG a 1 0", "> PING", "< MSG a 1 1 | x", "> PING"]
    assert callback.lines.index(note) == len(callback.lines) - 4
    assert [line.split()[4] for line in callback.lines[-3:]] == ["450", "451", "452"]


def test_a_callback_that_raises_is_logged_once(caplog):
    """Tracing continues, and the log is not flooded."""
    lines: list[str] = []

    def callback(line: str) -> None:
        lines.append(line)
        raise ZeroDivisionError(line)

    tracer = Tracer("test", callback)
    with caplog.at_level(logging.DEBUG, "jetstream_sync"):
        tracer.wrap(MemoryStream([b"PING\r\n" * 5])).receive()
        tracer.close(5)
    assert lines == ["< PING"] * 5
    (record,) = caplog.records
    assert record.name == "jetstream_sync.trace"
    assert record.exc_info[0] is ZeroDivisionError


def test_closing_passes_on_the_queued_lines_only(callback, tracer):
    """The thread ends after the last line; later lines are dropped."""
    stream = tracer.wrap(MemoryStream([b"PING\r\n" * 100, b"PONG\r\n"]))
    callback.gate.clear()
    stream.receive()
    tracer.close()
    assert callback.lines == []
    callback.gate.set()
    tracer.close(5)
    assert callback.lines == ["< PING"] * 100
    stream.receive()
    assert callback.lines == ["< PING"] * 100


def test_the_callback_may_close():
    """Closing from the callback does not wait for the callback."""
    closed = threading.Event()

    def close(_: str) -> None:
        tracer.close(60)
        closed.set()

    tracer = Tracer("test", close)
    tracer.wrap(MemoryStream([b"PING\r\n"])).receive()
    assert closed.wait(5)
