"""What ``--templates`` fills in."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from jetstream_sync.cli.messages.outgoing import fill, fill_text, values_of
from jetstream_sync.cli.shared.status import CommandError

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
VALUES = {**values_of(7, MOMENT), "ID": "me"}
#: Seconds from 1970 to that moment, counted in days by hand: 56 years with 14 leap days, and a day.
UNIX = ((56 * 365 + 14 + 1) * 24 + 3) * 3600 + 4 * 60 + 5


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("no braces", "no braces"),
        ("{{Count}}", "7"),
        ("{{ Count }} of {{Count}}", "7 of 7"),
        ("{{ID}}/{{ID}}", "me/me"),
        ("{{Unix}}", str(UNIX)),
        ("{{UnixNano}}", f"{UNIX}678901000"),
        ("{{TimeStamp}}", MOMENT.astimezone().isoformat(timespec="seconds")),
        ("{{Time}}", f"{MOMENT.astimezone():%H:%M:%S}"),
        ("{single} {{Count}}}", "{single} 7}"),
    ],
)
def test_names_in_braces_are_filled_in(text, filled):
    """A name in braces is replaced, everything else stays as it is."""
    assert fill_text(text, VALUES) == filled


def test_bytes_that_are_no_text_stay():
    """Around a template, a body keeps bytes that are no UTF-8."""
    assert fill(b"\xff{{Count}}\xfe", VALUES) == b"\xff7\xfe"


@pytest.mark.parametrize("call", ["Random 3 5", "Random(3, 5)", " Random  3 5 "])
def test_random_has_a_length_in_range_and_differs(call):
    """Random makes letters and digits of a length in its range, another text each time."""
    texts = [fill_text("{{" + call + "}}", VALUES) for _ in range(200)]
    assert {len(text) for text in texts} == {3, 4, 5}
    assert all(re.fullmatch("[A-Za-z0-9]+", text) for text in texts)
    assert len(set(texts)) > 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{Cuont}}", "did you mean Count?"),
        ("{{}}", "expected one of Count"),
        ("{{Count 3}}", "takes no arguments"),
        ("{{Random}}", "two lengths"),
        ("{{Random 5}}", "two lengths"),
        ("{{Random 5 3}}", "must not exceed the second"),
        ("{{Random 1 99999999999}}", "64 MiB"),
        ("{{Random -1 3}}", "two lengths"),
    ],
)
def test_what_makes_no_sense_is_refused(text, said):
    """A name that is not known, or arguments that make no sense, are wrong usage."""
    with pytest.raises(CommandError) as caught:
        fill_text(text, VALUES)
    assert said in str(caught.value)
    assert caught.value.status == 2
