"""Widgets of the dashboard: the table of trials, and a question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Label

from gpusched.dashboard import table
from gpusched.dashboard.marks import colours
from gpusched.dashboard.model import Standing
from gpusched.dashboard.table import TableChoice


class TrialTable(DataTable[Text]):
    """The trials that a person wants to see, a row each, in the order of a column."""

    def __init__(self) -> None:
        super().__init__(id="trials", cursor_type="row", fixed_columns=1)
        self.choice = TableChoice()
        #: The trial that a person chose, followed wherever the order takes it; None: the cursor stays at the top.
        self.chosen: int | None = None
        self.under: int | None = None
        self._view: Standing | None = None

    def choose(self, **changes: Any) -> None:
        """Change the order, or which trials are wanted."""
        self.choice = replace(self.choice, **changes)
        if self._view is not None:
            self.show(self._view)

    def choose_next_column(self) -> None:
        """Sort by the next column."""
        names = [str(key.value) for key in self.columns] or ["metric"]
        place = names.index(self.choice.sort) if self.choice.sort in names else 0
        self.choose(sort=names[(place + 1) % len(names)], is_reversed=False)

    def show(self, view: Standing) -> None:
        """Bring the rows up to date, in order; the cursor stays with the chosen trial, or at the top."""
        self._view = view
        names = table.columns(view)
        self._head(view, names)
        trials = table.order(view, self.choice)
        painted = colours(view)
        place = {trial.id: number for number, trial in enumerate(trials)}
        for row_key in [key for key in self.rows if int(key.value or 0) not in place]:
            self.remove_row(row_key)
        there = {key.value for key in self.rows}
        for trial in trials:
            cells = table.cells(view, trial, names, painted.get(trial.id))
            if str(trial.id) not in there:
                self.add_row(*cells, key=str(trial.id))
                continue
            for name, cell, before in zip(names, cells, self.get_row(str(trial.id)), strict=True):
                if cell != before:
                    self.update_cell(str(trial.id), name, cell, update_width=True)
        self.sort("trial", key=lambda cell: place[int(cell.plain)])
        self.under = None
        if trials:
            row = place.get(self.chosen, 0) if self.chosen is not None else 0
            self.under = trials[row].id
            self.move_cursor(row=row, scroll=self.chosen is not None)

    def _head(self, view: Standing, names: list[str]) -> None:
        """Show these columns, with a mark at the one that sorts."""
        if [key.value for key in self.columns] != names:
            self.clear(columns=True)
            for name in names:  # with room for the mark
                self.add_column(Text(f"{view.metric if name == 'metric' else name} "), key=name)
        order = "▴" if self.choice.is_reversed else "▾"
        for key, column in self.columns.items():
            mark = order if key.value == self.choice.sort else " "
            column.label = Text(column.label.plain[:-1] + mark)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        number = event.row_key.value
        if number is not None and int(number) != self.under:  # moved by a key or a click
            self.chosen = self.under = int(number)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        name, choice = str(event.column_key.value), self.choice
        self.choose(sort=name, is_reversed=name == choice.sort and not choice.is_reversed)


class YesOrNo(ModalScreen[bool]):
    """A question; y or Enter agrees, anything that closes it does not."""

    CSS = """
    YesOrNo { align: center middle; }
    YesOrNo Label { max-width: 90%; border: round $primary; padding: 0 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)"),
        Binding("n,escape,q", "dismiss(False)"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Label(f"{self._question}  y / n", markup=False)
