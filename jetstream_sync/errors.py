"""
The errors of jetstream_sync.

Everything that the package raises on purpose is one of these::

    Error                                             the root
    ├── InvalidArgumentError (also ValueError)        you passed something that can not work
    │   ├── BadSubjectError                           a subject, queue group or reply
    │   ├── InvalidNameError                          a stream or consumer name
    │   ├── InvalidHeaderError                        a header name or value
    │   ├── InvalidOptionError                        an option or a combination of options
    │   │   └── CredentialsError                      no login could be made of the options
    │   ├── MaxPayloadError                           payload with headers above the server's limit
    │   └── SubscribeError                            ADR-15: what was asked for does not fit
    │       ├── SubjectRequiredError                  neither a subject nor a stream was named
    │       ├── AmbiguousSubjectError                 several streams take messages of the subject
    │       ├── QueueHeartbeatError                   a queue subscription and an idle heartbeat
    │       ├── QueueFlowControlError                 a queue subscription and flow control
    │       ├── PullAckPolicyError                    a pull subscription without explicit acks
    │       ├── PullOnPushConsumerError               a pull subscription and a push consumer
    │       ├── PushOnPullConsumerError               a push subscription and a pull consumer
    │       ├── DuplicateSubscriptionError            the push consumer has a subscription already
    │       ├── QueueRequiredError                    no queue, and a consumer that has a group
    │       ├── QueueMismatchError                    a queue, and a consumer that has another group
    │       ├── NoDeliverGroupError                   a queue, and a consumer that has no group
    │       ├── SubjectMismatchError                  the subject is not what the consumer filters
    │       └── ConfigMismatchError                   an option is not what the consumer has
    ├── TimeoutError (also the built-in TimeoutError) the time you gave was not enough
    │   └── DrainTimeoutError
    ├── ConnectionClosedError (also ConnectionError)  the connection is closed, or was closed while you waited
    │   ├── ConnectionDrainingError                   it is on its way there
    │   ├── ConnectionLostError                       the link to the server broke
    │   ├── StaleConnectionError                      the server no longer answers pings
    │   ├── ProtocolError                             the server sent something that is not NATS
    │   ├── AuthorizationError                        the server refused the login
    │   │   └── AuthenticationExpiredError            a login that was good has run out, or was revoked
    │   ├── SecureConnectionError                     TLS is needed, or failed
    │   │   └── CertificateError                      the server's certificate is not to be trusted
    │   ├── ServerRefusedError                        the server closed the connection with an error
    │   └── ForkedConnectionError                     the connection belongs to the parent process
    ├── NoServersError (also ConnectionError)         no server could be reached
    ├── OutboundBufferLimitError                      no link, and the buffer for that time is full
    ├── ServerUnavailableError                        nats-server can not be started here
    ├── SubscriptionError
    │   ├── BadSubscriptionError                      the subscription has ended
    │   ├── SlowConsumerError                         messages were dropped: you read too slowly
    │   └── PermissionsError                          the server does not allow the subject
    ├── NoRespondersError                             nobody listens on the subject of a request
    └── JetStreamError
        ├── APIError                                  the server refused; see below
        ├── NoStreamResponseError                     no stream took the message
        ├── InvalidResponseError                      an answer that makes no sense
        ├── TooManyStalledMsgsError                   the window of publish_async stayed full
        ├── PullError                                 a pull request ended with an error status
        │   ├── BadRequestStatusError                 400
        │   ├── ConsumerDeletedError                  409 Consumer Deleted
        │   ├── ConsumerIsPushBasedError              409 Consumer is push based
        │   ├── LeadershipChangeError                 409 Leadership Change
        │   ├── RequestLimitError                     409 Exceeded Max...
        │   └── PinIDMismatchError                    423
        ├── NoHeartbeatError                          the consumer went silent
        ├── OrderedConsumerResetError                 an ordered consumer could not be made again
        ├── IteratorClosedError                       the iterator or consume handle was stopped
        ├── NotJSMessageError                         not a message of a stream
        ├── MsgAlreadyAckdError                       it was acknowledged before
        ├── ConsumerSequenceMismatchError             messages of a push consumer are missing; reported
        ├── ServerTooOldError                         the server does not know what was asked for
        ├── SnapshotBrokenError                       the data of a snapshot ended before its end
        └── RestoreBrokenError                        the server takes no more of a restore

`APIError` has a class for each refusal that a program would want to catch, chosen by the
server's ``err_code`` (and by ``code`` where the ``err_code`` is not known)::

    APIError(code, err_code, description)
    ├── BadRequestError            400
    │   ├── StreamNameInUseError
    │   │   └── RestoreNameInUseError
    │   ├── StreamSubjectOverlapError, ConsumerExistsError, ConsumerInvalidResetError,
    │   ├── ConsumerNameInUseError, ConsumerDoesNotExistError, MaxConsumersError,
    │   ├── WrongLastSequenceError, WrongLastMsgIDError, WrongStreamError,
    │   └── MessageTTLDisabledError, ...
    ├── NotFoundError              404
    │   └── StreamNotFoundError, ConsumerNotFoundError, MessageNotFoundError
    ├── ServerError                500
    │   └── SnapshotFailedError, RestoreFailedError
    └── ServiceUnavailableError    503
        └── JetStreamNotEnabledError, JetStreamNotEnabledForAccountError

The fields of an error are its constructor's arguments, in order, so every error survives pickle:
Spark and multiprocessing carry them between processes.
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
    "CertificateError",
    "ConfigMismatchError",
    "ConnectionClosedError",
    "ConnectionDrainingError",
    "ConnectionLostError",
    "ConsumerDeletedError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerInvalidResetError",
    "ConsumerIsPushBasedError",
    "ConsumerNameInUseError",
    "ConsumerNotFoundError",
    "ConsumerSequenceMismatchError",
    "CredentialsError",
    "DrainTimeoutError",
    "DuplicateSubscriptionError",
    "Error",
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
    "LeadershipChangeError",
    "MaxConsumersError",
    "MaxPayloadError",
    "MessageNotFoundError",
    "MessageTTLDisabledError",
    "MsgAlreadyAckdError",
    "NoDeliverGroupError",
    "NoHeartbeatError",
    "NoRespondersError",
    "NoServersError",
    "NoStreamResponseError",
    "NotFoundError",
    "NotJSMessageError",
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
    "SecureConnectionError",
    "ServerError",
    "ServerRefusedError",
    "ServerTooOldError",
    "ServerUnavailableError",
    "ServiceUnavailableError",
    "SlowConsumerError",
    "SnapshotBrokenError",
    "SnapshotFailedError",
    "StaleConnectionError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamSubjectOverlapError",
    "SubjectMismatchError",
    "SubjectRequiredError",
    "SubscribeError",
    "SubscriptionError",
    "TimeoutError",
    "TooManyStalledMsgsError",
    "WrongLastMsgIDError",
    "WrongLastSequenceError",
    "WrongStreamError",
]


class Error(Exception):
    """The root of every error that this package raises on purpose."""


# --- what the caller passed -------------------------------------------------------------------

#: Characters of a value that the text of an error repeats; the attribute has all of it.
_EXCERPT: Final = 200


def _short(text: str) -> str:
    return repr(text) if len(text) <= _EXCERPT else f"{text[:_EXCERPT]!r}..."


class InvalidArgumentError(Error, ValueError):
    """An argument can not work; nothing was sent."""


class BadSubjectError(InvalidArgumentError):
    """A subject, reply subject or queue group is not well formed."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        return f"bad subject {_short(self.subject)}: {self.reason}"


