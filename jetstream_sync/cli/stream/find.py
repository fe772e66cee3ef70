"""``jsm stream find``: streams by what they are and hold."""

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

#: Says whether a stream fits.
Check = Callable[[StreamInfo], bool]


@click.command()
@click.option("--empty", is_flag=True, help="Without messages.")
@click.option("--idle", type=DURATION, help="Without messages and deliveries for so long.")
@click.option("--created", type=DURATION, help="Made longer ago than that.")
@click.option("--consumers", type=click.IntRange(0), help="With so many consumers or fewer.")
@click.option("--messages", type=click.IntRange(0), help="With so many messages or fewer.")
@click.option("--replicas", type=click.IntRange(1), help="With so many replicas or fewer.")
@click.option("--subject", metavar="SUBJECT", help="That take messages of it.")
@click.option("--sourced", is_flag=True, help="That take messages from other streams.")
@click.option("--mirrored", is_flag=True, help="That are mirrors.")
@click.option("--sealed", is_flag=True, help="That are sealed.")
@click.option("--leader", metavar="SERVER", help="That this server leads.")
@click.option("--cluster", metavar="REGEX", help="In a cluster of such a name.")
@click.option("--server-name", metavar="REGEX", help="On a server of such a name.")
@click.option("--invert", is_flag=True, help="Turn each of these around.")
@click.option("-n", "--names", is_flag=True, help="Only the names, one in each line.")
@click.option("-a", "--all", "everything", is_flag=True, help="Those of buckets and stores, too.")
@common_options
def find(settings: Settings, names: bool, everything: bool, invert: bool, **options: Any) -> None:
    """Find streams that fit all that is said; without options, all streams."""
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
        none = "fit" if checks else "defined"
        emit(settings, found, lambda: list_text(settings, found, none))


def _checks(js: JetStream, options: dict[str, Any], now: datetime) -> list[Check]:
    """Return a check for each option that was used."""
    known: dict[str, Callable[[Any], Check]] = {
        "empty": lambda _: lambda info: not info.state.messages,
        "idle": lambda span: lambda info: _idle(js, info, now - span),
        "created": lambda span: lambda info: info.created < now - span,
        "consumers": lambda most: lambda info: info.state.consumer_count <= most,
        "messages": lambda most: lambda info: info.state.messages <= most,
        "replicas": lambda most: lambda info: (info.config.num_replicas or 1) <= most,
        "subject": lambda subject: _taking(js, subject),
        "sourced": lambda _: lambda info: bool(info.config.sources),
        "mirrored": lambda _: lambda info: info.config.mirror is not None,
        "sealed": lambda _: lambda info: bool(info.config.sealed),
        "leader": lambda name: (
            lambda info: info.cluster is not None and info.cluster.leader == name
        ),
        "cluster": lambda text: _named("--cluster", text, _cluster_name),
        "server_name": lambda text: _named("--server-name", text, _server_names),
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
    # A new stream has had no time to be idle.
    if info.created > since:
        return False
    if not info.state.consumer_count:
        return True
    try:
        consumers = js.list_consumers(info.config.name)
    except (StreamNotFoundError, InvalidNameError):
        return False  # it was deleted meanwhile, or has a name that nobody can ask for
    moments = (each.delivered.last_active for each in consumers)
    return not any(moment is not None and moment > since for moment in moments)


def _taking(js: JetStream, subject: str) -> Check:
    names = set(js.stream_names(subject))
    return lambda info: info.config.name in names


def _named(option: str, text: str, names: Callable[[StreamInfo], list[str]]) -> Check:
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
