"""Reply subjects of stream messages, in both formats."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import NotJSMessageError
from jetstream_sync.subjects import Metadata, ack_tokens, consumer_sequence, metadata_of

# The forms as ADR-15 lists their tokens; the numbers are delivered, stream sequence, consumer
# sequence, timestamp and pending.
V1 = b"$JS.ACK.ORDERS.NEW.1.20.3.1605139610113260007.4"
V2 = b"$JS.ACK.hub.ABCDEF.ORDERS.NEW.1.20.3.1605139610113260007.4"
V2_RANDOM = V2 + b".rnd0"
V2_NO_DOMAIN = V2.replace(b".hub.", b"._.")
FIELDS = {
    "stream": "ORDERS",
    "consumer": "NEW",
    "num_delivered": 1,
    "stream_seq": 20,
    "consumer_seq": 3,
    "timestamp_ns": 1605139610113260007,
    "num_pending": 4,
}
FORMS = [(V1, None), (V2, "hub"), (V2_RANDOM, "hub"), (V2 + b".a.b.c", "hub"), (V2_NO_DOMAIN, None)]

JUNK = [
    b"",
    b"_INBOX.abc.1",
    b"$JS.ACK",
    b"$JS.ACK.",
    b"$JS.ACK" + b"." * 6,
    V1.rpartition(b".")[0],
    V1 + b".5",  # 10 tokens are neither form
    V2.rpartition(b".")[0],
    V1.replace(b"$JS.ACK", b"$JS.NAK"),
    V2.replace(b"$JS.ACK", b"js.ACK"),
    b"x." + V1,
    b"a.b.c.d.1.2.3.4.5",
    b"a.b.c.d.e.f.1.2.3.4.5",
    b"$JS.ACK." + b"." * 6,
]


@pytest.mark.parametrize(("reply", "domain"), FORMS)
def test_both_formats_of_a_reply_subject_are_read(reply, domain):
    """9 tokens are the first format, 11 or more the second; the domain `_` means none."""
    assert metadata_of(reply) == Metadata(domain=domain, **FIELDS)


@pytest.mark.parametrize("reply", JUNK)
def test_other_subjects_are_no_streams(reply):
    """A message that did not come from a stream has no metadata."""
    for read in (metadata_of, ack_tokens, consumer_sequence):
        if read is ack_tokens and reply == b"$JS.ACK." + b"." * 6:
            continue  # it has nine tokens, and some are not numbers
        with pytest.raises(NotJSMessageError):
            read(reply)


@pytest.mark.parametrize("position", [-5, -4, -3, -2, -1])
@pytest.mark.parametrize("word", [b"", b"x", b"\xff", b"0x1", b"9" * 5000])
@pytest.mark.parametrize("form", [V1, V2])
def test_numbers_are_numbers(form, position, word):
    """A subject with other text in place of a number is not that of a stream message."""
    tokens = form.split(b".")
    tokens[position] = word
    with pytest.raises(NotJSMessageError):
        metadata_of(b".".join(tokens))


@pytest.mark.parametrize("position", [2, 4, 5])
def test_names_are_text(position):
    """A subject with a name that is not UTF-8 is not that of a stream message."""
    tokens = V2.split(b".")
    tokens[position] = b"\xff"
    with pytest.raises(NotJSMessageError):
        metadata_of(b".".join(tokens))


@given(st.integers(0, 2**63 - 1))
def test_any_time_is_exact(ns):
    """Every nanosecond timestamp of the server is converted to its microsecond without rounding errors."""
    metadata = metadata_of(V1.replace(b"1605139610113260007", b"%d" % ns))
    since = metadata.timestamp - datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert since // timedelta(microseconds=1) == ns // 1000
    assert metadata.timestamp_ns == ns


TOKENS = st.lists(
    st.sampled_from([b"$JS", b"ACK", b"S", b"C", b"1", b"2", b"_", b"", b"\xff", b"\xc2\xb2"]),
    max_size=13,
).map(b".".join)


@given(st.one_of(TOKENS, TOKENS.map(b"$JS.ACK.".__add__), st.binary(max_size=30)))
def test_any_subject_gives_complete_metadata_or_an_error(reply):
    """Any subject gives complete metadata or an error."""
    try:
        metadata = metadata_of(reply)
    except NotJSMessageError:
        return
    tokens = reply.split(b".")
    assert tokens[:2] == [b"$JS", b"ACK"]
    assert len(tokens) == 9 or len(tokens) >= 11
    assert metadata.consumer_seq == consumer_sequence(reply)
    assert all(type(number) is int for number in metadata[3:])
