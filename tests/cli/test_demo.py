"""``jsm demo`` on real servers: the whole job, refused options, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import run_jsm
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync.cli.main import run
from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.workers.demo import OrderError, dispatch, price, read
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

COUNT = 40


@pytest.fixture
def js(fresh_server: NatsServer) -> Iterator[jetstream_sync.JetStream]:
    """Another connection to the demo's server."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        yield nc.jetstream()


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Write some orders; each costs 2 x 19.90, which is 39.80."""
    path = tmp_path / "orders.jsonl"
    item = {"sku": "X", "quantity": 2, "price": "19.90"}
    with path.open("w") as file:
        for number in range(COUNT):
            order = {"id": number, "customer": "C", "currency": "EUR", "country": "DE"}
            file.write(json.dumps({**order, "items": [item]}) + "\n")
    return path


def demo(*args: object, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run ``jsm demo`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    env = Environment(stdin=io.BytesIO(stdin), stdout=out, stderr=err)
    return run(["demo", *map(str, args)], env), out.getvalue(), err.getvalue()


@contextlib.contextmanager
def started(*args: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``jsm demo`` as a process in its own session."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **options.pop("env", {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "jetstream_sync.cli", "demo", *map(str, args)],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        | options,
        env=variables,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def names(js: jetstream_sync.JetStream) -> list[str]:
    return list(js.stream_names())


def seen(js: jetstream_sync.JetStream, messages: int, name: str = "ORDERS") -> bool:
    """Return whether a stream exists and has at least this number of messages."""
    try:
        return js.get_stream(name).cached_info.state.messages >= messages
    except jetstream_sync.StreamNotFoundError:
        return False


def end_of(process: subprocess.Popen[bytes], limit: float = 20.0) -> tuple[int, str, str]:
    """Wait for the end of a process."""
    out, err = process.communicate(timeout=limit)
    return process.returncode, out.decode(), err.decode()


def one_line(err: str, *parts: str) -> bool:
    """Return whether stderr is one line, an error with these parts."""
    return err.startswith("jsm: ") and err.count("\n") == 1 and all(p in err for p in parts)


# --- the job ------------------------------------------------------------------------------------


def test_sample_comes_through_exactly_once():
    """Without arguments 5,000 orders go through a server that is started for them."""
    status, out, err = demo("--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["exactly_once"] is True
    assert report["orders"] == 5_000
    for stage in report["stages"]:
        assert stage["matches_input"] is True
        assert stage["messages"] == 5_000
    # By default 1 % of the orders is delivered a second time, to both consumers.
    chosen = sum(zlib.crc32(f"SO-{100_001 + n}".encode()) % 10_000 < 100 for n in range(5_000))
    for consumer in report["consumers"]:
        assert consumer["deliveries"] == 5_000 + chosen
        assert consumer["redelivered"] == consumer["deduplicated"] == chosen > 0
    assert report["server"].startswith("nats-server 2.")


def test_kept_stream_holds_the_three_stages(fresh_server, js, orders):
    """With --keep the stream stays, and holds each order on each of the three subjects."""
    status, out, _ = demo("--input", orders, "--server", fresh_server.url, "--keep")
    assert status == 0
    assert f"Every order came through exactly once: {COUNT} orders" in out
    stream = js.get_stream("ORDERS")
    found: dict[str, list[dict[str, Any]]] = {}
    for seq in range(1, 3 * COUNT + 1):
        msg = stream.get_msg(seq)
        found.setdefault(msg.subject, []).append(json.loads(msg.data))
    assert {name: len(all_) for name, all_ in found.items()} == {
        "ORDERS.received": COUNT,
        "ORDERS.processed": COUNT,
        "ORDERS.completed": COUNT,
    }
    for name in ("ORDERS.processed", "ORDERS.completed"):
        assert sorted(int(order["id"]) for order in found[name]) == list(range(COUNT))
        assert {order["total"] for order in found[name]} == {"39.80"}
    assert len({order["tracking_number"] for order in found["ORDERS.completed"]}) == COUNT
    assert {"DISPATCH", "NEW"} <= set(stream.consumer_names())


def test_nothing_is_left_on_a_given_server(fresh_server, js, orders):
    """The stream has the name of the option, and is removed; ``-`` reads standard input."""
    options = ("--input", "-", "--json", "--server", fresh_server.url, "--stream", "SHOP")
    status, out, err = demo(*options, stdin=orders.read_bytes())
    assert (status, err) == (0, "")
    assert json.loads(out)["orders"] == COUNT
    assert names(js) == []


# --- what it refuses ----------------------------------------------------------------------------


def test_existing_stream_is_not_touched(fresh_server, js, orders):
    """An existing stream of that name is refused, and is not changed."""
    js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    js.publish("ORDERS.received", b"precious")
    before = js.get_stream("ORDERS").cached_info
    status, out, err = demo("--input", orders, "--server", fresh_server.url)
    assert (status, out) == (1, "")
    assert one_line(err, "stream name already in use")
    after = js.get_stream("ORDERS").cached_info
    assert after.config == before.config
    assert after.state.messages == 1
    assert after.created == before.created


# --- how it ends --------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGINT, 130, "jsm: interrupted\n"), (signal.SIGTERM, 143, "")],
)
@pytest.mark.parametrize("at_least", [0, 30], ids=["starting", "publishing"])
def test_signal_ends_it_cleanly(fresh_server, js, orders, number, status, said, at_least):
    """Ctrl-C and SIGTERM end it in any phase: no traceback, nothing left on the server."""
    options = ("--input", orders, "--server", fresh_server.url, "--rate", 20)
    with started(*options) as process:
        wait_until(lambda: seen(js, at_least))
        process.send_signal(number)
        assert end_of(process) == (status, "", said)
    assert names(js) == []


def steal(js: jetstream_sync.JetStream) -> jetstream_sync.JetStreamMsg:
    """Take a message that was meant for a worker of DISPATCH."""
    stream = js.get_stream("ORDERS")
    wait_until(lambda: "DISPATCH" in stream.consumer_names())
    thief = stream.get_consumer("DISPATCH")
    return wait_until(lambda: thief.fetch(1, timeout=0.2))[0]


def test_signal_leaves_nothing_of_the_demos_own_server(orders, tmp_path):
    """Ctrl-C with the demo's own server stops that, too, and removes its directory."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = ("--input", orders, "--rate", 10)
    with started(*options, env={"TMPDIR": str(scratch)}) as process:
        wait_until(lambda: list(scratch.glob("*/store/jetstream/$G/streams/ORDERS")))
        process.send_signal(signal.SIGINT)
        assert end_of(process) == (130, "", "jsm: interrupted\n")
    assert list(scratch.iterdir()) == []


