"""Gap detection in the delivery numbers of a consumer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync import NotJSMessageError
from jetstream_sync.subjects import DeliverySequence


def v1(seq: int) -> bytes:
    """The reply subject of a delivery in the first format."""
    return b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.0" % (1000 + seq, seq)


def v2(seq: int) -> bytes:
    """The reply subject in the second format, with a domain, an account and a random suffix."""
    return b"$JS.ACK.hub.ACC.S.C.1.%d.%d.1700000000000000000.0.xyz" % (1000 + seq, seq)


@pytest.mark.parametrize("reply", [v1, v2])
def test_a_gap_is_noticed_and_not_noted(reply):
    """A gap is reported and leaves the position unchanged, for single messages and in runs."""
    sequence = DeliverySequence()
    assert sequence.follows(reply(1))
    assert not sequence.follows(reply(3))
    assert not sequence.follows(reply(1))
    assert not sequence.follow(reply(2), reply(4), 2)
    assert not sequence.follow(reply(3), reply(4), 2)
    assert sequence.last == 1
    assert sequence.reply == reply(1)


def test_the_first_message_is_believed_where_nothing_is_known():
    """Without a known position, the first message sets it: the consumer may exist already."""
    alone, together, jumping = (DeliverySequence(None) for _ in range(3))
    assert alone.follows(v1(57))
    assert together.follow(v1(57), v1(59), 3)
    assert jumping.jump(v1(57)) == 0
    assert (alone.last, together.last, jumping.last) == (57, 59, 57)
    assert DeliverySequence(None).missing(100) == 0


def test_jumping_says_how_many_are_missing():
    """A gap has its number of missing messages; a lower number, as after a reset, counts as none."""
    sequence = DeliverySequence()
    assert sequence.jump(v1(1)) == 0
    assert sequence.jump(v1(5)) == 3
    assert sequence.jump(v1(1)) == 0
    assert sequence.jump(v1(2)) == 0


def test_a_heartbeat_says_how_many_were_sent():
    """Messages that a heartbeat reports as sent but did not arrive are missing; a lower number is no gap."""
    sequence = DeliverySequence()
    assert sequence.missing(0) == 0
    assert sequence.missing(2) == 2
    assert sequence.follows(v1(1))
    assert sequence.missing(1) == 0
    assert sequence.missing(4) == 3
    assert sequence.missing(0) == 0


@pytest.mark.parametrize("reply", [b"", b"_INBOX.a.b", b"$JS.ACK.a.b.c.d.e.f.g.h", b"$JS.ACK.a"])
def test_other_messages_are_distinguished(reply):
    """A reply subject that is not that of a stream is an error and changes nothing."""
    sequence = DeliverySequence()
    for look in (sequence.follows, sequence.jump, lambda reply: sequence.follow(v1(1), reply, 2)):
        with pytest.raises(NotJSMessageError):
            look(reply)
    assert sequence.last == 0


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.sets(st.integers(1, 60), max_size=3),
)
def test_looking_at_the_last_of_a_run_finds_every_gap(runs, lost):
    """A run is accepted exactly if all of its messages are consecutive."""
    sequence = DeliverySequence()
    number = 0
    for size in runs:
        numbers = [n for n in range(number + 1, number + size + 1) if n not in lost]
        number += size
        if not numbers:
            continue
        expected = numbers == list(range(sequence.last + 1, sequence.last + 1 + len(numbers)))
        assert sequence.follow(v1(numbers[0]), v1(numbers[-1]), len(numbers)) is expected
        for n in numbers:
            sequence.jump(v1(n))
