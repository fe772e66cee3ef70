import jetstream_sync
from jetstream_sync import ConsumerConfig, StreamConfig

nc = jetstream_sync.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
for number in range(10):
    js.publish("ORDERS.new", b"order %d" % number)

# --- JetStream.account_info
info = js.account_info()
print(info.streams, "streams")
print(info.storage, "bytes")

# --- JetStream.create_stream
stream = js.create_stream(name="INVOICES", subjects=["INVOICES.*"], max_age=3600)

# --- JetStream.update_stream
from dataclasses import replace

config = js.get_stream("ORDERS").info().config
js.update_stream(replace(config, max_msgs=1_000_000))

# --- JetStream.get_stream
print(js.get_stream("ORDERS").cached_info.state.messages)

# --- JetStream.stream_names
assert js.stream_names(subject="ORDERS.new") == ["ORDERS"]

# --- JetStream.delete_stream
js.delete_stream("INVOICES")

# --- JetStream.create_or_update_stream
js.create_or_update_stream(name="ORDERS", subjects=["ORDERS.*"], max_msgs=1_000_000)

# --- JetStream.find_stream_name_by_subject
assert js.find_stream_name_by_subject("ORDERS.new") == "ORDERS"

# --- JetStream.list_streams
for info in js.list_streams(subject="ORDERS.*"):
    print(info.config.name, info.state.messages)

# --- JetStream.publish
ack = js.publish("ORDERS.new", b"order 11", msg_id="order-11")
print(ack.stream, ack.seq)
assert js.publish("ORDERS.new", b"order 11", msg_id="order-11").duplicate

# --- JetStream.publish_async
future = js.publish_async("ORDERS.new", b"order 12", msg_id="order-12")
print(future.result(timeout=5.0).seq)

# --- JetStream.publish_async_completed
futures = [js.publish_async("ORDERS.new", b"order") for _ in range(100)]
js.publish_async_completed(timeout=10.0)
assert all(future.exception() is None for future in futures)

# --- JetStream.publish_batch
js.create_stream(name="LEDGER", subjects=["ledger.*"], allow_atomic=True)
ack = js.publish_batch([("ledger.alice", b"-5"), ("ledger.bob", b"+5")])
print(ack.seq, ack.batch_size)

# --- JetStream.batch
with js.batch(stream="LEDGER") as batch:
    batch.add("ledger.alice", b"-7", expected_last_subject_sequence=1)
    batch.add("ledger.bob", b"+7", msg_id="transfer-2")
print(list(batch.sequences))

# --- Batch.add
batch = js.batch(stream="LEDGER")
batch.add("ledger.carol", b"+1", headers={"Reason": "interest"}, expected_last_subject_sequence=0)

# --- Batch.commit
ack = batch.commit(timeout=10.0)  # as the end of a `with` block
print(ack.seq)

# --- JetStream.fast_publish
js.create_stream(name="EVENTS", subjects=["events.>"], allow_batched=True)
with js.fast_publish() as fast:
    for number in range(10_000):
        fast.add("events.click", b"%d" % number)
print(fast.acked)

# --- FastPublisher.add
fast = js.fast_publish()
number = fast.add("events.click", b"1", headers={"Page": "/"})

# --- FastPublisher.commit
ack = fast.commit()  # as the end of a `with` block
assert ack.batch_size == number == 1

# --- JetStream.counters
js.create_stream(name="HITS", subjects=["hits.>"], allow_msg_counter=True, allow_direct=True)
counters = js.counters("HITS")
print(counters.add("hits.eu", 5), counters["hits.eu"])
for counter in counters.items("hits.*"):
    print(counter.subject, counter.value)

# --- Counters.add
total = counters.add("hits.us", 3, msg_id="import-7")  # the id makes a second attempt harmless

# --- Counters.get
print(counters.get("hits.us").value, "after", counters.get("hits.us").increment)

# --- Counters.items
total = sum(counter.value for counter in counters.items("hits.*"))

# --- Counters.reset
counters.reset("hits.us")
assert counters["hits.us"] == 0

# --- JetStream.cancel_schedule
js.create_stream(name="PLANS", subjects=["plans.>"], allow_msg_schedules=True)
js.schedule("plans.report", target="plans.due", cron="0 5 * * *")
assert js.cancel_schedule("plans.report")

# --- Stream.schedules
for schedule in js.get_stream("PLANS").schedules("plans.>"):
    print(schedule.subject, schedule.rule, schedule.target)

# --- JetStream.create_consumer
config = ConsumerConfig(durable_name="BILLING", ack_wait=60, max_deliver=5)
consumer = js.create_consumer("ORDERS", config)

# --- JetStream.update_consumer
js.update_consumer("ORDERS", ConsumerConfig(durable_name="BILLING", ack_wait=120, max_deliver=5))

