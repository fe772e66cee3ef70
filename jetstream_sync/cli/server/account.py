"""``jsm rtt`` and ``account info``: the connection to each server, and the usage and limits of an account."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...address import ServerAddress
from ...durations import counted, duration_to_ns
from ..shared.output import Missing, count, limit, ns_text, size
from ..shared.render import Block, Field, Table, show_blocks, show_rows
from ..shared.settings import Settings, command
from ..shared.status import CommandError, exit_status, one_line
from ..shared.values import option

if TYPE_CHECKING:
    from ... import Connection

_TIMES: Final = tuple(
    Field(name.capitalize(), f"{name}_ns", ns_text) for name in ("min", "median", "average", "max")
)


@command()
@option("-n, --count", "Number of pings to each server.", click.IntRange(1, 10_000), default=5)
def rtt(settings: Settings, *, count: int) -> None:
    """
    Measure the round-trip time to each server.

    A separate connection is opened to each server URL.
    """
    results: list[dict[str, Any] | Missing] = []
    failures: list[errors.Error] = []
    urls = settings.login.servers
    for url in urls:
        try:
            with settings.connection(servers=[url]) as nc:
                times = sorted(nc.rtt(settings.timeout) for _ in range(count))
                results.append(_times(nc, times))
        except errors.Error as error:
            failures.append(error)
            shown = ServerAddress.parse(url).url
            results.append(Missing(shown, {"url": shown}, "unreachable", one_line(error)))
    if len(failures) == len(urls):
        raise failures[0]
    fields = (Field("Server", "url"), *_TIMES)
    show_rows(settings, results, Table(fields, "Round-trip times"))
    if failures:
        text = f"{len(urls) - len(failures)} of {counted(len(urls), 'server')} answered"
        raise CommandError(text, exit_status(failures[0]))


def _times(nc: Connection, times: list[timedelta]) -> dict[str, Any]:
    return {
        "url": nc.connected_url,
        "server_name": nc.server_info.server_name,
        "count": len(times),
        "min_ns": duration_to_ns(times[0]),
        "median_ns": duration_to_ns(times[len(times) // 2]),
        "average_ns": duration_to_ns(sum(times, timedelta(0)) / len(times)),
        "max_ns": duration_to_ns(times[-1]),
    }


def _used(what: str, shown: Any = None) -> Field:
    """Return the line with the use of a resource, and its limit."""
    name = what.lower()

    def text(tier: Any) -> str:
        used, form = getattr(tier, name), shown or count
        if getattr(tier, "tiers", None):
            return form(used)  # the total, which has no limit
        return f"{form(used)} of {limit(getattr(tier.limits, f'max_{name}'), form)}"

    return Field(what, text)


_USAGE: Final = (
    _used("Memory", size),
    _used("Storage", size),
    _used("Streams"),
    _used("Consumers"),
    Field("Domain", lambda tier: getattr(tier, "domain", None)),
)
_CONNECTION: Final = (
    Field("Server", "url"),
    Field("Server Name", "server_name"),
    Field("Server ID", "server_id"),
    Field("Server Version", "server_version"),
    Field("Cluster", "cluster"),
    Field("Client ID", "client_id", str),
    Field("Client IP", "client_ip"),
    Field("TLS", "tls"),
    Field("Headers", "headers"),
    Field("Maximum Payload", "max_payload", size),
    Field("Round Trip Time", "rtt_ns", ns_text),
)
_API: Final = (
    Field("Level", lambda api: api.level or 0),
    Field("Requests", "total"),
    Field("Errors", "errors"),
)


@command("info")
def account_info(settings: Settings) -> None:
    """Show the account's usage and limits, and the connection."""
    with settings.connection() as nc:
        usage = settings.jetstream_on(nc).account_info()
        connection = _connection(nc)
    show_blocks(
        settings,
        {"connection": connection, "jetstream": usage},
        Block("", _USAGE, usage),
        *(Block(f"Tier {name}", _USAGE, tier) for name, tier in (usage.tiers or {}).items()),
        Block("Connection", _CONNECTION, connection),
        Block("JetStream API", _API, usage.api),
    )


def _connection(nc: Connection) -> dict[str, Any]:
    server = nc.server_info
    names = ("server_name", "server_id", "cluster", "client_id", "client_ip", "headers")
    return {
        "url": nc.connected_url,
        **{name: getattr(server, name) for name in names},
        "server_version": server.version,
        "tls": server.tls_required,
        "max_payload": server.max_payload,
        "rtt_ns": duration_to_ns(nc.rtt()),
    }
