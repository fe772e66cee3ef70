"""``jsm top``: rates, tables, the application with its keys, and the restoration of the terminal."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream
from fixtures.jsm import Jsm, Terminal, run_jsm
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until
from fixtures.worker import RunningWorker, running
from textual.pilot import Pilot
from textual.widgets import Button, Static, Tab, TabbedContent

import jetstream_sync
from jetstream_sync import Connection, JetStream, Stream, errors
from jetstream_sync.api.consumer import ConsumerInfo
from jetstream_sync.api.stream import StreamInfo
from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.listings import Listed, Lister, missing_stream
from jetstream_sync.cli.shared.settings import Settings
from jetstream_sync.cli.top.app import TopApp, ViewTable
from jetstream_sync.cli.top.data import (
    CONSUMERS,
    STREAMS,
    WORKERS,
    Collector,
    Frame,
    History,
    Poller,
    Row,
    TopOptions,
    number,
    sparkline,
)
from jetstream_sync.codec import decode
from jetstream_sync.server import NatsCluster, NatsServer
from jetstream_sync.version import install_command
from jetstream_sync.workers import DeadLetter, DeadLetters, Reject, Worker
from jetstream_sync.workers.calls import RESULTS_MARK

# The tests run the application, and start its thread, in one event loop; the command starts it before.
pytestmark = pytest.mark.filterwarnings("ignore:a blocking call in an event loop")

CREATED = "2026-01-02T03:04:05Z"

# --- rates ----------------------------------------------------------------------------------------

# Tests of the application change streams and letters in its event loop.
pytestmark = pytest.mark.filterwarnings("ignore:a blocking call in an event loop:RuntimeWarning")


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


def snapshot(taken: float, streams: list[StreamInfo], *consumers: ConsumerInfo) -> tuple[Any, ...]:
    return taken, Listed("stream", streams), Listed("consumer", list(consumers))


def core(frame: Frame) -> tuple[list[Any], list[Any]]:
    """Return the fields of the streams and consumers of a frame."""
    found = [[row.fields for row in frame.rows[view.name]] for view in (STREAMS, CONSUMERS)]
    return found[0], found[1]


def test_rates_are_differences_between_snapshots():
    """A rate is the difference of two sequences, divided by the seconds between the snapshots."""
    history = History()
    first = history.add(*snapshot(10.0, [stream("S", 100)], consumer("C", 50, 40, lag=7)))
    (row,), (reader,) = core(first)
    assert (first.seconds, row["messages_per_second"], reader["deliveries_per_second"]) == (0, 0, 0)
    second = history.add(*snapshot(12.0, [stream("S", 300)], consumer("C", 80, 60, lag=3)))
    (row,), (reader,) = core(second)
    assert (second.seconds, row["messages_per_second"], row["messages"]) == (2, 100, 300)
    assert (reader["deliveries_per_second"], reader["acks_per_second"]) == (15, 10)
    assert (reader["lag"], reader["ack_pending"]) == (3, 20)
    third = history.add(*snapshot(13.0, [stream("S", 300)], consumer("C", 80, 80)))
    assert third.rows["streams"][0].history == (100, 0)
    assert third.rows["consumers"][0].history == (7, 3, 0)
    assert (second.in_rate, second.out_rate, third.in_rate, third.out_rate) == (100, 15, 0, 0)


def test_a_recreated_stream_has_no_rate():
    """The rate is 0 after a stream was recreated or a consumer was reset."""
    history = History()
    history.add(*snapshot(1.0, [stream("S", 100)], consumer("C", 50, 50)))
    later = [stream("S", 500, created="2026-01-02T03:04:06Z")]
    (row,), (reader,) = core(history.add(*snapshot(2.0, later, consumer("C", 0, 0))))
    assert (row["messages_per_second"], reader["deliveries_per_second"]) == (0, 0)


def test_the_history_of_a_deleted_stream_is_dropped():
    """A stream that is created again starts with an empty graph."""
    history = History()
    for moment, streams in enumerate(([stream("S", 1)], [stream("S", 9)], [], [stream("S", 9)])):
        frame = history.add(*snapshot(float(moment), streams))
    assert frame.rows["streams"][0].history == (0,)


def test_sparkline():
    """The newest value is at the right, the largest has a full bar, and zero is a space."""
    assert sparkline([0, 1, 4, 8], 6) == "   ▁▄█"
    assert sparkline([8, 0, 8], 2) == " █"
    assert sparkline([], 3) == "   "
    assert sparkline([0, 0], 2) == "  "
    # A constant value is no peak.
    assert sparkline([7, 7, 7], 3) == "▄▄▄"
    assert [number(value) for value in (0, 0.25, 9.96, 1234.5)] == ["0", "0.2", "10", "1,234"]


def test_rows_are_sorted_by_a_column():
    """Rows are sorted by a column, numbers descending; equal values by name."""
    infos = [stream("b", 5), stream("A", 9, consumers=1), stream("c", 5)]
    rows = History().add(*snapshot(1.0, infos)).rows["streams"]

    def names(column: int, **options: Any) -> list[str]:
        return [row.key for row in STREAMS.sorted(rows, column, **options)]

    assert names(1) == ["A", "b", "c"]
    assert names(1, down=False) == ["b", "c", "A"]
    assert names(0) == ["A", "b", "c"]
    assert names(0, down=True) == ["c", "b", "A"]
    assert names(0, text="a") == ["A"]


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
def test_once_as_json(jsm, raw):
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
def test_once_as_text(jsm):
    """Without a terminal the output is complete plain tables without escape codes."""
    out = jsm("top", "--once", "--interval", "50ms").ok().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("1 stream, 3 messages, ")
    assert next(line for line in lines if line.startswith("ORDERS ")).split()[1] == "3"
    reader = next(line for line in lines if line.startswith("ORDERS > NEW"))
    assert reader.split()[3:5] == ["2", "1"]
    assert "ORDERS > NEW" not in jsm("top", "--once", "--view", "streams", "--interval", "50ms").out


@pytest.fixture
def shop(js: JetStream, stream: Stream, nats_server: NatsServer) -> Iterator[RunningWorker]:
    """A worker that runs one message, and has given up another one."""
    js.create_stream(name="DEAD", subjects=["dead.>"], storage="memory")
    release = []
    worker = Worker(nats_server.url, name="shop", dead_letters="DEAD", report="stacks")

    @worker.handler(stream=stream.name, consumer="BILLING", concurrency=2)
    def bill(data: bytes) -> None:
        if data == b"bad":
            raise Reject("nothing to bill")
        wait_until(lambda: release, 60)

    with running(worker) as run:
        js.publish(f"{stream.name}.a", b"bad")
        js.publish(f"{stream.name}.a", b"good")
        wait_until(lambda: js.get_stream("DEAD").info().state.messages, 20)
        yield run
        release.append(True)


@pytest.mark.usefixtures("shop")
def test_other_views(jsm, js, stream):
    """Each view of --view is read from the server."""

    def rows(view: str, *options: str) -> list[Any]:
        args = ("top", "--once", "--interval", "10ms", "-j", "--view", view, *options)
        document = jsm(*args).ok().json
        assert document.keys() == {"seconds", view}
        return list(document[view])

    (process,) = rows("workers")
    assert (process["worker"], process["not_ready"]) == ("shop", [])
    assert [item["stream_seq"] for item in process["running"]] == [2]
    (letter,) = rows("dead-letters")
    assert (letter["stream"], letter["consumer"]) == (stream.name, "BILLING")
    assert (letter["stream_seq"], letter["reason"]) == (1, "nothing to bill")
    js.create_key_value(bucket="CONFIG", history=3)
    js.create_object_store(bucket="FILES")
    buckets = {row["name"]: row for row in rows("buckets")}
    assert (buckets["CONFIG"]["kind"], buckets["CONFIG"]["history"]) == ("key-value", 3)
    assert buckets["FILES"]["kind"] == "object"

    def counts_agree() -> bool:
        (server,) = rows("servers")
        infos = list(js.list_streams())
        consumers = sum(info.state.consumer_count for info in infos)
        found = server["stream_leader"], server["consumer_leader"], server["offline"]
        return len(infos) >= 4 and found == (len(infos), consumers, False)

    wait_until(counts_agree)  # other tests share the server
    state = {"pending": 7, "pending_bytes": 70, "lag_seconds": 1.5, "last": 9}
    progress = {"streams": {"ORDERS": state}}
    js.key_value("CONFIG").put("totals", json.dumps(progress).encode())
    js.key_value("CONFIG").put("other", b"not a progress")
    for place, wrong in enumerate(({"last": "x"}, {"pending": 10**400}, {"lag_seconds": None})):
        progress = {"streams": {"ORDERS": {**state, **wrong}}}
        js.key_value("CONFIG").put(f"wrong-{place}", json.dumps(progress).encode())
    (query,) = rows("queries", "--progress", "CONFIG")
    assert query == {"query": "totals", "stream": "ORDERS", **state}
    assert rows("queries") == []
    missing = jsm("top", "--once", "--interval", "10ms", "--view", "queries", "--progress", "NONE")
    assert missing.status == 3


@pytest.mark.parametrize("view", ["workers", "queries", "tasks", "servers"])
def test_once_without_an_account(view):
    """If the streams cannot be read, there are no sums, no lookup of buckets, and the reason is the error."""
    with NatsServer(jetstream=False) as server:
        words = ("-s", server.url, "top", "--once", "--interval", "10ms", "--view", view)
        for found in (run_jsm(*words), run_jsm(*words, "-j")):
            assert (found.status, "start the server with -js" in found.err) == (5, True), found
            assert "0 streams" not in found.out
            assert (found.out != "") is (view in {"workers", "queries"}), found


def test_once_whose_second_reading_fails():
    """The sums of the first reading are not shown as the current ones."""
    page = {"type": "io.nats.jetstream.api.v1.stream_list_response", "streams": []}
    pages = [{**page, "total": 0, "offset": 0, "limit": 256}]
    failed = {"error": {"code": 503, "err_code": 10008, "description": "unavailable"}}
    with FakeJetStream(lambda *_: pages.pop() if pages else failed) as server:
        words = ("top", "--once", "--interval", "10ms", "--view", "workers", "--timeout", "1s")
        found = run_jsm("-s", server.url, *words)
    assert (found.status, "no meta leader" in found.err) == (1, True), found
    assert found.out == "No workers\n"


@pytest.mark.matrix
def test_servers_of_a_cluster():
    """The view of servers counts the leaders and replicas on each, without a system account."""
    with NatsCluster(3) as cluster:
        jsm = Jsm(cluster.servers[0])
        jsm("stream", "add", "S", "--subjects", "s", "--replicas", "3", "--defaults").ok()

        def servers() -> Any:
            args = ("top", "--once", "-j", "--interval", "100ms", "--view", "servers")
            return jsm(*args).ok().json["servers"]

        found = wait_until(lambda: len(rows := servers()) == 3 and rows, 20)
        assert sum(item["stream_leader"] for item in found) == 1
        assert sum(item["stream_replica"] for item in found) == 2


# --- the application ------------------------------------------------------------------------------


class Screen:
    """The application under test, with its keys; `run` runs it."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def table(self) -> ViewTable:
        return self.app.table

    @property
    def names(self) -> list[str]:
        """The first column of the table with the focus."""
        return [str(self.table.get_row_at(n)[0]) for n in range(self.table.row_count)]

    @property
    def text(self) -> str:
        """The text of an open dialog, the state line and notifications."""
        texts = [str(item.render()) for item in self.app.screen.query(Static)]
        return "\n".join(
            [*texts, *(notification.message for notification in self.app._notifications)]
        )

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], Any], limit: float = 10) -> Any:
        for _ in range(int(limit * SCALE / 0.05)):
            if found := condition():
                return found
            await self.pilot.pause(0.05)
        pytest.fail(
            f"still false: {condition}; {self.app.query_one('TabbedContent').active} {self.names} {self.text}"
        )


