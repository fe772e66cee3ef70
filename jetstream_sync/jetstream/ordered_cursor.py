"""
Where an ordered consumer is, and the consumers on the server that take it on from there.

The position is the stream sequence of the last message that the user got. Before there is one, it is
what the server says when the first consumer is made: so a reset before the first message loses
nothing either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy, DeliverPolicy, ReplayPolicy
from ..api.gaps import DeliverySequence
from ..api.reply import ack_tokens
from ..errors import (
    BadRequestError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    InvalidOptionError,
    IteratorClosedError,
    OrderedConsumerResetError,
    PermissionsError,
    StreamNotFoundError,
)
from ..net.clock import Deadline
from .api_requests import APIRequests
from .consumer_api import CREATE, add_consumer

__all__ = ["OrderedCursor", "OrderedOptions", "pull_position"]

_INACTIVE: Final = timedelta(minutes=5)
#: Seconds that one attempt to make a consumer may take.
_ATTEMPT: Final = 10.0
#: Seconds between two attempts: the first, and the longest; it doubles in between.
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 10.0
#: Seconds between two looks, while waiting for the next attempt, whether the user has stopped it.
_LOOK: Final = 0.25


class OrderedOptions(TypedDict, total=False):
    """Where an ordered consumer starts and what it reads; all may be left out."""

    filter_subjects: str | Sequence[str]
    """Read only these subjects; default: all of the stream's."""
    deliver_policy: DeliverPolicy
    """Where to start; default ``all``."""
    opt_start_seq: int
    """The sequence to start at, with ``by_start_sequence``."""
    opt_start_time: datetime
    """The time to start at, with ``by_start_time``."""
    replay_policy: ReplayPolicy
    """As fast as possible, or as the messages came; default ``instant``."""
    inactive_threshold: float | timedelta
    """After how long without a reader the server drops its consumer, in seconds; default 300."""
    headers_only: bool
    """Leave the payloads out; default false."""
    metadata: Mapping[str, str]
    """Put on the server's consumer; default: none."""
    name_prefix: str
    """What the names of the server's consumers start with; default: random."""
    max_reset_attempts: int
    """Give up after so many failed attempts in a row to make a consumer; default: never."""


class OrderedCursor:
    """How far the user got, and the server's consumer that reads on from there."""

    def __init__(
        self, api: APIRequests, stream: str, prefix: str, first: ConsumerConfig, attempts: int = 0
    ) -> None:
        """
        Start where a config says.

        Args:
            api: where to ask.
            stream: the stream's name.
            prefix: what the names of the consumers start with.
            first: the config of the first consumer.
            attempts: after how many failed attempts in a row to give up; 0: never.

        """
        # An answer that went with the link need not be waited for: another attempt is made.
        self._api = api.ending_with_link()
        self.stream = stream
        self._prefix = prefix
        self._serial = 0
        self._attempts = attempts
        self._first = first
        self._start: int | None = None  # the sequence just before the first message
        self._delivered = 0  # messages from former consumers
        self.info: ConsumerInfo | None = None  # the current consumer
        self.given_up = False  # nobody wants to read on: an attempt that fails is the last
        #: The last message that counts: the next consumer starts behind it.
        self.sequence = DeliverySequence()
        #: Note the message that has this reply subject; say whether it is the next one.
        self.advance: Callable[[bytes], bool] = self.sequence.follows

    @property
    def name(self) -> str:
        """The name of the current consumer, or of the one that is being made."""
        return f"{self._prefix}_{self._serial}"

    @property
    def consumer_seq(self) -> int:
        """The sequence of the last message from the current consumer."""
        return self.sequence.last or 0

    @property
    def delivered(self) -> int:
        """How many messages the user got."""
        return self._delivered + self.consumer_seq

    @property
    def stream_seq(self) -> int | None:
        """The sequence to go on behind; ``None``: where the first consumer starts."""
        reply = self.sequence.reply
        return int(ack_tokens(reply)[3]) if reply else self._start

    def _next_config(self, deliver_subject: str | None) -> ConsumerConfig:
        """Return the config of a consumer that goes on behind the last message."""
        self._serial += 1
        changes: dict[str, Any] = {"name": self.name, "deliver_subject": deliver_subject}
        behind = self.stream_seq
        if behind is not None:
            changes["deliver_policy"] = DeliverPolicy.BY_START_SEQUENCE
            changes["opt_start_seq"] = behind + 1
            changes["opt_start_time"] = None
        return replace(self._first, **changes)

    def renew(
        self, deadline: Deadline, deliver_to: Callable[[], str] | None = None
    ) -> ConsumerInfo:
        """
        Make a consumer that reads on from the position, and drop the old one.

        Args:
            deadline: when to give up.
            deliver_to: called before each attempt; returns the subject that the consumer delivers
                to, or raises what ends it all; ``None``: it is pulled from.

        Raises:
            StreamNotFoundError: the stream is gone.
            BadRequestError: the server refuses the consumer.
            PermissionsError: this user may not make one.
            OrderedConsumerResetError: it could not be made in ``max_reset_attempts``.
            TimeoutError: the deadline came.
            ConnectionClosedError: the connection is closed.

        """
        self.drop()
        wait = _FIRST_WAIT
        attempt = 0
        while True:
            attempt += 1
            # Somebody listens there before there is a consumer, and never hears two of them.
            config = self._next_config(None if deliver_to is None else deliver_to())
            limit = deadline.sooner(_ATTEMPT)
            try:
                info = add_consumer(self._api, self.stream, config, CREATE, limit)
            except (StreamNotFoundError, BadRequestError, PermissionsError):
                raise
            except Error as error:
                lost = isinstance(error, ConnectionLostError)
                closed = isinstance(error, ConnectionClosedError) and not lost
                if closed or self._api.core.writer.closed is not None:
                    raise
                self._drop(config)  # it may have been made
                if deadline.expired():
                    text = "the ordered consumer could not be made in time"
                    raise self._api.core.timed_out(text) from error
                if lost and not self.given_up:
                    attempt -= 1
                    continue  # the next one goes out as soon as there is a link
                if attempt == self._attempts:
                    raise OrderedConsumerResetError(
                        f"no consumer on stream {self.stream!r} after {attempt} attempts"
                    ) from error
                if not self._wait(deadline.sooner(wait)):
                    raise IteratorClosedError("it was ended while it had no consumer") from error
                wait = min(2 * wait, _LONGEST_WAIT)
                continue
            self.info = info
            if deliver_to is None:
                self._delivered += self.consumer_seq
                self.sequence.last = 0
            if self._start is None and self._seeds(info):
                self._start = info.delivered.stream_seq
            return info

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for the next attempt; say whether there is to be one."""
        while not self.given_up and not deadline.expired():
            if self._api.core.wait_closed(deadline.sooner(_LOOK).lock_timeout()):
                break  # the attempt will say so
        return not self.given_up

    def _seeds(self, info: ConsumerInfo) -> bool:
        """Say whether a new consumer's state tells where it starts."""
        # The last messages of many subjects lie anywhere: there is no sequence to start behind.
        return info.config.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT

    def drop(self) -> None:
        """Have the server drop the current consumer, without waiting for its word."""
        info, self.info = self.info, None
        if info is not None:
            self._drop(info.config)

    def _drop(self, config: ConsumerConfig) -> None:
        assert config.name is not None
        route = self._api.routes.consumer_delete(self.stream, config.name)
        try:
            core = self._api.core
            core.writer.publish(*core.composer.message(route, b""))
        except Error:
            return  # it goes by itself, after its inactive_threshold


