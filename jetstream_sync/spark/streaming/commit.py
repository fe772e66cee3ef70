"""
What happens to messages once the batch that carried them is committed.

==========  ==============================================================================
retention   on a commit
==========  ==============================================================================
limits      nothing; a durable that the option ``consumer`` names is moved, for others to look at
work queue  the stream is purged up to the batch's end, one filter after the other
interest    the durable of the option ``consumer`` is moved to the batch's end
==========  ==============================================================================

All of it follows from an offset alone and can be repeated, so a commit that was lost with its process
is made up for by the next one: Spark hands the end of the last committed batch over at every trigger.
Nothing here ever goes beyond an offset that Spark has committed, and nothing goes back.

What stays unread must stay in the stream. So a work queue or an interest stream is read from its
first message that is not worked on, with filters that do not grow, and a consumer of its own
guards it: for a work queue the server then refuses everybody else a consumer for these subjects.
Two queries for the same subjects would have the same guard, so in its metadata it has the name of the
one that it is for. It is written there when the checkpoint has it, too, and before anything is read;
so a query knows its guard again, whenever it dies.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ...api.consumer import ConsumerInfo
from ...api.enums import AckPolicy, DeliverPolicy
from ...errors import (
    BadRequestError,
    ConsumerNotFoundError,
    Error,
    InvalidOptionError,
    ServerTooOldError,
)
from ...jetstream.consumer import PullConsumer
from ...jetstream.context import JetStream
from ..connections import api_requests
from ..planning.offsets import Offset, StreamOffset
from ..streams import StreamView

__all__ = ["CommitHandler", "QueueInUseError"]

log = logging.getLogger("jetstream_sync.spark")

#: The deliver policies whose consumers the server lets us move to any sequence.
_RESETTABLE_POLICIES: Final = {
    DeliverPolicy.ALL,
    DeliverPolicy.BY_START_SEQUENCE,
    DeliverPolicy.BY_START_TIME,
}
#: How many messages are fetched at a time where a consumer can only be moved by reading.
_FETCH_BATCH: Final = 500
#: Seconds to wait for messages that another attempt has fetched and not acknowledged.
_REDELIVERY_WAIT_S: Final = 45.0
#: In a guard's metadata, the query that it is for.
_QUERY_METADATA: Final = "jetstream_sync.query"
#: What the server puts into metadata by itself begins so.
_SERVER_METADATA_PREFIX: Final = "_nats."


class QueueInUseError(Error):
    """A work queue is read by another query, and a message of it is for one reader."""


class CommitHandler:
    """
    The commits of one query, in one process.

    Args:
        js: where the streams are.
        consumer: the name of the option; ``None``: not given.

    """

    def __init__(self, js: JetStream, consumer: str | None) -> None:
        self.js = js
        self._consumer = consumer
        #: What was done: where each stream's last commit was.
        self._committed: dict[str, StreamOffset] = {}

    # --- before the first batch -----------------------------------------------------------------

    def prepare(self, view: StreamView, filters: tuple[str, ...]) -> tuple[str, ...]:
        """
        Make sure that a stream can be read and committed as its retention asks for.

        Args:
            view: the stream.
            filters: the option ``subjects``; none: not given.

        Returns:
            The filters to read it with: those of the durable of an interest stream, else the given.

        Raises:
            InvalidOptionError: an option is missing, or does not go with the stream or the durable.
            BadRequestError: somebody else has a consumer for the subjects of the work queue.
            Error: as `JetStream.create_consumer`.

        """
        if view.is_work_queue:
            self._ensure_guard(view, filters)
        elif view.is_interest:
            return self._check_durable(view, filters)
        elif self._consumer is not None:
            self._ensure_progress_consumer(view, filters, self._consumer)
        return filters

    def first_unprocessed(self, view: StreamView) -> int:
        """Return the first sequence of a stream that is not worked on yet, as far as the server says."""
        if view.is_interest and self._consumer is not None:
            info = self.js.get_consumer(view.name, self._consumer).cached_info
            return max(view.first_seq, info.ack_floor.stream_seq + 1)
        return view.first_seq

    def _ensure_guard(self, view: StreamView, filters: tuple[str, ...]) -> None:
        if view.deny_purge:
            raise InvalidOptionError(
                "stream",
                view.name,
                "it is a work queue with deny_purge, from which committed messages can not be removed",
            )
        if not view.allow_direct:
            raise InvalidOptionError(
                "stream",
                view.name,
                "it is a work queue without allow_direct, which can not be read without consuming it",
            )
        name = self._consumer or _guard_name(filters)
        try:
            info = self.js.get_consumer(view.name, name).cached_info
        except ConsumerNotFoundError:
            self._create_guard(view, filters, name)
        else:
            _check_filters(view, filters, info)
            if info.delivered.consumer_seq:
                raise InvalidOptionError(
                    "consumer",
                    name,
                    f"work queue {view.name} has had messages taken through it, and those that a query"
                    " reads are for nobody else: leave the option out, or delete the consumer",
                )

    def _create_guard(
        self, view: StreamView, filters: tuple[str, ...], name: str, query: str = ""
    ) -> None:
        try:
            self.js.create_consumer(
                view.name,
                durable_name=name,
                ack_policy=AckPolicy.EXPLICIT,
                description="keeps other consumers off what a Spark query reads",
                metadata={_QUERY_METADATA: query} if query else None,
                **_filter_fields(filters),
            )
        except BadRequestError as error:
            if error.err_code not in {10099, 10100}:
                raise
            raise BadRequestError(
                error.code,
                error.err_code,
                f"work queue {view.name} has another consumer for these subjects, and a message of"
                f" a work queue is for one reader only: {error.description}",
            ) from None

    def _check_durable(self, view: StreamView, filters: tuple[str, ...]) -> tuple[str, ...]:
        if self._consumer is None:
            raise InvalidOptionError(
                "consumer",
                None,
                f"stream {view.name} keeps messages as long as its consumers want them: name the"
                " durable that stands for this query",
            )
        try:
            info = self.js.get_consumer(view.name, self._consumer).cached_info
        except ConsumerNotFoundError:
            raise InvalidOptionError(
                "consumer",
                self._consumer,
                f"stream {view.name} has no such durable; messages from before it was made are gone",
            ) from None
        _check_resettable(info)
        if filters:
            _check_filters(view, filters, info)
        return _filters_of(info)

    def _ensure_progress_consumer(
        self, view: StreamView, filters: tuple[str, ...], name: str
    ) -> None:
        try:
            info = self.js.get_consumer(view.name, name).cached_info
        except ConsumerNotFoundError:
            self.js.create_consumer(
                view.name,
                durable_name=name,
                ack_policy=AckPolicy.ALL,
                description="shows how far a Spark query is",
                **_filter_fields(filters),
            )
        else:
            _check_resettable(info)
            _check_filters(view, filters, info)

    # --- one query for one queue ----------------------------------------------------------------

    def check_unclaimed(self, offset: Offset, views: Mapping[str, StreamView]) -> None:
        """
        Check that no other query has the work queues among some streams.

        Args:
            offset: one that the checkpoint may not have yet.
            views: the streams.

        Raises:
            QueueInUseError: one has, or had one that was not given back.
            Error: as `JetStream.get_consumer`.

        """
        for view, position in _work_queues(offset, views):
            self._claim(view, position.filters, offset.query, takes=False)

    def claim(self, offset: Offset, views: Mapping[str, StreamView]) -> None:
        """
        Take the work queues among some streams for a query, for as long as its checkpoint is there.

        Args:
            offset: one that the checkpoint has.
            views: the streams.

        Raises:
            QueueInUseError: another query has one.
            BadRequestError: somebody else has a consumer for the subjects of one.
            Error: as `JetStream.update_consumer`.

        """
        if not offset.query:
            return  # of a version that did not name its queries
        for view, position in _work_queues(offset, views):
            self._claim(view, position.filters, offset.query)

    def _claim(
        self, view: StreamView, filters: tuple[str, ...], query: str, *, takes: bool = True
    ) -> None:
        name = self._consumer or _guard_name(filters)
        try:
            info = self.js.get_consumer(view.name, name).cached_info
        except ConsumerNotFoundError:
            log.warning(
                "consumer %r of work queue %s was deleted, and is made again", name, view.name
            )
            self._create_guard(view, filters, name, query if takes else "")
            return
        metadata = info.config.metadata or {}
        holder = metadata.get(_QUERY_METADATA)
        if holder is None and takes:
            kept = {
                key: each
                for key, each in metadata.items()
                if not key.startswith(_SERVER_METADATA_PREFIX)
            }
            self.js.update_consumer(
                view.name, replace(info.config, metadata={**kept, _QUERY_METADATA: query})
            )
        elif holder is not None and holder != query:
            raise QueueInUseError(
                f"work queue {view.name} is read by another query for these subjects, or was by one with"
                f" another checkpoint: its consumer {name!r} says so. A message of a work queue is for"
                " one reader; where that query is gone for good, delete the consumer and start again"
            )

    # --- afterwards -----------------------------------------------------------------------------

    def commit(self, offset: Offset, views: Mapping[str, StreamView]) -> None:
        """
        Let go of all that is before an offset that Spark has committed; `claim()` was called before.

        Streams that are gone, or that were made anew since, are left alone.

        Raises:
            Error: as `Stream.purge` and `JetStream.reset_consumer`.

        """
        for key, position in offset.positions.items():
            view = views.get(key)
            if view is None or view.created_ns != position.created_ns:
                continue
            done = self._committed.get(key)
            if (
                done is not None
                and done.created_ns == position.created_ns
                and done.next_seq >= position.next_seq
            ):
                continue
            self._release(view, position)
            self._committed[key] = position

    def _release(self, view: StreamView, position: StreamOffset) -> None:
        if position.next_seq > view.end_seq:
            return  # the stream has lost its end; purging would give sequences away
        if view.is_work_queue:
            if position.next_seq > view.first_seq:
                self._purge(view.name, position)
        elif self._consumer is not None:
            self._move(view, position.next_seq, self._consumer)

    def _purge(self, stream: str, position: StreamOffset) -> None:
        api = api_requests(self.js)
        body: dict[str, Any] = {"seq": position.next_seq}
        for subject in position.filters or (None,):
            filtered = body if subject is None else {**body, "filter": subject}
            api.ask(api.routes.stream_purge(stream), filtered)

    def _move(self, view: StreamView, seq: int, name: str) -> None:
        consumer = self.js.get_consumer(view.name, name)
        if consumer.cached_info.ack_floor.stream_seq + 1 >= seq:
            return
        try:
            self.js.reset_consumer(view.name, name, seq)
        except ServerTooOldError:
            if view.is_interest:
                _acknowledge(consumer, seq)


def _work_queues(
    offset: Offset, views: Mapping[str, StreamView]
) -> Iterator[tuple[StreamView, StreamOffset]]:
    """Return the work queues among some streams, as far as they are those of an offset."""
    for key, position in offset.positions.items():
        view = views.get(key)
        if view is not None and view.is_work_queue and view.created_ns == position.created_ns:
            yield view, position


def _guard_name(filters: Iterable[str]) -> str:
    return f"spark_{hashlib.sha256(','.join(sorted(filters)).encode()).hexdigest()[:8]}"


def _filter_fields(filters: tuple[str, ...]) -> dict[str, Any]:
    """Return what says in a consumer's config which subjects it is for."""
    if len(filters) > 1:
        return {"filter_subjects": list(filters)}
    return {"filter_subject": filters[0]} if filters else {}


