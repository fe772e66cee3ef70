"""``jsm trace``: show the way of a message through the servers (ADR-41)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from ... import Headers, errors
from ...exit_status import ExitStatus
from ...net.clock import Deadline
from ..shared.env import single_line
from ..shared.long_running import wait_interruptibly
from ..shared.output import emit
from ..shared.settings import Settings, command
from ..shared.status import CommandError
from ..shared.system import JSONObject, parsed
from ..shared.values import option
from .outgoing import body_of, header_option, require_2_11

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
        raise CommandError("no trace arrived", ExitStatus.TIMED_OUT)
    emit(settings, events, lambda: _show(settings, events))
    if len(events) < wanted:
        text = f"{len(events)} of {wanted} servers sent a trace"
        raise CommandError(text, ExitStatus.TIMED_OUT)


def _show(settings: Settings, events: list[JSONObject]) -> None:
    by_hop = {"".join(_hop_of(event)): event for event in events}
    counts: Counter[str] = Counter()
    out = settings.env.stdout
    for depth, text in _lines(by_hop, "", counts):
        out.write(single_line(f"{'    ' * depth}{text}") + "\n")
    arrows = " ".join(f"{name}: {arrow}" for name, arrow, _ in list(_KINDS.values())[:6])
    out.write(f"\nLegend: {arrows} Error: --X\n")
    if counts:
        listed = ", ".join(f"{kind}: {number}" for kind, number in sorted(counts.items()))
        out.write(f"Delivered to {listed}\n")


def _hop_of(event: JSONObject) -> list[str]:
    found: list[str] = (event.get("request", {}).get("header") or {}).get(_HOP) or []
    return found[:1]


def _lines(
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
        yield 0, _line(event["server"], step)
        if step.get("error"):
            yield 0, f"--X Error: {step['error']}"
        if step.get("hop"):
            for depth, text in _lines(by_hop, step["hop"], counts):
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


def _line(server: JSONObject, step: JSONObject) -> str:
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
