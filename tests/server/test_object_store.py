"""Object stores on a real server: storing, reading, changing and listing objects."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.internals import api_of, core_of
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, run_all, wait_until, within

import jetstream_sync
from jetstream_sync import (
    JetStream,
    ObjectLink,
    ObjectMeta,
    ObjectMetaOptions,
    ObjectStore,
    ObjectStoreConfig,
    Stream,
    StreamConfig,
    errors,
)
from jetstream_sync.server import NatsServer

CHUNK = 131_072


@pytest.fixture
def store(js: JetStream) -> ObjectStore:
    """An empty object store in memory."""
    return js.create_object_store(bucket="FILES", storage="memory")


@pytest.fixture
def stream(js: JetStream, store: ObjectStore) -> Stream:
    """The stream of the store."""
    return js.get_stream(f"OBJ_{store.bucket}")


def small(name: str = "a", size: int = 10) -> ObjectMeta:
    """Return the meta of an object with small chunks."""
    return ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=size))


def messages(stream: Stream) -> int:
    """Return the number of messages in the bucket."""
    return stream.info().state.messages


# --- storing and reading ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 1_000_003])
def test_objects_of_many_sizes(store, stream, size):
    """What was put is read, in chunks of which only the last one may be shorter."""
    data = os.urandom(size)
    before = messages(stream)
    info = store.put(f"size {size}", data)
    assert (info.size, info.chunks) == (size, -(-size // CHUNK))
    digest = urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    assert info.digest == f"SHA-256={digest}"
    assert messages(stream) == before + info.chunks + 1
    assert store.get_bytes(f"size {size}") == data
    with store.open(f"size {size}") as file:
        assert file.read() == data
        assert file.read() == file.read(5) == b""


def test_small_object_is_read_without_a_consumer(nc, store):
    """Each of its few chunks is one request; a larger object has a consumer."""
    calls: list[Any] = []
    read = nc.jetstream(api_cb=calls.append).object_store(store.bucket)
    for size, needs_consumer in ((1, False), (4 * CHUNK, False), (4 * CHUNK + 1, True)):
        data = os.urandom(size)
        store.put("a", data)
        calls.clear()
        assert read.get_bytes("a") == data
        assert any("CONSUMER.CREATE" in call.subject for call in calls) == needs_consumer, size
        assert len(calls) == (2 if needs_consumer else 1 + -(-size // CHUNK))


@pytest.mark.parametrize("size", [100, 200_000])
def test_object_without_its_chunks(store, stream, size):
    """An info whose chunks are gone is an incomplete object, whatever its size."""
    info = store.put("a", b"x" * size)
    stream.purge(subject=f"$O.{store.bucket}.C.{info.nuid}")
    with within(5), pytest.raises(errors.ObjectIncompleteError, match=r"0 of \d+ chunks found"):
        store.get_bytes("a")


def test_another_stream_is_no_object_store(js):
    """A stream with the name of a store and other subjects is not an empty store."""
    js.create_stream(name="OBJ_OTHER", subjects=["other"], storage="memory")
    for call in (
        lambda: js.object_store("OTHER"),
        lambda: js.update_object_store(bucket="OTHER", description="x"),
    ):
        with pytest.raises(errors.BucketNotFoundError, match="not an object store"):
            call()
    assert js.get_stream("OBJ_OTHER").cached_info.config.description is None


def test_an_info_has_the_given_fields_and_the_results_of_the_put(store):
    """The info has the given fields and the results of the put."""
    meta = ObjectMeta(
        name="report.pdf",
        description="monthly",
        headers={"Content-Type": ["application/pdf"], "Tag": ["a", "b"]},
        metadata={"owner": "me"},
        options=ObjectMetaOptions(max_chunk_size=3),
    )
    put = store.put(meta, b"1234567")
    info = store.info("report.pdf")
    assert info.mtime is not None
    assert put.mtime is not None
    assert abs(info.mtime - put.mtime) < timedelta(seconds=60)
    assert abs(info.mtime - datetime.now(timezone.utc)) < timedelta(seconds=60)
    assert replace(info, mtime=None) == replace(put, mtime=None)
    assert (info.description, info.headers, info.metadata) == (
        meta.description,
        meta.headers,
        meta.metadata,
    )
    assert info.options == meta.options
    assert (info.bucket, info.chunks, info.deleted, info.is_link) == ("FILES", 3, False, False)


@pytest.mark.parametrize(
    "name", ["a/b/c.txt", "with spaces", "ünïcödé 🎉", ".hidden", "*.>", "x" * 1000, "\r\n\0"]
)
def test_names_may_have_any_characters(store, name):
    """A name is any text that can be encoded."""
    assert store.put(name, name.encode()).name == name
    assert store.get_bytes(name) == name.encode()
    assert name in [info.name for info in store.list()]


def test_data_of_each_kind(store, tmp_path):
    """Bytes, buffers, files, pipes and iterables of pieces are stored alike."""
    path = tmp_path / "data.bin"
    path.write_bytes(b"0123456789")
    reading, writing = os.pipe()
    os.write(writing, b"0123456789")
    os.close(writing)
    with (
        path.open("rb") as file,
        path.open("rb", buffering=0) as raw,
        os.fdopen(reading, "rb", 0) as pipe,
    ):
        cases: dict[str, Any] = {
            "bytes": b"0123456789",
            "bytearray": bytearray(b"0123456789"),
            "memoryview": memoryview(b"x0123456789")[1:],
            "wide": memoryview(b"0123456789").cast("H"),
            "file": file,
            "raw": raw,
            "pipe": pipe,
            "bytesio": io.BytesIO(b"0123456789"),
            "list": [b"0123", b"", b"456789"],
            "generator": (b"%d" % digit for digit in range(10)),
            "bytearrays": [bytearray(b"01234567"), memoryview(b"89")],
        }
        for kind, data in cases.items():
            info = store.put(small(kind, 4), data)
            assert (kind, info.size, info.chunks) == (kind, 10, 3)
            assert store.get_bytes(kind) == b"0123456789"
        assert not file.closed


def test_a_file_is_read_from_its_position(store):
    """The part before the position of a file is not stored."""
    file = io.BytesIO(b"header|body")
    file.seek(7)
    totals: list[int | None] = []
    store.put("body", file, lambda _, total: totals.append(total))
    assert store.get_bytes("body") == b"body"
    assert totals == [4]


def test_short_reads_fill_chunks(store):
    """A source that returns one byte at a time makes as few chunks as one that returns all."""

    class Trickle(io.RawIOBase):
        left = 2001

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if not self.left:
                return 0
            self.left -= 1
            buffer[0] = 120
            return 1

    assert store.put(small("trickle", 1000), Trickle()).chunks == 3
    assert store.put(small("pieces", 1000), (b"x" for _ in range(1001))).chunks == 2


class _later:  # noqa: N801 - as a function of a library for asyncio
    """What `read` of a file of another library returns: the bytes come later."""

    def __await__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    "kind", ["str", "text", "closed", "write-only", "int", "dict", "file of int", "async file"]
)
def test_data_that_is_refused(store, stream, tmp_path, kind):
    """What is not bytes is refused before anything is sent."""
    closed = io.BytesIO(b"x")
    closed.close()
    with (tmp_path / "out").open("wb") as out:
        data: dict[str, Any] = {
            "str": "text",
            "text": io.StringIO("text"),
            "closed": closed,
            "write-only": out,
            "int": 5,
            "dict": {"a": 1},
            "file of int": SimpleNamespace(read=lambda _: 5),
            "async file": SimpleNamespace(read=lambda _: _later()),
        }
        with pytest.raises(errors.InvalidOptionError, match="data="):
            store.put("a", data[kind])
    assert messages(stream) == 0


def test_limits_of_the_server(store, stream, nc):
    """Chunks and infos that no message can hold are refused before anything is sent."""
    with pytest.raises(errors.InvalidOptionError, match="max_payload"):
        store.put(small("a", nc.max_payload + 1), b"x")
    with pytest.raises(errors.InvalidOptionError, match="max_chunk_size"):
        small("a", 0)
    with pytest.raises(errors.MaxPayloadError):
        store.put(ObjectMeta(name="a", metadata={"big": "x" * nc.max_payload}), b"x")
    assert messages(stream) == 0
    assert store.put(small("a", nc.max_payload), b"x" * (nc.max_payload + 1)).chunks == 2


def test_a_server_with_a_small_max_payload():
    """The default size of a chunk is at most what the server accepts; an explicit one is refused by its name."""
    data = bytes(range(256)) * 300
    with (
        NatsServer(config="max_payload: 20000") as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        store = nc.jetstream().create_object_store(bucket="SMALL", storage="memory")
        assert store.put("a", data).chunks == 4
        assert store.get_bytes("a") == data
        with pytest.raises(errors.InvalidOptionError, match="max_chunk_size=20001"):
            store.put(small("b", 20001), data)
        assert [info.name for info in store.list()] == ["a"]


def test_progress(store):
    """Progress is reported on the calling thread once per chunk, up to the size."""
    calls: list[tuple[int, int | None]] = []
    threads: set[int] = set()

    def progress(done: int, total: int | None) -> None:
        calls.append((done, total))
        threads.add(threading.get_ident())

    store.put(small(), b"x" * 25, progress)
    assert calls == [(10, 25), (20, 25), (25, 25)]
    calls.clear()
    store.get_bytes("a", progress)
    assert calls == [(10, 25), (20, 25), (25, 25)]
    calls.clear()
    store.put(small(), iter([b"x" * 15]), progress)
    assert calls == [(10, None), (15, None)]
    assert threads == {threading.get_ident()}


def test_replacing(store, stream):
    """A second put replaces the data, and the chunks of the first are purged."""
    first = store.put(small(), b"x" * 100)
    second = store.put(small(), b"y" * 55)
    assert first.nuid != second.nuid
    assert store.get_bytes("a") == b"y" * 55
    assert messages(stream) == second.chunks + 1
    store.put("a", b"")
    assert store.get_bytes("a") == b""
    assert messages(stream) == 1


# --- failures of a put --------------------------------------------------------------------------


def test_a_reader_that_raises(store, stream):
    """An error of the source is raised, the earlier object stays, and no chunk is left."""
    store.put(small(), b"old")

    def source() -> Iterator[bytes]:
        yield b"x" * 500
        raise OSError("disk failed")

    for data in (source(), iter([b"x" * 500, "text"])):
        with pytest.raises((OSError, errors.InvalidOptionError)):
            store.put(small(), data)
        assert store.get_bytes("a") == b"old"
        assert messages(stream) == 2
    with pytest.raises(ZeroDivisionError):
        store.put(small(), b"x" * 500, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.put(small("new"), b"x" * 500, lambda *_: 1 / 0)
    assert store.get_bytes("a") == b"old"
    assert messages(stream) == 2


def test_a_full_bucket(js):
    """A put that does not fit is refused at once; nothing is left, and the earlier object stays."""
    store = js.create_object_store(bucket="FULL", storage="memory", max_bytes=100_000)
    store.put("a", b"old")
    stream = js.get_stream("OBJ_FULL")
    before = messages(stream)
    with pytest.raises(jetstream_sync.APIError) as caught:
        store.put(small("a", 10_000), b"x" * 500_000)
    assert caught.value.err_code == 10077
    assert messages(stream) == before
    assert store.get_bytes("a") == b"old"


def test_concurrent_puts_leave_one_whole_object(nats_server, store, stream):
    """After a race of puts there is one whole object, and no chunk of another one."""
    with jetstream_sync.connect(nats_server.url) as other:
        rival = other.jetstream().object_store("FILES")
        start = threading.Barrier(2)

        def write(writer: ObjectStore, letter: bytes) -> None:
            for round_ in range(50):
                start.wait(30 * SCALE)
                writer.put(small("race", 4), letter * (5 + round_ % 7))

        run_all(lambda: write(store, b"a"), lambda: write(rival, b"b"))
    info = store.info("race")
    assert store.get_bytes("race") in (b"a" * info.size, b"b" * info.size)
    assert messages(stream) == info.chunks + 1


# --- files --------------------------------------------------------------------------------------


def test_put_file_and_get_file(store, tmp_path):
    """A file is stored under its name, and written to a path, which is replaced as a whole."""
    source = tmp_path / "source.bin"
    source.write_bytes(os.urandom(300_000))
    info = store.put_file(source)
    assert (info.name, info.size) == ("source.bin", 300_000)
    assert store.put_file(str(source), "other").name == "other"
    assert store.put_file(source, small("third", 100_000)).chunks == 3
    target = tmp_path / "target.bin"
    target.write_bytes(b"longer" * 100_000)
    target.chmod(0o640)
    assert store.get_file("third", target) == store.info("third")
    assert target.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    link = tmp_path / "link"
    link.symlink_to(target)
    store.put("short", b"short")
    store.get_file("short", link)
    assert link.is_symlink()
    assert target.read_bytes() == b"short"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "source.bin", "target.bin"]


def test_get_file_that_fails(store, stream, tmp_path):
    """After an error the path is as it was, and no part of the data is left."""
    target = tmp_path / "target.bin"
    target.write_bytes(b"before")
    damage(store, stream)
    for path, error in (
        (target, errors.DigestMismatchError),
        (tmp_path / "new", errors.DigestMismatchError),
    ):
        with pytest.raises(error):
            store.get_file("a", path)
    with pytest.raises(errors.ObjectNotFoundError):
        store.get_file("missing", target)
    with pytest.raises(IsADirectoryError):
        store.get_file("a", tmp_path)
    with pytest.raises(FileNotFoundError):
        store.get_file("a", tmp_path / "missing" / "file")
    with pytest.raises(FileNotFoundError):
        store.put_file(tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["target.bin"]
    assert target.read_bytes() == b"before"


@pytest.mark.parametrize("name", ["\u65e5" * 85, "\U0001f600" * 63, "a" * 255])
def test_get_file_with_the_longest_names(store, tmp_path, name):
    """A file name may have all the 255 bytes that file systems allow, in any characters."""
    store.put("a", b"data")
    path = tmp_path / name
    store.get_file("a", path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"data")]
    path.unlink()


def test_get_file_to_a_pipe(store, tmp_path):
    """A named pipe or a device is written to; it is not replaced by a file."""
    store.put(small("a"), b"0123456789" * 10)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    store.get_file("a", pipe)
    assert pipe.is_fifo()
    reader.join(10 * SCALE)
    assert received == [b"0123456789" * 10]
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    # The open pipe of a process, such as /dev/stdout, has a name, but its link points to none.
    end, start = os.pipe()
    with os.fdopen(end, "rb") as left, os.fdopen(start, "wb"):
        store.get_file("a", f"/dev/fd/{start}")
        assert left.read(100) == b"0123456789" * 10


def test_readable_file(store, stream):
    """An object is read like a binary file, in any portions; the consumer ends with it."""
    data = bytes(range(256)) * 4
    store.put(small("a", 100), data)
    with store.open("a") as file:
        assert file.info == store.info("a")
        assert (file.readable(), file.writable(), file.seekable()) == (True, False, False)
        assert file.read(1) == data[:1]
        assert file.read(0) == b""
        assert file.read(350) == data[1:351]
        buffer = bytearray(49)
        assert file.readinto(buffer) == 49
        assert buffer == data[351:400]
        assert wait_until(stream.consumer_names)
        assert file.read() == data[400:]
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
    with store.open("a") as file:
        file.read(1)
    wait_until(lambda: stream.consumer_names() == [])
    with io.BufferedReader(store.open("a"), 64) as buffered:
        assert buffered.peek(1)[:1] == data[:1]
        assert buffered.read() == data
    text = "zeile eins\nzweite ä\n"
    store.put(small("text", 3), text.encode())
    with io.TextIOWrapper(store.open("text"), encoding="utf-8") as lines:
        assert "".join(lines) == text


def test_writable_file(store):
    """What is written becomes an object when the file is closed, and not before."""
    with store.open("a", "wb", meta=ObjectMeta(name="x", description="log")) as file:
        assert file.writable()
        assert file.write(b"hello ") == 6
        assert file.write(memoryview(b"world" * 60_000)) == 300_000
        assert file.info is None
        with pytest.raises(errors.ObjectNotFoundError):
            store.info("a")
    assert file.info is not None
    assert (file.info.size, file.info.chunks, file.info.description) == (300_006, 3, "log")
    assert store.get_bytes("a") == b"hello " + b"world" * 60_000
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    with io.TextIOWrapper(store.open("text", "wb"), encoding="utf-8") as lines:
        lines.write("ä\n")
    assert store.get_bytes("text") == "ä\n".encode()
    with (
        pytest.raises(errors.InvalidOptionError, match="must be pieces of bytes"),
        store.open("b", "wb") as out,
    ):
        out.write("text")
    assert [info.name for info in store.list()] == ["a", "text"]


@pytest.mark.parametrize("mode", ["text", "buffered", "own", "both"])
def test_an_exception_in_a_wrapper_stores_nothing(store, mode):
    """A wrapper closes the file after an exception; the object that was there stays."""
    store.put("a", b"old")
    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        if mode == "own":
            file = stack.enter_context(store.open("a", "w"))
        elif mode == "both":
            inner = stack.enter_context(store.open("a", "wb"))
            file = stack.enter_context(io.TextIOWrapper(inner))
        elif mode == "text":
            file = stack.enter_context(io.TextIOWrapper(store.open("a", "wb")))
        else:
            inner = stack.enter_context(io.BufferedWriter(store.open("a", "wb")))
            file = stack.enter_context(io.TextIOWrapper(inner))
        with file:
            file.write("half of the new data" * 10_000)
            _ = 1 / 0
    assert store.get_bytes("a") == b"old"


def test_a_file_is_closed_while_an_exception_is_handled(store):
    """An exception that is older than the file, or handled inside its block, changes nothing."""
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        with store.open("older", "w") as text:
            text.write("x")
        file = store.open("oldest", "wb")
        file.write(b"x")
        file.close()
    with store.open("inside", "wb") as file:
        file.write(b"x")
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            file.close()
    assert [info.name for info in store.list()] == ["inside", "older", "oldest"]


def test_text_files(store):
    """Text is encoded, and line ends are translated, as in the built-in `open`."""
    with store.open("a", "w", encoding="latin-1", newline="\r\n") as file:
        file.write("zeile eins\nzweite ä\n")
    assert store.get_bytes("a") == "zeile eins\r\nzweite ä\r\n".encode("latin-1")
    with store.open("a", "r", encoding="latin-1") as file:
        assert list(file) == ["zeile eins\n", "zweite ä\n"]
    with store.open("a", newline="", mode="rt", encoding="latin-1") as file:
        assert file.readline() == "zeile eins\r\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "utf-16-le"])
def test_text_files_begin_with_the_mark_of_their_encoding(store, tmp_path, encoding):
    """As those of the built-in `open`, which can seek; without the mark, the text cannot be read."""
    (tmp_path / "a").write_text("ä\nbc", encoding=encoding)
    with store.open("a", "w", encoding=encoding) as file:
        file.writelines(["ä\n", "b"])
        file.write("c")
    assert store.get_bytes("a") == (tmp_path / "a").read_bytes()
    with store.open("a", "r", encoding=encoding) as file:
        assert file.read() == "ä\nbc"
    store.open("empty", "w", encoding=encoding).close()
    assert store.get_bytes("empty") == b""


def test_lines_of_bytes(store):
    """Lines are read across chunks, also long ones."""
    lines = [b"%d" % number * (number % 700) + b"\n" for number in range(2000)]
    store.put(small("a", 1000), b"".join(lines))
    with store.open("a") as file:
        seen = file.peek(1)
        assert b"".join(lines).startswith(seen)
        assert len(seen) > 500, "readline() asks for one byte, and needs more"
        assert list(file) == lines
        assert file.peek() == b""


def test_a_file_has_one_direction(store):
    """To write a file that is read, and the reverse, is not supported."""
    with store.open("a", "wb") as file:
        for call in (file.read, file.readall, file.readline):
            with pytest.raises(io.UnsupportedOperation):
                call()
    with store.open("a") as reader, pytest.raises(io.UnsupportedOperation):
        reader.write(b"x")


def test_writable_file_that_fails(store, stream):
    """An exception in the block, `discard()` and a file that was never closed leave nothing."""
    store.put(small(), b"old")
    with pytest.raises(ZeroDivisionError), store.open("a", "wb", meta=small()) as file:
        file.write(b"x" * 1000)
        _ = 1 / 0
    file = store.open("a", "wb", meta=small())
    file.write(b"x" * 1000)
    file.discard()
    file.discard()
    file = store.open("a", "wb", meta=small())
    file.write(b"x" * 1000)
    del file
    wait_until(lambda: messages(stream) == 2)
    assert store.get_bytes("a") == b"old"


def test_a_collected_file_takes_no_lock(store, stream):
    """A thread that drops a file while it holds a lock of the connection continues."""
    files = [store.open("a", "wb", meta=small())]
    files[0].write(b"x" * 1000)
    wait_until(lambda: messages(stream))

    def drop() -> None:
        with core_of(store).writer._lock:
            files.clear()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(5 * SCALE)
    assert not thread.is_alive()
    wait_until(lambda: messages(stream) == 0)


def test_modes_of_open(store):
    """Another mode is refused, and so is a meta to read."""
    with pytest.raises(errors.InvalidOptionError, match="mode"):
        store.open("a", "r+")
    with pytest.raises(errors.InvalidOptionError, match="meta"):
        store.open("a", meta=ObjectMeta(name="a"))
    with pytest.raises(errors.InvalidOptionError, match="meta="):
        store.put(5, b"1")
    with pytest.raises(errors.ObjectNotFoundError):
        store.open("a")


# --- damage -------------------------------------------------------------------------------------


def damage(store: ObjectStore, stream: Stream) -> None:
    """Put an object, and replace its second chunk by another one of the same size."""
    info = store.put(small("a", 10), b"0123456789" * 3)
    subject = f"$O.FILES.C.{info.nuid}"
    stream.purge(subject)
    with RawClient(core_of(store).address.port) as raw:
        for data in (b"0123456789", b"012345678X", b"0123456789"):
            raw.request(subject, data)


@pytest.mark.parametrize("read", ["get_bytes", "open"])
def test_changed_bytes(store, stream, read):
    """Data that does not have the digest is an error, and its last chunk is not returned."""
    damage(store, stream)
    found: list[bytes] = []
    with pytest.raises(errors.DigestMismatchError) as caught:
        if read == "get_bytes":
            store.get_bytes("a")
        else:
            with store.open("a") as file:
                found.extend(iter(lambda: file.read(10), b""))
    assert caught.value.expected == store.info("a").digest
    assert len(found) <= 2
    wait_until(lambda: stream.consumer_names() == [])


def test_a_replica_that_is_behind(nats_server, js, store, stream):
    """Chunks that the leader has are not missing, although the consumer's replica has none yet."""
    data = b"x" * 10 + b"y" * 10
    subject = f"$O.FILES.C.{store.put(small(), data).nuid}"
    stream.purge(subject)
    chunks = [data[:10], data[10:]]
    with (
        jetstream_sync.connect(nats_server.url) as leader,
        jetstream_sync.connect(nats_server.url) as nc,
    ):

        def forward(msg: jetstream_sync.Msg) -> None:
            # As if the consumer's replica receives a chunk just after the leader is asked for it.
            if b"next_by_subj" in msg.data:
                js.publish(subject, chunks.pop(0))
            leader.publish(msg.subject.replace("BEHIND", "$JS.API", 1), msg.data, msg.reply)

        forwarding = leader.subscribe("BEHIND.>", cb=forward)
        leader.flush()
        behind = nc.jetstream(prefix="BEHIND").object_store("FILES")
        assert behind.get_bytes("a") == data
        forwarding.unsubscribe()


