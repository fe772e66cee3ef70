"""
``jsm server ls``, ``info``, ``ping`` and ``report``, and ``jsm account report``: what the servers say of themselves.

The servers of a cluster answer requests of the system account. A user of another account gets the connections
and the statistics of the own account.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..durations import duration_from_ns, seconds_text, time_from_text
from ..errors import InvalidResponseError, NoRespondersError, TimeoutError
from ..net.clock import monotonic
from .env import single_line
from .long_running import failover_options
from .output import counted, emit_line, limit, size
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
    write_reports,
)
from .settings import Settings, command
from .status import CommandError, ExitStatus
from .values import FROM_1, Decorator, option, with_options

if TYPE_CHECKING:
    from .. import Connection

#: How long to wait for each further server, in seconds.
_STALL_S: Final = 0.4
_PING: Final = "$SYS.REQ.SERVER.PING"
_ID_LENGTH: Final = 56

Row = dict[str, Any]


def _answers(
    settings: Settings,
    nc: Connection,
    subject: str,
    body: Row,
    *,
    count: int | None = None,
    stall: float | None = _STALL_S,
) -> Iterator[Row]:
    """Yield the answers of all servers, or of the first ``count``; ``stall`` is the wait for each further one."""
    payload = json.dumps({name: value for name, value in body.items() if value})
    try:
        for reply in nc.request_many(
            subject,
            payload.encode(),
            timeout=settings.timeout,
            stall=stall,
            max_messages=count,
        ):
            try:
                answer: Row = json.loads(reply.data)
                problem = answer.get("error")
            except (ValueError, AttributeError) as error:
                raise InvalidResponseError(f"invalid reply to {subject}: {error}") from error
            if problem:
                server = answer.get("server", {}).get("name", "a server")
                text = f"{server}: {problem.get('description', problem)}"
                raise CommandError(single_line(text), ExitStatus.FAILED)
            yield answer
    except NoRespondersError:
        raise CommandError(
            "the servers do not answer this user",
            ExitStatus.NO_RESPONDERS,
            hint="log in as a user of the system account",
        ) from None


# --- ls, ping and info ----------------------------------------------------------------------------


def _pings(settings: Settings, nc: Connection, expected: int | None) -> Iterator[Row]:
    """Yield the statistics of each server with its round-trip time, until all have answered."""
    started = monotonic()
    seen = 0
    # The first answer has the number of servers, so there is no need to give up on a slow one.
    for answer in _answers(settings, nc, _PING, {}, stall=None):
        seen += 1
        expected = expected or answer["statsz"].get("active_servers")
        yield {**answer, "rtt_ns": int((monotonic() - started) * 1e9)}
        if seen == expected:
            return
    if expected and seen < expected:
        text = f"{seen} of {counted(expected, 'server')} answered"
        raise CommandError(text, ExitStatus.TIMED_OUT)


def _rtt(nanoseconds: int) -> str:
    return seconds_text(duration_from_ns(nanoseconds))


def _uptime(row: Row) -> timedelta:
    age = time_from_text(row["server"]["time"]) - time_from_text(row["statsz"]["start"])
    return timedelta(seconds=age // timedelta(seconds=1))


def _number_of(name: str) -> Callable[[Row], int]:
    return lambda row: len(row["statsz"].get(name) or ())


def _slow(part: str) -> Callable[[Row], Mark]:
    return lambda row: warn(row[part].get("slow_consumers") or 0)


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
    Field("Slow", _slow("statsz"), drop=1, if_set=True, sort="slow"),
    Field("Uptime", _uptime, seconds_text, sort="uptime"),
    Field("RTT", "rtt_ns", _rtt, sort="rtt"),
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
    with settings.connection() as nc:
        found = in_order(list(_pings(settings, nc, expect)), _SERVERS, sort, reverse=reverse)
    show_rows(settings, found, _SERVERS, title="Servers", none="No servers")


@command()
@_expect
@option("--id", "Show the server ids.", to="with_id")
def ping(settings: Settings, *, expect: int | None, with_id: bool) -> None:
    """
    Measure the time until each server answers.

    It needs a user of the system account. The exit status is 4 if fewer than EXPECT servers answer.
    """
    times = []
    with settings.connection() as nc:
        for row in _pings(settings, nc, expect):
            server = row["server"]
            times.append(row["rtt_ns"])
            if settings.json:
                emit_line(settings, {**server, "rtt_ns": row["rtt_ns"]})
                continue
            name = single_line(f"{server['id']} {server['name']}" if with_id else server["name"])
            settings.env.stdout.write(f"{name} rtt={_rtt(row['rtt_ns'])}\n")
    if times and not settings.json:
        average = _rtt(sum(times) // len(times))
        text = f"min {_rtt(min(times))}, average {average}, max {_rtt(max(times))}"
        settings.env.stdout.write(f"\n{counted(len(times), 'server')}: {text}\n")


def _moment(name: str) -> Callable[[Row], datetime | None]:
    return lambda row: time_from_text(row[name]) if row.get(name) else None


_INFO: Final = {
    "": (
        Field("Server", "server_name"),
        Field("ID", "server_id"),
        Field("Version", "version"),
        Field("Go Version", "go"),
        Field("Start Time", _moment("start")),
        Field("Configuration Load Time", _moment("config_load_time")),
        Field("Configuration Digest", "config_digest"),
        Field("Uptime", "uptime"),
    ),
    "Connection": (
        Field("Authentication Required", "auth_required", bool),
        Field("TLS Required", "tls_required", bool),
        Field("Host", lambda row: f"{row['host']}:{row['port']}"),
        Field("Client URLs", "connect_urls", each=True),
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
    "Limits": (
        Field("Maximum Connections", "max_connections", limit),
        Field("Maximum Subscriptions", "max_subscriptions", limit),
        Field("Maximum Payload", "max_payload", size),
        Field("Write Deadline", "write_deadline", _rtt),
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
        subject = f"$SYS.REQ.SERVER.{asked}.VARZ" if by_id else f"{_PING}.VARZ"
        body = {} if by_id else {"server_name": asked, "exact_match": True}
        try:
            found = next(_answers(settings, nc, subject, body, count=1), None)
        except TimeoutError:
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
    options: Row,
    subject: str,
    body: Row,
    fields: Sequence[Field],
    title: str,
    *,
    rows: Callable[[list[Row]], list[Row]] = list,
) -> None:
    """Write the rows that are made of the answers of the servers, once or repeatedly."""
    filters = {
        "server_name": options.get("host"),
        "exact_match": bool(options.get("host")),
        "cluster": options.get("cluster"),
    }
    sort, reverse = options.get("sort", "name"), options["reverse"]
    with settings.connection(**failover_options(settings)) as nc:

        def take() -> list[Row]:
            found = rows(list(_answers(settings, nc, subject, {**body, **filters})))
            return in_order(found, fields, sort, reverse=reverse)[: options.get("top")]

        write_reports(
            settings, take, fields, title=title, none="No results", watch=options["watch"]
        )


def _server_name(row: Row) -> str:
    name: str = row["server"]["name"]
    return f"{name}*" if _meta(row).get("leader") == name else name


_JETSTREAM: Final = (
    Field("Server", _server_name, sort="name"),
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
    Field("Pending", lambda row: _meta(row).get("pending") or 0, drop=5, if_set=True),
)


def _meta(row: Row) -> Row:
    return row["data"].get("meta_cluster") or {}


def _of_account(rows: list[Row]) -> list[Row]:
    """Replace the numbers of each server by those of the account that was asked for."""
    found = []
    for row in rows:
        for account in row["data"].get("account_details") or ():
            states = [stream["state"] for stream in account.get("stream_detail") or ()]
            numbers = {
                "streams": len(states),
                "consumers": sum(state["consumer_count"] for state in states),
                "messages": sum(state["messages"] for state in states),
                "bytes": sum(state["bytes"] for state in states),
            }
            found.append({**row, "data": {**row["data"], **account, **numbers}})
    return found


@command()
@option("--account NAME", "Show only what this account uses.")
@_server_options(_JETSTREAM, "cluster")
def jetstream(settings: Settings, *, account: str | None, **options: Any) -> None:
    """Compare the use of JetStream on the servers; ``*`` marks the meta leader."""
    _report(
        settings,
        options,
        f"{_PING}.JSZ",
        {"account": account, "accounts": bool(account), "streams": bool(account)},
        _JETSTREAM,
        f"JetStream of account {account}" if account else "JetStream",
        rows=_of_account if account else list,
    )


_CONNECTIONS: Final = (
    Field("ID", "cid", str, right=True, sort="cid"),
    Field("Name", "name", drop=2),
    Field("Server", "server", drop=3),
    Field("Cluster", "cluster", drop=8),
    Field("Address", lambda row: f"{row['ip']}:{row['port']}", drop=4),
    Field("Account", "account", drop=5),
    Field("Started", lambda row: time_from_text(row["start"]), drop=6, sort="uptime"),
    Field("In Messages", "in_msgs", sort="in-msgs"),
    Field("Out Messages", "out_msgs", sort="out-msgs"),
    Field("In Bytes", "in_bytes", size, drop=1, sort="in-bytes"),
    Field("Out Bytes", "out_bytes", size, drop=1, sort="out-bytes"),
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


def _connections(settings: Settings, subject: str, options: Row, account: str | None) -> None:
    body = {
        "sort": _SERVER_SORTS[options["sort"]],
        "limit": options["top"],
        "state": _STATES.index(options["state"]),
        "auth": True,
        "user": options["username"],
        "filter_subject": options["subject"],
        "acc": account,
    }

    def rows(answers: list[Row]) -> list[Row]:
        return [
            {"server": each["server"]["name"], "cluster": each["server"].get("cluster"), **found}
            for each in answers
            for found in each["data"].get("connections") or ()
        ]

    _report(settings, options, subject, body, _CONNECTIONS, "Connections", rows=rows)


@command("connections")
@option("--account NAME", "Connections of this account.")
@_connection_options
@_server_options(_CONNECTIONS, "subs")
def server_connections(settings: Settings, *, account: str | None, **options: Any) -> None:
    """List the connections of the servers."""
    _connections(settings, f"{_PING}.CONNZ", options, account)


@command("connections")
@_connection_options
@report_options(_CONNECTIONS, "subs")
def account_connections(settings: Settings, **options: Any) -> None:
    """List the connections of the own account."""
    _connections(settings, "$SYS.REQ.ACCOUNT.PING.CONNZ", options, None)


def _traffic(record: str = "") -> tuple[Field, ...]:
    return (
        Field("In Messages", f"{record}received.msgs", sort="in-msgs"),
        Field("Out Messages", f"{record}sent.msgs", sort="out-msgs"),
        Field("In Bytes", f"{record}received.bytes", size, drop=1, sort="in-bytes"),
        Field("Out Bytes", f"{record}sent.bytes", size, drop=1, sort="out-bytes"),
    )


_ACCOUNTS: Final = (
    Field("Account", "account", sort="name"),
    Field("Connections", "conns", sort="conns"),
    *_traffic(),
    Field("Subs", "num_subscriptions", drop=2, sort="subs"),
    Field("Slow", lambda row: warn(row["slow_consumers"]), drop=3, if_set=True),
)


def _by_account(answers: list[Row]) -> list[Row]:
    """Return the sums over the servers for each account."""
    sums: dict[str, Row] = defaultdict(
        lambda: {
            **dict.fromkeys(("conns", "num_subscriptions", "slow_consumers"), 0),
            "received": {"msgs": 0, "bytes": 0},
            "sent": {"msgs": 0, "bytes": 0},
        }
    )
    for answer in answers:
        for found in answer["data"].get("account_statz") or ():
            row = sums[found["acc"]]
            for name in ("conns", "num_subscriptions", "slow_consumers"):
                row[name] += found.get(name, 0)
            for way in ("received", "sent"):
                for unit in ("msgs", "bytes"):
                    row[way][unit] += found[way][unit]
    return [{"account": account, **row} for account, row in sums.items()]


@command()
@click.argument("account", required=False)
@_server_options(_ACCOUNTS, "subs")
def accounts(settings: Settings, *, account: str | None, **options: Any) -> None:
    """Compare the connections and the traffic of accounts, or show those of one ACCOUNT."""
    _report(
        settings,
        options,
        "$SYS.REQ.ACCOUNT.PING.STATZ",
        {"accounts": [account] if account else None},
        _ACCOUNTS,
        "Accounts",
        rows=_by_account,
    )


_STATISTICS: Final = (
    Field("Server", "server.name", sort="name"),
    Field("Cluster", "server.cluster", drop=4),
    Field("Version", "server.ver", drop=3),
    Field("Connections", "data.conns"),
    Field("Subs", "data.num_subscriptions", drop=2),
    Field("Leaf Nodes", "data.leafnodes", drop=5, if_set=True),
    *_traffic("data."),
    Field("Slow", _slow("data"), drop=2, if_set=True),
)


@command()
@report_options(_STATISTICS)
def statistics(settings: Settings, **options: Any) -> None:
    """Show the connections and the traffic of the own account on each server."""

    def rows(answers: list[Row]) -> list[Row]:
        return [
            {"server": each["server"], "data": found}
            for each in answers
            for found in (each["data"].get("account_statz") or ())[:1]
        ]

    _report(
        settings,
        options,
        "$SYS.REQ.ACCOUNT.PING.STATZ",
        {},
        _STATISTICS,
        "Account statistics",
        rows=rows,
    )


def _status(row: Row) -> Any:
    data = row["data"]
    text = f"{data['status']} ({data.get('status_code', 200)})"
    return text if data["status"] == "ok" else bad(text)


_HEALTH: Final = (
    Field("Server", "server.name", sort="name"),
    Field("Cluster", "server.cluster", drop=2),
    Field("Domain", "server.domain", drop=3),
    Field("Status", _status),
    Field(
        "Errors",
        lambda row: (
            [each.get("error", "") for each in row["data"].get("errors") or ()]
            or row["data"].get("error")
        ),
    ),
)


@command()
@option("-J, --js-enabled", "Check that JetStream is enabled.")
@option("-S, --server-only", "Do not check streams and consumers.")
@option("--account NAME", "Check only this account.")
@option("--stream STREAM", "Check only this stream; needs --account.")
@option("--consumer CONSUMER", "Check only this consumer; needs --stream.")
@_server_options(_HEALTH)
def health(settings: Settings, *, js_enabled: bool, server_only: bool, **options: Any) -> None:
    """Show whether the servers, their streams and their consumers are healthy."""
    body = {
        "js-enabled-only": js_enabled,
        "js-server-only": server_only,
        "details": True,
        **{name: options.pop(name) for name in ("account", "stream", "consumer")},
    }
    _report(
        settings,
        options,
        f"{_PING}.HEALTHZ",
        body,
        _HEALTH,
        "Health",
    )
