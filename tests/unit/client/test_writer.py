"""The writer: when commands are sent, their order, and refused ones; and when the flusher sleeps."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import suppress
from time import thread_time

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.memory import MemoryStream
from fixtures.threads import wait_until

from jetstream_sync.client.encoder import FastEncoder, MessageEncoder
from jetstream_sync.client.writer import (
    _ASLEEP,
    _AWAKE,
    _SEND_ABOVE_BYTES,
    _TICKING,
    DEFERRED,
    NOW,
    PING,
    PONG,
    SOON,
    WITH_NEXT,
    FastWriter,
    FlusherState,
    Writer,
)
from jetstream_sync.errors import (
    BadSubjectError,
    ConnectionClosedError,
    InvalidArgumentError,
    InvalidHeaderError,
    MaxPayloadError,
    OutboundBufferLimitError,
    TimeoutError,
)
from jetstream_sync.net.clock import FOREVER, Deadline, monotonic


class Narrow(MemoryStream):
    """A stream whose socket accepts given numbers of bytes, then all; `None`: it fails."""

    def __init__(self, *room):
        super().__init__([])
        self.room = list(room)

    @classmethod
    def attached(cls, writer, *room, preamble=b""):
        """Return a stream that a writer uses."""
        stream = cls(*room)
        writer.attach(stream, preamble)
        return stream

    def send(self, data, sent):
        room = self.room.pop(0) if self.room else len(data)
        if room is None:
            raise ConnectionResetError("cut")
        if room == 0:
            raise BlockingIOError
        super().send(data[:room], sent)


@pytest.fixture
def broken():
    return []


@pytest.fixture(params=[Writer, FastWriter], ids=["python", "in use"])
def writer(broken, request):
    return request.param(100, lambda stream, error: broken.append((stream, error)))


@pytest.fixture
def stream(writer):
    return Narrow.attached(writer)


# --- sending ----------------------------------------------------------------------------------------


def test_a_call_that_waits_for_a_reply_sends_at_once(writer, stream):
    """The command is sent with everything that was buffered before, in order."""
    writer.append(b"one", 0, SOON)
    writer.append(b"two", 0, DEFERRED)
    writer.control(PONG, SOON)
    writer.control(PING, WITH_NEXT)
    assert stream.sent == b""
    writer.append(b"three", 0, NOW)
    assert stream.sent == b"onetwo" + PONG + PING + b"three"


def test_a_publisher_sends_itself_when_much_is_buffered(writer, stream):
    """This is the back-pressure: memory does not grow faster than the socket accepts bytes."""
    writer.append(b"x" * _SEND_ABOVE_BYTES, 0, SOON)
    assert stream.sent == b""
    writer.append(b"y", 0, SOON)
    assert stream.sent == b"x" * _SEND_ABOVE_BYTES + b"y"
    writer.append(b"z" * (_SEND_ABOVE_BYTES + 1), 0, DEFERRED)
    assert stream.sent.endswith(b"z")


def test_the_flusher_sends_all_appended_commands(writer, stream):
    """The flusher sends everything that was appended, until the writer is closed."""
    writer.append(b"one", 0, SOON)
    schedule = iter([0.0, 0.0])

    def next_wake():
        for seconds in schedule:
            return seconds
        writer.close(ConnectionClosedError("done"))
        return 0.0

    writer.flusher(next_wake)
    assert stream.sent == b"one"


#: What a thread does -> the states of the flusher that it wakes.
WAKES = {
    ("append", b"one", 1, SOON): {_TICKING, _ASLEEP},
    ("append", b"one", 1, DEFERRED): {_ASLEEP},
    ("append", b"one", 1, NOW): set(),
    ("control", b"one", SOON): {_TICKING, _ASLEEP},
    ("control", b"one", WITH_NEXT): set(),
    ("pong",): {_TICKING, _ASLEEP},
    ("attach", MemoryStream([]), b""): {_TICKING, _ASLEEP},
    ("close", ConnectionClosedError("done")): {_TICKING, _ASLEEP},
}


@pytest.mark.parametrize("call", WAKES)
@pytest.mark.parametrize("state", FlusherState)
def test_what_wakes_the_flusher(writer, stream, state, call):
    """A deferred message waits for the next tick; what is urgent wakes a flusher that sleeps or ticks."""
    del stream  # attached
    writer._flusher = state
    writer._sent_at = monotonic() + 60  # not after a silence
    name, *arguments = call
    getattr(writer, name)(*arguments)
    wakes = state in WAKES[call]
    assert writer._work.acquire(blocking=False) == wakes
    assert writer._flusher == (_AWAKE if wakes else state)


def test_many_threads_append(writer, stream):
    """Every message is counted and sent once, and the messages of a thread keep their order."""
    threads, count = 4, 3000

    def append(number):
        for item in range(count):
            writer.append(b"%d:%d " % (number, item), 1, (SOON, DEFERRED)[item % 2])
            if item % 100 == number:
                writer.send_buffered()

    workers = [threading.Thread(target=append, args=(number,)) for number in range(threads)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30.0)
    finally:
        sys.setswitchinterval(before)
    writer.send_buffered()
    assert (writer.out_msgs, writer.out_bytes) == (threads * count, threads * count)
    sent = [part.split(b":") for part in bytes(stream.sent).split()]
    for number in range(threads):
        mine = [int(item) for name, item in sent if int(name) == number]
        assert mine == list(range(count))


def test_a_message_is_a_command_and_its_size(writer, stream):
    """Other arguments are an error, and nothing is sent."""
    for arguments in ((), (b"one",), (b"one", 3), (b"one", "3", SOON), (b"one", "3", NOW)):
        with pytest.raises(TypeError):
            writer.append(*arguments)
    writer.send_buffered()
    assert stream.sent == b""


def test_a_dropped_writer_is_collected(writer, stream):
    """The garbage collector sees what a writer refers to."""

    class Stream(MemoryStream):
        writer: Writer

    fresh = type(writer)(100, lambda *_: None)
    stream = Stream([])
    stream.writer = fresh
    fresh.attach(stream, b"")
    gone = weakref.ref(fresh)
    del fresh, stream
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("flush", [SOON, DEFERRED])
def test_message_after_a_silence_is_sent_by_its_own_thread(writer, stream, flush):
    """The sleeping flusher is not woken for it, but for one that follows at once."""
    writer._flusher = _ASLEEP
    writer.append(b"one", 1, flush)
    assert stream.sent == b"one"
    assert writer._flusher == _ASLEEP
    writer._sent_at = monotonic() + 60  # not after a silence
    writer.append(b"two", 1, flush)
    assert stream.sent == b"one"
    assert writer._flusher == _AWAKE


@pytest.mark.parametrize("flush", [DEFERRED, NOW])
def test_interrupt_before_a_message_is_sent_wakes_the_flusher(writer, monkeypatch, flush):
    """The buffered message is sent by the flusher then."""

    def interrupted(*_):
        raise KeyboardInterrupt

    Narrow.attached(writer)
    writer._flusher = _ASLEEP
    monkeypatch.setattr(type(writer), "_send_if_free", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(b"one", 1, flush)
    assert writer.pending_bytes == 3
    assert writer._flusher == _AWAKE


@sends_ctrl_c
def test_flusher_sends_what_an_interrupted_thread_leaves(broken):
    """It has fallen asleep because that thread was sending; the Ctrl-C comes at any moment."""

    class Sending(Narrow):
        def send(self, data, sent):
            writer._flusher = _ASLEEP
            writer._work.acquire(blocking=False)
            super().send(data, sent)

    def send():
        with suppress(TimeoutError):
            writer._apply_backpressure(Deadline(0.0))

    moment, went_off = 0, True
    while went_off:
        moment += 1
        writer = Writer(100, lambda stream, error: broken.append((stream, error)))
        stream = Sending.attached(writer, 10, 0, 0)
        writer._buffer += bytes(_SEND_ABOVE_BYTES + 1)
        went_off = interrupted(send, moment)
        assert writer._flusher == _AWAKE or len(stream.sent) > _SEND_ABOVE_BYTES, moment


def test_lone_message_for_a_full_socket_wakes_the_flusher(writer):
    """Its thread does not wait for the socket."""
    stream = Narrow.attached(writer, 0)
    writer._flusher = _ASLEEP
    writer.append(b"one", 1, SOON)
    assert stream.sent == b""
    assert writer._flusher == _AWAKE


def test_flusher_sleeps_while_another_thread_sends(writer, stream):
    """A thread that holds the lock sends everything, or wakes the flusher: that must not try again and again."""
    passes = []

    def next_wake():
        passes.append(None)
        return 30.0

    with writer._sending:
        writer.control(b"one", WITH_NEXT)
        thread = threading.Thread(target=writer.flusher, args=(next_wake,), daemon=True)
        thread.start()
        wait_until(lambda: writer._flusher == _ASLEEP)
        assert len(passes) == 1
    try:
        assert stream.sent == b""
        writer.append(b"two", 1, NOW)
        assert stream.sent == b"onetwo"
    finally:
        writer.close(ConnectionClosedError("done"))
        thread.join(10.0)
    assert not thread.is_alive()


def test_a_flusher_that_was_woken_in_vain_stays_ready(writer, stream):
    """
    It looks into the buffer for some time, before it sleeps until it is woken.

    The thread that defers an acknowledgement often sends it with its next request. If the flusher then
    went back to sleep, each acknowledgement would wake it.
    """
    passes = []

    def next_wake():
        passes.append(None)
        return 30.0

    thread = threading.Thread(target=writer.flusher, args=(next_wake,), daemon=True)
    thread.start()
    try:
        wait_until(lambda: writer._flusher == _ASLEEP)
        assert len(passes) == 1
        writer._wake_flusher()
        wait_until(lambda: len(passes) > 2)
        assert stream.sent == b""
        wait_until(lambda: writer._flusher == _ASLEEP)
    finally:
        writer.close(ConnectionClosedError("done"))
        thread.join(10.0)
    assert not thread.is_alive()


# --- a full socket ----------------------------------------------------------------------------------


def test_a_command_is_sent_whole(writer):
    """However few bytes the socket accepts, every byte is sent once and in order."""
    stream = Narrow.attached(writer, *[1] * 5, 3, *[1] * 50)
    for number in range(10):
        writer.append(b"%d....." % number, 0, SOON)
    writer.send_buffered()
    assert stream.sent == b"".join(b"%d....." % number for number in range(10))


def test_a_call_that_waits_for_a_reply_does_not_wait_for_a_full_socket(writer):
    """Bytes that the socket does not accept stay buffered, and are sent later in order."""
    stream = Narrow.attached(writer, 2, 0)
    writer.append(b"one", 0, NOW)
    assert stream.sent == b"on"
    stream.room = [0]
    writer.append(b"two", 0, NOW)
    assert stream.sent == b"on"
    writer.send_buffered()
    assert stream.sent == b"onetwo"


@pytest.mark.parametrize(
    ("room", "deadline", "drained", "sent"),
    [([1, 0, 1, 0], FOREVER, True, b"one"), ([1, *[0] * 100], Deadline(0), False, b"o")],
)
def test_draining_waits_for_the_socket(writer, room, deadline, drained, sent):
    """It returns whether everything was sent; a full socket ends it at the deadline."""
    stream = Narrow.attached(writer, *room)
    writer.append(b"one", 0, SOON)
    assert writer.send_buffered(deadline) == drained
    assert stream.sent == sent
    assert writer.send_buffered(Deadline(0)) == drained, "there is nothing left"


def test_a_deadline_ends_the_back_pressure(writer):
    """The command stays buffered after the error, and is sent once."""
    stream = Narrow.attached(writer, *[0] * 100)
    # The first one is being sent, the second one waits in the buffer.
    writer.append(b"x" * (_SEND_ABOVE_BYTES + 1), 0, NOW, 1, True, Deadline(0))
    with pytest.raises(TimeoutError):
        writer.append(b"y" * (_SEND_ABOVE_BYTES + 1), 0, NOW, 1, True, Deadline(0))
    stream.room = []
    writer.send_buffered()
    assert stream.sent == b"x" * (_SEND_ABOVE_BYTES + 1) + b"y" * (_SEND_ABOVE_BYTES + 1)


@pytest.mark.parametrize("limit", [0.05, Deadline(0.05)])
def test_a_deferred_message_waits_until_its_deadline(writer, limit):
    """A number is a limit in seconds from the wait on; the message stays buffered after the error."""
    stream = Narrow.attached(writer, *[0] * 1_000_000)
    writer.append(b"x" * _SEND_ABOVE_BYTES, 0, DEFERRED, 1, False, limit)
    writer.append(
        b"y", 0, DEFERRED, 1, False, limit
    )  # these two are being sent, the next one waits
    with pytest.raises(TimeoutError):
        writer.append(b"z" * (_SEND_ABOVE_BYTES + 1), 0, DEFERRED, 1, False, limit)
    assert stream.sent == b""
    stream.room = []
    writer.send_buffered()
    assert stream.sent.endswith(b"xyz" + b"z" * _SEND_ABOVE_BYTES)


def test_without_a_deadline_a_stall_ends_the_back_pressure(writer, monkeypatch):
    """A thread waits as long as the socket accepts some data, and no longer than the limit without."""
    limit = 0.2
    monkeypatch.setattr("jetstream_sync.client.writer._STALL_LIMIT_S", limit)
    stream = Narrow.attached(writer, *[0, 1] * 3, *[0] * 1_000_000)
    writer.append(b"x" * (_SEND_ABOVE_BYTES + 1), 0, DEFERRED)
    with pytest.raises(TimeoutError, match="accepts no more data"):
        writer.append(b"y" * (_SEND_ABOVE_BYTES + 1), 0, DEFERRED)
    assert stream.sent == b"xxx"
    began = thread_time()
    with pytest.raises(TimeoutError, match="accepts no more data"):
        writer.append(b"z", 0, DEFERRED)
    # `Narrow` does not sleep, so that this thread has used the whole time itself.
    assert thread_time() - began < 1.5 * limit


# --- links ------------------------------------------------------------------------------------------


def test_without_a_link_commands_wait(writer):
    """On a new link the preamble with the subscriptions is sent first."""
    writer.append(b"one", 0, SOON)
    writer.append(b"two", 0, NOW)
    writer.control(b"three", SOON)
    stream = Narrow.attached(writer, preamble=b"preamble")
    writer.send_buffered()
    assert stream.sent == b"preambleonetwothree"


@pytest.mark.parametrize("flush", [SOON, DEFERRED, NOW])
def test_without_a_link_the_buffer_has_a_limit(writer, flush):
    """`pending_size` bytes wait for a link, and not one more; a refused command is not sent."""
    writer.append(b"x" * 60, 1, flush)
    writer.append(b"y" * 40, 1, flush)
    with pytest.raises(OutboundBufferLimitError) as caught:
        writer.append(b"z", 1, flush)
    assert caught.value.pending_size == 100
    assert (writer.out_msgs, writer.out_bytes) == (2, 2)
    stream = Narrow.attached(writer)
    writer.append(b"z", 1, flush)
    writer.send_buffered()
    assert stream.sent == b"x" * 60 + b"y" * 40 + b"z"


def test_with_a_pending_size_of_0_nothing_waits():
    """With ``pending_size=0`` a publish while disconnected is an error."""
    writer = Writer(0, lambda *_: None)
    with pytest.raises(OutboundBufferLimitError):
        writer.append(b"one", 0, SOON)


def test_a_link_that_breaks_is_reported(writer, broken):
    """It is reported once; the command does not raise, since it may have arrived."""
    stream = Narrow.attached(writer, 2, None)
    writer.append(b"one", 0, NOW)
    ((reported, error),) = broken
    assert reported is stream
    assert isinstance(error, ConnectionResetError)


def test_bytes_already_sent_are_not_sent_again(writer):
    """The pings of the old link are not sent on the new one; everything else is."""
    Narrow.attached(writer, 2, None)
    writer.append(b"one", 0, SOON)
    writer.send_buffered()
    writer.control(PING, WITH_NEXT)
    writer.append(b"PUB two 6\r\nPING\r\n\r\n", 0, SOON)
    writer.control(PING, WITH_NEXT)
    writer.pong()
    writer.append(b"HPUB two 4 10\r\n\r\n\r\nPONG\r\n\r\n", 0, SOON)
    writer.detach()
    writer.append(b"three", 0, SOON)
    writer.send_buffered()
    assert not writer.send_buffered(FOREVER), "there is no link"
    stream = Narrow.attached(writer)
    writer.send_buffered()
    assert stream.sent == (b"PUB two 6\r\nPING\r\n\r\nHPUB two 4 10\r\n\r\n\r\nPONG\r\n\r\nthree")


def test_commands_after_a_break_are_for_the_next_link(writer):
    """Also while another thread is sending, and the broken socket still accepts bytes."""

    class Broken(MemoryStream):
        def send(self, data, sent):
            super().send(data, sent)
            if writer._stream is self:
                writer.pause()
                writer.append(b"later", 0, SOON)

    first = Broken([])
    writer.attach(first, b"")
    writer.append(b"before", 0, NOW)
    writer.detach()
    assert first.sent == b"before"
    second = Narrow.attached(writer, preamble=b"again ")
    writer.send_buffered()
    assert second.sent == b"again later"


# --- the end ----------------------------------------------------------------------------------------


def test_a_closed_writer_refuses_with_the_reason(writer, stream):
    """Each call raises its own error; buffered data is dropped."""
    writer.append(b"one", 0, SOON)
    reason = ConnectionClosedError("why")
    writer.close(reason)
    raised = []
    for flush in (SOON, DEFERRED, NOW):
        with pytest.raises(ConnectionClosedError, match="why") as caught:
            writer.append(b"two", 0, flush)
        raised.append(caught.value)
    assert len({id(error) for error in [*raised, reason]}) == 4
    writer.control(PONG, SOON)
    writer.close(ConnectionClosedError("again"))
    writer.send_buffered()
    writer.flusher(lambda: 5.0)
    assert writer.closed is reason
    assert b"one" not in stream.sent
    assert b"two" not in stream.sent


# --- replies to pings, and a released stream --------------------------------------------------------


def test_a_reply_to_each_ping(writer, stream):
    """One PONG per PING, while the buffer is small."""
    for _ in range(100):
        writer.pong()
    writer.send_buffered()
    assert stream.sent == PONG * 100


def test_consecutive_pongs_are_combined(writer):
    """With a large buffer, consecutive PONGs are combined."""
    Narrow.attached(writer)
    writer.control(b"x" * (_SEND_ABOVE_BYTES + 1), SOON)
    for _ in range(1000):
        writer.pong()
    writer.control(b"y", SOON)
    writer.pong()
    assert len(writer._buffer) == _SEND_ABOVE_BYTES + 1 + len(PONG) + 1 + len(PONG)


def test_pending_pongs_end_with_their_link(writer):
    """Unsent PONGs are dropped with the link."""
    Narrow.attached(writer)
    writer.pong()
    writer.control(b"SUB a 1\r\n", SOON)
    writer.pong()
    writer.detach()
    second = Narrow.attached(writer)
    writer.send_buffered()
    assert second.sent == b"SUB a 1\r\n"


def test_a_released_stream_gets_the_buffered_bytes(writer, stream):
    """Later bytes are not sent; they are for the next stream."""
    writer.append(b"before", 0, SOON)
    writer.flush_and_shutdown(stream, Deadline(0.1))
    assert stream.sent == b"before"
    writer.append(b"after", 0, SOON)
    writer.send_buffered()
    assert stream.sent == b"before"
    writer.detach()
    second = Narrow.attached(writer, preamble=b"first,")
    writer.send_buffered()
    assert second.sent == b"first,after"


def test_another_stream_is_not_released(writer, stream):
    """A thread that still uses its old stream does not affect the new one."""
    writer.flush_and_shutdown(MemoryStream([]), Deadline(0.1))
    writer.append(b"one", 0, NOW)
    assert stream.sent == b"one"


def test_a_full_stream_is_released_in_time(writer):
    """Bytes that it did not accept stay buffered."""
    narrow = Narrow.attached(writer, 0, 0, 0, 0, 0, 0, 0, 0)
    writer.append(b"stays", 0, SOON)
    writer.flush_and_shutdown(narrow, Deadline(0))
    assert narrow.sent == b""
    assert writer._stream is None


# --- messages that are encoded into the buffer ------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        ("a.b", b"one", "", None),
        ("a.b", b"", "reply.to", None),
        ("a.b", b"x" * 5000, "", {"A": "1", "B": "2"}),
        ("ä.b", b"two", "", {"A": "ä"}),
        ("a.b", bytearray(b"three"), "", None),
        ("a.b", memoryview(b"four"), "", {"A": ["1", "2"]}),
    ],
)
def test_published_message_is_the_command_of_the_encoder(writer, stream, message):
    """It is written into the buffer at once, or encoded first: the bytes and the counters are the same."""
    encoder = FastEncoder()
    encoder.max_payload = 10_000
    command, size = MessageEncoder.encode_message(encoder, *message)
    for _ in range(300):
        writer.publish_message(encoder, *message)
    writer.send_buffered()
    assert stream.sent == command * 300
    assert (writer.out_msgs, writer.out_bytes) == (300, 300 * size)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (("a b", b"", "", None), BadSubjectError),
        (("a", b"", "b c", None), BadSubjectError),
        (("a", "text", "", None), InvalidArgumentError),
        (("a", b"x" * 10_001, "", None), MaxPayloadError),
        (("a", b"", "", {"A": "1\r\n"}), InvalidHeaderError),
    ],
)
def test_invalid_message_is_not_buffered(writer, stream, message, error):
    """The encoder in Python decides what is an error."""
    del stream  # attached
    encoder = FastEncoder()
    encoder.max_payload = 10_000
    with pytest.raises(error):
        writer.publish_message(encoder, *message)
    for arguments in ((), (encoder,), (object(), *message), (None, None, None, None, None)):
        with pytest.raises((TypeError, AttributeError)):
            writer.publish_message(*arguments)
    assert (writer.pending_bytes, writer.out_msgs) == (0, 0)
