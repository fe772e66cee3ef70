"""A message, as core NATS has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Error
from ..headers import Headers, HeadersLike, Status, parse_headers, parse_status
from ..protocol.parser import Delivery

if TYPE_CHECKING:
    from .core import ConnectionCore

__all__ = ["Msg"]

#: How a block of headers begins when there is nothing before them.
_WITHOUT_STATUS = b"NATS/1.0\r\n"


class Msg:
    """
    A message that arrived.

    Subject, reply and headers are decoded when they are read. Any thread may use a message.
    """

    __slots__ = ("_core", "_header", "_reply", "_subject", "data")

    data: bytes
    """The payload."""

    def __init__(self, delivery: Delivery, core: ConnectionCore) -> None:
        self._header: bytes | Headers | None
        self._subject, self._reply, self._header, self.data = delivery
        self._core = core

    @property
    def subject(self) -> str:
        """The subject that it was published to."""
        return self._subject.decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """The subject for an answer, empty when none is wanted."""
        return self._reply.decode("utf-8", "surrogateescape")

    @property
    def headers(self) -> Headers | None:
        """The headers, ``None`` when it has none."""
        block = self._header
        if isinstance(block, bytes):
            headers = parse_headers(block) if block else None
            if not block or block.startswith(_WITHOUT_STATUS):
                # The block is not needed any more once somebody has read it.
                self._header = headers
            return headers
        return block

    @property
    def status(self) -> Status | None:
        """
        What a server says in place of an answer, as 503 when nobody listens on a request's subject.

        It is ``None`` for all that was published; `Connection.request` makes an error of it.
        """
        block = self._header
        return parse_status(block) if isinstance(block, bytes) and block else None

    def respond(self, payload: bytes = b"", headers: HeadersLike | None = None) -> None:
        """
        Publish an answer to the message's reply subject.

        Args:
            payload: the answer.
            headers: its headers; ``None``: none.

        Raises:
            Error: the message wants no answer.
            ConnectionClosedError: the connection is closed.

        """
        if not self._reply:
            raise Error("the message has no reply subject")
        core = self._core
        command, size = core.composer.message(self.reply, payload, "", headers)
        # Somebody waits for it, so it does not wait for the flusher.
        core.writer.send(command, 1, size)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject!r} {len(self.data)} bytes>"
