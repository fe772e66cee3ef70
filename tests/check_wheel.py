"""
Publish and fetch one message with the installed wheel, on a real server.

    python tests/check_wheel.py
"""

from __future__ import annotations

import os
import sys

import jetstream_sync
from jetstream_sync import speedups
from jetstream_sync.server import NatsServer


def main() -> None:
    """Fail if the message does not come back, or the C extension is missing from the wheel."""
    if not speedups.IN_USE and os.environ.get("JETSTREAM_SYNC_SPEEDUPS") != "0":
        sys.exit("the wheel has no C extension")
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="WHEEL", subjects=["wheel"], storage="memory")
        ack = js.publish("wheel", b"data")
        (message,) = stream.create_consumer().fetch(1, timeout=10)
        message.ack_sync()
        if (ack.seq, message.data) != (1, b"data"):
            sys.exit(f"published sequence {ack.seq}, fetched {message.data!r}")
    sys.stdout.write(f"jetstream_sync {jetstream_sync.__version__} publishes and fetches\n")


if __name__ == "__main__":
    main()
