"""The position of an ordered consumer (ADR-17, ADR-37), and the consumer that continues from there."""

# `OrderedCursor` keeps the stream sequence and the time of the last message that was returned to the caller.
# Rules:
#
# 1. A new consumer starts after that message. Before the first message it starts as configured; with the
#    policies ``new`` and ``last``, it starts at the position that the server reported for the first one.
# 2. A position is used only in the stream that it belongs to. One that was restored to an older copy keeps its
#    creation time, and before 2.11 an update and a restart change that of a stream. So each new consumer is
#    used only after one of these checks: the message at the position has the known time; or it was removed,
#    and every message that was stored after that time comes after the position.
# 3. If the check fails, the reader ends with `StreamRecreatedError`, or starts again.

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy, DeliverPolicy, ReplayPolicy
from ..api.stream import MsgGetRequest
from ..client.mailbox import copy_exception
from ..codec import decode, encode
from ..durations import counted, time_from_ns, time_from_text, time_to_ns, time_to_text
from ..exact import exact
from ..net.clock import BackoffDelay, Deadline, monotonic
from ..options import check_int, check_known
from ..subjects import DeliverySequence, ack_tokens, check_consumer_name, filter_fields
from .api_requests import APIRequests
from .consumer_requests import CREATE
from .direct_get import leader_get

if TYPE_CHECKING:
    from typing_extensions import Unpack

log: logging.Logger = logging.getLogger("jetstream_sync.ordered")

#: Seconds after which the server deletes the consumer of a watch or a download that has no reader. One
#: that reads again later creates another consumer.
UNREAD_LIMIT_S: Final = 30.0

#: The same of other readers.
INACTIVE_THRESHOLD_S: Final = 300.0
_DEFAULT_THRESHOLDS_NS: Final = (UNREAD_LIMIT_S * 10**9, INACTIVE_THRESHOLD_S * 10**9)
#: Timeout of one attempt to create a consumer, in seconds: the first and the maximum; it doubles each
#: time. A request to a leader that has just gone gets no reply, so it is repeated meanwhile.
_FIRST_CREATE_TIMEOUT_S: Final = 2.0
_MAX_CREATE_TIMEOUT_S: Final = 10.0
#: Maximum number of filters for which the leader is asked one by one.
_MAX_ASKED_FILTERS: Final = 16
#: Delay between two attempts, in seconds: the first and the maximum; it doubles each time.
_FIRST_RETRY_DELAY_S: Final = 0.25
_MAX_RETRY_DELAY_S: Final = 1.0
#: The policies that mean another message later.
_STARTS_ONCE: Final = (DeliverPolicy.NEW.value, DeliverPolicy.LAST.value)
#: The fields of a config for a start that the deliver policy requires, and those that select subjects.
_START_FIELDS: Final = ("opt_start_seq", "opt_start_time")
_FILTER_FIELDS: Final = ("filter_subject", "filter_subjects")
#: The metadata that distinguishes the consumers of readers with the same prefix.
_READER: Final = "jetstream_sync.reader"
#: Errors of a request that the user has no permission for.
_NOT_PERMITTED: Final = (errors.PermissionsError, errors.NoRespondersError)
#: Seconds within which a consumer ends at once.
_SHORT_LIFE_S: Final = 1.0
#: Seconds in which a stream that was deleted may be created again, and the delay between two attempts.
_GONE_LIMIT_S: Final = 0.5
_GONE_RETRY_S: Final = 0.05
#: Delay in seconds before another consumer is created when the last two ended at once: the first and the
#: maximum; the delay doubles each time.
_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 10.0


