"""
``jsm sub``, ``consumer next`` and ``consumer sub``: receive, show and acknowledge messages.

Every message is shown before it is acknowledged, so a message that fails to be written is redelivered.
Messages that were received but not shown, after Ctrl-C or a broken pipe, get a nak, so that the server
redelivers them without waiting for the ack wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from ... import AckPolicy, ConsumerConfig, DeliverPolicy, JetStreamMsg, errors
from ...durations import counted
from ...net.clock import Deadline, monotonic
from ...subjects import check_stream_name, check_subject, subject_matches
from ..shared.env import readable
from ..shared.long_running import wait_interruptibly
from ..shared.names import (
    complete_stream,
    consumer_arguments,
    find_consumer,
    find_pull,
    named_stream,
    title,
)
from ..shared.output import announce, say, when
from ..shared.output import count as with_separators
from ..shared.settings import Settings, command
from ..shared.status import CommandError, TimedOutError, one_line
from ..shared.values import (
    FROM_1,
    TIME,
    TIMEOUT,
    Parsed,
    allow_one,
    option,
    parse_duration,
    stop_options,
    with_options,
)
from .outgoing import PermissionWatch
from .view import FORMAT_HELP, MessageWriter, SubWriter, header_lines, is_delivery

if TYPE_CHECKING:
    from ... import (
        Connection,
        ConsumerInfo,
        ContinuousOptions,
        JetStream,
        MessageIterator,
        Msg,
        OrderedConsumer,
        OrderedMessages,
        PullConsumer,
        PushSubscription,
        Subscription,
    )

#: Timeout for messages in flight when reading ends, in seconds.
_DRAIN_TIMEOUT_S = 1.0
#: The maximum number of queued messages from several subscriptions.
_MAX_QUEUED = 1000


# --- sources ----------------------------------------------------------------------------------


class Source(Protocol):
    """A source of messages."""

    def next(self, timeout: float | None) -> Msg | None:
        """Return the next message; ``None`` at the end. Raise `TimeoutError` after ``timeout`` seconds."""

    def end(self) -> None:
        """Request no more messages; received ones are available with a ``timeout`` of 0."""


class PullSource:
    """
    A continuous pull; with ``to_end`` it ends when no message is pending, as ``at_end`` says of now.

    `pending`: with ``to_end``, is called when no message arrived for `patience` seconds, and returns how many are
    pending, or a negative number if they may come later.
    """

    def __init__(
        self,
        messages: MessageIterator | OrderedMessages,
        *,
        ordered: OrderedConsumer | None = None,
        to_end: bool = False,
        at_end: bool = False,
        pending: Callable[[], int] | None = None,
        patience: float = 0.0,
    ) -> None:
        self._pending = pending
        self._patience_s = patience
        self._patience = Deadline(patience)
        self._messages = messages
        self._ordered = ordered
        self._to_end = to_end
        self._at_end = to_end and at_end

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        if self._at_end:
            return None
        try:
            msg = self._messages.next(timeout)
        except errors.IteratorClosedError:
            return None
        except errors.TimeoutError:
            if self._to_end and self._pending is not None and self._patience.expired():
                self._check_pending(self._pending)
            raise
        if self._pending is not None:
            self._patience = Deadline(self._patience_s)
        self._at_end = self._to_end and not msg.metadata.num_pending
        return msg

    def _check_pending(self, pending: Callable[[], int]) -> None:
        """Note that nothing is pending, or raise `CommandError` for messages that do not arrive."""
        self._patience = Deadline(self._patience_s)
        try:
            number = pending()
        except errors.Error:
            return  # during a failover, say
        self._at_end = number == 0
        if number > 0:
            text = f"{counted(number, 'message')} pending, but the server delivers none"
            raise TimedOutError(text)

    def end(self) -> None:
        """Request no more messages."""
        # What was received after the last message gets a nak.
        self._to_end = self._at_end = False
        if self._ordered is not None:
            self._ordered.close()  # it may have another consumer, which holds the start position
        elif not self._messages.closed:
            self._messages.drain(_DRAIN_TIMEOUT_S)


class NowSource:
    """The messages of one fetch; see `Source`."""

    def __init__(self, messages: Iterable[JetStreamMsg]) -> None:
        self._messages = iter(messages)

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        del timeout
        return next(self._messages, None)

    def end(self) -> None:
        """Request no more messages: none were requested but those of the fetch."""


class PushSource:
    """The messages of one subscription, such as that of a push consumer; see `Source`."""

    def __init__(self, subscription: PushSubscription | Subscription) -> None:
        self._subscription = subscription

    def next(self, timeout: float | None) -> Msg | None:
        """Return the next message."""
        try:
            return self._subscription.next_msg(timeout)
        except errors.BadSubscriptionError:
            return None

    def end(self) -> None:
        """Request no more messages."""
        if self._subscription.is_valid:
            self._subscription.drain(_DRAIN_TIMEOUT_S)


class CoreSource:
    """Messages of core NATS; see `Source`."""

    def __init__(self, nc: Connection, subjects: Sequence[str], queue: str, timeout: float) -> None:
        self._arrived = threading.Condition()
        self._queued: deque[Msg] = deque()
        self._closed = False
        # A single subscription is read directly, without a queue.
        callback = self._enqueue if len(subjects) > 1 else None
        self._subscriptions = [nc.subscribe(subject, queue, callback) for subject in subjects]
        # Messages published after the announcement must be seen.
        nc.flush(timeout)
        self._check()

    def _check(self) -> None:
        """Raise the reason if all subscriptions have ended, such as a refused permission."""
        # A single refusal is a warning of the connection. A refused one has ended when a flush returns.
        if not any(subscription.is_valid for subscription in self._subscriptions):
            self._subscriptions[0].unsubscribe()

    def _enqueue(self, msg: Msg) -> None:
        with self._arrived:
            self._arrived.wait_for(lambda: self._closed or len(self._queued) < _MAX_QUEUED)
            self._queued.append(msg)
            self._arrived.notify_all()

    def next(self, timeout: float | None) -> Msg | None:
        """Return the next message of any of the subjects."""
        if self._closed:
            return None
        if len(self._subscriptions) == 1:
            return self._subscriptions[0].next_msg(timeout)
        with self._arrived:
            if not self._arrived.wait_for(lambda: bool(self._queued), timeout):
                self._check()
                raise errors.TimeoutError("no message in time")
            self._arrived.notify_all()
            return self._queued.popleft()

    def end(self) -> None:
        """End the subscriptions; received messages are dropped."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        for subscription in self._subscriptions:
            if subscription.is_valid:
                subscription.unsubscribe()


