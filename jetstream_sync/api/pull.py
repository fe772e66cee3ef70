"""Pull requests and the accounting of their pending messages (ADR-37), without I/O, threads or clocks."""


# The statuses are those of ADR-37 ("Status handling"), the texts those of nats-server
# (server/consumer.go). The server uses one code for several conditions, so the texts are matched as
# lower-case substrings. Only this module matches them.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypedDict

from .. import errors
from ..codec import dumps
from ..durations import NS_PER_S, duration, duration_to_ns
from ..headers import (
    PENDING_BYTES,
    PENDING_MESSAGES,
    Headers,
    StatusCode,
    parse_headers,
    parse_status,
)
from ..options import check_int, check_known
from ..records import Frozen, frozen
from ..subjects import ACK_PREFIX
from .consumer import ConsumerConfig

#: Batch of a request that is limited in bytes, so large that the batch never ends it (ADR-37).
UNLIMITED_BATCH: Final = 1_000_000
#: Default number of messages that a continuous pull buffers.
DEFAULT_MESSAGES: Final = 500
#: Default expiry of the requests of a continuous pull.
DEFAULT_EXPIRES_NS: Final = 30 * NS_PER_S
#: Minimum expiry of the requests of a continuous pull (ADR-37).
MIN_EXPIRES_NS: Final = NS_PER_S
#: Expiry from which requests have heartbeats by default.
HEARTBEAT_FROM_NS: Final = 10 * NS_PER_S
_DEFAULT_HEARTBEAT_NS: Final = 5 * NS_PER_S
_MAX_HEARTBEAT_NS: Final = 30 * NS_PER_S
_MIN_HEARTBEAT_NS: Final = NS_PER_S // 2
#: Open requests if each has one reply; the second number with a limit in bytes. A pull consumer has
#: 512 at most by default.
SINGLE_REPLIES: Final = 100
SINGLE_REPLIES_LARGE: Final = 16
#: Expiry of one request of a fetch without a timeout.
MAX_EXPIRES_NS: Final = 60 * NS_PER_S


class PullOptions(TypedDict, total=False):
    """Options of each pull, also of an ordered consumer; all are optional."""

    # An option that is only sent is declared in one of these classes, and needs nothing else if it is a
    # text; a number has its range in `_RANGES`.

    max_bytes: int | None
    """Maximum number of bytes of a request, including subjects and headers; a larger message is not
    delivered. Default: no limit. `PullConsumer.messages` and `PullConsumer.consume` without
    ``max_messages`` buffer no more than these bytes."""
    heartbeat: float | timedelta | None
    """Interval of the server's heartbeats, in seconds, at most half of the time of the request. Default: 5
    if ``timeout`` is 10 or more, otherwise none; in `PullConsumer.messages` and `PullConsumer.consume` half
    of ``expires``, from 0.5 to 30."""


class PriorityOptions(TypedDict, total=False):
    """Options for a consumer with priority groups (ADR-42, server 2.11)."""

    group: str
    """The group to pull for; required if the consumer has groups."""
    min_pending: int
    """Receive messages only while this many are pending; policy ``overflow``."""
    min_ack_pending: int
    """Receive messages only while this many await their acknowledgement; policy ``overflow``."""
    priority: int
    """Receive messages after clients with a lower number, 0 to 9; policy ``prioritized`` (server 2.12)."""


class FetchOptions(PullOptions, PriorityOptions, total=False):
    """Options of `PullConsumer.fetch`, `PullConsumer.fetch_no_wait` and `PullConsumer.next`; all are optional."""


