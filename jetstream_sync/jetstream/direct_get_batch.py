"""
Many messages of a stream with one request: direct gets in batches (ADR-31), of nats-server 2.11 and later.

An answer is each message with six headers behind its own, and a status at the end. A server that knows
no batches answers with the first message alone, and with four.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..codec import dumps
from ..errors import ConnectionLostError, NoRespondersError, TimeoutError
from ..headers import SEQUENCE, parse_status
from ..net.clock import Deadline
from ..protocol.parser import Delivery
from .direct_get import StoredMsg, read_direct
from .reply_collector import ReplyCollector
from .requests import APIRequests

__all__ = ["MAX_BYTES", "direct_get_many", "is_direct_status"]

#: What one answer may have: more could fill the server's buffer for this connection.
MAX_BYTES: Final = 4_000_000

#: Seconds for each next message: one replica may be down while the leader is well.
_PATIENCE: Final = 1.0
_STATUS: Final = b"NATS/1.0 "
_SEQUENCE: Final = SEQUENCE.encode() + b": "
#: The headers that messages of a batch have behind those of a single direct get, in this order.
_ADDED: Final = ("Nats-Num-Pending", "Nats-Last-Sequence")
_PENDING, _LAST = (f"{name}: ".encode() for name in _ADDED)


def direct_get_many(
    api: APIRequests, stream: str, request: Mapping[str, Any], deadline: Deadline
) -> list[StoredMsg]:
    """
    Get messages from whoever has the stream.

    Returns:
        The messages, one at least. Where the answer broke off they are what had come, which is in
        order and without gaps.

    Raises:
        MessageNotFoundError: there is none, or not yet where it was asked for.
        NoRespondersError: nobody answers direct gets for the stream.
        APIError: the server refused.
        InvalidResponseError: the answer is not what the API gives.
        PermissionsError: this user may not ask that.
        TimeoutError, ConnectionLostError: nothing came.
        ConnectionClosedError: the connection is closed.

    """
    route = api.routes.direct_get(stream)
    gathering = ReplyCollector(api.core, _is_end)
    try:
        gathering.ask(route.encode(), dumps(request))
        try:
            items = gathering.wait(_PATIENCE, deadline)
        except (TimeoutError, ConnectionLostError):
            items = list(gathering.items)
            if not items:
                raise
    finally:
        gathering.close()
    if is_direct_status(items[-1]):
        if len(items) > 1:
            items.pop()  # it ends them; one alone says why there are none
        elif (status := parse_status(items[0][2])) is not None and status.code == 503:
            raise NoRespondersError(route)
    return [
        read_direct(block, data, _ADDED if _is_of_batch(block) else ())
        for _, _, block, data in items
    ]


def _is_end(delivery: Delivery) -> bool:
    return is_direct_status(delivery) or not _is_of_batch(delivery[2])


def is_direct_status(delivery: Delivery) -> bool:
    """Say whether this is a status: unlike every message it does not say which sequence it has."""
    block = delivery[2]
    return block.startswith(_STATUS) and not delivery[3] and _SEQUENCE not in block


def _is_of_batch(block: bytes) -> bool:
    """Say whether the last headers are those of a batch; before them a message may have any."""
    lines = block.rsplit(b"\r\n", 4)
    return len(lines) == 5 and lines[1].startswith(_PENDING) and lines[2].startswith(_LAST)
