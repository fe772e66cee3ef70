"""
The relay: it publishes the messages of the outbox, in a thread of each worker.

Rules:

1. One relay publishes at a time, so that the messages of a subject keep their order. On databases with
   ``SKIP LOCKED``, a relay locks its rows, and leaves out those behind a row that another relay has
   locked.
2. Without row locks (SQLite), two relays may publish the same rows, each in order. The message id makes
   the stream store each message once.
3. A row is deleted after the acknowledgement. A message that the server refuses delays those of its
   subject, and no others.
4. A message that the server refuses because of what it contains is set aside after some attempts. Errors
   of the stream, such as a missing or full one, are repeated without end.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError, connections, transaction
from django.utils import timezone

from .. import errors
from ..net.clock import NO_WAIT, BackoffDelay, Deadline
from ..workers.events import spawn
from ..workers.logs import log
from .config import Config, connection, jetstream
from .models import Inbox, Outbox, OutboxState

if TYPE_CHECKING:
    from ..workers.metrics import GaugeSnapshot

#: Interval at which the outbox is read, in seconds.
_INTERVAL_S: Final = 0.5
#: Interval at which old entries of the inbox are deleted, in seconds.
_CLEAN_S: Final = 3600.0
#: Interval of repeated log records for a subject or a database, in seconds.
_REPEAT_LOG_S: Final = 60.0
#: Interval at which the state of the outbox is read for the metrics, in seconds.
_SAMPLE_S: Final = 10.0
#: Delays of the next attempt, by the number of failed ones.
_RETRY_DELAYS: Final = BackoffDelay(_INTERVAL_S, 30.0)
#: Number of attempts after which a message is set aside; with their delays, they take two minutes.
_ATTEMPTS: Final = 10
#: Number of rows that are locked and published at a time.
_BATCH: Final = 100
#: Longest wait for the relay when the worker stops, in seconds: the timeout of a publish, and more.
_STOP_TIMEOUT_S: Final = 10.0
#: Errors after which no message can be published; others concern one subject.
_NOT_CONNECTED: Final = (
    errors.ConnectionClosedError,
    errors.NoServersError,
    errors.OutboundBufferLimitError,
)

_GAUGES: Final = (
    ("outbox_messages", "messages", "Messages of the outbox that wait."),
    ("outbox_age_seconds", "age", "Age of the oldest message of the outbox that waits."),
    ("outbox_failed_messages", "failed", "Messages of the outbox that are set aside."),
)


class OutboxRelay:
    """Publishes the messages of the outbox, and deletes old entries of the inbox."""

    def __init__(self, config: Config, inbox: Collection[str] = ()) -> None:
        self._config = config
        self._databases = config.outbox_databases
        self._inbox = inbox
        self._stopped = threading.Event()
        # The ends of the times without another log record, by subject or database.
        self._quiet: dict[tuple[str, str], Deadline] = {}
        # The state of each database, and when it is read again.
        self._states: dict[str, OutboxState] = {}
        self._sample_at: dict[str, Deadline] = {}

    @contextlib.contextmanager
    def running(self, crashed: Callable[[BaseException], object]) -> Iterator[None]:
        """Run the relay in a thread for the duration of a block; call a function if an error ends it."""
        if not self._databases and not self._inbox:
            yield
            return
        thread = spawn("worker-outbox", self._run, crashed)
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(_STOP_TIMEOUT_S)

    def gauges(self) -> list[GaugeSnapshot]:
        """Return the last known state of the outbox of each database; any thread may call it."""
        return [
            {
                "name": name,
                "help": text,
                "labels": {"database": alias},
                "value": getattr(state, key),
            }
            for alias, state in tuple(self._states.items())
            for name, key, text in _GAUGES
        ]

    def _run(self) -> None:
        clean_at, clean = Deadline(0), partial(Inbox.delete_old, self._config.inbox_days)
        try:
            while not self._stopped.is_set():
                # A batch of each, without end in a busy one. Connections stay open: they are used twice a second.
                found = [
                    self._guarded("publish the outbox", alias, self._publish_some)
                    for alias in self._databases
                ]
                if self._config.inbox_days and clean_at.expired():
                    clean_at = Deadline(_CLEAN_S)
                    for alias in self._inbox:
                        self._guarded("delete old entries of the inbox", alias, clean)
                if None in found or not any(found):
                    self._stopped.wait(_INTERVAL_S)
        finally:
            connections.close_all()

    def _guarded(self, what: str, alias: str, work: Callable[[str], int | None]) -> int | None:
        """Do something with a database, and return its result; after an error, there is a new connection next time."""
        try:
            return work(alias)
        except Exception as error:  # noqa: BLE001 - the thread outlives any error of the database
            connections[alias].close()
            self._report((what, alias), f"cannot {what} in {alias!r}, trying again: {error}")
            return None

    def _publish_some(self, alias: str) -> int:
        """Publish a batch of the outbox, and read its state for the metrics if that is due; return as `publish_batch`."""
        if self._sample_at.get(alias, NO_WAIT).expired():
            self._sample_at[alias] = Deadline(_SAMPLE_S)
            try:
                self._states[alias] = Outbox.state(alias)
            except DatabaseError:
                self._states.pop(alias, None)  # it is not known any more
                raise
        return self.publish_batch(alias)

    def _report(self, key: tuple[str, str], text: str) -> None:
        """Log an error, unless there was one with this key in the last minute."""
        if self._quiet.get(key, NO_WAIT).expired():
            self._quiet = {key: end for key, end in self._quiet.items() if not end.expired()}
            self._quiet[key] = Deadline(_REPEAT_LOG_S)
            log.error(text)

    def publish_batch(self, alias: str) -> int:
        """Publish the first messages of an outbox, and delete their rows; return how many there were."""
        locks = bool(connections[alias].features.has_select_for_update_skip_locked)
        # SQLite takes no write lock here, which would stop all other writers until the server answers.
        block = transaction.atomic(using=alias) if locks else contextlib.nullcontext()
        with block:
            outbox = Outbox.objects.using(alias)
            delayed = outbox.filter(retry_at__gt=timezone.now()).values("subject")
            waiting = outbox.filter(failed_at=None).exclude(subject__in=delayed).order_by("id")
            rows = list(waiting.select_for_update(skip_locked=locks)[:_BATCH])
            if locks:
                rows = _before_gap(rows, waiting.values_list("id", flat=True)[: len(rows)])
            if not rows:
                return 0
            stored, failure = self._publish_rows(rows)
            if stored:
                outbox.filter(id__in=stored).delete()
        if failure is not None:
            raise failure
        return len(rows)

    def _publish_rows(self, rows: Sequence[Outbox]) -> tuple[list[int], errors.Error | None]:
        """Publish messages in order; return the ids of those that are stored, and why it ended early."""
        stored: list[int] = []
        refused: set[str] = set()
        try:
            js = jetstream()
            for row in rows:
                if self._stopped.is_set():
                    break
                if row.subject in refused:
                    continue
                data, headers = bytes(row.payload), row.headers or None
                try:
                    js.publish(row.subject, data, headers=headers, msg_id=row.msg_id)
                    stored.append(row.id)
                except errors.TimeoutError as error:
                    # Only this subject, if the server is there: others subscribe to it, and no stream answers.
                    connection().flush(self._config.timeout)
                    self._refuse(row, error)
                    break
                except _NOT_CONNECTED:
                    raise
                except errors.Error as error:
                    self._refuse(row, error)
                    refused.add(row.subject)
        except errors.Error as error:
            return stored, error
        return stored, None

    def _refuse(self, row: Outbox, error: errors.Error) -> None:
        """Try a message again later, or set it aside."""
        if row.attempts + 1 >= _ATTEMPTS and _is_about_message(error):
            row.note_failure(str(error), delay=None)
            log.error("the message %s in the outbox is set aside: %s", row, error)
            return
        row.note_failure(str(error), delay=_RETRY_DELAYS.after(row.attempts))
        text = f"the message {row} in the outbox is refused, trying again: {error}"
        self._report(("subject", row.subject), text)


def _is_about_message(error: errors.Error) -> bool:
    """Return whether an error is due to the message, and not to the state of the stream or the server."""
    # Other codes, such as 429 and 503, are about the server, and 400 is also the code of an account at its limits.
    return isinstance(
        error, errors.BadRequestError | errors.InvalidArgumentError
    ) and not isinstance(error, errors.AccountFullError)


def _before_gap(rows: Sequence[Outbox], ids: Iterable[int]) -> list[Outbox]:
    """Return the locked rows that come before the first row that another relay has locked."""
    # Two relays that lock rows at the same time may overtake each other, so the gap can be anywhere.
    pairs = itertools.takewhile(lambda pair: pair[0].id == pair[1], zip(rows, ids, strict=False))
    return [row for row, _ in pairs]
