"""Make commands of what users publish: check it, encode it, count it."""

from __future__ import annotations

from ..errors import BadSubjectError, InvalidArgumentError, MaxPayloadError
from ..headers import HeadersLike, encode_headers
from ..protocol import commands
from ..protocol.session import ServerInfo
from ..subjects import MAX_CONTROL_LINE, check_publish_subject

__all__ = ["MessageEncoder"]

#: Subjects that were checked before are remembered, up to this many.
_REMEMBERED_SUBJECTS = 4096
#: Bytes up to which a subject, with a verb and two sizes, always fits into a command line: HPUB, two
#: spaces and sizes of at most ten digits. Only such subjects are remembered.
_ALWAYS_FITS = MAX_CONTROL_LINE - 28
#: Bytes of a command that are neither line nor payload: the line ends.
_LINE_ENDS = 4


_NO_STR = "a subject is a str"


class MessageEncoder:
    """
    Turns messages into commands.

    `max_payload` is set with each INFO of a server. Any thread may call the methods.
    """

    def __init__(self) -> None:
        #: The largest message that the server accepts, headers included, in bytes.
        self.max_payload = ServerInfo().max_payload
        # Subject -> its bytes, for subjects that passed the check.
        self._checked: dict[str, bytes] = {}

    def encoded(self, subject: str) -> bytes:
        """
        Return the bytes of a subject that can be published to.

        Raises:
            BadSubjectError: it is not well formed.

        """
        try:
            return self._checked.get(subject) or self._check(subject)
        except TypeError:  # it can not be a key
            raise BadSubjectError(repr(subject), _NO_STR) from None

    def message(
        self, subject: str, payload: bytes, reply: str = "", headers: HeadersLike | None = None
    ) -> tuple[bytes, int]:
        """Return the command for a message to anywhere; as `command()`, with subjects checked."""
        try:
            known = self._checked.get(subject)
        except TypeError:  # it can not be a key
            raise BadSubjectError(repr(subject), _NO_STR) from None
        if known is None or reply or headers or payload.__class__ is not bytes:
            known = known or self._check(subject)
            return self.command(known, payload, self.encoded(reply) if reply else b"", headers)
        size = len(payload)
        if size > self.max_payload:
            raise MaxPayloadError(size, self.max_payload)
        return commands.publish(known, b"", payload), size

    def command(
        self,
        subject: bytes,
        payload: bytes,
        reply: bytes = b"",
        headers: HeadersLike | None = None,
    ) -> tuple[bytes, int]:
        """
        Return the command that publishes a message, and the size of its headers and payload.

        Args:
            subject: from `encoded()`, or one that the server sent.
            payload: the message.
            reply: one of our own inboxes, or from `encoded()`; empty: none.
            headers: names and values; ``None``: none.

        Raises:
            InvalidArgumentError, InvalidHeaderError, MaxPayloadError: it can not be sent.
            BadSubjectError: subject and reply together are longer than a command line can be.

        """
        if payload.__class__ is not bytes:
            if not isinstance(payload, (bytes, bytearray, memoryview)):
                raise InvalidArgumentError(
                    f"a payload is bytes, not {type(payload).__name__}; encode it first"
                )
            payload = bytes(payload)
        header = encode_headers(headers) if headers else b""
        size = len(header) + len(payload)
        if size > self.max_payload:
            raise MaxPayloadError(size, self.max_payload)
        if header:
            command = commands.publish_with_headers(subject, reply, header, payload)
        else:
            command = commands.publish(subject, reply, payload)
        if len(command) - size > MAX_CONTROL_LINE + _LINE_ENDS:
            raise BadSubjectError(
                subject.decode("utf-8", "replace"),
                f"the command line with it and its reply subject has {len(command) - size - _LINE_ENDS}"
                f" bytes; a server takes {MAX_CONTROL_LINE}",
            )
        return command, size

    def _check(self, subject: str) -> bytes:
        """Check a subject and remember it; returns its bytes."""
        check_publish_subject(subject)
        try:
            checked = subject.encode()
        except UnicodeEncodeError as error:
            raise BadSubjectError(subject, "it can not be encoded as UTF-8") from error
        if len(checked) > _ALWAYS_FITS:
            return checked  # `command()` looks at the whole line each time
        if len(self._checked) >= _REMEMBERED_SUBJECTS:
            self._checked = {}
        self._checked[subject] = checked
        return checked
