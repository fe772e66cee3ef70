"""
``jsm server check``: checks for monitoring systems, with the output and the exit statuses of Nagios plugins.

A check adds measurements to a `Check`, which judges them by the thresholds of the options.
"""

from __future__ import annotations

import base64
import enum
import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import click

from ... import (
    ClusterInfo,
    JetStream,
    PeerInfo,
    PriorityPolicy,
    StreamInfo,
    StreamSourceInfo,
    errors,
)
from ...net.clock import monotonic
from ..shared.env import parse_json, readable
from ..shared.listings import Listed, Lister
from ..shared.names import complete_bucket, complete_stream
from ..shared.output import to_json
from ..shared.settings import Settings, command
from ..shared.status import CommandError, one_line
from ..shared.system import PING, JSONObject, MetaGroup, all_replies, server_name
from ..shared.values import DURATION, FROM_0, PATTERN, Decorator, NonEmptyPath, option, with_options

_NO_LEADER: Final = "no leader"
#: The start of the names of Prometheus metrics.
_NAMESPACE: Final = "nats_server_check"
#: A JWT with its claims: its first two parts are JSON objects.
_JWT: Final = re.compile(r"eyJ[\w-]+\.(eyJ[\w-]+)\.[\w-]+")


class Level(enum.IntEnum):
    """The result of a check: the exit status of a Nagios plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


#: The word before the findings of each level, the worst first.
_WORDS: Final = {Level.CRITICAL: "Crit", Level.WARNING: "Warn", Level.OK: "OK"}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The values at which a measurement is bad; without any, it is not judged."""

    warning: float | None = None
    critical: float | None = None
    below: bool | None = False
    """
    Whether a value that is not above a threshold is bad, instead of one that reaches it.

    ``None``: it is if the critical threshold is the lower one.
    """

    def level(self, value: float) -> Level | None:
        """Return the level of a value; ``None``: it is not judged."""
        warning, critical, below = self.warning, self.critical, self.below
        if below is None:
            below = warning is not None and critical is not None and critical < warning
        reaches = operator.le if below else operator.ge
        if critical is not None and reaches(value, critical):
            return Level.CRITICAL
        if warning is not None and reaches(value, warning):
            return Level.WARNING
        return None if critical is warning is None else Level.OK


@dataclass(frozen=True, slots=True)
class Metric:
    """A measurement and its thresholds."""

    name: str
    value: float
    about: str
    unit: str = ""
    thresholds: Thresholds = Thresholds()

    def number(self, value: float | None) -> str:
        """Return the value or a threshold as text; nothing for ``None``."""
        return "" if value is None else f"{value:.4f}" if self.unit == "s" else f"{value:.0f}"

    def text(self) -> str:
        """Return the measurement as a finding."""
        return f"{self.about[0].lower()}{self.about[1:]}: {self.number(self.value)}{self.unit}"

    def nagios(self) -> str:
        """Return the performance data of a Nagios plugin."""
        parts = (self.value, self.thresholds.warning, self.thresholds.critical)
        value, *limits = map(self.number, parts)
        return ";".join((f"{self.name}={value}{self.unit}", *limits)).rstrip(";")

    def document(self) -> dict[str, Any]:
        """Return the measurement as JSON."""
        return {
            "name": self.name,
            "value": self.value,
            "warning": self.thresholds.warning,
            "critical": self.thresholds.critical,
            "unit": self.unit,
        }


