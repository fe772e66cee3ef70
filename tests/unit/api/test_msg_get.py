"""Requests for stored messages (ADR-31)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from jetstream_sync.api.stream import MsgGetRequest


def test_only_set_fields_are_sent():
    """A server must not see a field that was not given: the sequence 0 would be an error."""
    assert MsgGetRequest(5).to_json() == {"seq": 5}
    assert MsgGetRequest(next_by_subj="a.>", batch=2, max_bytes=100).encode() == (
        b'{"next_by_subj":"a.>","batch":2,"max_bytes":100}'
    )


def test_times_are_sent_in_utc():
    """A time is sent as RFC 3339 in UTC, whatever its zone."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
    expected = "2026-01-02T01:04:05.000006Z"
    assert MsgGetRequest(start_time=at).to_json() == {"start_time": expected}
    assert MsgGetRequest(multi_last=["a"], up_to_time=at).to_json() == {
        "multi_last": ["a"],
        "up_to_time": expected,
    }


@pytest.mark.parametrize(
    ("request_", "subject", "seq", "selected"),
    [
        (MsgGetRequest(5), "any", 5, True),
        (MsgGetRequest(5), "any", 6, False),
        (MsgGetRequest(5, next_by_subj="a"), "a", 5, True),
        (MsgGetRequest(5, next_by_subj="a"), "a", 9, True),
        (MsgGetRequest(5, next_by_subj="a"), "a", 4, False),
        (MsgGetRequest(last_by_subj="a"), "a", 1, True),
        (MsgGetRequest(last_by_subj="a"), "b", 1, False),
        (MsgGetRequest(last_by_subj="a"), "a", 0, False),
        (MsgGetRequest(last_by_subj="a.*"), "a.b", 1, True),
        (MsgGetRequest(last_by_subj="a.>"), "a.b.c", 1, True),
    ],
)
def test_selected_message(request_, subject, seq, selected):
    """A reply with another sequence or subject is not the requested message."""
    assert request_.selects(subject, seq) is selected
