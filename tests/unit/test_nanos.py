"""Durations and times keep their nanoseconds."""

import copy
import pickle
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.durations import (
    NanoDuration,
    NanoTime,
    duration,
    duration_from_ns,
    duration_to_ns,
    time_from_ns,
    time_from_text,
    time_to_ns,
    time_to_text,
)
from jetstream_sync.errors import InvalidOptionError

INT64 = st.integers(-(2**63), 2**63 - 1)
YEAR_1 = -62135596800 * 10**9
YEAR_9999 = 253402300799 * 10**9
INSTANTS = st.integers(YEAR_1, YEAR_9999)


@given(INT64)
def test_nanoseconds_survive_a_duration(ns):
    """A duration decoded from nanoseconds is encoded as the same nanoseconds."""
    value = duration_from_ns(ns)
    assert duration_to_ns(value) == ns
    assert type(value) is (timedelta if ns % 1000 == 0 else NanoDuration)


@given(st.timedeltas())
def test_a_timedelta_is_exact_nanoseconds(value):
    """A timedelta is sent as its microseconds times 1000."""
    assert duration_to_ns(value) == value // timedelta(microseconds=1) * 1000


@given(INT64)
def test_a_nano_duration_is_a_timedelta_rounded_down(ns):
    """As a timedelta a duration is less than a microsecond below its exact value."""
    micros = duration_from_ns(ns) // timedelta(microseconds=1)
    assert 0 <= ns - micros * 1000 < 1000


@given(st.integers(-(10**12), 10**12))
def test_seconds_mean_what_was_written(millis):
    """Seconds as a float mean their shortest decimal text: 1.001 is 1001 ms exactly."""
    assert duration_to_ns(duration(millis / 1000)) == millis * 1_000_000


@given(st.floats(-9e9, 9e9))
def test_any_seconds_are_within_half_a_nanosecond(seconds):
    """Any float is converted to the nearest nanosecond of its decimal text."""
    exact = Decimal(repr(seconds)) * 10**9
    assert abs(duration_to_ns(duration(seconds)) - exact) <= Decimal("0.5")


@pytest.mark.parametrize(
    "value",
    [True, "1", None, b"1", [1], float("nan"), float("inf"), 1e300, 10**10, timedelta(days=110000)],
)
def test_an_invalid_duration_is_an_error_of_its_option(value):
    """A value that is not a number, or exceeds 64-bit nanoseconds, is an error of its option."""
    with pytest.raises(InvalidOptionError) as caught:
        duration(value, "max_age")
    assert caught.value.option == "max_age"


def test_a_nano_duration_is_kept_until_it_is_computed_with():
    """A given timedelta is returned unchanged; results of arithmetic are plain timedeltas."""
    value = NanoDuration(1_001)
    assert duration(value) is value
    assert type(value + timedelta(0)) is timedelta
    assert duration_to_ns(value * 2) == 2_000
    assert repr(value) == "NanoDuration(1001)"


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_nanoseconds_survive_copies(clone):
    """Copying and pickling keep the nanoseconds, and a time's zone."""
    assert duration_to_ns(clone(NanoDuration(-1))) == -1
    time = time_from_ns(1_234_567_891)
    assert time_to_ns(clone(time)) == 1_234_567_891
    east = time.astimezone(timezone(timedelta(hours=2)))
    assert clone(east).utcoffset() == timedelta(hours=2)
    assert clone(time.replace(tzinfo=None)) == datetime(1970, 1, 1, 0, 0, 1, 234567)  # noqa: DTZ001


@given(INSTANTS)
def test_nanoseconds_survive_a_time(ns):
    """A time decoded from nanoseconds is encoded as the same time, as a number and as text."""
    time = time_from_ns(ns)
    assert time_to_ns(time) == ns
    assert time_to_ns(time_from_text(time_to_text(time))) == ns
    assert type(time) is (datetime if ns % 1000 == 0 else NanoTime)
    assert time.utcoffset() == timedelta(0)
    if ns % 1000:
        assert time.ns == ns


@given(
    st.datetimes(
        min_value=datetime(2, 1, 1),  # noqa: DTZ001
        max_value=datetime(9998, 1, 1),  # noqa: DTZ001
        timezones=st.timezones(),
    )
)
def test_a_datetime_of_any_zone_is_written_in_utc(time):
    """The text is the same instant in UTC, as Python's own parser confirms."""
    text = time_to_text(time)
    assert text.endswith("Z")
    if "." in text:
        head, _, tail = text[:-1].partition(".")
        assert not tail.endswith("0")
        text = f"{head}.{tail.ljust(6, '0')}Z"
    # Datetimes that daylight saving makes ambiguous are equal to none in other zones: compare in UTC.
    assert datetime.fromisoformat(f"{text[:-1]}+00:00") == time.astimezone(timezone.utc)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01t01:00:00.5+01:00", 500_000_000),
        ("1969-12-31T23:00:00.123456789-01:00", 123_456_789),
        ("1970-01-01T00:00:01.9999999999Z", 1_999_999_999),
        ("0001-01-01T00:00:00Z", YEAR_1),
        ("9999-12-31T23:59:59z", YEAR_9999),
    ],
)
def test_rfc_3339_times(text, ns):
    """Any RFC 3339 time is read as its instant, to the nanosecond."""
    assert time_to_ns(time_from_text(text)) == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01 00:00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-01-01T00:00:60Z",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00Z\n",
        "0001-01-01T00:00:00+01:00",
        "٢٠٢٤-01-01T00:00:00Z",
    ],
)
def test_a_text_that_is_not_an_rfc_3339_time_is_refused(text):
    """Text without a zone, out of range or with additional characters is not a time."""
    with pytest.raises(ValueError, match=r".+"):
        time_from_text(text)


def test_a_time_without_zone_has_no_nanoseconds():
    """A naive datetime has no instant, so it has no nanoseconds."""
    with pytest.raises(TypeError):
        time_to_ns(datetime(2024, 1, 1))  # noqa: DTZ001


def test_arithmetic_with_a_time_is_exact_to_the_microsecond():
    """Arithmetic with a NanoTime is exact to the microsecond, as with a datetime."""
    later = time_from_ns(1_001) + timedelta(microseconds=1)
    assert time_to_ns(later) == 2_000
    assert time_to_text(later) == "1970-01-01T00:00:00.000002Z"
    assert time_to_ns(pickle.loads(pickle.dumps(later))) == 2_000
