"""``jsm stream ls``: the streams of the account."""

from __future__ import annotations

import click

from ... import StreamInfo
from ..output import count, emit, size, when
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..terminology import words

__all__ = ["is_internal", "list_text", "ls"]

#: How the names of streams begin that belong to something else: buckets, object stores, MQTT.
_INTERNAL = ("KV_", "OBJ_", "$MQTT_")


def is_internal(name: str) -> bool:
    """Say whether a stream belongs to a bucket, an object store or MQTT."""
    return name.startswith(_INTERNAL)


@click.command()
@click.option("-n", "--names", is_flag=True, help="Only the names, one in each line.")
@click.option("-a", "--all", "everything", is_flag=True, help="Those of buckets and stores, too.")
@click.option("--subject", metavar="SUBJECT", help="Only streams that take messages of it.")
@common_options
def ls(settings: Settings, names: bool, everything: bool, subject: str | None) -> None:
    """List streams."""
    if names:
        with settings.jetstream() as js:
            found = [
                name for name in js.stream_names(subject) if everything or not is_internal(name)
            ]
        emit(settings, found, lambda: settings.env.stdout.writelines(f"{each}\n" for each in found))
        return
    with settings.jetstream() as js:
        infos = [
            each
            for each in js.list_streams(subject)
            if everything or not is_internal(each.config.name)
        ]
    emit(settings, infos, lambda: list_text(settings, infos))


def list_text(settings: Settings, infos: list[StreamInfo], none: str = "defined") -> None:
    """
    Write streams for a person: in the form of 2020 to who types its words, else as a table.

    Args:
        settings: of the command.
        infos: the streams.
        none: what no stream is where there is none: ``defined``.

    """
    noun = words()
    out = settings.env.stdout
    if not infos:
        out.write(f"No {noun.streams} {none}\n")
        return
    if noun.old:
        out.write(f"{noun.streams}:\n\n")
        out.writelines(f"\t{each.config.name}\n" for each in infos)
        return
    rows = [
        [
            each.config.name,
            each.config.description or "",
            when(settings, each.created),
            count(each.state.messages),
            size(each.state.bytes),
            when(settings, each.state.last_ts),
        ]
        for each in infos
    ]
    columns = ["Name", "Description", "Created", "Messages", "Size", "Last Message"]
    write_table(Table(title=noun.streams, columns=columns, rows=rows, left=3), settings.env)
