"""``jsm consumer ls``, ``info``, ``pause``, ``resume``, ``unpin``, ``reset`` and ``rm``: consumers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import click

from ... import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    ConsumerPause,
    PriorityGroupState,
    PriorityPolicy,
    SequenceInfo,
    errors,
)
from ...durations import counted, duration_text, seconds_text
from ..shared.config import display_fields
from ..shared.listings import Listed, Lister, lister, long_option, missing_consumer, show_listed
from ..shared.names import (
    complete_consumer,
    complete_stream,
    consumer_arguments,
    consumer_of,
    names_of,
    suggesting,
    title,
)
from ..shared.output import Missing, count, deletions, emit_text, when
from ..shared.render import (
    Block,
    Field,
    Mark,
    ReportOptions,
    Table,
    bad,
    report_options,
    show_blocks,
    warn,
)
from ..shared.settings import Settings, command
from ..shared.status import CommandError, about
from ..shared.values import (
    DURATION,
    FROM_0,
    FROM_1,
    UNTIL,
    force_option,
    names_option,
    option,
    with_options,
)
from ..streams.streams import CLUSTER, given_conditions, select, servers_of

if TYPE_CHECKING:
    from ... import JetStream


def info_blocks(settings: Settings, info: ConsumerInfo) -> list[Block]:
    """Return the config and state of a consumer."""
    mode = Field("Mode", lambda config: "push" if config.deliver_subject else "pull")
    name = Field("Name", lambda config: config.name if config.name != config.durable_name else None)
    others = display_fields(ConsumerConfig, without="name")
    return [
        Block("Configuration", [name, mode, *others], info.config),
        Block("Cluster", CLUSTER, info),
        Block("State", _state(settings), info),
    ]


def show(
    settings: Settings, info: ConsumerInfo, done: str = "", *, state_only: bool = False
) -> None:
    """Show a consumer, or only its state, after a line with what was ``done``."""
    blocks = info_blocks(settings, info)
    heading = f"Information for consumer {title(info)}"
    heading = f"Consumer {title(info)} {done}\n\n{heading}" if done else heading
    show_blocks(settings, info, *(blocks[-1:] if state_only else blocks), heading=heading)


def _state(settings: Settings) -> list[Field]:
    def group(state: PriorityGroupState) -> str:
        pinned = state.pinned_client_id
        since = f" since {when(settings, state.pinned_ts)}" if pinned else ""
        return f"{state.group}: {pinned or 'no pinned client'}{since}"

    def paused(info: ConsumerInfo) -> object:
        if not info.paused:
            return None
        left = info.pause_remaining
        rest = f", for another {duration_text(left)}" if left else ""
        return warn(f"until {when(settings, info.config.pause_until)}{rest}")

    return [
        Field("Last Delivered Message", lambda info: _position(info, info.delivered)),
        Field("Acknowledgment floor", lambda info: _position(info, info.ack_floor)),
        Field("Pending Messages", _pending),
        Field("Redelivered Messages", "num_redelivered"),
        Field("Unprocessed Messages", "num_pending"),
        Field("Waiting Pulls", _waiting),
        Field("Active Interest", _interest),
        Field("Paused", paused),
        Field("Priority Group", "priority_groups", group, each=True),
    ]


def _pending(info: ConsumerInfo) -> object:
    most = info.config.max_ack_pending or 0
    if info.config.ack_policy == AckPolicy.NONE or most <= 0:
        return info.num_ack_pending
    text = f"{count(info.num_ack_pending)} delivered and not acknowledged, of {count(most)} at most"
    return bad(text) if info.num_ack_pending >= most else text


def _waiting(info: ConsumerInfo) -> str | None:
    if info.config.deliver_subject:
        return None
    most = info.config.max_waiting
    return count(info.num_waiting) + (f" of {count(most)}" if most else "")


def _interest(info: ConsumerInfo) -> object:
    if not info.config.deliver_subject:
        return None
    if not info.push_bound:
        return bad("false: no subscriber on the delivery subject")
    group = info.config.deliver_group
    return f"true in queue group {group}" if group else "true"


def _position(info: ConsumerInfo, position: SequenceInfo) -> str:
    text = (
        f"Consumer sequence: {count(position.consumer_seq)} "
        f"Stream sequence: {count(position.stream_seq)}"
    )
    if position.last_active is not None and info.ts is not None:
        ago = timedelta(milliseconds=(info.ts - position.last_active) // timedelta(milliseconds=1))
        text += f" Last activity: {seconds_text(ago)} ago"
    return text


def _name_of(stream: str | None) -> Field:
    return Field("Name", title if stream is None else "name", sort="name")


def _ago(info: ConsumerInfo) -> str | None:
    last = info.delivered.last_active
    if last is None or info.ts is None:
        return None
    return f"{seconds_text(timedelta(seconds=(info.ts - last) // timedelta(seconds=1)))} ago"


_LIST: Final = (
    Field("Mode", lambda info: "push" if info.config.deliver_subject else "pull", drop=2),
    Field("Ack", "config.ack_policy", drop=3),
    Field("Created", "created", drop=4),
    Field("Last Delivery", _ago, right=True, drop=1),
    Field("Ack Pending", "num_ack_pending"),
    Field("Unprocessed", "num_pending"),
)


@command()
@consumer_arguments
@option("--state", "Show only the state.")
def info(settings: Settings, *, stream: str | None, consumer: str | None, state: bool) -> None:
    """Show the configuration and the state of a CONSUMER of a STREAM."""
    with consumer_of(settings, stream, consumer) as (_, found):
        show(settings, found, state_only=state)


def _mode(info: ConsumerInfo) -> str | Mark:
    if info.paused:
        return warn("paused")
    if not info.config.deliver_subject:
        return f"pull, {count(info.num_waiting)} waiting"
    return "push" if info.push_bound else warn("push, unbound")


def _ack_pending(info: ConsumerInfo) -> int | Mark:
    pending, most = info.num_ack_pending, info.config.max_ack_pending
    return bad(pending) if most is not None and 0 < most <= pending else pending


_LONG: Final = (
    Field("Mode", _mode, drop=2),
    Field("Ack", "config.ack_policy", drop=6),
    Field("Ack Wait", "config.ack_wait", drop=7),
    Field("Ack Pending", _ack_pending, sort="pending"),
    Field("Redelivered", lambda info: warn(info.num_redelivered), drop=1, sort="redelivered"),
    Field("Unprocessed", "num_pending", sort="unprocessed"),
    Field("Ack Floor", "ack_floor.stream_seq", drop=4),
    Field("Servers", lambda info: servers_of(info.cluster), drop=5),
    Field("Last Delivery", _ago, right=True, drop=3),
)


#: The options that select consumers.
_find_options: Final = with_options(
    option("--ack-pending N", "Consumers with at most N unacknowledged messages.", FROM_0),
    option("--pending N", "Consumers with at most N messages to deliver.", FROM_0),
    option("--idle", "Consumers without deliveries for this time.", DURATION),
    option("--leader SERVER", "Consumers with this leader."),
    option("--pinned", "Consumers that have a pinned client in each group."),
    option("--stuck", "Consumers with messages, and no reader or too many unacknowledged."),
    option("--invert", "Invert each of these conditions."),
)


def find_consumers(
    lists: Lister, stream: str | None, options: dict[str, Any]
) -> Listed[ConsumerInfo]:
    """Return the consumers of a stream, or of all streams, that match all options."""
    listed = lists.consumers(stream)
    given = given_conditions(options)
    if not given:
        return listed

    def missing(info: ConsumerInfo, reason: str) -> Missing:
        return missing_consumer(info.stream_name, info.name, reason)

    return select(lists.js, listed, _CONDITIONS, given, missing=missing)


@command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@names_option
@option("-a, --all-streams", "List the consumers of all streams.")
@long_option
@_find_options
@report_options((_name_of(None), *_LONG), "name")
def ls(
    settings: Settings,
    *,
    stream: str | None,
    names: bool,
    all_streams: bool,
    long: bool,
    **options: Any,
) -> None:
    """
    List the consumers of a STREAM, or those that match all conditions.

    Without a STREAM, prompt for one on a terminal, else list the consumers of all streams. A consumer whose
    servers do not answer is listed with that state; it matches no condition. The exit status is then 1.
    """
    report = ReportOptions.pop_from(options)
    conditions = given_conditions(options)
    with lister(settings, repeats=report.watch is not None) as lists:
        if stream is None and not (all_streams or conditions) and settings.interactive:
            stream = settings.ask().select("Select a stream", lists.js.stream_names, "STREAM")
        key: Callable[[ConsumerInfo], str] = title if stream is None else attrgetter("name")
        take = partial(find_consumers, lists, stream, options)
        where = f"of {stream}" if stream is not None else "of all streams"
        none = f"No consumers {where}{' match' if conditions else ''}"
        table = Table((_name_of(stream), *(_LONG if long else _LIST)), f"Consumers {where}", none)
        sortable = (_name_of(stream), *_LONG)
        show_listed(settings, take, table, report, key=key, sortable=sortable, names=names)


def _is_idle(info: ConsumerInfo, since: datetime) -> bool:
    # A consumer that is younger than the time cannot have been idle for it.
    return (info.delivered.last_active or info.created) <= since and info.created <= since


def _is_pinned(info: ConsumerInfo) -> bool | None:
    """Return whether each group has a pinned client; ``None`` if the consumer pins no clients."""
    if info.config.priority_policy != PriorityPolicy.PINNED_CLIENT:
        return None
    pinned = [group for group in info.priority_groups or () if group.pinned_client_id]
    return len(pinned) == len(info.config.priority_groups or ())


def _is_stuck(info: ConsumerInfo) -> bool:
    if not info.num_pending or info.paused:
        return False
    most = info.config.max_ack_pending
    if most is not None and 0 < most <= info.num_ack_pending:
        return True
    # A client that works on its messages may have no pull open.
    return not (info.push_bound or info.num_waiting or info.num_ack_pending)


#: Whether a consumer meets the condition of an option with some value.
_CONDITIONS: Final[dict[str, Callable[[JetStream, ConsumerInfo, Any], bool | None]]] = {
    "ack_pending": lambda _, info, most: info.num_ack_pending <= most,
    "pending": lambda _, info, most: info.num_pending <= most,
    "idle": lambda _, info, since: _is_idle(info, since),
    "leader": lambda _, info, name: info.cluster is not None and info.cluster.leader == name,
    "pinned": lambda _, info, __: _is_pinned(info),
    "stuck": lambda _, info, __: _is_stuck(info),
}


@command()
@consumer_arguments
@click.argument("until", required=False, type=UNTIL)
@force_option
def pause(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    until: datetime | None,
    force: bool,
) -> None:
    """Pause a CONSUMER until a time or for a duration; it resumes automatically."""
    ask = settings.ask()
    with consumer_of(settings, stream, consumer) as (js, info):
        end = ask.value("Pause until", "UNTIL", UNTIL.parse, value=until, blank=info.created)
        ask.done()
        ask.confirm(f"Pause consumer {title(info)} until {when(settings, end)}?", force=force)
        result = js.pause_consumer(info.stream_name, info.name, end)
    emit_text(settings, result, _pause_text(settings, info, result))


@command()
@consumer_arguments
def resume(settings: Settings, *, stream: str | None, consumer: str | None) -> None:
    """Resume a paused CONSUMER of a STREAM."""
    with consumer_of(settings, stream, consumer) as (js, info):
        result = js.resume_consumer(info.stream_name, info.name)
    emit_text(settings, result, _pause_text(settings, info, result))


def _pause_text(settings: Settings, info: ConsumerInfo, result: ConsumerPause) -> str:
    if not result.paused:
        return f"Consumer {title(info)} is not paused"
    text = f"Consumer {title(info)} is paused until {when(settings, result.pause_until)}"
    if result.pause_remaining:
        text += f", for {duration_text(result.pause_remaining)}"
    return text


@command()
@consumer_arguments
@click.argument("group", required=False)
@force_option
def unpin(
    settings: Settings, *, stream: str | None, consumer: str | None, group: str | None, force: bool
) -> None:
    """Unpin the client of a priority GROUP, so that the server pins another one."""
    ask = settings.ask()
    with consumer_of(settings, stream, consumer) as (js, info):
        groups = list(info.config.priority_groups or ())
        if not groups:
            raise CommandError(f"{title(info)} has no priority groups")
        if group is None and len(groups) == 1:
            group = groups[0]
        if group is None:
            group = ask.choose("Select a group", lambda: groups, "GROUP")
        client = next(
            (item.pinned_client_id for item in info.priority_groups or () if item.group == group),
            None,
        )
        if client:
            ask.confirm(f"Unpin client {client} from group {group}?", force=force)
        js.unpin_consumer(info.stream_name, info.name, group)
    document = {"group": group, "unpinned_client_id": client or None}
    done = f"client {client} is no longer pinned" if client else "no client was pinned"
    emit_text(settings, document, f"{title(info)}, group {group}: {done}")


@command()
@consumer_arguments
@option("--seq, --sequence SEQ", "Continue at this stream sequence.", FROM_1, to="seq")
@force_option
def reset(
    settings: Settings, *, stream: str | None, consumer: str | None, seq: int | None, force: bool
) -> None:
    """
    Reset a CONSUMER to its ack floor, or to a sequence of the stream.

    Unacknowledged messages are delivered again with new delivery counts. After a reset to an earlier
    sequence, acknowledged messages are delivered again as well. After a reset to a later sequence, the
    messages in between are skipped. It needs nats-server 2.14.
    """
    with consumer_of(settings, stream, consumer) as (js, info):
        start = info.ack_floor.stream_seq + 1
        where = f"at sequence {count(seq)}" if seq is not None else "after its ack floor"
        what = f"Reset consumer {title(info)}, which is at {count(start)}, to continue"
        settings.ask().confirm(f"{what} {where}?", force=force)
        result = js.reset_consumer(info.stream_name, info.name, seq)
    show(settings, result, f"continues at sequence {count(result.reset_seq)}", state_only=True)


@command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumers", metavar="[CONSUMER]...", nargs=-1, shell_complete=complete_consumer)
@force_option
@option("--ignore-missing", "Ignore consumers that do not exist.")
def rm(
    settings: Settings,
    *,
    stream: str | None,
    consumers: tuple[str, ...],
    force: bool,
    ignore_missing: bool,
) -> None:
    """Delete one or more CONSUMERs of a STREAM. The messages stay in the stream."""
    with settings.jetstream() as js:
        stream, first = names_of(settings, js, stream, consumers[0] if consumers else None)
        found = _look_up(js, stream, [first, *consumers], ignore_missing=ignore_missing)
        if found:
            listed = ", ".join(
                f"{title(info)} ({counted(info.num_pending + info.num_ack_pending, 'message')} to go)"
                for info in found
            )
            what = "consumer" if len(found) == 1 else "consumers"
            settings.ask().confirm(f"Really remove {what} {listed}?", force=force)
        with deletions(settings, lambda name: f"Consumer {stream} > {name} was removed") as deleted:
            for info in found:
                # One that is not found was deleted by another client.
                with suppress(errors.ConsumerNotFoundError), about(f"consumer {title(info)}"):
                    js.delete_consumer(stream, info.name)
                    deleted.append(info.name)


def _look_up(
    js: JetStream, stream: str, names: list[str], *, ignore_missing: bool
) -> list[ConsumerInfo]:
    """Return the infos of all consumers before the first is deleted."""
    found = []
    absent = [errors.ConsumerNotFoundError] if ignore_missing else []
    for name in dict.fromkeys(names):
        with suggesting(js, stream, name), suppress(*absent), about(f"consumer {stream} > {name}"):
            found.append(js.consumer_info(stream, name))
    return found