class InvalidNameError(InvalidArgumentError):
    """A stream or consumer name is not well formed."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind = kind
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"bad {self.kind} name {_short(self.name)}: {self.reason}"


class InvalidHeaderError(InvalidArgumentError):
    """A header name or value can not be sent; the value is not repeated here, it may be secret."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"bad header {self.name!r}: {self.reason}"


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
    No login could be made of the options: a file, a function or the package that signs fails.

    ``value`` is the path, or ``...``; what is in a file, or what a function returned, is never
    repeated. ``__cause__`` is what the function raised.
    """


class MaxPayloadError(InvalidArgumentError):
    """Payload and headers together are larger than the server accepts."""

    def __init__(self, size: int, max_payload: int) -> None:
        super().__init__(size, max_payload)
        self.size = size
        self.max_payload = max_payload

    def __str__(self) -> str:
        message = f"the message is {self.size} bytes with its headers"
        return f"{message}; the server accepts {self.max_payload} (its max_payload)"


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - it is the built-in one, too
    """The time given to a call ran out."""


class DrainTimeoutError(TimeoutError):
    """Draining took longer than ``drain_timeout``; what was left is dropped."""


# --- the connection ---------------------------------------------------------------------------


class ConnectionClosedError(Error, builtins.ConnectionError):
    """The connection is closed; ``__cause__``, when set, says why."""


class ConnectionDrainingError(ConnectionClosedError):
    """The connection or subscription is draining and takes nothing new."""


class ConnectionLostError(ConnectionClosedError):
    """The link to the server broke."""


class StaleConnectionError(ConnectionClosedError):
    """The server left too many pings unanswered, or told us that we did."""


class ProtocolError(ConnectionClosedError):
    """
    The server sent bytes that are not the NATS protocol.

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
    """A login that the server had accepted has run out, or was revoked."""


