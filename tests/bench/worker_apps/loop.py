"""A loop by hand: no retries, no leases, no dead letters, no confirmed acks."""

from __future__ import annotations

import json

import jetstream_sync

from .record import record, url

with jetstream_sync.connect(url) as nc:
    consumer = nc.jetstream().get_consumer("BENCH", "C")
    with consumer.messages() as messages:
        for message in messages:
            record(json.loads(message.data))
            message.ack()
