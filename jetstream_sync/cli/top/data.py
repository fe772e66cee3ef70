"""The data of ``jsm top``: snapshots of streams and consumers, and the rates between two of them."""

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

#: Number of values that are kept for a graph.
_MAX_POINTS: Final = 240


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of all streams and consumers at one time."""

    taken: float
    """Time of the monotonic clock, in seconds."""
    streams: Mapping[str, StreamInfo]
    consumers: Mapping[tuple[str, str], ConsumerInfo]
    """By stream name and consumer name."""


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """The row of a stream."""

    name: str
    messages: int
    bytes: int
    consumers: int
    rate: float
    """Stored messages per second."""
    last: datetime | None
    """Time of the last message."""
    rates: tuple[float, ...]
    """The rates of the last snapshots, the oldest first."""

    @property
    def key(self) -> str:
        """The text that the filter searches."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class ConsumerRow:
    """The row of a consumer."""

    stream: str
    name: str
    lag: int
    """Number of messages that were not delivered yet."""
    ack_pending: int
    redelivered: int
    waiting: int
    """Number of waiting pull requests."""
    rate: float
    """Deliveries per second."""
    ack_rate: float
    """Rate at which the ack floor moves, in deliveries per second."""
    paused: bool
    lags: tuple[float, ...]

    @property
    def key(self) -> str:
        """The text that the filter searches."""
        return f"{self.stream} > {self.name}"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Everything that one screen or table shows."""

    streams: tuple[StreamRow, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    seconds: float = 0.0
    """Time between the last two snapshots; 0 after the first one."""
    in_rates: tuple[float, ...] = ()
    """Stored messages per second in all streams, the oldest first."""
    out_rates: tuple[float, ...] = ()
    """Deliveries per second of all consumers, the oldest first."""

    def document(self) -> dict[str, Any]:
        """Return the JSON document, without the values of the graphs."""
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
    Return the state of all streams and consumers, with one request per stream that has consumers.

    Raises:
        Error: as `JetStream.list_streams`.

    """
    infos = js.list_streams()
    consumers: dict[tuple[str, str], ConsumerInfo] = {}
    busy = [info.config.name for info in infos if info.state.consumer_count]
    for name in busy:
        # The stream may be deleted meanwhile, or have a name that this client rejects.
        with contextlib.suppress(StreamNotFoundError, InvalidNameError):
            for consumer in js.list_consumers(name):
                consumers[name, consumer.name] = consumer
    return Snapshot(
        taken=monotonic(),
        streams={info.config.name: info for info in infos},
        consumers=consumers,
    )


def _points() -> deque[float]:
    return deque(maxlen=_MAX_POINTS)


@dataclass
class History:
    """The values for the graphs, of the streams and consumers that still exist."""

    _last: Snapshot | None = None
    _rates: dict[str, deque[float]] = field(default_factory=dict)
    _lags: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    _in: deque[float] = field(default_factory=_points)
    _out: deque[float] = field(default_factory=_points)

    def add(self, now: Snapshot) -> Frame:
        """Add a snapshot, and return the frame of its differences from the previous one."""
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
        # A stream that was deleted and created again has a new creation time and no rate yet.
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
    # The sequences go back when a consumer is reset; that is not a negative rate.
    return max(0, now - before) / seconds if seconds > 0 else 0.0


def filtered(frame: Frame, text: str) -> Frame:
    """Return the rows of a frame whose names contain a text, ignoring case."""
    folded = text.lower()
    return replace(
        frame,
        streams=tuple(row for row in frame.streams if folded in row.key.lower()),
        consumers=tuple(row for row in frame.consumers if folded in row.key.lower()),
    )
