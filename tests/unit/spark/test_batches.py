"""Batch sizes, and how batches are divided into partitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import pairwise

import pytest
from fixtures.spark_streams import stream_info
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.planning.batches import (
    MAX_PARTITIONS,
    MessageCounter,
    divide_rows,
    limit_to_bytes,
    partition_counts,
    partition_cuts,
)
from jetstream_sync.spark.streams import StreamView, stream_view


def view(first_seq: int, end_seq: int, messages: int) -> StreamView:
    return stream_view(stream_info(messages=messages, first_seq=first_seq, last_seq=end_seq - 1))


class Server:
    """Counts like the server: all matches from a sequence on, including new messages."""

    def __init__(self, matches: set[int], arriving: int = 0) -> None:
        self.matches = set(matches)
        self.arriving = arriving
        self.questions = 0

    def probes(self, seqs: Sequence[int]) -> list[tuple[int | None, int]]:
        return [self.probe(seq) for seq in seqs]

    def probe(self, seq: int) -> tuple[int | None, int]:
        self.questions += 1
        found = sorted(match for match in self.matches if match >= seq)
        # A new message may arrive between any two requests.
        top = max(self.matches, default=0) + 100
        self.matches.update(range(top, top + self.arriving))
        return (found[0] if found else None), len(found)


streams = st.sets(st.integers(1, 200), min_size=1)


@given(streams, st.integers(1, 201), st.integers(1, 201))
def test_matching_counts_messages_in_a_range(present, start, end):
    """Deleted messages are not counted."""
    counts = MessageCounter(
        view(min(present), max(present) + 1, len(present)), False, Server(present).probes
    )
    assert counts.matching(start, end) == len([item for item in present if start <= item < end])


@given(streams, st.integers(1, 200), st.integers(1, 50))
def test_the_end_of_a_batch_is_exact(present, start, rows):
    """A batch has exactly the maximum number of messages, if there are as many."""
    end = max(present) + 1
    counts = MessageCounter(view(min(present), end, len(present)), False, Server(present).probes)
    reached = counts.find_end(start, end, rows)
    there = len([item for item in present if start <= item])
    taken = len([item for item in present if start <= item < reached])
    assert taken == min(rows, there)
    assert reached <= max(end, start)


@given(streams, st.integers(1, 50), st.integers(0, 3))
def test_a_batch_never_exceeds_its_limit(present, rows, arriving):
    """The limit holds even if messages arrive between the requests."""
    end = max(present) + 1
    server = Server(present, arriving)
    reached = MessageCounter(view(min(present), end, len(present)), True, server.probes).find_end(
        1, end, rows
    )
    assert len([item for item in present if item < reached]) <= rows


@given(streams, st.integers(1, 200), st.integers(1, 50), st.integers(1, 9))
def test_few_matches_are_read_once(present, start, rows, partitions):
    """Ends and partitions are the same as if the matches were counted, and need no further counts."""
    end = max(present) + 1
    results = []
    for reads in (False, True):
        server = Server(present)

        def matches(seq: int, count: int, *, server: Server = server) -> list[int]:
            return sorted(match for match in server.matches if match >= seq)[:count]

        counts = MessageCounter(
            view(min(present), end, len(present)), True, server.probes, matches if reads else None
        )
        total = counts.matching(start, end)
        if total == 0:
            return
        cuts = partition_cuts(counts, start, end, total, partitions)
        results.append((counts.find_end(start, end, rows), cuts))
        assert server.questions <= 2 or not reads
    assert results[0] == results[1]


def test_contiguous_streams_need_no_requests():
    """In a contiguous stream, sequences are counts."""

    def refuse(_: Sequence[int]) -> list[tuple[int | None, int]]:
        pytest.fail("the server was asked")

    counts = MessageCounter(view(11, 1011, 1000), False, refuse)
    assert counts.matching(1, 1011) == 1000
    assert counts.matching(20, 30) == 10
    assert counts.find_end(11, 1011, 400) == 411
    assert counts.find_end(11, 1011, 4000) == 1011
    assert partition_cuts(counts, 11, 1011, 1000, 4) == (261, 511, 761)


def test_few_requests_find_the_end_in_a_large_stream():
    """The end is found with a binary search."""
    present = set(range(1, 1_000_000, 1000))
    server = Server(present)
    counts = MessageCounter(view(1, 1_000_000, 1_000_000), True, server.probes)
    reached = counts.find_end(1, 1_000_000, 100)
    assert len([item for item in present if item < reached]) == 100
    assert server.questions <= 50


@given(
    st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 100)),
    st.integers(0, 200),
    st.integers(0, 9),
)
def test_shares_add_up_to_the_total(available, total, turn):
    """Everything that is available is given up to the total, and no stream gets more than it has."""
    shares = divide_rows(total, available, turn)
    assert sum(shares.values()) == min(total, sum(available.values()))
    assert all(0 <= shares[key] <= count for key, count in available.items())


def test_a_small_stream_does_not_wait_for_a_large_one():
    """Shares are equal, and what one stream does not need goes to the others."""
    assert divide_rows(10, {"A": 1000, "B": 3, "C": 0}) == {"A": 7, "B": 3, "C": 0}
    assert divide_rows(10, {"A": 1000, "B": 1000}) == {"A": 5, "B": 5}


def test_streams_take_turns_if_there_are_too_few_rows():
    """With less than one row for each stream, the streams take turns."""
    got = [divide_rows(1, {"A": 9, "B": 9, "C": 9}, turn) for turn in range(3)]
    assert [max(item, key=item.__getitem__) for item in got] == ["A", "B", "C"]


def test_bytes_are_shared_by_streams():
    """A limit in bytes is divided equally, and what one stream does not need goes to the others."""
    assert limit_to_bytes({"A": 100, "B": 50}, {"A": 10.0, "B": 20.0}, 1000) == {"A": 50, "B": 25}
    assert limit_to_bytes({"A": 100}, {"A": 10.0}, 1000) == {"A": 100}
    assert limit_to_bytes({"A": 10**6, "B": 3}, {"A": 10.0, "B": 10.0}, 1000) == {"A": 97, "B": 3}


def test_one_row_is_always_left():
    """A message that is larger than the limit is still read."""
    assert limit_to_bytes({"A": 5, "B": 0}, {"A": 1e6, "B": 1.0}, 1000) == {"A": 1, "B": 0}


def test_large_messages_are_not_delayed_forever():
    """A stream whose messages are larger than its share gets its turn."""
    got = [
        limit_to_bytes({"A": 900, "B": 9, "C": 0}, {"A": 1.0, "B": 800.0, "C": 1.0}, 1000, n)
        for n in (0, 1)
    ]
    assert [item["B"] for item in got] == [0, 1]
    assert all(item["A"] > 0 for item in got)


@given(st.sets(st.integers(1, 5000), min_size=1), st.integers(1, 12))
def test_partitions_have_about_equally_many(present, partitions):
    """In a sparse stream, no partition has more messages than its share."""
    end = max(present) + 1
    counts = MessageCounter(view(min(present), end, len(present)), True, Server(present).probes)
    found = partition_cuts(counts, 1, end, len(present), min(partitions, len(present)))
    bounds = [1, *found, end]
    sizes = [
        len([item for item in present if low <= item < high])
        for low, high in itertools.pairwise(bounds)
    ]
    assert sum(sizes) == len(present)
    wanted = min(partitions, len(present))
    assert max(sizes[:-1], default=0) <= -(-len(present) // wanted) * 1.1 + 1
    assert sizes[-1] <= -(-len(present) // wanted) * 1.7 + wanted


def test_number_of_partitions():
    """As many as the rows require, at least the minimum, at most 64 or one for each row."""
    assert partition_counts({"A": 250, "B": 0}, 100, None) == {"A": 3, "B": 0}
    assert partition_counts({"A": 90}, 100, None) == {"A": 1}
    assert partition_counts({"A": 75, "B": 25}, 100, 8) == {"A": 6, "B": 2}
    assert partition_counts({"A": 3}, 100, 8) == {"A": 3}
    assert partition_counts({"A": 10**9}, 100, None) == {"A": MAX_PARTITIONS}
    assert partition_counts({"A": 10**9}, 100, 100) == {"A": 100}


@given(
    st.sets(st.integers(1, 300), min_size=2),
    st.integers(2, MAX_PARTITIONS),
    st.lists(st.integers(1, 300), min_size=1),
)
def test_messages_that_leave_the_stream_move_no_cut_out_of_the_range(present, partitions, leaving):
    """Counts of two times do not fit together, and still give rising cuts within the range."""
    end = max(present) + 1
    left = iter(leaving)
    server = Server(present)

    def probes(seqs: Sequence[int]) -> list[tuple[int | None, int]]:
        first = next(left, 1)
        server.matches = {match for match in server.matches if match >= first}
        return server.probes(seqs)

    counts = MessageCounter(view(min(present), end, len(present)), True, probes)
    cuts = partition_cuts(counts, 1, end, len(present), partitions)
    assert sorted(set(cuts)) == list(cuts)
    assert all(1 < cut < end for cut in cuts)


def test_slow_counts_end_the_search_for_cuts(monkeypatch):
    """
    Where a count takes long, few are made, and the other cuts are between the known ones.

    As in a stream in memory, counts are cheap near its ends.
    """
    end, now = 640_000, [0.0]
    server = Server(set(range(1, end, 640)))
    at_once: list[int] = []

    def probes(seqs: Sequence[int]) -> list[tuple[int | None, int]]:
        at_once.append(len(seqs))
        now[0] += sum(2.0 if end * 0.1 < seq < end * 0.9 else 0.001 for seq in seqs)
        return server.probes(seqs)

    for module in ("spark.planning.batches", "net.clock"):
        monkeypatch.setattr(f"jetstream_sync.{module}.monotonic", lambda: now[0])
    counts = MessageCounter(view(1, end, end), True, probes)
    assert counts.matching(1, end) == 1000
    cuts = partition_cuts(counts, 1, end, 1000, 64)
    assert max(at_once) <= 4
    assert now[0] < 15
    assert len(cuts) == 63
    assert max(high - low for low, high in pairwise((1, *cuts, end))) < 1.5 * end / 64
    # A batch is smaller than its limit, but has messages.
    reached = counts.find_end(1, end, 100)
    assert 0 < len([item for item in server.matches if item < reached]) <= 100
    assert now[0] < 40
