"""``manage.py handle_orders``: handle orders from the stream."""

import logging
import signal
import sys

from django.core.management.base import BaseCommand
from django.db import close_old_connections
from orders import connection, stream

import jetstream_sync

log = logging.getLogger(__name__)


class NotAnOrderError(Exception):
    """The message is invalid; another attempt cannot succeed."""


def handle_order(data):
    """Handle one order: in this example, print its number."""
    try:
        number = int(data)
    except ValueError:
        raise NotAnOrderError from None
    sys.stdout.write(f"handled {number}\n")
    sys.stdout.flush()


class Command(BaseCommand):
    """Handle orders until a signal arrives."""

    help = "Handle orders until Ctrl-C or SIGTERM; the current order is finished."
    stopping = False

    def handle(self, *args, **options):
        """Handle one order at a time."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        consumer = stream().create_or_update_consumer(
            durable_name="orders", ack_wait=30, max_deliver=5
        )
        # auto_in_progress renews ack_wait for the current order and for all buffered ones.
        with consumer.messages(max_messages=20, auto_in_progress=True) as messages:
            self.stdout.write("ready")
            while not self.stopping:
                try:
                    self.work_on(messages.next(timeout=0.5))
                except jetstream_sync.TimeoutError:
                    continue
            # Handle what is buffered or in flight, so that no other worker waits for its ack_wait.
            messages.drain()
            for message in messages:
                self.work_on(message)
        connection().drain()
        self.stdout.write("stopped")

    def stop(self, *_):
        """Set the flag. A signal handler can interrupt any code, so it does nothing else."""
        self.stopping = True

    def work_on(self, message):
        """Handle and acknowledge an order; a failure must not stop the worker."""
        # As Django does before each request: drop broken and expired database connections.
        close_old_connections()
        try:
            handle_order(message.data)
        except NotAnOrderError:
            message.term("not an order")  # do not deliver it again
        except Exception:
            # Another attempt may succeed. Each one waits longer; max_deliver limits their number.
            log.exception("order %s failed", message.metadata.stream_seq)
            message.nak(delay=10.0 * message.metadata.num_delivered)
        else:
            message.ack()
        finally:
            close_old_connections()
