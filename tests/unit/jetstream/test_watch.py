"""When a watch is current, and which keys its caller knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_sync.jetstream.buckets.watch import Markers, _Initial, _LiveKeys
from jetstream_sync.jetstream.ordered_cursor import KnownStream, ReadMode, ServerConsumer


def reply_of(seq: int, number: int, pending: int = 1) -> bytes:
    return b"$JS.ACK.S.C.1.%d.%d.7.%d" % (seq, number, pending)


def initial(announced: int, *ends: int, mode: ReadMode = ReadMode.INITIAL) -> _Initial:
    """Return the state of a watch with this many announced messages, in a stream with these ends."""
    first, *later = ends
    cursor = SimpleNamespace(
        consumer=ServerConsumer("C", 0, announced, {}),
        consumer_seq=0,
        known=KnownStream(end=first),
        reading=mode,
        last_seq=lambda _: later.pop(0),
    )
    state = _Initial(cast("Any", cursor), cast("Any", None))
    state.received(0)
    return state


@pytest.mark.parametrize(
    ("announced", "ends", "replies", "current"),
    [
        # All announced messages existed before the consumer.
        (2, [9], [(3, 1, 1), (9, 2, 0)], [False, True]),
        # Nothing is said to be pending, but fewer messages have arrived: read on to the end of the stream.
        (3, [9, 9], [(3, 1, 1), (9, 2, 0)], [False, True]),
        # The last one was stored after the consumer: another round, until the end does not move.
        (2, [9, 11], [(3, 1, 1), (10, 2, 1), (11, 3, 0)], [False, False, False]),
        (2, [9, 11, 11], [(3, 1, 1), (10, 2, 1), (11, 3, 0)], [False, False, True]),
    ],
)
def test_a_watch_is_current_after_all_messages_that_existed(announced, ends, replies, current):
    """The announced number counts only with messages from before the consumer; otherwise it reads on."""
    state = initial(announced, *ends, *[99] * (current[-1] is False))
    assert [state.is_complete_after(reply_of(*reply)) for reply in replies] == current


@pytest.mark.parametrize("mode", ReadMode)
def test_older_revisions_are_dropped_only_when_it_reads_from_the_start_again(mode):
    """After a loss, the last revision of each subject comes again, and only a newer one is handed out."""
    state = initial(1, 9, mode=mode)
    seen = [state.is_new((b"a", reply_of(seq, 1), b"", b"x")) for seq in (3, 3, 2, 4)]
    again = mode is ReadMode.INITIAL_FROM_START
    assert seen == ([True, False, False, True] if again else [True] * 4)


def test_a_marker_removes_a_key():
    """The known keys are those whose last message is a value."""
    markers = Markers(lambda delivery: delivery[3] != b"", lambda _: (b"", b""))
    keys = _LiveKeys(cast("Any", None), "S", markers, [">"])
    for subject, payload in ((b"a", b"1"), (b"b", b"1"), (b"a", b""), (b"c", b""), (b"b", b"2")):
        keys.record((subject, reply_of(1, 1), b"", payload))
    assert keys.subjects == {b"b"}
