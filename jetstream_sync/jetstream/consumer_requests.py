"""Create, read, change and delete consumers through the JetStream API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo, ConsumerReset
from ..api.echo import release
from ..api.enums import RetentionPolicy
from ..api.publish import LAST_SEQUENCE
from ..api.stream import MsgGetRequest
from ..codec import encode
from ..differences import explained
from ..net.clock import Deadline
from ..options import check_int
from ..subjects import check_consumer_name, check_stream_name, subjects_overlap
from .api_requests import APIRequests, stream_info
from .direct_get import StoredMsg, leader_get
from .server_support import EchoCheck, require_level


def consumer_info(
    api: APIRequests, stream: str, name: str, deadline: Deadline | None = None
) -> ConsumerInfo:
    """Request a consumer's config and state."""
    stream, name = check_stream_name(stream), check_consumer_name(name)
    info = api.ask_for(
        ConsumerInfo, api.routes.to("CONSUMER.INFO", stream, name), deadline=deadline
    )
    if info.name != name:
        raise errors.InvalidResponseError(f"asked for consumer {name!r}, got {info.name!r:.60}")
    return info


class ConsumerAccessors:
    """Accessors shared by all objects bound to one consumer."""

    _api: APIRequests
    _stream: str
    _consumer: str

    @property
    def stream_name(self) -> str:
        """The name of the stream."""
        return self._stream

    @property
    def consumer_name(self) -> str:
        """The name of the consumer."""
        return self._consumer

    def consumer_info(self, timeout: float | timedelta | None = None) -> ConsumerInfo:
        """
        Request the consumer's config and state.

        Args:
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: it does not exist.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        deadline = self._api.deadline(timeout)
        return consumer_info(self._api, self._stream, self.consumer_name, deadline)


#: Seconds after which an acknowledged message is removed from a work queue.
_REMOVAL_S: Final = 0.5


def filters_of(info: ConsumerInfo) -> Sequence[str]:
    """Return the subjects that a consumer receives."""
    config = info.config
    return config.filter_subjects or [config.filter_subject or ">"]


def stranded_msg(api: APIRequests, stream: str, name: str) -> StoredMsg | None:
    """Return the first message that a consumer of a work queue will never deliver; see `PullConsumer.stranded`."""
    deadline = api.deadline()
    info = consumer_info(api, stream, name, deadline)
    floor = info.ack_floor.stream_seq
    # Before nats-server 2.14, the floor also passes messages that were delivered too often.
    if not floor or (info.config.max_deliver or -1) > 0:
        return None
    if stream_info(api, stream, deadline=deadline).config.retention != RetentionPolicy.WORK_QUEUE:
        return None
    before: StoredMsg | None = None
    while True:
        found: list[StoredMsg] = []
        for subject in filters_of(info):
            with suppress(errors.MessageNotFoundError):
                request = MsgGetRequest(1, next_by_subj=subject)
                found.append(leader_get(api, stream, request, deadline))
        first = min(found, key=lambda message: message.seq, default=None)
        if first is None or first.seq > floor:
            return None
        # It may have been acknowledged a moment ago.
        if before is not None and before.seq == first.seq:
            return None if _is_held(api, stream, name, first, deadline) else first
        before = first
        api.core.wait_closed(deadline.sooner(_REMOVAL_S).left() or 0.0)


def _is_held(
    api: APIRequests, stream: str, name: str, message: StoredMsg, deadline: Deadline
) -> bool:
    """Return whether another consumer than the named one, such as that of a mirror, still needs a message."""
    return any(
        info.name != name
        and info.ack_floor.stream_seq < message.seq
        and any(subjects_overlap(message.subject, own) for own in filters_of(info))
        for info in api.infos(ConsumerInfo, "CONSUMER", "consumers", (stream,), deadline=deadline)
    )


def check_unacknowledged(api: APIRequests, stream: str, subject: str) -> None:
    """Raise `PendingAcksError` if a purge of a subject could make consumers lose messages."""
    infos = api.infos(ConsumerInfo, "CONSUMER", "consumers", (stream,))
    names = tuple(
        info.name
        for info in infos
        if info.num_ack_pending and any(subjects_overlap(subject, own) for own in filters_of(info))
    )
    if names:
        raise errors.PendingAcksError(stream, subject, names)


# The action of a create request, which depends on whether the consumer exists (nats-server 2.10).
CREATE: Final = "create"
UPDATE: Final = "update"
CREATE_OR_UPDATE: Final = ""

#: The ``inactive_threshold`` that servers set for an ephemeral consumer without one.
_EPHEMERAL_LIMIT: Final = timedelta(seconds=5)
#: The server notices in the background that a subscriber has left: the number of checks, and the
#: interval between them.
_BOUND_CHECKS: Final = 3
BOUND_CHECK_DELAY_S: Final = 0.05
#: By how much the creation times of one consumer can differ: each server of a cluster before 2.11 has its own.
_CREATED_WITHIN: Final = timedelta(seconds=1)


def add_consumer(
    api: APIRequests,
    stream: str,
    config: ConsumerConfig,
    action: str,
    deadline: Deadline | None = None,
    *,
    pedantic: bool = False,
    is_ours: bool = False,
) -> ConsumerInfo:
    """Create or update a consumer of any kind."""
    # `pedantic`: whether the server rejects a config instead of silently correcting it.
    # `is_ours`: whether the name was chosen for this call.
    stream = check_stream_name(stream)
    config, own_name = with_name(config)
    if own_name is not None and action == UPDATE:
        raise errors.InvalidOptionError("name", None, "an update requires the name of the consumer")
    name = config.name or config.durable_name or ""
    route = api.routes.consumer_create(stream, name, config.filter_subject)
    body: dict[str, Any] = {"stream_name": stream, "config": encode(config), "action": action}
    with taken_back(api, stream, own_name):
        if pedantic:
            require_level(api, 1, "pedantic", deadline)
            body["pedantic"] = True
        check = EchoCheck(api, f"consumer {name!r} of stream {stream!r}", config)
        try:
            with check.request():
                info = api.ask_for(ConsumerInfo, route, body, deadline)
        except errors.ConsumerDoesNotExistError as error:
            error.explain(f"{name!r} of stream {stream!r}; create_consumer() creates it")
            raise
        if info.name != name:
            raise errors.InvalidResponseError(f"asked for consumer {name!r}, got {info.name!r:.60}")
        is_ours = is_ours or own_name is not None or check.is_new(info.created, info.ts)
        made = action != UPDATE and is_ours
        delete = partial(delete_consumer, api, stream, name) if made else None
        check.verify(info.config, delete, updated=action != CREATE)
    return info


def existing_consumer(
    api: APIRequests, stream: str, config: ConsumerConfig, error: errors.ConsumerExistsError
) -> ConsumerInfo:
    """Return the info of a consumer that has the config; raise the server's error, with what differs, if it has another."""
    name = config.name or config.durable_name or ""
    with suppress(errors.Error):  # the server's error is shown then
        current = consumer_info(api, stream, name).config
        text, values = explained(current, config)
        has_default = current.inactive_threshold == _EPHEMERAL_LIMIT and not config.durable_name
        if has_default and not values:
            # The server compares the limit that it has set with none. It compares the rest again.
            same = replace(config, inactive_threshold=_EPHEMERAL_LIMIT)
            with suppress(errors.ConsumerExistsError):
                return add_consumer(api, stream, same, CREATE)
        error.explain(
            f"{name!r} of stream {stream!r} has {text}; "
            "update_consumer() or create_or_update_consumer() changes it",
            differences=values,
        )
    raise error


