"""
Release the messages of committed batches, by the retention policy of their stream.

==========  ================================================================================
retention   on commit
==========  ================================================================================
limits      nothing; the durable named by the option ``consumer`` is moved, to show progress
work queue  the messages of the batch are purged, or deleted by sequence, see rule 5
interest    the durable named by the option ``consumer`` is moved to the end of the batch
==========  ================================================================================

Rules:

1. A commit depends on an offset only and can be repeated. If a commit is lost with its process, the next one
   makes up for it: at every trigger Spark passes the end of the last committed batch.
2. A commit never goes beyond an offset that Spark has committed, and never goes back.
3. Unread messages must stay in the stream. So a work queue or interest stream is read from its first
   unprocessed message, and with filters that never grow.
4. A consumer guards a work queue: the server refuses any other consumer for the same subjects. Two queries may have
   the same guard or durable, so its metadata names the query that owns it. The name is written when it is in the
   checkpoint, and before anything is read. So a query recognizes its consumer after a crash at any time. Where the
   first message does not show what was removed, the metadata also has the position of the last commit, written before
   it: a checkpoint before that position is an older copy.
5. A purge by subject makes the server forget what other consumers of the stream have pending, if they have entries for
   messages that are gone, as after a crash of the server. So it is only used where there is no other consumer.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from ... import errors
from ...api.consumer import ConsumerInfo
from ...api.enums import AckPolicy, DeliverPolicy
from ...codec import dumps
from ...headers import is_no_responders
from ...jetstream.api_requests import read_response
from ...jetstream.pull_consumer import PullConsumer
from ...subjects import filter_fields
from ..connections import api_requests, ask_all
from ..option_values import LossMode, ReadMode
from ..planning.access import SourceAccess
from ..planning.offsets import Offset, StreamOffset
from ..reading.range_reader import ReadPlan, read_chunks
from ..reading.ranges import SequenceRange
from ..sink_errors import CheckpointRewoundError
from ..streams import StreamView

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: Deliver policies of consumers that the server can reset to any sequence.
_RESETTABLE_POLICIES: Final = {
    DeliverPolicy.ALL,
    DeliverPolicy.BY_START_SEQUENCE,
    DeliverPolicy.BY_START_TIME,
}
#: The errors of another consumer on a work queue for the same messages.
_NOT_ALONE: Final = (
    errors.ErrorCode.QUEUE_CONSUMER_UNFILTERED,
    errors.ErrorCode.QUEUE_CONSUMER_NOT_UNIQUE,
)
#: Messages per fetch when a consumer can only be moved by reading.
_FETCH_BATCH: Final = 500
#: Seconds to wait for redelivery of messages that another attempt fetched but did not acknowledge.
_REDELIVERY_WAIT_S: Final = 45.0
#: The metadata keys of a consumer for the name of its query, and for the sequence up to which it released messages.
_QUERY_METADATA: Final = "jetstream_sync.query"
_NEXT_METADATA: Final = "jetstream_sync.next"
#: The prefix of metadata keys that the server adds.
_SERVER_METADATA_PREFIX: Final = "_nats."


class QueueInUseError(errors.Error):
    """Another query uses the consumer: each message of a work queue, and each position, has a single reader."""


class Claim(NamedTuple):
    """A position of a query in a stream that has a consumer for it, which the query owns."""

    key: str
    view: StreamView
    position: StreamOffset
    consumer: ConsumerInfo


class CommitHandler:
    """Performs the commits of one query in one process."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._consumer = access.options.consumer
        #: The last release of each stream, see `_release_of`.
        self._committed: dict[str, tuple[int, int, tuple[str, ...]]] = {}

    # --- before the first batch -----------------------------------------------------------------

    def prepare(self, view: StreamView, filters: tuple[str, ...]) -> tuple[str, ...]:
        """Prepare a stream for reads and commits, as its retention policy requires, and return their filters."""
        return self._access.retry_transient(
            partial(self._prepare, view, filters), f"preparing stream {view.name}"
        )

    def _prepare(self, view: StreamView, filters: tuple[str, ...]) -> tuple[str, ...]:
        problem = ""
        if view.is_work_queue and view.deny_purge:
            problem = "with deny_purge, so committed messages cannot be removed"
        elif view.is_work_queue and not view.allow_direct:
            problem = "without allow_direct, so reading it would consume the messages"
        if problem:
            raise errors.InvalidOptionError("stream", view.name, f"it is a work queue {problem}")
        if view.is_interest and self._consumer is None:
            raise errors.InvalidOptionError(
                "consumer",
                None,
                f"is required: stream {view.name} keeps messages until its consumers have"
                " acknowledged them, so name the durable consumer of this query",
            )
        if not self._releases(view):
            return filters
        name = self._consumer or _guard_name(filters)
        info = self._info(view, name)
        if info is None:
            self._create(view, filters, name)
            return filters
        if not view.is_work_queue:
            _check_resettable(info)
        if filters or not view.is_interest:
            _check_filters(view, filters, info)
        if view.is_work_queue and info.delivered.consumer_seq:
            raise errors.InvalidOptionError(
                "consumer",
                name,
                f"it has already delivered messages of work queue {view.name}, which the query must"
                " read itself: leave the option out, or delete the consumer",
            )
        return tuple(sorted(info.config.filters)) if view.is_interest else filters

    def first_unprocessed(self, view: StreamView) -> int:
        """Return the first unprocessed sequence of a stream."""
        name = self._consumer
        if not view.is_interest or name is None:
            return view.first_seq
        consumer = self._access.retry_transient(
            lambda: self._access.js.get_consumer(view.name, name), "reading the consumer state"
        )
        return max(view.first_seq, consumer.cached_info.ack_floor.stream_seq + 1)

    def _info(self, view: StreamView, name: str) -> ConsumerInfo | None:
        """Return the info of a consumer, ``None`` if it does not exist."""
        with suppress(errors.ConsumerNotFoundError):
            return self._access.js.get_consumer(view.name, name).cached_info
        return None

    def _create(self, view: StreamView, filters: tuple[str, ...], name: str) -> None:
        if view.is_interest:
            reason = (
                f"stream {view.name} has no such durable: create it before messages are published"
            )
            raise errors.InvalidOptionError("consumer", name, reason)
        purpose, policy = "shows the progress of a Spark query", AckPolicy.ALL
        if view.is_work_queue:
            purpose, policy = "reserves these subjects for a Spark query", AckPolicy.EXPLICIT
        fields = filter_fields(filters) | {"description": purpose, "ack_policy": policy}
        try:
            self._access.js.create_consumer(view.name, durable_name=name, **fields)
        except errors.BadRequestError as error:
            if error.err_code not in _NOT_ALONE:
                raise
            raise errors.BadRequestError(
                error.code,
                error.err_code,
                f"work queue {view.name} has another consumer for these subjects, but each message of"
                f" a work queue has a single reader: {error.description}",
            ) from None

    # --- ownership ------------------------------------------------------------------------------

    def claim(
        self,
        offset: Offset,
        views: Mapping[str, StreamView],
        starts: Mapping[str, int] | None = None,
        *,
        is_new: bool = False,
    ) -> list[Claim]:
        """
        Check that no other query owns the consumers of an offset, and make the query the owner of them.

        ``starts`` are the sequences that are read from next. A new query has no checkpoint with its name yet, so it
        cannot own them. Streams that were deleted or created again are left out, and those without a consumer.

        Raises:
            QueueInUseError: another query owns one.
            CheckpointRewoundError: messages after such a sequence were released.

        """
        claims: list[Claim] = []
        if not offset.query and not is_new:
            return claims  # without a query name: the next batch writes one, and releases these messages
        for key, position in offset.positions.items():
            view = views.get(key)
            if view is None or view.created_ns != position.created_ns or not self._releases(view):
                continue
            claim = partial(self._claim, view, position.filters, offset.query, is_new=is_new)
            info = self._access.retry_transient(claim, "checking the consumers")
            if starts and key in starts and _is_noted(view, position):
                _check_not_released(view, info, offset.query, starts[key])
            claims.append(Claim(key, view, position, info))
        return claims

    def _claim(
        self, view: StreamView, filters: tuple[str, ...], query: str, *, is_new: bool
    ) -> ConsumerInfo:
        """Return the consumer, which is created again if it was deleted."""
        name = self._consumer or _guard_name(filters)
        info = self._info(view, name)
        if info is None:
            if view.is_work_queue:
                log.warning(
                    "consumer %r of work queue %s was deleted; it is created again", name, view.name
                )
            self._prepare(view, filters)
            info = self._access.js.get_consumer(view.name, name).cached_info
        holder = (info.config.metadata or {}).get(_QUERY_METADATA)
        if holder is None and not is_new:
            # The position is that of an earlier owner.
            return self._note(view, info, {_QUERY_METADATA: query, _NEXT_METADATA: "0"})
        if holder is not None and holder != query:
            raise QueueInUseError(
                f"consumer {name!r} of stream {view.name} is owned by another query, or by one with another"
                f" checkpoint: see its metadata. {_OWNER_REMEDIES[view.is_work_queue]}"
            )
        return info

    def _note(self, view: StreamView, info: ConsumerInfo, notes: Mapping[str, str]) -> ConsumerInfo:
        """Set metadata of a consumer, and return its info."""
        metadata = {
            key: item
            for key, item in (info.config.metadata or {}).items()
            if not key.startswith(_SERVER_METADATA_PREFIX)
        }
        config = replace(info.config, metadata={**metadata, **notes})
        return self._access.js.update_consumer(view.name, config).cached_info

    # --- commits --------------------------------------------------------------------------------

    def commit(self, claims: Iterable[Claim]) -> None:
        """Release all messages before claimed positions that Spark has committed."""
        for claim in claims:
            key, view, position, _ = claim
            # Without its end, a purge would skip sequences of new messages.
            if position.next_seq <= view.end_seq and not self.is_committed(key, position, view):
                # A server before 2.14 may have to deliver many messages again.
                release = partial(self._release, claim)
                self._access.retry_transient(release, "committing", limits_calls=False)
                self._committed[key] = _release_of(position)

    def is_committed(self, key: str, position: StreamOffset, view: StreamView | None) -> bool:
        """Return whether this process has released the messages before a position, if the stream needs that."""
        if view is not None and not self._releases(view):
            return True
        return self._committed.get(key) == _release_of(position)

    def _releases(self, view: StreamView) -> bool:
        return view.is_work_queue or self._consumer is not None

    def _release(self, claim: Claim) -> None:
        _, view, position, info = claim
        next_seq = position.next_seq
        if not view.is_work_queue or position.filters:
            # The commits of other streams may take long: another query may have claimed or moved it since.
            owner = (info.config.metadata or {}).get(_QUERY_METADATA)
            info = self._access.js.get_consumer(view.name, info.name).cached_info
            if (info.config.metadata or {}).get(_QUERY_METADATA) != owner:
                raise QueueInUseError(
                    f"consumer {info.name!r} of stream {view.name} was claimed by another query meanwhile."
                    f" {_OWNER_REMEDIES[view.is_work_queue]}"
                )
        if _is_noted(view, position) and _released(info) < next_seq:
            self._note(view, info, {_NEXT_METADATA: str(next_seq)})
        if not view.is_work_queue:
            self._move(view, next_seq, info)
        elif next_seq > view.first_seq:
            is_alone = view.consumers <= 1 or not position.filters
            (self._purge if is_alone else self._delete)(view, position)

    def _purge(self, view: StreamView, position: StreamOffset) -> None:
        api = api_requests(self._access.js)
        body: dict[str, Any] = {"seq": position.next_seq}
        for subject in position.filters or (None,):
            filtered = body if subject is None else {**body, "filter": subject}
            api.ask(api.routes.to("STREAM.PURGE", view.name), filtered)

    def _delete(self, view: StreamView, position: StreamOffset) -> None:
        """Delete the messages of a batch by sequence, which changes nothing for other consumers."""
        api = api_requests(self._access.js)
        route = api.routes.to("STREAM.MSG.DELETE", view.name)
        end = position.next_seq
        left = SequenceRange(
            view.name, min(view.first_seq, end), end, position.filters, view.created_ns
        )
        plan = ReadPlan(mode=ReadMode.DIRECT, fail_on_data_loss=LossMode.FALSE)
        for chunk in read_chunks(self._access.js, left, frozenset({"sequence"}), plan):
            requests = [(route, dumps({"seq": seq, "no_erase": True})) for seq in chunk.sequences]
            for reply, *_ in ask_all(api, requests):
                if is_no_responders(*reply[2:]):
                    raise errors.NoRespondersError(route)
                with suppress(errors.NotFoundError):
                    read_response(route, reply)

    def _move(self, view: StreamView, seq: int, info: ConsumerInfo) -> None:
        if info.ack_floor.stream_seq + 1 >= seq:
            return
        js = self._access.js
        try:
            js.reset_consumer(view.name, info.name, seq)
        except errors.ServerTooOldError:
            if view.is_interest:
                _acknowledge(js.get_consumer(view.name, info.name), seq)


