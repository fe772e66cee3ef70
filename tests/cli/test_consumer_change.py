"""``jsm consumer edit``, ``copy``, ``pause``, ``resume``, ``unpin``, ``reset``, ``report`` and ``sample``."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

pytestmark = pytest.mark.usefixtures("orders")


# --- edit -----------------------------------------------------------------------------------------


def test_an_option_changes_one_field(jsm, orders):
    """The other fields stay; metadata is added, and an empty value removes a key."""
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


def test_a_file_replaces_the_config(jsm, orders, tmp_path):
    """Fields that the file does not contain get their defaults; its consumer name is ignored."""
    orders.make("A", max_deliver=7, description="old", filter_subject="ORDERS.a")
    orders.make("B", max_deliver=9)
    path = tmp_path / "b.json"
    path.write_text(jsm("con", "info", "ORDERS", "B", "-j").ok().out)
    jsm("con", "edit", "ORDERS", "A", "--config", str(path), "--description", "new", "-f").ok()
    config = orders.config("A")
    assert (config["durable_name"], config["max_deliver"]) == ("A", 9)
    assert config["description"] == "new"
    assert "filter_subject" not in config


def test_a_refused_change_is_named(jsm, orders):
    """The error names the difference that the server refuses."""
    orders.make("A")
    result = jsm("con", "edit", "ORDERS", "A", "--ack", "none", "-f")
    assert result.status == 1
    assert "ack_policy: explicit -> none" in result.err
    assert orders.config("A")["ack_policy"] == "explicit"


# --- copy -----------------------------------------------------------------------------------------


def test_a_copy_has_the_config_of_its_source(jsm, orders):
    """The copy has the config of its source, except for its name and the options."""
    orders.make("A", filter_subject="ORDERS.a", max_deliver=7, metadata={"team": "a"})
    jsm("con", "cp", "ORDERS", "A", "B", "--max-deliver", "8").ok()
    config = orders.config("B")
    assert (config["durable_name"], config["name"]) == ("B", "B")
    assert (config["filter_subject"], config["max_deliver"]) == ("ORDERS.a", 8)
    assert config["metadata"]["team"] == "a"
    assert orders.config("A")["max_deliver"] == 7
    assert jsm("con", "copy", "ORDERS", "A", "A").status == 2
    assert jsm("con", "copy", "ORDERS", "X", "C").status == 3


# --- pause, resume, unpin, reset ------------------------------------------------------------------


@pytest.mark.server(">=2.11")
def test_a_pause_ends_by_resume_or_by_itself(jsm, orders):
    """The server reports the time; resuming a consumer that is not paused is allowed."""
    orders.make("A")
    found = jsm("con", "pause", "ORDERS", "A", "1h", "-f", "-j").ok().json
    assert found["paused"] is True
    assert 3590 < found["pause_remaining"] / 1e9 <= 3600
    assert orders.info("A")["paused"]
    assert "Paused: until" in jsm("con", "info", "ORDERS", "A").ok().out
    orders.publish("x")
    assert jsm("con", "next", "ORDERS", "A", "--expires", "200ms").status == 4
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
def test_an_old_server_can_not_pause(jsm, orders):
    """The error names the required version."""
    orders.make("A")
    result = jsm("con", "pause", "ORDERS", "A", "1h", "-f", "--timeout", "500ms")
    assert result.status == 2
    assert "2.11" in result.err


@pytest.mark.server(">=2.11")
def test_a_client_is_unpinned(jsm, orders):
    """The only group needs no name; the unpinned client is in the result."""
    orders.make("A", priority_groups=["G"], priority_policy="pinned_client")
    orders.publish("x", "y")
    jsm("con", "next", "ORDERS", "A", "--group", "G").ok()
    client = orders.info("A")["priority_groups"][0]["pinned_client_id"]
    assert jsm("con", "unpin", "ORDERS", "A").status == 2
    found = jsm("con", "unpin", "ORDERS", "A", "-f", "-j").ok().json
    assert found == {"group": "G", "unpinned_client_id": client}
    assert not orders.info("A")["priority_groups"][0].get("pinned_client_id")
    assert "no client was pinned" in jsm("con", "unpin", "ORDERS", "A", "G").ok().out
    assert jsm("con", "unpin", "ORDERS", "A", "H", "-j").error["err_code"] == 10160
    orders.make("B")
    assert jsm("con", "unpin", "ORDERS", "B").status == 2


@pytest.mark.server(">=2.14")
def test_a_consumer_is_reset(jsm, orders):
    """It starts behind its ack floor, or at the given sequence; the result is the server's."""
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


# --- report ---------------------------------------------------------------------------------------


def test_the_report_of_all_consumers(jsm, orders):
    """The numbers are those of the server, in the requested order."""
    orders.make("A", filter_subject="ORDERS.none")
    orders.make("B")
    orders.make("P", deliver_subject="out")
    orders.publish("1", "2", "3")
    jsm("con", "next", "ORDERS", "B", "--no-ack").ok()
    rows = {item["name"]: item for item in jsm("con", "report", "ORDERS", "-j").ok().json}
    for name in ("A", "B", "P"):
        info = orders.info(name)
        for key in ("num_pending", "num_ack_pending", "num_redelivered", "num_waiting"):
            assert rows[name][key] == info[key]
    by_pending = jsm("con", "report", "--sort", "pending", "-j").ok().json
    assert by_pending[0]["name"] == "B"
    table = jsm("con", "report", "ORDERS", "--sort", "unprocessed").ok().out.splitlines()
    assert [line.split()[0] for line in table[2:]] == ["P", "B", "A"]
    assert "push, unbound" in table[2]
    unacked, _, ago = table[3].split()[-3:]
    assert (unacked, ago) == ("0", "ago")
    assert "ORDERS > A" in jsm("con", "report").ok().out


# --- sample ---------------------------------------------------------------------------------------


def test_samples_are_printed_as_they_arrive(jsm, orders, terminal):
    """The output of 2020, with the numbers of the event."""
    orders.make("NEW", sample_freq="100")
    orders.publish("1", "2")
    shown = terminal("obs", "sample", "ORDERS", "NEW", "--count", "2", TERM="dumb")
    shown.expect(
        "Listening for Ack Samples on $JS.EVENT.METRIC.CONSUMER.ACK.ORDERS.NEW "
        "with sampling frequency 100 for ORDERS > NEW"
    )
    jsm("obs", "next", "ORDERS", "NEW").ok()
    shown.expect("Delay: ")
    assert "] ORDERS > NEW\n    Stream Sequence: 1\n  Consumer Sequence: 1\n" in shown.text
    jsm("obs", "next", "ORDERS", "NEW").ok()
    assert shown.wait() == 0
    assert shown.text.count("Redelivered: 0") == 2
    assert shown.text.count("Delay: ") == 2


def test_samples_are_the_events_themselves(jsm, orders):
    """With -j each event is a line with all fields."""
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


def test_a_consumer_without_samples(jsm, orders):
    """It is a usage error that says how to enable samples, and the command does not wait."""
    orders.make("A")
    result = jsm("con", "sample", "ORDERS", "A")
    assert (result.status, result.out) == (2, "")
    assert "jsm consumer edit ORDERS A --sample 100" in result.err
    jsm("con", "edit", "ORDERS", "A", "--sample", "100", "-f").ok()
    assert jsm("con", "sample", "ORDERS", "A", "--wait", "100ms").status == 4
