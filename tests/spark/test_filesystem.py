"""pandas and pyarrow read and write objects by the URLs of fsspec."""

from __future__ import annotations

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetstream_sync import shared_connection


@pytest.mark.spark
def test_parquet_files_are_objects(js, nats_server):
    """Pandas finds the filesystem by its protocol; pyarrow reads some columns of a file."""
    js.create_object_store(bucket="FRAMES", storage="memory")
    frame = pd.DataFrame({"a": range(100_000), "b": [f"row {n}" for n in range(100_000)]})
    where = "jetstream://FRAMES/2024/a.parquet"
    options = {"servers": nats_server.url}
    try:
        frame.to_parquet(where, storage_options=options)
        assert js.object_store("FRAMES").info("2024/a.parquet").size > 100_000
        assert pd.read_parquet(where, storage_options=options).equals(frame)
        frame.head().to_csv("jetstream://FRAMES/a.csv", index=False, storage_options=options)
        assert pd.read_csv("jetstream://FRAMES/a.csv", storage_options=options).equals(frame.head())
        files = fsspec.filesystem("jetstream", **options)
        table = pq.read_table("FRAMES/2024/a.parquet", filesystem=files, columns=["a"])
        assert table == pa.table({"a": range(100_000)})
    finally:
        shared_connection(nats_server.url).close()
