"""
Write the screenshots of ``jsm top`` for the pages, as SVG, from a run against a real server.

Run it after a change of the application: ``python tests/make_top_screenshots.py``.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path

import jetstream_sync
from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.listings import Lister
from jetstream_sync.cli.shared.settings import Settings
from jetstream_sync.cli.top.app import TopApp
from jetstream_sync.cli.top.data import TopOptions
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Reject, Worker

_FOLDER = Path(__file__).parents[1] / "docs" / "_static"
#: The keys that lead to each picture.
_PICTURES = {
    "top-overview": ["1", "g"],
    "top-workers": ["g", "4", "enter"],
    "top-dead-letters": ["escape", "5", "R"],
}
#: Fonts of another server; without them the browser uses its own.
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def _shop(url: str, stop: threading.Event) -> Worker:
    """Return a worker whose handlers are slow, and give up some messages."""
    worker = Worker(url, name="shop", dead_letters="DEAD", report="stacks")

    @worker.handler(stream="ORDERS", consumer="BILLING", concurrency=3, retry=Backoff(attempts=1))
    def bill(data: bytes) -> None:
        if int(data) % 40 == 0:
            raise Reject("nothing to bill")
        stop.wait(0.02 if int(data) < 600 else 60)

    return worker


async def _take(app: TopApp) -> None:
    with app.poller:
        async with app.run_test(size=(110, 28)) as pilot:
            await pilot.pause(6)
            for name, keys in _PICTURES.items():
                for key in keys:
                    await pilot.press(key)
                    await pilot.pause(1)
                picture = _FONTS.sub("", app.export_screenshot(title="jsm top"))
                lines = (line.rstrip() for line in picture.splitlines())
                (_FOLDER / f"{name}.svg").write_text("\n".join(lines).strip() + "\n")


def main() -> None:
    """Take the pictures."""
    stop = threading.Event()
    settings = Settings(env=Environment.of_process(), words=[])
    with NatsServer(name="nats-1", port=4222) as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
        js.create_stream(name="PAYMENTS", subjects=["PAYMENTS.*"])
        js.create_consumer("ORDERS", durable_name="REPORTS")
        js.create_consumer("PAYMENTS", durable_name="LEDGER")
        worker = _shop(server.url, stop)
        running = threading.Thread(target=worker.run)
        running.start()

        def publish() -> None:
            for number in range(1, 1500):
                js.publish("ORDERS.new", b"%d" % number)
                if number % 3 == 0:
                    js.publish("PAYMENTS.in", b"%d" % number)
                time.sleep(0.005 + 0.005 * (number // 150 % 3))

        publisher = threading.Thread(target=publish)
        publisher.start()
        app = TopApp(Lister(settings, nc), TopOptions(interval=0.2, may_change=True))
        asyncio.run(_take(app))
        publisher.join()
        stop.set()
        worker.stop()
        running.join()


if __name__ == "__main__":
    main()