@pytest.mark.parametrize("position", [0, 1, 2, "all", "extra"])
def test_missing_chunks(store, stream, position):
    """A missing or additional chunk is an error at once."""
    info = store.put(small("a", 10), b"x" * 30)
    first = stream.info().state.first_seq
    if position == "all":
        stream.purge(f"$O.FILES.C.{info.nuid}")
    elif position == "extra":
        stream.delete_msg(first)
        with RawClient(core_of(store).address.port) as raw:
            raw.request(f"$O.FILES.C.{info.nuid}", b"longer than that")
    else:
        stream.delete_msg(first + int(position))
    began = datetime.now(timezone.utc)
    with pytest.raises(errors.ObjectIncompleteError, match="chunks"):
        store.get_bytes("a", timeout=60)
    assert datetime.now(timezone.utc) - began < timedelta(seconds=5 * SCALE)


@pytest.mark.parametrize("change", ["put", "delete", "purge"])
def test_chunks_that_disappear_while_being_read(store, stream, change):
    """The reader fails without a timeout; the error says whether the object was replaced."""
    info = store.put(small("a", 100_000), b"x" * 20_000_000)
    with store.open("a", timeout=60) as file:
        file.read(1)
        if change == "put":
            store.put("a", b"new")
        elif change == "delete":
            store.delete("a")
        else:
            stream.purge(f"$O.FILES.C.{info.nuid}")
        error = errors.ObjectIncompleteError if change == "purge" else errors.ObjectReplacedError
        with within(5), pytest.raises(error):
            file.read()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"digest": "MD5=AAAA"}, errors.UnsupportedDigestError),
        ({"digest": None}, errors.UnsupportedDigestError),
        ({"digest": "SHA-256=%%%"}, errors.UnsupportedDigestError),
        ({"nuid": ">"}, jetstream_sync.InvalidResponseError),
        ({"size": 4}, errors.ObjectIncompleteError),
        ({"chunks": 2}, errors.ObjectIncompleteError),
        ({"chunks": "many"}, jetstream_sync.InvalidResponseError),
    ],
)
def test_infos_of_other_programs(store, changes, error):
    """An info that is not valid is an error; it is never used as a subject."""
    store.put("a", b"hello")
    store.put("b", b"stays")
    rewrite(store, "a", **changes)
    with pytest.raises(error):
        store.get_bytes("a")
    assert store.get_bytes("b") == b"stays"


