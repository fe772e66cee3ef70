"""
Exceptions raised by jetstream_sync: every one that the client raises deliberately is an `Error`.

The exceptions of worker handlers are not errors of the client; they are in `jetstream_sync.workers.errors`.

`APIError` has a subclass for each error that a program is likely to catch, chosen by the server's
``err_code``, or by ``code`` if the ``err_code`` has no class. Every exception can be pickled.
"""

from __future__ import annotations

# Under private names: type checkers export all others of this module from the package.
import builtins as _builtins
import enum as _enum
import typing as _t
from collections.abc import Mapping as _Mapping

from .records import time_text as _time_text
from .records import with_fields as _with_fields

if _t.TYPE_CHECKING:
    from typing_extensions import Self as _Self


class Error(Exception):
    """Base class of every exception that this package raises deliberately."""

    #: The text of an error with fields.
    _template: _t.ClassVar[str] = ""
    _transient: _t.ClassVar[bool] = False

    def __init_subclass__(cls, *, transient: bool | None = None, **kwargs: _t.Any) -> None:
        super().__init_subclass__(**kwargs)
        if transient is not None:
            cls._transient = transient

    @property
    def transient(self) -> bool:
        """
        Whether the same call may succeed later: the server restarts or is busy, or a leader is elected.

        After an error that leaves open whether a message was stored, a repeated call may store it twice.
        """
        return self._transient


# --- invalid arguments -----------------------------------------------------------------------

#: Maximum number of characters of a value in an error text; the attribute holds the whole value.
_EXCERPT: _t.Final = 200


def _short(text: str) -> str:
    return repr(text) if len(text) <= _EXCERPT else f"{text[:_EXCERPT]!r}..."


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid; nothing was sent."""


@_with_fields
class BadSubjectError(InvalidArgumentError):
    """A subject, reply subject or queue group is malformed."""

    subject: str
    reason: str

    def __str__(self) -> str:
        return f"subject {_short(self.subject)} is invalid: {self.reason}"


@_with_fields
class InvalidNameError(InvalidArgumentError):
    """A stream or consumer name is malformed."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} name {_short(self.name)} is invalid: {self.reason}"


@_with_fields
class InvalidHeaderError(InvalidArgumentError):
    """A header name or value cannot be sent. The error omits the value, which may be secret."""

    name: str
    reason: str
    _template = "header {name!r} is invalid: {reason}"


@_with_fields
class InvalidOptionError(InvalidArgumentError):
    """An option's value is out of range, or two options exclude each other."""

    option: str
    value: object
    reason: str

    def __str__(self) -> str:
        shown = (
            "" if self.value is ... else f"={self.value!r}"
        )  # that of an unknown option, maybe a secret
        return f"{self.option}{shown}: {self.reason}"


class CredentialsError(InvalidOptionError):
    """
    The credentials cannot be used: a file, a callback or the signing package failed.

    ``value`` is the path, or ``...``. The error never contains the content of a file or the return
    value of a callback. ``__cause__`` is the exception that the callback raised.
    """


class UnfinishedError(Error):
    """A callback returned a coroutine, a generator or a future, so that its work is not done."""


@_with_fields
class MaxPayloadError(InvalidArgumentError):
    """Payload and headers together are larger than the server accepts."""

    size: int
    max_payload: int

    _template = (
        "message of {size} bytes (headers included) is too large: "
        "the server's max_payload is {max_payload} bytes"
    )


class TimeoutError(Error, _builtins.TimeoutError, transient=True):  # noqa: A001 - also a subclass of the built-in
    """The timeout of a call expired."""


@_with_fields
class RequestTimeoutError(TimeoutError):
    """No reply to a request arrived in time; its receiver may have carried it out."""

    subject: str
    """The subject of the request."""
    outage: str = ""
    """How long there has been no connection, as the end of the text; empty: there is one."""
    hint: str = ""
    """What the silence may mean, as the end of the text; empty: nothing is known."""
    _template = "no reply on {subject!r} in time{outage}{hint}"


