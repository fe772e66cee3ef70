"""
How far a query is behind, for its progress reports.

Spark shows what `Progress.report` returns as ``sources[].latestOffset`` in every progress of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.view import StreamView

__all__ = ["Progress"]


class Progress:
    """What the last trigger has seen of each stream, and how much of it is left to read."""

    def __init__(self) -> None:
        self._views: Mapping[str, StreamView] = {}
        self._pending: dict[str, int] = {}

    def seen(
        self,
        views: Mapping[str, StreamView],
        available: Mapping[str, int],
        taken: Mapping[str, int],
    ) -> None:
        """
        Note what a trigger has found.

        Args:
            views: the streams.
            available: how many messages there were to read in each.
            taken: how many of them the next batch has.

        """
        self._views = views
        self._pending = {key: count - taken.get(key, 0) for key, count in available.items()}

    def report(self) -> dict[str, Any] | None:
        """
        Return each stream's first and last sequence, messages, bytes and how many wait to be read.

        Those of the batch that is planned or running do not wait any more. ``None`` before the
        first trigger.
        """
        if not self._views:
            return None
        streams = {
            key: {
                "bytes": view.bytes,
                "first": view.first_seq,
                "last": view.end_seq - 1,
                "messages": view.messages,
                "pending": self._pending.get(key, 0),
            }
            for key, view in sorted(self._views.items())
        }
        return {"streams": streams}
