"""Counters: subjects whose last message contains a total (ADR-49)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from .. import errors
from ..api.publish import PubAck
from ..codec import loads
from ..exact import exact
from ..headers import COUNTER_SOURCES, INCREMENT, Headers
from ..net.clock import BackoffDelay
from ..subjects import check_publish_subject, check_subject
from .api_requests import limited, with_one_deadline, within
from .direct_get import StoredMsg
from .stream import Stream, every_last_msg

#: Delays before a counter is read again while another program resets it, in seconds: the first and the maximum.
_FIRST_CONFLICT_DELAY_S: Final = 0.005
_MAX_CONFLICT_DELAY_S: Final = 0.2
_INTEGER: Final = "[+-]?[0-9]+"


class CounterEntry(NamedTuple):
    """A counter, as its stream holds it."""

    subject: str
    """Its subject."""

    value: int
    """The total."""

    increment: int | None
    """What the last message has added; ``None``: the stream got the total from other streams."""

    sources: Mapping[str, Mapping[str, int]]
    """For a stream with sources: name of the stream -> subject -> its total."""

    seq: int
    """The sequence of the last message."""

    time: datetime
    """When that was stored, in UTC."""


class Counters:
    """
    The counters of a stream, created by `JetStream.counters`.

    Values are integers of any size. Any number of threads and programs may add to a counter at a time. A value
    that is read may be behind, because any replica of the stream may answer (ADR-31).
    """

    def __init__(self, stream: Stream, publish: Callable[..., PubAck]) -> None:
        config = stream.cached_info.config
        for option in ("allow_msg_counter", "allow_direct"):
            if not getattr(config, option):
                raise errors.InvalidOptionError("stream", stream.name, f"it does not have {option}")
        self._stream = stream
        self._api = stream._api  # noqa: SLF001 - of this package
        self._publish = publish

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream.name

    def add(
        self,
        subject: str,
        value: int = 1,
        msg_id: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> int:
        """
        Add to a counter, which starts at 0, and return the new total.

        Args:
            subject: the subject of the counter.
            value: what to add; may be negative or 0.
            msg_id: the message id: within the ``duplicate_window`` of the stream, a second call with the same
                id adds nothing, and returns the current total. ``None``: none.
            timeout: in seconds; ``None``: the timeout of the context.

        Raises:
            CounterError: the server refused the increment.
            WrongStreamError: another stream has the subject, and has added the value.
            TimeoutError: no acknowledgement arrived. The value may have been added, so repeat the call only
                with a ``msg_id``.
            InvalidOptionError: the value is not an int.
            Error: otherwise as `JetStream.publish`.

        """
        deadline = within(self._api.deadline(timeout))
        with limited(deadline):
            ack = self._add(subject, value, msg_id)
            return self._read(subject, consistent=True).value if ack.val is None else _int(ack.val)

    def _add(self, subject: str, value: int, msg_id: str | None) -> PubAck:
        """Add to a counter; return the acknowledgement, for a duplicate without a total."""
        number = exact(value)
        if type(number) is not int:
            raise errors.InvalidOptionError("value", value, "must be an int")
        try:
            headers = {INCREMENT: f"{number:+d}"}
        except ValueError as error:  # see sys.set_int_max_str_digits
            raise errors.InvalidOptionError("value", value, str(error)) from None
        # Without the header for the expected stream, which a server refuses in an increment.
        left = within(self._api.deadline()).left()
        ack = self._publish(subject, b"", left, None, headers, msg_id)
        if ack.stream != self.stream:
            text = f"{subject!r} is a counter of stream {ack.stream!r}, which has added the value"
            raise errors.WrongStreamError.found_here(text)
        if ack.val is None and not ack.duplicate:
            text = f"adding to {subject!r}"
            outcome = f"its leader stored message {ack.seq}, which is not an increment"
            raise errors.ServerTooOldError(text, "2.12", "older", (), outcome)
        return ack

    def get(self, subject: str) -> CounterEntry:
        """
        Return a counter with its last increment and its sources.

        Raises:
            KeyNotFoundError: there is no such counter; it is also a `KeyError`.
            InvalidResponseError: the message is not a counter's.
            Error: otherwise as `Stream.get_msg`.

        """
        return self._read(check_publish_subject(subject))

    def _read(self, subject: str, *, consistent: bool = False) -> CounterEntry:
        """Return a counter; ``consistent``: as the leader of the stream has it."""
        try:
            return _entry(self._stream.get_msg(last_by_subject=subject, consistent=consistent))
        except errors.MessageNotFoundError:
            raise errors.KeyNotFoundError(self.stream, subject) from None

    def __getitem__(self, subject: str) -> int:
        """Return the total of a counter; raises as `get()`."""
        return self.get(subject).value

    @with_one_deadline
    def items(self, pattern: str = ">") -> Iterator[CounterEntry]:
        """
        Return an iterator of the counters whose subjects match.

        Up to 1,024 counters are those of one point in time; more are read one by one.

        Args:
            pattern: a subject, which may have wildcards.

        Raises:
            BadSubjectError: the pattern is invalid.
            Error: otherwise by the iteration, as `Stream.get_last_msgs`.

        """
        return map(_entry, every_last_msg(self._stream, check_subject(pattern)))

    @with_one_deadline
    def reset(self, subject: str) -> int:
        """
        Set a counter to 0 and delete its history; what is added meanwhile is kept.

        Several programs may reset a counter at a time: each total is subtracted once, if a call takes less than
        the ``duplicate_window`` of the stream. The history is kept while consumers of the stream have
        unacknowledged messages, see `Stream.purge`.

        Returns:
            The total that was subtracted; 0 if another program has subtracted it meanwhile.

        Raises:
            KeyNotFoundError: there is no such counter.
            TimeoutError: the total may have been subtracted; a second call within the window does not subtract it
                again.
            Error: otherwise as `add()` and `Stream.purge`.

        """
        # A server refuses an expected sequence in an increment. So the id of a reset names the reset before it, of
        # which the server remembers those of its window: of two programs that have read the same total, or totals
        # with increments between them, one gets the other's sequence, and reads again.
        subject, last_reset = check_publish_subject(subject), 0
        delays = BackoffDelay(_FIRST_CONFLICT_DELAY_S, _MAX_CONFLICT_DELAY_S, jitter=True)
        while True:
            # A replica that is behind lacks what was added last, which would be left in the counter.
            value = self._read(subject, consistent=True).value
            try:
                ack = self._add(subject, -value, f"reset {subject} {last_reset}")
            except errors.APIError as error:
                if not error.in_process:  # that of another program is being stored
                    raise
                self._api.core.wait_closed(delays.next())
                continue
            if not ack.duplicate:
                break
            last_reset = ack.seq
        with suppress(errors.PendingAcksError):
            self._stream.purge(subject=subject, seq=ack.seq)
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.stream!r}>"


def _entry(msg: StoredMsg) -> CounterEntry:
    headers = msg.headers or Headers()
    total = loads(msg.data) if msg.data else None
    if not isinstance(total, dict):
        raise errors.InvalidResponseError(f"{msg.subject!r} is not a counter: {msg.data[:60]!r}")
    sources: Any = loads(headers[COUNTER_SOURCES]) if COUNTER_SOURCES in headers else {}
    if not isinstance(sources, dict) or not all(isinstance(t, dict) for t in sources.values()):
        text = f"{msg.subject!r} has other {COUNTER_SOURCES} than a counter: {sources!r:.60}"
        raise errors.InvalidResponseError(text)
    increment = headers.get(INCREMENT)
    return CounterEntry(
        msg.subject,
        _int(total.get("val")),
        None if increment is None else _int(increment),
        {
            stream: {subject: _int(value) for subject, value in totals.items()}
            for stream, totals in sources.items()
        },
        msg.seq,
        msg.time,
    )


def _int(text: object) -> int:
    if not isinstance(text, str) or not re.fullmatch(_INTEGER, text):
        raise errors.InvalidResponseError(f"expected an integer of a counter, got {text!r:.60}")
    try:
        return int(text)
    except ValueError as error:  # see sys.set_int_max_str_digits
        raise errors.InvalidResponseError(f"{error}: {text!r:.60}") from None
