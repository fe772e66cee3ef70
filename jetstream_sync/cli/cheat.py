"""``jsm cheat``: short recipes."""

from __future__ import annotations

from typing import Final

import click

from .output import emit
from .settings import Settings, common_options

__all__ = ["TOPICS", "cheat"]

#: For each topic, what one may want, and the commands that do it.
TOPICS: Final[dict[str, list[tuple[str, str]]]] = {
    "account": [
        ("What may I use, and what do I use?", "jsm account info"),
        ("Is the server there, and how far away is it?", "jsm rtt"),
    ],
    "stream": [
        ("Make a stream, asking what it should be", "jsm stream add ORDERS"),
        (
            "Make one without questions",
            "jsm stream add ORDERS --subjects 'ORDERS.*' --storage file --max-age 1y --defaults",
        ),
        ("Look at it", "jsm stream info ORDERS"),
        ("Look at its messages", "jsm stream view ORDERS"),
        ("Delete all that is in it", "jsm stream purge ORDERS"),
        ("See what a change would do", "jsm stream edit ORDERS --max-age 30d --dry-run"),
        ("Keep a copy in a directory", "jsm stream backup ORDERS ./backup"),
    ],
    "consumer": [
        (
            "Make one to pull from",
            "jsm consumer add ORDERS NEW --pull --filter ORDERS.received --ack explicit",
        ),
        (
            "Make one that delivers to a subject",
            "jsm consumer add ORDERS MONITOR --target monitor.ORDERS --ack none --deliver last",
        ),
        ("Take the next message, and acknowledge it", "jsm consumer next ORDERS NEW"),
        ("Take all that is there, for a program", "jsm consumer next ORDERS NEW --count 100 -j"),
        ("Where does it stand?", "jsm consumer info ORDERS NEW"),
        ("Which messages were given up?", "jsm consumer dlq ls ORDERS NEW"),
    ],
    "messages": [
        ("Publish, and know that it is stored", "jsm pub -J ORDERS.received 'order 1'"),
        (
            "Publish a hundred, each another",
            "jsm pub ORDERS.received 'order {{Count}}' --count 100",
        ),
        ("Publish each line of a file", "jsm pub ORDERS.received --send-on newline < orders.txt"),
        ("See what comes", "jsm sub 'ORDERS.*'"),
        ("Ask, and see the answer", "jsm req help.me 'please'"),
    ],
    "context": [
        (
            "Save a login, and use it from now on",
            "jsm context add prod --server tls://nats.example.com --creds prod.creds --select",
        ),
        ("How would I connect now, and why?", "jsm context info"),
        ("Use another one once", "jsm --context staging stream ls"),
        ("Go back to the one before", "jsm context previous"),
    ],
    "operations": [
        ("Watch all streams and consumers", "jsm top"),
        ("Have streams and consumers as a file says", "jsm apply -f orders.yaml --dry-run"),
        ("What does this error mean?", "jsm errors lookup 10059"),
        ("What do servers tell?", "jsm events"),
        ("How fast is it?", "jsm bench publish --msgs 10000"),
        ("Run a server to try things", "jsm server run"),
        ("See requests and answers", "JSM_TRACE=1 jsm stream info ORDERS"),
    ],
}


@click.command()
@click.argument("topic", required=False, type=click.Choice(list(TOPICS)), metavar="[TOPIC]")
@common_options
def cheat(settings: Settings, *, topic: str | None) -> None:
    """
    Show short recipes: of one TOPIC, or all of them.

    Topics are account, stream, consumer, messages, context and operations.
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
