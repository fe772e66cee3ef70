"""``manage.py handle_orders``: handle orders from the stream."""

import logging
import sys

from django.core.management.base import BaseCommand
from orders import stream
from orders.workers import worker


class Command(BaseCommand):
    """Handle orders until a signal arrives."""

    help = "Handle orders until Ctrl-C or SIGTERM; the current orders are finished."

    def handle(self, *args, **options):
        """Run the worker."""
        logging.basicConfig(level=logging.INFO)
        stream()  # creates it if it does not exist
        sys.exit(worker.run())
