"""A Django project: its settings and URLs, and its command line."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    INSTALLED_APPS=["orders"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "only for trying it out"),
    USE_TZ=True,
    # The arguments of jetstream_sync.shared_connection().
    NATS={"servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), "name": "shop"},
)

application = get_wsgi_application()

from orders import views  # noqa: E402 - the settings come first

urlpatterns = [path("orders/<str:number>", views.take_order)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
