"""Publish the lines of standard input: ``python publish.py < orders.txt``."""

import os
import sys

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


def main():
    """Publish each line, and print how many the stream acknowledged."""
    nc = jetstream_sync.connect(SERVERS, name="publish")
    js = nc.jetstream(timeout=10)
    js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    futures = []
    try:
        for line in sys.stdin.buffer:
            future = js.publish_async("ORDERS.received", line.rstrip())
            futures.append(future)
    except KeyboardInterrupt:
        print("stopping")
    # Every future completes with an acknowledgement or an error, at the latest after the timeout.
    acknowledged = sum(future.exception() is None for future in futures)
    print(f"{acknowledged} of {len(futures)} are stored")
    nc.close()
    return 0 if acknowledged == len(futures) else 1


if __name__ == "__main__":
    sys.exit(main())
