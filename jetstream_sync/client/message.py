"""A message, as core NATS has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Error
from ..headers import Headers, HeadersLike, parse_headers
from ..protocol.parser import Delivery

if TYPE_CHECKING:
    from .core import Core

__all__ = ["Msg"]


class Msg:
    """
    A message that arrived.

    Subject, reply and headers are decoded when they are read. Any thread may use a message.
    """

    __slots__ = ("_core", "_header", "_reply", "_subject", "data")

    data: bytes
    """The payload."""

    def __init__(self, delivery: Delivery, core: Core) -> None:
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
        if isinstance(self._header, bytes):
            # The block is not needed any more once somebody has read it.
            self._header = parse_headers(self._header) if self._header else None
        return self._header

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