class OrderedOptions(TypedDict, total=False):
    """Options of an ordered consumer; all are optional."""

    filter_subjects: str | Sequence[str]
    """Read only these subjects; default: all of the stream's."""
    deliver_policy: DeliverPolicy | str
    """Where to start; default ``all``. ``new`` and ``last`` mean the time when the object is created."""
    opt_start_seq: int
    """The sequence to start at, with ``by_start_sequence``."""
    opt_start_time: datetime
    """The time to start at, with ``by_start_time``."""
    replay_policy: ReplayPolicy | str
    """As fast as possible, or at the original rate; default ``instant``."""
    inactive_threshold: float | timedelta
    """Seconds without a reader after which the server deletes the consumer; default 300."""
    headers_only: bool
    """Deliver headers without payloads; default false."""
    metadata: Mapping[str, str]
    """Metadata of the server's consumer; default: none."""
    name_prefix: str
    """Prefix of the names of the server's consumers, which are ``PREFIX_1``, ``PREFIX_2`` and so on for one
    after the other; default: random. A number that another reader uses is left out."""
    max_reset_attempts: int
    """Consecutive failed attempts to create a consumer before giving up; default: no limit."""
    restart_if_recreated: bool
    """Whether to start again, as configured, when the stream was deleted and created again or restored to an
    earlier state, and to report a `StreamRecreatedError` to ``error_cb``. With ``new``, all messages stored
    after the last received one follow. Default false: the reader ends with this error."""


class _LaggingServerError(errors.Error):
    """The replica of the stream that a consumer reads ends before the position."""


class ServerConsumer(NamedTuple):
    """A consumer that was created on the server."""

    name: str
    """Its name."""

    start: int
    """The stream sequence just before its first message."""

    pending: int
    """Number of messages for it when it was created."""

    response: Mapping[str, Any]
    """The reply of the server, in JSON."""

    @classmethod
    def of(cls, response: dict[str, Any]) -> ServerConsumer:
        """Read what every reader needs; the rest of the reply is decoded on demand."""
        response.pop("type", None)
        delivered = response.get("delivered")
        start = delivered.get("stream_seq") if isinstance(delivered, dict) else None
        name, pending = response.get("name"), response.get("num_pending", 0)
        if type(name) is not str or type(start) is not int or type(pending) is not int:
            raise errors.InvalidResponseError(f"not the info of a consumer: {response!r:.200}")
        return cls(name, start, pending, response)


class ReadMode(Enum):
    """What the next consumer of an ordered reader reads."""

    FOLLOWING = "what follows the last message"
    INITIAL = "the same, up to the last sequence of the stream, which is requested before"
    INITIAL_FROM_START = "what the first one has read, up to that sequence"


@dataclass(slots=True, eq=False)
class _Start:
    """Where an ordered reader begins."""

    config: Mapping[str, Any]
    """The config of the first consumer, in JSON."""
    after: int | None = None
    """The sequence just before the first message; ``None``: the server decides."""
    began: str = ""
    """When the first consumer was created, as text, if the start is kept; empty: not known."""

    def configured(self) -> int | None:
        """Return the sequence before the start that the config names; ``None``: it names none."""
        by_sequence = self.config.get("deliver_policy") == DeliverPolicy.BY_START_SEQUENCE.value
        return self.config["opt_start_seq"] - 1 if by_sequence else None

    def elsewhere(self, policy: DeliverPolicy, **start: Any) -> dict[str, Any]:
        """Return the config with another start."""
        others = {name: self.config[name] for name in self.config if name not in _START_FIELDS}
        return {**others, "deliver_policy": policy.value, **start}

    def since(self, time_ns: int) -> dict[str, Any]:
        """Return the config with a start at a time, in nanoseconds."""
        start = time_to_text(time_from_ns(time_ns))
        return self.elsewhere(DeliverPolicy.BY_START_TIME, opt_start_time=start)


class _Stamp(NamedTuple):
    """A message of a stream."""

    seq: int
    time_ns: int


@dataclass(slots=True, eq=False)
class KnownStream:
    """The stream that a position belongs to, as far as it is known."""

    created: str = ""
    """When it was created, as text; empty: not known."""
    seen: str = ""
    """The same of the stream that replied last."""
    stamp: _Stamp | None = None
    """A message of the stream, if the last reply is not known."""
    end: int = 0
    """Its last sequence before the current consumer was created, if that was requested."""
    replicated: bool = False
    """Whether other servers than the leader have it, as far as it has replied."""