#: What to do about the consumer of another query, by whether it guards a work queue.
_OWNER_REMEDIES: Final = {
    True: "Each message of a work queue has a single reader. If that query is gone for good, delete the consumer and"
    " start again",
    False: "Name another durable. If that query is gone for good, remove the key"
    f" {_QUERY_METADATA!r} from the metadata; a new query then starts with the messages that are left",
}


def _release_of(position: StreamOffset) -> tuple[int, int, tuple[str, ...]]:
    """Return what a commit releases: in which stream, up to which sequence, and with which filters."""
    return position.created_ns, position.next_seq, position.filters


def _is_noted(view: StreamView, position: StreamOffset) -> bool:
    """Return whether the consumer has the position; the first message of other queues shows what was removed."""
    return view.is_interest or (view.is_work_queue and bool(position.filters))


def _released(info: ConsumerInfo) -> int:
    """Return the sequence up to which the owner of a consumer has released messages, 0 if it has not."""
    value = (info.config.metadata or {}).get(_NEXT_METADATA, "")
    return int(value) if value.isdecimal() else 0


def _check_not_released(view: StreamView, info: ConsumerInfo, query: str, start: int) -> None:
    """Raise if messages from a sequence on were released for a query."""
    metadata = info.config.metadata or {}
    released = _released(info) if metadata.get(_QUERY_METADATA) == query else 0
    if view.is_interest and info.ack_floor.stream_seq + 1 > view.first_seq:
        # Up to the first message, limits may have removed the others.
        released = max(released, info.ack_floor.stream_seq + 1)
    if released > start:
        raise CheckpointRewoundError(
            view.name,
            0,
            0,
            f"the checkpoint continues at sequence {start} of stream {view.name}, but consumer {info.name!r} was"
            f" moved to {released}: the checkpoint was restored or copied, or another program uses the consumer,"
            " and the messages in between were released. Restore the checkpoint of that position, or start a new"
            " one, which reads what is left",
        )


