"""Key-value buckets: names, keys, patterns, configs, entries and codecs, without a server."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync import (
    Base64Keys,
    ExternalStream,
    InvalidNameError,
    InvalidOptionError,
    KeyValueConfig,
    KeyValueEntry,
    KeyValueOperation,
    KeyValueStatus,
    ObjectStoreConfig,
    PathKeys,
    StreamConfig,
    StreamInfo,
    StreamSource,
    SubjectTransform,
)
from jetstream_sync.api.key_value import is_bucket, new_stream_config, updated_stream_config
from jetstream_sync.api.object_store import status_of, update_config
from jetstream_sync.codec import decode
from jetstream_sync.durations import duration_from_text
from jetstream_sync.jetstream.buckets.entries import BucketSubjects
from jetstream_sync.subjects import (
    check_key,
    check_pattern,
    merge_patterns,
    subject_matches,
    subjects_overlap,
)

BAD_KEYS = ["", ".a", "a.", "a..b", "a b", "a*", "*", ">", "a.>", "ü", "a$", "a\n", None, b"a"]


@pytest.mark.parametrize("key", ["a", "A.b-C", "/x/y", "_a.=b", "a/b.c"])
def test_valid_keys(key):
    """Letters, digits and four signs, in tokens."""
    assert check_key(key) == check_pattern(key) == key


@pytest.mark.parametrize("key", BAD_KEYS)
def test_invalid_keys(key):
    """The server accepts some of them, so the check is ours alone."""
    with pytest.raises(InvalidNameError):
        check_key(key)


@pytest.mark.parametrize("pattern", [">", "*", "a.>", "*.b", "a.*.c", "*.>"])
def test_valid_patterns(pattern):
    """Wildcards are whole tokens, and ``>`` is the last one."""
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", "a*", ">.a", "a.>.b", "a..>", "*>", ".>", None])
def test_invalid_patterns(pattern):
    """Everything else is refused."""
    with pytest.raises(InvalidNameError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("patterns", "merged"),
    [
        ([], [">"]),
        (["a", "a"], ["a"]),
        (["a", "b.>"], ["a", "b.>"]),
        (["a.>", "a.b", "a.*"], ["a.>"]),
        (["a.*", "*.b"], [">"]),
        (["a.*", "*.>"], ["*.>"]),
        (["a.b.*", "a.*.c"], ["a.>"]),
    ],
)
def test_merged_patterns(patterns, merged):
    """Covered patterns are dropped, and those that merely overlap are replaced by a common one."""
    assert merge_patterns(patterns)[0] == merged


tokens = st.sampled_from(["a", "b", "*"])
patterns = st.builds(
    lambda parts, rest: ".".join([*parts, *rest]),
    st.lists(tokens, min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)
plain_keys = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map(".".join)


@given(st.lists(patterns, max_size=4), plain_keys)
def test_merged_patterns_select_the_same_keys(given_patterns, key):
    """The result does not overlap, and with the filter it selects exactly the requested keys."""
    merged, select = merge_patterns(given_patterns)
    for position, one in enumerate(merged):
        assert not any(subjects_overlap(one, other) for other in merged[position + 1 :])
    wanted = any(subject_matches(pattern, key) for pattern in given_patterns or [">"])
    found = any(subject_matches(item, key) for item in merged)
    assert (found and (select is None or select(key))) == wanted


def test_thousands_of_keys_are_merged_in_time():
    """The cost does not grow with the square of the number of keys."""
    keys = [f"k.{number}" for number in range(20_000)]
    began = time.process_time()
    assert merge_patterns([*keys, "k.*.x", "k.1"])[0] == [*keys, "k.*.x"]
    assert time.process_time() - began < 2.0


def test_config_of_a_new_bucket():
    """The stream has the fields of ADR-8, with its defaults."""
    config = new_stream_config(KeyValueConfig(bucket="B"))
    assert config == StreamConfig(
        name="KV_B",
        subjects=["$KV.B.>"],
        max_msgs_per_subject=1,
        max_msgs=-1,
        max_bytes=-1,
        max_msg_size=-1,
        max_consumers=-1,
        storage="file",
        num_replicas=1,
        duplicate_window=120,
        compression="none",
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
    )
    assert is_bucket(config)


def test_config_with_times():
    """The duplicate window is never longer than the TTL, and markers need two fields."""
    config = new_stream_config(
        KeyValueConfig(bucket="B", ttl=30, limit_marker_ttl=2, history=7, compression=True)
    )
    assert config.max_age == config.duplicate_window == timedelta(seconds=30)
    assert config.subject_delete_marker_ttl == timedelta(seconds=2)
    assert config.allow_msg_ttl
    assert config.max_msgs_per_subject == 7
    assert config.compression == "s2"
    assert new_stream_config(KeyValueConfig(bucket="B", ttl=900)).duplicate_window == timedelta(
        seconds=120
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"history": 0},
        {"history": 65},
        {"limit_marker_ttl": 0.5},
        {"replicas": 6},
        {"ttl": -1},
        {"mirror": StreamSource(name="A"), "sources": [StreamSource(name="B")]},
        {"mirror": StreamSource(name="A"), "limit_marker_ttl": 1},
        {"sources": [StreamSource(name="B", filter_subject="$KV.B.a")]},
    ],
)
def test_invalid_configs(fields):
    """The server accepts some of these values; ADR-8 does not."""
    with pytest.raises(InvalidOptionError):
        new_stream_config(KeyValueConfig(bucket="B", **fields))


def test_config_of_a_mirror():
    """The name of the origin gets its prefix, and the copies keep the subjects of the origin."""
    config = new_stream_config(KeyValueConfig(bucket="M", mirror=StreamSource(name="A")))
    assert config.mirror == StreamSource(name="KV_A")
    assert config.subjects is None
    assert config.mirror_direct
    assert is_bucket(config)
    subjects = BucketSubjects.of(config, None)
    assert (subjects.read, subjects.write) == ("$KV.A.", "$KV.A.")
    external = StreamSource(name="KV_A", external=ExternalStream(api="$JS.hub.API"))
    config = new_stream_config(KeyValueConfig(bucket="M", mirror=external))
    subjects = BucketSubjects.of(config, None)
    assert (subjects.read, subjects.write) == ("$KV.A.", "$JS.hub.API.$KV.A.")
    mapped = StreamSource(
        name="A", subject_transforms=[SubjectTransform(src="$KV.A.>", dest="$KV.M.>")]
    )
    config = new_stream_config(KeyValueConfig(bucket="M", mirror=mapped))
    assert BucketSubjects.of(config, None).read == "$KV.M."


def test_config_of_a_bucket_with_sources():
    """Keys of a source are mapped, unless the source says how, or is the same bucket elsewhere."""
    transform = SubjectTransform(src="$KV.X.a.>", dest="$KV.B.b.>")
    external = ExternalStream(api="$JS.hub.API")
    config = new_stream_config(
        KeyValueConfig(
            bucket="B",
            sources=[
                StreamSource(name="A"),
                StreamSource(name="X", subject_transforms=[transform]),
                StreamSource(name="B", external=external),
            ],
        )
    )
    mapped = SubjectTransform(src="$KV.A.>", dest="$KV.B.>")
    assert config.sources == [
        StreamSource(name="KV_A", subject_transforms=[mapped]),
        StreamSource(name="X", subject_transforms=[transform]),
        StreamSource(name="KV_B", external=external),
    ]


def test_a_compression_of_a_newer_server_is_kept():
    """It counts as one, and an update neither replaces it by the known one nor ends it unasked."""
    reply = {"name": "KV_B", "subjects": ["$KV.B.>"], "compression": "zstd"}
    current = decode(StreamConfig, reply)
    for update, config in (
        (updated_stream_config, KeyValueConfig),
        (update_config, ObjectStoreConfig),
    ):
        assert update(current, config(bucket="B", compression=True)).compression == "zstd"
        assert update(current, config(bucket="B", description="new")).compression == "zstd"
        assert update(current, config(bucket="B", compression=False)).compression == "none"
    info = {"config": reply, "created": "2030-01-01T00:00:00Z"}
    assert KeyValueStatus(decode(StreamInfo, info)).is_compressed
    info["config"] = {**reply, "name": "OBJ_B"}
    assert status_of(decode(StreamInfo, info)).is_compressed


def test_an_update_changes_the_given_fields_only():
    """An update changes the given fields only, also those that a newer server knows."""
    current = new_stream_config(KeyValueConfig(bucket="B", history=5, description="old"))
    changed = updated_stream_config(current, KeyValueConfig(bucket="B", description="new"))
    assert changed.description == "new"
    assert changed.max_msgs_per_subject == 5
    with pytest.raises(InvalidOptionError, match="mirror"):
        updated_stream_config(current, KeyValueConfig(bucket="B", mirror=StreamSource(name="A")))


SUBJECTS = BucketSubjects.of(new_stream_config(KeyValueConfig(bucket="B")), None)


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ("", KeyValueOperation.PUT),
        ("A: KV-Operation", KeyValueOperation.PUT),
        ("KV-Operation: DEL", KeyValueOperation.DELETE),
        ("KV-Operation: PURGE", KeyValueOperation.PURGE),
        ("KV-Operation: other", KeyValueOperation.PUT),
        ("KV-Operation: PUT", KeyValueOperation.PUT),
        ("KV-Operation: del", KeyValueOperation.PUT),
        ("KV-Operation:", KeyValueOperation.PUT),
        ("Nats-Marker-Reason: MaxAge", KeyValueOperation.PURGE),
        ("Nats-Marker-Reason: Purge", KeyValueOperation.PURGE),
        ("Nats-Marker-Reason: Remove", KeyValueOperation.DELETE),
        ("Nats-Marker-Reason: future", KeyValueOperation.PURGE),
        ("KV-Operation: DEL\r\nNats-Marker-Reason: MaxAge", KeyValueOperation.DELETE),
    ],
)
def test_operation_of_an_entry(headers, operation):
    """Only known deletions, and markers of the server, are no values."""
    block = f"NATS/1.0\r\n{headers}\r\n\r\n".encode() if headers else b""
    reply = b"$JS.ACK.KV_B.c.1.7.3.1700000000000000001.4"
    entry = KeyValueEntry(SUBJECTS, (b"$KV.B.a.b", reply, block, b""))
    assert entry.has_value is (operation is KeyValueOperation.PUT)
    assert entry.operation is operation
    assert (entry.bucket, entry.key, entry.revision, entry.delta) == ("B", "a.b", 7, 4)
    assert entry.created_ns == 1_700_000_000_000_000_001


@pytest.mark.parametrize("ttl", ["0", "0s", "never", "soon", "", "9" * 30])
def test_a_ttl_that_does_not_expire(ttl):
    """The TTL 0 is none, and neither is a text that is not a TTL, which old servers store."""
    block = f"NATS/1.0\r\nNats-TTL: {ttl}\r\n\r\n".encode()
    assert KeyValueEntry(SUBJECTS, (b"$KV.B.a", b"", block, b"")).ttl is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("5s", 5), ("1m30s", 90), ("1.5h", 5400), ("20ms", 0.02)]
)
def test_durations_of_the_server(text, seconds):
    """A TTL is written as a Go duration or as a number of seconds."""
    assert duration_from_text(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "5x", "1s2", "never", "-1s"])
def test_other_texts_are_no_durations(text):
    """Anything else raises."""
    with pytest.raises(ValueError, match="not a duration"):
        duration_from_text(text)


@pytest.mark.parametrize(
    ("path", "stored"),
    [("/a/b", "_root_.a.b"), ("a/b", "a.b"), ("/", "_root_"), ("/a/", "_root_.a"), ("a/>", "a.>")],
)
def test_path_keys(path, stored):
    """Paths are stored as tokens; a final slash is dropped."""
    codec = PathKeys()
    assert codec.encode(path) == codec.encode_filter(path) == stored
    assert codec.decode(stored) == (path.removesuffix("/") or "/")


def _is_key(stored: str) -> bool:
    try:
        return bool(check_key(stored))
    except InvalidNameError:
        return False


@given(st.lists(st.text("/._=2E3D5Froot*a", max_size=12), min_size=2, max_size=2))
def test_path_keys_are_unique(paths):
    """Two paths have one stored form only if they differ by a final slash."""
    codec = PathKeys()
    same = paths[0].removesuffix("/") == paths[1].removesuffix("/") and (
        paths[0].startswith("/") == paths[1].startswith("/")
    )
    stored = [codec.encode(path) for path in paths]
    if not all(map(_is_key, stored)):
        return
    assert (stored[0] == stored[1]) == same
    for path, form in zip(paths, stored, strict=True):
        assert codec.decode(form) in {path, path.removesuffix("/"), "/"}


def test_path_keys_with_dots():
    """A dot is no separator of paths, and a foreign key is not decoded."""
    codec = PathKeys()
    assert codec.encode("/etc/nginx.conf") == "_root_.etc.nginx=2Econf"
    assert codec.decode("_root_.etc.nginx=2Econf") == "/etc/nginx.conf"
    assert codec.decode(codec.encode("_root_/a")) == "_root_/a"
    for foreign in ("a/b", "a=b", "=5Froot_=", "_root_.a=2e"):
        with pytest.raises(InvalidNameError, match="stored form"):
            codec.decode(foreign)


tokens_of_text = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1)


@given(st.lists(tokens_of_text, min_size=1, max_size=4).map(".".join))
def test_base64_keys(key):
    """Any text can be a token; what is stored is a valid key."""
    codec = Base64Keys()
    assert codec.decode(check_key(codec.encode(key))) == key


def test_base64_filters():
    """Wildcards stay, and what is not Base64 is an error on decoding."""
    assert Base64Keys().encode_filter("ab.*.>") == "YWI.*.>"
    with pytest.raises(InvalidNameError, match="Base64"):
        Base64Keys().decode("a")
