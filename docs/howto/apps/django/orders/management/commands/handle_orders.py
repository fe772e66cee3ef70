"""``manage.py handle_orders``: a worker."""

import logging
import signal
import sys

from django.core.management.base import BaseCommand
from django.db import close_old_connections
from orders import connection, stream

import jetstream_sync

log = logging.getLogger(__name__)


class NotAnOrderError(Exception):
    """A message can not be read, now or later."""


def handle_order(data):
    """Handle one order: here it is a number, and is printed."""
    try:
        number = int(data)
    except ValueError:
        raise NotAnOrderError from None
    sys.stdout.write(f"handled {number}\n")
    sys.stdout.flush()


class Command(BaseCommand):
    """Handles orders until it is told to stop."""

    help = "Handle orders until Ctrl-C or SIGTERM; the order at hand is finished."
    stopping = False

    def handle(self, *args, **options):
        """Take one order after the other."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        consumer = stream().create_or_update_consumer(
            durable_name="orders", ack_wait=30, max_deliver=5
        )
        # An order that takes longer than ack_wait stays with this worker, and so do those behind it.
        with consumer.messages(max_messages=20, auto_in_progress=True) as messages:
            self.stdout.write("ready")
            while not self.stopping:
                try:
                    self.work_on(messages.next(timeout=0.5))
                except jetstream_sync.TimeoutError:
                    continue
            # Nobody has to wait for what was asked for already.
            messages.drain()
            for message in messages:
                self.work_on(message)
        connection().drain()
        self.stdout.write("stopped")

    def stop(self, *_):
        """Take note of a signal: a handler may strike anywhere, so it does nothing else."""
        self.stopping = True

    def work_on(self, message):
        """Handle an order, and settle it whatever happens: one bad order must not stop the others."""
        # As Django does before each request: what the database server has closed is opened again.
        close_old_connections()
        try:
            handle_order(message.data)
        except NotAnOrderError:
            message.term("not an order")  # another try makes no sense
        except Exception:
            # What failed may work later. Each try waits longer; max_deliver limits their number.
            log.exception("order %s failed", message.metadata.stream_seq)
            message.nak(delay=10.0 * message.metadata.num_delivered)
        else:
            message.ack()
        finally:
            close_old_connections()
