"""Publish and exit without closing: a normal exit of the interpreter flushes the buffer."""

import os

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")

nc = jetstream_sync.connect(SERVERS)
js = nc.jetstream()
js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
ack = js.publish("ORDERS.received", b"acknowledged")
print("stored as", ack.seq)
for number in range(1000):
    nc.publish("ORDERS.received", b"%d" % number)
