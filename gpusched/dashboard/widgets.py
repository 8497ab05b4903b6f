"""Widgets of the dashboard: the table of trials, and a question.

Hyperparameters stand before launches; what has no room is reached by scrolling sideways.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Label

from gpusched.dashboard import marks
from gpusched.dashboard.model import Standing, TrialRow
from gpusched.text import clean, flat, hparam_texts, show_metric

#: Columns before the hyperparameters, and behind them.
FIRST, LAST = ("trial", "state", "step", "metric", "best", "atoms"), ("launches",)


def columns(view: Standing) -> list[str]:
    """Return the names of the columns, those of the hyperparameters dotted; whichever trial is best, in one order."""
    by_age = sorted(view.trials, key=lambda trial: trial.id)
    names = dict.fromkeys(name for trial in by_age for name in _hparams(trial))
    return [*FIRST, *names, *LAST]


def _hparams(trial: TrialRow) -> dict[str, Any]:
    """Return the hyperparameters by column; one that is called as another column gets a longer name."""
    found = flat(trial.hparams)
    return {f"hparams.{name}" if name in FIRST + LAST else name: held for name, held in found}


def cells(view: Standing, trial: TrialRow, names: list[str], colour: str | None) -> list[Text]:
    """Word the cells of a trial. ``colour``: that of its atoms, None where it has none."""
    glyph, style = marks.TRIAL[trial.state]
    hparams = dict(hparam_texts(_hparams(trial)))
    best = view.best is not None and view.best.trial == trial.id
    shown = {
        "trial": Text(str(trial.id), "bold" if best else ""),
        "state": Text(f"{glyph} {trial.state}", style),
        "step": Text(str(trial.step or "-")),
        "metric": Text(show_metric(trial.metric)),
        "best": Text(show_metric(trial.best_metric), "bold" if best else ""),
        "atoms": Text(str(trial.atoms or "-"), colour or ""),
        "launches": Text(str(trial.incarnation or "-")),
    }
    return [
        shown[name] if name in shown else Text(hparams.get(clean(name, 60), "")[:24])
        for name in names
    ]


class TrialTable(DataTable[Text]):
    """The trials, a row each, in the order of the view."""

    def __init__(self) -> None:
        super().__init__(id="trials", cursor_type="row", fixed_columns=1)
        #: The trial that a person chose, followed wherever the order takes it; None: the cursor stays at the top.
        self.chosen: int | None = None
        self.under: int | None = None

    def show(self, view: Standing) -> None:
        """Bring the rows up to date, in order; the cursor stays with the chosen trial, or at the top."""
        names, trials, painted = columns(view), view.trials, marks.colours(view)
        if [key.value for key in self.columns] != names:
            self.clear(columns=True)
            for name in names:
                self.add_column(Text(view.metric if name == "metric" else name), key=name)
        place = {trial.id: number for number, trial in enumerate(trials)}
        for row_key in [key for key in self.rows if int(key.value or 0) not in place]:
            self.remove_row(row_key)
        there = {key.value for key in self.rows}
        for trial in trials:
            row = cells(view, trial, names, painted.get(trial.id))
            if str(trial.id) not in there:
                self.add_row(*row, key=str(trial.id))
                continue
            for name, cell, before in zip(names, row, self.get_row(str(trial.id)), strict=True):
                if cell != before:
                    self.update_cell(str(trial.id), name, cell, update_width=True)
        self.sort("trial", key=lambda cell: place[int(cell.plain)])
        self.under = None
        if trials:
            at = place.get(self.chosen, 0) if self.chosen is not None else 0
            self.under = trials[at].id
            self.move_cursor(row=at, scroll=False)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        number = event.row_key.value
        if number is not None and int(number) != self.under:  # moved by a key or a click
            self.chosen = self.under = int(number)


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
