"""Send requests to the JetStream API and check what the server supports."""

# There are two ways to find out that a server is too old. The reply to a config contains the config as
# the server understood it, see `api.echo`; servers from 2.12 on refuse unknown fields themselves. For messages and requests there is the API level (ADR-44). It is requested once
# per transport, because a reconnect may lead to another server.

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import MISSING, dataclass
from dataclasses import fields as fields_of
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, overload

from .. import errors
from ..api.echo import Release, fields_left_out, fields_refused, release, server_release
from ..api.routes import Routes
from ..api.stream import StreamInfo
from ..client.core import ConnectionCore
from ..client.mailbox import MessageReceiver
from ..codec import Record, decode, dumps, encode, loads
from ..headers import REQUIRED_API_LEVEL
from ..net.clock import Deadline, monotonic
from ..options import check_callback, check_int, check_known
from ..protocol.parser import Delivery
from ..subjects import check_subject

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

log: logging.Logger = logging.getLogger("jetstream_sync.connection")

R = TypeVar("R", bound=Record)
S = TypeVar("S")
T = TypeVar("T")

# The error of nats-server if JetStream is disabled; raised for "no responders".
_NOT_ENABLED: Final = errors.JetStreamNotEnabledError(503, 10076, "JetStream is not enabled here")
#: The error of nats-server while there is no leader, and the delay before a request is repeated.
_UNAVAILABLE: Final = 10008
_UNAVAILABLE_DELAY_S: Final = 0.25
#: The error of nats-server if it has not the API level that a request demands.
_LEVEL_TOO_LOW: Final = 10185
#: Seconds without a reply after which a request is repeated: its server or the leader may be gone.
_REPEAT_AFTER_S: Final = 1.0


class _Scope(threading.local):
    """The deadline of the public call that the thread is in; ``None``: each request has its own."""

    deadline: Deadline | None = None


_scope: Final = _Scope()


@contextmanager
def limited(deadline: Deadline) -> Iterator[None]:
    """Limit all requests of this thread in a ``with`` block to one deadline; not for generators."""
    before = _scope.deadline
    _scope.deadline = within(deadline)
    try:
        yield
    finally:
        _scope.deadline = before


def within(deadline: Deadline) -> Deadline:
    """Return the earlier one of a deadline and that of the public call that the thread is in."""
    outer = _scope.deadline
    if outer is None or outer.at is None:
        return deadline
    return outer if deadline.at is None or outer.at < deadline.at else deadline


def with_one_deadline(method: Callable[P, T]) -> Callable[P, T]:
    """Let all requests of a method share the timeout of its JetStream context."""

    @wraps(method)
    def call(*args: P.args, **named: P.kwargs) -> T:
        api: APIRequests = args[0]._api  # type: ignore[attr-defined]  # noqa: SLF001 - of any owner
        with limited(api.deadline()):
            return method(*args, **named)

    return call


@dataclass(frozen=True, slots=True)
class APICall:
    """A request to the JetStream API and its end; the argument of ``api_cb`` of `Connection.jetstream`."""

    subject: str
    """The subject of the request."""
    request_size: int
    """The size of its payload in bytes."""
    response_size: int
    """The size of the payload of the reply in bytes; 0 without a reply."""
    duration: float
    """The time until the reply or the error, in seconds."""
    error: Exception | None
    """The error that the caller gets for this request; ``None``: there is none."""


#: Called in the thread of the request.
APICallback = Callable[[APICall], object]


