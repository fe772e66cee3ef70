"""The handlers of messages about orders."""

from jetstream_sync.django import worker
from jetstream_sync.django.models import Outbox
from jetstream_sync.workers import Reject

from .models import Invoice, Order


@worker.handler(
    stream="ORDERS",
    consumer="BILLING",
    filter_subject="ORDERS.received",
    concurrency=4,
    decode="text",
    atomic=True,
)
def bill(number):
    """Write the invoice for an order, and publish that."""
    order = Order.objects.filter(number=number).first()
    if order is None:
        raise Reject(f"there is no order {number!r}")  # another attempt cannot succeed
    Invoice.objects.create(order=order)
    Outbox.publish("ORDERS.billed", number.encode())
