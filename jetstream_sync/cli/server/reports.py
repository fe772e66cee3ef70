"""
``jsm server report`` and ``account report``: tables made of the replies of the servers.

The servers of a cluster answer requests of the system account. A user of another account gets the connections
and the statistics of your account, and does not learn which servers there are.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from ...durations import counted, time_from_text
from ..shared.output import Missing, size
from ..shared.render import Field, ReportOptions, Table, bad, report_options, warn, write_reports
from ..shared.settings import Settings, command
from ..shared.system import (
    ACCOUNT_PING,
    PING,
    JSONObject,
    MetaGroup,
    Selection,
    all_replies,
    check_replies,
    meta_of,
    server_name,
    silent_servers,
)
from ..shared.values import FROM_1, option, with_options

if TYPE_CHECKING:
    from ... import Connection

Replies = list[JSONObject]


class Answering(enum.Enum):
    """The servers that answer a request, of those that were asked."""

    ALL = enum.auto()
    NOT_EMPTY = enum.auto()
    """Those that have anything to report."""
    UNKNOWN = enum.auto()
    """A user of an account does not learn which servers there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReportOptions(ReportOptions):
    """The options of a report of servers."""

    host: str | None = None
    cluster: str | None = None
    top: int | None = None
    """The number of rows to show; ``None``: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """A table with the rows that are made of the replies of the servers."""

    title: str
    subject: str
    """The subject of the request."""
    fields: Sequence[Field]
    sort: str = ""
    """The name of the column to sort by; empty: by the name, without an option."""
    rows: Callable[[Replies], list[JSONObject]] = list
    """Returns the rows."""
    problem: Callable[[Replies, Selection], str] = lambda _found, _selection: ""
    """Returns what is wrong, other than that servers did not answer; empty for nothing."""
    answering: Answering = Answering.ALL
    of_servers: bool = True
    """Whether the first column is a server, so that one that does not answer is a row of the table."""
    total: Callable[[Replies], int] = lambda _found: 0
    """Returns the number of rows that the servers have, also if they return the first ones only."""

    def options(self, function: Callable[..., object]) -> Any:
        """Add the options of the report to a command."""
        decorator = report_options(self.fields, self.sort)
        if self.answering is not Answering.UNKNOWN:
            decorator = with_options(
                option("--host SERVER", "Include only this server."),
                option("--cluster NAME", "Include only servers of this cluster."),
                decorator,
            )
        return decorator(function)

    def command(self, text: str) -> click.Command:
        """Return the command that shows the report, with its help."""

        @command(help=text)
        @self.options
        def show(settings: Settings, **options: Any) -> None:
            self.show(settings, ServerReportOptions.pop_from(options))

        return show

    def show(
        self, settings: Settings, options: ServerReportOptions, body: JSONObject | None = None
    ) -> None:
        """
        Write the report, once or repeatedly; `body`: the fields of the request, beside those of the selection.

        The report is not complete if a known server does not answer.
        """
        selection = Selection(host=options.host, cluster=options.cluster)
        request = {**(body or {}), **selection.fields()}
        answered: Replies = []
        silent: list[Missing] = []
        problem = ""
        with settings.connection(reconnects="failover") as nc:

            def take() -> list[Any]:
                nonlocal problem
                found = all_replies(settings, nc, self.subject, request)
                problem = self.problem(found, selection)
                if options.top is not None and (total := self.total(found)) > options.top:
                    shown = f"{options.top:,} of {counted(total, self.title[:-1].lower())}"
                    settings.note(f"{shown} are shown; --top shows more")
                answered[:], silent[:] = self._answered(settings, nc, found, selection)
                rows = options.in_order(self.rows(found), self.fields)
                return [*rows[: options.top], *(silent if self.of_servers else ())]

            write_reports(
                settings,
                take,
                Table(self.fields, self.title, "No results"),
                watch=options.watch,
                check=lambda: check_replies(answered, silent, problem),
            )

    def _answered(
        self, settings: Settings, nc: Connection, found: Replies, selection: Selection
    ) -> tuple[Replies, list[Missing]]:
        """Return the replies that show which servers answer, and a row for each that does not."""
        if self.answering is Answering.UNKNOWN:
            return found, []
        if self.answering is Answering.ALL and selection.host is not None:
            return found, []
        pinged = all_replies(settings, nc, PING, {})
        if self.answering is Answering.NOT_EMPTY:
            found = [response for response in pinged if selection.includes(response)]
        if selection.host is not None:
            return found, []
        return found, silent_servers(settings, nc, found, pinged, selection)


def _starred_name(row: JSONObject) -> str:
    name = server_name(row)
    return f"{name}*" if meta_of(row).get("leader") == name else name


_JETSTREAM: Final = ServerReport(
    title="JetStream",
    subject=f"{PING}.JSZ",
    fields=(
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
    ),
    sort="cluster",
    # A part of the servers may have no leader.
    problem=lambda found, selection: (
        MetaGroup.of(found).problem() if selection == Selection() else ""
    ),
)


jetstream: click.Command = _JETSTREAM.command(
    "Compare the use of JetStream on the servers; ``*`` marks the meta leader."
)


# --- connections of clients -----------------------------------------------------------------------

_TRAFFIC: Final = (
    Field("In Messages", "in_msgs", sort="in-msgs"),
    Field("Out Messages", "out_msgs", sort="out-msgs"),
    Field("In Bytes", "in_bytes", size, drop=1, sort="in-bytes"),
    Field("Out Bytes", "out_bytes", size, drop=1, sort="out-bytes"),
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


def _connections(responses: Replies) -> list[JSONObject]:
    """Return the connections, each with its server."""
    return [
        {"server": server_name(response), "cluster": response["server"].get("cluster"), **found}
        for response in responses
        for found in response["data"].get("connections") or ()
    ]


_CONNECTIONS: Final = ServerReport(
    title="Connections",
    subject=f"{PING}.CONNZ",
    fields=(
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
    ),
    sort="subs",
    rows=_connections,
    of_servers=False,
    total=lambda found: sum(response["data"].get("total") or 0 for response in found),
)
_OWN_CONNECTIONS: Final = dataclasses.replace(
    _CONNECTIONS, subject=f"{ACCOUNT_PING}.CONNZ", answering=Answering.UNKNOWN
)
_connection_options = with_options(
    option("--top", "Show only the first connections.", FROM_1, default=1000),
    option("--subject SUBJECT", "Connections with interest in this subject."),
    option("--username USER", "Connections of this user."),
    option("--state", "Connections in this state.", click.Choice(_STATES), default="open"),
)


def _show_connections(report: ServerReport, settings: Settings, options: dict[str, Any]) -> None:
    shown = ServerReportOptions.pop_from(options)
    body = {
        "sort": _SERVER_SORTS[shown.sort],
        "limit": shown.top,
        "state": _STATES.index(options["state"]),
        "auth": True,
        "user": options["username"],
        "filter_subject": options["subject"],
        "acc": options.get("account"),
    }
    report.show(settings, shown, body)


@command("connections")
@option("--account NAME", "Connections of this account.")
@_connection_options
@_CONNECTIONS.options
def server_connections(settings: Settings, **options: Any) -> None:
    """List the connections of the servers."""
    _show_connections(_CONNECTIONS, settings, options)


@command("connections")
@_connection_options
@_OWN_CONNECTIONS.options
def account_connections(settings: Settings, **options: Any) -> None:
    """
    List the connections of your account.

    A server that does not answer is missing, since a user of an account does not learn which servers there are.
    """
    _show_connections(_OWN_CONNECTIONS, settings, options)


# --- accounts -------------------------------------------------------------------------------------

_ACCOUNT_NUMBERS: Final = ("conns", "num_subscriptions", "slow_consumers", "leafnodes")


def _statistics(responses: Replies) -> list[JSONObject]:
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


def _by_account(responses: Replies) -> list[JSONObject]:
    """Return the sums over the servers for each account."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for row in _statistics(responses):
        del row["server"]
        sums[row.pop("account")].update(row)
    return [{"account": account, **numbers} for account, numbers in sums.items()]