class MatchingSource:
    """Messages of core NATS; a request is returned when its reply arrives, which is `reply`. See `Source`."""

    def __init__(self, nc: Connection, subjects: Sequence[str], timeout: float) -> None:
        self._inboxes = f"{nc.new_inbox().rpartition('.')[0]}."
        self._source = CoreSource(nc, [*subjects, f"{self._inboxes}>"], "", timeout)
        #: Requests and replies by their inbox: each subscription has its own order.
        self._unmatched: dict[str, Msg] = {}
        #: The reply to the message that was returned last.
        self.reply: Msg | None = None

    def next(self, timeout: float | None) -> Msg | None:
        """Return the next request with a reply, or message that is not a request."""
        deadline = Deadline(timeout)
        while (msg := self._source.next(deadline.left())) is not None:
            is_reply = msg.subject.startswith(self._inboxes)
            if not is_reply and not msg.reply.startswith(self._inboxes):
                self.reply = None
                return msg
            inbox = msg.subject if is_reply else msg.reply
            other = self._unmatched.pop(inbox, None)
            if other is not None and other.subject.startswith(self._inboxes) is not is_reply:
                self.reply, request = (msg, other) if is_reply else (other, msg)
                return request
            self._unmatched[inbox] = msg
            if len(self._unmatched) > _MAX_QUEUED:
                del self._unmatched[next(iter(self._unmatched))]
        return None

    def end(self) -> None:
        """End the subscriptions; received messages are dropped."""
        self._source.end()


