"""A Django project: its settings and URLs, and its command line."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.urls import path

if "PGDATABASE" in os.environ:
    DATABASE = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],  # host, user and password: PGHOST, PGUSER, PGPASSWORD
    }
else:
    DATABASE = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "shop.sqlite3",
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode=WAL",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": DATABASE},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["jetstream_sync.django", "orders"],
    JETSTREAM={
        "servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        "name": "shop",
        "dead_letters": "DEAD",
    },
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "only for trying it out"),
    USE_TZ=True,
)

application = get_wsgi_application()

from orders import views  # noqa: E402 - the settings come first

urlpatterns = [path("orders/<str:number>", views.take_order)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
