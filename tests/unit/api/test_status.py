"""Status messages of pull requests: the lists of ADR-37 and the texts of nats-server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync import errors
from jetstream_sync.api.pull import PullStatus, PullStatusKind, parse_pull_status

QUIET, FULL, AWAY, WARNING, FATAL = (
    PullStatusKind.QUIET,
    PullStatusKind.FULL,
    PullStatusKind.AWAY,
    PullStatusKind.WARNING,
    PullStatusKind.FATAL,
)

# The status line as server/consumer.go writes it, what it does to a pull, its error.
ROWS = [
    # Not in the error lists of ADR-37.
    ("404 No Messages", QUIET, None),
    ("408 Request Timeout", QUIET, None),
    ("408 Interest Expired", QUIET, None),
    ("408 Requests Pending", QUIET, None),
    ("409 Message Size Exceeds MaxBytes", FULL, None),
    ("409 Batch Completed", FULL, None),
    # ADR-37: warnings.
    ("409 Exceeded MaxRequestBatch of 10", WARNING, errors.RequestLimitError),
    ("409 Exceeded MaxRequestExpires of 5s", WARNING, errors.RequestLimitError),
    ("409 Exceeded MaxRequestMaxBytes of 1024", WARNING, errors.RequestLimitError),
    ("409 Exceeded MaxWaiting", WARNING, errors.RequestLimitError),
    # Not in its lists; the pull has ended, and another one is served.
    ("409 Leadership Change", AWAY, errors.LeadershipChangeError),
    ("409 Server Shutdown", AWAY, errors.PullError),
    ("423 Nats-Wrong-Pin-Id", WARNING, errors.PinIDMismatchError),
    ("423 Nats-Pin-Id mismatch", WARNING, errors.PinIDMismatchError),
    ("503", AWAY, errors.PullError),
    ("503 No Responders", AWAY, errors.PullError),
    # ADR-37: errors.
    ("400 Bad Request - Priority Group missing", FATAL, errors.BadRequestStatusError),
    ("400 Bad Request - heartbeat value too large", FATAL, errors.BadRequestStatusError),
    ("409 Consumer Deleted", FATAL, errors.ConsumerDeletedError),
    ("409 Consumer is push based", FATAL, errors.ConsumerIsPushBasedError),
    ("412 Required Api Level", FATAL, errors.PullError),
    # Possible additions of a newer server.
    ("409 Something New", WARNING, errors.PullError),
    ("418 I'm a teapot", WARNING, errors.PullError),
    ("500", WARNING, errors.PullError),
]


def block(line, **headers):
    lines = [f"NATS/1.0 {line}", *(f"{name.replace('_', '-')}: {v}" for name, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(("line", "kind", "error"), ROWS)
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
def test_every_status_of_a_pull(line, kind, error, case):
    """Each status has its kind and its error class; the text is compared without case."""
    status = parse_pull_status(b"", block(case(line)), b"")
    assert status.kind is kind
    assert type(status.error) is (error or type(None))
    assert status.pending is None
    # The two headers of ADR-37 are read from every status.
    counted = parse_pull_status(
        b"", block(line, Nats_Pending_Messages=3, Nats_Pending_Bytes=512), b""
    )
    assert (counted.kind, counted.pending) == (kind, (3, 512))
    if error is not None:
        code, _, text = case(line).partition(" ")
        assert status.error.code == int(code)
        assert status.error.description == text or (code == "503" and not text)
        assert str(status.error)


@pytest.mark.parametrize(
    ("headers", "pending"),
    [
        ({}, None),
        ({"Nats_Pending_Messages": "3"}, (3, 0)),
        ({"Nats_Pending_Bytes": "3"}, None),
        ({"Nats_Pending_Messages": "0", "Nats_Pending_Bytes": "0"}, (0, 0)),
        ({"Nats_Pending_Messages": "x", "Nats_Pending_Bytes": "3"}, None),
        ({"Nats_Pending_Messages": "3", "Nats_Pending_Bytes": ""}, None),
        ({"Nats_Pending_Messages": "9" * 5000}, None),
        # nats-server answers so for a request of fewer than no messages.
        ({"Nats_Pending_Messages": "-1", "Nats_Pending_Bytes": "-5"}, (0, 0)),
    ],
)
def test_counts_that_are_not_numbers_are_missing(headers, pending):
    """Headers that are not numbers count as missing."""
    assert parse_pull_status(b"", block("408 Request Timeout", **headers), b"").pending == pending


@pytest.mark.parametrize(
    "header",
    [
        block("100 Idle Heartbeat"),
        block("100 Idle Heartbeat", Nats_Last_Consumer=5, Nats_Last_Stream=7),
        block("100 FlowControl Request"),
        block("100"),
    ],
)
def test_a_heartbeat_does_not_end_a_request(header):
    """A heartbeat does not end a request."""
    assert parse_pull_status(b"", header, b"") == PullStatus(PullStatusKind.HEARTBEAT, None, None)


def test_no_responders_without_a_text_are_explained():
    """nats-server sends only the code 503; the error has an explanation."""
    header = block("503", Nats_Subject="$JS.API.CONSUMER.MSG.NEXT.S.C")
    error = parse_pull_status(b"", header, b"").error
    assert error.code == 503
    assert "No Responders" in str(error)
    assert "consumer" in str(error)


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"", b""),
        (b"", b"404"),
        (b"", block("404 No Messages")),
        (b"NATS/1.0\r\nA: 1\r\n\r\n", b""),
        (b"NATS/1.0\r\nStatus: 404\r\nDescription: No Messages\r\n\r\n", b""),
        (block("404 No Messages"), b"x"),
        (block("100 Idle Heartbeat"), b"\x00"),
        (block("none"), b""),
    ],
)
def test_only_a_number_without_a_payload_is_a_status(header, payload):
    """A status has a number in the version line and no payload; other messages are delivered."""
    assert parse_pull_status(b"", header, payload) is None


def test_what_can_be_acknowledged_is_a_message():
    """A stored message may have any status line on servers before 2.12; its reply subject shows that it is one."""
    header = block("409 Consumer Deleted")
    assert parse_pull_status(b"$JS.ACK.S.C.1.1.1.1.0", header, b"") is None
    assert parse_pull_status(b"$JS.FC.S.C.x", header, b"") is not None


@given(
    st.binary(max_size=30).map(b"NATS/1.0 ".__add__) | st.binary(max_size=30),
    st.sampled_from([b"", b"\r\nNats-Pending-Messages: 1\r\n\r\n"]),
)
def test_any_header_is_a_status_or_a_message(header, rest):
    """Any bytes are read without an exception."""
    status = parse_pull_status(b"", header + rest, b"")
    if status is not None:
        assert (status.error is None) == (
            status.kind in {PullStatusKind.HEARTBEAT, PullStatusKind.QUIET, PullStatusKind.FULL}
        )
