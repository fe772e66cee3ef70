"""
Comparison of the calls of tasks with their messages, their states and their dead letters.

At any time, a call has exactly one of these: a message in the stream of its queue; a signal or calls for which it
waits; the state ``SUCCESSFUL``,
``CANCELLED`` or ``EXPIRED``; the state ``FAILED`` and one dead letter. While workers run, a call is between two of
them for a moment: what disagrees is read again before it is reported. The calls of one schedule share a subject:
a message or a dead letter of any of them counts for each. States of other records than those of tasks of the
worker, such as the results of ``django.tasks``, are not compared, but their messages are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from .. import JetStream, KeyValueEntry, errors
from ..subjects import subject_matches
from .call_records import CallRecord, CallStatus
from .calls import CallQueue
from .dead_letters import DeadLetters
from .errors import NoCallError
from .handler import QueueHandler
from .runtime.consumers import stranded_calls, unknown_calls

if TYPE_CHECKING:
    from .tasks import Task

#: Seconds between the two readings of what disagrees: a settlement is on its way for at most that long.
_AGAIN_S: Final = 2.0
#: Number of comparisons of a stream with its consumer while they differ.
_READINGS: Final = 10
#: Number of digits of the time in nanoseconds that the id of a call of a schedule ends with.
_TIME_DIGITS: Final = 19
_TARGET: Final = "Nats-Schedule-Target"


def verify_calls(
    js: JetStream,
    tasks: Mapping[str, Task[..., object]],
    queues: Sequence[tuple[CallQueue, QueueHandler]],
) -> list[str]:
    """Return what disagrees, as sentences; empty: every call is where its state says."""
    found, forgotten = _disagreements(js, tasks, queues), _forgotten(js, queues)
    if found or forgotten:
        time.sleep(_AGAIN_S)
        again = set(_disagreements(js, tasks, queues))
        found = [text for text in found if text in again]
        forgotten &= _forgotten(js, queues)
    handlers = [handler for _, handler in queues]
    with suppress(errors.StreamNotFoundError):
        found += unknown_calls(js, handlers)
    found += stranded_calls(js, handlers)
    return found + [
        f"queue {name}: {count} messages are unknown to its consumer"
        for name, count in forgotten.items()
    ]


def _disagreements(
    js: JetStream,
    tasks: Mapping[str, Task[..., object]],
    queues: Sequence[tuple[CallQueue, QueueHandler]],
) -> list[str]:
    # States first: a call that ends meanwhile loses its message after its state has changed, not before.
    records = list(_records(js, tasks))
    messages: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    found: list[str] = []
    for stream in {calls.stream for calls, _ in queues}:
        messages.update(_messages(js, stream))
        letters.update(letter.subject for letter in DeadLetters(js).find(stream))
    keeps = {calls.prefix: isinstance(handler.dead_letters, str) for calls, handler in queues}
    for record, task in records:
        subject = task.queue.of(record).subject_of(task.name, record.id)
        tick = _tick_subject(subject)
        is_stored = messages[subject] + messages[tick] > 0
        where = f"call {record.id} of task {task.name} is {record.status}"
        if record.status == CallStatus.FAILED:
            # A call after one that has failed never had a message.
            had_message = record.flow is None or record.last_attempted_at is not None
            if keeps[task.queue.prefix] and had_message and not (letters[subject] or letters[tick]):
                found.append(f"{where}, and has no dead letter")
            if letters[subject] > 1:
                found.append(f"{where}, and has {letters[subject]} dead letters")
        elif letters[subject]:
            found.append(f"{where}, and has a dead letter")
        if record.has_ended and messages[subject]:
            found.append(f"{where}, and its message is still stored")
        if not record.has_ended and not is_stored and not _waits(record, task):
            found.append(f"{where}, and no message of it is stored")
    return found


def _tick_subject(subject: str) -> str:
    """Return the subject of the message of a call that a schedule may have made; another call has it unchanged."""
    start, _, time_ns = subject.rpartition("-")
    return start if time_ns.isdigit() and len(time_ns) == _TIME_DIGITS else subject


def _records(
    js: JetStream, tasks: Mapping[str, Task[..., object]]
) -> Iterator[tuple[CallRecord, Task[..., object]]]:
    """Yield the records of the calls of tasks with results."""
    for bucket in sorted(
        {task.states.bucket for task in tasks.values() if task.states is not None}
    ):
        with suppress(errors.BucketNotFoundError), js.key_value(bucket).watch() as watch:
            records = [_record_of(entry) for entry in watch.initial()]
            yield from ((item, tasks[item.task]) for item in records if item and item.task in tasks)


def _waits(record: CallRecord, task: Task[..., object]) -> bool:
    """Return whether a call needs no message, because it waits for a signal, or for calls that have not ended."""
    place = record.flow
    if place is None or not place.waiting or task.states is None:
        return False
    if place.waiting.startswith("wait="):
        return b'"deadline"' in (task.states.steps.get(record.id, place.waiting) or b"")
    ended = task.states.steps.names(record.id, f"{place.waiting}.m.*.*")
    return len(ended) < (place.gathered or {}).get(place.waiting, 0)


def _record_of(entry: KeyValueEntry) -> CallRecord | None:
    """Return the record in an entry; ``None``: it is deleted, or has other data."""
    with suppress(NoCallError):
        return CallRecord.from_json(entry.value) if entry.has_value else None
    return None


def _messages(js: JetStream, stream: str) -> Counter[str]:
    """Return the number of messages by the subject of their call, also of later and parked ones."""
    counts: Counter[str] = Counter()
    with suppress(errors.StreamNotFoundError):
        source = js.get_stream(stream)
        for subject, count in (source.info(subjects_filter=">").state.subjects or {}).items():
            if subject_matches("parked.>", subject):
                with suppress(errors.MessageNotFoundError):
                    stored = source.get_msg(last_by_subject=subject, consistent=True)
                    counts["" if stored.headers is None else stored.headers.get(_TARGET, "")] += (
                        count
                    )
            else:
                counts[subject.removesuffix(".later")] += count
    return counts


def _forgotten(js: JetStream, queues: Sequence[tuple[CallQueue, QueueHandler]]) -> Counter[str]:
    """
    Return the number of messages by queue that the consumer neither delivers nor waits for.

    The server counts stranded messages as pending acknowledgements until ``ack_wait`` is over.
    """
    found: Counter[str] = Counter()
    for calls, _ in queues:
        with suppress(errors.StreamNotFoundError, errors.ConsumerNotFoundError):
            # The smallest of some differences: calls are sent and acknowledged between the requests.
            for number in range(_READINGS):
                count = _difference(js, calls)
                found[calls.name] = min(count, found[calls.name]) if number else count
                if count <= 0:
                    break
    return +found


def _difference(js: JetStream, calls: CallQueue) -> int:
    """Return by how much the messages of a queue exceed those that its consumer knows before and afterwards."""
    before = js.consumer_info(calls.stream, calls.consumer)
    stored = js.get_stream(calls.stream).info(subjects_filter=calls.filter_subject)
    after = js.consumer_info(calls.stream, calls.consumer)
    known = max(info.num_pending + info.num_ack_pending for info in (before, after))
    return sum((stored.state.subjects or {}).values()) - known
