"""Records of consumers: configuration, info and state."""

# Field names are those of the JSON API. In a config None means *not set*: the field is not sent, and
# the server's default applies. The records define every field of nats-server 2.15
# (server/consumer.go) and keep the fields of newer servers. Validation rejects invalid configs but
# accepts every config that a server sends, so that it can be changed and sent back.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from .. import errors
from ..codec import UNSET, Duration, Durations, Record
from ..durations import check_message_time
from ..records import record, setting
from ..subjects import check_consumer_name, check_publish_subject, check_queue, check_subject
from .account import ClusterInfo
from .enums import AckPolicy, DeliverPolicy, PriorityPolicy, ReplayPolicy

_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1
_SAMPLE_FREQ = r"\+?[0-9]+%?"
_PRIORITY_GROUP = r"[a-zA-Z0-9/_=-]{1,16}"


@record
class ConsumerConfig(Record):
    """
    The configuration of a consumer.

    With a `deliver_subject` it is a push consumer, otherwise a pull consumer.

    Raises:
        InvalidNameError: a name is malformed.
        BadSubjectError: a subject or group is malformed.
        InvalidOptionError: a value is out of range or has the wrong type, or two fields cannot be
            combined.

    """

    durable_name: str | None = setting(default=None, flags="")
    """
    The name of a durable consumer, which is kept while it is not used.

    Without it the consumer is ephemeral: the server deletes it after `inactive_threshold`. No white
    space, ``.``, ``*``, ``>`` or slashes.
    """

    name: str | None = setting(default=None, flags="", server_default=...)
    """
    The consumer name; equal to `durable_name` if both are set.

    If neither is set, the client or the server generates a name.
    """

    description: str | None = None
    """Description; at most 4096 bytes."""

    deliver_policy: DeliverPolicy | str = setting(default=DeliverPolicy.ALL, flags="--deliver")
    """Where in the stream to start. Always sent. Not updatable."""

    opt_start_seq: int | None = setting(default=None, low=0, high=_UINT64_MAX, flags="")
    """The sequence to start at; required by `deliver_policy` ``by_start_sequence`` and only valid there."""

    opt_start_time: datetime | None = setting(default=None, flags="")
    """The time to start at; required by `deliver_policy` ``by_start_time`` and only valid there."""

    ack_policy: AckPolicy | str = setting(default=AckPolicy.EXPLICIT, flags="--ack")
    """
    How messages are acknowledged. Always sent, not updatable.

    The default of this client is ``explicit``; the server's default is ``none``.
    """

    ack_wait: Duration = setting(default=UNSET, low=0, server_default=..., flags="--wait")
    """
    Seconds after which an unacknowledged message is redelivered.

    The server's default is 30 seconds, or the first value of `backoff`, which overrides it. Excludes
    `ack_policy` ``flow_control``.
    """

    max_deliver: int | None = setting(
        default=None, low=-1, server_default=-1, title="Maximum Deliveries"
    )
    """Maximum number of deliveries of a message; the server's default is -1, no limit."""

    backoff: Durations = UNSET
    """
    Seconds to wait before the second, third, ... delivery.

    The last value applies to all further deliveries. Overrides `ack_wait`, has at most `max_deliver`
    items, and does not apply to a nak.
    """

    filter_subject: str | None = setting(default=None, flags="")
    """Deliver only messages on this subject, with wildcards. Excludes `filter_subjects`."""

    filter_subjects: Sequence[str] | None = setting(default=None, flags="--filter")
    """Deliver only messages on these subjects, which must not overlap. Excludes `filter_subject`."""

    replay_policy: ReplayPolicy | str = setting(default=ReplayPolicy.INSTANT, flags="--replay")
    """Speed of delivery of stored messages. Always sent. Not updatable."""

    rate_limit_bps: int | None = setting(
        default=None, low=0, high=_UINT64_MAX, title="Rate Limit in Bits/s", flags="--bps"
    )
    """Maximum delivery rate in bits per second; push consumers only."""

    sample_freq: str | None = setting(default=None, title="Sampling Rate", flags="--sample")
    """Percentage of acknowledgements that the server reports in an advisory: ``"30%"``."""

    max_waiting: int | None = setting(
        default=None, low=0, server_default=..., title="Maximum Waiting Pulls"
    )
    """
    Maximum number of waiting pull requests; the server's default is 512.

    Pull consumers only. Not updatable.
    """

    max_ack_pending: int | None = setting(
        default=None, low=-1, server_default=..., flags="--max-pending"
    )
    """
    Maximum number of unacknowledged messages before delivery pauses.

    The server's default is that of the stream's ``consumer_limits``, or else 1000; -1 is no limit. Not
    valid for a push consumer with `ack_policy` ``none``.
    """

    flow_control: bool | None = None
    """Whether to enable flow control; push consumers with `idle_heartbeat` only."""

    idle_heartbeat: Duration = setting(default=UNSET, low=0, flags="--heartbeat")
    """
    Interval of heartbeats of an idle push consumer, in seconds, at least 0.1.

    Default: no heartbeats. For pull consumers the heartbeat is part of each pull request.
    """

    headers_only: bool | None = None
    """Whether to omit the payload and send its size in ``Nats-Msg-Size``."""

    max_batch: int | None = setting(
        default=None, low=0, title="Maximum Pull Batch", flags="--max-pull-batch"
    )
    """Maximum number of messages of a pull request; default: no limit."""

    max_expires: Duration = setting(
        default=UNSET, low=0.001, title="Maximum Pull Expiry", flags="--max-pull-expire"
    )
    """Maximum expiry of a pull request in seconds, at least 0.001; default: no limit."""

    max_bytes: int | None = setting(
        default=None, low=0, unit="bytes", title="Maximum Pull Bytes", flags="--max-pull-bytes"
    )
    """Maximum number of bytes of a pull request; default: no limit."""

    deliver_subject: str | None = setting(default=None, title="Delivery Subject", flags="--target")
    """The delivery subject, which makes this a push consumer; no wildcards."""

    deliver_group: str | None = setting(default=None, title="Delivery Queue Group")
    """The queue group that shares the messages of a push consumer. Not updatable."""

    inactive_threshold: Duration = setting(default=UNSET, low=0, server_default=...)
    """
    Seconds of inactivity after which the server deletes the consumer.

    The server's default is that of the stream's ``consumer_limits``, or else 5 seconds for an ephemeral
    consumer and no limit for a durable one. A consumer is active while it has pull requests or a
    subscriber on its `deliver_subject`, even without messages.
    """

    num_replicas: int | None = setting(default=None, low=0, high=5, flags="--replicas")
    """
    Number of replicas of the consumer state, 0 to 5.

    The server's default is 0: as many as the stream, or one for an ephemeral consumer of a stream
    with retention ``limits``.
    """

    mem_storage: bool | None = setting(default=None, title="Memory Storage", flags="--memory")
    """Whether to keep the state in memory, regardless of the stream's storage. Not updatable."""

    direct: bool | None = setting(default=None, flags="")
    """Internal to servers, for mirrors and sources."""

    sourcing: bool | None = setting(default=None, since=(2, 14), flags="")
    """Internal to servers, for mirrors and sources."""

    metadata: Mapping[str, str] | None = None
    """
    Application-defined key-value pairs, at most 128 KiB.

    Keys that begin with ``_nats.`` are reserved: the server sets and removes them.
    """

    pause_until: datetime | None = setting(
        default=None, since=(2, 11), title="Paused Until", flags="--pause"
    )
    """Pause delivery until this time; changed later by pause and resume."""

    priority_groups: Sequence[str] | None = setting(default=None, since=(2, 11))
    """
    The priority groups of pull requests (ADR-42).

    A name has at most 16 letters, digits, ``-``, ``_``, ``/`` and ``=``. Requires `priority_policy`; pull
    consumers only.
    """

    priority_policy: PriorityPolicy | str | None = setting(
        default=None, since=(2, 11), server_default="none"
    )
    """How the server selects a pull request of a group. Not updatable."""

    priority_timeout: Duration = setting(
        default=UNSET, since=(2, 11), low=0, title="Pinned Client Timeout", flags="--pinned-ttl"
    )
    """
    Seconds without pull requests after which another client is pinned.

    The server's default is 2 minutes with `priority_policy` ``pinned_client``.
    """

    def _check(self) -> None:
        self._check_names()
        self._check_sampling()
        self._check_filters()
        self._check_start()
        self._check_redelivery()
        if self.deliver_subject is not None:
            self._check_push(self.deliver_subject)
        self._check_priority()

    def check_pulled(self) -> None:
        """
        Check the fields for a pull consumer.

        A config without a `deliver_subject` can become either kind: a push subscription sets the subject.

        Raises:
            InvalidOptionError: a field requires a push consumer.

        """
        reason = "requires a deliver_subject"
        self._refuse_set(reason, "rate_limit_bps", "idle_heartbeat", "flow_control")
        self._refuse_if(self.ack_policy == AckPolicy.FLOW_CONTROL, "ack_policy", reason)

    def _check_names(self) -> None:
        for name in (self.durable_name, self.name):
            if name is not None:
                check_consumer_name(name, new=True)
        both = self.durable_name is not None and self.name is not None
        self._refuse_if(
            both and self.name != self.durable_name, "name", "must be equal to durable_name"
        )

    def _check_sampling(self) -> None:
        self._refuse_if(
            self.sample_freq is not None and not re.fullmatch(_SAMPLE_FREQ, self.sample_freq),
            "sample_freq",
            "must be an integer percentage, such as '30%'",
        )

    @property
    def filters(self) -> list[str]:
        """The filter subjects, from either field; empty: all subjects of the stream."""
        return list(self.filter_subjects or filter(None, [self.filter_subject]))

    def _check_filters(self) -> None:
        for subject in self.filter_subjects or ():
            check_subject(subject)
        if self.filter_subject is not None:
            check_subject(self.filter_subject)
            self._refuse_set("cannot be combined with filter_subject", "filter_subjects")

    def _check_start(self) -> None:
        policy = self.deliver_policy
        if self.opt_start_time is not None:
            check_message_time(self.opt_start_time, "opt_start_time")
        for name, needing in (
            ("opt_start_seq", DeliverPolicy.BY_START_SEQUENCE),
            ("opt_start_time", DeliverPolicy.BY_START_TIME),
        ):
            is_set = bool(getattr(self, name))
            self._refuse_if(
                is_set and policy != needing, name, f"requires deliver_policy {needing}"
            )
            if policy == needing and not is_set:
                raise errors.InvalidOptionError("deliver_policy", policy, f"requires {name}")
        self._refuse_if(
            policy == DeliverPolicy.LAST_PER_SUBJECT and not self.filters,
            "deliver_policy",
            "requires a filter, which may be '>'",
        )

    def _check_redelivery(self) -> None:
        if self.backoff:
            self._refuse_if(
                any(wait < timedelta(0) for wait in self.backoff), "backoff", "must not be negative"
            )
            limit = self.max_deliver
            self._refuse_if(
                limit is not None and 0 < limit < len(self.backoff),
                "backoff",
                f"must not have more items than max_deliver ({limit})",
            )
        if self.ack_policy == AckPolicy.FLOW_CONTROL:
            reason = "cannot be combined with ack_policy flow_control"
            self._refuse_set(reason, "ack_wait", "backoff")
            self._refuse_if((self.max_deliver or 0) > 0, "max_deliver", reason)

    def _check_push(self, deliver_subject: str) -> None:
        check_publish_subject(deliver_subject)
        check_queue(self.deliver_group or "")
        reason = "cannot be combined with deliver_subject"
        self._refuse_set(reason, "max_waiting", "priority_groups")
        self._refuse_if(
            self.ack_policy == AckPolicy.NONE and (self.max_ack_pending or 0) > 0,
            "max_ack_pending",
            "requires an ack_policy other than none",
        )
        if self.idle_heartbeat:
            self._check_range(0.1, _INT64_MAX, "idle_heartbeat")
        elif self.ack_policy != AckPolicy.FLOW_CONTROL:  # for which the server sets the heartbeat
            self._refuse_set("requires idle_heartbeat", "flow_control")

    def _check_priority(self) -> None:
        if self.priority_policy in (None, PriorityPolicy.NONE):
            self._refuse_set("requires a priority_policy", "priority_groups", "priority_timeout")
            return
        self._refuse_if(not self.priority_groups, "priority_policy", "requires priority_groups")
        self._refuse_if(
            any(not re.fullmatch(_PRIORITY_GROUP, group) for group in self.priority_groups or ()),
            "priority_groups",
            "a group must have 1 to 16 letters, digits, '-', '_', '/' or '='",
        )


