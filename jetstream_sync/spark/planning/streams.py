"""
Which streams a read means.

A trigger asks once for each stream, and all its decisions are made on that answer, a `StreamView`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...errors import StreamNotFoundError
from ...jetstream.context import JetStream
from ..reading.view import StreamView, view_of
from .offsets import stream_key

__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """The streams that a read means: by name, or all that a pattern fits."""

    names: tuple[str, ...] = ()
    """The names; none when there is a pattern."""

    pattern: str | None = None
    """``ORDERS_*``, or a regular expression between slashes."""

    domain: str | None = None
    """Their JetStream domain."""

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        assert self.pattern is not None
        pattern = self.pattern
        if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
            return re.compile(pattern[1:-1])
        return re.compile(".*".join(map(re.escape, pattern.split("*"))))

    def has(self, name: str) -> bool:
        """Say whether a stream of this name is meant."""
        if self.pattern is None:
            return name in self.names
        return self._expression.fullmatch(name) is not None

    def snapshot(self, js: JetStream) -> dict[str, StreamView]:
        """
        Ask for every stream that is meant and there, once.

        Returns:
            The views by `stream_key`, sorted. A stream that does not exist has none.

        Raises:
            Error: as `JetStream.get_stream`, but for a stream that is not there.

        """
        names = self.names
        if self.pattern is not None:
            names = tuple(name for name in js.stream_names() if self.has(name))
        views: dict[str, StreamView] = {}
        for name in sorted(names):
            try:
                info = js.get_stream(name).cached_info
            except StreamNotFoundError:
                continue
            views[stream_key(name, self.domain)] = view_of(info)
        return views

    def check_all_there(self, views: Mapping[str, StreamView]) -> None:
        """
        Refuse to begin where a stream that was named does not exist.

        Raises:
            StreamNotFoundError: one is not there, or no stream fits the pattern.

        """
        for name in self.names:
            if stream_key(name, self.domain) not in views:
                raise StreamNotFoundError(404, 10059, f"there is no stream {name!r}")
