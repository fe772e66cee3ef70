"""A bare push subscription, for latencies."""

from __future__ import annotations

import json
import threading

import jetstream_sync

from .record import record, url

with jetstream_sync.connect(url) as nc:
    subscription = nc.jetstream().subscribe(
        "bench", stream="BENCH", cb=lambda msg: record(json.loads(msg.data)), manual_ack=True
    )
    threading.Event().wait()