class SecureConnectionError(ConnectionClosedError):
    """TLS was asked for and not offered, is required and not possible, or its handshake failed."""


class CertificateError(SecureConnectionError):
    """The server's certificate is not to be trusted: whose it is, who signed it, or when it ran out."""


class ServerRefusedError(ConnectionClosedError):
    """The server sent an error after which it closes the connection; its text is the message."""


class ForkedConnectionError(ConnectionClosedError):
    """The connection was made in a parent process and does not work in this one."""


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
    """There is no link to a server now, and ``pending_size`` bytes wait for one; nothing was added."""

    def __init__(self, pending_size: int) -> None:
        super().__init__(pending_size)
        self.pending_size = pending_size

    def __str__(self) -> str:
        return f"not connected, and {self.pending_size} bytes (pending_size) are buffered already"


class ServerUnavailableError(Error):
    """A nats-server program is not there or did not start; the message says what to do."""


# --- subscriptions ----------------------------------------------------------------------------


class SubscriptionError(Error):
    """Something is wrong with one subscription; the connection is well."""


class BadSubscriptionError(SubscriptionError):
    """The subscription has ended: it was unsubscribed, drained or reached its limit."""


class SlowConsumerError(SubscriptionError):
    """Messages of a subscription were dropped, because it reached a pending limit."""

    def __init__(self, subject: str, sid: int, dropped: int) -> None:
        super().__init__(subject, sid, dropped)
        self.subject = subject
        self.sid = sid
        self.dropped = dropped

    def __str__(self) -> str:
        who = f"slow consumer on {self.subject!r} (sid {self.sid})"
        return f"{who}: {self.dropped} messages dropped so far; read faster or raise its limits"


class PermissionsError(SubscriptionError):
    """The server does not permit publishing to, or subscribing to, a subject; made of its text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.operation, self.subject, self.queue = parse_permissions_violation(text)
        """``publish``, ``subscribe``, or ``reply`` for a reply subject that may not be used; the
        subject; and the queue group of a subscription, empty without one."""


class NoRespondersError(Error):
    """Nobody listens on the subject of a request."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"no responders on {self.subject!r}"


# --- JetStream --------------------------------------------------------------------------------


class JetStreamError(Error):
    """The root of what is JetStream's and not the connection's."""


