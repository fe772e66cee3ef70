"""Message ids: equal for repeated rows, and different for all others."""

from __future__ import annotations

import random
from base64 import b64encode
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.writing.message_ids import (
    ColumnIds,
    ContentIds,
    PositionIds,
    WriteTaskId,
    row_digests,
)
from jetstream_sync.spark.writing.rows import EncodedRows

ORIGIN = WriteTaskId(name="query", batch=7, partition=3)

contents = st.lists(
    st.tuples(st.sampled_from([b"a", b"a.b", b"1 a"]), st.sampled_from([b"", b"x", b"y", b" x"])),
    max_size=40,
)


def rows(pairs: list[tuple[bytes, bytes]], header_lines: list[bytes] | None = None) -> EncodedRows:
    subjects, data = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return EncodedRows(range(len(pairs)), subjects, data, header_lines, None)


def content_ids(pairs: list[tuple[bytes, bytes]], size: int = 1000) -> list[bytes]:
    """Return the ids of rows that are passed in parts of a given size."""
    ids = ContentIds(ORIGIN)
    parts = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return [each for part in parts for each in ids.of(rows(part)) or []]


@given(contents, st.integers(1, 50))
def test_ids_by_content_are_unique(pairs: list[tuple[bytes, bytes]], size: int) -> None:
    """No two rows have the same id, even if they are equal, for any part size."""
    made = content_ids(pairs, size)
    assert len(set(made)) == len(made) == len(pairs)


@given(contents, st.integers(1, 50), st.randoms(use_true_random=False))
def test_ids_by_content_do_not_depend_on_the_order(
    pairs: list[tuple[bytes, bytes]], size: int, chance: random.Random
) -> None:
    """The same rows in another order have the same ids."""
    mixed = chance.sample(pairs, len(pairs))
    before = sorted(zip(pairs, content_ids(pairs), strict=True))
    assert sorted(zip(mixed, content_ids(mixed, size), strict=True)) == before


def test_ids_by_content_are_those_of_earlier_versions() -> None:
    """A batch that is repeated after an upgrade has the same ids, so its rows are not stored twice."""
    pairs = [(b"a", b"x"), (b"a.b", b""), (b"a", b"y"), (b"a", b"x"), (b"a", b"x")]
    task = blake2b(b"7 3 query", digest_size=9).digest()
    expected = []
    for number, (subject, data) in enumerate(pairs):
        text = b"%d %b%b" % (len(subject), subject, data)
        made = b64encode(task) + b64encode(blake2b(text, digest_size=12).digest())
        before = pairs[:number].count(pairs[number])
        expected.append(made + (b"-%d" % before if before else b""))
    assert content_ids(pairs, 3) == content_ids(pairs) == expected


def test_everything_that_is_stored_affects_the_id() -> None:
    """Subject, payload and headers determine the id, and are separated from each other."""
    pairs = [(b"a", b"bc"), (b"ab", b"c"), (b"a", b"b"), (b"a", b"")]
    plain = row_digests(rows(pairs))
    headed = row_digests(rows(pairs, [b"K: v\r\n", b"", b"K: w\r\n", b"\r\n"]))
    assert len(set(plain + headed)) == 7
    assert plain[1] == headed[1]


@pytest.mark.parametrize("kind", [ContentIds, PositionIds])
def test_ids_tell_queries_batches_and_partitions_apart(
    kind: type[ContentIds | PositionIds],
) -> None:
    """The same row from another source has another id, and from the same source the same one."""
    origins = [
        ORIGIN,
        WriteTaskId(name="other", batch=7, partition=3),
        WriteTaskId(name="query", batch=8, partition=3),
        WriteTaskId(name="query", batch=7, partition=4),
        WriteTaskId(name="query", batch=73, partition=0),
        WriteTaskId(name="3 query", batch=7, partition=7),
    ]
    one = [(b"a", b"x")]
    made = [(kind(origin).of(rows(one)) or [])[0] for origin in origins]
    assert len(set(made)) == len(origins)
    assert kind(ORIGIN).of(rows(one)) == made[:1]
    assert all(made[i].startswith(origin.prefix()) for i, origin in enumerate(origins))


def test_ids_by_position_contain_the_row_number() -> None:
    """The id contains the number of the row in its partition."""
    part = EncodedRows([5, 9], [b"a", b"a"], [b"x", b"x"], None, None)
    made = PositionIds(ORIGIN).of(part)
    assert made == [ORIGIN.prefix() + b"5", ORIGIN.prefix() + b"9"]


@pytest.mark.parametrize("kind", [ContentIds, PositionIds])
def test_an_id_of_the_column_takes_precedence(kind: type[ContentIds | PositionIds]) -> None:
    """An id from the column ``msg_id`` is used instead of a made one."""
    part = EncodedRows(range(3), [b"a"] * 3, [b"x"] * 3, None, [b"mine", b"", b"too"])
    made = kind(ORIGIN).of(part)
    assert (made[0], made[2]) == (b"mine", b"too")
    assert made[1].startswith(ORIGIN.prefix())


def test_at_least_once_uses_the_column_only() -> None:
    """Without made ids there are only those of the column."""
    assert ColumnIds().of(rows([(b"a", b"x")])) is None
    part = EncodedRows(range(2), [b"a"] * 2, [b"x"] * 2, None, [b"mine", b""])
    assert ColumnIds().of(part) == [b"mine", b""]


def test_more_subjects_than_the_cache_holds() -> None:
    """Hashes are correct for more subjects than the cache holds."""
    pairs = [(b"%d" % number, b"x") for number in range(10_000)]
    assert len(set(row_digests(rows(pairs)))) == 10_000
    assert row_digests(rows(pairs[:1])) == row_digests(rows(pairs))[:1]


def test_the_token_of_a_query_is_one_token() -> None:
    """The name of a query in a subject contains no dot, space or wildcard."""
    token = WriteTaskId(name="a.b *>", batch=0, partition=0).token
    assert token.isalnum()