@pytest.mark.parametrize("name", ["other", "", None, 5])
def test_an_info_with_another_name(store, stream, name):
    """The subject of an info names the object, whatever name the info has."""
    store.put("a", b"hello")
    rewrite(store, "a", name=name)
    assert store.get_bytes("a") == b"hello"
    assert store.info("a").name == "a"
    store.delete("a", timeout=2)
    store.put("b", b"")
    assert messages(stream) == 2  # the marker of "a" and the info of "b"


def test_digests_in_other_forms(store):
    """The name of the algorithm in lower case and a digest without padding are accepted."""
    digest = store.put("a", b"hello").digest
    assert digest is not None
    for other in (digest.replace("SHA", "sha"), digest.rstrip("=")):
        assert other != digest
        rewrite(store, "a", digest=other)
        assert store.get_bytes("a") == b"hello"


def rewrite(store: ObjectStore, name: str, /, **changes: Any) -> None:
    """Change fields in the stored info of an object."""
    from jetstream_sync.codec import dumps, loads

    js = JetStream(api_of(store), store._publisher)
    subject = f"$O.FILES.M.{urlsafe_b64encode(name.encode()).decode()}"
    data = loads(js.get_stream("OBJ_FILES").get_msg(last_by_subject=subject).data)
    js.publish(subject, dumps({**data, **changes}), headers={"Nats-Rollup": "sub"})


