"""The columns of the outbox for messages that are refused."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the number of attempts, the error, and the times of the next attempt and of the end."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("jetstream", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.AddField(
            model_name="outbox",
            name="attempts",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="outbox",
            name="error",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.AddField(
            model_name="outbox",
            name="retry_at",
            field=models.DateTimeField(db_index=True, null=True),
        ),
        migrations.AddField(
            model_name="outbox",
            name="failed_at",
            field=models.DateTimeField(null=True),
        ),
    ]
