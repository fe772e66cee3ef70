"""The consumers of handlers: find, create or update them, and check that they fit the handler."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from ... import AckPolicy, ConsumerConfig, DeliverPolicy, PriorityPolicy, RetentionPolicy, errors
from ...differences import differences
from ...durations import counted
from ...lease_times import LeaseTimes
from ...subjects import filter_fields, subject_matches, subjects_overlap
from ..call_messages import CallAddress, parked_subject
from ..calls import OWNER
from ..checks import check_option, short_digest
from ..deliveries import MIN_WAIT_S
from ..logs import log
from ..resources import SetupStep
from ..retries import MAX_EXTRA_DELIVERIES
from ..schedules import AT_LEVEL, check_place, filters_in, require_level
from ..source import Queue, Source, start_of

if TYPE_CHECKING:
    from ... import (
        ConsumerInfo,
        JetStream,
        PullConsumer,
        StoredMsg,
        Stream,
        StreamConfig,
        StreamInfo,
    )

#: ``ack_wait`` of a new consumer, in seconds.
ACK_WAIT_S: Final = 30.0
#: ``max_ack_pending`` of a new consumer of a stream without a limit, by the server's default.
_MAX_ACK_PENDING: Final = 1000
#: Priority group of a new consumer of an exclusive handler, and how long its pinned client may be silent, in
#: seconds: as long as its messages are leased by default.
_GROUP: Final = "worker"
_PIN_TIMEOUT_S: Final = 30.0
#: The key of the metadata with digests of earlier filters, and their largest number.
_PAST_FILTERS: Final = "jetstream-worker-past-filters"
_MAX_PAST: Final = 20
#: Longest wait before a consumer with stranded messages is created again, in seconds.
_SPREAD_S: Final = 1.0
#: Timeout of a request for the consumer's info, in seconds: the main thread waits for it.
_INFO_TIMEOUT_S: Final = 2.0


def get_stream(js: JetStream, name: str) -> Stream:
    """Return the stream; raise `StreamNotFoundError` with its name."""
    try:
        return js.get_stream(name)
    except errors.StreamNotFoundError as error:
        text = f"{error.description}: {name!r}"
        raise errors.StreamNotFoundError(error.code, error.err_code, text) from error


def generation_of(info: StreamInfo) -> str:
    """Return the creation time of a stream, which distinguishes it from a later one of its name."""
    return f"{info.created.astimezone(timezone.utc):%Y%m%d%H%M%S%f}"


class WorkerConsumer:
    """Where a running worker receives the messages of a handler, and the last known state of that."""

    #: Receives the messages.
    pull: PullConsumer
    #: The lengths of the leases.
    times: LeaseTimes

    def __init__(self, js: JetStream, source: Source, *, may_change: bool) -> None:
        self._js = js
        self._source = source
        self._may_change = may_change
        #: The state of the consumer when it was read last; ``None``: there is no consumer yet.
        self.info: ConsumerInfo | None = None
        #: Whether messages outside of the filters of the handler were received since the last refresh.
        self.has_foreign: bool = False
        #: Whether that is so because the consumer has the filters of another version: none are requested.
        self.is_foreign: bool = False
        #: Whether messages may wait in the stream, as schedules.
        self.parks: bool = False
        #: See `generation_of`.
        self.generation: str = ""
        #: What does not fit the handler, as sentences; empty: the consumer fits.
        self.mismatches: list[str] = []
        #: Seconds by which the server's clock was ahead of the local clock when the state was read last.
        self.clock_ahead: float = 0.0

    def note_clock(self, info: ConsumerInfo) -> None:
        """Compare the server's clock, as of a state of the consumer, with the local clock."""
        if info.ts is not None:
            self.clock_ahead = (info.ts - datetime.now(timezone.utc)).total_seconds()

    def read(self) -> ConsumerInfo:
        """Return the state on the server; raises as `PullConsumer.info`."""
        return self.pull.info(_INFO_TIMEOUT_S)

    def refresh(self) -> None:
        """Read the state, and use it for the leases of held messages; raises as `read`."""
        raise NotImplementedError

    def recreate(self) -> None:
        """Create the consumer again after it was deleted; raises as the constructor."""
        raise NotImplementedError

    def delivered_if_empty(self) -> int | None:
        """Return how many messages were delivered; ``None``: some are left. Raises as `read`."""
        info = self.read()
        is_empty = not (info.num_pending or info.num_ack_pending)
        return info.delivered.consumer_seq if is_empty else None


