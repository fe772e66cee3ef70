"""``jsm stream view``, ``get``, ``report``, ``find`` and ``subjects``."""

from __future__ import annotations

import base64
import json
import signal
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream
from fixtures.jsm import Jsm, run_jsm
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

from jetstream_sync.net.clock import monotonic


def publish(raw: RawClient, subject: str, body: bytes, **headers: str) -> None:
    """Store a message with optional headers."""
    block = b"NATS/1.0\r\n" + b"".join(
        f"{name}: {value}\r\n".encode() for name, value in headers.items()
    )
    block += b"\r\n"
    sizes = b"%d %d" % (len(block), len(block) + len(body))
    raw.send(b"HPUB %s raw.inbox %s\r\n%s%s\r\n" % (subject.encode(), sizes, block, body))
    assert b'"seq"' in raw._reply()


@pytest.fixture
def stored(jsm: Jsm, raw: RawClient) -> Jsm:
    """A stream L of 12 messages on two subjects, with numbers as bodies."""
    jsm("stream", "add", "L", "--subjects", "l.*").ok()
    for number in range(1, 13):
        publish(raw, "l.odd" if number % 2 else "l.even", b"%d" % number, n=str(number))
    return jsm


def bodies(jsm: Jsm, *options: str) -> list[str]:
    return jsm("stream", "view", "L", "--raw", *options).ok().out.split()


def test_all_messages_are_written_off_a_terminal(stored):
    """Without a terminal all messages are written in order, without pages."""
    assert bodies(stored) == [str(number) for number in range(1, 13)]
    shown = stored("stream", "view", "L").ok().out
    assert shown.startswith("[1] Subject: l.odd Received: ")
    assert "\n  n: 1\n\n1\n\n[2] Subject: l.even" in shown


def test_a_message_is_a_line_of_json(stored, raw):
    """With -j each message is one JSON line with the metadata of the server."""
    lines = stored("stream", "view", "L", "-j").ok().lines
    assert len(lines) == 12
    said = raw.api("STREAM.MSG.GET.L", seq=3)["message"]
    assert lines[2] == {
        "subject": "l.odd",
        "stream": "L",
        "stream_seq": 3,
        "time": said["time"],
        "headers": {"n": ["3"]},
        "data": base64.b64encode(b"3").decode(),
        "text": "3",
    }


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--limit", "2"), "1 2"),
        (("--id", "11"), "11 12"),
        (("--seq", "11"), "11 12"),
        (("--last", "3"), "10 11 12"),
        (("--last", "100"), "1 2 3 4 5 6 7 8 9 10 11 12"),
        (("--last", "2", "--subject", "l.odd"), "9 11"),
        (("--subject", "l.even", "--limit", "2"), "2 4"),
        (("--subject", "l.none"), ""),
        (("--grep", "^1"), "1 10 11 12"),
        (("--header", "n=[23]$"), "2 3 12"),
        (("--header", "other=x"), ""),
        (("--since", "1h"), "1 2 3 4 5 6 7 8 9 10 11 12"),
        (("--since", "2100-01-01T00:00:00Z"), ""),
        (("--format", "{stream_seq}:{headers[n]}{headers[x]}\\n", "--limit", "1"), "1:1"),
    ],
)
def test_messages_are_selected(stored, options, wanted):
    """Messages are selected by sequence, time, subject, payload and header."""
    raw = () if "--format" in options else ("--raw",)
    assert stored("stream", "view", "L", *raw, *options).ok().out.split() == wanted.split()


def test_since_skips_deleted_messages(stored, raw):
    """--since starts at the first message at or after the time, and skips deleted ones."""
    for seq in (5, 6, 7):
        raw.api("STREAM.MSG.DELETE.L", seq=seq)
    for seq, first in ((1, "1"), (4, "4"), (8, "8"), (12, "12")):
        time = raw.api("STREAM.MSG.GET.L", seq=seq)["message"]["time"]
        assert bodies(stored, "--since", time[:26] + "Z")[0] == first


