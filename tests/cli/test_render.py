"""Tables on terminals and in pipes."""

from __future__ import annotations

import io
import sys

import pytest

from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.render import Table, write_table


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def written(table: Table, out: io.StringIO, **variables: str) -> str:
    env = Environment(stdin=io.BytesIO(), stdout=out, stderr=io.StringIO(), variables=variables)
    write_table(table, env)
    return out.getvalue()


TABLE = Table(title="T", columns=("stream", "bytes"), rows=[("a name", "1,000,000")])


def test_a_table_on_a_terminal_is_drawn() -> None:
    """On a terminal the table has lines, and colours unless NO_COLOR is set."""
    pytest.importorskip("rich")
    assert "─" in written(TABLE, Terminal(), TERM="xterm")
    assert "\x1b[3" not in written(TABLE, Terminal(), TERM="xterm", NO_COLOR="1")


def test_a_dumb_terminal_gets_plain_text() -> None:
    """A terminal without control sequences gets the plain text of a pipe."""
    assert written(TABLE, Terminal(), TERM="dumb") == written(TABLE, io.StringIO())


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything works without the extra."""
    for name in ("rich", "rich.console", "rich.progress", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    assert written(TABLE, Terminal(), TERM="xterm").isascii()


def test_a_plain_table_is_aligned_and_never_cut() -> None:
    """Columns are as wide as their widest cell: names to the left, numbers to the right."""
    table = Table(title="T", columns=("name", "n"), rows=[("x" * 300, "1"), ("y", "1,000")])
    lines = written(table, io.StringIO()).splitlines()
    assert lines[0] == "T"
    assert lines[2] == "x" * 300 + "      1"
    assert lines[3] == "y" + " " * 301 + "1,000"


def test_markup_in_a_cell_is_text() -> None:
    """Text that looks like rich's markup is shown as it is."""
    pytest.importorskip("rich")
    table = Table(title="[b]T[/b]", columns=("n",), rows=[("[red]x[/red]",)])
    text = written(table, Terminal(), TERM="xterm", NO_COLOR="1")
    assert "[red]x[/red]" in text
    assert "[b]T[/b]" in text


@pytest.mark.parametrize(("width", "drawn"), [(22, True), (21, False)])
def test_a_table_is_drawn_only_where_it_fits(
    monkeypatch: pytest.MonkeyPatch, width: int, drawn: bool
) -> None:
    """A table that is too wide for the terminal is plain text, and no cell is folded."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    text = written(TABLE, Terminal(), TERM="xterm", NO_COLOR="1")
    assert any("a name" in line and "1,000,000" in line for line in text.splitlines())
    assert ("│" in text) is drawn
