"""``jsm req``: send a request and show the replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...errors import NoRespondersError, TimeoutError
from ...net.clock import Deadline, monotonic
from ..sanitize import readable
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import TIMEOUT
from .outgoing import Message, PermissionWatch, message_options, outgoing
from .view import MessageWriter, header_lines

if TYPE_CHECKING:
    from ... import Connection, Msg

#: The status of the server's reply when there are no responders.
_NO_RESPONDERS = 503


@click.command()
@click.argument("subject")
@click.argument("body", required=False)
@message_options
@click.option(
    "--replies",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Wait for N replies; 0: all within the timeout.",
)
@click.option(
    "--reply-timeout",
    type=TIMEOUT,
    metavar="TIME",
    help="With several replies, wait TIME for the next one.  [default: rest of --timeout]",
)
@click.option("--count", type=click.IntRange(1), default=1, metavar="N", help="Send N requests.")
@click.option("-r", "--raw", is_flag=True, help="Show only the bodies.")
@common_options
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
    requester = _Requester(settings, replies, reply_timeout, raw=raw, several=several)
    watch = PermissionWatch()
    with settings.connection(error_cb=watch.on_error) as nc:
        for message in messages:
            requester.request(nc, message, lambda: watch.check(nc))


class _Requester:
    """
    Sends requests and shows the replies.

    Args:
        settings: the settings of the command.
        replies: the number of replies to wait for; 0: all before the timeout.
        between: the timeout for each further reply in seconds; ``None``: the rest of the timeout.
        raw: whether to show only the bodies.
        several: whether there may be more than one reply in total.

    """

    def __init__(
        self, settings: Settings, replies: int, between: float | None, *, raw: bool, several: bool
    ) -> None:
        self._settings = settings
        self._replies = replies
        self._between = between
        self._raw = raw
        self._started = monotonic()
        self._writer = MessageWriter(settings, self._text, raw=raw, single=not several)

    def request(self, nc: Connection, message: Message, check: Callable[[], None]) -> None:
        """
        Send one request and show its replies.

        Args:
            nc: the connection.
            message: the request.
            check: called after the request was flushed; raises a permission error.

        Raises:
            NoRespondersError: the subject has no responders.
            PermissionsError: the server denied the request.
            TimeoutError, CommandError: there were not enough replies in time.

        """
        self._started = monotonic()
        timeout = self._settings.timeout
        if not self._settings.json and not self._raw:
            self._write(f"Published [{readable(message.subject)}] : '{readable(message.body)}'\n")
        deadline = Deadline(timeout)
        inbox = nc.new_inbox()
        replies = 0
        # Not Connection.request(): a consumer replies with the subject of its message.
        with nc.subscribe(inbox) as sub:
            nc.publish(message.subject, message.body, inbox, message.headers)
            nc.flush(timeout)
            check()
            while self._replies == 0 or replies < self._replies:
                left = deadline.left()
                if replies and self._between is not None:
                    left = min(left or 0.0, self._between)
                try:
                    msg = sub.next_msg(left)
                except TimeoutError:
                    break
                if msg.status is not None and msg.status.code == _NO_RESPONDERS:
                    raise NoRespondersError(message.subject)
                replies += 1
                self._writer.write(msg)
        if not replies:
            raise CommandError(
                f"no reply on {readable(message.subject)!r} in {timeout:g} s",
                ExitStatus.TIMED_OUT,
            )
        if replies < self._replies:
            raise CommandError(
                f"received {replies} of {self._replies} replies in {timeout:g} s",
                ExitStatus.TIMED_OUT,
            )

    def _text(self, msg: Msg, body: bytes) -> str:
        took = (monotonic() - self._started) * 1000
        said = f"'{readable(body)}'"
        if msg.status is not None:
            said = f"status {msg.status.code} {readable(msg.status.description)}"
        line = f"Received [{readable(msg.subject)}] : {said} in {took:.2f} ms\n"
        return "".join([line, *(f"  {each}\n" for each in header_lines(msg.headers))])

    def _write(self, text: str) -> None:
        self._settings.env.stdout.write(text)
        self._settings.env.stdout.flush()