_ACCOUNTS: Final = ServerReport(
    title="Accounts",
    subject=f"{ACCOUNT_PING}.STATZ",
    fields=(
        Field("Account", "account", sort="name"),
        Field("Connections", "conns", sort="conns"),
        *_TRAFFIC,
        Field("Subs", "num_subscriptions", drop=2, sort="subs"),
        Field("Slow", lambda row: warn(row["slow_consumers"]), drop=3, if_set=True),
    ),
    sort="subs",
    rows=_by_account,
    answering=Answering.NOT_EMPTY,
    of_servers=False,
)


@command()
@click.argument("account", required=False)
@_ACCOUNTS.options
def accounts(settings: Settings, *, account: str | None, **options: Any) -> None:
    """Compare the connections and the traffic of accounts, or show those of one ACCOUNT."""
    body = {"accounts": [account] if account else None}
    _ACCOUNTS.show(settings, ServerReportOptions.pop_from(options), body)


_STATISTICS: Final = ServerReport(
    title="Account statistics",
    subject=_ACCOUNTS.subject,
    fields=(
        Field("Server", "server.name", sort="name"),
        Field("Cluster", "server.cluster", drop=4),
        Field("Version", "server.ver", drop=3),
        *_ACCOUNTS.fields[1:],
        Field("Leaf Nodes", "leafnodes", drop=5, if_set=True),
    ),
    rows=_statistics,
    answering=Answering.UNKNOWN,
)