Play = Callable[[Screen], Awaitable[None]]


@pytest.fixture
def play(nc: Connection) -> Callable[..., None]:
    """Return a function that runs the application for an asynchronous function."""
    return lambda act, **options: run_top(nc, act, **options)


def run_top(
    nc: Connection,
    act: Play,
    *,
    size: tuple[int, int] = (140, 40),
    timeout: float = 5.0,
    **options: Any,
) -> None:
    """Run the application for an asynchronous function."""
    settings = Settings(env=Environment.of_process(), words=[], given={"timeout": timeout})
    app = TopApp(Lister(settings, nc), TopOptions(interval=0.1, **options))

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await act(Screen(app, pilot))

    with app.poller:
        asyncio.run(main())


@pytest.mark.usefixtures("orders")
def test_the_lag_of_a_consumer(play, raw):
    """The lag is shown over time; sort, filter and details work with keys and mouse."""
    raw.api("STREAM.CREATE.OTHER", name="OTHER", subjects=["OTHER.*"], storage="memory")
    config = {"durable_name": "MORE", "ack_policy": "explicit"}
    raw.api("CONSUMER.CREATE.OTHER.MORE", stream_name="OTHER", config=config)

    async def act(screen: Screen) -> None:
        await screen.until(lambda: screen.names == ["ORDERS", "OTHER"])
        await screen.press("3")
        await screen.until(lambda: screen.names == ["ORDERS > NEW", "OTHER > MORE"])
        for _ in range(50):
            raw.request("OTHER.a", b"x")
        await screen.until(lambda: screen.names == ["OTHER > MORE", "ORDERS > NEW"])
        await screen.until(lambda: str(screen.table.get_row_at(0)[1]) == "50")
        first = screen.table.get_row_at(0)
        # The graph begins with the time without lag.
        assert "█" in str(first[-1])
        assert screen.table.shown[0].history[0] == 0

        # The cursor follows its row when the order changes.
        await screen.press("down", "r")
        assert screen.names == ["ORDERS > NEW", "OTHER > MORE"]
        assert screen.table.cursor_row == 0
        await screen.press("s")
        assert screen.table.sort_column == 2
        assert screen.names == ["ORDERS > NEW", "OTHER > MORE"]
        await screen.pilot.click(screen.table, offset=(3, 0))
        await screen.until(lambda: screen.table.sort_column == 0)

        await screen.press("slash", *"more", "enter")
        assert screen.names == ["OTHER > MORE"]
        await screen.press("enter")
        await screen.until(lambda: "Durable Name: MORE" in screen.text)
        await screen.press("escape", "escape")
        await screen.until(lambda: len(screen.names) == 2)

    play(act, view="both")


