"""
Output of commands: one JSON document with ``--json``, else text with labels and values.

In text, numbers have separators, bytes are in units of 1024 and times are local with their offset. In
JSON, all values are as the server sent them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ...durations import duration_from_ns, seconds_text
from .env import json_text, readable_json, single_line
from .settings import Settings

# --- what is not known ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Missing:
    """A record that could not be read, as a row of a listing: its name, and why its values are not known."""

    name: str
    """The text of the first column."""
    document: Mapping[str, Any]
    """The fields that are known, as in JSON."""
    state: str
    """``unreachable``: its servers did not reply; ``offline``: they cannot run it, or are down."""
    reason: str


# --- JSON ---------------------------------------------------------------------------------------


def to_json(document: object) -> str:
    """Return a document as indented JSON with a final line break, safe to show on a terminal."""
    return readable_json(json_text(document, indent=2)) + "\n"


def emit(settings: Settings, result: object, human: Callable[[], object]) -> None:
    """Write a result: as one JSON document with ``--json``, else as text."""
    if settings.json:
        settings.env.stdout.write(to_json(_plain(result)))
    else:
        human()


def emit_list(settings: Settings, results: Iterable[object]) -> None:
    """Write results as a JSON list, each as it comes; the list is complete also if an error ends it."""
    out = settings.env.stdout
    before = "[\n"
    try:
        for result in results:
            item = to_json(_plain(result))[:-1].replace("\n", "\n  ")
            out.write(f"{before}  {item}")
            before = ",\n"
    finally:
        out.write("[]\n" if before == "[\n" else "\n]\n")


def emit_text(settings: Settings, result: object, text: str) -> None:
    """Write a result as JSON with ``--json``, else a text; an empty one writes nothing."""
    emit(settings, result, lambda: settings.env.stdout.write(f"{text}\n" if text else ""))


def emit_names(settings: Settings, names: Sequence[str]) -> None:
    """Write names, one per line in text."""
    emit_text(settings, names, "\n".join(map(single_line, names)))


def emit_line(settings: Settings, result: object) -> None:
    """Write one of many results as JSON and flush: one line each, or indented on a terminal."""
    out = settings.env.stdout
    if out.isatty():
        out.write(to_json(_plain(result)))
    else:
        text = json_text(_plain(result), compact=True)
        out.write(f"{readable_json(text)}\n")
    out.flush()


def emit_item(settings: Settings, result: object, text: str) -> None:
    """Write one of many results and flush: with ``--json`` as `emit_line` does, else a text."""
    if settings.json:
        emit_line(settings, result)
    else:
        settings.env.stdout.write(f"{text}\n")
        settings.env.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, Missing):
        return {**value.document, "missing": {"state": value.state, "reason": value.reason}}
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, int, float, type(None))):
        return value
    from ...codec import Record, encode  # noqa: PLC0415 - the help of a command needs no JSON

    # As the server sent it, with unknown fields included.
    return encode(value) if isinstance(value, Record) else value


# --- text ----------------------------------------------------------------------------


def say(settings: Settings, text: str) -> None:
    """Write a line of text to ``stdout``; write nothing with ``--json``."""
    if not settings.json:
        settings.env.stdout.write(f"{text}\n")


def announce(settings: Settings, text: str) -> None:
    """Write a line to ``stderr`` that says what the command does from now on."""
    settings.env.stderr.write(f"{text}\n")
    settings.env.stderr.flush()


@contextmanager
def deletions(settings: Settings, line: Callable[[str], str]) -> Iterator[list[str]]:
    """
    Yield a list for the names of what is deleted, and report them at the end, also after an error.

    `line`: returns the text for a name, which is written to ``stderr``.
    """
    deleted: list[str] = []
    try:
        yield deleted
    finally:
        emit_text(settings, {"deleted": deleted}, "")
        for name in [] if settings.json else deleted:
            settings.env.stderr.write(f"{line(name)}\n")


# --- values -------------------------------------------------------------------------------------


def count(number: int) -> str:
    """Return a number with separators: ``1,000,001``."""
    return f"{number:,}"


def limit(number: int | None, shown: Callable[[int], str] = count) -> str:
    """Return a limit; ``None`` and negative numbers are ``Unlimited``."""
    return "Unlimited" if number is None or number < 0 else shown(number)


def size(number: int | None) -> str:
    """Return bytes in units of 1024: ``147 B``, ``6.4 GiB``; nothing for ``None``."""
    if number is None:
        return ""
    if number < 1024:
        return f"{number:,} B"
    value, unit = float(number), ""
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):  # noqa: B007 - used after the loop
        value /= 1024
        if value < 1023.95:
            break
    return f"{value:.1f} {unit}"


def when(settings: Settings, moment: datetime | None, *, short: bool = False) -> str:
    """Return a time, local or with ``--utc`` in UTC; ``Never`` for ``None``."""
    if moment is None or moment.year <= 1:
        return "Never"
    # The local time of the first and last hours that a `datetime` has may be outside of its range.
    with suppress(OverflowError):
        moment = moment.astimezone(timezone.utc if settings.utc else None)
    if short:
        return f"{moment:%Y-%m-%d %H:%M}"
    return moment.isoformat(sep=" ", timespec="seconds")


def ns_text(nanoseconds: int) -> str:
    """Return a duration in the unit that fits it: ``1.5ms``."""
    return seconds_text(duration_from_ns(nanoseconds))