# --- deleting and changing ----------------------------------------------------------------------


def test_delete(store, stream):
    """A deleted object has no data; its info stays and says so."""
    store.put(small(), b"x" * 100)
    store.delete("a")
    assert messages(stream) == 1
    for call in (store.get_bytes, store.info, store.open):
        with pytest.raises(errors.ObjectDeletedError) as caught:
            call("a")
        assert (caught.value.bucket, caught.value.name) == ("FILES", "a")
    info = store.info("a", deleted=True)
    assert (info.deleted, info.size, info.chunks, info.digest) == (True, 0, 0, None)
    store.delete("a")
    with pytest.raises(errors.ObjectNotFoundError):
        store.delete("missing")
    store.put("a", b"again")
    assert store.get_bytes("a") == b"again"


def test_update_meta(store):
    """Description, headers and metadata change; data, options and unknown fields stay."""
    store.put(small(), b"x" * 30)
    rewrite(store, "a", future_field=7)
    before = store.info("a")
    store.update_meta("a", ObjectMeta(name="a", description="new", headers={"A": ["b"]}))
    info = store.info("a")
    assert (info.description, info.headers, info.metadata) == ("new", {"A": ["b"]}, None)
    assert (info.nuid, info.options, info.size) == (before.nuid, before.options, 30)
    assert info.extra["future_field"] == 7
    store.update_meta("a", replace(info, metadata={"k": "v"}))
    assert store.info("a").metadata == {"k": "v"}
    assert store.get_bytes("a") == b"x" * 30
    with pytest.raises(errors.ObjectNotFoundError):
        store.update_meta("missing", ObjectMeta(name="missing"))
    store.delete("a")
    with pytest.raises(errors.ObjectDeletedError):
        store.update_meta("a", ObjectMeta(name="a"))


