"""The signatures of functions that take fields of a config as keywords, as `help()` shows them."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import jetstream_sync
from jetstream_sync import JetStream, Stream, api
from jetstream_sync.options import ConnectionOptions


@pytest.mark.parametrize(
    ("function", "cls"),
    [
        (jetstream_sync.connect, ConnectionOptions),
        (jetstream_sync.shared_connection, ConnectionOptions),
        (JetStream.create_stream, api.stream.StreamConfig),
        (JetStream.create_consumer, api.consumer.ConsumerConfig),
        (Stream.create_consumer, api.consumer.ConsumerConfig),
        (JetStream.create_key_value, api.key_value.KeyValueConfig),
        (JetStream.create_object_store, api.object_store.ObjectStoreConfig),
    ],
)
def test_the_signature_shows_each_option_with_its_default(function, cls):
    """`inspect.signature` has every field with its default, and no `**options`."""
    shown = inspect.signature(function).parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.values())
    names = {field.name for field in fields(cls)} - {"extra", "servers"}
    assert names <= set(shown)
    for field in fields(cls):
        if field.name in names and isinstance(field.default, (int, str, bool, type(None))):
            assert shown[field.name].default == field.default
            assert shown[field.name].kind is inspect.Parameter.KEYWORD_ONLY
