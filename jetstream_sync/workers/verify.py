"""
Comparison of the calls of tasks with their messages, their states and their dead letters.

At any time, a call has exactly one of these: a message in the stream of its queue; a signal or calls for which it
waits; the state ``SUCCESSFUL``,
``CANCELLED`` or ``EXPIRED``; the state ``FAILED`` and one dead letter. While workers run, a call is between two of
them for a moment: what disagrees is read again before it is reported. The calls of one schedule share a subject:
a message or a dead letter of any of them counts for each. Of calls without results, messages and dead letters are
compared; `unverified` says what that cannot show.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import JetStream, KeyValueEntry, errors
from ..durations import counted
from .call_messages import SCHEDULE_TARGET, CallAddress, CallRecord, CallStatus, is_parked_subject
from .calls import CallQueue
from .dead_letters import DeadLetter, DeadLetters
from .errors import NoCallError
from .runtime.consumers import stranded_calls, unknown_calls
from .source import Queue, Work

if TYPE_CHECKING:
    from .tasks import Task

#: Seconds between the two readings of what disagrees: a settlement is on its way for at most that long.
_AGAIN_S: Final = 2.0
#: Number of comparisons of a stream with its consumer while they differ.
_READINGS: Final = 10


def verify_calls(
    js: JetStream,
    tasks: Mapping[str, Task[..., object]],
    queues: Sequence[Queue],
) -> list[str]:
    """Return what disagrees, as sentences; empty: every call is where its state says."""
    found, forgotten = _disagreements(js, tasks, queues), _forgotten(js, queues)
    if found or forgotten:
        time.sleep(_AGAIN_S)
        again = set(_disagreements(js, tasks, queues))
        found = [text for text in found if text in again]
        forgotten &= _forgotten(js, queues)
    found += unknown_calls(js, queues)
    found += stranded_calls(js, queues)
    return found + [
        f"queue {name}: {counted(count, 'message')} unknown to its consumer"
        for name, count in forgotten.items()
    ]


class _Place(NamedTuple):
    """Where the calls of a task are, and what runs them; the tasks of a backend of Django share one."""

    queue: CallQueue
    name: str
    work: Work
    keeps: bool
    """Whether its dead letters are stored under known subjects."""


def _places(queues: Sequence[Queue]) -> list[_Place]:
    return [
        _Place(source.calls, name, work, isinstance(source.dead_letters, str))
        for source in queues
        if not source.urgent  # the other queue has them, too
        for name, work in source.tasks.items()
    ]


def unverified(queues: Sequence[Queue]) -> str:
    """Return what `verify_calls` cannot know, as a sentence; empty: there is nothing."""
    names = sorted({place.name for place in _places(queues) if not place.work.state.results})
    if not names:
        return ""
    return (
        f"{', '.join(names)}: without results, a call that has neither a message nor a dead letter has ended or is "
        "lost, and nothing stored tells which"
    )


def _disagreements(
    js: JetStream, tasks: Mapping[str, Task[..., object]], queues: Sequence[Queue]
) -> list[str]:
    places = _places(queues)
    # States first: a call that ends meanwhile loses its message after its state has changed, not before.
    records = [
        (record, of_task)
        for record, bucket in _records(js, places)
        if (of_task := _places_of(record, bucket, places, tasks))
    ]
    messages: Counter[str] = Counter()
    letters: list[DeadLetter] = []
    for stream in {queue.stream for queue in queues}:
        messages.update(_messages(js, stream))
        letters += DeadLetters(js).find(stream)
    found = _buried(js, places, messages, letters)
    counts = Counter(letter.subject for letter in letters)
    failed = Counter(
        call.of_schedule
        for record, of_task in records
        for call in _addresses(record, of_task)
        if record.status == CallStatus.FAILED
    )
    for record, of_task in records:
        found += _wrong(record, of_task, messages, counts, failed)
    return found


def _places_of(
    record: CallRecord,
    bucket: str,
    places: Sequence[_Place],
    tasks: Mapping[str, Task[..., object]],
) -> list[_Place]:
    """Return where a call may be: at its task, or in a queue of a backend of Django with the same bucket."""
    own = [item for item in places if item.work.state.results]
    own = [item for item in own if item.work.state.results.bucket == bucket]
    named = [item for item in own if item.name == record.task]
    return named or [item for item in own if item.name not in tasks]


def _addresses(record: CallRecord, places: Sequence[_Place]) -> list[CallAddress]:
    """Return the addresses that a call may have."""
    return [item.queue.of(record).address(item.name, record.id) for item in places]


def _wrong(
    record: CallRecord,
    places: Sequence[_Place],
    messages: Counter[str],
    letters: Counter[str],
    failed: Counter[str],
) -> list[str]:
    """Return what disagrees with the state of a call; ``failed``: the number of failed calls by shared subject."""
    calls = _addresses(record, places)
    subjects = [call.now for call in calls]
    message_count = sum(messages[subject] for subject in subjects)
    letter_count = sum(letters[subject] for subject in subjects)
    ticks = {call.of_schedule for call in calls}.difference(subjects)
    is_stored = message_count or any(messages[tick] for tick in ticks)
    where = f"call {record.id} of task {record.task} is {record.status}"
    found = []
    if record.status == CallStatus.FAILED:
        # A call after one that has failed never had a message.
        had_message = record.flow is None or record.last_attempted_at is not None
        keeps = all(item.keeps and not item.work.state.acks_failures for item in places)
        if keeps and had_message and not (letter_count or any(letters[tick] for tick in ticks)):
            found.append(f"{where}, and has no dead letter")
        # Calls of a requeued dead letter have ids of their own, and dead letters with the same subject.
        if letter_count > max(1, *(failed[subject] for subject in subjects)):
            found.append(f"{where}, and has {letter_count} dead letters")
    elif letter_count:
        found.append(f"{where}, and has a dead letter")
    if record.has_ended and message_count:
        found.append(f"{where}, and its message is still stored")
    if not record.has_ended and not is_stored and not any(_waits(record, it) for it in places):
        found.append(f"{where}, and no message of it is stored")
    return found


def _buried(
    js: JetStream,
    places: Sequence[_Place],
    messages: Counter[str],
    letters: Sequence[DeadLetter],
) -> list[str]:
    """Return the messages of calls without results that are stored although they have a dead letter."""
    without = {
        (item.queue.prefix, item.name): item for item in places if not item.work.state.results
    }
    found = []
    for letter in letters if without else ():
        call = CallAddress(letter.subject)
        place = without.get((f"{call.queue}.", call.task))
        if place is None or not messages[letter.subject]:
            continue
        with suppress(errors.MessageNotFoundError, errors.StreamNotFoundError):
            stored = js.get_stream(letter.stream).get_msg(letter.seq, consistent=True)
            if stored.subject == letter.subject:
                where = f"message {letter.seq} of task {place.name}"
                found.append(f"{where} has a dead letter, and is still stored")
    return found


def _records(js: JetStream, places: Sequence[_Place]) -> Iterator[tuple[CallRecord, str]]:
    """Yield the records of calls with results, with the names of their buckets."""
    states = [place.work.state.results for place in places]
    for bucket in sorted({item.bucket for item in states if item is not None}):
        with suppress(errors.BucketNotFoundError), js.key_value(bucket).watch() as watch:
            records = [_record_of(entry) for entry in watch.initial()]
            yield from ((item, bucket) for item in records if item is not None)


def _waits(record: CallRecord, place: _Place) -> bool:
    """Return whether a call needs no message, because it waits for a signal, or for calls that have not ended."""
    flow, steps = record.flow, place.work.state.results.steps
    if flow is None or not flow.waiting:
        return False
    if flow.waiting.startswith("wait="):
        return b'"deadline"' in (steps.get(record.id, flow.waiting) or b"")
    ended = steps.names(record.id, f"{flow.waiting}.m.*.*")
    return len(ended) < (flow.gathered or {}).get(flow.waiting, 0)


def _record_of(entry: KeyValueEntry) -> CallRecord | None:
    """Return the record in an entry; ``None``: it is deleted, or has other data."""
    with suppress(NoCallError):
        return CallRecord.from_json(entry.key, entry.value) if entry.has_value else None
    return None


def _messages(js: JetStream, stream: str) -> Counter[str]:
    """Return the number of messages by the subject of their call, also of later and parked ones."""
    counts: Counter[str] = Counter()
    with suppress(errors.StreamNotFoundError):
        source = js.get_stream(stream)
        for subject, count in (source.info(subjects_filter=">").state.subjects or {}).items():
            if is_parked_subject(subject):
                with suppress(errors.MessageNotFoundError):
                    stored = source.get_msg(last_by_subject=subject, consistent=True)
                    headers = {} if stored.headers is None else stored.headers
                    counts[headers.get(SCHEDULE_TARGET, "")] += count
            else:
                counts[CallAddress.of(subject).now] += count
    return counts


def _forgotten(js: JetStream, queues: Sequence[Queue]) -> Counter[str]:
    """
    Return the number of messages by queue that the consumer neither delivers nor waits for.

    The server counts stranded messages as pending acknowledgements until ``ack_wait`` is over.
    """
    found: Counter[str] = Counter()
    for queue in queues:
        with suppress(errors.StreamNotFoundError, errors.ConsumerNotFoundError):
            # The smallest of some differences: calls are sent and acknowledged between the requests.
            for number in range(_READINGS):
                count = _difference(js, queue)
                found[queue.name] = min(count, found[queue.name]) if number else count
                if count <= 0:
                    break
    return +found


def _difference(js: JetStream, queue: Queue) -> int:
    """Return by how much the messages of a queue exceed those that its consumer knows before and afterwards."""
    before = js.consumer_info(queue.stream, queue.consumer)
    stored = js.get_stream(queue.stream).info(subjects_filter=queue.calls.filter_subject)
    after = js.consumer_info(queue.stream, queue.consumer)
    known = max(info.num_pending + info.num_ack_pending for info in (before, after))
    return sum((stored.state.subjects or {}).values()) - known
