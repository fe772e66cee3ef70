"""``jsm req``: send a request, and show the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...errors import NoRespondersError, TimeoutError
from ...net.clock import Deadline, monotonic
from ..output import emit_line
from ..permission_watch import PermissionWatch
from ..render import to_json
from ..sanitize import readable
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import TIMEOUT
from .outgoing import Message, message_options, outgoing
from .shown import header_fields, message_document, write_bytes

if TYPE_CHECKING:
    from ... import Connection, Msg

__all__ = ["req"]

#: The status of the answer that a server gives when nobody else does.
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
    help="Wait for so many answers; 0: for all that come within the timeout.",
)
@click.option(
    "--reply-timeout",
    type=TIMEOUT,
    metavar="TIME",
    help="With several answers: how long to wait after each.  [default: the rest of --timeout]",
)
@click.option("--count", type=click.IntRange(1), default=1, metavar="N", help="Ask N times.")
@click.option("-r", "--raw", is_flag=True, help="Show the bodies, and nothing else.")
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
    Send BODY to SUBJECT as a request, and show what is answered.

    Without BODY, or when it is '-', standard input is the request.

    The exit status is 6 when nobody listens on SUBJECT, and 4 when fewer answers than wanted came
    within --timeout.

    \b
    Examples:
      jsm req ORDERS.scratch hello
      jsm req '$JS.API.STREAM.INFO.ORDERS' '' --raw
      jsm req discover '' --replies 0 --timeout 1s
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    messages = outgoing(settings, subject, body, **options)
    several = replies != 1 or options["count"] > 1 or options["send_on"] == "newline"
    asking = _Asking(settings, replies, reply_timeout, raw=raw, several=several)
    watch = PermissionWatch()
    with settings.connection(error_cb=watch.on_error) as nc:
        for message in messages:
            asking.ask(nc, message, lambda: watch.check(nc))


class _Asking:
    """
    Asks, and shows the answers.

    Args:
        settings: has the streams, the timeout, and whether the output is JSON.
        replies: how many answers are wanted; 0: all that come in time.
        between: seconds to wait after each of several answers; ``None``: as long as there is time.
        raw: show the bodies only.
        several: whether there may be more than one answer in all.

    """

    def __init__(
        self, settings: Settings, replies: int, between: float | None, *, raw: bool, several: bool
    ) -> None:
        self._settings = settings
        self._replies = replies
        self._between = between
        self._raw = raw
        self._several = several

    def ask(self, nc: Connection, message: Message, check: Callable[[], None]) -> None:
        """
        Send one request and show what is answered.

        Args:
            nc: the connection.
            message: what is asked.
            check: called when the server has the request; it raises that it was refused.

        Raises:
            NoRespondersError: nobody listens.
            PermissionsError: the server did not take it.
            TimeoutError, CommandError: there were not enough answers in time.

        """
        started = monotonic()
        timeout = self._settings.timeout
        if not self._settings.json and not self._raw:
            self._write(f"Published [{readable(message.subject)}] : '{readable(message.body)}'\n")
        deadline = Deadline(timeout)
        inbox = nc.new_inbox()
        answers = 0
        # Not Connection.request(): a consumer's answer comes on the subject of its message.
        with nc.subscribe(inbox) as sub:
            nc.publish(message.subject, message.body, inbox, message.headers)
            nc.flush(timeout)
            check()
            while self._replies == 0 or answers < self._replies:
                left = deadline.left()
                if answers and self._between is not None:
                    left = min(left or 0.0, self._between)
                try:
                    msg = sub.next_msg(left)
                except TimeoutError:
                    break
                if msg.status is not None and msg.status.code == _NO_RESPONDERS:
                    raise NoRespondersError(message.subject)
                answers += 1
                self._show(msg, started)
        if not answers:
            raise CommandError(
                f"no answer on {readable(message.subject)!r} in {timeout:g} s",
                ExitStatus.TIMED_OUT,
            )
        if answers < self._replies:
            raise CommandError(
                f"{answers} of {self._replies} answers came in {timeout:g} s", ExitStatus.TIMED_OUT
            )

    def _show(self, msg: Msg, started: float) -> None:
        if self._raw:
            write_bytes(self._settings.env, msg.data + b"\n")
        elif not self._settings.json:
            took = (monotonic() - started) * 1000
            said = f"'{readable(msg.data)}'"
            if msg.status is not None:
                said = f"status {msg.status.code} {readable(msg.status.description)}"
            lines = [f"Received [{readable(msg.subject)}] : {said} in {took:.2f} ms\n"]
            headers: dict[str, list[str]] = header_fields(msg.headers).get("headers", {})
            for name, values in headers.items():
                lines += [f"  {name}: {readable(value)}\n" for value in values]
            self._write("".join(lines))
        elif self._several:
            emit_line(self._settings, message_document(msg))
        else:
            self._write(to_json(message_document(msg)))

    def _write(self, text: str) -> None:
        self._settings.env.stdout.write(text)
        self._settings.env.stdout.flush()
