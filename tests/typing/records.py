"""What type checkers know of records: they are dataclasses, frozen, and all is given by keyword."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from typing_extensions import assert_type

from jetstream_sync import ConsumerConfig, Placement, StreamConfig


def made() -> None:
    """The fields of a record, and no others, are what it is made of; durations are seconds, too."""
    config = ConsumerConfig(durable_name="a", ack_wait=1.5, backoff=[1, timedelta(seconds=2)])
    assert_type(config.ack_wait, timedelta | None)
    StreamConfig(name="S", placement=Placement(cluster="c"), extra={"new": 1})
    StreamConfig()  # type: ignore[call-arg]
    StreamConfig({}, name="S")  # type: ignore[call-arg]
    StreamConfig(name="S", nmae="S")  # type: ignore[call-arg]
    StreamConfig(name="S", subjects=1)  # type: ignore[arg-type]


def changed(config: StreamConfig) -> StreamConfig:
    """A record is not changed; `dataclasses.replace` makes another."""
    config.name = "T"  # type: ignore[misc]
    config.nmae = "T"  # type: ignore[attr-defined]
    dataclasses.replace(config, name=1)  # type: ignore[arg-type]
    return dataclasses.replace(config, name="T")
