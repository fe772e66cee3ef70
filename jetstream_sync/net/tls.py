"""TLS as a `ByteStream` around another one: the stream, its context, and its errors in clear words."""

# It uses an `ssl.SSLObject` between two memory buffers, not an `ssl.SSLSocket`: the latter may hold a lock
# while it waits for data, which blocks all writers.

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path
from typing import Final

from .. import errors
from ..exact import masked
from ..locks import call_and_record
from ..options import TLSOptions
from .clock import Deadline
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
        """
        Do the TLS handshake and verify the server's certificate; must be called first, and once.

        Raises:
            SecureConnectionError: the server closed the connection.
            OSError: the link failed; an `ssl.SSLError` if the handshake did, for which `explain()` has the words.

        """
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


_LONGEST_PASSWORD: Final = 1024

#: Descriptions of the certificate errors of OpenSSL (``X509_V_ERR_*``).
_FLAWS: Final = {
    9: "is not valid yet",
    10: "has expired",
    18: "is self-signed",
    19: "is signed by an authority that is not trusted here",
    20: "is signed by an authority that is not trusted here",
    21: "is signed by an authority that is not trusted here",
    23: "was revoked",
    26: "is not one for servers",
    62: "is for another name",
    64: "is for another address",
}

#: Descriptions of the alerts that a server sends during the handshake, or right after it.
_ALERTS: Final = (
    ("CERTIFICATE_REQUIRED", "the server wants a client certificate"),
    ("ALERT_BAD_CERTIFICATE", "the server wants a client certificate, or does not accept this one"),
    ("ALERT_UNKNOWN_CA", "the server does not trust the authority of the client certificate"),
    ("ALERT_CERTIFICATE_EXPIRED", "the client certificate has expired"),
    ("ALERT_CERTIFICATE", "the server does not accept the client certificate"),
    ("ALERT_UNSUPPORTED_CERTIFICATE", "the server does not accept the client certificate"),
    ("ALERT_ACCESS_DENIED", "the server does not accept the client certificate"),
    ("ALERT_PROTOCOL_VERSION", "there is no version of TLS that both sides speak"),
    ("UNSUPPORTED_PROTOCOL", "there is no version of TLS that both sides speak"),
    (
        "ALERT_HANDSHAKE_FAILURE",
        "the server wants a client certificate, or has no cipher in common",
    ),
    ("UNRECOGNIZED_NAME", "the server has no certificate for that name"),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS here"),
    ("PACKET_LENGTH_TOO_LONG", "the server does not speak TLS here"),
    ("HTTP_REQUEST", "the server does not speak TLS here"),
)


def make_context(tls: bool | ssl.SSLContext | TLSOptions | None) -> ssl.SSLContext:
    """Return the TLS context for a connection; this reads the files, and never prompts for a password."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, TLSOptions):
        return _default_context(None)
    context = _default_context(tls.ca_file)
    if tls.cert_file is not None:
        _load_own_certificate(context, tls)
    return context


def _default_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    if ca_file is not None:
        _check_readable("ca_file", ca_file)
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise errors.InvalidOptionError(
            "ca_file", ca_file, "holds no certificate in PEM format"
        ) from error
    # Some distributions build Python with a lower limit than Python's own default.
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    # During a renegotiation, writers would have to wait for the reader.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_own_certificate(context: ssl.SSLContext, tls: TLSOptions) -> None:
    assert tls.cert_file is not None
    _check_readable("cert_file", tls.cert_file)
    key_option, key_file = "cert_file", tls.cert_file
    if tls.key_file is not None:
        key_option, key_file = "key_file", tls.key_file
        _check_readable(key_option, key_file)
    asked: list[str] = []

    def password() -> str:
        # Without this function OpenSSL prompts on the terminal. It is called for encrypted keys only.
        if tls.key_password is None:
            raise errors.InvalidOptionError(
                "key_password", None, "the key is encrypted, so it needs one"
            )
        secret = masked(tls.key_password() if callable(tls.key_password) else tls.key_password)
        if len(secret.encode()) > _LONGEST_PASSWORD:
            raise errors.InvalidOptionError("key_password", "...", "is longer than OpenSSL takes")
        asked.append("")
        return secret

    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise errors.InvalidOptionError(
                key_option, key_file, "is the key of another certificate"
            ) from error
        if asked:
            raise errors.InvalidOptionError(
                "key_password", "...", "does not open the key"
            ) from error
        reason = "does not hold a certificate in PEM format with its key"
        raise errors.InvalidOptionError("cert_file", tls.cert_file, reason) from error


def _check_readable(option: str, path: str | os.PathLike[str]) -> None:
    # OpenSSL does not say which of its files it could not read.
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise errors.InvalidOptionError(option, os.fspath(path), f"{error.strerror}") from error


def server_name(host: str) -> str:
    """Return a host name as in a certificate: without a zone id or a trailing dot."""
    return host.partition("%")[0].rstrip(".")


def explain(error: OSError, name: str) -> errors.SecureConnectionError | None:
    """Return the error of this package for a TLS error; ``None``: it is not a TLS error."""
    # `name`: the host name that the server's certificate must contain.
    if isinstance(error, ssl.SSLCertVerificationError):
        flaw = _FLAWS.get(error.verify_code, "is not trusted")
        return errors.CertificateError(f"the certificate of {name} {flaw} ({error.verify_message})")
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    for part, words in _ALERTS:
        if part in reason:
            return errors.SecureConnectionError(f"{words} ({reason})")
    return errors.SecureConnectionError(f"the TLS handshake failed: {reason or error}")
