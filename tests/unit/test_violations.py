"""Permission violations: the server's texts, and the fields read from them."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.protocol.parser import permissions_error

# The formats of nats-server's client.go, and their meanings.
TEXTS = [
    ('Permissions Violation for Publish to "a.b"', ("publish", "a.b", "")),
    ('Permissions Violation for Publish with Reply of "r"', ("reply", "r", "")),
    ('Permissions Violation for Subscription to "a.>"', ("subscribe", "a.>", "")),
    ('Permissions Violation for Subscription to "a" using queue "q"', ("subscribe", "a", "q")),
    ('Permissions Violation for Subscription to "a" (sid "5")', ("subscribe", "a", "")),
    (
        'Permissions Violation for Subscription to "a" using queue "q" (sid "5")',
        ("subscribe", "a", "q"),
    ),
    ('Permissions Violation for Subscription to "a.b", too many tokens', ("subscribe", "a.b", "")),
    ('permissions violation for publish to "x"', ("publish", "x", "")),
    # Go's %q of quotes, backslashes, letters and unprintable characters.
    (r'Permissions Violation for Publish to "a\"b\\c"', ("publish", 'a"b\\c', "")),
    ('Permissions Violation for Publish to "ä.☺"', ("publish", "ä.☺", "")),
    (
        r'Permissions Violation for Publish to "\a\x01\u00ad\U000e0001"',
        ("publish", "\a\x01\xad\U000e0001", ""),
    ),
    # Texts that the server does not send.
    (r'Permissions Violation for Publish to "\Uffffffff"', ("publish", "\ufffd", "")),
    ('Permissions Violation for Publish to "a', ("", "", "")),
    ("Permissions Violation for Publish to a", ("", "", "")),
    ("Permissions Violation", ("", "", "")),
    ("", ("", "", "")),
]


@pytest.mark.parametrize(("text", "meant"), TEXTS)
def test_operation_subject_and_queue_of_a_violation_are_read(text, meant):
    """Operation, subject and queue group are read; missing ones are empty."""
    error = pickle.loads(pickle.dumps(permissions_error(text)))
    assert (error.operation, error.subject, error.queue) == meant
    assert str(error) == text


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.text('a"\\', max_size=5))
def test_any_subject_comes_out_as_it_went_in(subject, queue):
    """JSON's quoting is a subset of Go's: common escapes have the same meaning."""
    quoted = [json.dumps(item, ensure_ascii=False) for item in (subject, queue)]
    text = f"Permissions Violation for Subscription to {quoted[0]} using queue {quoted[1]}"
    error = permissions_error(text)
    assert (error.operation, error.subject, error.queue) == ("subscribe", subject, queue)


@given(st.text(max_size=80))
def test_any_text_can_be_read(text):
    """Reading any text raises nothing."""
    for said in (text, f'Permissions Violation for Publish to "{text}'):
        assert str(permissions_error(said)) == said
