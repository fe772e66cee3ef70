"""The C extension and its twin in Python are interchangeable, and the extension leaks nothing."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pkgutil
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from array import array
from collections import deque
from pathlib import Path

import pytest

from jetstream_sync import speedups
from jetstream_sync.api.publish import PubAck
from jetstream_sync.client.encoder import FastEncoder
from jetstream_sync.client.writer import DEFERRED, NOW, SOON, FastWriter, Writer
from jetstream_sync.errors import InvalidHeaderError
from jetstream_sync.net.clock import FOREVER, Deadline
from jetstream_sync.net.tcp import TCPStream
from jetstream_sync.protocol.parser import Messages, only_message
from jetstream_sync.spark.bytes_column import BytesColumn

needs_extension = pytest.mark.skipif(
    not speedups.IN_USE, reason="the C extension is not in use: JETSTREAM_SYNC_SPEEDUPS=0"
)
both = pytest.mark.parametrize(
    "fields", [speedups.PythonMessageFields, speedups.MessageFields], ids=["python", "in use"]
)

DELIVERY = (b"subject", b"reply", b"header", b"data")
DIRECT = (
    b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: 1\r\n"
    b"Nats-Time-Stamp: 2026-01-31T12:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n\r\n"
)
MESSAGE = b"MSG a.subject 7 a.reply 7\r\npayload\r\nHMSG a.subject 7 2 3\r\nabc\r\n"


@pytest.mark.parametrize(("value", "expected"), [("0", "False"), ("1", str(speedups.IN_USE))])
def test_the_environment_variable_turns_the_extension_off(value, expected, tmp_path):
    """`JETSTREAM_SYNC_SPEEDUPS=0` selects Python."""
    if value == "1" and not speedups.IN_USE:
        pytest.skip("this run is without the extension")
    program = "import jetstream_sync.speedups as s; print(s.IN_USE)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"JETSTREAM_SYNC_SPEEDUPS": value},
        cwd=tmp_path,  # which is on the path of the program, before the installed package
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [expected]


# --- the fields of a message ------------------------------------------------------------------------


@both
def test_a_message_has_the_fields_of_its_delivery(fields):
    """The fields are those of the delivery, and may be set."""
    core = object()
    message = fields(DELIVERY, core)
    taken = (message._subject, message._reply, message._header, message.data)
    assert taken == DELIVERY
    assert (message._core, message._settled) == (core, False)
    message.data = b"other"
    message._settled = True
    assert (message.data, message._settled) == (b"other", True)
    assert fields(DELIVERY, core, None)._settled is None


@both
def test_a_message_without_its_constructor_has_no_fields(fields):
    """An unset field is an `AttributeError`, and such a message can be deleted."""
    message = fields.__new__(fields)
    with pytest.raises(AttributeError):
        message.data  # noqa: B018
    del message


@both
@pytest.mark.parametrize(
    "arguments", [(), (DELIVERY,), (DELIVERY, 1, 2, 3), ((b"three", b"", b""), 1), (b"", 1), (7, 1)]
)
def test_a_message_of_something_else_is_refused(fields, arguments):
    """Other arguments than a delivery and its connection are an error."""
    with pytest.raises((TypeError, ValueError)):
        fields(*arguments)
    with pytest.raises(TypeError):
        fields(DELIVERY, core=1)


@both
def test_a_message_can_be_copied_and_has_no_other_attributes(fields):
    """`copy.copy` copies the fields; a message has no dict and is no target of a weak reference."""
    message = copy.copy(fields(DELIVERY, 1, None))
    assert (message._subject, message._core, message._settled) == (b"subject", 1, None)
    with pytest.raises(AttributeError):
        message.other = 1
    with pytest.raises(TypeError):
        weakref.ref(message)


# --- the fields of a future -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [speedups.PythonFutureFields, speedups.FutureFields], ids=["python", "in use"]
)
def test_a_future_has_the_fields_of_its_constructor(fields):
    """A new one has no outcome and no watcher, and the fields may be set."""
    core, message = object(), (b"command", 0)
    future = fields("subject", message, 1.5, core)
    assert (future.subject, future.message, future.due) == ("subject", message, 1.5)
    assert (future._core, future._outcome, future._watched) == (core, None, False)
    future._outcome = future.message = b"reply"
    future._watched = True
    assert (future.message, future._outcome, future._watched) == (b"reply", b"reply", True)
    for arguments in ((), ("a", None, None), ("a", None, None, None, None)):
        with pytest.raises(TypeError):
            fields(*arguments)


# --- the garbage collector ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        (speedups.PythonMessageFields, (DELIVERY,)),
        (speedups.MessageFields, (DELIVERY,)),
        (speedups.PythonFutureFields, ("subject", None, None)),
        (speedups.FutureFields, ("subject", None, None)),
    ],
)
def test_a_cycle_through_an_object_is_collected(fields, arguments):
    """The garbage collector sees what a message or a future refers to."""

    class Core:
        member: object

    class Member(fields):
        __slots__ = ()

    core = Core()
    core.member = Member(*arguments, core)
    gone = weakref.ref(core)
    del core
    gc.collect()
    assert gone() is None


# --- parsing ----------------------------------------------------------------------------------------


@needs_extension
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (b"",),
        ("", 1, Messages, set()),
        (bytearray(), 1, Messages, set()),
        (b"", "", Messages, set()),
    ],
)
def test_other_arguments_are_refused(arguments):
    """The extension refuses other types than it was written for."""
    with pytest.raises(TypeError):
        speedups.read_messages(*arguments)


@needs_extension
def test_nothing_is_leaked():
    """Memory does not grow with the number of calls, also of those that fail."""
    read, fields, encoder = speedups.read_messages, speedups.MessageFields, FastEncoder()
    parse, settle = speedups.parse_pub_ack, speedups.settle_futures

    def refuse(*_: object) -> None:
        raise KeyError

    def work(count: int) -> None:
        for _ in range(count):
            runs, _, _ = read(MESSAGE * 3 + MESSAGE[:20], 100, Messages, set())
            for delivery in runs[0].deliveries:
                message = fields(delivery, object())
                message.__init__(delivery, object(), None)
            for headers in (None, {"A": "b"}):
                encoder.encode_command(b"a.subject", b"payload", b"a.reply", headers)
            with pytest.raises(InvalidHeaderError):
                encoder.encode_message("a.subject", b"payload", "a.reply", {"A": "\n"})
            with pytest.raises(TypeError):
                encoder.encode_message("a.subject")
            with pytest.raises(KeyError):
                read(MESSAGE, 100, refuse, set())
            with pytest.raises(TypeError):
                fields((), 1)
            for response in (b'{"stream":"S","seq":1000}', b'{"stream":"S","seq":1000', b"{}"):
                parse(response, PubAck, (False, None, None, None, None))
            future = speedups.FutureFields("subject", (b"command", 7), 1.5, object())
            future.__init__("subject", (b"command", 7), 1.5, object())
            run = [(b"1", b"", b"", b"payload %d" % count), (b"2", b"", b"", b"")]
            settle(speedups.FutureFields, {b"1": future, b"2": object()}, run, 0)
            with pytest.raises(TypeError):
                settle(speedups.FutureFields, {}, [*run, ()], 0)
            for block in (b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0", DIRECT):
                column = BytesColumn.of([block, b""][: 1 + (block is not DIRECT)])
                for function in (speedups.split_headers, speedups.split_direct):
                    function(column.offsets, column.data)
                    with pytest.raises(ValueError):
                        function(column.offsets, b"")
            rows = BytesColumn.of([b"a", b"b"]).parts
            for limit in (100, 1):
                speedups.join_commands(rows, rows, rows, rows, b"", b"r", 1, limit)
            speedups.are_subjects(*rows, (b"a", b">"))
            speedups.add_digests(bytearray(48), speedups.row_digests(b"", rows, rows, rows), 12)
            for mixed in ((), ([],)):
                packed = read(MESSAGE * 3, 100, Messages, {7})[0][0].deliveries
                speedups.run_column((packed, *mixed), 3)
                speedups.run_numbers((packed, *mixed), 1)
                packed.pop()

    work(10)
    tracemalloc.start()
    try:
        work(10)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        work(300)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One leaked object for each call would be 300 times at least 33 bytes.
    assert after - before < 8000


# --- arguments that the package never passes ------------------------------------------------------------


@needs_extension
def test_a_long_chain_of_messages_can_be_freed():
    """Freeing it does not use up the C stack."""
    message = None
    for _ in range(300_000):
        message = speedups.MessageFields(DELIVERY, message)
    del message


@needs_extension
def test_a_type_of_runs_that_drops_its_list():
    """The list of a run lives as long as messages are added to it."""
    operations, size, _ = speedups.read_messages(MESSAGE, 100, lambda _, __: None, set())
    assert operations == [None]
    assert size == len(MESSAGE)


@needs_extension
def test_fields_that_vanish_during_the_check_of_the_lock():
    """The method in Python appends then."""
    left = []

    class Buffer(speedups.OutputBuffer):
        def _append(self, command: bytes, size: int, flush: int) -> None:
            assert flush == SOON
            left.append((command, size))

    for name in ("_buffer", "_stream"):
        buffer = Buffer()
        buffer._buffer, buffer._stream, buffer.closed = bytearray(), object(), None

        def is_locked(buffer: Buffer = buffer, name: str = name) -> bool:
            delattr(buffer, name)
            return False

        buffer._is_locked = is_locked
        buffer.append(b"PUB a 0\r\n\r\n", 0, SOON)
    assert left == [(b"PUB a 0\r\n\r\n", 0)] * 2


@needs_extension
def test_an_acknowledgement_of_another_class():
    """A struct sequence is refused, and an acknowledgement has the hash of its equal."""
    response = b'{"stream":"S","seq":7}'
    assert speedups.parse_pub_ack(response, time.struct_time, ()) is None
    ack = speedups.parse_pub_ack(response, PubAck, tuple(PubAck._field_defaults.values()))
    assert hash(ack) == hash(PubAck("S", 7))


# --- columns for Arrow ------------------------------------------------------------------------------


def _buffers(*values: bytes) -> tuple[memoryview, bytes]:
    column = BytesColumn.of(values)
    return column.offsets, column.data


def columns_of(block: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the names and values of a block between two others, ``None`` if Python must parse it."""
    columns = speedups.split_headers(*_buffers(b"NATS/1.0\r\nA: b\r\n\r\n", block, b""))
    if columns is None:
        return None
    ends, name_offsets, names, value_offsets, values = columns
    count, *counts = memoryview(ends).cast("i")
    assert count == 0
    assert counts[0] == 1
    assert counts[1] == counts[2]
    found = [
        [data[start:end] for start, end in itertools.pairwise(memoryview(offsets).cast("i"))]
        for offsets, data in ((name_offsets, names), (value_offsets, values))
    ]
    assert len(found[0]) == len(found[1]) == counts[2]
    return list(zip(*found, strict=True))[1:]


