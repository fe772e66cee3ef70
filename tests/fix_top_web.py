"""``jsm top --web`` as a browser sees it."""

from __future__ import annotations

import http.client
import json
import re
import time
from typing import Any
from urllib.parse import urlsplit

from fix_threads import SCALE
from websockets.sync.client import ClientConnection, connect

ESCAPE = re.compile(r"\x1b\[[0-9;?>]*[A-Za-z]|\x1b[()][A-Z0-9]")


class Web:
    """A running ``jsm top --web``."""

    def __init__(self, link: str, process: Any) -> None:
        self.link = link
        self.process = process
        self.parts = urlsplit(link)
        self.origin = f"{self.parts.scheme}://{self.parts.netloc}"

    def request(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        """Return the answer to a request, without following redirects."""
        connection = http.client.HTTPConnection(self.parts.netloc, timeout=10 * SCALE)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response

    def log_in(self) -> str:
        """Use the token, and return the cookie."""
        response = self.request(f"/?{self.parts.query}")
        assert response.status == 303
        return (response.getheader("Set-Cookie") or "").partition(";")[0]

    def socket(self, cookie: str, origin: Any) -> ClientConnection:
        """Open the WebSocket of the page."""
        address = f"ws://{self.parts.netloc}/ws?width=120&height=40"
        return connect(address, origin=origin, additional_headers={"Cookie": cookie})


class Shown:
    """What a WebSocket has shown so far, without escape codes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.text = ""

    def shows(self, text: str, limit: float) -> bool:
        """Wait until a text has been shown; return whether it has in time."""
        give_up = time.monotonic() + limit * SCALE
        while text not in self.text:
            try:
                data = self.socket.recv(max(0.01, give_up - time.monotonic()))
            except TimeoutError:
                return False
            if isinstance(data, bytes):
                self.text += ESCAPE.sub("", data.decode("utf-8", "replace"))
        return True

    def expect(self, text: str) -> None:
        """Wait until a text has been shown."""
        assert self.shows(text, 15), f"{text!r} did not come: {self.text[-2000:]}"

    def type(self, keys: str) -> None:
        """Send keys, as the page does."""
        self.text = ""
        self.socket.send(json.dumps(["stdin", keys]))
