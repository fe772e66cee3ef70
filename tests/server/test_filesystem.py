"""Object stores as a filesystem of fsspec."""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import pytest
from fixtures.exact import as_member, as_subclass
from fixtures.server import paused
from fsspec.generic import rsync
from fsspec.implementations.local import LocalFileSystem

import jetstream_sync
from jetstream_sync import (
    JetStream,
    ObjectMeta,
    ObjectMetaOptions,
    ObjectStore,
    errors,
    shared_connection,
)
from jetstream_sync.filesystem import JetStreamFileSystem
from jetstream_sync.server import NatsServer

#: Whether fsspec is new enough for `tree`.
HAS_TREE = hasattr(fsspec.AbstractFileSystem, "tree")


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


def test_each_file_is_written_with_the_same_context(fs):
    """Many written files leave at most one thread for acknowledgements."""
    before = [thread.name for thread in threading.enumerate()]
    for number in range(5):
        fs.pipe_file(f"DATA/{number}", b"x")
    names = [thread.name for thread in threading.enumerate()]
    assert len([name for name in names if name.startswith("nats-acks-")]) <= 1 + len(
        [name for name in before if name.startswith("nats-acks-")]
    )


def test_a_file_whose_block_raises_is_not_stored(fs):
    """Half of an object never appears."""
    with pytest.raises(ZeroDivisionError), fs.open("DATA/half", "wb") as file:
        file.write(b"1" * 200_000)
        raise ZeroDivisionError
    assert not fs.exists("DATA/half")


def test_stores_are_made_like_directories(fs, js):
    """A path in a store needs none."""
    fs.makedirs("NEW/sub")
    fs.makedirs("NEW", exist_ok=True)
    fs.pipe("NEW/sub/a", b"1")
    assert js.object_store("NEW").get_bytes("sub/a") == b"1"


# --- what is absent, and what is not known ---------------------------------------------------------

#: Calls that need a reply of the server.
CALLS: dict[str, Callable[[Any], object]] = {
    "cat": lambda fs: fs.cat(["DATA/a", "DATA/b"]),
    "cat omit": lambda fs: fs.cat(["DATA/a", "DATA/b"], on_error="omit"),
    "cat_file": lambda fs: fs.cat_file("DATA/a", 0, 1),
    "copy": lambda fs: fs.copy("DATA/a", "DATA/c"),
    "copy recursive": lambda fs: fs.copy("DATA/d", "DATA/e", recursive=True),
    "du": lambda fs: fs.du("DATA"),
    "exists": lambda fs: fs.exists("DATA/a"),
    "exists store": lambda fs: fs.exists("DATA"),
    "expand_path": lambda fs: fs.expand_path("DATA/*"),
    "find": lambda fs: fs.find("DATA"),
    "find root": lambda fs: fs.find(""),
    "get": lambda fs: fs.get("DATA/d", "/nowhere", recursive=True),
    "glob": lambda fs: fs.glob("DATA/*"),
    "glob literal": lambda fs: fs.glob("DATA/a"),
    "info": lambda fs: fs.info("DATA/a"),
    "isdir": lambda fs: fs.isdir("DATA/a"),
    "isfile": lambda fs: fs.isfile("DATA/a"),
    "lexists": lambda fs: fs.lexists("DATA/a"),
    "ls": lambda fs: fs.ls("DATA"),
    "ls root": lambda fs: fs.ls(""),
    "makedirs": lambda fs: fs.makedirs("DATA", exist_ok=True),
    "mkdir": lambda fs: fs.mkdir("DATA"),
    "mv": lambda fs: fs.mv("DATA/d", "DATA/e", recursive=True),
    "open": lambda fs: fs.open("DATA/a"),
    "open wb": lambda fs: fs.open("DATA/a", "wb"),
    "open xb": lambda fs: fs.open("DATA/a", "xb"),
    "pipe create": lambda fs: fs.pipe_file("DATA/a", b"new", mode="create"),
    "put create": lambda fs: fs.put_file(__file__, "DATA/a", mode="create"),
    "rm": lambda fs: fs.rm("DATA/a"),
    "rm recursive": lambda fs: fs.rm("DATA", recursive=True),
    "rm pattern": lambda fs: fs.rm("DATA/*", recursive=True),
    "rmdir": lambda fs: fs.rmdir("DATA/d"),
    "size": lambda fs: fs.size("DATA/a"),
    "touch": lambda fs: fs.touch("DATA/a", truncate=False),
    "walk": lambda fs: list(fs.walk("DATA")),
    "walk with errors": lambda fs: list(fs.walk("DATA", on_error="raise")),
}


