"""``jsm consumer edit``, ``copy``, ``pause``, ``resume``, ``unpin``, ``reset``, ``report`` and ``sample``."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fix_jsm import Jsm
from fix_orders import Orders
from fix_threads import wait_until

pytestmark = pytest.mark.usefixtures("orders")


# --- edit -----------------------------------------------------------------------------------------


def test_an_option_changes_one_field(jsm: Jsm, orders: Orders) -> None:
    """The others stay as they are; labels are added, and an empty one is taken away."""
    orders.make("A", max_deliver=7, ack_wait=9_000_000_000, metadata={"team": "a", "old": "x"})
    result = jsm(
        "con", "edit", "ORDERS", "A", "--max-deliver", "8", "-f",
        "--metadata", "new=y", "--metadata", "old=",
    ).ok()  # fmt: skip
    config = orders.config("A")
    assert (config["max_deliver"], config["ack_wait"]) == (8, 9_000_000_000)
    assert (config["metadata"]["team"], config["metadata"]["new"]) == ("a", "y")
    assert "old" not in config["metadata"]
    assert "max_deliver: 7 -> 8" in result.out
    assert "Consumer ORDERS > A was changed" in result.out


def test_one_that_pushes_is_changed_too(jsm: Jsm, orders: Orders) -> None:
    """Also where it delivers to."""
    orders.make("P", deliver_subject="one")
    assert jsm("con", "edit", "ORDERS", "P", "--target", "two", "-f", "-j").ok().json[
        "config"
    ]["deliver_subject"] == "two"  # fmt: skip
    assert orders.config("P")["deliver_subject"] == "two"


def test_a_dry_run_changes_nothing(jsm: Jsm, orders: Orders) -> None:
    """It shows the differences, and says in its status whether there are any when asked to."""
    orders.make("A", max_deliver=7)
    command = ["con", "edit", "ORDERS", "A", "--max-deliver"]
    assert "max_deliver: 7 -> 8" in jsm(*command, "8", "--dry-run").ok().out
    found = jsm(*command, "8", "--dry-run", "-j").ok().json
    assert found["differences"] == [{"field": "max_deliver", "before": 7, "after": 8}]
    assert jsm(*command, "8", "--dry-run", "--exit-code").status == 1
    assert jsm(*command, "7", "--dry-run", "--exit-code").ok().out == "No differences\n"
    assert orders.config("A")["max_deliver"] == 7


def test_nothing_is_changed_without_a_word(jsm: Jsm, orders: Orders, terminal: Any) -> None:
    """Without a terminal, --force is required; on a terminal, the answer decides."""
    orders.make("A", max_deliver=7)
    command = ["obs", "edit", "ORDERS", "A", "--max-deliver", "8"]
    assert jsm(*command).status == 2
    assert orders.config("A")["max_deliver"] == 7
    shown = terminal(*command, TERM="dumb")
    shown.answer("Change observable ORDERS > A?", "y")
    assert shown.wait() == 0
    assert orders.config("A")["max_deliver"] == 8


def test_a_file_takes_the_place_of_the_config(jsm: Jsm, orders: Orders, tmp_path: Path) -> None:
    """What it does not say gets the default; whose config it was does not matter."""
    orders.make("A", max_deliver=7, description="old", filter_subject="ORDERS.a")
    orders.make("B", max_deliver=9)
    path = tmp_path / "b.json"
    path.write_text(jsm("con", "info", "ORDERS", "B", "-j").ok().out)
    jsm("con", "edit", "ORDERS", "A", "--config", str(path), "--description", "new", "-f").ok()
    config = orders.config("A")
    assert (config["durable_name"], config["max_deliver"]) == ("A", 9)
    assert config["description"] == "new"
    assert "filter_subject" not in config


def test_an_editor_changes_it(orders: Orders, terminal: Any, tmp_path: Path) -> None:
    """What is left in the file is what the consumer gets."""
    orders.make("A", max_deliver=7)
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i s/\'"max_deliver": 7\'/\'"max_deliver": 6\'/ "$1"\n')
    editor.chmod(0o755)
    shown = terminal("con", "edit", "ORDERS", "A", "-i", "-f", TERM="dumb", VISUAL=str(editor))
    assert shown.wait() == 0, shown.text
    assert orders.config("A")["max_deliver"] == 6


def test_what_the_server_does_not_change_is_told(jsm: Jsm, orders: Orders) -> None:
    """The error says which difference it is."""
    orders.make("A")
    result = jsm("con", "edit", "ORDERS", "A", "--ack", "none", "-f")
    assert result.status == 1
    assert "ack_policy: explicit -> none" in result.err
    assert orders.config("A")["ack_policy"] == "explicit"


def test_no_difference_is_no_change(jsm: Jsm, orders: Orders) -> None:
    """The command asks no question and sends no change."""
    orders.make("A", max_deliver=7)
    result = jsm("con", "edit", "ORDERS", "A", "--max-deliver", "7").ok()
    assert "is unchanged" in result.out


# --- copy -----------------------------------------------------------------------------------------


def test_a_copy_is_like_its_source(jsm: Jsm, orders: Orders) -> None:
    """But for its name and what the options say; the source stays."""
    orders.make("A", filter_subject="ORDERS.a", max_deliver=7, metadata={"team": "a"})
    jsm("con", "cp", "ORDERS", "A", "B", "--max-deliver", "8").ok()
    config = orders.config("B")
    assert (config["durable_name"], config["name"]) == ("B", "B")
    assert (config["filter_subject"], config["max_deliver"]) == ("ORDERS.a", 8)
    assert config["metadata"]["team"] == "a"
    assert orders.config("A")["max_deliver"] == 7
    assert jsm("con", "copy", "ORDERS", "A", "A").status == 2
    assert jsm("con", "copy", "ORDERS", "X", "C").status == 3


def test_a_copy_may_be_of_the_other_kind(jsm: Jsm, orders: Orders) -> None:
    """Two that deliver to the same subject are warned of."""
    orders.make("P", deliver_subject="out", idle_heartbeat=5_000_000_000, flow_control=True)
    assert "both deliver to out" in jsm("con", "copy", "ORDERS", "P", "Q").ok().err
    jsm("con", "copy", "ORDERS", "P", "R", "--pull").ok()
    assert "deliver_subject" not in orders.config("R")


# --- pause, resume, unpin, reset ------------------------------------------------------------------


@pytest.mark.server(">=2.11")
def test_a_pause_ends_by_a_word_or_by_itself(jsm: Jsm, orders: Orders) -> None:
    """The server says until when; resuming one that is not paused is fine."""
    orders.make("A")
    found = jsm("con", "pause", "ORDERS", "A", "1h", "-f", "-j").ok().json
    assert found["paused"] is True
    assert 3590 < found["pause_remaining"] / 1e9 <= 3600
    assert orders.info("A")["paused"]
    assert "Paused: until" in jsm("con", "info", "ORDERS", "A").ok().out
    orders.publish("x")
    result = jsm("con", "next", "ORDERS", "A", "--expires", "200ms")
    assert "is paused" in result.err
    assert "is not paused" in jsm("obs", "resume", "ORDERS", "A").ok().out
    assert not orders.info("A").get("paused")
    jsm("con", "resume", "ORDERS", "A").ok()
    until = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
    assert "is paused until" in jsm("con", "pause", "ORDERS", "A", until, "-f").ok().out
    assert jsm("con", "pause", "ORDERS", "A", "1h").status == 2
    result = jsm("con", "pause")
    assert "STREAM, CONSUMER" in result.err
    assert jsm("con", "pause", "ORDERS", "A", "whenever", "-f").status == 2


@pytest.mark.server("<2.11")
def test_an_old_server_can_not_pause(jsm: Jsm, orders: Orders) -> None:
    """The error names the version that can."""
    orders.make("A")
    result = jsm("con", "pause", "ORDERS", "A", "1h", "-f", "--timeout", "500ms")
    assert result.status == 1
    assert "2.11" in result.err


@pytest.mark.server(">=2.11")
def test_a_pin_is_taken(jsm: Jsm, orders: Orders) -> None:
    """The only group needs no name; who had it is in the document."""
    orders.make("A", priority_groups=["G"], priority_policy="pinned_client")
    orders.publish("x", "y")
    jsm("con", "next", "ORDERS", "A", "--group", "G").ok()
    client = orders.info("A")["priority_groups"][0]["pinned_client_id"]
    assert jsm("con", "unpin", "ORDERS", "A").status == 2
    found = jsm("con", "unpin", "ORDERS", "A", "-f", "-j").ok().json
    assert found == {"group": "G", "unpinned_client_id": client}
    assert not orders.info("A")["priority_groups"][0].get("pinned_client_id")
    assert "no client was pinned" in jsm("con", "unpin", "ORDERS", "A", "G").ok().out
    assert jsm("con", "unpin", "ORDERS", "A", "H").status == 3
    orders.make("B")
    assert jsm("con", "unpin", "ORDERS", "B").status == 2


@pytest.mark.server(">=2.14")
def test_a_consumer_starts_over(jsm: Jsm, orders: Orders) -> None:
    """Behind its ack floor, or where it is told to; the document is the server's."""
    orders.make("A")
    orders.publish("1", "2", "3", "4")
    jsm("con", "next", "ORDERS", "A").ok()
    jsm("con", "next", "ORDERS", "A", "--no-ack", "--count", "2").ok()
    assert jsm("con", "reset", "ORDERS", "A").status == 2
    found = jsm("con", "reset", "ORDERS", "A", "-f", "-j").ok().json
    assert (found["reset_seq"], found["num_pending"]) == (2, 3)
    assert orders.info("A")["num_ack_pending"] == 0
    result = jsm("con", "reset", "ORDERS", "A", "--seq", "4", "-f").ok()
    assert "continues at sequence 4" in result.out
    assert "\n4\n" in jsm("con", "next", "ORDERS", "A").ok().out
    orders.make("L", deliver_policy="last")
    result = jsm("con", "reset", "ORDERS", "L", "--seq", "1", "-f")
    assert result.status == 1
    assert "10204" in result.err