class DrainTimeoutError(TimeoutError):
    """Draining took longer than ``drain_timeout``; the remaining messages are dropped."""


# --- the connection ---------------------------------------------------------------------------


class ConnectionClosedError(Error, _builtins.ConnectionError):
    """The connection is closed; ``__cause__``, if set, is the reason."""


class ConnectionDrainingError(ConnectionClosedError):
    """The connection or subscription is draining and accepts no new operations."""


class ConnectionLostError(ConnectionClosedError, transient=True):
    """The connection to the server was lost."""


class StaleConnectionError(ConnectionClosedError, transient=True):
    """The server left too many pings unanswered, or reported a stale connection."""


@_with_fields
class ProtocolError(ConnectionClosedError, transient=True):
    """The server sent bytes that violate the NATS protocol."""

    reason: str
    excerpt: bytes = b""
    """The first bytes of the offending input."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.excerpt!r}" if self.excerpt else self.reason


class AuthorizationError(ConnectionClosedError, transient=False):
    """The server refused the login."""


class AuthenticationExpiredError(AuthorizationError):
    """An accepted login has expired or was revoked."""


class SecureConnectionError(ConnectionClosedError, transient=False):
    """TLS was requested but not offered, is required but not possible, or its handshake failed."""


class CertificateError(SecureConnectionError):
    """The server's certificate is not trusted: wrong host name, unknown issuer, or expired."""


class ServerRefusedError(ConnectionClosedError):
    """The server sent an error and closes the connection; the message is the server's text."""


class ForkedConnectionError(ConnectionClosedError, transient=False):
    """The connection was opened in a parent process and cannot be used in a forked child."""


@_with_fields
class NoServersError(Error, _builtins.ConnectionError, transient=True):
    """None of the servers could be reached."""

    attempts: tuple[tuple[str, str], ...] = ()
    """Each address with the reason."""

    def __str__(self) -> str:
        if not self.attempts:
            return "no servers to connect to"
        tried = "; ".join(f"{address}: {reason}" for address, reason in self.attempts)
        return f"could not connect to NATS: {tried}"


@_with_fields
class OutboundBufferLimitError(Error, transient=True):
    """The client is disconnected and ``pending_size`` bytes are already buffered; nothing was added."""

    pending_size: int
    _template = "not connected, and {pending_size} bytes (pending_size) are buffered already"


class ServerUnavailableError(Error):
    """The nats-server program was not found or did not start; the message names the remedy."""


# --- subscriptions ----------------------------------------------------------------------------


class SubscriptionError(Error):
    """An error of one subscription; the connection is not affected."""


class BadSubscriptionError(SubscriptionError):
    """The subscription has ended: it was unsubscribed, drained or reached its limit."""


@_with_fields
class SlowConsumerError(SubscriptionError):
    """Messages of a subscription were dropped because it reached a pending limit."""

    subject: str
    sid: int
    dropped: int

    _template = (
        "slow consumer on {subject!r} (sid {sid}): {dropped} messages dropped so far; "
        "read faster or raise its limits"
    )


@_with_fields
class PermissionsError(SubscriptionError):
    """The server does not permit publishing or subscribing to a subject."""

    text: str
    """The text of the server."""
    operation: str = ""
    """The refused operation: ``publish``, ``subscribe``, or ``reply`` for a reply subject."""
    subject: str = ""
    """The refused subject."""
    queue: str = ""
    """The queue group of the subscription, or an empty string."""

    _template = "{text}"


@_with_fields
class NoRespondersError(Error, transient=True):
    """The subject of a request has no subscriber."""

    subject: str
    hint: str = ""
    """What to do about it, if that is known."""

    def __str__(self) -> str:
        text = f"no responders on {self.subject!r}"
        return f"{text}: {self.hint}" if self.hint else text


@_with_fields
class ServiceError(Error):
    """A service answered a request with an error; a handler raises it to do that."""

    code: int
    """A number as in HTTP."""
    description: str
    """A text of one line."""
    data: bytes = b""
    """The payload of the reply."""

    def __str__(self) -> str:
        text = f"{self.description} ({self.code})"
        return f"{text}: {self.data[:_EXCERPT]!r}" if self.data else text


