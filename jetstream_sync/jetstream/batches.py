"""Atomic batches (ADR-50): messages of one stream that are stored all or not at all."""

# Behaviour of nats-server 2.15 (server/stream.go, processJetStreamAtomicBatchMsg) that this relies on:
#
# 1. The sequences of the stored messages are contiguous, and the acknowledgement of the last message contains
#    the last one. Expectations are checked at the commit, in message order.
# 2. An earlier error abandons the batch. It is sent as the reply to the failed message, and the last message
#    gets the error that the batch is incomplete. A message without a reply subject gets no reply.
# 3. A batch exists on the server only until its last message, because all of them are sent at once.
# 4. Each message before the last one that requests a reply gets an empty one. A leader before 2.12 takes the
#    messages for ordinary ones: each reply is an acknowledgement or a refusal of that message alone.

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import errors
from ..api.publish import (
    BATCH_OPTIONS,
    DEFAULT_RETRIES,
    BatchOptions,
    PubAck,
    given_options,
    parse_pub_ack,
    publish_headers,
)
from ..client.core import ConnectionCore
from ..client.encoder import batch_heads, publish_with_headers_command
from ..client.message import Msg
from ..client.replies import QueueInbox
from ..client.writer import NOW
from ..codec import loads
from ..exact import exact
from ..headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQ,
    EXPECTED_STREAM,
    MSG_ID,
    ROLLUP,
    HeadersLike,
    encode_header_lines,
    is_no_responders,
)
from ..net.clock import BackoffDelay, Deadline, seconds
from ..protocol.parser import RawMessage
from ..subjects import check_stream_name
from .api_requests import APIRequests, no_responses
from .server_support import require_level

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

#: Maximum number of messages in a batch.
MAX_BATCH: Final = 1000
#: Number of subjects of a batch whose first message requests a reply, which contains the error if another
#: stream or none has the subject.
_MAX_ANSWERED_SUBJECTS: Final = 16
#: Maximum delay of such a reply after that of the last message, in seconds.
_LATE_REPLY_S: Final = 0.25
#: Maximum delay between two attempts while the stream has too many open batches, in seconds.
_MAX_RETRY_WAIT_S: Final = 2.0
#: Maximum number of subjects in the error for a batch that no stream stores.
_MAX_NAMED: Final = 3

#: Matches the headers that a batch sets itself: a stored message has those of the batch with which it was published,
#: and its commit would end another batch early.
_OWN_LINES: Final = re.compile(rb"(?m)^Nats-Batch-(?:Id|Sequence|Commit):[^\r\n]*\r\n")
#: Queued in place of a reply when a batch has failed.
_FAILED: Final[RawMessage] = (b"", b"", b"", b"")

#: A message: subject, payload and, optionally, headers.
BatchMessage = tuple[str, bytes] | tuple[str, bytes, HeadersLike | None] | Msg


class EncodedMessage(NamedTuple):
    """A message of a batch, as it is sent."""

    subject: bytes
    lines: bytes
    """The lines of its header block, without the first and the last one."""
    payload: bytes