def _guard_name(filters: Iterable[str]) -> str:
    return f"spark_{hashlib.sha256(','.join(sorted(filters)).encode()).hexdigest()[:8]}"


def _check_resettable(info: ConsumerInfo) -> None:
    """Refuse a durable that the server cannot reset."""
    if info.config.deliver_policy not in _RESETTABLE_POLICIES:
        raise errors.InvalidOptionError(
            "consumer",
            info.name,
            f"its deliver_policy is {info.config.deliver_policy}, but must be all, by_start_sequence"
            " or by_start_time, so that the server can reset it",
        )


def _check_filters(view: StreamView, filters: tuple[str, ...], info: ConsumerInfo) -> None:
    """Refuse filters that differ from the filters of the durable, since unread messages would be skipped."""
    if set(filters) != set(info.config.filters):
        theirs = ", ".join(sorted(info.config.filters)) or "all"
        raise errors.InvalidOptionError(
            "subjects",
            ",".join(filters),
            f"consumer {info.name!r} of stream {view.name} has other filter subjects: {theirs}",
        )


def _acknowledge(consumer: PullConsumer, seq: int) -> None:
    """
    Move a consumer on a server before 2.14, by fetching its messages up to a sequence.

    Only the last message is acknowledged, which acknowledges all before it.
    """
    info = consumer.info()
    if info.config.ack_policy != AckPolicy.ALL:
        raise errors.InvalidOptionError(
            "consumer", info.name, "on a server before 2.14 it must have ack_policy=all"
        )
    while info.ack_floor.stream_seq + 1 < seq and (info.num_pending or info.num_ack_pending):
        messages = consumer.fetch(1, timeout=_REDELIVERY_WAIT_S)
        if not messages:
            raise errors.Error(f"consumer {info.name!r} does not deliver its pending messages")
        messages += consumer.fetch_no_wait(_FETCH_BATCH - 1)
        # Messages that were returned are delivered again in any order.
        passed = {item.metadata.stream_seq: item for item in messages}
        for number in [number for number in passed if number >= seq]:
            passed.pop(number).nak()
        if not passed:
            return
        passed[max(passed)].ack_sync()
        info = consumer.info()
