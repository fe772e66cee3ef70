"""
The tables of the outbox and the inbox.

`Outbox` holds messages until a worker has published them. `Inbox` holds the ids of messages whose
handler has committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from django.db import IntegrityError, models, transaction
from django.utils import timezone

from .. import Headers, errors
from ..headers import MSG_ID, encode_headers
from ..subjects import check_publish_subject
from ..workers.checks import check_option
from ..workers.dead_letters import one_line
from ..workers.logs import log
from .config import Config

if TYPE_CHECKING:
    from ..workers import Context

__all__ = ["DeadLetter", "Inbox", "Outbox", "OutboxState"]

#: Length of the column of message ids; SQLite would take longer ones.
_MAX_ID: Final = 255


@dataclass(frozen=True)
class OutboxState:
    """The messages of an outbox."""

    messages: int
    """Number of messages that wait."""
    age: float
    """How long the oldest of them has waited, in seconds; 0.0: none waits."""
    failed: int
    """Number of messages that are set aside."""


class Outbox(models.Model):
    """
    A message to publish, stored in the transaction of the data that it is about.

    A worker publishes the messages of each subject in the order of their ids, and deletes a row when
    the message is stored. After a crash in between, the message is published again with the same message
    id; it is stored once if that happens within the stream's ``duplicate_window``.

    A message that the server refuses is tried again after 0.5 to 30 seconds; meanwhile later messages of
    its subject wait. One that is refused because of what it contains is set aside after 10 attempts.
    """

    id: int = models.BigAutoField(primary_key=True)
    subject: str = models.TextField()
    payload: bytes = models.BinaryField()
    headers: dict[str, list[str]] = models.JSONField(default=dict)
    msg_id: str = models.CharField(max_length=_MAX_ID)
    created_at: datetime = models.DateTimeField(default=timezone.now)
    # Defaults of the database: during a deploy, processes with the former code store rows without them.
    attempts: int = models.PositiveIntegerField(default=0, db_default=0)
    error: str = models.CharField(max_length=500, default="", db_default="", blank=True)
    retry_at: datetime | None = models.DateTimeField(null=True, db_index=True)
    failed_at: datetime | None = models.DateTimeField(null=True)

    class Meta:
        db_table = "jetstream_outbox"
        verbose_name = "outbox message"
        verbose_name_plural = "outbox"

    def __str__(self) -> str:
        return f"{self.msg_id} to {self.subject}"

    @classmethod
    def publish(
        cls,
        subject: str,
        payload: bytes = b"",
        headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None,
        *,
        msg_id: str | None = None,
        using: str | None = None,
    ) -> str:
        """
        Store a message in the current transaction; a worker publishes it after the commit.

        Args:
            subject: the subject, without wildcards.
            payload: the payload.
            headers: names and values.
            msg_id: the message id for deduplication; ``None``: a random one.
            using: the database; ``None``: that of the database routers.

        Returns:
            The message id.

        Raises:
            BadSubjectError, InvalidHeaderError: the message is invalid; nothing was stored.
            InvalidOptionError: the message id has more than 255 characters.
            MaxPayloadError: it is larger than ``max_payload`` of the setting ``JETSTREAM``.

        """
        # A random id, because the primary keys of two databases with one stream are the same.
        msg_id = f"outbox/{uuid.uuid4().hex}" if msg_id is None else msg_id
        found = Headers(headers or {})
        rule = f"must have at most {_MAX_ID} characters"
        check_option("msg_id", msg_id, len(str(msg_id)) <= _MAX_ID, rule)
        row = cls(
            subject=check_publish_subject(subject),
            payload=bytes(payload),
            headers={name: list(found.get_all(name)) for name in found},  # as JSON has them
            msg_id=msg_id,
        )
        size = len(row.payload) + len(encode_headers({**row.headers, MSG_ID: [row.msg_id]}))
        limit = Config.load().max_payload
        if size > limit:
            raise errors.MaxPayloadError(size, limit)
        row.save(using=using, force_insert=True)
        return row.msg_id

    @classmethod
    def state(cls, using: str | None = None) -> OutboxState:
        """Return how many messages wait or are set aside in a database, and the age of the oldest."""
        waits = models.Q(failed_at=None)
        found = cls._default_manager.using(using).aggregate(
            all=models.Count("id"),
            waiting=models.Count("id", filter=waits),
            oldest=models.Min("created_at", filter=waits),
        )
        oldest: datetime | None = found["oldest"]
        age = 0.0 if oldest is None else (timezone.now() - oldest).total_seconds()
        return OutboxState(found["waiting"], max(0.0, age), found["all"] - found["waiting"])

    def note_failure(self, error: str, *, delay: float | None) -> None:
        """
        Store that the server has refused the message.

        Args:
            error: the reason.
            delay: seconds until the next attempt; ``None``: there is none, the message is set aside.

        """
        now = timezone.now()
        # Not save(): a router would choose another database, and another relay may have deleted the row.
        Outbox.objects.using(self._state.db).filter(id=self.id).update(
            attempts=self.attempts + 1,
            error=one_line(error),
            retry_at=None if delay is None else now + timedelta(seconds=delay),
            failed_at=now if delay is None else None,
        )


class Inbox(models.Model):
    """
    A message whose handler has committed, for handlers with ``atomic``.

    The row is stored in the transaction of the handler.
    """

    # The id of the message: names of a domain, a stream and a consumer, and two numbers. The index of
    # a longer column is refused by MySQL.
    id: str = models.CharField(max_length=700, primary_key=True)
    created_at: datetime = models.DateTimeField(default=timezone.now, db_index=True)
    # The return value of the call of a task, as JSON: its state may be stored by a later delivery.
    value: bytes | None = models.BinaryField(null=True, editable=False)

    class Meta:
        db_table = "jetstream_inbox"
        verbose_name = "inbox entry"
        verbose_name_plural = "inbox"

    def __str__(self) -> str:
        return self.id

    @classmethod
    def run_once(cls, call: Callable[[], object], ctx: Context, using: str) -> object:
        """
        Run a function in a transaction, unless an earlier run for the message has committed.

        A concurrent run for the same message waits for the end of the first one.
        """
        rows = cls._default_manager.using(using)
        with transaction.atomic(using=using):
            # First of all: this takes the write lock of SQLite, which cannot be taken after a read.
            try:
                with transaction.atomic(using=using):
                    rows.create(id=ctx.id)
            except IntegrityError:
                log.info("%s was handled before, and is only acknowledged", ctx.id)
                cls.find(ctx, using)
                return None
            result = call()
            if transaction.get_rollback(using):
                text = "the transaction would be rolled back: catch errors around an inner transaction.atomic()"
                raise transaction.TransactionManagementError(text)
            if ctx.value is not None:
                rows.filter(id=ctx.id).update(value=ctx.value)
            return result

    @classmethod
    def run_step(cls, run: Callable[[], bytes], step_id: str, using: str) -> bytes:
        """Run a step in a transaction that also stores its value, unless an earlier run has committed."""
        rows = cls._default_manager.using(using)
        with transaction.atomic(using=using):
            try:
                with transaction.atomic(using=using):
                    rows.create(id=step_id)
            except IntegrityError:
                return bytes(rows.values_list("value", flat=True).get(id=step_id) or b"null")
            value = run()
            rows.filter(id=step_id).update(value=value)
            return value

    @classmethod
    def find(cls, ctx: Context, using: str) -> bool:
        """Return whether a run for the message has committed, and set its return value."""
        rows = cls._default_manager.using(using).filter(id=ctx.id)
        values = list(rows.values_list("value", flat=True))
        if values:
            ctx.value = None if values[0] is None else bytes(values[0])
        return bool(values)

    @classmethod
    def delete_old(cls, days: float, using: str) -> None:
        """Delete the entries that are older than this number of days."""
        before = timezone.now() - timedelta(days=days)
        cls._default_manager.using(using).filter(created_at__lt=before).delete()


class DeadLetter(models.Model):
    """A place for the dead letters of the server in Django's admin site; it has no table."""

    class Meta:
        """Options of the model for Django."""

        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change", "delete")
        verbose_name = "dead letter"
        verbose_name_plural = "dead letters"