def delete_consumer(api: APIRequests, stream: str, name: str) -> None:
    """Delete a consumer."""
    stream, name = check_stream_name(stream), check_consumer_name(name)
    api.command(api.routes.to("CONSUMER.DELETE", stream, name))


def with_name(config: ConsumerConfig) -> tuple[ConsumerConfig, str | None]:
    """Return a config with a name, and the name if it was chosen here."""
    if config.name or config.durable_name:
        return config, None
    name = os.urandom(8).hex()
    return replace(config, name=name), name


@contextmanager
def taken_back(api: APIRequests, stream: str, name: str | None) -> Iterator[None]:
    """Delete a consumer if the block raises: nothing else knows the name, which was chosen for it."""
    try:
        yield
    except BaseException:
        if name is not None:
            api.drop_consumer(stream, name)
        raise


def reset_consumer(
    api: APIRequests, stream: str, name: str, seq: int | None = None
) -> ConsumerReset:
    """Reset a consumer to a sequence, or to its ack floor."""
    # The consumer itself replies (nats-server's processResetReq), so there is no reply if it does
    # not exist or is on an older server. It is therefore looked up first.
    if seq is not None:
        check_int("seq", seq, 1, LAST_SEQUENCE)
    deadline = api.deadline()
    check_consumer_server(api, stream, name, "resetting a consumer", (2, 14), deadline)
    body = None if seq is None else {"seq": seq}
    return api.ask_for(ConsumerReset, api.routes.to("CONSUMER.RESET", stream, name), body, deadline)


def check_consumer_server(
    api: APIRequests, stream: str, name: str, what: str, needs: tuple[int, int], deadline: Deadline
) -> None:
    """Raise if the consumer's server would not reply to a request."""
    # Since 2.11 the consumer's server puts its version into the metadata; the connected server may
    # be another one.
    metadata = consumer_info(api, stream, name, deadline).config.metadata
    version = (metadata or {}).get("_nats.ver", "")
    if (release(version) or (0, 0)) < needs:
        raise errors.ServerTooOldError(what, f"{needs[0]}.{needs[1]}", version or "older than 2.11")


def release_consumer(api: APIRequests, made: ConsumerInfo, *, shared: bool) -> None:
    """Delete a consumer that was created for a subscription which has ended, if it is still that one."""
    deadline, stream, name = api.deadline(), made.stream_name, made.name
    try:
        if made.config.durable_name and _is_other(api, made, deadline):
            return
        if shared and _in_use(api, stream, name, deadline):
            return
        api.command(api.routes.to("CONSUMER.DELETE", stream, name), deadline=deadline)
    except errors.NotFoundError:
        return


def _is_other(api: APIRequests, made: ConsumerInfo, deadline: Deadline) -> bool:
    """Return whether another client has deleted a consumer and created one with its name."""
    with suppress(errors.PermissionsError):
        info = consumer_info(api, made.stream_name, made.name, deadline)
        return abs(info.created - made.created) > _CREATED_WITHIN
    return False


def _in_use(api: APIRequests, stream: str, name: str, deadline: Deadline) -> bool:
    """Return whether a client is subscribed to a push consumer."""
    for check in range(_BOUND_CHECKS):
        if check and api.core.wait_closed(BOUND_CHECK_DELAY_S):
            break
        if not consumer_info(api, stream, name, deadline).push_bound:
            return False
    return True
