"""From where to where a read goes in a stream: earliest, latest, a sequence, or a time."""

from __future__ import annotations

from collections.abc import Callable

from ..options import EARLIEST, LATEST, Offsets
from ..reading.view import StreamView

__all__ = ["first_since", "sequence_of"]


def sequence_of(given: Offsets | None, default: int, view: StreamView) -> int:
    """
    Return the sequence that an option means in a stream; it may be one that the stream does not have.

    Args:
        given: the option; ``None``: not given.
        default: `EARLIEST` or `LATEST`, for what is not given.
        view: the stream.

    """
    value = None if given is None else given.of(view.name)
    if value is None:
        value = default
    if value == EARLIEST:
        return view.first_seq
    return view.end_seq if value == LATEST else value


def first_since(
    time_ns: int, view: StreamView, stored_at: Callable[[int], tuple[int, int] | None]
) -> int:
    """
    Return the sequence of the first message that was stored at a time or later.

    It is searched for between the first and the last, going by times that rise with the sequences.

    Args:
        time_ns: in nanoseconds since 1970.
        view: the stream.
        stored_at: returns the sequence and time of the first message from a sequence on.

    Returns:
        `StreamView.end_seq` when all are older.

    """
    low, high = view.first_seq, view.end_seq
    while low < high:
        middle = (low + high) // 2
        found = stored_at(middle)
        if found is None or found[1] >= time_ns:
            high = middle
        else:
            low = found[0] + 1
    return min(low, view.end_seq)
