"""Send requests to the JetStream API, and read the infos and names of streams through it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import MISSING
from dataclasses import fields as fields_of
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import errors
from ..api.echo import API_LEVELS
from ..api.stream import StreamInfo
from ..client.core import ConnectionCore
from ..client.mailbox import MessageReceiver
from ..client.threads import call_to_end
from ..client.writer import SOON
from ..codec import Record, decode, dumps, loads
from ..headers import REQUIRED_API_LEVEL
from ..net.clock import Deadline, monotonic
from ..options import check_callback, check_int, check_known, check_returned
from ..protocol.parser import PAYLOAD, RawMessage
from ..records import Frozen, frozen
from ..subjects import Routes, check_subject
from .listing import Listing, Pages, listed, name_of

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

log: logging.Logger = logging.getLogger("jetstream_sync.connection")

R = TypeVar("R", bound=Record)
T = TypeVar("T")

#: Delay before a request is repeated after a transient error, in seconds.
_UNAVAILABLE_DELAY_S: Final = 0.25
#: Seconds without a reply after which a request is repeated: its server or the leader may be gone.
_REPEAT_AFTER_S: Final = 1.0
#: Timeout of the question why there is no response to a message, in seconds.
_NAMES_TIMEOUT_S: Final = 0.25


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
        before = _scope.deadline
        _scope.deadline = within(api.deadline())
        try:
            return method(*args, **named)
        finally:
            # Not `limited`: a Ctrl-C in the end of its block would lose what the method returns.
            _scope.deadline = before

    return call


@frozen()
class APICall(Frozen):
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
    """The error that the caller gets for this request."""


#: Called in the thread of the request.
APICallback = Callable[[APICall], object]


class ConnectionCaches:
    """What the JetStream contexts of one connection share."""

    def __init__(self) -> None:
        #: API prefix -> number of reconnects of the connection, and API level; see `require_level`.
        self.levels: dict[str, tuple[int, int]] = {}
        #: Inboxes kept for the next fetch: subject of its pull requests -> inbox; see `PullRequester`.
        self.idle_inboxes: dict[bytes, MessageReceiver] = {}


#: The second tokens of the requests whose action has three tokens, as STREAM.MSG.GET.
_TWO_TOKENS: Final = frozenset({"MSG", "LEADER", "PEER"})


class APIRequests:
    """Requests to the JetStream API."""

    # `required_level`: the API level that every request demands of the server.
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
            level = check_int("required_api_level", required_level, 0)
            self._headers = {REQUIRED_API_LEVEL: str(level)}
        if callback is not None:
            check_callback("api_cb", callback)
        self._callback = callback
        #: Whether only the first reply to a request may arrive. A service import forwards one, unless
        #: it is configured for more.
        self.single_replies: bool = routes.imported
        self._fail_on_disconnect = fail_on_disconnect

    def at(self, routes: Routes) -> APIRequests:
        """Return the API of another account or domain, with the same options."""
        api = copy(self)
        api.routes = routes
        api.single_replies = routes.imported
        return api

    def failing_on_disconnect(self) -> APIRequests:
        """Return the same API with requests that fail when the connection is lost."""
        api = copy(self)
        api._fail_on_disconnect = True  # noqa: SLF001 - of this class
        return api

    def deadline(self, timeout: float | timedelta | None = None) -> Deadline:
        """Return the deadline of a call that starts now; ``None``: the default timeout."""
        return within(Deadline(self.timeout if timeout is None else timeout))

    def ask(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        deadline: Deadline | None = None,
        *,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send a request and return the decoded reply."""
        # A request that changes nothing is sent again, within the deadline, while there is no reply
        # or the error is transient.
        # `repeatable`: whether a second request of the same kind has the same effect as one.
        payload = b"" if body is None else dumps(body)
        deadline = deadline or self.deadline()
        reading = repeatable or self.routes.is_reading(route)
        read = partial(read_response, route)
        repeat_after = _REPEAT_AFTER_S if reading else 0.0
        while True:
            try:
                return self.call(route.encode(), payload, deadline, read, repeat_after)
            except errors.NoRespondersError as error:
                raise self._no_api() from error
            except errors.APIError as error:
                if (
                    error.err_code == errors.ErrorCode.REQUIRED_API_LEVEL
                    and self._headers is not None
                ):
                    raise self._level_error(int(self._headers[REQUIRED_API_LEVEL])) from error
                left = deadline.left()
                late = left is not None and left <= _UNAVAILABLE_DELAY_S
                if not reading or not error.transient or late:
                    raise
            self.core.wait_closed(_UNAVAILABLE_DELAY_S)

    def _no_api(self) -> errors.JetStreamNotEnabledError:
        """Return the error for an API without responders."""
        domain = self.routes.domain
        if domain is None:
            return errors.JetStreamNotEnabledError.found_here("JetStream is not enabled here")
        text = f"JetStream domain {domain!r} does not answer: the leaf node connection is down, or the name is wrong"
        failure = errors.DomainUnreachableError.found_here(text)
        failure.domain = domain
        return failure

    def _level_error(self, level: int) -> errors.ServerTooOldError:
        """Return the error for a server without the API level that a request demands."""
        first = API_LEVELS.get(level)
        needs = f"{first[0]}.{first[1]}" if first else f"with API level {level}"
        return errors.ServerTooOldError(f"API level {level}", needs, self.core.info.version)

    def call(
        self,
        subject: bytes,
        payload: bytes,
        deadline: Deadline,
        read: Callable[[RawMessage], T],
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
            size = len(delivery[PAYLOAD])
            result = read(delivery)
        except Exception as error:
            if isinstance(error, errors.Error):
                self._explain(error, subject)
            self._tell(subject, len(payload), size, began, error)
            raise
        if self._callback is not None:
            self._tell(subject, len(payload), size, began, None)
        return result

    def _explain(self, error: errors.Error, subject: bytes) -> None:
        """Name the stream or consumer, which the server does not; the subject of the request has it."""
        tokens = subject[len(self.routes.prefix) + 1 :].decode().split(".")
        names = tokens[3 if tokens[1:2] and tokens[1] in _TWO_TOKENS else 2 :]
        what = ""
        if tokens[0] == "CONSUMER" and len(names) > 1:
            what = f"consumer {names[1]!r} of stream {names[0]!r}"
        elif names:
            what = f"stream {names[0]!r}"
        if isinstance(error, errors.StreamNotFoundError) and names:
            error.explain(repr(names[0]), stream=names[0])
        elif isinstance(error, errors.ConsumerNotFoundError) and len(names) > 1:
            error.explain(what.removeprefix("consumer "), stream=names[0], consumer=names[1])
        elif isinstance(error, errors.NoLeaderError):
            what = f"the cluster or {what}" if tokens[0] == "CONSUMER" and what else "the cluster"
            error.explain(f"{what} has no leader, which needs a majority of its servers")
        elif isinstance(error, errors.RequestTimeoutError) and not (error.outage or error.hint):
            domain = self.routes.domain
            if what or domain:
                hint = f"{what} or the cluster may have no leader" if what else ""
                far = f"the domain {domain!r} may be unreachable" if domain else ""
                error.hint = f"; {' or '.join(filter(None, (hint, far)))}"
                error.args = (error.subject, error.outage, error.hint)

    def _tell(
        self, subject: bytes, sent: int, received: int, began: float, error: Exception | None
    ) -> None:
        """Call the user's function; what it raises is reported."""
        if self._callback is None:
            return
        took = monotonic() - began
        try:
            check_returned(self._callback(APICall(subject.decode(), sent, received, took, error)))
        except BaseException as fault:
            log.exception("api_cb raised")
            self.core.events.callback_raised("api_cb", fault)

    def knows_reasons(self) -> bool:
        """Return whether the API may know why no stream stores a message: in a cluster, and of a domain."""
        return bool(self.core.info.cluster or self.routes.domain)

    def send(self, route: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a request without waiting for the reply; raises as `Writer.append`."""
        core = self.core
        payload = b"" if body is None else dumps(body)
        command, size = core.encoder.encode_command(route.encode(), payload)
        core.writer.append(command, size, SOON, 1, True)

    def drop_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer without waiting for the reply."""

        # If that fails, the server deletes one without a durable name some time after its last reader left.
        def drop() -> None:
            with suppress(errors.Error):
                self.send(self.routes.to("CONSUMER.DELETE", stream, name))

        call_to_end(f"closer-{self.core.name}", drop)

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
        """Send a request and return the reply as a record; raises as `ask()`."""
        response = self.ask(route, body, deadline)
        response.pop("type", None)
        return decode(record, response)

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
    ) -> Pages:
        """Ask for a list page by page."""
        known = Pages()
        offset = 0
        total: Any = 0
        went_back = False
        while True:
            response = self.ask(route, {**(body or {}), "offset": offset}, deadline)
            before, last_total = known.count(), total
            total = response.get("total")
            if type(total) is not int:
                raise errors.InvalidResponseError(f"{route} answered with total={total!r:.60}")
            size = known.add(response, items, route)
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


def read_response(route: str, delivery: RawMessage) -> dict[str, Any]:
    """Return the decoded reply; raise the error that it has."""
    response = loads(delivery[PAYLOAD])
    if not isinstance(response, dict):
        raise errors.InvalidResponseError(
            f"{route} replied with something other than a JSON object"
        )
    refusal = response.get("error")
    if isinstance(refusal, dict):
        raise errors.APIError.from_response(refusal)
    if refusal is not None:
        raise errors.InvalidResponseError(f"{route} answered with error={refusal!r:.60}")
    return response


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


def names_by_subject(api: APIRequests, subject: str) -> list[str]:
    """Return the names of the streams with a subject, at least one, in the server's order."""
    route = api.routes.to("STREAM.NAMES")
    found = listed(api.ask(route, {"subject": subject}), "streams", route)
    if not found:
        raise errors.StreamNotFoundError.found_here(f"no stream has the subject {subject!r}")
    return [name_of(name, "streams", route) for name in found]


def no_responses(
    api: APIRequests | None, subjects: Iterable[str]
) -> dict[str, errors.NoStreamResponseError]:
    """Return the error for each subject of messages that no stream stored, with the reason if it is known."""
    # Without an API, whose connection was dropped, no reason is known.
    found: dict[str, errors.NoStreamResponseError] = {}
    reason = ""
    deadline = Deadline(_NAMES_TIMEOUT_S)  # for all of them, which others wait for
    for subject in dict.fromkeys(subjects):
        hints = (reason,) if reason else ()
        if not reason and api is not None and api.knows_reasons() and not deadline.expired():
            try:
                with limited(deadline):
                    name = names_by_subject(api, subject)[0]
                hints = (f"stream {name!r} has no leader",)
            except (errors.NoLeaderError, errors.DomainUnreachableError) as error:
                reason = error.description
            except errors.RequestTimeoutError:
                reason = "the cluster may have no leader"
            except errors.Error:
                pass  # no stream has the subject, or the reason is not known
            hints = (reason,) if reason else hints
        found[subject] = errors.NoStreamResponseError(subject, *hints)
    return found


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
        response = api.ask(api.routes.to("STREAM.INFO", name), page_body, deadline)
        total = response.get("total", 0)
        state = response.get("state")
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
    info = info_of(response)
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


def info_of(response: dict[str, Any]) -> StreamInfo:
    """Make the info of a reply that has one, beside what belongs to the reply itself."""
    for key in ("type", "total", "offset", "limit", "did_create"):
        response.pop(key, None)
    return decode(StreamInfo, response)
