import jetstream_sync
from jetstream_sync import SubjectTransform

nc = jetstream_sync.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
js.create_stream(name="ORDERS", subjects=["orders.*"])
js.create_stream(
    name="EVENTS",
    subjects=["events.*"],
    subject_transform=SubjectTransform(src="events.*", dest="{{partition(2,1)}}.events.{{wildcard(1)}}"),
)

# --- ConsumerGroups.create_static
group = js.consumer_groups.create_static("EVENTS", "audit", 2, ["a", "b"])
print(group.consumer_stream_name, group.consumer_name("a"))  # EVENTS audit-a

# --- ConsumerGroups.create_elastic
group = js.consumer_groups.create_elastic("ORDERS", "billing", 4, {"orders.*": [1]})

# --- ConsumerGroups.get
group = js.consumer_groups.get("ORDERS", "billing")

# --- ConsumerGroups.list
for item in js.consumer_groups.list("ORDERS"):
    print(item.name, item.config().max_members)

# --- ElasticConsumerGroup.add_members
assert group.add_members("a", "b", "c") == ["a", "b", "c"]

# --- ElasticConsumerGroup.drop_members
assert group.drop_members("c") == ["a", "b"]

# --- ElasticConsumerGroup.set_mappings
group.set_mappings({"a": [0], "b": [1, 2, 3]})

# --- ConsumerGroup.partitions
assert group.partitions() == {"a": [0], "b": [1, 2, 3]}

# --- ConsumerGroup.config
print(group.config().max_members, "partitions")

# --- ConsumerGroup.consume
handle = group.consume("b", lambda message: message.ack(), ack_wait=30.0)
print(handle.partitions)

# --- ConsumerGroup.active_members
print(group.active_members())

# --- ConsumerGroup.absent_members
print(group.absent_members())  # a member whose program does not run

# --- GroupConsumeHandle.drain
handle.drain()  # the callback handles the messages that have arrived

# --- GroupConsumeHandle.wait_closed
handle.wait_closed(timeout=10.0)

# --- GroupConsumeHandle.stop
handle = group.consume("b", lambda message: message.ack())
handle.stop()  # messages in the buffer are delivered again after ack_wait

# --- ConsumerGroup.step_down
handle = js.consumer_groups.get("EVENTS", "audit").consume("a", lambda message: message.ack())
js.consumer_groups.get("EVENTS", "audit").step_down("a")
handle.stop()

# --- ConsumerGroup.delete
group.delete()
