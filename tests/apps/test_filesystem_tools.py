"""The filesystem in fsspec's own tests, beside fsspec's memory filesystem, and in tools that use it."""

from __future__ import annotations

import io
import re
import tarfile
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fixtures.threads import SCALE
from fsspec.tests import abstract
from pages import DOCUMENTED_URL, ROOT

from jetstream_sync import JetStream, shared_connection
from jetstream_sync.server import NatsServer

# The tools are imported where they are used: other runs collect this file without them.
if TYPE_CHECKING:
    import pandas as pd

pytestmark = pytest.mark.apps


@pytest.fixture
def options(nats_server: NatsServer, js: JetStream) -> Iterator[dict[str, str]]:
    """The storage options of a server with the store DATA."""
    js.create_object_store(bucket="DATA", storage="memory")
    yield {"servers": nats_server.url}
    shared_connection(nats_server.url).close()


@pytest.fixture
def fs(options: dict[str, str]) -> Any:
    """The filesystem."""
    return fsspec.filesystem("jetstream", **options)


class Fixtures(abstract.AbstractFixtures):
    """What fsspec's tests need."""

    @pytest.fixture
    def fs(self, options: dict[str, str]) -> Any:
        return fsspec.filesystem("jetstream", **options)

    @pytest.fixture
    def fs_path(self) -> str:
        return "DATA/base"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    """fsspec's tests of copies."""


class TestGet(abstract.AbstractGetTests, Fixtures):
    """fsspec's tests of downloads."""


class TestPut(abstract.AbstractPutTests, Fixtures):
    """fsspec's tests of uploads."""


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    """fsspec's tests of `pipe`."""


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    """fsspec's tests of `open`."""


# --- beside the memory filesystem -------------------------------------------------------------------

_FILES = {
    "a": b"a" * 1000,
    "b.txt": b"line 1\nline 2\nline 3",
    "d/1": b"1",
    "d/2": b"22",
    "d/e/3": b"333",
    "d/e/f/4": b"4444",
    "g/5": b"",
    "large": bytes(range(256)) * 4000,
}
_PATHS = ["", "/a", "/b.txt", "/d", "/d/", "/d/e", "/d/1", "/none", "/d/none", "/large", "/g"]
_PATTERNS = [
    "/*",
    "/**",
    "/d/*",
    "/d/**",
    "/*/[0-9]",
    "/?",
    "/d/*/",
    "/none*",
    "/**/4",
    "/d",
    "/l*",
]


def _calls() -> dict[str, Callable[[Any, str], object]]:
    """Return calls of a filesystem with the path of a folder, by a text."""
    calls: dict[str, Callable[[Any, str], object]] = {}
    for path in _PATHS:
        for name in ("exists", "isfile", "isdir", "size", "find", "du", "cat", "head", "tail"):
            calls[f"{name} {path}"] = lambda fs, at, n=name, p=path: getattr(fs, n)(at + p)
        calls[f"ls {path}"] = lambda fs, at, p=path: sorted(fs.ls(at + p, detail=False))
        calls[f"type {path}"] = lambda fs, at, p=path: fs.info(at + p)["type"]
        calls[f"du {path} parts"] = lambda fs, at, p=path: fs.du(at + p, total=False)
        for depth in (1, 2, 3):
            calls[f"find {path} {depth}"] = lambda fs, at, p=path, d=depth: fs.find(
                at + p, maxdepth=d, withdirs=True
            )
            for down in (True, False):
                calls[f"walk {path} {depth} {down}"] = lambda fs, at, p=path, d=depth, t=down: (
                    sorted(
                        (where, sorted(dirs), sorted(files))
                        for where, dirs, files in fs.walk(at + p, maxdepth=d, topdown=t)
                    )
                )
        for mode in ("wb", "xb", "rb"):
            calls[f"open {path} {mode}"] = lambda fs, at, p=path, m=mode: fs.open(at + p, m).close()
        for recursive in (False, True):
            calls[f"rm {path} {recursive}"] = lambda fs, at, p=path, r=recursive: fs.rm(
                at + (p or "/g"), recursive=r
            )
            calls[f"cp {path} {recursive}"] = lambda fs, at, p=path, r=recursive: fs.copy(
                at + p, at + "/new/", recursive=r
            )
            calls[f"mv {path} {recursive}"] = lambda fs, at, p=path, r=recursive: fs.mv(
                at + (p or "/d"), at + "/new", recursive=r
            )
            calls[f"expand {path} {recursive}"] = lambda fs, at, p=path, r=recursive: (
                fs.expand_path(at + p, recursive=r)
            )
    for pattern in _PATTERNS:
        for name in ("glob", "expand_path", "cat", "rm"):
            calls[f"{name} {pattern}"] = lambda fs, at, n=name, p=pattern: getattr(fs, n)(at + p)
        calls[f"rm {pattern} recursive"] = lambda fs, at, p=pattern: fs.rm(at + p, recursive=True)
        calls[f"glob {pattern} detail"] = lambda fs, at, p=pattern: {
            name: entry["type"] for name, entry in fs.glob(at + p, detail=True).items()
        }
    for start, end in (
        (0, 5),
        (3, None),
        (None, 4),
        (-5, None),
        (-9, -2),
        (2, 2),
        (500, 9000),
        (9, 3),
    ):
        for path in ("/a", "/b.txt", "/large", "/g/5"):
            calls[f"cat {path} {start} {end}"] = lambda fs, at, p=path, s=start, e=end: fs.cat_file(
                at + p, s, e
            )
    for mode in ("overwrite", "create"):
        for path in ("/a", "/new"):
            calls[f"pipe {path} {mode}"] = lambda fs, at, p=path, m=mode: fs.pipe_file(
                at + p, b"new", mode=m
            )
    for path in ("/a", "/d", "/none", "/d/e/new"):
        calls[f"mkdir {path}"] = lambda fs, at, p=path: fs.mkdir(at + p)
        calls[f"makedirs {path}"] = lambda fs, at, p=path: fs.makedirs(at + p)
        calls[f"rmdir {path}"] = lambda fs, at, p=path: fs.rmdir(at + p)
        calls[f"touch {path}"] = lambda fs, at, p=path: fs.touch(at + p)
    calls["read_block"] = lambda fs, at: fs.read_block(at + "/b.txt", 1, 9, delimiter=b"\n")
    calls["cat many"] = lambda fs, at: fs.cat([at + "/a", at + "/none"], on_error="omit")
    calls["lines"] = lambda fs, at: list(fs.open(at + "/b.txt", "r"))
    return calls


