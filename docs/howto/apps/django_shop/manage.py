"""A Django project with a task, an outbox, a schedule, a cache, a lock and a dashboard."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.urls import path

from jetstream_sync import KeyValueConfig, StreamConfig

SUBJECTS = ["shop.*", "schedules.SHOP.>"]
CACHE = {"BACKEND": "jetstream_sync.django.cache.KeyValueCache", "LOCATION": "CACHE"}
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    CACHES={"default": CACHE},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}},
    INSTALLED_APPS=["jetstream_sync.django", "shop"],
    JETSTREAM={
        "servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        "dead_letters": "DEAD",
        "ensure": [
            StreamConfig(name="SHOP", subjects=SUBJECTS, allow_msg_schedules=True),
            KeyValueConfig(bucket="LOCKS"),
        ],
    },
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "only for trying it out"),
)
application = get_wsgi_application()

from shop import views  # noqa: E402 - the settings come first

urlpatterns = [path("orders/<int:number>", views.order), path("report", views.report)]
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
