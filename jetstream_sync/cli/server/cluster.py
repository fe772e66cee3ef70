"""``jsm stream cluster``, ``consumer cluster`` and ``server cluster``: leaders and replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from ... import ClusterInfo, ConsumerInfo, StreamInfo, errors
from ...codec import dumps
from ...net.clock import Deadline
from ...subjects import API_PREFIX
from ..shared.listings import Listed, lister
from ..shared.long_running import pause
from ..shared.names import (
    complete_stream,
    consumer_arguments,
    consumer_of,
    named_stream,
    optional_stream_argument,
    title,
)
from ..shared.output import emit_text
from ..shared.render import Field, Table, bad, show_rows
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, CommandError, FailedError, TimedOutError, one_line
from ..shared.system import PING, MetaGroup, all_replies, parsed
from ..shared.values import force_option, option
from ..streams.streams import find_options, find_streams

if TYPE_CHECKING:
    from ... import Connection, JetStream

#: Seconds between two checks for a new leader.
_CHECK_INTERVAL_S: Final = 0.2

_preferred_option = option("--preferred SERVER", "Elect this server. (2.11)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The replicas of a stream or consumer."""

    name: str
    cluster: ClusterInfo | None
    #: Returns the present leader.
    find_leader: Callable[[], str | None]
    #: Has the leader step down in favour of a server; ``None``: of any.
    step_down: Callable[[str | None], None]

    @property
    def replicas(self) -> list[str]:
        """The names of the servers other than the leader."""
        return [peer.name for peer in (self.cluster and self.cluster.replicas) or ()]

    @property
    def leader(self) -> str | None:
        """The name of the leader, if there is one."""
        return _leader_of(self.cluster)

    def check(self) -> None:
        """Raise an error unless there are replicas that may become the leader."""
        if not self.replicas:
            raise FailedError(f"{self.name} has one replica: there is no other server to lead it")

    def wait_leader(self, timeout: float) -> str:
        """Return the new leader; raise `CommandError` if the leader is the same after a timeout."""
        return _new_leader(self.name, self.find_leader, self.leader, timeout)


def _leader_of(cluster: ClusterInfo | None) -> str | None:
    return None if cluster is None else cluster.leader


def _new_leader(
    name: str, leader: Callable[[], str | None], before: str | None, timeout: float
) -> str:
    """Return the new leader of a group; raise `CommandError` if there is none after a timeout."""
    deadline = Deadline(timeout)
    while not deadline.expired():
        pause(_CHECK_INTERVAL_S)
        try:
            now = leader()
        except (errors.NoStreamResponseError, errors.TimeoutError, errors.APIError):
            continue  # there is no leader during the election
        if now and now != before:
            return now
    raise TimedOutError(f"{name}: no new leader was elected within {timeout:g} s")


def _stream_group(js: JetStream, info: StreamInfo) -> _Group:
    name = info.config.name
    return _Group(
        name=name,
        cluster=info.cluster,
        find_leader=lambda: _leader_of(js.get_stream(name).cached_info.cluster),
        step_down=lambda preferred: js.get_stream(name).step_down(preferred),
    )


def _consumer_group(js: JetStream, info: ConsumerInfo) -> _Group:
    stream, name = info.stream_name, info.name
    return _Group(
        name=title(info),
        cluster=info.cluster,
        find_leader=lambda: _leader_of(js.consumer_info(stream, name).cluster),
        step_down=lambda preferred: js.get_stream(stream).step_down_consumer(name, preferred),
    )


def _step_down(settings: Settings, group: _Group, preferred: str | None) -> None:
    group.check()
    if preferred is not None and preferred not in group.replicas:
        text = f"--preferred {preferred!r}: the replicas are {', '.join(group.replicas)}"
        raise CommandError(text)
    group.step_down(preferred)
    leader = group.wait_leader(settings.timeout)
    emit_text(
        settings,
        {"name": group.name, "previous_leader": group.leader, "leader": leader},
        f"{group.name}: the leader was {group.leader or 'unknown'} and is {leader}",
    )
    if preferred not in (None, leader):
        settings.note(f"{leader} was elected instead of {preferred}")


@command()
@optional_stream_argument
@_preferred_option
def stream_step_down(settings: Settings, *, name: str | None, preferred: str | None) -> None:
    """Have the leader of a stream step down, and wait for the new leader."""
    with settings.jetstream() as js:
        info = named_stream(settings, js, name).cached_info
        _step_down(settings, _stream_group(js, info), preferred)


@command()
@consumer_arguments
@_preferred_option
def consumer_step_down(
    settings: Settings, *, stream: str | None, consumer: str | None, preferred: str | None
) -> None:
    """Have the leader of a CONSUMER step down, and wait for the new leader."""
    with consumer_of(settings, stream, consumer) as (js, info):
        _step_down(settings, _consumer_group(js, info), preferred)


@command()
@optional_stream_argument
@click.argument("peer", required=False)
@force_option
def peer_remove(settings: Settings, *, name: str | None, peer: str | None, force: bool) -> None:
    """
    Remove the server PEER from the replicas of a stream.

    The cluster chooses another server for the replica. Without one, the server refuses.
    """
    ask = settings.ask()
    with settings.jetstream() as js:
        stream = named_stream(settings, js, name)
        group = _stream_group(js, stream.cached_info)
        group.check()
        servers = [*([group.leader] if group.leader else []), *group.replicas]
        if peer is None:
            peer = ask.choose("Select a server", lambda: servers, "PEER")
        if peer not in servers:
            text = f"{peer!r} has no replica of {stream.name}; the servers are {', '.join(servers)}"
            raise AbsentError(text)
        ask.confirm(f"Remove server {peer} from stream {stream.name}?", force=force)
        stream.remove_peer(peer)
    document = {"name": stream.name, "removed_peer": peer}
    emit_text(settings, document, f"Removed server {peer} from stream {stream.name}")


