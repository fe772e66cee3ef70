from pathlib import Path

import jetstream_sync
from jetstream_sync import ObjectMeta

nc = jetstream_sync.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
store = js.create_object_store(bucket="REPORTS")
other = js.create_object_store(bucket="ARCHIVE")
Path("january.csv").write_bytes(b"2024-01-01;42.00\n" * 1000)

# --- ObjectStore.put
info = store.put("notes", b"all went well")
store.put(ObjectMeta(name="lines", description="draft"), (b"line %d\n" % n for n in range(9)))

# --- ObjectStore.put_file
info = store.put_file("january.csv")
print(info.name, info.size, info.digest)

# --- ObjectStore.get_bytes
assert store.get_bytes("notes") == b"all went well"

# --- ObjectStore.get_file
store.get_file("january.csv", "copy.csv")  # appears when its digest is checked

# --- ObjectStore.open
with store.open("summary", "w") as file:
    file.write("total: 42\n")
with store.open("summary", "r") as file:
    print(file.readline())

# --- ObjectStore.info
info = store.info("january.csv")
print(info.size, info.mtime)

# --- ObjectStore.list
for info in store.list():
    print(info.name, info.size)

# --- ObjectStore.update_meta
store.update_meta("notes", ObjectMeta(name="notes.txt", description="renamed"))

# --- ObjectStore.add_link
store.add_link("latest", store.info("january.csv"))
assert store.get_bytes("latest") == store.get_bytes("january.csv")

# --- ObjectStore.add_bucket_link
store.add_bucket_link("archive", other)

# --- ObjectStore.watch
with store.watch(ignore_deletes=True) as watch:
    names = [info.name for info in watch.initial()]
    store.put("february", b"1")
    assert watch.next(timeout=5.0).name == "february"

# --- ObjectStore.delete
store.delete("february")

# --- ObjectStore.purge_orphans
store.purge_orphans(older_than=86400)  # chunks of programs that were killed a day ago

# --- ObjectStore.status
print(store.status().size, "bytes")

# --- ObjectReader.read
with store.open("january.csv") as reader:
    first = reader.read(16)

# --- ObjectReader.readinto
buffer = bytearray(1024)
with store.open("january.csv") as reader:
    count = reader.readinto(buffer)

# --- ObjectWriter.write
with store.open("log", "wb") as writer:
    for number in range(3):
        writer.write(b"line %d\n" % number)

# --- ObjectWriter.discard
writer = store.open("unfinished", "wb")
writer.write(b"half")
writer.discard()  # nothing is stored

# --- ObjectStore.seal
store.seal()  # read-only from now on