class ContinuousOptions(FetchOptions, total=False):
    """Options of `PullConsumer.messages` and `PullConsumer.consume`; all are optional."""

    max_messages: int
    """Maximum number of buffered messages; default 500, or the consumer's ``max_batch`` if that is less.
    With ``max_bytes`` the default is no limit."""
    threshold_messages: int
    """Request more below this number of buffered messages; default half of ``max_messages``."""
    threshold_bytes: int
    """Request more below this number of buffered bytes; default half of ``max_bytes``."""
    expires: float | timedelta
    """How long each request lasts, in seconds, at least 1; default 30, or the consumer's
    ``max_expires`` if that is less."""
    stop_after: int
    """Number of messages after which the iteration ends."""
    auto_in_progress: bool
    """Renew the ``ack_wait`` of messages that are buffered or being handled. A message counts as being
    handled until it is acknowledged, its thread requests the next one, or its thread ends, for an hour at
    most. Default false; not for ordered consumers."""


#: The options that are sent as they are.
_SENT_OPTIONS: Final = FetchOptions.__optional_keys__ - {"max_bytes", "heartbeat"}
_GROUPED: Final = PriorityOptions.__optional_keys__ - {"group"}
#: The largest number that the server can read.
_MAX_NUMBER: Final = 2**63 - 1
#: The least and the largest value of an option that is sent.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "min_pending": (0, _MAX_NUMBER),
    "min_ack_pending": (0, _MAX_NUMBER),
    "priority": (0, 9),
}
#: The options of a continuous pull that limit a number, which is at least 1.
_LIMITS: Final = ("max_messages", "max_bytes", "stop_after")


@frozen(kw_only=True)
class PullRequest(Frozen):
    """A pull request; times are in nanoseconds, and 0 means *not set*."""

    batch: int = 1
    """Maximum number of messages."""
    expires_ns: int = 0
    """Time that the server waits for messages."""
    max_bytes: int = 0
    """Maximum number of bytes, counted as in ADR-37."""
    no_wait: bool = False
    """Return the available messages without waiting."""
    heartbeat_ns: int = 0
    """Interval of idle heartbeats."""
    pin_id: str | None = None
    """Pin id that the server assigned to this client; policy ``pinned_client``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options by their names in the JSON of the server; see `FetchOptions`."""

    def __post_init__(self) -> None:
        if self.expires_ns < 0 or not (self.no_wait or self.expires_ns):
            raise errors.InvalidOptionError(
                "timeout", self.expires_ns / NS_PER_S, "must be above 0"
            )
        if self.heartbeat_ns < 0:
            raise errors.InvalidOptionError(
                "heartbeat", self.heartbeat_ns / NS_PER_S, "must be above 0"
            )
        if self.heartbeat_ns * 2 > self.expires_ns and self.heartbeat_ns:
            raise errors.InvalidOptionError(
                "heartbeat",
                self.heartbeat_ns / NS_PER_S,
                f"must be at most half of the {self.expires_ns / NS_PER_S:g} s of the request",
            )
        check_int("batch", self.batch, 1, _MAX_NUMBER)
        check_int("max_bytes", self.max_bytes, 0, _MAX_NUMBER)
        for name, value in self.options.items():
            if name in _RANGES:
                check_int(name, value, *_RANGES[name])
            elif not isinstance(value, str):
                raise errors.InvalidOptionError(name, value, "must be a str")
            if name in _GROUPED and not self.options.get("group"):
                raise errors.InvalidOptionError(name, value, "requires a group")

    def single(self) -> PullRequest:
        """Return the request for one message, to which there is exactly one reply."""
        # A heartbeat would be the reply. The status at the expiry takes its place, before a
        # heartbeat is missed.
        expires_ns = self.heartbeat_ns * 3 // 2 or self.expires_ns
        return replace(self, batch=1, heartbeat_ns=0, expires_ns=expires_ns)

    def encode(self) -> bytes:
        """Return the JSON body of the request, with the fields that are set."""
        body = {
            "batch": self.batch,
            "expires": self.expires_ns,
            "max_bytes": self.max_bytes,
            "no_wait": self.no_wait,
            "idle_heartbeat": self.heartbeat_ns,
            "id": self.pin_id,
        }
        return dumps({**{name: value for name, value in body.items() if value}, **self.options})


def default_heartbeat_ns(expires_ns: int) -> int:
    """Return the default heartbeat of a fetch: none for a short expiry."""
    return _DEFAULT_HEARTBEAT_NS if expires_ns >= HEARTBEAT_FROM_NS else 0


