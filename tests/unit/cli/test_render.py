"""Tables and labelled blocks, on terminals of several widths and in pipes."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.output import limit, size
from jetstream_sync.cli.shared.render import Block, Field, Table, bad, show_blocks, show_rows, warn
from jetstream_sync.cli.shared.settings import Settings

pytest.importorskip("rich")

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
FIELDS = (
    Field("Name", "name"),
    Field("Description", "text", drop=2),
    Field("Created", "created", drop=1),
    Field("Messages", "state.messages"),
    Field("Size", "state.bytes", size),
    Field("Lost", "lost", if_set=True),
)
ROWS: list[dict[str, Any]] = [
    {
        "name": "ORDERS",
        "text": "orders of all shops",
        "created": MOMENT,
        "state": {"messages": 1_000_001, "bytes": 2048},
        "lost": 0,
    },
    {"name": "A", "text": "", "created": None, "state": None, "lost": 0},
]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what is written on a terminal of some width; width 0 is a pipe."""

    def write(show: Callable[[Settings], None], width: int = 0, **variables: str) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        out = Terminal() if width else io.StringIO()
        variables = {"TERM": "xterm", "NO_COLOR": "1", **variables}
        env = Environment(stdin=io.BytesIO(), stdout=out, stderr=io.StringIO(), variables=variables)
        show(Settings(env=env, given={"utc": True, "json": "JSON" in variables}))
        return re.sub(r"\x1b\[[01]?m", "", out.getvalue())  # bold

    return write


def table(settings: Settings) -> None:
    show_rows(settings, ROWS, Table(FIELDS, "Streams", "No Streams"))


def test_pipe_gets_aligned_text_that_is_never_cut(shown):
    """Numbers are aligned to the right, times have their offset, and empty columns are left out."""
    assert shown(table).splitlines() == [
        "Streams",
        "Name    Description          Created                     Messages     Size",
        "ORDERS  orders of all shops  2026-01-02 03:04:05+00:00  1,000,001  2.0 KiB",
        "A",
    ]


def test_json_has_the_same_rows(shown):
    """With --json, the rows are a JSON list, also if there are none."""
    rows = [{"name": "A"}]

    def show(settings: Settings) -> None:
        show_rows(settings, rows, Table(FIELDS, "Streams", "No Streams"))

    assert shown(show, JSON="1") == '[\n  {\n    "name": "A"\n  }\n]\n'
    rows.clear()
    assert shown(show, JSON="1") == "[]\n"
    assert shown(show) == "No Streams\n"


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, ["Name", "Description", "Created", "Messages", "Size"]),
        (60, ["Name", "Created", "Messages", "Size"]),
        (40, ["Name", "Messages", "Size"]),
    ],
)
def test_columns_are_dropped_by_priority_at_narrow_widths(shown, width, titles):
    """A terminal shows a table of at most its width, with short times and the important columns."""
    lines = shown(table, width).splitlines()
    assert lines[1].split() == titles
    assert max(map(len, lines)) <= width
    assert ("2026-01-02 03:04 " in lines[3]) is ("Created" in titles)
    assert "ORDERS" in lines[3]


def test_text_is_folded_and_numbers_are_not(shown):
    """A long name takes several lines before a number loses a digit."""
    rows = [{"name": "N" * 50, "number": 1_000_000}]
    fields = (Field("Name", "name"), Field("Number of messages", "number"))
    text = shown(lambda item: show_rows(item, rows, Table(fields, "T")), 30)
    assert "1,000,000" in text
    assert text.count("N") == 52  # the name and two titles
    assert max(map(len, text.splitlines())) <= 30


def test_states_have_colours_on_terminals(shown):
    """Failures and warnings are coloured, unless colours are off or the output is a pipe."""
    fields = (Field("Servers", lambda _: ["a*", bad("b!"), warn("c")]),)

    def show(settings: Settings) -> None:
        show_rows(settings, [{}], Table(fields, "T"))

    assert "a*, \x1b[31mb!, \x1b[33mc" in shown(show, 80, NO_COLOR="")
    assert "a*, b!, c" in shown(show, 80)
    assert "a*, b!, c" in shown(show)


def test_dumb_terminal_gets_plain_text(shown):
    """A terminal without control sequences gets the text of a pipe."""
    assert shown(table, 40, TERM="dumb") == shown(table)


@pytest.mark.parametrize("width", [0, 80])
def test_text_of_others_is_escaped(shown, width):
    """Control characters are escaped, and markup of rich is text."""
    rows = [{"name": "[red]\x1b[2J\nx"}]
    fields = (Field("[b]Name", "name"),)

    def show(settings: Settings) -> None:
        show_rows(settings, rows, Table(fields, "[b]T"))
        show_blocks(settings, {}, Block("", fields, rows[0]))

    text = shown(show, width)
    assert "[red]\\x1b[2J\\nx" in text
    assert "\x1b" not in text
    assert text.startswith("[b]T")


@pytest.mark.parametrize("width", [0, 80])
def test_blocks_have_aligned_labels(shown, width):
    """Empty values and blocks are left out, a list can have a line for each item, and lines are indented."""
    record = {"age": timedelta(days=1), "text": "one\ntwo", "flag": True, "tags": ["a", "b"]}
    fields = (
        Field("Age", "age"),
        Field("Text", "text"),
        Field("Flag", "flag", if_set=True),
        Field("Maximum", "maximum", limit),
        Field("Missing", "missing"),
        Field("Zero", lambda _: 0, if_set=True),
        Field("Tags", "tags"),
        Field("Tag", "tags", each=True),
    )
    blocks = Block("", fields, record), Block("Empty", fields[4:5], record)
    text = shown(lambda item: show_blocks(item, record, *blocks, heading="Head"), width)
    assert [line.rstrip() for line in text.splitlines()] == [
        "Head",
        "",
        "      Age: 1d (24h0m0s)",
        "     Text: one",
        "           two",
        "     Flag: true",
        "  Maximum: Unlimited",
        "     Tags: a, b",
        "      Tag: a",
        "      Tag: b",
    ]


def test_cost_of_a_table_grows_with_its_rows(shown):
    """Ten times as many rows take about ten times as many calls."""

    def calls(rows: int) -> int:
        found = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        listed = [{**ROWS[0], "name": f"S{number}"} for number in range(rows)]

        def show(settings: Settings) -> None:
            sys.setprofile(count)
            try:
                show_rows(settings, listed, Table(FIELDS, "Streams"))
            finally:
                sys.setprofile(None)

        shown(show)
        return found

    few = calls(100)
    assert calls(1000) < 11 * few


@pytest.mark.parametrize("variables", [{}, {"JSON": "1"}])
def test_rows_are_written_as_they_come(shown, variables):
    """An error at the end of the rows leaves those before it in the output."""

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(2500):
            yield {**ROWS[0], "name": f"S{number}", "created": None, "text": "x" * (number // 1000)}
        raise ValueError("the listing is incomplete")

    def show(settings: Settings) -> None:
        with pytest.raises(ValueError, match="incomplete"):
            show_rows(settings, rows(), Table(FIELDS, "Streams"))

    text = shown(show, **variables)
    if variables:
        assert [row["name"] for row in json.loads(text)] == [f"S{number}" for number in range(2500)]
        return
    lines = text.splitlines()
    # A column that gets its first value later has its title above it.
    titles = [place for place, line in enumerate(lines) if line.startswith("Name")]
    assert titles == [1, 1002]
    assert lines[-1].split()[:2] == ["S2499", "xx"]
