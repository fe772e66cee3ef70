"""
Listings of streams and consumers, with those that cannot be reached.

An outage is when a listing is needed most: what answered is shown, what did not is a `Missing` row with the
reason, and the command fails at the end. In a cluster with a silent server, the meta leader sends a page of a listing
after 4 seconds; a listing with less time asks for each item by its name instead, in parallel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ... import errors
from ...durations import counted
from ...net.clock import Deadline
from ...subjects import KV_PREFIX, OBJECT_PREFIX
from .names import suggesting
from .output import Missing, emit_names
from .render import Field, ReportOptions, Table, write_reports
from .settings import Settings
from .status import FailedError, one_line
from .values import Decorator, option

if TYPE_CHECKING:
    from ... import Connection, ConsumerInfo, JetStream, Listing, StreamInfo

T = TypeVar("T")
S = TypeVar("S")

#: The maximum number of requests that wait for their replies.
_PARALLEL: Final = 64
#: The longest single wait for them, in seconds.
_SLICE_S: Final = 0.5
#: The shortest time for the reply to one of them, in seconds.
_MIN_WAIT_S: Final = 0.05
#: Why an item is missing that was perhaps not asked for.
_NOT_IN_TIME: Final = "no reply in time"
#: The number of names in an error.
_MAX_NAMED: Final = 5
#: The errors of a request for one of several streams; the others may answer.
UNANSWERED: Final = (
    errors.TimeoutError,
    errors.NoRespondersError,
    errors.APIError,
    errors.PermissionsError,
)
#: A consumer whose name is not known.
_UNKNOWN: Final = "?"
#: Name prefixes of the streams of key-value buckets, object stores and MQTT.
_INTERNAL_PREFIXES: Final = (KV_PREFIX, OBJECT_PREFIX, "$MQTT_")


def is_internal(name: str) -> bool:
    """Return whether a stream belongs to a key-value bucket, an object store or MQTT."""
    return name.startswith(_INTERNAL_PREFIXES)


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """The items of a listing, and those whose state is not known."""

    noun: str
    found: Sequence[T] = ()
    missing: Sequence[Missing] = ()
    more: errors.Error | None = None
    """Why items are left out that have no name."""
    selected: bool = False
    """Whether the items are those that match conditions."""

    @classmethod
    def of(
        cls,
        noun: str,
        listing: Listing[T],
        document: Callable[[str], dict[str, Any]],
        prefix: str = "",
    ) -> Listed[T]:
        """Return the items of a listing of the client; `document`: the JSON of a name."""
        missing = [
            Missing(
                f"{prefix}{name}",
                document(name),
                "offline" if name in listing.offline else "unreachable",
                reason,
            )
            for name, reason in listing.missing.items()
        ]
        more = None
        if not listing.is_complete and not missing:
            try:
                listing.check()
            except errors.Error as error:
                more = error
        return cls(noun, list(listing), missing, more)

    def select(self, matches: Sequence[T], missing: Sequence[Missing]) -> Listed[T]:
        """
        Return only the items that match a condition.

        `missing`: the items of which this is not known. What was missing before matches none.
        """
        return replace(self, found=matches, missing=[*self.missing, *missing], selected=True)

    def shown(self) -> Sequence[Missing]:
        """Return the missing items that are shown: all of them, unless conditions were given."""
        return () if self.selected else self.missing

    def rows(self, found: Sequence[T] | None = None) -> list[T | Missing]:
        """Return the items in their order or another one, followed by what is missing."""
        return [*(self.found if found is None else found), *self.shown()]

    def by_name(self, key: Callable[[T], str], *, reverse: bool = False) -> list[T | Missing]:
        """Return the items and what is missing, sorted by their names; `key`: the name of an item."""

        def name(row: T | Missing) -> str:
            return row.name if isinstance(row, Missing) else key(row)

        return sorted(self.rows(), key=name, reverse=reverse)

    def check(self) -> None:
        """
        Raise an error if the listing is not complete.

        Raises:
            CommandError: some items are missing; the error names the first ones.

        """
        if self.more is not None:
            raise FailedError(one_line(self.more))
        if not self.missing:
            return
        names = [item.name for item in self.missing[:_MAX_NAMED]]
        more = len(self.missing) - len(names)
        listed = ", ".join(names) + (f" and {more:,} more" if more else "")
        states = " or ".join(sorted({item.state for item in self.missing}))
        text = f"{counted(len(self.missing), self.noun)} {states}: {listed}"
        raise FailedError(f"the list is incomplete: {text}")


class Lister:
    """Lists what a connection can see."""

    def __init__(self, settings: Settings, nc: Connection) -> None:
        self.settings = settings
        self.nc = nc
        self.js: JetStream = settings.jetstream_on(nc)

    @property
    def half(self) -> float:
        """The time for one of two listings that follow each other, in seconds."""
        return self.settings.timeout / 2

    def collect(
        self,
        noun: str,
        listing: Callable[[JetStream], Listing[T]],
        names: Callable[[JetStream], Sequence[str]],
        info: Callable[[JetStream, str], T],
        document: Callable[[str], dict[str, Any]],
        *,
        prefix: str = "",
        limit: float | None = None,
    ) -> Listed[T]:
        """
        Return the items of a listing. If the listing does not arrive in time, ask for each item by its name.

        `document`: the JSON of a name. `limit`: the time for all of it, in seconds; by default the timeout.
        """
        deadline = Deadline(limit or self.settings.timeout)

        def within() -> JetStream:
            return self.settings.jetstream_on(self.nc, timeout=(deadline.left() or 0.0) / 2)

        try:
            return Listed.of(noun, listing(within()), document, prefix)
        except errors.RequestTimeoutError:
            # The meta leader has the names, and answers at once if there is one.
            known = names(within())
        # Each request of a thread may wait for a silent server.
        limit = max((deadline.left() or 0.0) / (len(known) // _PARALLEL + 2), _MIN_WAIT_S)
        js = self.settings.jetstream_on(self.nc, timeout=limit)

        def missing(name: str, reason: str = _NOT_IN_TIME) -> Missing:
            return Missing(f"{prefix}{name}", document(name), "unreachable", reason)

        def found(name: str) -> T | Missing | None:
            try:
                return info(js, name)
            except (errors.NotFoundError, errors.InvalidNameError):
                return None  # deleted meanwhile, or a name that this client rejects
            except errors.RequestTimeoutError:
                return missing(name, "its servers did not reply")
            except UNANSWERED as error:
                return missing(name, one_line(error))

        results = in_parallel(found, known, deadline.left(), missing)
        return Listed(
            noun,
            [item for item in results if item is not None and not isinstance(item, Missing)],
            [item for item in results if isinstance(item, Missing)],
        )

    def streams(
        self, subject: str | None = None, *, everything: bool = True, limit: float | None = None
    ) -> Listed[StreamInfo]:
        """Return the streams of the account, or those that store a subject; see `collect`."""
        listed = self.collect(
            "stream",
            lambda js: js.list_streams(subject, allow_incomplete=True),
            lambda js: js.stream_names(subject),
            lambda js, name: js.get_stream(name).cached_info,
            _stream_document,
            limit=limit,
        )
        if everything:
            return listed
        return replace(
            listed,
            found=[info for info in listed.found if not is_internal(info.config.name)],
            missing=[item for item in listed.missing if not is_internal(item.name)],
        )

    def consumers(self, stream: str | None) -> Listed[ConsumerInfo]:
        """
        Return the consumers of a stream; ``None`` means all streams.

        Raises:
            CommandError: there is no such stream.

        """
        if stream is None:
            return self.consumers_of(self.streams(limit=self.half))
        with suggesting(self.js, stream):
            return self._consumers(stream, "", self.settings.timeout)

    def consumers_of(self, streams: Listed[StreamInfo]) -> Listed[ConsumerInfo]:
        """Return the consumers of these streams, with one request for each stream that has any, in half of the timeout."""
        # Servers of missing streams would not answer; the meta leader has the names.
        jobs = [(self._named, item.name) for item in streams.missing]
        busy = (info.config.name for info in streams.found if info.state.consumer_count)
        jobs += [(self._reached, name) for name in busy]

        def late(job: tuple[object, str]) -> Listed[ConsumerInfo]:
            return _unknown(job[1], _NOT_IN_TIME)

        parts = in_parallel(lambda job: job[0](job[1]), jobs, self.half, late)
        return Listed(
            "consumer",
            [info for part in parts for info in part.found],
            [item for part in parts for item in part.missing],
            streams.more or next((part.more for part in parts if part.more), None),
        )

    def _consumers(self, stream: str, prefix: str, limit: float) -> Listed[ConsumerInfo]:
        return self.collect(
            "consumer",
            lambda js: js.list_consumers(stream, allow_incomplete=True),
            lambda js: js.consumer_names(stream),
            lambda js, name: js.consumer_info(stream, name),
            lambda name: _document(stream, name),
            prefix=prefix,
            limit=limit,
        )

    def _reached(self, stream: str) -> Listed[ConsumerInfo]:
        """Return the consumers of one of all streams; without a reply they are missing."""
        try:
            return self._consumers(stream, f"{stream} > ", self.half)
        except (errors.StreamNotFoundError, errors.InvalidNameError):
            return Listed("consumer")  # deleted meanwhile, or a name that this client rejects
        except UNANSWERED as error:
            return _unknown(stream, one_line(error))

    def _named(self, stream: str) -> Listed[ConsumerInfo]:
        """Return the consumers of a stream that cannot be reached."""
        try:
            names = self.js.consumer_names(stream)
        except (errors.StreamNotFoundError, errors.InvalidNameError):
            return Listed("consumer")
        except UNANSWERED:
            return _unknown(stream)
        rows = [missing_consumer(stream, name, _LOST) for name in names]
        return Listed("consumer", missing=rows)


@contextlib.contextmanager
def lister(settings: Settings, *, repeats: bool = False) -> Iterator[Lister]:
    """Open a connection for a ``with`` block, which reconnects if ``repeats``, and yield a `Lister` on it."""
    with settings.connection(reconnects="failover" if repeats else "") as nc:
        yield Lister(settings, nc)


#: Why the consumers of a stream that cannot be reached are not known.
_LOST: Final = "its stream does not answer"


def _stream_document(name: str) -> dict[str, Any]:
    return {"config": {"name": name}}


def _document(stream: str, name: str | None) -> dict[str, Any]:
    return {"stream_name": stream, "config": {"name": name}}


def missing_stream(name: str, reason: str) -> Missing:
    """Return the row of a stream that could not be read."""
    return Missing(name, _stream_document(name), "unreachable", reason)


def missing_consumer(stream: str, name: str | None, reason: str) -> Missing:
    """Return the row of a consumer that could not be read; ``None``: its name is not known either."""
    title = f"{stream} > {name or _UNKNOWN}"
    return Missing(title, _document(stream, name), "unreachable", reason)


def _unknown(stream: str, reason: str = _LOST) -> Listed[ConsumerInfo]:
    return Listed("consumer", missing=[missing_consumer(stream, None, reason)])


def in_parallel(
    call: Callable[[T], S],
    items: Sequence[T],
    timeout: float | None = None,
    late: Callable[[T], S] | None = None,
) -> list[S]:
    """
    Return the results of calls that run in parallel, a limited number at a time, in the order of the items.

    `late`: returns the result of a call that has not ended after the timeout.
    """
    if not items:
        return []
    from concurrent.futures import Future, ThreadPoolExecutor, wait  # noqa: PLC0415 - few commands need it

    deadline = Deadline(timeout)
    pool = ThreadPoolExecutor(min(_PARALLEL, len(items)), "jsm-request")
    try:
        calls = [pool.submit(call, item) for item in items]
        running: set[Future[S]] = set(calls)
        while running and not deadline.expired():
            # In slices, since a wait without limit may not be interrupted.
            left = deadline.left()
            running = wait(running, _SLICE_S if left is None else min(left, _SLICE_S)).not_done
        return [
            late(item) if late is not None and future in running else future.result()
            for item, future in zip(items, calls, strict=True)
        ]
    finally:
        # The end of the connection ends the requests.
        pool.shutdown(wait=False, cancel_futures=True)


# --- output -------------------------------------------------------------------------------------

#: Options of listings of streams and consumers.
long_option: Decorator = option("-l, --long", "Show more columns, such as the servers.")


def show_listed(
    settings: Settings,
    take: Callable[[], Listed[T]],
    table: Table,
    report: ReportOptions,
    *,
    key: Callable[[T], str],
    sortable: Sequence[Field],
    names: bool,
) -> None:
    """
    Write a listing as a table, once or repeatedly; see `write_reports` for one that is not complete.

    `key`: the name of an item. `sortable`: the columns by which it may be sorted. `names`: write the names only, once.
    """
    if names:
        emit_listed_names(settings, take(), key)
        return
    listed: Listed[T] = Listed("")

    def rows() -> list[Any]:
        nonlocal listed
        listed = take()
        if report.sort == "name":
            return listed.by_name(key, reverse=report.reverse)
        return listed.rows(report.in_order(listed.found, sortable))

    def check() -> None:
        listed.check()

    write_reports(settings, rows, table, watch=report.watch, check=check)


def emit_listed_names(settings: Settings, listed: Listed[T], key: Callable[[T], str]) -> None:
    """Write the names of a listing, one a line, also of what is missing; fail if it is not complete."""
    missing = (row.name for row in listed.shown() if _UNKNOWN not in row.name)
    names = [*map(key, listed.found), *missing]
    # The names of a stream and a consumer are two arguments of a command.
    emit_names(settings, sorted(name.replace(" > ", " ") for name in names))
    listed.check()
