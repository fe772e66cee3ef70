"""Object stores as a filesystem of fsspec."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest

from jetstream_sync import JetStream, ObjectStore, shared_connection
from jetstream_sync.filesystem import JetStreamFileSystem
from jetstream_sync.server import NatsServer


@pytest.fixture
def store(js: JetStream) -> ObjectStore:
    """A store with three objects."""
    store = js.create_object_store(bucket="DATA", storage="memory")
    for name in ("a.txt", "year/01.txt", "year/02/x.txt"):
        store.put(name, name.encode())
    return store


@pytest.fixture
def fs(nats_server: NatsServer, store: ObjectStore) -> Iterator[JetStreamFileSystem]:  # noqa: ARG001
    """The filesystem, as others find it by its protocol."""
    fs = fsspec.filesystem("jetstream", servers=nats_server.url)
    assert isinstance(fs, JetStreamFileSystem)
    yield fs
    shared_connection(nats_server.url).close()


def test_directories(fs):
    """Stores are directories, and so is what comes before a slash in a name."""
    assert fs.ls("", detail=False) == ["DATA"]
    assert sorted(fs.ls("jetstream://DATA", detail=False)) == ["DATA/a.txt", "DATA/year"]
    assert sorted(fs.ls("DATA/year/", detail=False)) == ["DATA/year/01.txt", "DATA/year/02"]
    assert sorted(fs.find("DATA")) == ["DATA/a.txt", "DATA/year/01.txt", "DATA/year/02/x.txt"]
    assert fs.glob("DATA/**/*.txt") == fs.find("DATA")
    assert fs.isdir("DATA/year")
    assert fs.isfile("DATA/a.txt")
    assert fs.info("DATA/a.txt")["size"] == 5
    assert fs.exists("DATA/none") is False
    for path in ("NONE", "DATA/none", "NONE/a"):
        with pytest.raises(FileNotFoundError):
            fs.info(path)
    with pytest.raises(FileNotFoundError):
        fs.ls("DATA/none/")


def test_files(fs, store):
    """They are read as a whole and seekable; a written one appears when it is closed."""
    with fs.open("DATA/a.txt", "rb") as file:
        assert file.seek(2) == 2
        assert file.read() == b"txt"
        file.seek(0)
        assert file.read(1) == b"a"
    with fs.open("DATA/new.txt", "wb") as file:
        file.write(b"12")
        file.write(b"3" * 300_000)
        assert not fs.exists("DATA/new.txt")
    assert store.get_bytes("new.txt") == b"12" + b"3" * 300_000
    with fsspec.open("jetstream://DATA/a.txt", "rt", **fs.storage_options) as text:
        assert text.read() == "a.txt"
    fs.copy("DATA/a.txt", "DATA/year/b.txt")
    assert fs.cat("DATA/year/b.txt") == b"a.txt"
    fs.rm("DATA/year", recursive=True)
    assert fs.find("DATA") == ["DATA/a.txt", "DATA/new.txt"]
    with pytest.raises(FileNotFoundError):
        fs.open("DATA/none", "rb")
    with pytest.raises(NotImplementedError):
        fs.open("DATA/a.txt", "ab")


def test_a_file_whose_block_raises_is_not_stored(fs):
    """Half of an object never appears."""
    with pytest.raises(ZeroDivisionError), fs.open("DATA/half", "wb") as file:
        file.write(b"1" * 200_000)
        raise ZeroDivisionError
    assert not fs.exists("DATA/half")


def test_stores_are_made_like_directories(fs, js):
    """A path in a store needs none."""
    fs.makedirs("NEW/sub")
    fs.makedirs("NEW")
    fs.pipe("NEW/sub/a", b"1")
    assert js.object_store("NEW").get_bytes("sub/a") == b"1"
