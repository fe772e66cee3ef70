"""
The interface between the comparison and a client's process: one job in, one result out, as JSON.

A client's file is a module with one function per row; `serve` reads the job from standard input,
calls the function of its row and writes the result to standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: The key-value bucket, or object store, of a row that has one; the client creates it.
BUCKET = "JETSTREAM_SYNC_BENCH"
#: Size of a message of an object store, in bytes, and messages of each object: 16 MiB.
CHUNK_BYTES = 128 * 1024
OBJECT_CHUNKS = 125
#: Messages that ``core_read`` publishes before it reads them.
BLOCK = 500
#: Futures that ``publish_async`` keeps before it reads their results.
FUTURES_HELD = 10_000


@dataclass(frozen=True)
class Job:
    """The work of one cell."""

    row: str
    url: str
    stream: str
    subject: str
    #: Durable pull consumer to bind to; empty where the row has none.
    consumer: str
    count: int
    #: Payload of a message, in bytes.
    size: int
    #: Messages per ``fetch``.
    batch: int
    #: Most publishes without an ack at one time, for ``publish_async``.
    window: int

    @property
    def payload(self) -> bytes:
        """A payload of the size."""
        return b"x" * self.size

    @property
    def direct_subject(self) -> str:
        """The subject of requests to which the server itself sends the last stored message."""
        return f"$JS.API.DIRECT.GET.{self.stream}.{self.subject}"


@dataclass(frozen=True)
class Timing:
    """The duration of a piece of work, and its processor time, in seconds."""

    seconds: float
    processor: float


class Stopwatch:
    """Measures the work of this process between its creation and `stop`."""

    def __init__(self) -> None:
        self._processor = time.process_time()
        self._start = time.perf_counter()

    def stop(self) -> Timing:
        """Return the times so far; the stopwatch continues."""
        seconds = time.perf_counter() - self._start
        return Timing(seconds, time.process_time() - self._processor)


class WrongReadError(Exception):
    """A client did not read every message of the stream exactly once and in order."""


def numbered_payload(number: int, size: int) -> bytes:
    """Return the payload of a message, given its number from 1."""
    return b"%012d" % number + b"." * (size - 12)


def check_read(payloads: Sequence[bytes], job: Job) -> None:
    """Raise `WrongReadError` unless the payloads are those of the stream, in its order."""
    if len(payloads) != job.count:
        raise WrongReadError(f"read {len(payloads)} of {job.count} messages")
    for number, payload in enumerate(payloads, 1):
        if payload != numbered_payload(number, job.size):
            raise WrongReadError(f"message {number} is {payload!r}")


def check_sequences(sequences: Sequence[int]) -> None:
    """Raise `WrongReadError` unless the acknowledgements number the messages one after the other."""
    if sequences and list(sequences) != list(range(sequences[0], sequences[0] + len(sequences))):
        raise WrongReadError(f"not ascending by one from {sequences[0]} to {sequences[-1]}")


def serve(rows: Mapping[str, Callable[[Job], Timing]], version: str) -> None:
    """Run the job on standard input and write its result to standard output."""
    job = Job(**json.loads(sys.stdin.read()))
    timing = rows[job.row](job)
    print(json.dumps({"count": job.count, "version": version, **vars(timing)}))
