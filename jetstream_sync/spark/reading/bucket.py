"""
Read the current entries of a key-value bucket.

Up to 1,024 keys are read with one request, at one point in time (nats-server 2.11). More keys come from a
watch: then each value was current at some moment of the read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ... import errors
from ...jetstream.buckets.entries import KeyValueEntry, entry_of_message
from ...jetstream.context import JetStream
from ...net.clock import Deadline
from ...subjects import KV_PREFIX
from ..connections import api_requests, jetstream
from ..options import BucketReadOptions
from ..retry import retry_transient
from ..schema import spark_arrow_schema, utf8_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Attempts to read the keys with one request, while they change between two pages.
_PAGE_ATTEMPTS: Final = 3


def check_bucket_exists(options: BucketReadOptions) -> None:
    """Check on the driver that the bucket exists."""
    deadline = Deadline(options.planning_timeout)
    retry_transient(
        lambda: jetstream(options.connection).key_value(options.bucket),
        deadline,
        "looking up the bucket",
    )


def read_bucket(options: BucketReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the current entries of a bucket, in the order of their revisions."""
    columns = spark_arrow_schema(schema)
    deadline = Deadline(options.planning_timeout)

    def read() -> list[KeyValueEntry]:
        js, meta_only = jetstream(options.connection), "value" not in columns.names
        return read_entries(js, options.bucket, options.keys, meta_only=meta_only)

    # A large bucket may take any time while the server answers.
    entries = retry_transient(read, deadline, "reading the bucket", limits_calls=False)
    for part in _parts(entries, options.batch_bytes):
        yield _to_batch(part, columns)


def _to_batch(entries: list[KeyValueEntry], columns: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - `read_entries` works without it

    values: dict[str, Callable[[KeyValueEntry], Any]] = {
        "key": lambda entry: utf8_text(entry.key),
        "value": lambda entry: entry.value,
        "revision": lambda entry: entry.revision,
        # A timestamp of Spark has microseconds.
        "created": lambda entry: entry.created_ns // 1000,
    }
    arrays = [
        pa.array([values[field.name](entry) for entry in entries], field.type) for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def read_entries(
    js: JetStream, bucket: str, keys: Sequence[str] = (), *, meta_only: bool = False
) -> list[KeyValueEntry]:
    """Return the current entries of a bucket by revision, without deleted keys."""
    # What other programs wrote is read, whatever its key.
    kv = js.key_value(bucket, validate_keys=False)
    stream = js.get_stream(KV_PREFIX + bucket)
    names = kv._subjects  # noqa: SLF001 - the keys of a mirror are those of its origin
    patterns = keys or (">",)
    subjects = [names.read + pattern for pattern in patterns]
    for _ in range(_PAGE_ATTEMPTS):
        try:
            found = [entry_of_message(names, message) for message in stream.get_last_msgs(subjects)]
        except errors.MessagesChangedError:
            continue
        except (errors.NoRespondersError, errors.ServerTooOldError, errors.TooManyResultsError):
            break
        return [entry for entry in found if entry.has_value]
    entries: dict[str, KeyValueEntry] = {}
    with kv.watch(patterns, meta_only=meta_only) as watch:
        for entry in watch.initial(api_requests(js).timeout):
            entries[entry.subject] = entry
    current = (entry for entry in entries.values() if entry.has_value)
    return sorted(current, key=lambda entry: entry.revision)


def _parts(entries: list[KeyValueEntry], size: int) -> Iterator[list[KeyValueEntry]]:
    """Yield entries in parts of about this many bytes."""
    part: list[KeyValueEntry] = []
    used = 0
    for entry in entries:
        part.append(entry)
        used += len(entry.value) + len(entry.subject)
        if used >= size:
            yield part
            part, used = [], 0
    if part:
        yield part
