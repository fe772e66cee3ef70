import json

import jetstream_sync

nc = jetstream_sync.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
for number in range(60):
    js.publish("ORDERS.new", b"%d" % number)
consumer = stream.create_consumer(durable_name="BILLING")

# --- PullConsumer.fetch
for message in consumer.fetch(5, timeout=5.0):
    print(message.data)
    message.ack()

# --- PullConsumer.fetch_no_wait
for message in consumer.fetch_no_wait(5):
    message.ack()

# --- PullConsumer.next
message = consumer.next(timeout=5.0)
message.ack()

# --- PullConsumer.messages
with consumer.messages(max_messages=100, stop_after=2) as messages:
    for message in messages:
        print(message.data)
        message.ack()

# --- PullConsumer.info
print(consumer.info().num_pending, "not delivered")

# --- PullConsumer.reset
consumer.reset(seq=3)  # delivers again from sequence 3 on

# --- PullConsumer.consume
handle = consumer.consume(lambda message: message.ack())

# --- ConsumeHandle.drain
handle.drain()  # the callback handles the messages that have arrived

# --- ConsumeHandle.wait_closed
handle.wait_closed(timeout=5.0)

# --- ConsumeHandle.stop
handle = consumer.consume(lambda message: message.ack())
handle.stop()  # messages in the buffer are delivered again after ack_wait

# --- MessageIterator.next
js.publish("ORDERS.new", b"99")
with consumer.messages(max_messages=10) as messages:
    message = messages.next(timeout=5.0)
    message.ack_sync()

# --- MessageIterator.request
for _ in range(2):
    js.publish("ORDERS.new", b"100")
with consumer.messages(on_demand=True) as messages:
    messages.request(2)  # pulls two messages, and no others
    for _ in range(2):
        messages.next(timeout=5.0).ack()

# --- MessageIterator.drain
messages = consumer.messages()
messages.drain()
for message in messages:  # ends after the messages that have arrived
    message.ack()

# --- MessageIterator.stop
messages = consumer.messages()
messages.stop()  # also from another thread; the loop ends

# --- OrderedConsumer.fetch
with stream.ordered_consumer() as ordered:
    for message in ordered.fetch(5, timeout=2.0):
        print(message.metadata.stream_seq)

# --- OrderedConsumer.fetch_no_wait
with stream.ordered_consumer() as ordered:
    print(len(ordered.fetch_no_wait(100)), "messages are stored")

# --- OrderedConsumer.next
with stream.ordered_consumer(deliver_policy="last") as ordered:
    print(ordered.next(timeout=2.0).data)

# --- OrderedConsumer.messages
with stream.ordered_consumer().messages(stop_after=10) as messages:
    total = sum(int(message.data) for message in messages)

# --- OrderedConsumer.consume
found: list[bytes] = []
handle = stream.ordered_consumer().consume(lambda message: found.append(message.data))
handle.stop()

# --- OrderedConsumer.info
with stream.ordered_consumer() as ordered:
    ordered.next(timeout=2.0)
    print(ordered.info().num_pending, "messages follow")

# --- OrderedConsumer.close
ordered = stream.ordered_consumer()
ordered.next(timeout=2.0)
ordered.close()  # deletes the server's consumer at once

# --- OrderedMessages.next
with stream.ordered_consumer().messages() as messages:
    print(messages.next(timeout=2.0).data)

# --- OrderedMessages.stop
messages = stream.ordered_consumer().messages()
messages.stop()

# --- OrderedMessages.drain
messages = stream.ordered_consumer().messages()
messages.drain()

# --- PushSubscription.next_msg
with js.subscribe("ORDERS.new") as sub:
    sub.next_msg(timeout=5.0).ack()

# --- PushSubscription.consumer_info
with js.subscribe("ORDERS.new") as sub:
    print(sub.consumer_info().num_pending)

# --- PushSubscription.drain
sub = js.subscribe("ORDERS.new", cb=lambda message: print(message.data))
sub.drain(timeout=5.0)  # the callback handles what has arrived

# --- PushSubscription.unsubscribe
sub = js.subscribe("ORDERS.new", durable="AUDIT", delete_consumer=False)
sub.unsubscribe()  # AUDIT keeps its position

# --- PullSubscription.fetch
with js.pull_subscribe("ORDERS.new", durable="PACKING") as sub:
    for message in sub.fetch(2, timeout=5.0):
        message.ack()

# --- PullSubscription.consumer_info
sub = js.pull_subscribe("ORDERS.new", durable="SHIPPING")
print(sub.consumer_info().num_pending)

# --- PullSubscription.drain
sub.drain(timeout=5.0)  # a fetch on another thread gets the messages already sent

# --- PullSubscription.unsubscribe
sub = js.pull_subscribe("ORDERS.new", durable="SHIPPING", delete_consumer=False)
sub.unsubscribe()

# --- JetStreamMsg.ack
js.publish("ORDERS.new", b"7")
message = consumer.next(timeout=5.0)
print(message.data)
message.ack()  # sent with the next packet; see ack_sync()

# --- JetStreamMsg.ack_sync
js.publish("ORDERS.new", b"7")
message = consumer.next(timeout=5.0)
message.ack_sync(timeout=5.0)  # returns when the server has stored it

# --- JetStreamMsg.nak
js.publish("ORDERS.new", b"7")
message = consumer.next(timeout=5.0)
message.nak(delay=30.0)  # again in half a minute

# --- JetStreamMsg.term
js.publish("ORDERS.new", b"7")
message = consumer.next(timeout=5.0)
message.term("not an order")  # never again

# --- JetStreamMsg.in_progress
js.publish("ORDERS.new", b"7")
message = consumer.next(timeout=5.0)
for _step in range(3):
    message.in_progress()  # ack_wait begins again
message.ack()
