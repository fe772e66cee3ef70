"""Subjects and names: their rules, the subjects of the JetStream API, and the reply subjects of messages."""

# A name on a control line could inject a protocol command, so every name is validated before it is
# encoded. The rules are those of nats-server (``server/sublist.go``) and ADR-6. The checks are local and
# send nothing.
#
# `Routes` adds the prefix of a domain (ADR-19) or of an account import to every subject of the JetStream API. The
# subjects are nats-server's (server/jetstream_api.go).
#
# The reply subject of a message from a stream has its metadata, in one of two forms (ADR-15; nats-server 2.14 can
# be configured to use the second):
#
#     $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>
#     $JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>
#            .<timestamp>.<pending>[.<more>...]
#
# The first form has exactly 9 tokens, the second 11 or more; 10 tokens are invalid. The domain _ means
# no domain.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import combinations, takewhile
from typing import Any, Final, NamedTuple

from . import errors
from .exact import exact
from .records import Frozen, frozen

#: Maximum length of a protocol command in bytes, without line end and payload: the default of
#: nats-server (``MAX_CONTROL_LINE_SIZE``). The server closes the connection on a longer command.
MAX_CONTROL_LINE: Final = 4096
#: Maximum length of a stream or consumer name in bytes (nats-server's ``JSMaxNameLen``).
_MAX_NAME_BYTES: Final = 255

# Names become file names on the server, so slashes are forbidden (ADR-6).
_FORBIDDEN_IN_NAMES = re.compile(r"[\s>*./\\\x00-\x1f\x7f]")
# Servers accept other white space and control characters in names (``isValidName``).
_FORBIDDEN_BY_SERVERS = re.compile(r"[ \t\r\n\f>*./\\\x00]")
_FORBIDDEN_IN_SUBJECTS = re.compile(r"[\s\x00-\x1f\x7f]")

#: The API of JetStream without a domain or a custom prefix, and the requests to services (ADR-32).
API_PREFIX: Final = "$JS.API"
SERVICES_PREFIX: Final = "$SRV"
#: The start of the names of the streams of key-value buckets and of object stores.
KV_PREFIX: Final = "KV_"
OBJECT_PREFIX: Final = "OBJ_"
#: The start of the subjects in them.
KEYS_PREFIX: Final = "$KV."
OBJECTS_PREFIX: Final = "$O."
#: The start of the reply subject of a message from a consumer.
ACK_PREFIX: Final = b"$JS.ACK."
#: Keys that start with this are reserved (ADR-8).
_RESERVED_KEYS: Final = "_kv"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Length in bytes up to which the subject of a request always fits into a command, with headers, payload
#: and the reply inbox of any usual length.
MAX_REQUEST_SUBJECT: Final = MAX_CONTROL_LINE - 256
#: How the subjects of requests that change nothing begin, after the prefix.
_READING: Final = (
    "INFO",
    "STREAM.INFO.",
    "STREAM.LIST",
    "STREAM.MSG.GET.",
    "STREAM.NAMES",
    "CONSUMER.INFO.",
    "CONSUMER.LIST.",
    "CONSUMER.NAMES.",
)

#: The first tokens of subjects that call a server, or that only one client reads.
_RESERVED: Final = frozenset({"$JS", "$SYS", "_INBOX"})


def check_publish_subject(subject: str) -> str:
    """Return a subject to publish to; raise `BadSubjectError` if it is invalid."""
    subject = check_subject(subject)
    # "a*b" and "a>b" are literal tokens; only "*" and ">" as whole tokens are wildcards.
    if ("*" in subject or ">" in subject) and not {"*", ">"}.isdisjoint(subject.split(".")):
        raise errors.BadSubjectError(subject, "a subject to publish to must not contain wildcards")
    return subject


def selects_itself(subject: str) -> bool:
    """Return whether a filter with the subject of a stored message matches that subject alone."""
    # A server stores what another client publishes under ``a.>``: as a filter, that is all of ``a``.
    try:
        check_publish_subject(subject)
    except errors.BadSubjectError:
        return False
    return True


def check_subject(subject: str) -> str:
    """Return a subject that may contain wildcards; raise `BadSubjectError` if it is invalid."""
    subject = exact(subject)
    if type(subject) is not str:
        raise errors.BadSubjectError(repr(subject), f"must be a str, not {type(subject).__name__}")
    if not subject:
        raise errors.BadSubjectError(subject, "must not be empty")
    _check_length(subject)
    if _FORBIDDEN_IN_SUBJECTS.search(subject) or _has_surrogates(subject):
        raise errors.BadSubjectError(
            subject, "must not contain white space, control characters or surrogates"
        )
    if subject[0] == "." or subject[-1] == "." or ".." in subject:
        raise errors.BadSubjectError(subject, "must not contain an empty token")
    if ">" in subject and ">" in subject.split(".")[:-1]:
        raise errors.BadSubjectError(subject, "'>' must be the last token")
    return subject


