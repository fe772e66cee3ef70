"""
The way to a subscription on a stream (ADR-15): find the stream, find or make the consumer.

What push and pull subscriptions share is here. Between looking and making, somebody else may make the
consumer; then it is looked up after all, and has to fit like any other that was there before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.subscribing import SubscribeRequest
from ..errors import (
    AmbiguousSubjectError,
    APIError,
    ConsumerExistsError,
    ConsumerNameInUseError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    NotFoundError,
    PermissionsError,
    StreamNotFoundError,
    TimeoutError,
)
from ..net.clock import Deadline
from .api_requests import APIRequests, names_in
from .consumer_api import consumer_info
from .consumers import CREATE, add_consumer

__all__ = [
    "ResolvedConsumer",
    "create_or_find",
    "find_consumer",
    "find_stream",
    "release_consumer",
    "resolve_pull_consumer",
]

#: The server sees in the background that somebody has left: looks at that, and seconds between
#: two of them.
_LOOKS: Final = 3
_BETWEEN_LOOKS: Final = 0.05


class ResolvedConsumer(NamedTuple):
    """A consumer that a subscription uses."""

    stream: str
    """The stream's name."""
    consumer: str
    """The consumer's name."""
    config: ConsumerConfig
    """Its config; where nobody could tell, what the user said."""
    created: bool
    """Whether it was made for this subscription."""


def find_stream(api: APIRequests, wanted: SubscribeRequest) -> str:
    """
    Return the stream that is named, or the one that takes the subject.

    Raises:
        StreamNotFoundError: no stream takes the subject.
        AmbiguousSubjectError: several do.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    if wanted.stream is not None:
        return wanted.stream
    route = api.routes.stream_names()
    names = names_in(api.ask(route, {"subject": wanted.subject}), "streams", route)
    if not names:
        raise StreamNotFoundError(404, 10059, f"no stream takes {wanted.subject!r}")
    if len(names) > 1:
        raise AmbiguousSubjectError(wanted.subject, names)
    return names[0]


def find_consumer(api: APIRequests, stream: str, wanted: SubscribeRequest) -> ConsumerInfo | None:
    """
    Look the consumer up, and check that the subscription fits it.

    Returns:
        What is known of it; ``None``: it is to be made.

    Raises:
        ConsumerNotFoundError: it must exist, and does not.
        SubscribeError: the subscription does not fit it.
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
    Make a consumer, or look at the one that somebody else has just made.

    Returns:
        What is known of it, and whether it was made here.

    Raises:
        SubscribeError: somebody else made it, and the subscription does not fit it.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    try:
        return add_consumer(api, stream, config, CREATE), True
    except (ConsumerExistsError, ConsumerNameInUseError):
        if wanted.consumer is None:
            raise
    return _existing(api, stream, wanted.consumer, wanted), False


def _existing(api: APIRequests, stream: str, name: str, wanted: SubscribeRequest) -> ConsumerInfo:
    """Look a consumer up, and check that the subscription fits it."""
    info = consumer_info(api, stream, name)
    try:
        wanted.check_existing(info)
    except DuplicateSubscriptionError:
        # It may be one that has just ended: the server sees that in the background.
        if api.core.wait_closed(_BETWEEN_LOOKS):
            raise
        info = consumer_info(api, stream, name)
        wanted.check_existing(info)
    return info


def resolve_pull_consumer(api: APIRequests, wanted: SubscribeRequest) -> ResolvedConsumer:
    """
    Find or make the consumer of a pull subscription.

    A consumer that is to be there, and can not be looked up, is believed in (ADR-15): pulling from it
    may be allowed where looking at it is not.

    Raises:
        SubscribeError: the subscription does not fit the consumer.
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


def release_consumer(
    api: APIRequests, stream: str, name: str, *, shared: bool, deadline: Deadline | None = None
) -> None:
    """
    Delete a consumer that was made for a subscription which has ended.

    Args:
        api: where to ask.
        stream: the stream's name.
        name: the consumer's.
        shared: whether it has a queue group; then it is left where somebody else is bound to it.
            The server has to know already that the subscription has ended.
        deadline: when to give up; ``None``: after the usual time.

    Raises:
        APIError: the server refused; that it is gone already is fine.
        TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    deadline = deadline or api.deadline()
    try:
        if shared and _in_use(api, stream, name, deadline):
            return
        api.command(api.routes.consumer_delete(stream, name), deadline=deadline)
    except NotFoundError:
        return


def _in_use(api: APIRequests, stream: str, name: str, deadline: Deadline) -> bool:
    """Say whether somebody is bound to a push consumer."""
    for look in range(_LOOKS):
        if look and api.core.wait_closed(_BETWEEN_LOOKS):
            break
        if not consumer_info(api, stream, name, deadline).push_bound:
            return False
    return True
