"""
Exceptions raised by jetstream_sync.

Every exception that the package raises deliberately is one of these::

    Error                                             base class
    ├── InvalidArgumentError (also ValueError)        an argument is invalid
    │   ├── BadSubjectError                           a subject, queue group or reply
    │   ├── InvalidNameError                          a stream or consumer name
    │   ├── InvalidHeaderError                        a header name or value
    │   ├── InvalidOptionError                        an option or a combination of options
    │   │   └── CredentialsError                      the credentials cannot be loaded or used
    │   ├── MaxPayloadError                           payload with headers above the server's limit
    │   └── SubscribeError                            the request conflicts with the consumer (ADR-15)
    │       ├── SubjectRequiredError                  neither a subject nor a stream was given
    │       ├── AmbiguousSubjectError                 several streams match the subject
    │       ├── QueueHeartbeatError                   a queue subscription with an idle heartbeat
    │       ├── QueueFlowControlError                 a queue subscription with flow control
    │       ├── PullAckPolicyError                    a pull subscription without explicit acks
    │       ├── PullOnPushConsumerError               a pull subscription to a push consumer
    │       ├── PushOnPullConsumerError               a push subscription to a pull consumer
    │       ├── DuplicateSubscriptionError            the push consumer already has a subscription
    │       ├── QueueRequiredError                    no queue, but the consumer has a deliver group
    │       ├── QueueMismatchError                    the consumer has another deliver group
    │       ├── NoDeliverGroupError                   a queue, but the consumer has no deliver group
    │       ├── SubjectMismatchError                  the subject differs from the consumer's filter
    │       └── ConfigMismatchError                   an option differs from the consumer's config
    ├── TimeoutError (also the built-in TimeoutError) the timeout of a call expired
    │   └── DrainTimeoutError
    ├── ConnectionClosedError (also ConnectionError)  the connection is closed, or was closed during the call
    │   ├── ConnectionDrainingError                   the connection or subscription is draining
    │   ├── ConnectionLostError                       the connection to the server was lost
    │   ├── StaleConnectionError                      the server stopped answering pings
    │   ├── ProtocolError                             the server violated the NATS protocol
    │   ├── AuthorizationError                        the server refused the login
    │   │   └── AuthenticationExpiredError            an accepted login has expired or was revoked
    │   ├── SecureConnectionError                     TLS is required but not available, or failed
    │   │   └── CertificateError                      the server's certificate is not trusted
    │   ├── ServerRefusedError                        the server closed the connection with an error
    │   └── ForkedConnectionError                     the connection belongs to the parent process
    ├── NoServersError (also ConnectionError)         no server could be reached
    ├── OutboundBufferLimitError                      disconnected, and the outbound buffer is full
    ├── ServerUnavailableError                        nats-server cannot be started
    ├── SubscriptionError
    │   ├── BadSubscriptionError                      the subscription has ended
    │   ├── SlowConsumerError                         messages were dropped: a pending limit was reached
    │   └── PermissionsError                          the server does not permit the subject
    ├── NoRespondersError                             no subscriber on the subject of a request
    ├── ServiceError                                  a service answered a request with an error
    └── JetStreamError
        ├── APIError                                  the server refused a request; see below
        ├── NoStreamResponseError                     no stream stored the message
        ├── InvalidResponseError                      a reply is malformed
        ├── TooManyStalledMsgsError                   publish_async reached its limit of pending acks
        ├── PullError                                 a pull request ended with an error status
        │   ├── BadRequestStatusError                 400
        │   ├── ConsumerDeletedError                  409 Consumer Deleted
        │   ├── ConsumerIsPushBasedError              409 Consumer is push based
        │   ├── LeadershipChangeError                 409 Leadership Change
        │   ├── RequestLimitError                     409 Exceeded Max...
        │   └── PinIDMismatchError                    423
        ├── NoHeartbeatError                          heartbeats of a consumer were missed
        ├── OrderedConsumerResetError                 an ordered consumer could not be recreated
        ├── IteratorClosedError                       the iterator or consume handle was stopped
        ├── NotJSMessageError                         the message is not from a stream
        ├── MsgAlreadyAckdError                       the message was already acknowledged
        ├── ConsumerSequenceMismatchError             messages of a push consumer are missing
        ├── MessagesChangedError                      messages changed while they were read
        ├── BatchUncertainError                       an atomic batch may or may not be stored
        ├── FastPublishError                          a fast publish has ended early
        ├── LockLostError                             a lock on a key is not held any more
        ├── ConsumerGroupError                        a consumer group has an invalid or changed config
        ├── ServerTooOldError                         the server does not support the request
        ├── SnapshotBrokenError                       a snapshot ended early
        ├── RestoreBrokenError                        the server stopped a restore
        └── ObjectStoreError                          a request to an object store is not possible
            ├── ObjectExistsError                     an object with this name exists
            ├── ObjectLinkError                       a link cannot be created or followed
            ├── ObjectReplacedError                   an object was replaced while it was read
            ├── ObjectIncompleteError                 chunks of an object are missing
            ├── DigestMismatchError                   the data of an object does not have its digest
            └── UnsupportedDigestError                the digest is not a SHA-256

`APIError` has a subclass for each error that a program is likely to catch, chosen by the server's
``err_code``, or by ``code`` if the ``err_code`` has no class::

    APIError(code, err_code, description)
    ├── BadRequestError            400
    │   ├── StreamNameInUseError
    │   │   ├── BucketExistsError
    │   │   └── RestoreNameInUseError
    │   ├── StreamSubjectOverlapError, ConsumerExistsError, ConsumerInvalidResetError,
    │   ├── ConsumerNameInUseError, ConsumerDoesNotExistError, MaxConsumersError,
    │   ├── WrongLastSequenceError
    │   │   └── WrongLastRevisionError, KeyExistsError
    │   ├── WrongLastMsgIDError, WrongStreamError, ValueTooLargeError, ObjectStoreSealedError
    │   ├── BatchNotEnabledError, BatchIncompleteError, BatchTooLargeError, BatchDuplicateError,
    │   ├── CounterError, ScheduleError
    │   └── MessageTTLDisabledError, ...
    ├── NotFoundError              404
    │   ├── ObjectNotFoundError
    │   │   └── ObjectDeletedError
    │   ├── StreamNotFoundError
    │   │   └── BucketNotFoundError
    │   ├── KeyNotFoundError (also the built-in KeyError)
    │   └── ConsumerNotFoundError, MessageNotFoundError, ConsumerGroupNotFoundError
    ├── TooManyResultsError        413
    ├── TooManyBatchesError        429
    ├── ServerError                500
    │   └── SnapshotFailedError, RestoreFailedError
    └── ServiceUnavailableError    503
        ├── StreamFullError
        └── JetStreamNotEnabledError, JetStreamNotEnabledForAccountError

Every exception can be pickled, because its fields are the constructor's arguments in order: Spark and
multiprocessing send exceptions between processes.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from .permission_errors import parse_permissions_violation

__all__ = [
    "APIError",
    "AmbiguousSubjectError",
    "AuthenticationExpiredError",
    "AuthorizationError",
    "BadRequestError",
    "BadRequestStatusError",
    "BadSubjectError",
    "BadSubscriptionError",
    "BatchDuplicateError",
    "BatchIncompleteError",
    "BatchNotEnabledError",
    "BatchTooLargeError",
    "BatchUncertainError",
    "BucketExistsError",
    "BucketNotFoundError",
    "CertificateError",
    "ConfigMismatchError",
    "ConnectionClosedError",
    "ConnectionDrainingError",
    "ConnectionLostError",
    "ConsumerDeletedError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerGroupError",
    "ConsumerGroupNotFoundError",
    "ConsumerInvalidResetError",
    "ConsumerIsPushBasedError",
    "ConsumerNameInUseError",
    "ConsumerNotFoundError",
    "ConsumerSequenceMismatchError",
    "CounterError",
    "CredentialsError",
    "DigestMismatchError",
    "DrainTimeoutError",
    "DuplicateSubscriptionError",
    "Error",
    "FastPublishError",
    "ForkedConnectionError",
    "InvalidArgumentError",
    "InvalidHeaderError",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidResponseError",
    "IteratorClosedError",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "JetStreamNotEnabledForAccountError",
    "KeyExistsError",
    "KeyNotFoundError",
    "LeadershipChangeError",
    "LockLostError",
    "MaxConsumersError",
    "MaxPayloadError",
    "MessageNotFoundError",
    "MessageTTLDisabledError",
    "MessagesChangedError",
    "MsgAlreadyAckdError",
    "NoDeliverGroupError",
    "NoHeartbeatError",
    "NoRespondersError",
    "NoServersError",
    "NoStreamResponseError",
    "NotFoundError",
    "NotJSMessageError",
    "ObjectDeletedError",
    "ObjectExistsError",
    "ObjectIncompleteError",
    "ObjectLinkError",
    "ObjectNotFoundError",
    "ObjectReplacedError",
    "ObjectStoreError",
    "ObjectStoreSealedError",
    "OrderedConsumerResetError",
    "OutboundBufferLimitError",
    "PermissionsError",
    "PinIDMismatchError",
    "ProtocolError",
    "PullAckPolicyError",
    "PullError",
    "PullOnPushConsumerError",
    "PushOnPullConsumerError",
    "QueueFlowControlError",
    "QueueHeartbeatError",
    "QueueMismatchError",
    "QueueRequiredError",
    "RequestLimitError",
    "RestoreBrokenError",
    "RestoreFailedError",
    "RestoreNameInUseError",
    "ScheduleError",
    "SecureConnectionError",
    "ServerError",
    "ServerRefusedError",
    "ServerTooOldError",
    "ServerUnavailableError",
    "ServiceError",
    "ServiceUnavailableError",
    "SlowConsumerError",
    "SnapshotBrokenError",
    "SnapshotFailedError",
    "StaleConnectionError",
    "StreamFullError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamSubjectOverlapError",
    "SubjectMismatchError",
    "SubjectRequiredError",
    "SubscribeError",
    "SubscriptionError",
    "TimeoutError",
    "TooManyBatchesError",
    "TooManyResultsError",
    "TooManyStalledMsgsError",
    "UnsupportedDigestError",
    "ValueTooLargeError",
    "WrongLastMsgIDError",
    "WrongLastRevisionError",
    "WrongLastSequenceError",
    "WrongStreamError",
]


class Error(Exception):
    """Base class of every exception that this package raises deliberately."""


# --- invalid arguments -----------------------------------------------------------------------

#: Maximum number of characters of a value in an error text; the attribute holds the whole value.
_EXCERPT: Final = 200


def _short(text: str) -> str:
    return repr(text) if len(text) <= _EXCERPT else f"{text[:_EXCERPT]!r}..."


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid; nothing was sent."""


