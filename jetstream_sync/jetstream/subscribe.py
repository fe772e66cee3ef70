"""
Subscribe to a stream (ADR-15): find the stream, then find or create the consumer.

`resolve_pull_consumer` serves pull subscriptions too. Another client may create the consumer between
the lookup and the creation. The consumer is then looked up again, and must match the request like any
other existing consumer.
"""

# ruff: noqa: SLF001 - this module creates the subscriptions: users see no methods of the creation

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import DeliverPolicy
from ..api.subscribing import SubscribeRequest
from ..errors import (
    AmbiguousSubjectError,
    APIError,
    ConsumerExistsError,
    ConsumerNameInUseError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    InvalidOptionError,
    PermissionsError,
    StreamNotFoundError,
    TimeoutError,
)
from ..options import check_callback
from ..subjects import check_consumer_name, check_stream_name, check_subject
from .api_requests import APIRequests, names_in
from .consume import JetStreamCallback
from .consumer_api import BOUND_CHECK_DELAY_S, CREATE, add_consumer, consumer_info
from .push import PushOptions, PushSubscription
from .push_ordered import OrderedPushSubscription

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "BindOptions",
    "PushSubscribeAPI",
    "ResolvedConsumer",
    "SubscribeOptions",
    "create_or_find",
    "find_consumer",
    "find_stream",
    "resolve_pull_consumer",
]


class ResolvedConsumer(NamedTuple):
    """A consumer that a subscription uses."""

    stream: str
    """The stream's name."""
    consumer: str
    """The consumer's name."""
    config: ConsumerConfig
    """Its config; if it is unknown, the requested one."""
    created: bool
    """Whether it was created for this subscription."""


def find_stream(api: APIRequests, wanted: SubscribeRequest) -> str:
    """
    Return the stream that is named, or the stream with the subject.

    Raises:
        StreamNotFoundError: no stream has the subject.
        AmbiguousSubjectError: several do.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    if wanted.stream is not None:
        return wanted.stream
    route = api.routes.stream_names()
    names = names_in(api.ask(route, {"subject": wanted.subject}), "streams", route)
    if not names:
        raise StreamNotFoundError(404, 10059, f"no stream has the subject {wanted.subject!r}")
    if len(names) > 1:
        raise AmbiguousSubjectError(wanted.subject, names)
    return names[0]


def find_consumer(api: APIRequests, stream: str, wanted: SubscribeRequest) -> ConsumerInfo | None:
    """
    Look the consumer up, and check that the subscription matches it.

    Returns:
        The consumer info; ``None``: it must be created.

    Raises:
        ConsumerNotFoundError: it must exist, and does not.
        SubscribeError: the subscription does not match it.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    if wanted.consumer is None:
        return None
    try:
        return _existing(api, stream, wanted.consumer, wanted)
    except ConsumerNotFoundError:
        if wanted.bound:
            raise
        return None


def create_or_find(
    api: APIRequests, stream: str, wanted: SubscribeRequest, config: ConsumerConfig
) -> tuple[ConsumerInfo, bool]:
    """
    Create a consumer, or look up the one that another client has just created.

    Returns:
        The consumer info, and whether it was created here.

    Raises:
        SubscribeError: another client created it, and the subscription does not match.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    try:
        return add_consumer(api, stream, config, CREATE), True
    except (ConsumerExistsError, ConsumerNameInUseError):
        if wanted.consumer is None:
            raise
    return _existing(api, stream, wanted.consumer, wanted), False


def _existing(api: APIRequests, stream: str, name: str, wanted: SubscribeRequest) -> ConsumerInfo:
    """Look a consumer up, and check that the subscription matches it."""
    info = consumer_info(api, stream, name)
    try:
        wanted.check_existing(info)
    except DuplicateSubscriptionError:
        # The other subscription may have just ended: the server notices that in the background.
        if api.core.wait_closed(BOUND_CHECK_DELAY_S):
            raise
        info = consumer_info(api, stream, name)
        wanted.check_existing(info)
    return info


def resolve_pull_consumer(api: APIRequests, wanted: SubscribeRequest) -> ResolvedConsumer:
    """
    Find or create the consumer of a pull subscription.

    A bound consumer that cannot be looked up is assumed to exist (ADR-15): pulling from it may be
    permitted although the lookup is not.

    Raises:
        SubscribeError: the subscription does not match the consumer.
        StreamNotFoundError, AmbiguousSubjectError: there is no stream, or not only one.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    stream = find_stream(api, wanted)
    try:
        info = find_consumer(api, stream, wanted)
    except (APIError, PermissionsError, TimeoutError):
        if not wanted.bound or wanted.consumer is None:
            raise
        return ResolvedConsumer(stream, wanted.consumer, wanted.config, created=False)
    created = False
    if info is None:
        info, created = create_or_find(api, stream, wanted, wanted.new_config(None))
    return ResolvedConsumer(stream, info.name, info.config, created)


