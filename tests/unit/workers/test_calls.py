"""Unit tests of `jetstream_sync.workers.calls`: the record of a call, and the table of its states."""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from jetstream_sync.codec import UnknownEnumValue
from jetstream_sync.errors import InvalidResponseError
from jetstream_sync.workers.call_messages import (
    DONE,
    FINISHED,
    TRANSITIONS,
    CallEvent,
    CallRecord,
    CallStatus,
    new_record,
    next_status,
)
from jetstream_sync.workers.calls import (
    SentCall,
    sent_call,
    sent_record,
)
from jetstream_sync.workers.errors import CallEndedError, Reject

#: A record as earlier versions have stored it, with keys of a Django backend.
STORED: dict[str, Any] = {
    "id": "0f",
    "task": "shop.bill",
    "status": "READY",
    "args": [1, {"a": None}],
    "kwargs": {"b": [2.5]},
    "errors": [{"exception_class_path": "builtins.OSError", "text": "no", "traceback": "Trace"}],
    "worker_ids": ["host-1"],
    "return_value": None,
    "enqueued_at": "2026-01-01T00:00:00+00:00",
    "started_at": "2026-01-01T00:00:01+00:00",
    "finished_at": None,
    "last_attempted_at": "2026-01-01T00:00:01+00:00",
    "interrupted": False,
    "eta": "2026-01-01T00:00:00+00:00",
    "expires": 1767225600,
    "queue": "default",
    "run_after": None,
}
#: The status after each status, by the events that lead there.
FOLLOWS = {
    ("READY", "RUNNING"): {"BEGIN"},
    ("READY", "FAILED"): {"FAIL"},
    ("READY", "CANCELLED"): {"CANCEL", "TERMINATE"},
    ("READY", "EXPIRED"): {"EXPIRE"},
    ("RUNNING", "READY"): {"RETRY", "SUSPEND"},
    ("RUNNING", "RUNNING"): {"BEGIN"},
    ("RUNNING", "SUCCESSFUL"): {"SUCCEED"},
    ("RUNNING", "FAILED"): {"FAIL"},
    ("RUNNING", "CANCELLED"): {"TERMINATE"},
    ("RUNNING", "EXPIRED"): {"EXPIRE"},
}


def record_in(status: CallStatus | str) -> CallRecord:
    """Return a record with a status."""
    return replace(new_record("bill", [1], {}), status=status)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(CallStatus, CallStatus)))
def test_a_status_follows_another_by_the_events_of_the_table(before, after):
    """Any other event is refused with the record, and changes nothing."""
    wanted = FOLLOWS.get((before.value, after.value), set())
    found = set()
    for event in CallEvent:
        record = record_in(before)
        if next_status(before, event) is None:
            with pytest.raises(CallEndedError) as refused:
                record.after(event)
            assert refused.value.args == (record,)
            continue
        changed = record.after(event)
        assert record.status is before
        assert (changed.finished_at is not None) is changed.has_ended
        if changed.status is after:
            found.add(event.name)
    assert found == wanted


def test_a_call_that_has_ended_has_no_transitions():
    """The ends follow from the table, which has a way to each of them."""
    assert {"SUCCESSFUL", "FAILED", "CANCELLED", "EXPIRED"} == FINISHED
    assert {"SUCCESSFUL", "CANCELLED", "EXPIRED"} == DONE
    assert set(TRANSITIONS.values()) == set(CallStatus)


def test_a_call_with_a_status_of_a_newer_version_runs_and_is_not_cancelled():
    """Its record is kept as it is until then."""
    data = json.dumps({**STORED, "status": "PAUSED"}).encode()
    record = CallRecord.from_json(STORED["id"], data)
    assert (record.status, record.has_ended) == (UnknownEnumValue("PAUSED"), False)
    assert json.loads(record.to_json())["status"] == "PAUSED"
    assert next_status(record.status, CallEvent.BEGIN) is CallStatus.RUNNING
    assert next_status(record.status, CallEvent.CANCEL) is None


def test_a_stored_record_is_the_same_after_it_was_read():
    """With the keys without a value that older versions need, and with those that this one does not know."""
    record = CallRecord.from_json(STORED["id"], json.dumps(STORED).encode())
    assert json.loads(record.to_json()) == STORED
    assert record.extra == {"queue": "default", "run_after": None}
    assert CallRecord.from_json(record.id, record.to_json()) == record
    assert pickle.loads(pickle.dumps(record)) == record


def test_a_new_record_has_the_keys_that_other_versions_read():
    """A record of a new call has twelve keys, also without a value."""
    assert json.loads(new_record("bill", (1,), {"b": 2}, task_id="x").to_json()).keys() == {
        *("id", "task", "status", "args", "kwargs", "errors", "worker_ids", "return_value"),
        *("enqueued_at", "started_at", "finished_at", "last_attempted_at"),
    }


def test_a_record_is_frozen():
    """It is changed by events only."""
    record = new_record("bill", [], {})
    with pytest.raises(FrozenInstanceError):
        record.status = CallStatus.FAILED
    assert record.may_be_lost
    assert not record.after(CallEvent.BEGIN, last_attempted_at="now").may_be_lost


def test_the_oldest_tracebacks_are_left_out():
    """The last one is always there, cut from its begin."""
    record = record_in(CallStatus.READY)
    for number in range(5):
        record = record.after(CallEvent.BEGIN).after_failure(
            CallEvent.RETRY, OSError, "x" * 900, f"{number}" * 8000
        )
    assert [item.traceback[0] for item in record.errors] == ["3", "4"]
    record = record.after_failure(CallEvent.FAIL, OSError, "", "5" * 30_000)
    assert [len(item.traceback) for item in record.errors] == [20_000]
    assert record.errors[0].exception_class_path == "builtins.OSError"


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"id": 1, "task": "a"}', b'{"task": "a"}'])
def test_a_value_that_is_no_record_is_refused(data):
    """It is an error of the response, which names what is wrong."""
    with pytest.raises(InvalidResponseError):
        CallRecord.from_json(STORED["id"], data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "invalid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"expires": "tomorrow"}', "'expires' must be a number"),
        (b'{"args": 1}', "args: expected an array"),
        (b'{"errors": [1]}', "expected an object"),
    ],
)
def test_a_message_that_is_no_call_is_rejected(data, reason):
    """Another attempt would not succeed."""
    with pytest.raises(Reject, match=reason):
        sent_record("bill", "1", data)


def test_the_message_of_a_call_has_its_arguments():
    """A message of another program needs none of the keys, and cannot end its call."""
    assert sent_call(b"") == SentCall([], {}, None)
    assert sent_call(b'{"args": [1], "expires": 2}') == SentCall([1], {}, 2)
    record = sent_record("bill", "1", b'{"args": [1], "id": 5, "status": "FAILED", "mine": 3}')
    assert (record.id, record.task, record.status) == ("1", "bill", CallStatus.READY)
    assert (record.args, record.kwargs, record.extra) == ([1], {}, {"mine": 3})
