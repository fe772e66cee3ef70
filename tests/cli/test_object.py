"""``jsm object``: buckets of files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import Jsm, Terminal
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

from jetstream_sync.server import NatsServer

#: Three chunks, not UTF-8.
DATA = bytes(range(256)) * 1200


@pytest.fixture
def files(jsm: Jsm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with one object, and an empty current directory with the file ``data.bin``."""
    monkeypatch.chdir(tmp_path)
    Path("data.bin").write_bytes(DATA)
    jsm("object", "add", "FILES", "--storage", "memory").ok()
    jsm("object", "put", "FILES", "data.bin").ok()
    return "FILES"


def state(raw: RawClient, bucket: str = "FILES") -> dict[str, Any]:
    return raw.api(f"STREAM.INFO.OBJ_{bucket}")["state"]


def here() -> list[str]:
    """Return the names in the current directory."""
    return sorted(path.name for path in Path().iterdir())


class Relay:
    """Forwards one client to a server, and nothing from the server after some bytes."""

    def __init__(self, port: int, limit: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self.stopped = threading.Event()
        self._server = socket.create_connection(("127.0.0.1", port))
        self._client: socket.socket | None = None
        self._limit = limit
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        self._client, _ = self._listener.accept()
        threading.Thread(target=self._copy, args=(self._client, self._server), daemon=True).start()
        passed = 0
        while passed < self._limit and (data := self._server.recv(16384)):
            self._client.sendall(data)
            passed += len(data)
        self.stopped.set()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(16384):
                target.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        for item in (self._listener, self._server, self._client):
            if item is not None:
                item.close()


@pytest.fixture
def relay(nats_server: NatsServer) -> Iterator[Relay]:
    """A relay that stops within the second chunk of `DATA`."""
    made = Relay(nats_server.port, 200_000)
    yield made
    made.close()


# --- buckets ------------------------------------------------------------------------------------


def test_add_creates_the_stream_of_adr_20(jsm, raw):
    """The options of ``object add`` are in the config of the stream."""
    options = "--ttl 1h --max-bucket-size 1MiB --compress --metadata team=shop"
    words = ["--description", "our files", "-j"]
    made = jsm("object", "add", "FILES", *options.split(), *words).ok().json
    config = raw.api("STREAM.INFO.OBJ_FILES")["config"]
    assert config["subjects"] == ["$O.FILES.C.>", "$O.FILES.M.>"]
    assert (config["max_age"], config["max_bytes"]) == (3600 * 10**9, 1024 * 1024)
    assert (config["compression"], config["storage"]) == ("s2", "file")
    assert config["description"] == "our files"
    assert config["metadata"]["team"] == "shop"
    assert (made["bucket"], made["sealed"], made["ttl"]) == ("FILES", False, 3600 * 10**9)
    assert made["stream_info"]["config"]["name"] == "OBJ_FILES"


def test_buckets_are_listed(jsm, raw, files):
    """``object ls`` lists object stores only."""
    raw.api("STREAM.CREATE.OBJX", name="OBJX", subjects=["objx"], storage="memory")
    assert jsm("object", "ls", "-n").ok().out == f"{files}\n"
    assert [item["bucket"] for item in jsm("obj", "ls", "-j").ok().json] == [files]
    assert "Last Update" in jsm("object", "ls").ok().out


def test_a_sealed_bucket(jsm, files):
    """A sealed bucket can be read but not changed; sealing needs confirmation."""
    assert jsm("object", "seal", files).status == 2
    assert jsm("object", "seal", files, "-f", "-j").ok().json["sealed"] is True
    jsm("object", "seal", files).ok()
    assert jsm("object", "put", files, "data.bin", "--name", "other").status == 1
    assert jsm("object", "del", files, "data.bin", "-f").status == 1
    jsm("object", "get", files, "data.bin", "-O", "copy").ok()
    assert Path("copy").read_bytes() == DATA


# --- transfers ----------------------------------------------------------------------------------


def test_a_file_goes_in_and_out(jsm, raw, files):
    """A file is stored in chunks under its name, and comes back with its content and permissions."""
    assert state(raw)["messages"] == 4  # three chunks and the info
    Path("data.bin").unlink()
    done = jsm("object", "get", files, "data.bin", "-j").ok().json
    assert Path("data.bin").read_bytes() == DATA
    assert (done["size"], done["chunks"]) == (len(DATA), 3)
    assert done["file"] == str(Path("data.bin").resolve())
    plain = Path("plain")
    plain.touch()
    assert Path("data.bin").stat().st_mode == plain.stat().st_mode
    assert here() == ["data.bin", "plain"]


def test_pipes(jsm, files):
    """An object is read from standard input and written to standard output, unchanged."""
    child = jsm.spawn("object", "put", files, "--name", "piped", "--description", "by a pipe")
    out, err = child.communicate(DATA[:200_000], timeout=20 * SCALE)
    assert (child.returncode, err) == (0, b"")
    assert b"by a pipe" in out
    child = jsm.spawn("object", "get", files, "piped", "--output", "-")
    out, err = child.communicate(timeout=20 * SCALE)
    assert (child.returncode, out, err) == (0, DATA[:200_000], b"")
    assert jsm("object", "put", files, "-", stdin=b"x").status == 2
    assert jsm("object", "get", files, "piped", "-O", "-", "-j").status == 2


def test_the_info_of_an_object(jsm, files):
    """Headers, metadata and description are stored; the digest is that of the data."""
    words = [
        "-H",
        "kind:report",
        "-H",
        "kind: final",
        "--metadata",
        "by=me",
        "--description",
        "text",
    ]
    put = jsm("object", "put", files, "data.bin", "--name", "a/b", *words, "-j").ok().json
    shown = jsm("object", "info", files, "a/b", "-j").ok().json
    assert {**put, "mtime": None} == {**shown, "mtime": None}
    assert shown["headers"] == {"kind": ["report", "final"]}
    assert shown["metadata"] == {"by": "me"}
    text = jsm("object", "info", files, "a/b").ok().out
    assert "kind: report" in text
    digest = hashlib.sha256(DATA).digest()
    assert shown["digest"].startswith("SHA-256=")
    assert digest.hex() in text
    assert jsm("object", "put", files, "data.bin", "-H", "novalue").status == 2


def test_names(jsm, files):
    """An object has the path as its name; a download has the last part of the name."""
    Path("sub dir").mkdir()
    Path("sub dir/ü.txt").write_bytes(b"x")
    jsm("object", "put", files, "sub dir//ü.txt").ok()
    assert jsm("object", "ls", files, "-n").ok().out == "data.bin\nsub dir/ü.txt\n"
    jsm("object", "get", files, "sub dir/ü.txt").ok()
    assert Path("ü.txt").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["..", "/", "a/..", "sub/."])
