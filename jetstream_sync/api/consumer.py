"""
Consumers: what can be configured, and what the server says about them.

Field names are the wire's. In a config ``None`` means *not said*: the field is not sent, and the
server's default applies. The records know every field of nats-server 2.15 (``server/consumer.go``)
and keep what a newer server sends. The checks refuse what can not work, and nothing that a server
would send, so that its configs can be changed and sent back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from ..codec import UNSET, Duration, Durations, Record, record
from ..errors import InvalidOptionError
from ..subjects import check_consumer_name, check_publish_subject, check_queue, check_subject
from .cluster import ClusterInfo
from .enums import AckPolicy, DeliverPolicy, PriorityPolicy, ReplayPolicy

__all__ = [
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerPause",
    "ConsumerReset",
    "PriorityGroupState",
    "SequenceInfo",
]

_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1
_SAMPLE_FREQ = r"\+?[0-9]+%?"
_GROUP = r"[a-zA-Z0-9/_=-]{1,16}"


@record
class ConsumerConfig(Record):
    """
    The configuration of a consumer.

    With a `deliver_subject` it is a push consumer, without one it is pulled from.

    Raises:
        InvalidNameError: a name can not be a consumer's.
        BadSubjectError: a subject or group is not well formed.
        InvalidOptionError: a value is out of range or of the wrong type, or two fields exclude
            each other.

    """

    durable_name: str | None = None
    """
    The name of a durable consumer, which stays when nobody uses it.

    Without it the consumer is ephemeral: it goes after `inactive_threshold`. No white space,
    ``.``, ``*``, ``>`` or slashes.
    """

    name: str | None = None
    """
    The name; the same as `durable_name` where both are said.

    When neither is said, the one who makes an ephemeral consumer (client or server) chooses.
    """

    description: str | None = None
    """What it is for; at most 4096 bytes."""

    deliver_policy: DeliverPolicy | str = DeliverPolicy.ALL
    """Where it starts; always sent. Not updatable."""

    opt_start_seq: int | None = None
    """The sequence to start at; with `deliver_policy` ``by_start_sequence``, and only then."""

    opt_start_time: datetime | None = None
    """The time to start at; with `deliver_policy` ``by_start_time``, and only then."""

    ack_policy: AckPolicy | str = AckPolicy.EXPLICIT
    """
    Which messages have to be acknowledged; always sent. Not updatable.

    Explicit is this client's default; the server's own would be none.
    """

    ack_wait: Duration = UNSET
    """
    How long a message may go without acknowledgement before it is sent again, in seconds.

    The server's default is 30 seconds, or the first of `backoff`, which overrides it. Excludes
    `ack_policy` ``flow_control``.
    """

    max_deliver: int | None = None
    """How often a message is delivered at most; the server's default is -1, no limit."""

    backoff: Durations = UNSET
    """
    How long to wait before the second, third, ... delivery, each in seconds.

    The last one holds for all further deliveries. It overrides `ack_wait`, has at most
    `max_deliver` items, and does not apply to a nak.
    """

    filter_subject: str | None = None
    """Deliver only messages on these subjects, with wildcards. Excludes `filter_subjects`."""

    filter_subjects: Sequence[str] | None = None
    """The same with several, which must not overlap. Excludes `filter_subject`. Server 2.10."""

    replay_policy: ReplayPolicy | str = ReplayPolicy.INSTANT
    """How fast stored messages are delivered; always sent. Not updatable."""

    rate_limit_bps: int | None = None
    """How fast messages are delivered at most, in bits per second; push consumers only."""

    sample_freq: str | None = None
    """How many acknowledgements in a hundred the server reports in an advisory: ``"30%"``."""

    max_waiting: int | None = None
    """
    How many pull requests may wait at a time; the server's default is 512.

    Pull consumers only. Not updatable.
    """

    max_ack_pending: int | None = None
    """
    How many messages may be without acknowledgement before delivery pauses.

    The server's default is the stream's ``consumer_limits``, or else 1000; -1 is no limit. A push
    consumer with `ack_policy` ``none`` can not have it.
    """

    flow_control: bool | None = None
    """Whether the server slows down for the client; push consumers with `idle_heartbeat` only."""

    idle_heartbeat: Duration = UNSET
    """
    How long a push consumer is silent before it sends a heartbeat, in seconds, at least 0.1.

    Off when not said. For pull consumers the heartbeat is part of each pull request.
    """

    headers_only: bool | None = None
    """Whether to leave out the payload and say its size in ``Nats-Msg-Size``."""

    max_batch: int | None = None
    """How many messages one pull request may ask for; no limit when not said."""

    max_expires: Duration = UNSET
    """How long one pull request may wait, in seconds, at least 0.001; no limit when not said."""

    max_bytes: int | None = None
    """How many bytes one pull request may ask for; no limit when not said."""

    deliver_subject: str | None = None
    """The subject to deliver to, which makes it a push consumer; no wildcards."""

    deliver_group: str | None = None
    """The queue group that shares the messages of a push consumer. Not updatable."""

    inactive_threshold: Duration = UNSET
    """
    How long the consumer may be unused before the server deletes it, in seconds.

    The server's default is the stream's ``consumer_limits``, or else 5 seconds for an ephemeral
    consumer and never for a durable one. In use means: somebody pulls from it, or listens on its
    `deliver_subject`; messages need not flow.
    """

    num_replicas: int | None = None
    """
    How many servers keep its state, 0 to 5.

    The server's default is 0: as many as the stream, or one for an ephemeral consumer of a stream
    with retention ``limits``.
    """

    mem_storage: bool | None = None
    """Whether its state is kept in memory, whatever the stream's storage. Not updatable."""

    direct: bool | None = None
    """Used by servers among themselves, for mirrors and sources."""

    sourcing: bool | None = None
    """Used by servers among themselves, for mirrors and sources; server 2.14."""

    metadata: Mapping[str, str] | None = None
    """
    Labels of the application, at most 128 KiB; needs server 2.10.

    Keys that start with ``_nats.`` are the server's: it sets and removes them itself.
    """

    pause_until: datetime | None = None
    """Deliver nothing before this time; changed later by pause and resume. Needs server 2.11."""

    priority_groups: Sequence[str] | None = None
    """
    The groups that pull requests name (ADR-42).

    Letters, digits, ``-``, ``_``, ``/``, ``=``, at most 16. Together with `priority_policy`, on
    pull consumers only. Needs server 2.11.
    """

    priority_policy: PriorityPolicy | str | None = None
    """How the server chooses among the pull requests of a group; server 2.11. Not updatable."""

    priority_timeout: Duration = UNSET
    """
    How long a pinned client may be silent before another is pinned, in seconds.

    The server's default is 2 minutes with `priority_policy` ``pinned_client``. Needs server 2.11.
    """

    def _check(self) -> None:
        self._check_names()
        self._check_numbers()
        self._check_filters()
        self._check_start()
        self._check_redelivery()
        if self.deliver_subject is not None:
            self._check_push(self.deliver_subject)
        self._check_priority()

    def check_pulled(self) -> None:
        """
        Refuse what a consumer that is pulled from can not have.

        A config without a `deliver_subject` may become either kind: subscribing to push chooses one.

        Raises:
            InvalidOptionError: a field needs a consumer that delivers.

        """
        for name in ("rate_limit_bps", "idle_heartbeat", "flow_control"):
            self._refuse_if(bool(getattr(self, name)), name, "needs a deliver_subject")
        self._refuse_if(
            self.ack_policy == AckPolicy.FLOW_CONTROL, "ack_policy", "needs a deliver_subject"
        )

    def _check_names(self) -> None:
        for name in (self.durable_name, self.name):
            if name is not None:
                check_consumer_name(name)
        both = self.durable_name is not None and self.name is not None
        self._refuse_if(
            both and self.name != self.durable_name, "name", "it is not the durable_name"
        )

    def _check_numbers(self) -> None:
        durations = ("ack_wait", "inactive_threshold", "idle_heartbeat", "priority_timeout")
        self._check_range(0, _INT64_MAX, *durations)
        self._check_range(0, _INT64_MAX, "max_waiting", "max_batch", "max_bytes")
        self._check_range(-1, _INT64_MAX, "max_deliver", "max_ack_pending")
        self._check_range(0, _UINT64_MAX, "opt_start_seq", "rate_limit_bps")
        self._check_range(0, 5, "num_replicas")
        if self.max_expires:
            self._check_range(0.001, _INT64_MAX, "max_expires")
        self._refuse_if(
            self.sample_freq is not None and not re.fullmatch(_SAMPLE_FREQ, self.sample_freq),
            "sample_freq",
            "it is a whole number of percent, such as '30%'",
        )

    def _check_filters(self) -> None:
        for subject in self.filter_subjects or ():
            check_subject(subject)
        if self.filter_subject is not None:
            check_subject(self.filter_subject)
            self._refuse_if(
                bool(self.filter_subjects), "filter_subjects", "excludes filter_subject"
            )

    def _check_start(self) -> None:
        policy = self.deliver_policy
        for name, needing in (
            ("opt_start_seq", DeliverPolicy.BY_START_SEQUENCE),
            ("opt_start_time", DeliverPolicy.BY_START_TIME),
        ):
            said = bool(getattr(self, name))
            self._refuse_if(said and policy != needing, name, f"needs deliver_policy {needing}")
            if policy == needing and not said:
                raise InvalidOptionError("deliver_policy", policy, f"needs {name}")
        self._refuse_if(
            policy == DeliverPolicy.LAST_PER_SUBJECT
            and not (self.filter_subject or self.filter_subjects),
            "deliver_policy",
            "needs a filter, which may be '>'",
        )

    def _check_redelivery(self) -> None:
        if self.backoff:
            self._refuse_if(
                any(wait < timedelta(0) for wait in self.backoff), "backoff", "it is at least 0"
            )
            limit = self.max_deliver
            self._refuse_if(
                limit is not None and 0 < limit < len(self.backoff),
                "backoff",
                f"longer than max_deliver ({limit})",
            )
        if self.ack_policy == AckPolicy.FLOW_CONTROL:
            for name in ("ack_wait", "backoff"):
                self._refuse_if(bool(getattr(self, name)), name, "excludes ack_policy flow_control")
            self._refuse_if(
                self.max_deliver is not None and self.max_deliver > 0,
                "max_deliver",
                "excludes ack_policy flow_control",
            )

    def _check_push(self, deliver_subject: str) -> None:
        check_publish_subject(deliver_subject)
        check_queue(self.deliver_group or "")
        for name in ("max_waiting", "priority_groups"):
            self._refuse_if(bool(getattr(self, name)), name, "excludes deliver_subject")
        self._refuse_if(
            self.ack_policy == AckPolicy.NONE and (self.max_ack_pending or 0) > 0,
            "max_ack_pending",
            "needs an ack_policy other than none",
        )
        if self.idle_heartbeat:
            self._check_range(0.1, _INT64_MAX, "idle_heartbeat")
        elif self.ack_policy != AckPolicy.FLOW_CONTROL:  # for that the server sets the heartbeat
            self._refuse_if(bool(self.flow_control), "flow_control", "needs idle_heartbeat")

    def _check_priority(self) -> None:
        if self.priority_policy in (None, PriorityPolicy.NONE):
            for name in ("priority_groups", "priority_timeout"):
                self._refuse_if(bool(getattr(self, name)), name, "needs a priority_policy")
            return
        self._refuse_if(not self.priority_groups, "priority_policy", "needs priority_groups")
        self._refuse_if(
            any(not re.fullmatch(_GROUP, group) for group in self.priority_groups or ()),
            "priority_groups",
            "a group is letters, digits, '-', '_', '/', '=', at most 16",
        )


