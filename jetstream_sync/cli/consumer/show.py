"""Text output of ``jsm consumer info``: configuration and state."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ... import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, SequenceInfo
from ..names import title
from ..output import (
    Block,
    count,
    duration,
    joined,
    limit,
    seconds_text,
    size,
    when,
    write_blocks,
    yes,
)

if TYPE_CHECKING:
    from ..settings import Settings


def show(settings: Settings, info: ConsumerInfo, *, state_only: bool = False) -> None:
    """Write the info of a consumer to ``stdout``."""
    heading = f"Information for consumer {title(info)}"
    blocks = [] if state_only else [config_block(settings, info.config), _cluster_block(info)]
    write_blocks(settings.env, *blocks, state_block(settings, info), heading=heading)


def filters_of(config: ConsumerConfig) -> list[str]:
    """Return the filter subjects of a consumer; empty: all subjects."""
    if config.filter_subject:
        return [config.filter_subject]
    return list(config.filter_subjects or ())


def config_block(settings: Settings, config: ConsumerConfig) -> Block:
    """Return the configuration, with the lines of the 2020 format first."""
    block = Block("Configuration")
    if config.durable_name:
        block.add("Durable Name", config.durable_name)
    elif config.name:
        block.add("Name", config.name)
    if config.description:
        block.add("Description", config.description)
    if config.deliver_subject:
        block.add("Delivery Subject", config.deliver_subject)
        if config.deliver_group:
            block.add("Delivery Queue Group", config.deliver_group)
    else:
        block.add("Pull Mode", "true")
    if filters := filters_of(config):
        block.add("Subject" if len(filters) == 1 else "Subjects", joined(filters))
    _add_start(settings, block, config)
    block.add("Ack Policy", config.ack_policy)
    if config.ack_policy != AckPolicy.NONE:
        block.add("Ack Wait", duration(config.ack_wait))
    block.add("Replay Policy", config.replay_policy)
    if config.ack_policy != AckPolicy.NONE:
        block.add("Maximum Deliveries", limit(config.max_deliver))
    if config.backoff:
        block.add("Backoff", joined([seconds_text(each) for each in config.backoff]))
    if config.sample_freq:
        block.add("Sampling Rate", config.sample_freq)
    _add_limits(block, config)
    _add_rest(settings, block, config)
    return block


def _add_start(settings: Settings, block: Block, config: ConsumerConfig) -> None:
    policy = config.deliver_policy
    block.add("Deliver All", yes(policy == DeliverPolicy.ALL))
    block.add("Deliver Last", yes(policy == DeliverPolicy.LAST))
    if policy == DeliverPolicy.NEW:
        block.add("Deliver New", "true")
    elif policy == DeliverPolicy.LAST_PER_SUBJECT:
        block.add("Deliver Last Per Subject", "true")
    elif config.opt_start_seq is not None:
        block.add("Start Sequence", count(config.opt_start_seq))
    elif config.opt_start_time is not None:
        block.add("Start Time", when(settings, config.opt_start_time))


def _add_limits(block: Block, config: ConsumerConfig) -> None:
    if config.ack_policy != AckPolicy.NONE and config.max_ack_pending is not None:
        block.add("Maximum Ack Pending", limit(config.max_ack_pending))
    if config.max_waiting:
        block.add("Maximum Waiting Pulls", count(config.max_waiting))
    if config.max_batch:
        block.add("Maximum Pull Batch", count(config.max_batch))
    if config.max_expires:
        block.add("Maximum Pull Expiry", duration(config.max_expires))
    if config.max_bytes:
        block.add("Maximum Pull Bytes", size(config.max_bytes))
    if config.rate_limit_bps:
        block.add("Rate Limit", f"{size(config.rate_limit_bps // 8)}/s")


def _add_rest(settings: Settings, block: Block, config: ConsumerConfig) -> None:
    if config.flow_control:
        block.add("Flow Control", "true")
    if config.idle_heartbeat:
        block.add("Idle Heartbeat", duration(config.idle_heartbeat))
    if config.headers_only:
        block.add("Headers Only", "true")
    if config.inactive_threshold:
        block.add("Inactive Threshold", duration(config.inactive_threshold))
    if config.num_replicas:
        block.add("Replicas", config.num_replicas)
    if config.mem_storage:
        block.add("Memory Storage", "true")
    if config.priority_groups:
        block.add("Priority Policy", config.priority_policy)
        block.add("Priority Groups", joined(config.priority_groups))
    if config.priority_timeout:
        block.add("Pinned Client Timeout", duration(config.priority_timeout))
    if config.pause_until is not None and config.pause_until.year > 1:
        block.add("Paused Until", when(settings, config.pause_until))
    labels = {k: v for k, v in (config.metadata or {}).items() if not k.startswith("_nats.")}
    if labels:
        block.add("Metadata", "\n".join(f"{key}: {value}" for key, value in labels.items()))


def _cluster_block(info: ConsumerInfo) -> Block:
    block = Block("Cluster Information")
    if info.cluster is None or not info.cluster.name:
        return block
    block.add("Name", info.cluster.name)
    block.add("Leader", info.cluster.leader or "none")
    for peer in info.cluster.replicas or ():
        state = "current" if peer.current else "outdated"
        block.add("Replica", f"{peer.name}, {state}{', OFFLINE' if peer.offline else ''}")
    return block


def state_block(settings: Settings, info: ConsumerInfo) -> Block:
    """Return the state of a consumer, with the lines of the 2020 format first."""
    block = Block("State")
    block.add("Last Delivered Message", _position(info, info.delivered))
    block.add("Acknowledgment floor", _position(info, info.ack_floor))
    config = info.config
    pending = count(info.num_ack_pending)
    if config.ack_policy != AckPolicy.NONE and (config.max_ack_pending or 0) > 0:
        pending += (
            f" delivered and not acknowledged, of {count(config.max_ack_pending or 0)} at most"
        )
    block.add("Pending Messages", pending)
    block.add("Redelivered Messages", count(info.num_redelivered))
    block.add("Unprocessed Messages", count(info.num_pending))
    if not config.deliver_subject:
        most = f" of {count(config.max_waiting)}" if config.max_waiting else ""
        block.add("Waiting Pulls", f"{count(info.num_waiting)}{most}")
    elif info.push_bound:
        group = f" in queue group {config.deliver_group}" if config.deliver_group else ""
        block.add("Active Interest", f"true{group}")
    else:
        block.add("Active Interest", "false: no subscriber on the delivery subject")
    if info.paused:
        left = info.pause_remaining
        rest = f", for another {duration(left)}" if left else ""
        block.add("Paused", f"until {when(settings, config.pause_until)}{rest}")
    for group_state in info.priority_groups or ():
        pinned = group_state.pinned_client_id
        since = f" since {when(settings, group_state.pinned_ts)}" if pinned else ""
        block.add(f"Priority Group {group_state.group}", f"{pinned or 'no pinned client'}{since}")
    return block


def _position(info: ConsumerInfo, position: SequenceInfo) -> str:
    text = (
        f"Consumer sequence: {count(position.consumer_seq)} "
        f"Stream sequence: {count(position.stream_seq)}"
    )
    if position.last_active is not None and info.ts is not None:
        ago = timedelta(milliseconds=(info.ts - position.last_active) // timedelta(milliseconds=1))
        text += f" Last activity: {seconds_text(ago)} ago"
    return text
