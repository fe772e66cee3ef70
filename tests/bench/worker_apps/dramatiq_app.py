"""A dramatiq application with its default middleware, without its metrics."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from .record import record, url

broker = RedisBroker(url=url)
dramatiq.set_broker(broker)


@dramatiq.actor
def handle(number: int) -> None:
    """Do nothing."""
    record(number)
