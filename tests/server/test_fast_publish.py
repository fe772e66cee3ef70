"""Fast publishing (ADR-50): exact counts, flow control, and what a lost message or acknowledgement does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.internals import core_of, open_subscriptions
from fixtures.threads import SCALE, run_all, wait_until, within

import jetstream_sync
from jetstream_sync import JetStream, Stream, errors
from jetstream_sync.client.writer import Flush
from jetstream_sync.jetstream.fast_publish import FastPublisher
from jetstream_sync.server import NatsServer

fast_server = pytest.mark.server(">=2.14")


@pytest.fixture
def target(js: JetStream, stream_name: str) -> Stream:
    """An empty stream that allows fast publishing."""
    return js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        storage="memory",
        allow_batched=True,
        allow_direct=True,
    )


def count(stream: Stream) -> int:
    return stream.info().state.messages


def drop(fast: FastPublisher, *numbers: int) -> None:
    """Lose the messages with these numbers on their way to the server."""
    append = core_of(fast).writer.append
    wanted = iter(range(fast._seq + 1, 10**9))

    def sometimes(command: bytes, size: int, flush: Flush) -> None:
        if next(wanted) not in numbers:
            append(command, size, flush)

    fast._core = mock.Mock(wraps=core_of(fast))
    core_of(fast).writer.append = sometimes


@fast_server
@pytest.mark.parametrize(("flow", "outstanding"), [(1, 1), (100, 2), (500, 3)])
def test_all_messages_are_stored_in_order(js, target, flow, outstanding):
    """The acknowledgement counts them, for any flow."""
    with js.fast_publish(flow=flow, outstanding=outstanding) as fast:
        for number in range(1, 2001):
            assert fast.add(f"{target.name}.a", b"%d" % number) == number
        ack = fast.commit(f"{target.name}.last", b"2001", {"Kind": "last"})
    assert (ack.stream, ack.batch_size, ack.seq) == (target.name, 2001, 2001)
    assert fast.acked == 2001
    stored = target.get_msgs(max_messages=5000)
    assert [msg.data for msg in stored] == [b"%d" % number for number in range(1, 2002)]
    assert stored[-1].headers is not None
    assert stored[-1].headers["Kind"] == "last"
    with pytest.raises(errors.InvalidOptionError, match="ended"):
        fast.add(f"{target.name}.a")


@fast_server
@pytest.mark.parametrize(
    "reply", [{"type": "err", "error": 5}, {"type": "ack"}, {"type": "gap", "last_seq": "x"}]
)
def test_a_reply_of_another_program(nc, js, reply):
    """Whatever a subscriber of the subject replies ends the batch with an error of its own."""
    with nc.subscribe("fast.other", cb=lambda msg: msg.respond(json.dumps(reply).encode())):
        fast = js.fast_publish(timeout=5)
        with pytest.raises(errors.InvalidResponseError, match="unexpected reply"):
            fast.commit("fast.other")


@fast_server
def test_a_block_without_messages_and_one_that_raises(js, target):
    """An empty publish sends nothing; the messages before an exception are stored."""
    with js.fast_publish():
        pass
    with pytest.raises(KeyError), js.fast_publish() as fast:
        fast.add(f"{target.name}.a")
        fast.add(f"{target.name}.a")
        raise KeyError
    assert count(target) == 2
    with js.fast_publish() as fast:
        ack = fast.commit(f"{target.name}.only")
    assert ack.batch_size == 1
    inboxes = [
        subscription
        for subscription in open_subscriptions(js)
        if subscription.subject.endswith(".>")
    ]
    assert inboxes == []


@fast_server
def test_ten_publishers_at_once(js, target):
    """The server slows them down, and loses nothing."""

    def run(number: int) -> None:
        with js.fast_publish(timeout=30.0) as fast:
            for _ in range(1000):
                fast.add(f"{target.name}.{number}")

    run_all(*[partial(run, number) for number in range(10)])
    assert target.info(subjects_filter=">").state.subjects == {
        f"{target.name}.{number}": 1000 for number in range(10)
    }


@fast_server
def test_a_lost_message_ends_the_publish(js, target):
    """Everything before it is stored, nothing after it, and the error has its number."""
    with (
        pytest.raises(errors.FastPublishError, match="15 to 15") as caught,
        js.fast_publish() as fast,
    ):
        fast.add(f"{target.name}.a")
        drop(fast, 15)
        for _ in range(100):
            fast.add(f"{target.name}.a")
    assert caught.value.acked == 14
    assert count(target) == 14


@fast_server
@pytest.mark.parametrize("number", [2, 10])
def test_a_message_lost_just_before_the_commit(js, target, number):
    """The commit raises, also if the acknowledgement of the others arrives after it was sent."""
    with pytest.raises(errors.FastPublishError) as caught, js.fast_publish() as fast:
        fast.add(f"{target.name}.a")
        drop(fast, number)
        for _ in range(9):
            fast.add(f"{target.name}.a")
    assert caught.value.acked == number - 1 == count(target)


@fast_server
def test_with_gaps_allowed_every_lost_message_is_reported(js, target):
    """The callback gets each gap once, and the publish continues."""
    gaps: list[range] = []
    with js.fast_publish(gaps="ok", gap_cb=gaps.append) as fast:
        fast.add(f"{target.name}.a")
        drop(fast, 5, 6, 40)
        for _ in range(99):
            fast.add(f"{target.name}.a")
    assert gaps == [range(5, 7), range(40, 41)]
    assert fast.lost == 3
    assert count(target) == 97


@fast_server
def test_a_lost_commit_ends_the_publish_with_gaps_allowed(js, target):
    """The server answers pings, and knows of no commit: the call ends with the timeout."""
    fast = js.fast_publish(gaps="ok", timeout=1.0)
    fast.add(f"{target.name}.a")
    fast.add(f"{target.name}.a")
    drop(fast, 3)
    with within(20.0), pytest.raises(errors.FastPublishError, match="no progress"):
        fast.commit()


@fast_server
def test_an_early_end_with_gaps_allowed_counts_no_lost_message_as_stored(fresh_server):
    """All but the first message and the commit are lost with the connection; the server acknowledges them."""
    gaps: list[range] = []
    with (
        FaultProxy(fresh_server.port) as proxy,
        jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05) as nc,
    ):
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"], allow_batched=True)
        fast = js.fast_publish(gaps="ok", gap_cb=gaps.append, timeout=1.0)
        fast.add("s")
        proxy.hold(Toward.SERVER)
        for _ in range(799):
            fast.add("s")
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(fast.commit)
            wait_until(lambda: nc.pending_bytes == 0)
            proxy.cut()
            proxy.heal()
            with pytest.raises(errors.FastPublishError) as early:
                ending.result(10 * SCALE)
        assert early.value.acked == count(stream) == 1
        assert gaps == [range(2, 802)]
        assert fast.lost == 800


@fast_server
def test_lost_acknowledgements_do_not_stall(js, target):
    """A ping asks for them."""
    with js.fast_publish(flow=10, timeout=1.5) as fast:
        fast.add(f"{target.name}.a")
        deliver, dropped = fast._flow.deliver, []

        def sometimes(deliveries: Any) -> None:
            if len(dropped) < 3:
                dropped.append(deliveries)
            else:
                deliver(deliveries)

        fast._flow.deliver = sometimes
        with within(30.0):
            for _ in range(100):
                fast.add(f"{target.name}.a")
    assert len(dropped) == 3
    assert count(target) == 101


@fast_server
def test_refusals_are_typed(js, target, stream_name):
    """The first message raises the server's error; a later one ends the publish with it."""
    with pytest.raises(errors.NoStreamResponseError), js.fast_publish() as fast:
        fast.add("unknown.subject")
    js.create_stream(name=f"{stream_name}_plain", subjects=[f"{stream_name}_plain"])
    with pytest.raises(errors.BatchNotEnabledError), js.fast_publish() as fast:
        fast.add(f"{stream_name}_plain")
    with pytest.raises(errors.WrongLastSequenceError), js.fast_publish() as fast:
        fast.add(f"{target.name}.a", expected_last_subject_sequence=7)
    with within(10.0), pytest.raises(jetstream_sync.Error), js.fast_publish() as fast:
        fast.commit(f"{target.name}.a", headers={"Nats-Expected-Last-Subject-Sequence": "7"})
    with pytest.raises(errors.FastPublishError) as caught, js.fast_publish() as fast:
        fast.add(f"{target.name}.b")
        fast.add(f"{target.name}.b", expected_last_subject_sequence=7)
        fast.commit()
    assert isinstance(caught.value.__cause__, errors.WrongLastSequenceError)
    with js.fast_publish(gaps="ok") as fast:
        fast.add(f"{target.name}.c")
        fast.add(f"{target.name}.c", expected_last_subject_sequence=7777)
        fast.add(f"{target.name}.c")
    assert [(number, type(error)) for number, error in fast.refused] == [
        (2, errors.WrongLastSequenceError)
    ]