# --- JetStream --------------------------------------------------------------------------------


class JetStreamError(Error):
    """Base class of errors that concern JetStream rather than the connection."""


@_with_fields
class APIError(JetStreamError):
    """
    The server refused a JetStream request; `from_response()` selects the most specific class.

    Subclasses register themselves for an ``err_code``, or for a ``code`` with no such class.
    """

    code: int
    err_code: int
    description: str
    _template = "{description} (code {code}, err_code {err_code})"
    #: The class for each known ``err_code`` (nats-server's ``errors.json``).
    by_err_code: _t.ClassVar[dict[int, type[APIError]]] = {}
    #: The class for each HTTP-like ``code``, for error codes without a class of their own.
    by_code: _t.ClassVar[dict[int, type[APIError]]] = {}
    #: The codes of `found_here`.
    _code: _t.ClassVar[int] = 0
    _err_code: _t.ClassVar[int] = 0
    #: How the description begins, for a class whose ``err_code`` has several meanings.
    description_prefix: _t.ClassVar[str] = ""

    def __init_subclass__(
        cls, *, err_codes: tuple[int, ...] = (), code: int | None = None, **kwargs: _t.Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        for err_code in err_codes:
            cls.by_err_code[err_code] = cls
        if err_codes:
            cls._err_code = err_codes[0]
        if code is not None:
            cls.by_code[code] = cls
            cls._code = code

    @classmethod
    def from_response(cls, error: _Mapping[str, _t.Any]) -> APIError:
        """
        Return the most specific exception for the ``error`` object of a JetStream reply.

        A missing key, as in replies of old servers, counts as 0 or empty.
        """
        code, err_code = _number(error.get("code")), _number(error.get("err_code"))
        description = str(error.get("description", ""))
        chosen = cls.by_err_code.get(err_code)
        if chosen is None or not description.startswith(chosen.description_prefix):
            chosen = cls.by_code.get(code) or APIError
        return chosen(code, err_code, description)

    @classmethod
    def found_here(cls, description: str) -> _Self:
        """Return the error for what this client found itself, with the codes that a server would send."""
        return cls(cls._code, cls._err_code, description)

    def explain(self, details: str, **values: object) -> None:
        """Add details to the description of the server, and values as attributes."""
        description = f"{self.description}: {details}"
        self.args: tuple[_t.Any, ...] = (self.code, self.err_code, description)
        vars(self).update(values, description=description)

    @property
    def transient(self) -> bool:
        """As of any `Error`; some refusals are transient by their ``err_code``."""
        return self._transient or self.in_process or self.err_code == ErrorCode.CLUSTER_NOT_LEADER

    @property
    def in_process(self) -> bool:
        """Whether the server cannot decide yet, because an earlier message is still being stored."""
        return self.err_code in _IN_PROCESS


class ErrorCode(_enum.IntEnum):
    """Values of `APIError.err_code` that this package compares, named as in nats-server."""

    #: No meta leader, or JetStream is starting.
    CLUSTER_NOT_AVAILABLE = 10008
    CLUSTER_NOT_LEADER = 10009
    INVALID_JSON = 10025
    MESSAGE_DELETE_FAILED = 10057
    #: A consumer of a work queue without a filter, beside another one.
    QUEUE_CONSUMER_UNFILTERED = 10099
    #: A consumer of a work queue whose filter overlaps with that of another one.
    QUEUE_CONSUMER_NOT_UNIQUE = 10100
    STREAM_SEALED = 10109
    STREAM_OFFLINE = 10118
    CONSUMER_OFFLINE = 10119
    #: An ``inactive_threshold`` above the limit of the stream.
    INACTIVE_THRESHOLD_EXCESS = 10153
    #: The message id is being stored. A leader that steps down in between and leads again returns this error
    #: until the duplicate window is over (``processStreamLeaderChange`` in nats-server 2.15).
    DUPLICATE_MESSAGE_CONFLICT = 10158
    #: An earlier message of the subject is being stored, so that the expectation cannot be checked yet.
    EXPECTED_SEQUENCE_NOT_READY = 10163
    #: The same in later servers, and an atomic batch whose expectations exclude each other.
    WRONG_LAST_SEQUENCE_CONSTANT = 10164
    REQUIRED_API_LEVEL = 10185


_IN_PROCESS: _t.Final = (
    ErrorCode.DUPLICATE_MESSAGE_CONFLICT,
    ErrorCode.EXPECTED_SEQUENCE_NOT_READY,
    ErrorCode.WRONG_LAST_SEQUENCE_CONSTANT,
)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class BadRequestError(APIError, code=400):
    """The server rejected the request (400)."""


class NotFoundError(APIError, code=404):
    """The stream, consumer or message does not exist (404)."""


class ServerError(APIError, code=500):
    """The server failed (500)."""


class ServiceUnavailableError(APIError, code=503, transient=True):
    """JetStream is unavailable, temporarily or permanently (503)."""


class StreamNotFoundError(NotFoundError, err_codes=(10059,)):
    """The stream does not exist."""

    stream: str | None = None
    """The name of the stream, if a request named it."""


class BucketNotFoundError(StreamNotFoundError):
    """The key-value bucket or object store does not exist."""


class ConsumerNotFoundError(NotFoundError, err_codes=(10014,)):
    """The consumer does not exist."""

    stream: str | None = None
    """The name of the stream, if a request named it."""
    consumer: str | None = None
    """The name of the consumer."""


class MessageNotFoundError(NotFoundError, err_codes=(10037, 10043)):
    """The stream has no such message."""


class TooManyResultsError(APIError, code=413):
    """A request for the last messages of many subjects finds more than 1,024 (413)."""


class StreamNameInUseError(BadRequestError, err_codes=(10058,)):
    """A stream with this name exists with another configuration."""

    differences: _Mapping[str, tuple[object, object]] = {}
    """The fields that differ, with their values in the existing config and in the requested one."""


class BucketExistsError(StreamNameInUseError):
    """The key-value bucket or object store exists with another configuration."""


class StreamSubjectOverlapError(BadRequestError, err_codes=(10065,)):
    """One of the subjects overlaps with the subjects of another stream."""

    streams: tuple[str, ...] = ()
    """The names of the other streams."""


class ConsumerNameInUseError(BadRequestError, err_codes=(10013, 10105)):
    """The consumer name is already in use."""


class ConsumerExistsError(BadRequestError, err_codes=(10148,)):
    """The consumer exists with another configuration, and the action was ``create``."""

    differences: _Mapping[str, tuple[object, object]] = {}
    """As of `StreamNameInUseError`."""


class ConsumerDoesNotExistError(BadRequestError, err_codes=(10149,)):
    """The consumer does not exist, and the action was ``update``."""


class MaxConsumersError(BadRequestError, err_codes=(10026,)):
    """The stream or account has reached its maximum number of consumers."""


class WrongLastSequenceError(BadRequestError, err_codes=(10071, 10164)):
    """The last sequence of the stream or subject is not the expected one; nothing was stored."""


@_with_fields
class WrongLastRevisionError(WrongLastSequenceError):
    """The last revision of a key is not the expected one; nothing was changed."""

    key: str
    expected: int

    _template = "key {key!r} is not at revision {expected}: {description} (code {code}, err_code {err_code})"


@_with_fields
class KeyExistsError(WrongLastSequenceError):
    """The key has a value already; nothing was changed."""

    key: str
    revision: int
    """The revision of the value."""

    _template = "key {key!r} exists with revision {revision}: {description} (code {code}, err_code {err_code})"


class KeyNotFoundError(NotFoundError, KeyError):
    """The key has no value, or not at this revision; deleted keys have none."""

    bucket: str
    key: str
    revision: int | None
    """The requested revision; ``None``: the last one."""
    marker: int | None
    """The revision of the marker that the deletion or the expiry left."""

    def __init__(
        self, bucket: str, key: str, revision: int | None = None, marker: int | None = None
    ) -> None:
        super().__init__(404, 10037, "no message found")
        self.args: tuple[_t.Any, ...] = (bucket, key, revision, marker)
        self.bucket = bucket
        self.key = key
        self.revision = revision
        self.marker = marker

    def __str__(self) -> str:
        at = "" if self.revision is None else f" at revision {self.revision}"
        deleted = "" if self.marker is None else f", deleted at revision {self.marker}"
        where = f"in bucket {self.bucket!r}{at}{deleted}"
        return f"key {self.key!r} has no value {where}: {super().__str__()}"


class ValueTooLargeError(BadRequestError, err_codes=(10054,)):
    """The message exceeds the stream's ``max_msg_size``; nothing was stored."""


class StreamFullError(ServiceUnavailableError, err_codes=(10077,), transient=False):
    """The stream or bucket has reached its limit of bytes or messages; nothing was stored."""

    # Other failures of the storage have the same code.
    description_prefix = "maximum "


class ServerFullError(ServiceUnavailableError, err_codes=(10023,)):
    """The JetStream store of a server is full: its ``max_file_store``, ``max_memory_store`` or its disk."""

    _template = (
        "{description}: the JetStream store of the stream's server is full "
        "(code {code}, err_code {err_code})"
    )


class AccountFullError(BadRequestError, err_codes=(10002,)):
    """The account has reached one of its limits; nothing was stored."""


class WrongLastMsgIDError(BadRequestError, err_codes=(10070,)):
    """The last message id is not the expected one; nothing was stored."""


class WrongStreamError(BadRequestError, err_codes=(10060,)):
    """The subject does not belong to the expected stream; nothing was stored."""


class MessageTTLDisabledError(BadRequestError, err_codes=(10166,)):
    """The message has a TTL but the stream does not allow message TTLs; nothing was stored."""


class BatchNotEnabledError(BadRequestError, err_codes=(10174, 10205)):
    """The stream does not allow atomic batches, or fast publishing."""


class BatchIncompleteError(BadRequestError, err_codes=(10176,)):
    """The server has abandoned an atomic batch: it refused a message, or did not receive all of them."""


class BatchTooLargeError(BadRequestError, err_codes=(10199,)):
    """An atomic batch has too many messages; nothing was stored."""


class BatchDuplicateError(BadRequestError, err_codes=(10201,)):
    """A message id of an atomic batch is already in the stream; nothing was stored."""


class TooManyRequestsError(APIError, err_codes=(10167,), transient=True):
    """The server has too many unprocessed messages for the stream; nothing was stored, try again later."""


class TooManyBatchesError(APIError, err_codes=(10210, 10211), transient=True):
    """The stream has too many open batches; nothing was stored."""


class CounterError(BadRequestError, err_codes=(10168, 10169, 10170, 10171, 10172)):
    """The message is not valid for a counter, or the stream has no counters; nothing was changed."""


class ScheduleError(
    BadRequestError,
    err_codes=(10186, 10187, 10188, 10189, 10190, 10191, 10192, 10203, 10212, 10223),
):
    """A schedule is invalid, or the stream does not allow schedules; nothing was stored."""


class ConsumerGroupError(JetStreamError):
    """The config of a consumer group is invalid, or was changed in a way that is not allowed."""


class ConsumerGroupNotFoundError(NotFoundError):
    """The stream has no such consumer group."""

    _err_code = 10037  # the group has no key


class JetStreamNotEnabledError(ServiceUnavailableError, err_codes=(10076,), transient=False):
    """JetStream is disabled on this server."""


class DomainUnreachableError(JetStreamNotEnabledError):
    """A JetStream domain does not answer: a leaf node connection is down, or the name is wrong."""

    domain: str = ""
    """The name of the domain."""


class NoLeaderError(ServiceUnavailableError, err_codes=(10008,), transient=True):
    """The cluster has no meta leader, or the consumer has no leader: a majority of their servers is needed."""


class JetStreamNotEnabledForAccountError(
    ServiceUnavailableError, err_codes=(10039,), transient=False
):
    """JetStream is disabled for this account."""


@_with_fields
class NoStreamResponseError(JetStreamError, transient=True):
    """No stream stored the message, even after the retries of ADR-22."""

    subject: str
    hint: str = "does a stream with this subject exist?"
    _template = "no stream stores {subject!r}: no response; {hint}"


class InvalidResponseError(JetStreamError):
    """A reply of the server is malformed."""


class RangeError(JetStreamError):
    """A part of a stream could not be read; the attributes identify it."""


@_with_fields
class StreamRecreatedError(RangeError):
    """The stream was deleted and re-created, or restored to an earlier state: sequences are not those known."""

    stream: str
    planned_ns: int = 0
    found_ns: int = 0
    """When the known stream and this one were created, in nanoseconds since 1970; 0: not known."""
    reason: str = "it was deleted and re-created"

    def __str__(self) -> str:
        text = (
            f"stream {self.stream!r} is not the one that was read: {self.reason}; start a new read"
        )
        if self.planned_ns and self.found_ns:
            text += f" (created {_time_text(self.planned_ns)}, found {_time_text(self.found_ns)})"
        return text


@_with_fields
class PendingAcksError(JetStreamError):
    """A purge by subject was refused, because consumers have unacknowledged messages, which they could lose."""

    stream: str
    subject: str
    consumers: tuple[str, ...]
    """The names of the consumers whose filters overlap with the subject."""

    def __str__(self) -> str:
        return (
            f"the purge of {self.subject!r} from stream {self.stream!r} was refused: the server could drop"
            f" unacknowledged messages of {_short(', '.join(self.consumers))}; use delete_msg(), wait, or use force=True"
        )


class MessagesChangedError(JetStreamError):
    """Messages were replaced or deleted while they were read in pages; read them again."""


class TooManyStalledMsgsError(JetStreamError):
    """``publish_async`` timed out waiting for a free slot among the pending acknowledgements."""


@_with_fields
class PullError(JetStreamError):
    """A pull request ended with an error status (ADR-37, "Status handling")."""

    code: int
    description: str

    def __str__(self) -> str:
        return f"{self.code} {self.description}".rstrip()


class BadRequestStatusError(PullError):
    """The server could not parse the pull request (400)."""


class ConsumerDeletedError(PullError):
    """The consumer or its stream was deleted (409 Consumer Deleted, or 503 for a pull request)."""


class ConsumerIsPushBasedError(PullError):
    """The consumer is a push consumer and does not accept pull requests (409)."""


class LeadershipChangeError(PullError, transient=True):
    """The consumer's leader moved to another server; send a new pull request (409)."""


class RequestLimitError(PullError):
    """The pull request exceeded a limit, or its ``max_bytes`` is too small for the next message."""


class PinIDMismatchError(PullError):
    """Another client is now pinned to the consumer's priority group (423)."""


@_with_fields
class NoHeartbeatError(JetStreamError, transient=True):
    """Heartbeats of a consumer were missed."""

    consumer: str
    seconds: float
    _template = "no heartbeat from consumer {consumer!r} for {seconds:g} s"


class OrderedConsumerResetError(JetStreamError):
    """An ordered consumer lost its server-side consumer and could not recreate it."""


class IteratorClosedError(JetStreamError):
    """The message iterator or consume handle was stopped."""


class NotJSMessageError(JetStreamError):
    """The message is not from a stream: it has no JetStream reply subject."""


class MsgAlreadyAckdError(JetStreamError):
    """The message was already acknowledged."""


class ConsumerInvalidResetError(BadRequestError, err_codes=(10204,)):
    """The consumer's config does not allow a reset to this sequence; the consumer is unchanged."""


@_with_fields
class BatchUncertainError(JetStreamError):
    """An atomic batch was not acknowledged as one: all of its messages may be stored, some, or none."""

    batch_id: str
    """The header `Nats-Batch-Id` of the messages."""
    reason: str
    """Why no acknowledgement arrived."""
    _template = "it is unknown whether the atomic batch {batch_id} is stored: {reason}"


@_with_fields
class FastPublishError(JetStreamError):
    """A fast publish has ended early."""

    acked: int
    """All messages up to this batch sequence are stored; later ones may be stored."""
    reason: str
    """Why it ended."""
    _template = "{reason}; the messages up to number {acked} are stored"


class LockLostError(JetStreamError):
    """A lock on a key is not held any more, or was not acquired; see `Lock.check`."""


@_with_fields
class ServerTooOldError(JetStreamError):
    """
    The server is too old for a request.

    A request or message was not sent. A config was sent, and servers from 2.12 on refuse it. Earlier ones
    apply the fields that they know: a created stream or consumer was deleted again, or ``outcome`` names
    what an update changed.
    """

    feature: str
    needs: str
    """The first release of nats-server with the feature."""
    version: str
    fields: tuple[str, ...] = ()
    """The fields of a config that the server does not know."""
    outcome: str = ""

    def __str__(self) -> str:
        verb = "need" if len(self.fields) > 1 else "needs"
        text = f"{self.feature} {verb} nats-server {self.needs}; this server is {self.version}"
        return f"{text}; {self.outcome}" if self.outcome else text


@_with_fields
class IncompleteListingError(JetStreamError):
    """A listing is used as if it were complete, but the state of some of its items is not known."""

    kind: str
    missing: _t.Mapping[str, str]
    """The names of the items, each with the reason."""
    unnamed: int = 0
    """Number of items that the server counts, but does not name."""

    def __str__(self) -> str:
        missing = str(self.missing).strip("{}")[: 2 * _EXCERPT]
        more = f"{self.unnamed} more" if self.unnamed else ""
        unknown = ", ".join(filter(None, (missing, more)))
        return f"the list of {self.kind} is incomplete: no information on {unknown}"


class SnapshotFailedError(ServerError, err_codes=(10064,)):
    """The server cannot create a snapshot of the stream; no data was sent."""


class RestoreFailedError(ServerError, err_codes=(10062, 10072)):
    """The server cannot restore a stream from the data; no stream was created."""


class RestoreNameInUseError(StreamNameInUseError, err_codes=(10130,)):
    """A stream with this name already exists; it is unchanged."""


@_with_fields
class SnapshotBrokenError(JetStreamError, transient=True):
    """The data of a snapshot is incomplete and cannot be used."""

    stream: str
    code: int
    """408 if the receiver stopped acknowledging, 500 if the server failed; 0: a chunk is missing."""
    description: str

    def __str__(self) -> str:
        status = f"{self.code} {self.description}" if self.code else self.description
        return f"snapshot of stream {self.stream!r} is incomplete: {status}"


@_with_fields
class RestoreBrokenError(JetStreamError):
    """The server stopped a restore, in a restart or after a wait; no stream was created."""

    stream: str
    sent: int
    """Number of bytes that the server had accepted."""

    _template = (
        "restore of stream {stream!r} was interrupted: the server accepts no more data after "
        "{sent} bytes; restart the restore"
    )


class ObjectNotFoundError(NotFoundError):
    """There is no object with this name."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(404, 10037, f"object {name!r} does not exist in bucket {bucket!r}")
        self.args: tuple[_t.Any, ...] = (bucket, name)
        self.bucket = bucket
        self.name = name


class ObjectDeletedError(ObjectNotFoundError):
    """The object was deleted."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name)
        self.description: str = f"object {name!r} was deleted from bucket {bucket!r}"


class ObjectStoreSealedError(BadRequestError):
    """The object store is sealed: it can be read, but not changed; nothing was changed."""


@_with_fields
class ObjectStoreError(JetStreamError):
    """Base class of errors that concern one object of an object store."""

    bucket: str
    name: str
    _template = "object {name!r} in bucket {bucket!r}"


class ObjectExistsError(ObjectStoreError):
    """An object with this name exists, and the operation does not replace it."""

    _template = "object {name!r} exists in bucket {bucket!r}: delete it first, or use another name"


class ObjectReplacedError(ObjectStoreError):
    """The object was replaced or deleted while it was read; read it again."""

    _template = "object {name!r} in bucket {bucket!r} was replaced or deleted while it was read"


@_with_fields
class ObjectLinkError(ObjectStoreError):
    """A link cannot be created or followed."""

    reason: str
    _template = "object {name!r} in bucket {bucket!r}: {reason}"


@_with_fields
class ObjectIncompleteError(ObjectStoreError):
    """The chunks of an object are not those that its info describes."""

    reason: str
    _template = "object {name!r} in bucket {bucket!r} is incomplete: {reason}"


@_with_fields
class DigestMismatchError(ObjectStoreError):
    """The data of an object does not have the digest of its info; no data was returned as complete."""

    expected: str
    found: str
    _template = (
        "object {name!r} in bucket {bucket!r} is damaged: digest {found}, expected {expected}"
    )


@_with_fields
class UnsupportedDigestError(ObjectStoreError):
    """The digest of an object is missing or not a SHA-256, so its data cannot be verified."""

    digest: str
    _template = "object {name!r} in bucket {bucket!r} has digest {digest!r}, which is not a SHA-256"


@_with_fields
class SubscribeError(InvalidArgumentError, JetStreamError):
    """A subscription request is not possible; nothing was changed. Also a `JetStreamError`."""

    asked: object
    """The requested value."""
    found: object
    """The conflicting value: another argument, or the value on the server."""
    _template = "requested {asked!r}, found {found!r}"


class AmbiguousSubjectError(SubscribeError):
    """Several streams match the subject; name one with ``stream=``."""

    _template = "subject {asked!r} matches several streams, {found!r}: choose one with stream="


class PullOnPushConsumerError(SubscribeError):
    """The consumer is a push consumer and does not accept pull requests."""

    _template = (
        "cannot pull from consumer {asked!r}: it is a push consumer that delivers to {found!r}"
    )


class PushOnPullConsumerError(SubscribeError):
    """The consumer is a pull consumer and does not push messages."""

    _template = (
        "consumer {asked!r} is a pull consumer (deliver_subject={found!r}): use pull_subscribe()"
    )


class DuplicateSubscriptionError(SubscribeError):
    """The consumer already has a subscription and no deliver group."""

    _template = "duplicate subscription: consumer {asked!r} already has a subscriber on {found!r}"


class ConfigMismatchError(SubscribeError):
    """An option differs from the config of the existing consumer, which is not changed."""

    def __init__(self, option: str, asked: object, found: object) -> None:
        super().__init__(asked, found)
        self.args: tuple[_t.Any, ...] = (option, asked, found)
        self.option = option

    def __str__(self) -> str:
        return (
            f"{self.option}={_shown(self.asked)} was requested, but the existing consumer has "
            f"{_shown(self.found)} and is not changed"
        )


def _shown(value: object) -> str:
    """Return the readable form of a config value: an enum as its value, a duration as text."""
    return f"'{value}'" if isinstance(value, str) else str(value)


@_with_fields
class ConsumerSequenceMismatchError(JetStreamError):
    """
    Messages sent by a push consumer did not arrive.

    With acknowledgements they are redelivered after the consumer's ``ack_wait``. Without them, resume
    after ``stream_resume_sequence``.
    """

    stream_resume_sequence: int
    """The stream sequence of the last message before the gap; 0 when there was none."""
    consumer_sequence: int
    """The consumer sequence of that message."""
    last_consumer_sequence: int
    """The last consumer sequence that the server sent."""

    _template = (
        "messages of a consumer are missing: the last received consumer sequence is "
        "{consumer_sequence}, the last sent is {last_consumer_sequence}"
    )


# Type checkers export every class of a module without a list.
if not _t.TYPE_CHECKING:
    from .foreign_names import missing_error as __getattr__  # noqa: F401 - called for unknown names

    __all__ = [
        name
        for name, value in globals().items()
        if isinstance(value, type) and issubclass(value, Error)
    ]
