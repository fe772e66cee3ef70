"""The pages of the outbox and of dead letters in Django's admin site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse

from .. import errors
from ..workers import DeadLetters
from .config import jetstream
from .models import DeadLetter, Outbox

#: Number of bytes of a payload, and of dead letters, that are shown.
_SHOWN = 1000
_MAX_LETTERS = 200


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
        """Return the beginning of the payload as text."""
        return _text(bytes(row.payload))

    @admin.action(  # type: ignore[untyped-decorator]
        description="Publish selected messages again", permissions=["change"]
    )
    def publish_again(self, request: HttpRequest, rows: QuerySet[Outbox]) -> None:
        """Let the workers publish messages that are set aside, or whose next attempt is delayed."""
        number = rows.update(attempts=0, error="", retry_at=None, failed_at=None)
        self.message_user(request, f"{number} messages are published by the next worker.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Outbox]:
        """Return the messages without their payloads, which only the page of one shows."""
        rows: QuerySet[Outbox] = super().get_queryset(request).defer("payload")
        return rows

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Return false: messages are stored by `Outbox.publish`."""
        return False


def _text(payload: bytes) -> str:
    """Return the beginning of a payload as text."""
    more = f"... ({len(payload)} bytes)" if len(payload) > _SHOWN else ""
    return payload[:_SHOWN].decode("utf-8", "replace") + more


@admin.register(DeadLetter)
class DeadLetterAdmin(admin.ModelAdmin):
    """Messages that workers have given up: read them, publish them again, discard them."""

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the dead letters of the server, the latest first; or requeue or discard some."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        rows: list[dict[str, Any]] = []
        count, problem = 0, ""
        try:
            letters = DeadLetters(jetstream())
            # With the time: a sequence repeats after a stream was created again or restored.
            found = {
                f"{item.stream} {item.consumer} {item.seq} {item.time.isoformat()}": item
                for item in letters.find()
            }
            if request.method == "POST":
                self._act(request, letters, found)
                return redirect(request.get_full_path())
            count = len(found)
            latest = sorted(found.items(), key=lambda item: item[1].time, reverse=True)
            for key, letter in latest[:_MAX_LETTERS]:
                msg = letters.get_msg(letter)
                text = "it is not stored any more" if msg is None else _text(msg.data)
                subject = letter.subject if msg is None else msg.subject
                rows.append({"key": key, "letter": letter, "subject": subject, "text": text})
        except errors.Error as error:
            problem = str(error)
        context = {
            **self.admin_site.each_context(request),
            "title": "Dead letters",
            "opts": self.opts,
            "rows": rows,
            "left_out": count - len(rows),
            "problem": problem,
            "may_requeue": self.has_change_permission(request),
            "may_discard": self.has_delete_permission(request),
            **(extra_context or {}),
        }
        page = "admin/jetstream/deadletter/change_list.html"
        return TemplateResponse(request, page, context)

    def _act(self, request: HttpRequest, letters: DeadLetters, found: dict[str, Any]) -> None:
        """Requeue or discard the selected dead letters; one that is requeued is discarded after that."""
        action = request.POST.get("action")
        may = {"requeue": self.has_change_permission, "discard": self.has_delete_permission}
        if action not in may or not may[action](request):
            raise PermissionDenied
        done = 0
        for key in request.POST.getlist("selected"):
            letter = found.get(key)
            if letter is None:
                continue  # another user was faster
            try:
                if action == "requeue":
                    letters.requeue(letter)
                letters.discard(letter)
            except errors.Error as error:
                self.message_user(request, f"{key}: {error}", messages.ERROR)
            else:
                done += 1
        verb = "published again" if action == "requeue" else "discarded"
        self.message_user(request, f"{done} dead letters were {verb}.")

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Return false: workers store dead letters."""
        return False
