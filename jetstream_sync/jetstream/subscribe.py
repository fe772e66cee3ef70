"""Subscribe to a stream (ADR-15): find the stream, then find or create the consumer."""

# `resolve_pull_consumer` serves pull subscriptions too. Another client may create the consumer between
# the lookup and the creation. The consumer is then looked up again, and must match the request like any
# other existing consumer.

# ruff: noqa: SLF001 - this module creates the subscriptions: users see no methods of the creation

from __future__ import annotations

from dataclasses import fields as fields_of
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, overload

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import DeliverPolicy
from ..api.subscribing import SubscribeRequest
from ..options import check_callback, check_known
from ..subjects import check_consumer_name, check_stream_name, check_subject
from .api_requests import APIRequests, names_by_subject, with_one_deadline
from .consume_handle import JetStreamCallback
from .consumer_requests import (
    BOUND_CHECK_DELAY_S,
    CREATE,
    add_consumer,
    consumer_info,
    taken_back,
    with_name,
)
from .ordered_subscription import OrderedSubscription
from .push import PushOptions, PushSubscription

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ResolvedConsumer(NamedTuple):
    """A consumer that a subscription uses."""

    stream: str
    """The stream's name."""
    consumer: str
    """The consumer's name."""
    config: ConsumerConfig
    """Its config; if it is unknown, the requested one."""
    made: ConsumerInfo | None
    """Its info, if it was created for this subscription."""


def find_stream(api: APIRequests, request: SubscribeRequest) -> str:
    """Return the stream that is named, or the stream with the subject."""
    if request.stream is not None:
        return request.stream
    names = names_by_subject(api, request.subject)
    if len(names) > 1:
        raise errors.AmbiguousSubjectError(request.subject, names)
    return names[0]


def find_consumer(api: APIRequests, stream: str, request: SubscribeRequest) -> ConsumerInfo | None:
    """Return the checked info of the requested consumer; ``None``: it must be created."""
    if request.consumer is None:
        return None
    try:
        return _existing(api, stream, request.consumer, request)
    except errors.ConsumerNotFoundError:
        if request.bound:
            raise
        return None


def create_or_find(
    api: APIRequests, stream: str, request: SubscribeRequest, config: ConsumerConfig
) -> tuple[ConsumerInfo, bool]:
    """Create or look up a consumer; return its info, and whether it was created here."""
    try:
        is_ours = request.consumer is None
        return add_consumer(api, stream, config, CREATE, is_ours=is_ours), True
    except (errors.ConsumerExistsError, errors.ConsumerNameInUseError):
        if request.consumer is None:
            raise
    return _existing(api, stream, request.consumer, request), False


def _existing(api: APIRequests, stream: str, name: str, request: SubscribeRequest) -> ConsumerInfo:
    """Look a consumer up, and check that the subscription matches it."""
    info = consumer_info(api, stream, name)
    try:
        request.check_existing(info)
    except errors.DuplicateSubscriptionError:
        # The other subscription may have just ended: the server notices that in the background.
        if api.core.wait_closed(BOUND_CHECK_DELAY_S):
            raise
        info = consumer_info(api, stream, name)
        request.check_existing(info)
    return info


def resolve_pull_consumer(api: APIRequests, request: SubscribeRequest) -> ResolvedConsumer:
    """Find or create the consumer of a pull subscription."""
    # A bound consumer that cannot be looked up is assumed to exist (ADR-15): pulling from it may be
    # permitted although the lookup is not.
    stream = find_stream(api, request)
    try:
        info = find_consumer(api, stream, request)
    except (errors.APIError, errors.PermissionsError, errors.TimeoutError):
        if not request.bound or request.consumer is None:
            raise
        return ResolvedConsumer(stream, request.consumer, request.config, None)
    created = False
    if info is None:
        config, own_name = with_name(request.new_config(None))
        with taken_back(api, stream, own_name):
            info, created = create_or_find(api, stream, request, config)
    return ResolvedConsumer(stream, info.name, info.config, info if created else None)


class BindOptions(TypedDict, total=False):
    """Further options of `JetStream.subscribe_bind`; all are optional."""

    pending_msgs_limit: int
    """Maximum number of unread messages; further messages are dropped; default 524288, 0: no limit."""
    pending_bytes_limit: int
    """Maximum number of unread bytes; default 256 MiB, 0: no limit."""
    heartbeat_intervals: float
    """Number of missed idle heartbeats after which `NoHeartbeatError` is reported; default 3."""


