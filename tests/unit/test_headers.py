"""Headers: encoding and decoding are inverse, and invalid headers are refused."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import InvalidHeaderError
from jetstream_sync.headers import Headers, Status, encode_headers, parse_headers, parse_status

NAMES = st.text([chr(code) for code in range(33, 127) if chr(code) != ":"], min_size=1, max_size=8)
# ADR-4: white space around a value is not part of it.
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12).map(
    lambda text: text.strip(" \t")
)
BYTES = st.binary(max_size=12).map(lambda data: data.translate(None, b"\r\n\0").strip(b" \t"))
PAIRS = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=6)
# Half of the examples look like a header block.
BLOCKS = st.binary(max_size=40) | st.builds(
    bytes.__add__, st.sampled_from([b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0 "]), st.binary()
)


# --- the mapping --------------------------------------------------------------------------------


def test_lookups_ignore_case_and_iteration_keeps_the_first_case():
    """Names keep the case in which they were first written."""
    headers = Headers({"Nats-Msg-Id": "1"})
    assert headers["nats-msg-id"] == headers["NATS-MSG-ID"] == "1"
    assert "nats-Msg-id" in headers
    assert list(headers) == ["Nats-Msg-Id"]
    assert headers.get("other") is None
    assert 5 not in headers


def test_a_name_may_have_several_values():
    """The mapping has the first value, `get_all()` has all of them in order."""
    headers = Headers({"A": ["1", "2"], "B": "3"})
    headers.add("a", "4")
    assert headers["A"] == "1"
    assert headers.get_all("a") == ["1", "2", "4"]
    assert headers.get_all("none") == []
    headers.get_all("A").append("5")  # a copy
    assert list(headers.pairs()) == [("A", "1"), ("A", "2"), ("A", "4"), ("B", "3")]
    assert len(headers) == 2


def test_setting_replaces_all_values():
    """`headers[name] = value` replaces all values, and the case of the name."""
    headers = Headers({"A": ["1", "2"]})
    headers["a"] = "3"
    assert list(headers.pairs()) == [("a", "3")]
    del headers["A"]
    assert not headers
    with pytest.raises(KeyError):
        del headers["A"]
    with pytest.raises(KeyError):
        headers["A"]


@given(PAIRS)
def test_copies_are_independent(pairs):
    """Headers made from headers, copied or pickled are equal and independent."""
    headers = Headers(pairs)
    for again in (
        Headers(headers),
        copy.deepcopy(headers),
        pickle.loads(pickle.dumps(headers)),
    ):
        assert again == headers
        assert list(again.pairs()) == list(headers.pairs())
        again.add(pairs[0][0], "more")
        assert again != headers


def test_equality():
    """Headers are equal with the same values for the same names, whatever the case and order."""
    assert Headers({"A": "1", "B": "2"}) == Headers([("b", "2"), ("a", "1")])
    assert Headers({"A": ["1", "2"]}) != Headers({"A": ["2", "1"]})
    assert Headers({"A": "1"}) == {"a": "1"}
    assert Headers({"A": ["1", "2"]}) == {"A": ["1", "2"]}
    assert Headers() != [("A", "1")]
    with pytest.raises(TypeError):
        hash(Headers())


@pytest.mark.parametrize("other", [{1: "1"}, {"A": 1}, {"A": None}, {"a b": "1"}])
def test_a_mapping_that_is_no_headers_is_not_equal(other):
    """A comparison with a mapping that cannot be sent returns False."""
    assert Headers({"A": "1"}) != other


@given(PAIRS)
def test_evaluating_the_repr_gives_equal_headers(pairs):
    """Evaluating the repr gives equal headers."""
    headers = Headers(pairs)
    assert eval(repr(headers), {"Headers": Headers}) == headers


# --- the block ----------------------------------------------------------------------------------


def test_the_block_by_example():
    """The version line, a line for each value, an empty line (ADR-4)."""
    block = b"NATS/1.0\r\nHeader1: X\r\nHeader1: Y\r\nHeader2: Z\r\n\r\n"
    assert encode_headers({"Header1": ["X", "Y"], "Header2": "Z"}) == block
    assert encode_headers(Headers([("Header1", "X"), ("Header1", "Y"), ("Header2", "Z")])) == block
    pairs = [("Header1", "X"), ("Header1", "Y"), ("Header2", "Z")]
    assert list(parse_headers(block).pairs()) == pairs
    assert encode_headers({}) == encode_headers(Headers()) == b"", "a plain PUB"


@given(PAIRS)
def test_headers_survive_a_round_trip(pairs):
    """Names, values and their order within a name are unchanged."""
    headers = Headers(pairs)
    block = encode_headers(headers)
    assert parse_headers(block) == headers
    assert parse_status(block) is None
    assert encode_headers({name: headers.get_all(name) for name in headers}) == block


@given(st.lists(st.tuples(NAMES, BYTES), min_size=1, max_size=4))
def test_values_that_are_not_utf8_survive_a_round_trip(pairs):
    """Values in another encoding can be read, and sent again unchanged."""
    lines = [name.encode() + b": " + value + b"\r\n" for name, value in pairs]
    block = b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"
    again = encode_headers(parse_headers(block))
    assert sorted(again.lower().split(b"\r\n")) == sorted(block.lower().split(b"\r\n"))


@pytest.mark.parametrize("line", [b"A:1", b"A: 1", b"A:  1 ", b"A:\t1\t"])
def test_white_space_around_a_value_is_not_part_of_it(line):
    """It is optional, as in HTTP (ADR-4)."""
    assert parse_headers(b"NATS/1.0\r\n" + line + b"\r\n\r\n")["A"] == "1"


@pytest.mark.parametrize("name", ["", "a b", "a:", "ä", "a\r\nB", "\x7f", "a\x00", None, 5, b"A"])
def test_bad_names_are_refused(name):
    """A name is printable ASCII without a colon."""
    for use in (
        lambda: Headers({name: "1"}),
        lambda: Headers().add(name, "1"),
        lambda: Headers().__setitem__(name, "1"),
        lambda: encode_headers({name: "1"}),
        lambda: encode_headers({name: ["1"]}),
    ):
        with pytest.raises(InvalidHeaderError) as caught:
            use()
        assert not isinstance(name, str) or caught.value.name == name


@pytest.mark.parametrize(
    "value",
    [
        "secret\r\nNats-Rollup: all",
        "secret\n",
        "\rsecret",
        "secret\ud800",
        "secret\0",
        5,
        None,
        b"secret",
    ],
)
def test_bad_values_are_refused(value):
    """A value cannot add headers, and the error does not quote it."""
    for use in (
        lambda: Headers().add("A", value),
        lambda: Headers().__setitem__("A", value),
        lambda: encode_headers({"A": ["fine", value]}),
        lambda: Headers([("A", value)]),
    ):
        with pytest.raises(InvalidHeaderError) as caught:
            use()
        assert caught.value.name == "A"
        assert "secret" not in str(caught.value)


@given(st.text(st.characters(), max_size=6), st.text(st.characters(), max_size=6))
def test_any_header_is_refused_or_unchanged(name, value):
    """Any name and value are either refused, or sent as one line and read back equal."""
    try:
        block = encode_headers({name: value})
    except InvalidHeaderError:
        return
    assert block.count(b"\r\n") == 3
    assert block.count(b"\n") == block.count(b"\r") == 3
    assert list(parse_headers(block).pairs()) == [(name, value.strip(" \t"))]


# --- the status line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", Status(100, "Idle Heartbeat")),
        (b"NATS/1.0 404 No Messages\r\n\r\n", Status(404, "No Messages")),
        (b"NATS/1.0 503\r\n\r\n", Status(503, "")),
        (b"NATS/1.0 503", Status(503, "")),
        (b"NATS/1.0 503 No Responders", Status(503, "No Responders")),
        (b"NATS/1.0 503 \r\n\r\n", Status(503, "")),
        (b"NATS/1.0   503   Gone  \r\n\r\n", Status(503, "Gone")),
        (b"NATS/1.0 503\r\nNats-Subject: a.b\r\n\r\n", Status(503, "")),
        (b"NATS/1.0 400 Bad \xff\r\n\r\n", Status(400, "Bad \ufffd")),
        (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\n\r\n",
            Status(408, "Request Timeout"),
        ),
        (b"NATS/1.0\r\n\r\n", None),
        (b"NATS/1.0 \r\n\r\n", None),
        (b"NATS/1.0\r\nStatus: 503\r\n\r\n", None),
        (b"NATS/1.0 none\r\n\r\n", None),
        (b"NATS/1.0 -1\r\n\r\n", None),
        (b"NATS/1.0 5_0\r\n\r\n", None),
        (b"NATS/1.0 \xb2\r\n\r\n", None),
        (b"NATS/1.0 " + b"9" * 5000 + b"\r\n\r\n", None),
        (b"HTTP/1.1 503 Gone\r\n\r\n", None),
        (b"503\r\n\r\n", None),
        (b"", None),
    ],
)
def test_the_status_of_a_block(block, status):
    """A status is a number behind the version; a description may follow, headers need not."""
    assert parse_status(block) == status


@given(BLOCKS)
def test_reading_junk_never_fails(block):
    """Reading any bytes as headers raises nothing."""
    headers = parse_headers(block)
    assert headers is None or len(headers) > 0
    status = parse_status(block)
    assert status is None or 0 <= status.code <= 999