def test_last_counts_existing_messages(stored, raw):
    """--last counts messages, not sequences."""
    for seq in (8, 9, 10, 11):
        raw.api("STREAM.MSG.DELETE.L", seq=seq)
    assert bodies(stored, "--last", "3") == ["6", "7", "12"]


def test_viewing_a_work_queue_takes_no_messages(jsm, raw):
    """A work queue is read without a consumer, and its worker still gets every message."""
    jsm("stream", "add", "L", "--subjects", "l", "--retention", "work").ok()
    for number in range(3):
        publish(raw, "l", b"%d" % number)
    assert bodies(jsm) == ["0", "1", "2"]
    state = raw.api("STREAM.INFO.L")["state"]
    assert (state["consumer_count"], state["messages"]) == (0, 3)


def test_a_stream_without_direct_gets_is_read(jsm, raw):
    """Without direct gets the messages are read from the leader."""
    jsm("stream", "add", "L", "--subjects", "l", "--no-allow-direct").ok()
    publish(raw, "l", b"x")
    assert bodies(jsm) == ["x"]
    assert jsm("stream", "get", "L", "1", "--raw").ok().out == "x"


def test_follow(stored, raw):
    """--follow continues with new messages until Ctrl-C, with exit status 130."""
    with stored.spawn("stream", "view", "L", "--raw", "--last", "1", "--follow") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"12\n"
        publish(raw, "l.odd", b"13")
        publish(raw, "l.odd", b"14")
        assert child.stdout.readline() == b"13\n"
        assert child.stdout.readline() == b"14\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130


def test_pages_on_a_terminal(stored, terminal):
    """On a terminal the command pauses after each page."""
    child = terminal("stream", "view", "L", "5")
    child.answer("Next page?", "")
    child.expect("[10] Subject")
    child.answer("Next page?", "n")
    assert child.wait() == 0
    assert "[11] Subject" not in child.text
    child = terminal("stream", "view", "L", "--limit", "12")
    child.expect("[12] Subject")
    assert child.wait() == 0
    del stored


def test_an_empty_stream(jsm):
    """An empty stream is not an error; only the text output mentions it."""
    jsm("stream", "add", "L", "--subjects", "l").ok()
    shown = jsm("stream", "view", "L").ok()
    assert (shown.out, shown.err) == ("", "No messages\n")
    shown = jsm("stream", "view", "L", "-j").ok()
    assert (shown.out, shown.err) == ("", "")
    assert jsm("stream", "view", "L", "--last", "3").ok().out == ""


def test_an_unknown_field_of_a_format_is_wrong_usage(stored):
    """The error names the fields."""
    refused = stored("stream", "view", "L", "--format", "{color}")
    assert (refused.status, "stream_seq" in refused.err) == (2, True)


def test_get(stored):
    """``get`` reads a message by sequence, the last of a subject, or the next of a subject."""
    got = stored("stream", "get", "L", "5", "-j").ok().json
    assert (got["stream_seq"], got["text"]) == (5, "5")
    assert stored("stream", "get", "L", "-S", "l.odd", "-j").ok().json["stream_seq"] == 11
    assert stored("stream", "get", "L", "--last-for", "l.*", "--raw").ok().out == "12"
    assert stored("stream", "get", "L", "6", "--next-for", "l.odd", "--raw").ok().out == "7"
    assert stored("stream", "get", "L", "5").ok().out.startswith("[5] Subject: l.odd")


def test_get_of_a_missing_message(stored):
    """A missing message exits with status 3, a request without a selection with status 2."""
    assert stored("stream", "get", "L", "99").status == 3
    assert stored("stream", "get", "L", "-S", "l.none", "-j").error["err_code"] == 10037
    assert stored("stream", "get", "L").status == 2
    assert stored("stream", "get", "L", "1", "-S", "l.odd").status == 2
    assert stored("stream", "get", "NOPE", "1").status == 3


