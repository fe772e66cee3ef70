"""The code that runs for every sent or received message: in C if possible, otherwise in Python."""

# The installation builds the extension if there is a C compiler. Without it everything works the same, with
# more processor time per message. The environment variable ``JETSTREAM_SYNC_SPEEDUPS=0``, set before the
# first import of the package, selects Python.

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

#: Arguments: the data, the largest message in bytes, the type of a run, and the ids of subscriptions whose
#: runs are packed: sequences that refer to the data. Returns the runs at the start of the data, how many
#: bytes they take, and how many bytes of headers and payloads are in them.
ReadMessages: TypeAlias = Callable[[bytes, int, type[Any], set[int]], tuple[list[Any], int, int]]


class PythonMessageFields:
    """The fields of a message, in Python."""

    __slots__ = ("_core", "_header", "_reply", "_settled", "_subject", "data")

    data: bytes

    def __init__(
        self, delivery: tuple[bytes, bytes, bytes, bytes], core: Any, settled: Any = False, /
    ) -> None:
        self._header: Any
        self._subject, self._reply, self._header, self.data = delivery
        self._core = core
        self._settled = settled


class PythonFutureFields:
    """The fields of a future of a publish acknowledgement, in Python."""

    __slots__ = ("_core", "_outcome", "_watched", "due", "message", "subject")

    subject: str
    message: tuple[bytes, int] | None
    due: float | None

    def __init__(
        self, subject: str, message: tuple[bytes, int] | None, due: float | None, core: Any, /
    ) -> None:
        self.subject = subject
        self.message = message
        self.due = due
        self._core: Any = core
        self._outcome: Any = None
        self._watched = False


#: The base class of a message.
MessageFields = PythonMessageFields

#: The base class of a future of a publish acknowledgement.
FutureFields = PythonFutureFields

#: Parses the complete, ordinary messages at the start of received data; ``None``: the extension is not
#: in use. The parser contains the same in Python.
read_messages: ReadMessages | None = None

#: Base class of `jetstream_sync.client.encoder.FastEncoder`; ``None``: the extension is not in use.
Encoder: type[Any] | None = None

#: Settles the futures of acknowledgements. Arguments: the class of the futures, and those of
#: `PubAckFuture.settle_run`. ``None``: the extension is not in use.
settle_futures: Callable[[type[Any], dict[bytes, Any], list[Any], int], list[Any]] | None = None

#: Waits for bytes of a socket while it holds a lock, if that is free. If the bytes are one message with the
#: subject, any with ``None``, and the id of the subscription, appends it to the messages; otherwise appends the
#: bytes to the list. Arguments: the methods of the lock that take and release it, the file descriptor, the subject,
#: the id, the messages and the list. Returns whether it was that message. ``None``: not in use. `DirectReads.read`
#: has the same in Python.
receive_reply: Callable[[Any, Any, int, bytes | None, int, Any, list[bytes]], bool] | None = None

#: Parses an ordinary acknowledgement. Arguments: the server's reply, the class of the acknowledgement, and
#: its items after the stream and the sequence. ``None``: the extension is not in use.
parse_pub_ack: Callable[[bytes, type[Any], tuple[Any, ...]], Any] | None = None


# The functions from here on, except OutputBuffer, are in the second extension, which Spark uses.

#: Returns a field of packed runs: its offsets as 32-bit integers, one more than there are messages, and its
#: bytes. Arguments: the runs, and the index of the field in a `RawMessage`. ``None``: a run is not packed; the
#: extension is not in use. So are the following.
run_column: Callable[[tuple[Any, ...], int], tuple[bytes, bytes] | None] | None = None

#: Returns the numbers at a place of the reply subjects, counted from the end, as 64-bit integers.
run_numbers: Callable[[tuple[Any, ...], int], bytes | None] | None = None

#: Splits the header blocks of messages, given as offsets and bytes, into columns. Returns five buffers: for
#: each message the number of headers up to it, after a 0; the offsets of the names, and the names; the same
#: for the values. ``None``: a block is unusual.
split_headers: Callable[[Any, bytes], tuple[bytes, bytes, bytes, bytes, bytes] | None] | None = None

#: Splits the header blocks of direct gets, given as offsets and bytes. Returns six buffers: the offsets of the
#: headers before those of the server, and these headers; the same for the subjects; sequences and times.
split_direct: (
    Callable[[Any, bytes], tuple[bytes, bytes, bytes, bytes, bytes, bytes] | None] | None
) = None

#: A column of bytes: its offsets and its bytes, see `jetstream_sync.spark.bytes_column`.
Texts: TypeAlias = tuple[Any, bytes]

#: Returns whether all texts of a column are valid, usual subjects, of which each matches one of the patterns and
#: calls no server API. Arguments: offsets, bytes and patterns. ``None``: the extension is not in use. So are the
#: following.
are_subjects: Callable[[Any, bytes, tuple[bytes, ...]], bool] | None = None

#: Returns the commands that publish rows. Arguments: subjects, ids, header lines and payloads; the start of each
#: header block; the reply subject; the number of the first row, which is added to that start, 0 for none; and the
#: largest size of headers and payload. ``None``: a row is larger.
join_commands: (
    Callable[[Texts, Texts, Texts, Texts, bytes, bytes, int, int], bytes | None] | None
) = None

#: Returns a prefix and a digest for each row. Arguments: the prefix, subjects, header lines and payloads.
row_digests: Callable[[bytes, Texts, Texts, Texts], bytes | None] | None = None

#: Adds digests of 12 bytes to a table of a power of two of them, and returns a byte for each: 1 if it was there.
#: Arguments: the table, joined items that end with digests, and the size of an item.
add_digests: Callable[[bytearray, bytes | bytearray, int], bytes] | None = None

#: Base class of `jetstream_sync.client.writer.FastWriter`; ``None``: the extension is not in use.
OutputBuffer: type[Any] | None = None

if not TYPE_CHECKING and os.environ.get("JETSTREAM_SYNC_SPEEDUPS") != "0":
    with contextlib.suppress(ImportError):
        from ._speedups import *  # noqa: F403 - all of the names above

        # copy.copy() finds the fields in it, as those of a class in Python.
        MessageFields.__slots__ = PythonMessageFields.__slots__

        from ._columns import *  # noqa: F403 - the functions for columns and rows

IN_USE: Final[bool] = read_messages is not None
"""Whether the C extension is in use."""
