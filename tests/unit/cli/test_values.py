"""How people write sizes, durations and times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from fixtures.jsm import run_jsm
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.cli.consumers.change import parse_deliver
from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.output import count, limit, size, when
from jetstream_sync.cli.shared.settings import Settings
from jetstream_sync.cli.shared.values import (
    TIMEOUT,
    parse_duration,
    parse_limit,
    parse_limited_duration,
    parse_limited_size,
    parse_time,
)
from jetstream_sync.durations import counted, duration_text, seconds_text, size_from_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1024", 1024),
        ("10B", 10),
        ("10K", 10_000),
        ("10KB", 10_000),
        ("10kb", 10_000),
        ("10KiB", 10_240),
        ("1.5 GiB", 3 * 2**29),
        ("1GB", 10**9),
        ("2T", 2 * 10**12),
        (f"{'9' * 400}.5E", (10 * int("9" * 400) + 5) * 10**17),
    ],
)
def test_sizes(text, expected):
    """A size is a number of bytes, of thousands, or of 1024s."""
    assert size_from_text(text) == expected


@pytest.mark.parametrize("text", ["", "-5", "1X", "K", "1 2", "1e3"])
def test_no_sizes(text):
    """Invalid sizes are rejected."""
    with pytest.raises(ValueError, match="invalid size"):
        size_from_text(text)


@pytest.mark.parametrize("text", ["-1", "0", "unlimited", "Unlimited"])
def test_no_limit(text):
    """-1, 0 and 'unlimited' are no limit."""
    assert parse_limited_size(text) == parse_limit(text) == -1
    assert parse_limited_duration(text) == timedelta(0)


@pytest.mark.parametrize("parse", [parse_limited_size, parse_limit, parse_limited_duration])
def test_an_empty_text_is_not_no_limit(parse):
    """A variable of a script that is not set removes no limit, and neither does a fraction of a nanosecond."""
    with pytest.raises(ValueError, match="invalid"):
        parse("")
    assert parse_limited_duration("0.1ns") == timedelta(microseconds=1)


def test_numbers_may_have_separators():
    """A number may be pasted as it is shown."""
    assert parse_limit("1,000,001") == 1_000_001
    with pytest.raises(ValueError, match="invalid number"):
        parse_limit("many")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1y", timedelta(microseconds=31_536_000_000_000)),
        ("1M", timedelta(days=30)),
        ("2w", timedelta(days=14)),
        ("1d3h", timedelta(days=1, hours=3)),
        ("1h30m", timedelta(minutes=90)),
        ("1m", timedelta(minutes=1)),
        ("30s", timedelta(seconds=30)),
        ("1.5s", timedelta(seconds=1.5)),
        ("500ms", timedelta(milliseconds=500)),
        ("7us", timedelta(microseconds=7)),
        ("2000ns", timedelta(microseconds=2)),
        ("1ns", timedelta(microseconds=1)),
        ("0ns", timedelta(0)),
        (".5s", timedelta(milliseconds=500)),
        ("292y", timedelta(days=292 * 365)),
        ("8760h0m0s", timedelta(days=365)),
        ("0", timedelta(0)),
    ],
)
def test_durations(text, expected):
    """A duration is one or more numbers with units."""
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "5", "h", "1h-5m", "1 hour", "1q", "1s2", "99999999999999y", "293y", f"{'9' * 400}.5s"],
)
def test_no_durations(text):
    """Invalid durations and missing units are rejected."""
    with pytest.raises(ValueError, match="invalid duration|is too long"):
        parse_duration(text)


def test_a_timeout_needs_no_unit():
    """A timeout may be seconds without a unit, and must be greater than 0."""
    assert [TIMEOUT.parse(text) for text in ("2", "2s", "500ms", "0.25")] == [2, 2, 0.5, 0.25]
    with pytest.raises(ValueError, match="greater than 0"):
        TIMEOUT.parse("0")


def test_a_long_wait_is_one_that_clocks_can_have():
    """The maximum timeout is accepted by Python's locks and sockets."""
    assert TIMEOUT.parse("292y") < threading.TIMEOUT_MAX


