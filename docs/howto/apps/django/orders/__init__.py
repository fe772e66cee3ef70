"""The orders of a shop."""

from django.conf import settings

import jetstream_sync


def connection():
    """Return the connection of this process."""
    return jetstream_sync.shared_connection(**settings.NATS)


def stream():
    """Return the stream of the orders; create it if it does not exist."""
    return connection().jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"])