class APIError(JetStreamError):
    """
    The server refused a JetStream request.

    Subclasses register themselves for an ``err_code``, or for a ``code`` where the server
    has too many error codes to name; `from_response()` picks the most exact one.
    """

    #: The class for each known ``err_code`` (nats-server's ``errors.json``).
    by_err_code: ClassVar[dict[int, type[APIError]]] = {}
    #: The class for each HTTP-like ``code``, for error codes without a class of their own.
    by_code: ClassVar[dict[int, type[APIError]]] = {}

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
        Make the most exact error for the ``error`` object of a JetStream reply.

        Args:
            error: the decoded object, with ``code``, ``err_code`` and ``description``; what is
                missing, as in replies of old servers, is 0 or empty.

        Returns:
            An instance of the class registered for the ``err_code``, else for the ``code``,
            else of `APIError`. It is returned, not raised.

        """
        code, err_code = _number(error.get("code")), _number(error.get("err_code"))
        description = str(error.get("description", ""))
        chosen = cls.by_err_code.get(err_code) or cls.by_code.get(code) or APIError
        return chosen(code, err_code, description)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class BadRequestError(APIError, code=400):
    """The server could not do what was asked (400)."""


class NotFoundError(APIError, code=404):
    """A stream, consumer or message is not there (404)."""


class ServerError(APIError, code=500):
    """The server failed (500)."""


class ServiceUnavailableError(APIError, code=503):
    """JetStream is not available now, or not at all (503)."""


class StreamNotFoundError(NotFoundError, err_codes=(10059,)):
    """The stream does not exist."""


class ConsumerNotFoundError(NotFoundError, err_codes=(10014,)):
    """The consumer does not exist."""


class MessageNotFoundError(NotFoundError, err_codes=(10037, 10043)):
    """The stream has no such message."""


class StreamNameInUseError(BadRequestError, err_codes=(10058,)):
    """A stream of that name exists with another configuration."""


class StreamSubjectOverlapError(BadRequestError, err_codes=(10065,)):
    """Another stream already takes one of the subjects."""


class ConsumerNameInUseError(BadRequestError, err_codes=(10013, 10105)):
    """The consumer's name is taken."""


class ConsumerExistsError(BadRequestError, err_codes=(10148,)):
    """The consumer exists with another configuration, and the action was ``create``."""


class ConsumerDoesNotExistError(BadRequestError, err_codes=(10149,)):
    """The consumer does not exist, and the action was ``update``."""


class MaxConsumersError(BadRequestError, err_codes=(10026,)):
    """The stream or account has as many consumers as it may have."""


class WrongLastSequenceError(BadRequestError, err_codes=(10071, 10164)):
    """The last sequence (of the stream or subject) is not the expected one; nothing was stored."""


class WrongLastMsgIDError(BadRequestError, err_codes=(10070,)):
    """The last message id is not the expected one; nothing was stored."""


class WrongStreamError(BadRequestError, err_codes=(10060,)):
    """The subject belongs to another stream than the expected one; nothing was stored."""


class MessageTTLDisabledError(BadRequestError, err_codes=(10166,)):
    """The message carries a TTL and the stream does not allow that; nothing was stored."""


class JetStreamNotEnabledError(ServiceUnavailableError, err_codes=(10076,)):
    """JetStream is off on this server."""


class JetStreamNotEnabledForAccountError(ServiceUnavailableError, err_codes=(10039,)):
    """JetStream is off for this account."""


class NoStreamResponseError(JetStreamError):
    """No stream took the message, also after the retries of ADR-22."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"no stream takes {self.subject!r} (no response; is there a stream for it?)"


class InvalidResponseError(JetStreamError):
    """The server's answer does not make sense."""


class TooManyStalledMsgsError(JetStreamError):
    """The window of ``publish_async`` stayed full for as long as the call was allowed to wait."""