def start_fields(
    policy: DeliverPolicy = DeliverPolicy.ALL,
    sequence: int | None = None,
    since: datetime | None = None,
    filters: Sequence[str] = (),
    *,
    headers_only: bool = False,
) -> dict[str, Any]:
    """Return the fields of a consumer config for a start position in a stream, and the messages to read."""
    every = (">",) if policy is DeliverPolicy.LAST_PER_SUBJECT else ()
    fields = {
        "opt_start_seq": sequence,
        "opt_start_time": since,
        "filter_subjects": list(filters or every),
        "headers_only": headers_only,
    }
    return {"deliver_policy": policy, **{name: value for name, value in fields.items() if value}}


def stream_source(
    settings: Settings,
    js: JetStream,
    stream: str,
    fields: dict[str, Any],
    *,
    durable: str | None = None,
    to_end: bool = False,
    count: int | None = None,
) -> PullSource:
    """Return the messages of a stream in order, or those of a durable consumer, created if missing."""
    found = named_stream(settings, js, stream)
    limit: ContinuousOptions = {} if count is None else {"stop_after": count}
    if durable is None:
        ordered = found.ordered_consumer(**fields)
        messages = ordered.messages(**limit)
        info = ordered.cached_info
        at_end = info is not None and not info.num_pending
        return PullSource(
            messages,
            ordered=ordered,
            to_end=to_end,
            at_end=at_end,
            pending=lambda: ordered.info().num_pending,
            patience=settings.timeout,
        )
    try:
        consumer = found.get_consumer(durable)
    except errors.ConsumerNotFoundError:
        consumer = found.create_consumer(
            ConsumerConfig(durable_name=durable, ack_policy="explicit", **fields)
        )
    info = consumer.cached_info
    at_end = not info.num_pending and not info.num_ack_pending
    return PullSource(
        consumer.messages(**limit),
        to_end=to_end,
        at_end=at_end,
        pending=lambda: _undelivered(consumer.info()),
        patience=settings.timeout,
    )


def _undelivered(info: ConsumerInfo) -> int:
    """Return the number of messages that the server should deliver now; -1: it may deliver some later."""
    return -1 if info.num_ack_pending or info.paused else info.num_pending


# --- the loop ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The acknowledgement of a message after it was shown."""

    #: ``ack``, ``nak``, ``term`` or empty for none.
    word: str = "ack"
    #: The redelivery delay of a nak; ``None``: no delay.
    delay: timedelta | None = None
    #: Whether to wait until the server confirms an ack, and for how many seconds.
    confirmed: bool = False
    timeout: float = 5.0
    #: Whether the consumer's policy expects acknowledgements.
    wanted: bool = True

    def acks(self, msg: Msg) -> bool:
        """Return whether a message is acknowledged; one pushed to a plain subscription can be, too."""
        can = isinstance(msg, JetStreamMsg) or is_delivery(msg)
        return can and self.wanted and self.word == "ack"

    def __call__(self, msg: Msg) -> str:
        """Acknowledge a message and return a line that reports it."""
        if not isinstance(msg, JetStreamMsg):
            if self.acks(msg):
                msg.respond(b"+ACK")
            return ""
        if not self.word:
            return ""
        if not self.wanted:
            return "No acknowledgement needed"
        if self.word == "nak":
            msg.nak(self.delay)
            return "Not acknowledged (nak)"
        if self.word == "term":
            msg.term()
            return "Terminated message"
        if self.confirmed:
            msg.ack_sync(self.timeout)
            return "Acknowledged message, confirmed by the server"
        msg.ack()
        return "Acknowledged message"

    @classmethod
    def of(
        cls,
        policy: AckPolicy | str,
        timeout: float,
        *,
        no_ack: bool,
        nak: timedelta | None,
        term: bool,
        confirmed: bool,
    ) -> Settle:
        """Return the acknowledgement for the options and the consumer's policy."""
        options = {
            "--no-ack": ("", no_ack),
            "--nak": ("nak", nak is not None),
            "--term": ("term", term),
            "--double-ack": ("ack", confirmed),
        }
        allow_one({flag: value for flag, (_, value) in options.items()})
        return cls(
            word=next((word for word, value in options.values() if value), "ack"),
            delay=nak or None,
            confirmed=confirmed,
            wanted=policy not in (AckPolicy.NONE, AckPolicy.FLOW_CONTROL),
            timeout=timeout,
        )