def test_a_name_without_a_file_name(jsm, files, name):
    """A name that would lead to another directory is refused; --output names the file."""
    jsm("object", "put", files, "--name", name, "-f", stdin=b"x").ok()
    assert jsm("object", "get", files, name).status == 2
    jsm("object", "get", files, name, "-O", "safe", "-f").ok()
    assert Path("safe").read_bytes() == b"x"


def test_nothing_is_replaced_without_confirmation(jsm, files, terminal):
    """Neither an object nor a file is replaced without --force or an answer on a terminal."""
    Path("data.bin").write_bytes(b"mine")
    refused = jsm("object", "put", files, "data.bin")
    assert refused.status == 2
    assert "--force" in refused.err
    assert jsm("object", "info", files, "data.bin", "-j").ok().json["size"] == len(DATA)
    assert jsm("object", "get", files, "data.bin").status == 2
    for answer, status in (("n", 2), ("y", 0)):
        assert Path("data.bin").read_bytes() == b"mine"
        child = terminal("object", "get", files, "data.bin")
        child.answer("data.bin", answer)
        assert child.wait() == status
    assert Path("data.bin").read_bytes() == DATA
    Path("data.bin").write_bytes(b"mine")
    jsm("object", "put", files, "data.bin", "-f").ok()
    assert jsm("object", "get", files, "data.bin", "-O", "-").ok().out == "mine"