class PullError(JetStreamError):
    """
    A pull request ended with a status that is an error.

    ``code`` and ``description`` are those of the status message (ADR-37, "Status handling").
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(code, description)
        self.code = code
        self.description = description

    def __str__(self) -> str:
        return f"{self.code} {self.description}".rstrip()


class BadRequestStatusError(PullError):
    """The server could not read the pull request (400)."""


class ConsumerDeletedError(PullError):
    """The consumer, or its stream, is gone (409 Consumer Deleted, or 503 to a pull request)."""


class ConsumerIsPushBasedError(PullError):
    """The consumer delivers to a subject; it can not be pulled from (409)."""


class LeadershipChangeError(PullError):
    """The consumer's leader moved to another server; pull again (409)."""


class RequestLimitError(PullError):
    """The pull request was over a limit of the consumer (409 Exceeded Max...)."""


class PinIDMismatchError(PullError):
    """Another client holds the pin of the consumer's priority group now (423)."""


class NoHeartbeatError(JetStreamError):
    """Heartbeats of a consumer were missed."""

    def __init__(self, consumer: str, seconds: float) -> None:
        super().__init__(consumer, seconds)
        self.consumer = consumer
        self.seconds = seconds

    def __str__(self) -> str:
        return f"no heartbeat from consumer {self.consumer!r} for {self.seconds:g} s"


class OrderedConsumerResetError(JetStreamError):
    """An ordered consumer lost its consumer on the server and could not make it again."""


class IteratorClosedError(JetStreamError):
    """The message iterator or consume handle was stopped."""


class NotJSMessageError(JetStreamError):
    """The message did not come from a stream: it has no JetStream reply subject."""


class MsgAlreadyAckdError(JetStreamError):
    """The message was acknowledged before."""


# --- administering consumers ------------------------------------------------------------------


class ConsumerInvalidResetError(BadRequestError, err_codes=(10204,)):
    """The consumer's config does not allow to go on at that sequence; it is as it was."""