def check_received(number: int, wanted: int | None, noun: str = "message") -> None:
    """Raise an error if fewer messages than wanted were received, or none."""
    if number != wanted and (wanted is not None or not number):
        asked = "" if wanted is None else f" of {wanted:,}"
        raise TimedOutError(f"received {number:,}{asked} {noun}s")


@dataclass
class ReadLoop:
    """The state of one run of a command that reads messages."""

    settings: Settings
    source: Source
    view: MessageWriter
    settle: Settle
    flush: Callable[[], object] | None = None
    """Flushes the acknowledgements, and raises the error of one that was refused."""
    ignored: Sequence[str] = ()
    """The subjects of messages to skip."""
    shown: int = 0
    size: int = 0
    """The bytes of the bodies of these messages."""
    timed_out: bool = False
    """Whether no message arrived in time."""
    _started: float = field(default_factory=monotonic, init=False)
    #: The message that was received but not yet shown.
    _current: Msg | None = field(default=None, init=False)

    def run(self, count: int | None, wait: float | None, *, per_message: bool) -> None:
        """
        Read until the source ends, the count is reached or the timeout has passed.

        `per_message`: whether the timeout starts again with each message; then Ctrl-C writes a summary to ``stderr``.
        """
        try:
            self._read(count, wait, per_message=per_message)
        except KeyboardInterrupt:
            if per_message:
                self.settings.env.stderr.write(
                    f"\nReceived {counted(self.shown, 'message')}, {counted(self.size, 'byte')} "
                    f"in {monotonic() - self._started:.1f} s\n"
                )
            raise
        finally:
            # Also after Ctrl-C, a broken pipe, or a lost connection. In the last case the server
            # redelivers the messages without a nak.
            with suppress(errors.Error):
                self._nak_unshown()
        if self.flush is not None:
            self.flush()

    def _read(self, count: int | None, wait: float | None, *, per_message: bool) -> None:
        deadline = Deadline(wait)
        while self.shown != count:
            if per_message:
                deadline = Deadline(wait)
            try:
                msg = wait_interruptibly(self.source.next, deadline)
            except errors.TimeoutError:
                break
            if msg is None:
                return
            self._handle(msg)
        else:
            return
        # After the timeout, messages in flight are shown as well.
        self.timed_out = True
        for late in self._received():
            self._handle(late)
            if self.shown == count:
                break

    def _handle(self, msg: Msg) -> None:
        if any(subject_matches(item, msg.subject) for item in self.ignored):
            return
        self._current = msg
        # Count before the output, since Ctrl-C may follow it at once.
        self.shown += 1
        self.size += len(msg.data)
        self.view.write(msg, acked=self.settle.acks(msg))
        self._current = None
        line = self.settle(msg)
        if line and self.view.shows_settling:
            say(self.settings, f"\n{line}")

    def _received(self) -> Iterator[Msg]:
        """Request no more messages, and yield those that were received."""
        self.source.end()
        with suppress(errors.TimeoutError):
            while (msg := self.source.next(0)) is not None:
                yield msg

    def _nak_unshown(self) -> None:
        """Send a nak for each message that was received but not shown."""
        current = [] if self._current is None else [self._current]
        returned = False
        for msg in chain(current, self._received()):
            if isinstance(msg, JetStreamMsg) and self.settle.wanted:
                msg.nak()
                returned = True
        if returned and self.flush is not None:
            self.flush()


