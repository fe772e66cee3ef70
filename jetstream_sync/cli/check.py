"""
``jsm server check``: checks for monitoring systems, with the output and the exit statuses of Nagios plugins.

A check adds measurements to a `_Check`, which judges them by the thresholds of the options.
"""

from __future__ import annotations

import base64
import json
import math
import operator
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from .. import ClusterInfo, PeerInfo, PriorityPolicy, StreamInfo, StreamSourceInfo, errors
from ..net.clock import monotonic
from .env import readable
from .listings import Listed, lister
from .names import complete_bucket, complete_stream
from .output import to_json
from .settings import Settings, command
from .status import CommandError, one_line
from .system import PING, MetaGroup, all_replies
from .values import DURATION, FROM_0, PATTERN, Decorator, NonEmptyPath, option, with_options

#: The words for the exit statuses 0, 1 and 2.
_WORDS: Final = ("OK", "WARNING", "CRITICAL")
_NO_LEADER: Final = "no leader"
#: The start of the names of Prometheus metrics.
_NAMESPACE: Final = "nats_server_check"
#: A JWT with its claims: its first two parts are JSON objects.
_JWT: Final = re.compile(r"eyJ[\w-]+\.(eyJ[\w-]+)\.[\w-]+")


class _Metric(NamedTuple):
    """A measurement and its thresholds."""

    name: str
    value: float
    warning: float | None
    critical: float | None
    unit: str
    about: str

    def number(self, value: float | None) -> str:
        """Return the value or a threshold as text; nothing for ``None``."""
        return "" if value is None else f"{value:.4f}" if self.unit == "s" else f"{value:.0f}"

    def nagios(self) -> str:
        """Return the performance data of a Nagios plugin."""
        parts = (self.value, self.warning, self.critical)
        value, *limits = map(self.number, parts)
        return ";".join((f"{self.name}={value}{self.unit}", *limits)).rstrip(";")


class _Check:
    """The options and the findings of a check."""

    def __init__(self, suite: str, name: str, options: dict[str, Any]) -> None:
        self.suite = suite
        self.name = name
        self.options = options
        self.ok: list[str] = []
        self.warning: list[str] = []
        self.critical: list[str] = []
        self.metrics: list[_Metric] = []

    @property
    def status(self) -> int:
        """The exit status of a Nagios plugin."""
        return 2 if self.critical else 1 if self.warning else 0

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
        """
        Record a measurement, and judge it by the options that begin with ``levels``, if any was given.

        A value that reaches a threshold is bad; with ``below``, one that is not above it. ``None``: it is
        below if the critical threshold is the lower one.
        """
        warn, crit = (self.options.get(f"{levels}_{level}") for level in ("warn", "critical"))
        metric = _Metric(name, value, warn, crit, unit, about)
        self.metrics.append(metric)
        if below is None:
            below = warn is not None and crit is not None and crit < warn
        reaches = operator.le if below else operator.ge
        text = f"{about[0].lower()}{about[1:]}: {metric.number(value)}{unit}"
        if crit is not None and reaches(value, crit):
            self.critical.append(text)
        elif warn is not None and reaches(value, warn):
            self.warning.append(text)
        elif crit is not None or warn is not None:
            self.ok.append(text)

    def write(self, settings: Settings, layout: str) -> None:
        """Write the findings in a format."""
        if settings.json or layout == "json":
            text = to_json(self._document())
        elif layout == "prometheus":
            text = self._prometheus()
        else:
            text = f"{self._nagios()}\n"
        settings.env.stdout.write(text)

    def _document(self) -> dict[str, Any]:
        lists = {"warning": self.warning, "critical": self.critical, "ok": self.ok}
        return {
            "status": _WORDS[self.status],
            "check_suite": self.suite,
            "check_name": self.name,
            **{name: texts for name, texts in lists.items() if texts},
            "perf_data": [
                dict(zip(_Metric._fields[:-1], metric, strict=False)) for metric in self.metrics
            ],
        }

    def _nagios(self) -> str:
        lists = {"Crit": self.critical, "Warn": self.warning, "OK": self.ok}
        found = (f"{word}:{text}" for word, texts in lists.items() for text in texts)
        data = ["|", *(metric.nagios() for metric in self.metrics)] if self.metrics else []
        return readable(" ".join((_WORDS[self.status], self.name, *found, *data)))

    def _prometheus(self) -> str:
        item = self.name.replace("\\", ".").replace('"', ".")
        about = f"Nagios compatible status code for {self.suite}"
        status = _Metric("status_code", self.status, None, None, "", about)
        lines = []
        for metric in sorted([*self.metrics, status], key=lambda metric: metric.name):
            name = f"{_NAMESPACE}_{self.suite}_{metric.name}"
            labels = f'item="{item}"'
            if metric is status:
                labels += f',status="{_WORDS[self.status]}"'
            lines.append(f"# HELP {name} {metric.about}\n# TYPE {name} gauge\n")
            lines.append(f"{name}{{{labels}}} {metric.value}\n")
        return "".join(lines)


# --- commands -------------------------------------------------------------------------------------


