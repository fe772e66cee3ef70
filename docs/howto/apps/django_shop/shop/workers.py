"""The work behind the pages."""

from django.core.cache import cache

from jetstream_sync.django import jetstream, worker
from jetstream_sync.workers import Backoff


@worker.task(results="RECEIPTS", retry=Backoff(attempts=5))
def send_receipt(number: int) -> str:
    return f"receipt for order {number}"


@worker.handler(stream="SHOP", consumer="BILLING", filter_subject="shop.ordered", decode="json")
def bill(number):
    cache.set("last", number)
    send_receipt.delay(number=number)


@worker.task(every=1.0)
def report():
    with jetstream().key_value("LOCKS").lock("report", ttl=30):
        cache.set("report", cache.get("last"))
