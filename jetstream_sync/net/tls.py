"""
TLS as a `ByteStream` around another one.

It is an `ssl.SSLObject` between two buffers in memory, and not an `ssl.SSLSocket`: that one may hold a
lock while it waits to read, and then nobody can write.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import SecureConnectionError
from .clock import Deadline
from .layer import Layer
from .stream import ByteStream

if TYPE_CHECKING:
    from threading import Lock

__all__ = ["TLSStream"]

#: The most that one record of TLS holds, and so what one read returns at most.
_RECORD: Final = 16 * 1024


class TLSStream(Layer):
    """
    A stream that is encrypted, once `handshake()` is through.

    Args:
        inner: the stream to encrypt, which belongs to this one from now on.
        context: whom to trust, and what to prove oneself with.
        name: whom the server's certificate has to name.
        make_lock: makes locks.

    Raises:
        ssl.SSLError, ValueError: the context is not one for clients, or the name is none.

    """

    def __init__(
        self,
        inner: ByteStream,
        context: ssl.SSLContext,
        name: str,
        make_lock: Callable[[], Lock],
    ) -> None:
        super().__init__(inner, make_lock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def handshake(self, deadline: Deadline) -> None:
        """
        Agree with the server on keys, and check its certificate; comes first, and once.

        Args:
            deadline: by when it has to be through.

        Raises:
            SecureConnectionError: the server hung up.
            ssl.SSLError: they do not agree, or the certificate is not to be trusted.
            OSError: the link broke.
            TimeoutError: the built-in one; the deadline came.

        """
        while not self._shook_hands():
            self._push(deadline)
            data = self._receive_by(deadline)
            if not data:
                raise SecureConnectionError("the server closed the connection in the TLS handshake")
            self._incoming.write(data)
        self._push(deadline)
        # A server need not wait for us to have read all of its part.
        self._early = self._decode(b"")

    def _shook_hands(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            # Tell the server why, if that can be done at once.
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
            # `write` is Python code, and a Ctrl-C may strike in it when the work is done. There is no
            # call in what follows.
            if self._outgoing.pending > before:
                self._count = size

    def _decode(self, data: bytes) -> bytes:
        self._incoming.write(data)
        read = self._ssl.read
        pieces = []
        try:
            while piece := read(_RECORD):
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
            # `extend` and `map` run without a byte code in between, where a Ctrl-C could strike.
            self._coded.extend(map(self._outgoing.read, (-1,)))

    def _farewell(self) -> None:
        # It wants the server's goodbye, too, and finds something else; ours is said by then.
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
