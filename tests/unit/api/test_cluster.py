"""
Infos of clusters: recorded replies are decoded, whatever a server leaves out.

``replies/clusters.json`` has replies of nats-server 2.10, 2.12 and 2.15: of streams, mirrors, sources and
consumers while a cluster of three adds, removes and loses replicas.
"""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.api.consumer import ConsumerInfo, ConsumerPause
from jetstream_sync.api.stream import StreamInfo
from jetstream_sync.codec import Record, decode, encode

REPLIES = json.loads(Path(__file__).with_name("replies").joinpath("clusters.json").read_text())

#: Names, times and enum values tell what a reply is about: no server leaves them out.
INDISPENSABLE = {"name", "stream_name", "created", "group", "cluster", "src", "dest", "api"}


def infos(reply):
    """Return the infos of a recorded reply, each with its class."""
    document = reply["reply"]
    if "PAUSE" in reply["request"]:
        return [(ConsumerPause, document)]
    items = document.get("streams") or document.get("consumers") or [document]
    return [(ConsumerInfo if "stream_name" in item else StreamInfo, item) for item in items]


INFOS = [info for reply in REPLIES for info in infos(reply)]


def paths(document, prefix=()):
    """Return the paths of all keys that a server may leave out, at any depth."""
    found = []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        # The config of a stream has its name.
        is_config = key == "config" and "stream_name" not in document
        if isinstance(document, dict) and key not in INDISPENSABLE and not is_config:
            found.append((*prefix, key))
        if isinstance(value, (dict, list)):
            found += paths(value, (*prefix, key))
    return found


def is_part(part, whole):
    """Return whether all values of a JSON document are in another one."""
    if isinstance(part, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_part, part, whole))
    return bool(part == whole)


@pytest.mark.parametrize(
    "reply", REPLIES, ids=lambda reply: f"{reply['server']}-{reply['phase']}-{reply['request']}"
)
def test_recorded_replies_are_decoded(reply):
    """A recorded reply is decoded, and nothing of it is lost."""
    for cls, document in infos(reply):
        assert is_part(document, encode(decode(cls, document)))


@given(st.data())
def test_an_absent_field_is_no_error(data):
    """Without any one field that is not its name, a reply is decoded as well."""
    cls, document = data.draw(st.sampled_from(INFOS))
    *path, last = data.draw(st.sampled_from(paths(document)))
    parent = document = copy.deepcopy(document)
    for key in path:
        parent = parent[key]
    del parent[last]
    assert isinstance(decode(cls, document), Record)
