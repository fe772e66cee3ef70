"""Write checkpoints in the target stream, and which of them fit to a micro-batch."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.codec import loads
from jetstream_sync.errors import InvalidResponseError
from jetstream_sync.jetstream.direct_get import StoredMsg
from jetstream_sync.spark.sink_errors import (
    CheckpointRewoundError,
    SinkError,
    TargetRewoundError,
)
from jetstream_sync.spark.writing.checkpoints import BatchEnd, Checkpoint, KeyList, check_newest
from jetstream_sync.spark.writing.message_ids import WriteTaskId

COUNTS = st.integers(0, 2**63)
TASK = WriteTaskId(name="query", batch=7, partition=0, has_ends=True)


def message(data: bytes) -> StoredMsg:
    now = datetime.now(timezone.utc)
    return StoredMsg(subject="M.0f.0", seq=1, data=data, time=now, stream="S", headers=None)


@given(
    st.builds(
        Checkpoint,
        query=st.text(),
        batch=COUNTS,
        rows=COUNTS,
        digest=st.text(),
        lists=COUNTS,
        first_seq=COUNTS,
        messages=COUNTS,
    )
)
def test_a_checkpoint_survives_the_stream(checkpoint):
    """Parsing the payload of a checkpoint returns the same checkpoint."""
    assert Checkpoint.parse(message(checkpoint.to_json())) == checkpoint


@given(st.builds(KeyList, COUNTS, st.lists(st.sampled_from([b"a", b"=b+/"])).map(tuple)))
def test_a_list_of_keys_survives_the_stream(listed):
    """Parsing the payload of a list of keys returns the same list."""
    assert KeyList.parse(message(listed.to_bytes())) == listed


def test_checkpoints_of_former_versions_are_read():
    """The payload of a checkpoint, and of the end of a batch, has the same keys in all versions."""
    fields = {
        "v": 3,
        "query": "0f",
        "batch": 7,
        "rows": 5,
        "digest": "ab",
        "lists": 0,
        "first": 0,
        "here": 6,
    }
    checkpoint = Checkpoint(query="0f", batch=7, rows=5, digest="ab", messages=6)
    assert loads(checkpoint.to_json()) == fields
    found = checkpoint.stored(11)
    assert (found.first_seq, found.last_seq, found.stored(20).first_seq) == (11, 17, 11)
    assert loads(BatchEnd(query="0f", batch=7).to_json()) == {"v": 3, "query": "0f", "batch": 7}


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b'{"v":3,"query":"0f"}', b'{"v":2,"query":"0f","batch":1}']
)
def test_other_messages_are_refused(data):
    """A message that is no checkpoint of this version is an error that names its subject."""
    with pytest.raises(InvalidResponseError, match=r"M\.0f\.0"):
        BatchEnd.parse(message(data))
    with pytest.raises(InvalidResponseError, match=r"M\.0f\.0"):
        KeyList.parse(message(data))


END = BatchEnd(query=TASK.token, batch=6)
PART = Checkpoint(query=TASK.token, batch=6)


@pytest.mark.parametrize(
    ("newest", "error"),
    [
        (BatchEnd(query=TASK.token, batch=7), None),
        (Checkpoint(query=TASK.token, batch=7), None),
        (KeyList(7, ()), None),
        (END, None),
        (PART, TargetRewoundError),
        (KeyList(6, ()), TargetRewoundError),
        (BatchEnd(query=TASK.token, batch=5), TargetRewoundError),
        (BatchEnd(query=TASK.token, batch=8), CheckpointRewoundError),
        (KeyList(8, ()), CheckpointRewoundError),
        (BatchEnd(query="other", batch=7), SinkError),
        (Checkpoint(query="other", batch=7), SinkError),
    ],
)
def test_what_may_precede_a_micro_batch(newest, error):
    """A batch follows the end of the one before, or continues itself; anything else is an error."""
    if error is None:
        check_newest(newest, TASK, "S")
        return
    with pytest.raises(SinkError) as caught:
        check_newest(newest, TASK, "S")
    assert type(caught.value) is error


def test_a_job_has_no_ends_of_batches():
    """Where the driver records no ends, a part of an earlier batch may be the newest message."""
    check_newest(PART, WriteTaskId(name="query", batch=7, partition=0), "S")
