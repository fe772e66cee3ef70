"""Subjects and names: validation and matching."""

from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import BadSubjectError, InvalidNameError
from jetstream_sync.subjects import (
    check_consumer_name,
    check_publish_subject,
    check_queue,
    check_stream_name,
    check_subject,
    subject_matches,
    subjects_overlap,
)

CHECK_NAMES = {
    "stream": partial(check_stream_name, new=True),
    "consumer": partial(check_consumer_name, new=True),
}
# White space of any kind, and every other character below the printable ones.
BLANK = [*map(chr, range(0x21)), "\x7f", "\x85", "\xa0", "\u2028", "\u3000"]

TOKEN = st.text("ab", min_size=1, max_size=2)
SUBJECT = st.lists(TOKEN | st.just("a*"), min_size=1, max_size=4).map(".".join)
PATTERN = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]),
    st.lists(TOKEN | st.sampled_from(["*", "a*", "b>"]), max_size=4),
    st.sampled_from([[], [">"]]),
).filter(bool)
ANY_TEXT = st.text(st.characters(), max_size=8) | st.text(".*> \r\na\ud800", max_size=6)


def matches_slowly(pattern, subject):
    """Match by a regular expression over whole tokens, as in the documentation of nats-server."""
    wild = {"*": r"[^.]+", ">": r".+"}
    parts = [wild.get(token, re.escape(token)) for token in pattern.split(".")]
    return re.fullmatch(r"\.".join(parts), subject) is not None


@pytest.mark.parametrize(
    "subject",
    ["a", "a.b", "ORDERS.received", "$JS.API.INFO", "_INBOX.x", "ä.ö", "a*", "a>b", "*a.>b", "a/b"],
)
def test_valid_subjects_are_returned(subject):
    """A subject is dot-separated tokens; a wildcard character within a token is a character."""
    assert check_publish_subject(subject) == subject
    assert check_subject(subject) == subject


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "*.a", "a.*.b", "a.>", "*.>"])
def test_wildcards_are_for_subscribing(subject):
    """`*` and a final `>` are valid for subscribing, not for publishing."""
    assert check_subject(subject) == subject
    with pytest.raises(BadSubjectError) as caught:
        check_publish_subject(subject)
    assert caught.value.subject == subject


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "*.>.*"])
def test_badly_formed_subjects_are_refused(subject):
    """No token is empty, and nothing follows `>`."""
    for check in (check_subject, check_publish_subject):
        with pytest.raises(BadSubjectError) as caught:
            check(subject)
        assert caught.value.subject == subject


@pytest.mark.parametrize("blank", BLANK)
def test_white_space_and_control_characters_are_refused(blank):
    """A space would end an argument of the protocol line."""
    for text in (blank, f"a{blank}", f"{blank}a", f"a.b{blank}c"):
        for check in (check_subject, check_publish_subject, check_queue):
            with pytest.raises(BadSubjectError):
                check(text)
        for check in CHECK_NAMES.values():
            with pytest.raises(InvalidNameError):
                check(text)


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"]])
def test_only_a_str_is_a_subject(value):
    """Another type is refused with the error for a bad subject or name, not a TypeError."""
    for check in (check_subject, check_publish_subject, check_queue):
        with pytest.raises(BadSubjectError):
            check(value)
    for check in CHECK_NAMES.values():
        with pytest.raises(InvalidNameError):
            check(value)


def test_a_value_too_long_for_a_command_is_refused():
    """A command line has 4096 bytes at most; the error quotes the start of a longer value."""
    for check in (check_subject, check_publish_subject, check_queue):
        assert check("x" * 4096) == "x" * 4096
        with pytest.raises(BadSubjectError, match="4096") as caught:
            check("x" * 4097)
        assert caught.value.subject == "x" * 4097
        assert len(str(caught.value)) < 300


def test_a_queue_group_may_be_left_out_or_have_dots():
    """An empty queue group is none; a group's name is not cut at dots."""
    assert check_queue("") == ""
    assert check_queue("workers.eu") == "workers.eu"


@pytest.mark.parametrize("kind", CHECK_NAMES)
@pytest.mark.parametrize("name", ["A", "ORDERS", "a-b_c", "ä", "a=b", "x" * 255])
def test_valid_names_are_returned(kind, name):
    """A name is one token that is valid as a file name."""
    assert CHECK_NAMES[kind](name) == name


@pytest.mark.parametrize("kind", CHECK_NAMES)
@pytest.mark.parametrize(
    "name",
    ["", ".", "a.b", "*", "a*", ">", "a>", "a/b", "a\\b", "..", " ", "x" * 256, "ä" * 128],
)
def test_bad_names_are_refused(kind, name):
    """Dots, wildcards, slashes and more than 255 bytes are refused."""
    with pytest.raises(InvalidNameError) as caught:
        CHECK_NAMES[kind](name)
    assert (caught.value.kind, caught.value.name) == (kind, name)


@given(ANY_TEXT)
def test_every_accepted_value_is_one_argument_of_a_protocol_line(text):
    """Every accepted value is UTF-8 and one argument of a protocol line."""
    for check in (check_subject, check_publish_subject, check_queue, *CHECK_NAMES.values()):
        try:
            assert check(text) == text
        except (BadSubjectError, InvalidNameError):
            continue
        assert text.encode().split() == ([text.encode()] if text else [])


@given(ANY_TEXT)
def test_every_subject_for_publishing_is_valid_for_subscribing(text):
    """Every subject for publishing is valid for subscribing."""
    try:
        check_publish_subject(text)
    except BadSubjectError:
        return
    assert check_subject(text) == text
    assert subject_matches(text, text)


@given(PATTERN, SUBJECT)
def test_matching_is_by_whole_tokens(pattern, subject):
    """`*` stands for one token, a final `>` for one or more, all else for itself."""
    assert subject_matches(pattern, subject) == matches_slowly(pattern, subject)


@given(PATTERN, PATTERN, SUBJECT)
def test_patterns_overlap_where_a_subject_falls_under_both(one, other, subject):
    """Patterns overlap if a subject matches both, in any order."""
    if subject_matches(one, subject) and subject_matches(other, subject):
        assert subjects_overlap(one, other)
    assert subjects_overlap(one, other) == subjects_overlap(other, one)


@pytest.mark.parametrize("check", [check_stream_name, check_consumer_name])
def test_names_of_other_clients(check):
    """A name that a server accepts can be used, as long as a subject can contain it."""
    assert check("a\x0b\x1b\u2003b") == "a\x0b\x1b\u2003b"
    for refused in (" ", "\t", "\r", "\n", "\f", "\0", ".", "*", ">", "/"):
        with pytest.raises(InvalidNameError):
            check(f"a{refused}b")
