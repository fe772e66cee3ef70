"""Replies to a publish."""

import json
import pickle
from pathlib import Path

import pytest
from fix_cases import each_case

from jetstream_sync.api.publish import PubAck
from jetstream_sync.errors import APIError, InvalidResponseError, WrongLastSequenceError

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
    with pytest.raises(WrongLastSequenceError) as caught:
        PubAck.from_json(reply("pub_ack_error"))
    assert (caught.value.code, caught.value.err_code) == (400, 10071)


def test_an_old_error_without_err_code_is_raised():
    """An error object of any content raises an API error."""
    with pytest.raises(APIError):
        PubAck.from_json({"error": {"code": 599}})


@each_case(
    "data",
    [
        None,
        [],
        "+OK",
        {},
        {"seq": 1},
        {"stream": "A"},
        {"stream": "", "seq": 1},
        {"stream": 1, "seq": 1},
        {"stream": "A", "seq": "1"},
        {"stream": "A", "seq": True},
        {"stream": "A", "seq": 1.0},
        {"stream": "A", "seq": None, "duplicate": True},
        {"error": "no"},
    ],
)
def test_what_is_no_ack_is_an_invalid_response(data):
    """A reply without stream and sequence is an invalid response."""
    with pytest.raises(InvalidResponseError, match="^PubAck: "):
        PubAck.from_json(data)


def test_unknown_fields_do_not_matter():
    """Unknown fields of newer servers are ignored."""
    assert PubAck.from_json({"stream": "A", "seq": 1, "new": []}) == PubAck("A", 1)


def test_an_ack_survives_pickle():
    """Acks can be pickled, and are immutable."""
    ack = PubAck.from_json(reply("pub_ack_batch"))
    assert pickle.loads(pickle.dumps(ack)) == ack
    with pytest.raises(AttributeError):
        ack.seq = 1
