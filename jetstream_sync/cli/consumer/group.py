"""``jsm consumer``: make, look at, read, change and remove consumers, the Observables of 2020."""

from __future__ import annotations

from typing import Final

import click

from ..groups import LazyCommand, NounGroup
from ..settings import Settings, common_options

__all__ = ["consumer"]


def _lazy(name: str, module: str, text: str, *aliases: str) -> tuple[str, LazyCommand]:
    target = f"jetstream_sync.cli.{module}:{name}"
    return name, LazyCommand(target=target, help=text, aliases=aliases)


_COMMANDS: Final = dict(
    [
        _lazy("add", "consumer.add", "Make a consumer.", "create", "new"),
        _lazy("ls", "consumer.list", "List the consumers of a stream.", "list", "l"),
        _lazy("info", "consumer.list", "Show a consumer's configuration and state.", "nfo", "i"),
        _lazy("state", "consumer.list", "Show where a consumer stands."),
        _lazy("report", "consumer.report", "Compare the consumers of a stream in a table."),
        _lazy("next", "consumer.next", "Get messages from a consumer, and acknowledge them.", "n"),
        _lazy("sub", "consumer.sub", "Show a consumer's messages as they come."),
        _lazy("sample", "consumer.sample", "Show samples of acknowledgements as they come."),
        _lazy("edit", "consumer.edit", "Change a consumer.", "update"),
        _lazy("copy", "consumer.edit", "Make a consumer like another one.", "cp"),
        _lazy("rm", "consumer.remove", "Remove consumers.", "delete", "del"),
        _lazy("pause", "consumer.control", "Let a consumer deliver nothing for a while."),
        _lazy("resume", "consumer.control", "Let a paused consumer deliver again."),
        _lazy("unpin", "consumer.control", "Take the pin of a group from its client."),
        _lazy("reset", "consumer.control", "Let a consumer start over."),
        _lazy("dlq", "dlq.group", "Dead letters: what was delivered as often as it may be."),
    ]
)


@click.group(cls=NounGroup, lazy=_COMMANDS)
@common_options
def consumer(_settings: Settings) -> None:
    """
    Make, look at, read, change and remove consumers.

    They were Observables in 2020: 'jsm obs' is the same, and speaks of them so.
    """