class Listing(Sequence[T]):
    """
    The streams, consumers or buckets of a listing, sorted by name.

    A listing is incomplete if the server names items whose state is not known: their servers do not
    reply, or cannot run them. Iterating over an incomplete listing raises `IncompleteListingError` after
    the last known item. ``len()``, slices and comparisons raise it too, and so does ``in`` for an item
    that is not found. With ``allow_incomplete=True`` the call that returned the listing was told that the
    known items are enough, and nothing raises.
    """

    __slots__ = ("_allow_incomplete", "_items", "_kind", "_unnamed", "missing", "offline")

    def __init__(
        self,
        items: list[T],
        kind: str,
        missing: Mapping[str, str],
        offline: Mapping[str, str],
        unnamed: int,
        allow_incomplete: bool,
    ) -> None:
        self._items = items
        self._kind = kind
        self._unnamed = unnamed
        self._allow_incomplete = allow_incomplete
        self.missing: Mapping[str, str] = dict(sorted(missing.items()))
        """The names of the items whose state is not known, each with the reason."""
        self.offline: Mapping[str, str] = dict(sorted(offline.items()))
        """Those of `missing` that a server has but cannot run, each with the server's reason."""

    @property
    def is_complete(self) -> bool:
        """Whether the listing has every item that the server counted."""
        return not (self.missing or self._unnamed)

    def check(self) -> None:
        """
        Raise if an item is missing, also with ``allow_incomplete=True``.

        Raises:
            IncompleteListingError: the state of some items is not known; the error names them.

        """
        if not self.is_complete:
            raise errors.IncompleteListingError(self._kind, self.missing, self._unnamed)

    def _parts(self) -> tuple[list[T], int, bool]:
        return self._items, self._unnamed, self._allow_incomplete

    def _require_all(self) -> None:
        if not self._allow_incomplete:
            self.check()

    def __iter__(self) -> Iterator[T]:
        yield from self._items
        self._require_all()

    def __len__(self) -> int:
        self._require_all()
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items) or len(self) > 0

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice) or not -len(self._items) <= index < len(self._items):
            self._require_all()
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, Listing)):
            return NotImplemented
        return list(self) == list(other)

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __repr__(self) -> str:
        missing = f", missing={self.missing!r}" if self.missing else ""
        return f"Listing({self._items!r}{missing})"


def selected(
    listing: Listing[T], kind: str, prefix: str, select: Callable[[T], S | None]
) -> Listing[S]:
    """Return what a function returns for each item, and the missing names with a prefix."""
    items, unnamed, allow_incomplete = listing._parts()  # noqa: SLF001 - of this module
    chosen = [made for made in map(select, items) if made is not None]
    missing, offline = (
        {
            name.removeprefix(prefix): reason
            for name, reason in names.items()
            if name.startswith(prefix)
        }
        for names in (listing.missing, listing.offline)
    )
    return Listing(chosen, kind, missing, offline, unnamed, allow_incomplete)


class ConnectionCaches:
    """What the JetStream contexts of one connection share."""

    def __init__(self) -> None:
        #: API prefix -> number of reconnects of the connection, and API level; see `require_level`.
        self.levels: dict[str, tuple[int, int]] = {}
        #: Inboxes kept for the next fetch: subject of its pull requests -> inbox; see `PullRequester`.
        self.idle_inboxes: dict[bytes, MessageReceiver] = {}


