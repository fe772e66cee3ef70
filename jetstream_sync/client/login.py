"""Log in to a server: what the options say, read anew for every link."""

from __future__ import annotations

from typing import Any

from ..address import ServerAddress
from ..options import ConnectionOptions, Secret
from ..protocol.auth import Credentials
from ..protocol.session import ServerInfo

__all__ = ["Login"]


class Login:
    """
    What a connection proves itself with.

    Args:
        options: where the login comes from.

    One thread at a time may use it.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options

    def connect_fields(self, address: ServerAddress, info: ServerInfo) -> dict[str, Any]:
        """Return the fields of CONNECT that log in to a server which said this of itself."""
        del info  # a nonce to sign is for keys
        options = self._options
        if address.user is not None or address.token is not None:
            login = Credentials(address.user, address.password, address.token)
        else:
            login = Credentials(_told(options.user), _told(options.password), _told(options.token))
        return login.connect_fields()


def _told(secret: Secret | None) -> str | None:
    return secret() if callable(secret) else secret
