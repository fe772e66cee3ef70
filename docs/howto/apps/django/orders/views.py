"""A view that stores orders."""

from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

import jetstream_sync

from . import connection


@csrf_exempt
@require_POST
def take_order(request, number):
    """Store an order; a client without a response can send it again."""
    js = connection().jetstream()
    try:
        ack = js.publish("ORDERS.received", request.body, msg_id=number)
    except jetstream_sync.Error as error:
        return JsonResponse({"error": str(error)}, status=503)
    return JsonResponse({"seq": ack.seq, "again": ack.duplicate}, status=201)