class APIRequests:
    """Requests to the JetStream API."""

    # `required_level`: the API level that every request demands of the server; ``None``: none.
    # `callback`: called after each request.
    #
    # Any thread may call its methods.

    def __init__(
        self,
        core: ConnectionCore,
        routes: Routes,
        timeout: float | timedelta | None,
        *,
        required_level: int | None = None,
        callback: APICallback | None = None,
        fail_on_disconnect: bool = False,
        caches: ConnectionCaches | None = None,
    ) -> None:
        self.core = core
        self.caches: ConnectionCaches = caches or ConnectionCaches()
        self.routes = routes
        self.timeout = timeout
        self._headers: dict[str, str] | None = None
        if required_level is not None:
            check_int("required_api_level", required_level, 0)
            self._headers = {REQUIRED_API_LEVEL: str(required_level)}
        if callback is not None:
            check_callback("api_cb", callback)
        self._callback = callback
        #: Whether only the first reply to a request may arrive. A service import forwards one, unless
        #: it is configured for more.
        self.single_replies: bool = routes.imported
        self._fail_on_disconnect = fail_on_disconnect

    def failing_on_disconnect(self) -> APIRequests:
        """Return the same API with requests that fail when the connection is lost."""
        api = copy(self)
        api._fail_on_disconnect = True  # noqa: SLF001 - of this class
        return api

    def at(self, routes: Routes) -> APIRequests:
        """Return the API of another account or domain, with the same options."""
        api = copy(self)
        api.routes = routes
        api.single_replies = routes.imported
        return api

    def deadline(self, timeout: float | timedelta | None = None) -> Deadline:
        """Return the deadline of a call that starts now; ``None``: the default timeout."""
        return within(Deadline(self.timeout if timeout is None else timeout))

    def ask(
        self, route: str, body: Mapping[str, Any] | None = None, deadline: Deadline | None = None
    ) -> dict[str, Any]:
        """Send a request and return the decoded answer."""
        # A request that changes nothing is sent again, within the deadline, while there is no reply
        # or no leader that could answer it.
        payload = b"" if body is None else dumps(body)
        deadline = deadline or self.deadline()
        reading = self.routes.is_reading(route)
        read = partial(read_answer, route)
        repeat_after = _REPEAT_AFTER_S if reading else 0.0
        while True:
            try:
                return self.call(route.encode(), payload, deadline, read, repeat_after)
            except errors.NoRespondersError as error:
                raise errors.JetStreamNotEnabledError(*_NOT_ENABLED.args) from error
            except errors.APIError as error:
                if error.err_code == _LEVEL_TOO_LOW and self._headers is not None:
                    raise self._level_error(int(self._headers[REQUIRED_API_LEVEL])) from error
                left = deadline.left()
                late = left is not None and left <= _UNAVAILABLE_DELAY_S
                if not reading or error.err_code != _UNAVAILABLE or late:
                    raise
            self.core.wait_closed(_UNAVAILABLE_DELAY_S)

    def _level_error(self, level: int) -> errors.ServerTooOldError:
        """Return the error for a server without the API level that a request demands."""
        first = _LEVELS.get(level)
        needs = f"{first[0]}.{first[1]}" if first else f"with API level {level}"
        return errors.ServerTooOldError(f"API level {level}", needs, self.core.info.version)

    def call(
        self,
        subject: bytes,
        payload: bytes,
        deadline: Deadline,
        read: Callable[[Delivery], T],
        repeat_after: float = 0.0,
    ) -> T:
        """Send a request, and return what ``read`` makes of the reply."""
        # As bytes the subject is not checked: the filter in a consumer's route may have wildcards.
        began = monotonic()
        size = 0
        try:
            delivery = self.core.requests.request(
                subject,
                payload,
                deadline,
                self._headers,
                fail_on_disconnect=self._fail_on_disconnect,
                repeat_after=repeat_after,
            )
            size = len(delivery[3])
            result = read(delivery)
        except Exception as error:
            self._tell(subject, len(payload), size, began, error)
            raise
        if self._callback is not None:
            self._tell(subject, len(payload), size, began, None)
        return result

    def _tell(
        self, subject: bytes, sent: int, received: int, began: float, error: Exception | None
    ) -> None:
        """Call the user's function; what it raises is reported."""
        if self._callback is None:
            return
        took = monotonic() - began
        try:
            self._callback(APICall(subject.decode(), sent, received, took, error))
        except BaseException as fault:
            log.exception("api_cb raised")
            self.core.events.callback_raised("api_cb", fault)

    def command(
        self, route: str, body: Mapping[str, Any] | None = None, deadline: Deadline | None = None
    ) -> None:
        """Send a request that is answered with ``success``; raises as `ask()`."""
        success = self.ask(route, body, deadline).get("success")
        if success is not True:
            raise errors.InvalidResponseError(f"{route} answered with success={success!r:.60}")

    def ask_for(
        self,
        record: type[R],
        route: str,
        body: Mapping[str, Any] | None = None,
        deadline: Deadline | None = None,
    ) -> R:
        """Send a request and return the answer as a record; raises as `ask()`."""
        answer = self.ask(route, body, deadline)
        answer.pop("type", None)
        return decode(record, answer)

    def names(
        self,
        route: str,
        items: str,
        body: Mapping[str, Any] | None = None,
        deadline: Deadline | None = None,
    ) -> list[str]:
        """Ask for a list of names page by page, and return all of them, sorted."""
        found = self.pages(route, items, body, deadline or self.deadline())
        if found.short or found.missing:
            raise errors.IncompleteListingError(items, found.missing, found.short)
        return sorted(found.items)

    def infos(
        self,
        record: type[R],
        action: str,
        items: str,
        names: Sequence[str] = (),
        body: Mapping[str, Any] | None = None,
        *,
        deadline: Deadline | None = None,
        allow_incomplete: bool = False,
    ) -> Listing[R]:
        """Ask for the infos of all streams or consumers page by page."""
        # `action`: ``STREAM`` or ``CONSUMER``; `names`: the end of the request's subject.
        deadline = deadline or self.deadline()
        found = self.pages(self.routes.to(f"{action}.LIST", *names), items, body, deadline)
        missing, unnamed = found.missing, found.short
        if unnamed:
            # The server counts items that it neither lists nor names: the names are compared.
            with suppress(errors.Error):
                known = self.names(self.routes.to(f"{action}.NAMES", *names), items, body, deadline)
                left_out = [name for name in known if name not in found.items]
                missing = {**dict.fromkeys(left_out, "the server left it out"), **missing}
                unnamed = 0
        infos = [decode(record, item) for _, item in sorted(found.items.items())]
        return Listing(infos, items, missing, found.offline, unnamed, allow_incomplete)

    def pages(
        self, route: str, items: str, body: Mapping[str, Any] | None, deadline: Deadline
    ) -> _Pages:
        """Ask for a list page by page."""
        known = _Pages()
        offset = 0
        total: Any = 0
        went_back = False
        while True:
            answer = self.ask(route, {**(body or {}), "offset": offset}, deadline)
            before, last_total = known.count(), total
            total = answer.get("total")
            if type(total) is not int:
                raise errors.InvalidResponseError(f"{route} answered with total={total!r:.60}")
            size = known.add(answer, items, route)
            # After a deletion the later items have moved towards the beginning, past the offset.
            if total < last_total and not went_back:
                went_back, offset = True, max(0, offset - (last_total - total))
                continue
            went_back = False
            offset += size
            # The total may change or be wrong: a page without new items ends the list.
            if known.count() == before or offset >= total:
                known.short = max(0, total - known.count())
                return known


