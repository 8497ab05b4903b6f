"""Widgets of the dashboard: the table of trials, a question, and a line of text."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Label

from gpusched.dashboard import table
from gpusched.dashboard.marks import colours
from gpusched.dashboard.model import Standing
from gpusched.dashboard.table import TableChoice


class TrialTable(DataTable[Text]):
    """The trials, a row each; a row keeps its place on the screen as a person's choice of order and filter has it."""

    def fill(self, view: Standing, choice: TableChoice, chosen: int | None) -> int | None:
        """Bring the rows up to date, in order; return the trial under the cursor: ``chosen``, or the first."""
        names = table.columns(view)
        self._head(view, choice, names)
        trials = table.order(view, choice)
        painted = colours(view)
        wanted = {str(trial.id) for trial in trials}
        for row_key in [key for key in self.rows if key.value not in wanted]:
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
        place = {trial.id: number for number, trial in enumerate(trials)}
        self.sort("trial", key=lambda cell: place[int(cell.plain)])
        if not trials:
            return None
        row = place.get(chosen, 0) if chosen is not None else 0
        self.move_cursor(row=row, scroll=chosen is not None)
        return trials[row].id

    def _head(self, view: Standing, choice: TableChoice, names: list[str]) -> None:
        """Show these columns, with a mark at the one that sorts."""
        if [key.value for key in self.columns] != names:
            self.clear(columns=True)
            for name in names:  # with room for the mark
                self.add_column(Text(f"{view.metric if name == 'metric' else name} "), key=name)
        for key, column in self.columns.items():
            mark = "▴" if choice.is_reversed else "▾"
            column.label = Text(
                column.label.plain[:-1] + (mark if key.value == choice.sort else " ")
            )


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


class Prompt(ModalScreen[str | None]):
    """A line of text; None where the person leaves with Escape."""

    CSS = """
    Prompt { align: center bottom; }
    Prompt Label { width: 100%; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)")]

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def compose(self) -> ComposeResult:
        yield Label(self._label, markup=False)
        yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
