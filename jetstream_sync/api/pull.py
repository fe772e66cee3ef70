"""Pull requests, and the account of what they owe: ADR-37 without threads, clocks or sockets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from ..codec import dumps
from ..errors import InvalidOptionError

__all__ = ["ContinuousPull", "PullLedger", "PullRequest"]

_SECOND: Final = 1_000_000_000

#: With a limit in bytes, the number of messages must not be what ends a request (ADR-37).
ANY_NUMBER: Final = 1_000_000
#: How many messages a continuous pull keeps ready where nobody says.
DEFAULT_MESSAGES: Final = 500
#: How long each of its requests lasts where nobody says, in nanoseconds.
DEFAULT_EXPIRES_NS: Final = 30 * _SECOND
#: How long they have to last at least (ADR-37).
SHORTEST_EXPIRES_NS: Final = _SECOND
#: Requests that wait at least this long have heartbeats where nobody says.
HEARTBEAT_FROM_NS: Final = 10 * _SECOND
_DEFAULT_HEARTBEAT_NS: Final = 5 * _SECOND
_LONGEST_HEARTBEAT_NS: Final = 30 * _SECOND
_SHORTEST_HEARTBEAT_NS: Final = _SECOND // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """
    What is asked of a consumer; times are in nanoseconds, 0 and ``None`` mean *not said*.

    Raises:
        InvalidOptionError: a value is out of range. nats-server accepts some of these, and then
            does something that nobody asked for, so they are refused here.

    """

    batch: int = 1
    """How many messages at most."""
    expires_ns: int = 0
    """How long the server waits for them."""
    max_bytes: int = 0
    """How many bytes at most, as ADR-37 counts them."""
    no_wait: bool = False
    """Do not wait: send what is there."""
    heartbeat_ns: int = 0
    """After how much silence the server says that it is still there."""
    group: str | None = None
    """The priority group (ADR-42)."""
    min_pending: int = 0
    """Serve this client only when so many messages are pending; policy ``overflow``."""
    min_ack_pending: int = 0
    """Serve this client only when so many messages await their ack; policy ``overflow``."""
    priority: int | None = None
    """Serve this client after those with a lower number, 0 to 9; policy ``prioritized``."""
    pin_id: str | None = None
    """The pin that the server gave to this client; policy ``pinned_client``."""

    def __post_init__(self) -> None:
        if not _is_count(self.batch) or self.batch < 1:
            raise InvalidOptionError("batch", self.batch, "must be a whole number from 1 up")
        if not _is_count(self.max_bytes) or self.max_bytes < 0:
            raise InvalidOptionError(
                "max_bytes", self.max_bytes, "must be a whole number from 1 up"
            )
        if self.expires_ns < 0 or not (self.no_wait or self.expires_ns):
            raise InvalidOptionError("timeout", self.expires_ns / _SECOND, "must be above 0")
        if self.heartbeat_ns < 0:
            raise InvalidOptionError("heartbeat", self.heartbeat_ns / _SECOND, "must be above 0")
        if self.heartbeat_ns * 2 > self.expires_ns and self.heartbeat_ns:
            raise InvalidOptionError(
                "heartbeat",
                self.heartbeat_ns / _SECOND,
                f"must be at most half of the {self.expires_ns / _SECOND:g} s of the request",
            )
        if self.priority is not None and not (_is_count(self.priority) and 0 <= self.priority <= 9):
            raise InvalidOptionError("priority", self.priority, "must be from 0 to 9")
        for option in ("min_pending", "min_ack_pending"):
            if not _is_count(getattr(self, option)) or getattr(self, option) < 0:
                raise InvalidOptionError(option, getattr(self, option), "must be 0 or above")
        for option, unsaid in (("min_pending", 0), ("min_ack_pending", 0), ("priority", None)):
            if getattr(self, option) != unsaid and not self.group:
                raise InvalidOptionError(option, getattr(self, option), "needs a group")

    def encode(self) -> bytes:
        """Return the request's body, with what is said and nothing else."""
        body: dict[str, Any] = {"batch": self.batch}
        if self.expires_ns:
            body["expires"] = self.expires_ns
        if self.max_bytes:
            body["max_bytes"] = self.max_bytes
        if self.no_wait:
            body["no_wait"] = True
        if self.heartbeat_ns:
            body["idle_heartbeat"] = self.heartbeat_ns
        if self.group:
            body["group"] = self.group
            if self.min_pending:
                body["min_pending"] = self.min_pending
            if self.min_ack_pending:
                body["min_ack_pending"] = self.min_ack_pending
            if self.priority is not None:
                body["priority"] = self.priority
            if self.pin_id:
                body["id"] = self.pin_id
        return dumps(body)