@needs_extension
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", []),
        (b"X: 1\r\nY:\t2 \r\n", [(b"X", b"1"), (b"Y", b"2")]),
        (b"X:\r\n", [(b"X", b"")]),
        (b"X: a:b\rc\n\r\r\n", [(b"X", b"a:b\rc\n\r")]),
        (b"X: \xff\r\n", [(b"X", b"\xff")]),
        (b"X: 1\r\nx: 2\r\n", None),
        (b"no colon\r\n", None),
        (b": no name\r\n", None),
        (b" : no name\r\n", None),
        (b"X: 1\r\n\r\nY: 2\r\n", None),
        (b"".join(b"X%d: 1\r\n" % number for number in range(40)), None),
    ],
)
def test_headers_are_split(lines, expected):
    """Ordinary blocks are split at their line breaks; the others are left to Python."""
    assert columns_of(b"NATS/1.0\r\n%b\r\n" % lines) == expected


@needs_extension
@pytest.mark.parametrize(
    "block", [b"NATS", b"NATS/1.0 404\r\n\r\n", b"NATS/1.0\r\nX: 1", b"NATS/1.0\r\nX: 1\r\n"]
)
def test_other_blocks_are_not_split(block):
    """A status line or an incomplete block is left to Python."""
    assert columns_of(block) is None