#: Calls with other results than those of the memory filesystem, which has directories of its own.
_DIFFERENCES = {
    # A directory exists because of its files: it can be neither created nor removed by itself.
    *("mkdir /d", "makedirs /d", "rmdir /d", "rm /*", "rm /**", "rm /d/**"),
    # A directory and an object may have one name, as in every object store.
    *("open  wb", "open  xb", "open /d xb", "open /d/ xb", "open /d/e xb", "open /g xb"),
    "rmdir /a",  # NotADirectoryError
}
#: The first words of the calls that change files.
_CHANGES = {"cp", "makedirs", "mkdir", "mv", "open", "pipe", "rm", "rmdir", "touch"}


def _outcome(fs: Any, at: str, name: str, call: Callable[[Any, str], object]) -> tuple[Any, Any]:
    """Return the result or the kind of the error of a call, and the files afterwards."""
    if not fs.exists(f"{at}/a"):
        for path, data in _FILES.items():
            fs.pipe_file(f"{at}/{path}", data)
    try:
        result: Any = call(fs, at)
    except IsADirectoryError:
        result = FileNotFoundError  # the error of the memory filesystem for a directory
    except (OSError, ValueError) as error:
        result = type(error)
    files = {}
    if name.split(maxsplit=1)[0] in _CHANGES:
        files = {path[len(at) :]: fs.cat_file(path) for path in fs.find(at)}
        fs.rm(at, recursive=True) if fs.exists(at) else None
    return _relative(result, at), files


def _relative(value: Any, at: str) -> Any:
    """Return a result with paths below a folder."""
    if isinstance(value, dict):
        return {_relative(key, at): _relative(item, at) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_relative(item, at) for item in value]
    return value.replace(at, "") if isinstance(value, str) else value


@pytest.mark.timeout(240)
def test_calls_have_the_results_of_the_memory_filesystem(fs: Any) -> None:
    """Each call returns or raises the same, and leaves the same files."""
    differences = {}
    memory = fsspec.filesystem("memory")
    calls = _calls()
    assert len(calls) > 350
    for name, call in calls.items():
        outcomes = [_outcome(fs, "DATA/at", name, call), _outcome(memory, "/at", name, call)]
        if outcomes[0] != outcomes[1]:
            differences[name] = outcomes
    report = "\n".join(f"{name}: {a[0]!r:.90} {b[0]!r:.90}" for name, (a, b) in differences.items())
    assert differences.keys() == _DIFFERENCES, report


# --- tools -----------------------------------------------------------------------------------------

_ROWS = 200_000