@dataclass(slots=True, eq=False)
class _Pace:
    """When the next consumer may be created, and for how long the stream has been missing."""

    created_at: float = 0.0
    """When the current consumer was created; 0: there was none."""
    cut_short: bool = False
    """Whether the deadline of a call cut the last creation short."""
    was_short: bool = False
    """Whether the last consumer ended at once without a message, or its creation was cut short."""
    delays: BackoffDelay = field(
        default_factory=partial(BackoffDelay, _FIRST_DELAY_S, _MAX_DELAY_S)
    )
    """The delays before the next one if the last two were short."""
    create_at: float | None = None
    """When the next one may be created; ``None``: at once."""
    gone_since: float | None = None
    """When the stream was first not found; ``None``: it was found."""

    def is_gone(self) -> bool:
        """Record that the stream was not found; return whether it will not be created again."""
        # Counted over all calls: each of them may have a shorter timeout than the limit.
        now = monotonic()
        self.gone_since = self.gone_since or now
        return not self.created_at or now - self.gone_since >= _GONE_LIMIT_S

    def ended(self, *, has_messages: bool) -> None:
        """Delay the next consumer if the last ones ended at once and without a message."""
        if self.create_at is not None:
            return  # the deadline of an earlier call passed during the delay
        now = monotonic()
        was_cut_short, self.cut_short = self.cut_short, False
        if not was_cut_short and (has_messages or now - self.created_at > _SHORT_LIFE_S):
            self.was_short = False
            self.delays.reset()
            return
        if self.was_short:
            self.create_at = now + self.delays.next()
        self.was_short = True


class NextAttempt(Enum):
    """What follows a failed attempt to create a consumer."""

    NONE = "none"
    """The error is raised: another attempt would fail in the same way, or the connection is closed."""
    START_AGAIN = "start again"
    """The next attempt starts as configured, if the caller follows a stream that was created again."""
    IF_STREAM_RETURNS = "if the stream returns"
    """The stream does not exist; it may be created again soon."""
    TIMED_OUT = "timed out"
    """The deadline of the call has passed; a later call continues."""
    AT_ONCE = "at once"
    """The request is sent after the reconnect."""
    LATER = "later"
    """The attempt counts as failed, and the next one follows after a delay."""


def next_attempt(
    error: errors.Error, *, is_closed: bool, is_late: bool, is_stopping: bool
) -> NextAttempt:
    """Return what follows a failed attempt to create a consumer."""
    lost = isinstance(error, errors.ConnectionLostError)
    if isinstance(error, errors.StreamRecreatedError):
        return NextAttempt.START_AGAIN
    if isinstance(error, errors.BadRequestError | errors.PermissionsError):
        return NextAttempt.NONE
    if isinstance(error, errors.StreamNotFoundError):
        return NextAttempt.IF_STREAM_RETURNS
    if is_closed or (isinstance(error, errors.ConnectionClosedError) and not lost):
        return NextAttempt.NONE
    if is_late:
        return NextAttempt.TIMED_OUT
    return NextAttempt.AT_ONCE if lost and not is_stopping else NextAttempt.LATER


@dataclass(slots=True, eq=False)
class _Attempts:
    """The attempts of one call to create a consumer."""

    timeouts: BackoffDelay
    delays: BackoffDelay
    failed: int = 0


class CursorOptions(TypedDict, total=False):
    """Further arguments of an `OrderedCursor`."""

    reading: ReadMode
    """What the first consumer reads; default: following."""
    on_recreated: Callable[[errors.StreamRecreatedError], object]
    """Called with the error when the stream is another one, before the reader starts again; default: it ends."""
    verify: Callable[[int, Deadline], bool | None]
    """Returns whether the stream is the known one if the message at the position, its argument, was removed;
    ``None``: it is not known. Then, or without it, the creation time and later messages decide that, which does
    not find values that were rolled back and are older than the position."""