# --- balance --------------------------------------------------------------------------------------


def _planned(groups: list[_Group]) -> dict[str, str]:
    """
    Return the new leader for each group whose leader is to change, by the name of the group.

    A leader moves to a server that leads at least two groups fewer, until no move of this kind is left.
    """
    led = Counter(group.leader for group in groups)
    moves: dict[str, str] = {}
    before = -1
    while len(moves) != before:
        before = len(moves)
        for group in groups:
            peers = (group.cluster and group.cluster.replicas) or ()
            usable = sorted(peer.name for peer in peers if peer.current and not peer.offline)
            target = min(usable, key=led.__getitem__, default=None)
            if group.name in moves or not group.leader or target is None:
                continue
            if led[group.leader] - led[target] >= 2:
                moves[group.name] = target
                led.subtract([group.leader])
                led.update([target])
    return moves


_MOVES: Final = (
    Field("Name", "name"),
    Field("From", "from"),
    Field("To", "to"),
    Field("Leader", lambda row: row["leader"] or bad("not changed") if "leader" in row else None),
)


_dry_run_option = option("--dry-run", "Only show the changes.")


def _balance(
    settings: Settings, listed: Listed[Any], groups: list[_Group], *, what: str, dry_run: bool
) -> None:
    """Move leaders, one after the other, and show the moves; fail if one stays, or some are not known."""
    moves = _planned(groups)
    rows = []
    for group in (group for group in groups if group.name in moves):
        row: dict[str, Any] = {"name": group.name, "from": group.leader, "to": moves[group.name]}
        if not dry_run:
            row["leader"] = None
            try:
                group.step_down(row["to"])
                row["leader"] = group.wait_leader(settings.timeout)
            except (errors.Error, CommandError) as error:
                # The moves before it are shown.
                text = one_line(error)
                settings.note(text if group.name in text else f"{group.name}: {text}")
        rows.append(row)
    title = f"{what} leaders to move" if dry_run else f"Moved {what.lower()} leaders"
    none = f"{what} leaders are balanced"
    if listed.missing or listed.more:
        none = f"No {what.lower()} leader that is known is to move"
    show_rows(settings, rows, Table(_MOVES, title, none))
    listed.check()
    if stayed := [row["name"] for row in rows if "leader" in row and row["leader"] != row["to"]]:
        raise FailedError(f"leaders not moved: {', '.join(stayed)}")


@command()
@find_options
@_dry_run_option
def stream_balance(settings: Settings, *, dry_run: bool, **options: Any) -> None:
    """
    Spread the leaders of streams evenly over the servers of each cluster.

    Without options, all streams are considered. It needs nats-server 2.11.
    """
    with lister(settings) as lists:
        listed = find_streams(lists, options, everything=True)
        groups = [_stream_group(lists.js, info) for info in listed.found]
        _balance(settings, listed, groups, what="Stream", dry_run=dry_run)


@command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@_dry_run_option
def consumer_balance(settings: Settings, *, stream: str | None, dry_run: bool) -> None:
    """
    Spread the leaders of the consumers of a STREAM, or of all streams, evenly over the servers.

    It needs nats-server 2.11.
    """
    with lister(settings) as lists:
        listed = lists.consumers(stream)
        groups = [_consumer_group(lists.js, info) for info in listed.found]
        _balance(settings, listed, groups, what="Consumer", dry_run=dry_run)


# --- the meta group -------------------------------------------------------------------------------


def _meta_group(settings: Settings, nc: Connection) -> MetaGroup:
    group = MetaGroup.of(all_replies(settings, nc, f"{PING}.JSZ", {}))
    if not group.size:
        raise FailedError("the servers have no meta group, or do not answer")
    return group


def _meta_request(settings: Settings, nc: Connection, name: str, body: dict[str, Any]) -> None:
    subject = f"{API_PREFIX}.{name}"
    reply = parsed(nc.request(subject, dumps(body), settings.timeout).data, f"reply to {subject}")
    if "error" in reply:
        raise errors.APIError.from_response(reply["error"])


@command()
@_preferred_option
def meta_step_down(settings: Settings, *, preferred: str | None) -> None:
    """
    Have the meta leader step down, and wait for the new leader.

    It needs a user of the system account.
    """
    with settings.connection() as nc:
        before = _meta_group(settings, nc).leader
        body = {"placement": {"preferred": preferred}} if preferred else {}
        _meta_request(settings, nc, "META.LEADER.STEPDOWN", body)
        after = _new_leader(
            *("meta group", lambda: _meta_group(settings, nc).leader, before, settings.timeout)
        )
    text = f"The meta leader was {before or 'unknown'} and is {after}"
    emit_text(settings, {"previous_leader": before, "leader": after}, text)


@command()
@click.argument("peer")
@force_option
def meta_peer_remove(settings: Settings, *, peer: str, force: bool) -> None:
    """
    Remove the server PEER from the meta group, for a server that is gone for good.

    Its replicas of streams and consumers move to other servers. It needs a user of the system account.
    """
    with settings.connection() as nc:
        group = _meta_group(settings, nc)
        known = [*group.answering, *group.silent]
        if peer not in known:
            text = f"{peer!r} is not in the meta group; the members are {', '.join(known)}"
            raise AbsentError(text)
        note = "it answers" if peer in group.answering else "it does not answer"
        settings.ask().confirm(f"Remove server {peer} ({note}) from the cluster?", force=force)
        _meta_request(settings, nc, "SERVER.REMOVE", {"peer": peer})
    emit_text(settings, {"removed_peer": peer}, f"Removed server {peer} from the meta group")