def _check(
    suite: str, name: str = ""
) -> Callable[[Callable[[Settings, _Check], None]], click.Command]:
    """Return a decorator that makes a command of a function that fills in a `_Check`."""

    def decorate(function: Callable[[Settings, _Check], None]) -> click.Command:
        def run(settings: Settings, *, layout: str, **options: Any) -> None:
            values = {key: _seconds(value) for key, value in options.items()}
            check = _Check(suite, name or suite.capitalize(), values)
            try:
                function(settings, check)
            except errors.InvalidArgumentError:
                raise
            except (errors.Error, CommandError, OSError) as error:
                check.critical.append(one_line(error))
            check.write(settings, layout)
            # A scraper reads the status from the output.
            raise click.exceptions.Exit(0 if layout == "prometheus" else check.status)

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
    """Return the options for the warning and the critical threshold of a value."""
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
def connection(settings: Settings, check: _Check) -> None:
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
def stream(settings: Settings, check: _Check) -> None:
    """
    Check the messages, the sources and the replicas of a stream.

    With a critical threshold below that for warnings, small numbers of subjects are bad.
    """
    check.name = check.options["stream"]
    with settings.jetstream() as js:
        info = js.get_stream(check.name).cached_info
    state, options = info.state, check.options
    check.add("messages", state.messages, "Messages", levels="msgs", below=True)
    check.add("subjects", state.num_subjects or 0, "Subjects", levels="subjects", below=None)
    names = ("peer_lag_critical", "peer_seen_critical", "peer_expect")
    if problem := _replica_problem(info, *(options[name] for name in names)):
        check.critical.append(problem)
    origins = list(info.sources or ()) if info.mirror is None else [info.mirror]
    lag, seen = options["lag_critical"], options["seen_critical"]
    if not origins and (lag is not None or seen is not None):
        check.critical.append("the stream has no mirror and no sources")
    for origin in origins:
        if origin.error is not None:
            check.critical.append(f"{origin.name} is not copied: {origin.error.description}")
        # The lag of an origin that was not seen yet is 0.
        if origin.seen_ago is None:
            check.critical.append(f"{origin.name} was not seen yet")
            continue
        if lag is not None and origin.lag >= lag:
            check.critical.append(f"{origin.name} is {origin.lag:,} messages behind")
        if seen is not None and _is_unseen(origin, seen):
            check.critical.append(f"{origin.name} was not seen for {seen:g}s")


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
def consumer(settings: Settings, check: _Check) -> None:
    """Check the progress and the replicas of a consumer."""
    stream, name = check.options["stream"], check.options["consumer"]
    check.name = f"{stream}_{name}"
    with settings.jetstream() as js:
        info = js.consumer_info(stream, name)
    if problem := _peer_problem(info.cluster, None, check.options["peer_seen_critical"]):
        check.critical.append(problem)
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
        elif check.options[f"{levels}_critical"] is not None:
            check.critical.append(f"no {about}")
    if not check.options["pinned"]:
        return
    if info.config.priority_policy != PriorityPolicy.PINNED_CLIENT:
        check.critical.append("the consumer does not pin clients")
    for group in info.priority_groups or ():
        if not group.pinned_client_id:
            check.critical.append(f"group {group.group} has no pinned client")


@_check("message", "Stream Message")
@_stream
@option("--subject SUBJECT", "Check the last message of it.", default=">")
@_levels("age", "age of the message", kind=DURATION)
@_option("--content", "Fail unless the body matches this regular expression.", PATTERN)
@option("--body-timestamp", "The body is the time, in Unix seconds.")
def message(settings: Settings, check: _Check) -> None:
    """Check the age and the body of the last message of a stream or a subject."""
    stream, subject, content = (check.options[name] for name in ("stream", "subject", "content"))
    with settings.jetstream() as js:
        held = js.get_stream(stream)
        # Without a leader, a replica answers, which may lack the last message.
        if _peer_problem(held.cached_info.cluster, None, None) == _NO_LEADER:
            check.critical.append(_NO_LEADER)
        try:
            found = held.get_msg(last_by_subject=subject)
        except errors.MessageNotFoundError:
            check.critical.append(f"no message of {subject}")
            return
    text = found.data.decode("utf-8", "replace")
    since = found.time.timestamp()
    if check.options["body_timestamp"]:
        try:
            since = float(text)
        except ValueError:
            since = math.nan
        if not math.isfinite(since):
            check.critical.append("the body is not a Unix timestamp")
            return
    age = datetime.now(timezone.utc).timestamp() - since
    check.add("age", age, "Age of the message", "s", levels="age")
    check.add("size", len(found.data), "Size of the message", "B")
    if content is not None and not content.search(text):
        check.critical.append(f"the body does not match {content.pattern}")
    if check.status == 0:
        check.ok.append(f"valid message on {stream} > {found.subject}")


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
@_option("--replica-seen-critical", "Fail if a replica was not seen for it.", DURATION, "5s")
@_option("--replica-lag-critical", "Fail if a replica is N operations behind.", None, 200)
def jetstream(settings: Settings, check: _Check) -> None:
    """Check the account's use of JetStream, and the replicas of its streams."""
    options = check.options
    with lister(settings) as lists:
        account = lists.js.account_info()
        streams = lists.streams() if options["replicas"] else Listed("stream")
    # The limits of an account with tiers are those of each tier.
    for tier, usage in (account.tiers or {"": account}).items():
        start, where = (f"{tier.lower()}_", f" in tier {tier}") if tier else ("", "")
        for name, levels in _RESOURCES.items():
            used, most = getattr(usage, name), getattr(usage.limits, f"max_{name}")
            percent = 100 * used // most if most > 0 else 0
            unit = "B" if name in ("memory", "storage") else ""
            check.add(f"{start}{name}", used, f"Use of {name}{where}", unit)
            check.add(f"{start}{name}_pct", percent, f"Use of {name}{where}", "%", levels=levels)
    lag, seen = options["replica_lag_critical"], options["replica_seen_critical"]
    problems = {info.config.name: _replica_problem(info, lag, seen) for info in streams.found}
    problems |= {item.name: f"{item.state}, {item.reason}" for item in streams.missing}
    if streams.more is not None:
        check.critical.append(one_line(streams.more))
    found = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    check.critical += found
    check.add("replicas_ok", len(problems) - len(found), "Streams with healthy replicas")
    check.add("replicas_fail", len(found), "Streams with unhealthy replicas")