def is_reserved(subject: str, api_prefix: str | None = None) -> bool:
    """Return whether a subject calls a server API, also behind the prefix of another account, or is an inbox."""
    if subject.partition(".")[0] in _RESERVED:
        return True
    return api_prefix is not None and f"{subject}.".startswith(f"{api_prefix}.")


def check_queue(queue: str) -> str:
    """Return the name of a queue group; raise `BadSubjectError` if it is invalid."""
    queue = exact(queue)
    if type(queue) is not str:
        raise errors.BadSubjectError(
            repr(queue), f"a queue group must be a str, not {type(queue).__name__}"
        )
    _check_length(queue)
    if _FORBIDDEN_IN_SUBJECTS.search(queue) or _has_surrogates(queue):
        raise errors.BadSubjectError(
            queue, "a queue group must not contain white space or control characters"
        )
    return queue


def _check_length(text: str) -> None:
    """Raise `BadSubjectError` for a text that exceeds any command; the encoder checks the whole line."""
    if len(text) > MAX_CONTROL_LINE:
        raise errors.BadSubjectError(
            text, f"must not exceed {MAX_CONTROL_LINE} bytes, the maximum of a command"
        )


def _has_surrogates(text: str) -> bool:
    """Return whether a text has lone surrogates, which cannot be encoded as UTF-8."""
    # A pattern that contains them takes a third of a millisecond to compile.
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_stream_name(name: str, *, new: bool = False) -> str:
    """Return a stream name; raise `InvalidNameError` if it is invalid."""
    return _check_name("stream", name, new)


def check_consumer_name(name: str, *, new: bool = False) -> str:
    """Return a consumer name; raise `InvalidNameError` if it is invalid."""
    return _check_name("consumer", name, new)


def _check_name(kind: str, name: str, new: bool) -> str:
    name = exact(name)
    if type(name) is not str:
        raise errors.InvalidNameError(kind, repr(name), f"must be a str, not {type(name).__name__}")
    if not name:
        raise errors.InvalidNameError(kind, name, "must not be empty")
    forbidden = _FORBIDDEN_IN_NAMES if new else _FORBIDDEN_BY_SERVERS
    if forbidden.search(name) or _has_surrogates(name):
        raise errors.InvalidNameError(
            kind, name, "must not contain white space, '.', '*', '>', '/' or '\\'"
        )
    if len(name) > _MAX_NAME_BYTES or len(name.encode()) > _MAX_NAME_BYTES:
        raise errors.InvalidNameError(kind, name, f"must not exceed {_MAX_NAME_BYTES} bytes")
    return name


def subject_matches(pattern: str, subject: str) -> bool:
    """Return whether a subject, or every subject that a second pattern matches, matches a pattern."""
    wanted = pattern.split(".")
    tokens = subject.split(".")
    for position, expected in enumerate(wanted):
        if expected == ">":
            return len(tokens) > position
        if position >= len(tokens) or tokens[position] == ">":
            return False
        if expected not in ("*", tokens[position]):
            return False
    return len(wanted) == len(tokens)


def subjects_overlap(one: str, other: str) -> bool:
    """Return whether any subject matches both patterns."""
    ones, others = one.split("."), other.split(".")
    for first, second in zip(ones, others, strict=False):
        if ">" in {first, second}:
            return True
        if first != second and "*" not in {first, second}:
            return False
    # A final > matches at least one token: a.> does not match a.
    return len(ones) == len(others)