class HandlerConsumer(WorkerConsumer):
    """
    The consumer of a handler.

    A handler that names no filter or ``ack_wait`` expects those that the consumer has at first.
    """

    #: The state when it was read last.
    info: ConsumerInfo

    def __init__(
        self, js: JetStream, source: Source, *, may_change: bool, replaces: bool = False
    ) -> None:
        super().__init__(js, source, may_change=may_change)
        # Whether the filters of this version may replace those of a newer one.
        self._replaces = replaces
        self._stream_created: datetime | None = None
        # Whether the stream is a work queue, whose messages can be looked at.
        self._is_queue: bool = True
        self._open(None)
        self.times: LeaseTimes = LeaseTimes(self.info.config)
        with suppress(errors.Error):  # it is looked at again
            self._compare(self._free_stranded())

    def _open(self, known: ConsumerInfo | None) -> None:
        """Find, create or update the consumer; a new one continues behind its last known state."""
        source = self._source
        stream = get_stream(self._js, source.stream)
        before, self._stream_created = self._stream_created, stream.cached_info.created
        self.generation: str = generation_of(stream.cached_info)
        self._is_queue = (
            stream.cached_info.config.retention == RetentionPolicy.WORK_QUEUE and self._is_queue
        )
        try:
            consumer = stream.get_consumer(source.consumer)
        except errors.ConsumerNotFoundError:
            if not self._may_change:
                raise
            if before != self._stream_created or not _has_floor(stream, known):
                known = None
            config, floor = _continued(_new_config(source, stream.cached_info), stream, known)
            consumer = stream.create_consumer(config)
            _log_created(source, consumer.cached_info, floor, is_new=not before)
        else:
            _check_owner(consumer.cached_info.config, source)
            wanted = _updated(consumer.cached_info.config, source)
            if self._may_change:
                wanted = self._with_history(consumer.cached_info.config, wanted)
            if self._may_change and wanted != consumer.cached_info.config:
                consumer = stream.update_consumer(wanted)
        _check_consumer(consumer.cached_info.config, source)
        self.pull: PullConsumer = consumer
        self.info: ConsumerInfo | None = consumer.cached_info
        self._expected = _updated(self.info.config, source)
        self.parks: bool = _can_park(stream, self.info.config)
        self._compare()

    def _with_history(self, config: ConsumerConfig, wanted: ConsumerConfig) -> ConsumerConfig:
        """
        Return the wanted config, which remembers filters that it replaces.

        A process of an older version, which is started again during a deploy, finds its filters among those
        and is refused. So the newest definition stays.
        """
        current, own = sorted(config.filters), sorted(wanted.filters)
        if current == own:
            return wanted
        past = (config.metadata or {}).get(_PAST_FILTERS, "").split()
        name = f"{self._source.stream}/{self._source.consumer}"
        if _digest(own) in past and not self._replaces:
            rule = (
                f"consumer {name} has {current} by a newer version of the handler: "
                "to return to an older one, run 'jsm worker setup'"
            )
            raise errors.InvalidOptionError("filter_subjects", own, rule)
        past = [item for item in past if item not in {_digest(own), _digest(current)}]
        past = [*past, _digest(current)][-_MAX_PAST:]
        log.warning("%s: consumer %s had the filters %s", self._source.name, name, current)
        metadata = {**(wanted.metadata or {}), _PAST_FILTERS: " ".join(past)}
        return replace(wanted, metadata=metadata)

    def recreate(self) -> None:
        """Create the consumer again after it was deleted, behind its ack floor; raises as the constructor."""
        self._open(self.info)
        self.times.adopt(self.info.config)

    def refresh(self) -> None:
        """Read the state, and use it for the leases of held messages; raises as `read`."""
        self.info = self.read()
        self.times.adopt(self.info.config)
        self._compare(self._free_stranded())

    def _free_stranded(self) -> list[str]:
        """
        Create the consumer again, with its config, if messages are stranded; return what is wrong otherwise.

        The processes that pull from it continue with the new one. Messages that are handled meanwhile may come
        again.
        """
        known, source = self.info, self._source
        try:
            stranded = self.pull.stranded() if self._is_queue else None
        except errors.PermissionsError:
            self._is_queue = False  # the user may not read messages
            return []
        if stranded is None:
            return []
        if not self._may_change:
            return [stranded_text(source, stranded)]
        stream = get_stream(self._js, source.stream)
        # Other processes find it at the same time: one of them creates it again.
        time.sleep(random.uniform(0.0, _SPREAD_S))  # noqa: S311 - no secret
        if stream.get_consumer(known.name).cached_info.created == known.created:
            text = "%s: consumer %s/%s would never deliver message %d: it is created again"
            log.warning(text, source.name, source.stream, known.name, stranded.seq)
            stream.delete_consumer(known.name)
            with suppress(
                errors.BadRequestError
            ):  # a thread that pulls has created it, by its handler
                stream.create_consumer(known.config)
        self._open(known)
        return []

    def _compare(self, wrong: Sequence[str] = ()) -> None:
        """Compare the state with the handler; log each difference, and what is wrong besides, once."""
        source, before = self._source, self.mismatches
        self.note_clock(self.info)
        found = [*wrong, *_mismatches(self.info, self._expected, source)]
        try:
            _check_consumer(self.info.config, source)
        except errors.InvalidOptionError as error:
            found.append(str(error))
        differ = set(self.info.config.filters) != set(self._expected.filters)
        self.is_foreign: bool = differ and (self.is_foreign or self.has_foreign)
        self.has_foreign = False
        self.mismatches = found
        for mismatch in found:
            if mismatch not in before:
                log.error("%s: %s", source.name, mismatch)
        if before and not found:
            name = f"{source.stream}/{source.consumer}"
            log.warning("%s: consumer %s fits the handler again", source.name, name)