class BadSubjectError(InvalidArgumentError):
    """A subject, reply subject or queue group is malformed."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        return f"subject {_short(self.subject)} is invalid: {self.reason}"


class InvalidNameError(InvalidArgumentError):
    """A stream or consumer name is malformed."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind = kind
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind} name {_short(self.name)} is invalid: {self.reason}"


class InvalidHeaderError(InvalidArgumentError):
    """A header name or value cannot be sent. The error omits the value, which may be secret."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"header {self.name!r} is invalid: {self.reason}"


class InvalidOptionError(InvalidArgumentError):
    """An option's value is out of range, or two options exclude each other."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.option}={self.value!r}: {self.reason}"


class CredentialsError(InvalidOptionError):
    """
    The credentials cannot be used: a file, a callback or the signing package failed.

    ``value`` is the path, or ``...``. The error never contains the content of a file or the return
    value of a callback. ``__cause__`` is the exception that the callback raised.
    """


class MaxPayloadError(InvalidArgumentError):
    """Payload and headers together are larger than the server accepts."""

    def __init__(self, size: int, max_payload: int) -> None:
        super().__init__(size, max_payload)
        self.size = size
        self.max_payload = max_payload

    def __str__(self) -> str:
        message = f"message of {self.size} bytes (headers included) is too large"
        return f"{message}: the server's max_payload is {self.max_payload} bytes"


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - also a subclass of the built-in
    """The timeout of a call expired."""


