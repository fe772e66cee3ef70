"""``jsm consumer next`` and ``sub`` show and acknowledge messages, and return those not shown."""

from __future__ import annotations

import json
import signal

import pytest
from fixtures.orders import Orders
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import TimeoutError
from jetstream_sync.cli.shared.long_running import wait_interruptibly
from jetstream_sync.net.clock import Deadline


@pytest.fixture
def dispatch(orders: Orders) -> Orders:
    """The document's consumer, with three pending messages."""
    orders.make("DISPATCH", filter_subject="ORDERS.processed")
    orders.publish("order 1", "order 2", "order 3")
    return orders


def pending(orders: Orders, name: str = "DISPATCH") -> int:
    return int(orders.info(name)["num_ack_pending"])


def floor(orders: Orders, name: str = "DISPATCH") -> int:
    return int(orders.info(name)["ack_floor"]["stream_seq"])


# --- next -----------------------------------------------------------------------------------------


def test_the_next_message_as_in_2020(jsm, dispatch):
    """Its subject first, then its metadata, its body, and its settlement."""
    lines = jsm("obs", "next", "ORDERS", "DISPATCH").ok().out.splitlines()
    assert lines[0] == "--- received on ORDERS.processed"
    assert lines[1].startswith(
        "    tries: 1 / consumer seq: 1 / stream seq: 1 / pending: 2 / stored: 20"
    )
    assert lines[2:] == ["order 1", "", "Acknowledged message"]
    assert (pending(dispatch), floor(dispatch)) == (0, 1)
    assert "order 2" in jsm("obs", "next", "ORDERS", "DISPATCH").ok().out
    assert floor(dispatch) == 2


def test_no_ack_leaves_it_open(jsm, dispatch):
    """It is not acknowledged, and the output does not say so."""
    out = jsm("obs", "next", "ORDERS", "DISPATCH", "--no-ack").ok().out
    assert out.endswith("\norder 1\n")
    assert (pending(dispatch), floor(dispatch)) == (1, 0)


@pytest.mark.usefixtures("dispatch")
def test_a_nak_redelivers_the_message(jsm):
    """Without a delay it is redelivered at once, with a delivery count of two."""
    assert "Not acknowledged" in jsm("con", "next", "ORDERS", "DISPATCH", "--nak").ok().out
    out = jsm("con", "next", "ORDERS", "DISPATCH").ok().out
    assert "tries: 2 /" in out
    assert "\norder 1\n" in out


def test_a_nak_may_have_a_delay(jsm, dispatch):
    """With a delay others come first; the value needs an equals sign."""
    jsm("con", "next", "--nak=1h", "ORDERS", "DISPATCH").ok()
    assert "order 2" in jsm("con", "next", "--nak", "ORDERS", "DISPATCH").ok().out
    seen = jsm("con", "next", "ORDERS", "DISPATCH", "--count", "5", "--no-wait", "-j").ok().lines
    assert sorted(item["text"] for item in seen) == ["order 2", "order 3"]
    assert pending(dispatch) == 1


def test_a_terminated_message_is_not_redelivered(jsm, dispatch, peer):
    """The server publishes an advisory about the terminated message."""
    peer.hear("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.ORDERS.DISPATCH")
    assert "Terminated message" in jsm("con", "next", "ORDERS", "DISPATCH", "--term").ok().out
    assert json.loads(peer.next().data)["stream_seq"] == 1
    assert (pending(dispatch), floor(dispatch)) == (0, 1)


def test_a_double_ack_is_confirmed(jsm, dispatch):
    """The server has processed it when the command ends."""
    assert "confirmed" in jsm("con", "next", "ORDERS", "DISPATCH", "--double-ack").ok().out
    assert floor(dispatch) == 1


