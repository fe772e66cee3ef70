"""
Requests to all servers, and the meta group of JetStream: which servers answer, and which do not.

The servers answer users of the system account. Rules:

1. A server that does not answer is known by its name only, from the peers of the meta group or the routes
   of the others. The number of active servers is not used: a server that was restarted is counted twice.
2. Only the leader of a group knows when a replica was seen last; other members report 0.
3. A leader without a quorum still says that it is the leader, until it steps down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ... import errors
from ...codec import dumps, loads
from ...durations import counted
from ...exit_status import ExitStatus
from .env import single_line
from .output import Missing
from .settings import Settings
from .status import CommandError, FailedError, TimedOutError

if TYPE_CHECKING:
    from ... import Connection

#: How long to wait for each further server, in seconds.
STALL_S: Final = 0.4
#: The subjects of requests to one server, to all servers, and to those with connections of the account.
SERVER: Final = "$SYS.REQ.SERVER"
PING: Final = f"{SERVER}.PING"
ACCOUNT_PING: Final = "$SYS.REQ.ACCOUNT.PING"

JSONObject = dict[str, Any]


def parsed(data: bytes, what: str) -> JSONObject:
    """Return the JSON object in a message; ``what`` names the message in the error."""
    try:
        found = loads(data)
    except errors.InvalidResponseError as error:
        raise errors.InvalidResponseError(f"invalid {what}: {error}") from error
    if not isinstance(found, dict):
        raise errors.InvalidResponseError(f"invalid {what}: not a JSON object")
    return found


def replies(
    settings: Settings, nc: Connection, subject: str, body: JSONObject, **options: Any
) -> Iterator[JSONObject]:
    """
    Yield the replies of the servers; ``options`` are those of `Connection.request_many`.

    Raises:
        CommandError: the user is not one of the system account, or a server refused.
    """
    payload = dumps({name: value for name, value in body.items() if value})
    options = {"stall": STALL_S, "timeout": settings.timeout, **options}
    try:
        for msg in nc.request_many(subject, payload, **options):
            response = parsed(msg.data, f"reply to {subject}")
            if problem := response.get("error"):
                server = response.get("server", {}).get("name", "a server")
                text = f"{server}: {problem.get('description', problem)}"
                raise FailedError(single_line(text))
            yield response
    except errors.NoRespondersError:
        raise CommandError(
            "the servers do not answer this user",
            ExitStatus.NO_RESPONDERS,
            hint="log in as a user of the system account",
        ) from None


def all_replies(
    settings: Settings, nc: Connection, subject: str, body: JSONObject, **options: Any
) -> list[JSONObject]:
    """Return the replies of the servers that answer in time; see `replies`."""
    try:
        return list(replies(settings, nc, subject, body, **options))
    except errors.TimeoutError:
        return []


def server_name(response: JSONObject) -> str:
    """Return the name of the server that answered."""
    name: str = response["server"]["name"]
    return name


def meta_of(response: JSONObject) -> JSONObject:
    """Return what a server says of the meta group, in a reply to JSZ or PING."""
    data = response.get("data") or {}
    found = data.get("meta_cluster") or (response.get("statsz", {}).get("jetstream") or {}).get(
        "meta"
    )
    return found or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The servers that a request asks; by default all."""

    host: str | None = None
    """Only the server with this name."""
    cluster: str | None = None
    """Only the servers of this cluster."""

    def fields(self) -> JSONObject:
        """Return the fields of the request."""
        exact = bool(self.host)
        return {"server_name": self.host, "exact_match": exact, "cluster": self.cluster}

    def includes(self, response: JSONObject) -> bool:
        """Return whether the server that sent a reply is asked."""
        return self.host in (None, server_name(response)) and self.cluster in (
            None,
            response["server"].get("cluster"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaGroup:
    """The members of the meta group, from the replies of servers."""

    leader: str | None
    """The leader, if it answers and has a quorum."""
    size: int
    """The number of members; 0: JetStream is not clustered."""
    answering: Sequence[str]
    """The names of the members that answer."""
    silent: Sequence[str]
    """The names of the other members that an answering member knows."""
    leaders_view: JSONObject
    """The meta group as its leader sees it; empty without a leader."""

    @classmethod
    def of(cls, found: Sequence[JSONObject]) -> MetaGroup:
        """Return the meta group from the replies of all servers."""
        views = {server_name(item): meta_of(item) for item in found}
        views = {name: view for name, view in views.items() if view}
        peers = {peer["name"] for view in views.values() for peer in view.get("replicas") or ()}
        size = max((view.get("cluster_size") or 0 for view in views.values()), default=0)
        leader = next((name for name, view in views.items() if view.get("leader") == name), None)
        if len(views) < size // 2 + 1:
            leader = None
        return cls(
            leader=leader,
            size=size,
            answering=sorted(views),
            silent=sorted(peers - {server_name(item) for item in found}),
            leaders_view=views[leader] if leader else {},
        )

    def problem(self) -> str:
        """Return why the meta group has no leader; empty if it has one, or is no group."""
        if not self.size or self.leader is not None:
            return ""
        text = f"no meta leader: {len(self.answering)} of {counted(self.size, 'server')} answer"
        if len(self.answering) < self.size // 2 + 1:
            text += f", {self.size // 2 + 1} are needed"
        return text + (f"; {', '.join(self.silent)} do not" if self.silent else "")


def silent_servers(
    settings: Settings,
    nc: Connection,
    found: Sequence[JSONObject],
    pinged: Sequence[JSONObject],
    selection: Selection = Selection(),
) -> list[Missing]:
    """
    Return a row for each known server that was asked and did not answer, in a cluster or in one not known.

    `pinged`: the replies of all servers to a ping.
    """
    own = all_replies(settings, nc, f"{SERVER}.{nc.server_info.server_id}.JSZ", {}, max_messages=1)
    known = {*MetaGroup.of([*found, *own]).silent, *map(server_name, pinged)}
    for response in pinged:
        known |= {
            route["name"] for route in response["statsz"].get("routes") or () if "name" in route
        }
    known -= {server_name(item) for item in found}
    known -= {server_name(item) for item in pinged if not selection.includes(item)}
    return [
        Missing(name, {"server": {"name": name}}, "offline", "it does not answer")
        for name in sorted(known)
    ]


def check_replies(
    found: Sequence[JSONObject],
    silent: Sequence[Missing],
    problem: str = "",
    *,
    expected: int = 0,
    status: ExitStatus = ExitStatus.FAILED,
) -> None:
    """
    Fail if a server did not answer, or for another problem with what did.

    Raises:
        CommandError: no server answered, some did not, or there is a problem.

    """
    if not found:
        raise TimedOutError("no server answered")
    texts = [problem] if problem else []
    total = max(expected, len(found) + len(silent))
    if len(found) < total:
        texts.append(f"{len(found)} of {counted(total, 'server')} answered")
    if silent:
        texts.append(f"{', '.join(item.name for item in silent)} did not")
    if texts:
        raise CommandError("; ".join(texts), status)
