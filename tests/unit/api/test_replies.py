"""Recorded infos of streams, consumers and accounts: nothing is lost, and their configs can be changed."""

import dataclasses
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from jetstream_sync.api.account import AccountInfo, Tier
from jetstream_sync.api.consumer import ConsumerInfo
from jetstream_sync.api.stream import StreamInfo
from jetstream_sync.codec import Record, decode, encode

REPLIES = Path(__file__).with_name("replies")
#: Fields around an info.
UNKNOWN = {"type", "did_create", "total", "offset", "limit"}
KINDS = [("stream", StreamInfo), ("consumer", ConsumerInfo), ("account_info", AccountInfo)]


def recorded():
    """Return the recorded infos, each with the name of its file and its class."""
    for kind, cls in KINDS:
        for path in sorted(REPLIES.glob(f"{kind}*.json")):
            if path.stem not in ("consumer_pause", "consumer_resume"):
                reply = json.loads(path.read_text())
                infos = reply.get(f"{kind}s", [reply]) if cls is not AccountInfo else [reply]
                yield from ((path.stem, cls, info) for info in infos)


INFOS = list(recorded())


def leftovers(value):
    """Return every unknown field at any depth."""
    if isinstance(value, Record):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        yield from value.extra
        yield from (name for field in fields[1:] for name in leftovers(field))
    elif isinstance(value, Mapping):
        yield from (name for item in value.values() for name in leftovers(item))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        yield from (name for item in value for name in leftovers(item))


@pytest.mark.parametrize(("name", "cls", "data"), INFOS, ids=[name for name, _, _ in INFOS])
def test_a_recorded_info_survives(name, cls, data):
    """Decoding and encoding returns the same JSON, without unknown fields; a config can be changed."""
    info = decode(cls, data)
    assert encode(info) == data
    assert set(leftovers(info)) <= UNKNOWN, name
    assert encode(pickle.loads(pickle.dumps(info))) == data
    if "config" in data:
        config = dataclasses.replace(info.config, description="changed")
        assert encode(config) == {**data["config"], "description": "changed"}


def test_tiers_are_by_name():
    """The tiers of an account are a mapping by name."""
    (reply,) = (data for _, cls, data in INFOS if cls is AccountInfo)
    tier = {key: reply[key] for key in ("memory", "storage", "streams", "consumers", "limits")}
    data = {**reply, "tiers": {"R1": tier, "R3": {**tier, "new": 1}}}
    info = decode(AccountInfo, data)
    assert info.tiers["R1"] == decode(Tier, tier)
    assert info.tiers["R3"].extra == {"new": 1}
    assert encode(info) == data