# --- JetStream.create_or_update_consumer
consumer = js.create_or_update_consumer("ORDERS", durable_name="BILLING", max_ack_pending=500)

# --- JetStream.get_consumer
for message in js.get_consumer("ORDERS", "BILLING").fetch(5, timeout=2.0):
    message.ack()

# --- JetStream.consumer_info
info = js.consumer_info("ORDERS", "BILLING")
print(info.num_pending, "not delivered,", info.num_ack_pending, "not acknowledged")

# --- JetStream.consumer_names
assert js.consumer_names("ORDERS") == ["BILLING"]

# --- JetStream.list_consumers
for info in js.list_consumers("ORDERS"):
    print(info.name, info.num_pending)

# --- JetStream.pause_consumer
from datetime import datetime, timedelta, timezone

js.pause_consumer("ORDERS", "BILLING", datetime.now(timezone.utc) + timedelta(hours=1))

# --- JetStream.resume_consumer
js.resume_consumer("ORDERS", "BILLING")

# --- JetStream.reset_consumer
js.reset_consumer("ORDERS", "BILLING", seq=3)  # delivers again from sequence 3 on

# --- JetStream.unpin_consumer
js.create_consumer(
    "ORDERS", durable_name="ONE", priority_groups=["jobs"], priority_policy="pinned_client"
)
js.unpin_consumer("ORDERS", "ONE", "jobs")  # the next client that pulls is pinned

# --- JetStream.delete_consumer
js.delete_consumer("ORDERS", "ONE")

# --- JetStream.create_push_consumer
config = ConsumerConfig(durable_name="AUDIT", deliver_subject="audit.orders", ack_policy="none")
js.create_push_consumer("ORDERS", config)

# --- JetStream.update_push_consumer
config = ConsumerConfig(durable_name="AUDIT", deliver_subject="audit.all", ack_policy="none")
js.update_push_consumer("ORDERS", config)

# --- JetStream.ordered_consumer
with js.ordered_consumer("ORDERS").messages(stop_after=10) as messages:
    for message in messages:
        print(message.metadata.stream_seq, message.data)

# --- JetStream.subscribe
with js.subscribe("ORDERS.new") as sub:
    sub.next_msg(timeout=5.0).ack()

# --- JetStream.subscribe_bind
with js.subscribe_bind("ORDERS", "AUDIT") as sub:
    print(sub.next_msg(timeout=5.0).data)

# --- JetStream.pull_subscribe
with js.pull_subscribe("ORDERS.*", "SHIPPING") as sub:
    for message in sub.fetch(2, timeout=5.0):
        message.ack()

# --- JetStream.pull_subscribe_bind
sub = js.pull_subscribe_bind("BILLING", "ORDERS")
for message in sub.fetch(5, timeout=2.0):
    message.ack()

# --- JetStream.schedule
js.create_stream(name="JOBS", subjects=["jobs.>"], allow_msg_schedules=True, allow_msg_ttl=True)
js.schedule("jobs.timer.report", target="jobs.report", cron="0 0 5 * * *", payload=b"{}")

# --- JetStream.restore_stream
with js.get_stream("ORDERS").snapshot() as snapshot, open("ORDERS.s2", "wb") as file:
    snapshot.write_to(file)
js.delete_stream("ORDERS")
with open("ORDERS.s2", "rb") as file:
    js.restore_stream(snapshot.info, file)

# --- JetStream.create_key_value
kv = js.create_key_value(bucket="CONFIG", history=5)
kv.put("color", b"blue")

# --- JetStream.key_value
kv = js.key_value("CONFIG")
print(kv.get("color").value)

# --- JetStream.update_key_value
js.update_key_value(bucket="CONFIG", history=10)  # other settings are kept

# --- JetStream.create_or_update_key_value
js.create_or_update_key_value(bucket="CONFIG", history=10, description="settings of the shop")

# --- JetStream.list_key_values
for status in js.list_key_values():
    print(status.bucket, status.values)

# --- JetStream.key_value_names
assert js.key_value_names() == ["CONFIG"]

# --- JetStream.delete_key_value
js.delete_key_value("CONFIG")

# --- JetStream.create_object_store
store = js.create_object_store(bucket="REPORTS")
store.put("january", b"all went well")

# --- JetStream.object_store
print(js.object_store("REPORTS").get_bytes("january"))

# --- JetStream.update_object_store
js.update_object_store(bucket="REPORTS", description="monthly reports")

# --- JetStream.create_or_update_object_store
js.create_or_update_object_store(bucket="REPORTS", max_bytes=10_000_000)

# --- JetStream.list_object_stores
for status in js.list_object_stores():
    print(status.bucket, status.size)

# --- JetStream.object_store_names
assert js.object_store_names() == ["REPORTS"]

# --- JetStream.delete_object_store
js.delete_object_store("REPORTS")
