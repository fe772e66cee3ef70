"""A loop by hand: no retries, no leases, no dead letters."""

from __future__ import annotations

import itertools
import json
import os

import jetstream_sync

from .record import record, url

_CONFIRM = os.environ["BENCH_CONFIRM"] == "1"

with jetstream_sync.connect(url) as nc:
    consumer = nc.jetstream().get_consumer("BENCH", "C")
    inbox = nc.new_inbox()
    # A complete program would send again what is not confirmed.
    confirmed = itertools.count()
    confirmations = nc.subscribe(inbox, cb=lambda _: next(confirmed), pending_msgs_limit=0)
    with consumer.messages() as messages:
        for message in messages:
            record(json.loads(message.data))
            if _CONFIRM:
                nc.publish(message.reply, b"+ACK", inbox)
            else:
                message.ack()
