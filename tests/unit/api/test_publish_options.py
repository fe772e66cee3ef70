"""The headers of the arguments of a publish."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jetstream_sync import errors
from jetstream_sync.api.publish import (
    BATCH_OPTIONS,
    FAST_PUBLISH_OPTIONS,
    PUBLISH_OPTIONS,
    given_options,
    publish_headers,
)
from jetstream_sync.headers import Headers, encode_headers

# The arguments in order, and the header of each (ADR-22, ADR-43, nats-server/stream.go).
MADE = {
    "stream": ("S", "Nats-Expected-Stream", "S"),
    "msg_id": ("x y", "Nats-Msg-Id", "x y"),
    "expected_last_sequence": (0, "Nats-Expected-Last-Sequence", "0"),
    "expected_last_subject_sequence": (
        2**64 - 1,
        "Nats-Expected-Last-Subject-Sequence",
        "18446744073709551615",
    ),
    "expected_last_msg_id": ("a", "Nats-Expected-Last-Msg-Id", "a"),
    "msg_ttl": (60, "Nats-TTL", "60"),
}
OPTIONS = [name for name in MADE if name not in {"stream", "msg_id"}]
SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"


def made(headers: Any = None, **arguments: Any) -> Any:
    stream, msg_id = arguments.pop("stream", None), arguments.pop("msg_id", None)
    options = given_options({**dict.fromkeys(OPTIONS), **arguments}, msg_id, stream)
    return publish_headers(headers, options)


@pytest.mark.parametrize("argument", MADE)
def test_each_argument_makes_its_header(argument):
    """Each argument sets its header, and no other."""
    value, name, text = MADE[argument]
    assert made(**{argument: value}) == {name: text}


def test_without_arguments_the_headers_are_the_users():
    """The user's headers are used without a copy or a check."""
    headers = {"a": "b"}
    assert made() is None
    assert made(headers) is headers


@pytest.mark.parametrize("headers", [{"nats-msg-id": "theirs"}, Headers({"NATS-MSG-ID": "theirs"})])
def test_an_argument_comes_before_a_header_of_its_name(headers):
    """One message has one id, whatever the case of the header's name."""
    assert list(made(headers, msg_id="ours").pairs()) == [("Nats-Msg-Id", "ours")]


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (1.5, "1500000000ns"),
        (1.001, "1001000000ns"),
        (timedelta(hours=1), "3600"),
        (timedelta(seconds=1, microseconds=1), "1000001000ns"),
        ("never", "never"),
    ],
)
def test_a_ttl_is_exact(ttl, text):
    """Whole seconds are a number, other values are a Go duration."""
    assert made(msg_ttl=ttl) == {"Nats-TTL": text}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("msg_id", ""),
        ("msg_id", 5),
        ("expected_last_msg_id", ""),
        ("expected_last_sequence", -1),
        ("expected_last_sequence", True),
        ("expected_last_sequence", "1"),
        ("expected_last_sequence", 2**64),
        ("expected_last_subject_sequence", 1.0),
        ("msg_ttl", 0),
        ("msg_ttl", 0.999),
        ("msg_ttl", -1),
        ("msg_ttl", timedelta(days=240 * 365)),  # the server would delete it at once
        ("msg_ttl", float("nan")),
        ("msg_ttl", "1h"),
        ("msg_ttl", ""),
        ("expected_last_subject", "a"),
    ],
)
def test_invalid_values_are_refused_by_the_client(argument, value):
    """The error names the argument."""
    with pytest.raises(errors.InvalidOptionError) as caught:
        made(**{argument: value})
    assert caught.value.option == argument


@pytest.mark.parametrize("subject", ["a.b", "a.*", "a.>"])
def test_a_sequence_may_be_expected_of_another_subject(subject):
    """The subject is sent with the sequence, in its own header; it may have wildcards."""
    headers = made(expected_last_subject_sequence=3, expected_last_subject=subject)
    assert headers == {"Nats-Expected-Last-Subject-Sequence": "3", SUBJECT: subject}


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a\r\nb"])
def test_the_subject_of_an_expectation_is_checked(subject):
    """An invalid subject is refused."""
    with pytest.raises(errors.BadSubjectError):
        made(expected_last_subject_sequence=3, expected_last_subject=subject)


def test_a_stream_has_a_streams_name():
    """The expected stream is checked like any stream name."""
    with pytest.raises(errors.InvalidNameError):
        made(stream="a.b")


@pytest.mark.parametrize("headers", [None, {"a": "b"}])
def test_an_id_cannot_add_headers(headers):
    """A line break in an id is refused, and nothing is sent."""
    with pytest.raises(errors.InvalidHeaderError):
        encode_headers(made(headers, msg_id="a\r\nNats-Rollup: all"))


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("mesage_id", PUBLISH_OPTIONS),
        ("cancels", BATCH_OPTIONS),
        ("expected_last_sequence", FAST_PUBLISH_OPTIONS),
    ],
)
def test_an_option_of_another_call_is_refused(option, names):
    """Each call has its options; the error suggests one of them, or lists them."""
    with pytest.raises(
        errors.InvalidOptionError, match="unknown option; (did you mean|not one)"
    ) as caught:
        publish_headers(None, {option: None}, names)
    assert caught.value.option == option