class AtomicBatchSender(QueueInbox):
    """Sends atomic batches, one at a time, and waits for their replies; one thread uses and closes it."""

    def __init__(self, core: ConnectionCore) -> None:
        self._subjects: frozenset[bytes] = frozenset()
        self._failure: BaseException | None = None
        super().__init__(core, ".*.*")

    def close(self) -> None:
        """Unsubscribe from replies."""
        self._core.table.remove_deferred(self.subscription)

    def new_batch(self) -> tuple[bytes, bytes]:
        """Return a new batch id, and the subject to which the sequence of a message is appended for its reply."""
        batch = os.urandom(16).hex().encode()
        return batch, b"%b.%b." % (self.reply, batch)

    def commit(
        self,
        buffer: bytes,
        count: int,
        reply: bytes,
        answered: Iterable[int],
        subjects: frozenset[bytes],
        deadline: Deadline,
    ) -> PubAck:
        """Send the commands of a number of messages; return the acknowledgement of the last one."""
        self._subjects = subjects
        self.mailbox.items.clear()
        self._core.writer.append(buffer, len(buffer), NOW, count, True, deadline)
        return self._wait(reply, count, set(answered), deadline)

    def _wait(self, reply: bytes, last: int, missing: set[int], deadline: Deadline) -> PubAck:
        """Wait for the replies to a batch."""
        cause: errors.Error | None = None
        refusal: errors.Error | None = None
        while refusal is None or (missing and cause is None):
            try:
                event = self.mailbox.get(deadline)
            except errors.TimeoutError:
                if refusal is None:
                    text = "no acknowledgement arrived in time"
                    raise self._core.state.timed_out(text) from None
                break
            if event is _FAILED and self._failure is not None:
                raise self._failure
            where, _, header, payload = event
            if not where.startswith(reply):
                continue  # a late reply to an earlier batch
            number = int(where[len(reply) :])
            error = _reply_error(header, payload, self._subjects)
            if number == last:
                if error is None:
                    ack = parse_pub_ack(payload)
                    if (ack.batch_id, ack.batch_size) == (_batch_of(reply), last):
                        return ack
                    raise _stored_singly(reply)
                # The replies to the others tell whether the server knows the batch.
                refusal = error
                deadline = deadline.sooner(_LATE_REPLY_S)
            elif error is not None:
                cause = cause or error
            elif payload:
                raise _stored_singly(reply)
            missing.discard(number)
        if isinstance(cause, errors.WrongLastSequenceError):
            raise _stored_singly(reply)  # the expectations of a batch are checked at its end
        raise cause or refusal

    # --- called by the reader thread; see `MessageReceiver` ------------------------------------------------

    def _is_asked(self, subject: bytes) -> bool:
        return subject in self._subjects

    def _fail(self, error: BaseException) -> bool:
        # It ends one batch; further ones can follow.
        self._failure = error
        self.mailbox.put((_FAILED,), 1)
        return True

    def on_closed(self, reason: BaseException) -> None:
        """Wake the waiting thread when the connection is closed."""
        self.mailbox.close(reason)


def _batch_of(reply: bytes) -> str:
    """Return the batch id in the subject of its replies."""
    return reply.rsplit(b".", 2)[-2].decode()


def _stored_singly(reply: bytes) -> errors.BatchUncertainError:
    """Return the error for replies to the single messages of a batch."""
    reason = "the leader of the stream is older than 2.12 and stores the messages one by one"
    return errors.BatchUncertainError(
        _batch_of(reply), f"{reason}; an unknown part of them is stored"
    )


def _reply_error(header: bytes, payload: bytes, subjects: frozenset[bytes]) -> errors.Error | None:
    """Return the error in a reply, if any."""
    if not payload:
        text = b", ".join(sorted(subjects)[:_MAX_NAMED]).decode()
        return errors.NoStreamResponseError(text) if is_no_responders(header, payload) else None
    response = loads(payload)
    error = response.get("error") if isinstance(response, dict) else None
    return errors.APIError.from_response(error) if isinstance(error, dict) else None


def batch_commands(
    items: Sequence[EncodedMessage],
    batch: bytes,
    reply: bytes,
    answered: Iterable[int],
    limit: float = math.inf,
) -> list[bytes]:
    """Return the commands of the messages of a batch; raise if one is larger than the limit."""
    # The last message and those whose numbers are in `answered` request a reply.
    head, last_head = batch_heads(batch)
    last = len(items)
    with_reply = {last, *answered}
    made = []
    for number, (subject, lines, payload) in enumerate(items, 1):
        begin = last_head if number == last else head
        header = b"%b%d\r\n%b\r\n" % (begin, number, lines)
        size = len(header) + len(payload)
        if size > limit:
            raise errors.MaxPayloadError(size, int(limit))
        where = b"%b%d" % (reply, number) if number in with_reply else b""
        made.append(publish_with_headers_command(subject, where, header, payload))
    return made


