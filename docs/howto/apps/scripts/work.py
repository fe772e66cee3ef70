"""Handle orders until Ctrl-C."""

import logging
import os

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")

log = logging.getLogger("work")


class NotAnOrderError(Exception):
    """The message is invalid; another attempt cannot succeed."""


def handle(data):
    """Handle one order: in this example, print its number."""
    try:
        number = int(data)
    except ValueError:
        raise NotAnOrderError from None
    print("handled", number, flush=True)


def work_on(message):
    """Handle and acknowledge a message; a failure must not stop the worker."""
    try:
        handle(message.data)
    except NotAnOrderError:
        message.term("not an order")  # do not deliver it again
    except Exception:
        # Another attempt may succeed. Each one waits longer; max_deliver limits their number.
        log.exception("order %s failed", message.metadata.stream_seq)
        message.nak(delay=10.0 * message.metadata.num_delivered)
    else:
        message.ack()


def main():
    """Handle one order at a time."""
    with jetstream_sync.connect(SERVERS, name="work") as nc:
        stream = nc.jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"])
        consumer = stream.create_or_update_consumer(durable_name="work", ack_wait=5, max_deliver=5)
        try:
            with consumer.messages(max_messages=100) as messages:
                print("ready", flush=True)
                for message in messages:
                    work_on(message)
        except KeyboardInterrupt:
            print("stopped", flush=True)
    # The end of the block drained the connection: every acknowledgement has been sent.


if __name__ == "__main__":
    main()