def test_a_message_is_one_document(jsm, orders):
    """Without --count the result is an object; a binary body is not decoded."""
    orders.make("A")
    orders.raw.send(b"HPUB ORDERS.a 24 26\r\nNATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n\xff\x00\r\n")
    found = jsm("con", "next", "ORDERS", "A", "-j").ok().json
    assert found["headers"] == {"A": ["1", "2"]}
    assert found["data"] == "/wA="
    assert "text" not in found
    assert (found["stream"], found["consumer"]) == ("ORDERS", "A")
    assert (found["stream_seq"], found["consumer_seq"]) == (1, 1)
    assert (found["delivered"], found["pending"], found["acked"]) == (1, 0, True)
    stored = orders.raw.api("STREAM.MSG.GET.ORDERS", seq=1)["message"]
    assert found["time"] == stored["time"]


def test_several_are_lines_and_one_pull(jsm, dispatch, peer):
    """With --count each message is a line of JSON, and there is one request."""
    peer.hear("$JS.API.CONSUMER.MSG.NEXT.ORDERS.DISPATCH")
    seen = jsm("con", "next", "ORDERS", "DISPATCH", "--count", "3", "-j").ok().lines
    assert [item["text"] for item in seen] == ["order 1", "order 2", "order 3"]
    assert json.loads(peer.next().data)["batch"] == 3
    peer.hear("a.mark")
    dispatch.raw.send(b"PUB a.mark 0\r\n\r\n")
    assert peer.next().subject == "a.mark", "there was another request"


def test_fewer_messages_than_requested_are_enough(jsm, dispatch):
    """The messages received before the timeout are printed, and the command succeeds."""
    result = jsm("con", "next", "ORDERS", "DISPATCH", "--count", "9", "--expires", "500ms").ok()
    assert result.out.count("--- received on") == 3
    assert result.out.count("Acknowledged message") == 3
    assert floor(dispatch) == 3


@pytest.mark.parametrize("option", [["--no-wait"], ["--expires", "200ms"], ["--timeout", "200ms"]])
def test_no_message_has_its_own_status(jsm, orders, option):
    """The exit status is 4, also while a message waits for its acknowledgement."""
    orders.make("A")
    result = jsm("con", "next", "ORDERS", "A", *option)
    assert (result.status, result.out) == (4, "")
    assert "jsm consumer info ORDERS A" in result.err
    orders.publish("x")
    jsm("con", "next", "ORDERS", "A", "--no-ack").ok()
    assert jsm("con", "next", "ORDERS", "A", *option).status == 4


def test_a_custom_format(jsm, dispatch):
    """-f has the fields of the document; a missing header is empty."""
    layout = "{stream_seq}\\t{subject} {text} [{headers[None]}]\\n"
    out = jsm("con", "next", "ORDERS", "DISPATCH", "-f", layout, "--count", "2").ok().out
    assert out == "1\tORDERS.processed order 1 []\n2\tORDERS.processed order 2 []\n"
    result = jsm("con", "next", "ORDERS", "DISPATCH", "-f", "{nonsense}")
    assert result.status == 2
    assert "stream_seq" in result.err
    assert pending(dispatch) == 1 or floor(dispatch) == 2  # returned, not acknowledged
    assert "order 3" in jsm("con", "next", "ORDERS", "DISPATCH", "--no-wait").ok().out


def test_a_consumer_without_acks_gets_none(jsm, orders):
    """The output does not mention an acknowledgement."""
    orders.publish(*(f"order {number}" for number in range(1, 12)))
    orders.make("TEN", ack_policy="none", deliver_policy="by_start_sequence", opt_start_seq=10)
    out = jsm("obs", "next", "ORDERS", "TEN").ok().out
    assert "\norder 10\n" in out
    assert "No acknowledgement needed" in out
    assert jsm("obs", "next", "ORDERS", "TEN", "-j").ok().json["acked"] is False


