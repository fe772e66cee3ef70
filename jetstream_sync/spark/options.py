"""
The options of the data source and the sink, parsed once on the driver.

Option names are case-insensitive, since Spark converts them to lower case, and all values are text. The
parsed options show no secrets.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from typing_extensions import Self

from .. import errors
from ..address import DEFAULT_SERVER
from ..codec import loads
from ..subjects import (
    KV_PREFIX,
    check_bucket,
    check_consumer_name,
    check_pattern,
    check_publish_subject,
    check_stream_name,
    check_subject,
    subjects_overlap,
)
from .connections import ConnectionSettings, EnvironmentSecret, FileSecret, SecretSource, SecretText
from .option_values import (
    Delivery,
    LossMode,
    NothingSince,
    OptionValues,
    Overwrite,
    ReadMode,
    RowIds,
    ShortWindow,
    choice,
    items,
    number,
    option,
    option_names,
    seconds,
    size,
    time,
)

#: Offset of the first message of a stream.
EARLIEST: Final = -2
#: Offset after the last message of a stream.
LATEST: Final = -1

#: Spark calls the source of a persistent table without the options of the table.
_NO_TABLE: Final = "; a table of CREATE TABLE loses its options: use CREATE TEMPORARY VIEW"
_DAY_S: Final = 86400.0
_MB: Final = 1000 * 1000


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """
    Offsets of streams: one for all streams, or one for each stream by name.

    An offset is a sequence, `EARLIEST` or `LATEST`. As a start it is the first sequence to read, as an end
    the first sequence not to read.
    """

    everywhere: int | None = None
    """`EARLIEST` or `LATEST` for all streams; ``None``: see `by_stream`."""

    by_stream: tuple[tuple[str, int], ...] = ()
    """Stream names and their offsets."""

    def of(self, stream: str) -> int | None:
        """Return the offset of a stream, ``None`` if it has none."""
        return self.everywhere if self.everywhere is not None else dict(self.by_stream).get(stream)


def _check_pattern(pattern: str) -> str:
    if pattern[0] == pattern[-1] == "/" and len(pattern) > 1:
        try:
            re.compile(pattern[1:-1])
        except re.error as error:
            raise ValueError(f"invalid regular expression: {error}") from None
        return pattern
    check_stream_name(pattern.replace("*", "_"))
    return pattern


def _subjects(value: str) -> tuple[str, ...]:
    subjects = items(check_subject)(value)
    for one, other in itertools.combinations(subjects, 2):
        if subjects_overlap(one, other):
            raise ValueError(f"{other} overlaps with {one}, which the server refuses")
    return subjects


def _offsets(least: int) -> Callable[[str], OffsetSpec]:
    """Return a parser of offsets; `EARLIEST` or `LATEST` is the least."""
    keywords = {"earliest": EARLIEST, "latest": LATEST} if least == EARLIEST else {"latest": LATEST}

    def parse(value: str) -> OffsetSpec:
        keyword = keywords.get(value.lower())
        if keyword is not None:
            return OffsetSpec(keyword)
        positions = _by_stream(
            value,
            f"{', '.join(keywords)}, a sequence, or JSON with a sequence for each stream:"
            ' {"ORDERS": 17}',
        )
        for stream, position in positions.items():
            if type(position) is not int or not least <= position < 2**63 or position == 0:
                place = f"the offset of {stream}" if stream else "it"
                raise ValueError(f"{place} must be a sequence from 1 up, or {least} to -1")
        if "" in positions:
            return OffsetSpec(positions[""])
        return OffsetSpec(None, tuple(sorted(positions.items())))

    return parse


def _times(value: str) -> tuple[tuple[str, datetime], ...]:
    times = _by_stream(value, 'JSON with a time for each stream: {"ORDERS": 1767225600000}')
    if "" in times:
        raise ValueError("must be JSON with a time for each stream; startingTimestamp is for all")
    return tuple(sorted((stream, time(str(at))) for stream, at in times.items()))


def _by_stream(value: str, expected: str) -> dict[str, Any]:
    """
    Parse JSON with a value for each stream, or one value for all of them, under the name ``""``.

    A value may be an object with the only partition of the stream, ``{"0": 17}``, as for Kafka.
    """
    try:
        found = loads(value)
    except errors.InvalidResponseError:
        raise ValueError(f"expected {expected}") from None
    if type(found) is int:
        return {"": found}
    if not isinstance(found, dict) or not found:
        raise ValueError(f"expected {expected}")
    for stream, position in found.items():
        if isinstance(position, dict):
            if list(position) != ["0"]:
                raise ValueError(f"stream {stream} has only the partition 0")
            found[stream] = position["0"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how; each field is the option of the same name in camel case."""

    connection: ConnectionSettings
    """The servers and the login."""
    stream: tuple[str, ...] = option(items(check_stream_name), ())
    """The names of the streams; empty if `stream_pattern` is given."""
    stream_pattern: str | None = option(_check_pattern, None)
    """A pattern for stream names: ``ORDERS_*``, or a regular expression between slashes."""
    subjects: tuple[str, ...] = option(_subjects, ())
    """The filter subjects, with wildcards; empty: all subjects."""
    starting_offsets: OffsetSpec | None = option(_offsets(EARLIEST), None)
    """Where to start; ``None``: not given, or a time is."""
    starting_timestamp: datetime | None = option(time, None)
    """Start with the first message stored at this time or later, in UTC."""
    starting_offsets_by_timestamp: tuple[tuple[str, datetime], ...] = option(_times, ())
    """The same for each stream by name."""
    starting_offsets_by_timestamp_strategy: NothingSince = option(
        choice(NothingSince), NothingSince.LATEST
    )
    """What to do if no message was stored since then: wait for one (``latest``), or ``error``."""
    ending_offsets: OffsetSpec | None = option(_offsets(LATEST), None)
    """Where to end; ``None``: not given, or a time is. Batch only."""
    ending_timestamp: datetime | None = option(time, None)
    """End before the first message stored at this time or later, in UTC. Batch only."""
    ending_offsets_by_timestamp: tuple[tuple[str, datetime], ...] = option(_times, ())
    """The same for each stream by name."""
    max_offsets_per_trigger: int | None = option(number(1), None)
    """Maximum messages of a micro-batch; ``None``: no limit."""
    max_bytes_per_trigger: int | None = option(size(1), None)
    """Approximate maximum bytes of a micro-batch; ``None``: no limit."""
    min_offsets_per_trigger: int | None = option(number(1), None)
    """Minimum messages of a micro-batch; ``None``: one."""
    max_trigger_delay: float = option(seconds(0.0, _DAY_S), 900.0)
    """Maximum time that a message waits for `min_offsets_per_trigger`, in seconds."""
    min_partitions: int | None = option(number(1, 100_000), None)
    """Minimum number of read tasks; ``None``: as `max_records_per_partition` requires."""
    max_records_per_partition: int = option(number(1), 100_000)
    """Approximate maximum messages of one read task."""
    min_poll_interval: float = option(seconds(0.0, _DAY_S), 0.5)
    """How long a query without new messages waits before it asks the server again, in seconds."""
    fail_on_data_loss: LossMode = option(choice(LossMode), LossMode.TRUE)
    """``true``, ``false`` or ``strict``."""
    read_mode: ReadMode = option(choice(ReadMode), ReadMode.AUTO)
    """``auto``, ``direct`` or ``pull``."""
    batch_bytes: int = option(size(1024, 256 * _MB), 4 * _MB)
    """Approximate size of one read and of one batch handed to Spark, in bytes."""
    planning_timeout: float = option(seconds(0.001, _DAY_S), 60.0)
    """How long the driver retries while the server does not answer, in seconds."""
    consumer: str | None = option(check_consumer_name, None)
    """A durable consumer that shows the progress of the query."""
    progress_bucket: str | None = option(check_bucket, None)
    """A key-value bucket with the progress of the query."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | Self) -> Self:
        """
        Parse the options of the source.

        Args:
            options: as Spark passes them; parsed ones are returned unchanged.

        Raises:
            InvalidOptionError: an option is unknown, out of range or excluded by another one.

        """
        if not isinstance(options, Mapping):
            return options
        given = _read_values(options)
        if "bucket" in given:
            raise errors.InvalidOptionError(
                "bucket",
                given.text("bucket"),
                "is read with spark.read only: for its changes set"
                f" stream={KV_PREFIX}{given.text('bucket')}",
            )
        given.require_with("keys", "bucket")
        given.exclude("stream", "streamPattern")
        if "streamPattern" not in given:
            given.require(
                "stream",
                f"is required: set it to a stream name, or set streamPattern or bucket{_NO_TABLE}",
            )
        given.exclude("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
        given.exclude("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        given.exclude("consumer", "streamPattern")
        given.require_with("maxTriggerDelay", "minOffsetsPerTrigger")
        parsed = cls(connection=_connection(given), **given.parsed(cls))
        streams = parsed.stream
        if parsed.consumer is not None and len(streams) > 1:
            raise errors.InvalidOptionError("consumer", parsed.consumer, "needs exactly one stream")
        fewest, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
        if fewest is not None and most is not None and fewest > most:
            raise errors.InvalidOptionError(
                "minOffsetsPerTrigger", fewest, f"must not exceed maxOffsetsPerTrigger={most}"
            )
        for stream in parsed.stream or ("",):
            since, until = parsed.starting_time(stream), parsed.ending_time(stream)
            if since is not None and until is not None and until < since:
                raise errors.InvalidOptionError(
                    parsed.ending_time_option,
                    until.isoformat(),
                    f"is before the start, {since.isoformat()}",
                )
        for name, positions in (
            ("startingOffsets", parsed.starting_offsets and parsed.starting_offsets.by_stream),
            ("endingOffsets", parsed.ending_offsets and parsed.ending_offsets.by_stream),
            ("startingOffsetsByTimestamp", parsed.starting_offsets_by_timestamp),
            ("endingOffsetsByTimestamp", parsed.ending_offsets_by_timestamp),
        ):
            _check_streams(name, [stream for stream, _ in positions or ()], streams)
        return parsed

    def starting_time(self, stream: str) -> datetime | None:
        """Return the time from which on a stream is read, ``None`` if a time is not given."""
        return self.starting_timestamp or dict(self.starting_offsets_by_timestamp).get(stream)

    @property
    def starting_time_option(self) -> str:
        """The name of the option that `starting_time` comes from."""
        return "startingTimestamp" if self.starting_timestamp else "startingOffsetsByTimestamp"

    @property
    def ending_time_option(self) -> str:
        """The name of the option that `ending_time` comes from."""
        return "endingTimestamp" if self.ending_timestamp else "endingOffsetsByTimestamp"

    def ending_time(self, stream: str) -> datetime | None:
        """Return the time at which a read of a stream ends, ``None`` if a time is not given."""
        return self.ending_timestamp or dict(self.ending_offsets_by_timestamp).get(stream)


def _check_streams(name: str, named: list[str], streams: tuple[str, ...]) -> None:
    """Check that an option with a value for each stream has one for exactly the streams by name."""
    if not named or not streams:
        return
    unknown = [stream for stream in named if stream not in streams]
    if unknown:
        raise errors.InvalidOptionError(name, ",".join(named), f"stream {unknown[0]} is not read")
    missing = [stream for stream in streams if stream not in named]
    if missing:
        raise errors.InvalidOptionError(
            name, ",".join(named), f"has no value for stream {missing[0]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketReadOptions:
    """Which entries of a key-value bucket to read; each field is the option of the same name."""

    connection: ConnectionSettings
    """The servers and the login."""
    bucket: str = option(check_bucket)
    """The name of the bucket."""
    keys: tuple[str, ...] = option(items(check_pattern), ())
    """The keys, with wildcards; empty: all keys."""
    batch_bytes: int = option(size(1024, 256 * _MB), 4 * _MB)
    """Approximate size of one batch handed to Spark, in bytes."""
    planning_timeout: float = option(seconds(0.001, _DAY_S), 60.0)
    """How long the driver retries while the server does not answer, in seconds."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self | None:
        """Parse the options of the source; ``None``: it does not read a bucket."""
        given = _read_values(options)
        if "bucket" not in given:
            return None
        _refuse_with_bucket(given, option_names(ReadOptions), option_names(cls))
        return cls(connection=_connection(given), **given.parsed(cls))


