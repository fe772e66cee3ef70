"""``jsm consumer dlq``: dead letters are listed, shown, and published again."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from fixtures.jsm import Jsm
from fixtures.orders import Orders
from fixtures.threads import wait_until
from fixtures.worker import is_settled, running

from jetstream_sync import connect
from jetstream_sync.durations import time_from_text
from jetstream_sync.workers import DeadLetters, Reject, Worker

pytestmark = pytest.mark.usefixtures("orders")

ADVISORIES = [
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
    "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
]
NEXT = "$JS.API.CONSUMER.MSG.NEXT.ORDERS"
#: Not one without a wait: old servers do not answer it where all that is left was given up.
PULL = b'{"batch":1,"expires":20000000}'


@pytest.fixture
def stored(jsm: Jsm, orders: Orders) -> Orders:
    """A consumer that gives up at once, and a stream that stores its advisories."""
    jsm("con", "dlq", "setup").ok()
    orders.make("NEW", max_deliver=1, ack_wait=50_000_000)
    return orders


def give_up(orders: Orders, count: int, consumer: str = "NEW") -> None:
    """Reach the delivery limit of messages, and wait for their advisories."""
    orders.raw.requests(f"{NEXT}.{consumer}", [b"1"] * count)
    told = len(letters_in(orders))

    def noticed() -> bool:
        # A pull consumer notices it at its next pull.
        orders.raw.request(f"{NEXT}.{consumer}", PULL)
        return len(letters_in(orders)) >= told + count

    wait_until(noticed)


def letters_in(orders: Orders, name: str = "DEAD_LETTERS") -> list[dict[str, Any]]:
    """Return the stored advisories, read with an independent client."""
    state = orders.raw.api(f"STREAM.INFO.{name}").get("state")
    if state is None:
        return []
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        response = orders.raw.api(f"STREAM.MSG.GET.{name}", seq=seq)
        if "message" in response:
            found.append(json.loads(base64.b64decode(response["message"]["data"])))
    return found


def message(orders: Orders, seq: int) -> dict[str, Any]:
    found: dict[str, Any] = orders.raw.api("STREAM.MSG.GET.ORDERS", seq=seq)["message"]
    return found


# --- setup ----------------------------------------------------------------------------------------


def test_setup_creates_the_stream(jsm, orders):
    """It stores the two kinds of advisories for 30 days; the second call changes nothing."""
    found = jsm("con", "dlq", "setup", "-j").ok().json
    config = orders.raw.api("STREAM.INFO.DEAD_LETTERS")["config"]
    assert found["config"]["subjects"] == config["subjects"] == ADVISORIES
    assert config["max_age"] == 30 * 86_400 * 1_000_000_000
    assert "already" in jsm("con", "dlq", "setup", "--name", "OTHER").ok().out
    assert orders.raw.api("STREAM.NAMES")["streams"] == ["DEAD_LETTERS", "ORDERS"]


# --- ls -------------------------------------------------------------------------------------------


def test_dead_letters_are_listed(jsm, stored):
    """Both kinds, with the contents of the advisory and of the message."""
    stored.publish("one", "two")
    give_up(stored, 2)
    stored.publish("three")
    jsm("con", "next", "ORDERS", "NEW", "--term").ok()
    wait_until(lambda: len(letters_in(stored)) == 3)
    found = jsm("con", "dlq", "ls", "ORDERS", "NEW", "-j").ok().json
    assert found["stored_in"] == ["DEAD_LETTERS"]
    advisories = {item["stream_seq"]: item for item in letters_in(stored)}
    for item in found["messages"]:
        said = advisories[item["stream_seq"]]
        assert (item["stream"], item["consumer"]) == ("ORDERS", "NEW")
        assert time_from_text(item["time"]) == time_from_text(said["timestamp"])
        assert item["deliveries"] == said["deliveries"]
        assert item["subject"] == "ORDERS.processed"
        assert item["in_stream"] is True
    kinds = {item["stream_seq"]: item["kind"] for item in found["messages"]}
    assert kinds == {1: "max_deliver", 2: "max_deliver", 3: "terminated"}
    lines = jsm("con", "dlq", "ls", "ORDERS").ok().out.splitlines()
    assert len(lines) == 2 + 3
    assert sum("max deliver" in line for line in lines) == 2


def test_lists_are_for_a_stream_or_a_consumer(jsm, stored):
    """The list contains no dead letters of others."""
    stored.make("OTHER", max_deliver=1, ack_wait=50_000_000)
    stored.publish("one")
    give_up(stored, 1)
    give_up(stored, 1, "OTHER")
    names = [item["consumer"] for item in jsm("con", "dlq", "ls", "-j").ok().json["messages"]]
    assert sorted(names) == ["NEW", "OTHER"]
    listed = jsm("con", "dlq", "ls", "ORDERS", "OTHER", "-j").ok().json["messages"]
    assert [item["consumer"] for item in listed] == ["OTHER"]
    assert jsm("con", "dlq", "ls", "ORDERS", "NONE").status == 3
    assert jsm("con", "dlq", "ls", "NONE").status == 3


def test_deleted_messages_are_left_out(jsm, stored):
    """A deleted message is not listed, except with --gone."""
    stored.publish("one", "two")
    give_up(stored, 2)
    stored.raw.api("STREAM.MSG.DELETE.ORDERS", seq=1)
    listed = jsm("con", "dlq", "ls", "-j").ok().json["messages"]
    assert [item["stream_seq"] for item in listed] == [2]
    listed = jsm("con", "dlq", "ls", "--gone", "-j").ok().json["messages"]
    assert [(item["stream_seq"], item["in_stream"]) for item in listed] == [(1, False), (2, True)]
    assert "gone" in jsm("con", "dlq", "ls", "--gone").ok().out


def test_without_advisories_nothing_is_known(jsm):
    """The result says that the messages are not known, which differs from an empty list."""
    result = jsm("con", "dlq", "ls", "ORDERS", "-j")
    assert (result.status, result.json) == (3, {"stored_in": [], "messages": None})
    assert "dlq setup" in result.err
    assert jsm("con", "dlq", "ls").out == ""


# --- show -----------------------------------------------------------------------------------------


def test_a_letter_is_shown(jsm, stored):
    """With its headers and body, by its sequence, or the oldest one."""
    stored.raw.send(b"HPUB ORDERS.a 18 21\r\nNATS/1.0\r\nA: 1\r\n\r\none\r\n")
    stored.publish("two")
    give_up(stored, 2)
    found = jsm("con", "dlq", "show", "ORDERS", "NEW", "-j").ok().json
    assert (found["stream_seq"], found["text"], found["subject"]) == (1, "one", "ORDERS.a")
    assert found["headers"] == {"A": ["1"]}
    assert found["stored"] == message(stored, 1)["time"]
    out = jsm("con", "dlq", "show", "ORDERS", "NEW", "2").ok().out
    assert "Dead Since: " in out
    assert out.endswith("\n\ntwo\n")
    assert jsm("con", "dlq", "show", "ORDERS", "NEW", "1", "-r").ok().out == "one"
    result = jsm("con", "dlq", "show", "ORDERS", "NEW", "3")
    assert result.status == 3
    assert "no dead letter 3 of ORDERS > NEW" in result.err


# --- requeue --------------------------------------------------------------------------------------


def test_a_letter_is_sent_again(jsm, stored):
    """To its subject, with its headers, as a new message; it is not a dead letter any more."""
    stored.raw.send(b"HPUB ORDERS.a 18 21\r\nNATS/1.0\r\nA: 1\r\n\r\none\r\n")
    give_up(stored, 1)
    found = jsm("con", "dlq", "requeue", "ORDERS", "NEW", "1", "-f", "-j").ok().json
    assert found == {
        "requeued": [
            {
                "stream_seq": 1,
                "subject": "ORDERS.a",
                "to_stream": "ORDERS",
                "to_seq": 2,
                "duplicate": False,
            }
        ],
        "gone": [],
    }
    copy = message(stored, 2)
    assert (copy["subject"], base64.b64decode(copy["data"])) == ("ORDERS.a", b"one")
    headers = base64.b64decode(copy["hdrs"]).decode()
    assert "A: 1\r\n" in headers
    assert "Nats-Msg-Id: jsm.requeue.ORDERS.NEW.1\r\n" in headers
    assert "Jsm-Requeued-From: ORDERS NEW 1\r\n" in headers
    assert letters_in(stored) == []
    assert message(stored, 1)["subject"] == "ORDERS.a", "the original stays"
    assert jsm("con", "dlq", "requeue", "ORDERS", "NEW", "1", "-f").status == 3


def test_a_repeated_requeue_stores_nothing(jsm, stored):
    """Within the duplicate window a repetition stores nothing."""
    stored.publish("one", "two")
    give_up(stored, 2)
    with connect(jsm.server.url) as nc:
        letters = DeadLetters(nc.jetstream())
        assert [letters.requeue(item).seq for item in letters.find("ORDERS", "NEW")] == [3, 4]
    out = jsm("con", "dlq", "requeue", "ORDERS", "NEW", "--all", "-f").ok().out
    assert "Already published message 1 to ORDERS.processed" in out
    assert stored.raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 4
    assert letters_in(stored) == []
    out = jsm("con", "dlq", "requeue", "ORDERS", "NEW", "--all", "-f").ok().out
    assert out == "There are no dead letters\n"


def test_the_options_delete_and_to(jsm, stored):
    """--delete removes the originals from the stream, --to selects another subject."""
    stored.raw.api("STREAM.CREATE.OTHER", name="OTHER", subjects=["other"], storage="memory")
    stored.publish("one", "two")
    give_up(stored, 2)
    jsm("con", "dlq", "requeue", "ORDERS", "NEW", "--all", "--delete", "--to", "other", "-f").ok()
    assert stored.raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 0
    assert stored.raw.api("STREAM.INFO.OTHER")["state"]["messages"] == 2


def test_a_requeue_needs_a_confirmation(jsm, stored):
    """Without a terminal, --force and one selection are required."""
    stored.publish("one")
    give_up(stored, 1)
    assert jsm("con", "dlq", "requeue", "ORDERS", "NEW", "--all").status == 2
    assert jsm("con", "dlq", "requeue", "ORDERS", "NEW", "-f").status == 2
    assert jsm("con", "dlq", "requeue", "ORDERS", "NEW", "1", "--all", "-f").status == 2
    assert jsm("con", "dlq", "requeue", "ORDERS", "NEW", "7", "-f").status == 3
    assert stored.raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 1
    assert len(letters_in(stored)) == 1


def test_missing_messages_are_reported(jsm, stored):
    """A missing message that was requested by sequence is an error; others are published."""
    stored.publish("one", "two")
    give_up(stored, 2)
    stored.raw.api("STREAM.MSG.DELETE.ORDERS", seq=1)
    result = jsm("con", "dlq", "requeue", "ORDERS", "NEW", "1", "2", "-f", "-j")
    assert result.status == 3
    assert result.json["gone"] == [1]
    assert [item["stream_seq"] for item in result.json["requeued"]] == [2]


# --- copies that workers store --------------------------------------------------------------------


def test_the_copy_of_a_worker_is_a_dead_letter(jsm, orders):
    """It is listed, shown with the original's subject and headers, and requeued."""
    worker = Worker(jsm.server.url, dead_letters="DEAD")

    @worker.handler(stream="ORDERS", consumer="NEW")
    def handle() -> None:
        raise Reject("no address")

    with connect(jsm.server.url) as nc, running(worker):
        js = nc.jetstream()
        js.publish("ORDERS.a", b"xxx", headers={"A": "1"})
        stream = js.get_stream("ORDERS")
        wait_until(lambda: "NEW" in stream.consumer_names() and is_settled(stream, "NEW"))
    orders.raw.api("STREAM.PURGE.ORDERS")  # as a work queue does
    (listed,) = jsm("con", "dlq", "ls", "ORDERS", "-j").ok().json["messages"]
    names = ("kind", "reason", "subject", "stream_seq", "bytes")
    assert [listed[name] for name in names] == ["copy", "no address", "ORDERS.a", 1, 3]
    assert "worker: no address" in jsm("con", "dlq", "ls", "ORDERS").ok().out
    shown = jsm("con", "dlq", "show", "ORDERS", "NEW", "-j").ok().json
    assert (shown["headers"], shown["text"]) == ({"A": ["1"]}, "xxx")
    done = jsm("con", "dlq", "requeue", "ORDERS", "NEW", "1", "--delete", "-f", "-j").ok().json
    assert done["requeued"][0]["to_seq"] == 2
    assert message(orders, 2)["subject"] == "ORDERS.a"
    assert jsm("con", "dlq", "ls", "-j").ok().json["messages"] == []
