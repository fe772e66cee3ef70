"""A Django project with a task, an outbox, a schedule, a cache, a lock, the admin site and a dashboard."""

import os

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.urls import path

from jetstream_sync import KeyValueConfig, StreamConfig

ADMIN = ["admin", "auth", "contenttypes", "messages", "sessions"]
MIDDLEWARE = {"sessions": "Session", "auth": "Authentication", "messages": "Message"}
CONTEXT = [f"django.contrib.{app}.context_processors.{app}" for app in ("auth", "messages")]
CONTEXT.append("django.template.context_processors.request")
PAGES = {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    CACHES={"default": {"BACKEND": "jetstream_sync.django.cache.KeyValueCache", "LOCATION": "C"}},
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}},
    INSTALLED_APPS=["jetstream_sync.django", "shop", *(f"django.contrib.{app}" for app in ADMIN)],
    JETSTREAM={
        "servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        "name": "shop",
        "dead_letters": "DEAD",
        "ensure": [StreamConfig(name="SHOP", subjects=["shop.*"]), KeyValueConfig(bucket="LOCKS")],
    },
    MIDDLEWARE=[f"django.contrib.{k}.middleware.{v}Middleware" for k, v in MIDDLEWARE.items()],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "only for trying it out"),
    TEMPLATES=[{**PAGES, "OPTIONS": {"context_processors": CONTEXT}}],
)
application = get_wsgi_application()

from shop.views import order, report, site  # noqa: E402 - the settings come first

urlpatterns = [path("orders/<int:number>", order), path("report", report), path("admin/", site)]
if __name__ == "__main__":
    execute_from_command_line()