class BindOptions(TypedDict, total=False):
    """Further options of `JetStream.subscribe_bind`; all are optional."""

    pending_msgs_limit: int
    """Maximum number of pending messages; more are dropped; default 524288, 0: no limit."""
    pending_bytes_limit: int
    """Bytes that may wait unread; default 256 MiB, 0: no limit."""
    heartbeat_intervals: float
    """How many idle heartbeats may be missed before `NoHeartbeatError` is reported; default 3."""


class SubscribeOptions(BindOptions, total=False):
    """What else `JetStream.subscribe` takes; all are optional."""

    deliver_policy: DeliverPolicy | str
    """Where the consumer starts; goes before that of ``config``."""
    headers_only: bool
    """Whether to leave the payloads out."""
    inactive_threshold: float | timedelta
    """After how long without a subscription the server deletes the consumer, in seconds."""
    delete_consumer: bool
    """Whether ending the subscription deletes the consumer if this call made it; default true."""


#: The options that are fields of the consumer's config.
_FIELDS: Final = ("deliver_policy", "headers_only", "inactive_threshold")


class PushSubscribeAPI:
    """The part of `JetStream` that makes subscriptions to what consumers deliver."""

    _api: APIRequests

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
    ) -> PushSubscription:
        """
        Subscribe to a subject of a stream, and have a consumer deliver its messages.

        A durable consumer that exists is used as it is; anything asked for that it does not have is
        an error. One that does not exist is made, with the subject as its filter (ADR-15). So is an
        ephemeral one when no durable is named. On return the subscription is bound to the consumer.

        What this call makes, it deletes: when the subscription is unsubscribed or drained, so is the
        consumer, also a durable one, unless ``delete_consumer`` is false. A queue group's consumer
        is left while others are bound to it. When the connection is drained, ephemeral consumers
        are deleted and durable ones stay; when it is closed, nothing is deleted here. A consumer
        that was there before is never deleted.

        Args:
            subject: what to read, with wildcards; may be empty when the stream is named.
            queue: share the messages with all subscriptions of this name; without ``durable`` it is
                also the durable's name; ``None``: get all messages.
            cb: called with each message, on a dedicated thread, and followed by an
                acknowledgement, or by a nak with a delay when it raises: 5 seconds, or the step of
                the consumer's ``backoff``; ``None``: messages are read.
            durable: the name of a durable consumer; ``None``: an ephemeral one.
            stream: the name of the stream; ``None``: the one stream that takes the subject.
            config: what to make the consumer of, or has to be that of the one that exists;
                ``None``: the defaults.
            manual_ack: whether ``cb`` acknowledges by itself; nothing is sent for it then, also when
                it raises.
            ordered_consumer: get every message once and in order, without acknowledgements: the
                consumer is made again whenever something was lost (ADR-17).
            idle_heartbeat: after how much silence the consumer says that it is there, in seconds;
                ``None``: never, or as ``config`` says.
            flow_control: have the server wait for slow readers; needs an ``idle_heartbeat``.
            **options: see `SubscribeOptions`.

        Raises:
            StreamNotFoundError: no stream has the subject, or has that name.
            SubscribeError: the subscription and the consumer do not fit together, or the subject
                and the streams; see its subclasses.
            InvalidOptionError, InvalidNameError, BadSubjectError: an argument cannot work.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as
                `JetStream.account_info`.

        Example:
            >>> with js.subscribe("ORDERS.received") as sub:
            ...     msg = sub.next_msg(timeout=5.0)
            ...     msg.ack()
            >>> msg.data
            b'order 1'

        """
        if cb is not None:
            check_callback("cb", cb)
        _known(options, SubscribeOptions)
        said: dict[str, Any] = {name: options.get(name) for name in _FIELDS}
        said["idle_heartbeat"] = idle_heartbeat
        said["flow_control"] = flow_control or None
        wanted = SubscribeRequest.of(
            subject=subject if subject == "" else check_subject(subject),
            stream=stream,
            queue=queue,
            durable=durable,
            config=config,
            options=said,
        )
        given = _push_options(cb, manual_ack, options)
        if ordered_consumer:
            return self._ordered(wanted, given)
        return self._push_subscription(wanted, given)

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
        Subscribe to what an existing consumer delivers.

        The consumer is looked up, and left when the subscription ends.

        Args:
            stream: the name of the stream.
            consumer: the consumer's name.
            cb: as in `subscribe()`.
            manual_ack: as in `subscribe()`.
            ordered_consumer: refused: an ordered consumer cannot be bound to (ADR-17).
            config: what the consumer has to have; ``None``: whatever it has.
            queue: the queue group to join; ``None``: that of ``config``, or none.
            **options: see `BindOptions`.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: it is not there.
            SubscribeError: the subscription does not match it; see its subclasses.
            InvalidOptionError, InvalidNameError: an argument cannot work.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as
                `JetStream.account_info`.

        """
        if cb is not None:
            check_callback("cb", cb)
        _known(options, BindOptions)
        if isinstance(consumer, ConsumerConfig):
            raise InvalidOptionError("consumer", "...", "it is a name; say config=ConsumerConfig()")
        if ordered_consumer:
            raise InvalidOptionError(
                "ordered_consumer", True, "an ordered consumer cannot be bound to; subscribe()"
            )
        wanted = SubscribeRequest.of(
            stream=check_stream_name(stream),
            queue=queue,
            bind=check_consumer_name(consumer),
            config=config,
        )
        return self._push_subscription(wanted, _push_options(cb, manual_ack, options))

    def _push_subscription(
        self, wanted: SubscribeRequest, options: PushOptions
    ) -> PushSubscription:
        api = self._api
        stream = find_stream(api, wanted)
        info = find_consumer(api, stream, wanted)
        created = False
        if info is None:
            config = wanted.new_config(api.core.new_inbox())
            # Subscribe before the consumer exists, so that the server sees an existing subscriber, and
            # no message is delivered without one.
            subscription = PushSubscription(api, stream, config, options)
            try:
                info, created = create_or_find(api, stream, wanted, config)
            finally:
                if not created:
                    subscription._abandon()
        if not created:
            subscription = PushSubscription(api, stream, info.config, options)
        subscription._set_consumer(info, created=created)
        return subscription

    def _ordered(self, wanted: SubscribeRequest, options: PushOptions) -> PushSubscription:
        subscription = OrderedPushSubscription(
            self._api, find_stream(self._api, wanted), wanted, options
        )
        try:
            subscription._start()
        except BaseException:
            subscription._abandon()
            raise
        return subscription


def _known(options: BindOptions, known: type) -> None:
    """Refuse options that are not known."""
    unknown = set(options) - set(known.__annotations__) - set(BindOptions.__annotations__)
    if unknown:
        raise InvalidOptionError(min(unknown), "...", f"not one of {sorted(known.__annotations__)}")


def _push_options(
    callback: JetStreamCallback | None, manual_ack: bool, options: BindOptions
) -> PushOptions:
    names = {*BindOptions.__annotations__, "delete_consumer"}
    given: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    return PushOptions(callback=callback, manual_ack=manual_ack, **given)