def _digest(filters: Sequence[str]) -> str:
    return short_digest(" ".join(filters).encode())


def _continued(
    config: ConsumerConfig, stream: Stream, known: ConsumerInfo | None
) -> tuple[ConsumerConfig, int]:
    """Return a config that continues behind the ack floor of a deleted consumer, and the floor; 0: none."""
    # A work queue deletes acknowledged messages, and refuses another start than the first message.
    is_queue = stream.cached_info.config.retention == RetentionPolicy.WORK_QUEUE
    if known is None or is_queue:
        return config, 0
    floor = known.ack_floor.stream_seq
    if floor:
        return replace(config, **start_of(floor + 1), opt_start_time=None), floor
    if config.deliver_policy == DeliverPolicy.NEW:
        # Before server 2.14, the ack floor is 0 until the first acknowledgement.
        return replace(config, **start_of(known.created)), 0
    return config, 0


def _has_floor(stream: Stream, known: ConsumerInfo | None) -> bool:
    """Return whether the messages up to a known ack floor are those that the consumer had."""
    # A stream that was restored to an older copy keeps its creation time. It ends before the floor, or has
    # messages there that were stored after the consumer reported the floor.
    floor = 0 if known is None else known.ack_floor.stream_seq
    if known is None or not floor:
        return True
    if stream.cached_info.state.last_seq < floor:
        return False
    try:
        msg = stream.get_msg(floor, consistent=True)
    except errors.MessageNotFoundError:
        return True
    return known.ts is None or msg.time <= known.ts