@pytest.mark.usefixtures("orders")
def test_keys_of_the_application(play):
    """Each key has the effect that the help describes."""

    async def act(screen: Screen) -> None:
        app = screen.app
        await screen.press("question_mark")
        await screen.until(lambda: "quit" in screen.text)
        await screen.press("q", "p")
        await screen.until(lambda: "PAUSED" in screen.text)
        count = app.poller.refreshes
        await screen.pilot.pause(0.5)
        assert app.poller.refreshes == count
        await screen.press("v")
        await screen.until(lambda: screen.table.view is STREAMS and screen.names == ["ORDERS"])
        await screen.press("6")
        await screen.until(lambda: "No buckets" in screen.text)
        # A browser window that is shown again does not bring back the former tab.
        tabs = app.query_one(TabbedContent)
        app.app_focus = False
        await screen.pilot.pause()
        tabs.active = "servers"
        app.app_focus = True
        await screen.pilot.pause()
        await screen.until(lambda: len(screen.names) == 1)
        assert tabs.active == "servers"
        await screen.press("9")
        await screen.until(lambda: "No calls of tasks" in screen.text)
        await screen.press("q")

    play(act)


@pytest.mark.usefixtures("shop")
def test_the_details_of_a_call(play, js):
    """The tab of tasks shows a call, and its details the errors of its attempts."""
    failure = {
        "exception_class_path": "shop.NoStockError",
        "text": "none left",
        "traceback": "in buy()",
    }
    call = {"id": "c1", "task": "buy", "status": "FAILED", "args": [17], "kwargs": {}}
    record = {**call, "enqueued_at": "2026-01-02T03:04:05+00:00", "errors": [failure]}
    bucket = js.create_key_value(bucket="CALLS", metadata={RESULTS_MARK: "calls of tasks"})
    bucket.put("c1", json.dumps(record).encode())

    async def act(screen: Screen) -> None:
        await screen.press("9")
        await screen.until(lambda: screen.names == ["c1"])
        await screen.press("enter")
        await screen.until(lambda: "[17]" in screen.text and "NoStockError" in screen.text)
        await screen.press("escape", "q")

    play(act)


