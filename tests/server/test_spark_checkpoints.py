"""Write checkpoints of Spark's transactions, after a server without storage has stored a part of an atomic batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_sync import JetStream
from jetstream_sync.net.clock import Deadline
from jetstream_sync.spark.writing.checkpoints import Checkpoint, CheckpointStore
from jetstream_sync.spark.writing.message_ids import WriteTaskId

pytestmark = pytest.mark.server(">=2.12")

ROWS = 5
TASK = WriteTaskId(name="job", batch=0, partition=0)


@pytest.mark.parametrize(
    ("stored", "others", "gone", "expected"),
    [
        (2, 0, [], 2),
        (0, 0, [], 0),
        (2, 4, [], 2),
        # What has gone is a message of the other writer, also at the last sequence of the whole batch.
        (2, 4, [6], 2),
        (2, 4, [5, 6], 2),
        (5, 0, [], 5),
        (5, 3, [], 5),
        # Rows that were removed count as stored.
        (5, 3, [6], 5),
        (5, 0, [4, 5, 6], 5),
        (5, 3, [2, 3, 4, 5, 6], 5),
        (3, 2, [3], 3),
    ],
)
def test_rows_that_are_stored(js: JetStream, stream_name, stored, others, gone, expected):
    """Only the rows that the batch has stored count, whatever other writers have stored or removed since."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], allow_atomic=True)
    options: Any = SimpleNamespace(
        stream=stream_name, query_id=None, marker_subject=f"{stream_name}.m"
    )
    checkpoint = Checkpoint(query=TASK.token, batch=0, rows=ROWS, digest="d", messages=ROWS)
    rows = [(f"{stream_name}.a", b"%d" % number) for number in range(stored)]
    js.publish_batch([(f"{stream_name}.m.{TASK.token}.0", checkpoint.to_json()), *rows])
    for _ in range(others):
        js.publish(f"{stream_name}.a", b"of another task")
    for seq in gone:
        stream.delete_msg(seq)
    found = CheckpointStore(js, options, TASK, roll_up=False).read(Deadline(10))
    assert found is not None
    assert (found.rows, found.messages) == (expected, expected)
