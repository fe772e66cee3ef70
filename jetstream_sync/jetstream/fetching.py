"""One bounded pull: `fetch()`, `fetch_no_wait()` and `next()`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..api.pull import PullRequest
from ..api.status import PullStatus, PullStatusKind, parse_pull_status
from ..errors import ConnectionLostError, Error, NoHeartbeatError, TimeoutError
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery
from .heartbeat import pull_heartbeat_timeout
from .inbox import LINK_DOWN, LINK_UP, PullInbox
from .message import JetStreamMsg
from .pull_requester import CONSUMER_CHECK_DELAY_S, PullRequester, RetryBackoff

__all__ = ["Fetch"]

_SECOND: Final = 1_000_000_000
#: Seconds that the client waits longer than the server, whose status says that the time is up.
_GRACE: Final = 1.0
#: How long one request lasts when the user waits for ever.
_LONGEST_NS: Final = 60 * _SECOND


class Fetch:
    """
    A pull that ends: when it has its messages, when its time is up, or with an error.

    Args:
        puller: the consumer's.
        request: what to ask for.
        expires: seconds that the user gives; ``None``: until the batch is complete.
        strict: end where the consumer has no leader or the link breaks, instead of asking again,
            and where nothing says that the time is up; an ordered consumer then goes on with
            another consumer.

    It is made, run once with `run()` by one thread, and dropped.
    """

    def __init__(
        self,
        puller: PullRequester,
        request: PullRequest,
        expires: float | None,
        *,
        strict: bool = False,
    ) -> None:
        self._puller = puller
        self._request = request
        self._end = Deadline(expires)
        self._patience = Deadline(None if expires is None else expires + _GRACE)
        self._heartbeats = pull_heartbeat_timeout(request.heartbeat_ns)
        self._messages: list[JetStreamMsg] = []
        self._bytes = 0
        #: Whether the server is through with what was asked: the batch is complete, or a status
        #: ended the request. If not, more of its answer may be on its way to a closed inbox.
        self.answered = False
        self._strict = strict
        #: Whether to ask again where the consumer has no leader.
        self._persistent = not (request.no_wait or strict)
        self._absence: RetryBackoff | None = None  # made where there is one
        # Whether nothing has come yet, and that may mean that nobody is there.
        self._in_doubt = puller.silence_may_mean_deleted()

    def run(self) -> list[JetStreamMsg]:
        """
        Pull, and return the messages in order; fewer than asked for, or none, when time is up.

        Raises:
            PullError, NotFoundError, NoHeartbeatError: the pull failed before any message came.
            ConnectionClosedError: the connection was closed before any message came.

        """
        if self._puller.acks_nothing and not self._strict:
            return self._run_keeping()
        inbox = PullInbox(self._puller.core)
        try:
            return self.run_in(inbox)
        finally:
            inbox.close(quietly=self.answered)

    def _run_keeping(self) -> list[JetStreamMsg]:
        """Pull as `run()` does, and drop nothing: the server does not send it again."""
        inbox = self._puller.take_inbox()
        try:
            messages = self.run_in(inbox)
        finally:
            if self.answered and inbox.owner is None:
                inbox.close(quietly=True)
            else:
                # An earlier fetch, or this one, may have an open request.
                self._puller.leave_open(inbox)
        return messages

    def run_in(self, inbox: PullInbox) -> list[JetStreamMsg]:
        """Pull as `run()` does, into an inbox that the caller closes."""
        try:
            if self._puller.acks_nothing and self._take_left(inbox):
                self.answered = True  # nothing was asked for
                return self._messages
            self._puller.send(self._request, inbox)
            self._collect(inbox)
            self.answered = True
        except TimeoutError:
            if self._strict and not self._messages:
                raise NoHeartbeatError(self._puller.consumer, _GRACE) from None
        except Error:
            if not self._messages:
                raise
        except BaseException:
            if self._puller.acks_nothing:
                self._puller.leave_unread(self._messages)
            raise
        return self._messages

    def _take_left(self, inbox: PullInbox) -> bool:
        """Take the messages that an earlier fetch has left; return whether there were any."""
        messages = self._messages
        messages += self._puller.take_unread(self._request.batch)
        arrived = inbox.mailbox.items
        while arrived and len(messages) < self._request.batch:
            delivery = arrived.popleft()
            if delivery is LINK_DOWN or delivery is LINK_UP:
                inbox.news(delivery)
            elif (
                not delivery[2]
                or delivery[3]
                or parse_pull_status(delivery[2], delivery[3]) is None
            ):
                messages.append(self._puller.message(delivery))
        return bool(messages)

    def _collect(self, inbox: PullInbox) -> None:
        messages = self._messages
        batch = self._request.batch
        limit = self._request.max_bytes
        make = self._puller.message
        arrived = inbox.mailbox.items
        while len(messages) < batch:
            try:
                delivery = arrived.popleft()
            except IndexError:
                delivery = self._wait(inbox)
            if delivery[2] and not delivery[3]:
                if delivery is LINK_DOWN or delivery is LINK_UP:
                    self._absence = None
                    new_link = inbox.news(delivery)
                    if self._strict and (new_link or not inbox.linked):
                        # A part of the answer may be lost with the old link, without a gap that
                        # a later message would show.
                        raise ConnectionLostError("the link broke during the pull")
                    if new_link and not self._ask_again(inbox):
                        return
                    continue
                status = parse_pull_status(delivery[2], delivery[3])
                if status is not None:
                    ends = status.kind is not PullStatusKind.HEARTBEAT and inbox.is_awaited(
                        delivery
                    )
                    if ends and not self._goes_on(status, inbox):
                        return
                    continue
            messages.append(make(delivery))
            if limit:
                # A request that has sent exactly its bytes ends without a status.
                self._bytes += sum(map(len, delivery))
                if self._bytes >= limit:
                    return

    def _wait(self, inbox: PullInbox) -> Delivery:
        """Wait for the next delivery, as long as heartbeats come."""
        if not inbox.linked:
            # Nobody will say that the time is up, or that he is there.
            return inbox.mailbox.get(self._end)
        absence = self._absence
        while absence is not None and absence.ask_at is not None:
            try:
                return inbox.mailbox.get(self._end.sooner(absence.ask_at - monotonic()))
            except TimeoutError:
                if not self._ask_again(inbox):
                    assert absence.error is not None
                    raise absence.error from None
        if self._in_doubt:
            try:
                return inbox.mailbox.get(self._patience.sooner(CONSUMER_CHECK_DELAY_S))
            except TimeoutError:
                gone = self._puller.check_consumer_exists(self._patience)
                if gone is not None:
                    raise gone from None
            finally:
                self._in_doubt = False
        heartbeats = self._heartbeats
        if not heartbeats.limit:
            return inbox.mailbox.get(self._patience)
        while True:
            left = heartbeats.left(inbox.last_seen)
            try:
                return inbox.mailbox.get(self._patience.sooner(left))
            except TimeoutError:
                if self._patience.expired():
                    raise
                if heartbeats.left(inbox.last_seen) <= 0:
                    raise heartbeats.error(self._puller.consumer) from None

    def _goes_on(self, status: PullStatus, inbox: PullInbox) -> bool:
        """Act on a status that ends the request; say whether there is, or will be, another one."""
        if status.kind is PullStatusKind.QUIET:
            self._absence = None
            # A request that waits for ever is made of many that do not.
            return self._end.left() is None and self._ask_again(inbox)
        if status.kind is PullStatusKind.FULL:
            return False
        error = status.error
        assert error is not None
        if error.code == 423:
            self._puller.unpin()
        if error.code == 503:
            gone = self._puller.check_consumer_exists(self._patience)
            if gone is not None:
                raise gone
        if status.kind is PullStatusKind.AWAY and self._persistent:
            # Asked for again as soon as it makes sense, also on the next link.
            self._absence = self._absence or RetryBackoff()
            self._absence.noted(error)
            return True
        raise error

    def _ask_again(self, inbox: PullInbox) -> bool:
        """Ask for what is still missing in the time that is left; say whether there is any."""
        left = self._end.left()
        if left is not None and left <= 0:
            return False
        if self._messages and self._request.max_bytes:
            return False  # the server counts bytes per request; this one has had its share
        inbox.last_seen = monotonic()
        self.answered = False
        if self._absence is not None:
            self._absence.ask_at = None
        self._in_doubt = self._puller.silence_may_mean_deleted()
        self._puller.send(self._missing(left), inbox)
        return True

    def _missing(self, left: float | None) -> PullRequest:
        """Return the request for what is still missing in so many seconds."""
        expires_ns = _LONGEST_NS if left is None else int(left * _SECOND)
        return replace(
            self._request,
            batch=self._request.batch - len(self._messages),
            expires_ns=0 if self._request.no_wait else max(1, expires_ns),
            heartbeat_ns=min(self._request.heartbeat_ns, expires_ns // 2),
        )
