"""
The options of the data source and the sink, parsed once on the driver.

Option names are case-insensitive, since Spark converts them to lower case, and all values are text. The
parsed options show no secrets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from typing_extensions import Self

from ..address import DEFAULT_SERVER
from ..api.key_value import STREAM_PREFIX, check_bucket, check_pattern
from ..errors import InvalidOptionError
from ..subjects import (
    check_consumer_name,
    check_publish_subject,
    check_stream_name,
    check_subject,
    subjects_overlap,
)
from .connections import ConnectionSettings, EnvironmentSecret, FileSecret, SecretSource
from .option_values import OptionValues

#: Offset of the first message of a stream.
EARLIEST: Final = -2
#: Offset after the last message of a stream.
LATEST: Final = -1

_CONNECTION_OPTIONS: Final = (
    "servers",
    "user",
    "password",
    "passwordEnv",
    "passwordFile",
    "token",
    "tokenFile",
    "tokenEnv",
    "credsFile",
    "nkeySeedFile",
    "creds",
    "credsSecret",
    "nkeySeed",
    "nkeySeedSecret",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsHostname",
    "tlsHandshakeFirst",
    "connectTimeout",
    "domain",
    "apiPrefix",
    "timeout",
)
_READ_OPTIONS: Final = (
    "stream",
    "streamPattern",
    "bucket",
    "keys",
    "subjects",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "readMode",
    "batchBytes",
    "planningTimeout",
    "consumer",
    "pushdown",
)
_WRITE_OPTIONS: Final = (
    "stream",
    "bucket",
    "subject",
    "delivery",
    "maxPending",
    "ackTimeout",
    "ids",
    "expectedRecovery",
    "onShortWindow",
    "jobId",
    "markerSubject",
    "overwriteMode",
)
#: Those of the options above that apply to a bucket.
_BUCKET_READ_OPTIONS: Final = ("bucket", "keys", "batchBytes", "planningTimeout")
_BUCKET_WRITE_OPTIONS: Final = ("bucket", "maxPending", "ackTimeout")
#: Options that Spark itself adds, in lower case.
_SPARK_OPTIONS: Final = ("checkpointlocation", "queryname")

_INT64_MAX: Final = 2**63 - 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how; each field is the option of the same name in camel case."""

    connection: ConnectionSettings
    """The servers and the login."""
    stream: tuple[str, ...] = ()
    """The names of the streams; empty if `stream_pattern` is given."""
    stream_pattern: str | None = None
    """A pattern for stream names: ``ORDERS_*``, or a regular expression between slashes."""
    subjects: tuple[str, ...] = ()
    """The filter subjects, with wildcards; empty: all subjects."""
    starting_offsets: OffsetSpec | None = None
    """Where to start; ``None``: not given, or `starting_timestamp` is."""
    starting_timestamp: datetime | None = None
    """Start with the first message stored at this time or later, in UTC."""
    ending_offsets: OffsetSpec | None = None
    """Where to end; ``None``: not given, or `ending_timestamp` is. Batch only."""
    ending_timestamp: datetime | None = None
    """End before the first message stored at this time or later, in UTC. Batch only."""
    max_offsets_per_trigger: int | None = None
    """Maximum messages of a micro-batch; ``None``: no limit."""
    max_bytes_per_trigger: int | None = None
    """Approximate maximum bytes of a micro-batch; ``None``: no limit."""
    min_offsets_per_trigger: int | None = None
    """Minimum messages of a micro-batch; ``None``: one."""
    max_trigger_delay: float = 900.0
    """Maximum time to wait for `min_offsets_per_trigger` messages, in seconds."""
    min_partitions: int | None = None
    """Minimum number of read tasks; ``None``: as `max_records_per_partition` requires."""
    max_records_per_partition: int = 100_000
    """Approximate maximum messages of one read task."""
    fail_on_data_loss: str = "true"
    """``true``, ``false`` or ``strict``."""
    read_mode: str = "auto"
    """``auto``, ``direct`` or ``pull``."""
    batch_bytes: int = 4 * _MB
    """Approximate size of one read and of one batch handed to Spark, in bytes."""
    planning_timeout: float = 60.0
    """How long the driver retries while the server does not answer, in seconds."""
    consumer: str | None = None
    """A durable consumer that shows the progress of the query; ``None``: none."""
    pushdown: bool = False
    """Whether Spark may push filters down to the source."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """
        Parse the options of the source.

        Args:
            options: as Spark passes them.

        Raises:
            InvalidOptionError: an option is unknown, out of range or excluded by another one.

        """
        given = OptionValues(options, (*_CONNECTION_OPTIONS, *_READ_OPTIONS), _SPARK_OPTIONS)
        bucket = given.validated("bucket", check_bucket)
        if bucket is not None:
            raise InvalidOptionError(
                "bucket",
                bucket,
                f"is read with spark.read only: for its changes set stream={STREAM_PREFIX}{bucket}",
            )
        given.require_with("keys", "bucket")
        given.exclude("stream", "streamPattern")
        if "streamPattern" not in given:
            given.require(
                "stream", "is required: set it to a stream name, or set streamPattern or bucket"
            )
        given.exclude("startingOffsets", "startingTimestamp")
        given.exclude("endingOffsets", "endingTimestamp")
        given.exclude("consumer", "streamPattern")
        streams = given.items("stream", check_stream_name)
        consumer = given.validated("consumer", check_consumer_name)
        if consumer is not None and len(streams) > 1:
            raise InvalidOptionError("consumer", consumer, "needs exactly one stream")
        fewest = given.number("minOffsetsPerTrigger", 1, _INT64_MAX)
        most = given.number("maxOffsetsPerTrigger", 1, _INT64_MAX)
        if fewest is not None and most is not None and fewest > most:
            raise InvalidOptionError(
                "minOffsetsPerTrigger", str(fewest), f"must not exceed maxOffsetsPerTrigger={most}"
            )
        given.require_with("maxTriggerDelay", "minOffsetsPerTrigger")
        return cls(
            connection=_connection(given),
            stream=streams,
            stream_pattern=given.validated("streamPattern", _check_pattern),
            subjects=_subjects(given),
            starting_offsets=_offsets(given, "startingOffsets", streams),
            starting_timestamp=given.time("startingTimestamp"),
            ending_offsets=_offsets(given, "endingOffsets", streams),
            ending_timestamp=given.time("endingTimestamp"),
            max_offsets_per_trigger=most,
            max_bytes_per_trigger=given.size("maxBytesPerTrigger", None, 1, _INT64_MAX),
            min_offsets_per_trigger=fewest,
            max_trigger_delay=given.seconds("maxTriggerDelay", 900.0, 0.0, _DAY_S),
            min_partitions=given.number("minPartitions", 1, 100_000),
            max_records_per_partition=given.number("maxRecordsPerPartition", 1, _INT64_MAX)
            or 100_000,
            fail_on_data_loss=given.choice("failOnDataLoss", ("true", "false", "strict"), "true"),
            read_mode=given.choice("readMode", ("auto", "direct", "pull"), "auto"),
            batch_bytes=given.size("batchBytes", None, 1024, 256 * _MB) or 4 * _MB,
            planning_timeout=given.seconds("planningTimeout", 60.0, 0.001, _DAY_S),
            consumer=consumer,
            pushdown=given.flag("pushdown", default=False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketReadOptions:
    """Which entries of a key-value bucket to read; each field is the option of the same name."""

    connection: ConnectionSettings
    """The servers and the login."""
    bucket: str
    """The name of the bucket."""
    keys: tuple[str, ...] = ()
    """The keys, with wildcards; empty: all keys."""
    batch_bytes: int = 4 * _MB
    """Approximate size of one batch handed to Spark, in bytes."""
    planning_timeout: float = 60.0
    """How long the driver retries while the server does not answer, in seconds."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self | None:
        """
        Parse the options of the source; ``None``: it does not read a bucket.

        Args:
            options: as Spark passes them.

        Raises:
            InvalidOptionError: an option is unknown, out of range or cannot be combined with ``bucket``.

        """
        given = OptionValues(options, (*_CONNECTION_OPTIONS, *_READ_OPTIONS), _SPARK_OPTIONS)
        bucket = given.validated("bucket", check_bucket)
        if bucket is None:
            return None
        _refuse_with_bucket(given, _READ_OPTIONS, _BUCKET_READ_OPTIONS)
        return cls(
            connection=_connection(given),
            bucket=bucket,
            keys=given.items("keys", check_pattern),
            batch_bytes=given.size("batchBytes", None, 1024, 256 * _MB) or 4 * _MB,
            planning_timeout=given.seconds("planningTimeout", 60.0, 0.001, _DAY_S),
        )


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
    stream: str
    """The stream that must store the messages; with `bucket` the one of the bucket."""
    bucket: str | None = None
    """The key-value bucket to put the rows into; ``None``: the rows are messages."""
    subject: str | None = None
    """The subject of rows without one; ``None``: every row needs one."""
    delivery: str = "window"
    """``at-least-once``, ``window``, ``transaction`` or ``scan``."""
    max_pending: int = 4096
    """Maximum number of messages waiting for their acknowledgement."""
    ack_timeout: float = 30.0
    """Maximum time without any acknowledgement, in seconds."""
    ids: str = "content"
    """How message ids are made: from the ``content`` or the ``position`` of the row."""
    expected_recovery: float = 600.0
    """The longest outage after which ``window`` must not write duplicates, in seconds."""
    on_short_window: str = "warn"
    """What to do if the duplicate window of the stream is shorter: ``warn`` or ``error``."""
    job_id: str | None = None
    """Gives a repeated batch job the same message ids; ``None``: a new id for every run."""
    marker_subject: str | None = None
    """The subject prefix of the write checkpoints of ``transaction`` and ``scan``."""
    overwrite_mode: str | None = None
    """``purge``: mode overwrite purges the earlier messages; ``None``: mode overwrite is refused."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """
        Parse the options of the sink.

        Args:
            options: as Spark passes them.

        Raises:
            InvalidOptionError: an option is unknown, out of range or excluded by another one.

        """
        given = OptionValues(options, (*_CONNECTION_OPTIONS, *_WRITE_OPTIONS), _SPARK_OPTIONS)
        bucket = given.validated("bucket", check_bucket)
        if bucket is not None:
            _refuse_with_bucket(given, _WRITE_OPTIONS, _BUCKET_WRITE_OPTIONS)
            # A task that is repeated puts the same values again.
            return cls(
                connection=_connection(given),
                stream=STREAM_PREFIX + bucket,
                bucket=bucket,
                delivery="at-least-once",
                max_pending=given.number("maxPending", 1, 1_000_000) or 4096,
                ack_timeout=given.seconds("ackTimeout", 30.0, 0.001, _DAY_S),
            )
        given.require(
            "stream", "is required: set it to the stream that stores the messages, or set bucket"
        )
        deliveries = ("at-least-once", "window", "transaction", "scan")
        delivery = given.choice("delivery", deliveries, "window")
        needs_checkpoints = delivery in {"transaction", "scan"}
        if needs_checkpoints:
            given.require(
                "markerSubject", f"is required by delivery={delivery} for its checkpoints"
            )
        for option, applies in (
            ("markerSubject", needs_checkpoints),
            ("ids", delivery != "at-least-once"),
            ("expectedRecovery", delivery == "window"),
            ("onShortWindow", delivery == "window"),
        ):
            if option in given and not applies:
                raise InvalidOptionError(
                    option, given.text(option), f"has no effect with delivery={delivery}"
                )
        overwrite = given.text("overwriteMode")
        if overwrite is not None:
            overwrite = given.choice("overwriteMode", ("purge",), "purge")
        stream = given.validated("stream", check_stream_name)
        assert stream is not None
        return cls(
            connection=_connection(given),
            stream=stream,
            subject=given.validated("subject", check_publish_subject),
            delivery=delivery,
            max_pending=given.number("maxPending", 1, 1_000_000) or 4096,
            ack_timeout=given.seconds("ackTimeout", 30.0, 0.001, _DAY_S),
            ids=given.choice("ids", ("content", "position"), "content"),
            expected_recovery=given.seconds("expectedRecovery", 600.0, 0.0, 365 * _DAY_S),
            on_short_window=given.choice("onShortWindow", ("warn", "error"), "warn"),
            job_id=given.text("jobId"),
            marker_subject=given.validated("markerSubject", check_publish_subject),
            overwrite_mode=overwrite,
        )


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
    return ConnectionSettings(
        servers=urls,
        logins=logins,
        user=given.text("user"),
        password=_secret(given, "password"),
        token=_secret(given, "token"),
        creds_file=given.text("credsFile"),
        creds=given.secret("creds") or given.secret("credsSecret"),
        nkey_seed_file=given.text("nkeySeedFile"),
        nkey_seed=given.secret("nkeySeed") or given.secret("nkeySeedSecret"),
        tls_ca=given.text("tlsCa"),
        tls_cert=given.text("tlsCert"),
        tls_key=given.text("tlsKey"),
        tls_hostname=given.text("tlsHostname"),
        tls_handshake_first=given.flag("tlsHandshakeFirst", default=False),
        connect_timeout=given.seconds("connectTimeout", 5.0, 0.001, 3600.0),
        domain=given.validated("domain", check_stream_name),
        api_prefix=given.validated("apiPrefix", check_publish_subject),
        timeout=given.seconds("timeout", 10.0, 0.001, 3600.0),
    )


def exposed_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """
    Return the options whose secrets Spark would show, each with its replacement.

    Spark redacts the values of options with secret, token or password in their name. Any thread may call it.

    Args:
        options: as Spark passes them; they may be invalid.

    """
    values = {name.lower(): value for name, value in options.items()}
    shown = {name: f"{name}Secret" for name in ("creds", "nkeySeed") if name.lower() in values}
    if "@" in values.get("servers", ""):
        shown["servers"] = "user and password, or token"
    return shown


def _secret(given: OptionValues, name: str) -> SecretSource | None:
    """Parse a secret that may also be given as an environment variable or a file."""
    variable, file = given.text(f"{name}Env"), given.text(f"{name}File")
    if variable is not None:
        return EnvironmentSecret(f"{name}Env", variable)
    if file is not None:
        return FileSecret(f"{name}File", file)
    return given.secret(name)


# --- options of the source --------------------------------------------------------------------


def _check_pattern(pattern: str) -> str:
    if pattern[0] == pattern[-1] == "/" and len(pattern) > 1:
        try:
            re.compile(pattern[1:-1])
        except re.error as error:
            raise ValueError(f"invalid regular expression: {error}") from None
        return pattern
    check_stream_name(pattern.replace("*", "_"))
    return pattern


def _subjects(given: OptionValues) -> tuple[str, ...]:
    subjects = given.items("subjects", check_subject)
    for number, subject in enumerate(subjects):
        for other in subjects[:number]:
            if subjects_overlap(subject, other):
                raise InvalidOptionError(
                    "subjects", subject, f"overlaps with {other}, which the server refuses"
                )
    return subjects


def _offsets(given: OptionValues, name: str, streams: tuple[str, ...]) -> OffsetSpec | None:
    value = given.text(name)
    if value is None:
        return None
    if value.lower() == "latest":
        return OffsetSpec(LATEST)
    if value.lower() == "earliest" and name == "startingOffsets":
        return OffsetSpec(EARLIEST)
    keywords = "earliest, latest" if name == "startingOffsets" else "latest"
    reason = f'expected {keywords}, or JSON with a sequence for each stream: {{"ORDERS": 17}}'
    try:
        positions: Any = json.loads(value)
    except ValueError:
        raise InvalidOptionError(name, value, reason) from None
    least = EARLIEST if name == "startingOffsets" else LATEST
    if not isinstance(positions, dict) or not positions:
        raise InvalidOptionError(name, value, reason)
    for stream, position in positions.items():
        if type(position) is not int or not least <= position <= _INT64_MAX or position == 0:
            raise InvalidOptionError(
                name,
                value,
                f"the offset of {stream} must be a sequence from 1 up, or {least} to -1",
            )
    unknown = [stream for stream in positions if streams and stream not in streams]
    if unknown:
        raise InvalidOptionError(name, value, f"stream {unknown[0]} is not read")
    missing = [stream for stream in streams if stream not in positions]
    if missing:
        raise InvalidOptionError(name, value, f"has no offset for stream {missing[0]}")
    return OffsetSpec(None, tuple(sorted(positions.items())))