def _read_values(options: Mapping[str, Any]) -> OptionValues:
    """Return the options of a read; the path of ``load(PATH)`` is the name of the stream."""
    known = (*CONNECTION_OPTIONS, *READ_OPTIONS)
    others = dict.fromkeys(option_names(WriteOptions), "applies to writing only")
    return OptionValues(_with_path(options), known, others)


def _with_path(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with ``stream`` in place of the path that ``load()`` and ``save()`` take."""
    given = {name.lower(): name for name in options}
    changed = dict(options)
    if "path" in given:
        if "stream" in given:
            raise errors.InvalidOptionError("path", "...", "cannot be combined with stream")
        changed["stream"] = changed.pop(given["path"])
    return changed


def _refuse_with_bucket(
    given: OptionValues, names: Iterable[str], allowed: tuple[str, ...]
) -> None:
    for name in names:
        if name not in allowed:
            given.exclude("bucket", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write and how; each field is the option of the same name in camel case."""

    connection: ConnectionSettings
    """The servers and the login."""
    stream: str = option(check_stream_name)
    """The stream that must store the messages; with `bucket` the one of the bucket."""
    bucket: str | None = option(check_bucket, None)
    """The key-value bucket to put the rows into; ``None``: the rows are messages."""
    subject: str | None = option(check_publish_subject, None)
    """The subject of rows without one; ``None``: every row needs one."""
    delivery: Delivery = option(choice(Delivery), Delivery.WINDOW)
    """``at-least-once``, ``window`` or ``transaction``."""
    max_pending: int = option(number(1, 1_000_000), 4096)
    """Maximum number of messages waiting for their acknowledgement."""
    ack_timeout: float = option(seconds(0.001, _DAY_S), 30.0)
    """Maximum time without any acknowledgement, in seconds."""
    ids: RowIds = option(choice(RowIds), RowIds.CONTENT)
    """How stored rows are recognized: by their ``content``, or with ``transaction`` by their ``position``."""
    expected_recovery: float = option(seconds(0.0, 365 * _DAY_S), 600.0)
    """The longest outage after which ``window`` must not write duplicates, in seconds."""
    on_short_window: ShortWindow = option(choice(ShortWindow), ShortWindow.WARN)
    """What to do if the duplicate window of the stream is shorter: ``warn`` or ``error``."""
    job_id: str | None = option(str, None)
    """Gives a repeated batch job the same message ids, and distinguishes the writes of one batch in ``foreachBatch``;
    ``None``: a new id for every run, or that of the batch."""
    marker_subject: str | None = option(check_publish_subject, None)
    """The subject prefix of the write checkpoints of ``transaction``."""
    query_id: str | None = option(str, None)
    """Gives the write checkpoints a new identity; ``None``: the id of the query."""
    overwrite_mode: Overwrite | None = option(choice(Overwrite), None)
    """``purge``: mode overwrite purges the earlier messages; ``None``: mode overwrite is refused."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | Self) -> Self:
        """
        Parse the options of the sink.

        Args:
            options: as Spark passes them; parsed ones are returned unchanged.

        Raises:
            InvalidOptionError: an option is unknown, out of range or excluded by another one.

        """
        if not isinstance(options, Mapping):
            return options
        known = (*CONNECTION_OPTIONS, *option_names(cls))
        others = dict.fromkeys(READ_OPTIONS, "applies to reading only")
        given = OptionValues(_with_path(options), known, others)
        if "bucket" in given:
            _refuse_with_bucket(given, option_names(cls), ("bucket", "maxPending", "ackTimeout"))
            parsed = given.parsed(cls)
            # A task that is repeated puts the same values again.
            return cls(
                connection=_connection(given),
                stream=KV_PREFIX + parsed["bucket"],
                delivery=Delivery.AT_LEAST_ONCE,
                **parsed,
            )
        given.require(
            "stream",
            f"is required: set it to the stream that stores the messages, or set bucket{_NO_TABLE}",
        )
        options_of_sink = cls(connection=_connection(given), **given.parsed(cls))
        delivery = options_of_sink.delivery
        if delivery == Delivery.TRANSACTION:
            given.require(
                "markerSubject", "is required by delivery=transaction for its checkpoints"
            )
        for name, applies in (
            ("markerSubject", delivery == Delivery.TRANSACTION),
            ("queryId", delivery == Delivery.TRANSACTION),
            ("ids", delivery != Delivery.AT_LEAST_ONCE),
            ("expectedRecovery", delivery == Delivery.WINDOW),
            ("onShortWindow", delivery == Delivery.WINDOW),
        ):
            if name in given and not applies:
                raise errors.InvalidOptionError(
                    name, given.text(name), f"has no effect with delivery={delivery}"
                )
        if delivery == Delivery.WINDOW and options_of_sink.ids == RowIds.POSITION:
            raise errors.InvalidOptionError(
                "ids",
                "position",
                "needs delivery=transaction: after a checkpoint was restored, other rows would have the ids of"
                " stored ones, and the stream would drop them. Rows that differ each time need a column msg_id",
            )
        return options_of_sink


# --- options of both --------------------------------------------------------------------------


def _connection(given: OptionValues) -> ConnectionSettings:
    """Parse the connection options; conflicts are found here on the driver, not on an executor."""
    given.exclude("password", "passwordEnv", "passwordFile")
    given.exclude("token", "tokenEnv", "tokenFile")
    given.exclude("credsFile", "creds", "credsSecret", "nkeySeedFile", "nkeySeed", "nkeySeedSecret")
    for token in ("token", "tokenEnv", "tokenFile"):
        given.exclude("user", token)
    for password in ("password", "passwordEnv", "passwordFile"):
        given.require_with(password, "user")
    given.require_with("tlsKey", "tlsCert")
    given.exclude("domain", "apiPrefix")
    servers = given.text("servers") or os.environ.get("NATS_URL") or DEFAULT_SERVER
    urls, logins = ConnectionSettings.split_login(servers)
    creds, seed = (given.raw(name) or given.raw(f"{name}Secret") for name in ("creds", "nkeySeed"))
    return ConnectionSettings(
        servers=urls,
        logins=logins,
        password=_secret(given, "password"),
        token=_secret(given, "token"),
        creds=None if creds is None else SecretText(creds),
        nkey_seed=None if seed is None else SecretText(seed),
        **given.parsed(ConnectionSettings),
    )


#: Options with secrets that Spark shows, since it redacts those with secret, token or password in their name, and what
#: to use instead. ``servers`` may contain a login, which needs no URL scheme.
EXPOSED_OPTIONS: Final = {
    "creds": "credsSecret",
    "nkeySeed": "nkeySeedSecret",
    "servers": "user and password, or token",
}


def exposed_secrets(options: Mapping[str, Any]) -> dict[str, str]:
    """
    Return those of `EXPOSED_OPTIONS` that are given with a secret, each with its replacement.

    Any thread may call it.
    """
    values = {name.lower(): value for name, value in options.items()}
    given = {name: instead for name, instead in EXPOSED_OPTIONS.items() if name.lower() in values}
    if "@" not in str(values.get("servers", "")):
        given.pop("servers", None)
    return given


def _secret(given: OptionValues, name: str) -> SecretSource | None:
    """Parse a secret that may also be given as an environment variable or a file."""
    variable, file = given.text(f"{name}Env"), given.text(f"{name}File")
    if variable is not None:
        return EnvironmentSecret(f"{name}Env", variable)
    if file is not None:
        return FileSecret(f"{name}File", file)
    value = given.raw(name)
    return None if value is None else SecretText(value)


#: The options of the connection, of which some are several options for one field.
CONNECTION_OPTIONS: Final = (
    "servers",
    *(f"{name}{suffix}" for name in ("password", "token") for suffix in ("", "Env", "File")),
    *(f"{name}{suffix}" for name in ("creds", "nkeySeed") for suffix in ("", "Secret")),
    *option_names(ConnectionSettings),
)
#: The options for reading a stream or a bucket.
READ_OPTIONS: Final = tuple(
    dict.fromkeys((*option_names(ReadOptions), *option_names(BucketReadOptions)))
)