def _log_created(source: Source, info: ConsumerInfo, floor: int, *, is_new: bool) -> None:
    level = logging.INFO if is_new else logging.WARNING
    text = "%s: consumer %s/%s was created and receives %s%s"
    stored = counted(info.num_pending + info.delivered.consumer_seq, "stored message")
    after = f" after sequence {floor}" if floor else ""
    log.log(level, text, source.name, source.stream, source.consumer, stored, after)


def _new_config(source: Source, stream: StreamInfo) -> ConsumerConfig:
    # A work queue delivers all messages, whatever a consumer asks for, and refuses another start.
    is_queue = stream.config.retention == RetentionPolicy.WORK_QUEUE
    config = ConsumerConfig(
        durable_name=source.consumer,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,  # the worker gives messages up, not the server
        **({} if is_queue else start_of(source.deliver)),
    )
    return _updated(config, source)


def _updated(config: ConsumerConfig, source: Source) -> ConsumerConfig:
    """Return the config with the fields that the handler names."""
    if source.exclusive and not config.priority_groups:
        config = replace(
            config,
            priority_groups=[_GROUP],
            priority_policy=PriorityPolicy.PINNED_CLIENT,
            priority_timeout=_PIN_TIMEOUT_S,
        )
    if source.ack_wait is not None and not config.backoff:
        config = replace(config, ack_wait=source.ack_wait)
    if isinstance(source, Queue):
        config = replace(config, metadata={**(config.metadata or {}), OWNER: source.calls.owner})
    if source.filter_subjects:
        config = replace(config, **filter_fields(source.filter_subjects))
    return config


def plan_consumer(js: JetStream, source: Source) -> SetupStep | None:
    """Return the step that creates or updates the consumer of a handler; ``None``: it fits."""

    def run() -> None:
        HandlerConsumer(js, source, may_change=True, replaces=True)

    name = f"consumer {source.consumer!r} of stream {source.stream!r}"
    try:
        config = js.consumer_info(source.stream, source.consumer).config
    except (errors.ConsumerNotFoundError, errors.StreamNotFoundError):
        return SetupStep(action="create", name=name, run=run)
    found = [difference.text for difference in differences(config, _updated(config, source))]
    return SetupStep(action="update", name=name, differences=found, run=run) if found else None


def _check_owner(config: ConsumerConfig, source: Source) -> None:
    """Refuse the consumer of the queue of another program."""
    if isinstance(source, Queue):
        source.calls.check_owner(config)


def _check_consumer(config: ConsumerConfig, source: Source) -> None:
    """Check that a consumer fits its handler."""
    name = f"{source.stream}/{source.consumer}"
    is_explicit = config.ack_policy == AckPolicy.EXPLICIT
    rule = f"consumer {name} must use 'explicit'"
    check_option("ack_policy", str(config.ack_policy), is_explicit, rule)
    fits = source.exclusive is (config.priority_policy == PriorityPolicy.PINNED_CLIENT)
    rule = (
        f"consumer {name} has the priority_policy {str(config.priority_policy or 'none')!r}: "
        "'pinned_client' belongs to exclusive=True"
    )
    check_option("exclusive", source.exclusive, fits, rule)
    least = source.most_attempts + MAX_EXTRA_DELIVERIES
    limit = config.max_deliver or -1
    rule = (
        f"consumer {name} must deliver more than {least} times ({source.most_attempts} attempts of "
        f"handler {source.name} and {MAX_EXTRA_DELIVERIES} returned deliveries), or without limit (-1): "
        "otherwise the server gives messages up silently"
    )
    check_option("max_deliver", limit, not 0 < limit <= least, rule)
    shortest = LeaseTimes(config).shortest
    rule = f"consumer {name} must use at least {MIN_WAIT_S:g} seconds"
    option = "backoff" if config.backoff else "ack_wait"
    check_option(option, shortest, shortest >= MIN_WAIT_S, rule)


