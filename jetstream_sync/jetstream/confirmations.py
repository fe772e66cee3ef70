"""Settle messages for workers, and count the confirmations."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

from ..client.mailbox import MessageReceiver
from ..protocol.parser import RawMessage

if TYPE_CHECKING:
    from ..client.core import ConnectionCore

#: Returns the subject and the header of a delivery.
_subject_and_header = itemgetter(0, 2)


class Confirmations(MessageReceiver):
    """
    Sends settlements, and counts their confirmations.

    Any thread may call `send`, and one at a time `counts`. The caller has to notice a confirmation that does
    not arrive.
    """

    is_reply_inbox = True

    __slots__ = ("_arrived", "_core", "_reply")

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core.internal  # the reader holds this object
        inbox = core.table.new_inbox()
        self._reply = f"{inbox}.".encode()
        self._arrived: deque[Counter[tuple[bytes, bytes]]] = deque()
        core.table.add(f"{inbox}.*", "", self)

    def send(self, subjects: Sequence[bytes], payload: bytes, token: int) -> None:
        """
        Settle the messages with these reply subjects; `counts` names the token for each confirmation.

        Raises:
            OutboundBufferLimitError: disconnected, and the buffer is full.
            ConnectionClosedError: the connection is closed.

        """
        # In wire format, in one step: this is a hot path.
        end = b" %b%d %d\r\n%b\r\n" % (self._reply, token, len(payload), payload)
        command = b"PUB " + (end + b"PUB ").join(subjects) + end
        self._core.writer.send(command, len(subjects), len(payload) * len(subjects))

    def counts(self) -> list[tuple[int, int, bool]]:
        """Return what has arrived: tokens, numbers, and whether there were no responders instead."""
        found: Counter[tuple[bytes, bytes]] = Counter()
        with suppress(IndexError):
            while True:
                found.update(self._arrived.popleft())
        start = len(self._reply)
        return [
            (int(subject[start:]), number, bool(header))
            for (subject, header), number in found.items()
            if subject[start:].isdigit()
        ]

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Count confirmations; called by the reader."""
        self._arrived.append(Counter(map(_subject_and_header, deliveries)))