# --- looking at streams -------------------------------------------------------------------------


@pytest.fixture
def several(stored: Jsm, raw: RawClient) -> Jsm:
    """L, an empty memory stream E with a consumer, a mirror M, and the stream of a bucket."""
    stored("stream", "add", "E", "--subjects", "e", "--storage", "memory").ok()
    stored("stream", "add", "M", "--mirror", "E").ok()
    stored("stream", "add", "S", "--source", "E", "--max-msgs", "3").ok()
    stored("stream", "add", "KV_b", "--subjects", "$KV.b.>").ok()
    raw.api(
        "CONSUMER.CREATE.E.c",
        stream_name="E",
        config={"durable_name": "c", "name": "c", "ack_policy": "explicit"},
    )
    return stored


def names(result: Any) -> list[str]:
    return [row["config"]["name"] for row in result.ok().json]


def test_a_report_is_sorted(several, raw):
    """The report is sorted by the given key; JSON has the numbers of the server."""
    first = several("stream", "report", "-j").ok().json[0]
    assert first["config"]["name"] == "L"
    assert first["state"]["messages"] == raw.api("STREAM.INFO.L")["state"]["messages"]
    assert names(several("stream", "report", "--sort", "name", "-j")) == ["E", "L", "M", "S"]
    assert names(several("stream", "report", "--sort", "name", "-R", "-j"))[0] == "S"
    assert names(several("stream", "report", "--sort", "consumers", "-j"))[0] == "E"
    assert names(several("stream", "report", "--sort", "messages", "-j"))[0] == "L"
    assert names(several("stream", "report", "--sort", "storage", "-j"))[-1] == "E"
    assert names(several("stream", "report", "--subject", "l.odd", "-j")) == ["L"]
    assert "KV_b" in names(several("stream", "report", "-a", "-j"))


def test_a_report_is_a_table(several, raw):
    """The text is a table with the lag of mirrors and sources."""
    wait_until(lambda: raw.api("STREAM.INFO.M")["mirror"]["active"] >= 0)
    shown = several("stream", "report").ok().out
    head, first, *rest = shown.splitlines()[1:]
    assert head.split() == [
        *("Stream", "Storage", "Replicas", "Consumers", "Messages", "Bytes"),
        *("Subjects", "Behind", "Created"),
    ]
    assert first.split()[:2] == ["L", "file"]
    assert any(line.split()[0] == "M" and line.split()[-3] == "0" for line in rest), rest


def test_the_lag_of_an_origin_that_was_not_heard_of_is_unknown(jsm, raw):
    """A mirror whose origin has not answered yet shows a question mark, not a number and not a failure."""
    external = {"api": "$JS.absent.API", "deliver": ""}
    raw.api("STREAM.CREATE.FAR", name="FAR", mirror={"name": "ORIGIN", "external": external})
    assert raw.api("STREAM.INFO.FAR")["mirror"]["active"] < 0
    (row,) = [line for line in jsm("stream", "report").ok().out.splitlines() if "FAR" in line]
    assert "?" in row.split()
    assert "not seen yet" in jsm("stream", "info", "FAR").ok().out
    check = jsm("server", "check", "stream", "--stream", "FAR", "--seen-critical", "1h")
    assert check.status == 2
    assert "was not seen" in check.out


def test_a_report_is_repeated(several):
    """--watch repeats the report, with -j as JSON lines."""
    with several.spawn("stream", "report", "--watch", "50ms", "-j") as child:
        assert child.stdout is not None
        looks = [json.loads(child.stdout.readline()) for _ in range(3)]
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130
    assert all(len(rows) == 4 for rows in looks)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), "E L M S"),
        (("-a",), "E KV_b L M S"),
        (("--empty",), "E M S"),
        (("--empty", "--invert"), "L"),
        (("--consumers", "0"), "L M S"),
        (("--subject", "l.odd"), "L"),
        (("--subject", "l.odd", "--invert"), "E M S"),
        (("--idle", "1h"), ""),
        (("--idle", "1ms", "--consumers", "0"), "L M S"),
        (("--replicas", "1", "--subject", "l.odd"), "L"),
        (("--leader", "absent"), ""),
    ],
)
def test_find(several, options, found):
    """A stream must match every option; --invert inverts each condition."""
    listed = several("stream", "find", "-n", *options).ok().out.split()
    assert listed == found.split()