@fast_server
def test_many_refusals_in_a_row_do_not_stall(js, target):
    """With ``gaps="ok"``, the publish of a full stream goes on, and what has room again is stored."""
    js.update_stream(replace(target.cached_info.config, max_msgs=8, discard="new"))
    with within(30.0), js.fast_publish(gaps="ok", flow=5, timeout=2) as fast:
        for number in range(1, 61):
            if number == 51:
                wait_until(lambda: len(fast.refused) == 42)
                target.purge()
            assert fast.add(f"{target.name}.a") == number
        ack = fast.commit()
    assert ack.batch_size == 60
    assert [number for number, _ in fast.refused][:42] == list(range(9, 51))
    state = target.info().state
    assert (state.messages, state.last_seq) == (8, 16)


@fast_server
@pytest.mark.parametrize("gaps", ["fail", "ok"])
def test_messages_that_the_stream_had_before_are_a_success(js, target, gaps):
    """A program that publishes again after a crash sends messages whose ids are known."""
    for _ in range(2):
        with js.fast_publish(gaps=gaps) as fast:
            for number in range(2):
                fast.add(f"{target.name}.a", b"x", msg_id=f"id-{number}")
            ack = fast.commit()
    assert (ack.stream, ack.seq, ack.duplicate, ack.batch_size) == (target.name, 0, True, 2)
    assert (fast.acked, count(target)) == (2, 2)


