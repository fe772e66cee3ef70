"""Fast publishing (ADR-50): a sequence of messages with one acknowledgement for many of them."""

# The server decides how often it acknowledges, and thereby how many messages may be sent ahead. It answers on
# an inbox of this batch, whose last token is the id of the batch. The reply subject of each message contains its
# sequence in the batch and an operation.
#
# Rules:
#
# 1. The reader thread updates the fields of `_Flow` and wakes the publishing thread. It runs no callback of the
#    user: gaps are queued for the publishing thread.
# 2. The first message waits for its reply, because the server must know the batch before the others arrive.
# 3. A batch ends once: result of `_Flow` is the acknowledgement, or the error.

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from .. import errors
from ..api.publish import (
    FAST_PUBLISH_OPTIONS,
    FastPublishOptions,
    PubAck,
    given_options,
    publish_headers,
)
from ..client.core import ConnectionCore
from ..client.replies import Inbox
from ..client.threads import Waiters
from ..client.writer import DEFERRED
from ..codec import loads
from ..exact import exact
from ..headers import HeadersLike, is_no_responders
from ..net.clock import Deadline, seconds
from ..options import check_callback, check_int, check_returned
from ..protocol.parser import RawMessage
from .api_requests import APIRequests, no_responses
from .server_support import require_level

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

#: Called by the publishing thread with the batch sequences of messages that were lost.
GapCallback = Callable[[range], object]

#: Default of the number of messages per acknowledgement; servers allow 500 at most.
DEFAULT_FLOW: Final = 500
_MAX_FLOW: Final = 65_535
_MAX_OUTSTANDING: Final = 3
#: Number of pings that are sent within the timeout while no acknowledgement arrives.
_PINGS_PER_TIMEOUT: Final = 3
#: Maximum number of refused messages that are kept for the user.
_MAX_REFUSED: Final = 1000
#: Timeout in seconds for a context without one.
_DEFAULT_TIMEOUT_S: Final = 5.0

# Operations in a reply subject.
_START: Final = b".0.$FI"
_APPEND: Final = b".1.$FI"
_COMMIT: Final = b".2.$FI"
_COMMIT_WITHOUT: Final = b".3.$FI"
_PING: Final = b".4.$FI"


