"""
``jsm server check``: checks for monitoring systems, with the output and the exit statuses of Nagios plugins.

A check records measurements and judges them by thresholds; `_Result` writes what it found.
"""

from __future__ import annotations

import base64
import functools
import json
import operator
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import click

from .. import AccountInfo, ConsumerInfo, PriorityPolicy, StreamInfo
from ..errors import (
    Error,
    InvalidArgumentError,
    KeyNotFoundError,
    MessageNotFoundError,
)
from ..net.clock import monotonic
from .env import readable
from .names import complete_bucket, complete_stream
from .output import counted, to_json
from .render import Field, bad, warn, write_rows
from .settings import Settings, command
from .status import CommandError, one_line
from .values import DURATION, FROM_0, PATTERN, Decorator, FilePath, option, with_options

#: The words for the exit statuses 0, 1 and 2.
_WORDS: Final = ("OK", "WARNING", "CRITICAL")
#: The start of the metadata keys of streams and consumers that set thresholds.
_METADATA: Final = "io.nats.monitor."
#: A JWT with its claims: its first two parts are JSON objects.
_JWT: Final = re.compile(r"eyJ[\w-]+\.(eyJ[\w-]+)\.[\w-]+")

_FOUND: Final = (
    Field(
        "Status",
        lambda row: {"Critical": bad, "Warning": warn}.get(row[0], str)(row[0]),
    ),
    Field("Message", lambda row: row[1]),
)
_METRICS: Final = (
    Field("Metric", "name"),
    Field("Value", lambda row: _number(row, "value"), right=True),
    Field("Unit", "unit"),
    Field("Critical", lambda row: _number(row, "critical"), right=True),
    Field("Warning", lambda row: _number(row, "warning"), right=True),
    Field("Description", "help", drop=1),
)


def _number(metric: dict[str, Any], name: str) -> str:
    value = metric[name]
    return "" if value is None else f"{value:.4f}" if metric["unit"] == "s" else f"{value:.0f}"


class _Result:
    """The findings of a check."""

    def __init__(self, suite: str, name: str = "") -> None:
        self.suite = suite
        self.name = name or suite.capitalize()
        self.ok: list[str] = []
        self.warning: list[str] = []
        self.critical: list[str] = []
        self.metrics: list[dict[str, Any]] = []

    @property
    def status(self) -> int:
        """The exit status of a Nagios plugin."""
        return 2 if self.critical else 1 if self.warning else 0

    def check(
        self,
        name: str,
        value: float,
        text: str,
        about: str,
        *,
        warn: float | None = None,
        crit: float | None = None,
        unit: str = "",
        below: bool | None = False,
    ) -> None:
        """
        Record a measurement, and judge it if there is a threshold.

        A value that reaches a threshold is bad; with ``below``, one that is not above it. ``None``: it is
        below if the critical threshold is the lower one.
        """
        self.metrics.append(
            {
                "name": name,
                "value": value,
                "warning": warn,
                "critical": crit,
                "unit": unit,
                "help": about,
            }
        )
        if below is None:
            below = warn is not None and crit is not None and crit < warn
        reaches = operator.le if below else operator.ge
        if crit is not None and reaches(value, crit):
            self.critical.append(text)
        elif warn is not None and reaches(value, warn):
            self.warning.append(text)
        elif crit is not None or warn is not None:
            self.ok.append(text)

    def write(self, settings: Settings, layout: str, namespace: str) -> None:
        """Write the findings in a format."""
        out = settings.env.stdout
        if settings.json or layout == "json":
            out.write(to_json(self._document()))
        elif layout == "prometheus":
            out.write("".join(f"{line}\n" for line in self._prometheus(namespace)))
        elif layout == "text":
            found = [
                (title, text)
                for title, texts in (
                    ("OK", self.ok),
                    ("Warning", self.warning),
                    ("Critical", self.critical),
                )
                for text in texts
            ]
            write_rows(settings, found, _FOUND, title=f"{self.name}: {_WORDS[self.status]}")
            out.write("\n")
            write_rows(settings, self.metrics, _METRICS, title="Metrics")
        else:
            out.write(f"{self._nagios()}\n")

    def _document(self) -> dict[str, Any]:
        lists = {"warning": self.warning, "critical": self.critical, "ok": self.ok}
        return {
            "status": _WORDS[self.status],
            "check_suite": self.suite,
            "check_name": self.name,
            **{name: texts for name, texts in lists.items() if texts},
            "perf_data": [
                {name: each[name] for name in ("name", "value", "warning", "critical", "unit")}
                for each in self.metrics
            ],
        }

    def _nagios(self) -> str:
        parts = [_WORDS[self.status], self.name]
        parts += [f"Crit:{text}" for text in self.critical]
        parts += [f"Warn:{text}" for text in self.warning]
        parts += [f"OK:{text}" for text in self.ok]
        if self.metrics:
            parts.append("|")
        for each in self.metrics:
            limits = (_number(each, "warning"), _number(each, "critical"))
            text = f"{each['name']}={_number(each, 'value')}{each['unit']}"
            parts.append(";".join((text, *limits)).rstrip(";"))
        return readable(" ".join(parts))

    def _prometheus(self, namespace: str) -> list[str]:
        item = self.name.replace("\\", ".").replace('"', ".")
        lines = []
        status = {
            "name": "status_code",
            "value": self.status,
            "help": f"Nagios compatible status code for {self.suite}",
            "labels": f',status="{_WORDS[self.status]}"',
        }
        for each in sorted([*self.metrics, status], key=lambda metric: str(metric["name"])):
            name = f"{namespace}_{self.suite}_{each['name']}".lstrip("_")
            lines.append(f"# HELP {name} {each['help']}")
            lines.append(f"# TYPE {name} gauge")
            labels = f'item="{item}"{each.get("labels", "")}'
            lines.append(f"{name}{{{labels}}} {each['value']}")
        return lines