@needs_extension
@pytest.mark.parametrize("function", ["split_headers", "split_direct", "are_subjects"])
@pytest.mark.parametrize("offsets", [[], [0, 9], [-1, 0], [0, 2, 1, 3]])
def test_offsets_outside_of_the_data_are_refused(function, offsets):
    """Each text is within the data."""
    with pytest.raises(ValueError, match="offsets"):
        getattr(speedups, function)(array("i", offsets), b"abc")


@needs_extension
def test_columns_of_rows_have_equal_lengths():
    """Columns of different lengths are refused, except for empty ids and header lines."""
    one, two, none = (BytesColumn.of([b"a"] * count).parts for count in (1, 2, 0))
    assert speedups.join_commands is not None
    assert speedups.row_digests is not None
    assert speedups.join_commands(two, none, none, two, b"", b"r", 0, 9) is not None
    for columns in ((two, none, none, one), (two, one, none, two), (one, none, two, one)):
        with pytest.raises(ValueError, match="lengths"):
            speedups.join_commands(*columns, b"", b"r", 0, 9)
        with pytest.raises(ValueError):
            speedups.row_digests(b"", columns[0], columns[2], (array("i", [0, 9]), b"a"))


@needs_extension
def test_a_table_of_digests():
    """A digest is found again, also in a larger table; a full table and wrong sizes are errors."""
    add = speedups.add_digests
    assert add is not None
    table, digests = bytearray(4 * 12), b"".join(b"%012d" % number for number in (1, 2, 3, 1, 4))
    assert add(table, digests, 12) == bytes([0, 0, 0, 1, 0])
    larger = bytearray(8 * 12)
    add(larger, table, 12)
    assert add(larger, b"-" + digests[:12] + b"-" + b"5" * 12, 13) == bytes([1, 0])
    with pytest.raises(ValueError, match="full"):
        add(table, b"5" * 12, 12)
    for size, stride in ((3 * 12, 12), (0, 12), (4 * 12 + 1, 12), (4 * 12, 11), (4 * 12, 13)):
        with pytest.raises(ValueError, match="sizes"):
            add(bytearray(size), b"5" * 12, stride)


