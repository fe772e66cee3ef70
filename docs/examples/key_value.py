import jetstream_sync

nc = jetstream_sync.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
kv = js.create_key_value(bucket="CONFIG", history=5, limit_marker_ttl=3600)

# --- KeyValue.put
revision = kv.put("color", b"blue")
kv["color"] = b"green"  # the same

# --- KeyValue.get
entry = kv.get("color")
print(entry.value, entry.revision, entry.created)

# --- KeyValue.value
assert kv.value("color") == b"green"
assert kv.value("size", b"10") == b"10"

# --- KeyValue.create
from jetstream_sync.errors import KeyExistsError

try:
    kv.create("lock", b"host-1", ttl=600)
except KeyExistsError:
    print("another host has it")

# --- KeyValue.update
entry = kv.get("color")
kv.update("color", b"red", last=entry.revision)  # fails if another client was faster

# --- KeyValue.modify
kv.modify("visits", lambda entry: b"%d" % (int(entry.value) + 1 if entry else 1))

# --- KeyValue.get_many
for entry in kv.get_many(["color", "visits"]):
    print(entry)

# --- KeyValue.keys
kv.put("db.url", b"postgres://db")
assert kv.keys("db.*") == ["db.url"]

# --- KeyValue.iter_keys
for key in kv.iter_keys():  # without a list of all keys in memory
    print(key)

# --- KeyValue.history
for entry in kv.history("color"):
    print(entry.revision, entry.operation, entry.value)

# --- KeyValue.delete
revision = kv.create("job", b"host-1")
kv.delete("job", last=revision)  # only the own lock

# --- KeyValue.purge
kv.purge("color")  # deletes the history, too

# --- KeyValue.purge_deletes
kv.purge_deletes(older_than=1800)  # keeps the markers of the last half hour

# --- KeyValue.status
print(kv.status().values, "values with history")

# --- KeyValue.with_codecs
from jetstream_sync import Base64Keys

names = kv.with_codecs(key=Base64Keys())
names.put("any name, such as ä b", b"1")

# --- KeyValue.watch
with kv.watch("db.>") as watch:
    for entry in watch.initial():
        print("is", entry.key, entry.value)
    kv.put("db.url", b"postgres://new")
    print("changed", watch.next(timeout=5.0).value)

# --- KeyValue.lock
with kv.lock("nightly", ttl=30, timeout=60) as lock:
    print("only one program at a time gets here; fencing token:", lock.token)

# --- Lock.check
with kv.lock("nightly") as lock:
    lock.check()  # raises LockLostError if another program may have the lock

# --- Lock.acquire
lock = kv.lock("leader", ttl=10)
if lock.acquire(timeout=5.0):
    print("this program leads")

# --- Lock.wait_lost
while lock.wait_lost(timeout=0.1):  # returns at once when the lock is lost
    print("another program may lead now")

# --- Lock.release
lock.release()

# --- KeyValue.replica
with kv.replica("db.>") as replica:
    replica.wait_current(timeout=5.0)
    print(replica["db.url"])  # from memory, without a request

# --- Replica.wait_for
with kv.replica() as replica:
    replica.wait_for(kv.put("color", b"green"), timeout=5.0)
    assert replica["color"] == b"green"

# --- Replica.entry
with kv.replica() as replica:
    replica.wait_current(timeout=5.0)
    entry = replica.entry("color")
    print(entry.revision if entry else "no value")

# --- Replica.wait_current
with kv.replica("db.>") as replica:
    replica.wait_current(timeout=5.0)  # before it, values may be missing

# --- Watch.initial
with kv.watch("db.>") as watch:
    settings = {entry.key: entry.value for entry in watch.initial(timeout=5.0)}

# --- Watch.next
with kv.watch("db.>") as watch:
    entry = watch.next(timeout=5.0)

# --- Watch.wait_current
with kv.watch("color", updates_only=True) as watch:
    watch.wait_current(timeout=5.0)  # changes from here on are reported

# --- Watch.stop
watch = kv.watch()
watch.stop()  # a loop over it ends

# --- WatchHandle.wait_current
cache: dict[str, bytes] = {}
handle = kv.watch("db.>", cb=lambda entry: cache.update({entry.key: entry.value}))
handle.wait_current(timeout=5.0)
assert cache["db.url"] == b"postgres://new"

# --- WatchHandle.drain
handle.drain(timeout=5.0)

# --- WatchHandle.wait_closed
handle.wait_closed(timeout=5.0)

# --- WatchHandle.stop
handle = kv.watch(cb=print)
handle.stop()