def filter_fields(subjects: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a config with these filters, one or several; none: all subjects of the stream."""
    several = len(subjects) > 1
    return {
        "filter_subject": subjects[0] if subjects and not several else None,
        "filter_subjects": list(subjects) if several else None,
    }


# --- buckets and their keys ----------------------------------------------------------------------

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*")
_PATTERN = re.compile(r"(?:>|(?:\*|[-/_=a-zA-Z0-9]+)(?:\.(?:\*|[-/_=a-zA-Z0-9]+))*(?:\.>)?)")
_KEY_RULE: Final = "must consist of letters, digits and '-', '/', '_', '=', in tokens that are separated by single dots"


def check_bucket(bucket: str) -> str:
    """Return the name of a bucket; raise `InvalidNameError` if it is invalid."""
    bucket = exact(bucket)
    if not is_bucket_name(bucket):
        shown = bucket if type(bucket) is str else repr(bucket)
        raise errors.InvalidNameError(
            "bucket", shown, "must consist of letters, digits, '_' and '-'"
        )
    return bucket


def is_bucket_name(name: object) -> bool:
    """Return whether a bucket may have a name."""
    return isinstance(name, str) and _BUCKET.fullmatch(name) is not None


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of the chunks of an object in an object store."""
    return f"{OBJECTS_PREFIX}{bucket}.C.{nuid}"


def check_key(key: str) -> str:
    """Return a key; raise `InvalidNameError` if it is invalid."""
    key = exact(key)
    if type(key) is not str or not _KEY.fullmatch(key):
        raise errors.InvalidNameError("key", key if type(key) is str else repr(key), _KEY_RULE)
    return key


def check_pattern(pattern: str) -> str:
    """Return a key with wildcards, ``*`` for a token, ``>`` for the rest; raise `InvalidNameError` if invalid."""
    pattern = exact(pattern)
    if type(pattern) is not str or not _PATTERN.fullmatch(pattern):
        shown = pattern if type(pattern) is str else repr(pattern)
        raise errors.InvalidNameError("key", shown, f"{_KEY_RULE}; wildcards are whole tokens")
    return pattern


def check_writable(key: str) -> str:
    """Return a key; raise `InvalidNameError` if it is reserved."""
    if key.startswith(_RESERVED_KEYS):
        raise errors.InvalidNameError(
            "key", key, f"keys that start with {_RESERVED_KEYS!r} are reserved"
        )
    return key


def is_pattern(subject: str) -> bool:
    """Return whether a subject may match others."""
    return "*" in subject or subject.endswith(">")


def merge_patterns(patterns: Iterable[str]) -> tuple[list[str], Callable[[str], bool] | None]:
    """Return patterns that do not overlap, which the server requires of the filters of a consumer."""
    given = list(dict.fromkeys(patterns)) or [">"]
    if len(given) == 1:
        return given, None
    # Keys overlap only with wildcards: the cost of thousands of keys must not grow with their square.
    wild = list(filter(is_pattern, given))
    kept = [
        pattern
        for pattern in given
        if not any(subject_matches(item, pattern) for item in wild if item != pattern)
    ]
    left = [pattern for pattern in wild if pattern in kept]
    if not any(subjects_overlap(one, other) for one, other in combinations(left, 2)):
        return kept, None
    # One pattern with the tokens that all of them begin with, other than their last one.
    columns = zip(*(pattern.split(".")[:-1] for pattern in kept), strict=False)
    common = [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, columns)]
    return [".".join([*common, ">"])], lambda key: any(subject_matches(item, key) for item in kept)


# --- the API of JetStream ------------------------------------------------------------------------


def fits_request(subject: str) -> bool:
    """Return whether a subject is within `MAX_REQUEST_SUBJECT`."""
    # Without encoding: a character has at most four bytes.
    limit = MAX_REQUEST_SUBJECT
    return 4 * len(subject) <= limit or len(subject.encode("utf-8", "surrogatepass")) <= limit


@frozen()
class Routes(Frozen):
    """The API's subjects under one prefix, without the final dot."""

    prefix: str = API_PREFIX

    @classmethod
    def of(cls, domain: str | None = None, prefix: str | None = None) -> Routes:
        """Return the routes for a domain or a prefix; raise `InvalidOptionError` for both, or an invalid one."""
        if domain is not None and prefix is not None:
            raise errors.InvalidOptionError(
                "prefix", prefix, f"cannot be combined with domain={domain!r}"
            )
        try:
            if domain is not None:
                return cls(f"$JS.{check_stream_name(domain)}.API")
            if prefix is not None:
                root = exact(prefix).rstrip(".") if isinstance(prefix, str) else prefix
                return cls(check_publish_subject(root))
        except ValueError as error:
            option = "domain" if domain is not None else "prefix"
            given = prefix if domain is None else domain
            raise errors.InvalidOptionError(option, given, str(error)) from None
        return cls()

    @property
    def imported(self) -> bool:
        """Whether an account import defines the prefix, which is not the default or a domain's."""
        return not (self.prefix.startswith("$JS.") and self.prefix.endswith(".API"))

    @property
    def domain(self) -> str | None:
        """The domain of the prefix; ``None``: that of the server, or an import."""
        return None if self.imported else self.prefix[4:-4] or None

    def is_reading(self, route: str) -> bool:
        """Return whether a request to one of these subjects changes nothing, so that it can be repeated."""
        return route[len(self.prefix) + 1 :].startswith(_READING)

    def to(self, action: str, *names: str) -> str:
        """Return the subject of a request: ``STREAM.INFO`` and the name of the stream, for example."""
        return ".".join((self.prefix, action, *names))

    def direct_get_last(self, stream: str, subject: str) -> str | None:
        """Get the last message of a subject from any replica (ADR-31); ``None``: it is too long for that."""
        route = f"{self.prefix}.DIRECT.GET.{stream}.{subject}"
        return route if fits_request(route) else None

    def consumer_create(self, stream: str, consumer: str, filter_subject: str | None) -> str:
        """Create or change a consumer."""
        # A single filter subject is part of the subject, so that permissions can depend on it;
        # several filters are not, and neither is one that is too long for that.
        route = f"{self.prefix}.CONSUMER.CREATE.{stream}.{consumer}"
        filtered = f"{route}.{filter_subject}"
        return filtered if filter_subject and fits_request(filtered) else route