# --- a request of one caller --------------------------------------------------------------------------

needs_receive = pytest.mark.skipif(
    speedups.receive_reply is None, reason="the C extension is not in use, or without sockets"
)


def receive(
    data: bytes | None, subject: bytes | None = b"in.1", sid: int = 7
) -> tuple[bool, list[tuple[bytes, ...]], list[bytes]]:
    """Receive bytes that another socket sends, ``None``: none; return the result and both lists."""
    assert speedups.receive_reply is not None
    ours, theirs = socket.socketpair()
    lock, messages, received = threading.Lock(), deque[tuple[bytes, ...]](), list[bytes]()
    with ours, theirs:
        if data is None:
            ours.setblocking(False)
        elif data:
            theirs.sendall(data)
        else:
            theirs.close()
        taken = speedups.receive_reply(
            lock.acquire, lock.release, ours.fileno(), subject, sid, messages, received
        )
    assert not lock.locked()
    return taken, list(messages), received


@needs_receive
@pytest.mark.parametrize(
    "data",
    [
        b"MSG in.1 7 2\r\nok\r\n",
        b"MSG in.1 7 re.ply 2\r\nok\r\n",
        b"HMSG in.1 7 12 14\r\nNATS/1.0\r\n\r\nok\r\n",
        b"MSG in.2 7 2\r\nok\r\n",
        b"MSG in.1 8 2\r\nok\r\n",
        b"MSG in.1 7 2\r\nok\r\nPING\r\n",
        b"MSG in.1 7 2\r\no",
        b"MSG in.1 7 3\r\nok\r\n",
        b"PING\r\n",
        b"MSG in.1 7 0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("subject", [b"in.1", None])
def test_a_reply_is_received_as_in_python(data, subject):
    """Exactly one message with the subject and the id is the reply; everything else is left to the reader."""
    expected = only_message(data, subject or data.partition(b" ")[2].partition(b" ")[0], 7)
    if expected is None:
        assert receive(data, subject) == (False, [], [data])
    else:
        assert receive(data, subject) == (True, [expected], [])


@needs_receive
def test_the_end_of_a_stream_is_received_as_in_python():
    """Empty bytes are the end of the stream; no bytes in time leave both lists empty."""
    assert receive(b"") == (False, [], [b""])
    assert receive(None) == (False, [], [])


@needs_receive
def test_errors_of_the_socket_are_raised_and_release_the_lock():
    """A closed socket raises; a lock that another thread holds leaves the bytes there."""
    assert speedups.receive_reply is not None
    lock = threading.Lock()
    with pytest.raises(OSError, match="descriptor"):
        speedups.receive_reply(lock.acquire, lock.release, 10_000, None, 7, [], [])
    assert not lock.locked()
    with lock:
        assert speedups.receive_reply(lock.acquire, lock.release, 10_000, None, 7, [], []) is False


def test_a_command_that_a_socket_takes_in_part_is_sent_once():
    """The rest of a large command follows with the next data, and nothing is sent twice or left out."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer = FastWriter(1 << 20, lambda *_: None)
    with ours, theirs:
        writer.attach(TCPStream(ours, "peer"), b"")
        commands = [
            bytes([65 + number]) * size for number, size in enumerate((9, 50_000, 5, 300_000))
        ]
        expected = b"".join(commands)
        seen: list[bytes] = []
        reader = threading.Thread(
            target=lambda: seen.append(theirs.recv(len(expected), socket.MSG_WAITALL))
        )
        writer.append(commands[0], len(commands[0]), NOW, 1, True, FOREVER)
        writer.append(commands[1], len(commands[1]), NOW, 1, True, Deadline(60))
        assert 0 < writer.pending_bytes < len(commands[1])
        reader.start()
        for command in commands[2:]:
            writer.append(command, len(command), NOW, 1, True, FOREVER)
        assert writer.send_buffered(Deadline(10))
        reader.join(10)
        assert seen == [expected]
        assert (writer.out_msgs, writer.out_bytes) == (4, len(expected))
        assert (writer.unanswered, writer.unsent, writer.pending_bytes) == (0, 0, 0)
        writer.append(b"x", 1, NOW)
        assert (writer.unanswered, writer.unsent) == (1, 0)
        writer.append(b"pulls", 1, NOW, 2, True)
        writer.append(b"p", 1, SOON)
        assert (writer.unanswered, writer.unsent) == (2, 1)
        assert writer.send_buffered(Deadline(10))
        assert (writer.unanswered, writer.unsent) == (2, 0)
        writer.pause()
        writer.append(b"kept", 4, SOON)
        assert (writer.unanswered, writer.unsent) == (3, 1)
        writer.append(b"later", 5, NOW, 1, True, FOREVER)
        assert writer.pending_bytes == 9


@pytest.mark.parametrize("writer_type", [Writer, FastWriter])
@pytest.mark.parametrize("size", [5, 60_000])
def test_buffered_commands_are_sent_before_the_command_of_a_caller(writer_type, size):
    """One call sends the buffer and the command in their order, also if the socket takes a part of them."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer = writer_type(1 << 20, lambda *_: None)
    with ours, theirs:
        writer.attach(TCPStream(ours, "peer"), b"CONNECT ")
        writer.append(b"first ", 6, SOON)
        writer.append(b"+ACK ", 4, DEFERRED)
        command = b"c" * size
        writer.append(command, size, NOW, 1, True, Deadline(60))
        assert writer.unsent == 0 or writer.pending_bytes
        expected = b"CONNECT first +ACK " + command
        received = b""
        while len(received) < len(expected):
            received += theirs.recv(1 << 20)
            writer.send_buffered()
        assert received == expected
        assert (writer.out_msgs, writer.out_bytes) == (3, 10 + size)
        assert (writer.unanswered, writer.unsent, writer.pending_bytes) == (2, 0, 0)
        writer.append(b"next", 4, SOON)
        assert writer.pending_bytes == 4


def test_a_finalizer_does_not_send_within_a_command_that_was_sent_in_part():
    """A garbage collection during a partial send: what a finalizer sends is not lost, and not in between."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer = FastWriter(1 << 20, lambda *_: None)
    command, late = b"c" * 50_000, b"from the finalizer"
    with ours, theirs:
        writer.attach(TCPStream(ours, "peer"), b"")
        thresholds = gc.get_threshold()
        gc.disable()
        try:
            garbage = Garbage()
            garbage.itself = garbage
            weakref.finalize(garbage, writer.append, late, len(late), NOW)
            del garbage
            gc.set_threshold(1, 1, 1)
            gc.enable()
            writer.append(command, 50_000, NOW)
        finally:
            gc.set_threshold(*thresholds)
            gc.enable()
        gc.collect()
        theirs.settimeout(10)
        received = theirs.recv(len(command), socket.MSG_WAITALL | socket.MSG_DONTWAIT)
        while len(received) < len(command) + len(late):
            writer.send_buffered()
            received += theirs.recv(1 << 20)
        # In Python the collection may begin before the command is in the buffer.
        assert received in (command + late, late + command)


class Garbage:
    """An object in a reference cycle."""

    itself: object = None


def test_names_in_comments_of_the_c_code_exist():
    """Each dotted name of the package in a comment is a module, a class or a function."""
    folder = Path(__file__).parents[2] / "jetstream_sync"
    sources = [*folder.glob("_*.c"), *folder.glob("_*.h")]
    names = {
        name
        for source in sources
        for name in re.findall(r"`(jetstream_sync(?:\.\w+)+)`", source.read_text(encoding="utf-8"))
    }
    assert names
    for name in names:
        pkgutil.resolve_name(name)