def do_nothing() -> None:
    """Handle a message."""


def test_two_workers_of_a_process(play, stream, nats_server):
    """They have the same name and the same process, and both are shown."""
    workers = [Worker(nats_server.url, name="twins") for _ in range(2)]
    for name, worker in zip("AB", workers, strict=True):
        worker.handler(stream=stream.name, consumer=name)(do_nothing)

    async def act(screen: Screen) -> None:
        await screen.press("4")
        await screen.until(lambda: screen.names == ["twins", "twins"])

    with running(workers[0]), running(workers[1]):
        wait_until(lambda: all((item.snapshot() or {}).get("not_ready") == [] for item in workers))
        play(act)


@pytest.mark.usefixtures("shop")
def test_dead_letters_are_changed(play, js, stream):
    """A dead letter is requeued after a confirmation; the details have its data."""

    async def act(screen: Screen) -> None:
        await screen.press("4")
        await screen.until(lambda: screen.names == ["shop"])
        await screen.press("enter")
        await screen.until(lambda: "in wait_until" in screen.text)
        await screen.press("escape", "5")
        await screen.until(lambda: screen.names == [f"{stream.name} > BILLING"])
        await screen.press("enter")
        await screen.until(lambda: screen.text.endswith("bad\n") or "\nbad" in screen.text)
        await screen.press("escape", "R", "escape")
        assert stream.info().state.messages == 2
        await screen.press("R", "y")
        # The worker gives the same message up again: it has another sequence.
        await screen.until(lambda: stream.info().state.messages == 3)
        await screen.until(lambda: [row.record.seq for row in screen.table.shown] == [3])
        assert "was published again" in screen.text

        await screen.press("enter")
        await screen.until(lambda: screen.app.screen.query("#discard"))
        await screen.pilot.click("#discard")
        await screen.until(lambda: "Remove the message" in screen.text)
        await screen.pilot.click(Button)
        await screen.until(lambda: screen.names == [])
        assert js.get_stream("DEAD").info().state.messages == 0
        assert stream.info().state.messages == 3

    play(act, may_change=True)


