"""``jsm kv``: buckets, keys and values."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from typing import Any

import pytest
from fixtures.jsm import Jsm
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

#: Not UTF-8, with line breaks, a NUL, and an escape that clears a terminal.
BINARY = b"\xff\x00line\r\n\x1b[2Jend\n\n"


@pytest.fixture
def config(jsm: Jsm) -> str:
    """A bucket that keeps three revisions, with two keys."""
    jsm("kv", "add", "CONFIG", "--history", "3", "--storage", "memory").ok()
    for key, value in (("db.url", "one"), ("db.url", "two"), ("name", "shop")):
        jsm("kv", "put", "CONFIG", key, value).ok()
    return "CONFIG"


def stream(raw: RawClient, bucket: str) -> dict[str, Any]:
    return raw.api(f"STREAM.INFO.KV_{bucket}")


# --- buckets ------------------------------------------------------------------------------------


def test_add_creates_the_stream_of_adr_8(jsm, raw):
    """The options of ``kv add`` are in the config of the stream, which other clients can use."""
    options = "--history 5 --ttl 1h --max-value-size 1KiB --max-bucket-size 1MiB --compress"
    words = ["--description", "our settings", "--metadata", "team=shop"]
    made = jsm("kv", "add", "CONFIG", *options.split(), *words, "-j").ok().json
    config = stream(raw, "CONFIG")["config"]
    assert config["subjects"] == ["$KV.CONFIG.>"]
    assert config["max_msgs_per_subject"] == 5
    assert config["max_age"] == 3600 * 10**9
    assert (config["max_msg_size"], config["max_bytes"]) == (1024, 1024 * 1024)
    assert (config["compression"], config["storage"]) == ("s2", "file")
    assert config["description"] == "our settings"
    assert config["metadata"]["team"] == "shop"
    assert (config["deny_delete"], config["allow_rollup_hdrs"]) == (True, True)
    shown = {name: made[name] for name in ("bucket", "history", "ttl", "max_value_size", "bytes")}
    assert shown == {
        "bucket": "CONFIG",
        "history": 5,
        "ttl": 3600 * 10**9,
        "max_value_size": 1024,
        "bytes": 0,
    }
    assert made["stream_info"]["config"]["name"] == "KV_CONFIG"


def test_a_mirror_and_a_source(jsm, raw, config):
    """A mirror and an aggregate of a bucket have its keys."""
    jsm("kv", "add", "COPY", "--mirror", config, "--storage", "memory").ok()
    jsm("kv", "add", "ALL", "--source", config, "--storage", "memory").ok()
    assert stream(raw, "COPY")["config"]["mirror"]["name"] == "KV_CONFIG"
    for bucket in ("COPY", "ALL"):
        wait_until(lambda: jsm("kv", "get", bucket, "db.url").out == "two")  # noqa: B023
    assert jsm("kv", "info", "COPY").ok().out.count("KV_CONFIG") >= 1


def test_add_twice(jsm):
    """Creating a bucket again succeeds with the same config, and fails with another one."""
    words = ["kv", "add", "CONFIG", "--storage", "memory"]
    assert jsm(*words).ok().out.startswith("Key-Value Bucket CONFIG was created\n")
    assert jsm(*words).ok().out.startswith("Key-Value Bucket CONFIG is unchanged\n")
    assert jsm(*words, "--history", "9").status == 1


def test_edit_changes_only_what_is_given(jsm, raw, config):
    """``kv edit`` keeps the other fields of the config, and the keys."""
    words = ["kv", "edit", config, "--ttl", "1d", "--description", "new", "--metadata", "a=b"]
    assert jsm(*words).status == 2
    jsm(*words, "--force").ok()
    jsm("kv", "edit", config, "--metadata", "c=d", "--force").ok()
    found = stream(raw, config)["config"]
    assert (found["max_msgs_per_subject"], found["storage"]) == (3, "memory")
    assert (found["max_age"], found["description"]) == (86400 * 10**9, "new")
    assert {"a": "b", "c": "d"}.items() <= found["metadata"].items()
    assert jsm("kv", "edit", config, "--force").status == 2
    assert jsm("kv", "get", config, "name").ok().out == "shop"


@pytest.mark.usefixtures("config")
def test_buckets_are_listed(jsm, raw):
    """``kv ls`` lists buckets only, with their size and number of values."""
    raw.api("STREAM.CREATE.KVX", name="KVX", subjects=["kvx"], storage="memory")
    jsm("kv", "add", "ANOTHER", "--storage", "memory").ok()
    assert jsm("kv", "ls", "-n").ok().out == "ANOTHER\nCONFIG\n"
    assert jsm("kv", "ls", "-n", "-j").ok().json == ["ANOTHER", "CONFIG"]
    listed = {item["bucket"]: item["values"] for item in jsm("kv", "ls", "-j").ok().json}
    assert listed == {"ANOTHER": 0, "CONFIG": 3}
    assert "Last Update" in jsm("kv", "ls").ok().out


def test_a_bucket_is_deleted_after_confirmation(jsm, raw, config, terminal):
    """Without a terminal, a bucket is deleted only with --force; several names work the same."""
    refused = jsm("kv", "rm", config)
    assert refused.status == 2
    assert "--force" in refused.err
    for answer, status in (("n", 2), ("y", 0)):
        assert stream(raw, config)["state"]["messages"] == 3
        child = terminal("kv", "rm", config)
        child.answer(f"Delete key-value bucket {config}", answer)
        assert child.wait() == status
    assert f"Key-Value Bucket {config} was deleted" in child.text
    assert raw.api(f"STREAM.INFO.KV_{config}")["error"]["err_code"] == 10059
    assert jsm("kv", "rm", config, "-f").status == 3
    assert jsm("kv", "rm", config, "-f", "--ignore-missing", "-j").ok().json == {"deleted": []}


# --- values -------------------------------------------------------------------------------------


def test_values_are_bytes(jsm, raw, config):
    """A value of any bytes goes in by standard input and comes out of a pipe unchanged."""
    jsm("kv", "put", config, "raw", stdin=BINARY).ok()
    assert raw.stored("KV_CONFIG")[-1].data == BINARY
    child = jsm.spawn("kv", "get", config, "raw")
    out, err = child.communicate(timeout=20 * SCALE)
    assert (child.returncode, out, err) == (0, BINARY, b"")


def test_a_dash_reads_standard_input(jsm, config):
    """A value of '-' is read from standard input; an empty one is a value."""
    assert jsm("kv", "put", config, "k", "-", stdin=b"typed\n").ok().status == 0
    assert jsm("kv", "get", config, "k").ok().out == "typed\n"
    jsm("kv", "put", config, "k", "", stdin=b"not read").ok()
    assert jsm("kv", "get", config, "k").ok().out == ""


def test_an_argument_that_is_not_utf_8(jsm, raw, config):
    """An argument is stored as the bytes that the shell passed."""
    jsm("kv", "put", config, "k", os.fsdecode(b"K\xf6ln")).ok()
    assert raw.stored("KV_CONFIG")[-1].data == b"K\xf6ln"


def test_a_terminal_gets_text(jsm, config):
    """On a terminal a value is shown with escapes; --raw writes it unchanged."""
    jsm("kv", "put", config, "raw", stdin=BINARY).ok()
    shown = jsm("kv", "get", config, "raw", tty=True).ok().out
    assert "CONFIG > raw revision: 4" in shown
    assert "\\xff\\x00line" in shown
    assert "\x1b" not in shown
    raw = jsm("kv", "get", config, "name", "--raw", tty=True).ok()
    assert raw.out == "shop"


def test_the_document_of_a_value(jsm, config):
    """With -j, a value is base64, and text where it is UTF-8."""
    found = jsm("kv", "get", config, "db.url", "-j").ok().json
    assert found.pop("created").endswith("Z")
    assert found == {
        "bucket": "CONFIG",
        "key": "db.url",
        "revision": 2,
        "operation": "PUT",
        "data": base64.b64encode(b"two").decode(),
        "text": "two",
    }
    jsm("kv", "put", config, "raw", stdin=BINARY).ok()
    found = jsm("kv", "get", config, "raw", "-j").ok().json
    assert base64.b64decode(found["data"]) == BINARY
    assert "text" not in found
    assert jsm("kv", "get", config, "raw", "-j", "--raw").status == 2


def test_older_revisions(jsm, config):
    """A revision of the key can be read, and one of another key cannot."""
    assert jsm("kv", "get", config, "db.url", "--revision", "1").ok().out == "one"
    assert jsm("kv", "get", config, "db.url", "--revision", "3").status == 3
    found = jsm("kv", "history", config, "db.url", "-j").ok().json
    assert [(item["revision"], item["text"]) for item in found] == [(1, "one"), (2, "two")]
    shown = jsm("kv", "history", config, "db.url").ok().out
    assert shown.splitlines()[-1].split()[:2] == ["2", "PUT"]


def test_the_history_of_a_deleted_key(jsm, config):
    """The history shows deletions as well; a purge leaves only itself."""
    jsm("kv", "del", config, "db.url", "-f").ok()
    said = [item["operation"] for item in jsm("kv", "history", config, "db.url", "-j").ok().json]
    assert said == ["PUT", "PUT", "DELETE"]
    jsm("kv", "purge", config, "db.url", "-f").ok()
    said = [item["operation"] for item in jsm("kv", "history", config, "db.url", "-j").ok().json]
    assert said == ["PURGE"]


def test_json_errors_name_the_key(jsm, config):
    """The description of a missing or deleted key is the text of a terminal without the codes."""
    jsm("kv", "del", config, "db.url", "-f").ok()
    for key, end in (("absent", ""), ("db.url", ", deleted at revision ")):
        failed = jsm("kv", "get", config, key, "-j")
        assert failed.status == 3
        error = json.loads(failed.err)["error"]
        assert error["description"].startswith(
            f"key {key!r} has no value in bucket {config!r}{end}"
        )
        assert (error["code"], error["err_code"]) == (404, 10037)
        assert "10037" not in error["description"]


def test_create_is_for_new_keys(jsm, config):
    """``kv create`` stores a key that does not exist or was deleted, and fails with 1 otherwise."""
    assert jsm("kv", "create", config, "name", "other").status == 1
    assert jsm("kv", "get", config, "name").ok().out == "shop"
    assert jsm("kv", "create", config, "fresh", "1", "-j").ok().json["revision"] == 4
    jsm("kv", "del", config, "name", "-f").ok()
    jsm("kv", "create", config, "name", stdin=b"again").ok()
    assert jsm("kv", "get", config, "name").ok().out == "again"


def test_update_compares_the_revision(jsm, config):
    """``kv update`` stores only over the given revision; 0 is for a key that does not exist."""
    assert jsm("kv", "update", config, "name", "late", "1").status == 1
    assert jsm("kv", "get", config, "name").ok().out == "shop"
    updated = jsm("kv", "update", config, "name", "-", "3", "-j", stdin=b"mall").ok()
    assert updated.json == {"bucket": "CONFIG", "key": "name", "revision": 4}
    assert jsm("kv", "get", config, "name").ok().out == "mall"
    jsm("kv", "update", config, "none", "new", "0").ok()


def test_revert_stores_an_older_value(jsm, config):
    """``kv revert`` stores the value of an older revision again, after confirmation."""
    assert jsm("kv", "revert", config, "db.url", "1").status == 2
    assert jsm("kv", "revert", config, "db.url", "3", "-f").status == 3
    jsm("kv", "revert", config, "db.url", "1", "-f").ok()
    assert jsm("kv", "get", config, "db.url").ok().out == "one"


def test_delete_and_purge_need_confirmation(jsm, raw, config):
    """Without a terminal, ``del``, ``purge`` and ``compact`` need --force."""
    before = raw.stored("KV_CONFIG")
    for words in (["del", config, "name"], ["purge", config, "name"], ["compact", config]):
        refused = jsm("kv", *words)
        assert (refused.status, refused.out) == (2, "")
        assert "--force" in refused.err
        assert jsm("kv", *words, tty=True, stdin=b"\n").status == 2
    assert raw.stored("KV_CONFIG") == before


def test_several_keys_are_deleted_or_none(jsm, config):
    """One unknown key stops the deletion of all; --ignore-missing deletes the others."""
    assert jsm("kv", "del", config, "name", "unknown", "-f").status == 3
    assert jsm("kv", "get", config, "name").ok().out == "shop"
    done = jsm("kv", "del", config, "name", "unknown", "-f", "--ignore-missing", "-j").ok()
    assert done.json == {"bucket": "CONFIG", "deleted": ["name"]}
    assert jsm("kv", "get", config, "name").status == 3
    assert jsm("kv", "del", config, "name", "-f").status == 3


def test_an_empty_key_does_not_delete_the_bucket(jsm, raw, config):
    """An empty argument, as of an unset variable in quotes, is not the form that deletes a bucket."""
    for command in ("del", "rm", "purge"):
        assert jsm("kv", command, config, "", "-f").status == 2
    assert stream(raw, config)["state"]["messages"] == 3


def test_compact_frees_deleted_keys(jsm, raw, config):
    """``kv compact`` purges the history of deleted keys, and old markers; live values stay."""
    jsm("kv", "del", config, "db.url", "-f").ok()
    assert jsm("kv", "compact", config, "-f", "-j").ok().json == {"bucket": "CONFIG", "purged": 2}
    assert [item.seq for item in raw.stored("KV_CONFIG")] == [3, 4]
    jsm("kv", "compact", config, "-f", "--older-than", "0").ok()
    assert [item.data for item in raw.stored("KV_CONFIG")] == [b"shop"]


@pytest.mark.server(">=2.11")
def test_a_key_expires(jsm):
    """A key with --ttl expires in a bucket with markers."""
    jsm("kv", "add", "T", "--marker-ttl", "5s", "--storage", "memory").ok()
    jsm("kv", "create", "T", "k", "v", "--ttl", "3s").ok()
    assert jsm("kv", "get", "T", "k").ok().out == "v"
    wait_until(lambda: jsm("kv", "get", "T", "k").status == 3)
    assert jsm("kv", "create", "T", "j", "v", "--ttl", "10ms").status == 2


@pytest.mark.server("<2.11")
def test_markers_need_a_newer_server(jsm):
    """On an older server, --marker-ttl fails and leaves no bucket behind."""
    said = jsm("kv", "add", "T", "--marker-ttl", "5s")
    assert said.status == 2
    assert jsm("kv", "ls", "-n").ok().out == ""


# --- keys ---------------------------------------------------------------------------------------


def test_keys_are_listed(jsm, config):
    """``kv ls BUCKET``, or ``kv keys``, lists live keys, all or by pattern."""
    jsm("kv", "put", config, "gone", "1").ok()
    jsm("kv", "del", config, "gone", "-f").ok()
    assert jsm("kv", "keys", config).ok().out == "db.url\nname\n"
    assert jsm("kv", "ls", config, "-j").ok().json == ["db.url", "name"]
    assert jsm("kv", "ls", config, "db.*", "-j").ok().json == ["db.url"]
    assert jsm("kv", "ls", config, "db", "-j").ok().json == []


def test_keys_with_their_values(jsm, config):
    """``kv ls -v`` shows the revision and the value of each key."""
    rows = jsm("kv", "ls", config, "-v").ok().out.splitlines()
    assert [row.split()[-2:] for row in rows[2:]] == [["2", "two"], ["3", "shop"]]
    found = jsm("kv", "ls", config, "-v", "-j").ok().json
    assert {item["key"]: item["text"] for item in found} == {"db.url": "two", "name": "shop"}
    (found,) = jsm("kv", "ls", config, "db.>", "-v", "-j").ok().json
    assert found["key"] == "db.url"


# --- watch --------------------------------------------------------------------------------------


def lines_of(child: subprocess.Popen[bytes], number: int) -> list[Any]:
    """Read some JSON lines of a running command."""
    assert child.stdout is not None
    return [json.loads(child.stdout.readline()) for _ in range(number)]


def seen(documents: list[Any]) -> list[tuple[str, str, str]]:
    return [
        (document["operation"], document["key"], document.get("text", "")) for document in documents
    ]


def test_watch_shows_values_and_changes(jsm, config):
    """``kv watch`` shows the present values, then changes, until Ctrl-C ends it with 130."""
    child = jsm.spawn("kv", "watch", config, "-j")
    assert seen(lines_of(child, 2)) == [("PUT", "db.url", "two"), ("PUT", "name", "shop")]
    jsm("kv", "put", config, "db.url", "three").ok()
    jsm("kv", "del", config, "name", "-f").ok()
    jsm("kv", "purge", config, "db.url", "-f").ok()
    assert seen(lines_of(child, 3)) == [
        ("PUT", "db.url", "three"),
        ("DELETE", "name", ""),
        ("PURGE", "db.url", ""),
    ]
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20 * SCALE)
    assert (child.returncode, out) == (130, b"")
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--history", "--count", "3"], ["one", "two", "shop"]),
        (["db.*", "--count", "1"], ["two"]),
        (["name", "db.url", "--count", "2"], ["two", "shop"]),
        (["--revision", "2", "--count", "2"], ["two", "shop"]),
    ],
)
def test_watch_options(jsm, config, words, expected):
    """The options of ``kv watch`` select what is shown first."""
    found = jsm("kv", "watch", config, *words, "-j").ok().lines
    assert [item["text"] for item in found] == expected


def test_watch_only_updates_and_no_deletes(jsm, config):
    """--updates leaves out the present values, and --no-deletes the deletions."""
    child = jsm.spawn("kv", "watch", config, "--updates", "--no-deletes", "--count", "1")
    assert child.stderr is not None
    assert child.stderr.readline() == b"Watching CONFIG\n"
    jsm("kv", "del", config, "name", "-f").ok()
    jsm("kv", "put", config, "db.url", stdin=b"a\x1b[2Jb").ok()
    out, err = child.communicate(timeout=20 * SCALE)
    assert (child.returncode, err) == (0, b"")
    assert out.decode().rstrip().endswith("PUT CONFIG > db.url: a\\x1b[2Jb")
    assert jsm("kv", "watch", config, "--updates", "--history").status == 2


def test_watch_survives_a_restart(fresh_server):
    """A watch continues after a restart of the server, and shows each change once."""
    jsm = Jsm(fresh_server)
    jsm("kv", "add", "W").ok()
    jsm("kv", "put", "W", "a", "1").ok()
    child = jsm.spawn("kv", "watch", "W", "-j", "--count", "2")
    assert seen(lines_of(child, 1)) == [("PUT", "a", "1")]
    fresh_server.restart()
    jsm("kv", "put", "W", "a", "2").ok()
    out, err = child.communicate(timeout=60 * SCALE)
    assert child.returncode == 0, err
    assert seen([json.loads(line) for line in out.splitlines()]) == [("PUT", "a", "2")]


def test_watch_ends_with_the_bucket(jsm, config):
    """When the bucket is deleted, the watch ends with status 3."""
    child = jsm.spawn("kv", "watch", config, "name", "-j")
    lines_of(child, 1)
    jsm("kv", "rm", config, "-f").ok()
    _, err = child.communicate(timeout=60 * SCALE)
    assert child.returncode == 3, err


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "words",
    [
        "get NONE k",
        "ls NONE",
        "revert NONE k 1 -f",
        "rm NONE -f",
        "get CONFIG none",
        "revert CONFIG none 1 -f",
    ],
)
def test_what_does_not_exist(jsm, words):
    """A bucket or key that does not exist ends a command with status 3, in one line."""
    result = jsm("kv", *words.split())
    assert (result.status, result.out) == (3, "")
    assert result.err.count("\n") == 1
    assert jsm("kv", *words.split(), "-j").error["exit_status"] == 3


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "words",
    [
        "get CONFIG a..b",
        "put CONFIG a* v",
        "create CONFIG k v --ttl 1ms",
        "keys CONFIG a*b",
    ],
)
def test_wrong_usage(jsm, words):
    """Invalid arguments end a command with status 2, in one line, and change nothing."""
    result = jsm("kv", *words.split())
    assert (result.status, result.out) == (2, ""), result
    assert result.err.splitlines()[-1].startswith("jsm: ")
    assert len(jsm("kv", "ls", "-n", "-j").ok().json) == 1


def test_values_that_do_not_fit(jsm):
    """A value above the limit of the bucket and a bucket that is full are refused with status 1."""
    jsm("kv", "add", "S", "--max-value-size", "10", "--max-bucket-size", "200").ok()
    assert jsm("kv", "put", "S", "k", "x" * 500).status == 1
    for number in range(9):
        result = jsm("kv", "put", "S", f"k{number}", "x" * 8)
    assert result.status == 1
    assert "maximum bytes" in result.err


# --- prompts and completion ---------------------------------------------------------------------


def test_get_by_a_pattern(jsm):
    """A pattern reads several keys at once; no match is an error."""
    jsm("kv", "add", "UNITS").ok()
    for key, value in (("unit.1.t", "20"), ("unit.2.t", "21"), ("unit.2.p", "1013")):
        jsm("kv", "put", "UNITS", key, value).ok()
    found = jsm("kv", "get", "UNITS", "unit.*.t", "-j").ok().json
    assert [(item["key"], item["text"]) for item in found] == [
        ("unit.1.t", "20"),
        ("unit.2.t", "21"),
    ]
    shown = jsm("kv", "get", "UNITS", "unit.>").ok().out
    assert all(text in shown for text in ("unit.2.p", "1013", "20", "21"))
    assert jsm("kv", "get", "UNITS", "unit.*.t", "--raw").ok().out == "20\n21\n"
    assert jsm("kv", "get", "UNITS", "absent.*").status == 3
    assert jsm("kv", "get", "UNITS", "unit.*.t", "--revision", "1").status == 2


def test_ls_shows_changes(jsm):
    """With --updates, keys that change are shown until Ctrl-C."""
    jsm("kv", "add", "B").ok()
    jsm("kv", "put", "B", "before", "1").ok()
    child = jsm.spawn("kv", "ls", "B", "--updates")
    try:
        assert child.stderr is not None
        assert child.stdout is not None
        assert child.stderr.readline() == b"Watching B\n"
        jsm("kv", "put", "B", "after", "2").ok()
        assert child.stdout.readline() == b"after\n"
    finally:
        child.kill()
        child.communicate()
