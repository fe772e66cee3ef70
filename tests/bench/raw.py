"""
Prepare streams for measurements, and verify afterwards that the server received the work.

The connection is that of `rawnats`: it must not depend on any of the clients under test.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ..fixtures.rawnats import RawClient
from .job import Job, numbered_payload

_CHUNK = 4_000
_STATISTICS = "$SYS.REQ.ACCOUNT.PING.STATZ"


class NotDoneError(Exception):
    """The state of the server does not show the work that a client reports."""


def api(raw: RawClient, name: str, /, **fields: Any) -> dict[str, Any]:
    """Call JetStream's API; raise `NotDoneError` for an error."""
    response = raw.api(name, **fields)
    if "error" in response:
        raise NotDoneError(f"{name}: {response['error']}")
    return response


def make_stream(raw: RawClient, name: str, subject: str, max_msgs: int = -1) -> None:
    """Create an empty memory stream; one with that name is deleted first."""
    raw.api(f"STREAM.DELETE.{name}")
    config = {"name": name, "subjects": [subject], "storage": "memory", "max_msgs": max_msgs}
    api(raw, f"STREAM.CREATE.{name}", allow_direct=True, **config)


def make_consumer(raw: RawClient, stream: str, name: str, max_ack_pending: int) -> None:
    """Create a durable pull consumer with explicit acks."""
    config = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": max_ack_pending}
    api(raw, f"CONSUMER.DURABLE.CREATE.{stream}.{name}", stream_name=stream, config=config)


def fill(raw: RawClient, subject: str, count: int, size: int) -> None:
    """Publish numbered payloads into a stream; the server has stored them when this returns."""
    for start in range(1, count + 1, _CHUNK):
        stop = min(start + _CHUNK, count + 1)
        responses = raw.requests(subject, [numbered_payload(n, size) for n in range(start, stop)])
        if any(b'"error"' in response for response in responses):
            raise NotDoneError(f"the server refused to store: {responses[-1]!r}")


def received_bytes(raw: RawClient) -> int:
    """Return the bytes that the server has received from the clients of the account."""
    response = json.loads(raw.request(_STATISTICS))
    return int(response["data"]["account_statz"][0]["received"]["bytes"])


def verify_stored(raw: RawClient, job: Job) -> None:
    """Raise `NotDoneError` unless the stream has each message once."""
    state = api(raw, f"STREAM.INFO.{job.stream}")["state"]
    if (state["messages"], state["last_seq"]) != (job.count, job.count):
        raise NotDoneError(f"{job.count} messages were to be in the stream: {state}")


def verify_acked(raw: RawClient, job: Job) -> None:
    """Raise `NotDoneError` unless each message was delivered and acknowledged once."""
    # The server processes acks asynchronously; it has some seconds for the last.
    limit = time.monotonic() + 5.0
    while True:
        info = api(raw, f"CONSUMER.INFO.{job.stream}.{job.consumer}")
        if (
            info["ack_floor"]["stream_seq"] == job.count
            and info["delivered"]["consumer_seq"] == job.count
            and info["num_ack_pending"] == info["num_pending"] == info["num_redelivered"] == 0
        ):
            return
        if time.monotonic() > limit:
            raise NotDoneError(f"{job.count} messages were to be read and acked once: {info}")
        time.sleep(0.01)
