"""The keyword types of configs agree with the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from jetstream_sync import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig
from jetstream_sync.api.config_fields import (
    ConsumerConfigFields,
    KeyValueConfigFields,
    ObjectStoreConfigFields,
    StreamConfigFields,
)


@pytest.mark.parametrize(
    ("record", "keywords"),
    [
        (StreamConfig, StreamConfigFields),
        (ConsumerConfig, ConsumerConfigFields),
        (KeyValueConfig, KeyValueConfigFields),
        (ObjectStoreConfig, ObjectStoreConfigFields),
    ],
)
def test_keyword_types_match_the_fields_of_the_record(record: type[Any], keywords: type) -> None:
    """Every field of a record is a keyword of the same type; durations also accept seconds."""
    accepted = {
        timedelta | None: timedelta | float | None,
        Sequence[timedelta] | None: Sequence[timedelta | float] | None,
    }
    hints = get_type_hints(record)
    expected = {
        each.name: accepted.get(hints[each.name], hints[each.name]) for each in fields(record)
    }
    assert get_type_hints(keywords) == expected
