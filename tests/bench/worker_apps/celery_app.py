"""A Celery application with its defaults, without results."""

from __future__ import annotations

from celery import Celery

from .record import record, url

app = Celery("bench", broker=url)


@app.task(name="handle")
def handle(number: int) -> None:
    """Do nothing."""
    record(number)