@pytest.mark.server("<2.14")
def test_an_old_server_can_not_reset(jsm: Jsm, orders: Orders) -> None:
    """The error names the version that can."""
    orders.make("A")
    result = jsm("con", "reset", "ORDERS", "A", "-f")
    assert result.status == 1
    assert "2.14" in result.err


# --- report ---------------------------------------------------------------------------------------


def test_consumers_side_by_side(jsm: Jsm, orders: Orders) -> None:
    """The numbers are the server's; the order is the one that is asked for."""
    orders.make("A", filter_subject="ORDERS.none")
    orders.make("B")
    orders.make("P", deliver_subject="out")
    orders.publish("1", "2", "3")
    jsm("con", "next", "ORDERS", "B", "--no-ack").ok()
    rows = {each["name"]: each for each in jsm("con", "report", "ORDERS", "-j").ok().json}
    for name in ("A", "B", "P"):
        info = orders.info(name)
        for key in ("num_pending", "num_ack_pending", "num_redelivered", "num_waiting"):
            assert rows[name][key] == info[key]
    assert [rows[name]["mode"] for name in "ABP"] == ["pull", "pull", "push"]
    by_pending = jsm("con", "report", "--sort", "pending", "-j").ok().json
    assert by_pending[0]["name"] == "B"
    table = jsm("con", "report", "ORDERS", "--sort", "unprocessed").ok().out.splitlines()
    assert [line.split()[0] for line in table[2:]] == ["P", "B", "A"]
    assert "push, unbound" in table[2]
    assert "2 / 67%" in table[3]
    assert "ORDERS > A" in jsm("con", "report").ok().out


