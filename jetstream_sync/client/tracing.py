"""Trace the protocol of a connection: pass it to the user's callback line by line, on a separate thread."""

# Rules of the thread:
#
# 1. A sending or receiving thread runs no user code: it splits the bytes into lines and adds them to a
#    queue, which the trace thread reads.
# 2. A thread holds ``lock`` while it sends, which never waits, and adds the lines. So a command precedes its
#    reply, which another thread may receive in between.
# 3. The queue is bounded. Lines that do not fit are dropped and counted, and a line reports the number.
#
# Rules of the lines:
#
# 1. A `LineCutter` follows one direction of one transport. It takes the bytes in pieces of any size, and
#    returns one line of text for each complete command, without a line end.
# 2. A line is the unchanged command; for a message, header block and payload follow after `` | ``. JSON is
#    shown completely up to a limit, other payloads with their start. Characters that are not printable,
#    or would move a terminal's cursor, are shown as escapes.
# 3. Of CONNECT, only fields known to be harmless are shown, and URLs are shown without their login.
#    Payloads belong to the user and are shown unchanged.
# 4. It accepts more than the parser and never raises: invalid bytes give invalid lines. The part kept of
#    an incomplete command is bounded.

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

from .. import errors
from ..codec import dumps, loads
from ..locks import new_lock
from ..net.clock import FOREVER
from ..net.layer import ByteStream
from ..options import check_returned
from ..protocol.parser import MAX_PAYLOAD
from .mailbox import Mailbox
from .threads import after_fork, join, spawn

log: logging.Logger = logging.getLogger("jetstream_sync.trace")

#: Maximum size of the queue in bytes, and the memory that a line needs besides its text.
_MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
_LINE_OVERHEAD_BYTES: Final = 64


class Tracer:
    """Calls the user's callback with each line, in order."""

    # The thread is started with the first line. The first exception of the callback is logged.
    #
    # Any thread may call its methods; only `close()` waits.

    def __init__(self, name: str, callback: Callable[[str], object]) -> None:
        self._name = name
        self._callback = callback
        self._lines: Mailbox[str] = Mailbox()
        #: Held while bytes are sent, and by the caller of `add()`.
        self.lock: threading.Lock = new_lock()
        # --- under the lock ---
        self._bytes = 0
        self._dropped = 0  # lines since the last queued one
        self._thread: threading.Thread | None = None
        self._failed = False  # whether the callback has raised; used by the trace thread only
        after_fork(self)

    def wrap(self, stream: ByteStream) -> ByteStream:
        """Return a stream that traces the given one."""
        return TracedStream(stream, self)

    def add(self, lines: list[str]) -> None:
        """Add lines at the end; ``lock`` is held."""
        if self._bytes > _MAX_QUEUED_BYTES:
            self._dropped += len(lines)
            return
        if not lines or self._lines.closed:
            return
        lines = self._drop_note() + lines
        self._bytes += sum(map(len, lines)) + _LINE_OVERHEAD_BYTES * len(lines)
        self._lines.put(lines, len(lines))
        if self._thread is None:
            try:
                self._thread = spawn(f"trace-{self._name}", self._run)
            except RuntimeError:
                # The connection must go on. The next lines try again.
                log.exception("%s: trace_cb has no thread", self._name)

    def close(self, timeout: float = 0.0) -> None:
        """Accept no more lines; the thread ends after the queued ones."""
        with self.lock:
            self._lines.close(errors.ConnectionClosedError("closed"))
            thread = self._thread
        if thread is None or not timeout or thread is threading.current_thread():
            return
        if not join(thread, timeout):
            log.warning("%s: trace_cb is slow; closing does not wait for it", self._name)

    def forked(self) -> None:
        """Forget the thread, which exists only in the parent; see `ForkAware`."""
        self._thread = None

    def _drop_note(self) -> list[str]:
        """Return the line that reports the dropped lines, if there are any; ``lock`` is held."""
        dropped, self._dropped = self._dropped, 0
        return [f"! lines dropped, since trace_cb is slow: {dropped}"] if dropped else []

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                line = self._lines.get(FOREVER)
            except errors.ConnectionClosedError:
                return
            self._call(line)
            with self.lock:
                self._bytes -= len(line) + _LINE_OVERHEAD_BYTES
                notes = [] if len(self._lines) else self._drop_note()
            for note in notes:
                self._call(note)

    def _call(self, line: str) -> None:
        try:
            check_returned(self._callback(line))
        except BaseException:
            if not self._failed:
                self._failed = True
                log.exception("%s: trace_cb raised; tracing continues", self._name)


