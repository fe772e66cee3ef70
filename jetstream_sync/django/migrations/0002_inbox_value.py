"""The return values of calls in the inbox, and the page of dead letters, which has no table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the column; rows of the former code have no value."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("jetstream", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.AddField(
            model_name="inbox", name="value", field=models.BinaryField(null=True, editable=False)
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False))
            ],
            options={
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
            },
        ),
    ]
