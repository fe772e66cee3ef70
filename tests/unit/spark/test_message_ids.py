"""Message ids: equal for repeated rows, and different for all others."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.writing import message_ids
from jetstream_sync.spark.writing.message_ids import (
    ContentIds,
    WriteTaskId,
    content_digests,
)
from jetstream_sync.spark.writing.rows import EncodedRows
from jetstream_sync.speedups import IN_USE

ORIGIN = WriteTaskId(name="query", batch=7, partition=3)

contents = st.lists(
    st.tuples(st.sampled_from([b"a", b"a.b", b"1 a"]), st.sampled_from([b"", b"x", b"y", b" x"])),
    max_size=40,
)


def rows(pairs: list[tuple[bytes, bytes]], header_lines: list[bytes] | None = None) -> EncodedRows:
    subjects = BytesColumn.of([pair[0] for pair in pairs])
    data = BytesColumn.of([pair[1] for pair in pairs])
    return EncodedRows(range(len(pairs)), subjects, data, BytesColumn.of(header_lines or ()))


def digests(of: EncodedRows) -> list[bytes]:
    """Return the digests of rows, which follow a prefix."""
    joined = content_digests(b"prefix--9", of)
    assert joined[::21] == b"p" * len(of)
    return [joined[start + 9 : start + 21] for start in range(0, len(joined), 21)]


def with_ids(ids: list[bytes]) -> EncodedRows:
    return replace(rows([(b"a", b"x")] * len(ids)), ids=BytesColumn.of(ids))


@pytest.fixture(params=["extension", "Python"], autouse=True)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the C extension and without it."""
    if request.param == "Python":
        monkeypatch.setattr(message_ids, "row_digests", None)
        monkeypatch.setattr(message_ids, "add_digests", None)
    elif not IN_USE:
        pytest.skip("the C extension is not in use")


def content_ids(pairs: list[tuple[bytes, bytes]], size: int = 1000) -> list[bytes]:
    """Return the ids of rows that are passed in parts of a given size."""
    ids = ContentIds(ORIGIN)
    parts = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return [item for part in parts for item in ids.of(rows(part))]


@given(contents, st.integers(1, 50))
def test_ids_by_content_are_unique(pairs, size):
    """No two rows have the same id, even if they are equal, for any part size."""
    made = content_ids(pairs, size)
    assert len(set(made)) == len(made) == len(pairs)


@given(contents, st.integers(1, 50), st.randoms(use_true_random=False))
def test_ids_by_content_do_not_depend_on_the_order(pairs, size, chance):
    """The same rows in another order have the same ids."""
    mixed = chance.sample(pairs, len(pairs))
    before = sorted(zip(pairs, content_ids(pairs), strict=True))
    assert sorted(zip(mixed, content_ids(mixed, size), strict=True)) == before


def test_ids_by_content_are_those_of_earlier_versions():
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
    assert content_ids(pairs * 2)[:5] == expected


def test_everything_that_is_stored_affects_the_id():
    """Subject, payload and headers determine the id, and are separated from each other."""
    pairs = [(b"a", b"bc"), (b"ab", b"c"), (b"a", b"b"), (b"a", b"")]
    plain = digests(rows(pairs))
    headed = digests(rows(pairs, [b"K: v\r\n", b"", b"K: w\r\n", b"\r\n"]))
    assert len(set(plain + headed)) == 7
    assert plain[1] == headed[1]


def test_ids_tell_queries_batches_and_partitions_apart():
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
    made = [ContentIds(origin).of(rows(one))[0] for origin in origins]
    assert len(set(made)) == len(origins)
    assert list(ContentIds(ORIGIN).of(rows(one))) == made[:1]
    assert all(made[i].startswith(origin.prefix()) for i, origin in enumerate(origins))


def test_an_id_of_the_column_takes_precedence():
    """An id from the column ``msg_id`` is used instead of a made one."""
    made = ContentIds(ORIGIN).of(with_ids([b"mine", b"", b"too"]))
    assert (made[0], made[2]) == (b"mine", b"too")
    assert made[1].startswith(ORIGIN.prefix())


def test_many_different_rows():
    """Ids are correct for more subjects than the cache holds, and for more rows than fit into the first table."""
    pairs = [(b"%d" % number, b"x") for number in range(10_000)]
    ids = ContentIds(ORIGIN)
    made = [
        item for start in range(0, 10_000, 999) for item in ids.of(rows(pairs[start : start + 999]))
    ]
    assert len(set(made)) == 10_000
    assert made == content_ids(pairs, 10_000)
    again = ids.of(rows(pairs))
    assert list(again) == [item + b"-1" for item in made]


@pytest.mark.parametrize("size", [0, 1, 100, 125, 126, 127, 128, 253, 254, 255, 256, 5000])
def test_digests_are_blake2b(size):
    """The digest of a row is that of the standard library, for each number of blocks."""
    data, lines = bytes(index % 251 for index in range(size)), b"K: v\r\n" * (size // 50)
    hasher = blake2b(b"1 a", digest_size=12)
    if lines:
        hasher.update(b"\r\n%d\r\n%b" % (len(lines), lines))
    hasher.update(data)
    assert digests(rows([(b"a", data)], [lines])) == [hasher.digest()]


def test_the_token_of_a_query_is_one_token():
    """The name of a query in a subject contains no dot, space or wildcard."""
    token = WriteTaskId(name="a.b *>", batch=0, partition=0).token
    assert token.isalnum()
