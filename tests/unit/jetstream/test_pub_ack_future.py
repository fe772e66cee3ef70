"""Futures of acknowledgements."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED

import pytest
from fixtures.memory import MemoryStream

from jetstream_sync import errors, speedups
from jetstream_sync.api.publish import PubAck
from jetstream_sync.client.core import ConnectionCore
from jetstream_sync.client.engine import Engine
from jetstream_sync.client.writer import DEFERRED
from jetstream_sync.jetstream.publish import PubAckFuture
from jetstream_sync.options import ConnectionOptions

STORED = b'{"stream":"S","seq":7}'
ACK = PubAck("S", 7)
REFUSED = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"}}'


@pytest.fixture
def core():
    """The core of a connection that is not open."""
    return ConnectionCore(Engine(ConnectionOptions(servers=())))


@pytest.fixture
def future(core):
    return PubAckFuture("a.b", (b"PUB a.b 0\r\n\r\n", 0), None, core)


@pytest.fixture(params=[False, True], ids=["not looked at", "looked at"])
def looked_at(request, future):
    """Whether a thread has waited for the future before it is settled."""
    if request.param:
        with pytest.raises(builtins.TimeoutError):
            future.result(0)
    return request.param


def test_a_future_that_is_not_settled(future):
    """Waiting for it raises the built-in error after the timeout."""
    assert not future.done()
    for wait in (future.result, future.exception):
        for timeout in (0, 0.001):
            with pytest.raises(builtins.TimeoutError):
                wait(timeout)
    assert not future.done()
    assert "pending" in repr(future)
    assert not hasattr(future, "nothing")


@pytest.mark.usefixtures("looked_at")
def test_an_acknowledged_message(future):
    """The result is the stream's acknowledgement, however often it is read."""
    future.settle(STORED)
    assert future.done()
    assert "settled" in repr(future)
    assert future.exception(0) is None
    assert future.result(0) == future.result() == ACK
    assert future.message is None, "the payload is released"


@pytest.mark.usefixtures("looked_at")
def test_a_message_that_the_stream_refused(future):
    """The server's error is raised with its class, however often it is read."""
    future.settle(REFUSED)
    assert future.done()
    for _ in range(2):
        with pytest.raises(errors.WrongLastSequenceError, match="wrong last sequence: 3"):
            future.result(0)
    assert isinstance(future.exception(), errors.APIError)


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize("response", [b"", b"+OK", b"[]", b"{}", b'{"stream":"","seq":1}', b"\xff"])
def test_an_invalid_reply_is_an_error(future, response):
    """An invalid reply is an error, and never an acknowledgement."""
    future.settle(response)
    with pytest.raises(errors.InvalidResponseError):
        future.result(0)


@pytest.mark.usefixtures("looked_at")
def test_a_future_is_settled_once(future):
    """The first outcome stays."""
    future.settle(errors.NoStreamResponseError("a.b"))
    future.settle(STORED)
    future.settle(errors.APIError(1, 1, "later"))
    with pytest.raises(errors.NoStreamResponseError):
        future.result(0)


@pytest.mark.parametrize("response", [STORED, REFUSED])
def test_callbacks(future, response):
    """A callback is called with the future when it is settled, or at once."""
    called = []
    future.add_done_callback(called.append)
    future.add_done_callback(lambda done: called.append(done.exception(0)))
    assert called == []
    future.settle(response)
    error = future.exception(0)
    assert called == [future, error]
    future.add_done_callback(called.append)
    assert called == [future, error, future]


# --- runs of acknowledgements -------------------------------------------------------------------------


@pytest.fixture(params=["in use", "python"])
def settle_run(request, monkeypatch):
    """Settle runs of futures with the code in use, and with the code in Python."""
    if request.param == "python":
        monkeypatch.setattr(speedups, "settle_futures", None)
        monkeypatch.setattr(speedups, "parse_pub_ack", None)
    return PubAckFuture.settle_run


def pending(core, *tokens):
    """Return new futures by token."""
    return {token: PubAckFuture("a", (b"PUB a 0\r\n\r\n", 0), None, core) for token in tokens}


def test_a_run_settles_futures_without_a_watcher(settle_run, core):
    """They have the acknowledgement, and drop their messages."""
    futures = pending(core, b"1", b"2", b"3")
    one, two, three = futures.values()
    run = [(b"_INBOX.x.1", b"", b"", STORED), (b"_INBOX.x.3", b"", b"", REFUSED)]
    assert settle_run(futures, run, len(b"_INBOX.x.")) == []
    assert futures == {b"2": two}
    assert one.result(0) == ACK
    assert not two.done()
    with pytest.raises(errors.WrongLastSequenceError):
        three.result(0)
    assert (one.message, three.message) == (None, None)
    assert two.message is not None


def test_a_run_leaves_futures_with_a_watcher(settle_run, core):
    """A future with a callback or a waiting thread stays pending, and its acknowledgement is returned."""
    futures = pending(core, b"1", b"2")
    called = []
    futures[b"2"].add_done_callback(called.append)
    run = [(b"x.1", b"", b"", STORED), (b"x.2", b"", b"", STORED)]
    assert settle_run(futures, run, 2) == run[1:]
    assert list(futures) == [b"2"]
    assert called == []


