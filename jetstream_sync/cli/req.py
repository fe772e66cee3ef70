"""``jsm req`` and ``jsm reply``: send requests, and answer them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import NoRespondersError, TimeoutError
from ..net.clock import Deadline, monotonic
from .env import readable
from .outgoing import Message, PermissionWatch, message_options, outgoing
from .output import emit_item, say
from .settings import Settings, command
from .status import CommandError, ExitStatus
from .values import FROM_0, FROM_1, TIMEOUT, option
from .view import MessageWriter, header_lines

if TYPE_CHECKING:
    from .. import Connection, Msg

#: The status of the server's reply when there are no responders.
_NO_RESPONDERS = 503


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

    \b
    Examples:
      jsm req ORDERS.scratch hello
      jsm req '$JS.API.STREAM.INFO.ORDERS' '' --raw
      jsm req discover '' --replies 0 --timeout 1s
    """  # noqa: D301 - click requires the character, not the escape
    messages = outgoing(settings, subject, body, **options)
    several = replies != 1 or options["count"] > 1 or options["send_on"] == "newline"
    started = monotonic()

    def text(msg: Msg) -> str:
        took = (monotonic() - started) * 1000
        shown = f"'{readable(msg.data)}'"
        if msg.status is not None:
            shown = f"status {msg.status.code} {readable(msg.status.description)}"
        line = f"Received [{readable(msg.subject)}] : {shown} in {took:.2f} ms\n"
        return "".join([line, *(f"  {each}\n" for each in header_lines(msg.headers))])

    writer = MessageWriter(settings, text, raw=raw, single=not several)
    watch = PermissionWatch()
    with settings.connection(error_cb=watch.on_error) as nc:
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
                raise CommandError(
                    f"no reply on {readable(message.subject)!r} in {settings.timeout:g} s",
                    ExitStatus.TIMED_OUT,
                )
            if received < replies:
                raise CommandError(
                    f"received {received} of {replies} replies in {settings.timeout:g} s",
                    ExitStatus.TIMED_OUT,
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
        nc.flush(settings.timeout)
        watch.check(nc)
        while not most or received < most:
            left = deadline.left()
            if received and between is not None:
                left = min(left or 0.0, between)
            try:
                msg = sub.next_msg(left)
            except TimeoutError:
                return
            if msg.status is not None and msg.status.code == _NO_RESPONDERS:
                raise NoRespondersError(message.subject)
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
    settings: Settings,
    *,
    subject: str,
    body: str | None,
    echo: bool,
    queue: str,
    count: int | None,
) -> None:
    """
    Answer the requests to SUBJECT with BODY until Ctrl-C.

    \b
    Examples:
      jsm reply ORDERS.scratch ok
      jsm reply 'test.>' --echo
    """  # noqa: D301 - click requires the character, not the escape
    if echo == (body is not None):
        raise click.UsageError("give either BODY or --echo")
    with settings.connection() as nc, nc.subscribe(subject, queue) as requests:
        nc.flush(settings.timeout)
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
