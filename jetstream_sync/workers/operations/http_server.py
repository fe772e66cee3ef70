"""
The HTTP server of a worker's health checks and metrics.

Each request has a thread, so that a client that sends nothing does not delay a health check. Clients that
fill the process with threads close the oldest connections.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, ClassVar, Final

from ..checks import parse_address
from ..events import spawn
from ..logs import log
from ..metrics import CONTENT_TYPE, OPENMETRICS_TYPE
from ..observer import DURATIONS
from .health import Monitor, Processes

#: Maximum number of open connections, and seconds of silence after which one is closed.
_MAX_CLIENTS: Final = 64
_TIMEOUT_S: Final = 5.0
#: Interval of the checks whether the server is closed, in seconds.
_POLL_S: Final = 0.1
_TEXT: Final = "text/plain; charset=utf-8"


class MonitoringServer(ThreadingHTTPServer):
    """Serves health checks and metrics."""

    allow_reuse_port = False
    request_queue_size = _MAX_CLIENTS

    def __init__(self, address: str, source: Monitor | Processes) -> None:
        host, port = parse_address(address)
        self.source = source
        self._clients: list[socket.socket] = []
        self.address_family: int = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Request)
        shown = f"[{host}]" if ":" in host else host
        #: The URL of the server.
        self.url: str = f"http://{shown}:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind the socket, without the name of the host, which may take long."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread; close the oldest connection if there are too many."""
        self._clients.append(request)
        if len(self._clients) > _MAX_CLIENTS:
            with suppress(OSError):
                self._clients[0].shutdown(socket.SHUT_RDWR)
        spawn(
            "worker-http-request",
            lambda: self.process_request_thread(request, client_address),
            lambda _error: None,
        )

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._clients.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that was lost."""


class _Request(BaseHTTPRequestHandler):
    """One request; there is one per connection."""

    server: MonitoringServer
    timeout: ClassVar[float] = _TIMEOUT_S
    default_request_version = "HTTP/1.1"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.close_connection = True
        path, _, query = self.path.partition("?")
        verbose = "verbose" in {part.partition("=")[0] for part in query.split("&")}
        source = self.server.source
        try:
            if path == "/livez":
                status, body, kind = self._health(source.not_live(), verbose=verbose)
            elif path == "/readyz":
                status, body, kind = self._health(source.not_ready(), verbose=verbose)
            elif path == "/metrics":
                exact = "application/openmetrics-text" in (self.headers["Accept"] or "")
                status, body = 200, source.metrics(openmetrics=exact)
                kind = OPENMETRICS_TYPE if exact else CONTENT_TYPE
            else:
                status, body, kind = 404, "use /livez, /readyz or /metrics\n", _TEXT
        except Exception:
            log.exception("the reply to %s failed", path)
            status, body, kind = 500, "internal error, see the log\n", _TEXT
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def _health(self, reasons: list[str], *, verbose: bool) -> tuple[int, str, str]:
        status = 503 if reasons else 200
        if not verbose:
            return status, "".join(f"{reason}\n" for reason in reasons) or "ok\n", _TEXT
        processes = [
            [
                {name: value for name, value in handler.items() if name not in DURATIONS}
                for handler in snapshot["handlers"]
            ]
            for snapshot in self.server.source.snapshots()
        ]
        state = "failed" if reasons else "ok"
        document = {"status": state, "reasons": reasons, "processes": processes}
        return status, json.dumps(document, indent=2) + "\n", "application/json"

    def log_message(self, *_: object) -> None:
        """Log nothing: health checks are frequent."""


@contextmanager
def serving(address: str, source: Monitor | Processes, name: str) -> Iterator[bool]:
    """Serve health checks and metrics for the duration of a block; false: the address cannot be used."""
    try:
        server = MonitoringServer(address, source)
    except OSError as error:
        log.error("%s cannot serve http=%r: %s", name, address, error)  # noqa: TRY400
        yield False
        return
    log.info("%s serves health checks and metrics at %s", name, server.url)
    spawn("worker-http", lambda: server.serve_forever(_POLL_S), lambda _error: None)
    try:
        yield True
    finally:
        server.shutdown()
        server.server_close()
