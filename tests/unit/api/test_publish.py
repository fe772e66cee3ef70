"""Replies to a publish."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_sync import errors, speedups
from jetstream_sync.api.publish import PubAck, parse_pub_ack

REPLIES = Path(__file__).with_name("replies")


def reply(name):
    return json.loads(REPLIES.joinpath(f"{name}.json").read_text())


def test_a_plain_ack():
    """Missing fields have their defaults: no duplicate, no domain."""
    ack = PubAck.from_json({"stream": "ORDERS", "seq": 7})
    assert ack == PubAck("ORDERS", 7)
    assert (ack.stream, ack.seq, ack.duplicate, ack.domain) == ("ORDERS", 7, False, None)
    assert (ack.batch_id, ack.batch_size, ack.val) == (None, None, None)
    assert type(ack) is PubAck
    with pytest.raises(AttributeError):
        ack.seq = 1


@pytest.mark.parametrize(
    ("name", "ack"),
    [
        ("pub_ack", PubAck("ORDERS", 10, domain="hub")),
        ("pub_ack_duplicate", PubAck("ORDERS", 4, duplicate=True, domain="hub")),
        ("pub_ack_batch", PubAck("ORDERS", 12, domain="hub", batch_id="b1", batch_size=2)),
        (
            "pub_ack_counter",
            PubAck("COUNTER", 1, domain="hub", val="123456789012345678901234567890"),
        ),
    ],
)
def test_recorded_acks(name, ack):
    """Every field of a recorded acknowledgement is decoded."""
    assert PubAck.from_json(reply(name)) == ack


def test_a_refusal_is_raised():
    """A reply with an error raises the class of that error, even if it names a stream."""
    with pytest.raises(errors.WrongLastSequenceError) as caught:
        PubAck.from_json(reply("pub_ack_error"))
    assert (caught.value.code, caught.value.err_code) == (400, 10071)
    with pytest.raises(errors.APIError):
        PubAck.from_json({"error": {"code": 599}})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "+OK",
        {},
        {"stream": "A"},
        {"stream": "", "seq": 1},
        {"stream": "A", "seq": "1"},
        {"stream": "A", "seq": True},
        {"stream": "A", "seq": None, "duplicate": True},
        {"error": "no"},
        {"stream": "A", "seq": 1, "domain": 5},
        {"stream": "A", "seq": 1, "batch": ["b"]},
        {"stream": "A", "seq": 1, "count": "7"},
        {"stream": "A", "seq": 1, "count": True},
        {"stream": "A", "seq": 1, "val": 5},
    ],
)
def test_a_reply_without_stream_and_sequence_is_invalid(data):
    """A reply without stream and sequence, or with fields of other types, is an invalid response."""
    with pytest.raises(errors.InvalidResponseError, match="^PubAck: "):
        PubAck.from_json(data)


# --- in C and in Python -------------------------------------------------------------------------------


def outcome(response):
    """Return the parsed acknowledgement with its type, or the error."""
    try:
        ack = parse_pub_ack(response)
    except errors.Error as error:
        return type(error), str(error)
    return type(ack), [type(field) for field in ack], ack


RESPONSES = st.lists(
    st.sampled_from(
        [
            b'{"stream":"',
            b'{"stream": "',
            b'","seq":',
            b'", "seq":',
            b'","domain":"hub"',
            b',"duplicate": true',
            b"ORDERS",
            b"a:b c",
            b"\\u0041",
            b"\\",
            b'"',
            "ä".encode(),
            b"\xff",
            b"\x7f",
            b"\t",
            b"7",
            b"0",
            b"-",
            b"1e3",
            b".5",
            b"123456789012345678",
            b"9223372036854775808",
            b" ",
            b"}",
        ]
    ),
    max_size=7,
).map(b"".join)


@given(RESPONSES | st.binary(max_size=30))
@example(b'{"stream":"S","seq":1}')
@example(b'{"stream":"S", "seq":1}')
@example(b'{"stream":"S","seq":01}')
@example(b'{"stream":"S","seq":0}')
@example(b'{"stream":"S","seq":}')
@example(b'{"stream":"","seq":1}')
@example(b'{"stream":"S","seq":999999999999999999}')
@example(b'{"stream":"S","seq":1000000000000000000}')
@example(b'{"stream":"S","seq":18446744073709551616}')
def test_a_reply_is_parsed_the_same_in_c_and_in_python(response):
    """Both give the same acknowledgement, or the same error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "parse_pub_ack", None)
        expected = outcome(response)
    assert outcome(response) == expected


@pytest.mark.skipif(speedups.parse_pub_ack is None, reason="the C extension is not in use")
@pytest.mark.parametrize("response", [b'{"stream":"S","seq":12}', b'{"stream":"S", "seq":12}'])
def test_the_extension_parses_ordinary_replies(response):
    """The replies of all supported servers are ordinary."""
    ack = speedups.parse_pub_ack(response, PubAck, (False, None, None, None, None))
    assert ack == PubAck("S", 12)
    assert type(ack) is PubAck
    assert pickle.loads(pickle.dumps(ack)) == ack


@pytest.mark.skipif(speedups.parse_pub_ack is None, reason="the C extension is not in use")
@pytest.mark.parametrize(
    "arguments", [(), (b"", PubAck), ("", PubAck, ()), (b"", 7, ()), (b"", PubAck, [])]
)
def test_the_extension_refuses_other_types(arguments):
    """It accepts only the types that it was written for."""
    with pytest.raises(TypeError):
        speedups.parse_pub_ack(*arguments)
    assert speedups.parse_pub_ack(b'{"stream":"S","seq":12}', dict, ()) is None