def _mismatches(info: ConsumerInfo, expected: ConsumerConfig, source: Source) -> list[str]:
    """Return what keeps messages of a consumer from its handler, or ends their leases too early."""
    name = f"consumer {source.stream}/{source.consumer}"
    found = []
    if info.paused:
        found.append(f"{name} is paused")
    filters, wanted_filters = sorted(info.config.filters), sorted(expected.filters)
    if filters != wanted_filters:
        found.append(f"{name} has the filters {filters}, not {wanted_filters}")
    wait, wanted = LeaseTimes(info.config).shortest, LeaseTimes(expected).shortest
    if wait < wanted:
        found.append(f"{name} has an ack_wait of {wait:g} seconds, below {wanted:g}")
    return found


def _stored_messages(stream: Stream, source: Source) -> str:
    """Return how many stored messages a new consumer receives, as text."""
    if source.deliver == "new":
        return "no stored messages"
    stored = stream.cached_info.state.messages
    if source.filter_subjects:
        counts = [
            stream.info(subjects_filter=subject).state.subjects
            for subject in source.filter_subjects
        ]
        stored = sum(sum((count or {}).values()) for count in counts)
    most = "" if source.deliver == "all" else "at most "
    return f"{most}{stored} stored messages; deliver= changes that"


def check_consumer(js: JetStream, source: Source, *, may_change: bool, processes: int) -> list[str]:
    """Check the stream and the consumer of a handler without a change on the server."""
    found = []
    stream = get_stream(js, source.stream)
    try:
        info = stream.get_consumer(source.consumer).cached_info
    except errors.ConsumerNotFoundError:
        if not may_change:
            raise
        found.append(
            f"consumer {source.consumer!r} does not exist: it is created at start, and receives "
            f"{_stored_messages(stream, source)}"
        )
        new = _new_config(source, stream.cached_info)
        limits = stream.cached_info.config.consumer_limits
        most = (limits and limits.max_ack_pending) or _MAX_ACK_PENDING
        config = replace(new, max_ack_pending=most)
    else:
        config = info.config
        _check_owner(config, source)
        # With may_change, the consumer is updated at start.
        found += _mismatches(info, config if may_change else _updated(config, source), source)
    _check_consumer(config, source)
    # An exclusive consumer serves one process at a time.
    served = 1 if source.exclusive else processes
    held = served * (source.concurrency * (source.max_messages or 1) + source.ahead)
    limit = config.max_ack_pending
    if limit is not None and 0 < limit < held:
        formula = "concurrency + prefetch"
        if served > 1:
            formula = f"{served} processes * ({formula})"
        found.append(
            f"max_ack_pending={limit} is below {formula} = {held}: "
            "some threads stay idle, and sooner when failed messages wait for their retry"
        )
    if source.needs_parking:
        check_parking(js, source)
    check_dead_letters(js, source, source.stream)
    found += _unmatched_filters(stream.cached_info.config, source)
    return found + missing_dead_letters(stream, source)


def _unmatched_filters(config: StreamConfig, source: Source) -> list[str]:
    """Return the filters of a handler that no subject of its stream matches, as sentences."""
    if config.mirror or config.sources or config.subject_transform:
        return []  # it may have other subjects
    subjects = config.subjects or ()
    found = [
        item
        for item in source.filter_subjects
        if not any(subjects_overlap(subject, item) for subject in subjects)
    ]
    text = f"stream {source.stream} has no subject that matches {', '.join(found)}"
    if found and isinstance(source, Queue):
        raise errors.InvalidOptionError("stream", source.stream, text)
    return [f"{text}: no message is received"] if found else []