# --- the commands -------------------------------------------------------------------------------

#: The minimum expiry of a pull request, in seconds.
_MIN_EXPIRES_S = 1.0


class OptionalNak(click.Command):
    """A command whose ``--nak`` takes a value only after ``=``, never the next argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments with the default value for a bare ``--nak``."""
        return super().parse_args(ctx, ["--nak=0s" if word == "--nak" else word for word in args])


#: The delay of ``--nak``; 0 without a delay.
_DELAY: Final = Parsed("duration", partial(parse_duration, bare="s"))


#: How a read message is settled.
_settle_options = with_options(
    option("--no-ack", "Do not acknowledge; it is redelivered after ack wait."),
    option("--nak [=DELAY]", "Have it redelivered, at once or after DELAY.", _DELAY),
    option("--term", "Terminate the message, so that it is not redelivered."),
)
_read_options = with_options(
    option("--group NAME", "Pull for this priority group. (2.11)"),
    option("-r, --raw", "Show only the bodies."),
    option("-f, --format TEXT", FORMAT_HELP, to="layout"),
)


@command("next", cls=OptionalNak)
@consumer_arguments
@_settle_options
@option("--ack", "", hidden=True)
@option("--double-ack", "Wait until the server confirms the ack.")
@option("--count N", "Fetch at most N messages.", FROM_1, default=1)
@option("--no-wait", "Fetch only messages available now.")
@option("--expires, --wait TIME", "Time to wait for messages.", TIMEOUT)
@_read_options
def consumer_next(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    count: int,
    no_wait: bool,
    expires: float | None,
    group: str | None,
    raw: bool,
    layout: str | None,
    **settlement: Any,
) -> None:
    """
    Fetch the next message of a CONSUMER, show it, and acknowledge it.

    The wait for messages is limited by --timeout. The exit status is 4 when no message arrived. With
    --count, each message is shown on arrival, and with --json each on its own line.
    """
    settlement.pop("ack")
    confirmed = settlement.pop("double_ack")
    watch = PermissionWatch(settings.timeout)
    with settings.connection(watch.on_error) as nc:
        js = settings.jetstream_on(nc)
        found = find_pull(settings, js, stream, consumer)
        view = _writer(settings, raw=raw, layout=layout, single=count == 1)
        policy = found.cached_info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=confirmed, **settlement)
        # Messages may arrive from now on.
        source = _source(found, count, no_wait=no_wait, expires=expires, group=group)
        reading = ReadLoop(settings, source, view, settle, partial(watch.flush, nc))
        wait = settings.timeout if expires is None else expires
        reading.run(count, wait, per_message=False)
        if not reading.shown:
            where = f"{found.stream_name} {found.name}"
            raise TimedOutError(
                "no message" if no_wait else f"no message in {wait:g} s",
                hint=f"'jsm consumer info {where}' shows what is left",
            )


def _writer(
    settings: Settings, *, raw: bool, layout: str | None, single: bool = False
) -> MessageWriter:
    def text(msg: JetStreamMsg) -> str:
        about = msg.metadata
        where = " / ".join(
            (
                f"tries: {about.num_delivered}",
                f"consumer seq: {with_separators(about.consumer_seq)}",
                f"stream seq: {with_separators(about.stream_seq)}",
                f"pending: {with_separators(about.num_pending)}",
                f"stored: {when(settings, about.timestamp)}",
            )
        )
        headers = header_lines(msg.headers)
        lines = [
            *([""] if writer.number > 1 else []),
            f"--- received on {readable(msg.subject)}",
            f"    {where}",
            *([*headers, ""] if headers else []),
            readable(msg.data),
        ]
        return "\n".join(lines) + "\n"

    writer = MessageWriter(settings, text, raw=raw, layout=layout, single=single)
    return writer


