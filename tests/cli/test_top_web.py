"""``jsm top --web``: its token, cookie and Origin, and the application in a browser."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fixtures.apps import free_port
from fixtures.jsm import Jsm
from fixtures.threads import SCALE, wait_until
from fixtures.top_web import ESCAPE, Shown, Web
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from jetstream_sync import JetStream, Stream
from jetstream_sync.workers.calls import RESULTS_MARK


@pytest.fixture
def serve(jsm: Jsm) -> Iterator[Callable[..., Web]]:
    """Return a function that starts ``jsm top --web``."""
    started = []

    def start(*options: str) -> Web:
        listen = f"127.0.0.1:{free_port()}"
        process = jsm.spawn("top", "--web", "--interval", "200ms", "--listen", listen, *options)
        started.append(process)
        assert process.stdout is not None
        return Web(process.stdout.readline().decode().strip(), process)

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10 * SCALE) == 143
        process.communicate()


def test_a_token_is_for_one_browser(serve):
    """The first request with the token gets a cookie; a second one, or another page, is refused."""
    web = serve()
    for path in ("/", "/?token=wrong", "/ws", "/static/js/textual.js"):
        assert web.request(path).status == 403
    assert web.request(f"/?{web.parts.query}", "HEAD").status == 403
    response = web.request(f"/?{web.parts.query}")
    assert (response.status, response.getheader("Location")) == (303, "/")
    cookie, *attributes = (response.getheader("Set-Cookie") or "").split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)

    assert web.request(f"/?{web.parts.query}").status == 403
    assert web.request("/", Cookie=f"{cookie}x").status == 403
    name = cookie.partition("=")[0]
    assert web.request("/", Cookie=f"{name}=\xff").status == 403
    page = web.request("/", Cookie=cookie)
    assert page.status == 200
    assert "default-src 'self'" in (page.getheader("Content-Security-Policy") or "")
    assert page.getheader("Cache-Control") == "no-store"
    assert web.request("/static/js/textual.js", Cookie=cookie).status == 200

    for origin in (None, "http://evil.example", web.origin.replace("127.0.0.1", "localhost")):
        with pytest.raises(InvalidStatus) as refused:
            web.socket(cookie, origin)
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus):
        web.socket("", web.origin)
    with web.socket(cookie, web.origin) as opened:
        assert opened.recv(20 * SCALE)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_processes_of_pages_end_with_the_server(serve, number):
    """Whether the server is stopped or killed, no process of a page is left."""
    web = serve()
    with web.socket(web.log_in(), web.origin) as opened:
        assert opened.recv(20 * SCALE)
        task = Path(f"/proc/{web.process.pid}/task/{web.process.pid}/children")
        (child,) = task.read_text().split()
        web.process.send_signal(number)
        web.process.wait(10 * SCALE)
        wait_until(lambda: not Path(f"/proc/{child}").exists(), 20)


@pytest.fixture
def dead_letter(js: JetStream, stream: Stream) -> Callable[[], int]:
    """A dead letter, and the number of messages of its stream."""
    js.create_stream(name="DEAD", subjects=["dead.>"], storage="memory")
    headers = {
        "Dead-Stream": stream.name,
        "Dead-Consumer": "BILLING",
        "Dead-Sequence": "1",
        "Dead-Attempts": "3",
        "Dead-Reason": "nothing to bill",
        "Dead-Subject": f"{stream.name}.a",
    }
    js.create_consumer(stream.name, durable_name="NEW")
    js.publish(f"dead.{stream.name}.BILLING.a", b"bad", headers=headers)
    return lambda: stream.info().state.messages


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [(), ("--allow-changes",)], ids=str)
def test_changes_need_an_option(serve, dead_letter, options):
    """A browser can requeue a dead letter only with --allow-changes."""
    web = serve(*options)
    with web.socket(web.log_in(), web.origin) as socket:
        shown = Shown(socket)
        shown.expect("Overview")
        for _ in range(5):  # the application may select its first tab after an early key
            shown.type("5")
            if shown.shows("nothing to bill", 2):
                break
        shown.type("R")
        if options:
            shown.expect("Press y")
        shown.type("y")
        if options:
            wait_until(lambda: dead_letter() == 1, 20)
        shown.type("?")
        shown.expect("quit")
    assert dead_letter() == bool(options)


def test_behind_a_proxy(serve):
    """The cookie is for https only, and the Origin is the address of the proxy."""
    web = serve("--public-url", "https://Top.example.com:443")
    assert web.parts.netloc == "Top.example.com:443"
    listen = web.process.args[web.process.args.index("--listen") + 1]
    connection = http.client.HTTPConnection(listen, timeout=10 * SCALE)
    connection.request("GET", f"/?{web.parts.query}")
    response = connection.getresponse()
    assert "Secure" in (response.getheader("Set-Cookie") or "").split("; ")
    cookie = (response.getheader("Set-Cookie") or "").partition(";")[0]
    response.read()
    connection.close()
    address = f"ws://{listen}/ws?width=120&height=40"
    headers = {"Cookie": cookie}
    origin = Origin("https://top.example.com")
    with connect(address, origin=origin, additional_headers=headers) as opened:
        assert opened.recv(20 * SCALE)


def test_other_machines_need_tls(jsm):
    """An address that other machines reach is refused without TLS; wrong options are explained."""
    for options, text in {
        ("--listen", "0.0.0.0:8484"): "--public-url",
        ("--listen", "0.0.0.0:8484", "--public-url", "http://top.example.com"): "a proxy with TLS",
        ("--listen", "8484x"): "must be HOST:PORT",
        ("--public-url", "https://example.com/top"): "without a path",
    }.items():
        result = jsm("top", "--web", *options)
        assert result.status == 2, options
        assert text in result.err


# --- in a browser -------------------------------------------------------------------------------


class Browser:
    """A page of Chromium, controlled by its debugging protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0
        self.shown = ""
        #: Columns and lines of the terminal.
        self.size: dict[str, int] = {}
        self.refused: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        """Make a call, and return its result."""
        self._last += 1
        wanted = self._last
        self._socket.send(json.dumps({"id": wanted, "method": method, "params": params}))
        while True:
            message = self._receive(20 * SCALE)
            if message.get("id") == wanted:
                assert "error" not in message, message
                return message["result"]

    def _receive(self, limit: float) -> Any:
        message = json.loads(self._socket.recv(limit))
        params = message.get("params", {})
        if message.get("method") == "Network.webSocketFrameReceived":
            frame = params["response"]
            if frame["opcode"] == 2:
                data = base64.b64decode(frame["payloadData"]).decode("utf-8", "replace")
                self.shown += ESCAPE.sub("", data)
        elif message.get("method") == "Network.webSocketCreated":
            query = urlsplit(params["url"]).query
            self.size = {k: int(v) for k, v in (part.split("=") for part in query.split("&"))}
        elif message.get("method") == "Network.webSocketFrameSent":
            sent = params["response"]["payloadData"]
            if sent.startswith('["resize"'):
                self.size = json.loads(sent)[1]
        elif message.get("method") == "Network.loadingFailed":
            self.refused.append(params.get("blockedReason", ""))
        return message

    def shows(self, text: str, limit: float) -> bool:
        """Wait until the page has received a text; return whether it has in time."""
        give_up = time.monotonic() + limit * SCALE
        while text not in self.shown:
            try:
                self._receive(max(0.0, give_up - time.monotonic()))
            except TimeoutError:
                return False
        return True

    def expect(self, text: str) -> None:
        """Wait until the page has received a text."""
        assert self.shows(text, 30), f"{text!r} did not come: {self.shown[-2000:]}"

    def key(self, text: str) -> None:
        """Press a key."""
        self.shown = ""
        key = {"key": "Enter", "windowsVirtualKeyCode": 13} if text == "\r" else {"key": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, column: int, line: int) -> None:
        """Click on a cell of the terminal."""
        self.shown = ""
        script = (
            "(() => { const box = document.querySelector('.xterm-screen').getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()"
        )
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        left, top, width, height = result["result"]["value"]
        where = {
            "x": left + (column + 0.5) * width / self.size["width"],
            "y": top + (line + 0.5) * height / self.size["height"],
        }
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where, **pressed)


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Run a headless Chromium with an empty page."""
    program = shutil.which("chromium")
    assert program is not None, "this needs the Debian package chromium"
    options = [
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1400,900",
        "--remote-debugging-port=0",
    ]
    process = subprocess.Popen(
        [program, "--headless=new", *options, f"--user-data-dir={folder}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = folder / "DevToolsActivePort"
        port = wait_until(lambda: ready.exists() and ready.read_text().split("\n")[0], 30)

        def page() -> Any:
            connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=10 * SCALE)
            connection.request("GET", "/json/list")
            pages = json.loads(connection.getresponse().read())
            connection.close()
            return [item for item in pages if item["type"] == "page"]

        (found,) = wait_until(page, 30)
        with connect(found["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(20 * SCALE)


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the Debian package chromium")
def test_a_browser_clicks_through(serve, dead_letter, js, stream, tmp_path):
    """In Chromium, the lag of a consumer is seen, and a dead letter is requeued with the mouse."""
    web = serve("--allow-changes")
    with chromium(tmp_path) as browser:
        for domain in ("Network", "Page", "Runtime"):
            browser.call(f"{domain}.enable")
        browser.call("Page.navigate", url=web.link)
        browser.expect(f"{stream.name} > NEW")
        for _ in range(7):
            js.publish(f"{stream.name}.a", b"x")
        browser.expect("lag 7")

        # The tabs are on the third line.
        tabs = " Overview  Streams  Consumers  Workers  Dead letters"
        for _ in range(5):  # until the page is laid out, a click may miss
            browser.click(tabs.index("Dead") + 2, 2)
            if browser.shows("nothing to bill", 3):
                break
        browser.expect("nothing to bill")
        browser.key("R")
        browser.expect("Press y")
        browser.key("y")
        wait_until(lambda: dead_letter() == 8, 20)
        browser.expect("was published again")

        # The calls of tasks, with the details of one.
        failure = {"exception_class_path": "shop.NoStockError", "text": "none left"}
        call = {"id": "c1", "task": "buy", "status": "FAILED", "args": [17], "kwargs": {}}
        record = {**call, "enqueued_at": "2026-01-02T03:04:05+00:00", "errors": [failure]}
        bucket = js.create_key_value(bucket="CALLS", metadata={RESULTS_MARK: "calls of tasks"})
        bucket.put("c1", json.dumps(record).encode())
        browser.key("9")
        browser.expect("NoStockError")
        browser.key("\r")
        browser.expect("Arguments: [17]")
        # The page asks no other server: its policy blocks the fonts.
        assert set(browser.refused) <= {"csp"}