def test_a_worker_that_fails_ends_it(fresh_server, orders, monkeypatch):
    """An error of the worker's thread is the error of the command, which would wait for ever."""

    def fail(_worker: Worker) -> int:
        raise RuntimeError("no threads left")

    monkeypatch.setattr(Worker, "run", fail)
    with pytest.raises(RuntimeError, match="no threads left"):
        demo("--input", orders, "--server", fresh_server.url)


def test_server_that_dies_ends_it(fresh_server, js, orders):
    """A killed server is one line of error and status 5, at once."""
    options = ("--input", orders, "--server", fresh_server.url, "--rate", 20, "--keep")
    with started(*options) as process:
        wait_until(lambda: seen(js, 10))
        fresh_server.kill()
        status, out, err = end_of(process)
    assert (status, out) == (5, "")
    assert one_line(err)


def test_what_other_clients_do_is_found(fresh_server, js, orders):
    """Lost orders, second copies and invalid messages fail the run; workers continue."""
    options = ("--input", orders, "--server", fresh_server.url, "--rate", 20, "--json")
    with started(*options) as process:
        wait_until(lambda: seen(js, 10))
        steal(js).ack_sync()
        first = js.get_stream("ORDERS").get_msg(last_by_subject="ORDERS.completed")
        js.publish("ORDERS.completed", first.data)
        for stage in ("received", "processed", "completed", "scratch"):
            js.publish(f"ORDERS.{stage}", b"what is this?")
        status, out, err = end_of(process)
    assert status == 1
    report = json.loads(out)
    # The message outside of the stages counts in the first one.
    assert [
        (entry["wrong"], entry["missing"], entry["duplicates"]) for entry in report["stages"]
    ] == [
        (2, 0, 0),
        (1, 0, 0),
        (1, 1, 1),
    ]
    assert [consumer["refused"] for consumer in report["consumers"]] == [1, 1]
    failure = json.loads(err)["error"]["description"]
    assert "not every order came through exactly once" in failure


# --- orders -------------------------------------------------------------------------------------


def line(**changes: Any) -> bytes:
    """An order as a line of the input; ``...`` leaves a field out."""
    fields: dict[str, Any] = {"id": "A-1", "items": item(quantity=2, price="19.90"), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def item(**changes: Any) -> list[dict[str, Any]]:
    """Return a list with one item."""
    fields = {"quantity": 1, "price": "1.00", **changes}
    return [{name: value for name, value in fields.items() if value is not ...}]


def test_a_priced_order_has_the_sum_of_its_items():
    """NEW adds up quantity times price, and DISPATCH keeps that total."""
    goods = item(quantity=2, price="10.00") + item(quantity=41, price=0.01)
    priced = read(line(items=goods), price)
    assert priced == {"id": "A-1", "units": 43, "total": "20.41"}
    completed = read(json.dumps(priced).encode(), dispatch)
    assert (completed["id"], completed["total"], completed["parcels"]) == ("A-1", "20.41", 3)
    assert completed["tracking_number"].startswith("JS")
    with pytest.raises(OrderError):
        read(line(items=goods), dispatch)


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"\xff\xfe",
        b"[1]",
        line(id=...),
        line(items=...),
        line(items=[]),
        line(items=[7]),
        line(items=item(quantity=1.5)),
        line(items=item(price="1,00")),
        line(items=item(price="-1")),
        line(items=item(price="NaN")),
        line(items=item(price="1e999999")),
    ],
)
def test_a_bad_order_is_refused(payload):
    """An order without its fields, or with impossible values, is no order."""
    with pytest.raises(OrderError):
        read(payload, price)


@pytest.mark.parametrize(
    ("stdin", "part"),
    [
        (b"", "no orders"),
        (b"\n[]\n", "standard input, line 2: not a valid order"),
        (line(id=1) + b"\n" + line(id="1"), "standard input, line 2: order '1' occurs twice"),
    ],
)
def test_bad_input_is_wrong_usage(stdin, part):
    """Bad input is refused in one line, before a server is started."""
    result = run_jsm("demo", "--input", "-", stdin=stdin)
    assert (result.status, result.out) == (2, "")
    assert part in result.err
    assert result.err.count("\n") == 1
