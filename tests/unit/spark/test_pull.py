"""The reply subjects of a consumer's deliveries, in both formats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import InvalidResponseError, NotJSMessageError
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading.pull import _ConsumerState, _without_size
from jetstream_sync.spark.reading.replies import Replies

FORMS = {
    "short": "$JS.ACK.ORDERS.c.1.{seq}.{number}.{time}.{left}",
    "long": "$JS.ACK.hub.AcHash.ORDERS.c.1.{seq}.{number}.{time}.{left}.x7Yz",
    "longer": "$JS.ACK._.AcHash.ORDERS.c.1.{seq}.{number}.{time}.{left}.x7Yz.more",
    "without a tail": "$JS.ACK._.AcHash.ORDERS.c.1.{seq}.{number}.{time}.{left}",
}


def received(*subjects: bytes) -> Replies:
    found = Replies()
    found += [(b"a", subject, b"", b"") for subject in subjects]
    return found


def replies(form: str, sequences: list[int], number: int = 1, left: int = 0) -> Replies:
    last = len(sequences) - 1
    return received(
        *(
            FORMS[form]
            .format(seq=seq, number=number + index, time=10**18 + seq, left=left + last - index)
            .encode()
            for index, seq in enumerate(sequences)
        )
    )


@given(st.sampled_from(sorted(FORMS)), st.sets(st.integers(1, 10**12), min_size=1), st.booleans())
def test_reply_subjects_contain_sequences_and_times(form, found, dense):
    """Sequences, times and the remaining count are parsed from both formats, with gaps or without."""
    sequences = sorted(found)
    if dense:
        sequences = list(range(sequences[0], sequences[0] + len(sequences)))
    known = _ConsumerState("c", len(sequences) + 5)
    assert known.remaining == len(sequences) + 5
    came = replies(form, sequences, left=5)
    assert list(known.accept(came)) == sequences
    assert list(known.times_ns(came)) == [10**18 + seq for seq in sequences]
    assert known.remaining == 5
    assert list(known.accept(replies(form, [10**13], number=len(came) + 1))) == [10**13]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_missing_delivery_is_an_error(form):
    """The delivery numbers continue from the last one without a gap."""
    came = [reply for _, reply, _, _ in replies(form, [1, 2, 3, 4])]
    for wrong in (came[1:], [came[0], came[2], came[3]], [came[0], came[3]]):
        with pytest.raises(InvalidResponseError):
            _ConsumerState("c", 4).accept(received(*wrong))
    known = _ConsumerState("c", 4)
    known.accept(received(*came[:2]))
    with pytest.raises(InvalidResponseError):
        known.accept(received(*came[3:]))


def test_a_reply_subject_of_another_kind_is_an_error():
    """A message that is not from the consumer is refused."""
    with pytest.raises(NotJSMessageError):
        _ConsumerState("c", 1).accept(received(b"orders.reply"))


def test_headers_only_messages_have_a_size():
    """The header that the server adds is removed, and an equal header of the user is kept."""
    own = b"NATS/1.0\r\nNats-Msg-Size: 3\r\nX: y\r\n\r\n"
    blocks = [b"NATS/1.0\r\nNats-Msg-Size: 128\r\n\r\n", own[:-2] + b"Nats-Msg-Size: 0\r\n\r\n"]
    found, sizes = _without_size(BytesColumn.of(blocks))
    assert (list(found), sizes) == ([b"", own], [128, 0])
    with pytest.raises(InvalidResponseError):
        _without_size(BytesColumn.of([b"NATS/1.0\r\nX: y\r\n\r\n"]))