def fetch_request(
    batch: int | None,
    timeout: float | timedelta | None,
    no_wait: bool = False,
    /,  # an option of such a name is unknown
    **options: Any,
) -> PullRequest:
    """Return the request of a fetch with `FetchOptions`; cached, because a program repeats the same fetch."""
    try:
        return _cached_request(batch, timeout, no_wait, **options)
    except TypeError:  # a value cannot be hashed: its check refuses it
        return _new_request(batch, timeout, no_wait, **options)


def _new_request(
    batch: int | None, timeout: float | timedelta | None, no_wait: bool, /, **options: Any
) -> PullRequest:
    check_known(options, FetchOptions.__optional_keys__)
    max_bytes, heartbeat = options.get("max_bytes"), options.get("heartbeat")
    if batch is None and max_bytes is None:
        raise errors.InvalidOptionError("batch", None, "one of batch and max_bytes is required")
    if max_bytes is not None:
        check_int("max_bytes", max_bytes, 1)
    expires_ns = 0
    if not no_wait:
        expires_ns = MAX_EXPIRES_NS if timeout is None else _ns(timeout, "timeout")
    return PullRequest(
        batch=UNLIMITED_BATCH if batch is None else batch,
        max_bytes=max_bytes or 0,
        no_wait=no_wait,
        expires_ns=expires_ns,
        heartbeat_ns=(
            default_heartbeat_ns(expires_ns) if heartbeat is None else _ns(heartbeat, "heartbeat")
        ),
        options=_sent(options),
    )


# Of equal arguments of the same types, because True == 1.
_cached_request = lru_cache(maxsize=64, typed=True)(_new_request)