# --- commands -------------------------------------------------------------------------------------


def _check(suite: str, name: str = "") -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function that fills in a `_Result`."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @command()
        @option(
            "--format",
            "Select the format of the output.",
            click.Choice(["nagios", "json", "prometheus", "text"]),
            to="layout",
            default="nagios",
        )
        @option(
            "--namespace TEXT",
            "Start the names of Prometheus metrics with this text.",
            default="nats_server_check",
        )
        @functools.wraps(function)
        def run(settings: Settings, *, layout: str, namespace: str, **options: Any) -> None:
            result = _Result(suite, name)
            try:
                function(settings, result, **{key: _seconds(each) for key, each in options.items()})
            except InvalidArgumentError:
                raise
            except (Error, CommandError, OSError) as error:
                result.critical.append(one_line(error))
            result.write(settings, layout, namespace)
            # A scraper reads the status from the output.
            raise click.exceptions.Exit(0 if layout == "prometheus" else result.status)

        return run

    return decorate


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _option(flag: str, text: str, kind: Any = None, default: Any = None) -> Decorator:
    """Return a threshold: a number, unless a type is given."""
    if kind is None:
        return option(f"{flag} N", text, FROM_0, default=default)
    return option(flag, text, kind, default=default)


def _levels(name: str, about: str, *defaults: Any, kind: Any = None) -> Decorator:
    """Return the options for the warning and the critical threshold of a value."""
    warn, crit = defaults or (None, None)
    return with_options(
        _option(f"--{name}-warn", f"Warn at this {about}.", kind, warn),
        _option(f"--{name}-critical", f"Fail at this {about}.", kind, crit),
    )


def _thresholds(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"warn": options.get(f"{name}_warn"), "crit": options.get(f"{name}_critical")}


