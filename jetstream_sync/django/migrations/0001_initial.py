"""The tables of the outbox and the inbox."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models
from django.utils import timezone

_ERROR = models.CharField(blank=True, db_default="", default="", max_length=500)


class Migration(migrations.Migration):
    """Create both tables."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Inbox",
            fields=[
                ("id", models.CharField(max_length=700, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(db_index=True, default=timezone.now)),
            ],
            options={
                "db_table": "jetstream_inbox",
                "verbose_name": "inbox entry",
                "verbose_name_plural": "inbox",
            },
        ),
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("subject", models.TextField()),
                ("payload", models.BinaryField()),
                ("headers", models.JSONField(default=dict)),
                ("msg_id", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField(default=timezone.now)),
                ("attempts", models.PositiveIntegerField(db_default=0, default=0)),
                ("error", _ERROR),
                ("retry_at", models.DateTimeField(db_index=True, null=True)),
                ("failed_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "jetstream_outbox",
                "verbose_name": "outbox message",
                "verbose_name_plural": "outbox",
            },
        ),
    ]
