"""The options of a publish with their headers, its acknowledgement, and schedules."""

# Follows nats-server's server/stream.go (JSPubAckResponse), ADR-22, ADR-43, ADR-49, ADR-50 and ADR-51.

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict

from .. import errors, speedups
from ..codec import loads
from ..durations import MAX_TTL_S, NS_PER_S, check_time, duration, duration_to_ns, time_to_text
from ..exact import exact
from ..headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ_SUBJECT,
    EXPECTED_STREAM,
    MSG_ID,
    MSG_TTL,
    SCHEDULE,
    SCHEDULE_NEXT,
    SCHEDULE_ROLLUP,
    SCHEDULE_SOURCE,
    SCHEDULE_TARGET,
    SCHEDULE_TIME_ZONE,
    SCHEDULE_TTL,
    SCHEDULER,
    Headers,
    HeadersLike,
    check_headers,
)
from ..options import check_int, check_known
from ..subjects import check_publish_subject, check_stream_name, check_subject

if TYPE_CHECKING:
    from typing_extensions import Self

#: The TTL of a message that never expires, regardless of the stream's ``max_age`` (ADR-43).
NEVER: Final = "never"

LAST_SEQUENCE: Final = 2**64 - 1
#: Fields of a cron expression; the first of six is for seconds.
_CRON_FIELDS: Final = 6


class FastPublishOptions(TypedDict, total=False):
    """Further keyword arguments of `FastPublisher.add`."""

    expected_last_subject_sequence: int | None
    """Store the message only if this is the sequence of the last message with its subject, 0 for a subject
    without messages; ``None``, the default: any."""
    msg_ttl: float | timedelta | Literal["never"] | None
    """How long the stream keeps the message, in seconds, at least 1; ``"never"``: it does not expire,
    regardless of the stream's ``max_age``; ``None``, the default: the ``max_age`` of the stream. Requires a
    stream with ``allow_msg_ttl``, and server 2.11."""


class BatchOptions(FastPublishOptions, total=False):
    """Further keyword arguments of `Batch.add`."""

    expected_last_sequence: int | None
    """Store the message only if this is the sequence of the stream's last message, 0 for an empty stream;
    ``None``, the default: any. In a batch for the first message only."""
    expected_last_subject: str | None
    """The subject to which ``expected_last_subject_sequence`` applies; it may contain wildcards. ``None``, the
    default: the subject of the message. Needs server 2.11."""


class PublishOptions(BatchOptions, total=False):
    """
    Further keyword arguments of `JetStream.publish` and `JetStream.publish_async`.

    The first message after a connect with an option that needs a newer server requests the server's version.
    """

    expected_last_msg_id: str | None
    """Store the message only if the stream's last message has this id; ``None``, the default: any."""
    cancels: str | None
    """The subject of a schedule that the message ends (ADR-51), which must differ from the subject of the
    message; ``None``, the default: none. The server purges the subject, see :ref:`purge-fault`;
    `JetStream.cancel_schedule` does not. Needs server 2.12."""
    retry_attempts: int
    """Number of retries while there are no responders; 0: none; -1: until the timeout; default 2."""
    retry_wait: float | timedelta
    """Delay before each retry, in seconds; default 0.25."""


#: The names of the options of each call, with those of its own arguments that become headers.
FAST_PUBLISH_OPTIONS: Final = FastPublishOptions.__optional_keys__ | {"msg_id"}
BATCH_OPTIONS: Final = BatchOptions.__optional_keys__ | {"msg_id"}
PUBLISH_OPTIONS: Final = PublishOptions.__optional_keys__ | {"msg_id", "stream"}
#: The API level that an option needs; older servers ignore it.
OPTION_LEVELS: Final = {"cancels": 2, "msg_ttl": 1, "expected_last_subject": 1}


class Retries(NamedTuple):
    """How a publish is repeated while there are no responders (ADR-22)."""

    attempts: int = 2
    """Number of retries; -1: no limit."""

    wait_s: float = 0.25
    """Delay before each retry, in seconds."""

    @classmethod
    def of(cls, options: PublishOptions) -> Self:
        """Return the retries that publish options ask for."""
        attempts = options.get("retry_attempts", DEFAULT_RETRIES.attempts)
        attempts = check_int("retry_attempts", attempts, -1)
        wait = duration(options.get("retry_wait", DEFAULT_RETRIES.wait_s), "retry_wait")
        if wait < timedelta(0):
            raise errors.InvalidOptionError(
                "retry_wait", options["retry_wait"], "must be 0 or above"
            )
        return cls(attempts, wait.total_seconds())


DEFAULT_RETRIES: Final = Retries()


def given_options(
    options: Mapping[str, Any], msg_id: str | None, stream: str | None = None
) -> Mapping[str, Any]:
    """Return the options of a message, with the other arguments that become headers."""
    if msg_id is None and stream is None:
        return options
    given = {"msg_id": msg_id, **options}
    if stream is not None:
        given["stream"] = stream
    return given


