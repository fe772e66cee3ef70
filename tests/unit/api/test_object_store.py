"""Names, infos and configs of object stores."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from jetstream_sync import (
    ObjectInfo,
    ObjectLink,
    ObjectMeta,
    ObjectMetaOptions,
    ObjectStoreConfig,
    errors,
)
from jetstream_sync.api.object_store import (
    decode_info,
    digest_text,
    encode_info,
    info_subject,
    parse_digest,
    stream_config,
)
from jetstream_sync.codec import dumps, encode, loads
from jetstream_sync.subjects import chunk_subject

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def test_subjects():
    """Subjects are those of ADR-20: the name in URL-safe base64 with padding, chunks by their id."""
    assert info_subject("FILES", "a") == "$O.FILES.M.YQ=="
    assert info_subject("FILES", "ab?>") == "$O.FILES.M.YWI_Pg=="
    assert chunk_subject("FILES", "n1") == "$O.FILES.C.n1"


@pytest.mark.parametrize("name", ["", 5, "\ud800", "x" * 5000])
def test_names_that_have_no_subject(name):
    """A name that no subject can hold is refused."""
    with pytest.raises(errors.InvalidNameError, match="object name"):
        info_subject("FILES", name)


def test_digests():
    """A digest is the SHA-256 in URL-safe base64 with padding."""
    empty = hashlib.sha256(b"").digest()
    text = "SHA-256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU="
    assert digest_text(empty) == text
    assert parse_digest(text) == empty
    assert parse_digest(text.rstrip("=")) == empty
    assert parse_digest(text.replace("SHA", "sha")) == empty


@pytest.mark.parametrize(
    "text", [None, "", "SHA-256", "SHA-256=", "MD5=AAAA", "SHA-256=AAAA", "SHA-256=ü", "="]
)
def test_digests_of_another_kind(text):
    """Another algorithm or encoding is not a digest."""
    assert parse_digest(text) is None


def test_infos():
    """An info is stored without a time, and read with the time of its message."""
    info = ObjectInfo(
        name="a",
        bucket="B",
        nuid="n",
        size=1,
        chunks=1,
        digest="SHA-256=x",
        headers={"A": ["b"]},
        options=ObjectMetaOptions(link=ObjectLink(bucket="C", name="c")),
        mtime=NOON,
    )
    data = encode_info(info)
    assert loads(data) == {
        "name": "a",
        "bucket": "B",
        "nuid": "n",
        "size": 1,
        "chunks": 1,
        "digest": "SHA-256=x",
        "headers": {"A": ["b"]},
        "options": {"link": {"bucket": "C", "name": "c"}},
    }
    assert decode_info(data, NOON) == info
    assert info.is_link
    assert loads(encode_info(replace(info, deleted=True)))["deleted"] is True


def test_infos_of_other_clients():
    """The time in an info is ignored, and unknown fields are kept."""
    data = {"name": "a", "bucket": "B", "nuid": "n", "mtime": "0001-01-01T00:00:00Z", "new": 1}
    info = decode_info(dumps(data), NOON)
    assert (info.mtime, info.size, info.chunks, info.deleted) == (NOON, 0, 0, False)
    assert loads(encode_info(info))["new"] == 1


@pytest.mark.parametrize("nuid", ["", ">", "*", "a.b", "a b", "a\r\n"])
def test_an_id_that_matches_other_chunks_is_refused(nuid):
    """An id with which a purge would delete the chunks of other objects is refused."""
    with pytest.raises(errors.InvalidResponseError, match="nuid"):
        decode_info(dumps({"name": "a", "bucket": "B", "nuid": nuid}), NOON)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'"a"', b"{}", b'{"name":"a"}', b'{"name":5,"bucket":"B","nuid":"n"}']
)
def test_another_payload_is_not_an_info(data):
    """Another payload is an error, not an info."""
    with pytest.raises(errors.InvalidResponseError):
        decode_info(data, NOON)


def test_config_of_a_bucket():
    """The stream of a bucket has the config of ADR-20."""
    config = ObjectStoreConfig(
        bucket="B", ttl=60, replicas=3, compression=True, metadata={"a": "b"}
    )
    assert encode(stream_config(config)) == {
        "name": "OBJ_B",
        "subjects": ["$O.B.C.>", "$O.B.M.>"],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "max_age": 60_000_000_000,
        "num_replicas": 3,
        "compression": "s2",
        "metadata": {"a": "b"},
    }


def test_limits():
    """A chunk has at least one byte, and a TTL a tenth of a second."""
    for size in (0, -1):
        with pytest.raises(errors.InvalidOptionError, match="max_chunk_size"):
            ObjectMetaOptions(max_chunk_size=size)
    with pytest.raises(errors.InvalidOptionError, match="ttl"):
        ObjectStoreConfig(bucket="B", ttl=0.01)
    assert ObjectMeta(name="a").link is None
