"""
Parsers and option types for sizes, durations, times and names.

``10KB`` and ``10K`` are decimal, ``10KiB`` is binary. Durations have units, which may be combined:
``500ms``, ``1h30m``, ``1d``, ``1y``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from ... import errors
from ...durations import (
    GO_UNITS,
    duration_from_text,
    duration_to_ns,
    size_from_text,
    time_from_text,
)
from ...subjects import check_stream_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any, Any]
else:
    # It accepts no type arguments before click 8.4.
    ParamType = click.ParamType


_Command = TypeVar("_Command", bound=Callable[..., object])


class Decorator(Protocol):
    """The type of a decorator that adds a parameter or options to a command."""

    def __call__(self, command: _Command, /) -> _Command:
        """Return the command with the parameters added."""


_DAY_NS: Final = 86_400_000_000_000
#: Nanoseconds of each unit. A month has 30 days and a year 365, as in the ``nats`` command.
_UNITS: Final = {
    **GO_UNITS,
    **dict.fromkeys("dD", _DAY_NS),
    **dict.fromkeys("wW", 7 * _DAY_NS),
    "M": 30 * _DAY_NS,
    **dict.fromkeys("yY", 365 * _DAY_NS),
}
#: The longest wait, in seconds; larger values overflow some clocks.
_MAX_WAIT_S: Final = 100 * 365 * 86_400.0
_NO_LIMIT: Final = frozenset({"-1", "0", "unlimited", "none"})


def parse_limited_size(text: str) -> int:
    """Return the same as `size_from_text`, and -1 for ``-1``, ``0`` and ``unlimited``."""
    return -1 if text.strip().lower() in _NO_LIMIT else size_from_text(text)


def parse_limit(text: str) -> int:
    """Return a number, which may have commas; -1 for ``-1``, ``0`` and ``unlimited``."""
    if text.strip().lower() in _NO_LIMIT:
        return -1
    digits = text.strip().replace(",", "").replace("_", "")
    if not digits.isdecimal():
        raise ValueError(
            f"invalid number {text!r}: expected digits such as 1000, or -1 for no limit"
        )
    return int(digits)


def parse_duration(text: str, *, bare: str | None = None) -> timedelta:
    """Return the duration for a text such as ``30s``, ``1h30m``, ``2w`` or ``1y``."""
    given = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?|\.\d+", given):
        if bare is not None:
            given += bare
        elif not given.strip("0."):
            return timedelta(0)
    try:
        # Without a unit, the library reads seconds.
        total = duration_to_ns(duration_from_text("" if given.isdigit() else given, _UNITS))
    except ValueError as error:
        if "too long" in str(error):
            raise
        raise ValueError(
            f"invalid duration {text!r}: expected numbers with units, as in 30s, 5m, 1h30m, 1d, 2w or 1y"
        ) from None
    # Rounded up to a microsecond, since 0 often means no limit.
    return timedelta(microseconds=-(-total // 1000))


def parse_limited_duration(text: str) -> timedelta:
    """Return the same as `parse_duration`, and 0 for ``-1``, ``0`` and ``unlimited``."""
    return timedelta(0) if text.strip().lower() in _NO_LIMIT else parse_duration(text)


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """Return the time for an RFC 3339 text, or for a duration before now."""
    given = text.strip()
    if re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            return _read_time(given)
        except (ValueError, OverflowError):
            raise ValueError(
                f"invalid time {text!r}: expected a time such as 2026-01-02T15:04:05Z"
            ) from None
    ago = parse_duration(given)
    return (now or datetime.now(timezone.utc)) - ago


def _read_time(text: str) -> datetime:
    try:
        return time_from_text(text.replace(" ", "T", 1))
    except ValueError:
        # A time without an offset is local. Python 3.10 accepts three or six digits of a fraction only.
        given = re.sub(r"\.(\d+)", lambda found: f".{found[1][:6]:0<6}", text)
        return datetime.fromisoformat(given).astimezone(timezone.utc)


def _parse_until(text: str) -> datetime:
    now = datetime.now(timezone.utc)
    try:
        return now + parse_duration(text)
    except ValueError:
        return parse_time(text, now)


def _parse_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    try:
        return re.compile(text, flags)
    except re.error as error:
        raise ValueError(f"invalid regular expression {text!r}: {error}") from None


class Parsed(ParamType):
    """A parameter type that parses a text with a function."""

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Any],
        words: Sequence[str] = (),
        *,
        listed: bool = False,
    ) -> None:
        self.name = name
        self.parse = parse
        self.words: tuple[str, ...] = tuple(words)
        self._listed = listed

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return the placeholder in the help text; ``None`` for the default."""
        del param, ctx
        return f"[{'|'.join(self.words)}]" if self._listed else None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value, or fail; a value that is not a plain text is parsed already."""
        if type(value) is not str:
            return value
        try:
            return self.parse(value)
        except (ValueError, errors.Error) as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that start with the typed text, ignoring case."""
        del ctx, param
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells only

        typed = incomplete.lower()
        return [CompletionItem(word) for word in self.words if word.startswith(typed)]