@_check("meta")
@_option("--expect", "Fail unless there are N members.")
@_option("--lag-critical", "Fail if a member is N operations behind.", None, 200)
@_option("--seen-critical", "Fail if a member was not seen for this time.", DURATION, "5s")
def meta(settings: Settings, check: _Check) -> None:
    """
    Check the meta group of JetStream: its leader and its members.

    It needs a user of the system account.
    """
    with settings.connection() as nc:
        group = MetaGroup.of(all_replies(settings, nc, f"{PING}.JSZ", {}))
    expected = check.options["expect"]
    if not group.size:
        check.critical.append("JetStream is not clustered")
    elif problem := group.problem():
        check.critical.append(problem)
    else:
        check.ok.append(f"meta leader {group.leader}")
    if expected is not None and group.size != expected:
        check.critical.append(f"{group.size} of {expected:.0f} expected members")
    lag, seen = check.options["lag_critical"], check.options["seen_critical"]
    # The leader notices a server that is down after some seconds.
    check.critical += [f"{name} did not answer" for name in group.silent]
    for peer in group.leaders_view.get("replicas") or ():
        age = peer.get("active", 0) / 1e9
        if peer.get("offline") or age >= seen or (not peer.get("current") and not age):
            check.critical.append(f"{peer['name']} was not seen")
        elif (peer.get("lag") or 0) >= lag:
            check.critical.append(f"{peer['name']} is behind")
    check.add("members", group.size, "Members of the meta group")
    check.add("answering", len(group.answering), "Members that answer")


@_check("kv")
@option("--bucket BUCKET", "The bucket.", required=True, shell_complete=complete_bucket)
@_levels("values", "number of values")
@option("--key KEY", "Fail unless this key has a value.")
@_option("--peer-seen-critical", "Fail if a replica was not seen for this time.", DURATION, "5s")
def kv(settings: Settings, check: _Check) -> None:
    """
    Check a key-value bucket and its replicas.

    With a critical threshold below that for warnings, small numbers of values are bad.
    """
    check.name, key = check.options["bucket"], check.options["key"]
    with settings.jetstream() as js:
        bucket = js.key_value(check.name)
        status = bucket.status()
        check.ok.append(f"bucket {check.name}")
        if key is not None:
            try:
                bucket.get(key)
                check.ok.append(f"key {key} found")
            except errors.KeyNotFoundError:
                check.critical.append(f"key {key} not found")
    if problem := _replica_problem(status.info, None, check.options["peer_seen_critical"]):
        check.critical.append(problem)
    check.add("values", status.values, "Stored values", levels="values", below=None)
    check.add("bytes", status.bytes, "Bytes in the bucket", "B")
    check.add("replicas", status.info.config.num_replicas or 1, "Replicas of the bucket")


@_check("credential")
@option("--credential FILE", "The credentials file.", NonEmptyPath(path_type=Path), required=True)
@_levels("validity", "time until it expires", None, "0s", kind=DURATION)
@option("--require-expiry/--no-require-expiry", "Fail if it never expires.", default=True)
def credential(_settings: Settings, check: _Check) -> None:
    """Check when a credentials file expires; no server is asked."""
    path = check.options["credential"]
    found = _JWT.search(path.read_text("utf-8", "replace"))
    if found is None:
        raise CommandError(f"{path}: the file has no JWT")
    try:
        fields = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
        expires = int(fields.get("exp", 0))
    except (ValueError, AttributeError) as error:
        raise CommandError(f"{path}: invalid credentials: {error}") from error
    if not expires:
        (check.critical if check.options["require_expiry"] else check.ok).append("never expires")
        return
    left = expires - datetime.now(timezone.utc).timestamp()
    check.add("expiry", left, "Time until it expires", "s", levels="validity", below=True)