class Check:
    """The findings and the measurements of a check, and the thresholds of its options."""

    def __init__(
        self, suite: str, name: str, thresholds: Mapping[str, tuple[float | None, float | None]]
    ) -> None:
        self.suite = suite
        self.name = name
        self.findings: list[tuple[Level, str]] = []
        self.metrics: list[Metric] = []
        self._thresholds = thresholds

    @property
    def level(self) -> Level:
        """The worst level of the findings."""
        return max((level for level, _ in self.findings), default=Level.OK)

    def ok(self, text: str) -> None:
        """Add a finding that is fine."""
        self.findings.append((Level.OK, text))

    def critical(self, text: str) -> None:
        """Add a finding that is critical; nothing for an empty text."""
        if text:
            self.findings.append((Level.CRITICAL, text))

    def add(
        self,
        name: str,
        value: float,
        about: str,
        unit: str = "",
        *,
        levels: str = "",
        below: bool | None = False,
    ) -> None:
        """Add a measurement; judge it by the thresholds with the name ``levels``, if any was given; see `Thresholds`."""
        thresholds = Thresholds(*self._thresholds.get(levels, (None, None)), below)
        self.metrics.append(metric := Metric(name, value, about, unit, thresholds))
        level = thresholds.level(value)
        if level is not None:
            self.findings.append((level, metric.text()))

    def judges(self, levels: str) -> bool:
        """Return whether there is a critical threshold with this name."""
        return self._thresholds[levels][1] is not None

    def write(self, settings: Settings, layout: str) -> None:
        """Write the findings in a format."""
        if settings.json or layout == "json":
            text = to_json(self._document())
        elif layout == "prometheus":
            text = self._prometheus()
        else:
            text = f"{self._nagios()}\n"
        settings.env.stdout.write(text)

    def _found(self, level: Level) -> list[str]:
        return [text for found, text in self.findings if found is level]

    def _document(self) -> dict[str, Any]:
        levels = (Level.WARNING, Level.CRITICAL, Level.OK)
        return {
            "status": self.level.name,
            "check_suite": self.suite,
            "check_name": self.name,
            **{level.name.lower(): texts for level in levels if (texts := self._found(level))},
            "perf_data": [metric.document() for metric in self.metrics],
        }

    def _nagios(self) -> str:
        found = (f"{word}:{text}" for level, word in _WORDS.items() for text in self._found(level))
        data = ["|", *(metric.nagios() for metric in self.metrics)] if self.metrics else []
        return readable(" ".join((self.level.name, self.name, *found, *data)))

    def _prometheus(self) -> str:
        item = self.name.replace("\\", ".").replace('"', ".")
        about = f"Nagios compatible status code for {self.suite}"
        status = Metric("status_code", int(self.level), about)
        lines = []
        for metric in sorted([*self.metrics, status], key=lambda metric: metric.name):
            name = f"{_NAMESPACE}_{self.suite}_{metric.name}"
            labels = f'item="{item}"'
            if metric is status:
                labels += f',status="{self.level.name}"'
            lines.append(f"# HELP {name} {metric.about}\n# TYPE {name} gauge\n")
            lines.append(f"{name}{{{labels}}} {metric.value}\n")
        return "".join(lines)


# --- commands -------------------------------------------------------------------------------------