class NonEmptyPath(click.Path):
    """A path that is not empty. An empty one would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail; see `click.Path`."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def _parse_timeout(text: str) -> float:
    seconds = parse_duration(text, bare="s").total_seconds()
    if seconds <= 0:
        raise ValueError(f"invalid duration {text!r}: it must be greater than 0")
    return min(seconds, _MAX_WAIT_S)


#: The name of a file to read or write, or ``-``; an error of the file is reported when it is opened.
FILE: Final = NonEmptyPath(readable=False, allow_dash=True)
#: An ``int``.
FROM_0: Final = click.IntRange(0)
FROM_1: Final = click.IntRange(1)
#: Bytes, as an ``int``.
SIZE: Final = Parsed("size", size_from_text)
#: Bytes, as an ``int``; -1 means no limit.
LIMITED_SIZE: Final = Parsed("size", parse_limited_size)
#: A number, as an ``int``; -1 means no limit.
LIMIT: Final = Parsed("number", parse_limit)
#: A ``timedelta``.
DURATION: Final = Parsed("duration", parse_duration)
#: A ``timedelta``; -1 and 0 mean no limit, returned as 0.
LIMITED_DURATION: Final = Parsed("duration", parse_limited_duration)
#: An aware ``datetime``, from an RFC 3339 time or a duration before now.
TIME: Final = Parsed("time", parse_time)
#: An aware ``datetime``, from an RFC 3339 time or a duration from now.
UNTIL: Final = Parsed("time", _parse_until)
#: A regular expression, as an ``re.Pattern``; the second ignores case.
PATTERN: Final = Parsed("regex", _parse_pattern)
ANY_CASE_PATTERN: Final = Parsed("regex", partial(_parse_pattern, flags=re.IGNORECASE))
#: A timeout or interval, as ``float`` seconds above 0: ``2s``, ``500ms`` or ``2``.
TIMEOUT: Final = Parsed("duration", _parse_timeout)
#: A valid stream name; a server does not answer requests with an invalid one.
STREAM_NAME: Final = Parsed("name", check_stream_name)


# --- options ------------------------------------------------------------------------------------


def option(spec: str, text: str, kind: Any = None, *, to: str = "", **attributes: Any) -> Decorator:
    """
    Return the decorator that adds an option to a command.

    `spec`: the flags and the placeholder of the value, as in ``-n, --count N``. An option without a
    placeholder and a type is a switch. `to`: the name of the parameter, unless it is that of the flag. A
    default value is shown in the help.
    """
    flags, _, metavar = spec.replace(", ", ",").partition(" ")
    if not metavar and kind is None:
        attributes["is_flag"] = True
    elif attributes.get("default"):
        attributes["show_default"] = True
    names = [*flags.split(","), *([to] if to else [])]
    return click.option(*names, type=kind, metavar=metavar or None, help=text, **attributes)


def force_option_for(text: str) -> Decorator:
    """Return the option that skips a confirmation, with its help text."""
    return option("-f, --force, -y, --yes", text)


#: The option that skips the confirmation.
force_option: Decorator = force_option_for("Do not ask for confirmation.")

#: Options of listings and reports.
names_option: Decorator = option("-n, --names", "Show only the names, one per line.")


def allow_one(options: Mapping[str, object]) -> None:
    """Raise an error if several options were given; the mapping has the value of each, by its flag."""
    given = [flag for flag, value in options.items() if value is not None and value is not False]
    if len(given) > 1:
        raise click.UsageError(f"{', '.join(given[:-1])} and {given[-1]} exclude each other")


def with_options(*options: Callable[[Any], Any]) -> Decorator:
    """Return a decorator that adds options to a command, in the order of the help."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def stop_options(noun: str) -> Decorator:
    """Return the options that end a command which waits: after some items, or after a time without one."""
    article = "an" if noun[0] in "aeiou" else "a"
    return with_options(
        option("--count N", f"Exit after N {noun}s.", FROM_1),
        option("--wait TIME", f"Exit after TIME without {article} {noun}.", TIMEOUT),
    )