def _with_metadata(options: dict[str, Any], metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the options with the thresholds of the metadata for those that were not given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        text = (metadata or {}).get(f"{_METADATA}{name.replace('_', '-')}")
        if text is not None and options.get(name, 0) is None:
            options[name] = _seconds(parameter.type.convert(text, parameter, context))
    return options


_stream_option = option(
    "--stream STREAM", "The stream.", required=True, shell_complete=complete_stream
)


@_check("connections", "Connection")
@_levels("connect", "time to connect", "500ms", "1s", kind=DURATION)
@_levels("rtt", "round-trip time", "500ms", "1s", kind=DURATION)
@_levels("req", "time until a message is back", "500ms", "1s", kind=DURATION)
def connection(settings: Settings, result: _Result, **options: Any) -> None:
    """Check the times to connect, to ping and to receive an own message."""
    started = monotonic()

    def check(name: str, prefix: str, seconds: float, text: str) -> None:
        levels = _thresholds(options, prefix)
        shown = f"{text} {seconds:.4f}s"
        result.check(name, seconds, shown, f"Time of: {text}", unit="s", **levels)

    with settings.connection() as nc:
        check("connect_time", "connect", monotonic() - started, f"connected to {nc.connected_url}")
        check("rtt", "rtt", nc.rtt(settings.timeout).total_seconds(), "round-trip time")
        subscription = nc.subscribe(inbox := nc.new_inbox())
        started = monotonic()
        nc.publish(inbox, os.urandom(100))
        subscription.next_msg(settings.timeout)
        check("request_time", "req", monotonic() - started, "received an own message after")


@_check("stream")
@_stream_option
@_option("--lag-critical", "Fail if a source or the mirror is N messages behind.")
@_option("--seen-critical", "Fail if a source or the mirror was not seen for this time.", DURATION)
@_option("--min-sources", "Fail with fewer sources.")
@_option("--max-sources", "Fail with more sources.")
@_option("--peer-expect", "Fail unless there are N replicas.")
@_option("--peer-lag-critical", "Fail if a replica is N operations behind.")
@_option("--peer-seen-critical", "Fail if a replica was not seen for this time.", DURATION)
@_option("--msgs-warn", "Warn with at most N messages.")
@_option("--msgs-critical", "Fail with at most N messages.")
@_levels("subjects", "number of subjects")
def stream(settings: Settings, result: _Result, *, stream: str, **options: Any) -> None:
    """
    Check the messages, the sources and the replicas of a stream.

    With a critical threshold below that for warnings, small numbers of subjects are bad. Thresholds that are
    not given are read from the metadata of the stream, such as "io.nats.monitor.msgs-warn".
    """
    result.name = stream
    with settings.jetstream() as js:
        info = js.get_stream(stream).cached_info
    options = _with_metadata(options, info.config.metadata)
    state = info.state
    result.check(
        *("messages", state.messages, counted(state.messages, "message"), "Stored messages"),
        **_thresholds(options, "msgs"),
        below=True,
    )
    subjects = state.num_subjects or 0
    result.check(
        *("subjects", subjects, counted(subjects, "subject"), "Subjects with messages"),
        **_thresholds(options, "subjects"),
        below=None,
    )
    _check_replicas(result, info, options)
    _check_sources(result, info, options)


def _none_of(result: _Result, name: str, found: list[Any], total: int, text: str) -> None:
    """Record a number of items that must be 0."""
    shown = f"{len(found)} of {total} {text}"
    result.check(name, len(found), shown, shown.partition("of ")[2].capitalize(), crit=1)


def _check_replicas(result: _Result, info: StreamInfo, options: Mapping[str, Any]) -> None:
    wanted = info.config.num_replicas or 1
    expected = options["peer_expect"]
    if wanted == 1 and expected in (None, 1):
        return
    if info.cluster is None or not info.cluster.leader:
        result.critical.append("the stream has no leader")
        return
    peers = list(info.cluster.replicas or ())
    found = len(peers) + 1
    right = found == (expected or wanted)
    text = f"{found} of {expected or wanted} expected replicas"
    (result.ok if right else result.critical).append(text)
    _none_of(result, "offline", [each for each in peers if each.offline], found, "replicas offline")
    lag, seen = options["peer_lag_critical"], options["peer_seen_critical"]
    if lag is not None:
        lagged = [each for each in peers if (each.lag or 0) >= lag]
        _none_of(result, "lagged", lagged, found, "replicas behind")
    if seen is not None:
        absent = [each for each in peers if each.active.total_seconds() >= seen]
        _none_of(result, "inactive", absent, found, "replicas not seen")


def _check_sources(result: _Result, info: StreamInfo, options: Mapping[str, Any]) -> None:
    sources = list(info.sources or ())
    for limit, below in ((options["min_sources"], True), (options["max_sources"], False)):
        if limit is not None:
            bad = len(sources) < limit if below else len(sources) > limit
            (result.critical if bad else result.ok).append(counted(len(sources), "source"))
    origins = sources if info.mirror is None else [info.mirror]
    lag, seen = options["lag_critical"], options["seen_critical"]
    if not origins and (lag is not None or seen is not None):
        result.critical.append("the stream has no mirror and no sources")
    if lag is not None and origins:
        lagged = [each for each in origins if each.lag >= lag]
        _none_of(result, "sources_lagged", lagged, len(origins), "sources behind")
    if seen is not None and origins:
        # The time is negative if there was no contact.
        ages = [each.active.total_seconds() for each in origins]
        absent = [age for age in ages if age >= seen or age < 0]
        _none_of(result, "sources_inactive", absent, len(origins), "sources not seen")


@_check("consumer")
@_stream_option
@option("--consumer CONSUMER", "The consumer.", required=True)
@_option("--outstanding-ack-critical", "Fail with N unacknowledged messages.")
@_option("--waiting-critical", "Fail with N waiting pulls.")
@_option("--unprocessed-critical", "Fail with N messages to deliver.")
@_option("--last-delivery-critical", "Fail without deliveries for this time.", DURATION)
@_option("--last-ack-critical", "Fail without acknowledgements for this time.", DURATION)
@_option("--redelivery-critical", "Fail with N redelivered messages.")
@option("--pinned", "Fail unless all groups have a client.", default=None)
def consumer(
    settings: Settings, result: _Result, *, stream: str, consumer: str, **options: Any
) -> None:
    """
    Check the progress of a consumer.

    Thresholds that are not given are read from the metadata of the consumer, such as
    "io.nats.monitor.unprocessed-critical".
    """
    result.name = f"{stream}_{consumer}"
    with settings.jetstream() as js:
        info = js.consumer_info(stream, consumer)
    options = _with_metadata(options, info.config.metadata)
    for name, prefix, value, about in (
        ("ack_pending", "outstanding_ack", info.num_ack_pending, "Unacknowledged messages"),
        ("pull_waiting", "waiting", info.num_waiting, "Waiting pulls"),
        ("pending", "unprocessed", info.num_pending, "Messages to deliver"),
        ("redelivered", "redelivery", info.num_redelivered, "Redelivered messages"),
    ):
        levels = _thresholds(options, prefix)
        result.check(name, value, f"{about.lower()}: {value:,}", about, **levels)
    now = datetime.now(timezone.utc)
    for name, last, about in (
        ("last_delivery", info.delivered.last_active, "delivery"),
        ("last_ack", info.ack_floor.last_active, "acknowledgement"),
    ):
        levels = _thresholds(options, name)
        if last is not None:
            age = (now - last).total_seconds()
            text = f"last {about} {age:.1f}s ago"
            result.check(name, age, text, f"Time since the last {about}", unit="s", **levels)
        elif levels["crit"] is not None:
            result.critical.append(f"no {about}")
    if options["pinned"]:
        _check_pinned(result, info)


def _check_pinned(result: _Result, info: ConsumerInfo) -> None:
    if info.config.priority_policy != PriorityPolicy.PINNED_CLIENT:
        result.critical.append("the consumer does not pin clients")
        return
    groups = len(info.config.priority_groups or ())
    pinned = sum(bool(each.pinned_client_id) for each in info.priority_groups or ())
    text = f"{pinned} of {groups} groups with a pinned client"
    result.check("pinned_groups", pinned, text, text, crit=groups - 1, below=True)


@_check("message", "Stream Message")
@_stream_option
@option("--subject SUBJECT", "Check the last message of it.", default=">")
@_levels("age", "age of the message", kind=DURATION)
@_option("--content", "Fail unless the body matches this regular expression.", PATTERN)
@option("--body-timestamp", "The body is the time, in Unix seconds.")
def message(
    settings: Settings,
    result: _Result,
    *,
    stream: str,
    subject: str,
    content: re.Pattern[str] | None,
    body_timestamp: bool,
    **options: Any,
) -> None:
    """Check the age and the body of the last message of a stream or a subject."""
    with settings.jetstream() as js:
        try:
            found = js.get_stream(stream).get_msg(last_by_subject=subject)
        except MessageNotFoundError:
            result.critical.append(f"no message of {subject}")
            return
    text = found.data.decode("utf-8", "replace")
    since = found.time.timestamp()
    if body_timestamp:
        try:
            since = float(text)
        except ValueError:
            result.critical.append("the body is not a Unix timestamp")
            return
    age = datetime.now(timezone.utc).timestamp() - since
    levels = _thresholds(options, "age")
    result.check("age", age, f"{age:.1f}s old", "Age of the message", unit="s", **levels)
    result.check("size", len(found.data), "", "Size of the message", unit="B")
    if content is not None and not content.search(text):
        result.critical.append(f"the body does not match {content.pattern}")
    if result.status == 0:
        result.ok.append(f"valid message on {stream} > {found.subject}")


@_check("jetstream", "JetStream")
@_levels("mem", "use of memory, in percent", 75, 90)
@_levels("store", "use of files, in percent", 75, 90)
@_levels("streams", "use of streams, in percent")
@_levels("consumers", "use of consumers, in percent")
@option("--replicas/--no-replicas", "Check the replicas of all streams.", default=True)
@_option("--replica-seen-critical", "Fail if a replica was not seen for it.", DURATION, "5s")
@_option("--replica-lag-critical", "Fail if a replica is N operations behind.", None, 200)
def jetstream(settings: Settings, result: _Result, **options: Any) -> None:
    """Check the account's use of JetStream, and the replicas of its streams."""
    with settings.jetstream() as js:
        account = js.account_info()
        streams = js.list_streams() if options["replicas"] else []
    _check_usage(result, account, options)
    problems: dict[str, list[str]] = {}
    for info in streams:
        name = info.config.name
        peers = (info.cluster and info.cluster.replicas) or ()
        if (info.config.num_replicas or 1) == 1:
            continue
        if info.cluster is None or not info.cluster.leader:
            problems.setdefault("without a leader", []).append(name)
        elif len(peers) + 1 != info.config.num_replicas:
            problems.setdefault("with missing replicas", []).append(name)
        elif any(
            each.offline or each.active.total_seconds() > options["replica_seen_critical"]
            for each in peers
        ):
            problems.setdefault("with replicas that were not seen", []).append(name)
        elif any((each.lag or 0) > options["replica_lag_critical"] for each in peers):
            problems.setdefault("with replicas that are behind", []).append(name)
    for problem, names in problems.items():
        result.critical.append(f"{counted(len(names), 'stream')} {problem}: {', '.join(names)}")
    failed = sum(map(len, problems.values()))
    result.check("replicas_ok", len(streams) - failed, "", "Streams with healthy replicas")
    result.check("replicas_fail", failed, "", "Streams with unhealthy replicas")


def _check_usage(result: _Result, account: AccountInfo, options: Mapping[str, Any]) -> None:
    limits = account.limits
    for name, prefix, used, most, unit in (
        ("memory", "mem", account.memory, limits.max_memory, "B"),
        ("storage", "store", account.storage, limits.max_storage, "B"),
        ("streams", "streams", account.streams, limits.max_streams, ""),
        ("consumers", "consumers", account.consumers, limits.max_consumers, ""),
    ):
        percent = 100 * used // most if most > 0 else 0
        levels = _thresholds(options, prefix)
        result.check(name, used, "", f"Use of {name}", unit=unit)
        text, about = f"{percent}% of {name}", f"Use of {name} in percent"
        result.check(f"{name}_pct", percent, text, about, unit="%", **levels)


@_check("kv")
@option("--bucket BUCKET", "The bucket.", required=True, shell_complete=complete_bucket)
@_levels("values", "number of values")
@option("--key KEY", "Fail unless this key has a value.")
def kv(
    settings: Settings, result: _Result, *, bucket: str, key: str | None, **options: Any
) -> None:
    """
    Check a key-value bucket.

    With a critical threshold below that for warnings, small numbers of values are bad.
    """
    result.name = bucket
    with settings.jetstream() as js:
        found = js.key_value(bucket)
        status = found.status()
        result.ok.append(f"bucket {bucket}")
        if key is not None:
            try:
                found.get(key)
                result.ok.append(f"key {key} found")
            except KeyNotFoundError:
                result.critical.append(f"key {key} not found")
    text = counted(status.values, "value")
    levels = _thresholds(options, "values")
    result.check("values", status.values, text, "Stored values", below=None, **levels)
    result.check("bytes", status.bytes, "", "Bytes in the bucket", unit="B")
    result.check("replicas", status.info.config.num_replicas or 1, "", "Replicas of the bucket")


@_check("credential")
@option("--credential FILE", "The credentials file.", FilePath(path_type=Path), required=True)
@_levels("validity", "time until it expires", kind=DURATION)
@option("--require-expiry/--no-require-expiry", "Fail if it never expires.", default=True)
def credential(
    settings: Settings, result: _Result, *, credential: Path, require_expiry: bool, **options: Any
) -> None:
    """Check when a credentials file expires; no server is asked."""
    del settings
    found = _JWT.search(credential.read_text("utf-8", "replace"))
    if found is None:
        result.critical.append(f"{credential}: the file has no JWT")
        return
    try:
        fields = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
        expires = int(fields.get("exp", 0))
    except (ValueError, AttributeError) as error:
        result.critical.append(f"{credential}: invalid credentials: {error}")
        return
    if not expires:
        (result.critical if require_expiry else result.ok).append("never expires")
        return
    end = datetime.fromtimestamp(expires, timezone.utc)
    left = (end - datetime.now(timezone.utc)).total_seconds()
    levels = _thresholds(options, "validity")
    text = f"expires at {end.isoformat(sep=' ')}"
    levels["crit"] = levels["crit"] or 0
    result.check("expiry", left, text, "Time until it expires", unit="s", below=True, **levels)
