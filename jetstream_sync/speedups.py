"""
The code that runs for every sent or received message: in C if possible, otherwise in Python.

The installation builds the extension if there is a C compiler. Without it everything works the same, with
more processor time per message. The environment variable ``JETSTREAM_SYNC_SPEEDUPS=0``, set before the
first import of the package, selects Python.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

__all__ = [
    "IN_USE",
    "Encode",
    "MessageFields",
    "OutputBuffer",
    "PythonMessageFields",
    "ReadMessages",
    "encode_command",
    "encode_message",
    "read_messages",
]

#: Arguments: the data, the largest message in bytes, and the type of a run. Returns the runs at the start
#: of the data, how many bytes they take, and how many bytes of headers and payloads are in them.
ReadMessages: TypeAlias = Callable[[bytes, int, type[Any]], tuple[list[Any], int, int]]

#: Arguments: the subject, the payload, the reply subject, the headers, and the largest size of headers and
#: payload in bytes. Returns the command and this size; ``None``: the message is invalid or unusual.
Encode: TypeAlias = Callable[[Any, Any, Any, Any, int], tuple[bytes, int] | None]


class PythonMessageFields:
    """
    The fields of a message, in Python.

    Args:
        delivery: subject, reply, header block and payload.
        core: the connection.
        settled: see `JetStreamMsg`.

    """

    __slots__ = ("_core", "_header", "_reply", "_settled", "_subject", "data")

    data: bytes

    def __init__(
        self, delivery: tuple[bytes, bytes, bytes, bytes], core: Any, settled: Any = False, /
    ) -> None:
        self._header: Any
        self._subject, self._reply, self._header, self.data = delivery
        self._core = core
        self._settled = settled


#: The base class of a message.
MessageFields = PythonMessageFields

#: Parses the complete, ordinary messages at the start of received data; ``None``: the extension is not
#: in use. The parser contains the same in Python.
read_messages: ReadMessages | None = None

#: Encode an ordinary message, with subjects that are validated (`str`) or not (`bytes`); ``None``: the
#: extension is not in use. The encoder contains the same in Python, and encodes all other messages.
encode_message: Encode | None = None
encode_command: Encode | None = None

#: Base class of `jetstream_sync.client.writer.FastWriter`; ``None``: the extension is not in use.
OutputBuffer: type[Any] | None = None

if not TYPE_CHECKING and os.environ.get("JETSTREAM_SYNC_SPEEDUPS") != "0":
    with contextlib.suppress(ImportError):
        from ._speedups import (
            MessageFields,
            OutputBuffer,
            encode_command,
            encode_message,
            read_messages,
        )

IN_USE: Final[bool] = read_messages is not None
"""Whether the C extension is in use."""
