"""
What ``jsm top`` shows: the rows of its views, their rates and histories, and the thread that reads them.

Rules:

1. A refresh sends one request for all streams and one for each stream with consumers, a limited number at
   a time, and the requests of one further view: the one that is shown.
2. The thread waits at least four times as long as its last refresh took, unless it waited for servers that
   do not answer.
3. What does not answer has a row without values, above the others.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypedDict

from typing_extensions import Self

from ...client.threads import Signal, spawn
from ...converters import parsed
from ...durations import counted
from ...errors import Error, JetStreamNotEnabledError
from ...net.clock import monotonic
from ...subjects import KV_PREFIX, OBJECT_PREFIX
from ...workers import DeadLetters
from ...workers.calls import RESULTS_MARK
from ...workers.running import request_reports
from ..consumers.dlq import why_dead
from ..shared.env import parse_json
from ..shared.listings import Listed, Lister
from ..shared.names import title
from ..shared.output import Missing, size
from ..shared.render import Field, bad, sort_key, warn
from ..shared.status import CommandError, one_line
from ..shared.system import PING, MetaGroup, all_replies, server_name
from ..workers.tasks import CALLS, stored_calls
from ..workers.worker import PROCESSES

if TYPE_CHECKING:
    from ... import ClusterInfo, Connection, ConsumerInfo, StreamInfo

#: Number of values that are kept for a graph.
_MAX_POINTS: Final = 240
#: Pause between two refreshes, in durations of the first one.
_PAUSE_FACTOR: Final = 4
#: Prefixes of the streams of buckets, and their kinds.
_BUCKETS: Final = {KV_PREFIX: "key-value", OBJECT_PREFIX: "object"}

# --- views --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a view."""

    key: str
    """The identity of the row, in which the filter searches."""
    fields: Mapping[str, Any]
    """The values, as in JSON."""
    history: Sequence[float] = ()
    """The values of the graph, the oldest first."""
    record: Any = None
    """What the row was made of, for the detail view; a `Missing`: there are no values."""

    @property
    def is_missing(self) -> bool:
        """Whether the stream or consumer could not be reached."""
        return isinstance(self.record, Missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A table: its columns, of which the first is the name, and its graph."""

    name: str
    title: str
    columns: tuple[Field, ...]
    sort: int = 0
    """The column by which the rows are sorted at first."""
    graph: str = ""
    """The title of the graph; empty: there is none."""
    none: str = ""
    """What is shown instead of an empty table."""

    def sorted(
        self, rows: Sequence[Row], column: int, text: str = "", *, down: bool | None = None
    ) -> list[Row]:
        """Return the rows that contain a text, ignoring case, in the order of a column; missing ones first."""
        folded = text.lower()
        found = sorted(
            (row for row in rows if folded in row.key.lower()), key=lambda row: row.key.lower()
        )
        value = self.columns[column].of
        down = self.is_down(rows, column) if down is None else down
        missing = [row for row in found if row.is_missing]
        known = [row for row in found if not row.is_missing]
        # Rows with equal values keep the order of their names.
        return [*missing, *sorted(known, key=lambda row: sort_key(value(row.fields)), reverse=down)]

    def is_down(self, rows: Sequence[Row], column: int) -> bool:
        """Return whether the default order of a column is descending: that of numbers is."""
        known = [row for row in rows if not row.is_missing]
        values = [sort_key(self.columns[column].of(row.fields)) for row in known]
        return any(kind == 0 for kind, _ in values)


def number(value: float | None) -> str:
    """Return a rate or an amount with at most one decimal."""
    if value is None:
        return ""
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def _consumer_name(fields: Mapping[str, Any]) -> Any:
    name = f"{fields['stream']} > {fields['name']}"
    return warn(f"{name} (paused)") if fields["paused"] else name


def _longest(fields: Mapping[str, Any]) -> float | None:
    return max((item["seconds"] for item in fields["running"]), default=None)


def _outbox(fields: Mapping[str, Any]) -> float | None:
    ages = [item["value"] for item in fields["gauges"] if item["name"] == "outbox_age_seconds"]
    return max(ages, default=None)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} s"


STREAMS: Final = View(
    name="streams",
    title="Streams",
    columns=(
        Field("Stream", "name"),
        Field("Messages", "messages"),
        Field("Size", "bytes", size, right=True),
        Field("In/s", "messages_per_second", number, right=True),
        Field("Consumers", "consumers"),
    ),
    sort=3,
    graph="In/s over time",
    none="No streams",
)
CONSUMERS: Final = View(
    name="consumers",
    title="Consumers",
    columns=(
        Field("Consumer", _consumer_name),
        Field("Lag", "lag"),
        Field("Unacked", "ack_pending"),
        Field("Redelivered", "redelivered"),
        Field("Waiting", "waiting"),
        Field("Out/s", "deliveries_per_second", number, right=True),
        Field("Acked/s", "acks_per_second", number, right=True),
    ),
    sort=1,
    graph="Lag over time",
    none="No consumers",
)
WORKERS: Final = View(
    name="workers",
    title="Workers",
    columns=(
        *PROCESSES,
        Field("Longest", _longest, _seconds, right=True),
        Field("Outbox Age", _outbox, _seconds, right=True, drop=1),
    ),
    none="No workers",
)
DEAD_LETTERS: Final = View(
    name="dead-letters",
    title="Dead letters",
    columns=(
        Field("Consumer", lambda row: f"{row['stream']} > {row['consumer']}"),
        Field("Sequence", "stream_seq"),
        Field("Why", lambda row: why_dead(row["kind"], row["reason"])),
        Field("When", lambda row: datetime.fromisoformat(row["time"])),
        Field("Deliveries", "deliveries", drop=2),
        Field("Subject", "subject", drop=1),
    ),
    sort=3,
    none="No dead letters",
)
BUCKETS: Final = View(
    name="buckets",
    title="Buckets",
    columns=(
        Field("Bucket", "name"),
        Field("Kind", "kind"),
        Field("Messages", "messages"),
        Field("Size", "bytes", size, right=True),
        Field("History", "history"),
        Field("TTL", lambda row: timedelta(seconds=row["ttl"]) if row["ttl"] else None),
        Field("Replicas", "replicas"),
    ),
    sort=3,
    none="No buckets",
)
QUERIES: Final = View(
    name="queries",
    title="Spark queries",
    columns=(
        Field("Query", "query"),
        Field("Stream", "stream"),
        Field("Pending", "pending"),
        Field("Size", "pending_bytes", size, right=True),
        Field("Lag", "lag_seconds", _seconds, right=True),
        Field("Last Sequence", "last"),
    ),
    sort=4,
    graph="Pending over time",
    none="No queries; --progress names the bucket of the option progressBucket",
)
SERVERS: Final = View(
    name="servers",
    title="Servers",
    columns=(
        Field("Server", "server"),
        Field("State", lambda row: bad("offline") if row["offline"] else "online"),
        Field("Stream Leader", "stream_leader"),
        Field("Stream Replica", "stream_replica"),
        Field("Consumer Leader", "consumer_leader"),
        Field("Consumer Replica", "consumer_replica"),
        Field("Not Current", lambda row: warn(row["not_current"])),
    ),
    none="No servers",
)
TASKS: Final = View(
    name="tasks", title="Tasks", columns=CALLS, sort=4, none="No calls of tasks with results"
)
#: All views by name.
VIEWS: Final = {
    view.name: view
    for view in (STREAMS, CONSUMERS, WORKERS, DEAD_LETTERS, BUCKETS, QUERIES, SERVERS, TASKS)
}
#: Maximum number of changes of calls that are read from a bucket: the newest ones.
_MAX_CALLS: Final = 1000
#: How long to wait for the next of them, in seconds.
_READ_S: Final = 5.0

#: The name of the first screen, with streams and consumers.
BOTH: Final = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """The options of ``jsm top``, for each of its forms."""

    interval: float = 1.0
    """Seconds between refreshes."""
    view: str = BOTH
    text: str = ""
    """The filter of the names."""
    consumer_sort: int = 1
    """The column by which the consumers are sorted at first."""
    progress: str | None = None
    """The bucket with the progress of Spark queries."""
    mask: bool = False
    """Whether arguments and return values of calls are hidden."""
    may_change: bool = False
    """Whether dead letters can be requeued and discarded."""


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Everything that one screen or table shows."""

    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """The rows by the name of their view."""
    errors: Mapping[str, Error] = field(default_factory=dict)
    """Why a view could not be read, by its name; it has its former rows, if any."""
    read_at: Mapping[str, float] = field(default_factory=dict)
    """The time of the monotonic clock at which the rows of a view were read, by its name."""
    seconds: float = 0.0
    """Time between the last two snapshots; 0 after the first one."""
    in_rate: float = 0.0
    """Stored messages per second in all streams."""
    out_rate: float = 0.0
    """Deliveries per second of all consumers."""

    @property
    def failure(self) -> Error | None:
        """Why the streams and consumers could not be read."""
        return self.errors.get(STREAMS.name)

    def totals(self) -> str:
        """Return the sums of all streams and consumers in one line."""
        rows = [self.rows.get(view, ()) for view in _CORE]
        streams, consumers = ([row.fields for row in found if not row.is_missing] for found in rows)
        lost = [sum(row.is_missing for row in found) for found in rows]
        unknown = [f" ({number:,} unreachable)" if number else "" for number in lost]
        messages = sum(stream["messages"] for stream in streams)
        return (
            f"{counted(len(rows[0]), 'stream')}{unknown[0]}, {counted(messages, 'message')}, "
            f"{size(sum(stream['bytes'] for stream in streams))}, "
            f"{number(self.in_rate)} in/s   "
            f"{counted(len(rows[1]), 'consumer')}{unknown[1]}, lag {sum(e['lag'] for e in consumers):,}, "
            f"unacked {sum(consumer['ack_pending'] for consumer in consumers):,}, "
            f"{number(self.out_rate)} out/s"
        )


#: The views that every refresh reads, for their rates and graphs.
_CORE: Final = (STREAMS.name, CONSUMERS.name)
#: The views that are made from what it reads.
_OF_ACCOUNT: Final = (*_CORE, BUCKETS.name, SERVERS.name, TASKS.name)


class _Progress(TypedDict):
    """How far a Spark query has read a stream."""

    pending: int
    pending_bytes: int
    lag_seconds: float
    last: int


class Collector:
    """Reads the rows of the views, and keeps the values of their graphs."""

    def __init__(self, lists: Lister, options: TopOptions | None = None) -> None:
        self._lists = lists
        #: Whether the last refresh waited for servers that did not answer.
        self.has_waited: bool = False
        self._nc = lists.nc
        self._js = lists.js
        options = options or TopOptions()
        self._progress, self._mask = options.progress, options.mask
        self._history = History()
        self._frame = Frame()
        #: The views that are read when they are shown.
        self._sources: dict[str, Callable[[], list[Row]]] = {
            WORKERS.name: self._workers,
            DEAD_LETTERS.name: self._dead_letters,
            QUERIES.name: self._queries,
        }

    def collect(self, view: str) -> Frame:
        """Read the streams, the consumers and one further view; the others, and what fails, have their former rows."""
        found = self._frame
        failed = {name: error for name, error in found.errors.items() if name in self._sources}
        new: dict[str, Sequence[Row]] = {}
        sources = dict(self._sources)
        try:
            streams = self._lists.streams(limit=self._lists.half)
            consumers = self._lists.consumers_of(streams)
        except Error as error:
            self.has_waited = True
            failed |= dict.fromkeys(_OF_ACCOUNT, error)
            sources[SERVERS.name] = partial(self._answering_servers, error)
        else:
            self.has_waited = bool(streams.missing or consumers.missing)
            found = self._history.add(monotonic(), streams, consumers)
            sources[TASKS.name] = partial(self._tasks, streams)
            servers = self._servers(streams, consumers)
            new |= {**found.rows, BUCKETS.name: _buckets(streams), SERVERS.name: servers}
        if view in sources:
            try:
                new[view] = sources[view]()
                failed.pop(view, None)
            except Error as error:
                # The other views go on: the user may lack a permission, or a bucket was deleted.
                failed[view] = error
        read_at = {**self._frame.read_at, **dict.fromkeys(new, monotonic())}
        rows = {**self._frame.rows, **new}
        self._frame = replace(found, rows=rows, errors=failed, read_at=read_at)
        return self._frame

    def _workers(self) -> list[Row]:
        reports = request_reports(self._nc, stacks=True)
        reports.check()
        return [
            Row(
                key=f"{report['worker']} {report['host']}:{report['pid']}",
                fields=report,
                record=report,
            )
            for report in reports
        ]

    def _dead_letters(self) -> list[Row]:
        return [
            Row(
                key=f"{item.stream} > {item.consumer} {item.seq}",
                fields={
                    "stream": item.stream,
                    "consumer": item.consumer,
                    "stream_seq": item.seq,
                    "kind": item.kind,
                    "reason": item.reason,
                    "time": item.time.isoformat(),
                    "deliveries": item.deliveries,
                    "subject": item.subject or None,
                },
                record=item,
            )
            for item in DeadLetters(self._js).find()
        ]

    def _queries(self) -> list[Row]:
        if self._progress is None:
            return []
        bucket = self._js.key_value(self._progress)
        rows = []
        for entry in bucket.get_many(">").values():
            # Any client may have stored it.
            with contextlib.suppress(
                ValueError, KeyError, TypeError, AttributeError, OverflowError
            ):
                for stream, state in parse_json(entry.value)["streams"].items():
                    key = f"{entry.key} {stream}"
                    numbers = parsed(
                        _Progress, {name: state[name] for name in _Progress.__annotations__}
                    )
                    fields = {"query": entry.key, "stream": stream, **numbers}
                    history = self._history.points(QUERIES.name, key, float(numbers["pending"]))
                    rows.append(Row(key=key, fields=fields, history=history, record=entry))
        return rows

    def _tasks(self, streams: Listed[StreamInfo]) -> list[Row]:
        buckets = [
            info.config.name.removeprefix(KV_PREFIX)
            for info in streams.found
            if RESULTS_MARK in (info.config.metadata or {})
        ]
        return [
            Row(key=f"{call.document['task']} {call.id}", fields=call.document)
            for bucket in buckets
            for call in stored_calls(self._js, bucket, _READ_S, mask=self._mask, newest=_MAX_CALLS)
        ]

    def _answering_servers(self, error: Error) -> list[Row]:
        """Return the servers that answer a user of the system account, and those that they know; or raise the error."""
        try:
            found = all_replies(self._lists.settings, self._nc, f"{PING}.JSZ", {})
        except CommandError:
            found = []  # it is another user
        if not found:
            raise error
        group = MetaGroup.of(found)
        servers = {
            **dict.fromkeys(map(server_name, found), False),
            **dict.fromkeys(group.silent, True),
        }
        counts = dict.fromkeys(_SERVER_COUNTS)
        return [
            Row(key=name, fields={"server": name, **counts, "offline": offline})
            for name, offline in sorted(servers.items())
        ]

    def _servers(self, streams: Listed[StreamInfo], consumers: Listed[ConsumerInfo]) -> list[Row]:
        servers: dict[str, dict[str, Any]] = {}
        #: The last time that a leader has heard of a server, in seconds before now.
        ages: dict[str, float] = {}
        own = self._nc.server_info.server_name
        kinds: tuple[tuple[str, Sequence[ClusterInfo | None]], ...] = (
            ("stream", [stream.cluster for stream in streams.found]),
            ("consumer", [consumer.cluster for consumer in consumers.found]),
        )

        def at(name: str) -> dict[str, Any]:
            return servers.setdefault(name, {"server": name, **dict.fromkeys(_SERVER_COUNTS, 0)})

        at(own)
        ages[own] = 0.0
        for kind, clusters in kinds:
            for cluster in clusters:
                # A server without a cluster names none.
                leader = (cluster and cluster.leader) or own
                at(leader)[f"{kind}_leader"] += 1
                ages[leader] = 0.0
                for peer in (cluster and cluster.replicas) or ():
                    server = at(peer.name)
                    server[f"{kind}_replica"] += 1
                    server["not_current"] += not peer.current
                    # A leader that was just elected has not heard of a server that is down.
                    if peer.seen_ago is not None and not peer.offline:
                        age = peer.seen_ago.total_seconds()
                        ages[peer.name] = min(age, ages.get(peer.name, age))
        rows = []
        for name, fields in servers.items():
            offline = ages.get(name, _OFFLINE_S) >= _OFFLINE_S
            rows.append(Row(key=name, fields={**fields, "offline": offline}))
        return rows


#: Time after which a server that no leader has heard of is shown as offline, in seconds. Servers send
#: heartbeats each second.
_OFFLINE_S: Final = 5.0

_SERVER_COUNTS: Final = (
    *("stream_leader", "stream_replica", "consumer_leader", "consumer_replica"),
    "not_current",
)


def _missing_rows(missing: Sequence[Missing]) -> list[Row]:
    return [
        Row(key=item.name, fields={**item.document, "name": item.name}, record=item)
        for item in missing
    ]


def _buckets(streams: Listed[StreamInfo]) -> list[Row]:
    prefixes = tuple(_BUCKETS)
    rows = _missing_rows([item for item in streams.missing if item.name.startswith(prefixes)])
    for info in streams.found:
        config = info.config
        for prefix, kind in _BUCKETS.items():
            if config.name.startswith(prefix):
                name = config.name.removeprefix(prefix)
                fields = {
                    "name": name,
                    "kind": kind,
                    "messages": info.state.messages,
                    "bytes": info.state.bytes,
                    "history": config.max_msgs_per_subject if prefix == KV_PREFIX else None,
                    "ttl": config.max_age.total_seconds() if config.max_age else 0,
                    "replicas": config.num_replicas,
                }
                rows.append(Row(key=f"{name} {kind}", fields=fields, record=info))
    return rows


class History:
    """The values for the graphs, of the streams and consumers that still exist."""

    def __init__(self) -> None:
        #: The time of the last snapshot, and what it had.
        self._taken: float | None = None
        self._streams: dict[str, StreamInfo] = {}
        self._consumers: dict[str, ConsumerInfo] = {}
        self._points: dict[tuple[str, str], deque[float]] = {}

    def points(self, view: str, key: str, value: float | None) -> tuple[float, ...]:
        """Add a value of a row, unless it is ``None``; return all of them."""
        points = self._points.setdefault((view, key), deque(maxlen=_MAX_POINTS))
        if value is not None:
            points.append(value)
        return tuple(points)

    def add(
        self, taken: float, streams: Listed[StreamInfo], consumers: Listed[ConsumerInfo]
    ) -> Frame:
        """Add the state at a time, and return the frame of its differences from the one before."""
        seconds = 0.0 if self._taken is None else taken - self._taken
        stream_rows = [self._stream(info, seconds) for info in streams.found]
        consumer_rows = [self._consumer(info, seconds) for info in consumers.found]
        self._taken = taken
        self._streams = {info.config.name: info for info in streams.found}
        self._consumers = {title(info): info for info in consumers.found}
        in_rate = sum(row.fields["messages_per_second"] for row in stream_rows)
        out_rate = sum(row.fields["deliveries_per_second"] for row in consumer_rows)
        rows = {
            STREAMS.name: [*stream_rows, *_missing_rows(streams.missing)],
            CONSUMERS.name: [*consumer_rows, *_missing_rows(consumers.missing)],
        }
        there = {(name, row.key) for name, found in rows.items() for row in found}
        for gone in {point for point in self._points if point[0] in _CORE} - there:
            del self._points[gone]
        return Frame(rows=rows, seconds=seconds, in_rate=in_rate, out_rate=out_rate)

    def _stream(self, info: StreamInfo, seconds: float) -> Row:
        name, state = info.config.name, info.state
        rate = _rate("state.last_seq", info, self._streams.get(name), seconds)
        last = state.last_ts if state.last_ts is not None and state.last_ts.year > 1 else None
        fields = {
            "name": name,
            "messages": state.messages,
            "bytes": state.bytes,
            "consumers": state.consumer_count,
            "messages_per_second": rate,
            "last": last.isoformat() if last is not None else None,
        }
        history = self.points(STREAMS.name, name, rate if seconds else None)
        return Row(key=name, fields=fields, history=history, record=info)

    def _consumer(self, info: ConsumerInfo, seconds: float) -> Row:
        key = title(info)
        before = self._consumers.get(key)
        rate = _rate("delivered.consumer_seq", info, before, seconds)
        ack_rate = _rate("ack_floor.consumer_seq", info, before, seconds)
        fields = {
            "stream": info.stream_name,
            "name": info.name,
            "lag": info.num_pending,
            "ack_pending": info.num_ack_pending,
            "redelivered": info.num_redelivered,
            "waiting": info.num_waiting,
            "deliveries_per_second": rate,
            "acks_per_second": ack_rate,
            "paused": bool(info.paused),
        }
        history = self.points(CONSUMERS.name, key, float(info.num_pending))
        return Row(key=key, fields=fields, history=history, record=info)


def _rate(name: str, info: Any, before: Any, seconds: float) -> float:
    """Return by how much a number of a stream or consumer has grown in a second; `before`: its info then, if any."""
    # One that was deleted and created again has a new creation time and no rate yet.
    if before is None or before.created != info.created or seconds <= 0:
        return 0.0
    value = attrgetter(name)
    # The sequences go back when a consumer is reset; that is not a negative rate.
    return float(max(0, value(info) - value(before)) / seconds)


class Poller:
    """
    Reads frames on a thread, so that requests do not delay the handling of keys.

    The thread sets the frame, the number of refreshes and the failure. The application sets the interval, the view and
    whether it is paused.
    """

    def __init__(self, nc: Connection, collector: Collector, interval: float, view: str) -> None:
        self.frame: Frame = Frame()
        self.refreshes: int = 0
        self.interval = interval
        self.paused = False
        #: The error that has ended the thread: nothing is read any more.
        self.failure: BaseException | None = None
        self._view = view
        self._problem = ""
        self._nc = nc
        self._collector = collector
        self._since = 0.0
        self._wake = Signal()
        self._requests = 0
        self._ended = False

    def __enter__(self) -> Self:
        # Take the first frame here: without JetStream the command fails before it draws a screen.
        self._collect()
        if isinstance(self.frame.failure, JetStreamNotEnabledError):
            raise self.frame.failure
        spawn("top", self._run, self._failed)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread; closing the connection ends a request that is still in progress."""
        self._ended = True
        self._wake.set()

    def show(self, view: str) -> None:
        """Read this view from now on, for the first time at once."""
        self._view = view
        self.refresh()

    def refresh(self) -> None:
        """Read a frame now, also while paused."""
        self._requests += 1
        self._wake.set()

    def _collect(self) -> None:
        was_paused = self.paused
        frame = self._collector.collect(self._view)
        if self.paused and not was_paused:
            return  # what is shown stays from the pause on
        self.frame = frame
        self.refreshes += 1
        if frame.failure is None:
            self._problem = ""
        elif self._nc.is_closed:
            self.failure = frame.failure
        else:
            self._record(frame.failure)

    def _run(self) -> None:
        took, seen = 0.0, 0
        while not self._ended:
            self._wake.wait(max(self.interval, _PAUSE_FACTOR * took))
            # A request after this line wakes the thread again; one before it has been counted.
            self._wake.clear()
            requests = self._requests
            asked, seen = requests != seen, requests
            if self._ended or (self.paused and not asked):
                continue
            began = monotonic()
            self._collect()
            if self.failure is not None:
                return
            # Waiting for servers that do not answer is no load.
            took = 0.0 if self._collector.has_waited else monotonic() - began

    def _failed(self, error: BaseException) -> None:
        self.failure = error

    def _record(self, error: Error) -> None:
        if not self._problem:
            self._since = monotonic()
        self._problem = one_line(error)

    def problem(self) -> str:
        """Return the current problem and its duration; empty if there is none."""
        if self._nc.is_reconnecting and not self._problem:
            self._since = monotonic()
            self._problem = "connection lost"
        if not self._problem:
            return ""
        kind = "no connection" if self._nc.is_reconnecting else "no reply"
        seconds = monotonic() - self._since
        return f"{kind} for {seconds:.0f} s ({self._problem}); trying again"


_SPARK_LEVELS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the newest values as a line of bars, with the newest at the right end."""
    shown = values[-width:]
    most = max(shown, default=0.0)
    if len(shown) > 1 and min(shown) == most:
        most *= 2  # a constant value is no peak
    # A space is only for zero: a very small value has the lowest bar.
    drawn = "".join(
        _SPARK_LEVELS[min(7, int(value / most * 7.999))] if value > 0 else " " for value in shown
    )
    return drawn.rjust(width)