# --- info and state -----------------------------------------------------------------------------


@record
class SequenceInfo(Record):
    """A position of a consumer."""

    consumer_seq: int
    """Consumer sequence: the number of deliveries, redeliveries included."""

    stream_seq: int
    """Stream sequence."""

    last_active: datetime | None = None
    """Time of the last change; not set before the first one."""


@record
class PriorityGroupState(Record):
    """State of one priority group."""

    group: str
    """Name of the group."""

    pinned_client_id: str | None = None
    """Id of the pinned client; not set if no client is pinned."""

    pinned_ts: datetime | None = None
    """Time when the client was pinned; year 1 if no client is pinned."""


@record
class ConsumerInfo(Record):
    """Configuration and state of a consumer at the time `ts`."""

    stream_name: str
    """Name of the stream."""

    name: str
    """Name of the consumer."""

    created: datetime
    """Time of creation."""

    config: ConsumerConfig
    """The configuration, including the server's defaults."""

    delivered: SequenceInfo
    """Position of the last delivery."""

    ack_floor: SequenceInfo
    """Position up to which all messages are acknowledged."""

    num_ack_pending: int
    """Number of delivered but unacknowledged messages."""

    num_redelivered: int
    """Number of redelivered messages that are still unacknowledged."""

    num_waiting: int
    """Number of waiting pull requests."""

    num_pending: int
    """Number of matching messages that were not delivered yet."""

    cluster: ClusterInfo | None = None
    """Leader and replicas; only in a cluster."""

    push_bound: bool | None = None
    """Whether `ConsumerConfig.deliver_subject` has a subscriber."""

    paused: bool | None = None
    """Whether the consumer is paused; needs server 2.11."""

    pause_remaining: Duration = UNSET
    """Remaining time of the pause; needs server 2.11."""

    ts: datetime | None = None
    """Time of this snapshot on the server; not set by old servers."""

    priority_groups: Sequence[PriorityGroupState] | None = None
    """State of the priority groups; needs server 2.11."""


@record
class ConsumerPause(Record):
    """Result of pausing or resuming a consumer; needs server 2.11."""

    paused: bool
    """Whether the consumer is paused."""

    pause_until: datetime | None = None
    """End of the pause; a time in the past, or year 1, if the consumer is not paused."""

    pause_remaining: Duration = UNSET
    """Remaining time of the pause."""


@record
class ConsumerReset(ConsumerInfo):
    """Info of a consumer after a reset; needs server 2.14."""

    reset_seq: int
    """The stream sequence at which delivery resumes."""
