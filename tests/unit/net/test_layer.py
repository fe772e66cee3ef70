"""Common behaviour of TLS and WebSocket: bytes arrive once and in order."""

from __future__ import annotations

import ssl
from time import sleep

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.layers import KINDS, Wire, opened
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_sync.net.layer import Layer

each_kind = pytest.mark.parametrize("kind", KINDS)

BIG = bytes(range(256)) * 1000


def send_all(layer: Layer, data: bytes, wire: Wire, refill: int) -> int:
    """Send like a writer, which repeats uncounted bytes; return the number of full sockets."""
    blocked = 0
    rest = memoryview(data)
    while rest:
        sent: list[int] = []
        try:
            layer.send(rest, sent)
        except BlockingIOError:
            blocked += 1
            assert not sent
            wire.room = (wire.room or 0) + refill
        rest = rest[sum(sent) :]
    return blocked


@each_kind
@settings(max_examples=25, deadline=None)
@given(
    messages=st.lists(st.binary(min_size=1, max_size=1000), min_size=1, max_size=4),
    refill=st.integers(min_value=1, max_value=700),
)
def test_a_full_socket_has_nothing_sent_twice(kind, messages, refill):
    """Encoded bytes that were not sent completely are not encoded again."""
    layer, wire = opened(kind)
    wire.room = 0
    for message in messages:
        assert send_all(layer, message, wire, refill) > 0
        wire.room = 0
    wire.deliver()
    assert wire.server.heard == b"".join(messages)


@each_kind
def test_bytes_count_only_when_their_encoded_form_was_sent(kind):
    """While one byte of the encoded form is unsent, no byte counts as sent."""
    layer, wire = opened(kind)
    sent: list[int] = []
    layer.send(memoryview(b"x" * 1000), sent)
    assert sent == [1000]
    before, wire.room = wire.sends, 0
    for _ in range(1000):
        wire.room = 1
        with pytest.raises(BlockingIOError):
            layer.send(memoryview(b"y" * 1000), sent)
        assert sent == [1000]
    wire.room = 100
    layer.send(memoryview(b"y" * 1000 + b"more"), sent)
    assert sent == [1000, 1000]
    assert wire.sends - before > 1000
    wire.deliver()
    assert wire.server.heard == b"x" * 1000 + b"y" * 1000


@each_kind
@sends_ctrl_c
@pytest.mark.parametrize("room", [None, 50], ids=["room", "full"])
def test_a_ctrl_c_loses_and_repeats_nothing(kind, room):
    """Wherever Ctrl-C interrupts a send, the counted bytes have been sent, once."""
    layer, wire = opened(kind)
    interrupted(lambda: send_all(layer, b"warm", wire, 50), 10**9)
    expected = bytearray(b"warm")
    moment = 1
    going_off = True
    while going_off:
        batch = b"%06d." % moment * 20
        sent: list[int] = []
        wire.room = room

        def send(batch: bytes = batch, sent: list[int] = sent) -> None:
            while sum(sent) < len(batch):
                try:
                    layer.send(memoryview(batch)[sum(sent) :], sent)
                except BlockingIOError:
                    wire.room = 50

        going_off = interrupted(send, moment)
        wire.room = None
        send()
        assert sum(sent) == len(batch)
        expected += batch
        moment += 1
    wire.deliver()
    assert wire.server.heard == expected
    assert moment > 8


@each_kind
@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_any_split_of_the_bytes_is_decoded(kind, piece):
    """However the bytes are divided, the result is the same, without empty pieces."""
    layer, wire = opened(kind)
    wire.piece = piece
    wire.bring(wire.server.say(b"first") + wire.server.say(b"x" * 20_000))
    got = []
    while sum(map(len, got)) < 20_005:
        got.append(layer.receive())
    assert b"".join(got) == b"first" + b"x" * 20_000
    assert all(got)
    assert all(type(item) is bytes for item in got)


