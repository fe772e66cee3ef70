"""A worker that hands messages of a stream over to Celery tasks."""

import os
import sys
import uuid

from kombu.exceptions import OperationalError
from tasks import print_label

from jetstream_sync.workers import Retry, Worker

worker = Worker(os.environ.get("NATS_URL"), name="bridge", dead_letters="DEAD")


@worker.handler(stream="ORDERS", consumer="LABELS", filter_subject="ORDERS.received", decode="text")
def forward(text, ctx):
    """Send a task, and return when Celery's broker has it."""
    # The same in each attempt, so that duplicates can be recognized.
    task_id = str(uuid.uuid5(uuid.NAMESPACE_URL, ctx.id))
    try:
        print_label.apply_async(args=[text], task_id=task_id)
    except OperationalError as error:
        raise Retry(f"Celery's broker does not answer: {error}") from error


if __name__ == "__main__":
    sys.exit(worker.run())
