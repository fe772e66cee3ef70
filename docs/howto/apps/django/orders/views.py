"""A view that takes orders."""

from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

import jetstream_sync
from jetstream_sync.django import publish_on_commit

from .models import Order


@csrf_exempt
@require_POST
def take_order(request, number):
    """Store an order; a client without a response can send it again."""
    try:
        with transaction.atomic():
            text = request.body.decode()
            _, new = Order.objects.get_or_create(number=number, defaults={"text": text})
            publish_on_commit("ORDERS.received", number.encode(), msg_id=number)
    except jetstream_sync.Error as error:  # the order is stored, and not published
        return JsonResponse({"error": str(error)}, status=503)
    return JsonResponse({"number": number}, status=201 if new else 200)