def _filters_of(info: ConsumerInfo) -> tuple[str, ...]:
    config = info.config
    if config.filter_subjects:
        return tuple(sorted(config.filter_subjects))
    return (config.filter_subject,) if config.filter_subject else ()


def _check_resettable(info: ConsumerInfo) -> None:
    """Refuse a durable that the server would not let us move."""
    if info.config.deliver_policy not in _RESETTABLE_POLICIES:
        raise InvalidOptionError(
            "consumer",
            info.name,
            f"its deliver_policy is {info.config.deliver_policy}, and the server moves only"
            " consumers that deliver all, or from a sequence or time on",
        )


def _check_filters(view: StreamView, filters: tuple[str, ...], info: ConsumerInfo) -> None:
    """Refuse filters that are not those of the durable: it would pass over what was not read."""
    if set(filters) != set(_filters_of(info)):
        theirs = ", ".join(_filters_of(info)) or "all"
        raise InvalidOptionError(
            "subjects",
            ",".join(filters),
            f"consumer {info.name!r} of stream {view.name} is for others: {theirs}",
        )


def _acknowledge(consumer: PullConsumer, seq: int) -> None:
    """
    Move a consumer of a server before 2.14, by fetching what it has up to a sequence.

    Only the last message is acknowledged, for all before it.

    Raises:
        InvalidOptionError: it wants an acknowledgement for each message.
        Error: what was fetched before and not acknowledged does not come again.

    """
    info = consumer.info()
    if info.config.ack_policy != AckPolicy.ALL:
        raise InvalidOptionError(
            "consumer", info.name, "with a server before 2.14 it needs ack_policy=all"
        )
    while info.ack_floor.stream_seq + 1 < seq and (info.num_pending or info.num_ack_pending):
        waiting = info.num_pending == 0
        messages = consumer.fetch(_FETCH_BATCH, timeout=_REDELIVERY_WAIT_S if waiting else 1.0)
        passed = [each for each in messages if each.metadata.stream_seq < seq]
        for each in messages[len(passed) :]:
            each.nak()
        if passed:
            passed[-1].ack_sync()
        if not messages and waiting:
            raise Error(f"consumer {info.name!r} does not deliver what it has pending")
        if len(passed) < len(messages) or (not messages and not waiting):
            return
        info = consumer.info()
