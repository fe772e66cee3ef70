"""TLS as a `ByteStream` around another one."""

# It uses an `ssl.SSLObject` between two memory buffers, not an `ssl.SSLSocket`: the latter may hold a lock
# while it waits for data, which blocks all writers.

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from .. import errors
from .clock import Deadline, call_and_record
from .layer import ByteStream, Layer

#: Maximum payload of a TLS record in bytes, and so the maximum that one read returns.
_MAX_RECORD_BYTES: Final = 16 * 1024


class TLSStream(Layer):
    """A stream that is encrypted after `handshake()`."""

    # `name`: the host name that the server's certificate must contain.

    def __init__(self, inner: ByteStream, context: ssl.SSLContext, name: str) -> None:
        super().__init__(inner)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def handshake(self, deadline: Deadline) -> None:
        """Do the TLS handshake and verify the server's certificate; must be called first, and once."""
        while not self._handshake_step():
            self._push(deadline)
            data = self._receive_by(deadline)
            if not data:
                raise errors.SecureConnectionError(
                    "the server closed the connection in the TLS handshake"
                )
            self._incoming.write(data)
        self._push(deadline)
        # The server may have sent data right after its part of the handshake.
        self._early = self._decode(b"")

    def _handshake_step(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            # Send the TLS alert to the server if that is possible without waiting.
            with contextlib.suppress(OSError):
                self._send_coded()
            raise
        return True

    def _encode(self, data: memoryview) -> None:
        size = len(data)
        before = self._outgoing.pending
        try:
            self._ssl.write(data)
        finally:
            # `write` is Python code, so a KeyboardInterrupt may be raised in it after the data was
            # encoded. There is no call in the following lines.
            if self._outgoing.pending > before:
                self._count = size

    def _decode(self, data: bytes) -> bytes:
        self._incoming.write(data)
        read = self._ssl.read
        pieces = []
        try:
            while piece := read(_MAX_RECORD_BYTES):
                pieces.append(piece)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            if not pieces:
                raise
            self._failure = error
        return b"".join(pieces)

    def _collect(self) -> None:
        if self._outgoing.pending:
            call_and_record(self._coded, self._outgoing.read, -1)

    def _encode_close(self) -> None:
        # `unwrap` also waits for the server's close message and fails; ours is encoded by then.
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
