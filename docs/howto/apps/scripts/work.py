"""Handle orders until Ctrl-C."""

import os

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


def main():
    """Print and acknowledge one order after the other."""
    with jetstream_sync.connect(SERVERS, name="work") as nc:
        stream = nc.jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"])
        consumer = stream.create_consumer(durable_name="work", ack_wait=5)
        try:
            with consumer.messages(max_messages=100) as messages:
                print("ready", flush=True)
                for message in messages:
                    print("handled", message.data.decode(), flush=True)
                    message.ack()
        except KeyboardInterrupt:
            print("stopped", flush=True)
    # Leaving the block drained the connection: every acknowledgement has been sent.


if __name__ == "__main__":
    main()