class ServerTooOldError(JetStreamError):
    """
    The server is too old for a request.

    Nothing was sent of a request or a message. Of a config, the server accepted the fields that it
    knows: what a create made is removed again, or ``outcome`` names what an update changed.
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
        text = f"{self.feature} needs nats-server {self.needs}; this one is {self.version}"
        return f"{text}; {self.outcome}" if self.outcome else text


# --- snapshots --------------------------------------------------------------------------------


class SnapshotFailedError(ServerError, err_codes=(10064,)):
    """The server can not make a snapshot of the stream; nothing of it was sent."""


class RestoreFailedError(ServerError, err_codes=(10062, 10072)):
    """The server can not make a stream of the data; there is none."""


class RestoreNameInUseError(StreamNameInUseError, err_codes=(10130,)):
    """A stream of that name exists, whatever its configuration; it is as it was."""


class SnapshotBrokenError(JetStreamError):
    """
    The data of a snapshot ended before its end; what came of it is of no use.

    ``code`` is the status that the server ended it with: 408 when it saw nobody take the data any
    more, 500 when it failed; 0 when a piece did not arrive.
    """

    def __init__(self, stream: str, code: int, description: str) -> None:
        super().__init__(stream, code, description)
        self.stream = stream
        self.code = code
        self.description = description

    def __str__(self) -> str:
        status = f"{self.code} {self.description}" if self.code else self.description
        return f"the snapshot of stream {self.stream!r} broke off: {status}"


class RestoreBrokenError(JetStreamError):
    """
    The server takes no more of a restore: it was restarted, or waited too long for the next piece.

    It makes no stream of what it has.
    """

    def __init__(self, stream: str, sent: int) -> None:
        super().__init__(stream, sent)
        self.stream = stream
        self.sent = sent
        """How many bytes it had taken."""

    def __str__(self) -> str:
        done = f"the server takes no more after {self.sent} bytes"
        return f"the restore of stream {self.stream!r} broke off: {done}; start again"


# --- the subscribe workflow (ADR-15) ----------------------------------------------------------


class SubscribeError(InvalidArgumentError, JetStreamError):
    """
    A subscription can not be made as it was asked for; nothing was changed on the server.

    It is a `JetStreamError`, too.

    ``asked`` is what the caller wants, ``found`` what that disagrees with: another argument, or
    what the server says.
    """

    _says: ClassVar[str] = "asked for {asked!r}, found {found!r}"

    def __init__(self, asked: object, found: object) -> None:
        super().__init__(asked, found)
        self.asked = asked
        self.found = found

    def __str__(self) -> str:
        return self._says.format(asked=self.asked, found=self.found)


class SubjectRequiredError(SubscribeError):
    """Neither a subject nor a stream is named, so no stream can be found."""

    _says = "subject={asked!r} and stream={found!r}: one of them is needed to find the stream"


class AmbiguousSubjectError(SubscribeError):
    """Several streams take messages of the subject; name the one that is meant."""

    _says = "subject {asked!r} is taken by several streams, {found!r}: say which with stream="


class QueueHeartbeatError(SubscribeError):
    """The server would send heartbeats to one random member of a queue group."""

    _says = "queue {asked!r} with an idle heartbeat of {found}: queues can not have heartbeats"


class QueueFlowControlError(SubscribeError):
    """The server would ask one random member of a queue group to confirm."""

    _says = "queue {asked!r} with flow_control={found!r}: queues can not have flow control"


class PullAckPolicyError(SubscribeError):
    """Messages that are pulled are acknowledged one by one."""

    _says = "{asked} with ack_policy={found!s}: a pull subscription needs explicit acks"


class PullOnPushConsumerError(SubscribeError):
    """The consumer delivers to a subject; it can not be pulled from."""

    _says = "can not pull from consumer {asked!r}: it delivers to {found!r}"


class PushOnPullConsumerError(SubscribeError):
    """The consumer delivers nowhere by itself; it has to be pulled from."""

    _says = (
        "consumer {asked!r} has deliver_subject={found!r}: it has to be pulled from, "
        "as pull_subscribe() does"
    )


class DuplicateSubscriptionError(SubscribeError):
    """The consumer has a subscription already, and is not for a group."""

    _says = (
        "duplicate subscription: somebody is bound to consumer {asked!r}, listening on {found!r}"
    )


class QueueRequiredError(SubscribeError):
    """The consumer was made for a queue group."""

    _says = "queue={asked!r}, but the consumer was made for queue group {found!r}"


class QueueMismatchError(SubscribeError):
    """The consumer was made for another queue group."""

    _says = "queue {asked!r}, but the consumer was made for another queue group, {found!r}"


class NoDeliverGroupError(SubscribeError):
    """The consumer was not made for a queue group."""

    _says = "queue {asked!r}, but the consumer was made without a group: deliver_group={found!r}"


class SubjectMismatchError(SubscribeError):
    """The consumer filters something else than the subject."""

    _says = "subject {asked!r} is not what the consumer filters: {found!r}"


class ConfigMismatchError(SubscribeError):
    """An option differs from what the existing consumer has; an existing consumer is not changed."""

    def __init__(self, option: str, asked: object, found: object) -> None:
        Exception.__init__(self, option, asked, found)
        self.option = option
        self.asked = asked
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.option}={_shown(self.asked)} was asked for, but the consumer has "
            f"{_shown(self.found)}, and is not changed"
        )


def _shown(value: object) -> str:
    """Return a config's value as people write it: enums are words, durations are not calls."""
    return f"'{value}'" if isinstance(value, str) else str(value)


class ConsumerSequenceMismatchError(JetStreamError):
    """
    Messages that a push consumer sent did not arrive.

    With acknowledgements they are delivered again after the consumer's ``ack_wait``; without them,
    ``stream_resume_sequence`` is where to read on: the stream sequence of the last message before.
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
        """The last consumer sequence that the server says it sent."""

    def __str__(self) -> str:
        missing = self.last_consumer_sequence - self.consumer_sequence
        return (
            f"{missing} of a consumer's messages are missing: the last one had consumer sequence "
            f"{self.consumer_sequence}, the server is at {self.last_consumer_sequence}"
        )