statistics: click.Command = _STATISTICS.command(
    "Show the connections and the traffic of your account on each server.\n\n"
    "A server that does not answer is missing, since a user of an account does not learn which servers there are."
)


# --- health ---------------------------------------------------------------------------------------


def _status(row: JSONObject) -> Any:
    data = row["data"]
    text = f"{data['status']} ({data.get('status_code', 200)})"
    return text if data["status"] == "ok" else bad(text)


def _errors(row: JSONObject) -> Any:
    data = row["data"]
    return [error.get("error", "") for error in data.get("errors") or ()] or data.get("error")


def _unhealthy(found: Replies, _selection: Selection) -> str:
    names = [server_name(item) for item in found if item["data"]["status"] != "ok"]
    return f"{counted(len(names), 'server')} not healthy: {', '.join(names)}" if names else ""


_HEALTH: Final = ServerReport(
    title="Health",
    subject=f"{PING}.HEALTHZ",
    fields=(
        Field("Server", "server.name", sort="name"),
        Field("Cluster", "server.cluster", drop=2),
        Field("Domain", "server.domain", drop=3),
        Field("Status", _status),
        Field("Errors", _errors),
    ),
    problem=_unhealthy,
)


@command()
@option("--account NAME", "Check only this account.")
@option("--stream STREAM", "Check only this stream; needs --account.")
@option("--consumer CONSUMER", "Check only this consumer; needs --stream.")
@_HEALTH.options
def health(settings: Settings, **options: Any) -> None:
    """Show whether the servers, their streams and their consumers are healthy."""
    shown = ServerReportOptions.pop_from(options)
    _HEALTH.show(settings, shown, {**options, "details": True})


# --- connections between servers ------------------------------------------------------------------


def _listed(key: str) -> Callable[[Replies], list[JSONObject]]:
    """Return a function that returns the items of a list in each reply, with their server."""
    return lambda found: [
        {"server": server_name(response), **item}
        for response in found
        for item in response["data"].get(key) or ()
    ]


def _gateways(found: Replies) -> list[JSONObject]:
    rows = []
    for response in found:
        outbound = response["data"].get("outbound_gateways") or {}
        inbound = response["data"].get("inbound_gateways") or {}
        links = [(name, "out", item) for name, item in outbound.items()]
        links += [(name, "in", item) for name, items in inbound.items() for item in items]
        for name, direction, item in links:
            row = {"server": server_name(response), "gateway": name, "direction": direction}
            rows.append(row | (item.get("connection") or {}))
    return rows


_LINK: Final = (
    Field("Server", "server", sort="name"),
    Field("RTT", "rtt", right=True),
    Field("Pending", "pending_size", size, drop=3),
    *_TRAFFIC,
    Field("Subs", "subscriptions", drop=2, sort="subs"),
)
_REMOTE: Final = Field("Remote", "name")
_OF_ACCOUNT: Final = Field("Account", "account")
_ROUTES: Final = ServerReport(
    title="Routes",
    subject=f"{PING}.ROUTEZ",
    fields=(_LINK[0], Field("Remote", "remote_name"), _OF_ACCOUNT, *_LINK[1:]),
    sort="name",
    rows=_listed("routes"),
)
_GATEWAYS: Final = ServerReport(
    title="Gateways",
    subject=f"{PING}.GATEWAYZ",
    fields=(
        _LINK[0],
        Field("Gateway", "gateway"),
        Field("Direction", "direction"),
        _REMOTE,
        *_LINK[1:],
    ),
    sort="name",
    rows=_gateways,
)
_LEAFNODES: Final = ServerReport(
    title="Leaf nodes",
    subject=f"{PING}.LEAFZ",
    fields=(_LINK[0], _REMOTE, _OF_ACCOUNT, *_LINK[1:]),
    sort="name",
    rows=_listed("leafs"),
)


routes: click.Command = _ROUTES.command("List the routes between the servers of clusters.")


gateways: click.Command = _GATEWAYS.command("List the gateway connections between clusters.")


leafnodes: click.Command = _LEAFNODES.command("List the connections of leaf nodes.")