def test_rename(store):
    """A renamed object keeps its data; a taken name is refused, and a deleted one is not."""
    store.put(small("a"), b"x" * 30)
    store.put("taken", b"y")
    store.put("gone", b"z")
    store.delete("gone")
    with pytest.raises(errors.ObjectExistsError):
        store.update_meta("a", ObjectMeta(name="taken"))
    assert store.get_bytes("a") == b"x" * 30
    info = store.update_meta("a", ObjectMeta(name="b"))
    assert info.name == "b"
    with pytest.raises(errors.ObjectNotFoundError):
        store.info("a", deleted=True)
    assert store.get_bytes("b") == b"x" * 30
    store.update_meta("b", ObjectMeta(name="gone"))
    assert store.get_bytes("gone") == b"x" * 30
    assert [item.name for item in store.list(deleted=True)] == ["gone", "taken"]
    store.put("a", b"new")
    assert store.get_bytes("gone") == b"x" * 30


def test_an_interrupted_rename_is_finished_by_another(js, store, monkeypatch):
    """The second call removes the info under the old name, and keeps the data of both."""
    store.put(small("a"), b"x" * 30)
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "_remove_old", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            store.update_meta("a", ObjectMeta(name="b"))
    assert [item.name for item in store.list()] == ["a", "b"]
    assert store.update_meta("a", ObjectMeta(name="b", description="new")).name == "b"
    assert [(item.name, item.description) for item in store.list()] == [("b", "new")]
    assert js.object_store(store.bucket).get_bytes("b") == b"x" * 30


