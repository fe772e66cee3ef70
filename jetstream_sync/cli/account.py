"""``jsm account``: show the JetStream usage and limits of an account."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from .output import Block, count, document, emit, limit, seconds_text, size, write_blocks, yes
from .settings import Settings, common_options

if TYPE_CHECKING:
    from .. import Connection, Tier


@click.command()
@common_options
def info(settings: Settings) -> None:
    """Show the account's usage and limits, and the connection."""
    with settings.connection() as nc:
        usage = settings.jetstream_on(nc).account_info()
        connection = _connection(nc)
    result = {"connection": connection, "jetstream": document(usage)}

    def human() -> None:
        blocks = [_usage("", usage)]
        if usage.domain:
            blocks[0].add("Domain", usage.domain)
        blocks += [_usage(f"Tier {name}", tier) for name, tier in (usage.tiers or {}).items()]
        api = Block("JetStream API")
        api.add("Level", usage.api.level or 0)
        api.add("Requests", count(usage.api.total))
        api.add("Errors", count(usage.api.errors))
        connected = Block("Connection")
        for label, value in connection.items():
            if value == "":  # a single server has no cluster
                continue
            connected.add(_LABELS[label], _SHOWN.get(label, str)(value))
        write_blocks(settings.env, *blocks, connected, api)

    emit(settings, result, human)


_LABELS = {
    "url": "Server",
    "server_name": "Server Name",
    "server_id": "Server ID",
    "server_version": "Server Version",
    "cluster": "Cluster",
    "client_id": "Client ID",
    "client_ip": "Client IP",
    "tls": "TLS",
    "headers": "Headers",
    "max_payload": "Maximum Payload",
    "rtt_ns": "Round Trip Time",
}


def _rtt(nanoseconds: int) -> str:
    return seconds_text(timedelta(microseconds=nanoseconds // 1000))


_SHOWN: dict[str, Callable[[Any], str]] = {
    "tls": yes,
    "headers": yes,
    "max_payload": size,
    "rtt_ns": _rtt,
}


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
        "rtt_ns": nc.rtt() // timedelta(microseconds=1) * 1000,
    }


def _usage(title: str, tier: Tier) -> Block:
    limits = tier.limits
    block = Block(title)
    block.add("Memory", f"{size(tier.memory)} of {limit(limits.max_memory, size)}")
    block.add("Storage", f"{size(tier.storage)} of {limit(limits.max_storage, size)}")
    block.add("Streams", f"{count(tier.streams)} of {limit(limits.max_streams)}")
    block.add("Consumers", f"{count(tier.consumers)} of {limit(limits.max_consumers)}")
    return block
