"""Read credentials, sign the nonce of a server with them, and make CONNECT."""

# This module neither reads files nor calls user functions: their results are passed in. Errors describe
# a credential without repeating it. Signing needs the ``nkeys`` package, which is imported on demand.

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from ..codec import dumps
from ..exact import MaskedStr
from ..records import Frozen, frozen
from ..version import install_command
from .parser import ServerInfo


class BadCredentialsError(Exception):
    """Invalid credentials; the text has the reason, never the secret. The caller adds the option's name."""


# --- credentials files ------------------------------------------------------------------------

# A block of a .creds file: a line with dashes at both ends, the content, and another such line. The first
# block is the JWT and the second the seed, regardless of the text between the dashes (nats-io/nkeys,
# creds_utils.go).
_DASHES: Final = rb"^[ \t]*---[^\r\n]*---[ \t\r]*$"
# Compiled on first use, to keep the import fast.
_PART: Final = rb"(?m)" + _DASHES + rb"\s+([\w.=-]+)\s+" + _DASHES
_JWT: Final = rb"[\w-]+\.[\w-]+\.[\w-]+"
# A line that begins like a seed; its second letter is the type of the nkey.
_SEED: Final = rb"(?m)^[ \t]*(S[A-Z][A-Z2-7]*)[ \t\r]*$"


def find_jwt(content: bytes | memoryview) -> str:
    """Return the JWT of a ``.creds`` file, or of a file with only a JWT; raise `BadCredentialsError` if it has none."""
    part = re.search(_PART, content)
    found = re.fullmatch(_JWT, part[1] if part else bytes(content).strip())
    if found is None:
        raise BadCredentialsError("it contains no JWT")
    return MaskedStr(found[0].decode("ascii"))


def find_seed(content: bytes | memoryview) -> memoryview:
    """Return the seed in a ``.creds`` file, or in a file of its own; raise `BadCredentialsError` if it has none."""
    parts = re.findall(_PART, content)
    if len(parts) > 1:
        seed = bytearray(parts[1])
    else:
        found = re.search(_SEED, content)
        if found is None:
            raise BadCredentialsError("it contains no nkey seed")
        seed = bytearray(found[1])
    _check_seed(seed)
    return memoryview(seed)


#: The first bytes of a user's seed, decoded: "SU" and the first bit of the key.
_USER_SEED: Final = ((18 << 3) | (20 << 3) >> 5, ((20 << 3) & 31) << 3)
_SEED_SIZE: Final = 2 + 32 + 2  # prefix, key, checksum


def _check_seed(seed: bytearray) -> None:
    reason = ""
    try:
        raw = base64.b32decode(seed + b"=" * (-len(seed) % 8))
    except binascii.Error:
        raw = b""
    if len(raw) != _SEED_SIZE:
        reason = "the nkey seed is malformed"
    elif binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        reason = "the nkey seed is mistyped: its checksum is wrong"
    elif (raw[0], raw[1]) != _USER_SEED:
        reason = "the nkey seed is not that of a user, which begins with SU"
    if reason:
        raise BadCredentialsError(reason)


# --- signing ----------------------------------------------------------------------------------


class Key:
    """A user's nkey for a few signatures; call `wipe()` afterwards."""

    def __init__(self, seed: memoryview) -> None:
        self._seed = seed
        try:
            import nkeys  # noqa: PLC0415 - an extra that most logins do not need
        except ImportError:
            missing = True
        else:
            missing = False
        if missing:
            raise BadCredentialsError(
                f"signing requires the nkeys package: {install_command('nkeys')}"
            )
        self._pair = nkeys.from_seed(seed.obj)

    @property
    def public(self) -> str:
        """The public key, which identifies the user."""
        return str(self._pair.public_key.decode("ascii"))

    def sign(self, nonce: str) -> str:
        """Return the signature of the server's nonce, in base64 as CONNECT requires it."""
        return _as_sent(self._pair.sign(nonce.encode()))

    def wipe(self) -> None:
        """Erase the key, as far as Python permits."""
        self._pair.wipe()
        self._seed[:] = bytes(len(self._seed))


#: Size of an Ed25519 signature in bytes; in base64, 86 characters or 88 with padding.
_SIGNATURE_SIZE: Final = 64
_FROM_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


def read_signature(given: object) -> str:
    """Return the signature of a user's function, as CONNECT has it; raise `BadCredentialsError` if it is not one."""
    raw = b""
    if isinstance(given, (bytes, bytearray)) and len(given) == _SIGNATURE_SIZE:
        raw = bytes(given)
    elif isinstance(given, (str, bytes, bytearray)):
        # Characters outside ASCII are not base64, and fail below.
        text = given.encode("ascii", "replace") if isinstance(given, str) else bytes(given)
        text = text.strip().rstrip(b"=").translate(_FROM_URL_SAFE)
        try:
            raw = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            raw = b""
    if len(raw) != _SIGNATURE_SIZE:
        raise BadCredentialsError("it did not return a signature of 64 bytes, raw or in base64")
    return _as_sent(raw)


def _as_sent(signature: bytes) -> str:
    """Return a signature as other clients send it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode("ascii")


# --- CONNECT ----------------------------------------------------------------------------------


@frozen()
class Credentials(Frozen):
    """The credentials of a client; ``repr`` shows none of them."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    nkey: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)


def connect_command(
    identity: Mapping[str, Any], info: ServerInfo, credentials: Credentials, *, is_secure: bool
) -> bytes:
    """Return CONNECT for a server, with the fields that describe the client, and its credentials."""
    login = {
        "user": credentials.user,
        "pass": credentials.password,
        "auth_token": credentials.token,
        "jwt": credentials.jwt,
        "nkey": credentials.nkey,
        "sig": credentials.signature,
    }
    fields = {
        **identity,
        "headers": info.accepts_headers,
        "no_responders": info.accepts_headers,
        **{name: value for name, value in login.items() if value is not None},
        "tls_required": is_secure,
    }
    return b"CONNECT %b\r\n" % dumps(fields)