@pytest.mark.usefixtures("shop")
def test_read_only(play, js):
    """Without the permission there are no buttons, and keys change nothing."""

    async def act(screen: Screen) -> None:
        await screen.press("5")
        await screen.until(lambda: len(screen.names) == 1)
        await screen.press("R", "y", "D", "y", "enter")
        await screen.until(lambda: "bad" in screen.text)
        assert [str(item.label) for item in screen.app.screen.query(Button)] == ["Close"]
        await screen.press("y")
        assert js.get_stream("DEAD").info().state.messages == 1

    play(act)


@pytest.mark.usefixtures("shop")
def test_errors_of_one_view(play, js, monkeypatch):
    """A view that cannot be read shows the error, and a failed change is reported."""

    async def act(screen: Screen) -> None:
        await screen.press("5")
        await screen.until(lambda: len(screen.names) == 1)
        screen.app.poller.paused = True
        js.delete_stream("DEAD")
        await screen.press("R", "y")
        await screen.until(lambda: "no longer stored" in screen.text)
        monkeypatch.setattr(screen.app.poller._collector, "_progress", "MISSING")
        await screen.press("7")
        await screen.until(lambda: "MISSING" in screen.text)

    play(act, may_change=True)


@pytest.mark.usefixtures("shop")
def test_a_letter_that_was_published_and_not_removed_is_reported_as_published(play, monkeypatch):
    """The error is about the removal: a second requeue would not be the first one."""

    def fail(_letters: DeadLetters, _letter: DeadLetter) -> None:
        raise errors.TimeoutError("no reply to the removal")

    async def act(screen: Screen) -> None:
        await screen.press("5")
        await screen.until(lambda: len(screen.names) == 1)
        monkeypatch.setattr(DeadLetters, "discard", fail)
        await screen.press("R", "y")
        await screen.until(lambda: "no reply to the removal" in screen.text)
        assert "was published again" in screen.text

    play(act, may_change=True)


