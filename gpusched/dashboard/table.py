"""The table of trials: which are shown, in which order, and a line for each.

Columns that do not fit are left out one by one, down to the trial, the glyph of its state, its step and its metric.
Widths come from all trials of the view, in sight or not: columns stay in place while a person scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.marks import QUIET, clicking, fit, styled
from gpusched.dashboard.model import STATES, Standing, TrialRow
from gpusched.text import clean, hparam_texts, show_metric

GAP = 2
CURVE_LEAST, CURVE_MOST = 8, 20
NAME_MOST, VALUE_MOST = 12, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """Choices of the person who watches. ``wanted``: words that a trial must match, states among them."""

    sort: str = "metric"
    is_reversed: bool = False
    selected: int | None = None
    wanted: str = ""


#: Text and style of a trial's cell of this width.
Cell = Callable[[TrialRow, int], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Column:
    """``keep``: columns with less are left out first, or get the width ``shrunk``. ``sort``: order a click asks for."""

    name: str
    cell: Cell
    width: int
    keep: int
    most: int = 0
    shrunk: int = 0
    is_right: bool = True
    sort: str = ""
    is_hparam: bool = False


#: Sort keys; equal trials stay in the order of the metric.
_ORDERS: dict[str, Callable[[TrialRow], float]] = {
    "trial": lambda trial: trial.id,
    "state": lambda trial: STATES.index(trial.state) if trial.state in STATES else len(STATES),
    "step": lambda trial: -trial.step,
    "atoms": lambda trial: -trial.atoms,
}
SORTS = ("metric", *_ORDERS)


def order(view: Standing, choice: TableChoice) -> list[TrialRow]:
    """Choose and sort the trials for the table; trials without a metric come last in either direction."""
    sign = -1.0 if view.mode == "max" else 1.0
    by_metric: Callable[[TrialRow], float] = lambda trial: sign * (trial.metric or 0.0)  # noqa: E731
    found = sorted((t for t in view.trials if is_wanted(t, choice.wanted)), key=by_metric)
    found.sort(key=_ORDERS.get(choice.sort, by_metric), reverse=choice.is_reversed)
    if choice.sort == "metric":
        found.sort(key=lambda trial: trial.metric is None)
    return found


def is_wanted(trial: TrialRow, wanted: str) -> bool:
    """Tell whether a trial is in one of the states that are named, and holds every other word."""
    words = wanted.lower().split()
    if not words:
        return True
    states = [word for word in words if word == "live" or word in STATES]
    if states and trial.state not in states and not ("live" in states and trial.is_live):
        return False
    hparams = " ".join(f"{name}={value}" for name, value in hparam_texts(trial.hparams))
    text = f"{trial.id} {hparams} {trial.error or ''}".lower()
    return all(word in text for word in words if word not in states)


def title(view: Standing, choice: TableChoice, shown: int) -> tuple[Text, Text]:
    """Return both ends of the rule above: the sort order and the filter, and how many trials are not in the table."""
    by = view.metric if choice.sort == "metric" else choice.sort
    text = styled("trials", "bold").append(f" by {by} {'▴' if choice.is_reversed else '▾'}", QUIET)
    if choice.wanted:
        text.append(f"  with {clean(choice.wanted, 60)}", "bold yellow")
        return text, styled(f"{shown} of {view.trials_total}", QUIET)
    if view.trials_total <= len(view.trials):
        return text, Text()
    return text, styled(f"the {len(view.trials)} most relevant of {view.trials_total}", QUIET)


def table(view: Standing, width: int, choice: TableChoice) -> tuple[Text, list[Text], list[int]]:
    """Return a line of titles, a line for each trial, and the numbers of these trials."""
    trials = order(view, choice)
    columns = _fit(_columns(view, view.trials), width)
    colours = marks.colours(view)
    lines = [_row(trial, columns, colours.get(trial.id), choice, width) for trial in trials]
    for trial, line in zip(trials, lines, strict=True):
        if view.best is not None and trial.id == view.best.trial != choice.selected:
            line.style = "bold"
    return fit(_titles(columns, choice), width), lines, [trial.id for trial in trials]


def _row(
    trial: TrialRow, columns: Sequence[Column], colour: str | None, choice: TableChoice, width: int
) -> Text:
    # Texts with styles, put together once: a search of many trials draws every row twice a second.
    parts = [("▪", colour) if trial.atoms and colour else (" ", "")]
    for column in columns:
        if trial.error and column.is_hparam:  # a failed trial is looked at for its error
            parts.append((trial.error, "red"))
            break
        text, style = column.cell(trial, column.width)
        parts.append((_aligned(text, column), style))
    if trial.id == choice.selected:
        # One look from end to end: reversed, the colours of the cells would make a patchwork.
        line = styled("▸" + "".join(text for text, _ in parts)[1:].rstrip(), "reverse")
        line.append(" " * max(0, width - line.cell_len), "reverse")
    else:
        line = Text.assemble(*parts, style="" if trial.is_live else marks.RESTING)
        line.rstrip()
    return fit(line, width)


def _titles(columns: Sequence[Column], choice: TableChoice) -> Text:
    line = Text(" ")
    for column in columns:
        name = _aligned(column.name if column.width > 1 else "", column)
        text = styled(name, "bold" if column.sort == choice.sort else QUIET)
        line.append_text(clicking(text, f"sort('{column.sort}')") if column.sort else text)
    line.rstrip()
    return line


def _aligned(text: str, column: Column) -> str:
    if cell_len(text) > column.width:
        text = fit(Text(text), column.width).plain
    padding = " " * (column.width - cell_len(text))
    return (padding + text if column.is_right else text + padding) + " " * GAP


# ---------------------------------------------------------------- columns

ALWAYS = 100


def _columns(view: Standing, trials: Sequence[TrialRow]) -> list[Column]:
    state = 2 + max([len("state"), *(len(trial.state) for trial in trials)])
    return [
        _words(trials, "trial", ALWAYS, lambda trial: str(trial.id), sort="trial"),
        Column("state", _state, state, keep=85, shrunk=1, sort="state", is_right=False),
        _words(trials, "step", ALWAYS, lambda trial: str(trial.step), sort="step"),
        _words(trials, clean(view.metric, 12), ALWAYS, _metric, sort="metric"),
        _words(trials, "best", 51, lambda trial: show_metric(trial.best_metric)),
        Column("curve", _curve, CURVE_LEAST, most=CURVE_MOST, keep=81, is_right=False),
        _words(trials, "atoms", 91, lambda trial: str(trial.atoms or "-"), sort="atoms"),
        _words(trials, "launch", 71, lambda trial: str(trial.incarnation or "-")),
        _words(trials, "s/step", 50, _step_time),
        *_hparams(trials),
    ]


def _words(
    trials: Sequence[TrialRow],
    name: str,
    keep: int,
    text: Callable[[TrialRow], str],
    style: str = "",
    **more: Any,
) -> Column:
    """Make a column of plain texts, as wide as the widest of them."""
    width = max([len(name), *(len(text(trial)) for trial in trials)])
    return Column(name, lambda trial, _: (text(trial), style), width, keep, **more)


def _step_time(trial: TrialRow) -> str:
    return f"{trial.step_time_s:.3g}" if trial.step_time_s else "-"


def _metric(trial: TrialRow) -> str:
    return "nan" if trial.metric is None and trial.step else show_metric(trial.metric)


def _curve(trial: TrialRow, cells: int) -> tuple[str, str]:
    style = marks.CURVE if trial.is_live else marks.CURVE_RESTING
    return marks.sparkline(trial.curve, cells), style


def _state(trial: TrialRow, cells: int) -> tuple[str, str]:
    glyph, style = marks.state_of(trial.state)
    return f"{glyph} {trial.state}" if cells > 1 else glyph, style


def _hparams(trials: Sequence[TrialRow]) -> list[Column]:
    """Give each hyperparameter that differs between trials a column; the recipe's first is kept longest."""
    values = {trial.id: dict(hparam_texts(trial.hparams)) for trial in trials}
    names = list(dict.fromkeys(name for found in values.values() for name in found))
    if len(trials) > 1:
        by_name = {name: {found.get(name) for found in values.values()} for name in names}
        names = [name for name in names if len(by_name[name]) > 1] or names
    columns = []
    for place, name in enumerate(names):
        short = name.rpartition(".")[2]
        short = short if sum(other.rpartition(".")[2] == short for other in names) == 1 else name
        texts = {n: fit(Text(found.get(name, "")), VALUE_MOST).plain for n, found in values.items()}
        is_right = all(map(_is_number, filter(None, texts.values())))
        head, keep = clean(short, NAME_MOST), max(52, 70 - place)
        more = {"is_right": is_right, "is_hparam": True}
        columns.append(_words(trials, head, keep, _looked_up(texts), QUIET, **more))
    return columns


def _looked_up(texts: Mapping[int, str]) -> Callable[[TrialRow], str]:
    return lambda trial: texts[trial.id]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fit(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit, with the width of each."""
    kept = list(columns)

    def spare() -> int:
        return width - 1 - sum(column.width + GAP for column in kept) + GAP

    for column in sorted(columns, key=lambda column: column.keep):
        if spare() >= 0 or column.keep == ALWAYS:
            break
        if column.shrunk:
            kept[kept.index(column)] = replace(column, width=column.shrunk)
        else:
            kept.remove(column)
    for place, column in enumerate(kept):
        if column.most:
            more = min(max(0, spare()), column.most - column.width)
            kept[place] = replace(column, width=column.width + more)
    return kept