class _Pages:
    """The items of a list, in the order of the server, and what the server says of the others."""

    def __init__(self) -> None:
        #: The items by name.
        self.items: dict[str, Any] = {}
        #: Names of items without a known state -> why it is not known.
        self.missing: dict[str, str] = {}
        #: The missing ones that a server cannot run -> its reason.
        self.offline: dict[str, str] = {}
        #: Number of items that the server counted and did not name.
        self.short = 0

    def count(self) -> int:
        return len(self.items) + len(self.missing)

    def add(self, answer: Mapping[str, Any], items: str, route: str) -> int:
        """Add the items of a page, and return the number of different items in it."""
        # "missing" lists the names whose info was unavailable. An item whose servers are all offline
        # is both in it and in the list, with a state of zeros.
        page = {_name_of(item, items, route): item for item in listed(answer, items, route)}
        names = listed(answer, "missing", route) if "missing" in answer else []
        offline = answer.get("offline") or {}
        if not isinstance(offline, dict):
            raise errors.InvalidResponseError(f"{route} answered with offline={offline!r:.60}")
        reasons = {name: str(reason) for name, reason in offline.items()}
        for name in (_name_of(name, "missing", route) for name in names):
            reasons.setdefault(
                name, "its servers are offline" if name in page else "its servers did not reply"
            )
        for name, item in page.items():
            if name not in reasons:
                self.items.setdefault(name, item)
                self.missing.pop(name, None)
        for name, reason in reasons.items():
            if name not in self.items:
                self.missing[name] = reason
                if name in offline:
                    self.offline[name] = reason
        return len(page.keys() | reasons.keys())


def read_answer(route: str, delivery: Delivery) -> dict[str, Any]:
    """Return the decoded answer; raise the error that it has."""
    answer = loads(delivery[3])
    if not isinstance(answer, dict):
        raise errors.InvalidResponseError(
            f"{route} replied with something other than a JSON object"
        )
    refusal = answer.get("error")
    if isinstance(refusal, dict):
        raise errors.APIError.from_response(refusal)
    if refusal is not None:
        raise errors.InvalidResponseError(f"{route} answered with error={refusal!r:.60}")
    return answer


def listed(answer: Mapping[str, Any], items: str, route: str) -> list[Any]:
    """Return the list that an answer has under a key; ``null`` is an empty one."""
    found = answer.get(items, answer)
    if found is None:
        return []
    if not isinstance(found, list):
        shown = f"{found!r:.60}" if items in answer else "nothing"
        raise errors.InvalidResponseError(f"{route}: expected a list of {items}, got {shown}")
    return found