def test_a_replaced_object_leaves_no_chunks(jsm, raw, files):
    """After a replacement the stream has the new chunks only."""
    jsm("object", "put", files, "--name", "data.bin", "-f", stdin=b"small").ok()
    assert state(raw)["messages"] == 2


def test_output_to_what_is_no_file(jsm, files):
    """A device is written to, not replaced; a directory and a missing directory are refused."""
    jsm("object", "get", files, "data.bin", "-O", os.devnull).ok()
    assert not Path(os.devnull).is_file()
    Path("folder").mkdir()
    assert jsm("object", "get", files, "data.bin", "-O", "folder").status == 2
    assert jsm("object", "get", files, "data.bin", "-O", "none/file").status == 2
    Path("target").write_bytes(b"")
    Path("pointer").symlink_to("target")
    jsm("object", "get", files, "data.bin", "-O", "pointer", "-f").ok()
    assert Path("pointer").is_symlink()
    assert Path("target").read_bytes() == DATA


# --- interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_put_leaves_nothing(jsm, raw, files, number, status):
    """When a put ends by a signal, its chunks are purged, and the older object stays."""
    with jsm.spawn("object", "put", files, "-", "--name", "data.bin", "-f") as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(b"x" * 1_000_000)
        child.stdin.flush()
        wait_until(lambda: state(raw)["messages"] > 6)
        child.send_signal(number)
        assert child.wait(20 * SCALE) == status
        assert b"Traceback" not in child.stderr.read()
    assert state(raw)["messages"] == 4
    assert jsm("object", "info", files, "data.bin", "-j").ok().json["size"] == len(DATA)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_get_leaves_nothing(jsm, files, relay, number, status):
    """When a get ends by a signal, an existing file is unchanged and no other is left."""
    Path("data.bin").write_bytes(b"before")
    child = jsm.spawn("object", "get", files, "data.bin", "-f", NATS_URL=relay.url)
    assert relay.stopped.wait(20 * SCALE)
    child.send_signal(number)
    _, err = child.communicate(timeout=20 * SCALE)
    assert (child.returncode, b"Traceback" in err) == (status, False), err
    assert here() == ["data.bin"]
    assert Path("data.bin").read_bytes() == b"before"


def test_a_damaged_object_is_not_written(jsm, raw, files):
    """When a chunk is missing, the status is 1, and there is no file."""
    raw.api("STREAM.MSG.DELETE.OBJ_FILES", seq=2)
    result = jsm("object", "get", files, "data.bin", "-O", "copy")
    assert (result.status, result.out) == (1, "")
    assert here() == ["data.bin"]


def test_a_bar_on_a_terminal_only(jsm, files, terminal):
    """Progress is drawn on a terminal; pipes have none."""
    shown: Terminal = terminal("object", "get", files, "data.bin", "-O", "copy")
    assert shown.wait() == 0
    assert "Reading data.bin" in shown.text
    assert jsm("object", "get", files, "data.bin", "-O", "third").ok().err == ""


# --- objects ------------------------------------------------------------------------------------


def test_objects_that_cannot_be_read_are_named(jsm, nc, files):
    """The readable ones are listed, and the status is 1; an empty list is not said to be empty."""
    nc.jetstream().publish(f"$O.{files}.M.YQ==", b"of another program")
    for options in ([], ["-n"], ["-j"]):
        done = jsm("object", "ls", files, *options)
        assert (done.status, "data.bin" in done.out) == (1, True)
        assert "'a'" in done.err
    jsm("object", "del", files, "data.bin", "-f").ok()
    done = jsm("object", "ls", files)
    assert (done.status, done.out) == (1, "")