def test_find_as_json(several):
    """With -j the output has infos or names."""
    words = ("stream", "find", "--empty", "--invert", "-j")
    assert several(*words).ok().json[0]["config"]["name"] == "L"
    assert several(*words, "-n").ok().json == ["L"]


def test_subjects_are_counted(stored, raw):
    """Subjects are listed with their counts, in descending order."""
    publish(raw, "l.odd", b"13")
    assert stored("stream", "subjects", "L", "-j").ok().json == {"l.odd": 7, "l.even": 6}
    assert stored("stream", "subj", "L", "l.e*", "-j").ok().json == {}
    assert stored("stream", "subj", "L", "l.even", "-j").ok().json == {"l.even": 6}
    listed = stored("stream", "subjects", "L", "-n").ok().out
    assert listed == "l.odd\nl.even\n"
    listed = stored("stream", "subjects", "L", "-n", "--sort", "name").ok().out
    assert listed == "l.even\nl.odd\n"
    assert stored("stream", "subjects", "L", "-n", "-R").ok().out == "l.even\nl.odd\n"
    assert "l.odd" in stored("stream", "subjects", "L").ok().out
    assert stored("stream", "subjects", "L", "x").ok().out == "No subjects\n"


def test_following_a_stream_that_is_created_again_fails(stored, raw):
    """The new stream has lower sequences, so it would seem to have no new messages."""
    child = stored.spawn("stream", "view", "L", "--follow", "--raw", "--last", "1")
    try:
        assert child.stdout.readline() == b"12\n"
        stored("stream", "rm", "L", "-f").ok()
        stored("stream", "add", "L", "--subjects", "l.*").ok()
        publish(raw, "l.odd", b"new")
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert (child.returncode, out) in ((1, b""), (3, b"")), err
    assert b"L" in err


def test_following_a_stream_that_is_deleted_fails(stored):
    """The error names the stream."""
    child = stored.spawn("stream", "view", "L", "--follow", "--raw", "--last", "1")
    try:
        assert child.stdout.readline() == b"12\n"
        stored("stream", "rm", "L", "-f").ok()
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert (child.returncode, out) == (3, b""), err
    assert b'stream "L" was deleted' in err


@pytest.mark.full
def test_a_list_without_answer_has_the_known_names():
    """The meta leader sends the names and not the list: the rows have no values, and the status is 1."""
    names = {"type": "io.nats.jetstream.api.v1.stream_names_response", "streams": ["A", "B"]}
    pages = {"total": 2, "offset": 0, "limit": 1024}
    with FakeJetStream(lambda route, _: {**names, **pages} if "NAMES" in route else None) as server:
        listed = run_jsm("-s", server.url, "--timeout", "0.1s", "stream", "ls", "-j")
    assert [row["config"]["name"] for row in listed.json if "missing" in row] == ["A", "B"]
    assert listed.status == 1


def _page(kind: str, **fields: Any) -> dict[str, Any]:
    of_page = {"total": len(next(iter(fields.values()))), "offset": 0, "limit": 1024}
    return {"type": f"io.nats.jetstream.api.v1.{kind}_response", **of_page, **fields}


def _info(name: str, consumers: int = 0) -> dict[str, Any]:
    state = dict.fromkeys(("messages", "bytes", "first_seq", "last_seq"), 0)
    times = dict.fromkeys(("first_ts", "last_ts"), "0001-01-01T00:00:00Z")
    return {
        "type": "io.nats.jetstream.api.v1.stream_info_response",
        "config": {"name": name, "subjects": [name.lower()]},
        "state": {**state, **times, "consumer_count": consumers},
        "created": "2026-01-02T03:04:05Z",
    }


