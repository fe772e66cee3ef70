"""Bill, audit, ship and count orders; the stream ORDERS must exist."""

import sys

import jetstream_sync as nats
from jetstream_sync import ConsumerConfig, DeliverPolicy, TimeoutError


def main(url):
    nc = nats.connect(url, name="orders")
    js = nc.jetstream()
    publish(js)
    bill(js)
    audit(js)
    ship(nc, js)
    count(js)
    nc.close()


def publish(js):
    for number in (1, 2, 3, 4, 5, 5):
        headers = {"Nats-Msg-Id": f"order-{number}", "Customer": "ACME"}
        ack = js.publish("ORDERS.received", b"order %d" % number, headers=headers)
        print("published", ack.stream, ack.seq, "again" if ack.duplicate else "")


def bill(js):
    """Pull in batches until no message is left."""
    psub = js.pull_subscribe("ORDERS.received", "billing")
    while True:
        try:
            msgs = psub.fetch(3, timeout=0.5)
        except TimeoutError:
            break
        for msg in msgs:
            print("billed", msg.subject, msg.data.decode(), msg.headers["Customer"])
            msg.ack_sync()
    info = psub.consumer_info()
    print("billing:", info.num_pending, "pending,", info.num_ack_pending, "not acknowledged")


def audit(js):
    """Read one message at a time; a rejected message is delivered again."""
    config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST, ack_wait=5, max_deliver=2)
    sub = js.subscribe("ORDERS.received", durable="audit", config=config)
    msg = sub.next_msg(timeout=5)
    print("audited", msg.data.decode(), "delivery", msg.metadata.num_delivered)
    msg.nak()
    msg = sub.next_msg(timeout=5)
    print("audited", msg.data.decode(), "delivery", msg.metadata.num_delivered)
    msg.ack()
    try:
        sub.next_msg(timeout=0.2)
    except TimeoutError:
        print("nothing more to audit")
    sub.unsubscribe()


def ship(nc, js):
    """Share the work in a queue group; a message is acknowledged after its callback returns."""
    shipped = []

    def cb(msg):
        shipped.append(msg.data.decode())

    js.subscribe("ORDERS.received", "shipping", cb=cb)
    js.subscribe("ORDERS.received", "shipping", cb=cb)
    while len(shipped) < 5:
        nc.flush()
    print("shipped", ", ".join(sorted(shipped)))


def count(js):
    """Read everything in order, without acknowledgements."""
    sub = js.subscribe("ORDERS.>", ordered_consumer=True)
    total = 0
    while True:
        msg = sub.next_msg(timeout=5)
        total += 1
        if not msg.metadata.num_pending:
            break
    print("counted", total)
    sub.unsubscribe()


if __name__ == "__main__":
    main(sys.argv[1])
