"""Encode published messages as commands: validate, encode and count them."""

# The C extension makes the same bytes for ordinary messages (`Encoder` in ``_speedups.c``, and `join_commands`
# in ``_columns.c``); tests compare them.

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors, speedups
from ..exact import exact
from ..headers import VERSION_LINE, HeadersLike, encode_headers
from ..protocol.parser import ServerInfo
from ..subjects import MAX_CONTROL_LINE, check_publish_subject

#: Maximum number of validated subjects in the cache.
_MAX_CACHED_SUBJECTS = 4096
#: Maximum length in bytes of a cached subject: with HPUB, spaces and two sizes of at most ten digits
#: it always fits into a command line.
_MAX_CACHED_SUBJECT_BYTES = MAX_CONTROL_LINE - 28
#: Number of line-end bytes in a command, which count neither as line nor as payload.
_LINE_END_BYTES = 4


_NOT_A_STR = "a subject must be a str"


def _headers_refused(headers: HeadersLike) -> errors.InvalidHeaderError:
    return errors.InvalidHeaderError(
        str(next(iter(headers))), "the server has no_header_support set"
    )


def publish_command(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """Return the command for a message without headers; ``reply`` may be empty."""
    if reply:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def publish_with_headers_command(
    subject: bytes, reply: bytes, header: bytes, payload: bytes
) -> bytes:
    """Return the command for a message with a header block; ``reply`` may be empty."""
    sizes = (len(header), len(header) + len(payload))
    if reply:
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, *sizes, header, payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, *sizes, header, payload)


def batch_heads(batch: bytes, lines: bytes = b"") -> tuple[bytes, bytes]:
    """
    Return the beginning of the header block of each message of an atomic batch (ADR-50), and that of the last one.

    The block continues with the number of the message, counted from 1, a line end and other header lines.
    """
    head = b"%b%bNats-Batch-Id: %b\r\n" % (VERSION_LINE, lines, batch)
    return (
        head + b"Nats-Batch-Sequence: ",
        head + b"Nats-Batch-Commit: 1\r\nNats-Batch-Sequence: ",
    )


class MessageEncoder:
    """Encodes messages as commands."""

    # `max_payload` is set from each INFO of a server. Any thread may call the methods.

    def __init__(self) -> None:
        #: The largest message that the server accepts, headers included, in bytes.
        self.max_payload: int = ServerInfo().max_payload
        #: Whether the server accepts headers.
        self.accepts_headers: bool = True
        # Cache of validated subjects: subject -> its bytes.
        self._checked: dict[str, bytes] = {}

    def encode_subject(self, subject: str) -> bytes:
        """Return the bytes of a subject to publish to; raise `BadSubjectError` if it is invalid."""
        try:
            return self._checked.get(subject) or self._check(subject)
        except TypeError:  # not hashable
            raise errors.BadSubjectError(repr(subject), _NOT_A_STR) from None

    def encode_message(
        self, subject: str, payload: bytes, reply: str = "", headers: HeadersLike | None = None
    ) -> tuple[bytes, int]:
        """
        Return the command for a message, and the size of its headers and payload; validate the subjects.

        Raises:
            BadSubjectError: the subject or the reply subject is invalid.
            InvalidArgumentError, InvalidHeaderError, MaxPayloadError: as `encode_command()`.

        """
        if headers and not self.accepts_headers:
            raise _headers_refused(headers)
        try:
            known = self._checked.get(subject)
        except TypeError:  # not hashable
            raise errors.BadSubjectError(repr(subject), _NOT_A_STR) from None
        if known is None or reply or headers or payload.__class__ is not bytes:
            known = known or self._check(subject)
            return self.encode_command(
                known, payload, self.encode_subject(reply) if reply else b"", headers
            )
        size = len(payload)
        if size > self.max_payload:
            raise errors.MaxPayloadError(size, self.max_payload)
        return publish_command(known, b"", payload), size

    _encode_message = encode_message  # for the C extension

    def encode_command(
        self, subject: bytes, payload: bytes, reply: bytes = b"", headers: HeadersLike | None = None
    ) -> tuple[bytes, int]:
        """
        Return the command that publishes a message, and the size of its headers and payload.

        Raises:
            InvalidArgumentError: the payload is not bytes.
            InvalidHeaderError: a header is invalid, or the server accepts none.
            MaxPayloadError: headers and payload are larger than the server accepts.
            BadSubjectError: the subjects are too long for a command.

        """
        if headers and not self.accepts_headers:
            raise _headers_refused(headers)
        if payload.__class__ is not bytes:
            if not isinstance(payload, (bytes, bytearray, memoryview)):
                raise errors.InvalidArgumentError(
                    f"a payload must be bytes, not {type(payload).__name__}; encode it first"
                )
            payload = exact(payload)
        header = encode_headers(headers) if headers else b""
        size = len(header) + len(payload)
        if size > self.max_payload:
            raise errors.MaxPayloadError(size, self.max_payload)
        if header:
            command = publish_with_headers_command(subject, reply, header, payload)
        else:
            command = publish_command(subject, reply, payload)
        if len(command) - size > MAX_CONTROL_LINE + _LINE_END_BYTES:
            raise errors.BadSubjectError(
                subject.decode("utf-8", "replace"),
                "the command line with it and its reply subject has"
                f" {len(command) - size - _LINE_END_BYTES} bytes; a server accepts {MAX_CONTROL_LINE}",
            )
        return command, size

    _encode_command = encode_command  # for the C extension

    def _check(self, subject: str) -> bytes:
        """Return the bytes of a subject that is not in the cache, and add it; raise as `encode_subject()`."""
        subject = check_publish_subject(subject)
        try:
            checked = subject.encode()
        except UnicodeEncodeError as error:
            raise errors.BadSubjectError(subject, "it cannot be encoded as UTF-8") from error
        if len(checked) > _MAX_CACHED_SUBJECT_BYTES:
            return checked  # `encode_command()` checks the length of the whole line each time
        if len(self._checked) >= _MAX_CACHED_SUBJECTS:
            self._checked = {}
        self._checked[subject] = checked
        return checked


#: The encoder with `encode_message()` and `encode_command()` in C, if the C extension is in use. They encode ordinary
#: messages; for all others they call the methods in Python, which decide what is an error.
FastEncoder: type[MessageEncoder] = MessageEncoder

if not TYPE_CHECKING and speedups.Encoder is not None:

    class FastEncoder(speedups.Encoder, MessageEncoder):
        """The encoder with the fields and methods of the C extension."""