# --- what the server says -----------------------------------------------------------------------


@record
class SequenceInfo(Record):
    """A position of a consumer."""

    consumer_seq: int
    """In deliveries: a message that is delivered twice counts twice."""

    stream_seq: int
    """In the stream."""

    last_active: datetime | None = None
    """When it last moved; not said before it did."""


@record
class PriorityGroupState(Record):
    """The state of one priority group."""

    group: str
    """Its name."""

    pinned_client_id: str | None = None
    """The id that the server gave to the pinned client; not said when none is pinned."""

    pinned_ts: datetime | None = None
    """When that was; year 1 when none is pinned."""


@record
class ConsumerInfo(Record):
    """A consumer as it was at the time of `ts`."""

    stream_name: str
    """The stream that it reads."""

    name: str
    """Its name."""

    created: datetime
    """When it was made."""

    config: ConsumerConfig
    """Its configuration, with the server's defaults filled in."""

    delivered: SequenceInfo
    """The last delivery."""

    ack_floor: SequenceInfo
    """Everything up to here is acknowledged."""

    num_ack_pending: int
    """How many messages are delivered and not acknowledged."""

    num_redelivered: int
    """How many messages were delivered more than once and are still not acknowledged."""

    num_waiting: int
    """How many pull requests wait."""

    num_pending: int
    """How many messages that it is to deliver were not delivered yet."""

    cluster: ClusterInfo | None = None
    """The servers that hold it; only in a cluster."""

    push_bound: bool | None = None
    """Whether somebody listens on its `ConsumerConfig.deliver_subject`."""

    paused: bool | None = None
    """Whether it is paused; server 2.11."""

    pause_remaining: Duration = UNSET
    """For how long it stays paused; server 2.11."""

    ts: datetime | None = None
    """When the server gathered this; old servers do not say."""

    priority_groups: Sequence[PriorityGroupState] | None = None
    """The state of its priority groups; server 2.11."""


@record
class ConsumerPause(Record):
    """What pausing or resuming a consumer came to; server 2.11."""

    paused: bool
    """Whether it is paused now."""

    pause_until: datetime | None = None
    """Until when; a time in the past, or year 1, when it is not paused."""

    pause_remaining: Duration = UNSET
    """How long that is from now."""


@record
class ConsumerReset(ConsumerInfo):
    """A consumer right after it was reset; server 2.14."""

    reset_seq: int
    """The sequence of the stream that it goes on at."""
