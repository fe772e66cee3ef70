"""
Parse options as Spark passes them: case-insensitive names and text values.

An option is declared once, as a field of a dataclass with `option`: its name is that of the field in camel
case. Errors name the option, the given value and the accepted values. A value that may be a secret is never
repeated.

The errors for unknown options and the table in ``docs/howto/spark-from-kafka.rst`` come from `KAFKA_OPTIONS`:
what a user of Spark's Kafka source and sink writes, and what to write here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, TypeVar

from .. import errors
from ..api.enums import StrEnum
from ..durations import duration_from_text, size_from_text, time_from_ns, time_from_text
from ..exact import exact
from ..options import closest_match

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

#: Names of options in other sources and sinks, and their names here.
_OTHER_NAMES: Final = {"url": "servers", "batchSize": "batchBytes or maxPending"}
_DECIMAL: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"-?\d{1,19}", re.ASCII)


class KafkaOption(NamedTuple):
    """An option of Spark's Kafka source or sink."""

    option: str
    """The name; ``kafka.*`` stands for all settings of the Kafka client."""
    instead: str
    """The option to use, as a clause."""


_SAME: Final = "the same here"

#: All options of Spark's Kafka source and sink. Those that are the same here are known options.
KAFKA_OPTIONS: Final = (
    KafkaOption("kafka.bootstrap.servers", "use servers"),
    KafkaOption("kafka.group.id", "leave it out: a query reads by sequence, without a group"),
    KafkaOption("kafka.*", "use the options for the connection, such as user or credsFile"),
    KafkaOption("subscribe", "use stream for the streams, and subjects to filter them"),
    KafkaOption("subscribePattern", "use streamPattern, such as ORDERS_* or /ORDERS_[0-9]+/"),
    KafkaOption("assign", "use stream: a stream has no partitions to choose from"),
    KafkaOption(
        "topic",
        "use stream for the stream, and subject for rows without a subject: unlike topic, it does not override the column",
    ),
    KafkaOption("startingOffsets", _SAME),
    KafkaOption("endingOffsets", _SAME),
    KafkaOption("startingTimestamp", _SAME),
    KafkaOption("endingTimestamp", _SAME),
    KafkaOption("startingOffsetsByTimestamp", _SAME),
    KafkaOption("endingOffsetsByTimestamp", _SAME),
    KafkaOption("startingOffsetsByTimestampStrategy", f"{_SAME}, but latest is the default"),
    KafkaOption("maxOffsetsPerTrigger", _SAME),
    KafkaOption("minOffsetsPerTrigger", _SAME),
    KafkaOption("maxTriggerDelay", f"{_SAME}, but counts from the first waiting message"),
    KafkaOption("minPartitions", _SAME),
    KafkaOption("maxRecordsPerPartition", _SAME),
    KafkaOption("failOnDataLoss", _SAME),
    KafkaOption("includeHeaders", "leave it out: headers is a column of the schema"),
    KafkaOption("groupIdPrefix", "leave it out: a query reads by sequence, without a group"),
    KafkaOption("kafkaConsumer.pollTimeoutMs", "use timeout"),
    KafkaOption("fetchOffset.numRetries", "use planningTimeout"),
    KafkaOption("fetchOffset.retryIntervalMs", "use planningTimeout"),
)


class LossMode(StrEnum):
    """What to do if unread messages have left their stream; see `planning.data_loss`."""

    TRUE = "true"
    """An error, unless the stream removes such messages in normal operation."""
    FALSE = "false"
    """A warning, unless the stream removes such messages in normal operation."""
    STRICT = "strict"
    """An error."""


class ReadMode(StrEnum):
    """How a range is read."""

    AUTO = "auto"
    """As `reading.range_reader.choose_mode` decides."""
    DIRECT = "direct"
    """With direct gets."""
    PULL = "pull"
    """With an ephemeral consumer."""


class Delivery(StrEnum):
    """What the sink ensures when rows are written again."""

    AT_LEAST_ONCE = "at-least-once"
    """They are stored again."""
    WINDOW = "window"
    """They are ignored within the duplicate window of the stream."""
    TRANSACTION = "transaction"
    """They are ignored, since checkpoints in the stream tell which rows are stored."""


