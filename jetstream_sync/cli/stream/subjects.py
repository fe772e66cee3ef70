"""``jsm stream subjects`` and ``gaps``: list the subjects and the deleted sequences of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from ..completion import complete_stream
from ..names import STREAM_NAME
from ..output import count, emit
from ..prompts import Asker
from ..render import Table, write_table
from ..sanitize import readable
from ..settings import Settings, common_options
from ..terminology import find_stream, words

__all__ = ["gaps", "subjects"]


@click.command()
@click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
@click.argument("pattern", required=False, default=">", metavar="[FILTER]")
@click.option(
    "--sort",
    type=click.Choice(["messages", "count", "name", "subjects"]),
    default="messages",
    help="Sort by number of messages, descending, or by name.",
)
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("-n", "--names", is_flag=True, help="Show only the subjects, one per line.")
@common_options
def subjects(
    settings: Settings, name: str | None, pattern: str, sort: str, reverse: bool, names: bool
) -> None:
    """List the subjects of a stream with message counts; FILTER may contain wildcards."""
    with settings.jetstream() as js:
        stream = find_stream(js, name, Asker(settings))
        counts = stream.info(subjects_filter=pattern).state.subjects or {}
    by_name = sort in ("name", "subjects")
    ordered = sorted(
        counts.items(),
        key=(lambda item: (0, item[0])) if by_name else (lambda item: (-item[1], item[0])),
        reverse=reverse,
    )
    out = settings.env.stdout
    if names:
        listed = [subject for subject, _ in ordered]
        emit(settings, listed, lambda: out.writelines(f"{readable(each)}\n" for each in listed))
        return

    def human() -> None:
        if not ordered:
            out.write("No subjects\n")
            return
        rows = [[subject, count(number)] for subject, number in ordered]
        title = f"Subjects of {words().stream.lower()} {stream.name}"
        write_table(Table(title=title, columns=["Subject", "Messages"], rows=rows), settings.env)

    emit(settings, dict(ordered), human)


@click.command()
@click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
@common_options
def gaps(settings: Settings, name: str | None) -> None:
    """List the deleted sequences between the first and the last message of a stream."""
    with settings.jetstream() as js:
        stream = find_stream(js, name, Asker(settings))
        state = stream.info(deleted_details=True).state
    found = _ranges(state.deleted or ())
    document: dict[str, Any] = {
        "stream": stream.name,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "deleted": sum(last - first + 1 for first, last in found),
        "gaps": [{"first_seq": first, "last_seq": last} for first, last in found],
    }

    def human() -> None:
        if not found:
            settings.env.stdout.write(f"{words().stream} {stream.name} has no gaps\n")
            return
        rows = [[count(first), count(last), count(last - first + 1)] for first, last in found]
        title = f"Gaps in {words().stream.lower()} {stream.name}"
        table = Table(title=title, columns=["First", "Last", "Messages"], rows=rows, left=0)
        write_table(table, settings.env)

    emit(settings, document, human)


def _ranges(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last sequence of each range of consecutive sequences."""
    ranges: list[tuple[int, int]] = []
    for seq in sequences:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = ranges[-1][0], seq
        else:
            ranges.append((seq, seq))
    return ranges
