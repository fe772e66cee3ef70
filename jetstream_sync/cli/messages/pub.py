"""``jsm pub``, ``req``, ``reply`` and ``trace``: publish messages, send and answer requests, show ways (ADR-41)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from ... import Headers, errors
from ...durations import counted
from ...headers import MSG_ID, MSG_TTL, StatusCode
from ...net.clock import Deadline, monotonic
from ..shared.env import readable, single_line, visible
from ..shared.long_running import failover, pause, wait_interruptibly
from ..shared.output import count as count_text
from ..shared.output import emit, emit_item, emit_line, say, to_json
from ..shared.settings import Settings, command
from ..shared.status import CommandError, FailedError, TimedOutError, hint_of, one_line
from ..shared.system import JSONObject, parsed
from ..shared.values import (
    DURATION,
    FROM_0,
    FROM_1,
    TIMEOUT,
    UNTIL,
    allow_one,
    option,
    with_options,
)
from .outgoing import (
    Message,
    PermissionWatch,
    body_of,
    header_option,
    message_options,
    outgoing,
    require_2_11,
)
from .view import MessageWriter, header_lines

if TYPE_CHECKING:
    from ... import Connection, JetStream, Msg, PubAck

#: Timeout for the messages in the buffer after an interrupt or an error, in seconds.
_FLUSH_TIMEOUT_S: Final = 1.0
#: The number of messages that are shown one by one; after that, only totals are shown.
_MAX_LISTED: Final = 20
#: Maximum number of messages in an atomic batch.
_MAX_BATCH: Final = 1000

#: The options that make the message a schedule, by the arguments of `JetStream.schedule`.
_schedule_options: Final = with_options(
    option("--schedule-dest SUBJECT", "Schedule a message to SUBJECT.", to="target"),
    option("--schedule-at TIME", "Send it at a time, or after a duration. (2.12)", UNTIL, to="at"),
    option("--schedule-every", "Schedule it at an interval. (2.14)", DURATION, to="every"),
    option("--schedule-cron CRON", "Schedule it by a cron expression. (2.14)", to="cron"),
    option("--schedule-time-zone ZONE", "The time zone of CRON.", to="time_zone"),
)
_SCHEDULE: Final = ("target", "at", "every", "cron", "time_zone")


@command()
@click.argument("subject")
@click.argument("body", required=False)
@message_options
@option("--reply SUBJECT", "Set the reply subject.", default="")
@option("--count N", "Publish the message N times.", FROM_1, default=1)
@option("--sleep TIME", "Pause for TIME between messages.", TIMEOUT)
@option("-J, --jetstream", "Wait for the acknowledgement of a stream.")
@option("--atomic", "Store all messages or none; at most 1000.")
@option("--msg-id ID", "Set the message id for duplicate detection.")
@option("--ttl TIME", "Delete it from the stream after TIME, in whole seconds.", TIMEOUT)
@_schedule_options
@option("-q, --quiet", "Show only errors.")
def pub(
    settings: Settings,
    *,
    subject: str,
    body: str | None,
    reply: str,
    sleep: float | None,
    jetstream: bool,
    atomic: bool,
    quiet: bool,
    msg_id: str | None,
    ttl: float | None,
    **options: Any,
) -> None:
    """
    Publish BODY to SUBJECT.

    Without BODY, or when it is '-', the message is read from standard input. With a BODY, standard input
    is not read, so that the command can be used in a loop over it.

    With --schedule-dest the server keeps the message as a schedule; see 'jsm stream schedules'.
    """
    options["headers"] = [*options["headers"], *_publish_headers(ttl, msg_id)]
    schedule = _schedule({name: options.pop(name) for name in _SCHEDULE})
    jetstream = jetstream or atomic or schedule is not None
    if atomic and schedule is not None:
        raise click.UsageError("--atomic excludes schedules")
    allow_one({"--atomic": atomic, "--sleep": sleep})
    if reply and jetstream:
        raise click.UsageError(
            "--reply and --jetstream exclude each other: the acknowledgement uses the reply subject"
        )
    several = options["send_on"] == "newline" or options["count"] > 1
    messages = outgoing(settings, subject, body, **options)
    published = _Published(settings, several=several, quiet=quiet)
    watch = PermissionWatch(settings.timeout)
    with settings.connection(watch.on_error, reconnects="failover") as nc:

        def check_received() -> None:
            watch.flush(nc)

        if ttl is not None:
            require_2_11(nc, "--ttl")
        js = settings.jetstream_on(nc) if jetstream else None
        if atomic and js is not None:
            batch = list(itertools.islice(messages, _MAX_BATCH + 1))
            try:
                ack = js.publish_batch([(item.subject, item.body, item.headers) for item in batch])
            except errors.NoStreamResponseError as error:
                raise _unstored(js, batch[0].subject, error) from error
            first = ack.seq - len(batch) + 1
            for seq, message in enumerate(batch, first):
                published.add(message, ack._replace(seq=seq))
            messages = iter(())
        try:
            for message in messages:
                if published.messages and sleep:
                    pause(sleep)
                if js is not None:
                    published.add(message, _stored(settings, js, message, schedule))
                else:
                    nc.publish(message.subject, message.body, reply, message.headers)
                    published.add(message, None, check_received)
        except errors.PermissionsError:
            raise  # what was counted was refused
        except (KeyboardInterrupt, errors.Error, CommandError) as error:
            if several or isinstance(error, KeyboardInterrupt):
                sent = js is not None or _is_flushed(nc)
                text = published.summary() if sent else "How many messages were sent is not known"
                settings.env.stderr.write(f"\n{text}\n")
            raise
        check_received()
    published.write_summary()


def _is_flushed(nc: Connection) -> bool:
    """Return whether the server has received what was published."""
    try:
        nc.flush(_FLUSH_TIMEOUT_S)
    except errors.Error:
        return False
    return True


def _publish_headers(ttl: float | None, msg_id: str | None) -> list[tuple[str, str]]:
    """Return the headers for options that control how a stream stores the messages."""
    pairs = [] if msg_id is None else [(MSG_ID, msg_id)]
    if ttl is not None:
        if ttl < 1:
            text = f"invalid duration {ttl:g}s: it must be at least 1s"
            raise click.BadParameter(text, param_hint="'--ttl'")
        pairs.append((MSG_TTL, f"{ttl:.0f}s"))
    return pairs


def _schedule(options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of `JetStream.schedule`; ``None`` if no option was given."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return None
    if "target" not in given:
        raise click.UsageError("--schedule-dest is missing")
    return given


def _stored(
    settings: Settings, js: JetStream, message: Message, schedule: dict[str, Any] | None
) -> PubAck:
    def publish() -> PubAck:
        if schedule is not None:
            return js.schedule(message.subject, message.body, headers=message.headers, **schedule)
        return js.publish(message.subject, message.body, headers=message.headers)

    # Without an id it could be stored twice.
    try:
        if message.headers and MSG_ID in message.headers:
            return failover(publish, settings.timeout)
        return publish()
    except errors.NoStreamResponseError as error:
        raise _unstored(js, message.subject, error) from error
    except errors.TimeoutError as error:
        text = one_line(error)
        hint = "a repetition with the same --msg-id is stored once"
        raise TimedOutError(text, hint=hint) from error


def _unstored(js: JetStream, subject: str, error: errors.NoStreamResponseError) -> Exception:
    """Return the error for a message that no stream stored: there is none, or it has no leader."""
    try:
        name = js.find_stream_name_by_subject(subject)
    except errors.Error:
        return error
    text = f"stream {name} did not store {subject!r}: it has no leader, or its servers are down"
    return FailedError(text, hint=hint_of(error))


class _Published:
    """Counts and shows the published messages."""

    def __init__(self, settings: Settings, *, several: bool, quiet: bool) -> None:
        self._settings = settings
        self._several = several
        self._quiet = quiet
        self._started = monotonic()
        self.messages = 0
        self._bytes = 0
        self._subject = ""
        self._last_ack = ""

    def add(
        self,
        message: Message,
        ack: PubAck | None,
        check_received: Callable[[], None] = lambda: None,
    ) -> None:
        """Count and show a message; `check_received`: raises an error if the server has not received it."""
        # Count before the output, since Ctrl-C may follow it at once.
        self.messages += 1
        self._bytes += len(message.body)
        self._subject = message.subject
        if ack is not None:
            twice = " (a duplicate, not stored again)" if ack.duplicate else ""
            self._last_ack = f"stored in {ack.stream} with sequence {count_text(ack.seq)}{twice}"
        if self._quiet:
            return
        out = self._settings.env.stdout
        if self._settings.json:
            if ack is not None:
                document = {"subject": visible(message.subject), **ack_fields(ack)}
                if self._several:
                    emit_line(self._settings, document)
                else:
                    out.write(to_json(document))
        elif self.messages <= _MAX_LISTED:
            check_received()
            shown = self._last_ack or f"'{readable(message.body)}'"
            out.write(f"Published [{readable(message.subject)}] : {shown}\n")
            # The next message may be delayed by --sleep or the input.
            out.flush()

    def write_summary(self) -> None:
        """Write a summary, unless every message was shown."""
        if self._quiet:
            return
        if self._settings.json and not self._last_ack:
            numbers = {"published": self.messages, "bytes": self._bytes}
            document = {"subject": visible(self._subject), **numbers}
            self._settings.env.stdout.write(to_json(document))
        elif self.messages > _MAX_LISTED:
            last = f"; the last is {self._last_ack}" if self._last_ack else ""
            say(self._settings, f"{self.summary()}{last}")

    def summary(self) -> str:
        """Return a line with the numbers and the rate."""
        seconds = monotonic() - self._started
        rate = f", {self.messages / seconds:,.0f} a second" if seconds > 0 else ""
        return (
            f"Published {counted(self.messages, 'message')}, {counted(self._bytes, 'byte')} "
            f"in {seconds:.2f} s{rate}"
        )


def ack_fields(ack: PubAck) -> dict[str, Any]:
    """Return an acknowledgement as JSON fields with the names of the server."""
    said = {"duplicate": ack.duplicate or None, "domain": ack.domain, "val": ack.val}
    fields = {name: value for name, value in said.items() if value is not None}
    return {"stream": ack.stream, "seq": ack.seq, **fields}


# --- req ----------------------------------------------------------------------------------------


@command()
@click.argument("subject")
@click.argument("body", required=False)
@message_options
@option("--replies N", "Wait for N replies; 0: all within the timeout.", FROM_0, default=1)
@option(
    "--reply-timeout TIME",
    "With several replies, wait TIME for the next one.  [default: rest of --timeout]",
    TIMEOUT,
)
@option("--count N", "Send N requests.", FROM_1, default=1)
@option("-r, --raw", "Show only the bodies.")
def req(
    settings: Settings,
    *,
    subject: str,
    body: str | None,
    replies: int,
    reply_timeout: float | None,
    raw: bool,
    **options: Any,
) -> None:
    """
    Send BODY to SUBJECT as a request and show the replies.

    Without BODY, or when it is '-', the request is read from standard input.

    The exit status is 6 when SUBJECT has no responders, and 4 when fewer replies than requested arrive
    within --timeout.
    """
    messages = outgoing(settings, subject, body, **options)
    several = replies != 1 or options["count"] > 1 or options["send_on"] == "newline"
    started = monotonic()

    def text(msg: Msg) -> str:
        took = (monotonic() - started) * 1000
        shown = f"'{readable(msg.data)}'"
        if msg.status is not None:
            shown = f"status {msg.status.code} {readable(msg.status.description)}"
        line = f"Received [{readable(msg.subject)}] : {shown} in {took:.2f} ms\n"
        return "".join([line, *(f"  {line}\n" for line in header_lines(msg.headers))])

    writer = MessageWriter(settings, text, raw=raw, single=not several)
    watch = PermissionWatch(settings.timeout)
    with settings.connection(watch.on_error) as nc:
        for message in messages:
            if writer.is_text:
                sent = f"Published [{readable(message.subject)}] : '{readable(message.body)}'"
                say(settings, sent)
                settings.env.stdout.flush()
            started = monotonic()
            received = 0
            for msg in _replies(settings, nc, message, watch, replies, reply_timeout):
                writer.write(msg)
                received += 1
            if not received:
                raise TimedOutError(
                    f"no reply on {readable(message.subject)!r} in {settings.timeout:g} s"
                )
            if received < replies:
                raise TimedOutError(
                    f"received {received} of {replies} replies in {settings.timeout:g} s"
                )


def _replies(
    settings: Settings,
    nc: Connection,
    message: Message,
    watch: PermissionWatch,
    most: int,
    between: float | None,
) -> Iterator[Msg]:
    """Send one request and yield its replies until the timeout, or ``between`` after the last one."""
    deadline, received = Deadline(settings.timeout), 0
    inbox = nc.new_inbox()
    # Not Connection.request(): a consumer replies with the subject of its message.
    with nc.subscribe(inbox) as sub:
        nc.publish(message.subject, message.body, inbox, message.headers)
        watch.flush(nc)
        while not most or received < most:
            left = deadline.left()
            if received and between is not None:
                left = min(left or 0.0, between)
            try:
                msg = sub.next_msg(left)
            except errors.TimeoutError:
                return
            if msg.status is not None and msg.status.code == StatusCode.NO_RESPONDERS:
                raise errors.NoRespondersError(message.subject)
            received += 1
            yield msg


# --- reply ---------------------------------------------------------------------------------------


@command()
@click.argument("subject")
@click.argument("body", required=False)
@option("--echo", "Reply with the body and headers of the request.")
@option(
    "--queue NAME",
    "Share the requests with the members of this queue group; '' for all requests.",
    default="jsm-reply",
)
@option("--count N", "Exit after N requests.", FROM_1)
def reply(
    settings: Settings, *, subject: str, body: str | None, echo: bool, queue: str, count: int | None
) -> None:
    """Answer the requests to SUBJECT with BODY until Ctrl-C, also after a restart of the server."""
    if echo == (body is not None):
        raise click.UsageError("give either BODY or --echo")
    with settings.connection(reconnects="always") as nc, nc.subscribe(subject, queue) as requests:
        nc.flush(settings.timeout)
        if not requests.is_valid:
            requests.unsubscribe()  # raises why the subscription has ended
        if not settings.json:
            say(settings, f"Listening on [{readable(subject)}]")
            settings.env.stdout.flush()
        for msg in itertools.islice(requests, count):
            document = {"subject": msg.subject, "size": len(msg.data)}
            text = f"Received [{readable(msg.subject)}] : '{readable(msg.data)}'"
            emit_item(settings, document, text)
            if msg.reply and echo:
                msg.respond(msg.data, msg.headers)
            elif msg.reply and body is not None:
                msg.respond(body.encode("utf-8", "surrogateescape"))
        nc.flush(settings.timeout)


# --- trace ---------------------------------------------------------------------------------------

_DESTINATION: Final = "Nats-Trace-Dest"
_ONLY: Final = "Nats-Trace-Only"
_HOP: Final = "Nats-Trace-Hop"

#: The kinds of connections: the name, the arrow and the name of the id.
_KINDS: Final = {
    0: ("Client", "--C", "cid"),
    1: ("Router", "-->", "rid"),
    2: ("Gateway", "==>", "gid"),
    3: ("System", "--S", "sid"),
    4: ("Leafnode", "~~>", "lid"),
    5: ("JetStream", "--J", "jid"),
    6: ("Account", "--A", "aid"),
}


@command()
@click.argument("subject")
@click.argument("body", required=False, default="")
@option("--deliver", "Deliver the message, and store it in streams.")
@header_option
def trace(
    settings: Settings, *, subject: str, body: str, deliver: bool, headers: list[tuple[str, str]]
) -> None:
    """
    Show which servers, subscriptions and streams would get a message, without delivering it.

    It needs nats-server 2.11.
    """
    with settings.connection() as nc:
        require_2_11(nc, "trace")
        inbox = nc.new_inbox()
        subscription = nc.subscribe(inbox)
        pairs = Headers(headers)
        pairs[_DESTINATION] = inbox
        if not deliver:
            pairs[_ONLY] = "true"
        nc.publish(subject, body_of(settings.env, body), headers=pairs)
        events: list[JSONObject] = []
        wanted = 1
        deadline = Deadline(settings.timeout)
        while len(events) < wanted:
            try:
                msg = wait_interruptibly(subscription.next_msg, deadline)
            except errors.TimeoutError:
                break
            events.append(parsed(msg.data, "trace event"))
            wanted += events[-1].get("hops") or 0
    if not events:
        raise TimedOutError("no trace arrived")
    emit(settings, events, lambda: _show_trace(settings, events))
    if len(events) < wanted:
        raise TimedOutError(f"{len(events)} of {wanted} servers sent a trace")


def _show_trace(settings: Settings, events: list[JSONObject]) -> None:
    by_hop = {"".join(_hop_of(event)): event for event in events}
    counts: Counter[str] = Counter()
    out = settings.env.stdout
    for depth, text in _trace_lines(by_hop, "", counts):
        out.write(single_line(f"{'    ' * depth}{text}") + "\n")
    arrows = " ".join(f"{name}: {arrow}" for name, arrow, _ in list(_KINDS.values())[:6])
    out.write(f"\nLegend: {arrows} Error: --X\n")
    if counts:
        listed = ", ".join(f"{kind}: {number}" for kind, number in sorted(counts.items()))
        out.write(f"Delivered to {listed}\n")


def _hop_of(event: JSONObject) -> list[str]:
    found: list[str] = (event.get("request", {}).get("header") or {}).get(_HOP) or []
    return found[:1]


def _trace_lines(
    by_hop: dict[str, JSONObject], hop: str, counts: Counter[str]
) -> Iterator[tuple[int, str]]:
    """Yield the depth and the text of the lines for a server and the servers behind it."""
    event = by_hop.get(hop)
    if event is None:
        yield 0, "--X no trace of this server"
        return
    steps = event.get("events") or []
    reached = False
    for step in steps:
        if step["type"] in ("eg", "js"):
            reached = True
            counts["JetStream" if step["type"] == "js" else _KINDS[step["kind"]][0]] += 1
        yield 0, _trace_line(event["server"], step)
        if step.get("error"):
            yield 0, f"--X Error: {step['error']}"
        if step.get("hop"):
            for depth, text in _trace_lines(by_hop, step["hop"], counts):
                yield depth + 1, text
    if steps and not reached and steps[0]["kind"] == 0 and not steps[0].get("error"):
        yield 0, "--X No active interest"


#: The start of the line of a step, and the names and keys of its values, by the type of the step.
_STEPS: Final = {
    "in": ("{kind}{name} {id}:{cid}", {"cluster": "cluster", "server": "server", "version": "ver"}),
    "sm": ("    Mapping", {"subject": "to"}),
    "se": ("    Stream Export", {"subject": "to", "account": "acc"}),
    "si": ("    Service Import", {"from": "from", "to": "to", "account": "acc"}),
    "js": ("--J JetStream", {"action": "action", "stream": "stream", "subject": "subject"}),
    "eg": (
        "{arrow} {kind}{name} {id}:{cid}",
        {"account": "acc", "subject": "sub", "queue": "queue"},
    ),
}


def _trace_line(server: JSONObject, step: JSONObject) -> str:
    """Return the text of a step."""
    kind, arrow, id_name = _KINDS.get(step.get("kind", 5), ("", "", "id"))
    name = f' "{step["name"]}"' if step.get("name") else ""
    head, keys = _STEPS.get(step["type"], ("{type}", {}))
    action = "no interest" if step.get("nointerest") else "stored"
    values = {**step, "action": action, "server": server.get("name")}
    if step["type"] == "in":
        values |= {name: server.get(name) for name in ("cluster", "ver")}
    found = ((label, values.get(key)) for label, key in keys.items())
    parts = {"kind": kind, "arrow": arrow, "name": name, "id": id_name, "cid": step.get("cid")}
    start = head.format(type=step["type"], **parts)
    return " ".join([start, *(f'{label}:"{value}"' for label, value in found if value)])