def test_a_run_leaves_statuses(settle_run, core):
    """A status without a payload is returned; a header block of an acknowledgement is ignored."""
    header = b"NATS/1.0 503\r\n\r\n"
    futures = pending(core, b"1", b"2")
    first = futures[b"1"]
    run = [(b"x.1", b"", header, STORED), (b"x.2", b"", header, b"")]
    assert settle_run(futures, run, 2) == run[1:]
    assert first.result(0) == ACK
    assert list(futures) == [b"2"]


def test_a_run_with_late_and_repeated_acknowledgements(settle_run, core):
    """They are dropped, and the first acknowledgement of a message counts."""
    futures = pending(core, b"1")
    future = futures[b"1"]
    run = [
        (b"x.9", b"", b"", STORED),
        (b"x.1", b"", b"", STORED),
        (b"x.1", b"", b"", REFUSED),
        (b"x.1", b"", b"", STORED),
    ]
    assert settle_run(futures, run, 2) == []
    assert future.result(0) == ACK
    assert futures == {}


@pytest.mark.skipif(speedups.settle_futures is None, reason="the C extension is not in use")
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (PubAckFuture, {}, [], None),
        (PubAckFuture, [], [], 0),
        (PubAckFuture, {}, (), 0),
        (PubAckFuture, {}, [(b"", b"", b"")], 0),
        (PubAckFuture, {}, [("", b"", b"", b"")], 0),
    ],
)
def test_the_extension_refuses_other_types(arguments):
    """It accepts only the types that it was written for."""
    with pytest.raises(TypeError):
        speedups.settle_futures(*arguments)


@pytest.mark.skipif(speedups.settle_futures is None, reason="the C extension is not in use")
def test_the_extension_leaves_other_objects_to_python():
    """Other objects among the futures, and subjects without a token, are left to Python."""
    futures = {b"1": object(), b"2": None}
    run = [(b"x.1", b"", b"", STORED), (b"x.2", b"", b"", STORED), (b"x.", b"", b"", STORED)]
    assert speedups.settle_futures(PubAckFuture, futures, run, 2) == run
    assert speedups.settle_futures(PubAckFuture, futures, run, -1) == run
    assert speedups.settle_futures(PubAckFuture, futures, run, 99) == run
    assert len(futures) == 2


# --- threads and the standard functions ---------------------------------------------------------------


def test_threads_that_meet_in_a_new_future(core):
    """A future that is settled while threads begin to wait wakes each of them."""
    for _ in range(300):
        future = PubAckFuture("a", (b"", 0), None, core)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            waits = [
                pool.submit(future.result, 10),
                pool.submit(future.exception, 10),
                pool.submit(lambda future=future: future.future().result(10)),
            ]
            future.settle(STORED)
        assert [wait.result() for wait in waits] == [ACK, None, ACK]


def test_waiting_for_several(core):
    """`concurrent.futures.wait` accepts the standard futures of settled and pending ones."""
    own = [PubAckFuture("a", (b"", 0), None, core) for _ in range(4)]
    own[0].settle(STORED)
    futures = [future.future() for future in own]
    assert not any(future.cancel() for future in futures)
    done, open_ = concurrent.futures.wait(futures, 0, FIRST_COMPLETED)
    assert (done, open_) == ({futures[0]}, set(futures[1:]))
    done, open_ = concurrent.futures.wait(futures, 0.001, ALL_COMPLETED)
    assert (done, open_) == ({futures[0]}, set(futures[1:]))
    own[1].settle(REFUSED)
    own[2].settle(errors.NoStreamResponseError("a"))
    own[3].settle(STORED)
    done, open_ = concurrent.futures.wait(futures)
    assert (done, open_) == (set(futures), set())
    assert [type(future.exception()) for future in futures] == [
        type(future.exception()) for future in own
    ]


@pytest.mark.parametrize("settled_first", [False, True])
def test_from_asyncio(core, settled_first):
    """A program with an event loop can await it."""

    async def both():
        good = PubAckFuture("a", (b"", 0), None, core)
        bad = PubAckFuture("a", (b"", 0), None, core)
        if settled_first:
            good.settle(STORED)
            bad.settle(REFUSED)
        waiting = [asyncio.wrap_future(future.future()) for future in (good, bad)]
        if not settled_first:
            good.settle(STORED)
            bad.settle(REFUSED)
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)

    result, error = asyncio.run(both())
    assert result == ACK
    assert type(error) is errors.WrongLastSequenceError


@pytest.mark.parametrize("wait", ["result", "exception"])
def test_waiting_flushes_the_buffer(core, wait):
    """The message may still be in the buffer, so waiting flushes it."""
    stream = MemoryStream([])
    core.writer.attach(stream, b"")
    future = PubAckFuture("a", (b"PUB a 0\r\n\r\n", 0), None, core)
    core.writer.append(*future.message, DEFERRED)
    assert stream.sent == b""
    with pytest.raises(builtins.TimeoutError):
        getattr(future, wait)(0)
    assert stream.sent == b"PUB a 0\r\n\r\n"