def test_a_report_may_be_watched(jsm: Jsm, orders: Orders) -> None:
    """It is written again and again; as JSON each time on a line."""
    orders.make("A")
    child = jsm.spawn("con", "report", "--watch", "50ms", "-j")
    assert child.stdout is not None
    seen = [json.loads(child.stdout.readline()) for _ in range(3)]
    assert [[each["name"] for each in rows] for rows in seen] == [["A"]] * 3
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == 130


# --- sample ---------------------------------------------------------------------------------------


def test_samples_are_shown_as_they_come(jsm: Jsm, orders: Orders, terminal: Any) -> None:
    """The block of 2020, with the numbers of the event."""
    orders.make("NEW", sample_freq="100")
    orders.publish("1", "2")
    shown = terminal("obs", "sample", "ORDERS", "NEW", "--count", "2", TERM="dumb")
    shown.expect(
        "Listening for Ack Samples on $JS.EVENT.METRIC.CONSUMER.ACK.ORDERS.NEW "
        "with sampling frequency 100 for ORDERS > NEW"
    )
    jsm("obs", "next", "ORDERS", "NEW").ok()
    shown.expect("Delay: ")
    assert "] ORDERS > NEW\n  Message Set Sequence: 1\n   Observable Sequence: 1\n" in shown.text
    jsm("obs", "next", "ORDERS", "NEW").ok()
    assert shown.wait() == 0
    assert shown.text.count("Redelivered: 0") == 2
    assert shown.text.count("Delay: ") == 2