@pytest.mark.parametrize("change", ["put", "delete", "update"])
def test_rename_races_with_another_writer(store, monkeypatch, change):
    """A rename never leaves an object without its chunks, whatever happens to the old name meanwhile."""
    store.put(small("a"), b"x" * 30)
    original = ObjectStore._remove_old

    def meanwhile(self: ObjectStore, *args: Any) -> None:
        if change == "put":
            store.put(small("a"), b"newer")
        elif change == "delete":
            store.delete("a")
        else:
            monkeypatch.setattr(ObjectStore, "_remove_old", original)
            store.update_meta("a", ObjectMeta(name="a", description="d"))
        original(self, *args)

    monkeypatch.setattr(ObjectStore, "_remove_old", meanwhile)
    if change == "update":
        store.update_meta("a", ObjectMeta(name="b"))
        assert store.get_bytes("b") == b"x" * 30
        assert [info.name for info in store.list(deleted=True)] == ["b"]
        return
    with pytest.raises(errors.ObjectReplacedError):
        store.update_meta("a", ObjectMeta(name="b"))
    with pytest.raises(errors.ObjectNotFoundError):
        store.info("b", deleted=True)
    if change == "put":
        assert store.get_bytes("a") == b"newer"


# --- links --------------------------------------------------------------------------------------


def test_links(js, store):
    """Reading a link reads its target, also in another bucket; its own info stays a link."""
    other = js.create_object_store(bucket="OTHER", storage="memory")
    near, far = store.put("near", b"near"), other.put("far", b"far")
    link = store.add_link("to near", near)
    assert (link.is_link, link.link) == (True, ObjectLink(bucket="FILES", name="near"))
    assert store.info("to near").link == ObjectLink(bucket="FILES", name="near")
    store.add_link(ObjectMeta(name="to far", description="there"), far)
    assert store.info("to far").description == "there"
    assert store.get_bytes("to near") == b"near"
    assert store.get_bytes("to far") == b"far"
    with store.open("to far") as file:
        assert (file.info.bucket, file.info.name) == ("OTHER", "far")
    other.put("far", b"changed")
    assert store.get_bytes("to far") == b"changed"
    store.delete("to far")
    assert other.get_bytes("far") == b"changed"
    other.delete("far")
    store.add_link("to far", far)
    with pytest.raises(errors.ObjectDeletedError):
        store.get_bytes("to far")