def default_heartbeat_ns(expires_ns: int) -> int:
    """Return the heartbeat of one fetch where nobody says: none when it is short."""
    return _DEFAULT_HEARTBEAT_NS if expires_ns >= HEARTBEAT_FROM_NS else 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousPull:
    """
    The limits of a pull that goes on (ADR-37, "Consume"); times are in nanoseconds.

    Make it with `of()`, which works out what depends on what.
    """

    request: PullRequest
    """A request that fills an empty buffer."""
    threshold_messages: int
    """Ask again when fewer messages than this are owed or unread."""
    threshold_bytes: int
    """The same in bytes; 0 where there is no limit in bytes."""
    stop_after: int = 0
    """End after so many messages; 0: never."""

    @classmethod
    def of(
        cls,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        expires_ns: int | None = None,
        heartbeat_ns: int | None = None,
        stop_after: int | None = None,
        priority: PullRequest | None = None,
        largest_batch: int = ANY_NUMBER,
    ) -> ContinuousPull:
        """
        Work out the limits from what the user said; ``None`` is *not said*.

        Args:
            max_messages: messages to keep ready; default 500, unless ``max_bytes`` is said.
            max_bytes: bytes to keep ready; excludes ``max_messages``.
            threshold_messages: when to ask again; default half of ``max_messages``, rounded up.
            threshold_bytes: the same in bytes; default half of ``max_bytes``, rounded up.
            expires_ns: how long each request lasts; default 30 s, at least 1 s.
            heartbeat_ns: default half of ``expires_ns``, from 0.5 to 30 s.
            stop_after: messages after which it ends; default: never.
            priority: a request whose priority-group fields are taken; default: none.
            largest_batch: messages that one request may ask for where only bytes are limited.

        Raises:
            InvalidOptionError: a value is out of range, or two exclude each other.

        """
        if max_messages is not None and max_bytes is not None:
            raise InvalidOptionError("max_bytes", max_bytes, "excludes max_messages")
        _positive("max_messages", max_messages)
        _positive("max_bytes", max_bytes)
        _positive("stop_after", stop_after)
        if threshold_bytes is not None and max_bytes is None:
            raise InvalidOptionError("threshold_bytes", threshold_bytes, "needs max_bytes")
        expires = DEFAULT_EXPIRES_NS if expires_ns is None else expires_ns
        if expires < SHORTEST_EXPIRES_NS:
            raise InvalidOptionError("expires", expires / _SECOND, "must be at least 1 second")
        if heartbeat_ns is None:
            heartbeat_ns = min(_LONGEST_HEARTBEAT_NS, expires // 2)
        elif not _SHORTEST_HEARTBEAT_NS <= heartbeat_ns <= _LONGEST_HEARTBEAT_NS:
            raise InvalidOptionError(
                "heartbeat", heartbeat_ns / _SECOND, "must be from 0.5 to 30 seconds"
            )
        batch = max_messages or (largest_batch if max_bytes else DEFAULT_MESSAGES)
        request = replace(
            priority or PullRequest(no_wait=True),
            no_wait=False,
            batch=batch,
            max_bytes=max_bytes or 0,
            expires_ns=expires,
            heartbeat_ns=heartbeat_ns,
        )
        return cls(
            request=request,
            threshold_messages=_threshold("threshold_messages", threshold_messages, batch),
            threshold_bytes=_threshold("threshold_bytes", threshold_bytes, max_bytes or 0),
            stop_after=stop_after or 0,
        )


def _positive(option: str, value: int | None) -> None:
    if value is not None and (not _is_count(value) or value < 1):
        raise InvalidOptionError(option, value, "must be a whole number from 1 up")


def _threshold(option: str, value: int | None, limit: int) -> int:
    if value is None:
        return (limit + 1) // 2
    if not _is_count(value) or not 1 <= value <= limit:
        raise InvalidOptionError(option, value, f"must be from 1 to {limit}")
    return value


class PullLedger:
    """
    What the requests of a continuous pull still owe, and when to ask again (ADR-37, "Buffering").

    One account for all of its requests: what was asked for, less what was handed to the user, less
    what ended requests said they would not deliver. Not thread-safe; its owner has the lock.
    """

    __slots__ = ("_pull", "delivered", "pending_bytes", "pending_messages")

    def __init__(self, pull: ContinuousPull) -> None:
        self._pull = pull
        self.pending_messages = 0
        self.pending_bytes = 0
        self.delivered = 0

    def next_request(self) -> PullRequest | None:
        """
        Return the request that is due now and enter what it asks for; ``None``: none is due.

        It fills the buffer up to its limit, and asks for no more than ``stop_after`` leaves.
        """
        pull = self._pull
        limit = pull.request.max_bytes
        if self.pending_messages >= pull.threshold_messages and (
            not limit or self.pending_bytes >= pull.threshold_bytes
        ):
            return None
        # With a limit in bytes, that is what has to end a request; the messages that are owed are
        # not known exactly then (see `_balance`).
        batch = pull.request.batch - (0 if limit else self.pending_messages)
        if pull.stop_after:
            batch = min(batch, pull.stop_after - self.delivered - self.pending_messages)
        size = limit - self.pending_bytes
        if batch < 1 or (limit and size < 1):
            return None
        self.pending_messages += batch
        if not limit:
            return (
                pull.request if batch == pull.request.batch else replace(pull.request, batch=batch)
            )
        self.pending_bytes += size
        return replace(pull.request, batch=batch, max_bytes=size)

    def message(self, size: int) -> bool:
        """
        Enter a message that the user got; say whether a request may be due.

        Args:
            size: its bytes as the server counts them: subject, reply, headers and payload.

        """
        pull = self._pull
        self.delivered += 1
        if self.pending_messages:
            self.pending_messages -= 1
        if pull.threshold_bytes:
            self.pending_bytes = max(0, self.pending_bytes - size)
            self._balance()
            if self.pending_bytes < pull.threshold_bytes:
                return True
        return self.pending_messages < pull.threshold_messages

    def dropped(self, size: int) -> bool:
        """Enter a message that came and that the user did not get; as `message()` otherwise."""
        self.delivered -= 1
        return self.message(size)

    def request_ended(self, pending: tuple[int, int] | None) -> bool:
        """
        Enter that a request ended, and what it left undelivered, as its status says.

        Returns:
            Whether it left a whole buffer: it had all the room that there is, and sent nothing.

        """
        if pending is None:
            return False
        self.pending_messages = max(0, self.pending_messages - pending[0])
        self.pending_bytes = max(0, self.pending_bytes - pending[1])
        if self._pull.threshold_bytes:
            self._balance()
        return pending[1] >= self._pull.request.max_bytes > 0

    def _balance(self) -> None:
        """
        With a limit in bytes: where no bytes are owed, no messages are.

        A request that sent exactly its bytes ends without a status that says what is left of its
        messages. One that sent exactly its messages does say what is left of its bytes.
        """
        if not self.pending_bytes:
            self.pending_messages = 0

    def empty(self) -> bool:
        """Say whether nothing is owed or unread."""
        return not self.pending_messages

    def reset(self) -> None:
        """Enter that nothing is owed any more: the requests are lost."""
        self.pending_messages = 0
        self.pending_bytes = 0

    def complete(self) -> bool:
        """Say whether the user got as many messages as ``stop_after`` says."""
        return bool(self._pull.stop_after) and self.delivered >= self._pull.stop_after