def test_samples_are_the_events_themselves(jsm: Jsm, orders: Orders) -> None:
    """With -j each is a line with all that the server sent."""
    orders.make("NEW", sample_freq="100%")
    orders.publish("1")
    child = jsm.spawn("con", "sample", "ORDERS", "NEW", "--count", "1", "-j")
    assert child.stderr is not None
    assert b"Listening" in child.stderr.readline()
    jsm("con", "next", "ORDERS", "NEW", "--nak").ok()
    jsm("con", "next", "ORDERS", "NEW").ok()
    out, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    event = json.loads(out)
    assert event["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert (event["stream"], event["consumer"]) == ("ORDERS", "NEW")
    assert (event["stream_seq"], event["consumer_seq"], event["deliveries"]) == (1, 2, 2)
    assert event["ack_time"] > 0


def test_one_that_is_not_sampled_has_no_samples(jsm: Jsm, orders: Orders) -> None:
    """It is a usage error that says how to turn them on, and nothing is waited for."""
    orders.make("A")
    result = jsm("con", "sample", "ORDERS", "A")
    assert (result.status, result.out) == (2, "")
    assert "jsm consumer edit ORDERS A --sample 100" in result.err
    jsm("con", "edit", "ORDERS", "A", "--sample", "100", "-f").ok()
    assert jsm("con", "sample", "ORDERS", "A", "--wait", "100ms").status == 4


def test_what_is_no_sample_is_passed_over(jsm: Jsm, orders: Orders) -> None:
    """Anybody may publish where samples come: what is none is told, and does not end the command."""
    orders.make("NEW", sample_freq="100")
    orders.raw.request("ORDERS.received", b"1")
    child = jsm.spawn("con", "sample", "ORDERS", "NEW", "--count", "1")
    assert child.stderr is not None
    assert child.stderr.readline().startswith(b"Listening")
    subject = b"$JS.EVENT.METRIC.CONSUMER.ACK.ORDERS.NEW"
    for body in (b"{", b"[]", b'{"stream_seq":"x"}', b'{"stream_seq":1,"ack_time":null}'):
        orders.raw.send(b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body))
    orders.raw.api("INFO")
    jsm("con", "next", "ORDERS", "NEW").ok()
    out, err = child.communicate(timeout=20)
    assert child.returncode == 0, err
    assert b"Stream Sequence: 1" in out
    assert len(err.splitlines()) == 4


def test_ctrl_c_ends_the_samples(orders: Orders, terminal: Any) -> None:
    """With its own status, and without a traceback."""
    orders.make("A", sample_freq="100")
    shown = terminal("con", "sample", "ORDERS", "A", TERM="dumb")
    shown.expect("Listening for Ack Samples")
    shown.send("\x03")
    assert shown.wait() == 130
    assert "Traceback" not in shown.text
    wait_until(lambda: orders.names() == ["A"])