@fast_server
def test_a_publish_of_which_nothing_is_stored_says_why(js, target):
    """With ``gaps="ok"`` the reply to the commit has the sequence 0 then."""
    js.update_stream(replace(target.cached_info.config, max_msgs=1, discard="new"))
    js.publish(f"{target.name}.a")
    with (
        pytest.raises(
            errors.FastPublishError, match="maximum messages exceeded .* number 0"
        ) as caught,
        js.fast_publish(gaps="ok") as fast,
    ):
        for _ in range(3):
            fast.add(f"{target.name}.a")
        fast.commit()
    assert isinstance(caught.value.__cause__, errors.StreamFullError)
    assert [number for number, _ in fast.refused] == [1, 2, 3]


@fast_server
@pytest.mark.parametrize("gaps", ["fail", "ok"])
def test_a_restarted_server_ends_the_publish(gaps):
    """The server has forgotten the batch; what was acknowledged is stored."""
    with (
        NatsServer() as server,
        jetstream_sync.connect(server.url, reconnect_time_wait=0.1, error_cb=lambda _: None) as nc,
    ):
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"], allow_batched=True)
        with (
            within(60.0),
            pytest.raises(errors.FastPublishError) as caught,
            js.fast_publish(gaps=gaps, timeout=10.0) as fast,
        ):
            for _ in range(3000):  # three times as many as may be unacknowledged
                fast.add("s")
            server.restart()
            while True:
                fast.add("s")
        assert stream.info().state.messages >= caught.value.acked >= 2000


@pytest.mark.parametrize(
    "options",
    [{"gaps": "no"}, {"flow": 0}, {"flow": 70_000}, {"outstanding": 4}, {"gap_cb": 1}],
)
def test_options_are_checked(js, options):
    with pytest.raises(errors.InvalidOptionError):
        js.fast_publish(**options)
