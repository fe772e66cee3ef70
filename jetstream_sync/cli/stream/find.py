"""``jsm stream find``: find streams by config and state."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import click

from ... import JetStream, StreamInfo
from ...errors import InvalidNameError, StreamNotFoundError
from ..output import emit
from ..settings import Settings, common_options
from ..values import DURATION
from .ls import is_internal, list_text

__all__ = ["find"]

#: Return whether a stream matches.
Check = Callable[[StreamInfo], bool]


@click.command()
@click.option("--empty", is_flag=True, help="Streams without messages.")
@click.option(
    "--idle", type=DURATION, help="Streams without new messages and deliveries for this time."
)
@click.option("--created", type=DURATION, help="Streams that are older than this.")
@click.option(
    "--consumers", type=click.IntRange(0), metavar="N", help="Streams with at most N consumers."
)
@click.option(
    "--messages", type=click.IntRange(0), metavar="N", help="Streams with at most N messages."
)
@click.option(
    "--replicas", type=click.IntRange(1), metavar="N", help="Streams with at most N replicas."
)
@click.option("--subject", metavar="SUBJECT", help="Streams that store this subject.")
@click.option("--sourced", is_flag=True, help="Streams that have sources.")
@click.option("--mirrored", is_flag=True, help="Streams that are mirrors.")
@click.option("--sealed", is_flag=True, help="Streams that are sealed.")
@click.option("--leader", metavar="SERVER", help="Streams with this leader.")
@click.option("--cluster", metavar="REGEX", help="Streams in a cluster with a matching name.")
@click.option("--server-name", metavar="REGEX", help="Streams on a server with a matching name.")
@click.option("--invert", is_flag=True, help="Invert each of these conditions.")
@click.option("-n", "--names", is_flag=True, help="Show only the names, one per line.")
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Include internal streams, such as those of buckets.",
)
@common_options
def find(settings: Settings, names: bool, everything: bool, invert: bool, **options: Any) -> None:
    """Find streams that match all options; without options, list all streams."""
    with settings.jetstream() as js:
        checks = _checks(js, options, datetime.now(timezone.utc))
        found = [
            info
            for info in js.list_streams()
            if (everything or not is_internal(info.config.name))
            and all(check(info) is not invert for check in checks)
        ]
    listed = [info.config.name for info in found]
    if names:
        out = settings.env.stdout
        emit(settings, listed, lambda: out.writelines(f"{name}\n" for name in listed))
    else:
        none = "match" if checks else "defined"
        emit(settings, found, lambda: list_text(settings, found, none))


def _checks(js: JetStream, options: dict[str, Any], now: datetime) -> list[Check]:
    """Return a check for each given option."""
    known: dict[str, Callable[[Any], Check]] = {
        "empty": lambda _: lambda info: not info.state.messages,
        "idle": lambda span: lambda info: _idle(js, info, now - span),
        "created": lambda span: lambda info: info.created < now - span,
        "consumers": lambda most: lambda info: info.state.consumer_count <= most,
        "messages": lambda most: lambda info: info.state.messages <= most,
        "replicas": lambda most: lambda info: (info.config.num_replicas or 1) <= most,
        "subject": lambda subject: _stores_subject(js, subject),
        "sourced": lambda _: lambda info: bool(info.config.sources),
        "mirrored": lambda _: lambda info: info.config.mirror is not None,
        "sealed": lambda _: lambda info: bool(info.config.sealed),
        "leader": lambda name: (
            lambda info: info.cluster is not None and info.cluster.leader == name
        ),
        "cluster": lambda text: _has_name("--cluster", text, _cluster_name),
        "server_name": lambda text: _has_name("--server-name", text, _server_names),
    }
    return [
        make(options[name])
        for name, make in known.items()
        if options[name] is not None and options[name] is not False
    ]


def _idle(js: JetStream, info: StreamInfo, since: datetime) -> bool:
    last = info.state.last_ts
    if last is not None and last > since:
        return False
    # A stream that is younger than the time cannot have been idle for it.
    if info.created > since:
        return False
    if not info.state.consumer_count:
        return True
    try:
        consumers = js.list_consumers(info.config.name)
    except (StreamNotFoundError, InvalidNameError):
        return False  # the stream was deleted meanwhile, or has a name that this client rejects
    moments = (each.delivered.last_active for each in consumers)
    return not any(moment is not None and moment > since for moment in moments)


def _stores_subject(js: JetStream, subject: str) -> Check:
    names = set(js.stream_names(subject))
    return lambda info: info.config.name in names


def _has_name(option: str, text: str, names: Callable[[StreamInfo], list[str]]) -> Check:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint=option) from None
    return lambda info: any(pattern.search(name) for name in names(info))


def _cluster_name(info: StreamInfo) -> list[str]:
    return [info.cluster.name] if info.cluster is not None and info.cluster.name else []


def _server_names(info: StreamInfo) -> list[str]:
    if info.cluster is None:
        return []
    leader = [info.cluster.leader] if info.cluster.leader else []
    return leader + [peer.name for peer in info.cluster.replicas or ()]
