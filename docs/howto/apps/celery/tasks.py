"""A task that publishes and can be retried."""

import os
from pathlib import Path

from celery import Celery

import jetstream_sync

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
RECEIPTS = Path("receipts")
LABELS = Path("labels")

app = Celery("shop")
app.config_from_object("celeryconfig")


def connection():
    """Return the connection of this process: the worker's parent or one of its children."""
    return jetstream_sync.shared_connection(SERVERS, name="tasks")


# This runs in the worker's parent process, before it forks its children.
connection().jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"])


@app.task(
    autoretry_for=(jetstream_sync.Error, OSError),
    retry_backoff=1,
    max_retries=10,
    acks_late=True,
    reject_on_worker_lost=True,
)
def take_order(number, text):
    """Store an order and write a receipt; Celery repeats the whole task after a failure."""
    js = connection().jetstream()
    # The stream stores one message with this id within its duplicate_window.
    ack = js.publish("ORDERS.received", text.encode(), msg_id=f"order-{number}")
    (RECEIPTS / f"{number}.txt").write_text(f"{ack.seq} {os.getpid()}")
    return ack.seq


@app.task(acks_late=True, reject_on_worker_lost=True)
def print_label(text):
    """Print a label; bridge.py sends this task for each stored order."""
    LABELS.mkdir(exist_ok=True)
    (LABELS / f"{text}.txt").write_text(print_label.request.id)
