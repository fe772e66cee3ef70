"""A Celery application: acknowledged after the task, no results, a large prefetch."""

from __future__ import annotations

from celery import Celery

from .record import record, url

app = Celery("bench", broker=url)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_disable_rate_limits=True,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task(name="handle")
def handle(number: int) -> None:
    """Do nothing."""
    record(number)
