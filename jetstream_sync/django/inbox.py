"""Handlers whose effects in the database happen once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from .models import Inbox

log: logging.Logger = logging.getLogger("jetstream_sync.worker")


def run_once(call: Callable[[], object], message_id: str, using: str) -> object:
    """
    Run a function in a transaction, unless an earlier run for the message has committed.

    A concurrent run for the same message waits for the end of the first one.

    Args:
        call: the function.
        message_id: the id of the message, the same in each attempt.
        using: the database.

    """
    with transaction.atomic(using=using):
        # First of all: this takes the write lock of SQLite, which cannot be taken after a read.
        if not _store(message_id, using):
            log.info("%s was handled before, and is only acknowledged", message_id)
            return None
        return call()


def _store(message_id: str, using: str) -> bool:
    """Store a message id; return whether it is new."""
    try:
        with transaction.atomic(using=using):
            Inbox.objects.using(using).create(id=message_id)
    except IntegrityError:
        return False
    return True


def delete_old_entries(days: float, using: str) -> int:
    """Delete the entries that are older than this number of days; return how many there were."""
    before = timezone.now() - timedelta(days=days)
    deleted, _ = Inbox.objects.using(using).filter(created_at__lt=before).delete()
    return int(deleted)