class RowIds(StrEnum):
    """How stored rows are recognized."""

    CONTENT = "content"
    """By their content."""
    POSITION = "position"
    """By their position in the partition."""


class ShortWindow(StrEnum):
    """What to do if the duplicate window of the stream is shorter than the expected outage."""

    WARN = "warn"
    """A warning."""
    ERROR = "error"
    """An error."""


class NothingSince(StrEnum):
    """What to do if no message was stored since the time to start from."""

    LATEST = "latest"
    """Wait for one."""
    ERROR = "error"
    """An error."""


class Overwrite(StrEnum):
    """How the sink empties the stream in mode overwrite."""

    PURGE = "purge"
    """The earlier messages are removed after the new rows are stored."""


def option(parse: Callable[[str], Any], default: Any = MISSING) -> Any:
    """Declare a field of a dataclass as an option."""
    return field(default=default, metadata={"parse": parse})


def option_names(kind: type) -> tuple[str, ...]:
    """Return the names of the options that a dataclass declares."""
    return tuple(_camel_case(item.name) for item in fields(kind) if "parse" in item.metadata)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


class OptionValues:
    """
    The options given by a user.

    Args:
        options: as Spark passes them.
        known: the names of the options.
        refused: names of options that do not apply here, and the reasons.

    """

    def __init__(
        self, options: Mapping[str, Any], known: Iterable[str], refused: Mapping[str, str]
    ) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, option in options.items():
            given = value = exact(option)
            # Spark adds these two.
            if name.lower() in {"checkpointlocation", "queryname"}:
                continue
            canonical = names.get(name.lower())
            if canonical is None:
                # The value is not repeated: it may be a secret under a misspelled name.
                raise errors.InvalidOptionError(*_unknown(name, names, refused))
            # A function for tasks gets the values as the user gave them; Spark's own methods convert them so.
            if isinstance(given, (bool, int, float)):
                value = str(given).lower()
            if not isinstance(value, str):
                raise errors.InvalidOptionError(
                    canonical, "...", "the value must be text or a number"
                )
            self._values[canonical] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def exclude(self, *names: str) -> None:
        """Allow at most one of these options; raise `InvalidOptionError` for a second one."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise errors.InvalidOptionError(given[1], "...", f"cannot be combined with {given[0]}")

    def require(self, name: str, reason: str) -> None:
        """Raise `InvalidOptionError` with a reason if an option is not given."""
        if name not in self:
            raise errors.InvalidOptionError(name, None, reason)

    def require_with(self, name: str, other: str) -> None:
        """Raise `InvalidOptionError` if an option is given without another one."""
        if name in self and other not in self:
            raise errors.InvalidOptionError(name, "...", f"needs {other}")

    def raw(self, name: str) -> str | None:
        """Return the unchanged value of a secret, ``None``: it is not given; raise `InvalidOptionError` if it is empty."""
        value = self._values.get(name)
        if value == "":
            raise errors.InvalidOptionError(name, "...", "must not be empty")
        return value

    def text(self, name: str) -> str | None:
        """Return the stripped value, ``None``: it is not given; raise `InvalidOptionError` if it is blank."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise errors.InvalidOptionError(name, value, "must not be empty")
        return value.strip()

    def parsed(self, kind: type) -> dict[str, Any]:
        """
        Return the values of the options that a dataclass declares, by the names of its fields.

        Options that are not given are left out, so that they get their defaults.
        """
        declared = ((item.name, item.metadata.get("parse")) for item in fields(kind))
        values: dict[str, Any] = {}
        for name, parse in declared:
            value = None if parse is None else self.text(_camel_case(name))
            if value is not None and parse is not None:
                values[name] = _checked(_camel_case(name), value, parse)
        return values


