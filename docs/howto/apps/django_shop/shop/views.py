"""The pages: orders, the report, and the admin site."""

from django.contrib.admin.sites import site as admin_site
from django.core.cache import cache
from django.db import transaction
from django.http import JsonResponse

from jetstream_sync.django.models import Outbox

site = admin_site.urls


@transaction.atomic
def order(_request, number):
    Outbox.publish("shop.ordered", b"%d" % number, msg_id=f"order/{number}")
    return JsonResponse({"number": number})


def report(_request):
    return JsonResponse({"last": cache.get("report")})
