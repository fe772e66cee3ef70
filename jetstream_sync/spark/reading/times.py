"""
The times of messages, parsed only when they are needed, and by Arrow if they become an Arrow column.

Arrow parses a column several times faster than Python. It is given only texts of the usual form, whose times
are at the same place in each text. Everything else, and every error, is left to the Python code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, overload

from ...durations import time_from_text, time_to_ns
from ...errors import InvalidResponseError, NotJSMessageError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

#: Digits of nanoseconds since 1970, from 2001 to 2286.
_DIGITS: Final = 19
#: More bytes than a time has.
_LONGEST: Final = 64
#: Fewer texts than this are not divided further to find those of the usual form.
_MIN_ARROW_ROWS: Final = 512


class MessageTimes(Sequence[int]):
    """When the stream stored each message, in nanoseconds since 1970."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts

    def parse(self) -> list[int]:
        """Return the times."""
        raise NotImplementedError

    def _parse_in_arrow(self) -> pa.Array | None:
        """Return the times, ``None`` if they are not of the usual form; there is at least one."""
        raise NotImplementedError

    def _part(self, texts: Sequence[bytes]) -> Self:
        return type(self)(texts)

    def to_arrow(self) -> pa.Array:
        """Return the times as an ``int64`` array; raises like `parse()`."""
        import pyarrow as pa  # noqa: PLC0415 - the other methods work without it

        from .columns import number_column  # noqa: PLC0415

        made = None
        count = len(self._texts)
        if count:
            with suppress(ValueError):  # also pa.ArrowInvalid
                made = self._parse_in_arrow()
        if made is not None:
            return made
        if count < _MIN_ARROW_ROWS:
            return number_column(self.parse(), pa.int64())
        # Usually the place changes once: where the number after the time loses a digit.
        return pa.concat_arrays([self[: count // 2].to_arrow(), self[count // 2 :].to_arrow()])

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[int]:
        return iter(self.parse())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> int | Self:
        if isinstance(index, slice):
            return self._part(self._texts[index])
        return self._part([self._texts[index]]).parse()[0]


class ReplyTimes(MessageTimes):
    """The times in the reply subjects of a consumer's deliveries, see `api.reply`."""

    __slots__ = ("_extra_tokens",)

    def __init__(self, replies: Sequence[bytes], extra_tokens: int = 0) -> None:
        super().__init__(replies)
        self._extra_tokens = extra_tokens

    def _part(self, texts: Sequence[bytes]) -> Self:
        return type(self)(texts, self._extra_tokens)

    def parse(self) -> list[int]:
        """Return the times; raise `NotJSMessageError` if a reply subject has none."""
        parts = 2 + self._extra_tokens
        try:
            return [int(reply.rsplit(b".", parts)[1]) for reply in self._texts]
        except (IndexError, ValueError):
            raise NotJSMessageError("a reply subject of a consumer has no time") from None

    def _parse_in_arrow(self) -> pa.Array | None:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        from .columns import binary_column  # noqa: PLC0415

        _, time, pending = self._texts[0].rsplit(b".", 2)
        if self._extra_tokens or len(time) != _DIGITS:
            return None
        end = 1 + len(pending)
        replies = binary_column(self._texts, pa.binary())
        # The number after a time may have another length than the first one. Then these bytes do not start
        # with a dot, or they contain another dot, since no number has more than 20 digits.
        tokens = pc.binary_slice(replies, -end - _DIGITS - 1, -end)
        if not pc.all(pc.starts_with(tokens, pattern=b".")).as_py():
            return None
        return pc.binary_slice(replies, -end - _DIGITS, -end).cast(pa.int64())


class HeaderTimes(MessageTimes):
    """The times in header lines of direct gets."""

    __slots__ = ("_start",)

    def __init__(self, lines: Sequence[bytes], start: int) -> None:
        super().__init__(lines)
        self._start = start

    def _part(self, texts: Sequence[bytes]) -> Self:
        return type(self)(texts, self._start)

    def parse(self) -> list[int]:
        """Return the times; raises like `parse_times_ns`."""
        return parse_times_ns(self._texts, self._start)

    def _parse_in_arrow(self) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        from .columns import binary_column  # noqa: PLC0415

        lines = binary_column(self._texts, pa.binary())
        texts = pc.binary_slice(lines, self._start, self._start + _LONGEST).cast(pa.string())
        return texts.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64())


def parse_times_ns(lines: Iterable[bytes], start: int) -> list[int]:
    """
    Parse times such as ``2026-01-31T12:00:00.123456789Z``.

    It is fast because consecutive messages share most of the text.
    """
    times: list[int] = []
    second: bytes | None = None
    second_ns = 0
    second_end = start + len("2026-01-31T12:00:00")
    try:
        for line in lines:
            if line[start:second_end] != second:
                second = line[start:second_end]
                second_ns = time_to_ns(time_from_text(second.decode() + "Z"))
            # The server omits trailing zeros, and the dot if there are only zeros.
            fraction = line[second_end + 1 : -1]
            times.append(second_ns + int(fraction.ljust(9, b"0")))
    except ValueError:
        raise InvalidResponseError("a direct get response has an invalid Nats-Time-Stamp") from None
    return times