@each_kind
def test_one_receive_returns_all_records_of_a_read(kind):
    """Several records or frames of one read are one result."""
    layer, wire = opened(kind)
    wire.bring(b"".join(wire.server.say(b"%03d" % number) for number in range(100)))
    assert layer.receive() == b"".join(b"%03d" % number for number in range(100))


@each_kind
def test_the_time_is_for_all_of_a_receive(kind):
    """Bytes that complete nothing do not extend the time limit of receive()."""
    layer, wire = opened(kind)
    layer.set_timeout(0.05)
    endless = wire.server.say(b"x" * 16_000)[:-1]
    wire.piece = 1
    wire.bring(endless)

    reads = 0
    really = wire.receive

    def slow() -> bytes:
        nonlocal reads
        reads += 1
        # Like the system, whose limit is for one read.
        assert wire.timeout <= 0.05
        if reads > 20:
            sleep(0.06)
        return really()

    wire.receive = slow  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        layer.receive()
    assert reads == 21


@each_kind
def test_a_close_notification_ends_the_stream(kind):
    """Bytes before the server's close notification are returned first, then the end, repeatedly."""
    layer, wire = opened(kind)
    wire.bring(wire.server.say(b"last words") + wire.server.say_goodbye())
    assert layer.receive() == b"last words"
    assert layer.receive() == b""
    assert layer.receive() == b""


@each_kind
def test_the_end_of_the_socket_is_the_end(kind):
    """A server that closes without a notification has ended, too."""
    layer, wire = opened(kind)
    wire.bring(wire.server.say(b"a"))
    wire.ended = True
    assert [layer.receive() for _ in range(3)] == [b"a", b"", b""]


@each_kind
def test_garbage_is_a_broken_link(kind):
    """Bytes that cannot be decrypted are an OSError, after the bytes before them."""
    layer, wire = opened(kind)
    wire.bring(wire.server.say(b"good") + b"\xff" * 100)
    assert layer.receive() == b"good"
    for _ in range(2):
        with pytest.raises(OSError):
            layer.receive()


@each_kind
def test_shutdown_notifies_the_server(kind):
    """The server gets the notification once, after all bytes; a second call does nothing."""
    layer, wire = opened(kind)
    sent: list[int] = []
    layer.send(memoryview(b"all"), sent)
    layer.shutdown()
    assert wire.ended
    layer.shutdown()
    wire.deliver()
    assert wire.server.heard == b"all"
    assert wire.server.ended


@each_kind
def test_shutdown_does_not_wait(kind):
    """With a full socket, or while another thread is sending, no close notification is sent."""
    layer, wire = opened(kind)
    wire.room = 0
    layer.shutdown()
    assert wire.ended
    layer, wire = opened(kind)
    with layer._sending:
        layer.shutdown()
    assert wire.ended
    wire.deliver()
    assert not wire.server.ended


@each_kind
def test_closing_sends_nothing_and_takes_no_lock(kind):
    """In a forked child, whose locks may be held, the copy is closed without a byte."""
    layer, wire = opened(kind)
    sends = wire.sends
    with layer._sending, layer._lock:
        layer.close()
    assert wire.ended
    assert wire.sends == sends


@each_kind
def test_the_locks_are_free_while_the_network_waits(kind):
    """The lock for decoding is not held while bytes are sent or awaited."""
    layer, wire = opened(kind)
    held = []
    for name in ("send", "receive"):
        really = getattr(wire, name)

        def look(*args: object, really: object = really) -> object:
            held.append(layer._lock.locked())
            return really(*args)  # type: ignore[operator]

        setattr(wire, name, look)
    send_all(layer, BIG, wire, 0)
    wire.bring(wire.server.say(b"x"))
    layer.receive()
    assert len(held) > 4
    assert not any(held)


@pytest.mark.parametrize("kind", ["TLS 1.2", "TLS 1.3"])
def test_a_broken_record_is_an_ssl_error(kind):
    """Encrypted bytes that were changed in transit are refused."""
    layer, wire = opened(kind)
    record = bytearray(wire.server.say(b"pay 10"))
    record[-1] ^= 1
    wire.bring(bytes(record))
    with pytest.raises(ssl.SSLError):
        layer.receive()