class Batch:
    """
    An atomic batch, created by `JetStream.batch`.

    Messages are collected here, and sent together by `commit()`, which the end of the ``with`` block calls. If
    the block raises, nothing is sent. One thread at a time may use it.
    """

    def __init__(
        self, api: APIRequests, stream: str | None, timeout: float | timedelta | None
    ) -> None:
        self._api = api
        self._core = api.core
        self._timeout = None if timeout is None else seconds(timeout)
        self._stream = b""
        if stream is not None:
            self._stream = f"{EXPECTED_STREAM}: {check_stream_name(stream)}\r\n".encode()
        self._ids: set[str] = set()
        # Subject, further header lines and payload of each message.
        self._items: list[EncodedMessage] = []
        self._ack: PubAck | None = None
        self._done = False

    def add(
        self,
        subject: str,
        payload: bytes = b"",
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        """
        Add a message; nothing is sent yet.

        Args:
            subject: the subject, without wildcards.
            payload: the payload.
            headers: names and values; ``None``: only those of the other arguments.
            msg_id: the message id.
            **options: see `BatchOptions`; the expectations are checked by the commit, against the stream
                before the batch.

        Raises:
            BatchTooLargeError: the batch has 1000 messages.
            InvalidOptionError: the batch is committed, or an option is invalid or not possible in a batch.
            BadSubjectError, InvalidHeaderError, MaxPayloadError: the message is invalid.

        """
        self._check_open()
        self._add(subject, payload, headers, given_options(options, msg_id))

    def _add(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Check a message, and add it."""
        headers = publish_headers(headers, options, BATCH_OPTIONS)
        if len(self._items) >= MAX_BATCH:
            text = f"an atomic batch has at most {MAX_BATCH} messages"
            raise errors.BatchTooLargeError.found_here(text)
        where = self._core.encoder.encode_subject(subject)
        lines = self._stream
        if headers or payload.__class__ is not bytes:
            # For its checks. Such a message is encoded twice, which is less code than another encoder.
            self._core.encoder.encode_command(where, payload, b"", headers)
            payload = exact(payload)
        if len(payload) > self._core.max_payload:
            raise errors.MaxPayloadError(len(payload), self._core.max_payload)
        if headers:
            lines += _OWN_LINES.sub(b"", encode_header_lines(headers))
            self._check_headers(headers)
        self._items.append(EncodedMessage(where, lines, payload))

    def _check_headers(self, headers: HeadersLike) -> None:
        if EXPECTED_LAST_MSG_ID in headers:
            reason = "is not possible in an atomic batch"
            raise errors.InvalidOptionError(
                EXPECTED_LAST_MSG_ID, headers[EXPECTED_LAST_MSG_ID], reason
            )
        if headers.get(ROLLUP) == "all":
            raise errors.InvalidOptionError(ROLLUP, "all", "is not possible in an atomic batch")
        if EXPECTED_LAST_SEQ in headers and self._items:
            reason = "is only possible for the first message of an atomic batch"
            raise errors.InvalidOptionError(EXPECTED_LAST_SEQ, headers[EXPECTED_LAST_SEQ], reason)
        msg_id = headers.get(MSG_ID)
        if isinstance(msg_id, str):
            if msg_id in self._ids:
                raise errors.InvalidOptionError("msg_id", msg_id, "is used twice in the batch")
            self._ids.add(msg_id)

    def commit(self, timeout: float | timedelta | None = None) -> PubAck:
        """
        Store the messages, all or none, but see `JetStream.publish_batch` for storage that becomes full.

        Args:
            timeout: how long to wait for the acknowledgement, in seconds; ``None``: that of the batch.

        Returns:
            The acknowledgement, with the sequence of the last message.

        Raises:
            Error: as `JetStream.publish_batch`. The batch cannot be used again.

        """
        self._check_open()
        self._done = True
        deadline = self._api.deadline(self._timeout if timeout is None else timeout)
        self._ack = self._commit(deadline)
        return self._ack

    def _commit(self, deadline: Deadline) -> PubAck:
        if not self._items:
            raise errors.InvalidOptionError("messages", [], "a batch needs at least one message")
        core, items = self._core, self._items
        require_level(self._api, 2, "an atomic batch", deadline)
        first: dict[bytes, int] = {}
        for number, item in enumerate(items[:-1], 1):
            if len(first) < _MAX_ANSWERED_SUBJECTS:
                first.setdefault(item.subject, number)
        answered = list(first.values())
        subjects = frozenset(item.subject for item in items)
        retries, unanswered = BackoffDelay(DEFAULT_RETRIES.wait_s, _MAX_RETRY_WAIT_S), 0
        while True:
            sender = AtomicBatchSender(core)
            try:
                batch, reply = sender.new_batch()
                commands = batch_commands(items, batch, reply, answered, core.max_payload)
                buffer = b"".join(commands)
                return sender.commit(buffer, len(items), reply, answered, subjects, deadline)
            except (errors.NoStreamResponseError, errors.TooManyBatchesError) as error:
                # Nothing was stored: the stream has no leader, or has too many open batches.
                unanswered += isinstance(error, errors.NoStreamResponseError)
                left = deadline.left()
                if unanswered > DEFAULT_RETRIES.attempts or (
                    left is not None and left <= retries.delay
                ):
                    raise self._with_reason(error, subjects) from None
            except (
                errors.ConnectionClosedError,
                errors.PermissionsError,
                errors.TimeoutError,
            ) as error:
                if isinstance(error, errors.PermissionsError) and error.operation == "publish":
                    raise  # the server has no whole batch
                raise errors.BatchUncertainError(batch.decode(), str(error)) from error
            finally:
                sender.close()
            core.wait_closed(retries.next())

    def _with_reason(self, error: errors.Error, subjects: frozenset[bytes]) -> errors.Error:
        """Return the error of a batch, with the reason if no stream has stored it."""
        if not isinstance(error, errors.NoStreamResponseError):
            return error
        named = [subject.decode() for subject in sorted(subjects)[:_MAX_NAMED]]
        hints = {found.hint for found in no_responses(self._api, named).values()}
        # If the reasons differ, one of the subjects may have no stream.
        return errors.NoStreamResponseError(error.subject, *(hints if len(hints) == 1 else ()))

    @property
    def ack(self) -> PubAck | None:
        """The acknowledgement; ``None``: the batch is not committed."""
        return self._ack

    @property
    def sequences(self) -> range:
        """The sequences of the stored messages, in order; empty: the batch is not committed."""
        if self._ack is None:
            return range(0)
        return range(self._ack.seq - len(self) + 1, self._ack.seq + 1)

    def _check_open(self) -> None:
        if self._done:
            raise errors.InvalidOptionError(
                "batch", "...", "it is committed or abandoned; create another"
            )

    def __len__(self) -> int:
        return len(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._done:
            self.commit()
        self._done = True


class BatchAPI:
    """The methods of `JetStream` that publish atomic batches."""

    _api: APIRequests

    def publish_batch(
        self,
        messages: Iterable[BatchMessage],
        stream: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> PubAck:
        """
        Publish messages to one stream, which stores all or none of them (ADR-50).

        The stream needs `StreamConfig.allow_atomic`. The messages get contiguous sequences. With an error
        other than `BatchUncertainError`, `AccountFullError` and `ServerFullError` nothing was stored: if the
        storage becomes full in the middle of a batch, nats-server stores the first messages, up to 2.15 at least.

        Args:
            messages: 1 to 1000 messages: tuples of subject, payload and, optionally, headers; or `Msg` objects.
            stream: the name of the stream that must store them; ``None``: the stream with the subjects.
            timeout: how long to wait for the acknowledgement, in seconds; ``None``: the timeout of the
                context.

        Returns:
            The acknowledgement, with the sequence of the last message.

        Raises:
            BatchUncertainError: no acknowledgement arrived, also because the connection was closed, and the
                batch may be stored; or the leader of the stream is older than 2.12, and some of the messages
                are stored.
            BatchTooLargeError: there are more than 1000 messages; nothing was sent.
            ServerTooOldError: the server is older than 2.12; nothing was sent.
            BatchNotEnabledError: the stream does not allow atomic batches.
            BatchDuplicateError: a message id is already in the stream.
            BatchIncompleteError: a message was refused, and the server did not report why.
            WrongLastSequenceError: an expectation is not met.
            TooManyBatchesError: the stream had too many open batches until the timeout.
            NoStreamResponseError: no stream has one of the subjects.
            APIError: the server refused the batch for another reason.
            PermissionsError: publishing to one of the subjects is not permitted.
            BadSubjectError, InvalidHeaderError, InvalidOptionError, MaxPayloadError: a message is invalid;
                nothing was sent.
            OutboundBufferLimitError: disconnected, and the buffer is full; nothing was sent.
            ConnectionClosedError: the connection is closed.

        """
        batch = Batch(self._api, stream, timeout)
        if not isinstance(messages, Iterable) or isinstance(messages, (str, bytes, Mapping)):
            raise errors.InvalidOptionError("messages", messages, "must be a list of messages")
        for message in messages:
            if isinstance(message, Msg):
                message = message.subject, message.data, message.headers  # noqa: PLW2901 - as a tuple
            if not isinstance(message, (tuple, list)) or len(message) not in {2, 3}:
                rule = "must be tuples of subject, payload and, optionally, headers"
                raise errors.InvalidOptionError("messages", message, rule)
            batch._add(*message)  # noqa: SLF001 - of this module
        return batch.commit()

    def batch(self, stream: str | None = None, timeout: float | timedelta | None = None) -> Batch:
        """
        Return an empty atomic batch, which is committed at the end of its ``with`` block (ADR-50).

        Args:
            stream: as in `publish_batch()`.
            timeout: as in `publish_batch()`.

        Raises:
            InvalidNameError: the name of the stream is invalid.

        """
        return Batch(self._api, stream, timeout)
