"""
The interface between the program and a client's process: one job in, one result out, as JSON.

A client's file is a module with one function per row; `serve` reads the job from standard input,
calls the function of its row and writes the result to standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from .stopwatch import Timing

__all__ = [
    "BLOCK",
    "BUCKET",
    "CHUNK_BYTES",
    "FUTURES_HELD",
    "OBJECT_CHUNKS",
    "Job",
    "Result",
    "WrongReadError",
    "check_read",
    "check_sequences",
    "numbered_payload",
    "serve",
]


BUCKET = "JETSTREAM_SYNC_BENCH"
"""The key-value bucket, or object store, of a row that has one; the client creates it."""

CHUNK_BYTES = 128 * 1024
"""Size of a message of an object store, in bytes."""

BLOCK = 500
"""Messages that ``core_read`` publishes before it reads them."""

FUTURES_HELD = 10_000
"""Futures that ``publish_async`` keeps before it reads their results."""

OBJECT_CHUNKS = 125
"""Messages of each object; 16 MiB."""


@dataclass(frozen=True)
class Job:
    """The work of one cell."""

    row: str
    url: str
    stream: str
    subject: str
    consumer: str
    """Durable pull consumer to bind to; empty where the row has none."""
    count: int
    size: int
    """Payload of a message, in bytes."""
    batch: int
    """Messages per ``fetch``."""
    window: int
    """Most publishes without an ack at one time, for ``publish_async``."""
    results: bool
    """Read the result of each future of ``publish_async``."""

    @property
    def direct_subject(self) -> str:
        """The subject of requests to which the server itself sends the last stored message."""
        return f"$JS.API.DIRECT.GET.{self.stream}.{self.subject}"

    def to_json(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Result:
    """The result of a client."""

    count: int
    seconds: float
    """From before the first call to after the flush that follows the last one."""
    version: str
    """The client library's version."""
    processor: Mapping[str, float]
    """Processor seconds of the client in that time, by thread."""

    @classmethod
    def of(cls, job: Job, timing: Timing, version: str) -> Result:
        """Return the result of a whole job."""
        return cls(job.count, timing.seconds, version, timing.processor)

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Return the result that `to_json` wrote."""
        return cls(**json.loads(text))


class WrongReadError(Exception):
    """A client did not read every message of the stream exactly once and in order."""


def numbered_payload(number: int, size: int) -> bytes:
    """Return the payload of a message, given its number from 1."""
    return b"%012d" % number + b"." * (size - 12)


def check_read(last: bytes, received: int, job: Job) -> None:
    """
    Check what a client read from the stream.

    The caller has compared each payload with the one before: they were strictly ascending. As many
    ascending numbers as the stream has, the last of which is the highest, are all of them, once.

    Args:
        last: the payload that was read last.
        received: messages read.
        job: what was to be read.

    Raises:
        WrongReadError: it is not the whole stream.

    """
    if received != job.count or last != numbered_payload(job.count, job.size):
        raise WrongReadError(f"read {received} of {job.count} messages, the last was {last!r}")


def check_sequences(sequences: Sequence[int]) -> None:
    """Raise `WrongReadError` unless the acknowledgements number the messages one after the other."""
    if sequences and list(sequences) != list(range(sequences[0], sequences[0] + len(sequences))):
        raise WrongReadError(f"not ascending by one from {sequences[0]} to {sequences[-1]}")


def serve(rows: Mapping[str, Callable[[Job], Result]]) -> None:
    """Run the job on standard input and write its result to standard output."""
    job = Job.from_json(sys.stdin.read())
    print(rows[job.row](job).to_json())
