"""``jsm trace``: show the way of a message through the servers (ADR-41)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import click

from ... import Headers
from ...durations import seconds_text, time_from_text
from ...errors import InvalidResponseError, TimeoutError
from ...net.clock import Deadline
from ..env import single_line
from ..long_running import wait_interruptibly
from ..output import emit
from ..settings import Settings, command
from ..status import CommandError, ExitStatus
from ..values import option
from .outgoing import body_of, header_option, require_2_11

Event = dict[str, Any]

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
@option("-T, --timestamp", "Show the time since the message arrived.")
@header_option
def trace(
    settings: Settings,
    *,
    subject: str,
    body: str,
    deliver: bool,
    timestamp: bool,
    headers: list[tuple[str, str]],
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
        events: list[Event] = []
        wanted = 1
        deadline = Deadline(settings.timeout)
        while len(events) < wanted:
            try:
                msg = wait_interruptibly(subscription.next_msg, deadline)
            except TimeoutError:
                break
            try:
                events.append(json.loads(msg.data))
                wanted += int(events[-1].get("hops", 0))
            except (ValueError, AttributeError) as error:
                raise InvalidResponseError(f"invalid trace event: {error}") from error
    if not events:
        raise CommandError("no trace arrived", ExitStatus.TIMED_OUT)
    emit(settings, events, lambda: _show(settings, events, timestamp=timestamp))
    if len(events) < wanted:
        text = f"{len(events)} of {wanted} servers sent a trace"
        raise CommandError(text, ExitStatus.TIMED_OUT)


def _show(settings: Settings, events: list[Event], *, timestamp: bool) -> None:
    by_hop = {"".join(_header(event, _HOP)): event for event in events}
    counts: Counter[str] = Counter()
    out = settings.env.stdout
    for depth, at, text in _lines(by_hop, "", "", counts):
        prefix = f"[{seconds_text(at)}] " if timestamp else ""
        out.write(single_line(f"{'    ' * depth}{prefix}{text}") + "\n")
    arrows = " ".join(f"{name}: {arrow}" for name, arrow, _ in list(_KINDS.values())[:6])
    out.write(f"\nLegend: {arrows} Error: --X\n")
    if counts:
        listed = ", ".join(f"{kind}: {number}" for kind, number in sorted(counts.items()))
        out.write(f"Delivered to {listed}\n")


def _header(event: Event, name: str) -> list[str]:
    found: list[str] = (event.get("request", {}).get("header") or {}).get(name) or []
    return found[:1]


def _lines(
    by_hop: dict[str, Event], hop: str, start: str, counts: Counter[str]
) -> Iterator[tuple[int, timedelta, str]]:
    """Yield the lines for a server and the servers behind it: the depth, the time since ``start``, the text."""
    event = by_hop.get(hop)
    if event is None:
        yield 0, timedelta(0), "--X no trace of this server"
        return
    steps = event.get("events") or []
    reached = False
    for step in steps:
        start = start or step["ts"]
        at = time_from_text(step["ts"]) - time_from_text(start)
        reached = reached or step["type"] in ("eg", "js")
        if step["type"] in ("eg", "js"):
            counts["JetStream" if step["type"] == "js" else _KINDS[step["kind"]][0]] += 1
        yield 0, at, _line(event["server"], step)
        if step.get("error"):
            yield 0, at, f"--X Error: {step['error']}"
        if step.get("hop"):
            for depth, later, text in _lines(by_hop, step["hop"], start, counts):
                yield depth + 1, later, text
    if steps and not reached and steps[0]["kind"] == 0 and not steps[0].get("error"):
        yield 0, timedelta(0), "--X No active interest"


def _line(server: Event, step: Event) -> str:
    """Return the text of a step."""
    kind, arrow, id_name = _KINDS.get(step.get("kind", 5), ("", "", "id"))
    name = f' "{step["name"]}"' if step.get("name") else ""
    account = {"account": step.get("acc")}
    head, fields = {
        "in": (
            f"{kind}{name} {id_name}:{step.get('cid')}",
            {
                "cluster": server.get("cluster"),
                "server": server.get("name"),
                "version": server.get("ver"),
            },
        ),
        "sm": ("    Mapping", {"subject": step.get("to")}),
        "se": ("    Stream Export", {"subject": step.get("to"), **account}),
        "si": ("    Service Import", {"from": step.get("from"), "to": step.get("to"), **account}),
        "js": (
            "--J JetStream",
            {
                "action": "no interest" if step.get("nointerest") else "stored",
                "stream": step.get("stream"),
                "subject": step.get("subject"),
            },
        ),
        "eg": (
            f"{arrow} {kind}{name} {id_name}:{step.get('cid')}",
            {**account, "subject": step.get("sub"), "queue": step.get("queue")},
        ),
    }.get(step["type"], (step["type"], {}))
    return " ".join([head, *(f'{key}:"{value}"' for key, value in fields.items() if value)])