class OrderedCursor:
    """The position of an ordered consumer, and the server's consumer that continues from there."""

    # `attempts`: consecutive failed attempts to create a consumer before giving up; 0: no limit.
    # `serials`: the numbers of the names, which may be shared; ``None``: from 1 on.

    def __init__(
        self,
        api: APIRequests,
        stream: str,
        prefix: str,
        first: Mapping[str, Any],
        attempts: int = 0,
        serials: Iterator[int] | None = None,
        **further: Unpack[CursorOptions],
    ) -> None:
        """Start at the position that a config in JSON defines."""
        # A reply that is lost with the connection is not waited for: another attempt follows.
        self._api = api.failing_on_disconnect()
        self.stream = stream
        self._prefix = prefix
        self._serials = serials or itertools.count(1)
        #: The name of the current consumer, or of the one that is being created.
        self.name: str = f"{prefix}_0"
        self._attempts = attempts
        #: What the next consumer reads.
        self.reading: ReadMode = further.get("reading", ReadMode.FOLLOWING)
        #: Whether the start of the first consumer is kept, because the config means another one later.
        self.keeps_start: bool = (
            self.reading is not ReadMode.FOLLOWING or first.get("deliver_policy") in _STARTS_ONCE
        )
        self._start = _Start(first)
        #: The stream of the position.
        self.known: KnownStream = KnownStream()
        self._on_recreated = further.get("on_recreated")
        self._verify = further.get("verify")
        self._ended: errors.StreamRecreatedError | None = None
        self._delivered = 0  # messages from earlier consumers
        #: The current consumer on the server.
        self.consumer: ServerConsumer | None = None
        self._pace = _Pace()
        #: Whether a failed attempt to create a consumer is the last one; see `stop()`.
        self.stopping: bool = False
        self._is_waiting = False  # for the next attempt
        #: The last returned message; the next consumer starts after it.
        self.sequence: DeliverySequence = DeliverySequence()

    @property
    def info(self) -> ConsumerInfo | None:
        """The info of the current consumer, in its state at creation."""
        return None if self.consumer is None else decode(ConsumerInfo, self.consumer.response)

    @property
    def consumer_seq(self) -> int:
        """The sequence of the last message from the current consumer."""
        return self.sequence.last or 0

    @property
    def delivered(self) -> int:
        """The number of messages returned to the caller."""
        return self._delivered + self.consumer_seq

    @property
    def stream_seq(self) -> int | None:
        """The stream sequence to continue after; ``None``: the start of the first consumer."""
        reply = self.sequence.reply
        return int(ack_tokens(reply)[3]) if reply else self._start.after

    @property
    def position(self) -> int:
        """The last sequence that was received, or the one before the start."""
        reply = self.sequence.reply
        return max(int(ack_tokens(reply)[3]) if reply else 0, self._start.configured() or 0)

    def start_as(self, other: OrderedCursor) -> None:
        """Start where the first consumer of another cursor has started, before the first message."""
        self._start = replace(self._start, after=other._start.after, began=other._start.began)
        self.known = replace(other.known, stamp=None, seen="")

    def read_state_again(self, policy: DeliverPolicy) -> None:
        """Read another stream up to its end, with a deliver policy that needs no further field."""
        self._start.config = self._start.elsewhere(policy)
        is_last = policy is DeliverPolicy.LAST_PER_SUBJECT
        self.reading = ReadMode.INITIAL_FROM_START if is_last else ReadMode.INITIAL

    def rewind(self, reply: bytes) -> None:
        """Move the position back to before the message with this reply subject."""
        tokens = ack_tokens(reply)
        self._start.after = int(tokens[3]) - 1
        self.known.stamp = _Stamp(int(tokens[3]), int(tokens[5]))
        self.sequence.last = int(tokens[4]) - 1
        self.sequence.reply = b""

    def renew(self, deadline: Deadline) -> ServerConsumer:
        """Create a consumer that continues from the position, and delete the old one."""
        self._end_consumer(deadline)
        attempts = _Attempts(
            BackoffDelay(_FIRST_CREATE_TIMEOUT_S, _MAX_CREATE_TIMEOUT_S),
            BackoffDelay(_FIRST_RETRY_DELAY_S, _MAX_RETRY_DELAY_S),
        )
        while True:
            limit = deadline.sooner(attempts.timeouts.next())
            self.name = f"{self._prefix}_{next(self._serials)}"
            try:
                consumer = self._create(limit)
                break
            except errors.ConsumerExistsError:
                pass  # of another reader with the same prefix
            except errors.Error as error:
                self._after(error, attempts, deadline)
            except BaseException:
                self._api.drop_consumer(self.stream, self.name)
                raise
        self.consumer = consumer
        self._pace.created_at, self._pace.gone_since = monotonic(), None
        self._delivered += self.consumer_seq
        self.sequence.last = 0
        start = self._start
        if start.after is None and self.keeps_start:
            start.after = consumer.start
            start.began = str(consumer.response.get("created", ""))
        return consumer

    def _after(self, error: errors.Error, attempts: _Attempts, deadline: Deadline) -> None:
        """Prepare another attempt to create a consumer after one that failed; raise if there is none."""
        core = self._api.core
        is_closed, is_late = core.closed_reason is not None, deadline.expired()
        step = next_attempt(error, is_closed=is_closed, is_late=is_late, is_stopping=self.stopping)
        if step is NextAttempt.NONE:
            raise error
        if step is NextAttempt.IF_STREAM_RETURNS:
            if self._pace.is_gone():
                raise error
            self._wait(deadline.sooner(_GONE_RETRY_S))
            if deadline.expired():
                text = f"stream {self.stream!r} was not found, and may be created again"
                raise core.state.timed_out(text) from error
            return
        self._api.drop_consumer(self.stream, self.name)  # it may have been created
        if step is NextAttempt.START_AGAIN:
            self._start_again(error)
            return
        if step is NextAttempt.TIMED_OUT:
            self._pace.cut_short = True
            text = "the ordered consumer could not be created in time"
            raise core.state.timed_out(text) from error
        if step is NextAttempt.AT_ONCE:
            return
        attempts.failed += 1
        if attempts.failed == self._attempts:
            text = (
                f"no consumer on stream {self.stream!r} after {counted(attempts.failed, 'attempt')}"
            )
            raise errors.OrderedConsumerResetError(text) from error
        # Without a reply, the attempt has repeated its request, and its leader may be there at any time.
        wait = 0.0 if isinstance(error, errors.TimeoutError) else attempts.delays.next()
        if not self._wait(deadline.sooner(wait)):
            text = "the ordered consumer was stopped while it had no consumer on the server"
            raise errors.IteratorClosedError(text) from error

    def _end_consumer(self, deadline: Deadline) -> None:
        """Keep the position, delete the consumer, and wait until the next one may be created."""
        # If several consumers in a row end at once and without a message, there is a delay before
        # the next.
        if self._ended is not None:
            raise copy_exception(self._ended)
        if self.sequence.reply:
            tokens = ack_tokens(self.sequence.reply)
            self.known.stamp = _Stamp(int(tokens[3]), int(tokens[5]))
        if self.reading is ReadMode.INITIAL_FROM_START:
            self._start.after = None
            self.sequence.reply = b""
        pace = self._pace
        if self.consumer is not None or pace.cut_short:
            pace.ended(has_messages=bool(self.consumer_seq))
        self.drop()
        if pace.create_at is not None:
            self._wait_to_create(deadline, pace.create_at)

    def _create(self, deadline: Deadline) -> ServerConsumer:
        """Create a consumer after the last message, once; raise if its stream is not the known one."""
        last_seq = self.stream_seq
        config = dict(self._start.config)
        if last_seq is not None:
            policy = DeliverPolicy.BY_START_SEQUENCE
            config = self._start.elsewhere(policy, opt_start_seq=last_seq + 1)
        if self.reading is not ReadMode.FOLLOWING:
            self.known.end = self.last_seq(deadline)
        consumer = self._ask_to_create(self.name, config, deadline)
        position = self._start.configured() if last_seq is None else last_seq
        self._check_stream(consumer, position, deadline)
        return consumer

    def _ask_to_create(
        self, name: str, config: Mapping[str, Any], deadline: Deadline
    ) -> ServerConsumer:
        routes, stream = self._api.routes, self.stream
        route = routes.consumer_create(stream, name, config.get("filter_subject"))
        body = {"stream_name": stream, "config": {**config, "name": name}, "action": CREATE}
        try:
            return ServerConsumer.of(self._api.ask(route, body, deadline, repeatable=True))
        except errors.BadRequestError as error:
            excess = error.err_code == errors.ErrorCode.INACTIVE_THRESHOLD_EXCESS
            if not excess or config.get("inactive_threshold") not in _DEFAULT_THRESHOLDS_NS:
                raise
            # The stream has a lower limit than the default here: without a threshold, it is that limit.
            left = {key: value for key, value in config.items() if key != "inactive_threshold"}
            return self._ask_to_create(name, left, deadline)

    def last_seq(self, deadline: Deadline) -> int:
        """Request the last sequence of the stream."""
        # Only two values of the reply are used, so it is not decoded as a whole.
        response = self._api.ask(self._api.routes.to("STREAM.INFO", self.stream), None, deadline)
        state, cluster = response.get("state"), response.get("cluster")
        last = state.get("last_seq") if isinstance(state, dict) else None
        if type(last) is not int:
            raise errors.InvalidResponseError(f"a stream info with last_seq={last!r:.60}")
        self.known.replicated = isinstance(cluster, dict) and bool(cluster.get("replicas"))
        self.known.seen = str(response.get("created", ""))
        return last

    def last_match(self, deadline: Deadline) -> int:
        """Request the last sequence that the filters select at the leader."""
        # 0: there is none, or there are so many filters that a request for each would take too
        # long.
        first = self._start.config
        filters = first.get("filter_subjects") or [first.get("filter_subject", ">")]
        if len(filters) > _MAX_ASKED_FILTERS:
            return 0
        last = 0
        for subject in filters:
            with suppress(errors.MessageNotFoundError):
                request = MsgGetRequest(last_by_subj=subject)
                found = leader_get(self._api, self.stream, request, deadline)
                last = max(last, found.seq)
        return last

    def _wait_to_create(self, deadline: Deadline, create_at: float) -> None:
        """Wait until the next consumer may be created."""
        self._wait(deadline.sooner(create_at - monotonic()))
        # Without this, calls would create a consumer after each deadline, however short.
        if deadline.expired() and monotonic() < create_at and not self.stopping:
            raise self._api.core.state.timed_out(
                "the last consumers ended at once or were not created in time, and the next must wait"
            )
        self._pace.create_at = None

    def _wait(self, deadline: Deadline) -> bool:
        """Wait before the next attempt; return whether there is one."""
        # If the connection was closed, the next attempt raises the reason.
        self._is_waiting = True
        try:
            self._api.core.wait_closed(deadline.left() or 0.0, lambda: self.stopping)
        finally:
            self._is_waiting = False
        return not self.stopping

    def _check_stream(
        self, consumer: ServerConsumer, position: int | None, deadline: Deadline
    ) -> None:
        """Raise `StreamRecreatedError` if the stream is not the one that the position belongs to."""
        # Another consumer is created after each error, so this can be repeated.
        known, stamp = self.known.created, self.known.stamp
        late = position is not None and consumer.start < position
        is_first = not (known or stamp or late)
        if is_first and not self.keeps_start:
            return
        last = None if self.reading is ReadMode.FOLLOWING else self.known.end
        if last is None or not is_first:  # otherwise it was just requested
            with suppress(*_NOT_PERMITTED):
                last = self.last_seq(deadline)
        created = self.known.seen
        is_new = bool(known and created and created != known)
        reason = ""
        if position is not None and last is not None and last < position:
            reason = f"its last sequence is {last}, and the next one to read is {position + 1}"
        elif stamp is not None:
            if self._is_replaced(*stamp, last, deadline, is_new=is_new):
                reason = f"it has another message at sequence {stamp.seq}"
        elif is_new and position is not None:
            began = _ns_of(self._start.began)
            if self._has_later_before(position, began, deadline):
                reason = "it has later messages before the position"
        if reason and is_new:
            reason = "it was deleted and re-created"
        if reason:
            raise errors.StreamRecreatedError(self.stream, _ns_of(known), _ns_of(created), reason)
        if late:
            # A server whose replica of the stream ends before the requested start lowers it to that
            # end, and would deliver messages again.
            raise _LaggingServerError(f"the server of {consumer.name!r} lags behind")
        self.known.created = created

    def _is_replaced(
        self, seq: int, time_ns: int, last: int | None, deadline: Deadline, *, is_new: bool
    ) -> bool:
        """Return whether the stream is not the one that had a message with this sequence and time."""
        if last is not None and last < seq:
            return True
        with suppress(errors.MessageNotFoundError, *_NOT_PERMITTED):
            found = leader_get(self._api, self.stream, MsgGetRequest(seq), deadline)
            return found.time_ns != time_ns
        # It was removed, or the user may not get it.
        if self._verify is not None:
            verified = self._verify(self.position, deadline)
            if verified is not None:
                return not verified
            # Every message that could show it was replaced meanwhile, which is usual. Before 2.11, the
            # creation time changes with an update of the stream and a restart, too.
            if is_new and self._has_only_later(time_ns, deadline):
                return True
        return self._has_later_before(seq, time_ns, deadline)

    def _has_only_later(self, time_ns: int, deadline: Deadline) -> bool:
        """Return whether every message of the stream was stored after a time."""
        try:
            request = MsgGetRequest(1, next_by_subj=">")
            return leader_get(self._api, self.stream, request, deadline).time_ns > time_ns
        except errors.MessageNotFoundError:
            return True
        except _NOT_PERMITTED:
            return False

    def _has_later_before(self, seq: int, time_ns: int, deadline: Deadline) -> bool:
        """Return whether the stream has a message that was stored after a time, up to a sequence."""
        # A consumer of all later messages shows the sequence of the first one.
        consumer = f"{self.name}_later"
        config = self._start.since(time_ns + 1)
        for name in _FILTER_FIELDS:
            config.pop(name, None)
        try:
            later = self._ask_to_create(consumer, config, deadline)
        except (errors.APIError, *_NOT_PERMITTED):
            return False  # there is no further evidence
        finally:
            self._api.drop_consumer(self.stream, consumer)
        return later.pending > 0 and later.start < seq

    def _start_again(self, error: errors.Error) -> None:
        """Start again, as configured, in the stream that there is now; or end with the error."""
        # A configured start that does not exist would be refused again.
        assert isinstance(error, errors.StreamRecreatedError)
        start, known = self._start, self.known
        if self._on_recreated is None or not (known.stamp or known.created):
            self._ended = error
            self.stopping = True
            raise error
        log.warning("%s; reading starts again", error)
        if start.config.get("deliver_policy") == DeliverPolicy.NEW.value:
            # Everything that was stored since then is new.
            start.config = start.since(
                known.stamp.time_ns + 1 if known.stamp else _ns_of(start.began)
            )
        start.after = known.stamp = None
        self.sequence.reply = b""
        known.created = ""
        self._on_recreated(error)

    def stop(self) -> None:
        """Let a failed attempt to create a consumer be the last one, and end the wait for the next."""
        self.stopping = True
        if self._is_waiting:
            self._api.core.wake()

    def drop(self) -> None:
        """Delete the current consumer without waiting for the reply."""
        consumer = self.consumer
        if consumer is not None:
            self._api.drop_consumer(self.stream, consumer.name)
            if self.consumer is consumer:
                self.consumer = None  # only now: a Ctrl-C before must not lose it


