"""The stream that returns scripted bytes."""

from __future__ import annotations

import pytest
from fix_memory import MemoryStream

from jetstream_sync.net.layer import ByteStream


def test_it_is_a_stream():
    """It has the interface of a `ByteStream`."""
    stream = MemoryStream([])
    for name in ("peer", *(each for each in vars(ByteStream) if not each.startswith("_"))):
        assert hasattr(stream, name)


def test_the_script_comes_piece_by_piece():
    """After the script the stream has ended."""
    stream = MemoryStream([b"a", b"bc"])
    stream.set_timeout(0.0)
    assert [stream.receive() for _ in range(4)] == [b"a", b"bc", b"", b""]


def test_what_was_sent_is_remembered():
    """Everything is accepted at once, and recorded."""
    stream = MemoryStream([])
    sent = []
    stream.send(memoryview(b"ab"), sent)
    stream.send(memoryview(b"c"), sent)
    assert (stream.sent, sent) == (b"abc", [2, 1])
    assert stream.wait_writable(0.0)


@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_after_the_end_there_is_nothing(end):
    """A stream that was shut down returns no bytes and accepts none."""
    stream = MemoryStream([b"a"])
    getattr(stream, end)()
    assert stream.receive() == b""
    sent = []
    with pytest.raises(OSError):
        stream.send(memoryview(b"a"), sent)
    assert (stream.sent, sent) == (b"", [])