def _sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are sent as they are."""
    return {
        name: value
        for name, value in options.items()
        if name in _SENT_OPTIONS and value is not None
    }


def _ns(value: float | timedelta, option: str) -> int:
    return duration_to_ns(duration(value, option))


@frozen(kw_only=True)
class ContinuousPull(Frozen):
    """The limits of a continuous pull (ADR-37, "Consume"); times are in nanoseconds."""

    # Create it with `of()`, which computes the defaults.

    request: PullRequest
    """The request that fills an empty buffer."""
    threshold_messages: int
    """Send another request when fewer messages than this are pending."""
    threshold_bytes: int
    """The threshold in bytes; 0: the buffer has no limit in bytes."""
    stop_after: int = 0
    """Number of messages after which the pull ends; 0: no limit."""
    on_demand: bool = False
    """Whether only the number of messages is requested that `PullLedger.allow` was called with."""

    @classmethod
    def of(
        cls,
        options: ContinuousOptions,
        config: ConsumerConfig | None = None,
        *,
        on_demand: bool = False,
    ) -> ContinuousPull:
        """Check the options of a user for a consumer, and compute the limits."""
        # `config`: that of the consumer; ``None``: it is an ordered one.
        check_known(options, ContinuousOptions.__annotations__)
        get: Callable[[str], Any] = options.get
        if config is None and get("auto_in_progress"):
            reason = "cannot be used with an ordered consumer, which does not acknowledge"
            raise errors.InvalidOptionError("auto_in_progress", True, reason)
        if on_demand:
            for option in (*_LIMITS, "threshold_messages", "threshold_bytes"):
                if get(option) is not None:
                    reason = "cannot be combined with on_demand"
                    raise errors.InvalidOptionError(option, get(option), reason)
        for option in _LIMITS:
            if get(option) is not None:
                check_int(option, get(option), 1)
        max_messages, max_bytes = get("max_messages"), get("max_bytes") or 0
        largest = (config.max_batch if config is not None else None) or UNLIMITED_BATCH
        batch = max_messages or (
            largest if on_demand or max_bytes else min(DEFAULT_MESSAGES, largest)
        )
        # Beside a number of messages, the bytes limit each request, not the buffer.
        buffered_bytes = 0 if max_messages else max_bytes
        threshold_bytes = get("threshold_bytes")
        if threshold_bytes is not None and not buffered_bytes:
            reason = "requires max_bytes without max_messages"
            raise errors.InvalidOptionError("threshold_bytes", threshold_bytes, reason)
        expires_ns, heartbeat_ns = _times(options, config)
        request = PullRequest(
            batch=batch,
            max_bytes=max_bytes,
            expires_ns=expires_ns,
            heartbeat_ns=heartbeat_ns,
            options=_sent(options),
        )
        threshold = batch if on_demand else get("threshold_messages")
        return cls(
            request=request,
            threshold_messages=_threshold("threshold_messages", threshold, batch),
            threshold_bytes=_threshold("threshold_bytes", threshold_bytes, buffered_bytes),
            stop_after=get("stop_after") or 0,
            on_demand=on_demand,
        )

    def with_single_replies(self) -> ContinuousPull:
        """Return the limits for an API that forwards one reply, and so one message, per request."""
        batch = SINGLE_REPLIES_LARGE if self.request.max_bytes else SINGLE_REPLIES
        batch = min(batch, self.request.batch)
        return replace(
            self,
            request=replace(self.request, batch=batch, max_bytes=0),
            threshold_messages=(batch + 1) // 2,
            threshold_bytes=0,
        )


def _times(options: ContinuousOptions, config: ConsumerConfig | None) -> tuple[int, int]:
    """Return the expiry and the heartbeat of the requests of a continuous pull."""
    expires, heartbeat = options.get("expires"), options.get("heartbeat")
    if expires is not None:
        expires_ns = _ns(expires, "expires")
    elif config is not None and config.max_expires:
        longest_ns = duration_to_ns(duration(config.max_expires))
        expires_ns = max(MIN_EXPIRES_NS, min(DEFAULT_EXPIRES_NS, longest_ns))
    else:
        expires_ns = DEFAULT_EXPIRES_NS
    if expires_ns < MIN_EXPIRES_NS:
        raise errors.InvalidOptionError("expires", expires, "must be at least 1 second")
    if heartbeat is None:
        return expires_ns, min(_MAX_HEARTBEAT_NS, expires_ns // 2)
    heartbeat_ns = _ns(heartbeat, "heartbeat")
    if not _MIN_HEARTBEAT_NS <= heartbeat_ns <= _MAX_HEARTBEAT_NS:
        raise errors.InvalidOptionError("heartbeat", heartbeat, "must be from 0.5 to 30 seconds")
    return expires_ns, heartbeat_ns


def _threshold(option: str, value: int | None, limit: int) -> int:
    if value is None:
        return (limit + 1) // 2
    check_int(option, value, 1, limit)
    return value


class PullLedger:
    """The pending messages and bytes of a continuous pull (ADR-37, "Buffering")."""

    # All requests of the pull are counted together: requested messages, minus messages returned to the
    # user, minus messages that ended requests report as undelivered. Not thread-safe; the owner holds the
    # lock.

    __slots__ = (
        "_limit",
        "_limited",
        "_pull",
        "_request",
        "by_bytes",
        "delivered",
        "pending_bytes",
        "pending_messages",
    )

    def __init__(self, pull: ContinuousPull) -> None:
        self._pull = pull
        # The last request: programs repeat the same one.
        self._request = pull.request
        # Number of messages to request altogether, if that is limited.
        self._limited = pull.on_demand or bool(pull.stop_after)
        self._limit = pull.stop_after
        #: Whether the pull is limited in bytes, so that the sizes of messages are counted.
        self.by_bytes: bool = bool(pull.threshold_bytes)
        self.pending_messages: int = 0
        self.pending_bytes: int = 0
        self.delivered: int = 0

    def allow(self, count: int) -> None:
        """Allow a pull on demand to request ``count`` messages more than were delivered or allowed."""
        self._limit = max(self._limit, self.delivered) + count

    def next_request(self) -> PullRequest | None:
        """Return the next request and count it as pending; ``None``: none is due."""
        # It fills the buffer up to its limit, but requests no more messages than stop_after and
        # `allow()` permit.
        pull = self._pull
        limit = pull.request.max_bytes if pull.threshold_bytes else 0
        if self.pending_messages >= pull.threshold_messages and (
            not limit or self.pending_bytes >= pull.threshold_bytes
        ):
            return None
        # A limit in bytes has to end the request; the number of pending messages is then not exact
        # (see `_clear_without_bytes`).
        batch = pull.request.batch - (0 if limit else self.pending_messages)
        if self._limited:
            batch = min(batch, self._limit - self.delivered - self.pending_messages)
        size = limit - self.pending_bytes
        if batch < 1 or (limit and size < 1):
            return None
        self.pending_messages += batch
        if not limit:
            if batch != self._request.batch:
                self._request = replace(self._request, batch=batch)
            return self._request
        self.pending_bytes += size
        return replace(pull.request, batch=batch, max_bytes=size)

    def message(self, size: int) -> bool:
        """Count a message returned to the user; return whether a request may be due."""
        pull = self._pull
        self.delivered += 1
        if self.pending_messages:
            self.pending_messages -= 1
        if pull.threshold_bytes:
            self.pending_bytes = max(0, self.pending_bytes - size)
            self._clear_without_bytes()
            if self.pending_bytes < pull.threshold_bytes:
                return True
        return self.pending_messages < pull.threshold_messages

    def messages(self, count: int) -> bool:
        """Count messages of a pull without a limit in bytes, as `message()` does."""
        self.delivered += count
        self.pending_messages = max(0, self.pending_messages - count)
        return self.pending_messages < self._pull.threshold_messages

    def messages_before_request(self) -> int:
        """Return how many messages can be counted before one that may cause a request or the end."""
        pull = self._pull
        count = self.pending_messages - pull.threshold_messages
        if self._limited:
            left = self._limit - self.delivered
            # After the last request only the end counts.
            count = left - 1 if left <= self.pending_messages else min(count, left - 1)
        return count

    def dropped(self, size: int) -> bool:
        """Count a message that was received but not returned to the user, like `message()`."""
        self.delivered -= 1
        return self.message(size)

    def request_ended(self, pending: tuple[int, int] | None) -> bool:
        """Subtract what an ended request did not deliver; return whether the whole buffer was not enough."""
        if pending is None:
            return False
        self.pending_messages = max(0, self.pending_messages - pending[0])
        self.pending_bytes = max(0, self.pending_bytes - pending[1])
        if self._pull.threshold_bytes:
            self._clear_without_bytes()
        return pending[1] >= self._pull.request.max_bytes > 0

    def _clear_without_bytes(self) -> None:
        """Reset the pending messages of a pull limited in bytes when no bytes are pending."""
        # A request that delivered exactly its bytes ends without a status that reports its
        # undelivered messages. A request that delivered exactly its messages reports its
        # undelivered bytes.
        if not self.pending_bytes:
            self.pending_messages = 0

    def empty(self) -> bool:
        """Return whether no messages are pending."""
        return not self.pending_messages

    def idle(self) -> bool:
        """Return whether nothing is requested of a pull on demand, so that there are no heartbeats."""
        return self._pull.on_demand and not self.pending_messages

    def reset(self) -> None:
        """Forget all pending requests, which are lost."""
        self.pending_messages = 0
        self.pending_bytes = 0

    def complete(self) -> bool:
        """Return whether ``stop_after`` messages were returned to the user."""
        return bool(self._pull.stop_after) and self.delivered >= self._pull.stop_after


class PullStatusKind(Enum):
    """Effect of a status on a pull."""

    HEARTBEAT = "heartbeat"
    """No effect: the server is alive."""
    QUIET = "quiet"
    """The request ended normally: no messages, or expired."""
    FULL = "full"
    """The request ended normally: the next message exceeds its limits."""
    AWAY = "away"
    """The request ended because the consumer is temporarily unavailable; a later request can succeed."""
    WARNING = "warning"
    """The request ended for a reason to report; a continuous pull continues."""
    FATAL = "fatal"
    """The request ended, and another request would fail in the same way."""


class PullStatus(NamedTuple):
    """A parsed status message."""

    kind: PullStatusKind
    error: errors.PullError | None
    """The error to raise or report; ``None`` for heartbeats and normal ends."""
    pending: tuple[int, int] | None
    """Undelivered messages and bytes of the request; ``None``: not reported."""


_HEARTBEAT: Final = PullStatus(PullStatusKind.HEARTBEAT, None, None)

_C: Final = StatusCode
_K: Final = PullStatusKind

# (code, text) -> kind and error class. The first row whose text is contained in the description
# applies; an empty text matches every status with the code.
_STATUSES: Final[tuple[tuple[int, str, PullStatusKind, type[errors.PullError] | None], ...]] = (
    (_C.NOT_FOUND, "", _K.QUIET, None),
    (_C.TIMEOUT, "", _K.QUIET, None),
    (_C.CONFLICT, "message size exceeds maxbytes", _K.FULL, None),
    (_C.CONFLICT, "batch completed", _K.FULL, None),
    (_C.CONFLICT, "consumer deleted", _K.FATAL, errors.ConsumerDeletedError),
    (_C.CONFLICT, "consumer is push based", _K.FATAL, errors.ConsumerIsPushBasedError),
    (_C.CONFLICT, "leadership change", _K.AWAY, errors.LeadershipChangeError),
    (_C.CONFLICT, "server shutdown", _K.AWAY, errors.PullError),
    (_C.CONFLICT, "exceeded max", _K.WARNING, errors.RequestLimitError),
    # Other texts, including those of newer servers.
    (_C.CONFLICT, "", _K.WARNING, errors.PullError),
    (_C.BAD_REQUEST, "", _K.FATAL, errors.BadRequestStatusError),
    (_C.UNSUPPORTED, "", _K.FATAL, errors.PullError),
    (_C.PIN_ID_MISMATCH, "", _K.WARNING, errors.PinIDMismatchError),
    # No responders: the consumer has no leader now, or it or its stream was deleted.
    (_C.NO_RESPONDERS, "", _K.AWAY, errors.PullError),
)


def _effect(code: int, text: str) -> tuple[PullStatusKind, type[errors.PullError] | None]:
    """Return the effect of a status, and the class of its error."""
    text = text.lower()
    for known, fragment, kind, error in _STATUSES:
        if code == known and fragment in text:
            return kind, error
    return PullStatusKind.WARNING, errors.PullError


def is_away(error: errors.PullError) -> bool:
    """Return whether the consumer was temporarily unavailable, so that another request can succeed."""
    return _effect(error.code, error.description)[0] is PullStatusKind.AWAY


def parse_pull_status(reply: bytes, header: bytes, payload: bytes) -> PullStatus | None:
    """Return the status in a delivery of a consumer; ``None``: it is a message for the user."""
    # Servers before 2.12 store the status line that another client has published. Unlike a status, such a message
    # can be acknowledged.
    if payload or not header or reply.startswith(ACK_PREFIX):
        return None
    status = parse_status(header)
    if status is None:
        return None
    if status.code == StatusCode.CONTROL:
        return _HEARTBEAT
    kind, error = _effect(status.code, status.description)
    described = status.description
    if status.code == StatusCode.NO_RESPONDERS and not described:
        described = "No Responders: the consumer or its stream does not exist, or has no leader now"
    return PullStatus(
        kind,
        error(status.code, described) if error is not None else None,
        _pending(parse_headers(header)),
    )


def _pending(headers: Headers | None) -> tuple[int, int] | None:
    """Return the undelivered messages and bytes, which any status may report (ADR-37)."""
    if headers is None or PENDING_MESSAGES not in headers:
        return None
    try:
        messages, size = int(headers[PENDING_MESSAGES]), int(headers.get(PENDING_BYTES, "0"))
        return max(0, messages), max(0, size)
    except ValueError:
        return None