@pytest.fixture
def frame() -> pd.DataFrame:
    """A table of a few megabytes."""
    import pandas as pd

    return pd.DataFrame(
        {
            "number": range(_ROWS),
            "text": [f"row {number}" for number in range(_ROWS)],
            "part": [number % 3 for number in range(_ROWS)],
        }
    )


def test_pandas(options: dict[str, str], frame: pd.DataFrame) -> None:
    """Parquet, CSV and JSON, also compressed and in an archive."""
    import pandas as pd

    small = frame.head(1000)
    for name in ("a.parquet", "a.csv", "a.csv.gz", "a.csv.zip", "a.tar.gz", "a.json"):
        where = f"jetstream://DATA/{name}"
        kind = {"parquet": "parquet", "json": "json"}.get(name[2:], "csv")
        if kind == "parquet":
            frame.to_parquet(where, storage_options=options)
            assert pd.read_parquet(where, storage_options=options).equals(frame)
            columns = pd.read_parquet(where, columns=["part"], storage_options=options)
            assert columns.equals(frame[["part"]])
        elif kind == "json":
            small.to_json(where, storage_options=options)
            assert pd.read_json(where, storage_options=options).equals(small)
        else:
            small.to_csv(where, index=False, storage_options=options)
            assert pd.read_csv(where, storage_options=options).equals(small)


def test_pyarrow(fs: Any, js: JetStream, frame: pd.DataFrame) -> None:
    """A dataset in several directories, of which some columns are read."""
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.fs
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame)
    pq.write_to_dataset(table, "DATA/set", filesystem=fs, partition_cols=["part"])
    assert len(fs.glob("DATA/set/part=*/*.parquet")) == 3
    dataset = pyarrow.dataset.dataset("DATA/set", filesystem=fs, partitioning="hive")
    found = dataset.to_table(filter=pyarrow.dataset.field("part") == 1, columns=["number"])
    assert sorted(found["number"].to_pylist()) == list(range(1, _ROWS, 3))
    pq.write_table(table, "DATA/one.parquet", filesystem=fs, compression="none")
    stored = js.object_store("DATA").info("one.parquet").size
    received = shared_connection(fs.storage_options["servers"]).stats
    before = received["in_bytes"]
    assert pq.read_metadata("DATA/one.parquet", filesystem=fs).num_rows == _ROWS
    received = shared_connection(fs.storage_options["servers"]).stats
    assert received["in_bytes"] - before < stored / 2
    native = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs))
    native.delete_dir_contents("DATA/set")
    native.move("DATA/one.parquet", "DATA/two.parquet")
    assert fs.find("DATA") == ["DATA/two.parquet"]


def test_polars(fs: Any, frame: pd.DataFrame) -> None:
    """A frame is written to and read from files."""
    import polars as pl
    import pyarrow.dataset

    table = pl.from_pandas(frame)
    with fs.open("DATA/a.parquet", "wb") as file:
        table.write_parquet(file)
    with fs.open("DATA/a.parquet") as file:
        assert pl.read_parquet(file).equals(table)
    dataset = pyarrow.dataset.dataset("DATA/a.parquet", filesystem=fs)
    found = pl.scan_pyarrow_dataset(dataset).filter(pl.col("number") < 5).collect()
    assert found.height == 5


def test_duckdb(fs: Any, frame: pd.DataFrame) -> None:
    """Queries read and write files by their URLs."""
    import duckdb

    with duckdb.connect() as db:
        db.register_filesystem(fs)
        db.execute("COPY (SELECT * FROM frame) TO 'jetstream://DATA/d/1.parquet' (FORMAT parquet)")
        db.execute("COPY (SELECT 7 AS number) TO 'jetstream://DATA/d/2.parquet' (FORMAT parquet)")
        query = "SELECT count(*), sum(number) FROM read_parquet('jetstream://DATA/d/1.parquet')"
        assert db.execute(query).fetchall() == [(_ROWS, frame["number"].sum())]
        query = (
            "SELECT count(*) FROM read_parquet('jetstream://DATA/d/*.parquet', union_by_name=true)"
        )
        assert db.execute(query).fetchall() == [(_ROWS + 1,)]
        assert fs.find("DATA") == ["DATA/d/1.parquet", "DATA/d/2.parquet"]
        split = "COPY (SELECT i % 3 AS a, i FROM range(9) r(i)) TO 'jetstream://DATA/new/parts'"
        db.execute(f"{split} (FORMAT csv, PARTITION_BY (a))")
        query = "SELECT count(*) FROM read_csv('jetstream://DATA/new/parts/*/*.csv')"
        assert db.execute(query).fetchall() == [(9,)]


