"""Log in with the credentials of the options, which are read again for every attempt."""

# The user's functions run on the thread that opens the transport: first the one that calls ``connect()``,
# later the reader. No lock is held during the calls. Every failure becomes a `CredentialsError`, which
# counts as a failed attempt.

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, TypeVar

from .. import errors
from ..address import Secret, ServerAddress
from ..options import ConnectionOptions, FilePath
from ..protocol.auth import (
    BadCredentialsError,
    Key,
    find_jwt,
    find_seed,
    read_signature,
)
from ..protocol.session import ServerInfo, connect_fields
from ..records import Frozen, frozen

T = TypeVar("T")

#: Maximum size of a credentials file in bytes; a .creds file has about a thousand.
_MAX_FILE_BYTES: Final = 64 * 1024


@frozen()
class Credentials(Frozen):
    """The credentials of a client; ``repr`` shows none of them."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    nkey: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)

    def connect_fields(self) -> dict[str, Any]:
        """Return the fields of CONNECT for this login; none without credentials."""
        fields = {
            "user": self.user,
            "pass": self.password,
            "auth_token": self.token,
            "jwt": self.jwt,
            "nkey": self.nkey,
            "sig": self.signature,
        }
        return {name: value for name, value in fields.items() if value is not None}


class Login:
    """The CONNECT command of a connection: who the client is, and its credentials."""

    # One thread at a time may use it. The login functions of the options run on that thread.

    def __init__(self, options: ConnectionOptions, client_version: str) -> None:
        options.check_secrets()
        self._options = options
        self._identity = connect_fields(
            name=options.name,
            version=client_version,
            verbose=options.verbose,
            pedantic=options.pedantic,
            echo=not options.no_echo,
        )
        self._opener = threading.get_ident()

    def connect_fields(self, address: ServerAddress, info: ServerInfo) -> dict[str, Any]:
        """Return the fields of CONNECT for a server; the credentials are read again each time."""
        features = dict.fromkeys(("headers", "no_responders"), info.accepts_headers)
        return {**self._identity, **features, **self.login_fields(address, info)}

    def login_fields(self, address: ServerAddress, info: ServerInfo) -> dict[str, Any]:
        """Return the fields of CONNECT for the login to a server."""
        # In both, passwords and tokens may be functions.
        given = address if address.user is not None or address.token is not None else self._options
        words = Credentials(
            self._resolve_secret("user", given.user),
            self._resolve_secret("password", given.password),
            self._resolve_secret("token", given.token),
        )
        key = Credentials() if given is address else self._by_key(info.nonce)
        return {**words.connect_fields(), **key.connect_fields()}

    # --- the ways to log in ---------------------------------------------------------------------

    def _by_key(self, nonce: str) -> Credentials:
        options = self._options
        if options.user_credentials is not None:
            return self._by_creds(options.user_credentials, nonce)
        if options.nkeys_seed is not None or options.nkeys_seed_str is not None:
            return self._by_seed(nonce)
        if options.nkey is not None or options.user_jwt_cb is not None:
            return self._by_functions(nonce)
        return Credentials()

    def _by_creds(
        self, given: FilePath | tuple[FilePath, FilePath] | Callable[[], str | bytes], nonce: str
    ) -> Credentials:
        option = "user_credentials"
        if callable(given):
            jwt_source = seed_source = "..."
            content = seed_content = _as_bytes(option, self._call_user(option, given))
        else:
            files = given if isinstance(given, tuple) else (given, given)
            jwt_source, seed_source = os.fspath(files[0]), os.fspath(files[1])
            content = _read(option, jwt_source)
            seed_content = content if seed_source == jwt_source else _read(option, seed_source)
        jwt = _checked(option, jwt_source, lambda: find_jwt(content))
        seed = _checked(option, seed_source, lambda: find_seed(seed_content))
        for item in (content, seed_content):
            item[:] = bytes(len(item))
        _, signature = _signed(option, seed_source, seed, nonce)
        return Credentials(jwt=jwt, signature=signature)

    def _by_seed(self, nonce: str) -> Credentials:
        path = self._options.nkeys_seed
        if path is not None:
            option, source = "nkeys_seed", os.fspath(path)
            content = _read(option, source)
        else:
            option, source = "nkeys_seed_str", "..."
            content = bytearray(
                (self._resolve_secret(option, self._options.nkeys_seed_str) or "").encode()
            )
        seed = _checked(option, source, lambda: find_seed(content))
        content[:] = bytes(len(content))
        public, signature = _signed(option, source, seed, nonce)
        return Credentials(nkey=public, signature=signature)

    def _by_functions(self, nonce: str) -> Credentials:
        options = self._options
        jwt = signature = None
        if options.user_jwt_cb is not None:
            option = "user_jwt_cb"
            content = _as_bytes(option, self._call_user(option, options.user_jwt_cb))
            jwt = _checked(option, "...", lambda: find_jwt(content))
        sign = options.signature_cb
        # A server that sends no nonce requires no signature.
        if sign is not None and nonce:
            option = "signature_cb"
            given = self._call_user(option, lambda: sign(nonce))
            signature = _checked(option, "...", lambda: read_signature(given))
        return Credentials(jwt=jwt, nkey=options.nkey, signature=signature)

    # --- user functions -------------------------------------------------------------------------

    def _resolve_secret(self, option: str, secret: Secret | None) -> str | None:
        if not callable(secret):
            return secret
        text = self._call_user(option, secret)
        if not isinstance(text, str):
            raise errors.CredentialsError(option, "...", "the function did not return a str")
        return text

    def _call_user(self, option: str, function: Callable[[], T]) -> T:
        """Call a user's function, which may raise any exception."""
        try:
            return function()
        except BaseException as error:
            # SystemExit and KeyboardInterrupt may only reach the thread that called connect().
            if not isinstance(error, Exception) and threading.get_ident() == self._opener:
                raise
            raise errors.CredentialsError(
                option, "...", f"the function raised {type(error).__name__}"
            ) from error


def _as_bytes(option: str, content: object) -> bytearray:
    if isinstance(content, str):
        return bytearray(content.encode("utf-8", "replace"))
    if isinstance(content, (bytes, bytearray)):
        return bytearray(content)
    raise errors.CredentialsError(option, "...", "the function did not return a str or bytes")


def _read(option: str, path: str) -> bytearray:
    try:
        with open(os.path.expanduser(path), "rb", buffering=0) as file:  # noqa: PTH111, PTH123
            content = bytearray(file.read(_MAX_FILE_BYTES + 1))
    except OSError as error:
        raise errors.CredentialsError(
            option, path, f"it cannot be read: {error.strerror or type(error).__name__}"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise errors.CredentialsError(
            option, path, f"it is not a credentials file: larger than {_MAX_FILE_BYTES} bytes"
        )
    return content


def _checked(option: str, source: str, look: Callable[[], T]) -> T:
    """Call a function that parses credentials; name the option and the source if it fails."""
    try:
        return look()
    except BadCredentialsError as error:
        raise errors.CredentialsError(option, source, str(error)) from None


def _signed(option: str, source: str, seed: bytearray, nonce: str) -> tuple[str, str | None]:
    """Return the public key, and the signature if the server requires one."""
    key = _checked(option, source, lambda: Key(seed))
    try:
        return key.public, key.sign(nonce) if nonce else None
    finally:
        key.wipe()