def _ns_of(time: str) -> int:
    return time_to_ns(time_from_text(time)) if time else 0


def check_options(options: OrderedOptions) -> None:
    """Check the options of an ordered consumer that `_new_config()` does not check."""
    check_known(options, OrderedOptions.__annotations__)
    if (prefix := options.get("name_prefix")) is not None:
        check_consumer_name(prefix)
    check_int("max_reset_attempts", options.get("max_reset_attempts", 0), 0)


def pull_cursor(
    api: APIRequests,
    stream: str,
    options: OrderedOptions,
    inactive_s: float = INACTIVE_THRESHOLD_S,
    serials: Iterator[int] | None = None,
    **further: Unpack[CursorOptions],
) -> OrderedCursor:
    """Return the cursor of an ordered pull consumer, before its first message."""
    prefix = exact(options.get("name_prefix"))
    unique = os.urandom(11).hex()
    attempts = options.get("max_reset_attempts", 0)
    filters = options.get("filter_subjects") or ()
    metadata = options.get("metadata")
    if not isinstance(filters, Iterable):
        rule = "must be a subject or a list of subjects"
        raise errors.InvalidOptionError("filter_subjects", filters, rule)
    known: dict[str, Any] = {
        "inactive_threshold": inactive_s,
        **options,
        "filter_subjects": (filters,) if isinstance(filters, str) else tuple(filters),
        "metadata": None if metadata is None else tuple(metadata.items()),
    }
    try:
        config = _cached_config(**known)
    except TypeError:  # a value cannot be hashed: its check refuses it
        config = _new_config(**known)
    if prefix:
        # The server returns an existing consumer with the same config, which another reader may use.
        config = {**config, "metadata": {**config.get("metadata", {}), _READER: unique}}
    return OrderedCursor(api, stream, prefix or unique, config, attempts, serials, **further)