def _unknown(
    name: str, names: Mapping[str, str], refused: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return name, hidden value and reason of an unknown option for its error."""
    # Spark passes these to infer the schema of a table, but not to read or write it.
    if name.lower() == "provider" or name.lower().startswith("option."):
        return name, "...", "CREATE TABLE loses its options: use CREATE TEMPORARY VIEW"
    kafka = counterpart(name)
    if kafka is not None:
        return kafka.option, "...", f"is an option of Spark's Kafka source or sink: {kafka.instead}"
    # Spark passes names in lower case.
    others = {item.lower(): item for item in (*refused, *_OTHER_NAMES)}
    shown = others.get(name.lower(), name)
    if shown in refused:
        return shown, "...", refused[shown]
    close = _OTHER_NAMES.get(shown) or closest_match(name.lower(), names)
    hint = f"; did you mean {names.get(close, close)}?" if close else ""
    return shown, "...", f"there is no such option{hint}"


def _checked(name: str, value: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(value)
    except errors.InvalidOptionError:
        raise
    except ValueError as error:
        raise errors.InvalidOptionError(name, value, str(error)) from None


# --- parsers of values --------------------------------------------------------------------------


def items(check: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of a comma-separated list, whose items are checked and must differ."""

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(check(item.strip()) for item in value.split(","))
        if len(set(found)) < len(found):
            raise ValueError("has a duplicate item")
        return found

    return parse


def choice(choices: type[E]) -> Callable[[str], E]:
    """Return a parser of the keyword of a member, in any case."""

    def parse(value: str) -> E:
        try:
            return choices(value.lower())
        except ValueError:
            raise ValueError(f"must be one of {', '.join(choices)}") from None

    return parse


def flag(value: str) -> bool:
    """Return a boolean value, given as true or false; raise `ValueError` for another text."""
    if value.lower() not in {"true", "false"}:
        raise ValueError("must be one of true, false")
    return value.lower() == "true"


def number(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a parser of an integer."""

    def parse(value: str) -> int:
        if not _INTEGER.fullmatch(value) or not minimum <= int(value) <= maximum:
            raise ValueError(f"must be an integer from {minimum} to {maximum}")
        return int(value)

    return parse


def seconds(minimum: float, maximum: float) -> Callable[[str], float]:
    """Return a parser of a duration, which is a number of seconds, or as ``1m30s``."""

    def parse(value: str) -> float:
        total = -1.0
        if _DECIMAL.fullmatch(value):
            total = float(value)
        else:
            with contextlib.suppress(ValueError):
                total = duration_from_text(value).total_seconds()
        if not minimum <= total <= maximum:
            raise ValueError(
                f"must be a duration such as 500ms, 10s or 2m, from {minimum:g} to {maximum:g} s"
            )
        return total

    return parse


def size(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a parser of a size in bytes, which is a number, or as ``4MB`` or ``4MiB``."""

    def parse(value: str) -> int:
        try:
            # In Spark's own options 4m is 4 MiB.
            number = -1 if re.search("[kmgtpei]$", value, re.IGNORECASE) else size_from_text(value)
        except ValueError:
            number = -1
        if not minimum <= number <= maximum:
            raise ValueError(
                f"must be a size such as 4194304, 4MB or 4MiB, from {minimum} to {maximum} bytes"
            )
        return number

    return parse


def time(value: str) -> datetime:
    """
    Return a time in UTC, given in ISO 8601 with a time zone or in milliseconds since 1970.

    Raises `ValueError` for another text, and for a time that a `datetime` cannot have.
    """
    try:
        if _INTEGER.fullmatch(value):
            return time_from_ns(int(value) * 1_000_000)
        return _iso_time(value)
    except (ValueError, OverflowError):
        raise ValueError(
            "must be a time with its zone such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None


def _iso_time(value: str) -> datetime:
    """Parse a time with a time zone, and up to nine fractional digits of the second."""
    try:
        return time_from_text(value)
    except ValueError:
        at = datetime.fromisoformat(value)
        if at.utcoffset() is None:
            raise
        return at.astimezone(timezone.utc)


def counterpart(option: str) -> KafkaOption | None:
    """Return the entry of an option of Kafka that does not exist here, ``None`` for another option."""
    name = option.lower()
    for known in KAFKA_OPTIONS:
        if known.option.lower() == name:
            return None if known.instead.startswith(_SAME) else known
    if name.startswith("kafka."):
        return KafkaOption(option, dict(KAFKA_OPTIONS)["kafka.*"])
    return None
