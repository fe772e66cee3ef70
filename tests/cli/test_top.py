"""``jsm top``: rates, tables, keys, and the restoration of the terminal."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import struct
import termios
from collections.abc import Callable
from typing import Any

import pytest
from fix_jsm import Jsm, Terminal
from fix_threads import wait_until
from rawnats import RawClient

from jetstream_sync.api.consumer import ConsumerInfo
from jetstream_sync.api.stream import StreamInfo
from jetstream_sync.cli.top import apply_key
from jetstream_sync.cli.top_tables import (
    Frame,
    History,
    Layout,
    Snapshot,
    chart,
    screen,
    short_number,
    sorted_frame,
    sparkline,
)
from jetstream_sync.codec import decode
from jetstream_sync.server import NatsServer

CREATED = "2026-01-02T03:04:05Z"

# --- rates ----------------------------------------------------------------------------------------


def stream(name: str, last_seq: int, *, created: str = CREATED, consumers: int = 0) -> StreamInfo:
    state = {
        "messages": last_seq,
        "bytes": last_seq * 10,
        "first_seq": 1,
        "first_ts": CREATED,
        "last_seq": last_seq,
        "last_ts": CREATED,
        "consumer_count": consumers,
    }
    return decode(StreamInfo, {"config": {"name": name}, "state": state, "created": created})


def consumer(name: str, delivered: int, floor: int, *, lag: int = 0) -> ConsumerInfo:
    fields = {
        "stream_name": "S",
        "name": name,
        "created": CREATED,
        "config": {},
        "delivered": {"consumer_seq": delivered, "stream_seq": delivered},
        "ack_floor": {"consumer_seq": floor, "stream_seq": floor},
        "num_ack_pending": delivered - floor,
        "num_redelivered": 1,
        "num_waiting": 2,
        "num_pending": lag,
    }
    return decode(ConsumerInfo, fields)


def snapshot(taken: float, streams: list[StreamInfo], *consumers: ConsumerInfo) -> Snapshot:
    return Snapshot(
        taken=taken,
        streams={info.config.name: info for info in streams},
        consumers={("S", info.name): info for info in consumers},
    )


def test_rates_are_differences_between_snapshots() -> None:
    """A rate is the difference of two sequences, divided by the seconds between the snapshots."""
    history = History()
    first = history.add(snapshot(10.0, [stream("S", 100)], consumer("C", 50, 40, lag=7)))
    assert (first.seconds, first.streams[0].rate, first.consumers[0].rate) == (0, 0, 0)
    second = history.add(snapshot(12.0, [stream("S", 300)], consumer("C", 80, 60, lag=3)))
    (row,), (reader,) = second.streams, second.consumers
    assert (second.seconds, row.rate, row.messages, row.bytes) == (2, 100, 300, 3000)
    assert (reader.rate, reader.ack_rate, reader.lag, reader.ack_pending) == (15, 10, 3, 20)
    assert (reader.redelivered, reader.waiting) == (1, 2)
    third = history.add(snapshot(13.0, [stream("S", 300)], consumer("C", 80, 80)))
    assert third.streams[0].rates == (100, 0)
    assert third.consumers[0].lags == (7, 3, 0)
    assert (third.in_rates, third.out_rates) == ((100, 0), (15, 0))


def test_a_recreated_stream_has_no_rate() -> None:
    """The rate is 0 after a stream was recreated or a consumer was reset."""
    history = History()
    history.add(snapshot(1.0, [stream("S", 100)], consumer("C", 50, 50)))
    later = [stream("S", 500, created="2026-01-02T03:04:06Z")]
    frame = history.add(snapshot(2.0, later, consumer("C", 0, 0)))
    assert (frame.streams[0].rate, frame.consumers[0].rate) == (0, 0)


def test_the_history_of_a_deleted_stream_is_dropped() -> None:
    """A stream that is created again starts with an empty graph."""
    history = History()
    for moment, streams in enumerate(([stream("S", 1)], [stream("S", 9)], [], [stream("S", 9)])):
        frame = history.add(snapshot(float(moment), streams))
    assert frame.streams[0].rates == (0,)


# --- graphs -------------------------------------------------------------------------------------


def test_sparkline() -> None:
    """The newest value is at the right, the largest has a full bar, and zero is a space."""
    assert sparkline([0, 1, 4, 8], 6, blocks=True) == "   ▁▄█"
    assert sparkline([8, 0, 8], 2, blocks=True) == " █"
    assert sparkline([], 3, blocks=True) == "   "
    assert sparkline([0, 0], 2, blocks=True) == "  "
    assert sparkline([1, 8], 2, blocks=False).isascii()


def test_chart() -> None:
    """The tallest bar reaches the top, and the scale is at the left."""
    lines = chart([0, 50, 100], 20, 4, blocks=True)
    assert [len(line) for line in lines] == [20] * 4
    assert [line[-3:] for line in lines] == ["  █", "  █", " ██", " ██"]
    assert lines[0].split("|")[0].strip() == "100"
    assert all(line.isascii() for line in chart([1, 2], 20, 3, blocks=False))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (9.96, "10"),
        (999, "999"),
        (1000, "1.0K"),
        (123_456, "123K"),
        (1_500_000, "1.5M"),
        (999_999, "1.0M"),
        (2e12, "2.0T"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    """A number on an axis has at most five characters."""
    assert short_number(value) == text


def busy_frame(rows: int) -> Frame:
    history = History()
    for moment in range(3):
        infos = [stream(f"S{number}", 100 * number * moment + 1) for number in range(rows)]
        readers = [
            consumer(f"C{number}", 1000 + number * moment, 900, lag=10**number % 1_000_003)
            for number in range(rows)
        ]
        frame = history.add(snapshot(float(moment), infos, *readers))
    return frame


@pytest.mark.parametrize("view", ["both", "streams", "consumers"])
@pytest.mark.parametrize("rows", [0, 1, 5, 40])
@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("lines", [3, 10, 24, 60])
@pytest.mark.parametrize("graphs", [True, False])
def test_a_screen_fits_every_terminal(
    view: str, rows: int, columns: int, lines: int, graphs: bool
) -> None:
    """No line is longer than the terminal, and there are no more lines than it has."""
    for layout in (Layout(view=view, graphs=graphs), Layout(filter="1", typing=True, help=True)):
        shown = screen(
            busy_frame(rows),
            layout,
            columns=columns,
            lines=lines,
            title="t" * 300,
            problem="x" * 300 if graphs else "",
            colour=False,
            blocks=True,
        )
        assert len(shown) <= lines
        assert all(len(line) <= columns for line in shown)


def test_hidden_rows_are_counted() -> None:
    """The first rows of the sort order are shown, and the rows that do not fit are counted."""
    shown = screen(
        busy_frame(40),
        Layout(view="streams"),
        columns=100,
        lines=12,
        title="",
        problem="",
        colour=False,
        blocks=True,
    )
    assert any(line.startswith("S39 ") for line in shown)
    (more,) = [line for line in shown if "more" in line]
    names = [line for line in shown if re.match(r"S\d+ ", line)]
    assert more == f"... {40 - len(names)} more"


def test_rows_are_sorted_by_a_column() -> None:
    """Rows are sorted by a column, ascending or descending; equal values by name."""
    frame = busy_frame(3)
    names = [row.name for row in sorted_frame(frame, Layout()).streams]
    assert names == ["S2", "S1", "S0"]
    layout = Layout(stream_sort=4, consumer_sort=0, consumer_down=False)
    assert [row.name for row in sorted_frame(frame, layout).streams] == ["S0", "S1", "S2"]
    assert [row.name for row in sorted_frame(frame, layout).consumers] == ["C0", "C1", "C2"]


# --- keys -----------------------------------------------------------------------------------------


def pressed(*keys: str) -> Layout:
    layout = Layout()
    for key in keys:
        found = apply_key(layout, key)
        assert found is not None
        layout = found
    return layout


def test_each_key_has_the_effect_in_the_help() -> None:
    """Each key has the effect that the help describes."""
    assert apply_key(Layout(), "q") is None
    assert pressed("s").stream_sort == 4
    assert pressed("s", "s").stream_sort == 0
    assert not pressed("s", "s").stream_down
    assert not pressed("r").stream_down
    assert pressed("\t", "s").consumer_sort == 2
    assert not pressed("\t", "r").consumer_down
    assert [pressed(*"v" * times).view for times in range(4)] == [
        "both",
        "streams",
        "consumers",
        "both",
    ]
    assert pressed("v", "v", "s").consumer_sort == 2
    assert pressed("g").graphs
    assert pressed("p").paused
    assert (pressed("+").interval, pressed("-").interval) == (0.5, 2.0)
    assert pressed(*"+" * 20).interval == 0.2
    assert (pressed("?").help, pressed("?", "x").help) == (True, False)
    assert pressed("x", "\x1b[A") == Layout()


def test_typing_a_filter() -> None:
    """While a filter is typed, every key is added to it until Enter; Esc clears it."""
    assert (pressed("/", "q", "s").filter, pressed("/", "q").typing) == ("qs", True)
    done = pressed("/", "ab\x7fc\r", "s")
    assert (done.filter, done.typing, done.stream_sort) == ("ac", False, 4)
    assert pressed("/", "abc", "\x15", "d").filter == "d"
    assert pressed("/", "abc", "\x1b").filter == ""
    frame = sorted_frame(busy_frame(12), pressed("/", "s1\r"))
    assert {row.name for row in frame.streams} == {"S1", "S10", "S11"}


# --- without a terminal ---------------------------------------------------------------------------


@pytest.fixture
def orders(raw: RawClient) -> None:
    """A stream with three messages, of which a consumer has delivered one."""
    raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"], storage="memory")
    config = {"durable_name": "NEW", "ack_policy": "explicit", "filter_subject": "ORDERS.a"}
    raw.api("CONSUMER.CREATE.ORDERS.NEW.ORDERS.a", stream_name="ORDERS", config=config)
    for _ in range(3):
        raw.request("ORDERS.a", b"x")
    raw.request("$JS.API.CONSUMER.MSG.NEXT.ORDERS.NEW", b"1")


@pytest.mark.usefixtures("orders")
def test_once_as_json(jsm: Jsm, raw: RawClient) -> None:
    """With --once and -j the output is one document with the numbers of the server."""
    document = jsm("top", "--once", "-j", "--interval", "100ms").ok().json
    assert document["seconds"] >= 0.1
    (row,), (reader,) = document["streams"], document["consumers"]
    state = raw.api("STREAM.INFO.ORDERS")["state"]
    assert (row["name"], row["messages"], row["bytes"]) == ("ORDERS", 3, state["bytes"])
    assert row["messages_per_second"] == 0
    info = raw.api("CONSUMER.INFO.ORDERS.NEW")
    assert (reader["stream"], reader["name"]) == ("ORDERS", "NEW")
    assert (reader["lag"], reader["ack_pending"]) == (info["num_pending"], info["num_ack_pending"])
    assert (reader["lag"], reader["ack_pending"]) == (2, 1)


@pytest.mark.usefixtures("orders")
def test_once_as_text(jsm: Jsm) -> None:
    """Without a terminal the output is complete plain tables without escape codes."""
    out = jsm("top", "--once", "--interval", "50ms").ok().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("1 stream, 3 messages, ")
    assert next(line for line in lines if line.startswith("ORDERS ")).split()[1] == "3"
    reader = next(line for line in lines if line.startswith("ORDERS > NEW"))
    assert reader.split()[3:5] == ["2", "1"]
    assert "ORDERS > NEW" not in jsm("top", "--once", "--view", "streams", "--interval", "50ms").out


def test_many_streams_are_listed_completely(jsm: Jsm, raw: RawClient) -> None:
    """All pages of a long list are read, and the filter finds every consumer."""
    for number in range(260):
        name = f"S{number:03}"
        raw.api(f"STREAM.CREATE.{name}", name=name, subjects=[name], storage="memory")
        config = {"durable_name": f"C{number:03}", "mem_storage": True}
        raw.api(f"CONSUMER.CREATE.{name}.C{number:03}", stream_name=name, config=config)
    args = ("top", "--once", "--interval", "10ms")
    found = jsm(*args, "-j", "--filter", "c259").ok().json
    assert [(row["stream"], row["name"]) for row in found["consumers"]] == [("S259", "C259")]
    assert "Consumers (260)" in jsm(*args, "--view", "consumers").ok().out


@pytest.mark.usefixtures("orders")
def test_a_filter_and_a_view(jsm: Jsm) -> None:
    """--filter and --view leave other rows and tables out of the document."""
    args = ("top", "--once", "-j", "--interval", "50ms")
    assert jsm(*args, "--filter", "new").ok().json["streams"] == []
    assert len(jsm(*args, "--filter", "new").ok().json["consumers"]) == 1
    assert "consumers" not in jsm(*args, "--view", "streams").ok().json


@pytest.mark.usefixtures("orders")
def test_json_lines_until_count_or_ctrl_c(jsm: Jsm) -> None:
    """With -j and without --once the output is one document per line, until --count or Ctrl-C."""
    assert len(jsm("top", "-j", "--count", "2", "--interval", "50ms").ok().lines) == 2
    child = jsm.spawn("top", "-j", "--interval", "50ms")
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["streams"][0]["name"] == "ORDERS"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == 130


def test_tables_continue_after_a_server_restart(fresh_server: NatsServer) -> None:
    """An outage is reported on stderr, and the tables continue after the server restart."""
    child = Jsm(fresh_server).spawn("top", "-j", "--interval", "100ms", "--timeout", "300ms")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    fresh_server.kill()
    assert b"trying again" in child.stderr.readline()
    fresh_server.restart()
    while child.stdout.readline():
        if fresh_server.is_running:
            break
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == 130


# --- on a terminal --------------------------------------------------------------------------------


def drawn(terminal: Terminal) -> list[str]:
    """Return the lines of the last complete screen."""
    screens = terminal.raw.split("\x1b[H")
    whole = [each for each in screens[1:] if each.rstrip().endswith("\x1b[J")]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", whole[-1]) if whole else ""
    return text.split("\r\n")


def until(terminal: Terminal, shown: Callable[[list[str]], Any], limit: float = 10) -> list[str]:
    """Wait until the screen fulfils a condition, and return its lines."""

    def lines() -> list[str]:
        now = drawn(terminal)
        return now if shown(now) else []

    return wait_until(lines, limit)


def has(text: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(text in line for line in lines)


def assert_restored(terminal: Terminal) -> None:
    """The terminal echoes, edits lines, shows its cursor, and left the alternate screen."""
    assert terminal.raw.rstrip("\r\n").endswith("\x1b[?25h\x1b[?1049l") or (
        "\x1b[?25h\x1b[?1049l" in terminal.raw.rsplit("\x1b[?1049h", 1)[1]
    )
    mode = termios.tcgetattr(terminal._fd)
    assert mode[3] & termios.ECHO
    assert mode[3] & termios.ICANON
    assert mode[6][termios.VMIN] == b"\x01"


@pytest.mark.usefixtures("orders", "jsm")
def test_live_screen(terminal: Callable[..., Terminal], raw: RawClient) -> None:
    """The screen shows changes of streams and consumers, and keys work; q restores the terminal."""
    top = terminal("top", "--interval", "200ms")
    lines = until(top, has("ORDERS > NEW"))
    assert lines[0].startswith("jsm top   nats://")
    assert any(line.startswith("> Streams (1)") for line in lines)
    assert "every 0.2 s" in lines[-1]
    for _ in range(50):
        raw.request("ORDERS.b", b"x")
    lines = until(top, has("53 messages"))
    until(top, lambda lines: any(re.match(r"ORDERS +53 .*[▁-█]", line) for line in lines))
    top.send("\t")
    until(top, has("> Consumers (1)"))
    top.send("/zzz")
    until(top, lambda lines: "Filter: zzz_" in lines and has("Streams (0)")(lines))
    top.send("\x1b")
    until(top, lambda lines: not has("Filter")(lines) and has("Streams (1)")(lines))
    top.send("?")
    until(top, has("quit, as Ctrl-C does"))
    top.send("?g")
    until(top, has("|"))
    top.send("p")
    until(top, has("PAUSED"))
    top.send("q")
    assert top.wait() == 0
    assert_restored(top)


@pytest.mark.usefixtures("orders", "jsm")
def test_ctrl_c_restores_the_terminal(terminal: Callable[..., Terminal]) -> None:
    """Ctrl-C exits with status 130 and restores the terminal."""
    top = terminal("top")
    until(top, has("ORDERS > NEW"))
    assert not termios.tcgetattr(top._fd)[3] & termios.ECHO
    top.send("\x03")
    assert top.wait() == 130
    assert_restored(top)


@pytest.mark.usefixtures("orders", "jsm")
def test_a_terminal_that_is_resized(terminal: Callable[..., Terminal]) -> None:
    """The next screen has the new size."""
    top = terminal("top", columns=120, lines=40)
    until(top, has("ORDERS > NEW"))
    fcntl.ioctl(top._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 50, 0, 0))
    lines = until(top, lambda lines: bool(lines) and max(map(len, lines)) <= 50)
    assert len(lines) <= 12
    top.send("q")
    assert top.wait() == 0


@pytest.mark.usefixtures("jsm")
def test_no_color_disables_escape_codes(terminal: Callable[..., Terminal]) -> None:
    """With NO_COLOR there are no colours, bold or reverse text."""
    top = terminal("top", NO_COLOR="1")
    until(top, has("Streams (0)"))
    top.send("q")
    assert top.wait() == 0
    assert not re.search(r"\x1b\[\d*m", top.raw)


def test_the_screen_during_an_outage(terminal: Callable[..., Terminal]) -> None:
    """During an outage the screen shows it and keys work; afterwards the screen is updated again."""
    with NatsServer(name="away") as server:
        with RawClient(server.port) as raw:
            raw.api("STREAM.CREATE.KEPT", name="KEPT", subjects=["kept"], storage="file")
        top = terminal("top", "--interval", "200ms", "--timeout", "500ms", NATS_URL=server.url)
        until(top, has("KEPT"))
        server.kill()
        until(top, has("no connection for "))
        top.send("g")
        until(top, lambda lines: has("|")(lines) and has("trying again")(lines))
        server.restart()
        with RawClient(server.port) as raw:
            raw.request("kept", b"x")
            until(top, lambda lines: has("1 message,")(lines) and not has("trying")(lines), 20)
        top.send("q")
        assert top.wait() == 0
        assert_restored(top)


def test_no_server(terminal: Callable[..., Terminal]) -> None:
    """Without a server the command fails before it draws a screen."""
    top = terminal("top", NATS_URL="nats://127.0.0.1:1")
    assert top.wait() == 5
    assert "\x1b[?1049h" not in top.raw
