"""``manage.py handle_orders``: a worker."""

import signal
import sys

from django.core.management.base import BaseCommand
from orders import connection, stream

import jetstream_sync


class Command(BaseCommand):
    """Handles orders until it is told to stop."""

    help = "Handle orders until Ctrl-C or SIGTERM; the order at hand is finished."
    stopping = False

    def handle(self, *args, **options):
        """Take one order after the other."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        consumer = stream().create_consumer(durable_name="orders", ack_wait=30)
        with consumer.messages(max_messages=20) as messages:
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
        """Handle an order, and acknowledge it after that."""
        sys.stdout.write(f"handled {message.data.decode()}\n")
        sys.stdout.flush()
        message.ack()
