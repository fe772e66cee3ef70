"""The messages of a reply, of which only columns are needed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ... import errors
from ...client.core import ConnectionCore
from ...client.replies import ReplyCollector
from ...net.clock import Deadline
from ...protocol.parser import REPLY, RawMessage
from ...speedups import run_column, run_numbers
from ..bytes_column import BytesColumn

if TYPE_CHECKING:
    from typing_extensions import Self


class Replies:
    """Messages in runs, as they were received; packed by the C extension, see `ReplyCollector`."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: list[Any] = []
        self._count = 0

    def __iadd__(self, deliveries: Any) -> Self:
        self._runs.append(deliveries)
        self._count += len(deliveries)
        return self

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RawMessage]:
        return chain.from_iterable(self._runs)

    def __getitem__(self, end: int) -> RawMessage:
        """Return the first message, for 0, or the last one, for -1."""
        found: RawMessage = self._runs[end][end]
        return found

    def pop(self) -> RawMessage:
        """Remove and return the last message."""
        last: RawMessage = self._runs[-1].pop()
        if not len(self._runs[-1]):
            self._runs.pop()
        self._count -= 1
        return last

    def column(self, field: int) -> BytesColumn:
        """Return a field of the messages, by its index in `RawMessage`."""
        made = None if run_column is None else run_column(tuple(self._runs), field)
        if made is None:
            return BytesColumn.of([delivery[field] for delivery in self])
        return BytesColumn(*made)

    def reply_numbers(self, place: int) -> Sequence[int]:
        """Return the numbers at a place of the reply subjects, from the end; raise `NotJSMessageError` without one."""
        made = None if run_numbers is None else run_numbers(tuple(self._runs), place)
        if made is not None:
            return int64_array(made)
        try:
            return array("q", [int(item[REPLY].rsplit(b".", place)[-place]) for item in self])
        except (IndexError, ValueError):
            raise errors.NotJSMessageError("a reply subject of a consumer has no time") from None


def asked(
    core: ConnectionCore,
    subject: bytes,
    payload: bytes,
    is_end: Callable[[RawMessage], bool],
    deadline: Deadline,
    expected: int = 0,
) -> ReplyCollector:
    """Send a request until a deadline, and return the collector of its replies, which the caller closes."""
    collector = ReplyCollector(core, is_end, expected, Replies())
    try:
        collector.ask(subject, payload, deadline=deadline)
    except BaseException:
        collector.close()
        raise
    return collector


def int64_array(values: bytes) -> array[int]:
    """Return 64-bit integers from their bytes."""
    made = array("q")
    made.frombytes(values)
    return made
