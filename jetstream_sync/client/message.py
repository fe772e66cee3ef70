"""A message of core NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors
from ..headers import VERSION_LINE, Headers, HeadersLike, Status, parse_headers, parse_status
from ..speedups import MessageFields
from .writer import NOW

if TYPE_CHECKING:
    from .core import ConnectionCore


class Msg(MessageFields):
    """
    A received message.

    Subject, reply and headers are decoded on access. Any thread may use a message.
    """

    __slots__ = ()

    data: bytes
    """The payload."""

    # The header block, or the decoded headers.
    _header: bytes | Headers | None
    _core: ConnectionCore

    @property
    def subject(self) -> str:
        """The subject the message was published to."""
        return self._subject.decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """The subject for replies; empty: none."""
        return self._reply.decode("utf-8", "surrogateescape")

    @property
    def headers(self) -> Headers | None:
        """The headers."""
        block = self._header
        if isinstance(block, bytes):
            headers = parse_headers(block) if block else None
            if not block or block.startswith(VERSION_LINE):
                # Keep the decoded headers instead of the block.
                self._header = headers
            return headers
        return block

    @property
    def status(self) -> Status | None:
        """
        The status that a server sends instead of a reply, such as 503 for no responders.

        ``None`` for published messages; `Connection.request` raises an error for it.
        """
        block = self._header
        return parse_status(block) if isinstance(block, bytes) else None

    def respond(self, payload: bytes = b"", headers: HeadersLike | None = None) -> None:
        """
        Publish a reply to the message's reply subject.

        Args:
            payload: the payload of the reply.
            headers: its headers.

        Raises:
            BadSubjectError: the message has no reply subject.
            ConnectionClosedError: the connection is closed.

        """
        if not self._reply:
            raise errors.BadSubjectError("", "the message has no reply subject")
        core = self._core
        command, size = core.encoder.encode_message(self.reply, payload, "", headers)
        # Sent by this thread, not by the flusher: the requester is waiting for it.
        core.writer.append(command, size, NOW)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject!r} {len(self.data)} bytes>"
