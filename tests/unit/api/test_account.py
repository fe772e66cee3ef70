"""Account infos."""

import json
import pickle
from pathlib import Path

from jetstream_sync.api.account import AccountInfo, Tier
from jetstream_sync.codec import decode, encode

REPLY = json.loads(Path(__file__).with_name("replies").joinpath("account_info.json").read_text())


def test_a_recorded_reply_survives():
    """Decoding and encoding a recorded reply returns the same JSON, without unknown fields."""
    info = decode(AccountInfo, REPLY)
    assert encode(info) == REPLY
    assert set(info.extra) == {"type"}
    assert info.limits.extra == {}
    assert info.api.extra == {}
    assert pickle.loads(pickle.dumps(info)) == info


def test_tiers_are_by_name():
    """The tiers of an account are a mapping by name."""
    tier = {key: REPLY[key] for key in ("memory", "storage", "streams", "consumers", "limits")}
    data = {**REPLY, "tiers": {"R1": tier, "R3": {**tier, "new": 1}}}
    info = decode(AccountInfo, data)
    assert info.tiers["R1"] == decode(Tier, tier)
    assert info.tiers["R3"].extra == {"new": 1}
    assert encode(info) == data
