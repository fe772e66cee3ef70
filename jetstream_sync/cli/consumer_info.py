"""``jsm consumer info``: show a consumer."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from .. import AckPolicy, ConsumerConfig, ConsumerInfo, PriorityGroupState, SequenceInfo
from ..durations import duration_text, seconds_text
from .config import display_fields
from .names import title
from .output import count, when
from .render import Block, Field, bad, show_blocks, warn
from .settings import Settings
from .stream_info import CLUSTER
from .values import Parsed, parse_duration, parse_time


def info_blocks(settings: Settings, info: ConsumerInfo) -> list[Block]:
    """Return the config and state of a consumer."""
    state = Block("State", _state(settings), info)
    return [config_block(info.config), Block("Cluster", CLUSTER, info), state]


def show(
    settings: Settings, info: ConsumerInfo, done: str = "", *, state_only: bool = False
) -> None:
    """Show a consumer, or only its state, after a line with what was ``done``."""
    blocks = info_blocks(settings, info)
    heading = f"Information for consumer {title(info)}"
    heading = f"Consumer {title(info)} {done}\n\n{heading}" if done else heading
    show_blocks(settings, info, *(blocks[-1:] if state_only else blocks), heading=heading)


def config_block(config: ConsumerConfig) -> Block:
    """Return the configuration of a consumer."""
    mode = Field("Mode", lambda config: "push" if config.deliver_subject else "pull")
    name = Field("Name", lambda config: config.name if config.name != config.durable_name else None)
    others = display_fields(ConsumerConfig, without="name")
    return Block("Configuration", [name, mode, *others], config)


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


def _until(text: str) -> datetime:
    """Return the end of a pause: a time, or a duration from now; or raise `ValueError`."""
    now = datetime.now(timezone.utc)
    try:
        return now + parse_duration(text)
    except ValueError:
        return parse_time(text, now)


#: The end of a pause: a time, or a duration from now.
UNTIL: Final = Parsed("time", _until)