class _Flow(Inbox):
    """The state of a batch as the server reports it; written by the reader."""

    def __init__(self, core: ConnectionCore, outstanding: int, *, gaps_end: bool) -> None:
        self._outstanding = outstanding
        #: Whether a lost message ends the batch.
        self.gaps_end = gaps_end
        self.waiters: Waiters = Waiters()
        #: The last batch sequence up to which the server has processed the messages.
        self.acked = 0
        #: The highest batch sequence that may be sent; the second message waits for the first reply.
        self.limit = 1
        #: The last message that the server has acknowledged or refused, and how many may be sent after it.
        self._processed = 0
        self._ahead = 0
        #: Number of messages from the server.
        self.heard = 0
        #: The acknowledgement or the error that ended the batch.
        self.result: PubAck | errors.Error | None = None
        #: The batch id, and the numbers of the first messages with another subject than the one before.
        self.batch_id = os.urandom(16).hex()
        self.subjects: deque[tuple[int, bytes]] = deque()
        self.gaps: deque[range] = deque()
        #: The first message that the server has reported as lost; 0: none.
        self.first_lost: int = 0
        self.refused: deque[tuple[int, errors.APIError]] = deque(maxlen=_MAX_REFUSED)
        self.ping_due = False
        super().__init__(core, f".{self.batch_id}.>")

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Process the server's messages."""
        for where, _, header, payload in deliveries:
            try:
                self._process(where, header, loads(payload) if payload else None)
            except errors.Error as error:
                self._end(error)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                # From another program that is subscribed to the subject.
                text = f"unexpected reply to a fast publish: {payload[:60]!r}"
                self._end(errors.InvalidResponseError(text))
        self.heard += 1
        self.waiters.wake_all()

    def _process(self, where: bytes, header: bytes, response: Any) -> None:
        if response is None:
            if is_no_responders(header, b""):
                # The reply subject ends with the number of the message and an operation.
                self._end(
                    errors.NoStreamResponseError(self._subject_of(int(where.split(b".")[-3])))
                )
            return
        if not isinstance(response, dict):
            raise errors.InvalidResponseError(
                f"unexpected reply to a fast publish: {response!r:.60}"
            )
        kind = response.get("type")
        if kind == "ack":
            self.acked = max(self.acked, int(response["seq"]))
            self._ahead = max(1, int(response["msgs"])) * self._outstanding
            self._advance(self.acked)
        elif kind == "gap":
            self.gaps.append(range(int(response["last_seq"]), int(response["seq"])))
            self.first_lost = self.first_lost or self.gaps[-1].start
        elif kind == "err":
            error = errors.APIError.from_response(response.get("error") or {})
            if self.gaps_end:
                self._end(error)
            else:
                self.refused.append((int(response["seq"]), error))
                # While the server refuses messages, it acknowledges none.
                self._advance(self.refused[-1][0])
        else:
            self._committed(response)

    def _advance(self, seq: int) -> None:
        """Allow more messages after one that was processed."""
        self._processed = max(self._processed, seq)
        self.limit = self._processed + self._ahead

    def _committed(self, response: dict[str, Any]) -> None:
        """Process the acknowledgement that ends the batch."""
        if self.refused and response.get("seq") == 0:
            self._end(self.refused[-1][1])  # no message was stored
            return
        ack = _ack_of(response, had_gaps=self.first_lost > 0)
        if ack.batch_id != self.batch_id:
            text = "the leader of the stream is older than 2.14 and stored an ordinary message"
            raise self.ended_early(text)
        self.acked = max(self.acked, ack.batch_size or 0)
        self._end(ack)

    def _subject_of(self, seq: int) -> str:
        """Return the subject of a message that is not acknowledged."""
        found = b""
        for first, subject in self.subjects.copy():
            if first <= seq:
                found = subject
        return found.decode()

    def ended_early(self, reason: str) -> errors.FastPublishError:
        """Return the error for a publish that has ended early."""
        # The server acknowledges a sequence also if the messages before it were lost.
        stored = min(self.acked, self.first_lost - 1) if self.first_lost else self.acked
        return errors.FastPublishError(stored, reason)

    def _end(self, result: PubAck | errors.Error) -> None:
        self.result = self.result or result

    def on_connection_change(self, *, connected: bool) -> None:
        """End the batch, or ask for its state on the next connection."""
        if not connected and self.gaps_end:
            self._end(errors.ConnectionLostError("the connection was lost"))
        self.ping_due = connected
        self.waiters.wake_all()

    def _fail(self, error: BaseException) -> bool:
        self._end(error if isinstance(error, errors.Error) else errors.Error(str(error)))
        self.waiters.wake_all()
        return True


def _ack_of(response: dict[str, Any], *, had_gaps: bool) -> PubAck:
    """Return the final acknowledgement; its sequence is 0 if each message that arrived was stored already."""
    if response.get("seq") != 0 or "error" in response or not response.get("count"):
        return PubAck.from_json(response)
    return PubAck.from_json({**response, "seq": 1, "duplicate": not had_gaps})._replace(seq=0)


