"""The records against the public JSON schemas of jsm.go, whose content is in schemas/fields.json."""

import ast
import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from jetstream_sync.api import account, consumer, publish, stream
from jetstream_sync.codec import UnknownEnumValue, decode, encode
from jetstream_sync.errors import InvalidResponseError

SCHEMAS = json.loads(Path(__file__).with_name("schemas").joinpath("fields.json").read_text())

RECORDS = {
    "account_limits": account.AccountLimits,
    "account_stats": account.AccountInfo,
    "api_error": stream.ErrorInfo,
    "api_stats": account.APIStats,
    "cluster_info": account.ClusterInfo,
    "consumer_configuration": consumer.ConsumerConfig,
    "consumer_info": consumer.ConsumerInfo,
    "external_stream_source": stream.ExternalStream,
    "lost_stream_data": stream.LostStreamData,
    "peer_info": account.PeerInfo,
    "placement": account.Placement,
    "priority_group_state": consumer.PriorityGroupState,
    "republish": stream.RePublish,
    "sequence_info": consumer.SequenceInfo,
    "stored_message": stream.StoredMsgReply,
    "stream_alternate": stream.StreamAlternate,
    "stream_configuration": stream.StreamConfig,
    "stream_consumer_limits": stream.StreamConsumerLimits,
    "stream_consumer_source": stream.StreamConsumerSource,
    "stream_info": stream.StreamInfo,
    "stream_source": stream.StreamSource,
    "stream_source_info": stream.StreamSourceInfo,
    "stream_state": stream.StreamState,
    "subject_transform": stream.SubjectTransform,
    "tier": account.Tier,
}

# Fields that nats-server 2.15 has and the schemas lack, per its struct tags.
BEYOND_THE_SCHEMAS = {
    "cluster_info": {"desired"},
    "peer_info": {"pending"},
    "stream_source_info": {"seq"},
}

# The server reads "" as the default persist mode and never writes it, so there is no member for it.
WORDS_WITHOUT_MEMBER = {""}

FIELDS = [(record, name) for record in RECORDS for name in SCHEMAS[record]]


def samples(kind):
    """JSON values of a type of the table."""
    if isinstance(kind, str):
        return {
            "bool": [True, False],
            "int": [7, 0],
            "str": ["text"],  # which is valid base64, too
            "duration": [1_000_000_007],
            "time": ["2024-05-06T07:08:09.123456789Z"],
        }[kind]
    ((form, inner),) = kind.items()
    if form == "enum":
        return inner
    if form == "array":
        return [samples(inner)]
    if form == "map":
        return [{"key": samples(inner)[0]}]
    return [whole(inner)]


def whole(record):
    """An object that has every field of a schema."""
    return {name: samples(kind)[0] for name, kind in SCHEMAS[record].items()}


def wrong_samples(kind):
    """JSON values that are not of a type of the table."""
    fits = samples(kind)
    everything = [True, 7, 1.5, "text", [], {}, ["text"], [{}], {"key": []}]
    right = (type(fits[0]), bool if kind == "bool" else None)
    return [value for value in everything if type(value) not in right]


@pytest.mark.parametrize("record", RECORDS)
def test_an_object_with_every_field_survives(record):
    """The records have every field of the schemas, and encode what they decode."""
    ours = {field.name for field in dataclasses.fields(RECORDS[record])} - {"extra"}
    assert ours - set(SCHEMAS[record]) == BEYOND_THE_SCHEMAS.get(record, set())
    data = whole(record)
    value = decode(RECORDS[record], data)
    assert encode(value) == data
    assert value.extra == {}


@pytest.mark.parametrize(("record", "name"), FIELDS)
def test_types_agree(record, name):
    """A field accepts every value of its schema's type and no value of another type."""
    kind = SCHEMAS[record][name]
    for value in samples(kind):
        data = {**whole(record), name: value}
        assert encode(decode(RECORDS[record], data)) == data
    if kind in ("duration", "time"):
        assert not isinstance(getattr(decode(RECORDS[record], data), name), (int, str))
    for value in wrong_samples(kind):
        with pytest.raises(InvalidResponseError):
            decode(RECORDS[record], {**whole(record), name: value})


@pytest.mark.parametrize(("record", "name"), FIELDS)
def test_every_word_of_a_schema_is_known(record, name):
    """Every policy value of the schemas has a member, except for the listed ones."""
    kind = SCHEMAS[record][name]
    if not (isinstance(kind, dict) and "enum" in kind):
        return
    members = {
        getattr(decode(RECORDS[record], {**whole(record), name: word}), name)
        for word in kind["enum"]
    }
    assert {
        str(word) for word in members if isinstance(word, UnknownEnumValue)
    } <= WORDS_WITHOUT_MEMBER
    enum = next(type(word) for word in members if not isinstance(word, UnknownEnumValue))
    assert {word.value for word in enum} == set(kind["enum"]) - WORDS_WITHOUT_MEMBER


def test_the_pub_ack_has_every_field_of_its_schema():
    """Two fields of a PubAck have the names of nats-py, and its error is raised."""
    names = set(publish.PubAck._fields)
    assert names - {"batch_id", "batch_size"} | {"batch", "count", "error"} == set(
        SCHEMAS["pub_ack_response"]
    )


@pytest.mark.parametrize("module", [account, consumer, stream], ids=lambda m: m.__name__)
def test_every_field_is_documented(module):
    """Every field of every record has a docstring."""
    tree = ast.parse(Path(module.__file__).read_text())
    for record in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for node, after in itertools.pairwise([*record.body, None]):
            if isinstance(node, ast.AnnAssign):
                text = after.value if isinstance(after, ast.Expr) else None
                documented = isinstance(text, ast.Constant) and isinstance(text.value, str)
                assert documented, f"{record.name}.{node.target.id}"