@pytest.mark.usefixtures("orders")
def test_a_thread_that_fails_ends_the_application(nc, monkeypatch):
    """What is on the screen would look current although nothing is read any more."""
    settings = Settings(env=Environment.of_process(), words=[])
    collector = Collector(Lister(settings, nc))
    poller = Poller(nc, collector, 0.01, "both")
    failed = ValueError("a reply that no server sends")

    def fail(_view: str) -> Frame:
        raise failed

    with poller:
        monkeypatch.setattr(collector, "collect", fail)
        wait_until(lambda: poller.failure is failed)


# --- outages --------------------------------------------------------------------------------------


def test_a_tab_shows_the_last_sample_with_its_age():
    """While the server is silent, a tab that is opened shows what was read last, and when."""
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_key_value(bucket="CONFIG")

        def note(screen: Screen) -> str:
            return str(screen.table.note.render())

        async def act(screen: Screen) -> None:
            await screen.until(lambda: screen.names == ["KV_CONFIG"])
            server.pause()
            try:
                await screen.until(lambda: "no reply for" in screen.text)
                await screen.press("6")
                await screen.until(lambda: screen.names == ["CONFIG"])
                await screen.until(lambda: "s ago: " in note(screen))
                await screen.press("8")
                await screen.until(lambda: len(screen.names) == 1)
                assert "s ago: " in note(screen)
            finally:
                server.resume()
            await screen.until(lambda: not screen.table.note.display)

        run_top(nc, act, timeout=1.0)


def test_tasks_without_a_list_of_streams():
    """While the buckets of results are unknown, the tab shows the reason and not that there are no calls."""
    deny = "permissions: { publish: { deny: '$JS.API.STREAM.LIST' } }"
    config = f"authorization {{ users: [{{ user: a, password: a, {deny} }}] }}"

    async def act(screen: Screen) -> None:
        await screen.press("9")
        note = await screen.until(lambda: str(screen.table.note.render()))
        assert "STREAM.LIST" in note

    with (
        NatsServer(config=config) as server,
        jetstream_sync.connect(server.url, user="a", password="a") as nc,
    ):
        run_top(nc, act)


ACCOUNTS = """
accounts {
    SYS: { users: [{user: sys, password: sys}] }
    APP: { jetstream: enabled, users: [{user: app, password: app}] }
}
system_account: SYS
no_auth_user: app
"""


def test_it_starts_without_a_meta_leader_and_for_a_system_user():
    """Each tab has the reason; a user of the system account sees which servers answer."""
    with NatsCluster(2, config=ACCOUNTS) as cluster:
        alive, lost = cluster.servers
        lost.kill()

        async def reason(screen: Screen) -> None:
            await screen.until(lambda: "meta leader" in screen.text, 30)
            await screen.press("6")
            await screen.until(lambda: "meta leader" in str(screen.table.note.render()))

        with jetstream_sync.connect(alive.url) as nc:
            wait_until(lambda: "no meta leader" in run_jsm("-s", alive.url, "stream", "ls").err, 30)
            run_top(nc, reason, timeout=1.0)
        states: dict[str, str] = {}

        async def servers(screen: Screen) -> None:
            await screen.until(lambda: "not enabled for account" in screen.text)
            await screen.press("8")
            await screen.until(lambda: len(screen.names) == 2)
            cells = [screen.table.get_row_at(number) for number in (0, 1)]
            states.update({str(name): str(state) for name, state, *_ in cells})

        with jetstream_sync.connect(alive.url, user="sys", password="sys") as nc:
            run_top(nc, servers, timeout=1.0)
        assert states == {alive.name: "online", lost.name: "offline"}