def _source(
    consumer: PullConsumer, count: int, *, no_wait: bool, expires: float | None, group: str | None
) -> Source:
    options: Any = {} if group is None else {"group": group}
    config = consumer.cached_info.config
    # One pull requests all messages, up to the limit of the consumer.
    batch = min(count, config.max_batch or count)
    if no_wait:
        return NowSource(consumer.fetch_no_wait(batch, **options))
    if expires is not None and not config.max_expires:
        # The command ends the pull request; this limits it when the process is killed.
        options["expires"] = max(expires, _MIN_EXPIRES_S)
    return PullSource(consumer.messages(max_messages=batch, stop_after=count, **options))


@command("sub", cls=OptionalNak)
@consumer_arguments
@_settle_options
@stop_options("message")
@_read_options
def consumer_sub(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    count: int | None,
    wait: float | None,
    group: str | None,
    raw: bool,
    layout: str | None,
    **settlement: Any,
) -> None:
    """
    Show and acknowledge the messages of a CONSUMER of a STREAM until Ctrl-C.

    The exit status is 0 after --count messages, 4 after --wait without a message, and 130 after Ctrl-C.
    """
    watch = PermissionWatch(settings.timeout)

    def on_error(error: Exception) -> None:
        watch.on_error(error)
        settings.note(f"warning: {one_line(error)}")

    with settings.connection(reconnects="always", error_cb=on_error) as nc:
        js = settings.jetstream_on(nc)
        info = find_consumer(settings, js, stream, consumer)
        view = _writer(settings, raw=raw, layout=layout)
        policy = info.config.ack_policy
        settle = Settle.of(policy, settings.timeout, confirmed=False, **settlement)
        source = _source_of(js, info, count, group)
        reading = ReadLoop(settings, source, view, settle, partial(watch.flush, nc))
        subject = info.config.deliver_subject
        announce(settings, f"Listening to {title(info)}{f' on {subject}' if subject else ''}")
        reading.run(count, wait, per_message=True)
    check_received(reading.shown, count)


def _source_of(js: JetStream, info: ConsumerInfo, count: int | None, group: str | None) -> Source:
    if not info.config.deliver_subject:
        options: Any = {} if group is None else {"group": group}
        if count is not None:
            options["stop_after"] = count
        return PullSource(js.get_consumer(info.stream_name, info.name).messages(**options))
    if group is not None:
        raise click.UsageError("--group is for pull consumers")
    try:
        subscription = js.subscribe_bind(
            info.stream_name, info.name, manual_ack=True, queue=info.config.deliver_group
        )
    except errors.DuplicateSubscriptionError as error:
        raise CommandError(
            f"another client is subscribed to {title(info)}",
            hint=f"to receive the same messages, use 'jsm sub {info.config.deliver_subject}'",
        ) from error
    return PushSource(subscription)


#: The option and the start policy for each parameter that selects one.
_STARTS: Final = {
    "from_all": ("--all", DeliverPolicy.ALL),
    "from_new": ("--new", DeliverPolicy.NEW),
    "from_last": ("--last", DeliverPolicy.LAST),
    "last_per_subject": ("--last-per-subject", DeliverPolicy.LAST_PER_SUBJECT),
    "start_sequence": ("--start-sequence", DeliverPolicy.BY_START_SEQUENCE),
    "since": ("--since", DeliverPolicy.BY_START_TIME),
}


def _start(
    options: dict[str, Any], subjects: tuple[str, ...], *, headers_only: bool
) -> dict[str, Any] | None:
    """Return the fields of the start position that was given; ``None`` without one."""
    values = {name: options.pop(name) for name in _STARTS}
    allow_one({_STARTS[name][0]: value for name, value in values.items()})
    policies = [policy for name, (_, policy) in _STARTS.items() if values[name]]
    if not policies:
        return None
    sequence, since = values["start_sequence"], values["since"]
    return start_fields(policies[0], sequence, since, subjects, headers_only=headers_only)