def test_pyarrow_copies_stay_in_their_folder(fs: Any, js: JetStream, tmp_path: Path) -> None:
    """``copy_files`` writes no file outside of its target, whatever the names of the objects are."""
    import pyarrow.fs

    store = js.object_store("DATA")
    for name in ("../x", "a/../../y", f"{tmp_path}/z", "a//b", "plain"):
        store.put(name, b"1")
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    source = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    pyarrow.fs.copy_files("DATA", str(target), source_filesystem=source)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 5
    assert all(target in path.parents for path in written)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_dask(options: dict[str, str], frame: pd.DataFrame) -> None:
    """A frame of several parts is written to and read from a directory."""
    import dask
    import dask.bag
    import dask.bytes

    with dask.config.set(scheduler="threads"):
        parts = [f"jetstream://DATA/bag/{number}.txt" for number in range(3)]
        bag = dask.bag.from_sequence([str(number) for number in range(9)], npartitions=3)
        bag.to_textfiles("jetstream://DATA/bag/*.txt", storage_options=options)
        text = dask.bag.read_text("jetstream://DATA/bag/*.txt", storage_options=options)
        assert [line.strip() for line in text.compute()] == [str(number) for number in range(9)]
        fs = fsspec.filesystem("jetstream", **options)
        assert fs.find("DATA/bag") == [part.removeprefix("jetstream://") for part in parts]
        frame.head(10_000).to_csv("jetstream://DATA/a.csv", index=False, storage_options=options)
        _, blocks = dask.bytes.read_bytes(
            "jetstream://DATA/a.csv", blocksize=50_000, delimiter=b"\n", **options
        )
        data = b"".join(dask.compute(*blocks[0]))
        assert data == fs.cat("DATA/a.csv")
        dd = pytest.importorskip("dask.dataframe", exc_type=ImportError)
        made = dd.from_pandas(frame, npartitions=2)
        made.to_parquet("jetstream://DATA/dask", storage_options=options)
        found = dd.read_parquet("jetstream://DATA/dask", storage_options=options)
        assert found["number"].sum().compute() == frame["number"].sum()


@pytest.mark.filterwarnings("ignore")
def test_zarr(options: dict[str, str]) -> None:
    """An array with shards is written to a URL, and parts of it are read."""
    import numpy as np
    import zarr

    where = "jetstream://DATA/array.zarr"
    array = zarr.create_array(
        where, shape=(400, 400), chunks=(50, 50), shards=(200, 200), dtype="i4",
        storage_options=options,
    )  # fmt: skip
    data = np.arange(160_000, dtype="i4").reshape(400, 400)
    array[:] = data
    found = zarr.open_array(where, mode="r", storage_options=options)
    assert (found[100:160, 390:] == data[100:160, 390:]).all()
    assert (found[:] == data).all()


def test_archives(fs: Any) -> None:
    """Archives are written to files, and members are read without the rest."""
    with fs.open("DATA/a.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("big", bytes(3_000_000))
        archive.writestr("small", b"1")
    with fs.open("DATA/a.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("small") == b"1"
    with fs.open("DATA/a.tar", "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo("x")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"123"))
    with fs.open("DATA/a.tar") as file, tarfile.open(fileobj=file) as tar:
        member = tar.extractfile("x")
        assert member is not None
        assert member.read() == b"123"


def test_many_directories_are_found_in_one_listing(fs: Any, js: JetStream) -> None:
    """2,000 objects in 401 directories are found in less than 0.3 seconds."""
    store = js.object_store("DATA")
    for number in range(2000):
        store.put(f"top/{number % 400}/{number}", b"1")
    for call in (
        fs.find,
        fs.du,
        lambda path: fs.glob(f"{path}/**"),
        lambda path: list(fs.walk(path)),
    ):
        started = time.perf_counter()
        assert call("DATA/top")
        elapsed = time.perf_counter() - started
        assert elapsed < 0.3 * SCALE


def test_the_page_about_data_frames_runs(fresh_server: NatsServer) -> None:
    """All code blocks run in order, in one namespace."""
    page = ROOT / "docs" / "howto" / "data.rst"
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8").replace(DOCUMENTED_URL, fresh_server.url)
    found = re.findall(r"^\.\. code-block:: python\n\n((?:\n|   .*\n)+)", text, re.MULTILINE)
    assert len(found) == text.count(".. code-block:: python") == 5
    for block in found:
        exec(compile(textwrap.dedent(block), str(page), "exec"), names)
    shared_connection(fresh_server.url).close()
