"""What ``jsm top`` shows: snapshots of streams and consumers, and what changed between two of them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...errors import InvalidNameError, StreamNotFoundError
from ...net.clock import monotonic

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream, StreamInfo

__all__ = [
    "ConsumerRow",
    "Frame",
    "History",
    "Snapshot",
    "StreamRow",
    "matching",
    "take_snapshot",
]

#: Points of a graph that are kept.
_POINTS: Final = 240


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Streams and consumers as they were at a moment."""

    taken: float
    """By the monotonic clock."""
    streams: Mapping[str, StreamInfo]
    consumers: Mapping[tuple[str, str], ConsumerInfo]
    """By stream and name."""


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """A stream, and how fast it gets messages."""

    name: str
    messages: int
    bytes: int
    consumers: int
    rate: float
    """Messages that come in, a second."""
    last: datetime | None
    """When the last one came."""
    rates: tuple[float, ...]
    """The rate at the moments that there were, the oldest first."""

    @property
    def key(self) -> str:
        """What it is found by."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class ConsumerRow:
    """A consumer, how far it is behind, and how fast it moves."""

    stream: str
    name: str
    lag: int
    """Messages that it has not delivered yet."""
    ack_pending: int
    redelivered: int
    waiting: int
    """Pull requests that wait."""
    rate: float
    """Deliveries a second."""
    ack_rate: float
    """How fast its ack floor moves, in deliveries a second."""
    paused: bool
    lags: tuple[float, ...]

    @property
    def key(self) -> str:
        """What it is found by."""
        return f"{self.stream} > {self.name}"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """All that is to be shown at a moment."""

    streams: tuple[StreamRow, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    seconds: float = 0.0
    """Between the last two snapshots; 0 before there were two."""
    in_rates: tuple[float, ...] = ()
    """Messages that come into all streams, a second, the oldest first."""
    out_rates: tuple[float, ...] = ()
    """Deliveries of all consumers."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it, without the graphs."""
        streams = [
            {
                "name": row.name,
                "messages": row.messages,
                "bytes": row.bytes,
                "consumers": row.consumers,
                "messages_per_second": row.rate,
                "last": row.last.isoformat() if row.last is not None else None,
            }
            for row in self.streams
        ]
        consumers = [
            {
                "stream": row.stream,
                "name": row.name,
                "lag": row.lag,
                "ack_pending": row.ack_pending,
                "redelivered": row.redelivered,
                "waiting": row.waiting,
                "deliveries_per_second": row.rate,
                "acks_per_second": row.ack_rate,
                "paused": row.paused,
            }
            for row in self.consumers
        ]
        return {"seconds": self.seconds, "streams": streams, "consumers": consumers}


def take_snapshot(js: JetStream) -> Snapshot:
    """
    Ask the server for all streams and consumers, with a request for each stream that has consumers.

    Raises:
        Error: as `JetStream.list_streams`.

    """
    infos = js.list_streams()
    consumers: dict[tuple[str, str], ConsumerInfo] = {}
    busy = [info.config.name for info in infos if info.state.consumer_count]
    for name in busy:
        # It may be deleted meanwhile; and some other program may make one that nobody can name here.
        with contextlib.suppress(StreamNotFoundError, InvalidNameError):
            for consumer in js.list_consumers(name):
                consumers[name, consumer.name] = consumer
    return Snapshot(
        taken=monotonic(),
        streams={info.config.name: info for info in infos},
        consumers=consumers,
    )


def _points() -> deque[float]:
    return deque(maxlen=_POINTS)


@dataclass
class History:
    """What was seen so far: as much as graphs need, of what still exists."""

    _last: Snapshot | None = None
    _rates: dict[str, deque[float]] = field(default_factory=dict)
    _lags: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    _in: deque[float] = field(default_factory=_points)
    _out: deque[float] = field(default_factory=_points)

    def add(self, now: Snapshot) -> Frame:
        """Take a snapshot, and return what it shows compared with the one before."""
        before, self._last = self._last, now
        seconds = now.taken - before.taken if before is not None else 0.0
        streams = tuple(
            self._stream(name, info, before, seconds) for name, info in now.streams.items()
        )
        consumers = tuple(
            self._consumer(key, info, before, seconds) for key, info in now.consumers.items()
        )
        for known, there in ((self._rates, now.streams), (self._lags, now.consumers)):
            for gone in set(known) - set(there):
                del known[gone]  # type: ignore[arg-type]  # each with its own kind of key
        if seconds:
            self._in.append(sum(row.rate for row in streams))
            self._out.append(sum(row.rate for row in consumers))
        return Frame(
            streams=streams,
            consumers=consumers,
            seconds=seconds,
            in_rates=tuple(self._in),
            out_rates=tuple(self._out),
        )

    def _stream(
        self, name: str, info: StreamInfo, before: Snapshot | None, seconds: float
    ) -> StreamRow:
        state = info.state
        old = before.streams.get(name) if before is not None else None
        rate = 0.0
        # One that was made anew has nothing to do with the one of that name before.
        if old is not None and old.created == info.created:
            rate = _rate(state.last_seq, old.state.last_seq, seconds)
        points = self._rates.setdefault(name, _points())
        if seconds:
            points.append(rate)
        return StreamRow(
            name=name,
            messages=state.messages,
            bytes=state.bytes,
            consumers=state.consumer_count,
            rate=rate,
            last=state.last_ts if state.last_ts is not None and state.last_ts.year > 1 else None,
            rates=tuple(points),
        )

    def _consumer(
        self, key: tuple[str, str], info: ConsumerInfo, before: Snapshot | None, seconds: float
    ) -> ConsumerRow:
        old = before.consumers.get(key) if before is not None else None
        rate = ack_rate = 0.0
        if old is not None and old.created == info.created:
            rate = _rate(info.delivered.consumer_seq, old.delivered.consumer_seq, seconds)
            ack_rate = _rate(info.ack_floor.consumer_seq, old.ack_floor.consumer_seq, seconds)
        points = self._lags.setdefault(key, _points())
        points.append(float(info.num_pending))
        return ConsumerRow(
            stream=key[0],
            name=key[1],
            lag=info.num_pending,
            ack_pending=info.num_ack_pending,
            redelivered=info.num_redelivered,
            waiting=info.num_waiting,
            rate=rate,
            ack_rate=ack_rate,
            paused=bool(info.paused),
            lags=tuple(points),
        )


def _rate(now: int, before: int, seconds: float) -> float:
    # A consumer that is reset goes back: that is no rate.
    return max(0, now - before) / seconds if seconds > 0 else 0.0


def matching(frame: Frame, text: str) -> Frame:
    """Return what of a frame has a text in its name, whatever its case."""
    folded = text.lower()
    return replace(
        frame,
        streams=tuple(row for row in frame.streams if folded in row.key.lower()),
        consumers=tuple(row for row in frame.consumers if folded in row.key.lower()),
    )