@pytest.mark.usefixtures("orders")
def test_a_small_terminal(play):
    """In 80 columns no title is cut, and what does not answer stays in sight."""

    async def act(screen: Screen) -> None:
        await screen.until(lambda: screen.names == ["ORDERS"])
        tabs = list(screen.app.query(Tab))
        assert len(tabs) == 9
        assert max(tab.region.right for tab in tabs) <= 80
        for key in "138":
            await screen.press(key)
            await screen.until(lambda: screen.names)
            for table in screen.app.active_tables:
                assert table.virtual_size.width <= 80, table.view.name
                titles = [str(column.label) for column in table.ordered_columns]
                assert sum("▲" in text or "▼" in text for text in titles) == 1
        # Columns that are of less use are dropped, as in other tables.
        await screen.press("4")
        await screen.until(lambda: screen.table.view is WORKERS and screen.table.note.display)
        drawn = dict(zip(WORKERS.columns, screen.table.ordered_columns, strict=True))
        assert sum(column.get_render_width(screen.table) for column in drawn.values()) <= 80
        assert [field.title for field, column in drawn.items() if not column.auto_width] == [
            "Started"
        ]
        screen.app.poller.paused = True
        await screen.press("2")
        table = screen.table
        known = [Row(key=f"S{n:02}", fields=stream_fields(f"S{n:02}")) for n in range(30)]
        table.show(known, "")
        await screen.pilot.pause()
        lost = [missing_stream(f"R{n:02}", "no reply") for n in range(30)]
        table.show([*known, *(Row(key=item.name, fields={}, record=item) for item in lost)], "")
        await screen.pilot.pause(0.2)
        assert screen.names[0] == "R00 (unreachable)"
        assert (table.scroll_offset.y, table.cursor_row) == (0, 0)
        # A row that was chosen is followed.
        await screen.press("down")
        table.show([*known, Row(key="R01", fields={}, record=lost[1])], "")
        assert table.cursor_row == 0

    play(act, size=(80, 24))


def stream_fields(name: str) -> dict[str, Any]:
    """Return the fields of a stream in the table."""
    (row,) = History().add(*snapshot(1, [stream(name, 1)])).rows[STREAMS.name]
    return dict(row.fields)


# --- on a terminal --------------------------------------------------------------------------------


def assert_restored(terminal: Terminal) -> None:
    """The terminal echoes, edits lines, shows its cursor, and left the alternate screen."""
    assert terminal.raw.rfind("\x1b[?1049l") > terminal.raw.rfind("\x1b[?1049h") >= 0
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")
    mode = termios.tcgetattr(terminal._fd)
    assert mode[3] & termios.ECHO
    assert mode[3] & termios.ICANON


@pytest.mark.usefixtures("orders", "jsm")
@pytest.mark.parametrize(("key", "status"), [("q", 0), ("\x03", 130), (signal.SIGTERM, 143)])
def test_the_terminal_is_restored(terminal, key, status):
    """q, Ctrl-C and SIGTERM end the application with their status, and restore the terminal."""
    top = terminal("top", "--interval", "200ms")
    top.expect("ORDERS > NEW")
    assert not termios.tcgetattr(top._fd)[3] & termios.ECHO
    if isinstance(key, str):
        top.send(key)
    else:
        top._child.send_signal(key)
    assert top.wait() == status
    assert_restored(top)


def test_the_screen_during_an_outage(terminal):
    """During an outage the screen shows it; afterwards it is updated again."""
    with NatsServer(name="away") as server:
        with RawClient(server.port) as raw:
            raw.api("STREAM.CREATE.KEPT", name="KEPT", subjects=["kept"], storage="file")
        top = terminal("top", "--interval", "200ms", "--timeout", "500ms", NATS_URL=server.url)
        top.expect("KEPT")
        server.kill()
        top.expect("no connection for ", 20)
        server.restart()
        with RawClient(server.port) as raw:
            raw.request("kept", b"x")
        top.expect("1 message,", 20)
        top.send("q")
        assert top.wait() == 0
        assert_restored(top)


def test_no_server(terminal):
    """Without a server the command fails before it draws a screen."""
    top = terminal("top", NATS_URL="nats://127.0.0.1:1")
    assert top.wait() == 5
    assert "\x1b[?1049h" not in top.raw


def test_without_the_extra(jsm, monkeypatch):
    """On a terminal, the command names the extra to install; tables do not need it."""
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "jetstream_sync.cli.top.app")
    result = run_jsm("top", tty=True, TERM="xterm", NATS_URL=jsm.url)
    assert result.status == 1
    assert install_command("top") in result.err
    assert jsm("top", "--once", "--interval", "10ms").ok().out
