"""Subscribe requests and their validation against existing consumers (ADR-15), without I/O."""

# Subscribing never changes an existing consumer. Each requested option is compared with the consumer's
# config, and the first difference raises an error of its own class, which names both values.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from .. import errors
from ..differences import changed_fields
from ..records import Frozen, frozen
from ..subjects import check_consumer_name, check_queue, check_stream_name, check_subject
from .consumer import ConsumerConfig, ConsumerInfo
from .enums import AckPolicy

#: Fields with separate checks.
_NOT_COMPARED: Final = frozenset(
    ("name", "filter_subject", "filter_subjects", "deliver_group", "extra")
)
#: The fields of an ordered consumer that cannot be chosen (ADR-17).
_ORDERED_FIELDS: Final[Mapping[str, Any]] = {
    "max_deliver": 1,
    "mem_storage": True,
    "num_replicas": 1,
}


@frozen(kw_only=True)
class SubscribeRequest(Frozen):
    """A request for a subscription; create it with `of()`."""

    subject: str
    """The subject; empty if only a stream is given."""
    stream: str | None
    """The stream; ``None``: look it up by the subject."""
    queue: str
    """The queue group, or an empty string."""
    consumer: str | None
    """The consumer to look up; ``None``: create an ephemeral one."""
    bound: bool
    """Whether the consumer must exist."""
    pull: bool
    """Whether this is a pull subscription."""
    config: ConsumerConfig
    """The config of a new consumer: the requested fields and defaults."""
    requested: Mapping[str, Any]
    """The explicitly requested fields of the config."""

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
        """Create a request, with all checks that need no server."""
        # `bind`: the name of a consumer that must exist.
        if stream is not None:
            stream = check_stream_name(stream)
        if not subject and not stream:
            raise errors.InvalidOptionError("subject", subject, "is required to find the stream")
        if config is not None and not isinstance(config, ConsumerConfig):
            raise errors.InvalidOptionError("config", config, "expected a ConsumerConfig")
        requested = _fields_set_in(config)
        given = {name: value for name, value in (options or {}).items() if value is not None}
        requested.update(given)
        if durable is not None:
            durable = check_consumer_name(durable)
            _same("durable", durable, "durable_name", requested)
            requested["durable_name"] = durable
        group = _same(
            "queue", check_queue("" if queue is None else queue), "deliver_group", requested
        )
        group = group or ""
        consumer = bind or requested.get("durable_name") or requested.get("name")
        if group and not consumer:
            # Otherwise each member would get its own consumer and all messages.
            consumer = requested["durable_name"] = check_consumer_name(group)
        merged = config or ConsumerConfig()
        changes = _changes(subject or "", requested, merged)
        if changes:  # an unmodified config of a server is not validated again
            merged = replace(merged, **changes)
        requested.update((name, getattr(merged, name)) for name in given)
        request = cls(
            subject=subject or "",
            stream=stream,
            queue=group,
            consumer=check_consumer_name(consumer) if consumer else None,
            bound=bind is not None,
            pull=pull,
            config=merged,
            requested=requested,
        )
        request._check()
        return request

    def _check(self) -> None:
        """Check that the arguments can be combined."""
        self._check_queue(self.requested.get("idle_heartbeat"), self.requested.get("flow_control"))
        if not self.pull:
            return
        policy = self.requested.get("ack_policy")
        if policy in (AckPolicy.NONE, AckPolicy.ALL):
            raise errors.InvalidOptionError(
                "ack_policy", policy, "must be explicit for a pull subscription"
            )
        if self.requested.get("deliver_subject"):
            raise errors.PullOnPushConsumerError(self.consumer, self.requested["deliver_subject"])

    def _check_queue(self, heartbeat: timedelta | None, flow_control: bool | None) -> None:
        """Check a queue group: the server would send heartbeats and requests to a random member."""
        for wrong, feature in ((heartbeat, "idle heartbeats"), (flow_control, "flow control")):
            if self.queue and wrong:
                raise errors.InvalidOptionError(
                    "queue", self.queue, f"queue groups do not support {feature}"
                )

    def new_config(self, inbox: str | None) -> ConsumerConfig:
        """Return the config of a new consumer for this subscription."""
        if inbox is None:
            self.config.check_pulled()
            return replace(self.config, deliver_group=None)
        return replace(
            self.config,
            deliver_subject=self.config.deliver_subject or inbox,
            deliver_group=self.queue or None,
        )

    # --- existing consumers ---------------------------------------------------------------------

    def check_existing(self, info: ConsumerInfo) -> None:
        """Check that this subscription can bind to an existing consumer."""
        config = info.config
        self._check_filter(config)
        if self.pull:
            if config.deliver_subject:
                raise errors.PullOnPushConsumerError(info.name, config.deliver_subject)
        elif not config.deliver_subject:
            raise errors.PushOnPullConsumerError(info.name, config.deliver_subject)
        else:
            self._check_group(info)
        self._check_config(config)

    def _check_filter(self, config: ConsumerConfig) -> None:
        found = config.filters
        several = self.requested.get("filter_subjects")
        single = self.subject or self.requested.get("filter_subject")
        asked = list(several) if several else [single] if single else []
        if several and not found:
            raise errors.ConfigMismatchError("filter_subjects", asked, None)
        if asked and found and set(asked) != set(found):
            raise errors.ConfigMismatchError(
                "subject", asked if several else single, found if len(found) > 1 else found[0]
            )

    def _check_group(self, info: ConsumerInfo) -> None:
        config = info.config
        group = config.deliver_group
        if (group or "") != self.queue:
            raise errors.ConfigMismatchError("queue", self.queue or None, group)
        if not group and info.push_bound:
            raise errors.DuplicateSubscriptionError(info.name, config.deliver_subject)
        self._check_queue(config.idle_heartbeat, config.flow_control)

    def _check_config(self, config: ConsumerConfig) -> None:
        changed = {*changed_fields(config, self.config)}
        for name, asked in self.requested.items():
            if name in _NOT_COMPARED or (name == "ack_wait" and self.requested.get("backoff")):
                continue  # the first value of backoff is the ack_wait
            # 0 and empty values request the server's default.
            if name in changed and (asked or asked is False) and not _includes(config, name, asked):
                raise errors.ConfigMismatchError(name, asked, getattr(config, name))