class DrainTimeoutError(TimeoutError):
    """Draining took longer than ``drain_timeout``; the remaining messages are dropped."""


# --- the connection ---------------------------------------------------------------------------


class ConnectionClosedError(Error, builtins.ConnectionError):
    """The connection is closed; ``__cause__``, if set, is the reason."""


class ConnectionDrainingError(ConnectionClosedError):
    """The connection or subscription is draining and accepts no new operations."""


class ConnectionLostError(ConnectionClosedError):
    """The connection to the server was lost."""


class StaleConnectionError(ConnectionClosedError):
    """The server left too many pings unanswered, or reported a stale connection."""


class ProtocolError(ConnectionClosedError):
    """
    The server sent bytes that violate the NATS protocol.

    ``excerpt`` holds the first bytes of the offending input.
    """

    def __init__(self, reason: str, excerpt: bytes = b"") -> None:
        super().__init__(reason, excerpt)
        self.reason = reason
        self.excerpt = excerpt

    def __str__(self) -> str:
        return f"{self.reason}: {self.excerpt!r}" if self.excerpt else self.reason


class AuthorizationError(ConnectionClosedError):
    """The server refused the login."""


class AuthenticationExpiredError(AuthorizationError):
    """An accepted login has expired or was revoked."""


class SecureConnectionError(ConnectionClosedError):
    """TLS was requested but not offered, is required but not possible, or its handshake failed."""


