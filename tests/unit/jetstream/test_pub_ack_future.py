"""Futures of acknowledgements behave like standard ones."""

from __future__ import annotations

import ast
import asyncio
import builtins
import concurrent.futures
import inspect
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, InvalidStateError

import pytest
from fixtures.memory import MemoryStream

from jetstream_sync import errors, speedups
from jetstream_sync.api.publish import PubAck
from jetstream_sync.client.core import ConnectionCore
from jetstream_sync.client.engine import Engine
from jetstream_sync.jetstream import publish
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
    """Whether the future is inspected before it completes, which creates its standard part."""
    if request.param:
        with pytest.raises(builtins.TimeoutError):
            future.result(0)
    return request.param


def test_a_future_that_is_not_settled(future):
    """It is running, and waiting for it raises the built-in error after the timeout."""
    assert isinstance(future, concurrent.futures.Future)
    assert (future.done(), future.running(), future.cancelled()) == (False, True, False)
    for wait in (future.result, future.exception):
        for timeout in (0, 0.001):
            with pytest.raises(builtins.TimeoutError):
                wait(timeout)
    assert not future.done()
    assert "state=running" in repr(future).lower()
    assert future.cancel() is False, "the message is sent"
    assert not hasattr(future, "nothing")


@pytest.mark.usefixtures("looked_at")
def test_an_acknowledged_message(future):
    """The result is the stream's acknowledgement, however often it is read."""
    future.settle(STORED)
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert future.cancel() is False
    assert "state=finished" in repr(future).lower()
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
    """Later results are refused, and the first one stays."""
    future.settle(errors.NoStreamResponseError("a.b"))
    with pytest.raises(InvalidStateError):
        future.settle(STORED)
    with pytest.raises(InvalidStateError):
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


def test_no_private_name_of_the_standard_class_is_used():
    """A future depends on no private attribute of the standard class."""
    private = {name for name in vars(concurrent.futures.Future()) if name.startswith("_")}
    assert {"_state", "_condition"} <= private
    tree = ast.parse(inspect.getsource(publish.PubAckFuture))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not private & names
    assert not private & set(speedups.PythonFutureFields.__slots__)


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


def test_a_run_settles_futures_without_a_standard_part(settle_run, core):
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


def test_a_run_leaves_futures_with_a_standard_part(settle_run, core):
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
                pool.submit(lambda future=future: concurrent.futures.wait([future], 10).done),
                pool.submit(
                    lambda future=future: list(concurrent.futures.as_completed([future], 10))
                ),
            ]
            future.settle(STORED)
        assert [wait.result() for wait in waits] == [ACK, {future}, [future]]


def test_waiting_for_several(core):
    """`concurrent.futures.wait` accepts settled and pending ones."""
    futures = [PubAckFuture("a", (b"", 0), None, core) for _ in range(4)]
    futures[0].settle(STORED)
    done, open_ = concurrent.futures.wait(futures, 0, FIRST_COMPLETED)
    assert (done, open_) == ({futures[0]}, set(futures[1:]))
    done, open_ = concurrent.futures.wait(futures, 0.001, ALL_COMPLETED)
    assert (done, open_) == ({futures[0]}, set(futures[1:]))
    futures[1].settle(REFUSED)
    futures[2].settle(errors.NoStreamResponseError("a"))
    futures[3].settle(STORED)
    done, open_ = concurrent.futures.wait(futures)
    assert (done, open_) == (set(futures), set())


@pytest.mark.parametrize("settled_first", [False, True])
def test_from_asyncio(core, settled_first):
    """A program with an event loop can await it."""

    async def both():
        good = PubAckFuture("a", (b"", 0), None, core)
        bad = PubAckFuture("a", (b"", 0), None, core)
        if settled_first:
            good.settle(STORED)
            bad.settle(REFUSED)
        waiting = [asyncio.wrap_future(good), asyncio.wrap_future(bad)]
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
    core.writer.send_deferred(*future.message)
    assert stream.sent == b""
    with pytest.raises(builtins.TimeoutError):
        getattr(future, wait)(0)
    assert stream.sent == b"PUB a 0\r\n\r\n"