class SubscribeOptions(BindOptions, total=False):
    """
    Further options of `JetStream.subscribe`; all are optional.

    An ordered subscription has none of `BindOptions`: it requests a limited number of messages.
    """

    deliver_policy: DeliverPolicy | str
    """Where the consumer starts; overrides that of ``config``."""
    headers_only: bool
    """Whether to deliver headers without payloads."""
    inactive_threshold: float | timedelta
    """Seconds without a subscription after which the server deletes the consumer."""
    delete_consumer: bool
    """Whether the end of the subscription deletes the consumer if this call created it; default true."""
    restart_if_recreated: bool
    """With ``ordered_consumer``: as in `OrderedOptions`; default false."""


#: The options that are fields of the consumer's config.
_FIELDS: Final = SubscribeOptions.__annotations__.keys() & {
    field.name for field in fields_of(ConsumerConfig)
}


_ORDERED_ONLY: Final = "requires ordered_consumer"
_NOT_ORDERED: Final = "is not possible with ordered_consumer"


class PushSubscribeAPI:
    """The push subscriptions of `JetStream`."""

    _api: APIRequests

    @overload
    def subscribe(
        self,
        subject: str = "",
        queue: str | None = None,
        cb: JetStreamCallback | None = None,
        durable: str | None = None,
        stream: str | None = None,
        config: ConsumerConfig | None = None,
        manual_ack: bool = False,
        ordered_consumer: Literal[False] = False,
        idle_heartbeat: float | timedelta | None = None,
        flow_control: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> PushSubscription: ...

    @overload
    def subscribe(
        self,
        subject: str = "",
        queue: str | None = None,
        cb: JetStreamCallback | None = None,
        durable: str | None = None,
        stream: str | None = None,
        config: ConsumerConfig | None = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        idle_heartbeat: float | timedelta | None = None,
        flow_control: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> PushSubscription | OrderedSubscription: ...

    @with_one_deadline
    def subscribe(
        self,
        subject: str = "",
        queue: str | None = None,
        cb: JetStreamCallback | None = None,
        durable: str | None = None,
        stream: str | None = None,
        config: ConsumerConfig | None = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        idle_heartbeat: float | timedelta | None = None,
        flow_control: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> PushSubscription | OrderedSubscription:
        """
        Subscribe to a subject of a stream with a push consumer, or in order.

        An existing durable consumer is used unchanged; a requested option that differs is an error. A
        missing one is created with the subject as its filter (ADR-15), and so is an ephemeral consumer if
        no durable name is given. On return the subscription is bound to the consumer.

        A consumer that this call created, also a durable one, is deleted when the subscription is
        unsubscribed or drained, unless ``delete_consumer`` is false. The consumer of a queue group is kept
        while other subscriptions are bound to it. When the connection is drained, ephemeral consumers are
        deleted and durable ones are kept; when it is closed, the client deletes nothing. An existing
        consumer is never deleted, nor one that another client has created meanwhile with the durable name.

        Args:
            subject: the subject, which may have wildcards; may be empty if ``stream`` is given.
            queue: the queue group, whose members share the messages; also the durable name if there is
                none; ``None``: no queue group.
            cb: called with each message on a dedicated thread. The message is acknowledged when it
                returns. When it raises, the message is redelivered after 5 seconds, or the step of the
                consumer's ``backoff``. ``None``: messages are read with `PushSubscription.next_msg` or
                by iterating.
            durable: the name of a durable consumer; ``None``: an ephemeral one.
            stream: the name of the stream; ``None``: the only stream with the subject.
            config: the config of a new consumer, or the expected config of an existing one;
                ``None``: the defaults.
            manual_ack: whether ``cb`` acknowledges; nothing is sent after it then, also when it raises.
            ordered_consumer: deliver every message once and in order, without acknowledgements: an
                `OrderedSubscription` is returned, whose pull consumer is recreated after a gap (ADR-17). If
                the stream was deleted and created again, or restored to an earlier state, the subscription
                ends with `StreamRecreatedError`.
            idle_heartbeat: interval of the server's heartbeats while there are no messages, in seconds;
                ``None``: that of ``config``, or none. With ``ordered_consumer``: 0.5 to 15, by default 2.
            flow_control: whether the server waits for slow readers; requires an ``idle_heartbeat``. No
                effect with ``ordered_consumer``, which requests messages as they are read.
            **options: see `SubscribeOptions`.

        Raises:
            StreamNotFoundError: no stream has the subject, or has that name.
            SubscribeError: the subscription does not match the consumer, or the subject matches several
                streams; see its subclasses.
            InvalidOptionError, InvalidNameError, BadSubjectError: an argument is invalid.
            Error: otherwise as `JetStream.account_info`.

        """
        if cb is not None:
            check_callback("cb", cb)
        check_known(options, SubscribeOptions.__annotations__)
        fields: dict[str, Any] = {name: options.get(name) for name in _FIELDS}
        fields |= {"idle_heartbeat": idle_heartbeat, "flow_control": flow_control or None}
        request = SubscribeRequest.of(
            subject=check_subject(subject) if subject != "" else "",
            stream=stream,
            queue=queue,
            durable=durable,
            config=config,
            options=fields,
        )
        restarts = bool(options.get("restart_if_recreated"))
        if not ordered_consumer:
            if restarts:
                raise errors.InvalidOptionError("restart_if_recreated", True, _ORDERED_ONLY)
            return self._push_subscription(request, _push_options(cb, manual_ack, options))
        _check_ordered(options)
        stream = find_stream(self._api, request)
        return OrderedSubscription(self._api, stream, request, cb, restart_if_recreated=restarts)

    @with_one_deadline
    def subscribe_bind(
        self,
        stream: str,
        consumer: str,
        cb: JetStreamCallback | None = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        config: ConsumerConfig | None = None,
        queue: str | None = None,
        **options: Unpack[BindOptions],
    ) -> PushSubscription:
        """
        Subscribe to an existing push consumer.

        The consumer is looked up, and kept when the subscription ends.

        Args:
            stream: the name of the stream.
            consumer: the consumer's name.
            cb: as in `subscribe()`.
            manual_ack: as in `subscribe()`.
            ordered_consumer: must be false: an ordered consumer cannot be bound (ADR-17).
            config: the expected config; ``None``: any.
            queue: the queue group to join; ``None``: that of ``config``, or none.
            **options: see `BindOptions`.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: it does not exist.
            SubscribeError: the subscription does not match it; see its subclasses.
            InvalidOptionError, InvalidNameError: an argument is invalid.
            Error: otherwise as `JetStream.account_info`.

        """
        if cb is not None:
            check_callback("cb", cb)
        check_known(options, BindOptions.__annotations__)
        if isinstance(consumer, ConsumerConfig):
            raise errors.InvalidOptionError(
                "consumer", "...", "must be the name of the consumer; pass a config as config="
            )
        if ordered_consumer:
            raise errors.InvalidOptionError(
                "ordered_consumer", True, "cannot be bound; use subscribe()"
            )
        request = SubscribeRequest.of(
            stream=check_stream_name(stream),
            queue=queue,
            bind=check_consumer_name(consumer),
            config=config,
        )
        return self._push_subscription(request, _push_options(cb, manual_ack, options))

    def _push_subscription(
        self, request: SubscribeRequest, options: PushOptions
    ) -> PushSubscription:
        api = self._api
        stream = find_stream(api, request)
        info = find_consumer(api, stream, request)
        if info is None:
            config, own_name = with_name(request.new_config(api.core.table.new_inbox()))
            # Subscribe before the consumer exists, so that the server sees an existing subscriber, and
            # no message is delivered without one.
            subscription = PushSubscription(api, stream, config, options)
            try:
                with taken_back(api, stream, own_name):
                    info, created = create_or_find(api, stream, request, config)
                    if created:
                        subscription._set_consumer(info, created=True)
                        return subscription
            except BaseException:
                subscription._abandon()
                raise
            subscription._abandon()
        subscription = PushSubscription(api, stream, info.config, options)
        subscription._set_consumer(info, created=False)
        return subscription


def _check_ordered(options: SubscribeOptions) -> None:
    for name, value in options.items():
        if name in BindOptions.__annotations__ or (name, value) == ("delete_consumer", False):
            raise errors.InvalidOptionError(name, value, _NOT_ORDERED)


def _push_options(
    callback: JetStreamCallback | None, manual_ack: bool, options: BindOptions
) -> PushOptions:
    skipped = {*_FIELDS, "restart_if_recreated"}
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in skipped}
    return PushOptions(callback=callback, manual_ack=manual_ack, **given)
