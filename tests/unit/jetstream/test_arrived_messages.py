"""Which deliveries of a queue are messages without a closer look: only a status line makes one a status."""

from __future__ import annotations

from collections import deque

import pytest

from jetstream_sync.jetstream.pull import DISCONNECTED, RECONNECTED, arrived_messages
from jetstream_sync.protocol.parser import RawMessage

PLAIN: RawMessage = (b"a", b"r", b"", b"x")
EMPTY: RawMessage = (b"a", b"r", b"", b"")
HEADERS: RawMessage = (b"a", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"x")
HEADERS_ONLY: RawMessage = (b"a", b"r", b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")
STATUS: RawMessage = (b"a", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b"")
FORWARDED: RawMessage = (b"a", b"r", b"NATS/1.0 503\r\n\r\n", b"x")


@pytest.mark.parametrize(
    ("queued", "taken"),
    [
        ([PLAIN, EMPTY, HEADERS], 3),
        ([HEADERS_ONLY, HEADERS_ONLY, EMPTY, PLAIN], 4),
        ([HEADERS_ONLY, STATUS, HEADERS_ONLY], 1),
        ([HEADERS_ONLY, FORWARDED, PLAIN], 3),
        ([PLAIN, DISCONNECTED, PLAIN], 1),
        ([HEADERS_ONLY, RECONNECTED], 1),
        ([STATUS], 0),
        ([], 0),
    ],
)
def test_run_ends_before_the_first_status(queued: list[RawMessage], taken: int) -> None:
    """A message with headers and an empty payload belongs to the run."""
    assert arrived_messages(deque(queued), 10) == queued[:taken]