def names_by_subject(api: APIRequests, subject: str) -> list[str]:
    """Return the names of the streams with a subject, at least one, in the server's order."""
    route = api.routes.to("STREAM.NAMES")
    found = listed(api.ask(route, {"subject": subject}), "streams", route)
    if not found:
        raise errors.StreamNotFoundError(404, 10059, f"no stream has the subject {subject!r}")
    return [_name_of(name, "streams", route) for name in found]


def _name_of(item: Any, items: str, route: str) -> str:
    """Return the name of a list item: the item itself, its ``name``, or its config's ``name``."""
    # An unreachable consumer has an empty name, and the name in its config.
    name = item
    if isinstance(item, dict):
        config = item.get("config")
        name = item.get("name") or (config.get("name") if isinstance(config, dict) else None)
    if not isinstance(name, str) or not name:
        raise errors.InvalidResponseError(f"{route}: one of the {items} has no name: {item!r:.60}")
    return name


def stream_info(
    api: APIRequests,
    name: str,
    subjects_filter: str | None = None,
    deleted_details: bool = False,
    deadline: Deadline | None = None,
) -> StreamInfo:
    """Ask for a stream's config and state; see `Stream.info()`."""
    deadline = deadline or api.deadline()
    # The server sends at most 100,000 subjects at a time; they are put together here.
    body: dict[str, Any] = {}
    if deleted_details:
        body["deleted_details"] = True
    if subjects_filter is not None:
        body["subjects_filter"] = check_subject(subjects_filter)
    subjects: dict[str, int] = {}
    offset = 0
    while True:
        page_body = {**body, "offset": offset} if body else None
        answer = api.ask(api.routes.to("STREAM.INFO", name), page_body, deadline)
        total = answer.get("total", 0)
        state = answer.get("state")
        page = state.get("subjects") if isinstance(state, dict) else None
        if not isinstance(state, dict) or not page:
            break
        if not isinstance(page, dict) or type(total) is not int:
            raise errors.InvalidResponseError(
                f"an info with subjects={page!r:.60}, total={total!r:.60}"
            )
        known = len(subjects)
        subjects.update(page)
        offset += len(page)
        # A wrong total must not cause an endless loop: a page without new items is the end.
        if offset >= total or len(subjects) == known:
            break
    if subjects_filter is not None and isinstance(state, dict):
        state["subjects"] = subjects
    info = info_of(answer)
    if info.config.name != name:
        raise errors.InvalidResponseError(
            f"asked for stream {name!r}, got {info.config.name!r:.60}"
        )
    return info


def stream_infos(
    api: APIRequests, body: Mapping[str, Any] | None = None, *, allow_incomplete: bool = False
) -> Listing[StreamInfo]:
    """Return the infos of all streams, or of those that the body selects."""
    return api.infos(StreamInfo, "STREAM", "streams", (), body, allow_incomplete=allow_incomplete)


def info_of(answer: dict[str, Any]) -> StreamInfo:
    """Make the info of an answer that has one, beside what belongs to the answer itself."""
    for key in ("type", "total", "offset", "limit", "did_create"):
        answer.pop(key, None)
    return decode(StreamInfo, answer)


def resolve_config(record: type[R], config: R | None, fields: Mapping[str, Any]) -> R:
    """Return the config that was given."""
    if config is not None:
        if not isinstance(config, record):
            raise errors.InvalidOptionError("config", config, f"expected a {record.__name__}")
        if fields:
            name, value = next(iter(fields.items()))
            raise errors.InvalidOptionError(
                name, value, "excludes config: change the record instead"
            )
        return config
    known = {item.name: item for item in fields_of(record)}
    check_known(fields, known, f"{record.__name__} has no such field")
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in fields:
            raise errors.InvalidOptionError(name, None, "it must be given")
    return record(**fields)


#: Added to the time that a request took, when that is compared with the server's times.
_CLOCK_STEP: Final = timedelta(milliseconds=1)
#: The release that brought each level of the API, where something here needs it.
_LEVELS: Final = {1: (2, 11), 2: (2, 12), 4: (2, 14)}
_OLDER: Final = "older than 2.11"
_NOT_OURS: Final = "{} stays as it is: by the server's times it was not created by this call"


