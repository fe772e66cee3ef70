"""``jsm cheat``: short recipes."""

from __future__ import annotations

from typing import Final

import click

from .output import emit
from .settings import Settings, common_options

#: For each topic, tasks and the commands that do them.
TOPICS: Final[dict[str, list[tuple[str, str]]]] = {
    "account": [
        ("Show usage and limits", "jsm account info"),
        ("Measure the round-trip time to the server", "jsm rtt"),
    ],
    "stream": [
        ("Create a stream interactively", "jsm stream add ORDERS"),
        (
            "Create a stream without prompts",
            "jsm stream add ORDERS --subjects 'ORDERS.*' --storage file --max-age 1y --defaults",
        ),
        ("Show its configuration and state", "jsm stream info ORDERS"),
        ("Page through its messages", "jsm stream view ORDERS"),
        ("Delete all its messages", "jsm stream purge ORDERS"),
        ("Preview a configuration change", "jsm stream edit ORDERS --max-age 30d --dry-run"),
        ("Back it up to a directory", "jsm stream backup ORDERS ./backup"),
    ],
    "consumer": [
        (
            "Create a pull consumer",
            "jsm consumer add ORDERS NEW --pull --filter ORDERS.received --ack explicit",
        ),
        (
            "Create a push consumer",
            "jsm consumer add ORDERS MONITOR --target monitor.ORDERS --ack none --deliver last",
        ),
        ("Fetch the next message and acknowledge it", "jsm consumer next ORDERS NEW"),
        ("Fetch up to 100 messages as JSON", "jsm consumer next ORDERS NEW --count 100 -j"),
        ("Show its configuration and state", "jsm consumer info ORDERS NEW"),
        ("List its dead letters", "jsm consumer dlq ls ORDERS NEW"),
    ],
    "kv": [
        ("Create a bucket", "jsm kv add CONFIG --history 5"),
        ("Store a value", "jsm kv put CONFIG db.url postgres://db.example.com"),
        ("Store a file", "jsm kv put CONFIG logo < logo.png"),
        ("Read a value", "jsm kv get CONFIG db.url"),
        ("Store a value if the key does not exist", "jsm kv create CONFIG lock host-1"),
        ("Replace revision 3 of a value", "jsm kv update CONFIG lock host-2 3"),
        ("List keys and values", "jsm kv ls CONFIG --display-value"),
        ("Show changes as they happen", "jsm kv watch CONFIG 'db.*' --updates"),
        ("Show the stored revisions of a key", "jsm kv history CONFIG db.url"),
        ("Delete a key", "jsm kv del CONFIG db.url --force"),
    ],
    "object": [
        ("Create a bucket", "jsm object add FILES --max-bucket-size 10GB"),
        ("Store a file", "jsm object put FILES report.pdf"),
        ("Store standard input", "jsm object put FILES --name src.tar.gz < src.tar.gz"),
        ("Read an object to a file", "jsm object get FILES report.pdf --output copy.pdf"),
        ("Read an object to a pipe", "jsm object get FILES src.tar.gz -O -"),
        ("List objects", "jsm object ls FILES"),
        ("Link a name to an object", "jsm object link FILES latest.pdf report.pdf"),
        ("Make a bucket read-only", "jsm object seal FILES"),
    ],
    "messages": [
        (
            "Publish a message and wait for the acknowledgement",
            "jsm pub -J ORDERS.received 'order 1'",
        ),
        (
            "Publish a hundred different messages",
            "jsm pub ORDERS.received 'order {{Count}}' --count 100",
        ),
        ("Publish each line of a file", "jsm pub ORDERS.received --send-on newline < orders.txt"),
        ("Show messages as they arrive", "jsm sub 'ORDERS.*'"),
        ("Send a request and show the reply", "jsm req help.me 'please'"),
    ],
    "context": [
        (
            "Save a login and select it",
            "jsm context add prod --server tls://nats.example.com --creds prod.creds --select",
        ),
        ("Show the effective login and its sources", "jsm context info"),
        ("Use another context for one command", "jsm --context staging stream ls"),
        ("Select the previous context", "jsm context previous"),
    ],
    "operations": [
        ("Watch all streams and consumers", "jsm top"),
        ("Preview streams and consumers from a file", "jsm apply -f orders.yaml --dry-run"),
        ("Look up an error code", "jsm errors lookup 10059"),
        ("Show advisories and metrics", "jsm events"),
        ("Measure publish throughput", "jsm bench publish --msgs 10000"),
        ("Run a server for development", "jsm server run"),
        ("Trace requests and replies", "JSM_TRACE=1 jsm stream info ORDERS"),
    ],
}


@click.command()
@click.argument("topic", required=False, type=click.Choice(list(TOPICS)), metavar="[TOPIC]")
@common_options
def cheat(settings: Settings, *, topic: str | None) -> None:
    """
    Show short recipes for a TOPIC, or all of them.

    Topics are account, stream, consumer, kv, object, messages, context and operations.
    """
    chosen = {topic: TOPICS[topic]} if topic else TOPICS

    def human() -> None:
        parts = [
            f"{name.title()}\n\n" + "\n".join(f"  # {why}\n  {how}\n" for why, how in recipes)
            for name, recipes in chosen.items()
        ]
        settings.env.stdout.write("\n".join(parts))

    result = {
        name: [{"purpose": why, "command": how} for why, how in recipes]
        for name, recipes in chosen.items()
    }
    emit(settings, result, human)
