"""``jsm consumer``: make, look at, read, change and remove consumers, the Observables of 2020."""

from __future__ import annotations

from typing import Final

import click

from ..groups import Later, NounGroup
from ..settings import Settings, common_options

__all__ = ["consumer"]


def _later(name: str, module: str, text: str, *aliases: str) -> tuple[str, Later]:
    target = f"jetstream_sync.cli.{module}:{name}"
    return name, Later(target=target, help=text, aliases=aliases)


_COMMANDS: Final = dict(
    [
        _later("add", "consumer.add", "Make a consumer.", "create", "new"),
        _later("ls", "consumer.list", "List the consumers of a stream.", "list", "l"),
        _later("info", "consumer.list", "Show a consumer's configuration and state.", "nfo", "i"),
        _later("state", "consumer.list", "Show where a consumer stands."),
        _later("report", "consumer.report", "Compare the consumers of a stream in a table."),
        _later("next", "consumer.next", "Get messages from a consumer, and acknowledge them.", "n"),
        _later("sub", "consumer.sub", "Show a consumer's messages as they come."),
        _later("sample", "consumer.sample", "Show samples of acknowledgements as they come."),
        _later("edit", "consumer.edit", "Change a consumer.", "update"),
        _later("copy", "consumer.edit", "Make a consumer like another one.", "cp"),
        _later("rm", "consumer.remove", "Remove consumers.", "delete", "del"),
        _later("pause", "consumer.control", "Let a consumer deliver nothing for a while."),
        _later("resume", "consumer.control", "Let a paused consumer deliver again."),
        _later("unpin", "consumer.control", "Take the pin of a group from its client."),
        _later("reset", "consumer.control", "Let a consumer start over."),
        _later("dlq", "dlq.group", "Dead letters: what was delivered as often as it may be."),
    ]
)


@click.group(cls=NounGroup, later=_COMMANDS)
@common_options
def consumer(_settings: Settings) -> None:
    """
    Make, look at, read, change and remove consumers.

    They were Observables in 2020: 'jsm obs' is the same, and speaks of them so.
    """