def test_an_object_that_cannot_be_read_is_not_absent(fs, js):
    """A listing of its directory raises, one of another directory does not, and nothing is deleted."""
    name = base64.urlsafe_b64encode(b"year/03").decode()
    js.publish(f"$O.DATA.M.{name}", b"of another program")
    for call in (fs.ls, fs.find, fs.du, lambda path: fs.rm(path, recursive=True)):
        with pytest.raises(errors.IncompleteListingError, match="year/03"):
            call("DATA/year")
    assert fs.isdir("DATA/year")
    assert not fs.exists("DATA/ye")
    only = base64.urlsafe_b64encode(b"only/1").decode()
    js.publish(f"$O.DATA.M.{only}", b"of another program")
    with pytest.raises(errors.IncompleteListingError, match="only/1"):
        fs.exists("DATA/only")
    fs.pipe("DATA/month/01", b"1")
    assert fs.ls("DATA/month", detail=False) == ["DATA/month/01"]
    assert fs.cat("DATA/year/01.txt") == b"year/01.txt"
    assert fs.isdir("DATA/month")


@pytest.mark.full
def test_no_reply_is_not_absence(fresh_server):
    """While the server is paused, and when it has stopped, each call raises; nothing is changed."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        store = nc.jetstream().create_object_store(bucket="DATA")
        for name in ("a", "b", "d/1", "d/2"):
            store.put(name, b"old")
        fs = JetStreamFileSystem(fresh_server.url, timeout=0.1, skip_instance_cache=True)
        assert fs.exists("DATA/a")
        with paused(fresh_server):
            for name, call in CALLS.items():
                with pytest.raises(errors.TimeoutError):
                    assert call(fs) is None, name  # shows what a call without an error returned
                    pytest.fail(name)
        assert {info.name: info.size for info in store.list()} == dict.fromkeys(
            ("a", "b", "d/1", "d/2"), 3
        )
        assert store.get_bytes("a") == b"old"
        fresh_server.stop()
        for name, call in CALLS.items():
            with pytest.raises(OSError) as raised:
                call(fs)
                pytest.fail(name)
            assert not isinstance(raised.value, FileNotFoundError), name
    shared_connection(fresh_server.url).close()


def test_errors_of_the_interface(fs):
    """Directories, existing and missing files have the errors of Python."""
    for call in (
        lambda: fs.open("DATA"),
        lambda: fs.open("DATA", "wb"),
        lambda: fs.open("DATA/year"),
        lambda: fs.cat("DATA/year"),
        lambda: fs.rm("DATA/year"),
        lambda: fs.rm(["DATA/a.txt", "DATA/year"]),
        lambda: fs.rm_file("DATA/year"),
    ):
        with pytest.raises(IsADirectoryError):
            call()
    for call in (
        lambda: fs.rm("DATA/none"),
        lambda: fs.rm("DATA/none", recursive=True),
        lambda: fs.rm("DATA/none*", recursive=True),
        lambda: fs.rm("NONE", recursive=True),
        lambda: fs.rm(["DATA/a.txt", "DATA/none"]),
        lambda: fs.rm_file("DATA/none"),
        lambda: fs.cp_file("DATA/none", "DATA/b"),
        lambda: fs.mv("DATA/none", "DATA/b"),
        lambda: fs.open("NONE/a", "wb"),
        lambda: fs.pipe_file("bad.name/a", b""),
        lambda: fs.rmdir("DATA/none"),
        lambda: fs.mkdir("NONE/a", create_parents=False),
        lambda: list(fs.walk("DATA/none", on_error="raise")),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    for call in (
        lambda: fs.mkdir("DATA"),
        lambda: fs.mkdir("DATA/year"),
        lambda: fs.makedirs("DATA/year/02"),
        lambda: fs.open("DATA/a.txt", "xb"),
        lambda: fs.pipe_file("DATA/a.txt", b"", mode="create"),
        lambda: fs.put_file(__file__, "DATA/a.txt", mode="create"),
    ):
        with pytest.raises(FileExistsError):
            call()
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("DATA")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("DATA/year")
    with pytest.raises(NotImplementedError):
        fs.open("DATA/a.txt", "ab")
    assert len(fs.find("DATA")) == 3


def test_an_exclusive_file_never_replaces_another(fs, store):
    """Of two writers that both found no file, the first one to close wins; the other leaves no chunk."""
    late = fs.open("DATA/new", "xb")
    late.write(b"late" * 100_000)
    with fs.open("DATA/new", "x") as first:
        first.write("first")
    with pytest.raises(FileExistsError):
        late.close()
    assert store.get_bytes("new") == b"first"
    used = {f"$O.DATA.C.{info.nuid}" for info in store.list()}
    assert set(store.status().stream_info.state.subjects or ()) <= used
    assert store.purge_orphans(older_than=0) == 0
    store.delete("new")
    with fs.open("DATA/new", "xb") as again:
        again.write(b"again")
    assert store.get_bytes("new") == b"again"
    store.add_link("link", store.info("new"))
    with pytest.raises(FileExistsError):
        fs.open("DATA/link", "xb")


def test_the_files_of_a_transaction_appear_together(fs, store):
    """They appear when the block ends; none does if it raises."""
    with fs.transaction:
        fs.pipe_file("DATA/t1", b"1")
        with fs.open("DATA/t2", "w") as file:
            file.write("2")
        fs.open("DATA/t3", "wb").write(b"3" * 300_000)  # it is not closed
        assert not {"t1", "t2", "t3"} & {info.name for info in store.list()}
    assert [store.get_bytes(name)[:2] for name in ("t1", "t2", "t3")] == [b"1", b"2", b"33"]
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe_file("DATA/t4", b"4" * 300_000)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), fs.transaction, fs.open("DATA/t5", "wb") as file:
        file.write(b"5")
        raise ZeroDivisionError
    assert not {"t4", "t5"} & {info.name for info in store.list()}
    assert store.purge_orphans(older_than=0) == 0
    held = fs.open("DATA/t6", "wb", autocommit=False)
    held.write(b"6")
    held.close()
    assert not fs.exists("DATA/t6")
    held.commit()
    assert fs.cat("DATA/t6") == b"6"
    fs.pipe_file("DATA/t7", b"7")
    assert fs.cat("DATA/t7") == b"7"


# --- directories -----------------------------------------------------------------------------------


def test_a_call_lists_a_store_at_most_twice(fs, js, store, nc):
    """The number of listings does not grow with the number of directories."""
    for number in range(12):
        store.put(f"deep/{number}/x/y", b"1")
    created = nc.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.OBJ_DATA.>")
    nc.flush()
    for call in (
        lambda: fs.find("DATA"),
        lambda: fs.glob("DATA/**"),
        lambda: fs.glob("DATA/deep"),
        lambda: fs.du("DATA"),
        lambda: list(fs.walk("DATA")),
        lambda: not HAS_TREE or fs.tree("DATA", recursion_limit=4, max_display=20),
        lambda: fs.expand_path("DATA/deep", recursive=True),
        lambda: fs.info("DATA/deep"),
        lambda: fs.rm("DATA/deep/1*", recursive=True),
    ):
        call()
        js.account_info()  # its reply comes after the advisories
        count = sum(1 for _ in iter(lambda: _next(created), None))
        assert count <= 2
    store.put("many/1/a", b"1")
    store.put("many/2/b", b"1")
    store.put("many/3/c", b"1")
    fs.mv("DATA/many", "DATA/moved", recursive=True)
    js.account_info()
    # A file that is copied is read with a consumer, too.
    assert sum(1 for _ in iter(lambda: _next(created), None)) <= 2 + 3
    assert fs.find("DATA/moved") == [f"DATA/moved/{name}" for name in ("1/a", "2/b", "3/c")]
    assert not fs.exists("DATA/many")


def _next(subscription):
    try:
        return subscription.next_msg(timeout=0.1)
    except errors.TimeoutError:
        return None


#: Names that are no path below a directory, and their paths in the filesystem.
UNSAFE = {
    "../x": "%2E%2E/x",
    "../../x": "%2E%2E/%2E%2E/x",
    "a/../../x": "a/%2E%2E/%2E%2E/x",
    "..": "%2E%2E",
    "./x": "%2E/x",
    "/etc/hosts": "%2Fetc/hosts",
    "a//b": "a/%2Fb",
    "tr/": "tr%2F",
    "x/z//": "x/z%2F%2F",
    "nul\0x": "nul%00x",
    "../100%": "%2E%2E/100%25",
    "%2E%2E/x": "%252E%252E/x",
    "%252E%252E/x": "%25252E%25252E/x",
    "100%": "100%",
    "d=a%2Fb/c": "d=a%2Fb/c",
    "d=a%2F%2Fb/c": "d=a%2F%2Fb/c",
    "...": "...",
    "a/b": "a/b",
    "a/..b/c..": "a/..b/c..",
}


def test_names_that_leave_their_directory_are_escaped(fs, store):
    """Objects of other clients are listed, read, moved and deleted by escaped paths, whatever their names are."""
    for name in UNSAFE:
        store.put(name, name.encode())
    found = [path for path in fs.find("DATA") if "txt" not in path]
    assert found == sorted(f"DATA/{path}" for path in UNSAFE.values())
    for name, path in UNSAFE.items():
        assert fs.cat(f"DATA/{path}") == name.encode(), name
        assert fs.isfile(f"DATA/{path}")
        fs.pipe_file(f"DATA/{path}", b"new")
        assert store.get_bytes(name) == b"new", name
    walked = [f"{path}/{name}" for path, _, files in fs.walk("DATA") for name in files]
    assert sorted(walked) == fs.find("DATA")
    for name in ("../x", "..", "/etc/hosts", "a//b", "a/../../x", "nul\0x"):
        assert not fs.exists(f"DATA/{name}")
        for call in (fs.cat_file, fs.open, fs.rm, lambda path: fs.pipe_file(path, b"1")):
            with pytest.raises(FileNotFoundError):
                call(f"DATA/{name}")
    assert sorted(fs.ls("DATA/a", detail=False)) == [
        f"DATA/a/{name}" for name in ("%2E%2E", "%2Fb", "..b", "b")
    ]
    fs.rm("DATA/%2E%2E")
    assert fs.isdir("DATA/%2E%2E")
    assert fs.du("DATA") == sum(info.size for info in store.list())
    fs.mv("DATA/%2E%2E", "DATA/moved", recursive=True)
    assert store.get_bytes("moved/x") == b"new"
    fs.rm("DATA/a", recursive=True)
    assert not [info.name for info in store.list() if info.name.startswith(("a/", "../"))]
    fs.rm("DATA", recursive=True)
    assert store.list() == []


@pytest.mark.filterwarnings("ignore:a blocking call in an event loop")  # GenericFileSystem has one
def test_a_download_stays_in_its_folder(fs, store, tmp_path):
    """No way to download a bucket writes a file outside of the folder, whatever the names of the objects are."""
    outside = tmp_path / "outside"
    names = [name for name in UNSAFE if name not in ("..", "%2E%2E/x", "%252E%252E/x")]
    for name in (*names, f"{outside}/absolute", f"../../{tmp_path.name}/outside/up"):
        store.put(name, name.encode())
    local = LocalFileSystem()
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)

    def copy_one_by_one(target: str) -> None:
        for path in fs.find("DATA"):
            local.makedirs(f"{target}/{path}".rpartition("/")[0], exist_ok=True)
            fs.get_file(path, f"{target}/{path}")

    ways = {
        "get": lambda target: fs.get("DATA", target, recursive=True),
        "get with a slash": lambda target: fs.get("DATA/", f"{target}/", recursive=True),
        "get of a pattern": lambda target: fs.get("DATA/**", target),
        "one by one": copy_one_by_one,
        "rsync": lambda target: rsync(
            "jetstream://DATA", f"file://{target}", inst_kwargs={"default_method": "current"}
        ),
    }
    for name, way in ways.items():
        target = folder / name.replace(" ", "_")
        target.mkdir()
        way(str(target))
        assert [path for path in target.rglob("*") if path.is_file()], name
        stray = [
            path for path in tmp_path.rglob("*") if path.is_file() and folder not in path.parents
        ]
        assert stray == [], name
        assert {path.name for path in folder.iterdir()} <= {way.replace(" ", "_") for way in ways}


def test_what_does_not_exist_costs_no_listing(fs, store, nats_server):
    """A missing file is known after a few small replies; what another client adds or deletes is seen at once."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: store.put(f"z/{number}/x", b"1"), range(400)))
    conn = shared_connection(nats_server.url)
    calls: dict[str, Callable[[str], Any]] = {
        "cat_file": fs.cat_file,
        "open": fs.open,
        "exists": fs.exists,
        "info": fs.info,
        "isdir": fs.isdir,
    }

    def cost(call: Callable[[str], Any], path: str) -> tuple[Any, int]:
        before = conn.stats["in_msgs"]
        try:
            result = call(path)
        except OSError as error:
            result = type(error)
        return result, conn.stats["in_msgs"] - before

    for name, call in calls.items():
        for path in ("DATA/none", "DATA/z/none", "DATA/z/7/y"):
            result, replies = cost(call, path)
            assert result in (False, FileNotFoundError), name
            assert replies <= 4, (name, path)
    assert cost(fs.isdir, "DATA/z/7")[0]
    assert cost(fs.isdir, "DATA/z/7")[1] <= 5
    store.put("new/x", b"1")
    assert fs.isdir("DATA/new")
    store.delete("new/x")
    assert not fs.isdir("DATA/new")
    store.delete("z/7/x")
    assert not fs.exists("DATA/z/7")