class FastPublisher:
    """
    A fast publish in progress, created by `JetStream.fast_publish`.

    The end of the ``with`` block commits it, also if the block raises. One thread at a time may use it.
    """

    def __init__(
        self,
        api: APIRequests,
        gaps: Literal["fail", "ok"],
        flow: int,
        outstanding: int,
        gap_cb: GapCallback | None,
        timeout: float | timedelta | None,
    ) -> None:
        gaps = exact(gaps)
        if gaps not in ("fail", "ok"):
            raise errors.InvalidOptionError("gaps", gaps, "must be 'fail' or 'ok'")
        flow = check_int("flow", flow, 1, _MAX_FLOW)
        outstanding = check_int("outstanding", outstanding, 1, _MAX_OUTSTANDING)
        if gap_cb is not None:
            check_callback("gap_cb", gap_cb)
        wait = api.timeout if timeout is None else timeout
        self._timeout = _DEFAULT_TIMEOUT_S if wait is None else seconds(wait)
        require_level(api, 4, "fast publishing", Deadline(self._timeout))
        self._api = api
        self._core: ConnectionCore = api.core
        self._gap_cb = gap_cb
        self._flow = _Flow(api.core, outstanding, gaps_end=gaps == "fail")
        self._flow.end_with(self)
        self._reply = b"%b.%b" % (
            self._flow.reply,
            f"{self._flow.batch_id}.{flow}.{gaps}.".encode(),
        )
        self._seq = 0
        self._committed = False
        self._lost = 0

    @property
    def acked(self) -> int:
        """The number of the last message up to which the server has acknowledged all."""
        return self._flow.acked

    @property
    def lost(self) -> int:
        """Number of messages that the server has reported as lost, with ``gaps="ok"``."""
        return self._lost

    @property
    def refused(self) -> list[tuple[int, errors.APIError]]:
        """Numbers and errors of messages that the server refused, with ``gaps="ok"``; the last 1,000."""
        return list(self._flow.refused)

    def add(
        self,
        subject: str,
        payload: bytes = b"",
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        **options: Unpack[FastPublishOptions],
    ) -> int:
        """
        Publish a message; wait while the server does not accept more.

        Args:
            subject: the subject, one of the same stream as all others.
            payload: the payload.
            headers: names and values; ``None``: only those of the other arguments.
            msg_id: as in `JetStream.publish`.
            **options: see `FastPublishOptions`.

        Returns:
            The number of the message, from 1 on.

        Raises:
            FastPublishError: the publish has ended early; see `FastPublishError.acked`.
            BatchNotEnabledError: the stream does not have ``allow_batched``; nothing was stored.
            TooManyBatchesError: the server has too many fast publishes in progress; nothing was stored.
            NoStreamResponseError: no stream has the subject of the first message.
            BadSubjectError, InvalidHeaderError, InvalidOptionError, MaxPayloadError: the message is
                invalid; nothing was sent.
            InvalidOptionError: the publish is committed.
            ConnectionClosedError: the connection is closed.

        """
        headers = publish_headers(headers, given_options(options, msg_id), FAST_PUBLISH_OPTIONS)
        flow = self._flow
        if flow.gaps or flow.ping_due or flow.result is not None or self._committed:
            self._check()
        seq = self._seq + 1
        if seq > flow.limit:
            self._wait(lambda: seq <= flow.limit)
        self._send(subject, payload, headers, seq, _APPEND if seq > 1 else _START)
        if seq == 1:
            self._wait(lambda: flow.limit > 1 or flow.acked)
        return seq

    def commit(
        self, subject: str | None = None, payload: bytes = b"", headers: HeadersLike | None = None
    ) -> PubAck:
        """
        End the publish, and wait until all messages are stored.

        Args:
            subject: the subject of a last message; ``None``: there is no further message.
            payload: its payload.
            headers: its headers.

        Returns:
            The acknowledgement; its ``batch_size`` is the number of messages. If the stream had all of them
            before, by their ids, it is a ``duplicate``, and its ``seq`` is 0.

        Raises:
            Error: as `add()`. It cannot be used again.

        """
        self._check()
        headers = publish_headers(headers)
        flow = self._flow
        if subject is None and not self._seq:
            raise errors.InvalidOptionError("subject", None, "there is no message to commit")
        operation = _COMMIT_WITHOUT if subject is None else _COMMIT
        where = flow.asked.decode() if subject is None else subject
        messages = self._seq + (subject is not None)
        self._send(where, payload, headers, self._seq + 1, operation)
        self._committed = True
        try:
            self._wait(lambda: False)
            ack = flow.result
            assert isinstance(ack, PubAck)
            if flow.gaps_end and (flow.gaps or (ack.batch_size or 0) < messages):
                # The acknowledgement of the messages before the gap, which came after the commit was sent.
                raise self._gap_error()
            self._report_gaps()
            return ack
        finally:
            self._core.table.remove_deferred(flow.subscription)

    def _send(
        self, subject: str, payload: bytes, headers: HeadersLike | None, seq: int, operation: bytes
    ) -> None:
        core = self._core
        where = core.encoder.encode_subject(subject)
        reply = b"%b%d%b" % (self._reply, seq, operation)
        command, size = core.encoder.encode_command(where, payload, reply, headers)
        flow = self._flow
        if where != flow.asked:
            # The acknowledged ones are not needed any more, except the last.
            while len(flow.subjects) > 1 and flow.subjects[1][0] <= flow.acked:
                flow.subjects.popleft()
            flow.subjects.append((seq, where))
        flow.asked = where
        self._seq = seq
        core.writer.append(command, size, DEFERRED)

    def _ping(self) -> None:
        """Request an acknowledgement: the last one, or the last message, may be lost."""
        reply = b"%b%d%b" % (self._reply, self._seq, _PING)
        command, size = self._core.encoder.encode_command(self._flow.asked, b"", reply, None)
        self._flow.ping_due = False
        self._core.writer.append(command, size, DEFERRED)

    def _wait(self, holds: Callable[[], object]) -> None:
        """Wait for a condition, or for the end of the publish after a commit; raise if it ends early."""
        flow = self._flow
        heard = -1
        # Replies to pings alone are no progress: the server sends them also when a commit was lost.
        progress = flow.acked, flow.limit

        def has_news() -> object:
            return holds() or flow.result or flow.ping_due or flow.heard != heard

        pings = 0
        while not holds() and flow.result is None:
            self._core.writer.send_buffered()
            heard = flow.heard
            if progress != (flow.acked, flow.limit):
                pings, progress = 0, (flow.acked, flow.limit)
            if flow.waiters.wait_for(has_news, Deadline(self._timeout / (_PINGS_PER_TIMEOUT + 1))):
                if flow.ping_due:
                    self._ping()
                continue
            if pings == _PINGS_PER_TIMEOUT:
                text = self._core.state.with_outage(f"no progress within {self._timeout:g} s")
                flow.result = flow.result or flow.ended_early(text)
                break
            pings += 1
            self._ping()
        self._raise_end()

    def _check(self) -> None:
        """Report gaps, and raise if the publish has ended."""
        self._report_gaps()
        if self._committed:
            raise errors.InvalidOptionError("subject", "...", "the fast publish has ended")
        if self._flow.ping_due and self._seq:
            self._ping()
        self._raise_end()

    def _raise_end(self) -> None:
        result = self._flow.result
        if result is None or (isinstance(result, PubAck) and self._committed):
            return
        self._committed = True
        self._core.table.remove_deferred(self._flow.subscription)
        self._report_gaps()
        if isinstance(result, PubAck):
            raise self._gap_error()
        if isinstance(result, errors.NoStreamResponseError):
            result = no_responses(self._api, [result.subject])[result.subject]
        if self._seq <= 1 and not self._flow.acked:
            raise result
        if isinstance(result, errors.FastPublishError):
            raise result
        raise self._flow.ended_early(str(result)) from result

    def _gap_error(self) -> errors.FastPublishError:
        reason = "messages were lost"
        if self._flow.gaps:
            lost = self._flow.gaps[0]
            reason = f"the messages {lost[0]} to {lost[-1]} were lost"
        return self._flow.ended_early(reason)

    def _report_gaps(self) -> None:
        """Report the gaps after which the publish continues."""
        flow = self._flow
        while flow.gaps and not flow.gaps_end:
            gap = flow.gaps.popleft()
            self._lost += len(gap)
            if self._gap_cb is not None:
                check_returned(self._gap_cb(gap))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._seq and not self._committed:
                self.commit()
        except errors.Error as error:
            if kind is None:
                raise
            self._core.events.error(error)  # the block has raised another error
        finally:
            self._core.table.remove_deferred(self._flow.subscription)
