"""A purge by subject or a rollup makes nats-server drop pending messages: refusals and detection."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.jsm import Jsm
from fixtures.threads import wait_until

from jetstream_sync import JetStream, PullConsumer, Stream, StreamSource, errors

WAIT_S = 1.0


def fill(
    js: JetStream, name: str, ack_wait: float = WAIT_S, **config: Any
) -> tuple[Stream, PullConsumer, dict[str, Any]]:
    """Create a stream with ten messages, and a consumer that has received all of them."""
    stream = js.create_stream(
        name=name, subjects=[f"{name}.>"], allow_rollup_hdrs=True, storage="memory", **config
    )
    consumer = stream.create_consumer(
        durable_name="C", filter_subject=f"{name}.>", ack_wait=ack_wait, max_deliver=-1
    )
    for number in range(10):
        js.publish(f"{name}.{number}", b"")
    return stream, consumer, {msg.subject[-1]: msg for msg in consumer.fetch(10, timeout=2)}


def redelivered(consumer: PullConsumer) -> list[str]:
    """Return the last tokens of the subjects that come again after the ack wait."""
    return sorted(msg.subject[-1] for msg in consumer.fetch(10, timeout=3 * WAIT_S))


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("how", ["publish", "replace", "cancels", "cancel_schedule"])
def test_the_end_of_a_schedule_drops_pending_messages(js, stream_name, how):
    """
    The server purges the subject of a schedule that ends, which a consumer may have received, too.

    `JetStream.cancel_schedule` deletes it by its sequence.
    """
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], allow_msg_schedules=True)
    later = datetime.now(timezone.utc) + timedelta(seconds=2 if how == "publish" else 3600)
    for number in range(7):
        js.publish(f"{stream_name}.{number}", b"")
    js.schedule(f"{stream_name}.plan", target=f"{stream_name}.out", at=later)
    js.publish(f"{stream_name}.8", b"")
    consumer = js.create_consumer(stream_name, durable_name="C", ack_wait=4 * WAIT_S)
    *_, plan, last = consumer.fetch(9, timeout=1)
    assert plan.subject == f"{stream_name}.plan"
    if how == "publish":
        consumer.next(timeout=4).ack_sync()
    elif how == "replace":
        js.schedule(f"{stream_name}.plan", target=f"{stream_name}.out", at=later)
    elif how == "cancels":
        js.publish(f"{stream_name}.new", b"", cancels=f"{stream_name}.plan")
    else:
        assert js.cancel_schedule(f"{stream_name}.plan")
    last.ack_sync()
    again = {msg.subject[-1] for msg in consumer.fetch(10, timeout=6 * WAIT_S)}
    assert again.intersection("0123456") == (set("0123456") if how == "cancel_schedule" else set())


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("how", ["purge", "rollup", "delete"])
def test_the_server_drops_pending_messages(js, stream_name, retention, how):
    """
    A purge by subject and a rollup lose other pending messages, a deletion by sequence does not.

    If this fails with a new server, the fault is cured there: record that on the page about versions.
    """
    stream, consumer, pending = fill(js, stream_name, retention=retention)
    if how == "purge":
        stream.purge(f"{stream_name}.7", force=True)
    elif how == "rollup":
        js.publish(f"{stream_name}.7", b"", headers={"Nats-Rollup": "sub"})
    else:
        stream.delete_msg(8)
    for key in "89":
        pending[key].ack_sync()
    lost = set("0123456") - set(redelivered(consumer))
    assert lost == (set() if how == "delete" else set("0123456"))
    if retention == "workqueue":
        left = stream.info().state.messages
        assert left >= 7
        stranded = consumer.stranded()
        assert stream.stranded("C") == stranded
        if how == "delete":
            assert stranded is None
            return
        assert stranded is not None
        assert (stranded.seq, stranded.subject) == (1, f"{stream_name}.0")
        stream.delete_consumer("C")
        again = stream.create_consumer(consumer.cached_info.config)
        assert set(redelivered(again)) >= set("0123456")
        assert again.stranded() is None


def test_a_work_queue_in_use_has_no_stranded_messages(js, stream_name):
    """Messages above the ack floor, acknowledged ones, and those of other filters are not stranded."""
    stream, consumer, pending = fill(js, stream_name, retention="workqueue")
    assert consumer.stranded() is None
    other = js.create_stream(name=f"{stream_name}_2", subjects=["other.>"], retention="workqueue")
    first = other.create_consumer(durable_name="A", filter_subject="other.a")
    js.publish("other.b", b"")
    js.publish("other.a", b"")
    first.next(timeout=2).ack_sync()
    assert first.info().ack_floor.stream_seq == 2
    assert first.stranded() is None
    for message in pending.values():
        message.ack_sync()
    assert consumer.stranded() is None
    assert stream.info().state.messages == 0
    js.delete_stream(other.name)


def test_a_purge_by_subject_is_refused_while_messages_are_pending(js, stream_name):
    """The error names the consumers, and nothing is deleted; other purges are not refused."""
    stream, consumer, pending = fill(js, stream_name)
    stream.create_consumer(durable_name="OTHER", filter_subject=f"{stream_name}.x")
    for options in ({}, {"keep": 1}, {"seq": 11}):
        with pytest.raises(
            errors.PendingAcksError, match="messages of 'C'; use delete_msg"
        ) as caught:
            stream.purge(f"{stream_name}.*", **options)
        assert caught.value.consumers == ("C",)
    assert stream.info().state.messages == 10
    assert stream.purge("elsewhere.*") == 0
    assert stream.purge(seq=2) == 1
    assert consumer.info().num_ack_pending == 9
    for key, message in pending.items():
        if key != "0":
            message.ack_sync()
    assert stream.purge(f"{stream_name}.1") == 1
    js.publish(f"{stream_name}.2", b"")
    consumer.next(timeout=2)
    assert stream.purge(f"{stream_name}.2", force=True) == 2


def test_deleted_keys_are_kept_while_messages_of_a_bucket_are_pending(js, stream_name):
    """A consumer of a bucket that acknowledges loses nothing by `purge_deletes`."""
    kv = js.create_key_value(bucket=stream_name, storage="memory", history=3)
    for key in "abc":
        kv.put(key, b"1")
    kv.delete("b")
    stream = js.get_stream(f"KV_{stream_name}")
    consumer = stream.create_consumer(durable_name="C", ack_wait=WAIT_S)
    received = consumer.fetch(4, timeout=2)
    with pytest.raises(errors.PendingAcksError):
        kv.purge_deletes(0)
    received[3].ack_sync()
    assert [msg.metadata.stream_seq for msg in consumer.fetch(3, timeout=5)] == [1, 2, 3]
    assert kv.purge_deletes(0, force=True) == 2


@pytest.mark.server(">=2.12")
def test_a_reset_counter_keeps_its_history_while_messages_are_pending(js, stream_name):
    """`Counters.reset` sets the counter to 0, and consumers of the stream lose nothing."""
    stream = js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.*"],
        allow_msg_counter=True,
        allow_direct=True,
        storage="memory",
    )
    counters = js.counters(stream_name)
    consumer = stream.create_consumer(durable_name="C", ack_wait=WAIT_S)
    for key in "aba":
        counters.add(f"{stream_name}.{key}", 2)
    received = consumer.fetch(3, timeout=2)
    assert counters.reset(f"{stream_name}.a") == 4
    assert counters[f"{stream_name}.a"] == 0
    received[1].ack_sync()
    again: set[int] = set()
    while again != {1, 3, 4}:
        for message in consumer.fetch(3, timeout=5):
            again.add(message.metadata.stream_seq)
            message.ack_sync()
    assert consumer.info().num_ack_pending == 0
    assert counters.reset(f"{stream_name}.b") == 2
    assert stream.info(f"{stream_name}.b").state.subjects == {f"{stream_name}.b": 1}


def test_jsm_asks_before_it_purges_pending_messages(js, stream_name, jsm: Jsm):
    """``jsm stream purge --subject`` needs --force, which purges."""
    stream, _, _ = fill(js, stream_name)
    refused = jsm("stream", "purge", stream_name, "--subject", f"{stream_name}.1")
    assert refused.status != 0
    assert stream.info().state.messages == 10
    jsm("stream", "purge", stream_name, "--subject", f"{stream_name}.1", "--force").ok()
    assert stream.info().state.messages == 9


def test_jsm_server_check_reports_stranded_messages(js, stream_name, jsm: Jsm):
    """``jsm server check consumer`` is critical, and names the remedy."""
    # A long wait: no message becomes due again while the test runs.
    stream, _, pending = fill(js, stream_name, ack_wait=60, retention="workqueue")
    check = ("server", "check", "consumer", "--stream", stream_name, "--consumer", "C")
    jsm(*check).ok()
    stream.purge(f"{stream_name}.7", force=True)
    for key in "89":
        pending[key].ack_sync()
    wait_until(lambda: stream.stranded("C") is not None)
    shown = jsm(*check)
    assert shown.status == 2
    assert "message 1 of the work queue" in shown.out
    assert "create it again" in shown.out


def test_what_a_mirror_has_not_read_is_not_stranded(js, stream_name):
    """A work queue keeps an acknowledged message until its mirror has it, for a second on nats-server 2.15."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention="workqueue"
    )
    consumer = stream.create_consumer(durable_name="C")
    mirror = js.create_stream(name=f"{stream_name}_M", mirror=StreamSource(name=stream_name))
    js.publish(f"{stream_name}.a", b"")
    wait_until(lambda: mirror.info().state.messages == 1, 20)
    consumer.next(timeout=2).ack_sync()
    for _ in range(3):
        for number in range(20):
            js.publish(f"{stream_name}.a", b"%d" % number)
        for message in consumer.fetch(20, timeout=2):
            message.ack_sync()
        assert consumer.stranded() is None
    js.delete_stream(f"{stream_name}_M")