class TracedStream:
    """A `ByteStream` that traces another one."""

    def __init__(self, stream: ByteStream, tracer: Tracer) -> None:
        self.peer: str = stream.peer
        self._stream = stream
        self._tracer = tracer
        self._received = LineCutter(RECEIVED)
        self._sent = LineCutter(SENT)

    def receive(self) -> bytes:
        """Wait for bytes and return them; ``b""`` at the end of the stream."""
        data = self._stream.receive()
        lines = self._received.feed(data)
        with self._tracer.lock:
            self._tracer.add(lines)
        return data

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send as much as possible without waiting, and append the count to ``sent``."""
        before = len(sent)
        with self._tracer.lock:
            try:
                self._stream.send(data, sent)
            finally:
                self._tracer.add(self._sent.feed(bytes(data[: sum(sent[before:])])))

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the stream is writable; return whether it is."""
        return self._stream.wait_writable(timeout)

    def set_timeout(self, timeout: float | None) -> None:
        """Set the timeout of `receive()` in seconds; ``None``: wait forever."""
        self._stream.set_timeout(timeout)

    def shutdown(self) -> None:
        """End the stream in both directions and wake the threads that use it."""
        self._stream.shutdown()

    def close(self) -> None:
        """Release the resources."""
        self._stream.close()


# --- the lines ----------------------------------------------------------------------------------

SENT: Final = "> "
RECEIVED: Final = "< "

#: Maximum number of bytes kept of a line, and of a header block with its payload.
_KEPT: Final = 64 * 1024
#: Number of bytes shown of a payload that is not JSON or is too long.
_START: Final = 256
_MORE: Final = "..."
_MASK: Final = "***"

# Commands with a payload, and the number of sizes at their end.
_SIZES: Final = {b"PUB": 1, b"MSG": 1, b"HPUB": 2, b"HMSG": 2}
#: The fields of CONNECT that are not secret. All others are masked, also those that a later version adds.
_HARMLESS: Final = frozenset(
    {
        "echo",
        "headers",
        "lang",
        "name",
        "nkey",
        "no_responders",
        "pedantic",
        "protocol",
        "tls_required",
        "user",
        "verbose",
        "version",
    }
)
_URL_LOGIN: Final = r"(?<=://)[^/\s\"']*@"
# White space in JSON other than spaces.
_JSON_SPACES: Final = str.maketrans("\r\n\t", "   ")


