"""Send pull requests for one consumer; what fetching and continuous pulling share."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import lru_cache
from typing import Final
from weakref import ref

from ..api.consumer import ConsumerConfig
from ..api.echo import release
from ..api.enums import AckPolicy, PriorityPolicy
from ..api.pull import PullRequest
from ..errors import (
    ConnectionClosedError,
    Error,
    InvalidOptionError,
    LeadershipChangeError,
    NotFoundError,
    PullError,
)
from ..headers import PIN_ID, parse_headers
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests
from .consumer_api import consumer_info
from .inbox import AnswerInbox, PullInbox
from .leases import Leases
from .message import JetStreamMsg

__all__ = ["CONSUMER_CHECK_DELAY_S", "PullRequester", "RetryBackoff"]

#: Seconds of silence after which it makes sense to ask whether the consumer is there.
CONSUMER_CHECK_DELAY_S: Final = 0.5
#: Seconds until a consumer without a leader is asked again: at first, and at most.
_FIRST_WAIT: Final = 0.25
_LONGEST_WAIT: Final = 2.0
#: Seconds to wait for the word whether a consumer that does not answer is still there.
_INQUIRY: Final = 1.0


class RetryBackoff:
    """
    The time in which a consumer has nobody to serve it: no leader, or its server shuts down.

    It is asked again in growing intervals, so that many clients leave a cluster alone that has
    enough to do. Not thread-safe.
    """

    __slots__ = ("_longest", "_wait", "ask_at", "error")

    def __init__(self, longest: float = _LONGEST_WAIT) -> None:
        self._longest = longest
        self._wait = 0.0
        #: When to ask again, by the monotonic clock; ``None``: a request is out, or need not be.
        self.ask_at: float | None = None
        #: What was last said; ``None``: it is there, as far as is known.
        self.error: PullError | None = None

    def noted(self, error: PullError) -> bool:
        """Note that it is away, and choose when to ask again; say whether that is news."""
        new = self.error is None
        if self._wait:
            self._wait = min(2 * self._wait, self._longest)
        elif not new or not isinstance(error, LeadershipChangeError):
            # The first time, who says that it is the leader now can be asked at once.
            self._wait = _FIRST_WAIT
        self.ask_at = monotonic() + self._wait
        self.error = error
        return new

    def over(self) -> None:
        """Note that it is there."""
        self._wait = 0.0
        self.ask_at = None
        self.error = None


class PullRequester:
    """
    The requesting side of a pull consumer.

    Args:
        api: the JetStream API.
        stream: the stream's name.
        consumer: the consumer's name.
        config: the consumer's config, as it was last seen.

    Any thread may call its methods.
    """

    def __init__(
        self, api: APIRequests, stream: str, consumer: str, config: ConsumerConfig
    ) -> None:
        self.core = api.core
        self.stream = stream
        self.consumer = consumer
        self.config = config
        self._api = api
        self._subject = api.core.composer.encoded(api.routes.next_msg(stream, consumer))
        # What messages are born with: whether an acknowledgement is open, or not wanted at all.
        self._settled = None if config.ack_policy == AckPolicy.NONE else False
        self._pinned = config.priority_policy == PriorityPolicy.PINNED_CLIENT
        self._pin_id: str | None = None
        # Without acknowledgements the server sends nothing twice. Messages that an exception kept
        # from the caller, and inboxes to which more may be on its way, are left for the next fetch.
        self._unread: deque[JetStreamMsg] = deque()
        self._open: list[AnswerInbox] = []

    @property
    def acks_nothing(self) -> bool:
        """Whether the consumer's ack policy is ``none``."""
        return self._settled is None

    def check(self, request: PullRequest) -> None:
        """
        Refuse a request that this consumer can not serve.

        Raises:
            InvalidOptionError: the group is missing, not one of the consumer's, or it has none.

        """
        groups = self.config.priority_groups or ()
        if groups and request.group not in groups:
            raise InvalidOptionError("group", request.group, f"must be one of {list(groups)}")
        if request.group and not groups:
            raise InvalidOptionError("group", request.group, "the consumer has no priority groups")

    def send(self, request: PullRequest, inbox: PullInbox, *, lazily: bool = False) -> None:
        """
        Send a request, with the pin that this client holds; do nothing while there is no link.

        Args:
            request: what to ask for.
            inbox: where the answers go; it gets `LINK_UP` when there is a link.
            lazily: let it wait for company; who goes to sleep sends it.

        Raises:
            ConnectionClosedError: the connection is closed.
            OutboundBufferLimitError: the link just broke, and the buffer for that time is full.

        """
        reply = inbox.asking_to()
        if reply is None:
            return
        inbox.asked = self._subject
        if self._pin_id is not None:
            request = replace(request, pin_id=self._pin_id)
        command, size = self.core.composer.command(self._subject, request.encode(), reply)
        if lazily:
            self.core.writer.publish_deferred(command, size)
        else:
            self.core.writer.send(command, 1, size)

    def message(self, delivery: Delivery) -> JetStreamMsg:
        """Make the message that the user gets."""
        if self._pinned and delivery[2]:
            headers = parse_headers(delivery[2])
            self._pin_id = (headers.get(PIN_ID) if headers else None) or self._pin_id
        return JetStreamMsg(delivery, self.core, self._settled)

    def leases(self) -> Leases:
        """Return an account of the leases of messages; an ordered consumer has none."""
        return Leases(self._api, self.stream, lambda: self.consumer, self.config)

    # --- what an earlier fetch without acknowledgements has left ---------------------------------

    def take_inbox(self) -> AnswerInbox:
        """Return the inbox of an earlier fetch to which more may be on its way, or a new one."""
        while self._open:
            try:
                inbox = self._open.pop()
            except IndexError:
                break  # another thread took it
            if not inbox.mailbox.closed:
                inbox.last_seen = monotonic()
                return inbox
        return AnswerInbox(self.core)

    def leave_open(self, inbox: AnswerInbox) -> None:
        """Keep an inbox for the next fetch."""
        inbox.owner = ref(self)
        if inbox not in self._open:
            self._open.append(inbox)

    def take_unread(self, count: int) -> list[JetStreamMsg]:
        """Return up to a number of messages that an earlier fetch took and did not return."""
        taken: list[JetStreamMsg] = []
        while self._unread and len(taken) < count:
            try:
                taken.append(self._unread.popleft())
            except IndexError:
                break  # another thread took it
        return taken

    def leave_unread(self, messages: list[JetStreamMsg]) -> None:
        """Keep messages that an exception kept from the caller."""
        self._unread.extendleft(reversed(messages))

    def unpin(self) -> None:
        """Forget the pin: another client holds it now."""
        self._pin_id = None

    def silence_may_mean_deleted(self) -> bool:
        """
        Say whether a request for a consumer that is not there gets no answer at all.

        So it is with servers before 2.11. Later ones say at once that nobody listens.
        """
        return _before_2_11(self.core.info.version)

    def check_consumer_exists(self, deadline: Deadline) -> Error | None:
        """
        Find out why nobody answers for the consumer.

        Returns:
            The error that says that it is gone; ``None``: it is there, or nobody can say now, so
            asking again makes sense.

        """
        try:
            consumer_info(self._api, self.stream, self.consumer, deadline.sooner(_INQUIRY))
        except (NotFoundError, ConnectionClosedError) as error:
            return error
        except Error:
            # JetStream is starting, has no leader, or does not let us ask.
            return None
        return None


@lru_cache(maxsize=16)
def _before_2_11(version: str) -> bool:
    return (release(version) or (2, 11)) < (2, 11)
