"""
The relay: it publishes the messages of the outbox, in a thread of each worker.

Rules:

1. One relay publishes at a time, so that the messages of a subject keep their order. On databases with
   ``SKIP LOCKED``, a relay locks its rows, and leaves out those behind a row that another relay has
   locked.
2. Without row locks (SQLite), two relays may publish the same rows, each in order. The message id makes
   the stream store each message once.
3. A row is deleted after the acknowledgement. A subject that the server refuses does not block others.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from django.db import connections, transaction

from .. import (
    ConnectionClosedError,
    Error,
    NoServersError,
    OutboundBufferLimitError,
    TimeoutError,
)
from ..workers.spawn import spawn
from .config import Config
from .inbox import delete_old_entries
from .models import Outbox
from .publishing import jetstream

if TYPE_CHECKING:
    from .. import JetStream

__all__ = ["OutboxRelay"]

log: logging.Logger = logging.getLogger("jetstream_sync.worker")

#: Interval at which the outbox is read, in seconds.
_INTERVAL_S: Final = 0.5
#: Interval at which old entries of the inbox are deleted, in seconds.
_CLEAN_S: Final = 3600.0
#: Interval of repeated log records for an outbox that cannot be published, in seconds.
_REPEAT_LOG_S: Final = 60.0
#: Number of rows that are locked and published at a time.
_BATCH: Final = 100
#: Longest wait for the relay when the worker stops, in seconds: the timeout of a publish, and more.
_STOP_TIMEOUT_S: Final = 10.0
#: Errors after which no message can be published; others concern one message.
_NOT_CONNECTED: Final = (
    ConnectionClosedError,
    NoServersError,
    OutboundBufferLimitError,
    TimeoutError,
)


class OutboxRelay:
    """
    Publishes the messages of the outbox, and deletes old entries of the inbox.

    Args:
        config: names the databases, and the age of old entries.
        inbox: the databases with an inbox that is in use.

    """

    def __init__(self, config: Config, inbox: Collection[str] = ()) -> None:
        self._config = config
        self._databases = config.outbox_databases
        self._inbox = inbox
        self._stopped = threading.Event()
        self._logged_at = -math.inf

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the relay in a thread for the duration of a block."""
        if not self._databases and not self._inbox:
            yield
            return
        thread = spawn("worker-outbox", self._run, lambda _: None)
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        cleaned_at = -math.inf
        try:
            while not self._stopped.is_set():
                for alias in self._databases:
                    self._publish_all(alias)
                if self._config.inbox_days and time.monotonic() - cleaned_at >= _CLEAN_S:
                    cleaned_at = time.monotonic()
                    self._clean()
                self._stopped.wait(_INTERVAL_S)
        finally:
            connections.close_all()

    def _clean(self) -> None:
        for alias in self._inbox:
            try:
                delete_old_entries(self._config.inbox_days, alias)
            except Exception as error:  # noqa: BLE001 - the thread outlives any error of the database
                connections[alias].close()
                self._report(f"cannot delete old entries of the inbox in {alias!r}: {error}")

    def _publish_all(self, alias: str) -> None:
        """Publish what is in the outbox; report errors."""
        # The connection stays open, because it is used twice a second; after an error there is a new one.
        refused: set[str] = set()
        try:
            while not self._stopped.is_set() and self.publish_batch(alias, refused):
                pass
        except Exception as error:  # noqa: BLE001 - the thread outlives any error of the database
            connections[alias].close()
            self._report(f"cannot publish the outbox of {alias!r}, trying again: {error}")

    def _report(self, text: str) -> None:
        if time.monotonic() - self._logged_at >= _REPEAT_LOG_S:
            self._logged_at = time.monotonic()
            log.error(text)

    def publish_batch(self, alias: str, refused: set[str]) -> int:
        """
        Publish the first messages of an outbox, and delete their rows.

        Args:
            alias: the database.
            refused: subjects to leave out; those that the server refuses are added.

        Returns:
            The number of rows that were read; 0: nothing is left, or another relay is publishing.

        Raises:
            Error: the server is not available.
            DatabaseError: the rows cannot be read or deleted.

        """
        locks = bool(connections[alias].features.has_select_for_update_skip_locked)
        # SQLite takes no write lock here, which would stop all other writers until the server answers.
        block = transaction.atomic(using=alias) if locks else contextlib.nullcontext()
        with block:
            waiting = Outbox.objects.using(alias).order_by("id")
            if refused:
                waiting = waiting.exclude(subject__in=refused)
            rows = list(waiting.select_for_update(skip_locked=locks)[:_BATCH])
            if locks:
                rows = _before_gap(rows, waiting.values_list("id", flat=True)[: len(rows)])
            if not rows:
                return 0
            stored, failure = self._publish_rows(rows, refused)
            if stored:
                Outbox.objects.using(alias).filter(id__in=stored).delete()
        if failure is not None:
            raise failure
        return len(rows)

    def _publish_rows(
        self, rows: Sequence[Outbox], refused: set[str]
    ) -> tuple[list[int], Error | None]:
        """Publish messages in order; return the ids of those that are stored, and why it ended early."""
        stored: list[int] = []
        try:
            js: JetStream = jetstream()
            for row in rows:
                if self._stopped.is_set():
                    break
                if row.subject not in refused and self._publish_row(js, row, refused):
                    stored.append(row.id)
        except Error as error:
            return stored, error
        return stored, None

    def _publish_row(self, js: JetStream, row: Outbox, refused: set[str]) -> bool:
        try:
            js.publish(
                row.subject, bytes(row.payload), headers=row.headers or None, msg_id=row.msg_id
            )
        except _NOT_CONNECTED:
            raise
        except Error as error:
            refused.add(row.subject)
            self._report(f"the message {row} in the outbox is refused, trying again: {error}")
            return False
        return True


def _before_gap(rows: Sequence[Outbox], ids: Iterable[int]) -> list[Outbox]:
    """Return the locked rows that come before the first row that another relay has locked."""
    # Two relays that lock rows at the same time may overtake each other, so the gap can be anywhere.
    pairs = itertools.takewhile(lambda pair: pair[0].id == pair[1], zip(rows, ids, strict=False))
    return [row for row, _ in pairs]
