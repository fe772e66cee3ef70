from datetime import datetime, timedelta, timezone

import jetstream_sync
from jetstream_sync import ConsumerConfig

nc = jetstream_sync.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"], allow_direct=True)
for number in range(10):
    js.publish(f"ORDERS.{number % 3}", b"order %d" % number)

# --- Stream.create_or_update_consumer
consumer = stream.create_or_update_consumer(durable_name="BILLING", ack_wait=60)

# --- Stream.update_consumer
consumer = stream.update_consumer(ConsumerConfig(durable_name="BILLING", ack_wait=120))

# --- Stream.create_push_consumer
stream.create_push_consumer(durable_name="AUDIT", deliver_subject="audit", ack_policy="none")

# --- Stream.update_push_consumer
stream.update_push_consumer(durable_name="AUDIT", deliver_subject="audit.all", ack_policy="none")

# --- Stream.consumer_info
print(stream.consumer_info("AUDIT").config.deliver_subject)

# --- Stream.consumer_names
assert stream.consumer_names() == ["AUDIT", "BILLING"]

# --- Stream.list_consumers
for info in stream.list_consumers():
    print(info.name, info.num_pending)

# --- Stream.delete_consumer
stream.delete_consumer("AUDIT")

# --- Stream.pause_consumer
stream.pause_consumer("BILLING", datetime.now(timezone.utc) + timedelta(minutes=10))

# --- Stream.resume_consumer
stream.resume_consumer("BILLING")

# --- Stream.reset_consumer
stream.reset_consumer("BILLING", seq=5)  # delivers again from sequence 5 on

# --- Stream.unpin_consumer
stream.create_consumer(
    durable_name="ONE", priority_groups=["jobs"], priority_policy="pinned_client"
)
stream.unpin_consumer("ONE", "jobs")

# --- Stream.create_consumer
consumer = stream.create_consumer(durable_name="SHIPPING", ack_wait=60)

# --- Stream.get_consumer
for message in stream.get_consumer("BILLING").fetch(5, timeout=2.0):
    message.ack()

# --- Stream.ordered_consumer
with stream.ordered_consumer(filter_subjects="ORDERS.1") as ordered:
    print([message.data for message in ordered.fetch_no_wait(100)])

# --- Stream.info
print(stream.info(subjects_filter=">").state.subjects)

# --- Stream.get_msg
print(stream.get_msg(1).data)
print(stream.get_msg(last_by_subject="ORDERS.1").seq)

# --- Stream.get_msgs
for message in stream.get_msgs(100, seq=2):
    print(message.seq, message.data)

# --- Stream.get_last_msgs
for message in stream.get_last_msgs(["ORDERS.0", "ORDERS.1"]):
    print(message.subject, message.seq, message.data)

# --- Stream.snapshot
with stream.snapshot() as snapshot, open("ORDERS.s2", "wb") as file:
    snapshot.write_to(file)

# --- StreamSnapshot.write_to
with stream.snapshot() as snapshot, open("copy.s2", "wb") as file:
    snapshot.write_to(file)
print(snapshot.size, "bytes,", snapshot.info.state.messages, "messages")

# --- Stream.stranded
work = js.create_stream(name="WORK", subjects=["WORK.*"], retention="workqueue")
work.create_consumer(durable_name="WORKER")
assert work.stranded("WORKER") is None  # the consumer will deliver every message

# --- Stream.delete_msg
stream.delete_msg(2)
assert stream.info().state.messages == 9

# --- Stream.purge
assert stream.purge(keep=1) == 8
