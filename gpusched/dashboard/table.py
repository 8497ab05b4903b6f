"""The table of trials. What does not fit is left out column by column, in the order of ``DROPPED_FIRST``.

With the least room only the trial, its state's glyph, step and metric are left. Widths come from all trials of the
view, not from those in sight, so nothing jumps while one scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.marks import QUIET, fit, styled
from gpusched.dashboard.model import TrialView, View
from gpusched.dashboard.ui import UiState, order, window
from gpusched.text import clean, hparam_texts, show_metric

GAP = 2

#: Left out first when there is not enough room; ``more hparams`` are all but the first hyperparameter, ``word`` is the
#: state in words beside its glyph.
DROPPED_FIRST = ("s/step", "best", "more hparams", "hparams", "launch", "curve", "word", "atoms")
CURVE_LEAST, CURVE_MOST = 8, 20
NAME_MOST, VALUE_MOST = 12, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``least`` and ``most``: how narrow and how wide it may be; the cell gets the width it has.

    ``shrunk``: how narrow it may be once what it is named for in ``DROPPED_FIRST`` has been left out.
    """

    name: str
    title: Callable[[int], str]
    cell: Callable[[TrialView, int], Text]
    least: int
    most: int = 0
    shrunk: tuple[str, int] = ("", 0)
    right: bool = True


def title(view: View, ui: UiState) -> tuple[Text, Text]:
    """Return the title for the rule above: the sort order, and how many trials are not in the table."""
    by = view.metric if ui.sort == "metric" else ui.sort
    text = styled("trials", "bold").append(f" by {by} {'▴' if ui.reverse else '▾'}", QUIET)
    if view.trials_total <= len(view.trials):
        return text, Text()
    return text, styled(f"the {len(view.trials)} most relevant of {view.trials_total}", QUIET)


def visible(rows: int) -> int:
    """Return how many trials a table of ``rows`` lines shows."""
    return max(1, rows - 1)


def table(view: View, width: int, rows: int, ui: UiState) -> list[Text]:
    """Return a line of titles, and up to ``rows`` - 1 trials."""
    trials = order(view, ui)
    if not trials:
        return [styled("no trial has been drawn yet", QUIET)][:rows]
    top = window(ui, [trial.id for trial in trials], visible(rows))
    columns, widths = _fit(_columns(view, trials), width)
    lines = [_titles(columns, widths, ui)]
    colours = marks.colours(view)
    best = view.best.trial if view.best is not None else None
    for trial in trials[top : top + visible(rows)]:
        line = _row(trial, columns, widths, colours)
        if trial.id == best:
            line.stylize_before("bold")
        elif not trial.is_live:
            line.stylize_before(marks.RESTING)
        if trial.id == ui.selected:
            # One look from end to end: reversed, the colours of the cells would make a patchwork.
            line = styled("▸" + line.plain[1:] + " " * max(0, width - line.cell_len), "reverse")
        lines.append(line)
    return lines[:rows]


def _row(
    trial: TrialView, columns: Sequence[Column], widths: Sequence[int], colours: dict[int, str]
) -> Text:
    line = styled("▪", colours[trial.id]) if trial.atoms and trial.id in colours else Text(" ")
    for column, cells in zip(columns, widths, strict=True):
        line.append_text(_aligned(column.cell(trial, cells), cells, column.right)).append(" " * GAP)
    line.rstrip()
    return line


# ---------------------------------------------------------------- columns


def _columns(view: View, trials: Sequence[TrialView]) -> list[Column]:
    def number(name: str, head: str, text: Callable[[TrialView], str]) -> Column:
        least = max([len(head), *(len(text(trial)) for trial in trials)])
        return Column(
            name=name,
            title=lambda _: head,
            cell=lambda trial, _: Text(text(trial)),
            least=least,
        )

    hparams = _HparamColumns(trials)
    word = 2 + max(len("state"), *(len(trial.state) for trial in trials))
    return [
        number("trial", "trial", lambda trial: str(trial.id)),
        Column(
            name="state",
            title=_state_title,
            cell=_state,
            least=word,
            shrunk=("word", 1),
            right=False,
        ),
        number("step", "step", lambda trial: str(trial.step)),
        number("metric", clean(view.metric, 12), _metric),
        number("best", "best", lambda trial: show_metric(trial.best_metric)),
        Column(
            name="curve",
            title=lambda _: "curve",
            cell=_curve,
            least=CURVE_LEAST,
            most=CURVE_MOST,
            right=False,
        ),
        number("atoms", "atoms", lambda trial: str(trial.atoms or "-")),
        number("launch", "launch", lambda trial: str(trial.incarnation or "-")),
        number("s/step", "s/step", _step_time),
        Column(
            name="hparams",
            title=hparams.title,
            cell=hparams.cell,
            least=hparams.needed(2),
            most=hparams.most,
            shrunk=("more hparams", hparams.needed(1)),
            right=False,
        ),
    ]