def _check(suite: str, name: str = "") -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function that fills in a `Check`."""

    def decorate(function: Callable[..., None]) -> click.Command:
        parameters = inspect.signature(function).parameters

        def run(settings: Settings, *, layout: str, **options: Any) -> None:
            values = {key: _seconds(value) for key, value in options.items()}
            # The options that the function does not take are thresholds of measurements.
            names = {key.rpartition("_")[0] for key in values.keys() - parameters.keys()}
            thresholds = {
                levels: (values.pop(f"{levels}_warn", None), values.pop(f"{levels}_critical"))
                for levels in names
            }
            check = Check(suite, name or suite.capitalize(), thresholds)
            try:
                function(settings, check, **values)
            except errors.InvalidArgumentError:
                raise
            except (errors.Error, CommandError, OSError) as error:
                check.critical(one_line(error))
            check.write(settings, layout)
            # A scraper reads the status from the output.
            raise click.exceptions.Exit(0 if layout == "prometheus" else check.level)

        run.__doc__ = function.__doc__
        run.__dict__.update(function.__dict__)  # the options
        formats = click.Choice(["nagios", "json", "prometheus"])
        layout = option(
            "--format", "Select the format of the output.", formats, to="layout", default="nagios"
        )
        return command()(layout(run))

    return decorate


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _option(flag: str, text: str, kind: Any = None, default: Any = None) -> Decorator:
    """Return a threshold: a number, unless a type is given."""
    if kind is None:
        return option(f"{flag} N", text, FROM_0, default=default)
    return option(flag, text, kind, default=default)


def _levels(name: str, about: str, *defaults: Any, kind: Any = None) -> Decorator:
    """Return the options for the warning and the critical threshold of a value; see `Check.add`."""
    warn, crit = defaults or (None, None)
    return with_options(
        _option(f"--{name}-warn", f"Warn at this {about}.", kind, warn),
        _option(f"--{name}-critical", f"Fail at this {about}.", kind, crit),
    )


_stream = option("--stream STREAM", "The stream.", required=True, shell_complete=complete_stream)


@_check("connections", "Connection")
@_levels("connect", "time to connect", "500ms", "1s", kind=DURATION)
@_levels("rtt", "round-trip time", "500ms", "1s", kind=DURATION)
@_levels("req", "time until a message is back", "500ms", "1s", kind=DURATION)
def connection(settings: Settings, check: Check) -> None:
    """Check the times to connect, to ping and to receive an own message."""
    started = monotonic()
    with settings.connection() as nc:
        check.add("connect_time", monotonic() - started, "Time to connect", "s", levels="connect")
        rtt = nc.rtt(settings.timeout).total_seconds()
        check.add("rtt", rtt, "Round-trip time", "s", levels="rtt")
        subscription = nc.subscribe(inbox := nc.new_inbox())
        started = monotonic()
        nc.publish(inbox, os.urandom(100))
        subscription.next_msg(settings.timeout)
        took = monotonic() - started
        check.add("request_time", took, "Time to receive an own message", "s", levels="req")


@_check("stream")
@_stream
@_option("--lag-critical", "Fail if a source or the mirror is N messages behind.")
@_option("--seen-critical", "Fail if a source or the mirror was not seen for this time.", DURATION)
@_option("--peer-expect", "Fail unless there are N replicas.")
@_option("--peer-lag-critical", "Fail if a replica is N operations behind.")
@_option("--peer-seen-critical", "Fail if a replica was not seen for this time.", DURATION, "5s")
@_option("--msgs-warn", "Warn with at most N messages.")
@_option("--msgs-critical", "Fail with at most N messages.")
@_levels("subjects", "number of subjects")
def stream(
    settings: Settings,
    check: Check,
    *,
    stream: str,
    lag_critical: float | None,
    seen_critical: float | None,
    peer_expect: int | None,
    peer_lag_critical: float | None,
    peer_seen_critical: float,
) -> None:
    """
    Check the messages, the sources and the replicas of a stream.

    With a critical threshold below that for warnings, small numbers of subjects are bad.
    """
    check.name = stream
    with settings.jetstream() as js:
        info = js.get_stream(stream).cached_info
    check.add("messages", info.state.messages, "Messages", levels="msgs", below=True)
    subjects = info.state.num_subjects or 0
    check.add("subjects", subjects, "Subjects", levels="subjects", below=None)
    check.critical(_replica_problem(info, peer_lag_critical, peer_seen_critical, peer_expect))
    origins = list(info.sources or ()) if info.mirror is None else [info.mirror]
    if not origins and (lag_critical is not None or seen_critical is not None):
        check.critical("the stream has no mirror and no sources")
    for origin in origins:
        if origin.error is not None:
            check.critical(f"{origin.name} is not copied: {origin.error.description}")
        # The lag of an origin that was not seen yet is 0.
        if origin.seen_ago is None:
            check.critical(f"{origin.name} was not seen yet")
            continue
        if lag_critical is not None and origin.lag >= lag_critical:
            check.critical(f"{origin.name} is {origin.lag:,} messages behind")
        if seen_critical is not None and _is_unseen(origin, seen_critical):
            check.critical(f"{origin.name} was not seen for {seen_critical:g}s")


def _is_unseen(origin: StreamSourceInfo | PeerInfo, seconds: float | None) -> bool:
    ago = origin.seen_ago
    return ago is None or (seconds is not None and ago.total_seconds() >= seconds)


def _replica_problem(
    info: StreamInfo, lag: float | None, seen: float | None, expected: int | None = None
) -> str:
    """Return what is wrong with the replicas of a stream; empty if nothing is."""
    replicas = info.config.num_replicas or 1
    expected = expected or replicas
    peers = (info.cluster and info.cluster.replicas) or ()
    problem = _peer_problem(info.cluster, lag, seen)
    if replicas == expected == 1 or problem == _NO_LEADER:
        return problem
    if info.cluster is None:
        return _NO_LEADER
    if len(peers) + 1 != expected:
        return f"{len(peers) + 1} of {expected} expected replicas"
    return problem


def _peer_problem(cluster: ClusterInfo | None, lag: float | None, seen: float | None) -> str:
    """Return what is wrong with the leader or a replica of a stream or consumer; empty if nothing is."""
    if cluster is None or not cluster.name:
        return ""
    if not cluster.leader:
        return _NO_LEADER
    for peer in cluster.replicas or ():
        if peer.offline or _is_unseen(peer, seen):
            return f"replica on {peer.name} was not seen"
        if lag is not None and (peer.lag or 0) >= lag:
            return f"replica on {peer.name} is behind"
    return ""


@_check("consumer")
@_stream
@option("--consumer CONSUMER", "The consumer.", required=True)
@_option("--outstanding-ack-critical", "Fail with N unacknowledged messages.")
@_option("--waiting-critical", "Fail with N waiting pulls.")
@_option("--unprocessed-critical", "Fail with N messages to deliver.")
@_option("--last-delivery-critical", "Fail without deliveries for this time.", DURATION)
@_option("--last-ack-critical", "Fail without acknowledgements for this time.", DURATION)
@_option("--redelivery-critical", "Fail with N redelivered messages.")
@_option("--peer-seen-critical", "Fail if a replica was not seen for this time.", DURATION, "5s")
@option("--pinned", "Fail unless all groups have a client.", default=None)
def consumer(
    settings: Settings,
    check: Check,
    *,
    stream: str,
    consumer: str,
    peer_seen_critical: float,
    pinned: bool | None,
) -> None:
    """Check the progress and the replicas of a consumer."""
    check.name = f"{stream}_{consumer}"
    with settings.jetstream() as js:
        info = js.consumer_info(stream, consumer)
        stranded = js.get_stream(stream).stranded(consumer)
    if stranded is not None:
        check.critical(
            f"message {stranded.seq} of the work queue is not delivered although it is at or below the ack floor"
            f" {info.ack_floor.stream_seq}: delete the consumer and create it again with the same config"
        )
    check.critical(_peer_problem(info.cluster, None, peer_seen_critical))
    pending = info.num_ack_pending
    check.add("ack_pending", pending, "Unacknowledged messages", levels="outstanding_ack")
    check.add("pull_waiting", info.num_waiting, "Waiting pulls", levels="waiting")
    check.add("pending", info.num_pending, "Messages to deliver", levels="unprocessed")
    check.add("redelivered", info.num_redelivered, "Redelivered messages", levels="redelivery")
    now = datetime.now(timezone.utc)
    for levels, position, about in (
        ("last_delivery", info.delivered, "delivery"),
        ("last_ack", info.ack_floor, "acknowledgement"),
    ):
        if position.last_active is not None:
            age = (now - position.last_active).total_seconds()
            check.add(levels, age, f"Time since the last {about}", "s", levels=levels)
        elif check.judges(levels):
            check.critical(f"no {about}")
    if not pinned:
        return
    if info.config.priority_policy != PriorityPolicy.PINNED_CLIENT:
        check.critical("the consumer does not pin clients")
    for group in info.priority_groups or ():
        if not group.pinned_client_id:
            check.critical(f"group {group.group} has no pinned client")


@_check("message", "Stream Message")
@_stream
@option("--subject SUBJECT", "Check the last message of it.", default=">")
@_levels("age", "age of the message", kind=DURATION)
@_option("--content", "Fail unless the body matches this regular expression.", PATTERN)
@option("--body-timestamp", "The body is the time, in Unix seconds.")
def message(
    settings: Settings,
    check: Check,
    *,
    stream: str,
    subject: str,
    content: re.Pattern[str] | None,
    body_timestamp: bool,
) -> None:
    """Check the age and the body of the last message of a stream or a subject."""
    with settings.jetstream() as js:
        held = js.get_stream(stream)
        # Without a leader, a replica answers, which may lack the last message.
        if _peer_problem(held.cached_info.cluster, None, None) == _NO_LEADER:
            check.critical(_NO_LEADER)
        try:
            found = held.get_msg(last_by_subject=subject)
        except errors.MessageNotFoundError:
            check.critical(f"no message of {subject}")
            return
    text = found.data.decode("utf-8", "replace")
    since = found.time.timestamp()
    if body_timestamp:
        try:
            since = float(text)
        except ValueError:
            since = math.nan
        if not math.isfinite(since):
            check.critical("the body is not a Unix timestamp")
            return
    age = datetime.now(timezone.utc).timestamp() - since
    check.add("age", age, "Age of the message", "s", levels="age")
    check.add("size", len(found.data), "Size of the message", "B")
    if content is not None and not content.search(text):
        check.critical(f"the body does not match {content.pattern}")
    if check.level is Level.OK:
        check.ok(f"valid message on {stream} > {found.subject}")


#: The resources of an account, and the start of the names of their options.
_RESOURCES: Final = {
    "memory": "mem",
    "storage": "store",
    "streams": "streams",
    "consumers": "consumers",
}


@_check("jetstream", "JetStream")
@_levels("mem", "use of memory, in percent", 75, 90)
@_levels("store", "use of files, in percent", 75, 90)
@_levels("streams", "use of streams, in percent")
@_levels("consumers", "use of consumers, in percent")
@option("--replicas/--no-replicas", "Check the replicas of all streams.", default=True)
@option("--probe", "Store a message in a temporary stream of each storage.")
@_option("--replica-seen-critical", "Fail if a replica was not seen for it.", DURATION, "5s")
@_option("--replica-lag-critical", "Fail if a replica is N operations behind.", None, 200)
def jetstream(
    settings: Settings,
    check: Check,
    *,
    replicas: bool,
    probe: bool,
    replica_seen_critical: float,
    replica_lag_critical: float,
) -> None:
    """
    Check the account's use of JetStream, and the replicas of its streams.

    How full an account without a limit is, the account does not know: --probe shows whether a message can be
    stored. A user of the system account checks the stores of the servers instead.
    """
    with settings.connection() as nc:
        lists = Lister(settings, nc)
        try:
            account = lists.js.account_info()
        except errors.JetStreamNotEnabledForAccountError:
            replies = all_replies(settings, nc, f"{PING}.JSZ", {})
            if not replies:
                raise
            for response in replies:
                _check_store(check, response)
            return
        streams = lists.streams() if replicas else Listed("stream")
        for storage in ("file", "memory") if probe else ():
            check.critical(_probe(lists.js, nc.server_info.server_name, storage))
    # The limits of an account with tiers are those of each tier.
    for tier, usage in (account.tiers or {"": account}).items():
        start, where = (f"{tier.lower()}_", f" in tier {tier}") if tier else ("", "")
        for name, levels in _RESOURCES.items():
            used, most = getattr(usage, name), getattr(usage.limits, f"max_{name}")
            unit = "B" if name in ("memory", "storage") else ""
            check.add(f"{start}{name}", used, f"Use of {name}{where}", unit)
            if most > 0:
                _add_use(check, f"{start}{name}", f"{name}{where}", used, most, levels)
            elif most < 0 and unit:
                check.ok(f"use of {name}{where}: not known, since the account has no limit")
    lag, seen = replica_lag_critical, replica_seen_critical
    problems = {info.config.name: _replica_problem(info, lag, seen) for info in streams.found}
    problems |= {item.name: f"{item.state}, {item.reason}" for item in streams.missing}
    if streams.more is not None:
        check.critical(one_line(streams.more))
    found = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    for text in found:
        check.critical(text)
    check.add("replicas_ok", len(problems) - len(found), "Streams with healthy replicas")
    check.add("replicas_fail", len(found), "Streams with unhealthy replicas")


def _add_use(check: Check, name: str, what: str, used: int, most: int, levels: str) -> None:
    check.add(f"{name}_pct", 100 * used // most, f"Use of {what}", "%", levels=levels)


def _check_store(check: Check, response: JSONObject) -> None:
    """Check the use of the stores of a server, as its reply to JSZ has it."""
    name, data = server_name(response), response.get("data") or {}
    limits = data.get("config") or {}
    if not limits:
        check.ok(f"JetStream is not enabled on server {name}")
    for kind, levels in (("memory", "mem"), ("storage", "store")):
        if (most := limits.get(f"max_{kind}", 0)) > 0:
            _add_use(check, f"{name}_{kind}", f"{kind} of server {name}", data[kind], most, levels)


def _probe(js: JetStream, server: str, storage: str) -> str:
    """Store a message in a temporary stream, and return the error; empty: it is stored."""
    # Unique, and of at most 32 characters.
    name = f"JSM_PROBE_{os.urandom(8).hex()}"
    try:
        stream = js.create_stream(name=name, subjects=[name], storage=storage)
        try:
            cluster = stream.cached_info.cluster
            server = (cluster and cluster.leader) or server
            js.publish(name, b"probe")
        finally:
            js.delete_stream(name)
    except errors.Error as error:
        return f"nothing can be stored in the {storage} store of {server}: {one_line(error)}"
    return ""


@_check("meta")
@_option("--expect", "Fail unless there are N members.")
@_option("--lag-critical", "Fail if a member is N operations behind.", None, 200)
@_option("--seen-critical", "Fail if a member was not seen for this time.", DURATION, "5s")
def meta(
    settings: Settings,
    check: Check,
    *,
    expect: int | None,
    lag_critical: float,
    seen_critical: float,
) -> None:
    """
    Check the meta group of JetStream: its leader and its members.

    It needs a user of the system account.
    """
    with settings.connection() as nc:
        group = MetaGroup.of(all_replies(settings, nc, f"{PING}.JSZ", {}))
    if not group.size:
        check.critical("JetStream is not clustered")
    elif problem := group.problem():
        check.critical(problem)
    else:
        check.ok(f"meta leader {group.leader}")
    if expect is not None and group.size != expect:
        check.critical(f"{group.size} of {expect} expected members")
    # The leader notices a server that is down after some seconds.
    for name in group.silent:
        check.critical(f"{name} did not answer")
    for peer in group.leaders_view.get("replicas") or ():
        age = peer.get("active", 0) / 1e9
        if peer.get("offline") or age >= seen_critical or (not peer.get("current") and not age):
            check.critical(f"{peer['name']} was not seen")
        elif (peer.get("lag") or 0) >= lag_critical:
            check.critical(f"{peer['name']} is behind")
    check.add("members", group.size, "Members of the meta group")
    check.add("answering", len(group.answering), "Members that answer")


@_check("kv")
@option("--bucket BUCKET", "The bucket.", required=True, shell_complete=complete_bucket)
@_levels("values", "number of values")
@option("--key KEY", "Fail unless this key has a value.")
@_option("--peer-seen-critical", "Fail if a replica was not seen for this time.", DURATION, "5s")
def kv(
    settings: Settings, check: Check, *, bucket: str, key: str | None, peer_seen_critical: float
) -> None:
    """
    Check a key-value bucket and its replicas.

    With a critical threshold below that for warnings, small numbers of values are bad.
    """
    check.name = bucket
    with settings.jetstream() as js:
        store = js.key_value(bucket)
        status = store.status()
        check.ok(f"bucket {bucket}")
        if key is not None:
            try:
                store.get(key)
                check.ok(f"key {key} found")
            except errors.KeyNotFoundError:
                check.critical(f"key {key} not found")
    check.critical(_replica_problem(status.info, None, peer_seen_critical))
    check.add("values", status.values, "Stored values", levels="values", below=None)
    check.add("bytes", status.bytes, "Bytes in the bucket", "B")
    check.add("replicas", status.info.config.num_replicas or 1, "Replicas of the bucket")


@_check("credential")
@option("--credential FILE", "The credentials file.", NonEmptyPath(path_type=Path), required=True)
@_levels("validity", "time until it expires", None, "0s", kind=DURATION)
@option("--require-expiry/--no-require-expiry", "Fail if it never expires.", default=True)
def credential(
    _settings: Settings, check: Check, *, credential: Path, require_expiry: bool
) -> None:
    """Check when a credentials file expires; no server is asked."""
    found = _JWT.search(credential.read_text("utf-8", "replace"))
    if found is None:
        raise CommandError(f"{credential}: the file has no JWT")
    try:
        fields = parse_json(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
        expires = int(fields.get("exp", 0))
    except (ValueError, AttributeError) as error:
        raise CommandError(f"{credential}: invalid credentials: {error}") from error
    if not expires:
        (check.critical if require_expiry else check.ok)("never expires")
        return
    left = expires - datetime.now(timezone.utc).timestamp()
    check.add("expiry", left, "Time until it expires", "s", levels="validity", below=True)
