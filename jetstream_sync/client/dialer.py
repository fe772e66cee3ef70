"""Dial one server: open a transport and log in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..address import ServerAddress
from ..net.clock import Deadline
from ..net.layer import ByteStream
from ..options import ConnectionOptions
from ..protocol.session import ServerInfo, connect_fields
from .login import Login
from .transport import Transport, open_transport


class Dialer:
    """
    Opens transports to servers.

    One thread at a time may use it. The login functions of the options run on that thread.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        client_version: str,
        wrap: Callable[[ByteStream], ByteStream] | None = None,
    ) -> None:
        self._options = options
        self._client_version = client_version
        self._wrap = wrap
        self._login = Login(options)
        # Whether a server of this connection used TLS, even if it refused the login.
        self._used_tls = False

    def open(self, address: ServerAddress) -> Transport:
        """Connect to a server and log in; the credentials are read again each time."""
        return open_transport(
            address,
            self._options,
            lambda info: self._connect_fields(info, address),
            Deadline(self._options.connect_timeout),
            self._wrap,
            keep_tls=self._used_tls and not self._options.tls_allow_downgrade,
            secured=self._secured,
        )

    def _secured(self) -> None:
        self._used_tls = True

    def _connect_fields(self, info: ServerInfo, address: ServerAddress) -> dict[str, Any]:
        """Return the fields of CONNECT for a server."""
        options = self._options
        fields = connect_fields(
            name=options.name,
            version=self._client_version,
            verbose=options.verbose,
            pedantic=options.pedantic,
            echo=not options.no_echo,
        )
        return {**fields, **self._login.connect_fields(address, info)}