def test_links_that_are_refused(store):
    """A link to a deleted object, to a link, over an object, and a put with a link are errors."""
    a = store.put("a", b"a")
    link = store.add_link("link", a)
    store.add_link("link", a)  # over a link
    with pytest.raises(errors.ObjectLinkError):
        store.add_link("chain", link)
    with pytest.raises(errors.ObjectExistsError):
        store.add_link("a", store.put("b", b"b"))
    assert store.get_bytes("a") == b"a"
    store.delete("b")
    with pytest.raises(errors.ObjectLinkError):
        store.add_link("to b", store.info("b", deleted=True))
    store.add_link("b", a)  # over a deleted object
    assert store.get_bytes("b") == b"a"
    with pytest.raises(errors.ObjectLinkError):
        store.put(ObjectMeta(name="c", options=link.options), b"c")
    with pytest.raises(errors.InvalidOptionError):
        store.add_link("c", "a")
    with pytest.raises(errors.InvalidOptionError):
        store.add_bucket_link("c", "FILES")


def test_links_that_cannot_be_followed(store):
    """Links to buckets, loops and long chains are errors."""
    assert store.add_bucket_link("bucket", store).link == ObjectLink(bucket="FILES")
    with pytest.raises(errors.ObjectLinkError, match="bucket"):
        store.get_bytes("bucket")
    end = store.put("end", b"end")
    store.add_link("one", end)
    store.add_link("two", end)
    rewrite(store, "one", options={"link": {"bucket": "FILES", "name": "two"}})
    assert store.get_bytes("one") == b"end"
    rewrite(store, "two", options={"link": {"bucket": "FILES", "name": "one"}})
    with pytest.raises(errors.ObjectLinkError, match="loop"):
        store.get_bytes("one")
    for number in range(10):
        store.add_link(f"l{number}", end)
        rewrite(
            store, f"l{number}", options={"link": {"bucket": "FILES", "name": f"l{number + 1}"}}
        )
    with pytest.raises(errors.ObjectLinkError, match="more than 8"):
        store.get_bytes("l0")
    for bucket, name in (("a.b", "end"), ("", "end"), ("*", "end"), ("FILES", "")):
        rewrite(store, "one", options={"link": {"bucket": bucket, "name": name}})
        with pytest.raises(errors.ObjectLinkError, match="must"):
            store.get_bytes("one")


# --- listing, watching, the bucket ---------------------------------------------------------------


def test_list(js, store):
    """All objects and links are listed by name, deleted ones on request; none is an empty list."""
    assert store.list() == []
    for name in ("c", "a", "b"):
        store.put(name, b"")
    store.delete("b")
    assert [info.name for info in store.list()] == ["a", "c"]
    assert [(info.name, info.deleted) for info in store.list(deleted=True)] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
    assert store.list()[0] == store.info("a")
    store.delete("a")
    store.delete("c")
    assert store.list() == []
    wait_until(lambda: js.get_stream("OBJ_FILES").consumer_names() == [])


def test_a_list_has_each_object_once(js, store):
    """The last info counts of an object that is replaced or deleted while the list is read."""
    names = [f"object-{number}" for number in range(50)]
    for name in names:
        store.put(name, b"x")
    ended = threading.Event()

    def change() -> None:
        other = js.object_store(store.bucket)
        while not ended.is_set():
            for name in names:
                other.put(name, b"y")
            other.put("passing", b"z")
            other.delete("passing")

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(40):
            found = [info.name for info in store.list()]
            assert sorted({*found, "passing"}) == [*sorted(names), "passing"]
            assert len(set(found)) == len(found)
    finally:
        ended.set()
        writer.join()


def test_watch(store):
    """A watch yields the infos that exist, and then every change."""
    store.put("a", b"1")
    store.put("b", b"2")
    store.delete("b")
    with store.watch() as watch:
        assert [(info.name, info.deleted) for info in watch.initial()] == [
            ("a", False),
            ("b", True),
        ]
        assert watch.is_current
        store.put("c", b"333")
        info = watch.next(10 * SCALE)
        assert (info.name, info.size) == ("c", 3)
        store.delete("a")
        assert watch.next(10 * SCALE).deleted
    with pytest.raises(errors.IteratorClosedError):
        watch.next(1)
    with store.watch(ignore_deletes=True) as watch:
        assert [info.name for info in watch.initial()] == ["c"]
    with store.watch(updates_only=True) as watch:
        assert list(watch.initial()) == []
        store.put("d", b"")
        assert watch.next(10 * SCALE).name == "d"


def test_a_watch_reports_and_skips_other_messages(nats_server, js):
    """A message of another program is reported, and the watch continues."""
    reported: list[BaseException] = []
    with jetstream_sync.connect(nats_server.url, error_cb=reported.append) as nc:
        store = nc.jetstream().create_object_store(bucket="FILES", storage="memory")
        js.publish("$O.FILES.M.YQ==", b"no info")
        store.put("b", b"")
        with store.watch() as watch:
            assert watch.next(5).name == "b"
        wait_until(lambda: reported)


