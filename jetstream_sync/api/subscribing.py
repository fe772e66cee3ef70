"""
What somebody who subscribes wants, and whether it fits: the checks of ADR-15 without I/O.

A consumer that exists is never changed by subscribing. So everything that was asked for is compared
with what it has, and the first thing that differs is an error of its own class, which names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final

from ..errors import (
    ConfigMismatchError,
    DuplicateSubscriptionError,
    InvalidOptionError,
    NoDeliverGroupError,
    PullAckPolicyError,
    PullOnPushConsumerError,
    PushOnPullConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    SubjectMismatchError,
    SubjectRequiredError,
)
from ..subjects import check_consumer_name, check_queue, check_stream_name, check_subject
from .consumer import ConsumerConfig, ConsumerInfo
from .enums import AckPolicy

__all__ = ["SubscribeRequest", "ordered_config"]

#: Compared by checks of their own.
_NOT_COMPARED: Final = frozenset(
    ("name", "filter_subject", "filter_subjects", "deliver_group", "extra")
)
#: Heartbeat of an ordered push consumer where nobody says (ADR-17).
_ORDERED_HEARTBEAT: Final = timedelta(seconds=5)
#: Something large, since nothing is acknowledged (ADR-17).
_ORDERED_ACK_WAIT: Final = timedelta(hours=22)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequest:
    """A subscription as it is asked for; make it with `of()`."""

    subject: str
    """The subject, empty when only a stream is named."""
    stream: str | None
    """The stream; ``None``: to be found by the subject."""
    queue: str
    """The queue group, empty without one."""
    consumer: str | None
    """The consumer to look up; ``None``: make an ephemeral one."""
    bound: bool
    """Whether that consumer must exist."""
    pull: bool
    """Whether messages are to be pulled."""
    config: ConsumerConfig
    """What to make the consumer of: what was said, and defaults."""
    said: Mapping[str, Any]
    """The fields of it that somebody said, with their values."""

    @classmethod
    def of(
        cls,
        *,
        subject: str | None = None,
        stream: str | None = None,
        queue: str | None = None,
        durable: str | None = None,
        bind: str | None = None,
        pull: bool = False,
        config: ConsumerConfig | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> SubscribeRequest:
        """
        Check what can be checked without the server.

        Args:
            subject: what to subscribe to; may be missing when the stream is named.
            stream: the stream's name.
            queue: the queue group; without a durable or a name it becomes the durable's name.
            durable: the name of a durable consumer, which is made when it does not exist.
            bind: the name of a consumer that must exist.
            pull: whether messages are to be pulled.
            config: the consumer's config; all of its policies count as said.
            options: fields of the config that were said as arguments; they go before ``config``,
                and ``None`` is *not said*.

        Raises:
            SubscribeError: two of these do not fit together; the class says which.
            InvalidOptionError: a name is said in two ways, or the config is not one.
            BadSubjectError, InvalidNameError: a name is not well formed.

        """
        if stream is not None:
            check_stream_name(stream)
        if not subject and not stream:
            raise SubjectRequiredError(subject, stream)
        if config is not None and not isinstance(config, ConsumerConfig):
            raise InvalidOptionError("config", config, "expected a ConsumerConfig")
        said = _said(config)
        given = {name: value for name, value in (options or {}).items() if value is not None}
        said.update(given)
        if durable is not None:
            check_consumer_name(durable)
            _same("durable", durable, "durable_name", said)
            said["durable_name"] = durable
        group = _same("queue", check_queue("" if queue is None else queue), "deliver_group", said)
        group = group or ""
        consumer = bind or said.get("durable_name") or said.get("name")
        if group and not consumer:
            # Else every member would get a consumer, and all messages, of its own.
            consumer = said["durable_name"] = check_consumer_name(group)
        merged = config or ConsumerConfig()
        changes = _changes(subject or "", said, merged)
        if changes:  # the config of a server, as it came, is not checked again
            merged = replace(merged, **changes)
        said.update((name, getattr(merged, name)) for name in given)
        wanted = cls(
            subject=subject or "",
            stream=stream,
            queue=group,
            consumer=check_consumer_name(consumer) if consumer else None,
            bound=bind is not None,
            pull=pull,
            config=merged,
            said=said,
        )
        wanted._check()
        return wanted

    def _check(self) -> None:
        """Check what was asked for by itself."""
        if self.queue and self.said.get("idle_heartbeat"):
            raise QueueHeartbeatError(self.queue, self.said["idle_heartbeat"])
        if self.queue and self.said.get("flow_control"):
            raise QueueFlowControlError(self.queue, True)
        if not self.pull:
            return
        policy = self.said.get("ack_policy")
        if policy in (AckPolicy.NONE, AckPolicy.ALL):
            raise PullAckPolicyError("a pull subscription", policy)
        if self.said.get("deliver_subject"):
            raise PullOnPushConsumerError(self.consumer, self.said["deliver_subject"])

    def new_config(self, inbox: str | None) -> ConsumerConfig:
        """
        Return the config of a consumer that is made for this subscription.

        Args:
            inbox: where it delivers to unless the user said; ``None``: nowhere, it is pulled from.

        Raises:
            InvalidOptionError: two options exclude each other.

        """
        if inbox is None:
            self.config.check_pulled()
            return replace(self.config, deliver_group=None)
        return replace(
            self.config,
            deliver_subject=self.config.deliver_subject or inbox,
            deliver_group=self.queue or None,
        )

    # --- a consumer that exists -----------------------------------------------------------------

    def check_existing(self, info: ConsumerInfo) -> None:
        """
        Check that this subscription can be bound to a consumer that exists.

        Raises:
            SubscribeError: it can not; the class says why.

        """
        config = info.config
        self._check_filter(config)
        if self.pull:
            if config.deliver_subject:
                raise PullOnPushConsumerError(info.name, config.deliver_subject)
        elif not config.deliver_subject:
            raise PushOnPullConsumerError(info.name, config.deliver_subject)
        else:
            self._check_group(info)
        self._check_config(config)

    def _check_filter(self, config: ConsumerConfig) -> None:
        found = list(config.filter_subjects or filter(None, [config.filter_subject]))
        several = self.said.get("filter_subjects")
        single = self.subject or self.said.get("filter_subject")
        asked = list(several) if several else [single] if single else []
        if several and not found:
            raise ConfigMismatchError("filter_subjects", asked, None)
        if asked and found and set(asked) != set(found):
            raise SubjectMismatchError(
                asked if several else single, found if len(found) > 1 else found[0]
            )

    def _check_group(self, info: ConsumerInfo) -> None:
        config = info.config
        group = config.deliver_group
        if not self.queue:
            if group:
                raise QueueRequiredError(None, group)
            if info.push_bound:
                raise DuplicateSubscriptionError(info.name, config.deliver_subject)
            return
        if not group:
            raise NoDeliverGroupError(self.queue, group)
        if group != self.queue:
            raise QueueMismatchError(self.queue, group)
        if config.flow_control:
            raise QueueFlowControlError(self.queue, True)
        if config.idle_heartbeat:
            raise QueueHeartbeatError(self.queue, config.idle_heartbeat)

    def _check_config(self, config: ConsumerConfig) -> None:
        for name, asked in self.said.items():
            if name in _NOT_COMPARED or (name == "ack_wait" and self.said.get("backoff")):
                continue  # the first backoff is the ack_wait
            found = getattr(config, name)
            if _differs(name, asked, found):
                raise ConfigMismatchError(name, asked, found)


def _changes(subject: str, said: Mapping[str, Any], config: ConsumerConfig) -> dict[str, Any]:
    """Return what makes a config one of the consumer to be; refuses two different subjects."""
    changes = {name: value for name, value in said.items() if value is not getattr(config, name)}
    if subject:
        _same("subject", check_subject(subject), "filter_subject", said)
        if not said.get("filter_subjects"):
            changes["filter_subject"] = subject
    return changes


def _said(config: ConsumerConfig | None) -> dict[str, Any]:
    """Return the fields that a config says."""
    if config is None:
        return {}
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    return {name: value for name, value in values.items() if value is not None and name != "extra"}


def _same(option: str, value: str, field: str, said: Mapping[str, Any]) -> str | None:
    """Return a name that may be said as an argument, in the config, or alike in both."""
    other = said.get(field)
    if value and other and value != other:
        raise InvalidOptionError(option, value, f"the config has {field}={other!r}")
    return value or other


def _differs(name: str, asked: Any, found: Any) -> bool:
    """Say whether an option is not what a consumer has."""
    if isinstance(asked, bool):
        return asked is not bool(found)
    if not asked:
        return False  # 0 and nothing stand for the server's default
    if name == "metadata":
        known = found or {}
        return any(known.get(key) != value for key, value in asked.items())
    if name == "sample_freq":
        return bool(asked.strip("+%") != (found or "").strip("+%"))
    if isinstance(asked, (list, tuple)):
        return list(asked) != list(found or ())
    return bool(asked != found)


# --- ordered consumers --------------------------------------------------------------------------


def ordered_config(wanted: SubscribeRequest, name: str, deliver_subject: str) -> ConsumerConfig:
    """
    Return the config of the first consumer of an ordered push subscription (ADR-17).

    Args:
        wanted: what was asked for.
        name: the consumer's name where the user says none.
        deliver_subject: where it delivers to.

    Raises:
        InvalidOptionError: something was said that an ordered consumer can not have.

    """
    said = wanted.said
    reasons = {
        "durable_name": "an ordered consumer is not durable",
        "deliver_subject": "an ordered consumer chooses its own",
        "deliver_group": "an ordered consumer is not shared by a queue group",
        "num_replicas": "an ordered consumer has one replica",
    }
    if wanted.queue:
        raise InvalidOptionError("queue", wanted.queue, reasons["deliver_group"])
    if wanted.bound:
        raise InvalidOptionError("consumer", wanted.consumer, "an ordered consumer is its own")
    for option, reason in reasons.items():
        if said.get(option):
            raise InvalidOptionError(option, said[option], reason)
    for option, only in (("max_deliver", 1), ("flow_control", True), ("mem_storage", True)):
        if said.get(option, only) != only:
            raise InvalidOptionError(option, said[option], f"an ordered consumer has {only}")
    # Explicit is what a config has where nobody says.
    if said.get("ack_policy", AckPolicy.NONE) not in (AckPolicy.NONE, AckPolicy.EXPLICIT):
        raise InvalidOptionError("ack_policy", said["ack_policy"], "an ordered consumer has none")
    return replace(
        wanted.config,
        name=said.get("name") or name,
        ack_policy=AckPolicy.NONE,
        ack_wait=_ORDERED_ACK_WAIT,
        max_deliver=1,
        flow_control=True,
        mem_storage=True,
        num_replicas=1,
        idle_heartbeat=said.get("idle_heartbeat") or _ORDERED_HEARTBEAT,
        deliver_subject=deliver_subject,
    )