def _changes(subject: str, requested: Mapping[str, Any], config: ConsumerConfig) -> dict[str, Any]:
    """Return the changes to a config; raise if subject and filter differ."""
    changes = {
        name: value for name, value in requested.items() if value is not getattr(config, name)
    }
    if subject:
        _same("subject", check_subject(subject), "filter_subject", requested)
        if not requested.get("filter_subjects"):
            changes["filter_subject"] = subject
    return changes


def _fields_set_in(config: ConsumerConfig | None) -> dict[str, Any]:
    """Return the fields that are set in a config."""
    if config is None:
        return {}
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: value for name, value in values.items() if value is not None and name != "extra"}


def _same(option: str, value: str, field: str, requested: Mapping[str, Any]) -> str | None:
    """Return a name given as an argument or in the config; raise if both differ."""
    other = requested.get(field)
    if value and other and value != other:
        raise errors.InvalidOptionError(
            option, value, f"must be equal to {field}={other!r} of the config"
        )
    return value or other


def _includes(config: ConsumerConfig, name: str, asked: Any) -> bool:
    """Return whether a consumer has a different value that includes or means the requested one."""
    if name == "metadata":
        return bool(asked.items() <= (config.metadata or {}).items())
    if name == "sample_freq":
        return bool(asked.strip("+%") == (config.sample_freq or "").strip("+%"))
    return False


# --- ordered consumers --------------------------------------------------------------------------


def ordered_config(
    request: SubscribeRequest, name: str, inactive_threshold: timedelta
) -> ConsumerConfig:
    """Return the config of the first consumer of an ordered subscription (ADR-17), a pull consumer."""
    requested = request.requested
    if request.queue:
        raise errors.InvalidOptionError("queue", request.queue, "an ordered consumer is not shared")
    for option in ("durable_name", "deliver_subject", "rate_limit_bps"):
        if requested.get(option):
            reason = "is not possible for an ordered consumer"
            raise errors.InvalidOptionError(option, requested[option], reason)
    for option, only in _ORDERED_FIELDS.items():
        if requested.get(option, only) != only:
            reason = f"must be {only} for an ordered consumer"
            raise errors.InvalidOptionError(option, requested[option], reason)
    # Explicit is the default of a config.
    if requested.get("ack_policy", AckPolicy.NONE) not in (AckPolicy.NONE, AckPolicy.EXPLICIT):
        reason = "must be none for an ordered consumer"
        raise errors.InvalidOptionError("ack_policy", requested["ack_policy"], reason)
    return replace(
        request.config,
        **_ORDERED_FIELDS,
        name=requested.get("name") or name,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=requested.get("inactive_threshold") or inactive_threshold,
        # Those of push consumers; the heartbeat is that of the pull requests.
        idle_heartbeat=None,
        flow_control=None,
    )
