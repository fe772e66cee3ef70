"""The work behind the pages."""

from django.core.cache import cache

from jetstream_sync.django import jetstream, worker


@worker.task(results="RECEIPTS")
def send_receipt(number: int) -> str:
    return f"receipt for order {number}"


@worker.handler(stream="SHOP", consumer="BILLING", filter_subject="shop.ordered", decode="json")
def bill(number):
    cache.set("last", number)
    send_receipt.delay(number=number)


@worker.schedule("report", subject="shop.report", every=1.0)
def report_payload():
    return b""


@worker.handler(stream="SHOP", consumer="REPORT", filter_subject="shop.report")
def report():
    with jetstream().key_value("LOCKS").lock("report", ttl=30):
        cache.set("report", cache.get("last"))