def test_times():
    """A time is RFC 3339 with any offset and any digits, or a duration before now."""
    exact = datetime(2026, 1, 2, 15, 4, 5, 123456, tzinfo=timezone.utc)
    assert parse_time("2026-01-02T15:04:05.123456789Z") == exact
    assert parse_time("2026-01-02T16:04:05.123456+01:00") == exact
    assert parse_time("2026-01-02 15:04:05Z") == exact.replace(microsecond=0)
    assert parse_time("2m", now=exact) == exact - timedelta(minutes=2)
    assert parse_time("2026-01-02").tzinfo is not None
    local = datetime(2026, 1, 2, 15, 4, 5, 500_000).astimezone()
    assert parse_time("2026-01-02T15:04:05.5") == local
    assert parse_time("2026-01-02 15:04:05.500000009") == local
    for text in ("2026-13-02", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"):
        with pytest.raises(ValueError, match="invalid time"):
            parse_time(text)
    with pytest.raises(ValueError, match="is too long"):
        parse_time("3000y")


@pytest.fixture
def japan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time zone of this process is nine hours ahead of UTC."""
    with monkeypatch.context() as context:
        context.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("japan")
def test_a_local_time_after_the_year_9999():
    """A time that has no local time is shown in UTC."""
    settings = Settings(env=Environment.of_process())
    last = datetime(9999, 12, 31, 20, tzinfo=timezone.utc)
    assert when(settings, last.replace(year=2026)) == "2027-01-01 05:00:00+09:00"
    assert when(settings, last) == "9999-12-31 20:00:00+00:00"


@pytest.mark.parametrize(
    "words",
    [
        "object get FILES a.txt -O",
        "object put FILES",
        "stream backup A",
        "stream restore old --tag",
        "apply --file",
        "server run --config",
    ],
)
def test_an_empty_value_is_refused_by_its_option(words):
    """The error names the option or argument, before a connection is made."""
    given = words.split()
    result = run_jsm(*given, "", NATS_URL="nats://127.0.0.1:1")
    named = given[-1] if given[-1].startswith("-") else {"put": "FILE"}.get(given[1], "DIRECTORY")
    assert result.status == 2
    assert named in result.err
    assert result.err.count("\n") == 1


@given(st.integers(0, 10**15))
def test_a_duration_that_is_shown_can_be_read(micros):
    """A formatted duration parses to the same value."""
    value = timedelta(microseconds=micros)
    assert parse_duration(seconds_text(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(days=365), "1y (8760h0m0s)"),
        (timedelta(days=14), "2w (336h0m0s)"),
        (timedelta(days=3), "3d (72h0m0s)"),
        (timedelta(hours=25), "25h0m0s"),
        (timedelta(seconds=30), "30s"),
        (timedelta(minutes=1, seconds=1.5), "1m1.5s"),
        (timedelta(microseconds=5168), "5.168ms"),
        (timedelta(0), "0s"),
        (None, "-"),
    ],
)
def test_durations_are_shown_as_go_has_them(value, text):
    """Durations have the format of Go, with whole days in front."""
    assert duration_text(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (147, "147 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1536 * 1024**3, "1.5 TiB"),
    ],
)
def test_sizes_are_shown_in_1024s(number, text):
    """Bytes are shown in units of 1024 that say so."""
    assert size(number) == text


def test_numbers_have_separators():
    """Numbers have separators, and no limit is called so."""
    assert count(1_000_001) == "1,000,001"
    assert limit(-1) == limit(None) == "Unlimited"
    assert limit(2048, size) == "2.0 KiB"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1_000, "1,000 messages")],
)
def test_one_is_singular(number, expected):
    """A count of one uses the singular."""
    assert counted(number, "message") == expected


def test_a_start_takes_back_another_one():
    """A later start replaces an earlier one, a sequence or a time."""
    fields = parse_deliver("all")
    assert fields["opt_start_seq"] is fields["opt_start_time"] is None
    assert parse_deliver("10")["opt_start_time"] is None
