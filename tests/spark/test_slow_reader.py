"""A slow consumer of the source does not make the server wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from fixtures.spark_streams import fill

import jetstream_sync
from jetstream_sync.server import NatsServer

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

MESSAGES = 40_000
#: Seconds after which the server closes a connection that does not read.
DEADLINE = 2
#: Seconds that the first rows are processed.
PAUSE = 3 * DEADLINE


@pytest.mark.full
def test_a_slow_consumer_does_not_lose_the_connection(spark):
    """Rows that are processed for seconds do not end the connection, and none is lost or duplicated."""
    with NatsServer(config=f'write_deadline: "{DEADLINE}s"\n') as server:
        with jetstream_sync.connect(server.url) as nc:
            js = nc.jetstream()
            js.create_stream(name="SLOW", subjects=["slow"], storage="memory", allow_direct=True)
            fill(js, "slow", MESSAGES, b"x" * 500)
        loading = spark.read.format("jetstream").options(
            servers=server.url, stream="SLOW", maxRecordsPerPartition=str(MESSAGES)
        )
        direct = loading.option("readMode", "direct").load()
        both = direct.union(loading.option("readMode", "pull").load())

        def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):
                if number == 0:
                    time.sleep(PAUSE)
                yield batch

        began = time.monotonic()
        read = both.mapInArrow(slowly, both.schema).groupBy("sequence").count()
        found = {(row["sequence"], row["count"]) for row in read.collect()}
        assert time.monotonic() - began > PAUSE
        assert found == {(sequence, 2) for sequence in range(1, MESSAGES + 1)}
        assert "Slow Consumer" not in server.log()