def _metric(trial: TrialView) -> str:
    return "nan" if trial.metric is None and trial.step else show_metric(trial.metric)


def _step_time(trial: TrialView) -> str:
    return "-" if trial.step_time_s is None else f"{trial.step_time_s:.3g}"


def _curve(trial: TrialView, cells: int) -> Text:
    return marks.sparkline(
        trial.curve, cells, marks.CURVE if trial.is_live else marks.CURVE_RESTING
    )


def _state_title(cells: int) -> str:
    return "state" if cells > 1 else ""


def _state(trial: TrialView, cells: int) -> Text:
    glyph, style = marks.state_of(trial.state)
    return styled(f"{glyph} {trial.state}" if cells > 1 else glyph, style)


def _fit(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """Return the columns that fit, and how wide each is."""
    dropped: set[str] = set()

    def least(column: Column) -> int:
        part, cells = column.shrunk
        return cells if part in dropped else column.least

    def needed() -> int:
        return (
            1 + sum(least(column) + GAP for column in columns if column.name not in dropped) - GAP
        )

    for name in DROPPED_FIRST:
        if needed() <= width:
            break
        dropped.add(name)
    kept = [column for column in columns if column.name not in dropped]
    widths = [least(column) for column in kept]
    spare = max(0, width - needed())
    # The hyperparameters first: what a trial *is* says more than a longer curve.
    for place in reversed(range(len(kept))):
        more = min(spare, max(0, kept[place].most - widths[place]))
        widths[place] += more
        spare -= more
    return kept, widths


def _titles(columns: Sequence[Column], widths: Sequence[int], ui: UiState) -> Text:
    line = Text(" ")
    for column, cells in zip(columns, widths, strict=True):
        text = styled(column.title(cells), "bold" if column.name == ui.sort else QUIET)
        line.append_text(_aligned(text, cells, column.right)).append(" " * GAP)
    line.rstrip()
    return line


def _aligned(cell: Text, cells: int, right: bool) -> Text:
    cell = marks.fit(cell, cells)
    padding = " " * (cells - cell.cell_len)
    return Text(padding).append_text(cell) if right else cell.append(padding)


# ---------------------------------------------------------------- hyperparameters


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    title: str
    cells: int
    numeric: bool


class _HparamColumns:
    """Hyperparameters of a table's trials, a column each: numbers stand under numbers, names are written once.

    Only those that differ between trials are shown; as many columns as there is room for, in the recipe's order.
    """

    def __init__(self, trials: Sequence[TrialView]) -> None:
        self._values = {trial.id: dict(hparam_texts(trial.hparams)) for trial in trials}
        names = list(dict.fromkeys(name for found in self._values.values() for name in found))
        if len(trials) > 1:
            differing = [name for name in names if self._differs(name)]
            names = differing or names
        self._parts = [self._part(name, names) for name in names]
        self.most = self.needed(len(self._parts))
        if any(trial.error for trial in trials):
            self.most = max(self.most, 60)

    def _differs(self, name: str) -> bool:
        return len({found.get(name) for found in self._values.values()}) > 1

    def _part(self, name: str, names: Sequence[str]) -> _Part:
        short = name.rpartition(".")[2]
        if sum(other.rpartition(".")[2] == short for other in names) > 1:
            short = name
        title = clean(short, NAME_MOST)
        values = [found[name] for found in self._values.values() if name in found]
        widest = max([cell_len(title), *(cell_len(value) for value in values)])
        numeric = all(_is_number(value) for value in values)
        return _Part(name, title, min(widest, max(VALUE_MOST, cell_len(title))), numeric)

    def needed(self, count: int) -> int:
        """Return the cells that the first ``count`` columns need."""
        count = min(count, len(self._parts))
        return sum(part.cells + GAP for part in self._parts[:count]) - GAP if count else 0

    def _that_fit(self, cells: int) -> Sequence[_Part]:
        count = len(self._parts)
        while count > 1 and self.needed(count) > cells:
            count -= 1
        return self._parts[:count]

    def title(self, cells: int) -> str:
        parts = self._that_fit(cells)
        return (" " * GAP).join(_placed(part.title, part) for part in parts).rstrip()

    def cell(self, trial: TrialView, cells: int) -> Text:
        """Return the values; of a failed trial its error."""
        if trial.error:
            return styled(trial.error, "red")
        values = self._values[trial.id]
        parts = self._that_fit(cells)
        line = (" " * GAP).join(_placed(values.get(part.name, ""), part) for part in parts)
        return styled(line.rstrip(), QUIET)


def _placed(text: str, part: _Part) -> str:
    text = fit(Text(text), part.cells).plain
    padding = " " * (part.cells - cell_len(text))
    return padding + text if part.numeric else text + padding


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