def _new_config(
    *,
    filter_subjects: tuple[str, ...],
    metadata: tuple[tuple[str, str], ...] | None,
    deliver_policy: DeliverPolicy | str | None = None,
    opt_start_seq: int | None = None,
    opt_start_time: datetime | None = None,
    replay_policy: ReplayPolicy | str = ReplayPolicy.INSTANT,
    inactive_threshold: float | timedelta,
    headers_only: bool = False,
    **_: object,
) -> dict[str, Any]:
    """Check the options, and return the config of the first consumer; cached, as programs repeat them."""
    policy = deliver_policy
    if policy is None:
        policy = DeliverPolicy.ALL
        if opt_start_seq is not None:
            policy = DeliverPolicy.BY_START_SEQUENCE
        elif opt_start_time is not None:
            policy = DeliverPolicy.BY_START_TIME
    if policy == DeliverPolicy.LAST_PER_SUBJECT and not filter_subjects:
        filter_subjects = (">",)  # the server requires a filter with this policy
    config = ConsumerConfig(
        name="ordered",
        deliver_policy=policy,
        opt_start_seq=opt_start_seq,
        opt_start_time=opt_start_time,
        ack_policy=AckPolicy.NONE,
        replay_policy=replay_policy,
        max_deliver=1,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=inactive_threshold,
        headers_only=headers_only or None,
        metadata=None if metadata is None else dict(metadata),
        **filter_fields(filter_subjects),
    )
    return encode(config)


#: Of equal arguments of the same types, because True == 1.
_cached_config = lru_cache(maxsize=32, typed=True)(_new_config)