def test_a_push_consumer_is_refused(jsm, orders):
    """It is a usage error that names the command for push consumers."""
    orders.make("MONITOR", deliver_subject="monitor.ORDERS", ack_policy="none")
    result = jsm("obs", "next", "ORDERS", "MONITOR")
    assert (result.status, result.out) == (2, "")
    assert "jsm consumer sub ORDERS MONITOR" in result.err


@pytest.mark.parametrize("flags", [["--no-ack", "--nak"], ["--term", "--double-ack"]])
def test_settlements_exclude_each_other(jsm, dispatch, flags):
    """Two settlements exclude each other, and nothing is read."""
    assert jsm("con", "next", "ORDERS", "DISPATCH", *flags).status == 2
    assert dispatch.info("DISPATCH")["delivered"]["stream_seq"] == 0


@pytest.mark.server(">=2.11")
def test_a_consumer_with_groups_needs_one(jsm, orders):
    """A consumer with groups needs the name of one."""
    orders.make("P", priority_groups=["A"], priority_policy="pinned_client")
    orders.publish("x")
    assert jsm("con", "next", "ORDERS", "P").status == 2
    assert "\nx\n" in jsm("con", "next", "ORDERS", "P", "--group", "A").ok().out


def test_limits_of_the_consumer_are_respected(jsm, orders):
    """More messages than the limit of a request are requested in several."""
    orders.make("A", max_batch=2, max_expires=2_000_000_000)
    orders.publish("1", "2", "3", "4", "5")
    out = jsm("con", "next", "ORDERS", "A", "--count", "3", "--expires", "10s", "-r").ok().out
    assert out == "1\n2\n3\n"
    out = jsm("con", "next", "ORDERS", "A", "--count", "3", "--no-wait", "-r").ok().out
    assert out == "4\n5\n"


def test_messages_that_are_not_printed_are_returned(jsm, orders):
    """At Ctrl-C, received messages that were not printed are available to others at once."""
    orders.make("A", ack_wait=300_000_000_000)
    orders.publish(*("x" * 50_000 for _ in range(6)))
    child = jsm.spawn("con", "next", "ORDERS", "A", "--count", "6", "-r")
    # No process reads the output, so the command blocks at the second or third message.
    wait_until(lambda: orders.info("A")["num_ack_pending"] > 2 and floor(orders, "A") > 0)
    child.send_signal(signal.SIGINT)
    wait_until(lambda: orders.info("A")["num_ack_pending"] >= 0)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130, err
    shown = out.count(b"\n")
    wait_until(lambda: jsm("con", "next", "ORDERS", "A", "--no-wait", "--nak").status == 0)
    left = jsm("con", "next", "ORDERS", "A", "--count", "6", "--no-wait", "-j").ok().lines
    assert len(left) >= 6 - shown
    assert orders.info("A")["num_ack_pending"] == 0


def test_a_closed_pipe_loses_no_message(jsm, orders):
    """Messages that could not be written are not acknowledged, and redelivered at once."""
    orders.make("A", ack_wait=300_000_000_000)
    orders.publish(*("x" * 50_000 for _ in range(6)))
    child = jsm.spawn("con", "next", "ORDERS", "A", "--count", "6", "-r")
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(20) == 141
    child.stdin.close()  # type: ignore[union-attr]
    child.stderr.close()  # type: ignore[union-attr]
    left = jsm("con", "next", "ORDERS", "A", "--count", "6", "--no-wait", "-j").ok().lines
    assert [item["stream_seq"] for item in left][-1] == 6
    assert orders.info("A")["num_ack_pending"] == 0


# --- sub ------------------------------------------------------------------------------------------


def test_a_pull_consumer_is_read_up_to_the_count(jsm, dispatch):
    """--count messages are printed and acknowledged; the others stay."""
    result = jsm("con", "sub", "ORDERS", "DISPATCH", "--count", "2", "-r").ok()
    assert result.out == "order 1\norder 2\n"
    assert "Listening to ORDERS > DISPATCH" in result.err
    assert (pending(dispatch), floor(dispatch)) == (0, 2)


