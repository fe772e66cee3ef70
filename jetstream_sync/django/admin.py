"""The page of the outbox in Django's admin site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .models import Outbox

#: Number of bytes of a payload that are shown.
_SHOWN = 1000


@admin.register(Outbox)
class OutboxAdmin(admin.ModelAdmin):
    """Messages that wait or are set aside: read them, publish them again, delete them."""

    list_display: Sequence[str] = (
        *("id", "subject", "msg_id", "created_at"),
        *("attempts", "failed_at", "error"),
    )
    # Not empty: messages that are set aside.
    list_filter: Sequence[Any] = (("failed_at", admin.EmptyFieldListFilter),)
    search_fields: Sequence[str] = ("subject", "msg_id", "error")
    ordering: Sequence[str] = ("id",)
    actions: Sequence[str] = ("publish_again",)
    readonly_fields: Sequence[str] = (
        *("subject", "msg_id", "headers", "text", "created_at"),
        *("attempts", "error", "retry_at", "failed_at"),
    )
    fields: Sequence[str] = readonly_fields

    @admin.display(description="payload")  # type: ignore[untyped-decorator]
    def text(self, row: Outbox) -> str:
        """Return the begin of the payload as text."""
        payload = bytes(row.payload)
        more = f"... ({len(payload)} bytes)" if len(payload) > _SHOWN else ""
        return payload[:_SHOWN].decode("utf-8", "replace") + more

    @admin.action(  # type: ignore[untyped-decorator]
        description="Publish selected messages again", permissions=["change"]
    )
    def publish_again(self, request: HttpRequest, rows: QuerySet[Outbox]) -> None:
        """Let the workers publish messages that are set aside, or whose next attempt is delayed."""
        number = rows.update(attempts=0, error="", retry_at=None, failed_at=None)
        self.message_user(request, f"{number} messages are published by the next worker.")

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Return false: messages are stored by `Outbox.publish`."""
        return False