def test_a_directory_that_was_made_is_remembered(fs, store):
    """``mkdir`` makes a directory that this filesystem knows, as DuckDB expects, until it is removed."""
    fs.mkdir("DATA/parts/a")
    assert fs.isdir("DATA/parts/a")
    assert fs.isdir("DATA/parts")
    assert fs.ls("DATA/parts/a") == []
    assert store.info("a.txt")
    with pytest.raises(FileExistsError):
        fs.mkdir("DATA/parts/a")
    fs.makedirs("DATA/parts/a", exist_ok=True)
    fs.rmdir("DATA/parts/a")
    assert not fs.exists("DATA/parts/a")
    fs.makedirs("DATA/other/b", exist_ok=True)
    fs.rm("DATA/other", recursive=True)
    assert not fs.exists("DATA/other/b")
    assert not fs.exists("DATA/other")


def test_leading_slashes_and_urls_are_accepted(fs):
    """A path may begin with a slash, as that of a local file."""
    assert fs.cat("/DATA/a.txt") == fs.cat("jetstream:///DATA/a.txt") == b"a.txt"
    assert fs.ls("/", detail=False) == ["DATA"]
    assert fs.find("/") == fs.find("DATA")
    assert not HAS_TREE or "a.txt" in fs.tree()


def test_patterns_and_depths_of_rm(fs, store):
    """A pattern deletes what it matches, with its directories."""
    fs.rm("DATA/year", recursive=True, maxdepth=1)
    assert fs.find("DATA") == ["DATA/a.txt", "DATA/year/02/x.txt"]
    store.put("year/03/z.txt", b"")
    fs.rm("DATA/y*/*", recursive=True)
    assert fs.find("DATA") == ["DATA/a.txt"]
    fs.mv("DATA/a.txt", "jetstream://DATA/a.txt")
    assert fs.find("DATA") == ["DATA/a.txt"]
    fs.rm("DATA", recursive=True)
    fs.rmdir("DATA")
    assert not fs.exists("DATA")


