"""
The application of ``jsm top``: a tab for each view, with keys and mouse, on a terminal or in a browser.

All requests are made by threads: those of `Poller`, and of workers of Textual for details and changes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.coordinate import Coordinate
from textual.filter import LineFilter, Monochrome
from textual.screen import ModalScreen
from textual.widgets import (
    Button,
    DataTable,
    Footer,
    Input,
    Label,
    Sparkline,
    Static,
    TabbedContent,
    TabPane,
)

from ... import errors
from ...exit_status import ExitStatus
from ...net.clock import monotonic
from ...workers import DeadLetter, DeadLetters
from ..consumers.consumers import info_blocks as consumer_blocks
from ..messages.view import header_lines
from ..shared.env import readable, single_line
from ..shared.listings import Lister
from ..shared.render import Block, Field, cell, styled
from ..shared.settings import Settings
from ..shared.status import one_line
from ..streams.streams import info_blocks as stream_blocks
from ..workers.tasks import call_blocks
from ..workers.worker import STACK
from .data import (
    BOTH,
    BUCKETS,
    CONSUMERS,
    DEAD_LETTERS,
    STREAMS,
    TASKS,
    VIEWS,
    WORKERS,
    Collector,
    Frame,
    Poller,
    Row,
    TopOptions,
    View,
    sparkline,
)

_GRAPH_WIDTH: Final = 24
#: Maximum number of rows of a table; the filter and the order choose them.
_MAX_ROWS: Final = 500
#: Interval of the checks for a new frame, in seconds.
_POLL_S: Final = 0.1
#: Maximum number of bytes of a body in the details.
_MAX_BODY_BYTES: Final = 16 * 1024

_HELP: Final = (
    ("1 to 9, v", "switch to a tab, to the next tab"),
    ("Tab", "go to the next table"),
    ("Enter, click", "show the details of a row"),
    ("s, click on a title", "sort by the next column, or by this one"),
    ("r", "reverse the order"),
    ("/", "filter by name; Enter keeps the filter, Esc removes it"),
    ("R, D", "requeue or discard a dead letter, after a confirmation"),
    ("p", "pause or resume"),
    ("q, Ctrl-C", "quit"),
)

# --- tables -------------------------------------------------------------------------------------


class ViewTable(DataTable[Text]):
    """The table of a view."""

    def __init__(self, settings: Settings, view: View, sort: int) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self.view = view
        self.sort_column: int = sort
        #: ``None``: the default order of the column.
        self.down: bool | None = None
        #: The rows that are shown, in their order.
        self.shown: list[Row] = []
        #: Shown below the titles of an empty table.
        self.note: Static = Static(classes="note")
        self._settings = settings

    def on_mount(self) -> None:
        """Create the columns."""
        for number, column in enumerate(self.view.columns):
            self.add_column(column.title.replace(" ", "\n"), key=str(number))
        self.header_height: int = 1 + any(" " in column.title for column in self.view.columns)
        if self.view.graph:
            self.add_column(self.view.graph, key="graph", width=_GRAPH_WIDTH)

    @property
    def selected(self) -> Row | None:
        """The row of the cursor; ``None``: the table is empty."""
        return self.shown[self.cursor_row] if 0 <= self.cursor_row < len(self.shown) else None

    def sort_by(self, column: int) -> None:
        """Sort by a column, or reverse the order if the table is sorted by it."""
        if column == self.sort_column:
            self.down = not self._is_down()
        else:
            self.sort_column, self.down = column, None

    def _is_down(self) -> bool:
        if self.down is not None:
            return self.down
        return self.view.is_down(self.shown, self.sort_column)

    def show(
        self, rows: Sequence[Row], text: str, error: errors.Error | None = None, age: float = 0.0
    ) -> None:
        """
        Show the rows that contain a text, and the reason why there are none or old ones, of `age` seconds.

        If the user moved the cursor, it stays on its row. Otherwise it stays at the top, where unreachable items are
        listed.
        """
        selected = self.selected if self.cursor_row else None
        before = [row.key for row in self.shown]
        self.shown = self.view.sorted(rows, self.sort_column, text, down=self.down)[:_MAX_ROWS]
        self._show_order()
        note = self.view.none if error is None else single_line(one_line(error))
        self.note.update(Text(f"As of {age:.0f} s ago: {note}" if error and rows else note))
        self.note.display = error is not None or not self.shown
        self._fit()
        lines = [self._cells(row) for row in self.shown]
        keys = [row.key for row in self.shown]
        if keys == before:
            for number, cells in enumerate(lines):
                for place, text_of_cell in enumerate(cells):
                    where = Coordinate(number, place)
                    if self.get_cell_at(where) != text_of_cell:
                        self.update_cell_at(where, text_of_cell, update_width=True)
            return
        scrolled = self.scroll_offset
        self.clear()
        for cells in lines:
            self.add_row(*cells)  # without a key: two workers of a process may have the same one
        if selected is not None and selected.key in keys:
            self.move_cursor(row=keys.index(selected.key), animate=False)
        self.scroll_to(*scrolled, animate=False)

    def _cells(self, row: Row) -> list[Text]:
        first, *others = self.view.columns
        if row.is_missing:
            name = f"{row.key} ({row.record.state})"
            cells = [Text(single_line(name), "red"), *(Text("?", "red") for _ in others)]
        else:
            cells = [cell(self._settings, column, row.fields) for column in (first, *others)]
        for column, text in zip(self.view.columns, cells, strict=True):
            text.justify = self._justify(column)
        if self.view.graph:
            cells.append(Text(sparkline(row.history, self.ordered_columns[-1].width)))
        return cells

    def _fit(self) -> None:
        """Drop the columns that may be dropped, as in other tables, and give the graph what is left."""
        drawn = self.ordered_columns[: len(self.view.columns)]
        for column in drawn:
            column.auto_width = True
        left = self.size.width - sum(column.get_render_width(self) for column in drawn)
        by_drop = sorted(zip(self.view.columns, drawn, strict=True), key=lambda pair: -pair[0].drop)
        for field, column in by_drop if self.size.width else ():
            if left < 0 and field.drop:
                left += column.get_render_width(self) - 2 * self.cell_padding
                column.auto_width, column.width = False, 0
        if self.view.graph and self.size.width:
            left -= 2 * self.cell_padding
            # Not without a part of its title.
            width = 0 if left < len(self.view.graph) else min(left, _GRAPH_WIDTH)
            self.ordered_columns[-1].width = width

    def _show_order(self) -> None:
        arrow = "▼" if self._is_down() else "▲"
        for number, column in enumerate(self.view.columns):
            mark = f" {arrow}" if number == self.sort_column else ""
            text = f"{column.title}{mark}"
            if self.header_height > 1:
                text = text.replace(" ", "\n", 1)
            drawn = self.ordered_columns[number]
            drawn.label = Text(text, justify=self._justify(column))
            drawn.content_width = max(drawn.content_width, *map(len, text.split("\n")))

    def _justify(self, column: Field) -> Literal["left", "right"]:
        known = [row for row in self.shown if not row.is_missing][:1]
        right = column.is_right([column.of(row.fields) for row in known])
        return "right" if right else "left"


class ViewTabs(TabbedContent):
    """
    Tabs that only the user switches.

    A table that is hidden passes the focus to its neighbour, and a browser that is shown again returns it to
    the former table: neither may bring back the tab of that table.
    """

    def on_tab_pane_focused(self, event: TabPane.Focused) -> None:
        """Keep the active tab."""
        event.stop()
        event.prevent_default()


# --- details ------------------------------------------------------------------------------------


_MISSING: Final = (Field("Name", "name"), Field("State", "state"), Field("Reason", "reason"))


def _details(settings: Settings, row: Row, view: View) -> Iterable[Block]:
    """Return everything that is known of a row without a request."""
    if row.is_missing:
        return [Block("", _MISSING, row.record)]
    if view is STREAMS or view is BUCKETS:
        return stream_blocks(settings, row.record)
    if view is CONSUMERS:
        return consumer_blocks(settings, row.record)
    if view is WORKERS:
        return _worker_blocks(row, view)
    if view is TASKS:
        return call_blocks(row.fields)
    return [Block("", view.columns, row.fields)]


def _worker_blocks(row: Row, view: View) -> Iterator[Block]:
    """Yield the process of a worker, its running messages, its handlers and its gauges."""
    yield Block("Process", view.columns, row.fields)
    for message in row.fields["running"]:
        block = STACK if row.fields["stacks"] else STACK[:-1]
        yield Block("Running message", block, (row.fields, message))
    for state in row.fields["handlers"]:
        yield Block("Handler", _HANDLER, state)
    for gauge in row.fields["gauges"]:
        labels = ", ".join(gauge["labels"].values())
        yield Block(f"{gauge['help']} {labels}", (Field("Value", "value"),), gauge)


_HANDLER: Final = (
    Field("Handler", "handler"),
    Field("Consumer", lambda state: f"{state['stream']} > {state['consumer']}"),
    Field("Threads", "slots"),
    Field("Running", "running"),
    Field("Waiting", "buffered"),
    Field("Done", "handled"),
    Field(
        "Unknown tasks", lambda state: ", ".join(sorted(state.get("unknown_tasks") or ())) or None
    ),
)


def _text_of(settings: Settings, blocks: Sequence[Block]) -> Text:
    """Return blocks of labels and values as one text."""
    text = Text()
    for block in blocks:
        lines = [(label, styled(parts)) for label, parts in block.lines(settings)]
        if not lines:
            continue
        text.append("\n" if text else "")
        if block.title:
            text.append(f"{single_line(block.title)}\n\n", "bold")
        width = max(len(label) for label, _ in lines) + 2
        for label, value in lines:
            text.append(f"{label:>{width}}: ", "dim")
            text.append_text(Text(f"\n{'':{width + 2}}").join(value.split("\n")))
            text.append("\n")
    return text


class _Dialog(ModalScreen[str]):
    """A window with a text and buttons; its result is the name of a button, or empty."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Close"),
        Binding("y", "confirm", show=False),
    ]

    def __init__(
        self,
        title: str,
        text: Text,
        buttons: Sequence[str],
        row: Row | None = None,
        *,
        confirms: bool = False,
    ) -> None:
        super().__init__()
        self._confirms = confirms
        self._title = title
        self._text = text
        self._buttons = buttons
        self._row = row

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(classes="dialog"):
            yield Label(Text(self._title), classes="dialog-title")
            if self._row is not None and self._row.history:
                yield Sparkline(self._row.history, summary_function=max)
            with VerticalScroll(classes="dialog-text"):
                yield Static(self._text, id="dialog-text")
            with Horizontal(classes="dialog-buttons"):
                for name in self._buttons:
                    yield Button(name, id=name.lower(), compact=True)

    def set_text(self, text: Text) -> None:
        """Replace the text, also before the window is drawn."""
        self._text = text
        self.on_mount()

    def on_mount(self) -> None:
        """Show the text that has arrived meanwhile."""
        for shown in self.query("#dialog-text").results(Static):
            shown.update(self._text)

    def action_leave(self) -> None:
        """Close the window."""
        self.dismiss("")

    def action_confirm(self) -> None:
        """Choose the first button of a confirmation."""
        if self._confirms:
            self.dismiss(self._buttons[0].lower())

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss("" if event.button.id == "close" else str(event.button.id))


