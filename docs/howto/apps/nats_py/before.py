"""Bill, audit, ship and count orders; the stream ORDERS must exist."""

import asyncio
import sys
from asyncio import TimeoutError

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy


async def main(url):
    nc = await nats.connect(url, name="orders")
    js = nc.jetstream()
    await publish(js)
    await bill(js)
    await audit(js)
    await ship(nc, js)
    await count(js)
    await nc.close()


async def publish(js):
    for number in (1, 2, 3, 4, 5, 5):
        headers = {"Nats-Msg-Id": f"order-{number}", "Customer": "ACME"}
        ack = await js.publish("ORDERS.received", b"order %d" % number, headers=headers)
        print("published", ack.stream, ack.seq, "again" if ack.duplicate else "")


async def bill(js):
    """Pull in batches until no message is left."""
    psub = await js.pull_subscribe("ORDERS.received", "billing")
    while True:
        try:
            msgs = await psub.fetch(3, timeout=0.5)
        except TimeoutError:
            break
        for msg in msgs:
            print("billed", msg.subject, msg.data.decode(), msg.headers["Customer"])
            await msg.ack_sync()
    info = await psub.consumer_info()
    print("billing:", info.num_pending, "pending,", info.num_ack_pending, "not acknowledged")


async def audit(js):
    """Read one message at a time; a rejected message is delivered again."""
    config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST, ack_wait=5, max_deliver=2)
    sub = await js.subscribe("ORDERS.received", durable="audit", config=config)
    msg = await sub.next_msg(timeout=5)
    print("audited", msg.data.decode(), "delivery", msg.metadata.num_delivered)
    await msg.nak()
    msg = await sub.next_msg(timeout=5)
    print("audited", msg.data.decode(), "delivery", msg.metadata.num_delivered)
    await msg.ack()
    try:
        await sub.next_msg(timeout=0.2)
    except TimeoutError:
        print("nothing more to audit")
    await sub.unsubscribe()


async def ship(nc, js):
    """Share the work in a queue group; a message is acknowledged after its callback returns."""
    shipped = []

    async def cb(msg):
        shipped.append(msg.data.decode())

    await js.subscribe("ORDERS.received", "shipping", cb=cb)
    await js.subscribe("ORDERS.received", "shipping", cb=cb)
    while len(shipped) < 5:
        await nc.flush()
    print("shipped", ", ".join(sorted(shipped)))


async def count(js):
    """Read everything in order, without acknowledgements."""
    sub = await js.subscribe("ORDERS.>", ordered_consumer=True)
    total = 0
    while True:
        msg = await sub.next_msg(timeout=5)
        total += 1
        if not msg.metadata.num_pending:
            break
    print("counted", total)
    await sub.unsubscribe()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
