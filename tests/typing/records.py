"""What type checkers know of records: they are dataclasses, frozen, and all is given by keyword."""

# pyright does not check the arguments of `dataclasses.replace`, and needs no comment there.
# pyright: reportUnnecessaryTypeIgnoreComment=false

from __future__ import annotations

import dataclasses
from datetime import timedelta

from typing_extensions import assert_type

from jetstream_sync import ConsumerConfig, JetStream, Placement, Stream, StreamConfig


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


def given_by_name(js: JetStream, stream: Stream, config: StreamConfig) -> None:
    """The calls that take a config check the names and types of its fields when given by keyword."""
    js.create_stream(name="A", max_age=60, storage="memory", pedantic=True)
    js.create_or_update_stream(config)
    js.create_stream(nam="A")  # type: ignore[call-arg]
    js.update_stream(name="A", subjects=1)  # type: ignore[arg-type]
    js.create_consumer("A", durable_name="c", ack_wait=1.5)
    js.create_consumer("A", durable="c")  # type: ignore[call-arg]
    stream.create_or_update_consumer(durable_name="c", backoff=[1, timedelta(seconds=2)])
    stream.create_consumer(ack_wait="1")  # type: ignore[arg-type]