# --- the application ----------------------------------------------------------------------------


class TopApp(App[None]):
    """The application; `run_app` runs it."""

    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    CSS: ClassVar[str] = """
    #title { text-style: bold; height: auto; }
    #state { height: auto; }
    #state.problem { color: $error; }
    #filter { display: none; height: 1; border: none; }
    .shown { display: block !important; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    TabPane { padding: 0; }
    ViewTable { height: 1fr; }
    .note { height: auto; color: $text-muted; display: none; }
    .dialog { width: 90%; height: auto; max-height: 90%; border: round $primary;
              background: $surface; padding: 0 1; }
    .dialog-title { text-style: bold; }
    .dialog-text { height: auto; max-height: 70vh; }
    .dialog Sparkline { height: 4; margin: 1 0; }
    .dialog-buttons { height: 1; margin-top: 1; }
    .dialog-buttons Button { margin-right: 2; background: $primary-background; }
    _Dialog { align: center middle; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("enter", "details", "Details", show=True),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("R", "change('requeue')", "Requeue"),
        Binding("D", "change('discard')", "Discard"),
        Binding("p", "pause", "Pause"),
        Binding("v", "next_view", "View"),
        Binding("question_mark,h", "help", "Help", key_display="?"),
        Binding("escape", "clear_filter", show=False),
        *(Binding(str(n + 1), f"view({n})", show=False) for n in range(len(VIEWS) + 1)),
    ]

    def __init__(self, lists: Lister, options: TopOptions) -> None:
        super().__init__()
        #: The exit status, if a signal ended the application.
        self.status: int = 0
        collector = Collector(lists, options)
        self.poller: Poller = Poller(lists.nc, collector, options.interval, options.view)
        self._settings = lists.settings
        self._nc = lists.nc
        self._js = lists.js
        self._options = options
        self._text = options.text
        self._drawn: object = None
        self._parent_pid = os.getppid()

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="title")
        yield Static(id="state")
        yield Input(self._text, placeholder="Filter by name", id="filter", compact=True)
        with ViewTabs(initial=self._options.view):
            with TabPane("Overview", id=BOTH):
                yield from self._tables(STREAMS, CONSUMERS)
            for view in VIEWS.values():
                # The first word, so that all tabs fit into 80 columns.
                with TabPane(view.title.partition(" ")[0], id=view.name):
                    yield from self._tables(view)
        yield Footer(compact=True, show_command_palette=False)

    def _tables(self, *views: View) -> ComposeResult:
        for view in views:
            sort = self._options.consumer_sort if view is CONSUMERS else view.sort
            table = ViewTable(self._settings, view, sort)
            yield table
            yield table.note

    def on_mount(self) -> None:
        """Draw the first frame."""
        self.query_one("#filter").set_class(bool(self._text), "shown")
        self._draw()
        self._focus_table()
        self.set_interval(_POLL_S, self._draw)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters for colours; ``--color never`` has the effect of NO_COLOR."""
        never = self._settings.env.variables.get("JSM_COLOR") == "never"
        return [*super().get_line_filters(), *([Monochrome()] if never else [])]

    # --- drawing --------------------------------------------------------------------------------

    def _draw(self, *, force: bool = False) -> None:
        """Show the last frame, if anything has changed."""
        orphaned = self.is_web and os.getppid() != self._parent_pid
        if orphaned or self.poller.failure is not None:
            self.exit()
            return
        problem = self.poller.problem()
        now = (self.poller.refreshes, problem, self.poller.paused)
        if (now == self._drawn and not force) or not self.query("#title"):
            return  # nothing is new, or the screen is being removed
        self._drawn = now
        frame = self.poller.frame
        info = self._nc.server_info
        paused = "   PAUSED, p resumes" if self.poller.paused else ""
        text = f"jsm top   {self._nc.connected_url or '-'}   {info.server_name} {info.version}"
        text += f"   every {self.poller.interval:g} s{paused}"
        self.query_one("#title", Static).update(Text(single_line(text)))
        state = self.query_one("#state", Static)
        state.set_class(bool(problem), "problem")
        state.update(Text(single_line(problem or frame.totals())))
        self._draw_tables(frame)

    def _draw_tables(self, frame: Frame) -> None:
        for table in self.active_tables:
            name = table.view.name
            if name in frame.rows or name in frame.errors:  # else it is being read
                age = monotonic() - frame.read_at.get(name, 0.0)
                table.show(frame.rows.get(name, ()), self._text, frame.errors.get(name), age)

    @property
    def active_tables(self) -> list[ViewTable]:
        """The tables of the active tab."""
        pane = self.query_one(TabbedContent).active_pane
        return [] if pane is None else list(pane.query(ViewTable))

    @property
    def table(self) -> ViewTable:
        """The table with the focus, or the first one of the active tab."""
        tables = self.active_tables
        return next((item for item in tables if item.has_focus), tables[0])

    def _focus_table(self) -> None:
        self.table.focus()

    # --- views ----------------------------------------------------------------------------------

    @on(TabbedContent.TabActivated)
    def _activated(self) -> None:
        self.poller.show(self.query_one(TabbedContent).active)
        self._draw(force=True)
        self.refresh_bindings()

    def action_view(self, number: int) -> None:
        """Show a tab."""
        self.query_one(TabbedContent).active = [BOTH, *VIEWS][number]
        self.call_after_refresh(self._focus_table)

    def action_next_view(self) -> None:
        """Show the next tab."""
        names = [BOTH, *VIEWS]
        self.action_view((names.index(self.query_one(TabbedContent).active) + 1) % len(names))

    def action_sort(self) -> None:
        """Sort by the next column."""
        table = self.table
        table.sort_by((table.sort_column + 1) % len(table.view.columns))
        self._draw(force=True)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.table.sort_by(self.table.sort_column)
        self._draw(force=True)

    @on(DataTable.HeaderSelected)
    def _header_selected(self, event: DataTable.HeaderSelected) -> None:
        table = event.data_table
        if isinstance(table, ViewTable) and event.column_index < len(table.view.columns):
            table.sort_by(event.column_index)
            self._draw(force=True)

    def action_pause(self) -> None:
        """Pause or resume."""
        self.poller.paused = not self.poller.paused

    def action_interrupt(self) -> None:
        """Quit with the status of Ctrl-C."""
        self.stop(ExitStatus.INTERRUPTED)

    def stop(self, status: int) -> None:
        """Quit with an exit status."""
        self.status = status
        self.exit()

    # --- filter ---------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Type a filter."""
        field = self.query_one("#filter", Input)
        field.set_class(True, "shown")
        field.focus()

    def action_clear_filter(self) -> None:
        """Remove the filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.set_class(False, "shown")
        self._focus_table()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._text = event.value
        self._draw(force=True)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.input.set_class(bool(event.value), "shown")
        self._focus_table()

    # --- details --------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show the keys."""
        width = max(len(key) for key, _ in _HELP)
        text = "\n".join(f"{key:<{width}}  {what}" for key, what in _HELP)
        self.push_screen(_Dialog("Keys", Text(text), ["Close"]))

    @on(DataTable.RowSelected)
    def action_details(self) -> None:
        """Show the details of a row."""
        table, row = self.table, self.table.selected
        if row is None:
            return
        if table.view is not DEAD_LETTERS:
            text = _text_of(self._settings, list(_details(self._settings, row, table.view)))
            self.push_screen(_Dialog(single_line(row.key), text, ["Close"], row))
            return
        buttons = ["Requeue", "Discard", "Close"] if self._options.may_change else ["Close"]
        blocks = [Block("", table.view.columns, row.fields)]
        text = _text_of(self._settings, blocks)
        dialog = _Dialog(single_line(row.key), text, buttons, row)
        self.push_screen(dialog, lambda result: self._chosen(result, row))

        def read() -> None:
            body = self._body(row.record)
            self.call_from_thread(dialog.set_text, Text("\n").join([text, body]))

        self._in_thread(read)

    def _body(self, letter: DeadLetter) -> Text:
        """Return subject, headers and data of a dead letter."""
        msg = DeadLetters(self._js).get_msg(letter)
        if msg is None:
            return Text("The message is no longer stored.")
        lines = [f"Subject: {single_line(msg.subject)}", *header_lines(msg.headers), ""]
        return Text("\n".join([*lines, readable(msg.data[:_MAX_BODY_BYTES])]))

    # --- changes --------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether an action is possible: dead letters are changed in their tab only."""
        if action == "change":
            tabs = self.query(TabbedContent)
            return (
                self._options.may_change and bool(tabs) and tabs.first().active == DEAD_LETTERS.name
            )
        return True

    def action_change(self, what: str) -> None:
        """Requeue or discard the selected dead letter."""
        row = self.table.selected
        if row is not None:
            self._chosen(what, row)

    def _chosen(self, what: str | None, row: Row) -> None:
        """Ask for a confirmation of a change."""
        if not what or not self._options.may_change:
            return
        texts = {
            "requeue": "Publish the message again, and remove it from the dead letters?",
            "discard": "Remove the message from the dead letters? A copy of a worker is deleted.",
        }
        title = f"{what.capitalize()} {single_line(row.key)}"
        text = Text(f"{texts[what]}\n\nPress y, or choose the button.")
        dialog = _Dialog(title, text, [what.capitalize(), "Close"], confirms=True)
        self.push_screen(dialog, lambda result: self._confirmed(result, row.record))

    def _confirmed(self, what: str | None, letter: DeadLetter) -> None:
        if not what:
            return

        def change() -> None:
            letters = DeadLetters(self._js)

            def report(done: str) -> None:
                self.call_from_thread(self._report, f"Dead letter {letter.seq} was {done}")

            if what == "requeue":
                ack = letters.requeue(letter)
                # Reported now: a later error is about the removal only.
                report(f"published again: {ack.stream} stored it as {ack.seq}")
            letters.discard(letter)
            if what == "discard":
                report("discarded")
            self.poller.refresh()

        self._in_thread(change)

    def _in_thread(self, work: Callable[[], object]) -> None:
        """Do something that makes requests in a thread, and report an error."""

        def guarded() -> None:
            try:
                work()
            except errors.Error as error:
                text = partial(self._report, one_line(error), failed=True)
                self.call_from_thread(text)

        self.run_worker(guarded, thread=True)

    def _report(self, text: str, *, failed: bool = False) -> None:
        severity: Any = "error" if failed else "information"
        self.notify(single_line(text), severity=severity, markup=False)


def run_app(app: TopApp) -> None:
    """Run the application until it is closed; raise what ended it."""
    signals = {signal.SIGINT: ExitStatus.INTERRUPTED, signal.SIGTERM: ExitStatus.TERMINATED}
    with app.poller:
        before = {
            number: signal.signal(number, lambda *_, status=status: app.stop(status))
            for number, status in signals.items()
        }
        try:
            app.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if app.poller.failure is not None:
        raise app.poller.failure
    if app.status == ExitStatus.INTERRUPTED:
        raise KeyboardInterrupt
    if app.status or app.return_code:
        raise SystemExit(app.status or app.return_code)