def test_objects_are_listed_and_deleted(jsm, raw, files):
    """Deleted objects are not listed, and their chunks are gone; one unknown name stops all."""
    jsm("object", "put", files, "--name", "more", stdin=b"x").ok()
    assert [item["name"] for item in jsm("object", "ls", files, "-j").ok().json] == [
        "data.bin",
        "more",
    ]
    assert "300.0 KiB" in jsm("object", "ls", files).ok().out
    assert jsm("object", "del", files, "data.bin").status == 2
    assert jsm("object", "del", files, "data.bin", "none", "-f").status == 3
    done = jsm("object", "del", files, "data.bin", "none", "-f", "--ignore-missing", "-j").ok()
    assert done.json == {"bucket": files, "deleted": ["data.bin"]}
    assert jsm("object", "ls", files, "-n").ok().out == "more\n"
    assert state(raw)["messages"] == 3
    assert jsm("object", "get", files, "data.bin", "-O", "x").status == 3
    assert jsm("object", "del", files, "data.bin", "-f").status == 3
    assert jsm("object", "del", files, "", "-f").status == 2


def test_links(jsm, files, js):
    """A link reads its target, also one in another bucket."""
    jsm("object", "add", "OTHER", "--storage", "memory").ok()
    store, other = js.object_store(files), js.object_store("OTHER")
    other.add_link("far", store.info("data.bin"))
    other.add_bucket_link("all", store)
    jsm("object", "get", "OTHER", "far", "-O", "linked", "-f").ok()
    assert Path("linked").read_bytes() == DATA
    assert "Link: FILES > data.bin" in jsm("object", "info", "OTHER", "far").ok().out
    assert jsm("object", "get", "OTHER", "all", "-O", "x").status == 2


def test_a_watch_names_what_it_cannot_read(jsm, nc, js, files):
    """An info that is no JSON is a warning, and the watch goes on."""
    nc.publish(f"$O.{files}.M.YQ==", b"{")
    nc.flush()
    js.object_store(files).put("later", b"1")
    found = jsm("object", "watch", files, "--count", "2").ok()
    assert [line.split(" > ")[1].split(":")[0] for line in found.out.splitlines()] == [
        "data.bin",
        "later",
    ]
    assert "warning: invalid JSON" in found.err


def test_watch(jsm, files):
    """``object watch`` shows the present objects and each change, until Ctrl-C."""
    child = jsm.spawn("object", "watch", files, "-j")
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["name"] == "data.bin"
    jsm("object", "put", files, "--name", "new", stdin=b"abc").ok()
    jsm("object", "del", files, "data.bin", "-f").ok()
    documents = [json.loads(child.stdout.readline()) for _ in range(2)]
    assert [(document["name"], document.get("deleted", False)) for document in documents] == [
        ("new", False),
        ("data.bin", True),
    ]
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20 * SCALE)
    assert (child.returncode, b"Traceback" in err) == (130, False)
    lines = jsm("object", "watch", files, "--count", "2").ok().out.splitlines()
    assert [line.partition("] ")[2] for line in lines] == [
        "PUT FILES > new: 3 B",
        "DEL FILES > data.bin",
    ]


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "words",
    [
        "info FILES none",
        "get FILES none -O x",
    ],
)
def test_what_does_not_exist(jsm, words):
    """A bucket or object that does not exist ends a command with status 3, in one line."""
    result = jsm("object", *words.split())
    assert (result.status, result.out) == (3, "")
    assert result.err.count("\n") == 1
    assert jsm("object", *words.split(), "-j").error["exit_status"] == 3
    assert here() == ["data.bin"]


@pytest.mark.parametrize(
    "words",
    [
        "put FILES --name \udcff",
        "info FILES \udcff",
    ],
)
def test_wrong_usage(jsm, files, words):
    """Invalid arguments end a command with status 2, in one line, and change nothing."""
    result = jsm("object", *words.split(" "))
    assert (result.status, result.out) == (2, ""), result
    assert result.err.splitlines()[-1].startswith("jsm: ")
    assert jsm("object", "ls", files, "-n").ok().out == "data.bin\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it needs /dev/full")
def test_an_error_of_a_file_names_it(jsm, files):
    """The error names the file that was given, not a temporary one, whether it is opened, read or written."""
    for words, status, text in (
        (("get", files, "data.bin", "-O", "/dev/full"), 1, "/dev/full: No space left on device"),
        (("put", files, "/proc/self/mem", "--name", "q"), 2, "/proc/self/mem: Input/output error"),
    ):
        failed = jsm("object", *words)
        assert (failed.status, failed.out, failed.err) == (status, "", f"jsm: {text}\n")