def pull_position(api: APIRequests, stream: str, options: OrderedOptions) -> OrderedCursor:
    """
    Return the position of an ordered consumer that pulls, before its first message.

    Raises:
        InvalidOptionError: an option is not known or can not work.

    """
    unknown = set(options) - set(OrderedOptions.__annotations__)
    if unknown:
        raise InvalidOptionError(
            min(unknown), "...", f"not one of {sorted(OrderedOptions.__annotations__)}"
        )
    prefix = options.get("name_prefix")
    # Never the name alone: another reader of the same prefix would take, or delete, the consumer.
    unique = os.urandom(11).hex()
    prefix = f"{prefix}_{unique}" if prefix else unique
    attempts = options.get("max_reset_attempts", 0)
    if attempts < 0:
        raise InvalidOptionError("max_reset_attempts", attempts, "must be 0 or above")
    return OrderedCursor(api, stream, prefix, _pull_config(f"{prefix}_0", options), attempts)


def _pull_config(name: str, options: OrderedOptions) -> ConsumerConfig:
    """Return the config of the first consumer; checks the options."""
    filters = options.get("filter_subjects")
    if isinstance(filters, str):
        filters = [filters]
    policy = options.get("deliver_policy", DeliverPolicy.ALL)
    if "opt_start_seq" in options and "deliver_policy" not in options:
        policy = DeliverPolicy.BY_START_SEQUENCE
    elif "opt_start_time" in options and "deliver_policy" not in options:
        policy = DeliverPolicy.BY_START_TIME
    if policy == DeliverPolicy.LAST_PER_SUBJECT and not filters:
        filters = [">"]  # the server wants one with this policy
    fields: dict[str, Any] = {
        "name": name,
        "deliver_policy": policy,
        "opt_start_seq": options.get("opt_start_seq"),
        "opt_start_time": options.get("opt_start_time"),
        "ack_policy": AckPolicy.NONE,
        "replay_policy": options.get("replay_policy", ReplayPolicy.INSTANT),
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": options.get("inactive_threshold", _INACTIVE),
        "headers_only": options.get("headers_only") or None,
        "metadata": options.get("metadata"),
    }
    if filters:
        fields["filter_subject" if len(filters) == 1 else "filter_subjects"] = (
            filters[0] if len(filters) == 1 else list(filters)
        )
    return ConsumerConfig(**fields)