class CertificateError(SecureConnectionError):
    """The server's certificate is not trusted: wrong host name, unknown issuer, or expired."""


class ServerRefusedError(ConnectionClosedError):
    """The server sent an error and closes the connection; the message is the server's text."""


class ForkedConnectionError(ConnectionClosedError):
    """The connection was opened in a parent process and cannot be used in a forked child."""


class NoServersError(Error, builtins.ConnectionError):
    """None of the servers could be reached; ``attempts`` pairs each address with the reason."""

    def __init__(self, attempts: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(attempts)
        self.attempts = attempts

    def __str__(self) -> str:
        if not self.attempts:
            return "no servers to connect to"
        tried = "; ".join(f"{address}: {reason}" for address, reason in self.attempts)
        return f"could not connect to NATS: {tried}"


class OutboundBufferLimitError(Error):
    """The client is disconnected and ``pending_size`` bytes are already buffered; nothing was added."""

    def __init__(self, pending_size: int) -> None:
        super().__init__(pending_size)
        self.pending_size = pending_size

    def __str__(self) -> str:
        return f"not connected, and {self.pending_size} bytes (pending_size) are buffered already"


class ServerUnavailableError(Error):
    """The nats-server program was not found or did not start; the message names the remedy."""


# --- subscriptions ----------------------------------------------------------------------------


class SubscriptionError(Error):
    """An error of one subscription; the connection is not affected."""


class BadSubscriptionError(SubscriptionError):
    """The subscription has ended: it was unsubscribed, drained or reached its limit."""


class SlowConsumerError(SubscriptionError):
    """Messages of a subscription were dropped because it reached a pending limit."""

    def __init__(self, subject: str, sid: int, dropped: int) -> None:
        super().__init__(subject, sid, dropped)
        self.subject = subject
        self.sid = sid
        self.dropped = dropped

    def __str__(self) -> str:
        where = f"slow consumer on {self.subject!r} (sid {self.sid})"
        return f"{where}: {self.dropped} messages dropped so far; read faster or raise its limits"


class PermissionsError(SubscriptionError):
    """The server does not permit publishing or subscribing to a subject."""

    operation: str
    """The refused operation: ``publish``, ``subscribe``, or ``reply`` for a reply subject."""
    subject: str
    """The refused subject."""
    queue: str
    """The queue group of the subscription, or an empty string."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.operation, self.subject, self.queue = parse_permissions_violation(text)


class NoRespondersError(Error):
    """The subject of a request has no subscriber."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"no responders on {self.subject!r}"


class ServiceError(Error):
    """
    A service answered a request with an error; a handler raises it to do that.

    `code` is a number as in HTTP, `description` a text of one line, and `data` the payload of the reply.
    """

    def __init__(self, code: int, description: str, data: bytes = b"") -> None:
        super().__init__(code, description, data)
        self.code = code
        self.description = description
        self.data = data

    def __str__(self) -> str:
        text = f"{self.description} ({self.code})"
        return f"{text}: {self.data[:_EXCERPT]!r}" if self.data else text


# --- JetStream --------------------------------------------------------------------------------


class JetStreamError(Error):
    """Base class of errors that concern JetStream rather than the connection."""


class APIError(JetStreamError):
    """
    The server refused a JetStream request.

    Subclasses register themselves for an ``err_code``, or for a ``code`` as the fallback of all its
    other error codes. `from_response()` selects the most specific class.
    """

    #: The class for each known ``err_code`` (nats-server's ``errors.json``).
    by_err_code: ClassVar[dict[int, type[APIError]]] = {}
    #: The class for each HTTP-like ``code``, for error codes without a class of their own.
    by_code: ClassVar[dict[int, type[APIError]]] = {}
    #: How the description begins, for a class whose ``err_code`` has several meanings.
    description_prefix: ClassVar[str] = ""

    def __init_subclass__(
        cls, *, err_codes: tuple[int, ...] = (), code: int | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        for err_code in err_codes:
            cls.by_err_code[err_code] = cls
        if code is not None:
            cls.by_code[code] = cls

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (code {self.code}, err_code {self.err_code})"

    @classmethod
    def from_response(cls, error: Mapping[str, Any]) -> APIError:
        """
        Return the most specific exception for the ``error`` object of a JetStream reply.

        Args:
            error: the decoded object, with ``code``, ``err_code`` and ``description``; a missing key,
                as in replies of old servers, counts as 0 or empty.

        Returns:
            An instance of the class registered for the ``err_code``, else for the ``code``,
            else of `APIError`. The exception is returned, not raised.

        """
        code, err_code = _number(error.get("code")), _number(error.get("err_code"))
        description = str(error.get("description", ""))
        chosen = cls.by_err_code.get(err_code)
        if chosen is None or not description.startswith(chosen.description_prefix):
            chosen = cls.by_code.get(code) or APIError
        return chosen(code, err_code, description)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class BadRequestError(APIError, code=400):
    """The server rejected the request (400)."""


class NotFoundError(APIError, code=404):
    """The stream, consumer or message does not exist (404)."""


class ServerError(APIError, code=500):
    """The server failed (500)."""


class ServiceUnavailableError(APIError, code=503):
    """JetStream is unavailable, temporarily or permanently (503)."""


class StreamNotFoundError(NotFoundError, err_codes=(10059,)):
    """The stream does not exist."""


class BucketNotFoundError(StreamNotFoundError):
    """The key-value bucket or object store does not exist."""


class ConsumerNotFoundError(NotFoundError, err_codes=(10014,)):
    """The consumer does not exist."""


class MessageNotFoundError(NotFoundError, err_codes=(10037, 10043)):
    """The stream has no such message."""


class TooManyResultsError(APIError, code=413):
    """A request for the last messages of many subjects finds more than 1,024 (413)."""


class StreamNameInUseError(BadRequestError, err_codes=(10058,)):
    """A stream with this name exists with another configuration."""


class BucketExistsError(StreamNameInUseError):
    """The key-value bucket or object store exists with another configuration."""


class StreamSubjectOverlapError(BadRequestError, err_codes=(10065,)):
    """One of the subjects overlaps with the subjects of another stream."""


class ConsumerNameInUseError(BadRequestError, err_codes=(10013, 10105)):
    """The consumer name is already in use."""


class ConsumerExistsError(BadRequestError, err_codes=(10148,)):
    """The consumer exists with another configuration, and the action was ``create``."""


class ConsumerDoesNotExistError(BadRequestError, err_codes=(10149,)):
    """The consumer does not exist, and the action was ``update``."""


class MaxConsumersError(BadRequestError, err_codes=(10026,)):
    """The stream or account has reached its maximum number of consumers."""


class WrongLastSequenceError(BadRequestError, err_codes=(10071, 10164)):
    """The last sequence of the stream or subject is not the expected one; nothing was stored."""


class WrongLastRevisionError(WrongLastSequenceError):
    """The last revision of a key is not the expected one; nothing was changed."""

    def __init__(self, code: int, err_code: int, description: str, key: str, expected: int) -> None:
        super().__init__(code, err_code, description)
        self.args: tuple[Any, ...] = (code, err_code, description, key, expected)
        self.key = key
        self.expected = expected

    def __str__(self) -> str:
        return f"key {self.key!r} is not at revision {self.expected}: {super().__str__()}"


class KeyExistsError(WrongLastSequenceError):
    """The key has a value already, with this ``revision``; nothing was changed."""

    def __init__(self, code: int, err_code: int, description: str, key: str, revision: int) -> None:
        super().__init__(code, err_code, description)
        self.args: tuple[Any, ...] = (code, err_code, description, key, revision)
        self.key = key
        self.revision = revision

    def __str__(self) -> str:
        return f"key {self.key!r} exists with revision {self.revision}: {super().__str__()}"


class KeyNotFoundError(NotFoundError, KeyError):
    """
    The key has no value, or not at this revision; deleted keys have none.

    Attributes:
        bucket: the name of the bucket.
        key: the key.
        revision: the requested revision; ``None``: the last one.
        marker: the revision of the marker that the deletion or the expiry left; ``None``: there is none.

    """

    def __init__(
        self, bucket: str, key: str, revision: int | None = None, marker: int | None = None
    ) -> None:
        super().__init__(404, 10037, "no message found")
        self.args: tuple[Any, ...] = (bucket, key, revision, marker)
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


class StreamFullError(ServiceUnavailableError, err_codes=(10077,)):
    """The stream or bucket has reached its limit of bytes or messages; nothing was stored."""

    # Other failures of the storage have the same code.
    description_prefix = "maximum "


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


class TooManyBatchesError(APIError, err_codes=(10210, 10211)):
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


class JetStreamNotEnabledError(ServiceUnavailableError, err_codes=(10076,)):
    """JetStream is disabled on this server."""


class JetStreamNotEnabledForAccountError(ServiceUnavailableError, err_codes=(10039,)):
    """JetStream is disabled for this account."""


class NoStreamResponseError(JetStreamError):
    """No stream stored the message, even after the retries of ADR-22."""

    def __init__(self, subject: str, hint: str = "does a stream with this subject exist?") -> None:
        super().__init__(subject, hint)
        self.subject = subject
        self.hint = hint

    def __str__(self) -> str:
        return f"no stream stores {self.subject!r}: no response; {self.hint}"


class InvalidResponseError(JetStreamError):
    """A reply of the server is malformed."""


class MessagesChangedError(JetStreamError):
    """Messages were replaced or deleted while they were read in pages; read them again."""


class TooManyStalledMsgsError(JetStreamError):
    """``publish_async`` timed out waiting for a free slot among the pending acknowledgements."""


class PullError(JetStreamError):
    """
    A pull request ended with an error status.

    ``code`` and ``description`` are those of the status message (ADR-37, "Status handling").
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(code, description)
        self.code = code
        self.description = description

    def __str__(self) -> str:
        return f"{self.code} {self.description}".rstrip()


class BadRequestStatusError(PullError):
    """The server could not parse the pull request (400)."""


class ConsumerDeletedError(PullError):
    """The consumer or its stream was deleted (409 Consumer Deleted, or 503 for a pull request)."""


class ConsumerIsPushBasedError(PullError):
    """The consumer is a push consumer and does not accept pull requests (409)."""


class LeadershipChangeError(PullError):
    """The consumer's leader moved to another server; send a new pull request (409)."""


class RequestLimitError(PullError):
    """The pull request exceeded a limit of the consumer (409 Exceeded Max...)."""


class PinIDMismatchError(PullError):
    """Another client is now pinned to the consumer's priority group (423)."""


class NoHeartbeatError(JetStreamError):
    """Heartbeats of a consumer were missed."""

    def __init__(self, consumer: str, seconds: float) -> None:
        super().__init__(consumer, seconds)
        self.consumer = consumer
        self.seconds = seconds

    def __str__(self) -> str:
        return f"no heartbeat from consumer {self.consumer!r} for {self.seconds:g} s"


class OrderedConsumerResetError(JetStreamError):
    """An ordered consumer lost its server-side consumer and could not recreate it."""


class IteratorClosedError(JetStreamError):
    """The message iterator or consume handle was stopped."""


class NotJSMessageError(JetStreamError):
    """The message is not from a stream: it has no JetStream reply subject."""


class MsgAlreadyAckdError(JetStreamError):
    """The message was already acknowledged."""


# --- consumer administration ------------------------------------------------------------------


class ConsumerInvalidResetError(BadRequestError, err_codes=(10204,)):
    """The consumer's config does not allow a reset to this sequence; the consumer is unchanged."""


class BatchUncertainError(JetStreamError):
    """No acknowledgement of an atomic batch arrived: all of its messages are stored, or none."""

    def __init__(self, batch_id: str, reason: str) -> None:
        super().__init__(batch_id, reason)
        self.batch_id = batch_id
        self.reason = reason

    def __str__(self) -> str:
        return f"it is unknown whether the atomic batch {self.batch_id} is stored: {self.reason}"


class FastPublishError(JetStreamError):
    """
    A fast publish has ended early.

    All messages up to the batch sequence ``acked`` are stored; later ones may be stored.
    """

    def __init__(self, acked: int, reason: str) -> None:
        super().__init__(acked, reason)
        self.acked = acked
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; the messages up to number {self.acked} are stored"


class LockLostError(JetStreamError):
    """A lock on a key is not held any more, or was not acquired; see `Lock.check`."""


class ServerTooOldError(JetStreamError):
    """
    The server is too old for a request.

    A request or message was not sent. A config was sent, and the server applied the fields that it
    knows: a created stream or consumer was deleted again, or ``outcome`` names what an update changed.
    """

    def __init__(
        self,
        feature: str,
        needs: str,
        version: str,
        *,
        fields: tuple[str, ...] = (),
        outcome: str = "",
    ) -> None:
        super().__init__(feature, needs, version)
        self.feature = feature
        self.needs = needs
        self.version = version
        self.fields = fields
        self.outcome = outcome

    def __str__(self) -> str:
        text = f"{self.feature} needs nats-server {self.needs}; this server is {self.version}"
        return f"{text}; {self.outcome}" if self.outcome else text


# --- snapshots --------------------------------------------------------------------------------


class SnapshotFailedError(ServerError, err_codes=(10064,)):
    """The server cannot create a snapshot of the stream; no data was sent."""


class RestoreFailedError(ServerError, err_codes=(10062, 10072)):
    """The server cannot restore a stream from the data; no stream was created."""


class RestoreNameInUseError(StreamNameInUseError, err_codes=(10130,)):
    """A stream with this name already exists; it is unchanged."""


class SnapshotBrokenError(JetStreamError):
    """
    The data of a snapshot is incomplete and cannot be used.

    ``code`` is the final status of the server: 408 if the receiver stopped acknowledging, 500 if the
    server failed; 0 if a chunk did not arrive.
    """

    def __init__(self, stream: str, code: int, description: str) -> None:
        super().__init__(stream, code, description)
        self.stream = stream
        self.code = code
        self.description = description

    def __str__(self) -> str:
        status = f"{self.code} {self.description}" if self.code else self.description
        return f"snapshot of stream {self.stream!r} is incomplete: {status}"


class RestoreBrokenError(JetStreamError):
    """
    The server stopped a restore: it was restarted, or waited too long for the next chunk.

    No stream was created.
    """

    def __init__(self, stream: str, sent: int) -> None:
        super().__init__(stream, sent)
        self.stream = stream
        self.sent = sent
        """Number of bytes that the server had accepted."""

    def __str__(self) -> str:
        reason = f"the server accepts no more data after {self.sent} bytes"
        return f"restore of stream {self.stream!r} was interrupted: {reason}; restart the restore"


# --- object stores ----------------------------------------------------------------------------


class ObjectNotFoundError(NotFoundError):
    """There is no object with this name."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(404, 10037, f"object {name!r} does not exist in bucket {bucket!r}")
        self.args: tuple[Any, ...] = (bucket, name)
        self.bucket = bucket
        self.name = name


class ObjectDeletedError(ObjectNotFoundError):
    """The object was deleted."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name)
        self.description: str = f"object {name!r} was deleted from bucket {bucket!r}"


class ObjectStoreSealedError(BadRequestError):
    """The object store is sealed: it can be read, but not changed; nothing was changed."""


class ObjectStoreError(JetStreamError):
    """Base class of errors that concern one object of an object store."""

    _template: ClassVar[str] = "object {name!r} in bucket {bucket!r}"

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name)
        self.bucket = bucket
        self.name = name

    def __str__(self) -> str:
        return self._template.format(**vars(self))


class ObjectExistsError(ObjectStoreError):
    """An object with this name exists, and the operation does not replace it."""

    _template = "object {name!r} exists in bucket {bucket!r}: delete it first, or use another name"


class ObjectReplacedError(ObjectStoreError):
    """The object was replaced or deleted while it was read; read it again."""

    _template = "object {name!r} in bucket {bucket!r} was replaced or deleted while it was read"


class ObjectLinkError(ObjectStoreError):
    """A link cannot be created or followed."""

    _template = "object {name!r} in bucket {bucket!r}: {reason}"

    def __init__(self, bucket: str, name: str, reason: str) -> None:
        super().__init__(bucket, name)
        self.args: tuple[Any, ...] = (bucket, name, reason)
        self.reason = reason


class ObjectIncompleteError(ObjectStoreError):
    """The chunks of an object are not those that its info describes."""

    _template = "object {name!r} in bucket {bucket!r} is incomplete: {reason}"

    def __init__(self, bucket: str, name: str, reason: str) -> None:
        super().__init__(bucket, name)
        self.args: tuple[Any, ...] = (bucket, name, reason)
        self.reason = reason


class DigestMismatchError(ObjectStoreError):
    """The data of an object does not have the digest of its info; no data was returned as complete."""

    _template = (
        "object {name!r} in bucket {bucket!r} is damaged: digest {found}, expected {expected}"
    )

    def __init__(self, bucket: str, name: str, expected: str, found: str) -> None:
        super().__init__(bucket, name)
        self.args: tuple[Any, ...] = (bucket, name, expected, found)
        self.expected = expected
        self.found = found


class UnsupportedDigestError(ObjectStoreError):
    """The digest of an object is missing or not a SHA-256, so its data cannot be verified."""

    _template = "object {name!r} in bucket {bucket!r} has digest {digest!r}, which is not a SHA-256"

    def __init__(self, bucket: str, name: str, digest: str) -> None:
        super().__init__(bucket, name)
        self.args: tuple[Any, ...] = (bucket, name, digest)
        self.digest = digest


# --- the subscribe workflow (ADR-15) ----------------------------------------------------------


class SubscribeError(InvalidArgumentError, JetStreamError):
    """
    A subscription request is not possible; nothing was changed on the server.

    Also a `JetStreamError`.

    ``asked`` is the requested value, ``found`` the conflicting value: another argument, or the value
    on the server.
    """

    _template: ClassVar[str] = "requested {asked!r}, found {found!r}"

    def __init__(self, asked: object, found: object) -> None:
        super().__init__(asked, found)
        self.asked = asked
        self.found = found

    def __str__(self) -> str:
        return self._template.format(asked=self.asked, found=self.found)


class SubjectRequiredError(SubscribeError):
    """Neither a subject nor a stream is given, so no stream can be looked up."""

    _template = "subject={asked!r} and stream={found!r}: one of them is required to find the stream"


class AmbiguousSubjectError(SubscribeError):
    """Several streams match the subject; name one with ``stream=``."""

    _template = "subject {asked!r} matches several streams, {found!r}: choose one with stream="


class QueueHeartbeatError(SubscribeError):
    """The server would send heartbeats to one random member of a queue group."""

    _template = (
        "queue {asked!r} with an idle heartbeat of {found}: queue groups do not support heartbeats"
    )


class QueueFlowControlError(SubscribeError):
    """The server would send flow control requests to one random member of a queue group."""

    _template = (
        "queue {asked!r} with flow_control={found!r}: queue groups do not support flow control"
    )


class PullAckPolicyError(SubscribeError):
    """A pull subscription requires explicit acknowledgements."""

    _template = (
        "{asked} with ack_policy={found!s}: a pull subscription requires ack_policy=explicit"
    )


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


class QueueRequiredError(SubscribeError):
    """The consumer has a deliver group, but no queue was given."""

    _template = "queue={asked!r}, but the consumer has deliver_group={found!r}"


class QueueMismatchError(SubscribeError):
    """The consumer has another deliver group than the given queue."""

    _template = "queue={asked!r}, but the consumer has another deliver_group={found!r}"


class NoDeliverGroupError(SubscribeError):
    """A queue was given, but the consumer has no deliver group."""

    _template = "queue={asked!r}, but the consumer has no deliver group: deliver_group={found!r}"


class SubjectMismatchError(SubscribeError):
    """The subject differs from the filter of the consumer."""

    _template = "subject {asked!r} differs from the filter of the consumer: {found!r}"


class ConfigMismatchError(SubscribeError):
    """An option differs from the config of the existing consumer, which is not changed."""

    def __init__(self, option: str, asked: object, found: object) -> None:
        Exception.__init__(self, option, asked, found)
        self.option = option
        self.asked = asked
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.option}={_shown(self.asked)} was requested, but the existing consumer has "
            f"{_shown(self.found)} and is not changed"
        )


def _shown(value: object) -> str:
    """Return the readable form of a config value: an enum as its value, a duration as text."""
    return f"'{value}'" if isinstance(value, str) else str(value)


class ConsumerSequenceMismatchError(JetStreamError):
    """
    Messages sent by a push consumer did not arrive.

    With acknowledgements they are redelivered after the consumer's ``ack_wait``. Without them, resume
    after ``stream_resume_sequence``.
    """

    def __init__(
        self, stream_resume_sequence: int, consumer_sequence: int, last_consumer_sequence: int
    ) -> None:
        super().__init__(stream_resume_sequence, consumer_sequence, last_consumer_sequence)
        self.stream_resume_sequence = stream_resume_sequence
        """The stream sequence of the last message before the gap; 0 when there was none."""
        self.consumer_sequence = consumer_sequence
        """The consumer sequence of that message."""
        self.last_consumer_sequence = last_consumer_sequence
        """The last consumer sequence that the server sent."""

    def __str__(self) -> str:
        missing = self.last_consumer_sequence - self.consumer_sequence
        return (
            f"{missing} messages of a consumer are missing: the last received consumer sequence is "
            f"{self.consumer_sequence}, the last sent is {self.last_consumer_sequence}"
        )
