"""``jsm reply``: answer requests."""

from __future__ import annotations

import itertools

import click

from ..env import readable
from ..output import emit_line, say
from ..settings import Settings, command
from ..values import FROM_1, option


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
            if settings.json:
                emit_line(settings, {"subject": msg.subject, "size": len(msg.data)})
            else:
                say(settings, f"Received [{readable(msg.subject)}] : '{readable(msg.data)}'")
                settings.env.stdout.flush()
            if msg.reply and echo:
                msg.respond(msg.data, msg.headers)
            elif msg.reply and body is not None:
                msg.respond(body.encode("utf-8", "surrogateescape"))
        nc.flush(settings.timeout)