@pytest.mark.parametrize("mode", ["b", "t"])
@pytest.mark.parametrize(
    ("of", "options"),
    [
        ("store", {}),
        ("filesystem", {}),
        ("filesystem", {"compression": "gzip"}),
        ("filesystem", {"compression": "infer"}),
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed GzipFile:ResourceWarning")  # Python 3.14 and newer
def test_a_file_that_is_collected_is_not_stored(fs, store, of, mode, options):
    """What a function wrote before it raised does not become an object; what is closed is stored."""
    data: Any = b"1" * 300_000 if mode == "b" else "1" * 300_000

    def write() -> None:
        file = (
            fs.open("DATA/half.bz2", f"w{mode}", **options)
            if of == "filesystem"
            else store.open("half.bz2", f"w{mode}")
        )
        file.write(data)
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        write()
    gc.collect()
    store.put("later", b"")
    assert not fs.exists("DATA/half.bz2")
    if of == "filesystem":
        with fs.open("DATA/whole.bz2", f"w{mode}", **options) as file:
            file.write(data)
        with fs.open("DATA/whole.bz2", f"r{mode}", **options) as file:
            assert file.read() == data
        assert (fs.size("DATA/whole.bz2") < 300_000) == bool(options)


@pytest.mark.parametrize("how", ["range", "seek", "get"])
def test_reading_over_a_deleted_chunk_raises(fs, store, js, tmp_path, how):
    """A read over a chunk that was deleted raises, also if its position was known; a local file stays."""
    data = bytes(range(250)) * 8_000
    info = store.put("big", data)
    assert fs.cat_file("DATA/big", 900_000, 900_010) == data[900_000:900_010]
    stream = js.get_stream("OBJ_DATA")
    seq = 0
    for _ in range(7):
        seq = stream.get_msg(seq + 1, next_by_subject=f"$O.DATA.C.{info.nuid}").seq
    stream.delete_msg(seq)
    local = tmp_path / "big"
    local.write_bytes(b"before")
    with pytest.raises(errors.ObjectIncompleteError):
        if how == "range":
            fs.cat_file("DATA/big", 700_000, 1_200_000)
        elif how == "seek":
            with fs.open("DATA/big") as file:
                file.seek(700_000)
                file.read(500_000)
        else:
            fs.get("DATA/big", str(local))
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
    assert local.read_bytes() == b"before"
    fs.get("DATA/year", f"{tmp_path}/year", recursive=True)
    fs.get("DATA/a.txt", str(local))
    assert (local.read_bytes(), (tmp_path / "year/02/x.txt").read_bytes()) == (
        b"a.txt",
        b"year/02/x.txt",
    )


def test_a_move_deletes_only_what_it_has_copied(fs, store, js):
    """Files below `maxdepth`, onto themselves, or under the name of another one are not lost."""
    js.create_object_store(bucket="OTHER", storage="memory")
    store.put("year/00.txt", b"")
    fs.mv("DATA/year", "OTHER/year", recursive=True, maxdepth=1)
    assert fs.find("DATA") == ["DATA/a.txt", "DATA/year/02/x.txt"]
    moved = ["OTHER/year/00.txt", "OTHER/year/01.txt"]
    assert fs.find("OTHER") == moved
    fs.mv("DATA/year/02", "DATA/year", recursive=True)
    assert store.get_bytes("year/02/x.txt") == b"year/02/x.txt"
    store.put("b", b"b")
    with pytest.raises(OSError, match="Invalid argument"):
        fs.mv(["DATA/a.txt", "DATA/b"], ["DATA/b", "DATA/c"])
    with pytest.raises(IsADirectoryError):
        fs.mv("DATA/*", "OTHER/")
    for move in (fs.mv, fs.copy):
        with pytest.raises(FileNotFoundError):
            move("DATA/year", "NONE/year", recursive=True)
    assert (store.get_bytes("b"), fs.find("OTHER")) == (b"b", moved)
    assert fs.find("DATA") == ["DATA/a.txt", "DATA/b", "DATA/year/02/x.txt"]


def test_a_file_that_is_replaced_during_its_move_stays(fs, store, monkeypatch):
    """The version that was not copied is not deleted."""
    copy = fs._copy

    def copy_first(*args):
        copied = copy(*args)
        store.put("a.txt", b"new")
        return copied

    monkeypatch.setattr(fs, "_copy", copy_first)
    with pytest.raises(errors.ObjectReplacedError):
        fs.mv("DATA/a.txt", "DATA/b")
    assert (store.get_bytes("a.txt"), store.get_bytes("b")) == (b"new", b"a.txt")


def test_links(fs, store, js):
    """A link has the size of its target; a broken one does not exist, and can be deleted."""
    js.create_object_store(bucket="OTHER", storage="memory").put("far", b"1234567")
    store.add_link("near", store.info("a.txt"))
    store.add_link("far", js.object_store("OTHER").info("far"))
    store.add_link("broken", store.info("year/01.txt"))
    store.add_bucket_link("bucket", js.object_store("OTHER"))
    store.delete("year/01.txt")
    assert (fs.size("DATA/near"), fs.size("DATA/far"), fs.cat("DATA/far")) == (5, 7, b"1234567")
    entries = {entry["name"]: entry["size"] for entry in fs.ls("DATA") if entry["type"] == "file"}
    assert entries == {"DATA/a.txt": 5, "DATA/far": 7, "DATA/near": 5}
    assert fs.info("DATA/far")["destination"] == "OTHER/far"
    assert fs.open("DATA/near").size == 5
    for name in ("broken", "bucket"):
        assert not fs.exists(f"DATA/{name}")
        assert fs.lexists(f"DATA/{name}")
        with pytest.raises(FileNotFoundError):
            fs.cat(f"DATA/{name}")
    fs.rm("DATA/broken")
    assert not fs.lexists("DATA/broken")
    fs.rm("DATA", recursive=True)
    assert store.list() == []


# --- files -----------------------------------------------------------------------------------------


def test_a_range_reads_its_chunks_only(nats_server, js):
    """Ranges, seeks and the ends of large files transfer little; negative ones count from the end."""
    js.create_object_store(bucket="DATA", storage="memory")
    fs = JetStreamFileSystem(nats_server.url, skip_instance_cache=True)
    data = bytes(range(256)) * 40_000
    fs.pipe_file("DATA/big", data)
    nc = shared_connection(nats_server.url)

    def received(call: Callable[[], bytes]) -> tuple[bytes, int]:
        before = nc.stats["in_bytes"]
        return call(), nc.stats["in_bytes"] - before

    for start, end in ((5_000_000, 5_000_010), (-10, None), (131_070, 131_074), (0, 3), (-9, -4)):
        found, size = received(lambda start=start, end=end: fs.cat_file("DATA/big", start, end))
        assert found == data[start:end]
        assert size < 400_000
    assert fs.cat_file("DATA/big", 20_000_000, None) == fs.cat_file("DATA/big", 5, 3) == b""
    assert fs.cat_file("DATA/big", 1, -1) == data[1:-1]
    with fs.open("DATA/big") as file:
        assert file.size == len(data)
        found, size = received(lambda: (file.seek(9_000_000), file.read(9))[1])
        assert found == data[9_000_000:9_000_009]
        assert size < 1_500_000
        assert file.seek(-4, io.SEEK_END) == len(data) - 4
        assert file.read() == data[-4:]
        file.seek(0)
        assert file.read() == data
    assert fs.tail("DATA/big", 3) == data[-3:]
    assert fs.read_block("DATA/big", 255, 3) == data[255:258]
    assert fs.cat_ranges(["DATA/big"] * 2, [0, 700_000], [2, 700_001]) == [b"\0\1", b"\x60"]
    nc.close()


def test_a_large_file_that_is_read_in_order_is_checked(fs, js, store):
    """Data that does not have the digest of the object is an error at its end, not before."""
    data = bytes(2_000_000)
    info = store.put("big", data)
    wrong = store.put("wrong", b"1" + data[1:])
    subject = f"$O.DATA.C.{info.nuid}"
    stream = js.get_stream("OBJ_DATA")
    stream.purge(subject)
    seq = 1
    while found := stream.get_msgs(100, seq, f"$O.DATA.C.{wrong.nuid}"):
        for chunk in found:
            js.publish(subject, chunk.data)
        seq = found[-1].seq + 1
    with fs.open("DATA/big") as file:
        assert file.read(2) == b"1\0"
        with pytest.raises(jetstream_sync.DigestMismatchError):
            file.read()


class _Replacing(JetStreamFileSystem):
    """Replaces an object between its info and its data, as often as `times` says."""

    times = 0

    def _reader(self, path):
        reader = super()._reader(path)
        if self.times:
            self.times -= 1
            self._js.object_store("DATA").put("big", b"new%d" % self.times + bytes(1_000_000))
        return reader


def test_an_object_that_is_replaced_meanwhile_is_read_again_once(nats_server, js):
    """`cat` and `open` return the new data, of one version; with every read replaced they raise."""
    store = js.create_object_store(bucket="DATA", storage="memory")
    store.put("big", b"old0" + bytes(1_000_000))
    fs = _Replacing(nats_server.url, skip_instance_cache=True)
    fs.times = 1
    assert fs.cat("DATA/big")[:4] == b"new0"
    fs.times = 1
    assert fs.cat_file("DATA/big", 0, 4) == b"new0"
    fs.times = 2
    with pytest.raises(errors.ObjectReplacedError):
        fs.cat("DATA/big")
    fs.times = 1
    file = fs.open("DATA/big")
    with pytest.raises(errors.ObjectReplacedError):
        file.read()
    shared_connection(nats_server.url).close()


def test_written_files_have_a_position(fs):
    """An archive can be written to a file."""
    with fs.open("DATA/a.tar.gz", "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.add(__file__, "test.py")
    with fs.open("DATA/a.tar.gz") as file, tarfile.open(fileobj=file) as archive:
        assert archive.getnames() == ["test.py"]
    with fs.open("DATA/plain", "wb") as file:
        file.write(b"123")
        assert file.tell() == 3
        file.write(bytes(300_000))
        assert file.tell() == 300_003


def test_copies_and_moves_keep_metadata(fs, store, js):
    """Description, headers, metadata and chunk size go with the data, also to another store."""
    js.create_object_store(bucket="OTHER", storage="memory")
    options = ObjectMetaOptions(max_chunk_size=1000)
    meta = ObjectMeta(
        name="m", description="d", headers={"H": ["1"]}, metadata={"k": "v"}, options=options
    )
    store.put(meta, bytes(5000))
    fs.cp_file("DATA/m", "OTHER/copy")
    fs.mv("DATA/m", "DATA/moved")
    assert not fs.exists("DATA/m")
    for info in (js.object_store("OTHER").info("copy"), store.info("moved")):
        assert (info.description, info.headers, info.metadata) == ("d", {"H": ["1"]}, {"k": "v"})
        assert (info.chunks, info.size) == (5, 5000)
    before = store.info("moved")
    fs.touch("DATA/moved", truncate=False)
    after = store.info("moved")
    assert (after.size, after.metadata, after.mtime > before.mtime) == (5000, {"k": "v"}, True)
    fs.touch("DATA/moved")
    assert fs.size("DATA/moved") == 0
    with fs.open("DATA/meta", "wb", meta=meta) as file:
        file.write(b"1")
    assert store.info("meta").metadata == {"k": "v"}


def test_local_files(fs, store, tmp_path):
    """Progress is reported with the total."""
    (tmp_path / "in").write_bytes(bytes(700_000))
    callback = fsspec.Callback()
    fs.put_file(tmp_path / "in", "DATA/in", callback=callback)
    assert (callback.size, callback.value, store.info("in").size) == (700_000, 700_000, 700_000)
    callback = fsspec.Callback()
    fs.get_file("DATA/in", str(tmp_path / "out"), callback=callback)
    assert (callback.size, callback.value) == (700_000, 700_000)
    fs.get("DATA/year", str(tmp_path / "year"), recursive=True)
    assert (tmp_path / "year" / "02" / "x.txt").read_bytes() == b"year/02/x.txt"
    assert fs.cat("DATA/year", recursive=True).keys() == set(fs.find("DATA/year"))
    found = fs.cat(["DATA/in", "DATA/none"], on_error="omit")
    assert found == {"DATA/in": bytes(700_000)}


def test_options_of_fsspec_are_taken(nats_server, js):
    """Options of asynchronous filesystems, as zarr passes them, are not those of a connection."""
    js.create_object_store(bucket="DATA", storage="memory")
    options = {"asynchronous": True, "loop": None, "batch_size": 2, "use_listings_cache": False}
    fs = fsspec.filesystem("jetstream", servers=nats_server.url, **options)
    assert fs.ls("DATA") == []
    with pytest.raises(jetstream_sync.InvalidOptionError, match="wrong"):
        fsspec.filesystem("jetstream", servers=nats_server.url, wrong=1).ls("")
    shared_connection(nats_server.url).close()


@pytest.mark.parametrize("how", [as_subclass, as_member])
def test_paths_are_taken_by_value(fs, store, how):
    """Members of enums and other subclasses of str are names by their value, not by their text."""
    fs.pipe_file(how("DATA/new/b.txt"), how(b"data"))
    assert store.get_bytes("new/b.txt") == b"data"
    assert fs.cat_file(how("jetstream://DATA/new/b.txt")) == b"data"
    assert fs.ls(how("DATA/new"), detail=False) == ["DATA/new/b.txt"]
    fs.cp_file(how("DATA/new/b.txt"), how("DATA/c.txt"))
    fs.rm_file(how("DATA/new/b.txt"))
    assert [info.name for info in store.list()] == [
        "a.txt",
        "c.txt",
        "year/01.txt",
        "year/02/x.txt",
    ]
