"""How the options of ``consumer next`` and ``consumer sub`` become an acknowledgement; no server is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import pytest

from jetstream_sync import AckPolicy, DeliverPolicy
from jetstream_sync.cli.messages.receive import Settle, check_received, start_fields
from jetstream_sync.cli.shared.status import CommandError

NONE: dict[str, Any] = {"no_ack": False, "nak": None, "term": False, "confirmed": False}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "ack"),
        ({"no_ack": True}, ""),
        ({"nak": timedelta(0)}, "nak"),
        ({"nak": timedelta(seconds=5)}, "nak"),
        ({"term": True}, "term"),
        ({"confirmed": True}, "ack"),
    ],
)
def test_one_option_selects_the_acknowledgement(given, word):
    """Without an option messages are acknowledged; a delay of 0 is none."""
    settle = Settle.of(AckPolicy.EXPLICIT, 5, **{**NONE, **given})
    assert (settle.word, settle.delay, settle.confirmed) == (
        word,
        given.get("nak") or None,
        given.get("confirmed", False),
    )


def test_two_options_exclude_each_other():
    """The error names both."""
    with pytest.raises(click.UsageError, match="--nak and --term exclude each other"):
        Settle.of(AckPolicy.EXPLICIT, 5, **{**NONE, "nak": timedelta(0), "term": True})


@pytest.mark.parametrize("policy", [AckPolicy.NONE, AckPolicy.FLOW_CONTROL])
def test_a_consumer_without_acknowledgements_gets_none(policy):
    """Its policy decides, whatever the options are."""
    assert not Settle.of(policy, 5, **NONE).wanted


def test_too_few_messages_are_an_error():
    """Without a wanted number, one message is enough."""
    check_received(3, 3)
    check_received(1, None)
    for number, wanted in ((2, 3), (0, None)):
        with pytest.raises(CommandError, match=f"received {number}"):
            check_received(number, wanted)


def test_the_last_messages_of_all_subjects_need_a_filter():
    """The server refuses the policy without one."""
    assert start_fields() == {"deliver_policy": "all"}
    last = start_fields(DeliverPolicy.LAST_PER_SUBJECT)
    assert last["filter_subjects"] == [">"]
