"""The configuration of the Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class JetStreamConfig(AppConfig):
    """The app ``jetstream``."""

    name = "jetstream_sync.django"
    label = "jetstream"
    verbose_name = "JetStream"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from .checks import check_jetstream  # noqa: PLC0415 - apps are loaded now

        checks.register(check_jetstream, "jetstream")