def test_a_list_asks_for_each_of_many_streams():
    """The silent streams among them leave the time to ask for all others."""
    names = [f"S{number}" for number in range(600)]
    silent = set(names[::3])

    def respond(route: str, _body: Any) -> dict[str, Any] | None:
        if route == "STREAM.NAMES":
            return _page("stream_names", streams=names)
        name = route.removeprefix("STREAM.INFO.")
        return None if name == route or name in silent else _info(name)

    with FakeJetStream(respond) as server:
        listed = run_jsm("-s", server.url, "--timeout", f"{2 * SCALE}s", "stream", "ls", "-j")
    missing = {row["config"]["name"]: row["missing"] for row in listed.json if "missing" in row}
    assert missing.keys() == silent
    assert {item["reason"] for item in missing.values()} <= {
        "its servers did not reply",
        "no reply in time",
    }


def test_a_list_of_consumers_keeps_its_timeout():
    """The streams that are found and those that are missing are asked at the same time."""

    def respond(route: str, _body: Any) -> dict[str, Any] | None:
        if route == "STREAM.NAMES":
            return _page("stream_names", streams=["A", "B"])
        return _info("A", consumers=1) if route == "STREAM.INFO.A" else None

    with FakeJetStream(respond) as server:
        began = monotonic()
        words = ("--timeout", f"{2 * SCALE}s", "consumer", "ls", "-a", "-j")
        listed = run_jsm("-s", server.url, *words)
        assert monotonic() - began < 2.3 * SCALE
    assert {row["stream_name"] for row in listed.json} == {"A", "B"}
    assert all("missing" in row for row in listed.json)


@pytest.mark.parametrize("noun", ["stream", "kv"])
def test_a_creation_of_what_did_not_reply_may_have_changed_nothing(noun):
    """A server accepts the creation of an identical stream: whether there was one is not known."""
    created: dict[str, Any] = {}

    def respond(route: str, body: Any) -> dict[str, Any] | None:
        if route.startswith("STREAM.CREATE."):
            info = {**_info(body["name"]), "config": body}
            created.update(info)
            return {**info, "type": info["type"].replace("info", "create")}
        return created or None

    with FakeJetStream(respond) as server:
        options = ("--subjects", "new", "--defaults") if noun == "stream" else ()
        words = (noun, "add", "NEW", *options, "--timeout", f"{0.2 * SCALE}s")
        assert "NEW was created or is unchanged" in run_jsm("-s", server.url, *words).ok().out


@pytest.mark.parametrize("first", [2**63 + 1, 2**64 - 1000])
@pytest.mark.parametrize("storage", ["memory", "file"])
def test_sequences_are_unsigned(jsm, js, first, storage):
    """Sequences beyond 2^63 are read and shown; messages that the server does not return are no empty stream."""
    js.create_stream(name="BIG", subjects=["big"], first_seq=first, storage=storage)
    for number in range(3):
        js.publish("big", b"x%d" % number)
    read = jsm("sub", "--stream", "BIG", "--all", "-T", "--raw", "--timeout", "1s")
    shown = jsm("stream", "view", "BIG", "-j")
    if storage == "memory":
        assert read.ok().out == "x0\nx1\nx2\n"
        assert [line["stream_seq"] for line in shown.ok().lines] == [first + n for n in range(3)]
        assert (
            jsm("stream", "get", "BIG", str(first + 2), "-j").ok().json["stream_seq"] == first + 2
        )
        assert jsm("stream", "rmm", "BIG", str(first + 1), "-f").ok()
        assert js.get_stream("BIG").cached_info.state.messages == 2
    else:
        # nats-server up to 2.15 stores such messages in files, but does not find them.
        # The server may say that no message is pending.
        assert (read.out, read.status in (0, 4), shown.status) == ("", True, 1)
        assert "has 3 messages, but the server returns none" in shown.err