#: Headers of each message that is published to a stream; none today. Checked by name, because a call of
#: `publish_headers` costs `JetStream.publish_async` 3 %.
EACH_MESSAGE: Final[dict[str, str]] = {}


def publish_headers(
    headers: HeadersLike | None,
    options: Mapping[str, Any] | None = None,
    names: frozenset[str] = PUBLISH_OPTIONS,
) -> HeadersLike | None:
    """Return the headers of a message, with those for its options and those of each message added."""
    # Each message to a stream passes here, however it is published; for the rows of Spark, the headers that all of
    # them share. The given headers are not modified; the others take precedence over them.
    extra = {**EACH_MESSAGE, **option_headers(options, names)} if options else EACH_MESSAGE
    if not extra:
        return headers
    if not headers:
        return extra
    merged = Headers(check_headers(headers))
    merged.update(extra)
    return merged


def option_headers(
    options: Mapping[str, Any], names: frozenset[str] = PUBLISH_OPTIONS
) -> dict[str, str]:
    """Return the headers for the options of a message, of which ``names`` are accepted."""
    check_known(options, names)
    headers: dict[str, str] = {}
    for option, value in options.items():
        if value is not None and option in _OPTION_HEADERS:
            header, text = _OPTION_HEADERS[option]
            headers[header] = text(value, option)
    if options.get("cancels") is not None:
        headers[SCHEDULE_NEXT] = "purge"
    subject = options.get("expected_last_subject")
    if subject is not None and options.get("expected_last_subject_sequence") is None:
        reason = "needs expected_last_subject_sequence"
        raise errors.InvalidOptionError("expected_last_subject", subject, reason)
    return headers


def _text(value: str, option: str) -> str:
    text = exact(value)
    if type(text) is not str or not text:
        raise errors.InvalidOptionError(option, value, "must be a str that is not empty")
    return text


def _number(value: int, option: str) -> str:
    return str(check_int(option, value, 0, LAST_SEQUENCE))