class LineCutter:
    """Format the bytes of one direction as lines."""

    # One thread at a time may use it. A copy continues independently from the same state.

    __slots__ = ("_behind_payload", "_command", "_kept", "_left", "_longer", "_mark")

    def __init__(self, mark: str) -> None:
        self._mark = mark
        # The start of an incomplete line or payload, and whether some of it was dropped.
        self._kept = b""
        self._longer = False
        # The command whose payload is incomplete, and the number of missing bytes.
        self._command = b""
        self._left = 0
        # Whether the next line end closes a payload.
        self._behind_payload = False

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes and return the lines that are complete now."""
        lines: list[str] = []
        at = 0
        while at < len(data):
            take = self._take_payload if self._left else self._take_line
            at = take(data, at, lines)
        return lines

    def _keep(self, data: bytes, start: int, end: int) -> None:
        room = _KEPT - len(self._kept)
        self._kept += data[start : min(end, start + room)]
        self._longer |= end - start > room

    def _take_payload(self, data: bytes, at: int, lines: list[str]) -> int:
        end = min(at + self._left, len(data))
        self._keep(data, at, end)
        self._left -= end - at
        if not self._left:
            self._finish_message(lines)
        return end

    def _take_line(self, data: bytes, at: int, lines: list[str]) -> int:
        end = data.find(b"\n", at)
        self._keep(data, at, end if end >= 0 else len(data))
        if end < 0:
            return len(data)
        line = self._kept.removesuffix(b"\r")
        longer, behind_payload = self._longer, self._behind_payload
        self._kept, self._longer, self._behind_payload = b"", False, False
        sizes = _sizes(line)
        if sizes and not longer:
            self._command, self._left = line, sizes[-1]
            if not self._left:
                self._finish_message(lines)
        elif line or not behind_payload:
            lines.append(self._mark + _control_text(line, longer=longer))
        return end + 1

    def _finish_message(self, lines: list[str]) -> None:
        """Add the line of a message whose payload is complete."""
        sizes = _sizes(self._command)
        header_size = sizes[0] if len(sizes) == 2 else 0
        parts = [_printable(self._command)]
        if header_size:
            parts.append(_header_text(self._kept[:header_size]))
        if sizes[-1] > header_size:
            parts.append(_payload_text(self._kept[header_size:], whole=not self._longer))
        lines.append(self._mark + " | ".join(parts))
        self._kept, self._longer, self._command, self._behind_payload = b"", False, b"", True


def _sizes(line: bytes) -> list[int]:
    """Return the sizes in a command, that of the payload last; empty for commands without payload."""
    words = line.split()
    count = _SIZES.get(words[0], 0) if words else 0
    if not count or len(words) < count + 2:
        return []
    last = words[-count:]
    if not all(word.isdigit() and len(word) < 10 for word in last):
        return []
    sizes = [int(word) for word in last]
    return sizes if sizes == sorted(sizes) and sizes[-1] <= MAX_PAYLOAD else []


def _control_text(line: bytes, *, longer: bool) -> str:
    """Return the text for a line that is not a message."""
    command = line.lstrip()
    if command[:7].upper() == b"CONNECT":
        return f"CONNECT {_connect_text(command[7:])}"
    text = _printable(line.rstrip()) + (_MORE if longer else "")
    return re.sub(_URL_LOGIN, f"{_MASK}@", text)


def _connect_text(fields: bytes) -> str:
    """Return the fields of CONNECT, with possible secrets masked."""
    try:
        options = loads(fields)
    except errors.InvalidResponseError:
        return _MASK
    if not isinstance(options, dict):
        return _MASK
    shown = {name: value if name in _HARMLESS else _MASK for name, value in options.items()}
    return _printable(dumps(shown))


def _header_text(block: bytes) -> str:
    """Return a header block as one line."""
    lines = [line for line in _cut(block).split("\r\n") if line]
    return ", ".join(_escaped(line) for line in lines)


def _cut(data: bytes) -> str:
    """Return the start of the bytes as text, followed by ``...`` if there are more."""
    longest = 4 * _START
    return data[:longest].decode("utf-8", "backslashreplace") + _MORE * (len(data) > longest)


def _payload_text(payload: bytes, *, whole: bool) -> str:
    if whole and payload.lstrip(b" \t\r\n")[:1] in (b"{", b"["):
        try:
            text = payload.decode().translate(_JSON_SPACES)
        except UnicodeDecodeError:
            pass
        else:
            return text if text.isprintable() else "".join(map(_json_escape, text))
    return _printable(payload[:_START]) + _MORE * (not whole or len(payload) > _START)


def _printable(data: bytes) -> str:
    return _escaped(data.decode("utf-8", "backslashreplace"))


def _escaped(text: str) -> str:
    """Escape the characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(
        item if item.isprintable() else item.encode("unicode_escape").decode() for item in text
    )


def _json_escape(character: str) -> str:
    """Return a character in the form of a JSON escape if it is not printable."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
