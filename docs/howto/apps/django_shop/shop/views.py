"""The pages: orders and the report."""

from django.core.cache import cache
from django.db import transaction
from django.http import JsonResponse

from jetstream_sync.django.models import Outbox


@transaction.atomic
def order(_request, number):
    Outbox.publish("shop.ordered", b"%d" % number, msg_id=f"order/{number}")
    return JsonResponse({"number": number})


def report(_request):
    return JsonResponse({"last": cache.get("report")})