def ttl_text(value: float | timedelta | Literal["never"], option: str = "msg_ttl") -> str:
    """Return the header value of a time to live; raise `InvalidOptionError` if it is invalid."""
    if isinstance(value, str):
        if value != NEVER:
            raise errors.InvalidOptionError(
                option, value, "must be seconds, a timedelta or 'never'"
            )
        return NEVER
    ns = duration_to_ns(duration(value, option))
    if not NS_PER_S <= ns <= MAX_TTL_S * NS_PER_S:
        rule = "must be at least one second and at most 200 years; 'never' is longer"
        raise errors.InvalidOptionError(option, value, rule)
    # Whole seconds or a Go duration (ADR-43).
    return f"{ns}ns" if ns % NS_PER_S else str(ns // NS_PER_S)


#: The header of an option, and the function that checks and formats its value.
_OPTION_HEADERS: Final[Mapping[str, tuple[str, Callable[[Any, str], str]]]] = {
    "msg_id": (MSG_ID, _text),
    "stream": (EXPECTED_STREAM, lambda stream, _: check_stream_name(stream)),
    "expected_last_sequence": (EXPECTED_LAST_SEQ, _number),
    "expected_last_subject_sequence": (EXPECTED_LAST_SUBJECT_SEQ, _number),
    "expected_last_subject": (
        EXPECTED_LAST_SUBJECT_SEQ_SUBJECT,
        lambda subject, _: check_subject(subject),
    ),
    "expected_last_msg_id": (EXPECTED_LAST_MSG_ID, _text),
    "cancels": (SCHEDULER, lambda subject, _: check_publish_subject(subject)),
    "msg_ttl": (MSG_TTL, ttl_text),
}


class PubAck(NamedTuple):
    """
    The acknowledgement of a stream: the message is stored.

    A named tuple instead of a record for speed, because every publish creates one. Unknown fields of
    newer servers are dropped, because an acknowledgement is never sent back.
    """

    stream: str
    """The stream that stored the message."""

    seq: int
    """Stream sequence; for a duplicate the sequence of the original."""

    duplicate: bool = False
    """Whether the message is a duplicate by its message id and was not stored."""

    domain: str | None = None
    """JetStream domain of the stream, if any."""

    batch_id: str | None = None
    """Id of the committed atomic batch (ADR-50); ``batch`` in JSON."""

    batch_size: int | None = None
    """Number of messages in the batch; ``count`` in JSON."""

    val: str | None = None
    """New value of the counter (ADR-49): an integer of any size, as text."""

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """
        Create an acknowledgement from a decoded reply.

        Args:
            data: the result of `jetstream_sync.codec.loads()`.

        Raises:
            APIError: the server refused the message; the class names the reason.
            InvalidResponseError: the reply is not an acknowledgement.

        """
        if not isinstance(data, dict):
            raise errors.InvalidResponseError(f"PubAck: expected an object, got {data!r:.60}")
        get = data.get
        stream = get("stream")
        seq = get("seq")
        if type(seq) is int and seq > 0 and type(stream) is str and stream and len(data) == 2:
            # The usual reply: takes half the time of the general case below.
            return tuple.__new__(cls, (stream, seq, False, None, None, None, None))
        error = get("error")
        if isinstance(error, dict):
            raise errors.APIError.from_response(error)
        if error is not None:
            raise errors.InvalidResponseError(
                f"PubAck: expected an object as error, got {error!r:.60}"
            )
        if not stream or type(stream) is not str or type(seq) is not int or seq < 1:
            raise errors.InvalidResponseError(f"PubAck: expected stream and seq, got {data!r:.60}")
        optional = get("domain") or None, get("batch") or None, get("count"), get("val")
        for value, kind in zip(optional, (str, str, int, str), strict=True):
            if value is not None and type(value) is not kind:
                text = f"PubAck: expected {kind.__name__}, got {value!r:.60} in {data!r:.60}"
                raise errors.InvalidResponseError(text)
        return cls(stream, seq, get("duplicate") is True, *optional)


# The fields of an acknowledgement after the stream and the sequence.
_DEFAULTS: Final = tuple(PubAck._field_defaults.values())


def parse_pub_ack(response: bytes) -> PubAck:
    """Parse the reply of a server to a published message."""
    if speedups.parse_pub_ack is not None:
        ack = speedups.parse_pub_ack(response, PubAck, _DEFAULTS)
        if ack is not None:
            return ack  # type: ignore[no-any-return]
    return PubAck.from_json(loads(response))


# --- schedules (ADR-51) -------------------------------------------------------------------------


class Schedule(NamedTuple):
    """A schedule that a stream holds."""

    subject: str
    """Its subject, which identifies it."""

    rule: str
    """When messages are published: ``@at`` and a time, ``@every`` and a duration, or a cron expression."""

    target: str
    """The subject of the messages."""

    time_zone: str | None
    """The time zone of a cron expression; ``None``: UTC."""

    source: str | None
    """The subject whose last message is published; ``None``: the payload."""

    ttl: str | None
    """The time to live of the messages, as the server stores it; ``None``: that of the stream."""

    rollup: bool
    """Whether each message replaces the earlier ones of its subject."""

    payload: bytes
    """The payload of the messages."""

    headers: Headers
    """All headers of the schedule."""

    seq: int
    """Its sequence in the stream."""

    created: datetime
    """When it was stored, in UTC."""

    @classmethod
    def of(
        cls, subject: str, payload: bytes, headers: Headers, seq: int, created: datetime
    ) -> Schedule:
        """Return the schedule in a stored message."""
        get = headers.get
        return cls(
            subject,
            get(SCHEDULE, ""),
            get(SCHEDULE_TARGET, ""),
            get(SCHEDULE_TIME_ZONE),
            get(SCHEDULE_SOURCE),
            get(SCHEDULE_TTL),
            get(SCHEDULE_ROLLUP) == "sub",
            payload,
            headers,
            seq,
            created,
        )


def schedule_headers(
    target: str,
    at: datetime | None,
    every: float | timedelta | None,
    cron: str | None,
    time_zone: str | None,
    source: str | None = None,
    rollup: bool = False,
) -> dict[str, str]:
    """Return the headers of a schedule; see `JetStream.schedule` for the arguments."""
    rules = {"at": at, "every": every, "cron": cron}
    given = [name for name, value in rules.items() if value is not None]
    if len(given) != 1:
        raise errors.InvalidOptionError("at, every, cron", given, "give exactly one of them")
    headers = {SCHEDULE_TARGET: check_publish_subject(target)}
    if time_zone is not None:
        if cron is None:
            raise errors.InvalidOptionError("time_zone", time_zone, "needs 'cron'")
        headers[SCHEDULE_TIME_ZONE] = _text(time_zone, "time_zone")
    if source is not None:
        headers[SCHEDULE_SOURCE] = check_publish_subject(source)
    if rollup:
        headers[SCHEDULE_ROLLUP] = "sub"
    if at is not None:
        headers[SCHEDULE] = f"@at {time_to_text(check_time(at, 'at'))}"
    elif every is not None:
        headers[SCHEDULE] = _every(every)
    elif cron is not None:
        headers[SCHEDULE] = _cron(cron)
    return headers


def _every(value: float | timedelta) -> str:
    ns = duration_to_ns(duration(value, "every"))
    if ns < NS_PER_S:
        raise errors.InvalidOptionError("every", value, "must be at least one second")
    return f"@every {ns}ns" if ns % NS_PER_S else f"@every {ns // NS_PER_S}s"


def _cron(value: str) -> str:
    # Names such as @daily, but not the prefixes of the other rules.
    fields = exact(value).split() if isinstance(value, str) else []
    if len(fields) == _CRON_FIELDS - 1:
        fields = ["0", *fields]  # as in a crontab, at the second 0
    elif len(fields) != _CRON_FIELDS and not (len(fields) == 1 and fields[0].startswith("@")):
        rule = (
            "must have six fields, the first one for seconds, five fields as in a crontab, or be a name "
            "such as '@daily'"
        )
        raise errors.InvalidOptionError("cron", value, rule)
    return " ".join(fields)