#: The error code of a request with a field that the server does not know.
_INVALID_JSON: Final = 10025


class EchoCheck:
    """Compares the config of a create or update with the answer; made right before the request."""

    def __init__(self, api: APIRequests, what: str, asked: Record) -> None:
        self._api = api
        self._what = what
        self._asked = asked
        self._started = monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Raise `ServerTooOldError` if the server refuses the request because it does not know a field."""
        try:
            yield
        except errors.BadRequestError as error:
            refused = fields_refused(self._asked, error.description)
            if error.err_code != _INVALID_JSON or not refused:
                raise
            version = self._api.core.info.version
            raise self._error(refused, version, "nothing was changed") from error

    def verify(
        self, given: Record, delete: Callable[[], None] | None = None, *, updated: bool = False
    ) -> None:
        """Raise `ServerTooOldError` if the server omitted fields in its reply."""
        # `delete`: removes what the request made; ``None``: it updated something, or made nothing.
        fields = fields_left_out(self._asked, given)
        if not fields:
            return
        if delete is not None:
            outcome = self._removed(delete)
        else:
            outcome = self._updated(fields) if updated else _NOT_OURS.format(self._what)
        sender = server_release(getattr(given, "metadata", None))
        version = self._api.core.info.version
        if sender is not None:
            version = ".".join(map(str, sender))
        elif (release(version) or (2, 11)) >= (2, 11):
            version = _OLDER  # another one than the one that we are connected to
        raise self._error(fields, version, outcome)

    def is_new(self, created: datetime, now: datetime | None) -> bool:
        """Return whether something was made by this request, by the times in the answer."""
        # A create that matches an existing one gets the same reply, also with did_create. If the
        # server clocks differ, assume that it was not.
        took = timedelta(seconds=monotonic() - self._started) + _CLOCK_STEP
        return now is not None and -took <= now - created <= took

    @staticmethod
    def _error(
        fields: dict[str, Release | None], version: str, outcome: str
    ) -> errors.ServerTooOldError:
        needs = max((needed for needed in fields.values() if needed), default=None)
        return errors.ServerTooOldError(
            ", ".join(fields),
            "of a newer release" if needs is None else f"{needs[0]}.{needs[1]}",
            version,
            fields=tuple(fields),
            outcome=outcome,
        )

    def _removed(self, delete: Callable[[], None]) -> str:
        """Delete what the request made, and return a sentence about that."""
        try:
            delete()
        except errors.Error as error:
            return f"{self._what} was created without that and could not be removed: {error}"
        return f"{self._what}, created without that, was removed"

    def _updated(self, fields: dict[str, Release | None]) -> str:
        """Return a sentence about what an update did."""
        dropped = {path.partition(".")[0].partition("[")[0] for path in fields}
        taken = sorted(encode(self._asked).keys() - dropped - {"name", "durable_name"})
        return f"{self._what} was updated with the rest: {', '.join(taken) or 'nothing'}"


def require_level(
    api: APIRequests, level: int, feature: str, deadline: Deadline | None = None
) -> None:
    """Raise unless the server's API has at least a level."""
    # The level is requested once for each API prefix, and again after a reconnect. If the user has
    # no permission for the request, the release of the connected server decides.
    core, levels = api.core, api.caches.levels
    reconnects = core.reconnects
    known = levels.get(api.routes.prefix)
    if known is None or known[0] != reconnects:
        known = levels[api.routes.prefix] = reconnects, _level(api, deadline)
    if known[1] < level:
        needs = _LEVELS[level]
        version = core.info.version
        if (release(version) or needs) >= needs:
            version = f"another one, at API level {known[1]}"
        raise errors.ServerTooOldError(feature, f"{needs[0]}.{needs[1]}", version)


def _level(api: APIRequests, deadline: Deadline | None) -> int:
    try:
        shown = api.ask(api.routes.to("INFO"), None, deadline).get("api")
    except (errors.APIError, errors.PermissionsError):
        found = release(api.core.info.version)
        return max(
            (level for level, first in _LEVELS.items() if (found or first) >= first), default=0
        )
    level = shown.get("level") if isinstance(shown, dict) else None
    return level if type(level) is int else 0
