"""
``jsm top --web``: the application in a browser, served by textual-serve.

Rules:

1. A request is answered only with the cookie of the session. The first request with the token of the
   address gets the cookie; the token is invalid from then on.
2. A WebSocket is accepted only from the page of this server, by its Origin: it runs the command.
3. Each WebSocket has a process with the command line of this one, which ends with it. It offers changes
   only with ``--allow-changes``.
4. Other machines are served only through a proxy with TLS in front of it.
"""

from __future__ import annotations

import ipaddress
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import aiohttp_jinja2
import click
import jinja2
from aiohttp import web
from textual_serve.server import Server

from ... import errors
from ...workers.checks import parse_address
from ..shared.output import announce, emit_item
from ..shared.settings import Settings

_COOKIE: Final = "jsm_top"
_TOKEN_BYTES: Final = 32
#: Maximum number of processes of browsers at a time.
_MAX_SESSIONS: Final = 8
#: How long open pages may delay the end of the server, in seconds.
_SHUTDOWN_S: Final = 1.0
#: The page loads nothing from other servers, and no other page may embed it.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REFUSED: Final = "The link was used already, or is not complete: start 'jsm top --web' again.\n"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """Where the server listens, and the address that browsers use."""

    host: str
    port: int
    url: str
    """The address of browsers, without a path."""

    @classmethod
    def of(cls, listen: str, public_url: str | None) -> WebAddress:
        """Return the address of the options, if it is safe."""
        try:
            host, port = parse_address(listen)
        except errors.InvalidOptionError as error:
            raise click.UsageError(f"--listen {listen!r}: {error.reason}") from error
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if public_url is not None:
            url = public_url.rstrip("/")
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path:
                raise click.UsageError(
                    f"--public-url {public_url!r}: must be an address without a path, as in "
                    "https://top.example.com"
                )
        if not (_is_loopback(host) or url.startswith("https://")):
            raise click.UsageError(
                f"--listen {listen!r} serves other machines: put a proxy with TLS in front, and give "
                "its address as --public-url https://..."
            )
        return cls(host=host, port=port, url=url)

    @property
    def origin(self) -> str:
        """The Origin of the page, as browsers send it."""
        parts = urlsplit(self.url)
        default = {"http": 80, "https": 443}[parts.scheme]
        host = parts.netloc.lower()
        return f"{parts.scheme}://{host.removesuffix(f':{default}')}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TopServer(Server):
    """Serves the application to the browser with the token."""

    def __init__(self, address: WebAddress, command: str) -> None:
        super().__init__(command, address.host, address.port, "jsm top", address.url)
        self._address = address
        self._token: str | None = secrets.token_urlsafe(_TOKEN_BYTES)
        self._session = secrets.token_urlsafe(_TOKEN_BYTES)
        # Cookies do not belong to a port.
        self._cookie = f"{_COOKIE}_{address.port}"
        self._sessions = 0

    @property
    def link(self) -> str:
        """The address to open, with the token."""
        return f"{self._address.url}/?token={self._token}"

    def application(self) -> web.Application:
        """Return the web application."""
        app = web.Application(middlewares=[self._guard])
        aiohttp_jinja2.setup(app, loader=jinja2.FileSystemLoader(self.templates_path))
        app.add_routes(
            [
                web.get("/", self.handle_index, name="index"),
                web.get("/ws", self._handle_websocket, name="websocket"),
                web.static("/static", self.statics_path, name="static"),
            ]
        )
        app.on_response_prepare.append(_add_headers)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer a request of the session, or the first one with the token."""
        if _same(request.cookies.get(self._cookie), self._session):
            return await handler(request)
        if request.method == "GET" and _same(request.query.get("token"), self._token):
            self._token = None
            response = web.Response(status=303, headers={"Location": "/"})
            response.set_cookie(
                self._cookie,
                self._session,
                httponly=True,
                samesite="Strict",
                secure=self._address.url.startswith("https://"),
            )
            return response
        return web.Response(status=403, text=_REFUSED)

    async def _handle_websocket(self, request: web.Request) -> web.StreamResponse:
        """Run the command for a page of this server."""
        if request.headers.get("Origin", "").lower() != self._address.origin:
            return web.Response(status=403, text="The Origin is not this server.\n")
        if self._sessions >= _MAX_SESSIONS:
            return web.Response(status=503, text="Too many sessions.\n")
        self._sessions += 1
        try:
            return await self.handle_websocket(request)
        finally:
            self._sessions -= 1


def _same(given: str | None, wanted: str | None) -> bool:
    if given is None or wanted is None:
        return False
    # Bytes of a header that are no UTF-8 are surrogates.
    return secrets.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def serve(settings: Settings, address: WebAddress) -> NoReturn:
    """Serve the application until Ctrl-C."""
    # The process finds TEXTUAL_DRIVER in its environment, and ignores the options for the web.
    # It ends with its parent, which is this process and not a shell.
    command = shlex.join([sys.executable, "-m", "jetstream_sync.cli", *settings.words])
    server = TopServer(address, f"exec {command}")

    def listening(*_: Any) -> None:
        emit_item(settings, {"url": server.link}, server.link)
        if not settings.json:
            announce(settings, "Open the address in a browser; it works once. Ctrl-C ends it.")

    web.run_app(
        server.application(),
        host=address.host,
        port=address.port,
        handle_signals=False,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_S,
        print=listening,
    )
    # aiohttp returns at Ctrl-C only.
    raise KeyboardInterrupt