@command()
@click.argument("subjects", metavar="[SUBJECT]...", nargs=-1)
@option("--queue GROUP", "Share the messages with a queue group.", default="")
@option("--stream STREAM", "Read from this stream.", shell_complete=complete_stream)
@option("--all", "Start at the first message of the stream.", to="from_all")
@option("--new", "Start with new messages of the stream.", to="from_new")
@option("--last", "Start at the last message of the stream.", to="from_last")
@option("--last-per-subject", "Start with the last message of each subject.")
@option("--since TIME", "Start at a time, or at a duration before now.", TIME)
@option("--start-sequence SEQ", "Start at this stream sequence.", FROM_1)
@option("--durable NAME", "Read from a durable consumer; implies --ack.")
@option("--ack/--no-ack", "Acknowledge shown messages.  [default: with --durable]", default=None)
@option("-T, --terminate-at-end", "Exit at the end of the stream.", to="to_end")
@stop_options("message")
@option("-I, --ignore-subject SUBJECT", "Skip this subject.", to="ignored", multiple=True)
@option("-t, --timestamp", "Show the time of receipt.", to="timestamps")
@option("-r, --raw", "Show only the bodies.")
@option("--headers-only", "Show headers without bodies.")
@option("--subjects-only", "Show only the subjects.")
@option("--match-replies", "Show each request with its reply.")
def sub(
    settings: Settings,
    *,
    subjects: tuple[str, ...],
    queue: str,
    stream: str | None,
    durable: str | None,
    ack: bool | None,
    to_end: bool,
    count: int | None,
    wait: float | None,
    ignored: tuple[str, ...],
    headers_only: bool,
    match_replies: bool,
    **options: Any,
) -> None:
    """
    Show the messages of each SUBJECT until Ctrl-C.

    With --stream, --durable or an option for the start, messages are read from a stream. Without
    --stream it is the stream that stores the first SUBJECT.

    The exit status is 0 after --count messages or, with -T, at the end of the stream; 4 after --wait
    without a message; 130 after Ctrl-C.
    """
    start = _start(options, subjects, headers_only=headers_only)
    if start is None and (durable is not None or stream is not None):
        start = start_fields(filters=subjects, headers_only=headers_only)
    for subject in (*subjects, *ignored):
        check_subject(subject)
    if not subjects and stream is None:
        raise click.UsageError("give a SUBJECT or --stream")
    if stream is not None:
        check_stream_name(stream)
    if start is not None and queue:
        raise click.UsageError("--queue is for core NATS: to share a stream, use --durable")
    if to_end and start is None:
        raise click.UsageError("-T is for streams: a core NATS subscription has no end")
    if match_replies and (start is not None or queue):
        raise click.UsageError("--match-replies excludes streams and --queue")
    writer = SubWriter(settings, headers_only=headers_only, **options)
    acks = ack if ack is not None else durable is not None
    watch = PermissionWatch(settings.timeout)
    with settings.connection(watch.on_error, reconnects="always") as nc:
        names = [f"[{subject}]" for subject in subjects]
        source: Source
        if match_replies:
            source = matching = MatchingSource(nc, subjects, settings.timeout)
            writer.reply_of = lambda: matching.reply
        elif start is None:
            source = CoreSource(nc, subjects, queue, settings.timeout)
        else:
            js = settings.jetstream_on(nc)
            stream = stream or js.find_stream_name_by_subject(subjects[0])
            limit = None if ignored else count
            source = stream_source(
                settings, js, stream, start, durable=durable, to_end=to_end, count=limit
            )
            names = [f"[{stream}]", *subjects]
        announce(settings, f"Listening on {' '.join(names)}")
        settle = Settle(word="ack" if acks else "", wanted=acks or durable is not None)
        flush = partial(watch.flush, nc) if acks else None
        reading = ReadLoop(settings, source, writer, settle, flush, ignored)
        reading.run(count, wait, per_message=True)
    if reading.timed_out:
        check_received(reading.shown, count)
