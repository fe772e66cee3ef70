"""Which messages still have their lease when they are taken."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_sync import AckPolicy, ConsumerConfig
from jetstream_sync.jetstream import leases
from jetstream_sync.jetstream.leases import Leases

BEGIN = 1000.0
BACKOFF = ConsumerConfig(backoff=[timedelta(seconds=1), timedelta(seconds=60)], max_deliver=5)
ACK_WAIT = ConsumerConfig(ack_wait=timedelta(seconds=10))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets."""
    clock = SimpleNamespace(now=BEGIN)
    monkeypatch.setattr(leases, "monotonic", lambda: clock.now)
    return clock


def reply_of(stream_seq: int, consumer_seq: int, delivered: int = 1, stored: int = 7) -> bytes:
    return b"$JS.ACK.S.C.%d.%d.%d.%d.0" % (delivered, stream_seq, consumer_seq, stored)


def received(config: ConsumerConfig, *replies: bytes) -> Leases:
    """Return the leases of messages that were received at the beginning."""
    of = Leases(cast("Any", None), "S", lambda: "C", config)
    of.times.received([(b"s", reply, b"", b"x") for reply in replies], BEGIN)
    return of


@pytest.mark.parametrize(
    ("config", "delivered", "age", "is_admitted"),
    [
        (ConsumerConfig(), 1, 29.9, True),
        (ConsumerConfig(), 1, 30.1, False),
        (ACK_WAIT, 1, 9.9, True),
        (ACK_WAIT, 3, 10.1, False),
        (BACKOFF, 1, 1.1, False),
        (BACKOFF, 2, 1.1, True),
        (BACKOFF, 2, 60.1, False),
        (BACKOFF, 4, 59.9, True),
    ],
)
def test_a_lease_lasts_for_the_step_of_its_delivery(clock, config, delivered, age, is_admitted):
    """A message is dropped after its ``ack_wait`` or step of the back-off, when the config was read again."""
    reply = reply_of(5, 1, delivered)
    of = received(config, reply)
    clock.now = BEGIN + age
    assert of.admits(reply) is is_admitted
    assert of.unsure is not is_admitted


@pytest.mark.parametrize("policy", [AckPolicy.ALL, AckPolicy.NONE])
def test_ack_policies_all_and_none_have_no_leases(clock, policy):
    """With ack policy all a later ack covers a dropped message; with none there is no lease."""
    of = received(ConsumerConfig(ack_policy=policy, ack_wait=timedelta(seconds=1)), reply_of(1, 1))
    clock.now = BEGIN + 1e9
    assert clock.now < of.fresh_until
    assert not of.times.runs


def test_a_message_without_metadata_has_no_lease(clock):
    """A message that was published to the deliver subject directly is returned at any time."""
    of = received(ACK_WAIT, reply_of(1, 1))
    clock.now = BEGIN + 100
    assert of.admits(b"some.where")


@pytest.mark.parametrize(
    ("is_done", "stored", "is_copy"), [(True, 7, True), (True, 8, False), (False, 7, False)]
)
def test_a_message_that_was_settled_late_hides_its_next_delivery(clock, is_done, stored, is_copy):
    """That delivery is dropped once; not one of an unsettled message, or of another stream's message."""
    first, again = reply_of(5, 1), reply_of(5, 2, 2, stored)
    of = received(ACK_WAIT, first)
    assert of.admits(first)
    of.last_taken[1] = cast("Any", SimpleNamespace(ack_subject=first, is_done=is_done))
    clock.now = BEGIN + 10.5
    of.times.received([(b"s", again, b"", b"x")], clock.now)
    assert of.admits(again) is not is_copy
    assert of.admits(again)