def test_a_push_consumer_is_read_on_its_deliver_subject(jsm, orders):
    """Its messages have the subjects under which they were stored."""
    orders.make("MONITOR", deliver_subject="monitor.ORDERS", ack_policy="none")
    orders.publish("order 3", "order 4")
    result = jsm("obs", "sub", "ORDERS", "MONITOR", "--count", "2", "-j").ok()
    assert [line["subject"] for line in result.lines] == ["ORDERS.processed"] * 2
    assert [line["text"] for line in result.lines] == ["order 3", "order 4"]
    assert [line["acked"] for line in result.lines] == [False, False]
    assert "on monitor.ORDERS" in result.err


def test_pushed_messages_are_acknowledged(jsm, orders):
    """A consumer with acks gets them, also one with a queue group."""
    orders.make("A", deliver_subject="out")
    orders.make("B", deliver_subject="more", deliver_group="workers")
    orders.publish("1", "2")
    for name in "AB":
        assert jsm("con", "sub", "ORDERS", name, "--count", "2", "-r").ok().out == "1\n2\n"
        assert (pending(orders, name), floor(orders, name)) == (0, 2)


def test_a_second_reader_is_refused(jsm, orders):
    """The error names the command that subscribes to the delivery subject."""
    orders.make("A", deliver_subject="out")
    orders.raw.send(b"SUB out 7\r\n")
    orders.raw.api("INFO")  # the server has the subscription now
    result = jsm("con", "sub", "ORDERS", "A", "--count", "1")
    assert result.status == 2
    assert "jsm sub out" in result.err


def test_it_continues_until_ctrl_c(terminal, dispatch):
    """On a terminal it prints messages, and a summary at the end; printed ones are settled."""
    shown = terminal("con", "sub", "ORDERS", "DISPATCH", TERM="dumb")
    shown.expect("order 3")
    dispatch.publish("order 4")
    shown.expect("order 4")
    wait_until(lambda: floor(dispatch) == 4)
    shown.send("\x03")
    assert shown.wait() == 130
    assert "Received 4 messages" in shown.text
    assert "Traceback" not in shown.text
    assert pending(dispatch) == 0


def test_a_wait_is_divided():
    """A Ctrl-C right before a wait takes effect after the first part of the wait."""
    asked: list[float] = []

    def take(seconds: float) -> str:
        asked.append(seconds)
        if len(asked) % 3:
            raise TimeoutError
        return "it"

    assert wait_interruptibly(take, Deadline(None)) == "it"
    assert len(asked) == 3
    assert all(0 < seconds <= 0.5 for seconds in asked)
    with pytest.raises(TimeoutError):
        wait_interruptibly(take, Deadline(0))
    assert asked[3:] == [0]


def test_a_raw_body_has_nothing_added(jsm, js):
    """``--raw`` of one message writes its payload, byte for byte, without a line break after it."""
    stream = js.create_stream(name="RAW", subjects=["raw"])
    stream.create_consumer(durable_name="C", ack_policy="explicit")
    js.publish("raw", b"a\nb")
    assert jsm("stream", "get", "RAW", "1", "--raw").ok().out == "a\nb"
    assert jsm("con", "next", "RAW", "C", "--raw").ok().out == "a\nb"
    with jetstream_sync.connect(jsm.url) as nc:
        nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        nc.flush()
        assert jsm("req", "echo", "a b", "--raw").ok().out == "a b"


def test_a_domain_that_does_not_answer(jsm):
    """A domain whose leaf connection is down, or whose name is wrong, is named, without a code of a server."""
    for words in (("stream", "ls"), ("stream", "info", "X"), ("kv", "get", "B", "k")):
        result = jsm("--js-domain", "hub", *words, "-j")
        assert result.status == 5, result
        assert result.error["description"] == (
            "JetStream domain 'hub' does not answer: the leaf node connection is down, or the name is wrong"
        )
        assert "err_code" not in result.error
