"""``jsm stream ls``: list the streams of the account."""

from __future__ import annotations

import click

from ... import StreamInfo
from ..output import count, emit, size, when
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..terminology import words

__all__ = ["is_internal", "list_text", "ls"]

#: Name prefixes of the streams of key-value buckets, object stores and MQTT.
_INTERNAL_PREFIXES = ("KV_", "OBJ_", "$MQTT_")


def is_internal(name: str) -> bool:
    """Return whether a stream belongs to a key-value bucket, an object store or MQTT."""
    return name.startswith(_INTERNAL_PREFIXES)


@click.command()
@click.option("-n", "--names", is_flag=True, help="Show only the names, one per line.")
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Include internal streams, such as those of buckets.",
)
@click.option("--subject", metavar="SUBJECT", help="List only streams that store this subject.")
@common_options
def ls(settings: Settings, names: bool, everything: bool, subject: str | None) -> None:
    """List the streams of the account."""
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
    Write streams as a table, or as the list of the 2020 CLI if its command names are used.

    Args:
        settings: the settings of the command.
        infos: the streams.
        none: the verb if there are no streams, as in "No Streams defined".

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