# --- reply subjects ------------------------------------------------------------------------------


class Metadata(NamedTuple):
    """Metadata of a message delivered by a consumer."""

    stream: str
    """Name of the stream."""
    consumer: str
    """Name of the consumer."""
    domain: str | None
    """JetStream domain; ``None`` if not given."""
    stream_seq: int
    """Stream sequence of the message."""
    consumer_seq: int
    """Consumer sequence: increases by one with each delivery of the consumer."""
    num_delivered: int
    """Number of deliveries of the message, including this one."""
    num_pending: int
    """Number of matching messages that remain after this one."""
    timestamp_ns: int
    """Time when the message was stored, in nanoseconds since 1970 (UTC)."""

    @property
    def timestamp(self) -> datetime:
        """Time when the message was stored, in UTC, truncated to microseconds."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)


def ack_tokens(reply: bytes) -> list[bytes]:
    """Return the seven tokens that both forms share; raise `NotJSMessageError` for another subject."""
    # The tokens are stream, consumer, delivered, stream seq, consumer seq, timestamp and pending.
    tokens = reply.split(b".")
    if len(tokens) == 9 and reply.startswith(ACK_PREFIX):
        return tokens[2:]
    if len(tokens) >= 11 and reply.startswith(ACK_PREFIX):
        return tokens[4:11]
    raise errors.NotJSMessageError(
        "the message is not from a stream: it has no reply subject"
        if not reply
        else f"{reply.decode('utf-8', 'replace')!r} is not the reply subject of a message from a stream"
    )


def consumer_sequence(reply: bytes) -> int:
    """Return the consumer sequence; raise `NotJSMessageError` for another subject. A hot path."""
    tokens = reply.split(b".")
    try:
        if tokens[0] == b"$JS" and tokens[1] == b"ACK" and len(tokens) != 10:
            return int(tokens[6 if len(tokens) == 9 else 8])
    except (IndexError, ValueError):
        pass
    raise errors.NotJSMessageError(f"{reply!r} is not the reply subject of a message")


def metadata_of(reply: bytes) -> Metadata:
    """Read the reply subject of a message from a stream; raise `NotJSMessageError` for another subject."""
    stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = ack_tokens(reply)
    domain = b"_"
    if reply.count(b".") > 8:
        domain = reply.split(b".", 3)[2]
    try:
        return Metadata(
            stream.decode(),
            consumer.decode(),
            None if domain == b"_" else domain.decode(),
            int(stream_seq),
            int(consumer_seq),
            int(delivered),
            int(pending),
            int(timestamp),
        )
    except ValueError:
        raise errors.NotJSMessageError(
            f"{reply!r} has something else where numbers belong"
        ) from None


@dataclass(slots=True, eq=False)
class DeliverySequence:
    """The last received delivery of a consumer, to find gaps (ADR-15, "Message Gaps")."""

    # A consumer numbers its deliveries. The number is in the reply subject of each message, and in the
    # heartbeats of a push consumer. Not thread-safe.

    last: int | None = 0
    """Its sequence; ``None``: not known."""
    reply: bytes = b""
    """Its reply subject; empty before the first one."""

    def follows(self, reply: bytes) -> bool:
        """Return whether a message is the next delivery, and record it if so. A hot path."""
        last = self.last
        sequence = consumer_sequence(reply)
        if last is not None and sequence != last + 1:
            return False
        self.last = sequence
        self.reply = reply
        return True

    def follow(self, first: bytes, last: bytes, count: int) -> bool:
        """Return whether a batch of messages contains the next deliveries, and record them if so."""
        # Checking the last message is sufficient: sequences only grow, so a gap changes the last
        # one.
        before = self.last
        if before is None:
            before = consumer_sequence(first) - 1
        sequence = consumer_sequence(last)
        if sequence != before + count:
            return False
        self.last = sequence
        self.reply = last
        return True

    def jump(self, reply: bytes) -> int:
        """Record a message with any sequence, and return the number of missing messages before it."""
        # A lower sequence (the consumer was reset or moved) is not a gap.
        sequence = consumer_sequence(reply)
        missing = self.missing(sequence - 1)
        self.last = sequence
        self.reply = reply
        return missing

    def missing(self, sent: int) -> int:
        """Return the number of missing messages if the server sent all up to a sequence."""
        return 0 if self.last is None else max(0, sent - self.last)