def test_a_list_names_the_objects_that_it_cannot_read(store, js, caplog):
    """They are neither left out in silence, nor are their chunks orphans."""
    first, second = store.put("a", b"1"), store.put("b", b"2")
    subject = f"$O.{store.bucket}.M."
    js.publish(f"{subject}YQ==", b'{"nuid": "' + first.nuid.encode() + b'", "newer": 1}')
    found = store.list(allow_incomplete=True)
    assert [info.name for info in found] == ["b"]
    assert list(found.missing) == ["a"]
    with pytest.raises(errors.IncompleteListingError, match="'a'"):
        list(store.list())
    with pytest.raises(errors.IncompleteListingError):
        store.purge_orphans(older_than=0)
    store.delete("b")
    with pytest.raises(errors.IncompleteListingError):
        assert not store.list()
    stream = js.get_stream(f"OBJ_{store.bucket}")
    chunks = stream.info(subjects_filter=f"$O.{store.bucket}.C.>").state.subjects
    assert list(chunks) == [f"$O.{store.bucket}.C.{first.nuid}"]
    assert second.nuid != first.nuid
    store.put("a", b"3")  # it is readable again
    assert [info.name for info in store.list()] == ["a"]
    assert caplog.text == ""


def test_seal(store, caplog):
    """A sealed bucket can be read, refuses every change at once, and leaves no chunks to warn of."""
    info = store.put("a", b"x")
    store.put("deleted", b"x")
    store.delete("deleted")
    assert not store.status().sealed
    store.seal()
    assert store.status().sealed
    assert store.get_bytes("a") == b"x"
    changes: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("b", b"x"),
        "put nothing": lambda: store.put("b", b""),
        "replace": lambda: store.put("a", b"y"),
        "delete": lambda: store.delete("a"),
        "update": lambda: store.update_meta("a", ObjectMeta(name="a", description="d")),
        "rename": lambda: store.update_meta("a", ObjectMeta(name="b")),
        "link": lambda: store.add_link("b", info),
    }
    for name, change in changes.items():
        with pytest.raises(errors.ObjectStoreSealedError):
            change()
            pytest.fail(name)
    store.seal()
    assert [item.name for item in store.list()] == ["a"]
    assert not caplog.records


def test_a_missing_bucket(js, store):
    """Every call on a deleted bucket raises its error."""
    info = store.put("a", b"x")
    js.delete_object_store("FILES")
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("a", b"x"),
        "get": lambda: store.get_bytes("a"),
        "info": lambda: store.info("a"),
        "list": store.list,
        "watch": store.watch,
        "delete": lambda: store.delete("a"),
        "link": lambda: store.add_link("b", info),
        "status": store.status,
        "seal": store.seal,
        "open": lambda: js.object_store("FILES"),
        "update": lambda: js.update_object_store(bucket="FILES"),
        "remove": lambda: js.delete_object_store("FILES"),
    }
    for name, call in calls.items():
        with pytest.raises(errors.BucketNotFoundError, match="FILES"):
            call()
            pytest.fail(name)


def test_buckets(js):
    """Buckets are created, listed, updated and deleted; other streams are not listed."""
    assert js.object_store_names() == []
    assert js.list_object_stores() == []
    js.create_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
    js.create_stream(StreamConfig(name="OTHER", subjects=["$O.OTHER.C.>"]))
    config = ObjectStoreConfig(
        bucket="B",
        description="files",
        ttl=3600,
        max_bytes=10_000_000,
        storage="file",
        compression=True,
        metadata={"team": "a"},
    )
    js.create_object_store(config)
    js.create_object_store(bucket="A")
    assert js.object_store_names() == ["A", "B"]
    first, status = js.list_object_stores()
    assert (first.bucket, first.ttl, first.max_bytes) == ("A", None, None)
    assert not first.is_compressed
    assert (status.bucket, status.description, status.storage) == ("B", "files", "file")
    assert (status.ttl, status.max_bytes) == (timedelta(hours=1), 10_000_000)
    assert (status.is_compressed, status.sealed, status.size) == (True, False, 0)
    assert status.metadata is not None
    assert status.metadata["team"] == "a"
    js.create_object_store(config)
    with pytest.raises(errors.BucketExistsError, match="differs in storage"):
        js.create_object_store(replace(config, storage="memory"))
    js.object_store("B").put("a", b"x")
    js.update_object_store(replace(config, description="new", compression=False))
    status = js.object_store("B").status()
    assert (status.description, status.is_compressed) == ("new", False)
    js.create_or_update_object_store(bucket="B", ttl=0, max_bytes=-1)
    status = js.object_store("B").status()
    assert (status.ttl, status.max_bytes, status.description) == (None, None, "new")
    js.create_or_update_object_store(bucket="C")
    assert js.object_store("B").get_bytes("a") == b"x"
    js.delete_object_store("A")
    assert js.object_store_names() == ["B", "C"]


@pytest.mark.parametrize("kind", ["key-value bucket", "object store"])
def test_a_stream_that_is_no_bucket_is_not_deleted(js, kind):
    """Another program may have a stream with such a name; its messages stay."""
    is_store = kind == "object store"
    name = f"{'OBJ' if is_store else 'KV'}_OTHER"
    js.create_stream(name=name, subjects=["other"])
    js.publish("other", b"kept")
    with pytest.raises(errors.BucketNotFoundError, match=f"is not an? {kind}"):
        (js.delete_object_store if is_store else js.delete_key_value)("OTHER")
    assert js.get_stream(name).info().state.messages == 1