def unknown_calls(js: JetStream, sources: Sequence[Source]) -> list[str]:
    """Return the calls in the namespaces of queues that no queue or task will run, as sentences."""
    queues = {
        CallAddress(source.filter_subjects[0]).queue: source
        for source in sources
        if isinstance(source, Queue) and source.tasks
    }
    found: Counter[str] = Counter()
    for stream, prefix in {
        (item.stream, start.rpartition(".")[0]) for start, item in queues.items()
    }:
        try:
            subjects = js.get_stream(stream).info(subjects_filter=f"{prefix}.>").state.subjects
        except errors.StreamNotFoundError:
            continue  # it has no calls
        for subject, count in (subjects or {}).items():
            call = CallAddress.of(subject)
            if not subject_matches(f"{prefix}.*.*.*", call.now):
                continue
            queue, task = call.queue, call.task
            if queue not in queues:
                found[f"no queue {queue.rpartition('.')[2]!r}"] += count
            elif task not in queues[queue].tasks:
                found[f"unknown task {task!r}"] += count
    return [
        f"{what}: no worker of this program runs {counted(count, 'waiting call')}"
        for what, count in sorted(found.items())
    ]


def stranded_calls(js: JetStream, sources: Sequence[Source]) -> list[str]:
    """Return the messages of work queues that their consumers will never deliver, as sentences."""
    found = []
    for source in sources:
        if source.group is None:
            with suppress(errors.StreamNotFoundError, errors.ConsumerNotFoundError):
                message = js.get_stream(source.stream).stranded(source.consumer)
                found += [] if message is None else [stranded_text(source, message)]
    return found


def stranded_text(source: Source, message: StoredMsg) -> str:
    """Return what is wrong with a consumer that will never deliver a message, and the remedy."""
    return (
        f"consumer {source.stream}/{source.consumer} will never deliver message {message.seq} and maybe others, "
        "because the server has lost them from its state: delete the consumer and create it again"
    )


def missing_dead_letters(stream: Stream, source: Source) -> list[str]:
    """Return what happens to failed messages of a handler without dead letters, as a sentence in a list."""
    if source.dead_letters is not None:
        return []
    kept = stream.cached_info.config.retention == RetentionPolicy.LIMITS
    fate = "skipped" if kept else "deleted"
    return [f"no stream for dead letters is given: messages that fail are {fate}"]


def check_dead_letters(js: JetStream, source: Source, stream: str) -> None:
    """Check that the stream for dead letters stores those of a handler that reads ``stream``, if it exists."""
    target = source.dead_letters
    if not isinstance(target, str):
        return  # there is none, or a function chooses the subjects
    try:
        subjects = js.get_stream(target).cached_info.config.subjects or ()
    except errors.StreamNotFoundError:
        return  # it is created at start, or reported as missing
    consumer = source.consumer if source.group is None else "*"  # of a member
    needed = f"dead.{stream}.{consumer}.>"
    ok = any(subjects_overlap(item, needed) for item in subjects)
    check_option("dead_letters", target, ok, f"stream {target} must have the subject {needed!r}")


def _can_park(stream: Stream, consumer: ConsumerConfig) -> bool:
    """Return whether messages of a consumer can wait in its stream."""
    with suppress(errors.InvalidOptionError):
        _check_parking(stream, [(consumer.durable_name or "", consumer.filters)])
        return True
    return False


def check_parking(js: JetStream, source: Source) -> None:
    """Check that messages of a handler can wait in its stream."""
    require_level(js, AT_LEVEL)
    consumers = list(filters_in(js, source.stream, [source]))
    _check_parking(js.get_stream(source.stream), consumers)


def _check_parking(stream: Stream, consumers: Sequence[tuple[str, Sequence[str]]]) -> None:
    retention = stream.cached_info.config.retention
    rule = f"stream {stream.name} must be a work queue: messages wait in it"
    check_option("retention", str(retention), retention == RetentionPolicy.WORK_QUEUE, rule)
    check_place(stream, parked_subject(stream.name, f"{consumers[0][0]}.1"), consumers)
